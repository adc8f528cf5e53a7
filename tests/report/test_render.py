"""The report: what stands on the page, and what never does."""

from __future__ import annotations

import json
import math
import re
from base64 import b64encode
from hashlib import sha256
from html.parser import HTMLParser
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jinja2 import UndefinedError, nodes
from markupsafe import Markup, escape

import fdtr
from fdtr.errors import UnreadableFile
from fdtr.pipeline.results import report_again
from fdtr.report import charts
from fdtr.report.pages import environment, number, percent, script_text
from fdtr.report.record import BrokenRule, Choice, Example, KnownValue, Record
from fdtr.report.record import UsualCare as RecordedCare
from fdtr.report.render import render
from fdtr.tuning import UsualCare
from fdtr.tuning.ladder import LADDER
from random_tables import make_study, make_table

pytestmark = pytest.mark.slow

ATTACK = "</script><script>alert(1)</script>\"'&"
ATTACK_SHOWN = "&lt;/script&gt;&lt;script&gt;alert(1)&lt;/script&gt;&#34;&#39;&amp;"
SECTIONS = {
    "study": "The study in words",
    "data": "The data by site",
    "values": "Value of each method",
    "effects": "Shared coefficients over time",
    "sharing": "Heterogeneity and gain from sharing",
    "policy": "What the policy does",
    "trust": "How far to trust this",
    "method": "Method, settings, fingerprint, versions",
    "card": "Model card",
    "cite": "How to cite",
}
CHARTS = [
    "true-values", "values", "values-by-site", "shared-effects", "gain-from-sharing", "actions", "settings",
    "effective-sample-size", "overlap", "calibration",
]  # fmt: skip
BY_SITE = "Value at each site; struck through where it is not to be believed"
OVERALL = "Value of each method, mean over sites, with 95% intervals"
EFFECTS = "Shared effects, with p-values by Holm's method over all steps and features"
LARGEST = 2_500_000
"""Bytes: 0.9 million are the charts' library."""


class Page(HTMLParser):
    """Checks that elements close in order, and keeps text by element."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words: dict[str, list[str]] = {}
        self.feed(html)
        self.close()
        assert not self.open

    def handle_starttag(self, name: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((name, dict(attrs)))
        if name != "meta":
            self.open.append(name)

    def handle_startendtag(self, name: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((name, dict(attrs)))

    def handle_endtag(self, name: str) -> None:
        assert self.open.pop() == name

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("style", "script"):
            self.words.setdefault(self.open[-1], []).append(data)

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", " ".join(word for words in self.words.values() for word in words))

    def of(self, name: str) -> list[dict[str, str | None]]:
        return [attrs for found, attrs in self.elements if found == name]


def cells(html: str, caption: str) -> list[list[str]]:
    """The rows of a table below its head, as markup."""
    found = re.search(rf"<caption>{re.escape(str(escape(caption)))}</caption>(.*?)</table>", html, flags=re.DOTALL)
    assert found, caption
    rows = re.findall(r"<tr>(.*?)</tr>", found[1].split("</thead>")[1], flags=re.DOTALL)
    return [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, flags=re.DOTALL) for row in rows]


def plain(html: str) -> str:
    """The page with its lines joined, as a browser joins them."""
    return re.sub(r"\s+", " ", html)


def record_of(study: fdtr.Study, sites: dict[str, int], **awkward: Any) -> Record:
    return fdtr.run(study, fdtr.read_trajectories(make_table(study, sites, **awkward), study)).record


@pytest.fixture(scope="module")
def found() -> Record:
    """Three sites, one of them too small to be valued, with a truth and an example as a demo has."""
    simple = record_of(make_study(reward={"range": [-2, 8]}), {"north": 400, ATTACK: 130, "tiny": 3})
    choice = Choice(label="none", estimate=1.9, penalty=0.4, bound=1.5, shared=0.6, specific=1.3, chosen=True)
    truth = KnownValue(method="FDTR", value=1.8, low=1.75, high=1.85, by_site=dict.fromkeys(simple.sites, 1.8))
    known = [truth, truth.model_copy(update={"method": "Clinicians", "value": 1.5})]
    example = Example(state={"u": 0.5}, step=0, by_site={"north": [choice]})
    return simple.model_copy(
        update={"known_values": known, "known_values_note": "On 7 fresh patients.", "example": example}
    )


@pytest.fixture(scope="module")
def html(found: Record) -> str:
    return render(found)


def test_every_section_is_there_in_order_and_linked(html):
    page = Page(html)
    assert page.words["h2"] == list(SECTIONS.values())
    assert [attrs["id"] for attrs in page.of("section")] == list(SECTIONS)
    ids = [attrs["id"] for _, attrs in page.elements if "id" in attrs]
    assert {str(attrs["href"]) for attrs in page.of("a")} <= {f"#{name}" for name in ids}


def test_every_value_is_on_the_page_and_struck_where_it_is_not_to_be_believed(found, html):
    shown = [row for row in cells(html, BY_SITE) if len(row) > 1]
    methods = len(shown) // 2
    rows = {
        (estimator, row[0]): row[1:]
        for estimator, part in (("wdr", shown[:methods]), ("fqe", shown[methods:]))
        for row in part
    }
    main = [value for value in found.values if value.estimator == "wdr"]
    for value in [*main, *(value for value in found.values if value.estimator == "fqe")]:
        cell = rows[value.estimator, value.method][[ATTACK, "north"].index(value.site)]
        assert f"{value.value:.2f} (" in cell.replace("−", "-")
        assert ("<s " in cell) == (not value.believable)
        assert value.estimator == "fqe" or value.reason in html
    assert {value.believable for value in main} == {True, False}


def test_what_can_be_said_in_short_is_said(found):
    def short(**believable: bool) -> str:
        known = {"wdr": False, "fqe": False} | believable
        judged = [p.model_copy(update={"believable": known[p.estimator]}) for p in found.pooled]
        return plain(render(found.model_copy(update={"pooled": judged})))

    assert "FDTR is worth" in short(wdr=True, fqe=True)
    by_model = short(fqe=True)
    assert "the linear model estimates FDTR's value as" in by_model
    assert "These patients cannot show whether the model is right" in by_model
    assert "cannot be believed; the reasons are below" in short()


def test_effects_that_stand_out_are_named(found, html):
    first = found.shared_effects[0]
    assert "none of these effects differs clearly from 0" in plain(html)
    clear = [first.model_copy(update={"adjusted_p_value": 0.01}), *found.shared_effects[1:]]
    assert f"these effects are not 0: {first.feature} (step 0)" in plain(
        render(found.model_copy(update={"shared_effects": clear}))
    )


def test_values_are_shown_in_raw_units_too(found, html):
    overall = next(p for p in found.pooled if (p.method, p.over, p.estimator) == ("Clinicians", "", "wdr"))
    row = next(row for row in cells(html, OVERALL) if row[0] == "Clinicians")
    assert number(3 * -2 + overall.plain.value * 10) in row[3]


def test_sites_that_are_not_valued_are_named(html):
    assert "tiny is not valued: Site &#39;tiny&#39; has 3 patients" in html


def test_clusters_are_told_only_where_errors_are_by_cluster(found, html):
    assert "Errors are clustered" not in html
    clustered = {"values": [v.model_copy(update={"n_clusters": 40}) for v in found.values if v.site == "north"]}
    told = "Errors are clustered by the column with the role cluster: 40 clusters at north."
    assert told in plain(render(found.model_copy(update=clustered)))


def test_effects_and_counts_are_those_of_the_record(found, html):
    shown = [row[1].replace("−", "-") for row in cells(html, EFFECTS) if len(row) > 1]
    in_order = sorted(found.shared_effects, key=lambda e: list(found.shared_coefficients).index(e.feature))
    assert [float(x) for x in shown] == pytest.approx([e.estimate for e in in_order], abs=0.06)
    assert cells(html, "Patients and rows, and values changed on reading")[0][:3] == [ATTACK_SHOWN, "130", "390"]
    assert f"<code>{found.fingerprint}</code>" in html


def test_what_people_wrote_is_escaped(html):
    assert "<script>alert" not in html
    assert ATTACK_SHOWN in html
    assert script_text("a </Script> b") == "a <\\/Script> b"


def test_the_page_fetches_nothing(html):
    page = Page(html)
    assert not {name for name, _ in page.elements} & {"link", "img", "iframe", "object", "embed", "image"}
    for _, attrs in page.elements:
        assert not attrs.keys() & {"src", "srcset", "action", "data"}
        assert not any(key.startswith("on") for key in attrs)
        assert str(attrs.get("href") or attrs.get("xlink:href") or "#").startswith("#")
    policy = str(page.of("meta")[1]["content"])
    assert policy.startswith("default-src 'none'; ")
    assert "http" not in policy
    assert not re.search(r"url\((?!#)|@import", html.split("</style>")[0])
    runnable = re.findall(r"<script>(.*?)</script>", html, flags=re.DOTALL)
    assert len(runnable) == 2
    for text in runnable:
        assert b64encode(sha256(text.encode()).digest()).decode() in policy


def test_the_file_is_of_a_size_to_send(html):
    assert len(html.encode()) < LARGEST


def test_every_chart_has_a_picture_words_and_its_numbers(html):
    figures = re.findall(r'<figure class="chart" id="chart-([a-z-]+)">(.*?)</figure>', html, flags=re.DOTALL)
    assert [name for name, _ in figures] == CHARTS
    for name, inside in figures:
        picture = re.search(r"<svg.*?</svg>", inside, flags=re.DOTALL)
        assert picture
        assert len(list(ElementTree.fromstring(picture[0]).iter())) > 20
        assert re.search(r'role="img" aria-label="[^"]{20,}"', inside)
        assert inside.count("<button ") == 2
        embedded = re.search(r'<script type="application/json">(.*?)</script>', inside, flags=re.DOTALL)
        assert embedded
        data = json.loads(embedded[1])
        assert data["name"] == name
        assert len(data["csv"].splitlines()) > 1
        assert '"url"' not in embedded[1]


def test_the_page_is_accessible_without_a_browser(html):
    page = Page(html)
    assert html.startswith('<!DOCTYPE html>\n<html lang="en">')
    assert len(page.of("h1")) == 1
    assert len(page.of("table")) == len(page.of("caption")) > 10
    assert all(attrs.get("scope") in ("col", "row", "rowgroup") for attrs in page.of("th"))


def test_nothing_claims_clinical_validity(html):
    text = Page(html).text
    assert "Not validated for clinical use; never for decisions at the bedside." in text
    assert "None. The sites that took part are not external." in text
    assert "They are associations in the data as observed. They are causal only if nothing unmeasured" in text


def templates_of_report() -> dict[str, nodes.Template]:
    """Every template of the report, parsed."""
    names = [name for name in environment().list_templates() if name != "message.html.j2"]
    loader = environment().loader
    assert loader
    return {name: environment().parse(loader.get_source(environment(), name)[0]) for name in names}


def doubtful(found: Record) -> Record:
    """What seldom happens: nothing can be believed, and effects stand out."""
    return found.model_copy(
        update={
            "pooled": [p.model_copy(update={"believable": False, "reason": "because"}) for p in found.pooled],
            "shared_effects": [e.model_copy(update={"adjusted_p_value": 0.01}) for e in found.shared_effects],
        }
    )


def odd_ones(found: Record) -> Record:
    """What seldom happens: a refusal, a site that shares nothing, values believed, effects that nobody identifies."""
    site = found.sites["north"]
    assert site.trust
    sure = site.trust.model_copy(update={"tipping_odds": math.nan})
    refused = BrokenRule(rule="N", otherwise="refuse", steps=[0], measured="3", asked="11")
    unlike = {
        "north": site.model_copy(update={"disclosure": [refused], "steps_sent": [], "share_sent": 0.0}),
        "south": site.model_copy(update={"settings": site.settings | {"sharing": 0}, "trust": sure}),
    }
    return found.model_copy(
        update={
            "sites": unlike,
            "known_values": [],
            "split": "half",
            "pooled": [p.model_copy(update={"believable": True, "reason": ""}) for p in found.pooled],
            "gains": [g.model_copy(update={"site": s, "only_together": True}) for g in found.gains for s in unlike],
            "shared_effects": [e.model_copy(update={"identified": False}) for e in found.shared_effects],
            "values": [v.model_copy(update={"n_clusters": 40}) for v in found.values],
        }
    )


def tuned() -> Record:
    """Three sites that chose everything; usual care did better at two, a bolder policy still better at the third."""
    learning = dict.fromkeys(("pessimism", "ridge", "sharing", "share"), "auto")
    made = record_of(make_study(learning=learning), {"a": 90, "b": 90, "c": 90})
    care = {"a": UsualCare(0.3), "b": UsualCare(2.3, bolder=-0.2), "c": UsualCare(2.3, bolder=3.1)}
    sites = {
        name: site.model_copy(update={"usual_care": RecordedCare.of(care[name]), "nearness": care[name].in_words(name)})
        for name, site in made.sites.items()
    }
    return made.model_copy(update={"sites": sites})


def test_the_ladder_and_usual_care_are_told_by_site():
    made = tuned()
    page = plain(render(made))
    for name, site in made.sites.items():
        assert [(rung.sharing, rung.share) for rung in site.ladder] == list(LADDER)
        chosen = [rung for rung in site.ladder if rung.chosen]
        assert chosen == [next(rung for rung in site.ladder if not rung.rejected)]
        assert site.sharing.startswith(f"{name} sha") or site.sharing.startswith(f"{name} stays alone")
        assert plain(site.sharing) in page
    assert page.count(", chosen") == 3
    for site in made.sites.values():
        assert plain(site.nearness) in page
    assert "not tried" not in page
    fixed = render(record_of(make_study(), {"a": 90, "b": 90}))
    assert "ladder" not in fixed
    assert "usual care" not in fixed


def small_and_large() -> Record:
    """One site with few patients for its 15 features, one with enough."""
    learning = dict.fromkeys(("ridge", "sharing", "share"), "auto")
    return record_of(make_study(learning=learning), {"small": 25, "large": 90})


def test_a_small_site_has_a_shorter_ladder():
    made = small_and_large()
    assert (made.sites["small"].few, made.sites["large"].few) == (True, False)
    assert [len(made.sites[name].ladder) for name in ("small", "large")] == [4, 7]
    page = render(made)
    assert "sharing effects on rewards alone is not tried: small." in plain(page)
    assert page.count("<td>–</td>") >= 3
    assert plain(page).count(", chosen") == 2


def test_every_sentence_of_the_templates_is_shown_by_some_study(found):
    own = make_study(covariates=[{"name": "x", "range": [0, 10]}], ends={"death": 0.0})
    common = make_study(covariates=[{"name": "x", "effect": "shared"}])
    records = [
        found,
        odd_ones(found),
        doubtful(found),
        record_of(own, {"a": 3, "b": 4}, ragged=True),
        record_of(common, {"a": 60, "b": 60}, constant_within_site=("x",)),
        tuned(),
        small_and_large(),
        record_of(make_study(learning={"pessimism": {"noise": 0.03}}), {"a": 60, "b": 60}),
    ]
    shown = plain(" ".join(render(record) for record in records))
    for name, template in templates_of_report().items():
        for part in template.find_all(nodes.TemplateData):
            assert plain(part.data).strip() in shown, name
        for constant in template.find_all(nodes.Const):
            if isinstance(constant.value, str) and " " in constant.value.strip():
                assert plain(str(escape(constant.value))) in shown, name


def test_headings_captions_and_buttons_come_from_templates_and_charts(found, html):
    constants = {c.value for template in templates_of_report().values() for c in template.find_all(nodes.Const)}
    written = {p.data for template in templates_of_report().values() for p in template.find_all(nodes.TemplateData)}
    written = {text for part in written for text in re.findall(r"<(?:h3|summary)>([^<]+)<", part)}
    drawn = [
        charts.true_values(found), charts.values(found), charts.values_by_site(found), charts.shared_effects(found),
        charts.gain_from_sharing(found), charts.actions(found), charts.settings(found),
        charts.effective_sample_size(found), charts.overlap(found), charts.calibration(found),
    ]  # fmt: skip
    assert [chart.name for chart in drawn if chart.rows] == CHARTS
    known = constants | written | {chart.title for chart in drawn if chart.rows}
    page = Page(html)
    for name in ("h2", "h3", "caption", "button", "summary"):
        assert set(page.words[name]) <= known


def test_a_name_that_a_template_does_not_know_fails():
    with pytest.raises(UndefinedError):
        environment().from_string("{{ nobody }}").render()


def test_control_characters_are_replaced_on_the_page_and_in_charts():
    html = render(record_of(make_study(), {"a\x01b": 80, "c": 80}))
    assert "a\N{REPLACEMENT CHARACTER}b" in html
    assert "\x01" not in html


def test_one_site_and_one_step_make_a_page():
    page = Page(render(record_of(make_study(horizon=1), {"only": 80})))
    assert len(page.words["h2"]) == len(SECTIONS)


def test_the_report_is_written_again_from_the_folder(tmp_path):
    study = make_study()
    results = fdtr.run(study, fdtr.read_trajectories(make_table(study, {"a": 100, "b": 120}), study))
    results.save(tmp_path / "out")
    before = (tmp_path / "out/report.html").read_bytes()
    (tmp_path / "out/report.html").unlink()
    assert report_again(tmp_path / "out").read_bytes() == before
    with pytest.raises(UnreadableFile, match="holds no readable"):
        report_again(tmp_path)


@given(st.text())
def test_text_comes_back_as_it_was_and_makes_no_element(text: str) -> None:
    made = environment().from_string('<p title="{{ text }}">{{ text }}</p>').render(text=text)
    page = Page(made)
    assert [name for name, _ in page.elements] == ["p"]
    assert "<" not in re.sub("^<p[^<>]*>|</p>$", "", made)


def test_markup_is_not_escaped_again() -> None:
    assert environment().from_string("<p>{{ text }}</p>").render(text=Markup("<b>x</b>")) == "<p><b>x</b></p>"


@given(st.floats(allow_nan=True, allow_infinity=True))
def test_any_number_can_be_shown(value: float) -> None:
    assert number(value)
    assert percent(value)
