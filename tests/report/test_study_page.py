"""The report: what stands on the page, and what never does."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from html.parser import HTMLParser
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fdtr.disclosure import Verdict
from fdtr.errors import TooFewPatients, TooFewPerAction
from fdtr.inference import FTest, Identified
from fdtr.policy import ActionValue, Explanation
from fdtr.report.charts import MOST_LINES, nice_ticks, spread
from fdtr.report.page import Html, number, percent, tag
from fdtr.report.study_page import CITATION, Example, MethodValue, StudyView, render
from fdtr.site import SiteCheck
from fdtr.study import Study

pytestmark = pytest.mark.quick

ATTACK = "<script>alert(1)</script>\"'&"
VOID = {"meta"}
ALWAYS = [
    "In short",
    "What the policy does",
    "Shared effects over time",
    "The data",
    "What is identified",
    "Do the transitions fit the model?",
    "What disclosure would say",
    "Settings",
]


@dataclass(frozen=True)
class Practice:
    recommended: Any
    given: Any
    agreement: float


def study(**changes: Any) -> Study:
    fields = {
        "name": "fluids",
        "horizon": 3,
        "actions": {"levels": [0, 1], "labels": ["none", "500 ml"]},
        "covariates": [{"name": "age", "effect": "shared", "range": [18, 100]}, {"name": "sbp", "range": [40, 220]}],
    }
    return Study.model_validate(fields | changes)


def check(site: str, **changes: Any) -> SiteCheck:
    return replace(
        SiteCheck(
            site=site,
            n_patients=1234,
            n_rows=3702,
            action_counts=np.array([[1230, 4], [617, 617], [7, 1227]]),
            clipped={"age": 0, "sbp": 31},
            filled={"age": 0, "sbp": 0},
            identified=[Identified("age", 0.42, ""), Identified("a·age", 1e-17, "it is constant within the site")],
            transitions=[FTest(2.0, 2, 1200, 0.0312), FTest(np.nan, 0, 0, np.nan)],
            verdicts=[Verdict(TooFewPatients, 0, True, "1234 patients", "50")],
        ),
        **changes,
    )


def view(**changes: Any) -> StudyView:
    sites = ("north", "south")
    shares = np.array([[0.75, 0.25], [0.5, 0.5], [0.0, 1.0]])
    return StudyView(
        study=changes.pop("study", study()),
        version="9.8.7",
        checks={site: check(site) for site in changes.get("practice", sites)},
        practice=changes.pop("practice", {site: Practice(shares, shares[:, ::-1], 0.375) for site in sites}),
        shared_names=changes.pop("shared_names", ("age", "a·age")),
        shared_coefficients=changes.pop("shared_coefficients", np.array([[0.111, 9.0], [-0.222, 9.0], [0.333, 9.0]])),
        **changes,
    )


VALUES = (
    MethodValue("Clinicians", 1.5, 1.45, 1.55, {"north": 1.4, "south": 1.6}),
    MethodValue("LDTR", 1.78, 1.7, 1.86, {"north": 1.71, "south": 1.85}),
    MethodValue("FDTR", 1.8, 1.75, 1.85, {"north": 1.72, "south": 1.88}),
)


def example() -> Example:
    none = ActionValue(0, "none", 1.9, 0.4, 1.5, 0.6, 1.3)
    fluids = ActionValue(1, "500 ml", 2.1, 0.35, 1.75, 0.7, 1.4)
    return Example({"age": 67.0, "sbp": 92.5}, 0, {"north": Explanation(0, fluids, (none, fluids), ())})


class Page(HTMLParser):
    """Checks that elements close in order, and keeps headings, text, attributes and elements."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.headings: list[str] = []
        self.words: list[str] = []
        self.feed(html)
        self.close()
        assert not self.open

    def handle_starttag(self, name: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((name, dict(attrs)))
        if name not in VOID:
            self.open.append(name)

    def handle_endtag(self, name: str) -> None:
        assert self.open.pop() == name

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "h2":
            self.headings.append(data)
        if self.open and self.open[-1] != "style":
            self.words.append(data)

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", " ".join(self.words))


def drawings(html: str) -> Iterator[ElementTree.Element]:
    """The charts of a page, parsed as XML."""
    for found in re.findall(r'<svg role="img".*?</desc>.*?</svg>(?=<figcaption|</figure)', html, flags=re.DOTALL):
        yield ElementTree.fromstring(found)


def cells(html: str, caption: str) -> list[list[str]]:
    """The rows of a table below its head, as text."""
    found = re.search(rf"<caption>{re.escape(caption)}</caption>(.*?)</table>", html, flags=re.DOTALL)
    assert found, caption
    rows = re.findall(r"<tr>(.*?)</tr>", found[1].split("</thead>")[1], flags=re.DOTALL)
    return [[re.sub("<[^>]+>", "", cell) for cell in re.findall(r"<t[hd].*?</t[hd]>", row)] for row in rows]


def test_a_plain_run_has_neither_values_nor_an_example() -> None:
    html = render(view())
    page = Page(html)
    assert page.headings == ALWAYS
    assert "is not estimated here" in page.text


def test_values_and_an_example_add_their_sections() -> None:
    page = Page(render(view(values=VALUES, values_note="On 7 fresh patients.", example=example())))
    extra = ["Value of each method", "What each hospital would do for one patient"]
    assert page.headings == [ALWAYS[0], *extra, *ALWAYS[1:]]
    assert "On 7 fresh patients." in page.text


def test_the_page_stands_alone() -> None:
    html = render(view(values=VALUES, example=example()))
    page = Page(html)
    names = {name for name, _ in page.elements}
    assert not names & {"script", "link", "img", "iframe", "object", "embed"}
    assert not re.search(r"https?:|url\(|@import|//", html)
    assert all(str(attrs.get("href", "#")).startswith("#") for _, attrs in page.elements)
    assert not any(key.startswith("on") for _, attrs in page.elements for key in attrs)
    assert CITATION in page.text
    assert "doi:10.1080/01621459.2024.2310287" in page.text


def test_what_people_wrote_is_escaped() -> None:
    shares = np.full((3, 2), 0.5)
    attacked = view(
        study=study(name=ATTACK, actions={"levels": [0, 1], "labels": [ATTACK, "b"]}),
        practice={ATTACK: Practice(shares, shares, 0.5)},
        shared_names=(ATTACK, "a·age"),
        values=(replace(VALUES[0], method=ATTACK),),
        values_note=ATTACK,
        example=replace(example(), state={ATTACK: 1.0}),
    )
    html = render(attacked)
    assert "<script" not in html
    assert html.count("&lt;script&gt;") > 10
    assert not any(name == "script" for name, _ in Page(html).elements)
    assert len(list(drawings(html))) == 3


def test_every_link_leads_to_a_section_and_no_id_is_used_twice() -> None:
    page = Page(render(view(values=VALUES, example=example())))
    ids = [attrs["id"] for _, attrs in page.elements if "id" in attrs]
    assert len(set(ids)) == len(ids)
    assert {str(attrs["href"])[1:] for name, attrs in page.elements if name == "a"} <= set(ids)


def test_every_row_is_as_wide_as_its_table() -> None:
    html = render(view(values=VALUES, example=example()))
    for found in re.findall(r"<table>.*?</table>", html, flags=re.DOTALL):
        rows = re.findall(r"<tr>.*?</tr>", found)
        spans = [re.findall(r"<t[hd](?: [^>]*?colspan=\"(\d+)\")?[ >]", row) for row in rows]
        assert len({sum(int(span or 1) for span in row) for row in spans}) == 1


def test_the_page_is_accessible() -> None:
    html = render(view(values=VALUES, example=example()))
    page = Page(html)
    assert html.startswith('<!DOCTYPE html>\n<html lang="en">')
    assert sum(name == "h1" for name, _ in page.elements) == 1
    assert all(attrs.get("scope") in ("col", "row", "rowgroup") for name, attrs in page.elements if name == "th")
    count = {name: sum(name == found for found, _ in page.elements) for name in ("table", "caption")}
    assert count["table"] == count["caption"] > 0
    for drawing in drawings(html):
        assert drawing.get("role") == "img"
        labels = [drawing.findtext("title"), drawing.findtext("desc")]
        assert all(labels)


def test_the_value_chart_has_one_dot_and_one_interval_for_each_method() -> None:
    chart = next(drawings(render(view(values=VALUES))))
    assert len(chart.findall("circle")) == len(VALUES)
    assert sum(line.get("class") == "mark" for line in chart.findall("line")) == len(VALUES)
    assert {row.method for row in VALUES} <= {text.text for text in chart.findall("text")}


def test_values_are_told_in_words_and_in_the_table() -> None:
    html = render(view(values=VALUES))
    text = Page(html).text
    assert "FDTR's rules are worth 1.80 (1.75 to 1.85), of at most 3" in text
    assert "FDTR is worth 0.30 more, or 0.100 a step; the intervals do not overlap." in text
    assert "The best of the other methods, LDTR, is worth 1.78" in text
    assert "FDTR is worth 0.02 more, or 0.007 a step; the intervals overlap." in text
    assert "raw reward" not in text
    rows = cells(html, "Value of each method, overall and by hospital")
    assert rows[2] == ["FDTR", "1.80", "1.75 to 1.85", "1.72", "1.88"]


def test_a_method_better_than_fdtr_is_said_to_be_better() -> None:
    better = replace(VALUES[1], value=1.9)
    assert "FDTR is worth 0.10 less" in Page(render(view(values=(better, VALUES[2])))).text


def test_values_are_given_in_raw_reward_where_it_is_not_mapped_onto_itself() -> None:
    html = render(view(study=study(reward={"range": [-10, 10]}), values=VALUES))
    # three steps of at least −10 each, and 20 for every mapped unit: −30 + 20 · 1.8 = 6
    assert "1.80 (1.75 to 1.85; 6.00 in raw reward)" in Page(html).text
    assert "0.30 more (6.00 in raw reward)" in Page(html).text
    assert cells(html, "Value of each method, overall and by hospital")[2][3] == "6.00"


def test_the_example_shows_how_each_bound_comes_about() -> None:
    html = render(view(example=example()))
    assert "A made-up patient at step 0: age 67 and sbp 92.5." in Page(html).text
    rows = cells(html, "Each hospital's choice, and what it rests on".replace("'", "&#x27;"))
    assert rows == [
        ["north: 500 ml"],
        ["none", "1.90", "0.40", "1.50", "0.60", "1.30"],
        ["500 ml (chosen)", "2.10", "0.35", "1.75", "0.70", "1.40"],
    ]


def test_practice_stands_in_the_table_and_in_the_columns() -> None:
    html = render(view())
    assert "The same in 38% of decisions" in html
    rows = cells(html, "Share of patients, given → recommended")
    assert [cell.replace("\N{FIGURE SPACE}", "") for cell in rows[1]] == ["none", "25% → 75%", "50% → 50%", "100% → 0%"]
    bars = next(drawings(html))
    assert len(bars.findall("rect")) == 10  # of 2 · 3 · 2 shares, two are 0


def test_effects_that_nobody_identifies_are_marked_and_not_drawn() -> None:
    html = render(view())
    rows = cells(html, "Shared coefficients")
    assert rows[0] == ["age", "0.111", "−0.222", "0.333"]
    assert rows[1][0] == "a·age (not identified)"
    chart = list(drawings(html))[-1]
    assert [line.findtext("title") for line in chart.findall("g")] == ["age"]


def test_many_shared_effects_are_drawn_up_to_a_limit_and_all_in_the_table() -> None:
    names = tuple(f"x{j}" for j in range(MOST_LINES + 4))
    html = render(view(shared_names=names, shared_coefficients=np.outer(np.ones(3), np.arange(len(names)))))
    drawn = [line.findtext("title") for line in list(drawings(html))[-1].findall("g")]
    assert drawn == list(names[4:])
    assert len(cells(html, "Shared coefficients")) == len(names)


def test_a_study_without_shared_features_says_so() -> None:
    html = render(view(shared_names=(), shared_coefficients=np.zeros((3, 0))))
    assert "no shared feature" in Page(html).text


def test_one_site_and_one_step_make_a_page() -> None:
    alone = view(
        study=study(horizon=1),
        practice={"north": Practice(np.array([[1.0, 0.0]]), np.array([[0.0, 1.0]]), 0.0)},
        shared_coefficients=np.array([[0.1, 0.2]]),
    )
    only = check("north", action_counts=np.array([[1230, 4]]), transitions=[])
    text = Page(render(replace(alone, checks={"north": only}))).text
    assert "1 step" in text
    assert "1 hospital." in text
    assert "no transitions to test" in text


def test_the_data_and_what_they_identify_are_shown() -> None:
    html = render(view())
    data = cells(html, "Patients and rows, and values changed on reading")
    assert data[0] == ["north", "1,234", "3,702", "sbp 31", "none"]
    assert cells(html, "Patients by action and step")[2] == ["500 ml", "4", "617", "1,227"]
    assert cells(html, "Share of each shared feature that is left, averaged over steps") == [
        ["age", "42%", "42%"],
        ["a·age", "0%", "0%"],
    ]
    text = Page(html).text
    assert "No information at any hospital on a·age. Reason: it is constant within the site." in text
    assert "For use at home; not checked for disclosure" in text


def test_p_values_are_shown_and_small_ones_marked() -> None:
    html = render(view())
    assert cells(html, "p-values of the F test, by step")[0] == ["north", "0.031 *", "–"]
    assert "2 of 2 tests" in Page(html).text


def test_disclosure_names_the_rules_that_fail_once_each() -> None:
    failing = [Verdict(TooFewPerAction, h, False, f"{h + 4} patients at the least used action", "11") for h in (0, 2)]
    sites = view()
    html = render(replace(sites, checks={**sites.checks, "south": check("south", verdicts=failing)}))
    rows = cells(html, "Disclosure rules, by hospital")
    assert rows[0] == ["north", "passes", "none"]
    assert rows[1][1] == "refused"
    assert rows[1][2].startswith("ACTION at steps 0 and 2: 4 patients at the least used action")
    assert "Disclosure would let 1 of 2 hospitals send sums." in Page(html).text


def test_settings_fingerprint_and_version_are_shown() -> None:
    made = study(learning={"pessimism": 0.002}, ends={"death": 0.0})
    text = Page(render(view(study=made))).text
    assert made.fingerprint in text
    assert "9.8.7" in text
    assert "0.002" in text
    assert "End: death" in text
    assert "never for decisions at the bedside" in text


@given(st.text())
def test_text_comes_back_as_it_was_and_makes_no_element(text: str) -> None:
    page = Page(tag("p", text, title=text))
    assert [name for name, _ in page.elements] == ["p"]
    assert "<" not in re.sub("^<p[^<>]*>|</p>$", "", tag("p", text, title=text))


def test_markup_is_not_escaped_again() -> None:
    assert tag("p", Html("<b>x</b>")) == "<p><b>x</b></p>"


@given(st.floats(allow_nan=True, allow_infinity=True))
def test_any_number_can_be_shown(value: float) -> None:
    assert number(value)
    assert percent(value)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=9))
def test_ticks_enclose_the_values(values: list[float]) -> None:
    ticks = nice_ticks(values)
    slack = 1e-6 * max(1.0, *(abs(v) for v in values))
    assert 2 <= len(ticks) <= 8
    assert ticks[0] - slack <= min(values) <= max(values) <= ticks[-1] + slack
    assert ticks == sorted(set(ticks))


@given(st.lists(st.floats(0, 300), min_size=1, max_size=MOST_LINES))
def test_labels_keep_apart_and_inside(wanted: list[float]) -> None:
    placed = spread(wanted, gap=15, low=8, high=274)
    assert all(b - a >= 15 - 1e-9 for a, b in zip(sorted(placed), sorted(placed)[1:], strict=False))
    assert 8 - 1e-9 <= min(placed) <= max(placed) <= 274 + 1e-9
