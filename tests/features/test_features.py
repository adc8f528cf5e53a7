"""The feature map: order, scaling, and its largest norm."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.interpolate import BSpline

from fdtr.study import Study
from random_tables import make_study


def phi(study: Study, state: list[float], action: int) -> np.ndarray:
    return study.feature_map.phi(np.array(state, dtype=float)[:, None], np.array([action]))[0]


def test_order_and_values_by_hand():
    study = make_study(features={"intercept": "specific", "scale": "none"})
    features = study.feature_map
    shared = ["u", "v"]
    own = ["1", "x", "y"]
    powers = ["a", "a^2"]
    expected = [*shared, *(f"{p}·{s}" for p in powers for s in shared)]
    expected += own + [p if o == "1" else f"{p}·{o}" for p in powers for o in own]
    assert list(features.names) == expected
    assert features.n_shared == 6
    # a = (1 − 0)/(2 − 0) = 0.5 for the second level; covariates in the order u, x, v, y
    found = phi(study, [2, 3, 5, 7], 1)
    main = [2, 5], [1, 3, 7]
    by_hand = [v * p for p in (1, 0.5, 0.25) for v in main[0]] + [v * p for p in (1, 0.5, 0.25) for v in main[1]]
    np.testing.assert_allclose(found, by_hand)


def test_unit_scaling_maps_ranges_and_divides_by_the_largest_norm():
    study = make_study()
    # four linear covariates and an intercept, all interacting: 5 functions, ‖p(a)‖² ≤ 3
    np.testing.assert_allclose(phi(study, [1, 10, 1, 1], 2), np.ones(15) / np.sqrt(15))
    np.testing.assert_allclose(np.linalg.norm(phi(study, [1, 10, 1, 1], 2)), 1)
    np.testing.assert_allclose(phi(study, [0, 5, 0.5, 0.5], 0)[:2] * np.sqrt(15), [0.5, 0.5])


def test_main_effects_have_no_action_terms():
    covariates = [{"name": "x"}, {"name": "w", "effect": "shared", "interacts": False}]
    features = make_study(covariates=covariates).feature_map
    assert features.names == ("w", "1", "x", "a", "a·x", "a^2", "a^2·x")


@pytest.mark.parametrize(("place", "names"), [
    ("shared", ("1", "a", "x", "a·x")), ("specific", ("1", "x", "a", "a·x")), ("none", ("x", "a·x")),
])  # fmt: skip
def test_intercept_placement(place, names):
    study = make_study(
        covariates=[{"name": "x"}], features={"intercept": place}, actions={"levels": [0, 1], "degree": 1}
    )
    assert study.feature_map.names == names
    assert study.feature_map.n_shared == (2 if place == "shared" else 0)


def test_categorical_actions_have_an_indicator_for_each_level_but_the_first():
    study = make_study(
        covariates=[{"name": "x"}], features={"intercept": "none", "scale": "none"},
        actions={"levels": [5, 1, 9], "basis": "categorical"},
    )  # fmt: skip
    assert study.feature_map.names == ("x", "[a=1]·x", "[a=9]·x")
    assert [phi(study, [2], a).tolist() for a in range(3)] == [[2, 0, 0], [2, 2, 0], [2, 0, 2]]


def test_raw_action_codes():
    study = make_study(actions={"levels": [0, 2, 5], "scale": "none"}, features={"scale": "none", "intercept": "none"})
    np.testing.assert_allclose(phi(study, [1, 1, 1, 1], 2)[:6], [1, 1, 5, 5, 25, 25])


@pytest.mark.parametrize("scale", ["unit", "none"])
def test_state_bases(scale):
    covariates = [
        {"name": "p", "range": [2, 4], "basis": {"kind": "polynomial", "degree": 3}},
        {"name": "c", "basis": {"kind": "categorical", "levels": [3, 1, 2]}},
        {"name": "s", "range": [0, 10], "basis": {"kind": "spline", "knots": [3, 6], "degree": 3}},
        {"name": "f", "range": [0, 24], "basis": {"kind": "fourier", "order": 2}},
    ]
    study = make_study(covariates=covariates, features={"intercept": "none", "scale": scale})
    features = study.feature_map
    assert features.names[:13] == (
        "p", "p^2", "p^3", "c=1", "c=2", "s~1", "s~2", "s~3", "s~4", "s~5", "sin1(f)", "cos1(f)", "sin2(f)",
    )  # fmt: skip
    x = np.array([[2.5, 4.0], [1.0, 3.0], [4.2, 10.0], [6.0, 24.0]])
    psi = features.psi(x)
    z, t = (x[0] - 2) / 2 if scale == "unit" else x[0], x[3] / 24 if scale == "unit" else x[3]
    np.testing.assert_allclose(psi[:3], [z, z**2, z**3])
    np.testing.assert_array_equal(psi[3:5], [[1, 0], [0, 0]])
    knots = [0, 0, 0, 0, 3, 6, 10, 10, 10, 10]
    np.testing.assert_allclose(psi[5:10].T, BSpline.design_matrix(x[2], knots, 3).toarray()[:, 1:], atol=1e-15)
    waves = [w(2 * np.pi * j * t) for j in (1, 2) for w in (np.sin, np.cos)]
    np.testing.assert_allclose(psi[10:], waves, atol=1e-12)


BASES = st.one_of(
    st.just({"kind": "linear"}),
    st.builds(lambda d: {"kind": "polynomial", "degree": d}, st.integers(1, 4)),
    st.builds(lambda k: {"kind": "categorical", "levels": list(range(k))}, st.integers(2, 4)),
    st.builds(lambda d, k: {"kind": "spline", "degree": d, "knots": k}, st.integers(1, 4), st.just([0.25, 0.5])),
    st.builds(lambda o: {"kind": "fourier", "order": o}, st.integers(1, 3)),
)


@settings(max_examples=150, derandomize=True)
@given(
    covariates=st.lists(st.tuples(BASES, st.booleans(), st.booleans()), min_size=1, max_size=4),
    intercept=st.sampled_from(["shared", "specific"]),
    levels=st.lists(st.integers(-3, 6), min_size=2, max_size=4, unique=True),
    actions=st.sampled_from([("polynomial", "unit"), ("polynomial", "none"), ("categorical", "unit")]),
    degree=st.integers(1, 3),
    draw=st.lists(st.floats(0, 1), min_size=4, max_size=4),
)
def test_features_are_never_longer_than_one(covariates, intercept, levels, actions, degree, draw):
    listed = [
        {"name": f"x{i}", "basis": basis, "effect": "shared" if shared else "specific", "interacts": interacts}
        for i, (basis, shared, interacts) in enumerate(covariates)
    ]
    study = make_study(
        covariates=listed, features={"intercept": intercept},
        actions={"levels": levels, "basis": actions[0], "scale": actions[1], "degree": degree},
    )  # fmt: skip
    features = study.feature_map
    state = np.array([
        np.floor(value * (len(basis["levels"]) - 1e-9)) if basis["kind"] == "categorical" else value
        for value, (basis, _, _) in zip(draw, covariates, strict=False)
    ])[:, None]  # fmt: skip
    psi = features.psi(state)
    for action in range(len(levels)):
        norm = np.linalg.norm(features.embeddings[action] @ psi[:, 0])
        assert norm <= 1 + 1e-12
        assert features.squared_norms(psi, np.array([action]))[0] == pytest.approx(norm**2)


@pytest.mark.parametrize(
    ("basis", "at"),
    [
        ({"kind": "linear"}, 1.0),
        ({"kind": "polynomial", "degree": 3}, 1.0),
        ({"kind": "categorical", "levels": [0, 1, 2]}, 2.0),
        ({"kind": "spline", "knots": [0.5]}, 1.0),
        ({"kind": "fourier", "order": 3}, 0.3),
    ],
)
def test_the_bound_on_the_norm_is_reached(basis, at):
    main = {"name": "m", "basis": basis, "interacts": False, "effect": "shared"}
    study = make_study(covariates=[{"name": "x", "basis": basis}, main])
    assert np.linalg.norm(phi(study, [at, at], 2)) == pytest.approx(1)
