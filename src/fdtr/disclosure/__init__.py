"""What may leave a site: the rules, and the only makers of what may be sent."""

from fdtr.disclosure.sums import (
    Message,
    Rules,
    StepFacts,
    Verdict,
    judge,
    measure,
    release,
    require_sites,
)
from fdtr.disclosure.values import MethodValue, SiteValues, ValueFacts, ValueMessage, Withheld, release_values

__all__ = [
    "Message",
    "MethodValue",
    "Rules",
    "SiteValues",
    "StepFacts",
    "ValueFacts",
    "ValueMessage",
    "Verdict",
    "Withheld",
    "judge",
    "measure",
    "release",
    "release_values",
    "require_sites",
]
