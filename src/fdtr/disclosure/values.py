"""What may leave a site after learning: for each method a value, its standard error, and one number of patients.

Two rules. N: enough patients. ESS: the weights behind a value are worth enough patients at every step, for with a
handful left it is their outcomes that would be told. A value that fails ESS, or that the site itself does not
believe, stays at home while the others may go. Numbers are rounded to what their standard error leaves of them, so that
one patient more or less hardly shows.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fdtr import container
from fdtr.disclosure.groups import decimals_left, require_patients
from fdtr.errors import TooFewEffective

_MADE_HERE = object()


@dataclass(frozen=True)
class MethodValue:
    """One method by one estimator, on the mapped scale."""

    method: str
    estimator: str
    value: float
    standard_error: float


@dataclass(frozen=True)
class ValueFacts:
    """A method's value with what the rules look at: its smallest effective sample size, and a site's own doubt."""

    found: MethodValue
    effective_sample_size: float
    doubt: str = ""


@dataclass(frozen=True)
class SiteValues:
    """What one site tells of its methods: `values`, all on the same `n` patients."""

    site: str
    fingerprint: str
    n: int
    values: tuple[MethodValue, ...]

    @property
    def header(self) -> dict[str, Any]:
        """How many patients, and which methods by which estimators."""
        return {
            "n": self.n,
            "methods": [one.method for one in self.values],
            "estimators": [one.estimator for one in self.values],
        }

    def packed(self) -> dict[str, NDArray[np.float64]]:
        """The numbers by name."""
        return {
            "value": np.array([one.value for one in self.values]),
            "standard_error": np.array([one.standard_error for one in self.values]),
        }

    @property
    def digest(self) -> str:
        """SHA-256 of site, study and all that is told: what the ledger remembers of it."""
        return container.digest({"site": self.site, "fingerprint": self.fingerprint, **self.header}, self.packed())


@dataclass(frozen=True)
class Withheld:
    """A value that stays at home, and why: for the site's own eyes."""

    found: MethodValue
    why: str


@dataclass(frozen=True)
class ValueMessage:
    """A site's values that passed the rules. Only `release_values` makes one, and only this may be sent."""

    values: SiteValues
    withheld: tuple[Withheld, ...]
    maker: object = field(repr=False)

    def __post_init__(self) -> None:
        if self.maker is not _MADE_HERE:
            raise TypeError("A ValueMessage is made by disclosure.release_values and by nothing else.")


def release_values(
    site: str, fingerprint: str, n: int, facts: Sequence[ValueFacts], min_patients: int, min_effective: float
) -> ValueMessage:
    """Make a message of the values that may leave, or refuse where none may."""
    require_patients(site, "its values", n, min_patients)
    judged = [(fact.found, _why_not(fact, min_effective)) for fact in facts]
    released = tuple(_rounded(found) for found, why in judged if not why)
    withheld = tuple(Withheld(found, why) for found, why in judged if why)
    if not released:
        raise TooFewEffective(
            f"Site {site!r} may not release any value:\n"
            + "\n".join(f"  {one.found.method}, {one.found.estimator}: {one.why}." for one in withheld)
            + "\nNothing was written. Do not forward this message."
        )
    return ValueMessage(SiteValues(site, fingerprint, n, released), withheld, _MADE_HERE)


def _why_not(fact: ValueFacts, min_effective: float) -> str:
    if fact.effective_sample_size < min_effective:
        return f"rule ESS: weights worth {fact.effective_sample_size:.1f} patients at some step, not {min_effective:g}"
    if not (isfinite(fact.found.value) and isfinite(fact.found.standard_error)) or fact.found.standard_error <= 0:
        return "it has no value or no standard error"
    return fact.doubt


def _rounded(found: MethodValue) -> MethodValue:
    """The value with the digits that hold, its standard error with one more."""
    place = decimals_left(found.standard_error)
    return MethodValue(found.method, found.estimator, round(found.value, place), round(found.standard_error, place + 1))
