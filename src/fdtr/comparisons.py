"""What a study compares, and how far a number can be believed: names of methods, gains, and verdicts.

Sites, the hub and the report use these words, and the hub loads nothing that fits a policy.
"""

from collections.abc import Collection, Iterable
from enum import StrEnum

FDTR, LDTR, CLINICIANS = "FDTR", "LDTR", "Clinicians"
VERIFIED = {name: f"{name} (verified)" for name in (FDTR, LDTR)}
"""The verified part of a policy, which leaves some decisions to clinicians."""

GAINS = (
    (VERIFIED[FDTR], CLINICIANS),
    (VERIFIED[LDTR], CLINICIANS),
    (VERIFIED[FDTR], VERIFIED[LDTR]),
    (FDTR, CLINICIANS),
    (LDTR, CLINICIANS),
    (FDTR, LDTR),
)
"""Paired gains: a method, and what it is compared with. Everybody shows them in this order."""


class Evidence(StrEnum):
    """How far a number can be believed."""

    VERIFIED = "verified"
    MODEL = "model-based"
    NONE = "not estimable"


LEGEND = (
    f"{Evidence.VERIFIED}: doubly robust, checked against what happened to patients treated so; {Evidence.MODEL}: as "
    f"far as the model is right; {Evidence.NONE}: too few patients were treated this way, or held-out patients "
    "contradict the models."
)
"""The verdicts in one sentence. That a gain is verified does not say that it is above 0."""


def in_order(pairs: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Pairs of a method and what it is compared with: gains first, in their order, then values as they come.

    >>> in_order([("FDTR", ""), ("FDTR", "LDTR"), ("FDTR (verified)", "Clinicians")])
    [('FDTR (verified)', 'Clinicians'), ('FDTR', 'LDTR'), ('FDTR', '')]
    """
    place = {pair: number for number, pair in enumerate(GAINS)}
    return sorted(pairs, key=lambda pair: (not pair[1], place.get(pair, len(place)) if pair[1] else 0))


def among_sites(sites: Collection[str], everywhere: Collection[str]) -> str:
    """Which sites of all a mean is over, in a few words; empty where it is over all of them.

    >>> among_sites(["a", "b"], ["a", "b", "c", "d"]), among_sites(["a", "b", "c"], ["a", "b", "c", "d"])
    ('at a, b', 'without d')
    """
    missing = [site for site in everywhere if site not in sites]
    if not missing:
        return ""
    return f"without {', '.join(missing)}" if len(missing) < len(sites) else f"at {', '.join(sites)}"
