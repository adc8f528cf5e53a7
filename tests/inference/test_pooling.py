"""Values of several sites as one, against a published example and the textbook's formulas."""

import math

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import t

from fdtr.inference import SiteValue, pool
from fdtr.inference.pooling import hartung_knapp, paule_mandel

pytestmark = pytest.mark.quick

# Colditz et al., JAMA 1994;271:698–702, thirteen trials of BCG: tuberculosis yes and no, vaccinated and controls.
BCG = np.array(
    [
        [4, 119, 11, 128], [6, 300, 29, 274], [3, 228, 11, 209], [62, 13536, 248, 12619], [33, 5036, 47, 5761],
        [180, 1361, 372, 1079], [8, 2537, 10, 619], [505, 87886, 499, 87892], [29, 7470, 45, 7232],
        [17, 1699, 65, 1600], [186, 50448, 141, 27197], [5, 2493, 3, 2338], [27, 16886, 29, 17825],
    ]
)  # fmt: skip


def bcg():
    """Log risk ratios and their standard errors."""
    a, b, c, d = BCG.T
    return np.log(a / (a + b)) - np.log(c / (c + d)), np.sqrt(1 / a - 1 / (a + b) + 1 / c - 1 / (c + d))


def values_of(y, s, n=100):
    return [SiteValue(f"s{k}", float(v), float(e), n) for k, (v, e) in enumerate(zip(y, s, strict=True))]


def test_fixed_effect_and_q_are_the_published_ones():
    # Viechtbauer, R code for Borenstein et al. (2009), rma(yi, vi, method="EE") on dat.bcg.
    found = pool(values_of(*bcg()))
    fixed = found.fixed
    assert [round(x, 4) for x in (fixed.value, fixed.standard_error, fixed.low, fixed.high)] == [
        -0.4303, 0.0405, -0.5097, -0.3509,
    ]  # fmt: skip
    assert (round(found.statistic, 4), found.df, round(100 * found.i_squared, 2)) == (152.2330, 12, 92.12)
    assert found.p_value < 1e-4


def test_hartung_knapp_is_the_published_one_with_the_published_between_sites_variance():
    # The same source, method="DL", test="knha": τ² = 0.3088, se 0.1807, interval −1.1078 to −0.3204.
    y, s = bcg()
    w = s**-2.0
    q = np.sum(w * (y - np.sum(w * y) / w.sum()) ** 2)
    tau_squared = (q - 12) / (w.sum() - np.sum(w**2) / w.sum())
    assert round(tau_squared, 4) == 0.3088
    found = hartung_knapp(y, s, tau_squared)
    assert [round(x, 4) for x in (found.value, found.standard_error, found.low, found.high)] == [
        -0.7141, 0.1807, -1.1078, -0.3204,
    ]  # fmt: skip


def test_paule_mandel_solves_its_equation():
    def excess(tau_squared, y, s):
        w = 1 / (s**2 + tau_squared)
        return np.sum(w * (y - np.sum(w * y) / w.sum()) ** 2) - (len(y) - 1)

    y, s = bcg()
    assert paule_mandel(y, s) == pytest.approx(brentq(excess, 0, 10, args=(y, s), xtol=1e-14), rel=1e-9)
    rng = np.random.default_rng(0)
    for _ in range(200):
        k = int(rng.integers(2, 12))
        s = rng.uniform(0.01, 1.0, k)
        y = s * rng.standard_normal(k) + rng.uniform(0, 2) * rng.standard_normal(k)
        found = paule_mandel(y, s)
        expected = brentq(excess, 0, 1e3, args=(y, s), xtol=1e-14) if excess(0, y, s) > 0 else 0.0
        assert found == pytest.approx(expected, rel=1e-6, abs=1e-12)


def test_the_plain_mean_counts_every_site_the_same():
    found = pool(values_of([1.0, 2.0, 6.0], [0.3, 0.4, 1.2]))
    assert found.plain.value == pytest.approx(3)
    assert found.plain.standard_error == pytest.approx(1.3 / 3)  # √(0.09 + 0.16 + 1.44) = 1.3
    freedom = 1.69**2 / ((0.09**2 + 0.16**2 + 1.44**2) / 99)
    assert found.plain.high - found.plain.value == pytest.approx(t.ppf(0.975, freedom) * 1.3 / 3)
    assert found.n == 300


def test_the_prediction_interval_is_wider_by_the_spread_of_sites():
    y, s = bcg()
    found = pool(values_of(y, s))
    reach = t.ppf(0.975, 11) * math.sqrt(found.between**2 + found.random.standard_error**2)
    assert found.predicted_low == pytest.approx(found.random.value - reach)
    assert found.predicted_high == pytest.approx(found.random.value + reach)
    assert found.warnings == ()


def test_sites_that_agree_too_well_do_not_look_too_sure():
    found = pool(values_of([1.0, 1.0, 1.0, 1.0, 1.0], [0.1] * 5))
    assert found.between == 0
    assert found.random.standard_error == pytest.approx(0.1 / math.sqrt(5))  # not the 0 that q = 0 would give
    assert found.random.high - found.random.low > found.fixed.high - found.fixed.low
    assert found.i_squared == 0
    assert found.p_value == 1


def test_few_sites_are_warned_of():
    assert [w.name for w in pool(values_of([1.0, 2.0, 3.0, 4.0], [0.5] * 4)).warnings] == ["few-sites"]
    assert "4 sites" in pool(values_of([1.0, 2.0, 3.0, 4.0], [0.5] * 4)).warnings[0].sentence
    two = pool(values_of([1.0, 2.0], [0.5] * 2))
    assert math.isfinite(two.random.low)
    assert math.isnan(two.predicted_low)


def test_one_site_is_itself_and_says_nothing_of_others():
    found = pool([SiteValue("north", 3.0, 0.5, 80)])
    for mean, quantile in ((found.plain, t.ppf(0.975, 79)), (found.fixed, 1.959964)):
        assert (mean.value, mean.standard_error) == (3.0, 0.5)
        assert mean.low == pytest.approx(3 - quantile * 0.5)
    assert found.random.value == 3.0
    unknown = (found.random.standard_error, found.random.low, found.between, found.p_value, found.i_squared)
    assert all(math.isnan(x) for x in (*unknown, found.predicted_high))
    assert [w.name for w in found.warnings] == ["one-site"]


def test_sites_without_a_value_are_left_out_by_name():
    given = [*values_of([1.0, 2.0, 3.0, 4.0, 5.0], [0.5] * 5), SiteValue("x", math.nan, 0.1, 9)]
    found = pool([*given, SiteValue("y", 1.0, math.nan, 9)])
    assert found.sites == ("s0", "s1", "s2", "s3", "s4")
    assert found.n == 500
    assert [w.name for w in found.warnings] == ["left-out"]
    assert "'x', 'y'" in found.warnings[0].sentence
    nobody = pool([SiteValue("x", math.nan, 0.1, 9)])
    assert all(math.isnan(one.value) for one in (nobody.plain, nobody.fixed, nobody.random))
    assert [w.name for w in nobody.warnings] == ["left-out", "few-sites"]


@pytest.mark.parametrize(("k", "tau", "next_site"), [(5, 0.0, 0.97), (5, 0.3, 0.89), (9, 0.3, 0.86), (9, 1.0, 0.935)])
def test_random_effects_cover_the_mean_and_nearly_the_next_site(k, tau, next_site):
    """2,000 runs: the mean in at least 93.5% (three Monte-Carlo errors below 95%); the safeguard errs on the safe side.

    Prediction intervals fall short where sites differ less than their errors (Partlett and Riley, 2017).
    """
    rng = np.random.default_rng([k, int(10 * tau)])
    covered = predicted = 0
    for _ in range(2000):
        s = rng.uniform(0.1, 0.5, k)
        y = 2 + tau * rng.standard_normal(k) + s * rng.standard_normal(k)
        found = pool(values_of(y, s))
        covered += found.random.low <= 2 <= found.random.high
        predicted += found.predicted_low <= 2 + tau * rng.standard_normal() <= found.predicted_high
    assert covered / 2000 >= 0.935
    assert predicted / 2000 >= next_site


def test_a_site_without_any_error_counts_in_the_plain_mean_alone():
    """The same decisions by two methods give a gain of 0, or of rounding, whose weight would be without bounds."""
    for exact in (0.0, 3e-15):
        found = pool(values_of([0.0, 0.2, 0.1], [exact, 0.05, 0.05]))
        assert found.sites == ("s0", "s1", "s2")
        assert found.plain.value == pytest.approx(0.1)
        assert found.plain.standard_error == pytest.approx(math.hypot(0.05, 0.05) / 3)
        others = pool(values_of([0.2, 0.1], [0.05, 0.05]))
        assert (found.fixed, found.df) == (others.fixed, 1)
        assert found.random.value == pytest.approx(0.15)
        assert "no-error" in [warning.name for warning in found.warnings]
    alone = pool(values_of([1.0], [0.0]))
    assert (alone.plain.value, alone.plain.low, alone.plain.high) == (1.0, 1.0, 1.0)
