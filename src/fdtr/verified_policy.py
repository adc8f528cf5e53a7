"""The verified part of a policy: advice where the data can check it. Everybody else gets what clinicians decide.

A policy π is advised in state x at step h where clinicians sometimes do the same, b̂ = b̂(π(x) | x) ≥ `least_chance`,
where its advantage over what they do stands out from its error, and brings enough for what it costs in weights:

    A(x) = ⟨δ, θ_h⟩,   δ = φ(x, π(x)) − Σ_a b̂(a | x) φ(x, a)
    z(x) = A(x) / (σ̂_h √(δᵀ Σ_h⁻¹ δ)) > `least_z`,   u(x) = A(x) b̂/(1 − b̂) ≥ `threshold`

Q̂ = φᵀθ is not truncated here. b̂ are the clinicians' chances by logistic regression or a decision tree, σ̂² is the
variance of the targets around φᵀθ. The threshold comes from training patients (`fdtr.evaluation.verification`).
"""

from dataclasses import dataclass
from functools import cached_property
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fdtr import container
from fdtr.algebra.care_models import CareModel, floored, unpacked_care
from fdtr.algebra.normal_equations import factor, half_solve, mixed_features
from fdtr.algebra.pessimism import argmax_first
from fdtr.errors import Abstains, InvalidStates, UnreadableFile
from fdtr.features.states import state_blocks
from fdtr.policy import KIND, Explanation, Policy, for_each_block
from fdtr.trajectories import Sample

Array = NDArray[np.float64]

_NEARLY_SURE = 1e-6


@dataclass(frozen=True, eq=False)
class Contrast:
    """How a policy compares with clinicians in n states: the positions of its actions `best` (n,) among the levels.

    `advantage` (n,) is Q̂(π) less Q̂ of what clinicians do, `error` (n,) its standard error, infinite where it does not
    matter, `chance` (n,) that of clinicians doing the same.
    """

    best: NDArray[np.intp]
    advantage: Array
    error: Array
    chance: Array

    @property
    def z(self) -> Array:
        """The advantage in standard errors, (n,): 0 where clinicians always do the same."""
        return np.asarray(self.advantage / np.where(self.error > 0, self.error, inf))

    @property
    def worth(self) -> Array:
        """u, the advantage over the variance of the weight that following costs, (n,)."""
        return np.asarray(self.advantage * self.chance / np.maximum(1 - self.chance, _NEARLY_SURE))


@dataclass(frozen=True)
class Advice:
    """Whether the verified part speaks for one state, and why; `explanation` is that of the full policy.

    `advantage` over what clinicians do is on the mapped scale, `z` the same in standard errors, `chance` how often
    clinicians do it. `reason` is one sentence.
    """

    explanation: Explanation
    advised: bool
    advantage: float
    z: float
    chance: float
    reason: str


@dataclass(frozen=True, eq=False)
class VerifiedPolicy:
    """The part of a `policy` that data of its site can verify.

    `care` is the model of b̂, `noise` (H,) is σ̂ of each step. The `threshold` of u is
    infinite where nothing can be verified. `sample` says how many of the training patients b̂ and the threshold come
    from, where not from all.

    >>> import fdtr, pyarrow as pa
    >>> from fdtr.simulation import WorldSpec, make_world
    >>> world = make_world(WorldSpec(n_sites=1, n_actions=2, horizon=2), np.random.default_rng(1))
    >>> study = fdtr.Study.model_validate(world.study())
    >>> rows = fdtr.read_trajectories(pa.table(world.table(500, np.random.default_rng(2))), study)
    >>> verified = fdtr.verify(study, rows, fdtr.fit_local(study, rows))
    >>> states = world.arrive(0, 4, np.random.default_rng(3))
    >>> verified.advises(states, step=0)
    array([False, False,  True, False])
    >>> verified.act(states, step=0, given=[1, 1, 0, 1])
    array([1, 1, 0, 1])
    """

    policy: Policy
    care: CareModel
    noise: tuple[float, ...]
    threshold: float
    least_z: float
    least_chance: float
    sample: Sample | None = None

    @property
    def site(self) -> str:
        """The site it belongs to."""
        return self.policy.site

    @property
    def method(self) -> str:
        """The method, such as "FDTR (verified)"."""
        return f"{self.policy.method} (verified)"

    @property
    def horizon(self) -> int:
        """H, the number of steps."""
        return self.policy.horizon

    @property
    def speaks(self) -> bool:
        """Whether it advises anything at all."""
        return self.threshold < inf

    @cached_property
    def _lower(self) -> tuple[Array, ...]:
        if self.policy.precision is None:
            raise ValueError("a policy without a precision cannot be verified: its estimates have no standard error")
        return tuple(map(factor, self.policy.precision))

    def contrast(self, states: Array, step: int, *, everywhere: bool = False) -> Contrast:
        """How the policy compares with clinicians in `states` (q, n), in raw units within their ranges.

        Errors cost most, and are computed where nothing else rules advice out; in all states if `everywhere`.
        """
        features, rule = self.policy.features, self.policy.rule(step)
        psi = features.psi(states)
        best = argmax_first(rule.bounds(psi), self.policy.by_code)
        care = floored(self.care.chances(states, psi, step))
        weights = -care
        everyone = np.arange(len(best))
        weights[best, everyone] += 1.0
        delta = mixed_features(features.embeddings, psi, weights)
        advantage, chance = np.asarray(self.policy.theta[step] @ delta), care[best, everyone]
        contrast = Contrast(best, advantage, np.full(len(best), inf), chance)
        undecided = everywhere | (advantage > 0) & (chance >= self.least_chance) & (contrast.worth >= self.threshold)
        halves = half_solve(self._lower[step], delta[:, undecided])
        contrast.error[undecided] = self.noise[step] * np.linalg.norm(halves, axis=0)
        return contrast

    def speaks_at(self, contrast: Contrast) -> NDArray[np.bool_]:
        """Where it advises, (n,)."""
        stands_out = (contrast.z > self.least_z) & (contrast.chance >= self.least_chance)
        return np.asarray(stands_out & (contrast.worth >= self.threshold))

    def advises(self, states: Any, step: int) -> NDArray[np.bool_]:
        """Whether it advises each of `states`, (n,); given as for `Policy.act`."""
        return self.decide(states, step)[0]

    def act(self, states: Any, step: int, given: Any = None) -> NDArray[Any]:
        """The policy's action for each of `states` where it advises, elsewhere the one `given` by clinicians, (n,).

        Without `given`, states in which it abstains are an error.
        """
        advised, actions = self.decide(states, step)
        if given is None:
            if not advised.all():
                raise Abstains(
                    f"The verified part of {self.policy.method} says nothing for {np.sum(~advised)} of {len(advised)} "
                    "states. Pass what clinicians chose (given=…), or ask `advises` first."
                )
            return actions
        codes = np.asarray(given)
        if codes.shape != actions.shape or not np.isin(codes, self.policy.features.levels).all():
            raise InvalidStates(
                f"The given actions are codes of the study, one for each of {len(actions)} states; these have the "
                f"shape {codes.shape}."
            )
        return np.where(advised, actions, codes.astype(actions.dtype))

    def explain(self, state: Any, step: int) -> Advice:
        """For one state: whether it advises, and why."""
        explanation = self.policy.explain(state, step)
        contrast = self.contrast(state_blocks(state, self.policy.features).read(0), step, everywhere=True)
        return Advice(
            explanation=explanation,
            advised=bool(self.speaks_at(contrast)[0]),
            advantage=float(contrast.advantage[0]),
            z=float(contrast.z[0]),
            chance=float(contrast.chance[0]),
            reason=self._why(explanation.chosen.label, contrast),
        )

    def _why(self, label: str, contrast: Contrast) -> str:
        z, chance = float(contrast.z[0]), float(contrast.chance[0])
        gain = f"The gain over what clinicians do is {z:.1f} standard errors"
        usual = f"clinicians choose {label} for {chance:.0%} of such patients"
        if not self.speaks:
            return "The data of this site can verify no part of this policy."
        if chance < self.least_chance:
            return f"{usual.capitalize()}: too few to compare with."
        if z <= self.least_z:
            return f"{gain}, and advice needs more than {self.least_z:g}."
        if not self.speaks_at(contrast)[0]:
            return f"{gain}, and {usual}: other patients' advice brings more for what it takes to verify it."
        return f"{gain}, and {usual}."

    def decide(self, states: Any, step: int) -> tuple[NDArray[np.bool_], NDArray[Any]]:
        """Whether it advises each of `states`, and the action of the full policy, (n,) each."""
        features = self.policy.features
        self.policy.rule(step)  # refuses a step that does not exist
        blocks = state_blocks(states, features)
        advised, actions = np.zeros(blocks.n, dtype=bool), np.empty(blocks.n, dtype=features.levels.dtype)

        def fill(start: int) -> None:
            contrast = self.contrast(blocks.read(start), step)
            part = slice(start, start + len(contrast.best))
            advised[part], actions[part] = self.speaks_at(contrast), features.levels[contrast.best]

        for_each_block(fill, blocks)
        return advised, actions

    def save(self, path: str | Path) -> None:
        """Write one file that only its owner can read; `Policy.load` reads the full policy from it."""
        verified = {
            "noise": list(self.noise),
            "threshold": self.threshold if self.speaks else None,
            "least_z": self.least_z,
            "least_chance": self.least_chance,
            **({"sample": vars(self.sample)} if self.sample else {}),
        }
        header, arrays = self.policy.packed()
        container.write(path, KIND, {**header, "verified": verified}, {**arrays, **self.care.packed()}, private=True)

    @staticmethod
    def is_in(path: str | Path) -> bool:
        """Whether a policy file has a verified part."""
        return "verified" in container.read(path, KIND).header

    @classmethod
    def load(cls, path: str | Path) -> "VerifiedPolicy":
        """Read what `save` wrote; refuses a truncated, changed or foreign file, and one without a verified part."""
        file = container.read(path, KIND)
        policy, content = Policy.unpacked(file.header, file.arrays, path), file.header.get("verified")
        if content is None:
            raise UnreadableFile(f"{path} holds a full policy without a verified part. Write it again: fdtr site fit.")
        try:
            threshold = content["threshold"]
            features = policy.features
            sizes = (policy.horizon, features.n_actions, features.n_functions, len(features.covariates))
            verified = cls(
                policy,
                unpacked_care(file.arrays, *sizes),
                tuple(float(noise) for noise in content["noise"]),
                inf if threshold is None else float(threshold),
                float(content["least_z"]),
                float(content["least_chance"]),
                Sample(**content["sample"]) if "sample" in content else None,
            )
            sound = policy.precision is not None and len(verified.noise) == policy.horizon
            sound &= all(0 <= noise < inf for noise in verified.noise) and not np.isnan(verified.threshold)
            sound &= 0 <= verified.least_chance <= 1 and 0 <= verified.least_z < inf
            sound &= verified.sample is None or 0 < verified.sample.n < verified.sample.of
        except (KeyError, TypeError, ValueError):
            sound = False
        if not sound:
            raise UnreadableFile(f"{path} is not a sound policy: its header and its arrays do not fit together.")
        return verified

    def __repr__(self) -> str:
        return f"<VerifiedPolicy of {self.policy!r}>"
