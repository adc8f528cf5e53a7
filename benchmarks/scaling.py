"""How costs grow with n, d, |A|, H, K and threads, with fitted exponents; and what the machine itself can do.

python benchmarks/scaling.py --write     measures, and writes scaling.csv, scaling.svg and scaling.png beside this file
"""

from __future__ import annotations

import argparse
import csv
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from fdtr.algebra.normal_equations import factor
from fdtr.algebra.pessimism import LowerBound, Penalty, penalty_roots
from fdtr.algebra.threads import one_blas_thread, thread_count
from fdtr.learners.accumulate import accumulate
from fdtr.site.fitting import fit_local
from fdtr.site.rows import read_trajectories
from fdtr.study import Study
from fdtr.summary import combine
from fdtr.trajectories import Trajectories

Array = NDArray[np.float64]

ROWS = 200_000
"""Patients of one step, where something else than their number is varied."""

TIMES = 7
COLUMNS = [f"x{i}" for i in range(7)]
FIXED = {"pessimism": 0.005, "ridge": 1.0, "sharing": 1.0, "share": "value"}


@dataclass(frozen=True)
class Point:
    """What one run cost: the median of its seconds, where `varied` has the value `at`."""

    varied: str
    at: int
    seconds: float


@dataclass(frozen=True)
class Limits:
    """What the machine does: bytes a second of one thread that reads, products a second, and columns read."""

    memory: float
    gemm_one: float
    gemm_all: float
    parquet: float
    database: float


def study_of(horizon: int = 2, actions: int = 3, knots: int = 0) -> Study:
    """Seven covariates, two of them shared; with `knots`, splines with so many interior knots."""
    levels = list(range(actions))
    basis = {"kind": "linear"}
    if knots:
        basis = {"kind": "spline", "knots": np.linspace(0, 1, knots + 2)[1:-1].tolist(), "degree": 3}
    return Study.model_validate(
        {
            "name": "scaling",
            "horizon": horizon,
            "actions": {"levels": levels, "basis": "categorical"},
            "covariates": [
                {"name": c, "effect": "shared" if i < 2 else "specific", "basis": basis} for i, c in enumerate(COLUMNS)
            ],
            "features": {"intercept": "none"},
            "learning": FIXED,
        }
    )


def table_of(rng: np.random.Generator, n: int, horizon: int, actions: int, sites: int = 1) -> pa.Table:
    """Uniform states, actions and rewards."""
    rows = sites * n * horizon
    columns: dict[str, object] = {
        "site": np.repeat([f"s{k:05}" for k in range(sites)], n * horizon),
        "patient": np.repeat(np.arange(sites * n), horizon),
        "step": np.tile(np.arange(horizon), sites * n),
        "action": rng.integers(0, actions, rows),
        "reward": rng.random(rows),
    }
    return pa.table(columns | {name: rng.random(rows) for name in COLUMNS})


def median_seconds(work: Callable[[], object], times: int = TIMES) -> float:
    """The median after one run that does not count."""
    work()
    seconds = []
    for _ in range(times):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def first_step(study: Study, n: int) -> tuple[Trajectories, LowerBound]:
    """Rows, and a rule that values the next state."""
    rng = np.random.default_rng(0)
    features = study.feature_map
    rows = read_trajectories(table_of(rng, n, study.horizon, features.n_actions), study)
    d = features.n_features
    half = rng.normal(size=(d, d))
    roots = penalty_roots(factor(half @ half.T + np.eye(d)), features.embeddings)
    return rows, LowerBound.of_penalised(rng.normal(size=d), roots, features.embeddings, Penalty(0.1), 1.0)


def pass_seconds(study: Study, n: int) -> float:
    """One local pass over the first step."""
    rows, rule = first_step(study, n)
    with one_blas_thread():
        return median_seconds(lambda: accumulate(rows.step(0), study.feature_map, rule))


def over_n() -> list[Point]:
    """The pass over a step, by its patients."""
    return [Point("n", n, pass_seconds(study_of(), n)) for n in (100_000, 200_000, 400_000, 800_000, 1_600_000)]


def over_d() -> list[Point]:
    """The pass, by the features: splines with more and more knots."""
    points = []
    for knots in (2, 8, 20, 44):
        study = study_of(actions=2, knots=knots)
        points.append(Point("d", study.feature_map.n_features, pass_seconds(study, ROWS // 4)))
    return points


def over_actions() -> list[Point]:
    """The pass, by the action levels."""
    return [Point("|A|", a, pass_seconds(study_of(actions=a), ROWS)) for a in (2, 4, 8, 16, 32)]


def over_steps() -> list[Point]:
    """A fit of one site, by its steps."""
    points = []
    for horizon in (2, 4, 8, 16):
        study = study_of(horizon)
        rows = read_trajectories(table_of(np.random.default_rng(0), ROWS // 8, horizon, 3), study)
        points.append(Point("H", horizon, median_seconds(lambda study=study, rows=rows: fit_local(study, rows))))
    return points


def over_sites() -> list[Point]:
    """Adding the sums of all sites, by their number."""
    study = study_of()
    sites = read_trajectories(table_of(np.random.default_rng(0), 60, 2, 3, sites=20), study).by_site()
    summaries = [fit_local(study, rows).summary for rows in sites.values()]
    points = []
    for k in (20, 80, 320, 1280):
        many = [type(s)(**{**vars(s), "site": f"s{i:05}"}) for i in range(k) for s in [summaries[i % len(summaries)]]]
        points.append(Point("K", k, median_seconds(lambda many=many: combine(many))))
    return points


def over_threads() -> list[Point]:
    """The pass over a large step, by threads."""
    rows, rule = first_step(study := study_of(), 4 * ROWS)
    points, before = [], os.environ.get("FDTR_THREADS")
    for threads in range(1, thread_count() + 1):
        os.environ["FDTR_THREADS"] = str(threads)
        with one_blas_thread():
            points.append(
                Point("threads", threads, median_seconds(lambda: accumulate(rows.step(0), study.feature_map, rule)))
            )
    os.environ.pop("FDTR_THREADS", None)
    if before is not None:
        os.environ["FDTR_THREADS"] = before
    return points


def exponent(points: Sequence[Point]) -> float:
    """The slope of log seconds on log of what is varied."""
    x, y = np.log([p.at for p in points]), np.log([p.seconds for p in points])
    return float(np.polyfit(x, y, 1)[0])


def limits() -> Limits:
    """Reading memory, products of matrices, and reading the columns of a table from Parquet and from DuckDB."""
    rng = np.random.default_rng(0)
    block = rng.random(2**25)
    square = rng.random((1024, 1024))
    table = table_of(rng, 500_000, 2, 3)
    read = [*COLUMNS, "reward", "action"]
    size = sum(table[name].nbytes for name in read)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "table.parquet"
        pq.write_table(table, path, compression="none")
        parquet = size / median_seconds(lambda: pq.read_table(path, columns=read, use_threads=False), 3)
        with duckdb.connect(str(Path(folder) / "table.duckdb")) as database:
            database.execute("SET threads = 1")
            database.execute(f"CREATE TABLE t AS SELECT * FROM read_parquet('{path}')")
            question = f"SELECT {', '.join(read)} FROM t"
            scanned = size / median_seconds(lambda: database.sql(question).to_arrow_table(), 3)
    with one_blas_thread():
        one = 2 * 1024**3 / median_seconds(lambda: np.dot(square, square))
    every = 2 * 1024**3 / median_seconds(lambda: np.dot(square, square))
    return Limits(block.nbytes / median_seconds(block.sum), one, every, parquet, scanned)


def spline_fraction(gemm: float) -> tuple[int, float]:
    """d near 256 with splines, and 2 d² n of one pass over its seconds, beside the peak of products."""
    study = study_of(actions=2, knots=16)
    n, d = ROWS // 4, study.feature_map.n_features
    return d, 2 * d**2 * n / pass_seconds(study, n) / gemm


def measure_all() -> list[Point]:
    """Every curve."""
    return [*over_n(), *over_d(), *over_actions(), *over_steps(), *over_sites(), *over_threads()]


def by_curve(points: Sequence[Point]) -> dict[str, list[Point]]:
    """The points of each curve."""
    curves: dict[str, list[Point]] = {}
    for point in points:
        curves.setdefault(point.varied, []).append(point)
    return curves


def write(points: Sequence[Point], folder: Path) -> None:
    """The points as a table, and a picture of all curves with their exponents."""
    import altair as alt
    import vl_convert

    with (folder / "scaling.csv").open("w", newline="", encoding="utf-8") as file:
        rows = csv.DictWriter(file, ["varied", "at", "seconds"], lineterminator="\n")
        rows.writeheader()
        rows.writerows({**asdict(point), "seconds": f"{point.seconds:.6g}"} for point in points)
    charts = []
    for varied, curve in by_curve(points).items():
        values = [{"at": point.at, "ms": point.seconds * 1e3} for point in curve]
        scale = alt.Scale(type="log", nice=False, padding=12)
        charts.append(
            alt.Chart(alt.Data(values=values), title=f"{varied}: exponent {exponent(curve):.2f}")
            .mark_line(point=True)
            .encode(
                x=alt.X(
                    "at:Q", scale=scale, title=varied, axis=alt.Axis(values=[point.at for point in curve], format="~s")
                ),
                y=alt.Y("ms:Q", scale=scale, title="ms"),
            )
            .properties(width=220, height=160)
        )
    picture = alt.concat(*charts, columns=3).to_json()
    (folder / "scaling.svg").write_text(vl_convert.vegalite_to_svg(picture), encoding="utf-8")
    (folder / "scaling.png").write_bytes(vl_convert.vegalite_to_png(picture, scale=2))


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--write", action="store_true", help="write scaling.csv, scaling.svg and scaling.png")
    chosen = options.parse_args()
    points, machine = measure_all(), limits()
    for varied, curve in by_curve(points).items():
        print(
            f"{varied}: exponent {exponent(curve):.3f}; "
            + ", ".join(f"{p.at:,}: {p.seconds * 1e3:.2f} ms" for p in curve)
        )
    print(machine, spline_fraction(machine.gemm_all))
    if chosen.write:
        write(points, Path(__file__).parent)


if __name__ == "__main__":
    main()
