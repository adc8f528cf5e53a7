"""What is evaluated: the chances with which a target takes each action."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@runtime_checkable
class Target(Protocol):
    """A way to treat patients."""

    def chances(self, states: Array, step: int, behaviour: Array) -> Array:
        """The chance of each action, (A, c), for the columns of `states` (q, c) in raw units at a step.

        `behaviour` (A, c) are the chances with which these patients' clinicians take each action, as estimated.
        """
        ...


@runtime_checkable
class Acting(Protocol):
    """A policy: anything that says what to do."""

    def act(self, states: Any, step: int) -> NDArray[Any]:
        """The action code for each of `states` (n, q), (n,)."""
        ...


@dataclass(frozen=True, eq=False)
class Following:
    """Doing what `act` says, always; ties are as it breaks them. `levels` (A,) are the codes it may say."""

    act: Callable[[Array, int], NDArray[Any]]
    levels: NDArray[Any]

    def chances(self, states: Array, step: int, behaviour: Array) -> Array:  # noqa: ARG002 - it asks nobody
        """1 for the action that is recommended."""
        codes = np.asarray(self.act(states.T, step))
        chosen: Array = (self.levels[:, None] == codes).astype(np.float64)
        if not chosen.any(axis=0).all():
            raise ValueError("The policy recommends a code that is none of the action levels.")
        return chosen


@dataclass(frozen=True)
class Constant:
    """The same action for everybody: `action` is its position among the levels."""

    action: int

    def chances(self, states: Array, step: int, behaviour: Array) -> Array:  # noqa: ARG002 - it asks nobody
        """1 for that action."""
        chances = np.zeros_like(behaviour)
        chances[self.action] = 1.0
        return chances


@dataclass(frozen=True)
class Behaviour:
    """What clinicians do, by their estimated propensities: all importance weights are then 1."""

    def chances(self, states: Array, step: int, behaviour: Array) -> Array:  # noqa: ARG002 - it does as they do
        """The propensities themselves."""
        return behaviour


@dataclass(frozen=True)
class Softened:
    """(1 − ε)·π + ε·b: doing what `base` says most of the time and what clinicians do otherwise; `share` is ε.

    Overlap is better than that of π, and so is what can be known about its value.
    """

    base: Target
    share: float

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1:
            raise ValueError(f"The share of the clinicians' own choices is {self.share:g}; it lies between 0 and 1.")

    def chances(self, states: Array, step: int, behaviour: Array) -> Array:
        """The mixture of both."""
        return (1 - self.share) * self.base.chances(states, step, behaviour) + self.share * behaviour


@dataclass(frozen=True, eq=False, repr=False)
class ByFold:
    """To each patient what the policy of their fold says, which was fitted to the other folds.

    `folds` (n,) in the order of the patients, of whom the first ones are there at a step; `targets` by fold.
    """

    folds: NDArray[np.intp]
    targets: Sequence[Target]

    def chances(self, states: Array, step: int, behaviour: Array) -> Array:
        """Each column from the target of its fold."""
        chances, folds = np.zeros_like(behaviour), self.folds[: states.shape[1]]
        for fold, target in enumerate(self.targets):
            mine = folds == fold
            if mine.any():
                chances[:, mine] = target.chances(np.ascontiguousarray(states[:, mine]), step, behaviour[:, mine])
        return chances


def as_target(thing: Target | Acting, levels: NDArray[Any]) -> Target:
    """A policy as a target; a target as it is. What was fitted by fold stays so when it is softened.

    >>> as_target(Constant(1), np.array([0, 5])).chances(np.zeros((3, 1)), 0, np.full((2, 1), 0.5)).ravel()
    array([0., 1.])
    """
    if isinstance(thing, Softened) and isinstance(thing.base, ByFold):
        return ByFold(thing.base.folds, [Softened(target, thing.share) for target in thing.base.targets])
    if isinstance(thing, Target):
        return thing
    if isinstance(thing, Acting):
        return Following(thing.act, np.asarray(levels))
    raise TypeError(f"A policy or a target is evaluated, not {type(thing).__name__}.")
