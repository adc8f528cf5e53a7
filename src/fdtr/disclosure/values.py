"""What may leave a site after learning: for each method a value, its standard error, and one number of patients.

Two rules. N: enough patients. ESS: the weights behind a value are worth enough patients at every step, for with a
handful left it is their outcomes that would be told. A value that fails ESS, or that the site itself does not
believe, stays at home while the others may go.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import isfinite

from fdtr.errors import TooFewEffective, TooFewPatients

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


@dataclass(frozen=True)
class ValueMessage:
    """A site's values that passed the rules. Only `release_values` makes one, and only this may be sent.

    `withheld` says, for the site's own eyes, what stays at home and why.
    """

    values: SiteValues
    withheld: tuple[str, ...]
    maker: object = field(repr=False)

    def __post_init__(self) -> None:
        if self.maker is not _MADE_HERE:
            raise TypeError("A ValueMessage is made by disclosure.release_values and by nothing else.")


def release_values(
    site: str, fingerprint: str, n: int, facts: Sequence[ValueFacts], min_patients: int, min_effective: float
) -> ValueMessage:
    """Make a message of the values that may leave, or refuse where none may."""
    if n < min_patients:
        raise TooFewPatients(
            f"Site {site!r} may not release its values: rule N: {n} patients; the study asks for at least "
            f"{min_patients}. Nothing was written. Do not forward this message."
        )
    withheld = [(fact, why) for fact in facts if (why := _why_not(fact, min_effective))]
    kept = {id(fact) for fact, _ in withheld}
    released = tuple(fact.found for fact in facts if id(fact) not in kept)
    told = tuple(f"{fact.found.method}, {fact.found.estimator}: {why}" for fact, why in withheld)
    if not released:
        raise TooFewEffective(
            f"Site {site!r} may not release any value:\n"
            + "\n".join(f"  {line}" for line in told)
            + "\nNothing was written. Do not forward this message."
        )
    return ValueMessage(SiteValues(site, fingerprint, n, released), told, _MADE_HERE)


def _why_not(fact: ValueFacts, min_effective: float) -> str:
    if fact.effective_sample_size < min_effective:
        return (
            f"rule ESS: its weights are worth {fact.effective_sample_size:.1f} patients at some step; the study asks "
            f"for at least {min_effective:g}."
        )
    if not (isfinite(fact.found.value) and isfinite(fact.found.standard_error)):
        return "it has no value or no standard error."
    return fact.doubt
