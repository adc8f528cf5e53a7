"""What may leave a site: the disclosure rules, and the only functions that make something to send.

The hub imports this package too. What needs a site's fit is imported from its own module: `disclosure.facts` measures
what the rules judge, and `disclosure.noise` holds the noise of differential privacy.
"""

from fdtr.disclosure.message import Message, lost_to_noise, release
from fdtr.disclosure.released_table import TableOne, release_table
from fdtr.disclosure.released_values import MethodValue, SiteValues, ValueFacts, ValueMessage, release_values
from fdtr.disclosure.rule_once import VALUES, EarlierReleases, Release
from fdtr.disclosure.rules import Rules, Smallest, StepFacts, Verdict, judge, require_sites, withheld_steps

__all__ = [
    "VALUES",
    "EarlierReleases",
    "Message",
    "MethodValue",
    "Release",
    "Rules",
    "SiteValues",
    "Smallest",
    "StepFacts",
    "TableOne",
    "ValueFacts",
    "ValueMessage",
    "Verdict",
    "judge",
    "lost_to_noise",
    "release",
    "release_table",
    "release_values",
    "require_sites",
    "withheld_steps",
]
