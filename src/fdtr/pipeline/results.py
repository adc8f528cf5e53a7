"""All sites in one table: fit everybody, alone and together, and keep what came of it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fdtr.container import write_atomically
from fdtr.errors import FdtrError, UnreadableFile
from fdtr.inference import NearTies, near_ties
from fdtr.learners.voting import MajorityVote
from fdtr.pipeline.folders import file_names, staged_folder
from fdtr.pipeline.practice import Practice, Rule, practice_of
from fdtr.pipeline.recording import record_of, tables_of
from fdtr.policy import Policy
from fdtr.progress import Progress, ignore_progress
from fdtr.report.record import Record, read_record
from fdtr.site import (
    FederatedFit,
    LocalFit,
    SiteCheck,
    SiteEvaluation,
    Split,
    Variation,
    Voters,
    check,
    evaluate_site,
    fit_federated,
    fit_local,
    fit_q_learning,
    training_half,
    vary,
)
from fdtr.study import Study
from fdtr.summary import SiteSummary, Total, combine
from fdtr.trajectories import Trajectories

Array = NDArray[np.float64]

FDTR = "FDTR"
MARK = "results.json"
"""The file by which a folder of results is known."""


@dataclass(frozen=True, eq=False, repr=False)
class Results:
    """A whole study: the `total` of all messages, each site's fits, and every method's policies by site.

    `methods` maps "FDTR" and the five baselines to {site: policy}. `evaluations` value them at each site on patients
    they were not fitted to; sites that are too small for that are in `not_valued`, with the reason.
    """

    study: Study
    total: Total
    local: Mapping[str, LocalFit]
    federated: Mapping[str, FederatedFit]
    methods: Mapping[str, Mapping[str, Rule]]
    checks: Mapping[str, SiteCheck]
    practice: Mapping[str, Practice]
    variations: Mapping[str, tuple[Variation, ...]]
    near_ties: Mapping[str, NearTies]
    split: Split
    evaluations: Mapping[str, SiteEvaluation]
    not_valued: Mapping[str, str]

    def __repr__(self) -> str:
        return f"<Results of {self.study.name!r}: {len(self.federated)} sites, methods {', '.join(self.methods)}>"

    @cached_property
    def shared_coefficients(self) -> Array:
        """The average over sites of their estimates of θ⁰, (H, d0)."""
        average: Array = np.mean([fit.shared_coefficients for fit in self.federated.values()], axis=0)
        return average

    @property
    def identified(self) -> list[bool]:
        """Whether any site's data inform each shared coefficient; one that none does comes from the ridge alone."""
        by_site = [[not found.reason for found in check.identified] for check in self.checks.values()]
        return [any(site[j] for site in by_site) for j in range(len(self.shared_names))]

    @property
    def shared_names(self) -> tuple[str, ...]:
        """Names of the d0 shared features."""
        return self.study.feature_map.names[: self.study.feature_map.n_shared]

    def save(self, folder: str | Path) -> None:
        """Write policies, shared coefficients, a machine's view (results.json), the study and the report.

        All of it is made beside `folder` first and moved in when it is complete. A folder that holds anything but
        earlier results is left alone.
        """
        with staged_folder(folder, mark=MARK) as made:
            self.study.save(made / "study.toml")
            self.write_files(made, self.record)

    def write_files(self, folder: Path, found: Record) -> None:
        """Write everything but the study into an existing folder; results.json and the report show what was `found`."""
        (folder / "policies").mkdir()
        for site, name in file_names(self.federated).items():
            self.federated[site].policy.save(folder / "policies" / f"{name}.policy")
        for name, text in tables_of(found).items():
            write_atomically(folder / name, text.encode())
        write_atomically(folder / MARK, (json.dumps(found.as_json(), indent=2, ensure_ascii=False) + "\n").encode())
        write_report(found, folder / "report.html")

    def report(self, path: str | Path) -> None:
        """Write the report: one HTML file that needs nothing else."""
        write_report(self.record, path)

    @cached_property
    def record(self) -> Record:
        """Everything that was found, as plain values."""
        return record_of(self)

    def as_json(self) -> dict[str, Any]:
        """The record as JSON has it."""
        return self.record.as_json()


def write_report(found: Record, path: str | Path) -> None:
    """Write the report of what was found."""
    from fdtr.report.render import render  # charts take a second to load, and not every use of results draws them

    write_atomically(path, render(found).encode())


def report_again(folder: str | Path) -> Path:
    """Write the report of a folder of results anew, from its results.json."""
    place = Path(folder) / MARK
    try:
        text = place.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        raise UnreadableFile(
            f"{folder} holds no readable {MARK}. Name a folder that fdtr run or fdtr demo made."
        ) from None
    written = Path(folder) / "report.html"
    write_report(read_record(text, str(place)), written)
    return written


def run(study: Study, data: Trajectories, *, split: Split = "folds", progress: Progress = ignore_progress) -> Results:
    """Fit FDTR and the five baselines for every site of a table, and value them on patients held out from them.

    `split` is "folds" (every patient is held out once) or "half" (one half of every site is, as in the paper). Releases
    nothing: what disclosure would say is in `checks`, and is shown, not enforced. `progress` is told what is
    being done, and how many of how many parts are.
    """
    if not isinstance(data, Trajectories):
        raise TypeError(f"Trajectories are needed, not {type(data).__name__}: read_trajectories(table, study).")
    sites = data.by_site()
    parts = 4 * len(sites)
    local, federated, checks, variations = {}, {}, {}, {}
    for done, (site, rows) in enumerate(sites.items()):
        progress(f"{site}: alone", done, parts)
        local[site] = fit_local(study, rows)
    total = combine(fit.summary for fit in local.values())
    for done, (site, rows) in enumerate(sites.items(), len(sites)):
        progress(f"{site}: with the others", done, parts)
        federated[site] = fit_federated(study, rows, total, local[site].summary)
    for done, (site, rows) in enumerate(sites.items(), 2 * len(sites)):
        progress(f"{site}: checks", done, parts)
        checks[site] = check(study, rows, local[site])
        variations[site] = vary(study, rows, total, local[site].summary, federated[site])
    baselines = _baselines(study, sites, local)
    summaries = {site: fit.summary for site, fit in local.items()}
    evaluations, not_valued = _valued(study, sites, total, summaries, baselines, split, progress)
    results = Results(
        study=study,
        total=total,
        local=local,
        federated=federated,
        methods={FDTR: {site: fit.policy for site, fit in federated.items()}, **baselines},
        checks=checks,
        practice={site: _practice(fit.policy, sites[site], baselines) for site, fit in federated.items()},
        variations=variations,
        near_ties={site: near_ties(rows, study.feature_map, federated[site].fit) for site, rows in sites.items()},
        split=split,
        evaluations=evaluations,
        not_valued=not_valued,
    )
    progress("done", parts, parts)
    return results


def _valued(
    study: Study,
    sites: Mapping[str, Trajectories],
    total: Total,
    summaries: Mapping[str, SiteSummary],
    baselines: Mapping[str, Mapping[str, Rule]],
    split: Split,
    progress: Progress,
) -> tuple[dict[str, SiteEvaluation], dict[str, str]]:
    """Every site's evaluation, or why it has none."""
    evaluations: dict[str, SiteEvaluation] = {}
    reasons: dict[str, str] = {}
    if split == "half":
        halves = _training_halves(study, sites, reasons)
        fits = {site: fit_local(study, rows) for site, rows in halves.items()}
        summaries = {site: fit.summary for site, fit in fits.items()}
        if halves:
            total, baselines = combine(summaries.values()), _baselines(study, halves, fits)
    for done, (site, rows) in enumerate(sites.items(), 3 * len(sites)):
        progress(f"{site}: valued on held-out patients", done, 4 * len(sites))
        if site in reasons:
            continue
        try:
            others = _others(baselines, site)
            evaluations[site] = evaluate_site(study, rows, total, summaries[site], others, split=split)
        except FdtrError as error:
            reasons[site] = str(error)
    return evaluations, reasons


def _training_halves(
    study: Study, sites: Mapping[str, Trajectories], reasons: dict[str, str]
) -> dict[str, Trajectories]:
    """One half of every site's patients: nothing of the others is in any policy, another site's neither.

    A site that cannot be halved takes no part; `reasons` then says why.
    """
    halves = {}
    for site, rows in sites.items():
        try:
            halves[site] = training_half(study, rows)
        except FdtrError as error:
            reasons[site] = str(error)
    return halves


def _practice(policy: Policy, rows: Trajectories, baselines: Mapping[str, Mapping[str, Rule]]) -> Practice:
    return practice_of(policy, rows, {method: rules[rows.site] for method, rules in baselines.items()})


def _others(baselines: Mapping[str, Mapping[str, Rule]], site: str) -> Voters:
    """The policies of all sites but one, for its majority votes."""
    alone, single = (
        [rule for other, rule in baselines[method].items() if other != site and isinstance(rule, Policy)]
        for method in ("LDTR", "Q-learn (1)")
    )
    return Voters(alone, single)


def fit_baselines(study: Study, sites: Mapping[str, Trajectories]) -> dict[str, Mapping[str, Rule]]:
    """LDTR, LDTR (MV), Q-learn (1), Q-learn (1-MV) and Q-learn (H): for each, {site: policy}.

    `sites` is what `by_site()` of a table gives.
    """
    if not isinstance(sites, Mapping):
        raise TypeError(f"A mapping of sites to their rows is needed, not {type(sites).__name__}: data.by_site().")
    return _baselines(study, sites, {site: fit_local(study, rows) for site, rows in sites.items()})


def _baselines(
    study: Study, sites: Mapping[str, Trajectories], local: Mapping[str, LocalFit]
) -> dict[str, Mapping[str, Rule]]:
    alone = {site: fit.policy for site, fit in local.items()}
    q = {site: fit_q_learning(study, rows) for site, rows in sites.items()}
    single = {site: policies["Q-learn (1)"] for site, policies in q.items()}
    return {
        "LDTR": alone,
        "LDTR (MV)": dict.fromkeys(sites, MajorityVote("LDTR (MV)", tuple(alone.values()))),
        "Q-learn (1)": single,
        "Q-learn (1-MV)": dict.fromkeys(sites, MajorityVote("Q-learn (1-MV)", tuple(single.values()))),
        "Q-learn (H)": {site: policies["Q-learn (H)"] for site, policies in q.items()},
    }
