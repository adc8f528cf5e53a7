"""Sums over a site's patients, the only thing that other sites learn about them. Adding two of them is pooling.

For each step h a site computes, from its Gram ΦᵀΦ and its moments ΦᵀY(Ṽ_{h+1}) and Φᵀr,

    S, s, s_r    the shared features' Gram and moments with the site's own effects projected out (algebra.schur)
    W = S/σ̂², v = s_r/σ̂², u = s_rᵀS⁺s_r/σ̂², g = rank S

and n, the patients present. The first line is all that another site needs to solve the paper's (10); the second
carries inference on the shared effects: W⁺v estimates θ⁰ with covariance W⁺, and Σu − vᵀW⁺v is Cochran's Q.
σ̂² is the site's own residual variance of the reward: with one variance for all, Q would reject a true common
effect whenever sites differ in noise.

A study may ask for the Grams themselves (`Grams`), for audits; the hub then derives these sums from them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from fdtr.algebra.schur import as_own, eliminate, project, significant, without_directions
from fdtr.errors import InvalidSums, OtherStudy

Array = NDArray[np.float64]

VARIANCE_FLOOR = 0.001
"""Smallest σ̂² of a mapped reward: bounds W, v and u by 1000·n."""

INFORMATION_COARSENESS = 1024.0
"""In a secure sum W, v and u, which may be 1/`VARIANCE_FLOOR` times larger, are rounded this much more coarsely."""


class _Steps:
    """Arrays whose first axis is the step: `_matrices` (H, d, d), `_numbers` (H,), and all others (H, d)."""

    _matrices: ClassVar[tuple[str, ...]]
    _numbers: ClassVar[tuple[str, ...]]

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(np.array_equal(mine, theirs) for mine, theirs in zip(self._arrays(), other._arrays(), strict=True))

    __hash__ = None  # type: ignore[assignment]

    @property
    def horizon(self) -> int:
        """H, the number of steps."""
        return len(getattr(self, _names(type(self))[-1]))

    def packed(self) -> dict[str, Array]:
        """Arrays by name, symmetric matrices as their upper triangles."""
        named = zip(_names(type(self)), self._arrays(), strict=True)
        return {name: a[:, *triangle(a.shape[1])] if a.ndim == 3 else a for name, a in named}

    def without(self, steps: Sequence[int]) -> Self:
        """A copy with zeros at `steps`."""
        sent = ~np.isin(np.arange(self.horizon), steps)
        return type(self)(*(np.where(sent.reshape(-1, *[1] * (a.ndim - 1)), a, 0.0) for a in self._arrays()))

    @classmethod
    def unpacked(cls, arrays: dict[str, NDArray[Any]]) -> Self:
        """The reverse of `packed`; raises OtherStudy where the arrays do not fit together."""
        expected, matrices, numbers = _names(cls), cls._matrices, cls._numbers
        if set(arrays) != set(expected) or any(array.dtype != np.float64 for array in arrays.values()):
            raise OtherStudy(f"A message holds the arrays {', '.join(sorted(expected))}; this one does not.")
        vectors = [name for name in expected if name not in (*matrices, *numbers)]
        horizon, d = arrays[vectors[0]].shape if arrays[vectors[0]].ndim == 2 else (-1, 0)
        shapes = {
            **dict.fromkeys(matrices, (horizon, d * (d + 1) // 2)),
            **dict.fromkeys(vectors, (horizon, d)),
            **dict.fromkeys(numbers, (horizon,)),
        }
        if any(arrays[name].shape != shape for name, shape in shapes.items()):
            raise OtherStudy("The arrays of a message do not fit together: their shapes disagree.")
        if not all(np.isfinite(array).all() for array in arrays.values()):
            raise InvalidSums("A message holds numbers that are not finite. Ask its sender to make it again.")
        return cls(**{name: full_matrices(a, d) if name in matrices else a for name, a in arrays.items()})

    def _arrays(self) -> list[Array]:
        return [getattr(self, name) for name in _names(type(self))]


def _names(kind: type[_Steps]) -> tuple[str, ...]:
    return tuple(kind.__dataclass_fields__)  # type: ignore[attr-defined]  # every _Steps is a dataclass


@dataclass(frozen=True, eq=False, repr=False)
class Sums(_Steps):
    """The sums of every step: d0(d0+1) + 3·d0 + 3 numbers each.

    `schur` (H, d0, d0) is S, `schur_moment` (H, d0) s, `schur_reward` (H, d0) s_r; `information` (H, d0, d0) is W,
    `information_moment` (H, d0) v, `information_square` (H,) u, `rank` (H,) g; `n` (H,) counts the patients.
    """

    _matrices = ("schur", "information")
    _numbers = ("information_square", "rank", "n")

    schur: Array
    schur_moment: Array
    schur_reward: Array
    information: Array
    information_moment: Array
    information_square: Array
    rank: Array
    n: Array

    @property
    def n_shared(self) -> int:
        """d0, the number of shared features."""
        return int(self.schur_moment.shape[1])

    def __add__(self, other: Self) -> Self:
        return self._combine(other, 1.0)

    def __sub__(self, other: Self) -> Self:
        return self._combine(other, -1.0)

    def without_directions(self, removed: Sequence["Removed"]) -> Self:
        """Sums with directions of the shared features eliminated, as if their effects were each site's own.

        S becomes S − SV(VᵀSV)⁺VᵀS, and s, s_r, W, v, u and g those that belong to it. A step of which nothing is left
        becomes zeros.
        """
        if not removed:
            return self
        steps = [self.at(h) for h in range(self.horizon)]
        for part in removed:
            steps[part.step] = steps[part.step]._eliminated(np.array(part.directions).reshape(self.n_shared, -1))
        return type(self)(*(np.concatenate(arrays) for arrays in zip(*(s._arrays() for s in steps), strict=True)))

    def times(self, factor: float) -> Self:
        """These sums multiplied by a number, with the same patients."""
        if factor == 1.0:
            return self
        names = ("schur", "schur_moment", "schur_reward", "information", "information_moment", "information_square")
        return replace(self, **{name: factor * getattr(self, name) for name in names})

    def at(self, step: int) -> Self:
        """The sums of one step."""
        return type(self)(*(array[step : step + 1] for array in self._arrays()))

    def _eliminated(self, directions: Array) -> Self:
        """One step without some directions (d0, k)."""
        schur, information = self.schur[0], self.information[0]
        moments = np.column_stack([self.schur_moment[0], self.schur_reward[0]])
        left = without_directions(schur, moments, directions)
        known = without_directions(information, self.information_moment[0][:, None], directions)
        if not left.rank:
            return self.without([0])
        return replace(
            self,
            schur=left.schur[None],
            schur_moment=left.moments[None, :, 0],
            schur_reward=left.moments[None, :, 1],
            information=known.schur[None],
            information_moment=known.moments[None, :, 0],
            information_square=np.array([known.explained[0]]),
            rank=np.array([float(known.rank)]),
        )

    def close_to(self, other: Self, tolerance: float = 1e-12) -> bool:
        """Whether every sum agrees within `tolerance`, relative to the largest of its kind."""
        return all(
            mine.shape == theirs.shape
            and np.max(np.abs(mine - theirs), initial=0.0) <= tolerance * np.max(np.abs(theirs), initial=1e-300)
            for mine, theirs in zip(self._arrays(), other._arrays(), strict=True)
        )

    def above(self, floor: float, information_floor: float) -> Self:
        """Sums without the directions in which S is below `floor` or W below `information_floor`."""
        targets = np.stack([self.schur_moment, self.schur_reward], axis=2)
        known = [significant(*step, floor) for step in zip(self.schur, targets, strict=True)]
        weighted = zip(self.information, self.information_moment[:, :, None], strict=True)
        information = [significant(*step, information_floor) for step in weighted]
        return replace(
            self,
            schur=np.stack([part.schur for part in known]),
            schur_moment=np.stack([part.moments[:, 0] for part in known]),
            schur_reward=np.stack([part.moments[:, 1] for part in known]),
            information=np.stack([part.schur for part in information]),
            information_moment=np.stack([part.moments[:, 0] for part in information]),
        )

    def _combine(self, other: Self, sign: float) -> Self:
        self._require_shape_of(other)
        return type(self)(*(a + sign * b for a, b in zip(self._arrays(), other._arrays(), strict=True)))

    def _require_shape_of(self, other: Self) -> None:
        if (self.horizon, self.n_shared) != (other.horizon, other.n_shared):
            raise OtherStudy(
                f"One part has {self.horizon} steps and {self.n_shared} shared features, the other {other.horizon} "
                f"and {other.n_shared}. Only parts of the same study can be added."
            )


@dataclass(frozen=True, eq=False, repr=False)
class Grams(_Steps):
    """Gram and moments of all features at every step, from which the sums derive: d(d+1)/2 + 2·d + 2 numbers each.

    `gram` (H, d, d) is ΦᵀΦ, `moment` (H, d) ΦᵀY, `reward_moment` (H, d) Φᵀr, `reward_square` (H,) rᵀr; `n` (H,) counts
    the patients.
    """

    _matrices = ("gram",)
    _numbers = ("reward_square", "n")

    gram: Array
    moment: Array
    reward_moment: Array
    reward_square: Array
    n: Array

    @property
    def n_features(self) -> int:
        """d, the number of features."""
        return int(self.moment.shape[1])

    def sums(self, n_shared: int) -> Sums:
        """The sums that derive from these Grams; `n_shared` is d0."""
        steps = zip(*self._arrays(), strict=True)
        return stack_steps([summarize_step(g, m, r, float(rr), int(n), n_shared) for g, m, r, rr, n in steps])


@lru_cache(maxsize=64)
def triangle(d: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Rows and columns of an upper triangle. Cached: every message needs them."""
    return np.triu_indices(d)


def full_matrices(upper: Array, d: int) -> Array:
    """Symmetric matrices from their upper triangles."""
    full = np.zeros((len(upper), d, d))
    rows, columns = triangle(d)
    full[:, rows, columns] = upper
    full[:, columns, rows] = upper
    return full


@dataclass(frozen=True)
class Removed:
    """Directions V (d0, k) of the shared features that no site, or too few, sent at a `step`, and their `names`."""

    step: int
    names: tuple[str, ...]
    directions: tuple[tuple[float, ...], ...]


def summarize_step(
    gram: Array,
    moment: Array,
    reward_moment: Array,
    reward_square: float,
    n: int,
    n_shared: int,
    absorbed: Array | None = None,
) -> Sums:
    """The sums of one step (leading axis 1).

    `gram` (d, d) is ΦᵀΦ, `moment` ΦᵀY, `reward_moment` Φᵀr, `reward_square` rᵀr, `n_shared` d0. `absorbed` (d0, k) are
    directions of the shared features that count as the site's own. With rows weighted by w, all products are those of
    weighted rows, and σ̂² is Σ w e²/(n − rank).
    """
    extended, moments = gram, np.column_stack([moment, reward_moment])
    if absorbed is not None:
        extend = as_own(gram, absorbed)
        extended, moments = extend.T @ gram @ extend, extend.T @ moments
    own = eliminate(extended, moments, n_shared)
    shared = project(own.schur, own.moments, gram[:n_shared, :n_shared])
    spare = n - own.rank_specific - shared.rank
    residual = reward_square - own.explained[1] - shared.explained[1]
    weight = 1.0 / max(residual / spare, VARIANCE_FLOOR) if spare > 0 else 0.0
    return Sums(
        schur=shared.schur[None],
        schur_moment=shared.moments[None, :, 0],
        schur_reward=shared.moments[None, :, 1],
        information=weight * shared.schur[None],
        information_moment=weight * shared.moments[None, :, 1],
        information_square=np.array([weight * shared.explained[1]]),
        rank=np.array([float(shared.rank if spare > 0 else 0)]),
        n=np.array([float(n)]),
    )


def stack_steps(steps: Sequence[Sums]) -> Sums:
    """The sums of all steps from those of each step."""
    return Sums(*(np.concatenate(arrays) for arrays in zip(*(step._arrays() for step in steps), strict=True)))
