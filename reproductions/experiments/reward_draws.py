"""Many runs of a simulated world at once, from rewards alone: what sites would send, and what is inferred from it."""

import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from experiments.replications import anew
from fdtr.inference import heterogeneity, infer_effects, power
from fdtr.learners import Sums, stack_steps, summarize_step
from fdtr.simulation import World, WorldSpec, make_world

Array = NDArray[np.float64]

SIZE = 0.05
"""Level of every test."""


@dataclass(frozen=True)
class Setting:
    """A kind of world: `noises` and `sizes` (patients) by site; `runs` to make; `required`: what has to hold there."""

    name: str
    spec: WorldSpec
    noises: tuple[float, ...]
    sizes: tuple[int, ...]
    runs: int
    required: bool = True


@dataclass(frozen=True, eq=False)
class Trial:
    """`runs` samples from one world of a setting, and its seeds."""

    setting: Setting
    runs: int
    seeds: np.random.SeedSequence


@dataclass(frozen=True, eq=False)
class Observed:
    """What one world's runs gave, R of them.

    `p_values` (R, H) of Q, and of Q with `one_variance` for all sites; `noncentrality` and `predicted` power (R, H) of
    the design; |θ̂⁰ − θ⁰| over its standard error, `off` (R, H, d0).
    """

    p_values: Array
    one_variance: Array
    noncentrality: Array
    predicted: Array
    off: Array


def observe(trial: Trial) -> Observed:
    """Draw one world and `runs` samples from it; infer from the total of each."""
    setting, runs = trial.setting, trial.runs
    of_world, *of_sites = (np.random.default_rng(s) for s in anew(trial.seeds).spawn(1 + len(setting.sizes)))
    world = make_world(setting.spec, of_world)
    sites = [
        draw_site(world, site, noise, n, runs, rng)
        for site, (noise, n, rng) in enumerate(zip(setting.noises, setting.sizes, of_sites, strict=True))
    ]
    total = _total([site.sums for site in sites])
    effects, test = infer_effects(total), heterogeneity(total)
    noiseless = heterogeneity(_total([site.without_noise for site in sites])).statistic
    unweighted = heterogeneity(_total([site.unweighted for site in sites])).statistic
    one_variance = np.sum([site.spare * site.estimated for site in sites], axis=0) / sum(site.spare for site in sites)
    truth = np.tile(world.theta_shared_scaled, (runs, 1))
    off = np.abs(effects.estimates - truth) / effects.standard_errors
    return Observed(
        p_values=test.p_value.reshape(runs, -1),
        one_variance=replace(test, statistic=unweighted / one_variance).p_value.reshape(runs, -1),
        noncentrality=noiseless.reshape(runs, -1),
        predicted=power(noiseless, test.df, SIZE).reshape(runs, -1),
        off=off.reshape(runs, world.horizon, -1),
    )


@dataclass(frozen=True, eq=False)
class SiteDraw:
    """One site's patients in R runs: their `sums`, leading axis R·H, by run and then by step.

    `theta` (R·H, d0) is the site's true θ⁰ on scaled features, `variances` (R·H,) the mean true variance of its
    rewards, and `spare` = n − d.
    """

    sums: Sums
    theta: Array
    variances: Array
    spare: int

    @property
    def estimated(self) -> Array:
        """σ̂², (R·H,)."""
        trace = np.trace(self.sums.schur, axis1=1, axis2=2) / np.trace(self.sums.information, axis1=1, axis2=2)
        return np.asarray(trace)

    @property
    def without_noise(self) -> Sums:
        """The sums if rewards were their means and variances known: their Q is the non-centrality."""
        information = self.sums.schur / self.variances[:, None, None]
        moment = np.einsum("rij,rj->ri", information, self.theta)
        square = np.einsum("ri,ri->r", moment, self.theta)
        return replace(self.sums, information=information, information_moment=moment, information_square=square)

    @property
    def unweighted(self) -> Sums:
        """The sums as if every σ̂² were 1: their Q over one variance is the test that takes all sites for alike."""
        return replace(
            self.sums,
            information=self.sums.schur,
            information_moment=self.sums.schur_reward,
            information_square=self.sums.information_square * self.estimated,
        )


def draw_site(world: World, site: int, noise: float, n: int, runs: int, rng: np.random.Generator) -> SiteDraw:
    """`runs` times `n` fresh patients of a site with that `noise` in their rewards, as the site would sum them up."""
    noisy = replace(world, spec=replace(world.spec, noise=noise))
    walk = noisy.sample(site, runs * n, rng)
    phi = features_of(world, walk.states, walk.actions).reshape(world.horizon, runs, n, -1)
    rewards = walk.rewards.reshape(world.horizon, runs, n)
    grams = phi.swapaxes(-1, -2) @ phi
    moments = (rewards[..., None, :] @ phi)[..., 0, :]
    squares = np.sum(rewards**2, axis=-1)
    d0 = world.theta_shared.shape[1]
    sums = stack_steps(
        [
            summarize_step(grams[h, r], moments[h, r], moments[h, r], float(squares[h, r]), n, d0)
            for r in range(runs)
            for h in range(world.horizon)
        ]
    )
    variances = noise**2 * np.mean((walk.expected * (1.0 - walk.expected)).reshape(rewards.shape), axis=-1)
    theta = np.tile(world.site_theta_shared[site] * world.spec.feature_norm, (runs, 1))
    return SiteDraw(sums, theta, variances.T.ravel(), n - phi.shape[-1])


def features_of(world: World, states: Array, actions: NDArray[np.intp]) -> Array:
    """φ = (x0, a·x0, x1, a·x1) over its largest norm, (…, d), as the world's study scales it."""
    shared, own = np.split(states, [world.spec.n_shared], axis=-1)
    dose = world.dose(actions)[..., None]
    phi: Array = np.concatenate([shared, dose * shared, own, dose * own], axis=-1) / world.spec.feature_norm
    return phi


def _total(parts: Sequence[Sums]) -> Sums:
    return reduce(operator.add, parts)
