"""What sums must satisfy, whatever the patients were: the receiver has nothing else to judge them by.

For step h of a horizon H, counted from 0, with features of norm at most B, n patients, and ω = 1/σ̂² of the site:

    S ⪰ 0,  tr S ≤ n B²,    s and s_r in the range of S,  sᵀS⁺s ≤ n (H − h)²,  s_rᵀS⁺s_r ≤ n
    W = ω S,  v = ω s_r,  u = ω s_rᵀS⁺s_r,  g = rank S  with 0 ≤ ω ≤ 1000;    n whole, and zeros where n = 0

A total of several sites is a sum of different multiples, so only S ⪰ 0 and W ⪰ 0 can be checked of it. The same holds
for a site where a study adds noise (differential privacy).

For a site that sends Grams, with Λ = ΦᵀΦ:

    Λ ⪰ 0,  tr Λ ≤ n B²,    ΦᵀY and Φᵀr in the range of Λ,  (ΦᵀY)ᵀΛ⁺ΦᵀY ≤ n (H − h)²,  (Φᵀr)ᵀΛ⁺Φᵀr ≤ rᵀr ≤ n

Ranks are judged with S scaled to a unit diagonal. A site drops directions below 1e-10 of the scaled Gram
(algebra.schur), so that what it keeps is above `_RANK_TOLERANCE` here and rounding, d0 · 1e-16, is far below. Dividing
by such an eigenvalue costs five of sixteen digits, and the site's own elimination may have cost five before: sums of
squares are compared with `_SQUARE_TOLERANCE`. A Gram comes as it is, with directions of any size: along one whose
eigenvalue is λ, of features scaled to length 1, a moment is at most √λ times the length of its target. So each
direction below `_GRAM_RANK_TOLERANCE` may hold that much.
"""

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from fdtr.algebra.schur import factored_parts
from fdtr.errors import InvalidSums
from fdtr.sums import INFORMATION_COARSENESS, VARIANCE_FLOOR, Grams, Sums

Array = NDArray[np.float64]

EIGENVALUE_SLACK = 1e-8
_RANK_TOLERANCE = 1e-11  # eigenvalues of the scaled S up to this count as zero
_GRAM_RANK_TOLERANCE = 1e-10  # the same for a Gram, which the site did not reduce before
_ROUNDING_TOLERANCE = 1e-9  # relative rounding of numbers that were added up
_RANGE_TOLERANCE = 1e-8  # length of a moment outside the range, relative to the largest length it may have
_SQUARE_TOLERANCE = 1e-4  # relative rounding of sums of squares, which divide by small eigenvalues
_FAR_ABOVE = 100.0  # a smallest eigenvalue that is so many times a tolerance need not be found
_MOST_COUNTED = 2.0**53
_MOST, _LEAST = 1e100, 1e-100  # far beyond any study; inside, nothing below overflows
_MOST_DERIVED = 1e30  # the same for Grams: what is derived from them scales and inverts their squares


def check_sound(sums: Sums | Grams, slack: float = 0.0) -> None:
    """Refuse sums, of a site or of many, with numbers that are not finite or matrices that are no sums of squares.

    `slack` is how far below zero an eigenvalue may lie beside rounding: K · d0 · resolution in a masked total.
    """
    most = _MOST_DERIVED if isinstance(sums, Grams) else _MOST
    for field in fields(sums):
        array = getattr(sums, field.name)
        largest = np.abs(array).max(initial=0.0)  # NaN where one is
        if not np.isfinite(largest):
            raise InvalidSums(f"{field.name} holds a number that is not finite")
        if largest > most:
            raise InvalidSums(f"{field.name} holds a number beyond any count of patients")
    if isinstance(sums, Grams):
        diagonal = np.diagonal(sums.gram, axis1=1, axis2=2)
        if ((diagonal > 0) & (diagonal < 1 / _MOST_DERIVED)).any():
            raise InvalidSums("gram holds a square that is smaller than any feature's")
        _check_positive("gram", sums.gram, sums.n_features, 0.0)
        return
    _check_positive("schur", sums.schur, sums.n_shared, slack)
    _check_positive("information", sums.information, sums.n_shared, INFORMATION_COARSENESS * slack)


def _check_positive(name: str, matrices: Array, d: int, allowed: float) -> None:
    if matrices.shape[1:] != (d, d) or not np.array_equal(matrices, matrices.transpose(0, 2, 1)):
        raise InvalidSums(f"{name} is not symmetric")
    broken = np.zeros(len(matrices), np.bool_)
    for part, lower in factored_parts(matrices, np.arange(len(matrices))) if d else ():
        if lower is None:  # with a factor there is no negative eigenvalue, and finding one is far more work
            values = np.linalg.eigvalsh(matrices[part])
            broken[part] = values[:, 0] < -(EIGENVALUE_SLACK * np.maximum(1.0, values[:, -1]) + allowed)
    _refuse_at(broken, f"{name} has a negative eigenvalue, which no sum of squares has")


def _refuse_at(broken: NDArray[np.bool_], words: str, **numbers: Array) -> None:
    """Refuse the first step at which a check is `broken`, (H,); `words` may name `numbers` (H,) of that step."""
    if broken.any():
        step = int(np.argmax(broken))
        raise InvalidSums(f"step {step}: " + words.format(**{name: n[step] for name, n in numbers.items()}))


def check_site(sums: Sums | Grams, norm_bound: float | None, horizon: int | None = None) -> None:
    """Refuse sums that no patients of one site could give. `norm_bound` is B, None where there is none.

    Sums of several sites may be checked at once, one after another along the steps; `horizon` is then that of one.
    """
    check_sound(sums)
    counts = [sums.n] if isinstance(sums, Grams) else [sums.n, sums.rank]
    if not all(_whole(count).all() for count in counts):
        raise InvalidSums("a count is not a whole number from 0")
    nobody = sums.n == 0
    if nobody.any():
        some = [getattr(sums, field.name).reshape(sums.horizon, -1).any(axis=1) for field in fields(sums)]
        _refuse_at(nobody & np.any(some, axis=0), "there are sums over no patients")
    if isinstance(sums, Grams):
        _check_grams(sums, norm_bound)
    else:
        _check_sums(sums, norm_bound, horizon or sums.horizon)


def _check_grams(grams: Grams, norm_bound: float | None) -> None:
    n, square, d = grams.n, grams.reward_square, grams.n_features
    _check_trace(grams.gram, "ΦᵀΦ", n, norm_bound)
    _refuse_at(
        ~((square >= 0) & (square <= n * (1 + _ROUNDING_TOLERANCE))),
        "rᵀr is not one of {n:.0f} patients with rewards from 0 to 1", n=n,
    )  # fmt: skip
    basis = _scaled_range(grams.gram, "ΦᵀΦ", _GRAM_RANK_TOLERANCE)
    left = grams.horizon - np.arange(grams.horizon)
    for name, target, most in (("ΦᵀY", grams.moment, n * left**2), ("Φᵀr", grams.reward_moment, square)):
        inside = basis.coordinates(target)
        _refuse_at(
            np.sum(inside**2, axis=1) > most * (1 + _SQUARE_TOLERANCE) + _ROUNDING_TOLERANCE * n,
            f"{name} is larger than {{n:.0f}} patients with targets inside their bounds can make it", n=n,
        )  # fmt: skip
        held_by_faint = np.sqrt((d - basis.rank) * _GRAM_RANK_TOLERANCE * most)
        _refuse_at(
            basis.outside(target, inside) > held_by_faint + _RANGE_TOLERANCE * np.sqrt(np.maximum(n, 1) * d),
            f"{name} has a part in a direction about which ΦᵀΦ knows nothing",
        )


def _check_trace(matrices: Array, name: str, n: Array, norm_bound: float | None) -> None:
    if norm_bound is not None:
        _refuse_at(
            np.trace(matrices, axis1=1, axis2=2) > n * norm_bound**2 * (1 + _ROUNDING_TOLERANCE),
            f"{name} is larger than {{n:.0f}} patients with features of norm {norm_bound:g} can make it", n=n,
        )  # fmt: skip


def _whole(counts: Array) -> NDArray[np.bool_]:
    return np.asarray((counts >= 0) & (counts <= _MOST_COUNTED) & (counts == np.floor(counts)))


def _check_sums(sums: Sums, norm_bound: float | None, horizon: int) -> None:
    n, left = sums.n, horizon - np.arange(sums.horizon) % horizon
    _check_trace(sums.schur, "S", n, norm_bound)
    basis = _scaled_range(sums.schur, "S", _RANK_TOLERANCE)
    squares = np.zeros_like(n)
    for name, moment, most in (("s", sums.schur_moment, n * left**2), ("s_r", sums.schur_reward, n)):
        inside = basis.coordinates(moment)
        _refuse_at(
            basis.outside(moment, inside) > _RANGE_TOLERANCE * np.sqrt(np.maximum(most, 1) * max(sums.n_shared, 1)),
            f"{name} has a part in a direction about which S knows nothing",
        )
        squares = np.sum(inside**2, axis=1)
        _refuse_at(
            squares > most * (1 + _SQUARE_TOLERANCE),
            f"{name} is larger than {{n:.0f}} patients with targets inside their bounds can make it", n=n,
        )  # fmt: skip
    _check_information(sums, squares, basis.rank)


def _check_information(sums: Sums, reward_square: Array, rank: NDArray[np.intp]) -> None:
    """Refuse W, v, u and g that are not those of S; `reward_square` (H,) is s_rᵀS⁺s_r and `rank` (H,) that of S."""
    diagonal = np.diagonal(sums.schur, axis1=1, axis2=2)
    some = diagonal > _LEAST
    ratios = np.divide(
        np.diagonal(sums.information, axis1=1, axis2=2), diagonal, out=np.zeros_like(diagonal), where=some
    )
    weight = ratios.sum(axis=1) / np.maximum(some.sum(axis=1), 1)
    _refuse_at(
        ~((weight >= 0) & (weight <= (1 + _ROUNDING_TOLERANCE) / VARIANCE_FLOOR)),
        f"W is more than {1 / VARIANCE_FLOOR:g} times S",
    )
    root, by_step = np.sqrt(diagonal.clip(0)), weight[:, None]
    apart = np.abs(sums.information - by_step[:, :, None] * sums.schur)
    allowed = (_ROUNDING_TOLERANCE * by_step * root)[:, :, None] * root[:, None, :]
    _refuse_at((apart > allowed).any(axis=(1, 2)), "W is no multiple of S")
    reward = by_step * sums.schur_reward
    difference = np.abs(sums.information_moment - reward)
    _refuse_at(
        (difference > _ROUNDING_TOLERANCE * np.abs(reward)).any(axis=1),
        "v is not that multiple of s_r that W is of S",
    )
    most = _SQUARE_TOLERANCE * weight * np.maximum(sums.n, 1)
    _refuse_at(np.abs(sums.information_square - weight * reward_square) > most, "u is not what W and v make it")
    _refuse_at(sums.rank != np.where(weight > 0, rank, 0), "g is not the number of directions that W knows about")


@dataclass(frozen=True)
class _Range:
    """The range of S at every step, from D S D with D = diag(S)^-½ (`scale`, (H, d0)), and its `rank` (H,).

    With D S D = A Aᵀ, A (d0, d0) of that rank, `inward` (H, d0, d0) is A⁺ and `outward` is A.
    """

    scale: Array
    inward: Array
    outward: Array
    rank: NDArray[np.intp]

    def coordinates(self, moments: Array) -> Array:
        """A⁺ D s, (H, d0), whose squares add up to sᵀS⁺s."""
        return np.asarray(np.matmul(self.inward, (self.scale * moments)[:, :, None])[:, :, 0])

    def outside(self, moments: Array, coordinates: Array) -> Array:
        """How long the part of D s outside the range is, (H,); features that S lacks count as they are."""
        scaled = np.where(self.scale > 0, self.scale, 1.0) * moments
        inside = np.matmul(self.outward, coordinates[:, :, None])[:, :, 0]
        return np.asarray(np.linalg.norm(scaled - inside, axis=1))


def _scaled_range(schur: Array, name: str, tolerance: float) -> _Range:
    horizon, d = schur.shape[:2]
    diagonal = np.diagonal(schur, axis1=1, axis2=2)
    some = diagonal > _LEAST
    scale = np.zeros_like(diagonal)
    scale[some] = 1 / np.sqrt(diagonal[some])
    correlations = schur * scale[:, :, None] * scale[:, None, :]
    lacking = np.zeros(horizon, np.bool_) if some.all() else ((schur != 0) & ~some[:, :, None]).any(axis=(1, 2))
    _refuse_at(
        lacking | (np.abs(correlations).max(axis=(1, 2), initial=0.0) > 1 + _RANGE_TOLERANCE),
        f"{name} has products larger than its squares allow",
    )
    basis = _Range(scale, np.zeros_like(schur), np.zeros_like(schur), np.full(horizon, d))
    for part, lower in factored_parts(correlations, np.arange(horizon)) if d else ():
        rest = part
        if lower is not None:
            inverse = np.asarray(np.linalg.solve(lower, np.broadcast_to(np.eye(d), lower.shape)), np.float64)
            basis.inward[part], basis.outward[part] = inverse, lower
            smallest = 1 / np.sum(inverse**2, axis=(1, 2))  # no eigenvalue is smaller
            rest = part[smallest < _FAR_ABOVE * tolerance]
        if len(rest):
            values, vectors = np.linalg.eigh(correlations[rest])
            above = values > tolerance
            roots = np.sqrt(np.where(above, values, 1.0))
            basis.inward[rest] = (above / roots)[:, :, None] * vectors.transpose(0, 2, 1)
            basis.outward[rest] = vectors * (above * roots)[:, None, :]
            basis.rank[rest] = above.sum(axis=1)
    return basis
