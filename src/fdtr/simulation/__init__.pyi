from .authors import FIGURE_2, AuthorsSpec, AuthorsWorld, make_authors_world
from .environment import SiteEnvironment, make_environment
from .icu_sepsis import IcuSpec, IcuWorld, make_icu_world
from .icu_wheel import IcuArrays, fetch_icu_sepsis, load_icu_sepsis
from .linear import World, WorldSpec, make_world
from .sepsis import HospitalWorld, make_hospital_world
from .worlds import NO_DISCLOSURE_RULES, Act, FixedHorizonWorld, Optimal, SimulatedWorld, Value, constant_rule

__all__ = [
    "FIGURE_2",
    "NO_DISCLOSURE_RULES",
    "Act",
    "AuthorsSpec",
    "AuthorsWorld",
    "FixedHorizonWorld",
    "HospitalWorld",
    "IcuArrays",
    "IcuSpec",
    "IcuWorld",
    "Optimal",
    "SimulatedWorld",
    "SiteEnvironment",
    "Value",
    "World",
    "WorldSpec",
    "constant_rule",
    "fetch_icu_sepsis",
    "load_icu_sepsis",
    "make_authors_world",
    "make_environment",
    "make_hospital_world",
    "make_icu_world",
    "make_world",
]
