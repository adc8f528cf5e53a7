"""The experiments on the theorems: their truths are true, their laws hold, and every finding says what it shows."""

import dataclasses
import itertools
import math
from functools import cache

import numpy as np
import pyarrow as pa
import pytest

import fdtr
from experiments.comparison import rule_of
from experiments.findings import Finding
from experiments.intervals import bootstrap, mean, share, slope
from experiments.replications import ignore_progress, seeds_of
from experiments.smooth_world import SmoothSpec
from experiments.theorems import (
    misspecification,
    pessimism,
    rate,
    remark,
    run_theorems,
    sharing,
    splines,
)
from experiments.theorems.fitting import fit_together, read_patients, settings
from experiments.theorems.truth import Judged, SiteTruth, Trial, draw_truth, judge_trial
from fdtr.learners import NoiseUnits
from fdtr.simulation.linear import World, WorldSpec, make_world
from fdtr.study import Study
from fdtr.summary import combine

pytestmark = pytest.mark.slow

SPEC = WorldSpec(n_sites=3, n_shared=2, n_specific=3, n_actions=3, horizon=4)
TINY = WorldSpec(n_sites=2, n_shared=2, n_specific=2, n_actions=2, horizon=3)
PESSIMISMS = (0.0, 0.0005, 0.002, 0.005, 0.01, 0.02, 0.05, 0.2)


def world_of(seed: int = 0) -> World:
    return make_world(SPEC, np.random.default_rng(seed))


def truth_of(world: World, site: int, draws: int = 4000, seed: int = 1) -> SiteTruth:
    study = Study.model_validate(world.study())
    return draw_truth(world, site, study, draws, 30, np.random.default_rng(seed))


@cache
def judged_by_pessimism(seed: int) -> list[list[Judged]]:
    learning = tuple(settings(c, 0.01) for c in PESSIMISMS)
    return judge_trial(Trial(SPEC, 0.0, 150, learning, 500, seeds_of(seed, 0)))


# What is true of a fit


def test_the_optimum_of_a_truth_is_that_of_its_world():
    world = world_of()
    found, known = truth_of(world, 0).optimum()[1], world.optimal(0)
    first_states = found.at_first.std() / np.sqrt(len(found.at_first))
    error = math.hypot(found.standard_error, known.standard_error, first_states)
    assert found.mean == pytest.approx(known.value, abs=4 * error)
    assert error < 0.01


def test_a_rules_value_is_that_of_simulated_patients():
    world = world_of()
    patients = read_patients(world.study(), world.table(100, np.random.default_rng(2)))
    fit = fit_together(patients, settings(0.001, 0.1)).federated[1]
    truth = truth_of(world, 1)
    followed = truth.follow(truth.choices(fit))
    simulated = world.value(1, rule_of(fit, patients.study), 50_000, np.random.default_rng(3))
    first_states = followed.at_first.std() / np.sqrt(len(followed.at_first))
    error = math.hypot(followed.standard_error, simulated.standard_error, first_states)
    assert followed.mean == pytest.approx(simulated.mean, abs=4 * error)


def test_what_is_ahead_of_a_state_is_the_mean_over_simulated_next_states():
    world = world_of()
    truth = truth_of(world, 2)
    following = truth.stages[2]
    values = following.psi[0] ** 2 + following.own[:, 1]  # any function of the state
    later = truth.later(truth.stages[1], truth.ahead_of(1, values))
    n = 100_000
    here = np.concatenate([truth.stages[1].psi[: SPEC.n_shared, 7], truth.stages[1].own[7]])
    states = np.tile(here, (n, 1))
    drawn = world.next_states(2, 1, states, np.full(n, 1), world.luck(2, 1, n, np.random.default_rng(4)))
    sample = drawn[:, 0] ** 2 + drawn[:, SPEC.n_shared + 1]
    assert later[1, 7] == pytest.approx(sample.mean(), abs=4 * np.hypot(sample.std() / np.sqrt(n), 0.005))


def test_sums_give_the_fits_that_the_roles_give():
    world = world_of(5)
    table = world.table(80, np.random.default_rng(6))
    study = Study.model_validate(world.study(pessimism=0.002, ridge=0.1, sharing=1.0, share="value"))
    sites = fdtr.read_trajectories(pa.table(table), study).by_site()
    local = {name: fdtr.fit_local(study, rows) for name, rows in sites.items()}
    total = combine(fit.summary for fit in local.values())
    patients = read_patients(world.study(), table)
    together = fit_together(patients, settings(0.002, 0.1))
    states = world.arrive(0, 200, np.random.default_rng(7))
    for name, mine, alone in zip(sites, together.federated, together.local, strict=True):
        theirs = fdtr.fit_federated(study, sites[name], total, local[name].summary)
        assert np.array_equal(alone.theta, local[name].theta)
        assert np.array_equal(mine.theta, theirs.theta)
        assert np.array_equal(rule_of(mine, patients.study)(states, 1), theirs.policy.act(states, 1))


# Laws of Theorem 2 in a run


@pytest.mark.parametrize("seed", range(3))
def test_more_pessimism_never_loses_what_it_kept(seed: int):
    pessimistic = np.array([[one.pessimistic for one in sites] for sites in judged_by_pessimism(seed)])
    promised = np.array([[one.promised for one in sites] for sites in judged_by_pessimism(seed)])
    assert np.all(np.diff(pessimistic.astype(int), axis=0) >= 0)
    assert pessimistic[-1].all()
    assert np.all(np.diff(promised, axis=0) <= 0)


@pytest.mark.parametrize("seed", range(3))
def test_the_confidence_event_implies_pessimism_and_the_suboptimality_bound(seed: int):
    everywhere = [one for sites in judged_by_pessimism(seed) for one in sites if one.everywhere.all()]
    assert everywhere
    for one in everywhere:
        assert one.confident
        assert one.pessimistic
        assert one.kept == 1.0
        assert one.suboptimality <= one.bound


def test_the_bound_is_twice_the_expected_penalty_and_grows_in_proportion_to_c():
    bounds = np.array([[one.bound for one in sites] for sites in judged_by_pessimism(0)])
    assert np.all(bounds[0] == 0)
    # Σ and π* do not depend on c, so that the bound is linear in it.
    assert np.allclose(bounds[1:] / np.array(PESSIMISMS)[1:, None], bounds[1] / PESSIMISMS[1], rtol=1e-9)


NOISES = (0.0, 0.03, 0.1, 1.0)


@cache
def judged_by_noise(seed: int) -> list[list[Judged]]:
    learning = tuple(settings(NoiseUnits(noise), 0.01) for noise in NOISES)
    return judge_trial(Trial(SPEC, 0.0, 150, learning, 500, seeds_of(seed, 0)))


@pytest.mark.parametrize("seed", range(2))
def test_more_noise_units_promise_less_and_keep_the_statements_of_theorem_2(seed: int):
    by_noise = judged_by_noise(seed)
    promised = np.array([[one.promised for one in sites] for sites in by_noise])
    assert np.all(np.diff(promised, axis=0) < 0)
    assert all(one.pessimistic for one in by_noise[-1])
    everywhere = [one for sites in by_noise for one in sites if one.everywhere.all()]
    assert everywhere
    for one in everywhere:
        assert one.confident
        assert one.pessimistic
        assert one.suboptimality <= one.bound


def test_no_noise_units_are_no_pessimism_and_the_message_keeps_its_c():
    learning = settings(NoiseUnits(0.03), 0.1)
    world = world_of()
    patients = read_patients(world.study(), world.table(100, np.random.default_rng(2)))
    together, sent = fit_together(patients, learning), fit_together(patients, settings(0.0005, 0.1))
    for mine, theirs in zip(together.local, sent.local, strict=True):
        assert np.array_equal(mine.theta, theirs.theta)
    none, plain = (
        fit_together(patients, settings(pessimism, 0.1), settings(0.0005, 0.1)).federated
        for pessimism in (NoiseUnits(0.0), 0.0)
    )
    for mine, theirs in zip(none, plain, strict=True):
        assert np.array_equal(mine.theta, theirs.theta)


def test_the_confidence_event_takes_the_penalty_of_each_step():
    """α_h = κ d σ̂_h differs from step to step, and a step is judged by its own."""
    world = world_of()
    patients = read_patients(world.study(), world.table(100, np.random.default_rng(2)))
    truth = truth_of(world, 1, draws=500)
    best, followed = truth.optimum()
    fit = fit_together(patients, settings(NoiseUnits(0.3), 0.01)).federated[1]
    off, ahead = [], None
    for h in reversed(range(SPEC.horizon)):
        off.append(truth._off(fit, h, truth.ahead_of(h, ahead)))
        ahead = fit.bounds[h].values(truth.stages[h].psi)
    lengths = off[::-1]
    assert len({penalty.scale for penalty in fit.penalties}) == SPEC.horizon
    for wide in range(SPEC.horizon):  # α just large enough at one step, just too small at the others
        alphas = [length * (1.001 if h == wide else 0.999) for h, length in enumerate(lengths)]
        penalties = tuple(dataclasses.replace(p, scale=a) for p, a in zip(fit.penalties, alphas, strict=True))
        found = truth.judge(dataclasses.replace(fit, penalties=penalties), best, followed)
        assert found.everywhere.tolist() == [h == wide for h in range(SPEC.horizon)]


def test_eta_widens_the_penalty_and_promises_less():
    learning = (settings(0.001, 0.01), settings(0.001, 0.01, 0.02))
    plain, wide = judge_trial(Trial(SPEC, 0.02, 150, learning, 100, seeds_of(0, 1)))
    assert all(a.promised > b.promised for a, b in zip(plain, wide, strict=True))
    assert all(a.bound < b.bound for a, b in zip(plain, wide, strict=True))
    assert all(a.inside.mean() < b.inside.mean() for a, b in zip(plain, wide, strict=True))


@pytest.mark.parametrize("d", [4, 8, 20, 100])
def test_the_proof_goes_through_from_the_theorys_c_on_and_not_before(d: int):
    c = pessimism.theory_pessimism(d)

    def holds(c: float) -> bool:  # the last display of the proof of Theorem 2
        return 18 * (1 + 1 / d) + 8 * math.log(64 * c**2) <= c**2 / 4

    assert holds(c * 1.0001)
    assert not holds(c * 0.9999)
    assert c >= 1


# Numbers


def test_the_slope_of_exact_data_is_minus_a_half():
    sizes = np.array([200, 400, 800, 1600])
    squares = np.tile(3.0 / sizes, (10, 1)) * np.arange(1, 11)[:, None]  # every replication has its own level
    rows = rate.slope_rows(
        "n grows",
        [(5, int(n)) for n in sizes],
        np.tile(squares[:, :, None, None], (1, 1, 3, 2)),
        np.random.default_rng(0),
    )
    assert len(rows) == 4
    for row in rows:
        assert row.slope == pytest.approx(-0.5, abs=1e-9)
        assert (row.low, row.high) == pytest.approx((-0.5, -0.5), abs=1e-9)
        assert row.within


def test_intervals_contain_their_estimates_and_know_of_replications_that_go_together():
    rng = np.random.default_rng(0)
    alone = share(rng.random((40, 5)) < 0.3)
    together = share(np.repeat(rng.random((40, 1)) < 0.3, 5, axis=1))
    for interval in (alone, together, mean(rng.random(30)), share(np.ones((4, 2)))):
        assert interval.low <= interval.estimate <= interval.high
    assert together.high - together.low > 1.5 * (alone.high - alone.low)
    # Wilson's interval for 0 of 10, from its formula: z²/(n + z²).
    assert share(np.zeros((10, 1))).high == pytest.approx(1.96**2 / (10 + 1.96**2), abs=1e-4)


def test_a_bootstrap_interval_is_about_four_standard_errors_wide():
    values = np.random.default_rng(1).standard_normal((400, 1))
    found = bootstrap(values, lambda means: float(means[0]), np.random.default_rng(2))
    assert found.estimate == pytest.approx(values.mean())
    assert found.high - found.low == pytest.approx(2 * 1.96 / 20, rel=0.15)
    assert slope([1, 10], [1, 10]) == pytest.approx(1.0)


def test_splines_grow_as_the_proof_of_theorem_4_lets_them():
    knots = [splines.GROWING.knots_for(n) for n in (500, 2000, 8000, 32_000, 2_000_000)]
    assert knots == sorted(knots)
    wanted = 5 * 2 ** (1 / 3) * 2_000_000 ** (1 / 6)  # c4·m^{m/(m+q+1)}·N^{m/(2(m+q+1))} with m = 2 and q = 3
    assert abs(4 * knots[-1] + 14 - wanted) <= 2
    assert splines.LINEAR.knots_for(500) is None
    assert splines.FIXED.knots_for(32_000) == 0
    assert splines.BASES[-1].misspecification(20) == pytest.approx(2 / 20**2)


def test_more_sites_or_patients_lessen_the_error_of_the_shared_coefficients():
    trial = rate.Trial(rate.SPEC, ((2, 200), (12, 200)), ((3, 100), (3, 1600)), seeds_of(0, 2))
    found = rate.squared_errors(trial)
    for way, squares in found.items():
        assert squares.shape == (2, 3, 2)
        assert np.all(squares[1, 0] < squares[0, 0]), way
        # At the last step every site's own estimate is the mean: all solve the same system but for λ = 1e-6.
        assert np.allclose(squares[:, 0, 1], squares[:, 1, 1], rtol=1e-3)


def test_where_all_or_none_happened_a_replication_counts_once():
    for hits in (np.ones, np.zeros):
        assert share(hits((10, 5))) == share(hits((10, 1)))


# What a trial does

TRIALS = {
    judge_trial: Trial(TINY, 0.0, 60, (settings(0.0005, 0.01),), 20, seeds_of(0, 3)),
    remark.compare: remark.Trial(TINY, 60, 20, seeds_of(0, 4)),
    rate.squared_errors: rate.Trial(TINY, ((2, 60), (8, 60)), ((2, 60),), seeds_of(0, 5)),
    sharing.compare: sharing.Trial(sharing.VARIANTS[-1], 60, seeds_of(0, 6)),
    splines.try_bases: splines.Trial(SmoothSpec(n_sites=2, horizon=2), (60,), 50, seeds_of(0, 7)),
}


@pytest.mark.parametrize("work", TRIALS, ids=lambda work: work.__module__.rpartition(".")[-1])
def test_a_trial_that_runs_again_finds_the_same(work):
    assert str(work(TRIALS[work])) == str(work(TRIALS[work]))


def test_a_departure_of_eta_moves_the_optimum_by_h_eta_at_most_and_is_seen_in_the_patients():
    [valid], [departed] = (
        judge_trial(dataclasses.replace(TRIALS[judge_trial], departure=departure)) for departure in (0.0, 0.05)
    )
    for right, wrong in zip(valid, departed, strict=True):
        moved = abs(right.value + right.suboptimality - wrong.value - wrong.suboptimality)
        assert 0 < moved <= TINY.horizon * 0.05
        assert wrong.promised != right.promised


def test_the_larger_the_c_behind_messages_the_further_they_move_the_shared_coefficients():
    theta = {(found.ridge, found.own, found.sent): found.theta for found in remark.compare(TRIALS[remark.compare])}
    small, large = remark.SENT[1:]
    for ridge, own in itertools.product(remark.RIDGES, remark.OWN):
        assert 0 < theta[ridge, own, small] < theta[ridge, own, large]


def test_a_site_alone_is_further_from_the_shared_coefficients_than_eight_together():
    *together, alone = rate.squared_errors(TRIALS[rate.squared_errors])[rate.SITES_GROW][-1]
    # Expected is a ratio of 8.
    assert np.all(alone > 3 * np.array(together))


def test_equal_bases_reach_the_same_and_eta_makes_them_promise_less():
    found = {outcome.basis: outcome for outcome in splines.try_bases(TRIALS[splines.try_bases])}
    # So few patients give growing splines no knots either.
    assert dataclasses.replace(found[splines.GROWING.name], basis=splines.FIXED.name) == found[splines.FIXED.name]
    promised = np.array([found[basis.name].promised for basis in splines.BASES[2:]])
    assert np.all(np.diff(promised, axis=0) < 0)


# Findings


@cache
def quick_findings() -> list[Finding]:
    return [*run_theorems(0, quick=True, processes=1)]


COLUMNS = {
    "theorem2-pessimism": ("world", "ridge", "pessimism", "share", "low", "high", "promised", "value"),
    "theorem2-confidence": ("world", "ridge", "pessimism", "share", "low", "high", "everywhere", "pairs"),
    "theorem2-noise": ("world", "ridge", "noise", "share", "low", "high", "promised", "value", "event", "bounded"),
    "theorem2-suboptimality": ("world", "ridge", "pessimism", "suboptimality", "bound", "share", "ratio"),
    "remark-messages": ("ridge", "own", "sent", "gain", "theta", "error", "agreement"),
    "rate-errors": ("grows", "step", "estimator", "n_sites", "n", "rmse", "low", "high", "ratio", "of_root"),
    "rate-slopes": ("grows", "step", "estimator", "from_n", "slope", "low", "high", "within"),
    "sharing": ("variant", "pessimism", "largest", "agreement"),
    "sharing-check": ("variant", "feature", "reason", "retained"),
    "misspecification": ("n", "departure", "misspecification", "pessimism", "share", "event", "promised"),
    "splines": ("n", "basis", "n_features", "misspecification", "departure", "fraction", "suboptimality"),
    "splines-slopes": ("basis", "slope", "low", "high"),
}


@pytest.mark.slow
def test_every_finding_has_its_tables_with_finite_figures():
    tables = {table.name: table for finding in quick_findings() for table in finding.tables}
    assert set(tables) == set(COLUMNS)
    for name, columns in COLUMNS.items():
        rows = tables[name].rows
        fields = {field.name for field in dataclasses.fields(rows[0])}
        assert set(columns) <= fields, name
        numbers = [value for row in rows for value in dataclasses.astuple(row) if isinstance(value, float)]
        assert np.isfinite(numbers).all(), name
        assert tables[name].as_csv().count("\n") == len(rows) + 1


@pytest.mark.slow
def test_every_finding_says_pass_or_fail_with_figures():
    for finding in quick_findings():
        assert any(sentence.endswith(("Holds.", "Fails.")) for sentence in finding.shows), finding.title
        assert all(any(ch.isdigit() for ch in sentence) for sentence in finding.shows)
        assert "nan" not in " ".join(finding.shows)


@pytest.mark.slow
def test_every_figure_can_be_drawn():
    pytest.importorskip("altair")
    for finding in quick_findings():
        for figure in finding.figures:
            assert figure.draw().to_dict()["$schema"]


@pytest.mark.slow
@pytest.mark.parametrize("experiment", [sharing, remark])
def test_findings_do_not_depend_on_the_number_of_processes(experiment):
    alone, shared = (experiment.run(7, True, processes, ignore_progress) for processes in (1, 2))
    assert alone.shows == shared.shows
    assert [t.as_csv() for t in alone.tables] == [t.as_csv() for t in shared.tables]


def test_site_constant_covariates_leave_nothing_to_share_and_check_says_why():
    finding = sharing.run(0, True, 1, ignore_progress)
    rows = {row.variant: row for row in finding.tables[0].rows if row.pessimism == 0}
    reasons = finding.tables[1].rows
    for variant in sharing.VARIANTS[:2]:
        assert rows[variant.name].largest <= sharing.EQUAL
        assert rows[variant.name].agreement == 1.0
        assert all(row.reason for row in reasons if row.variant == variant.name)
    assert rows[sharing.VARIANTS[-1].name].largest > 0.01
    assert not any(row.reason for row in reasons if row.variant == sharing.VARIANTS[-1].name)
    absorbed = {row.feature for row in reasons if row.variant == sharing.VARIANTS[2].name and row.reason}
    assert absorbed == {"shared_2", "a·shared_2"}


def test_a_wrong_model_is_judged_in_the_same_worlds_as_a_right_one():
    finding = misspecification.run(0, True, 1, ignore_progress)
    rows = finding.tables[0].rows
    assert {row.departure for row in rows} == set(misspecification.DEPARTURES)
    for row in rows:
        assert row.misspecification in (0.0, row.departure)
    with_eta = [row for row in rows if row.misspecification == max(misspecification.DEPARTURES)]
    assert all(row.promised_largest == 0 and row.share == 1 for row in with_eta)
