"""Sums as whole numbers: how far rounding goes, and what is refused before it could wrap around."""

from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fdtr.errors import OtherStudy, OutOfRange
from fdtr.masking import FixedPoint
from fdtr.sums import INFORMATION_COARSENESS, Sums, stack_steps, summarize_step

pytestmark = pytest.mark.quick

INFORMATION = ("information", "information_moment", "information_square")
steady = settings(max_examples=60, derandomize=True)


def make_sums(rng, n, horizon, n_shared, n_specific=2):
    """Sums of unit-scaled features and of outcomes as large as a study allows."""
    steps = []
    for h in range(horizon):
        phi = rng.normal(size=(n, n_shared + n_specific))
        phi /= np.maximum(np.linalg.norm(phi, axis=1, keepdims=True), 1e-9)
        reward = rng.random(n)
        outcome = reward + rng.random(n) * (horizon - h - 1)
        steps.append(summarize_step(phi.T @ phi, phi.T @ outcome, phi.T @ reward, float(reward @ reward), n, n_shared))
    return stack_steps(steps)


def units(scale):
    return {
        field.name: scale.resolution * (INFORMATION_COARSENESS if field.name in INFORMATION else 1)
        for field in fields(Sums)
    }


@steady
@given(
    n=st.integers(1, 300), horizon=st.integers(1, 6), n_shared=st.integers(0, 5), n_sites=st.integers(3, 1000),
    spare=st.integers(0, 10_000), seed=st.integers(0, 10**6),
)  # fmt: skip
def test_a_number_moves_by_at_most_half_a_unit(n, horizon, n_shared, n_sites, spare, seed):
    sums = make_sums(np.random.default_rng(seed), n, horizon, n_shared)
    scale = FixedPoint(horizon, n_shared, n_sites, n + spare)
    numbers = scale.encode(sums)
    assert numbers.dtype == np.uint64
    assert numbers.shape == (scale.length,) == (horizon * (n_shared * (n_shared + 1) + 3 * n_shared + 3),)
    found = scale.quantised(sums)
    for name, unit in units(scale).items():
        assert np.max(np.abs(getattr(found, name) - getattr(sums, name)), initial=0.0) <= unit / 2
    np.testing.assert_array_equal(found.n, sums.n)
    np.testing.assert_array_equal(found.rank, sums.rank)
    assert scale.quantised(found) == found  # rounding once is rounding for good


@steady
@given(sizes=st.lists(st.integers(1, 60), min_size=3, max_size=8), seed=st.integers(0, 10**6))
def test_the_decoded_total_is_the_sum_of_the_quantised_messages(sizes, seed):
    rng = np.random.default_rng(seed)
    parts = [make_sums(rng, n, horizon=3, n_shared=2) for n in sizes]
    scale = FixedPoint(3, 2, len(sizes), max(sizes))
    total = np.zeros(scale.length, dtype=np.uint64)
    plain = parts[0] - parts[0]
    for part in parts:
        total += scale.encode(part)
        plain = plain + scale.quantised(part)
    found = scale.decode(total, len(sizes))
    for name in units(scale):
        np.testing.assert_allclose(getattr(found, name), getattr(plain, name), rtol=1e-14, atol=1e-12)


@steady
@given(
    n_sites=st.integers(3, 500), patients=st.integers(1, 20_000), horizon=st.integers(1, 20), n_shared=st.integers(1, 4)
)
def test_no_total_within_the_ranges_wraps_around(n_sites, patients, horizon, n_shared):
    """Every site at the edge of what is allowed: the decoded total is the true one, with its sign."""
    scale = FixedPoint(horizon, n_shared, n_sites, patients)
    n = np.full(horizon, float(patients))
    left = (horizon - np.arange(horizon))[:, None]
    edge = Sums(
        schur=np.ones((horizon, n_shared, n_shared)) * patients,
        schur_moment=-np.ones((horizon, n_shared)) * patients * left,
        schur_reward=-np.ones((horizon, n_shared)) * patients,
        information=np.ones((horizon, n_shared, n_shared)) * patients * 1000,
        information_moment=-np.ones((horizon, n_shared)) * patients * 1000,
        information_square=n * 1000,
        rank=np.minimum(n, n_shared),
        n=n,
    )
    found = scale.decode(scale.encode(edge) * np.uint64(n_sites), n_sites)
    for name in units(scale):
        np.testing.assert_allclose(getattr(found, name), n_sites * getattr(edge, name), rtol=1e-12)


def test_the_resolution_is_as_stated():
    # K·max_patients·H = 10·30,000·5 lies between 2²⁰ and 2²¹.
    scale = FixedPoint(horizon=5, n_shared=6, n_sites=10, max_patients=30_000)
    assert scale.bits == 62 - 21
    assert scale.resolution == 2.0**-41


def test_the_order_of_the_numbers_is_as_documented():
    scale = FixedPoint(horizon=2, n_shared=2, n_sites=4, max_patients=2**20)
    given_ = Sums(
        schur=np.array([[[1.0, 2.0], [2.0, 3.0]], [[21.0, 22.0], [22.0, 23.0]]]),
        schur_moment=np.array([[4.0, 5.0], [24.0, 25.0]]),
        schur_reward=np.array([[6.0, 7.0], [26.0, 27.0]]),
        information=np.array([[[8.0, 9.0], [9.0, 10.0]], [[28.0, 29.0], [29.0, 30.0]]]),
        information_moment=np.array([[11.0, 12.0], [31.0, 32.0]]),
        information_square=np.array([13.0, 33.0]),
        rank=np.array([2.0, 1.0]),
        n=np.array([100.0, 90.0]),
    )
    fine, coarse = 2**scale.bits, 2 ** (scale.bits - 10)
    one = [*(fine * i for i in range(1, 8)), *(coarse * i for i in range(8, 14)), 2 * fine, 100 * fine]
    two = [*(fine * i for i in range(21, 28)), *(coarse * i for i in range(28, 34)), fine, 90 * fine]
    assert scale.encode(given_).tolist() == one + two


@pytest.mark.parametrize("name", [field.name for field in fields(Sums)])
@pytest.mark.parametrize("wrong", [1e7, -1e7, np.nan, np.inf])
def test_a_sum_that_might_wrap_around_is_refused_before_masking(name, wrong):
    sums = make_sums(np.random.default_rng(0), 50, horizon=3, n_shared=2)
    array = getattr(sums, name).copy()
    array[1] = wrong
    with pytest.raises(OutOfRange, match=r"larger than its patients allow|more patients than the study"):
        FixedPoint(3, 2, 5, 50).encode(replace(sums, **{name: array}))


def test_max_patients_is_checked_before_anything_is_encoded():
    sums = make_sums(np.random.default_rng(0), 51, horizon=3, n_shared=2)
    FixedPoint(3, 2, 5, 51).encode(sums)
    with pytest.raises(OutOfRange, match="`max_patients`, 50"):
        FixedPoint(3, 2, 5, 50).encode(sums)
    with pytest.raises(OtherStudy, match="study file of the round"):
        FixedPoint(3, 3, 5, 51).encode(sums)


def test_outcomes_count_by_the_steps_that_are_left():
    sums = make_sums(np.random.default_rng(0), 50, horizon=3, n_shared=2)
    scale = FixedPoint(3, 2, 5, 50)
    for h, allowed in enumerate((150.0, 100.0, 50.0)):
        moment = sums.schur_moment.copy()
        moment[h] = allowed
        scale.encode(replace(sums, schur_moment=moment))
        moment[h] = allowed * 1.001
        with pytest.raises(OutOfRange, match="schur moment is larger than its patients allow"):
            scale.encode(replace(sums, schur_moment=moment))


def test_a_total_that_kept_a_mask_is_refused():
    rng = np.random.default_rng(0)
    scale = FixedPoint(3, 2, 5, 50)
    for _ in range(50):
        with pytest.raises(OutOfRange, match="Do not use this total"):
            scale.decode(rng.integers(0, 2**64, scale.length, dtype=np.uint64), 5)
    with pytest.raises(OtherStudy, match="whole numbers of 64 bits; this one does not"):
        scale.decode(np.zeros(3, dtype=np.uint64), 5)


def test_too_many_patients_for_a_useful_resolution_are_refused_at_once():
    with pytest.raises(OutOfRange, match="Lower `max_patients`"):
        FixedPoint(horizon=50, n_shared=2, n_sites=1000, max_patients=10**6)


def test_a_resolution_at_which_rounding_may_show_is_told():
    # K·max_patients·H = 4·2²⁰·4 = 2²⁴ is the most that leaves 38 digits.
    assert FixedPoint(horizon=4, n_shared=2, n_sites=4, max_patients=2**20).caution == ""
    told = FixedPoint(horizon=4, n_shared=2, n_sites=4, max_patients=2**20 + 1).caution
    assert "37 binary digits behind the point, and 38 are needed" in told
