"""What counts in the experiments on the theorems, and when their sentences say that something holds."""

import numpy as np
import pytest

from experiments.smooth_world import SmoothSpec
from experiments.theorems import (
    misspecification,
    pessimism,
    rate,
    remark,
    sharing,
    splines,
)
from experiments.theorems.judgements import Judgements, bound_rows, event_rows, noise_rows, pessimism_rows
from experiments.theorems.truth import Cell, Judged

PESSIMISMS = (0.0, 0.0005, 0.002, 0.005, 0.01, 0.02, 0.05, 0.2)


# What counts


def judged(promised: float = 0.2, suboptimality: float = 0.1, inside: tuple[float, float] = (1.0, 1.0)) -> Judged:
    """Of a policy that reaches 0.9, with a bound of 0.5."""
    held = np.array(inside)
    return Judged(promised, 0.9, 0.0, 1.0, suboptimality, 0.5, held, held == 1.0)


KEPT, EMPTY, BROKEN = judged(), judged(promised=0.0), judged(promised=0.95)
OUTSIDE = judged(inside=(1.0, 0.99))


def judgements(
    by_pessimism: dict[float, list[Judged]], by_noise: dict[float, list[Judged]] | None = None
) -> Judgements:
    """One site a run."""
    cells, noise_cells = (
        {number: Cell([[one] for one in runs]) for number, runs in by_number.items()}
        for by_number in (by_pessimism, by_noise or {})
    )
    return Judgements("tiny", horizon=2, theory=20.0, ridge=0.01, cells=cells, noise_cells=noise_cells)


def test_a_promise_is_held_to_what_its_policy_reaches_and_not_to_the_optimum():
    one = judgements({0.0: [KEPT, KEPT, BROKEN]})
    assert pessimism_rows(one)[0].share == pytest.approx(2 / 3)
    assert misspecification._row(60, 0.0, 0.0, 0.0, one.cells[0.0]).share == pytest.approx(2 / 3)
    outcomes = [
        splines.Outcome(60, "linear", 6, 0.0, 0.0, (0.5,), suboptimality=(0.1,), promised=(promised,), optimum=(1.0,))
        for promised in (0.2, 0.2, 0.95)
    ]
    assert splines._row(outcomes, 1).pessimistic == pytest.approx(2 / 3)


def test_the_confidence_event_holds_at_a_step_where_no_probed_pair_is_outside():
    one = judgements({0.0: [KEPT, OUTSIDE]})
    [row] = event_rows(one)
    assert (row.share, row.all_steps) == (0.75, 0.5)
    assert misspecification._row(60, 0.0, 0.0, 0.0, one.cells[0.0]).event == 0.75


def test_theorem_2_is_broken_where_the_confidence_event_holds_and_the_bound_or_the_promise_does_not():
    beyond, unsure = judged(suboptimality=0.6), judged(promised=0.95, suboptimality=0.6, inside=(1.0, 0.99))
    one = judgements({0.1: [KEPT, beyond, BROKEN, unsure]})
    [row] = bound_rows(one)
    assert (row.share, row.confident, row.broken) == (0.5, 3, 2)
    assert pessimism._bound_sentence(one).endswith("broken 2 times. Fails.")
    assert pessimism._bound_sentence(judgements({0.1: [KEPT, unsure]})).endswith("broken 0 times. Holds.")


def test_noise_units_are_held_to_the_same_statements_as_c():
    beyond = judged(suboptimality=0.6)
    runs = [KEPT, OUTSIDE, BROKEN, beyond]
    [row] = noise_rows(judgements({}, {0.03: runs}))
    of_c = judgements({0.1: runs})
    assert (row.noise, row.share, row.event, row.bounded) == (0.03, 0.75, 7 / 8, 0.75)
    assert row.interval == pessimism_rows(of_c)[0].interval
    assert row.event == event_rows(of_c)[0].share
    assert row.bounded == bound_rows(of_c)[0].share


def test_the_default_noise_is_told_beside_the_usual_c():
    usual, less, more = [KEPT] * 3 + [BROKEN], [BROKEN] * 4, [KEPT] * 4
    by_noise = {0.0: [BROKEN] * 4, 0.03: less, 0.1: more}
    sentence = pessimism._noise_sentence(judgements({pessimism.USUAL: usual}, by_noise))
    assert "in 0.0% (0.0 to 49.0%) at noise = 0.03 and 100.0% (51.0 to 100.0%) at noise = 0.1" in sentence
    assert (
        "in 75.0% (30.1 to 95.4%) of (run, site) at c = 0.0005; the smallest noise that reaches 95% is 0.1" in sentence
    )
    assert "none that was tried" in pessimism._noise_sentence(
        judgements({pessimism.USUAL: usual}, {0.03: less, 0.1: less})
    )


# Verdicts


@pytest.mark.parametrize(
    ("runs", "verdict"), [([KEPT, KEPT], "Holds."), ([KEPT, EMPTY], "Fails."), ([KEPT, BROKEN], "Fails.")]
)
def test_pessimism_holds_where_promises_are_kept_and_say_something(runs: list[Judged], verdict: str):
    assert pessimism._pessimism_sentence(judgements({0.0: [BROKEN, BROKEN], 0.1: runs})).endswith(verdict)


@pytest.mark.parametrize(("outside", "verdict"), [(0.1, "Holds."), (1.0, "Fails."), (20.0, "Fails.")])
def test_theory_holds_where_the_confidence_event_always_does_from_c_of_1_on(outside: float, verdict: str):
    one = judgements({c: [KEPT, OUTSIDE if c == outside else KEPT] for c in (0.1, 1.0, 20.0)})
    assert pessimism._theory_sentence(one).endswith(verdict)


def test_the_confidence_event_fails_where_no_c_reaches_it():
    assert pessimism._event_sentence(judgements({0.1: [OUTSIDE] * 2})).endswith("Fails.")
    assert "Fails" not in pessimism._event_sentence(judgements({0.1: [OUTSIDE] * 2, 0.2: [KEPT] * 2}))


@pytest.mark.parametrize(
    ("of_mean", "of_own", "verdict"), [(True, True, "Holds."), (True, False, "Fails."), (False, True, "Fails.")]
)
def test_a_rate_holds_where_both_slopes_are_within(of_mean: bool, of_own: bool, verdict: str):
    rows = [
        rate.SlopeRow(rate.PATIENTS_GROW, "first", estimator, 200, -0.5, -0.5, -0.5, within)
        for estimator, within in ((rate.MEAN, of_mean), (rate.OWN, of_own))
    ]
    [sentence] = rate._slope_sentences(rows)
    assert sentence.endswith(verdict)


@pytest.mark.parametrize(("furthest", "verdict"), [(1.14, "Holds."), (1.16, "Fails."), (0.84, "Fails.")])
def test_the_gain_over_ldtr_holds_where_every_design_is_near_root_k(furthest: float, verdict: str):
    rows = [
        rate.ErrorRow(rate.PATIENTS_GROW, "first", estimator, 4, 200, 800, *[0.1] * 3, *[2 * of_root] * 3, of_root)
        for estimator, of_root in ((rate.MEAN, 1.0), (rate.MEAN, furthest), (rate.LOCAL, 0.5))
    ]
    [sentence] = rate._ratio_sentences(rows)
    assert sentence.endswith(verdict)


@pytest.mark.parametrize(
    ("gains", "verdict"),
    [
        ([(-0.004, 0.009), (0.0, 0.0)], "Holds."),
        ([(0.0, 0.011), (0.0, 0.0)], "Fails."),
        ([(-0.011, 0.0), (0.0, 0.0)], "Fails."),
    ],
)
def test_the_remark_holds_where_every_interval_stays_little_and_names_the_widest(gains, verdict: str):
    rows = [
        remark.RemarkRow(0.01, 0.0005, sent, 0.0, *ends, *[0.1] * 9)
        for sent, ends in zip(remark.SENT[1:], gains, strict=True)
    ]
    sentence = remark._verdict(rows)
    assert sentence.endswith(verdict)
    assert f"messages with c = {rows[0].sent:g})" in sentence


@pytest.mark.parametrize(
    ("largest", "reasons", "verdict"),
    [
        (1e-12, ("constant", "constant"), "Holds."),
        (1e-12, ("constant", ""), "Fails."),
        (0.1, ("constant", ""), "Holds."),
        (0.1, ("constant", "constant"), "Fails."),
    ],
)
def test_sharing_holds_where_fits_are_equal_just_when_check_leaves_nothing(largest, reasons, verdict: str):
    rows = [sharing.SharingRow("tiny", c, largest if c == 0 else 0.05, 1.0, 1.0, 1.0) for c in sharing.PESSIMISMS]
    said = [sharing.ReasonRow("tiny", f"shared_{i}", reason, 0.5, 2) for i, reason in enumerate(reasons)]
    assert sharing._sentence("tiny", rows, said).endswith(verdict)


@pytest.mark.parametrize(
    ("kept", "largest", "verdict"),
    [(0.95, 0.5, "Holds."), (0.95, 0.0, "Holds trivially."), (0.94, 0.5, "Fails."), (0.94, 0.0, "Fails.")],
)
def test_pessimism_with_eta_holds_where_promises_are_kept_at_every_c(kept: float, largest: float, verdict: str):
    rows = [
        misspecification.MisspecifiedRow(
            60, departure, eta, c, *[kept if eta and c else 1.0] * 3, *[1.0] * 3, *[0.5] * 3, largest, value=0.9
        )
        for departure in misspecification.DEPARTURES
        for eta in {0.0, departure}
        for c in (0.0, 0.1)
    ]
    sentences = misspecification._sentences(misspecification._groups(rows, 60))
    assert all(sentence.endswith(f"V̂₁ ≤ V₁^π̂: {verdict}") for sentence in sentences[1::2])


def spline_sentences(growing_low: float = 0.6, slope_ends: tuple[float, float] = (-0.6, -0.4)) -> list[str]:
    """A linear fit that reaches 0.4 to 0.5 at the larger of two sizes, and all there is at the smaller."""
    rows = [
        splines.SplineRow(
            n, 2 * n, basis.name, 14, 0.0, 0.1, 0.5, *ends, *[0.1] * 3, promised=0.5, pessimistic=1.0,
            pessimistic_low=1.0, pessimistic_high=1.0,
        )
        for n in (60, 120)
        for basis in splines.BASES
        for ends in [(growing_low, 1.0) if basis == splines.GROWING else (0.4, 0.5 if n == 120 else 1.0)]
    ]  # fmt: skip
    slopes = [splines.SplineSlopeRow(basis.name, -0.5, *slope_ends) for basis in splines.BASES]
    return splines._sentences(2, SmoothSpec(), rows, slopes)


@pytest.mark.parametrize(("growing_low", "verdict"), [(0.51, "Holds."), (0.49, "Fails.")])
def test_splines_hold_where_at_the_last_size_their_interval_is_above_the_linear_fits(growing_low: float, verdict: str):
    [sentence] = [s for s in spline_sentences(growing_low=growing_low) if "growing splines reach" in s]
    assert sentence.endswith(verdict)


@pytest.mark.parametrize(
    ("ends", "verdict"), [((-0.6, -0.4), "Holds."), ((-0.4, -0.2), "Not told apart."), ((-0.3, -0.1), "Fails.")]
)
def test_growing_splines_fall_no_slower_than_the_corollary_where_the_whole_interval_does(ends, verdict: str):
    sentences = [s for s in spline_sentences(slope_ends=ends) if "Corollary 3" in s]
    assert len(sentences) == 3
    assert all(sentence.endswith(f"No slower: {verdict}") for sentence in sentences)
