"""What may leave a site: the rules, and the only makers of what may be sent."""

from fdtr.disclosure.cost import Cost, expected_ratio
from fdtr.disclosure.facts import measure
from fdtr.disclosure.gaussian import gaussian_noise, noise_scale
from fdtr.disclosure.ledger import Ledger, Recorded
from fdtr.disclosure.messages import Message, lost_to_noise, release
from fdtr.disclosure.once import VALUES, Release
from fdtr.disclosure.rules import Payload, Rules, Smallest, StepFacts, Verdict, judge, require_sites, withheld_steps
from fdtr.disclosure.table_one import TableOne, release_table
from fdtr.disclosure.values import MethodValue, SiteValues, ValueFacts, ValueMessage, Withheld, release_values

__all__ = [
    "VALUES",
    "Cost",
    "Ledger",
    "Message",
    "MethodValue",
    "Payload",
    "Recorded",
    "Release",
    "Rules",
    "SiteValues",
    "Smallest",
    "StepFacts",
    "TableOne",
    "ValueFacts",
    "ValueMessage",
    "Verdict",
    "Withheld",
    "expected_ratio",
    "gaussian_noise",
    "judge",
    "lost_to_noise",
    "measure",
    "noise_scale",
    "release",
    "release_table",
    "release_values",
    "require_sites",
    "withheld_steps",
]
