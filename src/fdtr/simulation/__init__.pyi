from .discrete import DiscreteSpec, make_discrete_world
from .environment import SiteEnvironment, make_environment
from .linear import World, WorldSpec, make_world
from .sepsis import HospitalWorld, make_hospital_world
from .tabular import TabularWorld
from .worlds import (
    AS_USUAL,
    NO_DISCLOSURE_RULES,
    Act,
    FixedHorizonWorld,
    Move,
    Optimal,
    SimulatedWorld,
    Trajectory,
    Value,
    constant_rule,
)

__all__ = [
    "AS_USUAL",
    "NO_DISCLOSURE_RULES",
    "Act",
    "DiscreteSpec",
    "FixedHorizonWorld",
    "HospitalWorld",
    "Move",
    "Optimal",
    "SimulatedWorld",
    "SiteEnvironment",
    "TabularWorld",
    "Trajectory",
    "Value",
    "World",
    "WorldSpec",
    "constant_rule",
    "make_discrete_world",
    "make_environment",
    "make_hospital_world",
    "make_world",
]
