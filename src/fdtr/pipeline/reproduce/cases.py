"""The worlds on which methods are compared: valid ones, those that break an assumption, and how they were treated."""

from dataclasses import dataclass, replace
from typing import Any

from fdtr.pipeline.reproduce.trial import Spec
from fdtr.simulation.authors import FIGURE_2
from fdtr.simulation.icu_sepsis import IcuSpec
from fdtr.simulation.icu_wheel import fetch
from fdtr.simulation.linear import WorldSpec

DEVIATION = 0.8
"""How far sites' effects lie from the common one, in standard deviations of an effect."""

_SHAPES = ("(8,6,15,5)", "(20,2,5,5)")
_VARIANTS: dict[str, dict[str, Any]] = {
    "valid": {},
    "valid, narrow behaviour": {"behaviour": "narrow"},
    "valid, softmax behaviour": {"behaviour": "softmax"},
    "valid, little noise": {"noise": 0.2},
    "valid, rewards 0 or 1": {"noise": 1.0},
    "deviating effects": {"deviation": DEVIATION},
    "static covariates": {"shared_kind": "static"},
    "static, deviating effects": {"shared_kind": "static", "deviation": DEVIATION},
    "driving covariates": {"shared_kind": "driving"},
    "driving, deviating effects": {"shared_kind": "driving", "deviation": DEVIATION},
}


def linear_of(panel: str) -> WorldSpec:
    """A valid linear MDP of a panel's shape (d, |A|, H, K)."""
    authors = FIGURE_2[panel]
    shape = ("n_sites", "n_shared", "n_specific", "n_actions", "horizon")
    return WorldSpec(**{name: getattr(authors, name) for name in shape})


@dataclass(frozen=True)
class Case:
    """A world to try: what it is `called`, its `shape` (d, |A|, H, K), and a `number` that its seeds are known by."""

    called: str
    shape: str
    number: int
    spec: Spec


def all_cases() -> list[Case]:
    """Every world."""
    found: dict[tuple[str, str], Spec] = {}
    for shape in _SHAPES:
        found |= {(name, shape): replace(linear_of(shape), **changed) for name, changed in _VARIANTS.items()}
        found["authors' generator", shape] = FIGURE_2[shape]
        found["authors' generator, intercept", shape] = replace(FIGURE_2[shape], intercept="specific")
    return [Case(*key, number, spec) for number, (key, spec) in enumerate(found.items())]


def icu_cases() -> list[Case]:
    """Hospitals cut from ICU-Sepsis, as it is and with a planted effect worth finding; fetched if need be."""
    fetch()
    shape = "(18,3,9,5)"
    return [
        Case("ICU-Sepsis", shape, 1000, IcuSpec()),
        Case("ICU-Sepsis, planted effect", shape, 1001, IcuSpec(effect=4.0, follow_up=True)),
    ]


def few_cases() -> list[Case]:
    """Three small ones, to see that everything runs."""
    names = ("valid", "deviating effects", "authors' generator")
    return [case for case in all_cases() if case.shape == _SHAPES[-1] and case.called in names]
