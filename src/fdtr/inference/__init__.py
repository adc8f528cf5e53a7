"""Inference from the sums that sites share: effects, their heterogeneity, pooled values, and checks.

    infer_effects           shared effects on the reward: estimates, bands, p-values; `raw_factors` for raw units
    heterogeneity, power    Cochran's Q of the shared effects, and its power
    pool                    values of several sites as one: plain mean, fixed effects, random effects
    sidak, holm             multiple comparisons

and, for the roles of a site and of the hub,

    identification          what one site's data can identify, and whether its transitions follow the model
    near_ties               patients with two almost equally good actions
    message_checks          sites that differ from the others, and totals that harm a site's own patients

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
"""

from fdtr.inference.pooling import SiteValue, pool
from fdtr.inference.shared_effects import heterogeneity, holm, infer_effects, power, raw_factors, sidak

__all__ = ["SiteValue", "heterogeneity", "holm", "infer_effects", "pool", "power", "raw_factors", "sidak"]
