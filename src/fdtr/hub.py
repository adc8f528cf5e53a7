"""The hub's part: add the sites' messages into one total, show what it says, and pool the sites' values.

>>> import tempfile
>>> from pathlib import Path
>>> import fdtr, numpy as np, pyarrow as pa
>>> from fdtr.exchange import AGREED_BEFOREHAND, read_values, release_values, use_state_folder
>>> from fdtr.hub import combine_messages, doubtful_messages, pool_values, pooled_coefficients
>>> from fdtr.simulation import WorldSpec, make_world
>>> world = make_world(WorldSpec(n_sites=3, horizon=2, n_actions=2), np.random.default_rng(1))
>>> study = fdtr.Study.model_validate(world.study(ridge=0.1, sharing=1.0, share="value"))
>>> sites = fdtr.read_trajectories(pa.table(world.table(200, np.random.default_rng(2))), study).by_site()
>>> messages = [fdtr.fit_local(study, rows).summary for rows in sites.values()]  # at the hub: read_message(…)
>>> total = combine_messages(study, messages)
>>> total
<Total of 'site-1', 'site-2', 'site-3': 600 patients, 2 steps, 4 shared features>
>>> pooled_coefficients(total).shape == (study.horizon, study.feature_map.n_shared)
True
>>> doubtful_messages(messages)
()

Every site releases the values of its methods, and the hub pools them:

>>> first_round = fdtr.signing.numbered_round(study.fingerprint, study.roster, 1)
>>> with tempfile.TemporaryDirectory() as folder:
...     for message, rows in zip(messages, sites.values()):
...         evaluation, out = fdtr.site.evaluate_site(study, rows, total, message), f"{folder}/{rows.site}.fdtr"
...         with use_state_folder(f"{folder}/state-of-{rows.site}"):
...             released = release_values(study, rows, evaluation, out, confirm=AGREED_BEFOREHAND)
...     pooled = pool_values(study, [read_values(path, first_round) for path in sorted(Path(folder).glob("*.fdtr"))])
>>> first = pooled[0]
>>> first.method, first.over, first.verdict, round(first.pooling.plain.value, 2), first.pooling.df
('FDTR (verified)', 'Clinicians', 'verified', 0.1, 2)
>>> print(first.pooling.warnings[0].sentence)
3 sites: how much sites differ can hardly be estimated from fewer than 5. ...
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Protocol, overload

import numpy as np
from numpy.typing import NDArray

from fdtr.algebra.normal_equations import invert
from fdtr.algebra.threads import on_one_blas_thread
from fdtr.comparisons import CLINICIANS, Evidence, among_sites, in_order
from fdtr.disclosure import SiteValues, require_sites
from fdtr.disclosure.blocks import SenderGroups, absent, too_few_senders
from fdtr.disclosure.released_values import MethodValue
from fdtr.errors import DisclosureError, InvalidSums, OtherStudy, WrongSite
from fdtr.inference import SiteValue, pool
from fdtr.inference.message_checks import Suspicion, suspicions
from fdtr.inference.pooling import Pooling
from fdtr.study import Study
from fdtr.summary import RunningTotal, SiteSummary, Total
from fdtr.sums import Sums

__all__ = [
    "PooledMethod",
    "combine_messages",
    "doubtful_messages",
    "missing_columns",
    "not_compared",
    "pool_values",
    "pooled_coefficients",
]

MOST_COMPARED = 100
"""Most sites that are compared with each other: the work grows with the third power of their number."""
_MOST_NAMED = 6


@on_one_blas_thread
def combine_messages(study: Study, messages: Sequence[SiteSummary]) -> Total:
    """Add the messages of a study's sites; refuses messages of other studies, duplicates, and too few sites.

    The total is Σ_k of every array in `Sums`, over the sites in the order of their names. Where fewer sites than rule
    SITES asks for sent a shared column in a block, it is eliminated from every message first; `Total.removed` names it.

    No message is kept. A list is sorted; any other sequence has to give the messages in the order of their sites' names
    and may read each one when it is asked for, as `fdtr.exchange.StreamedMessages` does.
    """
    study.require_shared()
    ordered = sorted(messages, key=lambda message: message.site) if isinstance(messages, list | tuple) else messages
    section, needed = study.disclosure, study.required_sites
    running, groups, present = RunningTotal(), SenderGroups(needed), np.zeros(study.horizon, np.intp)
    senders: dict[bytes, str] = {}
    for message in ordered:
        _require_study(study, message)
        _require_payload(study, message)
        running.add(message)
        _refuse_copy(message, senders)
        groups.add(message.sums)
        present += message.sums.n > 0
    total = running.total()
    if section.payload == "gram":  # a Gram passed rules under which a site may be seen by itself
        return total
    if not study.rules.by_block:
        require_sites(present.tolist(), section.min_sites, study.site_level_covariates)
        return total
    require_sites([running.count], section.min_sites, study.site_level_covariates)
    removed = () if groups.all_know() else too_few_senders(study.feature_map, _SumsOf(ordered), needed)
    sums = total.sums
    if removed:
        rest = RunningTotal()
        for message in ordered:
            rest.add(replace(message, sums=message.sums.without_directions(removed)))
        sums = rest.total().sums
    if removed and not sums.schur.any():
        raise DisclosureError(
            "SITES",
            f"No shared effect was sent by {needed} sites, as rule SITES asks for, so that nothing can be added. "
            "Nothing was written. Wait for more sites, or share fewer covariates in the study.",
        )
    return replace(total, sums=sums, removed=absent(study.feature_map, sums))


@dataclass(frozen=True)
class _SumsOf(Sequence[Sums]):
    """The sums of messages, each taken when it is asked for."""

    messages: Sequence[SiteSummary]

    def __len__(self) -> int:
        return len(self.messages)

    @overload
    def __getitem__(self, index: int) -> Sums: ...

    @overload
    def __getitem__(self, index: slice) -> "_SumsOf": ...

    def __getitem__(self, index: int | slice) -> "Sums | _SumsOf":
        return _SumsOf(self.messages[index]) if isinstance(index, slice) else self.messages[index].sums


def missing_columns(total: Total) -> str:
    """A sentence on what the total tells nothing of, because no site or too few sent it; empty if there is nothing."""
    if not total.removed:
        return ""
    count = sum(len(part.names) for part in total.removed)
    named = [f"{name} at step {part.step}" for part in total.removed for name in part.names][:_MOST_NAMED]
    more = f" and {count - len(named)} more" if count > len(named) else ""
    return (
        f"No site, or fewer than rule SITES asks for, sent {', '.join(named)}{more}. The total tells nothing of it: "
        "what a few sites sent was eliminated from every message."
    )


@on_one_blas_thread
def doubtful_messages(messages: Iterable[SiteSummary]) -> tuple[Suspicion, ...]:
    """Sites that differ from the others by more than these among themselves; no site is left out for it.

    All messages are held at once, and the work grows with the third power of their number: see `not_compared`.
    """
    return suspicions({message.site: message.sums for message in messages})


def not_compared(n_sites: int) -> str:
    """A sentence where there are too many messages for `doubtful_messages`; empty otherwise.

    >>> not_compared(5), not_compared(500)[:55]
    ('', 'No site was compared with the others: this is done amon')
    """
    if n_sites <= MOST_COMPARED:
        return ""
    return (
        f"No site was compared with the others: this is done among at most {MOST_COMPARED} sites, and there are "
        f"{n_sites:,}. Every message was checked by itself. To find sites that contradict others, combine some of them."
    )


@on_one_blas_thread
def pooled_coefficients(total: Total) -> NDArray[np.float64]:
    """S⁺s of every step, (H, d0): the shared coefficients that the total gives; NaN where it does not identify one.

    A coefficient is identified if its unit vector is in the range of S: not if it, or a combination with others, was
    eliminated. An average of the sites' own estimates θ̂⁰ would need a second upload.
    """
    known = total.significant
    inverse = invert(known.schur)
    return np.where(inverse.identified, inverse.solve(known.schur_moment), np.nan)


@dataclass(frozen=True)
class PooledMethod:
    """One method's gain over another, or its value if `over` is empty, pooled over the sites that have a number.

    `verdict` is "verified" if it is at all these sites. `silent` are the sites without a number.
    """

    method: str
    over: str
    verdict: str
    pooling: Pooling
    silent: tuple[str, ...]

    @property
    def label(self) -> str:
        """The method, and what its gain is over; clinicians with the sites that they are over, where not over all."""
        if self.over:
            return f"{self.method} over {self.over}"
        sites = self.pooling.sites
        where = among_sites(sites, (*sites, *self.silent)) if self.method == CLINICIANS else ""
        return f"{self.method} ({where})" if where else self.method


class SiteNumber(Protocol):
    """A value or gain at one site, as it was released or assessed there."""

    @property
    def value(self) -> float:
        """The value itself, or the gain."""

    @property
    def standard_error(self) -> float:
        """Its standard error."""

    @property
    def tolerance(self) -> float:
        """The estimated error of the model that it rests on; 0 without one."""

    @property
    def verdict(self) -> str:
        """How far it can be believed."""


BySite = Mapping[str, tuple[SiteNumber, int]]
"""The number of each site that has one, and its patients."""


def pool_values(study: Study, released: Sequence[SiteValues]) -> list[PooledMethod]:
    """Pool the sites' gains and values: the plain mean, fixed effects and random effects; gains come first.

    Methods that only some sites told stand below those of all sites, after clinicians at the same sites.
    """
    names = [site.site for site in released]
    for site in released:
        _require_study(study, site)
        if names.count(site.site) > 1:
            raise WrongSite(f"Site {site.site!r} told its values twice. Leave one of its files out.")
        if site.evaluation != study.evaluation_fingerprint:
            raise OtherStudy(
                f"Site {site.site!r} valued its policies by other settings in [evaluation] than this study file has. "
                "Give all sites the same [evaluation]; totals and policies stay as they are."
            )
        if not all(_possible(value, study.horizon) for value in site.values):
            raise InvalidSums(
                f"Site {site.site!r} tells of a value outside [0, {study.horizon}], where every value is, or of a gain "
                f"beyond {study.horizon}. Ask it to evaluate again, with the same version of fdtr."
            )
    numbers: dict[tuple[str, str], dict[str, tuple[MethodValue, int]]] = {}
    for site in sorted(released, key=lambda values: values.site):
        for value in site.values:
            numbers.setdefault((value.method, value.over), {})[site.site] = value, site.n
    return pool_methods(numbers, sorted(names), study.horizon)


def pool_methods(numbers: Mapping[tuple[str, str], BySite], sites: Sequence[str], horizon: int) -> list[PooledMethod]:
    """Pool every gain and value over those of `sites` that have a number; `numbers` are by method and what it is over.

    Gains stand first, in the order of `GAINS`. Values follow, those over the same sites together, clinicians first.
    """
    return [
        _pool(method, over, by_site, sites, horizon)
        for (method, over), by_site in (*_gains(numbers), *_values(numbers, sites))
        if by_site
    ]


def _gains(numbers: Mapping[tuple[str, str], BySite]) -> Iterator[tuple[tuple[str, str], BySite]]:
    return ((pair, numbers[pair]) for pair in in_order(numbers) if pair[1])


def _values(
    numbers: Mapping[tuple[str, str], BySite], sites: Sequence[str]
) -> Iterator[tuple[tuple[str, str], BySite]]:
    """Values by the sites that they are over, all sites first; each group begins with clinicians at these sites."""
    groups: dict[tuple[str, ...], list[tuple[str, str]]] = {tuple(sites): []}
    for pair in in_order(numbers):
        if not pair[1]:
            groups.setdefault(tuple(site for site in sites if site in numbers[pair]), []).append(pair)
    usual = numbers.get((CLINICIANS, ""), {})
    for members, pairs in groups.items():
        if usual and {*members} <= usual.keys():
            yield (CLINICIANS, ""), {site: usual[site] for site in members}
        yield from ((pair, numbers[pair]) for pair in pairs if pair[0] != CLINICIANS)


def _possible(value: MethodValue, horizon: int) -> bool:
    """Whether a value lies in [0, H] or a gain in [−H, H], up to rounding."""
    low = -horizon if value.over else 0
    return low - value.standard_error <= value.value <= horizon + value.standard_error


def _pool(method: str, over: str, by_site: BySite, sites: Sequence[str], horizon: int) -> PooledMethod:
    values = [
        SiteValue(site, number.value, number.standard_error, n, number.tolerance)
        for site, (number, n) in by_site.items()
    ]
    verdicts = {number.verdict for number, _ in by_site.values()}
    verdict = verdicts.pop() if len(verdicts) == 1 else str(Evidence.MODEL)
    pooling = pool(values, (-float(horizon) if over else 0.0, float(horizon)))
    return PooledMethod(method, over, verdict, pooling, tuple(site for site in sites if site not in by_site))


def _refuse_copy(message: SiteSummary, senders: dict[bytes, str]) -> None:
    """Refuse one site under two names: messages with equal sums. All-zero sums are equal without being copies.

    `senders` are those of earlier messages, by the SHA-256 of their sums, and gets this one.
    """
    if not message.sums.schur.any():
        return
    content = sha256()
    for array in vars(message.sums).values():
        content.update((array + 0.0).tobytes())  # -0.0 equals 0.0
    sender = senders.setdefault(content.digest(), message.site)
    if sender != message.site:
        raise WrongSite(
            f"Sites {sender!r} and {message.site!r} sent the same sums: one site, under two names. "
            "Nothing was written. Leave one of them out."
        )


def _require_study(study: Study, part: SiteSummary | SiteValues) -> None:
    if part.fingerprint != study.fingerprint:
        raise OtherStudy(
            f"The message of site {part.site!r} belongs to another study (fingerprint {part.fingerprint[:12]}…, this "
            f"study's is {study.fingerprint[:12]}…). Nothing was written. Give every site the same study file."
        )


def _require_payload(study: Study, message: SiteSummary) -> None:
    """Refuse a message that does not hold what the study asks for, sums or Grams, in the study's shape."""
    sent, required = "schur" if message.grams is None else "gram", study.disclosure.payload
    if sent != required:
        raise OtherStudy(
            f'The message of site {message.site!r} has the payload "{sent}"; the study asks for "{required}". Nothing '
            "was written. Ask the site to make its message with this study file, and delete this one."
        )
    study.check_shape(message.sums.horizon, message.sums.n_shared)
    if message.grams is not None and message.grams.n_features != study.feature_map.n_features:
        raise OtherStudy(
            f"The message of site {message.site!r} has {message.grams.n_features} features; the study has "
            f"{study.feature_map.n_features}. It belongs to another study."
        )
