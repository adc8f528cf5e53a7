"""Values that may leave a site after learning: each method's value, its standard error, and the number of patients.

Two rules. N: enough patients. ESS: the weights behind a value must be worth enough patients at every step, because a
value that rests on a handful of patients would reveal their outcomes. A value that fails ESS, or that the site itself
doubts, is withheld; the others may leave. Numbers are rounded in proportion to their standard error, so that one
patient more or less hardly shows.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fdtr import container
from fdtr.disclosure.rules import decimals_left, require_patients, up_to_tens
from fdtr.errors import DisclosureError

_MADE_HERE = object()


@dataclass(frozen=True)
class MethodValue:
    """The value of one method by one estimator, on the mapped scale [0, H]."""

    method: str
    estimator: str
    value: float
    standard_error: float


@dataclass(frozen=True)
class ValueFacts:
    """An estimate with what the rules look at: its smallest effective sample size, and the site's own doubt."""

    estimate: MethodValue
    effective_sample_size: float
    doubt: str = ""


@dataclass(frozen=True)
class SiteValues:
    """The released `values` of one site, all on the same `n` patients, rounded up to tens."""

    site: str
    fingerprint: str
    n: int
    values: tuple[MethodValue, ...]

    @property
    def header(self) -> dict[str, Any]:
        """Number of patients, methods and estimators, as the file's header has them."""
        return {
            "n": self.n,
            "methods": [value.method for value in self.values],
            "estimators": [value.estimator for value in self.values],
        }

    def packed(self) -> dict[str, NDArray[np.float64]]:
        """The numbers by array name, as the file has them."""
        return {
            "value": np.array([value.value for value in self.values]),
            "standard_error": np.array([value.standard_error for value in self.values]),
        }

    @property
    def digest(self) -> str:
        """SHA-256 of site, study, header and numbers: the ledger's identifier of this release."""
        return container.digest({"site": self.site, "fingerprint": self.fingerprint, **self.header}, self.packed())


@dataclass(frozen=True)
class Withheld:
    """An estimate that is not released, and why. It must not leave the site."""

    estimate: MethodValue
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

    def __repr__(self) -> str:
        n_values, n_withheld = len(self.values.values), len(self.withheld)
        return (
            f"<ValueMessage of {self.values.site!r}: {n_values} values over {self.values.n:,} patients, "
            f"{n_withheld} withheld>"
        )


def release_values(
    site: str, fingerprint: str, n: int, facts: Sequence[ValueFacts], min_patients: int, min_effective: float
) -> ValueMessage:
    """Make a message of the values that may leave; refuses if none may."""
    require_patients(site, "its values", n, min_patients)
    judged = [(fact.estimate, _why_not(fact, min_effective)) for fact in facts]
    released = tuple(_rounded(estimate) for estimate, why in judged if not why)
    withheld = tuple(Withheld(estimate, why) for estimate, why in judged if why)
    if not released:
        raise DisclosureError(
            "ESS",
            f"Site {site!r} may not release any value:\n"
            + "\n".join(f"  {w.estimate.method}, {w.estimate.estimator}: {w.why}." for w in withheld)
            + "\nNothing was written. Do not forward this message.",
        )
    return ValueMessage(SiteValues(site, fingerprint, up_to_tens(n), released), withheld, _MADE_HERE)


def _why_not(fact: ValueFacts, min_effective: float) -> str:
    if fact.effective_sample_size < min_effective:
        return f"rule ESS: weights worth {fact.effective_sample_size:.1f} patients at some step, not {min_effective:g}"
    value, error = fact.estimate.value, fact.estimate.standard_error
    if not (isfinite(value) and isfinite(error)) or error <= 0:
        return "it has no value or no standard error"
    return fact.doubt


def _rounded(estimate: MethodValue) -> MethodValue:
    """The value rounded by its standard error, and the standard error with one more decimal."""
    place = decimals_left(estimate.standard_error)
    value, error = round(estimate.value, place), round(estimate.standard_error, place + 1)
    return MethodValue(estimate.method, estimate.estimator, value, error)
