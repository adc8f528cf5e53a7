"""The rows of one step while its sums are judged: on disk or in chunks, or those of some or all patients in memory."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fdtr.disclosure.step_scan import StepScan
from fdtr.features import FeatureMap
from fdtr.learners.accumulate import WeightedPart, WeightedProducts, accumulate_weighted, weighted_parts
from fdtr.trajectories import Step, rows_at

Array = NDArray[np.float64]


@dataclass(eq=False, kw_only=True)
class StepRows:
    """The rows of a step; `scan` is what a first pass found.

    While a step is `screened`, no array of its rows exists: passes over its chunks show that no row has to be looked at
    by itself. After `look_closer` there are `actions`, `drawn`, `weights`, `measured` and `outcomes_sent` of all rows,
    or of those of some `people`, who are places of patients in order: sums over all others come from passes over
    chunks. `before` are weights and outcomes before rule LEVERAGE changed any. `standing_out` (5, n) are patients who
    stand out. `remembered` is what was computed for the present rows, weights, functions and outcomes.
    """

    step: Step
    features: FeatureMap
    scan: StepScan
    screened: bool = False
    people: NDArray[np.intp] | None = None
    before: tuple[Array, Array] = field(default_factory=lambda: (np.zeros(0), np.zeros((2, 0))))
    standing_out: NDArray[np.bool_] | None = None
    remembered: dict[Any, Any] = field(default_factory=dict)

    def parts(self) -> Iterator[WeightedPart]:
        """Chunks with their weights as they are now, and V as measured."""
        for part in weighted_parts(self.step, self.features, self._weights_at, following=False):
            yield part._replace(values=self.scan.parked.values.read(part.here))

    def _weights_at(self, here: slice) -> Array:
        if not self.screened and self.people is None:
            return self.weights[here]
        weights: Array = self.scan.parked.weights.read(here)
        if not self.screened:
            weights = weights.copy()
            weights[self.places_in(here) - here.start] = self.weights[self._inside(here)]
        return weights

    def places_in(self, here: slice) -> NDArray[np.intp]:
        """Places of rows at hand within a part of the step."""
        return self.places[self._inside(here)]

    def _inside(self, here: slice) -> slice:
        return slice(*np.searchsorted(self.places, [here.start, here.stop]).tolist())

    @property
    def in_part(self) -> bool:
        """Whether the rows of some people are at hand, and no others."""
        return not self.screened and self.people is not None

    def look_closer(self, people: NDArray[np.intp] | None = None) -> None:
        """Let every row, or those of some `people`, be looked at by itself, in memory."""
        if self.screened:
            self.screened, self.people = False, people
            self.remembered.pop("survey", None)
        elif self.in_part and people is None:
            places, weights, before = self.places, self.weights, self.before[0]
            for name in ("places", "at_hand", "actions", "drawn", "weights", "measured", "outcomes_sent"):
                self.__dict__.pop(name, None)
            self.people = None
            self.before = self.drawn.copy(), self.outcomes_sent
            self.weights[places], self.before[0][places] = weights, before
            self.forget()

    @cached_property
    def places(self) -> NDArray[np.intp]:
        """Where the rows at hand are in the step."""
        if self.people is None:
            return np.arange(self.step.n)
        return self.people[self.people < self.step.n]

    @cached_property
    def at_hand(self) -> Step:
        """The rows at hand: all, or those of some people, in memory."""
        return self.step if self.people is None else rows_at(self.step, self.places)

    @cached_property
    def actions(self) -> NDArray[np.intp]:
        """The action of each row at hand, (n,)."""
        return self.scan.parked.actions.take(self.places).astype(np.intp)

    def actions_of(self, here: slice) -> NDArray[np.intp]:
        """The actions of some rows; fewer where the step has fewer rows."""
        stop = max(min(here.stop, self.step.n), here.start)
        return self.scan.parked.actions.read(slice(here.start, stop)).astype(np.intp)

    @cached_property
    def drawn(self) -> Array:
        """Weights before any was made smaller, (n,)."""
        return self.scan.parked.weights.take(self.places)

    @cached_property
    def weights(self) -> Array:
        """The weight of each row, (n,); 0 where it does not count."""
        return self.drawn.copy()

    @cached_property
    def measured(self) -> Array:
        """The rewards, and V of the next step or the worth of an end, (2, n)."""
        rewards = np.concatenate([np.zeros(0), *(chunk.rewards for chunk in self.at_hand.chunks(following=False))])
        return np.stack([rewards, self.scan.parked.values.take(self.places)])

    @cached_property
    def products(self) -> WeightedProducts:
        """Sums of products of the weighted rows, by action."""
        return accumulate_weighted(self.parts(), self.features, self._outcomes_at)

    def _outcomes_at(self, part: WeightedPart) -> Array:
        """The outcomes of a chunk; while only some people's rows are at hand, none is another than measured."""
        if not self.screened and self.people is None:
            return self.outcomes_sent[:, part.here]
        return np.stack([part.chunk.rewards, np.zeros(0) if part.values is None else part.values])

    @cached_property
    def outcomes_sent(self) -> Array:
        """The outcomes (2, n) that sums are made of: as `measured`, but of patients whose outcomes are limited."""
        return self.measured

    def send_outcomes(self, outcomes: Array) -> None:
        """Let the sums be those of other outcomes, (2, n); what S tells stays as it is."""
        self.outcomes_sent, self.standing_out = outcomes, None
        self.__dict__.pop("products", None)
        self.remembered.pop("told by outcomes", None)

    def forget(self, *names: str) -> None:
        """Forget what was computed from rows, weights or functions that changed."""
        self.remembered.clear()
        for name in names:
            self.__dict__.pop(name, None)
