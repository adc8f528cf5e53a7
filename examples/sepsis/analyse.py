"""The sepsis study from an extracted table: every study file here fitted, valued and reported.

    fdtr extract mimic-iv --db duckdb:FILE --study examples/sepsis/paper.toml --out sepsis/data
    python examples/sepsis/analyse.py sepsis

`make sepsis DB=…` does both. Beside each study's report lie figure3a.svg and figure3a.csv: what six methods and what
clinicians did are worth, mean over care units, by step-importance sampling on held-out patients (Figure 3 (a)).
"""

import argparse
import csv
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

import altair

from fdtr import Study, plots, read_trajectories, run
from fdtr.errors import FdtrError, InvalidSettings
from fdtr.inference import SiteValue, pool
from fdtr.site import SiteEvaluation

HERE = Path(__file__).parent


class Part(NamedTuple):
    """A study file's table, and who of it is held out: one half of each unit, as in the paper, or everybody once."""

    table: str
    split: Literal["folds", "half"]


STUDIES = {
    "primary": Part("table.parquet", "folds"),
    **dict.fromkeys(("paper", "intercept", "reward", "squares"), Part("complete/table.parquet", "half")),
}
METHODS = ("FDTR", "LDTR", "LDTR (MV)", "Q-learn (1)", "Q-learn (1-MV)", "Q-learn (H)", "Clinicians")
ESTIMATORS = {"pdis": "step-importance sampling", "wdr": "doubly robust", "fqe": "linear model alone"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="holds data/, as `fdtr extract` made it; results go beside it")
    parser.add_argument("--only", choices=STUDIES, action="append", help="this study alone; may be repeated")
    given = parser.parse_args()
    chosen = given.only or list(STUDIES)
    for name in chosen:  # all of them before the work on any
        require_same_cuts(name, given.folder / "data")
    for name in chosen:
        analyse(name, given.folder)


def require_same_cuts(name: str, data: Path) -> None:
    """Refuse a study file whose steps or cuts are not those that the table was made with."""
    study = Study.load(HERE / f"{name}.toml")
    try:
        made = tomllib.loads((data / "settings.toml").read_text(encoding="utf-8"))
        steps, cuts = int(made["steps"]), tuple(map(float, made["dose"]["cuts"]))
    except (OSError, ValueError, KeyError, TypeError):
        raise InvalidSettings(f"{data / 'settings.toml'} is not what `fdtr extract` wrote. Extract anew.") from None
    if (study.horizon, study.actions.cuts) != (steps, cuts):
        raise InvalidSettings(
            f"{name}.toml has {study.horizon} steps and cuts doses at {_listed(study.actions.cuts)} ml; the table in "
            f"{data} was made with {steps} steps and {_listed(cuts)} ml. Give every study file here the same, and "
            "extract anew into another folder: make sepsis DB=… SEPSIS=…"
        )


def _listed(cuts: tuple[float, ...]) -> str:
    return " and ".join(f"{cut:g}" for cut in cuts)


def analyse(name: str, folder: Path) -> None:
    """One study: its policies, report and figure, in a folder of its own."""
    table, split = STUDIES[name]
    study = Study.load(HERE / f"{name}.toml")
    rows = read_trajectories(folder / "data" / table, study)
    print(f"{name}: {rows.n_patients:,} stays, {study.feature_map.n_features} features", flush=True)
    results = run(study, rows, split=split)
    place = folder / name
    results.save(place)
    for unit, reason in results.not_valued.items():  # one that is too small says so, and the others go on
        print(f"  {unit} is not valued: {reason}", flush=True)
    print(f"  {place / 'report.html'}", flush=True)
    if results.evaluations:
        found = [mean_of(m, e, results.evaluations, study.horizon) for m in METHODS for e in ESTIMATORS]
        write_figure(place, found, study.horizon)
        print(f"  {place / 'figure3a.svg'}", flush=True)


def mean_of(method: str, estimator: Any, found: Mapping[str, SiteEvaluation], horizon: int) -> dict[str, Any]:
    """A method's value over units by one estimator, with how far to trust it."""
    estimates = {unit: one.value(method, estimator) for unit, one in found.items()}
    values = [SiteValue(unit, one.value, one.standard_error, one.n) for unit, one in estimates.items()]
    mean = pool(values, (0.0, float(horizon))).plain
    return {
        "method": method,
        "estimator": ESTIMATORS[estimator],
        "value": mean.value,
        "low": mean.low,
        "high": mean.high,
        "units": len(values),
        "units to be believed": sum(one.believable for one in estimates.values()),
        "least effective sample size": min(float(one.effective_sample_size.min()) for one in estimates.values()),
        "believable": all(one.believable for one in estimates.values()),
    }


def write_figure(place: Path, found: list[dict[str, Any]], horizon: int) -> None:
    """Figure 3 (a) as a picture, and all numbers as a table.

    Step-importance sampling may estimate more than a patient can have; the picture ends there, as intervals do.
    """
    first = [
        {**row, "value": min(max(row["value"], 0.0), float(horizon))}
        for row in found
        if row["estimator"] == ESTIMATORS["pdis"]
    ]
    title = {
        "text": f"{place.name}: value by step-importance sampling",
        "subtitle": "Mean over units and its 95% interval; hollow: not to be believed",
        "anchor": "start",
    }
    chart = plots.intervals(first, across=f"sum of {horizon} mapped rewards").properties(title=title)
    with altair.theme.enable("fdtr"):  # the look of the report
        chart.save(place / "figure3a.svg")
    with (place / "figure3a.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(found[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(found)


if __name__ == "__main__":
    try:
        main()
    except FdtrError as error:
        sys.exit(str(error))
