"""A table that is far larger than memory: what a site's commands cost, beside reading the table's columns once.

python benchmarks/on_disk.py --patients 20000000 --out FOLDER     some 20 GB of disk while it runs, removed afterwards
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from fdtr.study import Study

SEPSIS = ["noicu", "flow", "weight", "temperature", "sbp", "hemoglobin", "potassium"]
HORIZON = 5
SMALL_SITES = ("east", "south")
SMALL = 3000
AT_ONCE = 200_000
"""Patients that are drawn, and written, at once."""

READ = """
import sys, time
from pathlib import Path
import pyarrow.parquet as pq
start = time.perf_counter()
for file in sorted(Path(sys.argv[1]).rglob("step-*.parquet")):
    with pq.ParquetFile(file) as steps:
        for batch in steps.iter_batches(65536, use_threads=False):
            pass
print(time.perf_counter() - start)
"""

FIT = """
import sys, time
from pathlib import Path
from fdtr import Study, fit_local, read_trajectories
study = Study.load(sys.argv[1])
rows = read_trajectories(Path(sys.argv[2]), study)
start = time.perf_counter()
fit_local(study, rows)
print(time.perf_counter() - start)
"""


@dataclass(frozen=True)
class Cost:
    """Seconds and peak resident memory, in MiB, of one process; `said` is what it printed."""

    seconds: float
    memory: float
    said: str


def study_of(**learning: object) -> Study:
    """The shape of the paper's Section 5.2."""
    return Study.model_validate(
        {
            "name": "large",
            "horizon": HORIZON,
            "actions": {"levels": [0, 1, 2]},
            "covariates": [{"name": n, "effect": "shared" if i < 2 else "specific"} for i, n in enumerate(SEPSIS)],
            "features": {"intercept": "none"},
            "learning": learning,
        }
    )


def write_table(path: Path, site: str, patients: int, rng: np.random.Generator) -> None:
    """A table of patients one after another, some at a time."""
    writer = None
    for start in range(0, patients, AT_ONCE):
        n = min(AT_ONCE, patients - start)
        rows = n * HORIZON
        states = {name: rng.random(rows) for name in SEPSIS}
        action = rng.integers(0, 3, rows)
        reward = np.clip(0.3 * states["flow"] + 0.1 * action * states["sbp"] + 0.4 * rng.random(rows), 0.0, 1.0)
        columns = {
            "site": pa.array([site]).take(pa.array(np.zeros(rows, np.int8))),
            "patient": np.char.add(
                site[0], np.char.zfill(np.repeat(np.arange(start, start + n), HORIZON).astype(str), 9)
            ),
            "step": np.tile(np.arange(HORIZON), n),
            "action": action,
            "reward": reward,
        }
        table = pa.table(columns | states)
        writer = writer or pq.ParquetWriter(path, table.schema, compression="none")
        writer.write_table(table, row_group_size=100_000)
    if writer is not None:
        writer.close()


def measured(words: Sequence[str | Path], environment: dict[str, str]) -> Cost:
    """Run a process, and measure it."""
    start = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, *map(str, words)], env={**os.environ, **environment}, stdout=subprocess.PIPE, text=True
    )
    said = process.stdout.read() if process.stdout else ""
    _, status, usage = os.wait4(process.pid, 0)
    if status != 0:
        raise SystemExit(f"{words} failed")
    return Cost(time.perf_counter() - start, usage.ru_maxrss / 1024, said)


def run(patients: int, folder: Path) -> dict[str, float]:
    """All figures by name: seconds, MiB, and ratios to reading the columns once."""
    rng, place = np.random.default_rng(0), {"FDTR_STATE": str(folder / "state")}
    auto, fixed = folder / "study.toml", folder / "fixed.toml"
    study_of().save(auto)
    study_of(pessimism=0.005, ridge=1.0, sharing=1.0, share="value").save(fixed)
    for site, n in (("north", patients), *((site, SMALL) for site in SMALL_SITES)):
        write_table(folder / f"{site}.parquet", site, n, rng)
    command = ["-m", "fdtr"]
    table = folder / "north.parquet"
    figures = {
        "patients": float(patients),
        "transitions": float(patients * HORIZON),
        "table_gib": table.stat().st_size / 2**30,
    }
    costs = {}
    costs["partition"] = measured([*command, "table", "partition", auto, table, "--out", folder / "north"], place)
    table.unlink()
    messages = []
    for site in SMALL_SITES:
        messages.append(folder / f"{site}.fdtr")
        small = {"FDTR_STATE": str(folder / f"state-{site}")}
        source = folder / f"{site}.parquet"
        measured([*command, "site", "summarize", auto, source, "--out", messages[-1], "--yes"], small)
    partition = folder / "north"
    reads = [float(measured(["-c", READ, partition], {}).said) for _ in range(3)]
    figures["read_once_s"] = sorted(reads)[1]
    costs["ldtr"] = measured(["-c", FIT, fixed, partition], place)
    figures["ldtr_fit_s"] = float(costs["ldtr"].said)
    message, total = folder / "north.fdtr", folder / "total.fdtr"
    costs["check"] = measured([*command, "check", auto, partition], place)
    costs["summarize"] = measured([*command, "site", "summarize", auto, partition, "--out", message, "--yes"], place)
    measured([*command, "hub", "combine", auto, message, *messages, "--out", total], place)
    costs["tune"] = measured([*command, "tune", auto, partition, "--total", total], place)
    costs["fit"] = measured([*command, "site", "fit", auto, partition, total, "--out", folder / "north.policy"], place)
    figures["ldtr_s"] = figures["ldtr_fit_s"]
    costs["evaluate"] = measured([*command, "site", "evaluate", auto, partition, total], place)
    for name, cost in costs.items():
        figures[f"{name}_s"], figures[f"{name}_mib"] = cost.seconds, cost.memory
        figures[f"{name}_ratio"] = cost.seconds / figures["read_once_s"]
    figures["ldtr_ratio"] = figures["ldtr_fit_s"] / figures["read_once_s"]
    return figures


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--patients", type=int, default=1_000_000)
    options.add_argument("--out", type=Path, help="where the table lies meanwhile; a temporary folder by default")
    options.add_argument("--write", action="store_true", help="keep the figures in on_disk.json, for RESULTS.md")
    chosen = options.parse_args()
    if chosen.out is not None:
        chosen.out.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="fdtr-large-", dir=chosen.out))
    try:
        figures = run(chosen.patients, folder)
    finally:
        shutil.rmtree(folder)
    found = json.dumps({name: round(value, 3) for name, value in figures.items()}, indent=1)
    print(found)
    if chosen.write:
        Path(__file__).with_suffix(".json").write_text(found + "\n")
    print(f"this process: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB", file=sys.stderr)


if __name__ == "__main__":
    main()
