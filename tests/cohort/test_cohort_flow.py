"""The flow of a cohort as a diagram."""

from xml.etree import ElementTree

from fdtr.cohort.cohort_flow import Flow


def test_the_drawing_has_every_rule_with_its_reason_and_number():
    drawn = Flow("ICU stays", 1_000).then("of adults", left=900).then("a rule <that> removes nobody", left=900).as_svg()
    root = ElementTree.fromstring(drawn)
    texts = [text.text for text in root.iter("{http://www.w3.org/2000/svg}text")]
    assert texts == [
        "ICU stays", "n = 1,000", "Removed: n = 100", "does not meet: of adults", "Left", "n = 900", "Removed: n = 0",
        "does not meet: a rule <that> removes nobody", "In the table", "n = 900",
    ]  # fmt: skip
    boxes = [box for box in root.iter("{http://www.w3.org/2000/svg}rect") if box.get("x")]
    middle = {float(box.get("x")) + float(box.get("width")) / 2 for box in boxes[::2]}
    down = [line for line in root.iter("{http://www.w3.org/2000/svg}line") if line.get("x1") == line.get("x2")]
    assert {float(line.get("x1")) for line in down} == middle
    assert len(down) == 2
