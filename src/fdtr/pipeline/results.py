"""All sites in one table: fit everybody, alone and together, and keep what came of it."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fdtr.container import write_atomically
from fdtr.errors import FdtrError, UnreadableFile
from fdtr.inference import near_ties
from fdtr.learners.baselines import MajorityVote
from fdtr.pipeline.folders import file_names, staged_folder
from fdtr.pipeline.practice import Rule, practice_of
from fdtr.pipeline.recording import record_of, site_record, tables_of
from fdtr.pipeline.valuing import SiteValues, value_site
from fdtr.policy import Policy
from fdtr.progress import Progress, Steps, ignore_progress
from fdtr.report.record import Record, read_record
from fdtr.site import (
    FederatedFit,
    LocalFit,
    SiteCheck,
    SiteEvaluation,
    Split,
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
from fdtr.summary import Total, combine
from fdtr.trajectories import Trajectories

Array = NDArray[np.float64]

FDTR = "FDTR"
MARK = "results.json"
"""The file by which a folder of results is known."""

_HALF, _REFITS, _VALUES = "one half alone", "policies fitted without the patients they treat", "every method valued"
_WORK = {"alone": 1, "with the others": 1, "baselines": 1, "checks": 4, _HALF: 1, _REFITS: 5, _VALUES: 8}
"""How long each step takes at one site, relative to the others; _HALF is done with `split` "half" only."""


@dataclass(frozen=True, eq=False, repr=False)
class Results:
    """A whole study: the `total` of all messages, each site's fits, and every method's policies by site.

    `methods` maps "FDTR" and the five baselines to {site: policy}. `evaluations` value them at each site on patients
    they were not fitted to; sites that are too small for that are in `not_valued`, with the reason. `record` has all
    that was found as plain values: nothing is left to be computed.
    """

    study: Study
    record: Record
    total: Total
    local: Mapping[str, LocalFit]
    federated: Mapping[str, FederatedFit]
    methods: Mapping[str, Mapping[str, Rule]]
    checks: Mapping[str, SiteCheck]
    evaluations: Mapping[str, SiteEvaluation]
    not_valued: Mapping[str, str]

    def __repr__(self) -> str:
        return f"<Results of {self.study.name!r}: {len(self.federated)} sites, methods {', '.join(self.methods)}>"

    @property
    def shared_coefficients(self) -> Array:
        """The average over sites of their estimates of θ⁰, (H, d0)."""
        by_feature = [coefficient.by_step for coefficient in self.record.shared_coefficients.values()]
        return np.array(by_feature, dtype=np.float64).reshape(len(by_feature), self.study.horizon).T

    @property
    def identified(self) -> list[bool]:
        """Whether any site's data inform each shared coefficient; one that none does comes from the ridge alone."""
        return [coefficient.identified for coefficient in self.record.shared_coefficients.values()]

    @property
    def shared_names(self) -> tuple[str, ...]:
        """Names of the d0 shared features."""
        return tuple(self.record.shared_coefficients)

    def save(self, folder: str | Path) -> None:
        """Write policies, shared coefficients, a machine's view (results.json), the study and the report.

        All of it is made beside `folder` first and moved in when it is complete. A folder that holds anything but
        earlier results is left alone.
        """
        with staged_folder(folder, mark=MARK) as made:
            self.study.save(made / "study.toml")
            self.write_files(made)

    def write_files(self, folder: Path) -> None:
        """Write everything but the study into an existing folder."""
        (folder / "policies").mkdir()
        for site, name in file_names(self.federated).items():
            self.federated[site].policy.save(folder / "policies" / f"{name}.policy")
        for name, text in tables_of(self.record).items():
            write_atomically(folder / name, text.encode())
        write_atomically(folder / MARK, (json.dumps(self.as_json(), indent=2, ensure_ascii=False) + "\n").encode())
        write_report(self.record, folder / "report.html")

    def report(self, path: str | Path) -> None:
        """Write the report: one HTML file that needs nothing else."""
        write_report(self.record, path)

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
    nothing: what disclosure would say is in `checks`, and is shown, not enforced. `progress` is told what
    begins and how much of the work is done. A site that cannot be valued is in `not_valued`, and the others go on.
    """
    if not isinstance(data, Trajectories):
        raise TypeError(f"Trajectories are needed, not {type(data).__name__}: read_trajectories(table, study).")
    sites = data.by_site()
    steps = Steps(progress, len(sites) * sum(work for what, work in _WORK.items() if split == "half" or what != _HALF))
    local = {site: fit_local(study, rows) for site, rows in _each(sites, steps, "alone")}
    total = combine(fit.summary for fit in local.values())
    federated = {
        site: fit_federated(study, rows, total, local[site].summary)
        for site, rows in _each(sites, steps, "with the others")
    }
    steps.begin("baselines", len(sites) * _WORK["baselines"])
    baselines = _baselines(study, sites, local)
    checks, described = {}, {}
    for site, rows in _each(sites, steps, "checks"):
        fit = federated[site]
        checks[site] = check(study, rows, local[site])
        practice = practice_of(fit.policy, rows, {method: rules[site] for method, rules in baselines.items()})
        ties = near_ties(rows, study.feature_map, fit.fit)
        variations = vary(study, rows, total, local[site].summary, fit)
        described[site] = site_record(fit, checks[site], practice, ties, variations)
    evaluations, values, not_valued = _valued(study, sites, total, local, baselines, split, steps)
    for site, part in described.items():
        trust = values[site].trust if site in values else None
        described[site] = part.model_copy(update={"trust": trust, "not_valued": not_valued.get(site, "")})
    results = Results(
        study=study,
        record=record_of(study, total, local, federated, described, values, split),
        total=total,
        local=local,
        federated=federated,
        methods={FDTR: {site: fit.policy for site, fit in federated.items()}, **baselines},
        checks=checks,
        evaluations=evaluations,
        not_valued=not_valued,
    )
    steps.end()
    return results


def _each(sites: Mapping[str, Trajectories], steps: Steps, what: str) -> Iterator[tuple[str, Trajectories]]:
    """Every site and its rows; reports a step of `what` as each begins."""
    for site, rows in sites.items():
        steps.begin(f"{site}: {what}", _WORK[what])
        yield site, rows


def _valued(
    study: Study,
    sites: Mapping[str, Trajectories],
    total: Total,
    local: Mapping[str, LocalFit],
    baselines: Mapping[str, Mapping[str, Rule]],
    split: Split,
    steps: Steps,
) -> tuple[dict[str, SiteEvaluation], dict[str, SiteValues], dict[str, str]]:
    """Every site's evaluation and all its values; or, in the last mapping, why it has none."""
    evaluations: dict[str, SiteEvaluation] = {}
    values: dict[str, SiteValues] = {}
    reasons: dict[str, str] = {}
    if split == "half":
        halves, local = _fit_halves(study, sites, reasons, steps)
        if halves:
            total = combine(fit.summary for fit in local.values())
            baselines = _baselines(study, halves, local)
    for site, rows in _each(sites, steps, _REFITS):
        if site not in reasons:
            with _noting_failure(site, reasons):
                voters = _others(baselines, site)
                evaluations[site] = evaluate_site(study, rows, total, local[site].summary, voters, split=split)
    for site, _ in _each(sites, steps, _VALUES):
        if site not in reasons:
            with _noting_failure(site, reasons):
                values[site] = value_site(evaluations[site], study.actions.labels)
    return {site: evaluations[site] for site in values}, values, reasons


@contextmanager
def _noting_failure(site: str, reasons: dict[str, str]) -> Iterator[None]:
    """Let the other sites go on where one fails; `reasons` then says why."""
    try:
        yield
    except FdtrError as error:
        reasons[site] = str(error)


def _fit_halves(
    study: Study, sites: Mapping[str, Trajectories], reasons: dict[str, str], steps: Steps
) -> tuple[dict[str, Trajectories], dict[str, LocalFit]]:
    """One half of every site's patients, and its fit: no policy of any site is fitted to the other halves.

    A site that cannot be halved takes no part.
    """
    halves, fits = {}, {}
    for site, rows in _each(sites, steps, _HALF):
        with _noting_failure(site, reasons):
            half = training_half(study, rows)
            fits[site], halves[site] = fit_local(study, half), half
    return halves, fits


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
