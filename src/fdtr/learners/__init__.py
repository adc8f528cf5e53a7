"""The paper's algorithms on plain arrays and numbers, one site at a time.

    fit_local           LDTR, Algorithm 1: this site's patients alone
    fit_federated       FDTR, Algorithm 2: shared effects estimated with the sums of `Others`, (10) and (11)
    fit_with_each       FDTR for several pessimisms at once: the paper's c, or `NoiseUnits`
    MajorityVote        the action that most of several policies recommend

All take `Trajectories` of one site and a `FeatureMap`; the pessimistic ones also `Settings` and return a `Fit`. They
know no study file: `fdtr.fit_local` and `fdtr.fit_federated` take a study, tune, and return policies.

>>> import fdtr, numpy as np, pyarrow as pa
>>> from fdtr.simulation import WorldSpec, make_world
>>> world = make_world(WorldSpec(n_sites=3, horizon=2), np.random.default_rng(1))
>>> study = fdtr.Study.model_validate(world.study())
>>> rows = fdtr.read_trajectories(pa.table(world.table(200, np.random.default_rng(2))), study)
>>> sites = rows.by_site()
>>> features = study.feature_map
>>> settings = Settings(pessimism=0.0005, ridge=0.01, failure_probability=0.99, misspecification=0.0)
>>> local = {name: fit_local(site, features, settings) for name, site in sites.items()}
>>> local["site-1"].theta.shape == (2, features.n_features)
True
>>> rest = sums_of(local["site-2"], features.n_shared) + sums_of(local["site-3"], features.n_shared)
>>> others = Others(rest.schur, rest.schur_moment, rest.schur_reward, n=float(rest.n[0]))
>>> together = fit_federated(sites["site-1"], features, settings, others)
>>> alone = fit_federated(sites["site-1"], features, settings, others, sharing=0.0)
>>> np.array_equal(alone.theta, local["site-1"].theta), np.array_equal(together.theta, alone.theta)
(True, False)
>>> each = fit_with_each(sites["site-1"], features, settings, others, 1.0, "value", pessimisms=(0.0, 0.005))
>>> each[1].penalties[0].scale > each[0].penalties[0].scale
True
>>> steps = [(s.gram, s.moment, s.reward_moment, s.reward_square, s.n) for s in local["site-1"].statistics]
>>> message = stack_steps([summarize_step(*step, n_shared=features.n_shared) for step in steps])
>>> np.array_equal(message.schur, sums_of(local["site-1"], features.n_shared).schur)
True
"""

from fdtr.algebra.pessimism import NoiseUnits
from fdtr.learners.backward import Fit, Settings, sums_of
from fdtr.learners.baselines import MajorityVote
from fdtr.learners.federated import Others, fit_federated, fit_with_each
from fdtr.learners.local import fit_local
from fdtr.sums import Sums, stack_steps, summarize_step

__all__ = [
    "Fit",
    "MajorityVote",
    "NoiseUnits",
    "Others",
    "Settings",
    "Sums",
    "fit_federated",
    "fit_local",
    "fit_with_each",
    "stack_steps",
    "summarize_step",
    "sums_of",
]
