"""Whether a patient with a known trajectory is in a message: the score of an attacker who knows the population.

Every number of a block, S, s_r, s and σ̂², is a sum over patients of z. With the mean and the covariance of z from a
large sample of the same population, the log likelihood ratio of "in" against "out" is δᵀC⁻¹(m − E m) − ½ δᵀC⁻¹δ.
"""

from statistics import NormalDist

import numpy as np

from fdtr.disclosure.blocks import Design, directions_of
from fdtr.site.fitting import fit_message


class Population:
    """What the attacker knows: a sample of trajectories, states (H, n, q) in [0, 1], actions and rewards (H, n)."""

    def __init__(self, study, states, actions, rewards, rows):
        self.study, self.features = study, study.feature_map
        self.states, self.actions, self.rewards = states, actions, rewards
        self.n_shared = sum(covariate.effect == "shared" for covariate in study.covariates)
        self.bounds = fit_message(study, rows).fit.bounds
        design = Design(self.features, tuple(range(self.features.n_actions)))
        self.directions = [
            directions_of(design.within(action), self.features.n_shared) for action in range(self.features.n_actions)
        ]
        self.known = [self._step(h) for h in range(study.horizon)]

    def _outcomes(self, h, states, rewards):
        """r and, before the last step, Y by V of the population."""
        if h + 1 == self.study.horizon:
            return rewards[h][:, None]
        following = self.bounds[h + 1].values(self.features.psi(np.ascontiguousarray(states[h + 1].T)))
        return np.column_stack([rewards[h], rewards[h] + following])

    def _products(self, coefficients, states, outcomes):
        """z of rows of one action: what the own features leave of ψψᵀ, ψr and ψY, and the squared residual of r."""
        m, own = self.n_shared, np.column_stack([np.ones(len(states)), states[:, self.n_shared :]])
        left = np.hstack([states[:, :m], outcomes]) - own @ coefficients[0]
        residual = outcomes[:, 0] - np.hstack([own, states[:, :m]]) @ coefficients[1]
        i, j = np.triu_indices(m)
        moments = [left[:, :m] * left[:, m + k : m + k + 1] for k in range(outcomes.shape[1])]
        return np.hstack([left[:, i] * left[:, j], *moments, residual[:, None] ** 2])

    def _step(self, h):
        by_action, outcomes = [], self._outcomes(h, self.states, self.rewards)
        for action in range(self.features.n_actions):
            there = self.actions[h] == action
            states, targets = self.states[h][there], outcomes[there]
            own = np.column_stack([np.ones(len(states)), states[:, self.n_shared :]])
            shared = states[:, : self.n_shared]
            coefficients = (
                np.linalg.lstsq(own, np.hstack([shared, targets]), rcond=None)[0],
                np.linalg.lstsq(np.hstack([own, shared]), targets[:, 0], rcond=None)[0],
            )
            z = self._products(coefficients, states, targets)
            by_action.append((coefficients, z.mean(axis=0), np.cov(z.T), z.T @ z / len(z), there.mean()))
        return by_action

    def score(self, summary, patient, n_by_action, jitter):
        """The log likelihood ratio; `patient` is (states, actions, rewards) of one row, `n_by_action` (H, A)."""
        states, actions, rewards = patient
        mean_weight, variance = 1 - jitter / 2, jitter**2 / 12
        ratio = 0.0
        for h, sums in enumerate(summary.sums.at(h) for h in range(self.study.horizon)):
            action = int(actions[h][0])
            n, everybody = n_by_action[h][action] - 2, n_by_action[h].sum()
            to_block = self.directions[action]
            schur = to_block.T @ sums.schur[0] @ to_block
            left = np.flatnonzero(np.diagonal(schur) > 1e-9 * max(n, 1))
            if not len(left):
                continue
            where = sums.information[0].argmax()
            residual = everybody * sums.schur[0].flat[where] / sums.information[0].flat[where]
            coefficients, mean, covariance, second, _ = self.known[h][action]
            outcomes = self._outcomes(h, states, rewards)
            delta = mean_weight * (self._products(coefficients, states[h], outcomes)[0] - mean)
            spread = n * (mean_weight**2 * covariance + variance * second)
            moments = [sums.schur_reward[0], sums.schur_moment[0]][: outcomes.shape[1]]
            rest = np.concatenate([schur[np.triu_indices(len(schur))], *(to_block.T @ m for m in moments), [residual]])
            rest -= n * mean_weight * mean
            shares = [part[-1] for part in self.known[h]]  # σ̂² is of all actions together
            squares = sum(share * part[1][-1] for share, part in zip(shares, self.known[h], strict=True))
            rest[-1] = residual - everybody * mean_weight * squares
            delta[-1] += mean_weight * (mean[-1] - squares)
            spread[-1, -1] = everybody * sum(
                share * (mean_weight**2 * part[2][-1, -1] + variance * part[3][-1, -1])
                for share, part in zip(shares, self.known[h], strict=True)
            )
            i, j = np.triu_indices(len(schur))
            offsets = len(i) + len(schur) * np.arange(outcomes.shape[1])
            told = [*np.flatnonzero(np.isin(i, left) & np.isin(j, left)), *(offsets[:, None] + left).ravel(), -1]
            solved = np.linalg.solve(spread[np.ix_(told, told)], delta[told])
            ratio += solved @ rest[told] - solved @ delta[told] / 2
        return ratio


def binormal_auc(inside, outside):
    """AUC of two samples of scores as if they were normal, which varies less than counting pairs."""
    spread = np.sqrt(np.var(inside, ddof=1) + np.var(outside, ddof=1))
    return NormalDist().cdf((np.mean(inside) - np.mean(outside)) / spread)


def discriminant_auc(inside, outside):
    """AUC of a linear discriminant, trained on half of the messages (rows) and tried on the others, both ways."""
    varies = np.vstack([outside, inside]).std(axis=0) > 1e-12
    scale = np.vstack([outside, inside]).std(axis=0)[varies]
    halves = [np.split(part[:, varies] / scale, 2) for part in (np.asarray(outside), np.asarray(inside))]
    areas = []
    for train, tried in ((0, 1), (1, 0)):
        (out, out_tried), (within, within_tried) = ((part[train], part[tried]) for part in halves)
        spread = np.atleast_2d(np.cov(np.vstack([out - out.mean(axis=0), within - within.mean(axis=0)]).T))
        direction = np.linalg.lstsq(spread, within.mean(axis=0) - out.mean(axis=0), rcond=1e-9)[0]
        areas.append(np.mean((within_tried @ direction)[:, None] > (out_tried @ direction)[None, :]))
    return float(np.mean(areas))
