from .environment import SiteEnvironment, make_environment
from .linear import World, WorldSpec, make_world
from .sepsis import HospitalWorld, make_hospital_world
from .worlds import (
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
    "NO_DISCLOSURE_RULES",
    "Act",
    "FixedHorizonWorld",
    "HospitalWorld",
    "Move",
    "Optimal",
    "SimulatedWorld",
    "SiteEnvironment",
    "Trajectory",
    "Value",
    "World",
    "WorldSpec",
    "constant_rule",
    "make_environment",
    "make_hospital_world",
    "make_world",
]
