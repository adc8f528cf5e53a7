"""The sepsis study from an extracted table: every study file here fitted, reported, and valued on a 50/50 split.

    fdtr extract mimic-iv --db duckdb:FILE --out sepsis/data
    python examples/sepsis/analyse.py sepsis

`make sepsis DB=…` does both. Beside each study's report lies half-split.csv: step-importance sampling, as in the
paper's Figure 3 (a), of six methods whose policies were fitted to one half of each unit's patients, on the other half.
"""

import argparse
import csv
import sys
from collections.abc import Mapping
from pathlib import Path

from fdtr.errors import FdtrError
from fdtr.inference import SiteValue, pool
from fdtr.pipeline.results import fit_baselines, run
from fdtr.policy import Policy
from fdtr.site import SiteEvaluation, Voters, evaluate_site, fit_local, read_trajectories
from fdtr.study import Study
from fdtr.summary import combine
from fdtr.trajectories import Trajectories

HERE = Path(__file__).parent
TABLES = {
    "primary": "table.parquet",
    "paper": "complete/table.parquet",
    "intercept": "complete/table.parquet",
    "reward": "complete/table.parquet",
    "squares": "complete/table.parquet",
}
METHODS = ("FDTR", "LDTR", "LDTR (MV)", "Q-learn (1)", "Q-learn (1-MV)", "Q-learn (H)", "Clinicians")
ESTIMATORS = ("pdis", "wdr", "fqe")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="holds data/, as `fdtr extract` made it; results go beside it")
    parser.add_argument("--only", choices=TABLES, action="append", help="this study alone; may be repeated")
    given = parser.parse_args()
    for name in given.only or TABLES:
        analyse(name, given.folder)


def analyse(name: str, folder: Path) -> None:
    """One study: report and values of the split, in a folder of its own."""
    study = Study.load(HERE / f"{name}.toml")
    rows = read_trajectories(folder / "data" / TABLES[name], study)
    print(f"{name}: {rows.n_patients:,} stays, {study.feature_map.n_features} features", flush=True)
    place = folder / name
    run(study, rows).save(place)
    write_csv(place / "half-split.csv", half_split(study, rows.by_site()))
    print(f"  {place / 'report.html'}, {place / 'half-split.csv'}", flush=True)


def half_split(study: Study, sites: Mapping[str, Trajectories]) -> list[dict[str, object]]:
    """Every method's value on the held-out halves, mean over units."""
    local = {site: fit_local(study, rows) for site, rows in sites.items()}
    total = combine(fit.summary for fit in local.values())
    baselines = fit_baselines(study, sites)
    found: dict[str, SiteEvaluation] = {}
    for site, rows in sites.items():
        alone, single = (
            [rule for other, rule in baselines[name].items() if other != site and isinstance(rule, Policy)]
            for name in ("LDTR", "Q-learn (1)")
        )
        try:
            found[site] = evaluate_site(study, rows, total, local[site].summary, Voters(alone, single), split="half")
        except FdtrError as error:  # a unit that is too small says so, and the others go on
            print(f"  {site} is not valued: {error}", flush=True)
    return [line(method, estimator, found, study.horizon) for method in METHODS for estimator in ESTIMATORS]


def line(method: str, estimator: str, found: Mapping[str, SiteEvaluation], horizon: int) -> dict[str, object]:
    estimates = {site: one.value(method, estimator) for site, one in found.items()}
    values = [SiteValue(site, one.value, one.standard_error, one.n) for site, one in estimates.items()]
    mean = pool(values, (0.0, float(horizon))).plain
    return {
        "method": method,
        "estimator": estimator,
        "value": mean.value,
        "low": mean.low,
        "high": mean.high,
        "units": len(values),
        "units to be believed": sum(one.believable for one in estimates.values()),
        "least effective sample size": min(float(one.effective_sample_size.min()) for one in estimates.values()),
    }


def write_csv(path: Path, rows: list[dict[str, object]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    try:
        main()
    except FdtrError as error:
        sys.exit(str(error))
