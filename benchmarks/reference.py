"""LDTR and FDTR written row by row, as a program that follows the paper's formulas line by line would be.

One inverse a step, a Python loop over patients and actions, dense features: what the package is compared with.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def phi_of(state: Array, action: float, n_shared: int, degree: int) -> Array:
    """φ = (x0, a x0, …, x1, a x1, …) with powers of a up to `degree`."""
    powers = action ** np.arange(degree + 1)
    return np.concatenate([np.kron(powers, state[:n_shared]), np.kron(powers, state[n_shared:])])


def value(
    state: Array, theta: Array, inverse: Array, alpha: float, cap: float, levels: Array, m0: int, degree: int
) -> float:
    best = 0.0
    for action in levels:
        phi = phi_of(state, action, m0, degree)
        bound = phi @ theta - alpha * math.sqrt(phi @ inverse @ phi)
        best = max(best, min(max(bound, 0.0), cap))
    return best


def backward(site, levels: Array, m0: int, degree: int, alpha: float, ridge: float, others=None):
    """Value iteration at one site. `site` is (states (H, n, m), actions (H, n), rewards (H, n))."""
    states, actions, rewards = site
    horizon, n, m = states.shape
    d, d0 = (degree + 1) * m, (degree + 1) * m0
    theta, inverse, grams, moments, thetas = None, None, [], [], []
    for h in reversed(range(horizon)):
        gram, moment = np.zeros((d, d)), np.zeros(d)
        for i in range(n):
            phi = phi_of(states[h, i], actions[h, i], m0, degree)
            y = rewards[h, i]
            if theta is not None:
                y += value(states[h + 1, i], theta, inverse, alpha, horizon - h - 1, levels, m0, degree)
            gram += np.outer(phi, phi)
            moment += phi * y
        grams.append(gram)
        moments.append(moment)
        precision, right = gram + ridge * np.eye(d), moment.copy()
        if others is not None:
            schur, schur_moment = others[h]
            precision[:d0, :d0] += schur
            right[:d0] += schur_moment
        inverse = np.linalg.inv(precision)
        theta = inverse @ right
        thetas.append(theta)
    return grams[::-1], moments[::-1], np.stack(thetas[::-1])


def alpha_of(c: float, d: int, horizon: int, n: int, xi: float) -> float:
    return c * d * horizon * math.sqrt(math.log(2 * d * horizon * n / xi))


def all_sites(sites, levels: Array, m0: int, degree: int, c: float, ridge: float, xi: float) -> list[Array]:
    """LDTR at every site, its sums, and FDTR at every site: θ of each, (H, d)."""
    horizon, n, m = sites[0][0].shape
    d, d0 = (degree + 1) * m, (degree + 1) * m0
    messages = []
    for site in sites:
        grams, moments, _ = backward(site, levels, m0, degree, alpha_of(c, d, horizon, n, xi), ridge)
        parts = []
        for gram, moment in zip(grams, moments, strict=True):
            inverse = np.linalg.pinv(gram[d0:, d0:])
            cross = gram[:d0, d0:]
            parts.append((gram[:d0, :d0] - cross @ inverse @ cross.T, moment[:d0] - cross @ inverse @ moment[d0:]))
        messages.append(parts)
    alpha = alpha_of(c, d, horizon, n * len(sites), xi)
    found = []
    for k, site in enumerate(sites):
        others = [
            tuple(sum(messages[j][h][part] for j in range(len(sites)) if j != k) for part in (0, 1))
            for h in range(horizon)
        ]
        found.append(backward(site, levels, m0, degree, alpha, ridge, others)[2])
    return found
