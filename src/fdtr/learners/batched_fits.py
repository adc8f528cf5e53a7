"""Algorithms 1 and 2 for many small sites at once: the same numbers as site by site, up to rounding.

A site with forty patients costs a millisecond of Python and a tenth of it in arithmetic. Here the sites of a batch,
padded with empty rows to the largest, are the first axis of every array, and a step of all of them is some fifty calls.
The features φ are built in full, (d, n), which is no more work than Ψ_aᵀΨ_a while d is small.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Literal, Self

import numpy as np
from numpy.typing import NDArray

from fdtr.algebra.normal_equations import factor_each, features_of
from fdtr.algebra.pessimism import SMALLEST_VARIANCE, NoiseUnits, penalty_scale
from fdtr.algebra.schur import eliminate_each, project_each
from fdtr.features import FeatureMap
from fdtr.learners.backward import Settings
from fdtr.sums import VARIANCE_FLOOR, Sums, triangle
from fdtr.trajectories import ManySites

Array = NDArray[np.float64]

ROWS_AT_ONCE = 4096
"""Rows of one step in a batch, empty ones included: its arrays stay in a core's cache."""


@dataclass(frozen=True, eq=False, repr=False)
class ManySums:
    """The sums of several sites: `schur` (B, H, d0(d0+1)/2) holds the upper triangles of S, and W is `weight` S.

    `schur_moment` and `schur_reward` are (B, H, d0); `weight`, `explained` (s_rᵀS⁺s_r), `rank` and `n` are (B, H).
    """

    schur: Array
    schur_moment: Array
    schur_reward: Array
    weight: Array
    explained: Array
    rank: Array
    n: Array

    def of(self, site: int) -> Sums:
        """The sums of one site, by its position."""
        return Sums.unpacked({name: array.copy() for name, array in self.packed(site).items()})

    @classmethod
    def of_steps(cls, steps: Sequence[Self]) -> Self:
        """The sums of all steps from those of each step."""
        return cls(*(np.concatenate([getattr(step, field.name) for step in steps], axis=1) for field in fields(cls)))

    def packed(self, site: int) -> dict[str, Array]:
        """The sums of one site as `Sums.packed` gives them."""
        weight, rewards = self.weight[site], self.schur_reward[site]
        return {
            "schur": self.schur[site],
            "schur_moment": self.schur_moment[site],
            "schur_reward": rewards,
            "information": weight[:, None] * self.schur[site],
            "information_moment": weight[:, None] * rewards,
            "information_square": weight * self.explained[site],
            "rank": self.rank[site],
            "n": self.n[site],
        }

    @classmethod
    def empty(cls, n_sites: int, horizon: int, n_shared: int) -> Self:
        """Room for the sums of so many sites."""
        widths: list[tuple[int, ...]] = [(n_shared * (n_shared + 1) // 2,), (n_shared,), (n_shared,), (), (), (), ()]
        return cls(*(np.empty((n_sites, horizon, *width)) for width in widths))

    def put(self, sites: NDArray[np.intp] | slice, sums: Self) -> None:
        """Fill in the sums of some sites, by their positions."""
        for field in fields(self):
            getattr(self, field.name)[sites] = getattr(sums, field.name)

    def take(self, sites: NDArray[np.intp]) -> Self:
        """The sums of some sites, by their positions."""
        return type(self)(*(getattr(self, field.name)[sites] for field in fields(self)))


@dataclass(frozen=True, eq=False, repr=False)
class ManyOthers:
    """`Others` of several sites: (B, H, d0, d0), (B, H, d0) twice, and (B,)."""

    schur: Array
    schur_moment: Array
    schur_reward: Array
    n: Array


@dataclass(frozen=True, eq=False, repr=False)
class ManyFits:
    """Fits of several sites: `theta` (B, H, d), `precision` Σ (B, H, d, d), and `scale` α (B, H) of the penalty.

    `sums` are what each site could send, where they were asked for.
    """

    theta: Array
    precision: Array
    scale: Array
    sums: ManySums | None


def batches(n: NDArray[np.intp]) -> list[NDArray[np.intp]]:
    """Sites that are fitted together, by their positions: of `n` (K,) patients each, like sizes in one batch."""
    order = np.argsort(n, kind="stable")
    parts, start = [], 0
    while start < len(order):
        stop = start + 1
        while stop < len(order) and (stop + 1 - start) * n[order[stop]] <= ROWS_AT_ONCE:
            stop += 1
        parts.append(np.sort(order[start:stop]))
        start = stop
    return parts


@dataclass(frozen=True, eq=False, repr=False)
class _Step:
    """One step of a batch: ψ (B, m, n) and Z = (φ, r, V) (B, d + 2, n), with empty rows; `n` (B,) patients.

    `place` says where each row stands in a site after another, padded.
    """

    psi: Array
    rows: Array
    n: NDArray[np.intp]
    place: NDArray[np.intp] | slice

    @property
    def target_sum(self) -> Array:
        """Σ Y, (B,)."""
        return np.asarray(self.rows[:, -2:].sum(axis=(1, 2)))


def fit_batch(
    rows: ManySites,
    features: FeatureMap,
    settings: Settings,
    others: ManyOthers | None = None,
    sharing: float = 0.0,
    share: Literal["value", "reward"] = "value",
    *,
    with_sums: bool = False,
) -> ManyFits:
    """Algorithm 1 at every site of a batch; with `others` Algorithm 2, as `learners.federated.fit_federated`."""
    horizon, d, n_sites = rows.n.shape[1], features.n_features, len(rows.n)
    alone = settings.own_penalty or share == "reward"
    n = rows.n[:, 0].astype(np.float64)
    if others is not None and not alone:
        n += sharing * others.n
    theta, precision = np.empty((n_sites, horizon, d)), np.empty((n_sites, horizon, d, d))
    scale, offset = np.empty((n_sites, horizon)), (horizon + 1) * settings.misspecification
    sums: list[ManySums] = []
    next_values = np.zeros(0)
    for h in reversed(range(horizon)):
        step = _take(rows, features, h, next_values)
        products = step.rows @ step.rows.transpose(0, 2, 1)
        products = (products + products.transpose(0, 2, 1)) / 2
        theta[:, h], precision[:, h], root = _solve(products, settings, others, h, sharing, share)
        scale[:, h] = _penalty_scales(step, products, theta[:, h], precision[:, h], settings, (horizon, h), n)
        if h:
            next_values = _values(step, features, theta[:, h], root, scale[:, h], offset, horizon - h)
        if with_sums:
            sums.append(_summarize(products, step.n, features.n_shared))
    return ManyFits(theta, precision, scale, ManySums.of_steps(sums[::-1]) if with_sums else None)


def _take(rows: ManySites, features: FeatureMap, h: int, next_values: Array) -> _Step:
    """The rows of step h, with V of those that go on, in the order of step h + 1, and the worth of the others' end."""
    n, horizon = rows.n[:, h], rows.n.shape[1]
    site = np.repeat(np.arange(len(n)), n)
    place = np.arange(len(site)) - np.repeat(np.cumsum(n) - n, n)
    where = np.repeat(rows.start[:, h], n) + place
    going_on = place < (rows.n[:, h + 1][site] if h + 1 < horizon else 0)
    patients = rows.n[:, 0]
    values = rows.ended_value[(np.cumsum(patients) - patients)[site] + place]
    values[going_on] = next_values
    psi_rows = features.psi(np.take(rows.states, where, axis=1))
    actions, width = rows.actions[where], int(n.max(initial=0))
    d, m = features.n_features, features.n_functions
    psi, padded = np.zeros((m, len(n) * width)), np.zeros((d + 2, len(n) * width))
    padded_place = site * width + place if len(site) < len(n) * width else slice(None)
    psi[:, padded_place] = psi_rows
    padded[:d, padded_place] = features_of(features.embeddings, psi_rows, actions)
    padded[d, padded_place], padded[d + 1, padded_place] = rows.rewards[where], values
    return _Step(
        psi=psi.reshape(m, len(n), width).transpose(1, 0, 2),
        rows=padded.reshape(d + 2, len(n), width).transpose(1, 0, 2),
        n=n,
        place=padded_place,
    )


def _solve(
    products: Array, settings: Settings, others: ManyOthers | None, h: int, sharing: float, share: str
) -> tuple[Array, Array, Array]:
    """θ (B, d), Σ (B, d, d) of the penalty, and L⁻¹ with Σ = L Lᵀ, at step h."""
    d = products.shape[1] - 2
    own = products[:, :d, :d] + settings.ridge * np.eye(d)
    rewards, values = products[:, :d, d], products[:, :d, d + 1]
    if others is None:
        root = _inverse_root(own)
        return _solved(root, rewards + values), own, root
    together, shared = own.copy(), slice(others.schur.shape[2])
    together[:, shared, shared] += sharing * others.schur[:, h]
    moment = rewards + values if share == "value" else rewards.copy()
    moment[:, shared] += sharing * (others.schur_moment if share == "value" else others.schur_reward)[:, h]
    root = _inverse_root(together)
    theta = _solved(root, moment)
    if share == "value" and not settings.own_penalty:
        return theta, together, root
    own_root = _inverse_root(own)
    return theta + _solved(own_root, values) if share == "reward" else theta, own, own_root


def _inverse_root(precision: Array) -> Array:
    lower = factor_each(precision)
    return np.asarray(np.linalg.solve(lower, np.broadcast_to(np.eye(lower.shape[1]), lower.shape)), np.float64)


def _solved(root: Array, moment: Array) -> Array:
    """Σ⁻¹ b, from L⁻¹."""
    return np.asarray((root.transpose(0, 2, 1) @ (root @ moment[:, :, None]))[:, :, 0])


def _penalty_scales(
    step: _Step,
    products: Array,
    theta: Array,
    precision: Array,
    settings: Settings,
    place: tuple[int, int],
    n: Array,
) -> Array:
    """α of each site with the widening of Section 4.1, (B,); `place` are H and h, `n` (B,) is N of (13)."""
    (horizon, h), d = place, theta.shape[1]
    if isinstance(settings.pessimism, NoiseUnits):
        levels = _noise_levels(step, products, theta, precision, horizon - h)
        scales = settings.pessimism.noise * d * levels
    else:
        zeta = np.log(2 * d * horizon * n / settings.failure_probability)
        scales = penalty_scale(settings.pessimism, d, horizon, 1.0) * np.sqrt(zeta)
    return np.asarray(scales + np.sqrt(n) * (horizon + 1) * settings.misspecification)


def _noise_levels(step: _Step, products: Array, theta: Array, precision: Array, span: int) -> Array:
    """`noise_level` of each site, (B,)."""
    d, n = theta.shape[1], step.n
    gram, moment = products[:, :d, :d], products[:, :d, d] + products[:, :d, d + 1]
    square = products[:, d:, d:].sum(axis=(1, 2))
    fitted = np.einsum("bi,bij,bj->b", theta, gram, theta)
    residual = np.maximum(square - 2 * np.einsum("bi,bi->b", theta, moment) + fitted, 0.0)
    degrees = np.trace(np.linalg.solve(precision, gram), axis1=1, axis2=2)
    several = np.maximum(n, 2)
    spread = np.maximum(square - step.target_sum**2 / several, 0.0) / (several - 1)
    variance = np.maximum(residual / np.maximum(several - degrees, several / 5), SMALLEST_VARIANCE)
    variance = np.where(n < 2 * d, np.maximum(variance, spread), variance)
    return np.where(n < 2, span / 2, np.sqrt(variance))


def _values(
    step: _Step, features: FeatureMap, theta: Array, root: Array, scale: Array, offset: float, cap: int
) -> Array:
    """V of every row of a step, (n,): the largest φᵀθ − Γ, truncated; `root` is L⁻¹."""
    best = np.full((len(theta), step.psi.shape[2]), -np.inf)
    for embedding in features.embeddings:
        image = (root @ embedding) @ step.psi  # L⁻¹ φ(x, a)
        widths = np.sqrt(np.einsum("bdn,bdn->bn", image, image))
        bound = ((theta @ embedding)[:, None, :] @ step.psi)[:, 0] - scale[:, None] * widths
        np.maximum(best, bound, out=best)
    values = np.clip(best - offset, 0.0, cap)
    return np.asarray(values.reshape(-1)[step.place])


def _summarize(products: Array, n: NDArray[np.intp], n_shared: int) -> ManySums:
    """`summary.summarize_step` of each site."""
    d = products.shape[1] - 2
    gram, rewards = products[:, :d, :d], products[:, :d, d]
    moments = np.stack([rewards + products[:, :d, d + 1], rewards], axis=2)
    own = eliminate_each(gram, moments, n_shared)
    shared = project_each(own.schur, own.moments, gram[:, :n_shared, :n_shared])
    spare = n - own.rank - shared.rank
    residual = products[:, d, d] - own.explained[:, 1] - shared.explained[:, 1]
    variance = np.maximum(residual / np.maximum(spare, 1), VARIANCE_FLOOR)
    rows, columns = triangle(n_shared)
    return ManySums(
        schur=shared.schur[:, None, rows, columns],
        schur_moment=shared.moments[:, None, :, 0],
        schur_reward=shared.moments[:, None, :, 1],
        weight=np.where(spare > 0, 1.0 / variance, 0.0)[:, None],
        explained=shared.explained[:, None, 1],
        rank=np.where(spare > 0, shared.rank, 0).astype(np.float64)[:, None],
        n=n.astype(np.float64)[:, None],
    )
