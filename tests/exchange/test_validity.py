"""Checks of received sums: every honest message passes, whatever its patients, and wrong ones are caught."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fdtr.errors import InvalidSums
from fdtr.exchange.validity import check_site, check_sound
from fdtr.site.fitting import fit_local
from fdtr.sums import Grams, Sums, stack_steps
from random_tables import make_sites, make_study

pytestmark = pytest.mark.quick
KINDS = ["plain", "units", "rare", "twins", "near", "mixed", "flat", "constant", "large"]


def honest_grams(seed: int, kind: str, d0: int, d1: int, n: int, horizon: int) -> tuple[Grams, float]:
    """Grams of random patients with awkward features, and the largest norm of their features."""
    rng = np.random.default_rng(seed)
    n = 20_000 if kind == "large" else n
    d, steps, bound = d0 + d1, [], 0.0
    units = 10.0 ** rng.uniform(-6, 3, d) if kind == "units" else np.ones(d)
    for step in range(horizon):
        phi = rng.random((n, d))
        if kind == "rare":
            phi = (phi > 0.95).astype(float)
        elif kind == "twins":
            phi[:, 0] = phi[:, -1]
        elif kind == "near":  # on both sides of the tolerance at which a direction is dropped
            phi[:, 0] = phi[:, -1] + 10.0 ** rng.uniform(-9, -2) * rng.normal(size=n)
        elif kind == "mixed":
            phi = phi @ (rng.normal(size=(d, d)) * 10.0 ** rng.uniform(-5, 0, d))
        elif kind == "flat":
            phi = rng.random((n, 1)) @ rng.random((1, d)) + 10.0 ** rng.uniform(-7, -3) * phi
        elif kind == "constant":
            phi[:] = 1.0
        phi = phi * units
        bound = max(bound, float(np.sqrt(np.max(np.sum(phi**2, axis=1), initial=0.0))))
        reward = rng.random(n) if rng.random() < 0.7 else np.ones(n)
        following = (horizon - step - 1) * (rng.random(n) if rng.random() < 0.7 else np.ones(n))
        gram, moment = phi.T @ phi, phi.T @ (reward + following)
        steps.append((gram, moment, phi.T @ reward, reward @ reward, float(n)))
    return Grams(*(np.stack(arrays) for arrays in zip(*steps, strict=True))), bound


def honest(seed: int, kind: str, d0: int, d1: int, n: int, horizon: int) -> tuple[Sums, float]:
    """The sums that derive from them."""
    grams, bound = honest_grams(seed, kind, d0, d1, n, horizon)
    return grams.sums(d0), bound


@settings(max_examples=600)
@given(
    st.integers(0, 2**32), st.sampled_from(KINDS), st.integers(0, 8), st.integers(1, 8), st.integers(0, 300),
    st.integers(1, 5),
)  # fmt: skip
def test_every_honest_message_passes(seed, kind, d0, d1, n, horizon):
    grams, bound = honest_grams(seed, kind, d0, d1, n, horizon)
    check_site(grams, bound)
    sums = grams.sums(d0)
    check_site(sums, bound)
    check_sound(sums)


@settings(max_examples=100)
@given(
    st.lists(st.tuples(st.integers(0, 2**32), st.sampled_from(KINDS), st.integers(0, 300)), min_size=1, max_size=6),
    st.integers(0, 6),
    st.integers(1, 3),
    st.integers(0, 5),
)
def test_several_messages_at_once_pass_where_each_does(drawn, d0, horizon, spoilt):
    sites = [honest(seed, kind, d0, 3, n, horizon)[0] for seed, kind, n in drawn]
    check_site(stack_steps(sites), None, horizon)
    if spoilt < len(sites) and d0:
        sums = sites[spoilt]
        sites[spoilt] = replace(sums, schur_moment=10 * horizon * sums.schur_moment + 1e3)
        with pytest.raises(InvalidSums):
            check_site(sites[spoilt], None)
        with pytest.raises(InvalidSums):
            check_site(stack_steps(sites), None, horizon)


@pytest.mark.parametrize("kind", KINDS)
def test_wide_honest_messages_pass(kind):
    grams, bound = honest_grams(3, kind, 60, 20, 2000, 2)
    check_site(grams, bound)
    check_site(grams.sums(60), bound)


CONSTANT = [{"name": "u", "effect": "shared", "level": "site"}, {"name": "x"}]
ENDS = {"death": 0.0, "discharge": 1.0}


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    ("changes", "table"),
    [
        ({}, {}),
        ({}, {"duplicate": ("u", "x")}),  # what is shared is nothing new
        ({}, {"duplicate": ("u", "v")}),
        ({}, {"actions": {"a": [0]}}),
        ({"covariates": CONSTANT}, {"constant_within_site": ("u",)}),  # S = 0
        ({"ends": ENDS}, {"ragged": True}),
        ({"features": {"intercept": "shared"}, "reward": {"range": [-3, 5]}}, {}),
        ({"features": {"scale": "none"}, "actions": {"levels": [0, 1, 9], "scale": "none"}}, {}),
    ],
)
def test_honest_studies_pass(changes, table, seed):
    study = make_study(**changes)
    for n in (2, 40, 300):
        sums = fit_local(study, make_sites(study, {"a": n}, seed, **table)["a"]).summary.sums
        check_site(sums, 1.0 if study.features.scale == "unit" else None)


def test_a_withheld_step_and_no_patients_pass():
    sums, bound = honest(0, "plain", 3, 2, 100, 3)
    withheld = Sums(
        *(np.where(np.arange(3).reshape(-1, *[1] * (a.ndim - 1)) == 1, 0.0, a) for a in vars(sums).values())
    )
    assert withheld.n.tolist() == [100, 0, 100]
    check_site(withheld, bound)
    check_site(honest(0, "plain", 3, 2, 0, 2)[0], 1.0)


# How often a change is caught, over 200 honest messages each: all but a change of sign, which leaves sums that some
# patients could have given.
@pytest.mark.parametrize(
    ("name", "change", "caught"),
    [
        ("schur", lambda a: -a, 1.0),
        ("schur", lambda a: 20 * a, 1.0),
        ("schur_moment", lambda a: -a, 0.0),
        ("information", lambda a: 1.01 * a, 1.0),
        ("information_moment", lambda a: 1.01 * a, 1.0),
        ("information_square", lambda a: a + 1, 1.0),
        ("rank", lambda a: a + 1, 1.0),
        ("n", lambda a: a + 0.5, 1.0),
    ],
)
def test_changes_are_caught(name, change, caught):
    found = 0
    for seed in range(200):
        sums, bound = honest(seed, "plain", 3, 2, 100, 2)
        try:
            check_site(Sums(**{**vars(sums), name: change(getattr(sums, name))}), bound)
        except InvalidSums:
            found += 1
    assert found == caught * 200


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("gram", lambda a: -a),
        ("gram", lambda a: 20 * a),
        ("gram", lambda a: a / 100),  # then the moments are too large for it
        ("moment", lambda a: 20 * a),
        ("reward_moment", lambda a: 5 * a),
        ("reward_square", lambda a: -a),
        ("reward_square", lambda a: a / 10),
        ("reward_square", lambda a: a + 1000),
        ("n", lambda a: a + 0.5),
        ("n", lambda a: 0 * a),
    ],
)
def test_changes_of_grams_are_caught(name, change):
    for seed in range(50):
        grams, bound = honest_grams(seed, "plain", 3, 2, 100, 2)
        check_site(grams, bound)
        with pytest.raises(InvalidSums):
            check_site(Grams(**{**vars(grams), name: change(getattr(grams, name))}), bound)


def test_a_gram_knows_every_direction_of_its_moments():
    grams, bound = honest_grams(0, "twins", 3, 2, 100, 1)
    moved = grams.moment.copy()
    moved[:, 0] += 1.0  # and not that of its twin
    with pytest.raises(InvalidSums, match="step 0: ΦᵀY has a part in a direction about which ΦᵀΦ knows nothing"):
        check_site(Grams(**{**vars(grams), "moment": moved}), bound)


def test_a_masked_total_may_be_a_little_below_zero():
    sums, _ = honest(0, "constant", 3, 2, 100, 2)
    coarse = Sums(**{**vars(sums), "schur": sums.schur - 1e-5 * np.eye(3)})
    with pytest.raises(InvalidSums, match="step 0: schur has a negative eigenvalue"):
        check_sound(coarse)
    check_sound(coarse, slack=2e-5)


def test_a_matrix_must_be_symmetric():
    sums, _ = honest(0, "plain", 3, 2, 100, 1)
    skew = sums.schur.copy()
    skew[0, 0, 1] += 1
    with pytest.raises(InvalidSums, match="not symmetric"):
        check_sound(Sums(**{**vars(sums), "schur": skew}))
