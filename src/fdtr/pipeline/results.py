"""What a whole study gives, and the files that it is written to."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import isnan
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fdtr.container import write_atomically
from fdtr.learners.baselines import MajorityVote
from fdtr.pipeline.result_folder import as_csv, file_names, staged_folder
from fdtr.policy import Policy
from fdtr.report.record import RESULTS_FILE, Assessment, Effect, Part, Record, Value, load_record
from fdtr.site.fitting import FederatedFit, LocalFit
from fdtr.site.site_check import SiteCheck
from fdtr.site.site_evaluation import SiteEvaluation
from fdtr.study import Study
from fdtr.summary import Total
from fdtr.verified_policy import VerifiedPolicy

Rule = Policy | MajorityVote


@dataclass(frozen=True, eq=False, repr=False)
class Results:
    """A whole study: the `total` of all messages, each site's fits, and every method's policies by site.

    `methods` maps "FDTR" and the five baselines to {site: policy}; `verified` has the verified part of FDTR's.
    `evaluations` value them at each site on patients they were not fitted to; sites that cannot be valued are in
    `not_valued`, with the reason. `record` has all that was found as plain values: saving and reports compute nothing.
    """

    study: Study
    record: Record
    total: Total
    local: Mapping[str, LocalFit]
    federated: Mapping[str, FederatedFit]
    methods: Mapping[str, Mapping[str, Rule]]
    verified: Mapping[str, VerifiedPolicy]
    checks: Mapping[str, SiteCheck]
    evaluations: Mapping[str, SiteEvaluation]
    not_valued: Mapping[str, str]

    def __repr__(self) -> str:
        return f"<Results of {self.study.name!r}: {len(self.federated)} sites, methods {', '.join(self.methods)}>"

    @property
    def shared_coefficients(self) -> NDArray[np.float64]:
        """The average over sites of their estimates of θ⁰, (H, d0); NaN where they do not identify it together."""
        by_feature = [coefficient.by_step for coefficient in self.record.shared_coefficients.values()]
        return np.array(by_feature, dtype=np.float64).reshape(len(by_feature), self.study.horizon).T

    def save(self, folder: str | Path) -> None:
        """Write policies, tables (CSV), the record (results.json), the study and the report.

        Files are written beside `folder` and moved in when all are complete. A folder that holds anything but earlier
        results is refused.
        """
        with staged_folder(folder, mark=RESULTS_FILE) as staging:
            self.study.save(staging / "study.toml")
            self.write_files(staging)

    def write_files(self, folder: Path) -> None:
        """Write everything but the study into an existing folder."""
        (folder / "policies").mkdir()
        for site, name in file_names(self.federated).items():
            self.verified[site].save(folder / "policies" / f"{name}.policy")
        for name, content in _tables(self.record).items():
            write_atomically(folder / name, content)
        text = json.dumps(self.record.as_json(), indent=2, ensure_ascii=False) + "\n"
        write_atomically(folder / RESULTS_FILE, text.encode())
        self.report(folder / "report.html")

    def report(self, path: str | Path) -> None:
        """Write the report: one HTML file that needs nothing else."""
        _write_report(self.record, path)


def report_again(folder: str | Path) -> Path:
    """Write the report of a folder of results again, from its results.json."""
    target = Path(folder) / "report.html"
    _write_report(load_record(folder), target)
    return target


def _write_report(record: Record, path: str | Path) -> None:
    from fdtr.report.render import render  # charts take a second to load, and not every use of results draws them

    write_atomically(path, render(record).encode())


def _tables(record: Record) -> dict[str, bytes]:
    """The tables written beside results.json, by file name, as CSV."""
    coefficients = [
        [step, name, _cell(coefficient.by_step[step]), _cell(not isnan(coefficient.by_step[step]))]
        for step in range(record.definition["horizon"])
        for name, coefficient in record.shared_coefficients.items()
    ]
    tables: dict[str, tuple[type[Part], list[Any]]] = {
        "values.csv": (Value, record.values),
        "gains.csv": (Assessment, [assessed for assessed in record.assessments if assessed.over]),
        "shared-effects.csv": (Effect, record.shared_effects),
    }
    return {
        "shared-coefficients.csv": as_csv(["step", "feature", "coefficient", "identified"], coefficients),
        **{
            name: as_csv(kind.model_fields, ([_cell(cell) for _, cell in row] for row in rows))
            for name, (kind, rows) in tables.items()
        },
    }


def _cell(value: Any) -> Any:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "" if value != value else value  # NaN
