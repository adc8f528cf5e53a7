"""A treatment rule for one site: for a state and a step, the action with the largest lower bound φᵀθ − Γ."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fdtr import container
from fdtr.algebra.normal_equations import factor
from fdtr.algebra.pessimism import LowerBound, Penalty, argmax_first, penalty_roots
from fdtr.algebra.threads import for_chunks, one_blas_thread
from fdtr.errors import InvalidStates, UnreadableFile
from fdtr.features import FeatureMap, build_features
from fdtr.features.states import StateBlocks, state_blocks

Array = NDArray[np.float64]

CONFIDENTIAL = "Confidential to its site: it was fitted to this site's patients and may contain sums over them."
KIND = "policy"
_HEADER = ("fingerprint", "site", "method", "version", "offset")


@dataclass(frozen=True)
class ActionValue:
    """The value of one action for one state, on the mapped scale [0, H]: `bound` = `estimate` − `penalty`.

    `shared` and `specific` are the parts of the estimate that come from shared and from site-specific effects.
    """

    action: float
    label: str
    estimate: float
    penalty: float
    bound: float
    shared: float
    specific: float


@dataclass(frozen=True)
class Explanation:
    """The values of all actions for one state, in the study's order, and the chosen action.

    `clipped` names the covariates whose value lay outside the public range and was moved to its end.
    """

    step: int
    chosen: ActionValue
    actions: tuple[ActionValue, ...]
    clipped: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Policy:
    """A linear policy: π_h(x) = argmax_a φ(x, a)ᵀθ_h − Γ_h(x, a).

    `study` is the public content of the study file, from which the features are rebuilt; `theta` (H, d) holds
    (θ⁰, θᵏ) of each step on scaled features and mapped rewards; `precision` (H, d, d) is Σ, or None for a rule
    without a penalty; the penalty of step h is Γ = `scale`[h]·√(φᵀΣ⁻¹φ) + `offset`. `settings` holds the pessimism, λ,
    w and kind of sharing that it was fitted with.

    >>> from tempfile import TemporaryDirectory
    >>> from fdtr import Study
    >>> study = Study.model_validate({
    ...     "name": "fluids", "horizon": 1,
    ...     "actions": {"levels": [0, 1], "labels": ["none", "fluids"], "degree": 1},
    ...     "covariates": [{"name": "sbp", "range": [40, 220], "effect": "shared"}],
    ... })
    >>> study.feature_map.names
    ('sbp', 'a·sbp', '1', 'a')
    >>> theta = np.array([[1.0, -1.0, 0.0, 0.5]])  # fluids help where the pressure is low
    >>> policy = Policy(study.public, study.fingerprint, "north", "LDTR", "0.1.0", theta, None)
    >>> states = {"sbp": [60, 200]}
    >>> policy.act(states, step=0)
    array([1, 0])
    >>> policy.lower_bound(states, step=0).round(2)
    array([[0.06, 0.25],
           [0.44, 0.25]])
    >>> (policy.q_values(states, step=0) <= study.horizon).all()
    np.True_
    >>> explanation = policy.explain({"sbp": [20]}, step=0)
    >>> explanation.chosen.label, explanation.clipped
    ('fluids', ('sbp',))
    >>> with TemporaryDirectory() as folder:
    ...     policy.save(f"{folder}/north.policy")
    ...     Policy.load(f"{folder}/north.policy")
    <Policy LDTR of site 'north': 1 steps, 4 features>
    """

    study: Mapping[str, Any]
    fingerprint: str
    site: str
    method: str
    version: str
    theta: Array
    precision: Array | None
    scale: tuple[float, ...] = ()
    offset: float = 0.0
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.precision is not None and len(self.scale) != len(self.theta):
            raise ValueError(
                f"scale has {len(self.scale)} numbers; with a precision it needs one a step, {len(self.theta)}"
            )

    @property
    def horizon(self) -> int:
        """H, the number of steps."""
        return len(self.theta)

    @cached_property
    def features(self) -> FeatureMap:
        """φ, as the study describes it."""
        return build_features(self.study["actions"], self.study["covariates"], self.study["features"])

    @cached_property
    def by_code(self) -> NDArray[np.intp]:
        """Positions of the levels from the smallest code on: ties go to the first."""
        return np.argsort(self.features.levels, kind="stable")

    @cached_property
    def _rules(self) -> tuple[LowerBound, ...]:
        embeddings = self.features.embeddings
        if self.precision is None:
            return tuple(LowerBound.of_plain(theta, embeddings) for theta in self.theta)
        return tuple(
            LowerBound.of_penalised(
                theta,
                penalty_roots(factor(sigma), embeddings),
                embeddings,
                Penalty(scale, self.offset),
                self.horizon - h,
            )
            for h, (theta, sigma, scale) in enumerate(zip(self.theta, self.precision, self.scale, strict=True))
        )

    def lower_bound(self, states: Any, step: int) -> Array:
        """φᵀθ − Γ, not truncated, (n, |A|); columns follow the study's action levels.

        `states` is a dataframe, a mapping of columns, or an (n, q) array in the study's covariate order, in raw
        units; values outside a public range are moved to its end. `step` counts from 0.
        """
        rule = self.rule(step)
        blocks = state_blocks(states, self.features)
        bounds = np.empty((self.features.n_actions, blocks.n))

        def fill(start: int) -> None:
            block = blocks.read(start)
            bounds[:, start : start + block.shape[1]] = rule.bounds(self.features.psi(block))

        for_each_block(fill, blocks)
        return bounds.T

    def q_values(self, states: Any, step: int) -> Array:
        """Q of the paper: the lower bound truncated to [0, H − step], (n, |A|)."""
        return np.clip(self.lower_bound(states, step), 0.0, self.horizon - step)

    def act(self, states: Any, step: int) -> NDArray[Any]:
        """The recommended action for each state, (n,), as a code of the study.

        It maximises the untruncated bound, which always maximises the truncated one too; where several actions
        tie, the smallest code is taken.
        """
        rule = self.rule(step)
        blocks = state_blocks(states, self.features)
        features = self.features
        actions = np.empty(blocks.n, dtype=features.levels.dtype)

        def fill(start: int) -> None:
            block = blocks.read(start)
            choice = argmax_first(rule.bounds(features.psi(block)), self.by_code)
            actions[start : start + len(choice)] = features.levels[choice]

        for_each_block(fill, blocks)
        return actions

    def explain(self, state: Any, step: int) -> Explanation:
        """For one state: the estimate and penalty of each action, and the parts of shared and site-specific effects."""
        rule = self.rule(step)
        blocks = state_blocks(state, self.features)
        if blocks.n != 1:
            raise InvalidStates(f"One state is explained at a time; {blocks.n} were given.")
        block = blocks.read(0)
        values = zip(self.features.covariates, block[:, 0], blocks.raw(0), strict=True)
        clipped = tuple(name for name, inside, raw in values if inside != raw)
        psi = self.features.psi(block)
        n_actions = self.features.n_actions
        phi = self.features.phi(np.repeat(block, n_actions, axis=1), np.arange(n_actions))
        n_shared = self.features.n_shared
        shared = phi[:, :n_shared] @ self.theta[step, :n_shared]
        specific = phi[:, n_shared:] @ self.theta[step, n_shared:]
        penalties = rule.penalties(psi)[:, 0]
        bounds = rule.bounds(psi)
        actions = tuple(
            ActionValue(level, label, *(float(x) for x in parts))
            for level, label, *parts in zip(
                self.features.levels.tolist(), self.study["actions"]["labels"],
                shared + specific, penalties, bounds[:, 0], shared, specific, strict=True,
            )
        )  # fmt: skip
        return Explanation(step, actions[int(argmax_first(bounds, self.by_code)[0])], actions, clipped)

    def save(self, path: str | Path) -> None:
        """Write the policy to one file that only its owner can read: it is confidential to its site."""
        container.write(path, KIND, *self.packed(), private=True)

    def packed(self) -> tuple[dict[str, Any], dict[str, Array]]:
        """The header and the arrays of its file."""
        arrays = {"theta": self.theta}
        if self.precision is not None:
            arrays["precision"] = self.precision
        header: dict[str, Any] = {"confidential": CONFIDENTIAL, "study": dict(self.study)}
        header |= {name: getattr(self, name) for name in _HEADER} | {"settings": dict(self.settings)}
        return {**header, "scale": list(self.scale)}, arrays

    @classmethod
    def load(cls, path: str | Path) -> "Policy":
        """Read a policy that `save` wrote; refuses a truncated, changed or foreign file and says why."""
        file = container.read(path, KIND)
        return cls.unpacked(file.header, file.arrays, path)

    @classmethod
    def unpacked(cls, header: Mapping[str, Any], arrays: Mapping[str, Array], path: str | Path) -> "Policy":
        """A policy from the header and the arrays of its file; `path` is for the refusal."""
        try:
            policy = cls(
                study=header["study"],
                theta=arrays["theta"],
                precision=arrays.get("precision"),
                scale=_by_step(header["scale"], len(arrays["theta"])),
                **{name: header[name] for name in (*_HEADER, "settings")},
            )
            shape = (policy.study["horizon"], policy.features.n_features)
            sound = policy.theta.shape == shape and bool(np.isfinite(policy.theta).all())
            if policy.precision is not None:
                sound &= policy.precision.shape == (*shape, shape[1]) and bool(np.isfinite(policy.precision).all())
                sound &= len(policy.scale) == shape[0] and all(
                    0 <= alpha < math.inf for alpha in (*policy.scale, policy.offset)
                )
        except (KeyError, TypeError, ValueError):
            sound = False
        if not sound or policy.fingerprint != container.fingerprint(policy.study):
            raise UnreadableFile(f"{path} is not a sound policy: its header and its arrays do not fit together.")
        return policy

    def rule(self, step: int) -> LowerBound:
        """The lower bounds of a step by which it acts; refuses a step that does not exist."""
        if not isinstance(step, int | np.integer) or not 0 <= step < self.horizon:
            raise InvalidStates(f"Step {step} does not exist: steps run from 0 to {self.horizon - 1}.")
        return self._rules[step]

    def __repr__(self) -> str:
        return f"<Policy {self.method} of site {self.site!r}: {self.horizon} steps, {self.theta.shape[1]} features>"


def _by_step(scale: float | list[float], horizon: int) -> tuple[float, ...]:
    """α of every step; policies that were fitted with a number for c before hold one for all steps."""
    by_step = scale if isinstance(scale, list) else [scale] * horizon
    if not all(isinstance(alpha, float | int) and not isinstance(alpha, bool) for alpha in by_step):
        raise TypeError("α is a number")
    return tuple(float(alpha) for alpha in by_step)


def for_each_block(fill: Any, blocks: StateBlocks) -> None:
    """Call `fill` with the start of every block; several blocks are spread over all cores."""
    if blocks.n <= blocks.size:
        if blocks.n:
            fill(0)
        return
    with one_blas_thread():
        for_chunks(fill, lambda _: None, range(0, blocks.n, blocks.size))
