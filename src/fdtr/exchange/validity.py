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
from scipy.linalg import eigh

from fdtr.errors import InvalidSums
from fdtr.summary import INFORMATION_COARSENESS, VARIANCE_FLOOR, Grams, Sums

Array = NDArray[np.float64]

EIGENVALUE_SLACK = 1e-8
_RANK_TOLERANCE = 1e-11  # eigenvalues of the scaled S up to this count as zero
_GRAM_RANK_TOLERANCE = 1e-10  # the same for a Gram, which the site did not reduce before
_ROUNDING_TOLERANCE = 1e-9  # relative rounding of numbers that were added up
_RANGE_TOLERANCE = 1e-8  # length of a moment outside the range, relative to the largest length it may have
_SQUARE_TOLERANCE = 1e-4  # relative rounding of sums of squares, which divide by small eigenvalues
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
        if not np.isfinite(array).all():
            raise InvalidSums(f"{field.name} holds a number that is not finite")
        if np.abs(array).max(initial=0.0) > most:
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
    values = np.linalg.eigvalsh(matrices) if d else np.zeros((len(matrices), 1))
    low = -(EIGENVALUE_SLACK * np.maximum(1.0, values[:, -1]) + allowed)
    if (values[:, 0] < low).any():
        step = int(np.argmax(values[:, 0] < low))
        raise InvalidSums(f"step {step}: {name} has a negative eigenvalue, which no sum of squares has")


def check_site(sums: Sums | Grams, norm_bound: float | None) -> None:
    """Refuse sums that no patients of one site could give. `norm_bound` is B, None where there is none."""
    check_sound(sums)
    counts = [sums.n] if isinstance(sums, Grams) else [sums.n, sums.rank]
    if not all(_whole(count).all() for count in counts):
        raise InvalidSums("a count is not a whole number from 0")
    for step in range(sums.horizon):
        try:
            if isinstance(sums, Grams):
                _check_gram_step(sums, step, norm_bound)
            else:
                _check_step(sums, step, norm_bound)
        except InvalidSums as error:
            raise type(error)(f"step {step}: {error}") from None


def _check_gram_step(grams: Grams, step: int, norm_bound: float | None) -> None:
    gram, n, square = grams.gram[step], int(grams.n[step]), float(grams.reward_square[step])
    moment, reward = grams.moment[step], grams.reward_moment[step]
    if n == 0 and any(getattr(grams, field.name)[step].any() for field in fields(grams)):
        raise InvalidSums("there are sums over no patients")
    if norm_bound is not None and np.trace(gram) > n * norm_bound**2 * (1 + _ROUNDING_TOLERANCE):
        raise InvalidSums(f"ΦᵀΦ is larger than {n} patients with features of norm {norm_bound:g} can make it")
    if not 0 <= square <= n * (1 + _ROUNDING_TOLERANCE):
        raise InvalidSums(f"rᵀr is not one of {n} patients with rewards from 0 to 1")
    basis = _scaled_range(gram, "ΦᵀΦ", _GRAM_RANK_TOLERANCE)
    for name, target, most in (("ΦᵀY", moment, n * (grams.horizon - step) ** 2), ("Φᵀr", reward, square)):
        inside = basis.coordinates(target)
        if np.sum(inside**2) > most * (1 + _SQUARE_TOLERANCE) + _ROUNDING_TOLERANCE * n:
            raise InvalidSums(f"{name} is larger than {n} patients with targets inside their bounds can make it")
        faint = len(target) - len(inside)
        held_by_faint = np.sqrt(faint * _GRAM_RANK_TOLERANCE * most)
        if basis.outside(target, inside) > held_by_faint + _RANGE_TOLERANCE * np.sqrt(max(n, 1) * len(target)):
            raise InvalidSums(f"{name} has a part in a direction about which ΦᵀΦ knows nothing")


def _whole(counts: Array) -> NDArray[np.bool_]:
    return np.asarray((counts >= 0) & (counts <= _MOST_COUNTED) & (counts == np.floor(counts)))


def _check_step(sums: Sums, step: int, norm_bound: float | None) -> None:
    schur, n, left = sums.schur[step], int(sums.n[step]), sums.horizon - step
    if n == 0 and any(getattr(sums, field.name)[step].any() for field in fields(sums)):
        raise InvalidSums("there are sums over no patients")
    if norm_bound is not None and np.trace(schur) > n * norm_bound**2 * (1 + _ROUNDING_TOLERANCE):
        raise InvalidSums(f"S is larger than {n} patients with features of norm {norm_bound:g} can make it")
    basis = _scaled_range(schur, "S", _RANK_TOLERANCE)
    square = 0.0
    for name, moment, most in (("s", sums.schur_moment[step], n * left**2), ("s_r", sums.schur_reward[step], n)):
        inside = basis.coordinates(moment)
        if basis.outside(moment, inside) > _RANGE_TOLERANCE * np.sqrt(max(most, 1) * max(len(moment), 1)):
            raise InvalidSums(f"{name} has a part in a direction about which S knows nothing")
        square = float(np.sum(inside**2))
        if square > most * (1 + _SQUARE_TOLERANCE):
            raise InvalidSums(f"{name} is larger than {n} patients with targets inside their bounds can make it")
    _check_information(sums, step, square, len(basis.values))


def _check_information(sums: Sums, step: int, reward_square: float, rank: int) -> None:
    """Refuse W, v, u and g that are not those of S; `reward_square` is s_rᵀS⁺s_r and `rank` that of S."""
    schur, reward, information = sums.schur[step], sums.schur_reward[step], sums.information[step]
    diagonal = np.diagonal(schur)
    some = diagonal > _LEAST
    weight = float(np.mean(np.diagonal(information)[some] / diagonal[some])) if some.any() else 0.0
    if not 0 <= weight <= (1 + _ROUNDING_TOLERANCE) / VARIANCE_FLOOR:
        raise InvalidSums(f"W is more than {1 / VARIANCE_FLOOR:g} times S")
    entry = np.sqrt(np.outer(diagonal.clip(0), diagonal.clip(0)))
    if (np.abs(information - weight * schur) > _ROUNDING_TOLERANCE * weight * entry).any():
        raise InvalidSums("W is no multiple of S")
    difference = np.abs(sums.information_moment[step] - weight * reward)
    if (difference > _ROUNDING_TOLERANCE * weight * np.abs(reward)).any():
        raise InvalidSums("v is not that multiple of s_r that W is of S")
    most = _SQUARE_TOLERANCE * weight * max(int(sums.n[step]), 1)
    if abs(float(sums.information_square[step]) - weight * reward_square) > most:
        raise InvalidSums("u is not what W and v make it")
    if sums.rank[step] != (rank if weight > 0 else 0):
        raise InvalidSums("g is not the number of directions that W knows about")


@dataclass(frozen=True)
class _Range:
    """The range of S: `vectors` (d0, r) and `values` (r,) are those of D S D, D = diag(S)^-½ being `scale`."""

    scale: Array
    vectors: Array
    values: Array

    def coordinates(self, moment: Array) -> Array:
        """Λ^-½ Uᵀ D s, whose squares add up to sᵀS⁺s."""
        return np.asarray(self.vectors.T @ (self.scale * moment) / np.sqrt(self.values))

    def outside(self, moment: Array, coordinates: Array) -> float:
        """How long the part of D s outside the range is; features that S lacks count as they are."""
        scaled = np.where(self.scale > 0, self.scale, 1.0) * moment
        return float(np.linalg.norm(scaled - self.vectors @ (coordinates * np.sqrt(self.values))))


def _scaled_range(schur: Array, name: str, tolerance: float) -> _Range:
    diagonal = np.diagonal(schur)
    some = diagonal > _LEAST
    scale = np.zeros(len(schur))
    scale[some] = 1 / np.sqrt(diagonal[some])
    if not len(schur):
        return _Range(scale, np.zeros((0, 0)), np.zeros(0))
    correlations = schur * np.outer(scale, scale)
    if schur[~some].any() or np.abs(correlations).max() > 1 + _RANGE_TOLERANCE:
        raise InvalidSums(f"{name} has products larger than its squares allow")
    values, vectors = eigh(correlations)
    above = values > tolerance
    return _Range(scale, vectors[:, above], values[above])
