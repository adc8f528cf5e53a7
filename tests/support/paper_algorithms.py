"""Algorithms 1 and 2 as the paper prints them: dense matrices, projections, one pseudo-inverse over all sites.

Slow and memory-hungry on purpose; it shares nothing with the package but φ(x, a) itself.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fdtr.features import FeatureMap
from fdtr.trajectories import Trajectories

Array = NDArray[np.float64]


@dataclass
class Rows:
    """One site's rows of one step, dense."""

    phi: Array  # (n, d)
    reward: Array  # (n,)
    following: Array  # (k, A, d), φ of the next state with every action
    ended: Array  # (n - k,)


@dataclass
class LiteralFit:
    theta: Array  # (H, d)
    precision: Array  # (H, d, d)


def dense(rows: Trajectories, features: FeatureMap) -> list[Rows]:
    steps = []
    for h in range(rows.horizon):
        chunk = next(rows.step(h).chunks(10**9), None)
        if chunk is None:
            d, a = features.n_features, features.n_actions
            steps.append(Rows(np.zeros((0, d)), np.zeros(0), np.zeros((0, a, d)), np.zeros(0)))
            continue
        k = chunk.next_states.shape[1]
        following = np.zeros((k, features.n_actions, features.n_features))
        for a in range(features.n_actions):
            if k:
                following[:, a] = features.phi(chunk.next_states, np.full(k, a))
        steps.append(Rows(features.phi(chunk.states, chunk.actions), chunk.rewards, following, chunk.ended_value))
    return steps


def alpha_of(c: float, d: int, horizon: int, n: float, xi: float) -> float:
    return c * d * horizon * math.sqrt(math.log(2 * d * horizon * n / xi))


def penalty(phi: Array, lower: Array, scale: float) -> Array:
    """Γ = α √(φᵀ Σ⁻¹ φ) for each row of `phi`, Σ = L Lᵀ."""
    sigma = lower @ lower.T
    return scale * np.sqrt(np.einsum("nd,dn->n", phi, np.linalg.solve(sigma, phi.T)))


def targets(
    rows: Rows, horizon: int, h: int, fit: tuple[Array, Array] | None, alpha: float, eta: float, n: float
) -> Array:
    """Y = r + V(x'), V the truncated maximum of the penalised estimate."""
    future = np.zeros(len(rows.reward))
    k = len(rows.following)
    future[k:] = rows.ended
    if fit is not None:
        theta, sigma = fit
        inverse = np.linalg.inv(sigma)
        for i in range(k):
            bounds = []
            for phi in rows.following[i]:
                width = math.sqrt(phi @ inverse @ phi)
                penalty = (alpha + math.sqrt(n) * (horizon + 1) * eta) * width + (horizon + 1) * eta
                bounds.append(min(max(phi @ theta - penalty, 0.0), horizon - (h + 1)))
            future[i] = max(bounds)
    return rows.reward + future


def local(steps: list[Rows], c: float, ridge: float, xi: float, eta: float = 0.0) -> tuple[LiteralFit, list[Array]]:
    """Algorithm 1; also the targets Y of every step."""
    horizon, d, n = len(steps), steps[0].phi.shape[1], len(steps[0].reward)
    alpha = alpha_of(c, d, horizon, n, xi)
    theta, precision, all_targets = np.zeros((horizon, d)), np.zeros((horizon, d, d)), [np.zeros(0)] * horizon
    following = None
    for h in reversed(range(horizon)):
        y = targets(steps[h], horizon, h, following, alpha, eta, n)
        precision[h] = steps[h].phi.T @ steps[h].phi + ridge * np.eye(d)
        theta[h] = np.linalg.solve(precision[h], steps[h].phi.T @ y)
        all_targets[h] = y
        following = (theta[h], precision[h])
    return LiteralFit(theta, precision), all_targets


def federated(
    sites: Mapping[str, list[Rows]], k: str, d0: int, c: float, ridge: float, xi: float, eta: float = 0.0
) -> LiteralFit:
    """Algorithm 2 for site k: (10) solved for all sites' effects at once, Σ from (11)."""
    names = sorted(sites)
    horizon, d = len(sites[k]), sites[k][0].phi.shape[1]
    d1, total = d - d0, d0 + (d - d0) * len(names)
    n = sum(len(steps[0].reward) for steps in sites.values())
    alpha = alpha_of(c, d, horizon, n, xi)
    local_targets = {j: local(sites[j], c, ridge, xi, eta)[1] for j in names}
    theta, precision = np.zeros((horizon, d)), np.zeros((horizon, d, d))
    following = None
    for h in reversed(range(horizon)):
        gram, moment = np.zeros((total, total)), np.zeros(total)
        sigma = sites[k][h].phi.T @ sites[k][h].phi + ridge * np.eye(d)
        for place, j in enumerate(names):
            rows = sites[j][h]
            y = targets(rows, horizon, h, following, alpha, eta, n) if j == k else local_targets[j][h]
            wide = np.zeros((len(rows.reward), total))
            wide[:, :d0] = rows.phi[:, :d0]
            wide[:, d0 + place * d1 : d0 + (place + 1) * d1] = rows.phi[:, d0:]
            gram += wide.T @ wide
            moment += wide.T @ y
            if j != k:
                own = rows.phi[:, d0:]
                projection = own @ np.linalg.pinv(own, rcond=1e-10)
                sigma[:d0, :d0] += rows.phi[:, :d0].T @ (np.eye(len(own)) - projection) @ rows.phi[:, :d0]
        place = names.index(k)
        of_site = [*range(d0), *range(d0 + place * d1, d0 + (place + 1) * d1)]
        gram[of_site, of_site] += ridge
        # Columns scaled to length 1, so that raw units do not drown in the cut-off; θ⁰ and θᵏ are unique either way.
        scale = 1 / np.sqrt(np.where(np.diag(gram) > 0, np.diag(gram), 1.0))
        inverse = np.linalg.pinv(gram * np.outer(scale, scale), rcond=1e-12, hermitian=True)
        theta[h] = (scale * (inverse @ (scale * moment)))[of_site]
        precision[h] = sigma
        following = (theta[h], sigma)
    return LiteralFit(theta, precision)
