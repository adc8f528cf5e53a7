"""What goes wrong while propensities are fitted, gathered over folds and steps and told once."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fdtr.evaluation.cautions import Caution, Kind, steps
from fdtr.evaluation.logistic import Fitted

Where = dict[str, set[int | None]]


def _nowhere() -> Where:
    return defaultdict(set)


@dataclass
class Troubles:
    """By what they concern, the steps at which they were met; None stands for a model of all steps."""

    levels: NDArray[Any]
    labels: tuple[str, ...]
    floor: float
    _constant: Where = field(default_factory=_nowhere)
    _absent: Where = field(default_factory=_nowhere)
    _separated: Where = field(default_factory=_nowhere)
    _unused: list[str] = field(default_factory=list)
    _stopped: set[int | None] = field(default_factory=set)
    _empty: set[int] = field(default_factory=set)
    _floored: float = 0.0

    def note(self, fitted: Fitted, absent: Iterable[int], step: int | None) -> None:
        """One model: which columns were `constant`, which actions it could not learn, whether it converged."""
        for label, constant in zip(self.labels, fitted.constant, strict=False):  # step indicators have no label
            if constant:
                self._constant[label].add(step)
        for action in absent:
            self._absent[self._name(action)].add(step)
        for action in fitted.separated:
            self._separated[self._name(action)].add(step)
        if not fitted.converged:
            self._stopped.add(step)

    def note_empty(self, at: NDArray[np.intp]) -> None:
        """Steps at which the other folds have nobody."""
        self._empty |= set(at.tolist())

    def note_counts(self, counts: NDArray[np.intp]) -> None:
        """(H, A): actions that nobody ever got."""
        self._unused = [self._name(action) for action, total in enumerate(counts.sum(axis=0)) if not total]

    def note_floored(self, below: int, rows: int) -> None:
        """How many of the actions that were taken had a chance below the floor."""
        self._floored = below / rows if rows else 0.0

    def cautions(self) -> tuple[Caution, ...]:
        """Everything that was noted, in sentences."""
        told: list[Caution] = []
        for action in self._unused:
            told.append(
                Caution(
                    Kind.UNUSED_ACTION,
                    f"Action {action} is never used at this site: its propensity is set to the floor {self.floor:g}, "
                    "and no importance weight can say what it would do.",
                )
            )
        for label, at in self._constant.items():
            why = "it does not vary there and is left out of the propensity model."
            told.append(Caution(Kind.CONSTANT_COVARIATE, f"{label}, {_at(at)}: {why}"))
        for action, at in self._absent.items():
            why = "it is so rare that a training fold lacks it; its propensity there is the floor."
            told.append(Caution(Kind.ACTION_ABSENT_IN_FOLD, f"Action {action}, {_at(at)}: {why}"))
        for action, at in self._separated.items():
            why = "the state tells its patients from all others without error, so that there is no overlap to compare."
            told.append(Caution(Kind.SEPARATED_ACTION, f"Action {action}, {_at(at)}: {why}"))
        if self._stopped:
            where = _at(self._stopped)
            told.append(Caution(Kind.NO_CONVERGENCE, f"The propensity model did not converge ({where})."))
        if self._empty:
            why = "the other folds have no patient there; overall frequencies of actions stand in for propensities."
            told.append(Caution(Kind.TOO_FEW_ROWS, f"At {steps(self._empty)} {why}"))
        if self._floored:
            what = f"{self._floored:.2%} of the actions that were taken had a propensity below {self.floor:g}"
            told.append(Caution(Kind.FLOORED_PROPENSITY, f"{what} and were given that."))
        return tuple(told)

    def _name(self, action: int) -> str:
        return f"{self.levels[action]:g}"


def _at(found: Iterable[int | None]) -> str:
    named = [step for step in found if step is not None]
    return steps(named) if named else "all steps"
