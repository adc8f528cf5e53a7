"""Evidence that one patient is in the sums of a step, if the patient's row and the others' distribution are known.

Every sum of a message is Σ w_j z_j over rows j. A row i moves it by w_i (z_i − z̄). Without that row, its variance over
random patients and weights is about

    Σ_{j≠i} w_j² [(z_j − z̄)² + c z_j²],  c = Var(w)/E(w)²,

and the evidence is the square of the first over the second. It is taken for the square of every shared column, for the
squared residual of the reward, and for the products of φ̃ with the residuals of r and Y. Unlike a row's leverage, it
finds a third value in a column of two values, and an outcome that few patients have.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fdtr.algebra.schur import as_own, leverage_map, whiten
from fdtr.disclosure.blocks import Unit, directions_of
from fdtr.disclosure.weighted_step import StepPlan
from fdtr.learners.accumulate import WeightedProducts

Array = NDArray[np.float64]

NO_VARIANCE = 1e-12
_BOUND_MARGIN = 1e-6  # for rounding errors of sums in a bound
NOTHING_LEFT = 1e-9  # of outcomes between 0 and the number of steps: rounding errors tell of nobody


def column_evidence(plan: StepPlan, sums: Mapping[int | None, "EvidenceSums"] | None) -> Array:
    """The most evidence that the square of one shared column gives of each row, within its block, (n,).

    `sums` are those of all rows by block, with the columns first, where not all rows are at hand.
    """
    spread, evidence = relative_variance(plan), np.zeros(len(plan.weights))
    packed, shown = shown_columns(plan)
    squares = image(plan, packed) ** 2
    for block, columns in shown.items():
        rows = np.flatnonzero(plan.rows_of(block))
        if columns:
            values, weights = np.take(squares[:columns], rows, axis=1), plan.weights[rows]
            of_all = sums[block].some(slice(columns)) if sums else EvidenceSums.of(values, weights)
            evidence[rows] = of_all.evidence(values, weights, spread).max(axis=0)
    return evidence


def shown_columns(plan: StepPlan) -> tuple[Array, dict[int | None, int]]:
    """Maps (A, k, m) to what is left of the columns that a row's block shows, and how many of k each block shows."""
    units = [unit for unit in plan.design.units if unit not in plan.absorbed]
    maps, owners = residual_columns(plan, units), [unit.action for unit in units for _ in unit.directions.T]
    shown = {
        block: [k for k, owner in enumerate(owners) if block is None or owner in (block, None)] for block in plan.blocks
    }
    packed = np.zeros((len(maps), max(map(len, shown.values()), default=0), maps.shape[2]))
    for block, columns in shown.items():  # zeros elsewhere: a row shows only the columns of its own block
        at = slice(None) if block is None else block
        packed[at, : len(columns)] = maps[at, columns]
    return packed, {block: len(columns) for block, columns in shown.items()}


def outcome_evidence(plan: StepPlan, leverage: Array, sums: "EvidenceSums | None") -> Array:
    """Evidence of each row by its outcomes, (2, n): in σ̂², and what s_r and s tell beyond a typical outcome.

    With residuals e of variance σ² the latter is h (w/E(w)) (e²/σ² − 1) for each. It is below 0 for a patient with
    an outcome that is closer to the fitted one than usual: over the steps of a typical patient it adds up to 0, as rule
    NUMBERS counts what a typical outcome tells. `sums` are those of all rows' residuals, where not all are at hand.
    """
    weights, kept = plan.weights, np.isin(plan.actions, plan.kept_actions)
    left = residuals(plan, sums)
    of_all = sums or EvidenceSums.of(left[:, kept] ** 2, weights[kept])
    evidence = np.zeros((2, len(weights)))
    of_reward = of_all.some(slice(1))
    evidence[0, kept] = of_reward.evidence(left[:1, kept] ** 2, weights[kept], relative_variance(plan))[0]
    for residual, square in list(zip(left, of_all.sums, strict=True))[: 1 if plan.following is None else 2]:
        variance = float(square / max(of_all.weights, NO_VARIANCE))
        if variance > NO_VARIANCE:
            evidence[1] += leverage * (weights / mean_weight(plan)) * (residual**2 / variance - 1.0)
    return np.where(kept, evidence, 0.0)


@dataclass(frozen=True, eq=False, repr=False)
class EvidenceSums:
    """What decides how much rows tell in sums Σ w z of k columns z ≥ 0.

    Over `n` rows: `weights` Σ w and `squares` Σ w², and by column (k,) Σ w z, Σ w² z and Σ w² z², and the `largest` z,
    of rows that are looked at in bounds alone.
    """

    n: int
    weights: float
    squares: float
    largest: Array
    sums: Array
    first: Array
    second: Array

    @classmethod
    def of(cls, values: Array, weights: Array, outside: NDArray[np.bool_] | None = None) -> "EvidenceSums":
        """Those of some rows, `values` (k, n) and `weights` (n,); bounds are of the rows `outside` (n,), or of all."""
        squares = weights**2
        first = np.dot(values, squares)
        return cls(
            n=len(weights),
            weights=float(weights.sum()),
            squares=float(squares.sum()),
            largest=(values if outside is None else values[:, outside]).max(axis=1, initial=0.0),
            sums=np.dot(values, weights),
            first=first,
            second=np.dot(values**2, squares),
        )

    def __add__(self, other: "EvidenceSums") -> "EvidenceSums":
        return EvidenceSums(
            self.n + other.n,
            self.weights + other.weights,
            self.squares + other.squares,
            np.maximum(self.largest, other.largest),
            self.sums + other.sums,
            self.first + other.first,
            self.second + other.second,
        )

    def some(self, columns: slice) -> "EvidenceSums":
        """Those of some columns."""
        of_columns = (part[columns] for part in (self.largest, self.sums, self.first, self.second))
        return EvidenceSums(self.n, self.weights, self.squares, *of_columns)

    def evidence(self, values: Array, weights: Array, spread: float) -> Array:
        """Evidence of some of the rows, (k, c), of which `values` (k, c) are z; `spread` is c."""
        if self.n < 2:
            return np.zeros(values.shape)
        scale, squares = np.maximum(self.largest, values.max(axis=1, initial=0.0))[:, None], weights**2
        mean = (self.sums[:, None] - weights * values) / np.maximum(self.weights - weights, NO_VARIANCE)
        first = squares * values
        totals = ((self.squares, squares), (self.first[:, None], first), (self.second[:, None], first * values))
        others = [np.maximum(total - part, 0.0) for total, part in totals]
        # z is a square of residuals from an estimated mean, whose error adds about 4 z̄² to the sum of (z − z̄)².
        between = others[2] - 2 * mean * others[1] + mean**2 * (others[0] - 4 * self.squares / self.n)
        variance = np.maximum(between, 0.0) + spread * others[2]
        least = NO_VARIANCE * scale**2 + np.finfo(float).tiny
        return np.asarray(squares * (values - mean) ** 2 / np.maximum(variance, least))

    def most(self, spread: float) -> Array:
        """A bound (k,) of the evidence that any row gives, if no weight exceeds 1; `spread` is c.

        With W = Σ w and m = Σ w z / W it is z_i − z̄ = (z_i − m) W/(W − w_i), and the sum of w_j² (z_j − z̄)² over the
        others is at least its smallest value over all z̄, less the part of row i.
        """
        others = self.weights - 1.0
        if self.n < 2 or others <= 0:
            return np.where(self._tells, np.inf if self.n > 1 else 0.0, 0.0)
        mean = self.sums / self.weights
        largest = (np.maximum(self.largest - mean, mean) * self.weights / others) ** 2
        between = self.second - self.first**2 / self.squares - largest
        between -= 4 * self.squares / self.n * (self.sums / others) ** 2
        variance = np.maximum(between, 0.0) + spread * (self.second - self.largest**2)
        with np.errstate(divide="ignore", invalid="ignore"):
            bound = np.where(variance > 0, largest / variance, np.inf) * (1 + _BOUND_MARGIN)
        return np.where(self._tells, bound, 0.0)

    @property
    def _tells(self) -> NDArray[np.bool_]:
        """Which sums are not 0 for all rows, (k,): a row without any tells, too, beside others that have some."""
        return np.asarray((self.largest > 0) | (self.sums > 0))


def relative_variance(plan: StepPlan) -> float:
    """c, the variance of a weight beside its squared mean."""
    jitter = plan.rules.jitter
    return jitter**2 / 12 / (1.0 - jitter / 2) ** 2


def mean_weight(plan: StepPlan) -> float:
    """The mean of a weight."""
    return float(1.0 - plan.rules.jitter / 2)


def leverage_roots(plan: StepPlan) -> Array:
    """R_a (A, r, m) with leverage w ‖R_a ψ‖² in what is left."""
    gram = plan.products.assembled(plan.kept_actions)[0]
    extend = as_own(gram, directions_of(plan.absorbed, plan.features.n_shared))
    root = leverage_map(extend.T @ gram @ extend, plan.features.n_shared)
    return np.asarray(root @ extend.T @ plan.features.embeddings)


def residual_columns(plan: StepPlan, units: Sequence[Unit]) -> Array:
    """C_a (A, k, m) with C_aψ what the site's own features, and what is taken out, leave of `units`."""
    gram, d0 = plan.products.assembled(plan.kept_actions)[0], plan.features.n_shared
    extend = as_own(gram, directions_of(plan.absorbed, d0))
    extended = extend.T @ gram @ extend
    own = whiten(extended[d0:, d0:]).matrix
    residual = np.hstack([np.eye(d0), -(extended[:d0, d0:] @ own) @ own.T])
    return np.asarray(directions_of(units, d0).T @ residual @ extend.T @ plan.features.embeddings)


def image(plan: StepPlan, maps: Array) -> Array:
    """`maps` (A, k, m) of the action of every row at hand times its ψ, (k, n)."""
    images = np.zeros((maps.shape[1], len(plan.weights)))
    start = 0
    for chunk in plan.at_hand.chunks(following=False):
        psi, stop = plan.features.psi(chunk.states), start + len(chunk.actions)
        for action in np.flatnonzero(np.bincount(chunk.actions)):
            there = np.flatnonzero(chunk.actions == action)
            images[:, start + there] = maps[action] @ np.take(psi, there, axis=1)
        start = stop
    return images


def residuals(plan: StepPlan, sums: EvidenceSums | None = None) -> Array:
    """What all features leave of r and of Y, (2, n); 0 where they leave rounding errors alone.

    `sums` are those of all rows, where not all are at hand.
    """
    fitted = image(plan, fitted_maps(plan))
    rewards, following = plan.outcomes_sent
    left = np.stack([rewards, rewards + following]) - fitted
    counting = left[:, plan.rows_of(None)] if plan.left_out else left
    size = np.maximum(counting.max(axis=1, initial=0.0), -counting.min(axis=1, initial=0.0))
    size = size if sums is None else np.maximum(size, np.sqrt(sums.largest))
    left[size <= NOTHING_LEFT] = 0.0
    return left


def fitted_maps(plan: StepPlan) -> Array:
    """Maps (A, 2, m) of ψ to what all features explain of r and of Y."""
    gram, moment, reward_moment, _ = plan.products.assembled(plan.kept_actions)
    inverse = whiten(gram).matrix
    theta = inverse @ (inverse.T @ np.column_stack([reward_moment, moment]))
    return np.asarray(theta.T @ plan.features.embeddings)


def explained_maps(plan: StepPlan, products: WeightedProducts, actions: Sequence[int]) -> Array:
    """Maps (A, 4, m) of ψ to what the site's own features explain of r and V, and to what all features do."""
    gram, moment, reward_moment, _ = products.assembled(actions)
    d0, moments = plan.features.n_shared, np.column_stack([reward_moment, moment - reward_moment])
    theta = np.zeros((len(gram), 4))
    for column, start in ((0, d0), (2, 0)):
        inverse = whiten(gram[start:, start:]).matrix
        theta[start:, column : column + 2] = inverse @ (inverse.T @ moments[start:])
    return np.asarray(theta.T @ plan.features.embeddings)
