"""All sites in one table: fit everybody, alone and together, and keep what came of it."""

import csv
import io
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fdtr import __version__
from fdtr.container import write_atomically
from fdtr.learners.voting import MajorityVote
from fdtr.pipeline.folders import file_names, staged_folder
from fdtr.policy import Policy
from fdtr.report.study_page import StudyView, render
from fdtr.site import FederatedFit, LocalFit, SiteCheck, check, fit_federated, fit_local, fit_q_learning
from fdtr.study import Study
from fdtr.summary import Total, combine
from fdtr.trajectories import Trajectories

Array = NDArray[np.float64]
Rule = Policy | MajorityVote

Progress = Callable[[str, int, int], None]

FDTR = "FDTR"
MARK = "results.json"
"""The file by which a folder of results is known."""


def ignore_progress(_what: str, _done: int, _of: int) -> None:
    """Show nothing."""


@dataclass(frozen=True, eq=False, repr=False)
class Results:
    """A whole study: the `total` of all messages, each site's fits, and every method's policies by site.

    `methods` maps "FDTR" and the five baselines to {site: policy}.
    """

    study: Study
    total: Total
    local: Mapping[str, LocalFit]
    federated: Mapping[str, FederatedFit]
    methods: Mapping[str, Mapping[str, Rule]]
    checks: Mapping[str, SiteCheck]
    practice: Mapping[str, "Practice"]

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
            self.write_files(made, self.view())

    def write_files(self, folder: Path, view: StudyView) -> None:
        """Write everything but the study into an existing folder; the report shows `view`."""
        (folder / "policies").mkdir()
        for site, name in file_names(self.federated).items():
            self.federated[site].policy.save(folder / "policies" / f"{name}.policy")
        write_atomically(folder / "shared-coefficients.csv", self._coefficients_csv().encode())
        write_atomically(folder / MARK, (json.dumps(self.as_json(), indent=2) + "\n").encode())
        write_atomically(folder / "report.html", render(view).encode())

    def report(self, path: str | Path) -> None:
        """Write the report: one HTML file that needs nothing else."""
        write_atomically(path, render(self.view()).encode())

    def view(self) -> StudyView:
        """What the report shows."""
        return StudyView(
            study=self.study,
            version=__version__,
            checks=self.checks,
            practice=self.practice,
            shared_names=self.shared_names,
            shared_coefficients=self.shared_coefficients,
        )

    def as_json(self) -> dict[str, Any]:
        """The results as plain values."""
        return {
            "fdtr": __version__,
            "study": self.study.name,
            "fingerprint": self.study.fingerprint,
            "sites": {
                site: {
                    "patients": found.n_patients,
                    "rows": found.n_rows,
                    "clipped": found.clipped,
                    "filled": found.filled,
                    "disclosure": [v.sentence for v in found.verdicts if not v.holds],
                    "settings": dict(self.federated[site].policy.settings),
                    "agreement_with_practice": self.practice[site].agreement,
                    "agreement_with_baselines": dict(self.practice[site].as_others),
                }
                for site, found in self.checks.items()
            },
            "shared_coefficients": {
                name: {"identified": self.identified[j], "by_step": self.shared_coefficients[:, j].tolist()}
                for j, name in enumerate(self.shared_names)
            },
        }

    def _coefficients_csv(self) -> str:
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(["step", "feature", "coefficient", "identified"])
        for step, row in enumerate(self.shared_coefficients.tolist()):
            for name, coefficient, identified in zip(self.shared_names, row, self.identified, strict=True):
                writer.writerow([step, name, coefficient, "yes" if identified else "no"])
        return text.getvalue()


@dataclass(frozen=True)
class Practice:
    """What a site's policy would do for the patients it was fitted on, beside what was done.

    `recommended` and `given` (H, A) are shares of patients by step and action; `agreement` is the share of decisions
    in which both are the same, and `as_others` that in which each baseline would do the same as FDTR.
    """

    recommended: Array
    given: Array
    agreement: float
    as_others: Mapping[str, float]


def run(study: Study, data: Trajectories, *, progress: Progress = ignore_progress) -> Results:
    """Fit FDTR and the five baselines for every site of a table.

    Releases nothing: what disclosure would say is in `checks`, and is shown, not enforced. `progress` is told what
    is being done, and how many of how many parts are.
    """
    if not isinstance(data, Trajectories):
        raise TypeError(f"Trajectories are needed, not {type(data).__name__}: read_trajectories(table, study).")
    sites = data.by_site()
    parts = 3 * len(sites)
    local, federated, checks = {}, {}, {}
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
    baselines = _baselines(study, sites, local)
    methods: dict[str, Mapping[str, Rule]] = {FDTR: {site: fit.policy for site, fit in federated.items()}}
    results = Results(
        study=study,
        total=total,
        local=local,
        federated=federated,
        methods=methods | baselines,
        checks=checks,
        practice={
            site: practice_of(fit.policy, sites[site], {method: rules[site] for method, rules in baselines.items()})
            for site, fit in federated.items()
        },
    )
    progress("done", parts, parts)
    return results


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


def practice_of(policy: Policy, rows: Trajectories, others: Mapping[str, Rule]) -> Practice:
    """Compare a policy with what was done for the patients of `rows`, and with other rules."""
    levels = policy.features.levels
    given, recommended = rows.action_counts(), np.zeros((rows.horizon, len(levels)))
    same, as_others = 0, dict.fromkeys(others, 0)
    for h in range(rows.horizon):
        for chunk in rows.step(h).chunks():
            states = dict(zip(rows.covariates, chunk.states, strict=True))
            action = policy.act(states, h)
            for method, other in others.items():
                as_others[method] += int(np.sum(action == other.act(states, h)))
            same += int(np.sum(action == levels[chunk.actions]))
            recommended[h] += [np.sum(action == level) for level in levels]
    patients = np.maximum(given.sum(axis=1, keepdims=True), 1)
    shares = {method: count / rows.n_rows for method, count in as_others.items()}
    return Practice(recommended / patients, given / patients, same / rows.n_rows, shares)
