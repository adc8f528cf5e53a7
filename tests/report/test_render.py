"""The report: what stands on the page, and what never does."""

from __future__ import annotations

import json
import math
import re
from base64 import b64encode
from hashlib import sha256
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jinja2 import UndefinedError, nodes
from markupsafe import Markup, escape

import fdtr
from fdtr.comparisons import Evidence
from fdtr.errors import UnreadableFile
from fdtr.pipeline.results import report_again
from fdtr.report import charts
from fdtr.report.findings import findings_of, first_screen, meaning
from fdtr.report.pages import environment, gain, interval, number, percent, script_text
from fdtr.report.record import Assessment, BrokenRule, Choice, Example, KnownValue, Record, Span, Subgroup
from fdtr.report.record import UsualCare as RecordedCare
from fdtr.report.render import render, render_site_page
from fdtr.trajectories import Sample
from fdtr.tuning import UsualCare
from fdtr.tuning.ladder import LADDER
from random_tables import make_study, make_table
from report_pages import Page, cells, plain, told

pytestmark = pytest.mark.slow

ATTACK = "</script><script>alert(1)</script>\"'&"
ATTACK_SHOWN = "&lt;/script&gt;&lt;script&gt;alert(1)&lt;/script&gt;&#34;&#39;&amp;"
SECTIONS = {
    "found": "What was found",
    "study": "The study in words",
    "data": "The data by site",
    "values": "Gains and values",
    "effects": "Shared coefficients over time",
    "sharing": "Heterogeneity and gain from sharing",
    "policy": "What the policy does",
    "trust": "How far to trust this",
    "method": "Method, settings, fingerprint, versions",
    "card": "Model card",
    "cite": "How to cite",
}
CHARTS = [
    "gains", "gains-by-site", "values", "values-by-site", "true-values", "shared-effects", "gain-from-sharing",
    "actions", "settings", "effective-sample-size", "overlap", "calibration",
]  # fmt: skip
FOUND = "Gain over clinicians on patients held out from fitting"
GAINS, GAINS_BY_SITE = "Gains: plain mean over sites, fixed effect, random effects", "Gains at each site, in numbers"
VALUES, VALUES_BY_SITE = "Value of each method, mean over sites", "Value of each method at each site, in numbers"
CHECKS = "The linear model against a richer one, for model-based values"
PART = "FDTR (verified)"
EFFECTS = "Shared effects, with p-values by Holm's method over all steps and features"
LARGEST = 2_500_000
"""Bytes: 0.9 million are the charts' library."""


SUBGROUPS = [
    Subgroup(
        site=ATTACK, method=PART, group="x", label="below 5", n=101, value=0.31, low=0.02, high=0.6, p_value=0.0741,
        reason="",
    ),
    Subgroup(
        site=ATTACK, method=PART, group="x", label="5 and more", n=8, value=math.nan, low=math.nan, high=math.nan,
        p_value=math.nan, reason="It has fewer than 50 patients.",
    ),
]  # fmt: skip


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


def number_of(one: Assessment | Span, of_gain: bool) -> str:
    """A value or gain and its interval, as the page writes it."""
    return told(gain(one) if of_gain else interval(one))


def test_the_first_screen_has_a_row_for_each_site_and_the_mean(found, html):
    assert html.index(str(escape(FOUND))) < html.index("The study in words</h2>")
    rows = cells(html, FOUND)
    assert [told(row[0]) for row in rows] == [f"{ATTACK_SHOWN} 130 patients", "north 400 patients", "Mean 2 sites"]
    by_pair = {(a.site, a.method, a.over): a for a in found.assessments}
    for site, row in zip((ATTACK, "north"), rows[:-1], strict=True):
        usual = by_pair[site, "Clinicians", ""]
        assert told(row[1]) == f"{usual.value:.2f} {usual.low:.2f} to {usual.high:.2f}"
        for method, cell in ((PART, row[3]), ("FDTR", row[4])):
            one = by_pair[site, method, "Clinicians"]
            shown = "" if one.verdict == "not estimable" else number_of(one, True)
            assert told(cell).startswith(f"{shown} {one.verdict}".strip())
            assert (f'<g class="{one.verdict}">' in row[2]) == (one.verdict != "not estimable")
    part = by_pair["north", PART, "Clinicians"]
    assert f"acts in {part.advised_share:.0%} of decisions" in told(rows[1][3])
    means = {(m.method, m.over): m for m in found.means}
    full, usual = means["FDTR", "Clinicians"], next(mean for mean in found.means if mean.label == "Clinicians")
    assert told(rows[2][4]).startswith(f"{number_of(full.plain, True)} {full.verdict}")
    assert told(rows[2][3]) == "– at north alone, which is no mean"
    assert told(rows[2][1]).endswith(f"{number_of(usual.plain, False).split('(')[1].rstrip(')')}")


def test_three_sentences_say_what_it_means(found, html):
    sentences = meaning(findings_of(found), first_screen(findings_of(found)))
    inside = re.search(r'<ul class="meaning">(.*?)</ul>', html, flags=re.DOTALL)
    assert inside
    assert re.findall(r"<li>(.*?)</li>", inside[1]) == [str(escape(sentence)) for sentence in sentences]
    assert len(sentences) == 3


def test_gains_come_first_and_every_number_has_its_verdict(found, html):
    assert html.index(str(escape(GAINS))) < html.index(str(escape(VALUES)))
    for caption, gains in ((GAINS, True), (VALUES, False)):
        shown = [tuple(map(told, row)) for row in cells(html, caption)]
        means = [mean for mean in found.means if bool(mean.over) == gains]
        assert len(shown) == len(means)
        for row, mean in zip(shown, means, strict=True):
            name = f"{mean.method} over {mean.over}" if gains else mean.label
            where = f" {len(mean.sites)} of 2 sites" if gains else ""
            assert row[:3] == (name, f"{mean.verdict}{where}", number_of(mean.plain, gains))
    shown = [tuple(map(told, row)) for row in cells(html, GAINS_BY_SITE) if len(row) > 1]
    gains = [one for one in found.assessments if one.over]
    assert [row[:4] for row in shown] == [
        (one.method, one.over, one.verdict, "–" if one.verdict == "not estimable" else number_of(one, True))
        for site in (ATTACK, "north") for one in gains if one.site == site
    ]  # fmt: skip
    rows = {row[0]: row[1:] for row in (list(map(told, row)) for row in cells(html, VALUES_BY_SITE))}
    values = [one for one in found.assessments if not one.over]
    for one in values:
        text = "–" if one.verdict == "not estimable" else number_of(one, False)
        assert rows[one.method][[ATTACK, "north"].index(one.site)] == f"{text} {one.verdict}"
        assert str(escape(one.reason)) in html
    assert {one.verdict for one in values} == {"verified", "model-based", "not estimable"}


def test_nothing_is_struck_through_or_believed(found):
    fixed = render(found)
    assert "<s " not in fixed
    assert "believe" not in fixed.split("<script")[0]


def rejected(found: Record) -> Record:
    """Held-out data reject the linear model of the full policies' values."""
    change = {"estimator": "richer", "misfit": 2.5}
    return found.model_copy(
        update={
            "assessments": [
                a.model_copy(update=change) if a.verdict == "model-based" and a.method == "FDTR" else a
                for a in found.assessments
            ]
        }
    )


def test_a_model_that_held_out_data_reject_is_named_with_its_tolerance(found):
    found = rejected(found)
    html = render(found)
    widened = [one for one in found.assessments if one.estimator == "richer" and not one.over]
    assert widened
    rows = [tuple(map(told, row)) for row in cells(html, "The linear model against a richer one")]
    checked = [one for one in found.assessments if math.isfinite(one.misfit) and not one.over]
    assert len([row for row in rows if len(row) > 1]) == len(checked)
    for one in widened:
        assert plain(str(escape(f"{one.method} at {one.site}"))) in plain(html)
        assert (
            one.method, f"{one.misfit:.2f}", f"{one.tolerance:.3f}", "rejected", number_of(one, False)
        ) in rows  # fmt: skip


def test_the_verified_part_is_checked_beside_the_full_policy(found, html):
    rows = cells(html, "Verified part and full policy: effective sample size by step, and tests of the models")
    shown = [tuple(map(told, row)) for row in rows if len(row) > 1]
    checks = [check for site in (ATTACK, "north") for check in found.sites[site].trust.checks]
    assert [row[0] for row in shown] == ["Verified part", "Full policy"] * 2
    assert [check.method for check in checks] == [PART, "FDTR"] * 2
    for row, check in zip(shown, checks, strict=True):
        assert row[1:4] == tuple(f"{size:,.0f}" for size in check.effective_sample_size)
        assert row[4] == f"{min(check.mean_weight):.2f}"
        assert row[5] == ("–" if math.isnan(check.patients_behind) else f"{check.patients_behind:,.1f}")
        assert row[6] == ("not tested" if math.isnan(check.misfit) else f"{check.misfit:.2f}")
        assert row[7] == f"{check.usual_misfit:.2f}".replace("-0.00", "0.00")
    untested = found.model_copy(
        update={"assessments": [a.model_copy(update={"misfit": 0.0}) if a.misfit else a for a in found.assessments]}
    )
    page = render(untested)
    assert "It could not be tested: there are too few patients to fit a richer model." in plain(page)
    rows = [tuple(map(told, row)) for row in cells(page, "The linear model against a richer one")]
    assert {row[1] for row in rows if len(row) > 1} == {"–"}
    assert "not tested: too few patients to fit a richer model" in page


def test_actions_are_shown_with_the_verified_part_by_step(found, html):
    rows = cells(html, "Share of patients by step, given → verified part and clinicians → full policy")
    site = found.sites["north"]
    first = next(row for number, row in enumerate(rows) if number and told(rows[number - 1][0]) == "north")
    three = (site.given[0][0], site.with_part[0][0], site.recommended[0][0])
    assert told(first[1]) == " → ".join(map(percent, three))
    shares = {told(row[0]): row[1:] for row in cells(html, "Share of patients whom the verified part advises, by step")}
    assert shares["north"] == [str(escape(percent(share))) for share in site.advised]
    assert {row["kind"] for row in charts.actions(found).rows} == {
        "given", "verified part + clinicians", "full policy"
    }  # fmt: skip


def test_subgroups_are_shown_with_their_p_values_or_why_they_are_withheld(found, html):
    assert "Subgroups were not examined." in html
    assert "no group of patients was analysed separately" in plain(html)
    rows = cells(render(found.model_copy(update={"subgroups": SUBGROUPS})), "Gain of the verified part by group")
    assert [list(map(told, row)) for row in rows if len(row) > 1] == [
        ["x below 5", "101", "+0.31 (0.02 to 0.60)", "0.074"],
        ["x 5 and more", "–", "Withheld: It has fewer than 50 patients.", "–"],
    ]


def test_a_site_has_a_page_of_its_own(found):
    assessments = [one for one in found.assessments if one.site == ATTACK]
    site = found.sites[ATTACK]
    assert site.trust
    html = render_site_page(
        found.load_study(), ATTACK, assessments, SUBGROUPS, site.trust, 130, near_ties=site.near_ties, n_clusters=40
    )
    page = Page(html)
    assert page.words["h2"] == ["What was found", "Gains and values", "How far to trust this", "About this page"]
    rows = cells(html, FOUND)
    assert [told(row[0]) for row in rows] == [f"{ATTACK_SHOWN} 130 patients"]
    assert told(rows[0][3]) == "not estimable nobody could be advised"
    assert "No part of FDTR&#39;s policy is verified: nobody could be advised." in plain(html)
    assert "<script>alert" not in html
    assert "Keep this page at the site" in html
    assert f"40 clusters at {ATTACK_SHOWN}" in html
    shown = [tuple(map(told, row)) for row in cells(html, "Value of each method, in numbers")]
    assert [row[:2] for row in shown] == [(one.method, one.verdict) for one in assessments if not one.over]
    bare = render_site_page(found.load_study(), ATTACK, assessments, [], site.trust, 130)
    assert "How many of the full policy&#39;s decisions are near ties was not examined." in plain(bare)
    assert "Subgroups were not examined." in bare
    assert "Share of patients with nearly tied actions" not in bare


def test_effects_that_stand_out_are_named(found, html):
    first = found.shared_effects[0]
    assert "none of these effects differs clearly from 0" in plain(html)
    clear = [first.model_copy(update={"adjusted_p_value": 0.01}), *found.shared_effects[1:]]
    assert f"these effects are not 0: {first.feature} (step 0)" in plain(
        render(found.model_copy(update={"shared_effects": clear}))
    )


def test_values_are_shown_in_raw_units_too(found, html):
    for caption, over in ((VALUES, ""), (GAINS, "Clinicians")):
        mean = next(m for m in found.means if (m.method, m.over) == ("FDTR", over))
        name, place = ("FDTR over Clinicians", 3) if over else ("FDTR", -1)
        row = next(row for row in cells(html, caption) if told(row[0]) == name)
        assert row[place] == number((0 if over else 3 * -2) + mean.plain.value * 10)


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
    names = set(environment().list_templates()) - {"message.html.j2"}
    loader = environment().loader
    assert loader
    return {name: environment().parse(loader.get_source(environment(), name)[0]) for name in names}


def doubtful(found: Record) -> Record:
    """What seldom happens: nothing can be estimated, held-out data reject no model, and effects stand out."""
    nothing = {"verdict": Evidence.NONE, "reason": "because", **dict.fromkeys(("value", "low", "high"), math.nan)}
    return found.model_copy(
        update={
            "assessments": [
                a.model_copy(update=nothing if a.over else {"estimator": "fqe", "misfit": min(a.misfit, 0.5)})
                for a in found.assessments
            ],
            "means": [mean for mean in found.means if not mean.over],
            "shared_effects": [e.model_copy(update={"adjusted_p_value": 0.01}) for e in found.shared_effects],
        }
    )


def contradicted(found: Record) -> Record:
    """Held-out data reject every model of the full policies."""
    reason = "Held-out patients contradict the linear model and the richer one, and weights are no way out."
    nothing = {
        "verdict": Evidence.NONE,
        "reason": reason,
        "brief": "held-out patients contradict the models",
        "misfit": 4.0,
        **dict.fromkeys(("value", "low", "high"), math.nan),
    }
    return found.model_copy(
        update={
            "assessments": [a.model_copy(update=nothing) if a.method == "FDTR" else a for a in found.assessments],
            "means": [mean for mean in found.means if mean.method != "FDTR"],
        }
    )


def test_where_no_model_fits_the_page_says_so(found):
    page = plain(render(contradicted(found)))
    assert "held-out patients contradict the models" in page
    assert "rejected, and no model fits" in page
    assert "FDTR at north" in page  # among those that are rejected


def odd_ones(found: Record) -> Record:
    """What seldom happens: a refusal, a site that shares nothing, values believed, effects that nobody identifies."""
    site = found.sites["north"]
    assert site.trust
    sure = site.trust.model_copy(update={"tipping_odds": math.nan, "confounding_doubt": ""})
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
            "subgroups": SUBGROUPS,
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


def near_a_threshold(record: Record) -> Record:
    """A secure sum from which other weights of rows could take something else."""
    sites = {name: site.model_copy(update={"near_threshold": True}) for name, site in record.sites.items()}
    return record.model_copy(update={"sites": sites})


def very_large(record: Record) -> Record:
    """Sites with so many patients that a sample of them is judged and valued."""
    samples = {"verified_on": Sample(50_000, 2_000_000), "valued_on": Sample(100_000, 2_000_000)}
    sites = {name: site.model_copy(update=samples) for name, site in record.sites.items()}
    return record.model_copy(update={"sites": sites})


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
        contradicted(found),
        rejected(found),
        near_a_threshold(found),
        very_large(found),
    ]
    site = found.sites["north"]
    assert site.trust
    own_page = render_site_page(found.load_study(), "north", found.assessments[:1], [], site.trust, 400)
    shown = plain(" ".join([own_page, *(render(record) for record in records)]))
    for name, template in templates_of_report().items():
        for part in template.find_all(nodes.TemplateData):
            assert plain(part.data).strip() in shown, name
        for constant in template.find_all(nodes.Const):
            if isinstance(constant.value, str) and " " in constant.value.strip():
                assert plain(str(escape(constant.value))) in shown, name


def test_headings_captions_and_buttons_come_from_templates_and_charts(found, html):
    constants = {c.value for template in templates_of_report().values() for c in template.find_all(nodes.Const)}
    written = {p.data for template in templates_of_report().values() for p in template.find_all(nodes.TemplateData)}
    written = {text for part in written for text in re.findall(r"<(?:h3|caption|summary)[^>]*>([^<{]+)<", part)}
    trusts = findings_of(found).trust
    drawn = [
        charts.gains(found.means), charts.gains_by_site(found.assessments), charts.values(found.means),
        charts.values_by_site(found.assessments), charts.true_values(found), charts.shared_effects(found),
        charts.gain_from_sharing(found), charts.actions(found), charts.settings(found),
        charts.effective_sample_size(trusts), charts.overlap(trusts), charts.calibration(trusts),
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
