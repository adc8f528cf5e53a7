"""What the first screen says: its rows, its three sentences, and its picture."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from itertools import combinations, product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fdtr.comparisons import Evidence
from fdtr.report import forest
from fdtr.report.findings import PART, Findings, Row, Shown, first_screen, gain_decimals, meaning
from fdtr.report.record import Assessment, MeanOverSites, Span
from random_tables import make_study

pytestmark = pytest.mark.quick

NOTHING = {"verdict": "not estimable", **dict.fromkeys(("value", "low", "high", "standard_error"), math.nan)}


def assessed(site: str, method: str, over: str = "Clinicians", **changes: Any) -> Assessment:
    """A verified part that gains .3 ± .2 in 30% of decisions, a model-based full policy that gains .4 ± .2."""
    part = method == PART
    sure = part or method == "Clinicians"
    standard: dict[str, Any] = {
        "verdict": "verified" if sure else "model-based",
        "estimator": "wdr" if sure else "fqe",
        "value": 0.3 if part else 0.4,
        "low": 0.1 if part else 0.2,
        "high": 0.5 if part else 0.6,
        "standard_error": 0.1,
        "tolerance": 0.0,
        "misfit": math.nan,
        "advised_share": 0.3 if part else 1.0,
        "n_advised": 80,
        "n": 100,
        "reason": "",
        "brief": "",
    }
    return Assessment(site=site, method=method, over=over, **(standard | changes))


def mean_of(method: str, over: str, sites: list[str], span: tuple[float, float, float], verdict: str) -> MeanOverSites:
    plain = Span(value=span[0], low=span[1], high=span[2])
    return MeanOverSites.model_validate(
        {
            "method": method, "over": over, "label": f"{method} over {over}" if over else method, "verdict": verdict,
            "sites": sites, "n": 100 * len(sites), "tolerance": 0.0,
            "plain": plain, "fixed": plain, "random": plain, "i_squared": 0.0, "warnings": [],
        }
    )  # fmt: skip


def findings(
    parts: dict[str, dict[str, Any]],
    fulls: dict[str, dict[str, Any]] | None = None,
    part: tuple[float, float, float] | None = (0.3, 0.2, 0.4),
    full: tuple[float, float, float] | None = (0.4, 0.3, 0.5),
    ties: float = 0.02,
    **study: Any,
) -> Findings:
    """Sites with what is unlike `assessed` at each, and the means over those that have a number."""
    fulls = fulls or {}
    assessments, means = [], []
    for site, changes in parts.items():
        assessments.append(assessed(site, "Clinicians", "", value=1.5, low=1.4, high=1.6))
        assessments.append(assessed(site, PART, **changes))
        assessments.append(assessed(site, "FDTR", **fulls.get(site, {})))
    usual = (1.5, 1.4, 1.6)
    means += [
        mean_of("Clinicians", "", [*sites], usual, "verified")
        for size in range(1, len(parts) + 1)
        for sites in combinations(parts, size)
    ]
    for method, span, verdict in ((PART, part, "verified"), ("FDTR", full, "model-based")):
        known = [a.site for a in assessments if a.method == method and a.verdict != "not estimable"]
        if span and known:
            means.append(mean_of(method, "Clinicians", known, span, verdict))
    return Findings(
        study=make_study(**study),
        patients=dict.fromkeys(parts, 100),
        assessments=assessments,
        means=means,
        near_ties={site: [ties, ties, ties] for site in parts} if math.isfinite(ties) else {},
        decisions={site: [100, 90, 80] for site in parts},
    )


def said(found: Findings) -> list[str]:
    return meaning(found, first_screen(found))


def test_a_verified_gain_is_said_with_what_it_does_and_over_which_sites():
    assert said(findings({"a": {}, "b": {"advised_share": 0.5}, "c": {}}))[0] == (
        "FDTR's verified part is better than clinicians: its gain is +0.30 (0.20 to 0.40), mean over 3 sites; it acts "
        "in 37% of decisions and leaves the others to clinicians."
    )
    some = said(findings({"a": {}, "b": {"advised_share": 0.5}, "c": NOTHING}))[0]
    assert "mean over 2 of 3 sites; it acts in 40% of decisions" in some
    assert (
        "+0.30 (0.10 to 0.50), at a alone, 1 of 2 sites; it acts in 30%" in said(findings({"a": {}, "b": NOTHING}))[0]
    )
    alone = said(findings({"a": {}}))[0]
    assert "its gain is +0.30 (0.10 to 0.50); it acts in 30% of decisions" in alone


def test_a_gain_is_told_in_raw_units_where_these_differ():
    assert (
        "(0.20 to 0.40), or 3 in raw units, mean over"
        in said(findings({"a": {}, "b": {}}, reward={"range": [-2, 8]}))[0]
    )


def test_an_interval_that_excludes_0_is_not_written_as_if_it_did_not():
    assert "+0.108 (0.004 to 0.213), mean" in said(findings({"a": {}, "b": {}}, part=(0.108, 0.0041, 0.2126)))[0]


@given(low=st.floats(-1, 1), width=st.floats(0, 1))
def test_better_is_said_only_of_an_interval_above_0(low: float, width: float) -> None:
    high = low + width
    first = said(findings({"a": {}, "b": {}}, part=((low + high) / 2, low, high)))[0]
    assert (" is better than clinicians" in first) == (low > 0)
    assert (" is worse than clinicians" in first) == (high < 0)
    assert (" is not shown to be better than clinicians" in first) == (low <= 0 <= high)


def test_where_no_part_is_verified_the_reason_is_the_sites_own():
    better = "patients treated as usual fared better than the model says"
    few = NOTHING | {"brief": "too few were treated this way"}
    usual = NOTHING | {"brief": better}
    nobody = NOTHING | {"brief": "nobody could be advised"}
    none = "No part of FDTR's policy is verified"
    for sites, sentence in (
        ({"a": few, "b": few}, f"{none} at any of the 2 sites: too few were treated this way."),
        (
            {"a": nobody, "b": usual},
            f"{none} at any of the 2 sites: nobody could be advised or {better}.",
        ),
        ({"a": nobody}, f"{none}: nobody could be advised."),
        ({"a": usual}, f"{none}: patients treated as usual fared better than the model says."),
    ):  # fmt: skip
        found = findings(sites)
        assert said(found)[0] == sentence
        assert "better than clinicians" not in " ".join(said(found))
        assert [row.part.why for row in first_screen(found)][: len(sites)] == [
            a.brief for a in found.assessments if a.method == PART
        ]


PARTS: dict[str, dict[str, Any]] = {
    "better": {},
    "unclear": {"low": -0.1},
    "worse": {"value": -0.3, "low": -0.5, "high": -0.1},
    "none": NOTHING | {"reason": "no more than 4.2 equal ones"},
    "model": {"verdict": "model-based", "estimator": "fqe"},
}
FULLS: dict[str, dict[str, Any]] = {
    "verified": {"verdict": "verified", "estimator": "wdr"},
    "model": {},
    "widened": {"estimator": "richer"},
    "none": NOTHING | {"brief": "held-out patients contradict the models"},
}


@pytest.mark.parametrize(("part", "full"), list(product(PARTS, FULLS)))
@pytest.mark.parametrize("sites", [1, 2, 3])
def test_the_sentences_agree_whatever_the_verdicts(part: str, full: str, sites: int) -> None:
    """At 3 sites only the first has these verdicts, at the others nothing is estimable: no mean of one site."""
    names = [*"abc"[:sites]]
    elsewhere = NOTHING | {"reason": "no more than 4.2 equal ones"}
    at = {name: (PARTS[part], FULLS[full]) if name == "a" or sites < 3 else (elsewhere, elsewhere) for name in names}
    spans = {"part": PARTS[part] if part != "none" else None, "full": FULLS[full] if full != "none" else None}
    mean = findings({name: pair[0] for name, pair in at.items()}, {name: pair[1] for name, pair in at.items()},
        part=span_of(spans["part"], 0.3), full=span_of(spans["full"], 0.4))  # fmt: skip
    mean = replace(mean, means=[
        m.model_copy(update={"verdict": {PART: PARTS, "FDTR": FULLS}[m.method][part if m.method == PART else full].get(
            "verdict", m.verdict)}) if m.over else m
        for m in mean.means
    ])  # fmt: skip
    first, second, _ = said(mean)
    verified = part in ("better", "unclear", "worse")
    assert first.startswith("FDTR's verified part is" if verified else "No part of FDTR's policy is verified")
    claims = {"better": "is better than", "unclear": "is not shown to be better than", "worse": "is worse than"}
    assert all((claims[name] in first) == (name == part) for name in claims)
    assert ("is verified, too" in second) == (verified and full == "verified")
    assert ("is verified as a whole" in second) == (not verified and full == "verified")
    assert ("cannot verify" in second) == (full in ("model", "widened"))
    assert ("contradict its linear form" in second) == (full == "widened")
    assert ("cannot be estimated" in second) == (full == "none")
    assert "othing is verified" not in first + second
    assert ("mean over 2 sites" in first) == (sites == 2 and part != "none")
    assert ("at a alone, 1 of 3 sites" in first) == (sites == 3 and part != "none")
    assert "mean over 1" not in first + second


def span_of(changes: dict[str, Any] | None, value: float) -> tuple[float, float, float] | None:
    if changes is None:
        return None
    return changes.get("value", value), changes.get("low", value - 0.2), changes.get("high", value + 0.2)


@pytest.mark.parametrize(
    ("share", "words"),
    [
        (0.97, "Most advice of the full policy is a near tie, not a clear preference: in 97% of its decisions"),
        (0.3, "In 30% of the full policy's decisions another action is as good within the error of estimation:"),
        (0.04, "Near ties are rare: in 4% of the full policy's decisions"),
        (math.nan, "How many of the full policy's decisions are near ties was not examined."),
    ],
)
def test_near_ties_are_the_third_sentence(share, words):
    assert said(findings({"a": {}, "b": {}}, ties=share))[2].startswith(words)


def test_clinicians_of_the_mean_are_over_the_sites_of_the_verified_part():
    *_, mean = first_screen(findings({"a": {}, "b": NOTHING, "c": {}, "d": {}}))
    assert (mean.part.sites, mean.usual.sites, mean.where) == (["a", "c", "d"], ["a", "c", "d"], "without b")
    *_, mean = first_screen(findings({"a": {}, "b": {}}))
    assert (mean.usual.sites, mean.where) == (["a", "b"], "")
    *_, mean = first_screen(findings({"a": {}, "b": NOTHING, "c": NOTHING}))  # of the part there is no mean
    assert math.isnan(mean.part.value)
    assert mean.part.why == "at a alone, which is no mean"
    assert (mean.full.sites, mean.usual.sites, mean.where) == (["a", "b", "c"], ["a", "b", "c"], "")
    nothing = dict.fromkeys("ab", NOTHING)
    *_, mean = first_screen(findings(nothing, nothing))
    assert (mean.usual.sites, mean.where) == (["a", "b"], "")


def test_the_share_of_near_ties_is_of_all_decisions():
    found = findings({"a": {}, "b": {}})
    mixed = Findings(
        found.study, found.patients, [], near_ties={"a": [1.0, 0.0], "b": [0.0, math.nan]},
        decisions={"a": [10, 20], "b": [30, 0]},
    )  # fmt: skip
    assert mixed.tied_share == pytest.approx(10 / 60)


def test_rows_are_those_of_the_sites_and_the_mean_comes_last():
    rows = first_screen(findings({"a": {}, "b": NOTHING}))
    assert [(row.name, row.n, row.is_mean) for row in rows] == [
        ("a", 100, False),
        ("b", 100, False),
        ("Mean", 200, True),
    ]
    assert (rows[0].part.value, rows[0].part.low, rows[0].part.high) == (0.3, 0.1, 0.5)
    assert (rows[1].part.verdict, math.isnan(rows[1].part.value)) == ("not estimable", True)
    assert (rows[2].part.sites, rows[2].full.sites) == (["a"], ["a", "b"])
    assert [row.name for row in first_screen(findings({"a": {}}))] == ["a"]
    assert first_screen(Findings(make_study(), {"a": 3}, [], not_valued={"a": "too few"})) == []


def test_gains_have_two_significant_digits():
    def rows(high: float) -> list[Row]:
        return [Row("a", 100, Shown(), Shown(Evidence.VERIFIED, high / 2, -high, high), Shown())]

    assert [gain_decimals(rows(high)) for high in (3.0, 0.3, 0.03, 0.004)] == [2, 2, 3, 4]


FINITE = st.floats(-5, 5, allow_nan=False)


@given(st.lists(st.tuples(FINITE, FINITE, FINITE).map(sorted), max_size=6))
def test_every_interval_lies_on_the_axis_with_0(intervals: list[list[float]]) -> None:
    rows = [
        Row("s", 1, Shown(), Shown(Evidence.VERIFIED, value, low, high), Shown(Evidence.MODEL, value, low, high))
        for low, value, high in intervals
    ]
    axis = forest.make_axis(rows)
    assert axis.low < 0 < axis.high
    assert all(axis.low <= tick <= axis.high for tick in axis.ticks)
    assert 1 <= len(axis.ticks) <= 8
    places = [float(place) for row in rows for place in re.findall(r'="(-?[\d.]+)%"', forest.strip(axis, row))]
    assert all(0 <= place <= 100 for place in places)


def test_a_mark_is_drawn_by_verdict_and_none_without_a_number():
    gain = Shown(Evidence.VERIFIED, 0.3, 0.1, 0.5)
    axis = forest.make_axis([Row("a", 1, Shown(), gain, Shown())])
    part_alone = forest.strip(axis, Row("a", 1, Shown(), gain, Shown()))
    assert part_alone.count("<g ") == 1
    assert '<g class="verified">' in part_alone
    assert "<circle" in part_alone
    assert "<rect" not in part_alone
    full_alone = forest.strip(axis, Row("a", 1, Shown(), Shown(), Shown(Evidence.MODEL, 0.3, 0.1, 0.5)))
    assert '<g class="model-based">' in full_alone
    assert "<rect" in full_alone
    assert "<circle" not in full_alone
    assert 'aria-hidden="true"' in full_alone
