"""Importance weights: how much more often the target would have acted as the clinicians did.

    ρ_{i,h} = Π_{t ≤ h} π(a_t | x_t) / b(a_t | x_t)

A patient who left after step T keeps ρ_{i,T} at every later step, where the rewards are 0 (what missing steps are worth
was added to the last one). Then E ρ_h = 1 at every step, by optional stopping, and a step's normaliser runs over all
patients. Normalising over those who are still there would value survivors alone: a target that has the dying leave
early would look good for it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fdtr.evaluation.paths import Paths, taken

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False, repr=False)
class Weights:
    """`ratios` (H, n) are ρ; `clipped_share` (H,) is the share of patients whose ρ was cut down to a cap."""

    ratios: Array
    clipped_share: Array

    @property
    def effective_sample_size(self) -> Array:
        """(Σρ)²/Σρ² of every step, (H,): as many equal weights would say as much."""
        return effective_sample_size(self.ratios)

    @property
    def zero_share(self) -> Array:
        """Share of patients with no weight, (H,)."""
        return np.asarray(np.mean(self.ratios == 0, axis=1))

    @property
    def largest_share(self) -> Array:
        """Share of all weight that the heaviest patient has, (H,); 0 where nobody has any."""
        total = self.ratios.sum(axis=1)
        return np.asarray(self.ratios.max(axis=1) / np.where(total > 0, total, 1.0))


def weigh(paths: Paths, target: Sequence[Array], behaviour: Sequence[Array], cap: float | None = None) -> Weights:
    """ρ of every patient and step; `target` and `behaviour` hold the chances (A, n_h) of every step.

    `cap`, where given, is the most that any ρ_h may be; products run on from what was not cut.
    """
    ratios = np.empty_like(paths.rewards)
    so_far = np.ones(paths.n)
    for h, (actions, wanted, usual) in enumerate(zip(paths.actions, target, behaviour, strict=True)):
        so_far[: len(actions)] *= taken(wanted, actions) / taken(usual, actions)
        ratios[h] = so_far
    if cap is None:
        return Weights(ratios, np.zeros(len(ratios)))
    return Weights(np.minimum(ratios, cap), np.asarray(np.mean(ratios > cap, axis=1)))


def effective_sample_size(weights: Array) -> Array:
    """Kish's (Σw)²/Σw² of every row, 0 where all are 0.

    >>> effective_sample_size(np.array([[1.0, 1.0, 0.0], [0.0, 0.0, 0.0]]))
    array([2., 0.])
    """
    largest = np.abs(weights).max(axis=-1, initial=0.0)
    scaled = weights / np.where(largest > 0, largest, 1.0)[..., None]  # squares of tiny weights would vanish
    squares = np.sum(scaled**2, axis=-1)
    return np.asarray(scaled.sum(axis=-1) ** 2 / np.where(squares > 0, squares, 1.0))
