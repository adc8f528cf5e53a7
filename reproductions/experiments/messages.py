"""What the disclosure rules let out of each site of a table, open and in a secure sum, and how much of it is left."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from fdtr import SiteSummary, Study, Total, Trajectories, combine
from fdtr.errors import DisclosureError, WrongSite
from fdtr.hub import combine_messages
from fdtr.learners import Sums, fit_local, sums_of
from fdtr.site import count_message, message_settings, summarize

BEFORE: dict[str, Any] = {"jitter": 0}
"""[disclosure] of the earlier rules: exact sums, judged by all columns of a site, and refused where one rule fails."""

MOST_PATIENTS = 10_000
"""`max_patients` of studies with a secure sum; more than any site here has."""


def with_disclosure(content: Mapping[str, Any], disclosure: Mapping[str, Any], *, together: bool = False) -> Study:
    """The study of `content` with this [disclosure]; `together`: with a secure sum, which refuses and never withholds.

    >>> from fdtr.simulation import WorldSpec, make_world
    >>> content = make_world(WorldSpec(n_sites=2, horizon=2), np.random.default_rng(0)).study()
    >>> with_disclosure(content, {}).disclosure.jitter, with_disclosure(content, BEFORE).disclosure.jitter
    (0.3, 0.0)
    """
    secure = {"secure_sum": True, "max_patients": MOST_PATIENTS, "small_step": "refuse"} if together else {}
    return Study.model_validate({**content, "disclosure": {**disclosure, **secure}})


def sent_alone(study: Study, sites: Mapping[str, Trajectories]) -> dict[str, SiteSummary]:
    """The messages of the sites that may send, where the hub reads each of them."""
    return _released(study, sites, None)


def sent_together(study: Study, sites: Mapping[str, Trajectories]) -> dict[str, SiteSummary]:
    """The messages of the sites that may send to a secure sum, after all have taken out what their counts say.

    Sites whose counts are refused receive only.
    """
    counts = {}
    for site, rows in sites.items():
        try:
            counts[site] = count_message(study, rows, n_sites=len(sites))
        except DisclosureError:
            continue
    if len(counts) < study.required_sites:
        return {}
    common = study.combine_counts(list(counts.values()))
    return _released(study, {site: sites[site] for site in counts}, common, len(sites))


def _released(
    study: Study, sites: Mapping[str, Trajectories], common: Any, n_sites: int | None = None
) -> dict[str, SiteSummary]:
    messages = {}
    for site, rows in sites.items():
        try:
            messages[site] = summarize(study, rows, common=common, n_sites=n_sites).summary
        except DisclosureError:
            continue
    return messages


def ranks(sums: Sums) -> list[int]:
    """Independent directions of the shared effects that S tells of, by step.

    >>> from fdtr.learners import stack_steps, summarize_step
    >>> step = summarize_step(np.diag([4.0, 0.0, 1.0]), np.ones(3), np.ones(3), 1.0, 4, n_shared=2)
    >>> ranks(stack_steps([step]))
    [1]
    """
    found = []
    for schur in sums.schur:
        diagonal = np.diag(schur)
        scale = np.where(diagonal > 0, 1 / np.sqrt(np.where(diagonal > 0, diagonal, 1.0)), 0.0)
        found.append(int(np.linalg.matrix_rank(schur * np.outer(scale, scale), hermitian=True)))
    return found


def exact_sums(study: Study, rows: Trajectories) -> Sums:
    """The exact sums of a site: what it could tell without rules."""
    return sums_of(fit_local(rows, study.feature_map, message_settings(study)), study.feature_map.n_shared)


def ranks_of_total(study: Study, messages: Mapping[str, SiteSummary]) -> list[int]:
    """The ranks of the hub's total, by step; zeros where it may add nothing."""
    total = total_of(study, messages)
    return [0] * study.horizon if total is None else ranks(total.sums)


def total_of(study: Study, messages: Mapping[str, SiteSummary]) -> Total | None:
    """What the hub makes of some messages; None where it may add nothing.

    The hub takes out what fewer sites sent than rule SITES asks for; in a secure sum the sites have done so before.
    """
    add = combine if study.disclosure.secure_sum else partial(combine_messages, study)
    try:
        return add(list(messages.values()))
    except (DisclosureError, WrongSite):  # too few sites sent something, or nobody did
        return None


def is_admitted(sent: Sequence[int]) -> bool:
    """Whether something is left in at least half of the steps, of the ranks `sent` by step.

    >>> is_admitted([2, 0, 1, 0]), is_admitted([0, 0, 1])
    (True, False)
    """
    return len(sent) > 0 and 2 * int(np.count_nonzero(sent)) >= len(sent)


def has_enough(rows: Trajectories, least: int) -> bool:
    """Whether a site has `least` patients at some action of each step."""
    return bool((rows.action_counts().max(axis=1) >= least).all())
