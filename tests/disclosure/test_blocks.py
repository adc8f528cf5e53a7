"""What too few sites sent: found as the definition says, among many sites too, and seldom looked for at all."""

from itertools import combinations

import numpy as np
import pytest

from fdtr.algebra.schur import whiten
from fdtr.disclosure.blocks import SenderGroups, too_few_senders
from fdtr.sums import Removed, Sums
from random_tables import make_study

pytestmark = pytest.mark.quick
FEATURES = make_study().feature_map  # d0 = 6
HORIZON, N_SHARED = 2, 6


def sums_of(rng, known):
    """Sums of a site that knows the directions `known` (d0, k) at the first step, and all at the second."""
    steps = [rng.normal(size=(40, known.shape[1])) @ known.T, rng.normal(size=(40, N_SHARED))]
    schur = np.stack([phi.T @ phi for phi in steps])
    moment, number = rng.normal(size=(HORIZON, N_SHARED)), np.full(HORIZON, 40.0)
    in_range = np.einsum("hij,hj->hi", schur, moment)
    return Sums(schur, in_range, in_range, schur, in_range, number, number, number)


def drawn_sites(seed, n_sites):
    """Sites of which few know some columns or some combinations, and columns may be in other units."""
    rng = np.random.default_rng(seed)
    mixed = rng.normal(size=(N_SHARED, N_SHARED))
    basis = np.eye(N_SHARED) if rng.random() < 0.5 else mixed
    few = [rng.integers(0, 4) for _ in range(2)]
    sites = []
    for k in range(n_sites):
        known = [column for column in range(N_SHARED) if column > 1 or k < few[column]]
        sites.append(sums_of(rng, basis[:, known] * 10.0 ** rng.uniform(-1, 1, len(known))))
    return sites


def by_definition(features, messages, needed):
    """Every set of fewer sites is looked at, step by step."""
    removed = []
    for step in range(messages[0].horizon):
        rest, out = [message.at(step) for message in messages], np.zeros((features.n_shared, 0))
        while True:
            schurs = [sums.schur[0] for sums in rest]
            whitener = whiten(np.sum(schurs, axis=0)).matrix
            parts = [whitener.T @ schur @ whitener for schur in schurs]
            found = [np.zeros((features.n_shared, 0))]
            for few in combinations(range(len(parts)), needed - 1) if needed > 1 else ():
                values, vectors = np.linalg.eigh(np.sum([parts[j] for j in few], axis=0))
                found.append(whitener @ vectors[:, values >= 1 - 1e-6])
            told = np.hstack(found)
            if not told.shape[1]:
                break
            out = np.hstack([out, told]) if out.shape[1] < features.n_shared else np.eye(features.n_shared)
            gone = Removed(0, (), tuple(map(tuple, out.tolist())))
            rest = [message.at(step).without_directions([gone]) for message in messages]
        if out.shape[1]:
            removed.append(Removed(step, (), tuple(map(tuple, out.tolist()))))
    return tuple(removed)


def left_of(messages, removed):
    return sum(message.without_directions(removed).schur for message in messages)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("needed", [1, 2, 3, 4])
def test_what_few_sites_tell_is_found_as_by_the_definition(seed, needed):
    messages = drawn_sites(seed, 5)
    expected, found = by_definition(FEATURES, messages, needed), too_few_senders(FEATURES, messages, needed)
    assert [part.step for part in found] == [part.step for part in expected]
    scale = np.abs(sum(message.schur for message in messages)).max()
    np.testing.assert_allclose(left_of(messages, found), left_of(messages, expected), atol=1e-9 * scale)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("needed", [1, 2, 3, 4])
def test_where_every_group_knows_all_nothing_is_found(seed, needed):
    for n_sites in (needed, 9):
        messages, groups = drawn_sites(seed, n_sites), SenderGroups(needed)
        for message in messages:
            groups.add(message)
        assert not (groups.all_know() and by_definition(FEATURES, messages, needed))


def test_alike_sites_are_not_looked_at_again():
    rng, groups = np.random.default_rng(0), SenderGroups(3)
    for _ in range(30):
        groups.add(sums_of(rng, np.eye(N_SHARED)))
    assert groups.all_know()


def test_one_site_among_very_many_is_found():
    """As pairs, sites would be looked at two million times; that one site is in all sets that count."""
    rng = np.random.default_rng(0)
    rest = np.eye(N_SHARED)[:, 1:]
    messages = [sums_of(rng, np.eye(N_SHARED) if k == 777 else rest) for k in range(1500)]
    [removed] = too_few_senders(FEATURES, messages, 3)
    assert removed.step == 0
    left = left_of(messages, [removed])[0]
    np.testing.assert_allclose(left[0], 0.0, atol=1e-6)
    assert np.linalg.matrix_rank(left, tol=1e-6) == N_SHARED - 1
