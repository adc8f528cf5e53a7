"""Measure `fdtr extract mimic-iv` on a generated database: 50,000 stays × 5 steps, 50 million chart events, DuckDB.

    python benchmarks/extraction.py                  takes some minutes, 2 GB of disk and 4 GB of memory
    python benchmarks/extraction.py --stays 2000 --events 1000000

The time is compared with that of DuckDB reading the same columns once, in the same process and with the same limits.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

READ_ONCE = {
    "mimiciv_icu.chartevents": "sum(stay_id), sum(itemid), sum(valuenum), max(charttime)",
    "mimiciv_hosp.labevents": "sum(subject_id), sum(itemid), sum(valuenum), max(charttime)",
    "mimiciv_icu.inputevents": "sum(stay_id), sum(itemid), sum(amount), max(starttime), max(endtime), max(amountuom)",
}
# A fifth of these are blood pressures, which have to be placed in time before they can be left out.
NOISE = """
    INSERT INTO mimiciv_icu.chartevents
    SELECT
        1000 + CAST(floor(random() * {stays}) AS BIGINT) AS stay_id,
        TIMESTAMP '2150-01-01' + CAST(floor(random() * 300000) AS INTEGER) * INTERVAL 1 MINUTE AS charttime,
        [220045, 220210, 220277, 220181, 220179][1 + CAST(floor(random() * 5) AS INTEGER)] AS itemid,
        80.0 + 20.0 * random() AS valuenum
    FROM range({rows})
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stays", type=int, default=50_000)
    parser.add_argument("--events", type=int, default=50_000_000)
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure:
        print(json.dumps(measure(given.measure)))
        return
    found = measured(given.stays, given.events)
    seconds, once = found["seconds"], found["read_once"]
    print(
        f"{given.stays:,} stays, {given.events:,} chart events: {found['rows']:,} rows in {seconds:.1f} s, "
        f"{seconds / once:.1f} times what reading the columns once takes ({once:.1f} s); "
        f"at most {found['memory_gb']:.2f} GB"
    )


def measured(stays: int, events: int) -> dict[str, float]:
    """Seconds, those of reading once, and memory; measured in a process of its own, whose peak is the extraction's."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "mimic.duckdb"
        make(path, stays, events)
        command = [sys.executable, __file__, "--measure", str(path)]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return dict(json.loads(done.stdout))


def make(path: Path, stays: int, events: int) -> None:
    import duckdb

    from mimic_world import make_world, write_duckdb

    world = make_world(stays, seed=0)
    write_duckdb(world, path)
    with duckdb.connect(str(path), config={"memory_limit": "2GB", "preserve_insertion_order": False}) as connection:
        rows = events - world.tables["chartevents"].num_rows
        connection.execute(NOISE.format(stays=stays, rows=rows))


def measure(path: Path) -> dict[str, float]:
    from fdtr.cohort import MimicSettings, extract_mimic_iv, open_database

    with open_database(f"duckdb:{path}") as db:
        start = time.perf_counter()
        for table, columns in READ_ONCE.items():
            db.arrow(f"SELECT {columns} FROM {table}")
        read_once = time.perf_counter() - start
        start = time.perf_counter()
        table = extract_mimic_iv(db, MimicSettings(), progress=tell).table
        seconds = time.perf_counter() - start
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return {"rows": table.num_rows, "seconds": seconds, "read_once": read_once, "memory_gb": memory}


def tell(what: str, done: int, of: int) -> None:
    print(f"{done}/{of} {what}", file=sys.stderr)


if __name__ == "__main__":
    main()
