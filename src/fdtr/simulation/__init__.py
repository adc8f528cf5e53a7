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

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fdtr.simulation.authors import FIGURE_2 as FIGURE_2
    from fdtr.simulation.authors import AuthorsSpec as AuthorsSpec
    from fdtr.simulation.authors import AuthorsWorld as AuthorsWorld
    from fdtr.simulation.authors import make_authors_world as make_authors_world
    from fdtr.simulation.environment import SiteEnvironment as SiteEnvironment
    from fdtr.simulation.environment import make_environment as make_environment
    from fdtr.simulation.icu_sepsis import IcuSpec as IcuSpec
    from fdtr.simulation.icu_sepsis import IcuWorld as IcuWorld
    from fdtr.simulation.icu_sepsis import make_icu_world as make_icu_world
    from fdtr.simulation.icu_wheel import IcuArrays as IcuArrays
    from fdtr.simulation.icu_wheel import fetch_icu_sepsis as fetch_icu_sepsis
    from fdtr.simulation.icu_wheel import load_icu_sepsis as load_icu_sepsis
    from fdtr.simulation.linear import World as World
    from fdtr.simulation.linear import WorldSpec as WorldSpec
    from fdtr.simulation.linear import make_world as make_world
    from fdtr.simulation.sepsis import HospitalWorld as HospitalWorld
    from fdtr.simulation.sepsis import make_hospital_world as make_hospital_world
    from fdtr.simulation.worlds import NO_DISCLOSURE_RULES as NO_DISCLOSURE_RULES
    from fdtr.simulation.worlds import Act as Act
    from fdtr.simulation.worlds import FixedHorizonWorld as FixedHorizonWorld
    from fdtr.simulation.worlds import Optimal as Optimal
    from fdtr.simulation.worlds import SimulatedWorld as SimulatedWorld
    from fdtr.simulation.worlds import Value as Value
    from fdtr.simulation.worlds import constant_rule as constant_rule

_MODULES = {
    "FIGURE_2": "authors",
    "NO_DISCLOSURE_RULES": "worlds",
    "Act": "worlds",
    "AuthorsSpec": "authors",
    "AuthorsWorld": "authors",
    "FixedHorizonWorld": "worlds",
    "HospitalWorld": "sepsis",
    "IcuArrays": "icu_wheel",
    "IcuSpec": "icu_sepsis",
    "IcuWorld": "icu_sepsis",
    "Optimal": "worlds",
    "SimulatedWorld": "worlds",
    "SiteEnvironment": "environment",
    "Value": "worlds",
    "World": "linear",
    "WorldSpec": "linear",
    "constant_rule": "worlds",
    "fetch_icu_sepsis": "icu_wheel",
    "load_icu_sepsis": "icu_wheel",
    "make_authors_world": "authors",
    "make_environment": "environment",
    "make_hospital_world": "sepsis",
    "make_icu_world": "icu_sepsis",
    "make_world": "linear",
}

__all__ = [*_MODULES]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(f"fdtr.simulation.{_MODULES[name]}"), name)
    raise AttributeError(f"module 'fdtr.simulation' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
