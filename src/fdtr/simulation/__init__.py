"""Simulated hospitals whose truth is known: draw a world, its patients, and the value of any treatment rule.

A world is made from a specification and a generator. It writes tables that a study reads, and knows what a rule is
worth at each site, what clinicians reach, and (all but the demo's hospitals) what is optimal:

>>> import numpy as np
>>> from fdtr.simulation import WorldSpec, constant_rule, make_world
>>> world = make_world(WorldSpec(n_sites=2, n_actions=2, horizon=3), np.random.default_rng(1))
>>> table = world.table(100, np.random.default_rng(2))
>>> len(table["reward"])
600
>>> highest = world.value(0, constant_rule(1), 10_000, np.random.default_rng(3))
>>> highest.mean < world.optimal(0).value
True

Names are imported when they are first used: environments need Gymnasium, and the rest does not.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
