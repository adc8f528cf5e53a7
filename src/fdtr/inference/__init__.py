"""Inference from the sums that sites share: effects, their heterogeneity, pooled values, and checks.

    infer_effects               shared effects on the reward: estimates, bands, p-values; `raw_factors` for raw units
    gain_from_sharing           precision of one site alone and with the others
    heterogeneity, power        Cochran's Q of the shared effects, and its power
    pool                        values of several sites as one: plain mean, fixed effects, random effects
    identify, transition_test   what one site's data can identify, and whether its transitions follow the model
    near_ties                   patients with two almost equally good actions
    suspicions                  sites whose message contradicts the others' (at the hub)
    compare_held_out            whether a total does harm to a site's own patients (at the site)
    sidak, holm, rejected       multiple comparisons
    theorem3_bound              the paper's bound on the error of the shared effects

`sums` are those of `fdtr.SiteSummary` and of their total `fdtr.Total`.

>>> import fdtr, numpy as np, pyarrow as pa
>>> from fdtr.simulation import WorldSpec, make_world
>>> world = make_world(WorldSpec(n_sites=3, horizon=2), np.random.default_rng(1))
>>> study = fdtr.Study.model_validate(world.study())
>>> rows = fdtr.read_trajectories(pa.table(world.table(200, np.random.default_rng(2))), study)
>>> sites = rows.by_site()
>>> summaries = {name: fdtr.fit_local(study, site).summary for name, site in sites.items()}
>>> total = fdtr.combine(summaries.values())
>>> effects = infer_effects(total.sums)
>>> effects.estimates.shape == effects.bands().low.shape == (2, study.feature_map.n_shared)
True
>>> raw = effects.in_units(raw_factors(study.feature_map, *study.reward.range))
>>> np.allclose(raw.p_values, effects.p_values)
True
>>> heterogeneity(total.sums).over_steps().p_value > 0.01
array([ True])
>>> gain = gain_from_sharing(summaries["site-1"].sums, total.sums)
>>> bool(np.all(gain.together <= gain.alone))
True
>>> fit = fdtr.fit_federated(study, sites["site-1"], total)
>>> near_ties(sites["site-1"], study.feature_map, fit.fit).shares.shape
(2,)
>>> bound = theorem3_bound_from_total(total.sums, study.feature_map.n_features, fdtr.site.message_settings(study))
>>> bound.shape
(2,)
"""

from fdtr.inference.heterogeneity import Heterogeneity, heterogeneity, power
from fdtr.inference.identification import REJECTION_LEVEL, FTest, Identified, identify, rejected, transition_test
from fdtr.inference.message_checks import (
    HARM_LEVEL,
    SUSPICION_LEVEL,
    OwnCheck,
    Suspicion,
    compare_held_out,
    suspicions,
)
from fdtr.inference.near_ties import WITHHOLD_ABOVE, NearTies, near_ties
from fdtr.inference.pooling import Pooled, Pooling, PoolingWarning, SiteValue, pool
from fdtr.inference.shared_effects import (
    SMALL_P,
    Band,
    SharedEffects,
    SharingGain,
    gain_from_sharing,
    holm,
    infer_effects,
    raw_factors,
    sidak,
    theorem3_bound,
    theorem3_bound_from_total,
)

__all__ = [
    "HARM_LEVEL",
    "REJECTION_LEVEL",
    "SMALL_P",
    "SUSPICION_LEVEL",
    "WITHHOLD_ABOVE",
    "Band",
    "FTest",
    "Heterogeneity",
    "Identified",
    "NearTies",
    "OwnCheck",
    "Pooled",
    "Pooling",
    "PoolingWarning",
    "SharedEffects",
    "SharingGain",
    "SiteValue",
    "Suspicion",
    "compare_held_out",
    "gain_from_sharing",
    "heterogeneity",
    "holm",
    "identify",
    "infer_effects",
    "near_ties",
    "pool",
    "power",
    "raw_factors",
    "rejected",
    "sidak",
    "suspicions",
    "theorem3_bound",
    "theorem3_bound_from_total",
    "transition_test",
]
