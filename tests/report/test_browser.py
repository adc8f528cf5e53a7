"""The demo's report in a real browser, opened from disk as a person would."""

from __future__ import annotations

import csv
import shutil
import subprocess
import tarfile
from base64 import b64encode
from hashlib import sha512
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from fdtr.report.record import load_record

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

pytestmark = pytest.mark.browser

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
QUIET = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
)  # fmt: skip
SECTIONS = ["found", "study", "data", "values", "effects", "sharing", "policy", "trust", "method", "card", "cite"]
N_CHARTS = 12
AXE = "axe-core-4.14.0.tgz"
AXE_SHA512 = "9WTZxEjsZ7b13TH8JPmbV2z8CHbl80/2hm3XPEG4JgNdQLK81IBRXmSxHfMAOkSqQeRxT/0dwNDz2GOm3zzpcQ=="


@pytest.fixture(scope="module")
def report(demo) -> str:
    return (demo / "fdtr-demo" / "report.html").as_uri()


@pytest.fixture(scope="module")
def browser():
    if CHROMIUM is None:
        pytest.skip("Chromium is not installed. As root, run: apt-get install --yes chromium")
    with playwright.sync_playwright() as started:
        opened = started.chromium.launch(executable_path=CHROMIUM, args=list(QUIET))
        yield opened
        opened.close()


@pytest.fixture
def page(browser, report):
    """The report at desktop size, with every chart drawn and what the console said in `page.said`."""
    yield from opened(browser, report, width=1280, height=900)


@pytest.fixture
def phone(browser, report):
    yield from opened(browser, report, width=390, height=844)


def opened(browser: Any, report: str, **size: int) -> Any:
    context = browser.new_context(viewport=size, accept_downloads=True)
    page = context.new_page()
    said: list[str] = []
    asked: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(report)
    page.wait_for_function("document.querySelectorAll('figure.chart:not([data-drawn])').length === 0")
    assert said == []
    assert [url for url in asked if not url.startswith(("file:", "data:"))] == []
    yield page
    assert said == []
    context.close()


@pytest.fixture(scope="module")
def axe(request) -> str:
    """axe-core as its registry has it, fetched once; its hash is pinned."""
    folder = Path(request.config.cache.mkdir("axe-core"))
    kept = folder / AXE
    if not kept.exists():
        if shutil.which("npm") is None:
            pytest.skip("npm, which fetches axe-core, is not installed")
        name = AXE.removesuffix(".tgz").replace("core-", "core@")
        done = subprocess.run(["npm", "pack", "--silent", name], cwd=folder, capture_output=True, timeout=120)
        if done.returncode:
            pytest.skip(f"npm could not fetch {name}")
    assert b64encode(sha512(kept.read_bytes()).digest()).decode() == AXE_SHA512
    with tarfile.open(kept) as packed:
        inside = packed.extractfile("package/axe.min.js")
        assert inside
        return inside.read().decode()


def test_every_section_is_there_and_every_chart_is_drawn(page):
    assert page.eval_on_selector_all("main > section", "all => all.map(one => one.id)") == SECTIONS
    assert page.locator("figure.chart").count() == N_CHARTS
    count = "all => all.map(one => one.querySelectorAll('.mark-symbol path, .mark-rect path').length)"
    marks = page.eval_on_selector_all("figure.chart .drawing", count)
    assert min(marks) >= 5
    text = page.locator("main").inner_text()
    assert "NaN" not in text
    assert "undefined" not in text


def test_a_chart_answers_to_the_pointer(page):
    tooltip = page.locator(".tooltip")
    assert not tooltip.is_visible()
    page.locator("#chart-values .mark-symbol path").first.hover(force=True)
    tooltip.wait_for(state="visible")
    assert "method" in tooltip.inner_text()
    page.mouse.move(1, 1)
    tooltip.wait_for(state="hidden")


def test_a_chart_can_be_downloaded_as_svg_and_as_csv(page, demo, tmp_path):
    saved = {}
    for number, kind in enumerate(("svg", "csv")):
        with page.expect_download() as expected:
            page.locator("#chart-values button").nth(number).click()
        saved[kind] = tmp_path / expected.value.suggested_filename
        expected.value.save_as(saved[kind])
    assert {path.name for path in saved.values()} == {"values.svg", "values.csv"}
    assert ElementTree.parse(saved["svg"]).getroot().tag == "{http://www.w3.org/2000/svg}svg"
    rows = saved["csv"].read_text().splitlines()
    assert rows[0] == "method,value,low,high,verdict"
    means = [mean for mean in load_record(demo / "fdtr-demo").means if not mean.over]
    names = [row[0] for row in csv.reader(rows[1:])]
    assert len(names) == len(means)
    for name, mean in zip(names, means, strict=True):  # clinicians may be over fewer sites, which are named
        assert name == mean.method or name.startswith(f"{mean.method} (")


def test_buttons_are_reached_by_the_keyboard(page, tmp_path):
    button = page.locator("#chart-values button").first
    button.focus()
    assert button.evaluate("one => getComputedStyle(one).outlineStyle") != "none"
    with page.expect_download():
        page.keyboard.press("Enter")


def test_a_phone_does_not_scroll_sideways(phone):
    wide = phone.evaluate("[document.documentElement.scrollWidth, window.innerWidth]")
    assert wide[0] <= wide[1] == 390


def test_the_first_screen_holds_all_sites_and_what_they_mean(page):
    assert page.locator(".forest tbody tr").count() == 6
    for what in (".forest tbody tr", ".meaning li"):
        box = page.locator(what).last.bounding_box()
        assert box["y"] + box["height"] <= 900
    assert page.locator(".meaning li").count() == 3
    drawn = page.locator(".forest tbody .picture svg.strip")
    assert drawn.count() == 6
    zeros = drawn.locator(".zero").evaluate_all("all => all.map(one => Math.round(one.getBoundingClientRect().x))")
    assert len(set(zeros)) == 1


def test_charts_are_as_wide_as_the_page_and_the_contents_stay_in_view(page):
    room = page.locator("main").bounding_box()["width"]
    for name in ("gains", "gains-by-site", "values", "shared-effects", "actions"):
        drawn = page.locator(f"#chart-{name} .drawing svg").first.bounding_box()["width"]
        assert 0.95 * min(room, 960) < drawn <= room
    page.locator("#trust").scroll_into_view_if_needed()
    page.evaluate("document.querySelector('#trust').scrollIntoView()")
    page.locator("nav a[href='#trust'][aria-current]").wait_for()
    for link in page.locator("nav a").all():
        assert 0 <= link.bounding_box()["y"] < 900


def test_the_table_of_gains_is_no_wider_than_the_page(page):
    region = page.locator("[role=region][aria-label^='Gains: plain mean']")
    assert region.evaluate("it => it.scrollWidth <= it.clientWidth")


def test_on_a_phone_what_was_found_comes_before_the_sites(phone):
    last = phone.locator(".meaning li").last.bounding_box()
    assert last["y"] + last["height"] <= phone.locator(".forest").bounding_box()["y"]


def test_contents_stay_on_a_phone_and_are_not_cut(phone):
    contents = phone.locator("nav summary")
    assert not phone.locator("nav a").first.is_visible()
    phone.evaluate("document.querySelector('#trust').scrollIntoView()")
    assert 0 <= contents.bounding_box()["y"] < 40
    contents.click()
    for link in phone.locator("nav a").all():
        box = link.bounding_box()
        assert 0 <= box["x"] < box["x"] + box["width"] <= 390
        assert 0 <= box["y"] < 844
    phone.locator("nav a[href='#values']").click()
    phone.locator("nav a").first.wait_for(state="hidden")
    heading = phone.locator("#values h2").bounding_box()
    bar = phone.locator("nav").bounding_box()
    assert bar["y"] + bar["height"] <= heading["y"] < 844


def test_sites_are_cards_on_a_phone(phone):
    row, picture = (phone.locator(f".forest tbody tr {part}").first for part in ("th", ".picture"))
    assert picture.bounding_box()["y"] > row.bounding_box()["y"] + row.bounding_box()["height"] - 1
    assert picture.bounding_box()["width"] > 300
    for cell in phone.locator(".forest tbody td").all():
        box = cell.bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= 390


def test_paper_gets_still_pictures_and_open_tables(page):
    before = page.locator("#chart-gains svg").first.get_attribute("width")
    folded = page.locator("details:not([open])").count()
    assert folded > 5
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.locator("details:not([open])").count() == 0
    assert float(page.locator("#chart-gains svg").first.get_attribute("width")) < float(before)
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    page.wait_for_function("document.querySelectorAll('figure.chart:not([data-drawn])').length === 0")
    assert page.locator("details:not([open])").count() == folded


def test_print_keeps_every_section_and_chart(page):
    page.emulate_media(media="print")
    for name in SECTIONS:
        assert page.locator(f"section#{name} h2").is_visible()
    assert all(page.locator("figure.chart svg").nth(i).is_visible() for i in range(N_CHARTS))
    assert not page.locator(".buttons").first.is_visible()
    assert len(page.pdf(format="A4")) > 50_000


def test_without_scripts_the_page_shows_its_charts_as_pictures(browser, report):
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(report)
    assert page.locator("figure.chart svg").count() == N_CHARTS
    assert page.locator("figure.chart svg").first.is_visible()
    assert not page.locator(".buttons").first.is_visible()
    context.close()


@pytest.mark.parametrize("size", ["page", "phone"])
def test_axe_finds_no_serious_fault(size, axe, request):
    shown = request.getfixturevalue(size)
    found = shown.evaluate(f"async () => {{ {axe}; return await axe.run(); }}")
    grave = [fault for fault in found["violations"] if fault["impact"] in ("serious", "critical")]
    assert [(fault["id"], fault["nodes"][0]["html"][:200]) for fault in grave] == []
