"""Functions of one covariate: linear, polynomial, categorical, B-spline, Fourier.

A basis turns a covariate into `size` functions. `bound` is the largest possible sum of their squares over the
covariate's range; it is used to scale φ to length at most one. Everything a basis needs is public and part of the study
file, so every site computes the same functions without seeing another site's data.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fdtr.algebra.namespaces import empty, is_numpy, like, namespace_of, write

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Basis(ABC):
    """Functions of a covariate with public range [`low`, `high`]; `unit` maps the range onto [0, 1] first."""

    kind: ClassVar[str]
    name: str
    low: float
    high: float
    unit: bool

    @property
    def size(self) -> int:
        """Number of functions."""
        return len(self.labels)

    @property
    @abstractmethod
    def labels(self) -> tuple[str, ...]:
        """Names of the functions."""

    @property
    @abstractmethod
    def bound(self) -> float:
        """Largest possible sum of squares of the functions, M, after the range is mapped onto [0, 1]."""

    @abstractmethod
    def fill(self, x: Array, out: Array) -> None:
        """Write the functions of `x` (n,), already inside the range, into the rows of `out` (size, n)."""

    @property
    def affine(self) -> tuple[float, float]:
        """Shift and factor of z = (x − shift)·factor: onto [0, 1] where the study scales to unit ranges, else z = x."""
        return (self.low, 1.0 / (self.high - self.low)) if self.unit else (0.0, 1.0)

    def scaled(self, x: Array, out: Array) -> Array:
        """z, written into `out` (n,)."""
        xp, (shift, factor) = namespace_of(x), self.affine
        write(xp.subtract, x, shift, out=out)
        write(xp.multiply, out, factor, out=out)
        return out


class Linear(Basis):
    """z."""

    kind = "linear"

    @property
    def labels(self) -> tuple[str, ...]:
        """The covariate's own name."""
        return (self.name,)

    @property
    def bound(self) -> float:
        """z² is at most 1."""
        return 1.0

    def fill(self, x: Array, out: Array) -> None:
        """One row: z."""
        self.scaled(x, out[0, :])


@dataclass(frozen=True)
class Polynomial(Basis):
    """z, z², …, z^degree."""

    kind: ClassVar[str] = "polynomial"
    degree: int = 2

    @property
    def labels(self) -> tuple[str, ...]:
        """sbp, sbp^2, …."""
        return (self.name, *(f"{self.name}^{power}" for power in range(2, self.degree + 1)))

    @property
    def bound(self) -> float:
        """Each power is at most 1."""
        return float(self.degree)

    def fill(self, x: Array, out: Array) -> None:
        """A row for each power."""
        self.scaled(x, out[0, :])
        for power in range(1, self.degree):
            write(namespace_of(x).multiply, out[power - 1, :], out[0, :], out=out[power, :])


@dataclass(frozen=True)
class Categorical(Basis):
    """An indicator of each level but the first."""

    kind: ClassVar[str] = "categorical"
    levels: tuple[float, ...] = ()

    @property
    def labels(self) -> tuple[str, ...]:
        """unit=2, unit=3, …."""
        return tuple(f"{self.name}={level:g}" for level in self.levels[1:])

    @property
    def bound(self) -> float:
        """At most one indicator is 1."""
        return 1.0

    def fill(self, x: Array, out: Array) -> None:
        """A row for each level but the first."""
        for row, level in enumerate(self.levels[1:]):
            write(namespace_of(x).equal, x, level, out=out[row, :])


@dataclass(frozen=True)
class Spline(Basis):
    """B-splines, clamped at the range, with interior `knots`; the first function is left out.

    All of them add up to one, so the first would be collinear with an intercept. A spline does not change when
    range and knots are mapped together: knots are in raw units, and scaling has no effect.
    """

    kind: ClassVar[str] = "spline"
    knots: tuple[float, ...] = ()
    degree: int = 3

    @property
    def labels(self) -> tuple[str, ...]:
        """sbp~1, sbp~2, …."""
        return tuple(f"{self.name}~{index}" for index in range(1, len(self.knots) + self.degree + 1))

    @property
    def bound(self) -> float:
        """The functions are not negative and add up to at most 1, and so do their squares."""
        return 1.0

    @cached_property
    def _functions(self) -> Any:
        from scipy.interpolate import BSpline  # slow to import, and few studies need it

        ends = self.degree + 1
        knots = np.concatenate([np.full(ends, self.low), self.knots, np.full(ends, self.high)])
        return BSpline(knots, np.eye(len(knots) - ends), self.degree)

    @cached_property
    def _pieces(self) -> tuple[Array, Array]:
        """Ends of the J intervals between knots, (J + 1,), and polynomials of the distance from an interval's left end.

        Coefficients (degree + 1, functions, J), the highest power first, are those of scipy's splines; other libraries
        than NumPy have none.
        """
        breaks = np.array([self.low, *self.knots, self.high])
        powers = range(self.degree, -1, -1)
        taylor = [self._functions(breaks[:-1], nu=power)[:, 1:].T / math.factorial(power) for power in powers]
        return breaks, np.stack(taylor)

    def fill(self, x: Array, out: Array) -> None:
        """A row for each spline but the first."""
        if is_numpy(x):
            out[...] = self._functions(x)[:, 1:].T
            return
        xp, (breaks, coefficients) = namespace_of(x), self._pieces
        piece = xp.searchsorted(like(breaks[1:-1], x), x, side="right")
        distance = x - xp.take(like(breaks, x), piece)
        out[...] = 0.0
        for of_power in coefficients:
            write(xp.multiply, out, distance, out=out)
            write(xp.add, out, xp.take(like(of_power, x), piece, axis=1), out=out)


@dataclass(frozen=True)
class Fourier(Basis):
    """sin 2πjz and cos 2πjz for j = 1 … order: the period is the range (1 where nothing is scaled)."""

    kind: ClassVar[str] = "fourier"
    order: int = 1

    @property
    def labels(self) -> tuple[str, ...]:
        """sin1(hour), cos1(hour), sin2(hour), …."""
        return tuple(f"{wave}{j}({self.name})" for j in range(1, self.order + 1) for wave in ("sin", "cos"))

    @property
    def bound(self) -> float:
        """sin² + cos² = 1 for each frequency."""
        return float(self.order)

    def fill(self, x: Array, out: Array) -> None:
        """Two rows for each frequency."""
        xp, angle = namespace_of(x), 2 * np.pi * self.scaled(x, empty(x.shape, x))
        for j in range(self.order):
            write(xp.sin, (j + 1) * angle, out=out[2 * j, :])
            write(xp.cos, (j + 1) * angle, out=out[2 * j + 1, :])


KINDS: dict[str, type[Basis]] = {basis.kind: basis for basis in (Linear, Polynomial, Categorical, Spline, Fourier)}
"""Every basis by its name in a study file. A new basis is a subclass of `Basis` and an entry here."""


def make_basis(name: str, low: float, high: float, unit: bool, settings: Mapping[str, Any]) -> Basis:
    """The basis that `settings` (a covariate's `basis` in the study file) describes.

    >>> make_basis("sbp", 40, 220, True, {"kind": "polynomial", "degree": 3}).labels
    ('sbp', 'sbp^2', 'sbp^3')
    """
    options = {k: tuple(v) if isinstance(v, list) else v for k, v in settings.items() if k != "kind"}
    return KINDS[settings["kind"]](name, low, high, unit, **options)
