"""What a site's policies are worth to its own patients: each policy knows the other folds alone, votes included."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from fdtr.evaluation.targets import PolicyLike
from fdtr.policy import Policy
from fdtr.site import SiteEvaluation, Voters, evaluate_site, fit_q_learning
from fdtr.site.fitting import fit_local
from fdtr.site.rows import evaluation_folds, read_trajectories
from fdtr.study import Study
from fdtr.summary import combine
from fdtr.verified_policy import VerifiedPolicy
from random_tables import make_study, make_table

pytestmark = pytest.mark.quick

N_FOLDS = 3
ENDS = {"death": 0.0, "discharge": 1.0}
SITES = {"a": 90, "b": 80, "c": 70}
METHODS = ("FDTR", "LDTR", "Q-learn (1)", "Q-learn (H)", "LDTR (MV)", "Q-learn (1-MV)")
PARTS = ("FDTR (verified)", "LDTR (verified)")


class Messages:
    """Three sites' patients and all that site a was sent, once and for all."""

    def __init__(self, study: Study) -> None:
        self.study, self.table = study, make_table(study, SITES, ragged=True)
        self.sites = read_trajectories(self.table, study).by_site()
        self.rows = self.sites["a"]
        self.folds = evaluation_folds(study, self.rows, N_FOLDS)
        alone = {site: fit_local(study, rows) for site, rows in self.sites.items()}
        self.own = alone["a"].summary
        self.total = combine(fit.summary for fit in alone.values())
        self.voters = Voters(
            [alone[site].policy for site in "bc"],
            [fit_q_learning(study, self.sites[site])["Q-learn (1)"] for site in "bc"],
        )

    def evaluate(self, table: pa.Table) -> SiteEvaluation:
        rows = read_trajectories(table, self.study).by_site()["a"]
        assert rows.patients == self.rows.patients
        return evaluate_site(self.study, rows, self.total, self.own, self.voters, N_FOLDS)

    def with_other_outcomes(self, fold: int) -> pa.Table:
        """The fold's patients at site a with other rewards, actions, states and ends, for as long as before."""
        names = set(np.array(self.rows.patients.to_pylist())[self.folds == fold])
        pairs = zip(self.table["site"].to_pylist(), self.table["patient"].to_pylist(), strict=True)
        theirs = np.array([site == "a" and patient in names for site, patient in pairs])
        other = make_table(self.study, SITES, seed=1, ragged=True).to_pydict()
        columns: dict[str, Any] = self.table.to_pydict()
        for name in ("reward", "action", *self.rows.covariates):
            columns[name] = np.where(theirs, np.resize(other[name], len(theirs)), columns[name])
        swap = {"death": "discharge", "discharge": "death", None: None}
        columns["end"] = [swap[end] if own else end for end, own in zip(columns["end"], theirs, strict=True)]
        return pa.table(columns)


def fitted(policy: PolicyLike) -> Policy:
    """The part of a policy that was fitted here: of a vote, the site's own voice."""
    return policy if isinstance(policy, Policy) else policy.policies[0]


def alike(first: PolicyLike, second: PolicyLike) -> bool:
    """Bit for bit, with the settings that were chosen."""
    if isinstance(first, VerifiedPolicy) and isinstance(second, VerifiedPolicy):
        cares = (first.care.packed().values(), second.care.packed().values())
        same_care = all(map(np.array_equal, *cares)) and first.threshold == second.threshold
        return same_care and first.noise == second.noise and alike(first.policy, second.policy)
    one, other = fitted(first), fitted(second)
    same_precision = one.precision is other.precision is None or np.array_equal(one.precision, other.precision)
    return (
        np.array_equal(one.theta, other.theta)
        and same_precision
        and (one.scale, one.offset, one.settings) == (other.scale, other.offset, other.settings)
    )


@pytest.mark.parametrize("learning", [{}, {"ridge": "auto", "sharing": "auto", "share": "auto", "pessimism": "auto"}])
def test_no_policy_knows_the_patients_it_is_valued_on(learning: dict[str, str]) -> None:
    sent = Messages(make_study(ends=ENDS, learning=learning))
    before = sent.evaluate(sent.table)
    assert tuple(before.policies) == METHODS + PARTS
    for fold in range(N_FOLDS):
        after = sent.evaluate(sent.with_other_outcomes(fold))
        for method in METHODS + PARTS:
            found = [alike(*pair) for pair in zip(before.policies[method], after.policies[method], strict=True)]
            assert found == [other == fold for other in range(N_FOLDS)], method


def always(like: Policy, sign: float) -> Policy:
    """The highest dose for everybody, or with −1 the lowest: the dose alone decides."""
    theta = np.zeros_like(like.theta)
    theta[:, like.features.names.index("a")] = sign
    return replace(like, theta=theta, precision=None, scale=0.0, offset=0.0)


def test_the_sites_own_policy_of_the_same_folds_has_a_vote() -> None:
    """Between one voice for the lowest dose and one for the highest, it has the casting one."""
    sent = Messages(make_study(ends=ENDS))
    low, high = (always(sent.voters.local[0], sign) for sign in (-1.0, 1.0))
    found = evaluate_site(sent.study, sent.rows, sent.total, sent.own, Voters([low, high], [low, high]), N_FOLDS)
    rng, (bottom, top) = np.random.default_rng(0), np.array([c.range for c in sent.study.covariates]).T
    states = bottom + (top - bottom) * rng.random((1000, len(top)))
    assert set(low.act(states, 0)) == {0}
    assert set(high.act(states, 0)) == {2}
    for vote, own in (("LDTR (MV)", "LDTR"), ("Q-learn (1-MV)", "Q-learn (1)")):
        for together, alone in zip(found.policies[vote], found.policies[own], strict=True):
            voice = alone.act(states, 0)
            assert {0, 2} <= set(voice)
            np.testing.assert_array_equal(together.act(states, 0), np.where(voice == 2, 2, 0))  # ties go to the lowest
