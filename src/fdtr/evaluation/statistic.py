"""A value as a sum of ratios of averages over patients, which is all that intervals need to know of it.

    V = Σ_j s_j (Σ_i N_ij) / (Σ_i D_ij)

Its influence function, the derivative of V in a patient's weight, is

    ψ_i = Σ_j s_j (N_ij − R_j D_ij) / D̄_j,   R_j = Σ_i N_ij / Σ_i D_ij

and its standard error comes from leaving units out, which is the same but for units that have much of the weight.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

ROUNDING = 1e-12
"""What is left of a sum by less than this share of it, once its only term is taken away, is 0."""


@dataclass(frozen=True, eq=False, repr=False)
class Statistic:
    """One row for each of n independent units, a column for each of J ratios.

    `numerators` N (n, J), `denominators` D (n, J), `signs` s (J,). A ratio whose denominators are all 0 counts as 0.
    """

    numerators: Array
    denominators: Array
    signs: Array

    @property
    def n(self) -> int:
        """Independent units: patients, or clusters of them."""
        return len(self.numerators)

    @cached_property
    def value(self) -> float:
        """V."""
        return float(self.ratios_of(self.numerators.sum(axis=0), self.denominators.sum(axis=0)))

    def ratios_of(self, numerators: Array, denominators: Array) -> Array:
        """V from sums (…, J): of these rows, or of rows drawn again."""
        return np.asarray(_divide(numerators, denominators) @ self.signs)

    @cached_property
    def influence(self) -> Array:
        """ψ of every unit, (n,); they sum to 0."""
        mean = self.denominators.mean(axis=0)
        ratios = _divide(self.numerators.mean(axis=0), mean)
        return np.asarray(_divide(self.numerators - ratios * self.denominators, mean) @ self.signs)

    @cached_property
    def standard_error(self) -> float:
        """√((n−1)/n Σ_i (V − V₍₋ᵢ₎)²), V₍₋ᵢ₎ without unit i; NaN with fewer than two units.

        To first order V − V₍₋ᵢ₎ = ψ_i/n, and for a plain average this is √(Σψ²/(n(n−1))) exactly. In a ratio a unit
        with much weight draws R_j to itself and makes its own ψ small; leaving it out does not let it.
        """
        if self.n < 2:
            return float("nan")
        total = self.denominators.sum(axis=0)
        rest = total - self.denominators
        rest[np.abs(rest) <= ROUNDING * total] = 0.0
        without = self.ratios_of(self.numerators.sum(axis=0) - self.numerators, rest)
        return float(np.sqrt((self.n - 1) / self.n * np.sum((self.value - without) ** 2)))

    def clustered(self, clusters: NDArray[np.intp] | None) -> "Statistic":
        """The same with sums over clusters for rows; `clusters` (n,) are positions 0 … G−1. None leaves it alone.

        V does not change. ψ of a cluster is then, up to the scale G/n, the sum of its patients' ψ.
        """
        if clusters is None:
            return self
        n_clusters = int(clusters.max()) + 1
        numerators, denominators = (np.zeros((n_clusters, len(self.signs))) for _ in range(2))
        np.add.at(numerators, clusters, self.numerators)
        np.add.at(denominators, clusters, self.denominators)
        return Statistic(numerators, denominators, self.signs)

    def minus(self, other: "Statistic") -> "Statistic":
        """The difference of two values of the same units."""
        return Statistic(
            np.hstack([self.numerators, other.numerators]),
            np.hstack([self.denominators, other.denominators]),
            np.concatenate([self.signs, -other.signs]),
        )


def mean_of(summands: Array) -> Statistic:
    """A plain average of `summands` (n,).

    >>> mean_of(np.array([1.0, 3.0])).value
    2.0
    """
    return Statistic(summands[:, None], np.ones((len(summands), 1)), np.ones(1))


def weighted_means(values: Array, weights: Array) -> Statistic:
    """Σ_j of weighted means: `values` and `weights` (J, n)."""
    return Statistic((weights * values).T, weights.T, np.ones(len(values)))


def _divide(numerators: Array, denominators: Array) -> Array:
    return np.asarray(numerators / np.where(denominators != 0, denominators, np.inf))
