"""Intervals: Student's, the bootstrap, Bernstein's; clusters; the feasible range."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from evaluation_patients import make_patients
from fdtr.evaluation.importance import per_decision, step_weighted
from fdtr.evaluation.intervals import (
    Range,
    Statistic,
    bernstein_interval,
    bootstrap,
    bootstrap_interval,
    influence_interval,
    mean_of,
    weighted_means,
)

pytestmark = pytest.mark.quick
WIDE = Range(-100.0, 100.0)


def random_statistic(n=200, seed=0):
    rng = np.random.default_rng(seed)
    return weighted_means(rng.random((4, n)), rng.gamma(0.5, 2.0, (4, n)))


def test_an_average_has_students_interval():
    sample = np.random.default_rng(0).normal(size=30)
    found = influence_interval(mean_of(sample), WIDE, 0.9)
    low, high = stats.t.interval(0.9, 29, loc=sample.mean(), scale=stats.sem(sample))
    assert (found.low, found.high) == pytest.approx((low, high), rel=1e-10)
    assert found.standard_error == pytest.approx(stats.sem(sample), rel=1e-10)


def test_intervals_stay_in_the_feasible_range():
    sample = np.array([0.0, 0.0, 0.0, 9.0])
    for found in (
        influence_interval(mean_of(sample), Range(0, 3)),
        bootstrap_interval(bootstrap(mean_of(sample), np.random.default_rng(0), 200), Range(0, 3)),
        bernstein_interval(mean_of(sample), Range(0, 3)),
    ):
        assert 0 <= found.low <= found.high <= 3


def test_one_unit_says_nothing():
    found = influence_interval(mean_of(np.array([1.0])), Range(0, 3))
    assert (found.low, found.high) == (0, 3)
    assert math.isnan(found.standard_error)
    assert bernstein_interval(mean_of(np.array([1.0])), Range(0, 3)).low == 0


def test_the_bootstrap_normalises_in_every_draw():
    # Constant rewards: every weighted mean is 1, whatever is drawn. Fixed normalisers would vary with the weights.
    rng = np.random.default_rng(0)
    constant = weighted_means(np.ones((3, 100)), rng.gamma(0.5, 2.0, (3, 100)))
    drawn = bootstrap(constant, rng, 500)
    np.testing.assert_allclose(drawn.values, 3.0, rtol=1e-12)
    found = bootstrap_interval(drawn, Range(0, 3))
    assert found.high - found.low == pytest.approx(0.0, abs=1e-12)


def test_the_bootstrap_agrees_with_the_influence_function():
    # 4,000 draws leave 1.1% of Monte-Carlo error; the ratio's second order at n = 2,000 is below that.
    found = random_statistic(n=2000)
    drawn = bootstrap(found, np.random.default_rng(1), 4000)
    error = influence_interval(found, WIDE).standard_error
    assert drawn.values.std(ddof=1) == pytest.approx(error, rel=0.05)
    ends = bootstrap_interval(drawn, WIDE)
    assert (ends.low, ends.high) == pytest.approx(
        (found.value - 1.96 * error, found.value + 1.96 * error), abs=0.1 * error
    )


def test_draws_are_those_of_counts_with_a_multinomial_law():
    found = mean_of(np.array([1.0, 0.0, 0.0]))
    drawn = bootstrap(found, np.random.default_rng(2), 20_000).values
    shares = [np.mean(np.isclose(drawn, k / 3)) for k in range(4)]
    np.testing.assert_allclose(shares, stats.binom.pmf(range(4), 3, 1 / 3), atol=0.015)


def test_draws_do_not_depend_on_the_number_of_threads(monkeypatch):
    found = []
    for threads in ("1", "2"):
        monkeypatch.setenv("FDTR_THREADS", threads)
        found.append(bootstrap(random_statistic(), np.random.default_rng(3), 300).values)
    np.testing.assert_array_equal(found[0], found[1])


def test_draws_that_lose_all_weight_are_counted():
    weights = np.zeros((1, 20))
    weights[0, 0] = 1.0
    drawn = bootstrap(weighted_means(np.ones((1, 20)), weights), np.random.default_rng(0), 2000)
    assert drawn.undefined == pytest.approx((19 / 20) ** 20, abs=0.05)
    assert np.isfinite(drawn.values).all()


def test_bernsteins_bound_is_the_published_one():
    # Maurer and Pontil (2009), Theorem 4, for X in [0, 1]; here X/b, b = 3 √50 / 4, no summand above it.
    sample = np.random.default_rng(0).random(50) * 3
    b, log = 3 * math.sqrt(50) / 4, math.log(2 / 0.05)
    scaled = sample / b
    expected = b * (scaled.mean() - math.sqrt(2 * scaled.var(ddof=1) * log / 50) - 7 * log / (3 * 49))
    found = bernstein_interval(mean_of(sample), Range(0, 3))
    assert found.low == pytest.approx(max(expected, 0.0), rel=1e-10)
    assert found.high == 3


@pytest.mark.parametrize("most", [3.0, 60.0])
def test_bernsteins_bound_for_clusters_grows_with_the_largest(most):
    # 10 clusters of 1 patient, 10 of 3 and one of 20: X_g = (G/n) Σ_{i in g} X_i ≤ b = (H √n / 4) (20 G/n). Summands up
    # to 3 stay below H √60 / 4 = 5.8, and so do their clusters below b; of those up to 60 the large cluster is cut off.
    labels = np.concatenate([np.arange(10), np.repeat(np.arange(10, 20), 3), np.full(20, 20)])
    sample = np.random.default_rng(0).random(60) * most
    sums = np.array([sample[labels == g].sum() for g in range(21)]) * 21 / 60
    b, log = 3 * math.sqrt(60) / 4 * 20 * 21 / 60, math.log(2 / 0.05)
    assert (sums > b).any() == (most > 3)
    kept = np.minimum(sums, b)
    expected = kept.mean() - math.sqrt(2 * kept.var(ddof=1) * log / 21) - 7 * b * log / (3 * 20)
    found = bernstein_interval(mean_of(sample).clustered(labels), Range(-1000, 3))
    assert found.low == pytest.approx(expected, rel=1e-10)


def test_bernsteins_bound_covers():
    # Heavy weights: 0 or 12 with mean 0.6. It is to be below the mean in 95% of samples; it is in nearly all.
    rng = np.random.default_rng(0)
    below = [bernstein_interval(mean_of(12.0 * (rng.random(400) < 0.05)), Range(0, 3)).low <= 0.6 for _ in range(300)]
    assert np.mean(below) >= 0.95


def test_bernstein_is_for_averages_of_what_is_not_negative():
    with pytest.raises(ValueError, match="use method pdis"):
        bernstein_interval(mean_of(np.array([-1.0, 1.0])), WIDE)
    with pytest.raises(ValueError, match="use method pdis"):
        bernstein_interval(random_statistic(), WIDE)


@given(st.integers(0, 10_000), st.sampled_from([per_decision, step_weighted]))
def test_pairs_of_twins_are_worth_no_more_than_one_of_them(seed, estimator):
    patients = make_patients(n=12, seed=seed % 7)
    found = estimator(patients.arrays, patients.weights)
    twice = Statistic(np.repeat(found.numerators, 2, 0), np.repeat(found.denominators, 2, 0), found.signs)
    order = np.random.default_rng(seed).permutation(24)
    shuffled = Statistic(twice.numerators[order], twice.denominators[order], twice.signs)
    clustered = shuffled.clustered((np.arange(24) // 2)[order])
    once, pairs = influence_interval(found, WIDE), influence_interval(clustered, WIDE)
    assert (pairs.low, pairs.high, pairs.standard_error) == pytest.approx((once.low, once.high, once.standard_error))
    assert clustered.value == pytest.approx(found.value)
    assert clustered.n == 12


def test_clusters_of_one_change_nothing():
    found = random_statistic()
    alone = found.clustered(np.random.default_rng(0).permutation(200))
    assert influence_interval(alone, WIDE).standard_error == pytest.approx(
        influence_interval(found, WIDE).standard_error
    )
    assert found.clustered(None) is found


def test_a_difference_is_paired():
    first, second = random_statistic(seed=1), random_statistic(seed=2)
    found = first.minus(second)
    assert found.value == pytest.approx(first.value - second.value)
    np.testing.assert_allclose(found.influence, first.influence - second.influence, atol=1e-12)
    assert influence_interval(first.minus(first), WIDE).standard_error == pytest.approx(0.0, abs=1e-12)
    drawn = bootstrap(found, np.random.default_rng(0), 100)
    apart = [bootstrap(part, np.random.default_rng(0), 100).values for part in (first, second)]
    np.testing.assert_allclose(drawn.values, apart[0] - apart[1], atol=1e-12)
