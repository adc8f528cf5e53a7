"""What may leave a site: the disclosure rules, and the only functions that make something to send.

The hub imports this package too. What needs a site's fit is imported from its own module: `disclosure.facts` measures
what the rules judge, and `disclosure.noise` holds the noise of differential privacy.
"""

from fdtr.disclosure.message import Kept, Message, lost_to_noise, release, release_weighted
from fdtr.disclosure.released_table import TableOne, release_table
from fdtr.disclosure.released_values import (
    MethodValue,
    Pair,
    SiteValues,
    ValueFacts,
    ValueMessage,
    ValueRules,
    release_values,
)
from fdtr.disclosure.rule_once import VALUES, EarlierReleases, Release, drawn
from fdtr.disclosure.rules import (
    Bounds,
    Rules,
    Smallest,
    StepFacts,
    Verdict,
    judge,
    require_sites,
    required_sites,
    withheld_steps,
)

__all__ = [
    "VALUES",
    "Bounds",
    "EarlierReleases",
    "Kept",
    "Message",
    "MethodValue",
    "Pair",
    "Release",
    "Rules",
    "SiteValues",
    "Smallest",
    "StepFacts",
    "TableOne",
    "ValueFacts",
    "ValueMessage",
    "ValueRules",
    "Verdict",
    "drawn",
    "judge",
    "lost_to_noise",
    "release",
    "release_table",
    "release_values",
    "release_weighted",
    "require_sites",
    "required_sites",
    "withheld_steps",
]
