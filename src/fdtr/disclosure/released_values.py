"""Values that may leave a site after learning: values and paired gains of its methods, with errors and verdicts.

Rules. N: enough patients. ESS: the weights behind a value must be worth enough patients at every step, because a value
that rests on a handful of patients would reveal their outcomes. PAIRED, for a gain: enough patients contribute to the
difference, their weights alone are worth enough, and those who contribute nothing are none or many. Any two methods
that are told can be subtracted, so a method is not told at all if its difference from one told before would break
PAIRED. What fails a rule, or what the site itself cannot estimate, is withheld; the rest may leave. Numbers are rounded
in proportion to their standard error, so that one patient more or less hardly shows. Values of subgroups never leave.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fdtr import container
from fdtr.comparisons import CLINICIANS, Evidence
from fdtr.disclosure.rules import decimals_left, require_patients, up_to_tens
from fdtr.errors import DisclosureError

_MADE_HERE = object()

VERDICTS, ESTIMATORS, MOST_NAME = (Evidence.VERIFIED, Evidence.MODEL), ("wdr", "fqe", "richer"), 200
"""What a released value may say of itself, and the most characters of a method's name."""

_GIVES_AWAY = "with what else is told it would give away a gain that stays at home"

_ROUNDING = 1e-9  # a standard error of this share of a value is 0: all patients fared alike

FEWEST_DIFFERING = 30
"""Patients whom the two methods of a gain treat differently, at least."""


@dataclass(frozen=True)
class MethodValue:
    """The value of one method on the mapped scale [0, H], or its paired gain `over` another one.

    `verdict` and `estimator` say how far to believe it, `tolerance` estimates the error of a model; 0 without one.
    """

    method: str
    estimator: str
    value: float
    standard_error: float
    over: str = ""
    verdict: str = ""
    tolerance: float = 0.0

    @property
    def name(self) -> str:
        """The method, and what its gain is over."""
        return f"{self.method} − {self.over}" if self.over else self.method


@dataclass(frozen=True)
class ValueFacts:
    """An estimate with what the rules look at: its smallest effective sample size, and the site's own doubt.

    For a gain, `differing` patients contribute to the difference and `unchanged` ones contribute nothing; the effective
    sample size is that of the former.
    """

    estimate: MethodValue
    effective_sample_size: float
    doubt: str = ""
    differing: int = 0
    unchanged: int = 0


@dataclass(frozen=True)
class Pair:
    """How many patients two methods treat differently, and how many alike."""

    differing: int
    unchanged: int


@dataclass(frozen=True)
class SiteValues:
    """The released `values` of one site, all on the same `n` patients, rounded up to tens.

    `evaluation` is the fingerprint of the study's [evaluation], by which they were made.
    """

    site: str
    fingerprint: str
    n: int
    values: tuple[MethodValue, ...]
    evaluation: str = ""

    @property
    def header(self) -> dict[str, Any]:
        """Number of patients, methods, what gains are over, estimators and verdicts, as the file's header has them."""
        return {
            "n": self.n,
            "evaluation": self.evaluation,
            "methods": [value.method for value in self.values],
            "over": [value.over for value in self.values],
            "estimators": [value.estimator for value in self.values],
            "verdicts": [value.verdict for value in self.values],
        }

    def packed(self) -> dict[str, NDArray[np.float64]]:
        """The numbers by array name, as the file has them."""
        return {
            "value": np.array([value.value for value in self.values]),
            "standard_error": np.array([value.standard_error for value in self.values]),
            "tolerance": np.array([value.tolerance for value in self.values]),
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


@dataclass(frozen=True)
class ValueRules:
    """Thresholds of the study: patients, the effective sample size of weights, and patients in a cell."""

    min_patients: int
    min_effective: float
    min_cell: int


def release_values(
    site: str,
    fingerprint: str,
    n: int,
    facts: Sequence[ValueFacts],
    rules: ValueRules,
    evaluation: str = "",
    pairs: Mapping[tuple[str, str], Pair] = MappingProxyType({}),
) -> ValueMessage:
    """Make a message of the values that may leave; refuses if none may.

    `pairs` says of every two methods, in the order in which they are told, whom they treat differently.
    """
    require_patients(site, "its values", n, rules.min_patients)
    judged = _without_sums([(fact.estimate, _why_not(fact, rules)) for fact in facts])
    judged = _without_near_copies(judged, pairs, rules)
    released = tuple(_rounded(estimate) for estimate, why in judged if not why)
    withheld = tuple(Withheld(estimate, why) for estimate, why in judged if why)
    if not released:
        raise DisclosureError(
            "ESS",
            f"Site {site!r} may not release any value:\n"
            + "\n".join(f"  {w.estimate.name}, {w.estimate.estimator}: {w.why}." for w in withheld)
            + "\nNothing was written. Do not forward this message.",
        )
    values = SiteValues(site, fingerprint, up_to_tens(n), released, evaluation)
    return ValueMessage(values, withheld, _MADE_HERE)


def _without_near_copies(
    judged: Sequence[tuple[MethodValue, str]], pairs: Mapping[tuple[str, str], Pair], rules: ValueRules
) -> list[tuple[MethodValue, str]]:
    """Withhold all of a method that differs from one told before for few patients, or for all but few."""
    told: list[str] = []
    refused: dict[str, str] = {}
    for method in dict.fromkeys(estimate.method for estimate, why in judged if not why):
        close = [(other, pairs[other, method]) for other in told if (other, method) in pairs]
        why = next((why for other, pair in close if (why := _too_close(other, pair, rules))), "")
        if why:
            refused[method] = why
        else:
            told.append(method)
    return [
        (estimate, why or refused.get(estimate.method, "") or refused.get(estimate.over, ""))
        for estimate, why in judged
    ]


def _too_close(other: str, pair: Pair, rules: ValueRules) -> str:
    few = 0 < pair.differing < FEWEST_DIFFERING or (pair.differing and 0 < pair.unchanged < rules.min_cell)
    return f"rule PAIRED: it and {other} treat few patients differently, or few alike" if few else ""


def _without_sums(judged: Sequence[tuple[MethodValue, str]]) -> list[tuple[MethodValue, str]]:
    """Withhold what would give a withheld gain away as a difference of two others.

    Where a gain over clinicians stays at home, so does the value of that method. Where a gain over another method does,
    so do all that is told of that other method.
    """
    kept_at_home = {
        (estimate.over if estimate.over != CLINICIANS else estimate.method, estimate.over == CLINICIANS)
        for estimate, why in judged
        if why.startswith("rule") and estimate.over
    }
    out = []
    for estimate, why in judged:
        alone, paired = (estimate.method, True) in kept_at_home, (estimate.method, False) in kept_at_home
        gives_away = (alone and not estimate.over) or paired
        out.append((estimate, why or (_GIVES_AWAY if gives_away else "")))
    return out


def _why_not(fact: ValueFacts, rules: ValueRules) -> str:
    if fact.doubt:
        return fact.doubt
    if fact.estimate.over:
        if fact.differing < FEWEST_DIFFERING:
            return f"rule PAIRED: {fact.differing} patients are treated differently, not {FEWEST_DIFFERING}"
        if 0 < fact.unchanged < rules.min_cell:
            return f"rule PAIRED: {fact.unchanged} patients are treated alike; none or {rules.min_cell} may"
    if fact.effective_sample_size < rules.min_effective:
        worth = f"weights worth {fact.effective_sample_size:.1f} patients at some step, not {rules.min_effective:g}"
        return f"rule ESS: {worth}"
    value, error = fact.estimate.value, fact.estimate.standard_error
    if not (isfinite(value) and isfinite(error)) or error <= _ROUNDING * max(1.0, abs(value)):
        return "it has no value or no standard error"
    return ""


def _rounded(estimate: MethodValue) -> MethodValue:
    """The value rounded by its standard error; that and the tolerance have one more decimal."""
    place = decimals_left(estimate.standard_error)
    return replace(
        estimate,
        value=round(estimate.value, place),
        standard_error=round(estimate.standard_error, place + 1),
        tolerance=round(estimate.tolerance, place + 1),
    )
