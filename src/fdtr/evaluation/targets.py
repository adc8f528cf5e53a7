"""Targets: what is evaluated. A target gives the probability π(a | x) of each action in each state."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Decided = TypeVar("Decided")


@runtime_checkable
class Target(Protocol):
    """A way to treat patients, given by its action probabilities."""

    def chances(self, states: Array, step: int, behaviour: Array) -> Array:
        """Probability of each action, (A, c), for the columns of `states` (q, c), in raw units, at a step.

        `behaviour` (A, c) holds the estimated probabilities with which clinicians take each action.
        """
        ...


@runtime_checkable
class PolicyLike(Protocol):
    """Anything that recommends actions, such as `fdtr.Policy`."""

    def act(self, states: Any, step: int) -> NDArray[Any]:
        """Action code for each of `states` (n, q), (n,)."""
        ...


class _Decisions(Generic[Decided]):
    """What a policy decides for the states of each step: evaluation asks again and again for the same patients."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Array, Decided]] = {}

    def of(self, states: Array, step: int, decide: Callable[[Array, int], Decided]) -> Decided:
        """`decide` for the columns of `states` (q, c); as before if the very same array was asked for last."""
        known = self._known.get(step)
        if known is None or known[0] is not states:
            known = self._known[step] = (states, decide(states.T, step))
        return known[1]


@dataclass(frozen=True, eq=False)
class Deterministic:
    """Always take the action that `act` recommends. `levels` (A,) are the action codes.

    >>> always_five = Deterministic(lambda states, step: np.full(len(states), 5), np.array([0, 5]))
    >>> always_five.chances(np.zeros((3, 2)), 0, np.full((2, 2), 0.5))
    array([[0., 0.],
           [1., 1.]])
    """

    act: Callable[[Array, int], NDArray[Any]]
    levels: NDArray[Any]
    _decisions: _Decisions[NDArray[Any]] = field(default_factory=_Decisions, init=False, repr=False)

    def chances(self, states: Array, step: int, behaviour: Array) -> Array:  # noqa: ARG002 - needs no propensities
        """1 for the recommended action, else 0."""
        codes = np.asarray(self._decisions.of(states, step, self.act))
        chosen: Array = (self.levels[:, None] == codes).astype(np.float64)
        if not chosen.any(axis=0).all():
            raise ValueError("The policy recommends a code that is none of the action levels.")
        return chosen


@dataclass(frozen=True)
class Constant:
    """The same action for everybody. `action` is its position among the levels.

    >>> Constant(1).chances(np.zeros((3, 1)), 0, np.full((2, 1), 0.5)).ravel()
    array([0., 1.])
    """

    action: int

    def chances(self, states: Array, step: int, behaviour: Array) -> Array:  # noqa: ARG002 - needs no state
        """1 for that action, else 0."""
        chances = np.zeros_like(behaviour)
        chances[self.action] = 1.0
        return chances


@dataclass(frozen=True)
class Behaviour:
    """What clinicians do: the observed mean. All importance weights are 1; no propensity is needed."""

    def chances(self, states: Array, step: int, behaviour: Array) -> Array:  # noqa: ARG002 - needs no state
        """The propensities themselves."""
        return behaviour


@dataclass(frozen=True)
class Softened:
    """(1 − ε)·π + ε·b: follow `base` most of the time and clinicians otherwise. `share` is ε.

    Overlap with clinicians is better than that of π alone, so its value can be estimated more precisely.

    >>> Softened(Constant(1), 0.2).chances(np.zeros((3, 1)), 0, np.array([[0.5], [0.5]])).ravel()
    array([0.1, 0.9])
    """

    base: Target
    share: float

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1:
            raise ValueError(f"The share of the clinicians' own choices is {self.share:g}; it lies between 0 and 1.")

    def chances(self, states: Array, step: int, behaviour: Array) -> Array:
        """The mixture of both."""
        return (1 - self.share) * self.base.chances(states, step, behaviour) + self.share * behaviour


@runtime_checkable
class PartialAdvice(Protocol):
    """Anything that advises some patients and abstains for the others, such as `fdtr.VerifiedPolicy`."""

    def decide(self, states: Any, step: int) -> tuple[NDArray[np.bool_], NDArray[Any]]:
        """Whether it advises each of `states` (n, q), and the action code that it would advise, (n,) each."""
        ...


@dataclass(frozen=True, eq=False)
class Advised:
    """Follow `advice` where there is some. Everybody else gets what clinicians decide. `levels` (A,) are the codes."""

    advice: PartialAdvice
    levels: NDArray[Any]
    _decisions: _Decisions[tuple[NDArray[np.bool_], NDArray[Any]]] = field(
        default_factory=_Decisions, init=False, repr=False
    )

    def chances(self, states: Array, step: int, behaviour: Array) -> Array:
        """1 for the advised action; where it abstains, the clinicians' propensities."""
        advised, codes = self._decisions.of(states, step, self.advice.decide)
        return np.where(advised, (self.levels[:, None] == codes).astype(np.float64), behaviour)

    def abstains(self, states: Array, step: int) -> NDArray[np.bool_]:
        """Whose treatment is left to clinicians, (c,)."""
        return ~self._decisions.of(states, step, self.advice.decide)[0]


@dataclass(frozen=True, eq=False, repr=False)
class ByFold:
    """For each patient the target of the patient's fold, which was fitted to the other folds.

    `folds` (n,) are in the order of the patients, of whom the first n_h are present at a step. `targets` has one
    target a fold.
    """

    folds: NDArray[np.intp]
    targets: Sequence[Target]

    def chances(self, states: Array, step: int, behaviour: Array) -> Array:
        """Each column from the target of its fold."""
        chances, folds = np.zeros_like(behaviour), self.folds[: states.shape[1]]
        for fold, target in enumerate(self.targets):
            in_fold = folds == fold
            if in_fold.any():
                chances[:, in_fold] = target.chances(states, step, behaviour)[:, in_fold]
        return chances

    def abstains(self, states: Array, step: int) -> NDArray[np.bool_]:
        """Whose treatment is left to clinicians, (c,)."""
        left, folds = np.zeros(states.shape[1], dtype=bool), self.folds[: states.shape[1]]
        for fold, target in enumerate(self.targets):
            in_fold = folds == fold
            if in_fold.any():
                left[in_fold] = abstentions(target, states, step)[in_fold]
        return left


def abstentions(target: Target, states: Array, step: int) -> NDArray[np.bool_]:
    """For which columns of `states` (q, c) a target leaves the treatment to clinicians, (c,)."""
    if isinstance(target, Advised | ByFold):
        return target.abstains(states, step)
    return np.full(states.shape[1], isinstance(target, Behaviour))


Treatment = Target | PolicyLike | PartialAdvice
"""Whatever can be valued."""


def as_target(treatment: Treatment, levels: NDArray[Any]) -> Target:
    """A policy as a target; a target unchanged. A softened `ByFold` becomes a `ByFold` of softened targets.

    >>> as_target(Constant(1), np.array([0, 5]))
    Constant(action=1)
    """
    if isinstance(treatment, Softened) and isinstance(treatment.base, ByFold):
        base = treatment.base
        return ByFold(base.folds, [Softened(target, treatment.share) for target in base.targets])
    if isinstance(treatment, Target):
        return treatment
    if isinstance(treatment, PartialAdvice):
        return Advised(treatment, np.asarray(levels))
    if isinstance(treatment, PolicyLike):
        return Deterministic(treatment.act, np.asarray(levels))
    raise TypeError(f"A policy or a target is evaluated, not {type(treatment).__name__}.")
