"""A public menu of designs: which changes of the study file would let this table's sites send more.

The menu depends on the study file alone, and what is told of a site is a band, so that a person may read it out to the
others by telephone. Nothing is learnt from patients but whether the rules hold for the design.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any

from fdtr.disclosure.rules import BLOCK_JITTER
from fdtr.errors import InvalidStudy
from fdtr.masking import FEWEST_HONEST
from fdtr.progress import Progress, ignore_progress
from fdtr.site.site_check import check_sites
from fdtr.study import Study
from fdtr.study.sections import Disclosure
from fdtr.trajectories import Trajectories

BANDS = ("nothing", "under a third", "a third to two thirds", "most", "all")
"""Shares of the rank that a site could send."""

_TRIMMED = 0.1
"""Share of a range that "narrower ranges" cuts off at either end."""

_DEFAULT_JITTER: float = Disclosure.model_fields["jitter"].default

_MOST_PATIENTS = 10_000
"""`max_patients` of a secure sum, where the study has none: a public number, not this table's."""


@dataclass(frozen=True)
class Design:
    """A change of the study: the lines of study.toml that differ, and the `levels` (A,) that actions become."""

    name: str
    changes: tuple[str, ...]
    study: Study
    levels: tuple[int, ...]


@dataclass(frozen=True)
class Tried:
    """A design, how many `directions` it asks for (steps times shared features), and the band of every site."""

    design: Design
    directions: int
    bands: Mapping[str, str]


def band(share: float) -> str:
    """The band of a share of the rank.

    >>> [band(share) for share in (0.0, 0.2, 0.5, 0.9, 1.0)]
    ['nothing', 'under a third', 'a third to two thirds', 'most', 'all']
    """
    if share <= 0 or share >= 1:
        return BANDS[0] if share <= 0 else BANDS[-1]
    return BANDS[1 + int(share >= 1 / 3) + int(share > 2 / 3)]


def try_designs(
    study: Study, rows: Trajectories, progress: Progress = ignore_progress, n_alike: int | None = None
) -> tuple[list[Tried], list[str]]:
    """What the sites of a table could send under every design of the menu, and a sentence on what was not tried.

    In a secure sum one site alone stands for `n_alike` like it.
    """
    designs, notes = menu(study, len(rows.sites) if len(rows.sites) > 1 else n_alike or 1)
    tried = []
    for number, design in enumerate(designs):
        progress(design.name, number, len(designs))
        tried.append(_tried(design, rows, n_alike))
    if (n_alike or 1) > 1 and len(rows.sites) == 1 and any(design.study.counts_first for design in designs):
        notes.append(f"A secure sum is judged as if there were {n_alike} sites like this one.")
    progress("done", len(designs), len(designs))
    return tried, notes


def _tried(design: Design, rows: Trajectories, n_alike: int | None) -> Tried:
    changed = design.study
    sites = rows.recast(changed.table_layout, design.levels).by_site()
    bands = {check.site: band(check.share_sent) for check in check_sites(changed, sites, n_sites=n_alike)}
    if 0 < sum(one != BANDS[0] for one in bands.values()) < changed.required_sites and len(sites) > 1:
        bands = dict.fromkeys(bands, BANDS[0])  # too few senders: rule SITES leaves nothing
    return Tried(design, changed.horizon * changed.feature_map.n_shared, bands)


def menu(study: Study, n_sites: int) -> tuple[list[Design], list[str]]:
    """The designs that are tried, the study as it is first; and a sentence on each that makes no sense here."""
    same = tuple(range(len(study.actions.levels)))
    designs = [Design("as it is", (), study, same)]
    secure, note = _other_sum(study, n_sites)
    for name, changes, fields, levels in (
        *_weights(study), *_merged_levels(study), *_fewer_steps(study), *_fewer_shared(study), *_narrower(study),
        *secure,
    ):  # fmt: skip
        try:
            changed = Study.model_validate({**study.public, "columns": study.columns.model_dump(), **fields})
        except InvalidStudy:  # what the menu changes does not fit the rest of this study, such as spline knots
            continue
        designs.append(Design(name, changes, changed, levels or same))
    return designs, note


_Entry = tuple[str, tuple[str, ...], dict[str, Any], tuple[int, ...] | None]


def weights_remedy(study: Study) -> str:
    """The line of study.toml with which weights hide what is in the way; empty where rows have them, or cannot."""
    section = study.disclosure
    possible = section.payload == "schur" and section.epsilon is None
    return f"jitter = {_DEFAULT_JITTER:g} under [disclosure]" if possible and section.jitter < BLOCK_JITTER else ""


def _weights(study: Study) -> Iterator[_Entry]:
    """Weights of rows, beneath which less is visible and the rules ask for less."""
    if weights_remedy(study):
        fields = {"disclosure": {**study.public["disclosure"], "jitter": _DEFAULT_JITTER}}
        yield f"weights (jitter {_DEFAULT_JITTER:g})", (f"[disclosure] jitter = {_DEFAULT_JITTER:g}",), fields, None


def _merged_levels(study: Study) -> Iterator[_Entry]:
    """Two neighbouring levels as one, and all levels but the first as one."""
    actions = study.public["actions"]
    n, labels = len(actions["levels"]), actions["labels"]
    merges = [range(i, i + 2) for i in range(n - 1)] if n > 2 else []
    merges += [range(1, n)] if n > 3 else []
    for together in merges:
        first, gone = together[0], set(together[1:])
        kept = [i for i in range(n) if i not in gone]
        onto = tuple(kept.index(first if i in gone else i) for i in range(n))
        joined = " or ".join(labels[i] for i in together)
        fields = {
            **actions,
            "levels": [actions["levels"][i] for i in kept],
            "labels": [joined if i == first else labels[i] for i in kept],
            "degree": min(actions["degree"], len(kept) - 1),
        }
        if actions.get("cuts"):  # codes then count the cuts that a dose exceeds
            fields |= {"levels": list(range(len(kept))), "cuts": [actions["cuts"][i - 1] for i in kept if i]}
        changes = [f"{key} = {_toml(fields[key])}" for key in ("levels", "labels", "degree", "cuts") if key in fields]
        changes = [line for line in changes if line != f"degree = {actions['degree']}"]
        codes = [(actions["levels"][i], fields["levels"][onto[i]]) for i in range(n)]
        recoded = ", ".join(f"{before:g} becomes {after:g}" for before, after in codes if before != after)
        lines = f"[actions] {', '.join(changes)}", f"in the table, column {study.columns.action}: {recoded}"
        yield f"{joined} as one action", lines, {"actions": fields}, onto


def _fewer_steps(study: Study) -> Iterator[_Entry]:
    """Three quarters, a half and a quarter of the steps."""
    for steps in sorted({ceil(study.horizon * share / 4) for share in (1, 2, 3)} - {study.horizon}, reverse=True):
        name = f"the first {steps} steps" if steps > 1 else "the first step"
        yield name, (f"horizon = {steps}",), {"horizon": steps}, None


def _fewer_shared(study: Study) -> Iterator[_Entry]:
    """The last shared covariate as the site's own, then the last two, until one is left."""
    covariates = study.public["covariates"]
    shared = [covariate["name"] for covariate in covariates if covariate["effect"] == "shared"]
    for left in range(len(shared) - 1, 0, -1):
        own = shared[left:]
        fields = [{**c, "effect": "specific"} if c["name"] in own else c for c in covariates]
        lines = tuple(f'[[covariates]] {name}: effect = "specific"' for name in own)
        yield f"share {', '.join(shared[:left])} only", lines, {"covariates": fields}, None


def _narrower(study: Study) -> Iterator[_Entry]:
    """Ranges without a tenth at either end: values beyond are clipped, and nobody is far out."""
    covariates, lines, fields = study.public["covariates"], [], []
    for covariate in covariates:
        (low, high), kind = covariate["range"], covariate["basis"]["kind"]
        cut = _TRIMMED * (high - low)
        narrow = [round(low + cut, 12), round(high - cut, 12)]
        if kind not in ("linear", "polynomial"):  # others have knots, levels or a period
            narrow = [low, high]
        fields.append({**covariate, "range": narrow})
        if narrow != [low, high]:
            lines.append(f"[[covariates]] {covariate['name']}: range = {_toml(narrow)}")
    if lines:
        yield "narrower ranges", tuple(lines), {"covariates": fields}, None


def _other_sum(study: Study, n_sites: int) -> tuple[list[_Entry], list[str]]:
    """A secure sum instead of open sums, or the reverse; or why it is not tried."""
    section = study.public["disclosure"]
    if section["secure_sum"]:
        fields = {**section, "secure_sum": False, "colluding": 0}
        return [("open sums", ("[disclosure] secure_sum = false",), {"disclosure": fields}, None)], []
    fewest = max(study.required_sites, FEWEST_HONEST)
    if section["payload"] == "gram" or section["epsilon"] is not None or section["jitter"] < BLOCK_JITTER:
        needed = f'payload = "schur", no epsilon, and jitter from {BLOCK_JITTER:g}'
        return [], [f"A secure sum is not tried: it needs {needed}."]
    if n_sites < fewest:
        total = f"it is judged on the total of {fewest} sites or more"
        return [], [
            f"A secure sum is not tried: {total}. With one table, --sites K judges it for K sites like this one."
        ]
    most = section["max_patients"] or _MOST_PATIENTS
    fields = {**section, "secure_sum": True, "max_patients": most, "small_step": "refuse"}
    changes = f"[disclosure] secure_sum = true, max_patients = {most}"
    return [("a secure sum", (changes,), {"disclosure": fields}, None)], []


def _toml(value: Any) -> str:
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    return f'"{value}"' if isinstance(value, str) else f"{value:g}"
