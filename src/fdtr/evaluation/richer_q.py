"""How wrong a linear Q may be: a richer Q beside it, and what the two differ by.

Beside φ the richer model has, for each action by itself, a constant, the functions of ψ, their products for two
covariates, and squares of linear covariates, all standardised: R_a(x). These have a ridge μ of their own; with μ = ∞ it
is the linear model. μ has the least held-out error, over all steps, in predicting Y = r_h + V_{h+1} with the linear V.

*Does the richer model see more?* With e the held-out residual of the linear model and g the difference of the two
held-out predictions of Y,

    T = mean over patients of Σ_h e_h g_h, over its standard error, with the μ that is best for other folds,

is large where the linear model is wrong: g then predicts e. Where it is right e has mean 0 whatever g is.

*Do clinicians know more than the model?* Their choices may follow what no function here shows. If what they usually do
fares better than the model says, e goes together with the chance of what was given,

    T_b = the same statistic of Σ_h e_h (b̂(a_h | x_h) − Σ_a b̂(a | x_h)²),

whose factor has mean 0 in every state: b̂ comes from actions alone, of which there are more than outcomes that differ.

*By how much is a value off?* Fitted Q of the richer model, by the same recursion as the linear one, is corrected with
the weights κ that the linear model implies (`fdtr.evaluation.fitted_q`),

    V̂_r = (1/n) Σ_i [ Q_0(x_i, π) + Σ_h κ_{h,i} (r_{h,i} + Q_{h+1}(x_{h+1,i}, π) − Q_h(x_{h,i}, a_{h,i})) ],

which is exact where either Q is right or κ are the true weights. D = V̂ − V̂_r estimates the error of the linear value.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fdtr.algebra.normal_equations import assemble_gram, assemble_moment
from fdtr.evaluation.fitted_q import RIDGE, FittedQ
from fdtr.evaluation.intervals import Statistic, mean_of
from fdtr.evaluation.step_arrays import ByStep, Design, at_actions
from fdtr.features import FeatureMap

Array = NDArray[np.float64]

RIDGES = (np.inf, 1000.0, 300.0, 100.0, 30.0, 10.0, 3.0, 1.0)
"""μ that are tried, on standardised functions: so many rows weigh as much as the wish for a coefficient of 0."""

CRITICAL = 1.645
"""T beyond this says that the linear model is wrong; 5% of a normal distribution lie beyond it."""

_CONSTANT = 1e-9


@dataclass(frozen=True, eq=False, repr=False)
class RicherQ:
    """`values` of each patient by the richer model: V̂_r is their mean, `cautious` (n,) are those that errors come from.

    `misfit` is T, 0 where μ = ∞ for all folds, and `usual_misfit` is T_b; `ridge` is μ. `q` (A, n_h) of each step and
    its `residuals` (H, n) are held out. `by_policy` are those of the linear model.
    """

    values: Array
    cautious: Array
    misfit: float
    usual_misfit: float
    ridge: float
    q: ByStep
    residuals: Array
    by_policy: Array | None

    @property
    def statistic(self) -> Statistic:
        """V̂_r to first order as an average over patients."""
        average = mean_of(self.values.mean() + self.cautious - self.cautious.mean())
        return replace(average, by_policy=self.by_policy)

    @property
    def rejects(self) -> bool:
        """Whether held-out data contradict the linear model."""
        return self.misfit > CRITICAL


def products(psi: ByStep, features: FeatureMap) -> ByStep:
    """R (p, n_h) of each step: 1 and the functions of two covariates, standardised over all steps."""
    blocks = [block for block in features.blocks if block.basis is not None]
    rows = [(block, row) for block in blocks for row in range(block.rows.start, block.rows.stop)]
    pairs = [
        (i, j)
        for place, (first, i) in enumerate(rows)
        for second, j in rows[place:]
        if first is not second or (i == j and first.basis is not None and first.basis.kind == "linear")
    ]
    left, right = [i for i, _ in pairs], [j for _, j in pairs]
    stacked = [np.vstack([part[[row for _, row in rows]], part[left] * part[right]]) for part in psi]
    everything = np.hstack(stacked)
    centre, spread = everything.mean(axis=1, keepdims=True), everything.std(axis=1, keepdims=True)
    spread[spread <= _CONSTANT] = np.inf
    return tuple(np.vstack([np.ones((1, part.shape[1])), (part - centre) / spread]) for part in stacked)


def fit_richer_q(
    design: Design,
    richer: ByStep,
    chances: Sequence[ByStep],
    linear: FittedQ,
    behaviour: ByStep,
    clusters: NDArray[np.intp] | None = None,
    ridge: float = RIDGE,
) -> RicherQ:
    """The richer model's Q of the target whose action probabilities are `chances`, by fold, for all patients.

    `richer` are the `products`, `linear` is the linear fit of the same target, `ridge` its λ. `behaviour` (A, n_h) of
    each step are b̂. T and T_b are by `clusters` (n,).
    """
    steps = _Steps(design, richer, ridge)
    mu, misfit, residuals_of_linear = _judge(steps, chances, linear.theta_by_fold, clusters)
    usual_misfit = t_statistic((residuals_of_linear * _more_usual(design, behaviour)).sum(axis=0), clusters)
    q = _richer_q(steps, chances, mu)
    of_fold = [[table[h] for table in chances] for h in range(design.arrays.horizon)]
    own = tuple(_by_fold(tables, design.folds) for tables in of_fold)
    values = tuple((table * estimates).sum(axis=0) for table, estimates in zip(own, q, strict=True))
    expected = tuple(at_actions(estimates, a) for estimates, a in zip(q, design.arrays.actions, strict=True))
    residuals = design.arrays.residuals(values, expected)
    estimates, cautious = (
        values[0] + (kappa * residuals).sum(axis=0) for kappa in (linear.kappa, linear.cautious_kappa)
    )
    return RicherQ(estimates, cautious, misfit, usual_misfit, mu, q, residuals, linear.by_policy)


def _more_usual(design: Design, behaviour: ByStep) -> Array:
    """b̂ of what was given, less what is expected of that, (H, n)."""
    out = np.zeros_like(design.arrays.rewards)
    for row, chances, actions in zip(out, behaviour, design.arrays.actions, strict=True):
        row[: len(actions)] = at_actions(chances, actions) - (chances**2).sum(axis=0)
    return out


def _by_fold(tables: Sequence[Array], folds: NDArray[np.intp]) -> Array:
    """Each column from the table (A, c) of its patient's fold."""
    chosen = np.array(tables[0])
    for fold, table in enumerate(tables):
        in_fold = folds[: table.shape[1]] == fold
        chosen[:, in_fold] = table[:, in_fold]
    return chosen


@dataclass(frozen=True, eq=False, repr=False)
class _Step:
    """One step: ψ (m, n), R (p, n), the `actions` and `folds` of its patients, and sums by fold and action.

    `gram` (F, A, m, m) is Ψ_aΨ_aᵀ, `own` (F, A, p, p) is R_aR_aᵀ, `cross` (F, A, m, p) is Ψ_aR_aᵀ. `embeddings`
    (A, d, m) stacks B_a; `ridge` is λ.
    """

    psi: Array
    richer: Array
    actions: NDArray[np.intp]
    folds: NDArray[np.intp]
    gram: Array
    own: Array
    cross: Array
    embeddings: Array
    ridge: float

    def solve(self, fold: int, targets: Array, ridges: Sequence[float]) -> tuple[Array, Array]:
        """θ (M, d) and γ (M, A, p) for each of M ridges μ: fitted without the fold to `targets` (n,).

        γ is eliminated action by action, as sites eliminate their own effects.
        """
        gram, own, cross = (sums.sum(axis=0) - sums[fold] for sums in (self.gram, self.own, self.cross))
        chosen = [(self.folds != fold) & (self.actions == action) for action in range(len(own))]
        moment = np.array([self.psi[:, rows] @ targets[rows] for rows in chosen])
        richer_moment = np.array([self.richer[:, rows] @ targets[rows] for rows in chosen])
        inverse = 1 / np.array(ridges)[:, None, None, None]  # 0 for μ = ∞, where γ = 0
        sides = np.concatenate([cross.swapaxes(1, 2), richer_moment[..., None]], axis=2)
        halves = np.linalg.solve(inverse * own + np.eye(own.shape[-1]), inverse * sides)  # (M, A, p, m + 1)
        eliminated = cross @ halves
        ridge = self.ridge * np.eye(self.embeddings.shape[1])
        schur = [assemble_gram(self.embeddings, gram - part[..., :-1]) + ridge for part in eliminated]
        right = [assemble_moment(self.embeddings, moment - part[..., -1]) for part in eliminated]
        theta = np.asarray(np.linalg.solve(np.array(schur), np.array(right)[..., None])[..., 0], np.float64)
        explained = halves[..., :-1] @ self.coefficients(theta)[..., None]
        return theta, np.asarray(halves[..., -1] - explained[..., 0], np.float64)

    def coefficients(self, theta: Array) -> Array:
        """B_aᵀθ of every action, (M, A, m), for `theta` (M, d)."""
        return np.asarray(np.tensordot(theta, self.embeddings, axes=(1, 1)))

    def predict(self, theta: Array, gamma: Array, rows: NDArray[np.intp]) -> Array:
        """Q of the actions that some `rows` got, (M, c), for θ (M, d) and γ (M, A, p)."""
        q = self.coefficients(theta) @ self.psi[:, rows] + gamma @ self.richer[:, rows]
        return np.asarray(q[:, self.actions[rows], np.arange(len(rows))])


@dataclass(frozen=True, eq=False, repr=False)
class _Steps:
    """The steps of a design, each with its sums, one at a time."""

    design: Design
    richer: ByStep
    ridge: float

    @property
    def horizon(self) -> int:
        return self.design.arrays.horizon

    def at(self, h: int) -> _Step:
        """Step h with its sums."""
        design, psi, richer = self.design, self.design.psi[h], self.richer[h]
        actions, count = design.arrays.actions[h], len(design.arrays.actions[h])
        folds, shape = design.folds[:count], (design.n_folds, len(design.embeddings))
        m, p = len(psi), len(richer)
        gram, own, cross = (np.zeros((*shape, *size)) for size in ((m, m), (p, p), (m, p)))
        for fold, action in np.ndindex(shape):
            rows = (folds == fold) & (actions == action)
            of_psi, of_richer = psi[:, rows], richer[:, rows]
            gram[fold, action], own[fold, action] = of_psi @ of_psi.T, of_richer @ of_richer.T
            cross[fold, action] = of_psi @ of_richer.T
        return _Step(psi, richer, actions, folds, gram, own, cross, design.embeddings, self.ridge)

    def targets(self, h: int, later: Array | None) -> Array:
        """r + V of the next step, (n_h,); `later` is V (n_{h+1},)."""
        out = self.design.arrays.rewards[h, : self.design.arrays.counts[h]].copy()
        if later is not None:
            out[: len(later)] += later
        return out


def _judge(
    steps: _Steps, chances: Sequence[ByStep], theta_by_fold: Array, clusters: NDArray[np.intp] | None
) -> tuple[float, float, Array]:
    """μ with the least held-out error in predicting what the linear model predicts, T, and held-out residuals, (H, n).

    For T each fold takes the μ that is best for the others: the patients who are tested have not chosen it.
    """
    design, errors = steps.design, np.zeros((len(RIDGES), steps.design.arrays.n))
    agreement, residuals = np.zeros_like(errors), np.zeros_like(design.arrays.rewards)
    for h in range(steps.horizon):
        step = steps.at(h)
        for fold, tables in enumerate(chances):
            held_out = np.flatnonzero(step.folds == fold)
            following = h + 1 < steps.horizon
            later = theta_by_fold[fold, h + 1] @ design.mixed(h + 1, tables) if following else None
            targets = steps.targets(h, later)
            no_products = np.zeros((1, len(design.embeddings), len(step.richer)))
            (linear,) = step.predict(theta_by_fold[fold, h][None], no_products, held_out)
            residual = targets[held_out] - linear
            residuals[h, held_out] = residual
            error = targets[held_out] - step.predict(*step.solve(fold, targets, RIDGES), held_out)
            errors[:, held_out] += error**2
            agreement[:, held_out] += residual * (residual - error)
    by_fold = np.stack([errors[:, design.folds == fold].sum(axis=1) for fold in range(design.n_folds)])
    best = np.argmin(by_fold.sum(axis=0) - by_fold, axis=1)[design.folds]  # of each patient, by the other folds
    summands = np.where(np.isfinite(np.array(RIDGES))[best], agreement[best, np.arange(len(best))], 0.0)
    return RIDGES[int(np.argmin(by_fold.sum(axis=0)))], t_statistic(summands, clusters), residuals


def t_statistic(summands: Array, clusters: NDArray[np.intp] | None) -> float:
    """The mean of `summands` (n,) over its standard error, by cluster if there are any; 0 where they do not vary.

    >>> round(t_statistic(np.array([1.0, 3.0]), None), 3)
    2.0
    """
    statistic = mean_of(summands).clustered(clusters)
    error = statistic.standard_error
    return statistic.value / error if error > 0 else 0.0


def _richer_q(steps: _Steps, chances: Sequence[ByStep], mu: float) -> ByStep:
    """Q (A, n_h) of each step by the recursion of the richer model, each patient's fitted to the other folds."""
    design, horizon = steps.design, steps.horizon
    out: list[Array] = [np.empty((len(design.embeddings), count)) for count in design.arrays.counts]
    later: list[Array | None] = [None] * len(chances)
    for h in reversed(range(horizon)):
        step = steps.at(h)
        for fold, tables in enumerate(chances):
            (theta,), (gamma,) = step.solve(fold, steps.targets(h, later[fold]), [mu])
            q = np.clip((theta @ design.embeddings) @ design.psi[h] + gamma @ step.richer, 0.0, horizon - h)
            later[fold] = (tables[h] * q).sum(axis=0)
            held_out = step.folds == fold
            out[h][:, held_out] = q[:, held_out]
    return tuple(out)
