"""Small studies and tables for the tests: random, with the awkward cases switched on by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from fdtr.site.rows import read_trajectories
from fdtr.study import Study
from fdtr.trajectories import Trajectories


def make_study(**changes: Any) -> Study:
    """Two shared and two specific covariates, three actions, three steps; nothing is tuned.

    `changes` replace whole sections, but for [learning], which they change key by key.
    """
    sections: dict[str, Any] = {
        "name": "test",
        "horizon": 3,
        "actions": {"levels": [0, 1, 2], "labels": ["none", "low", "high"]},
        "covariates": [
            {"name": "u", "effect": "shared", "range": [-1, 1]},
            {"name": "x", "effect": "specific", "range": [0, 10]},
            {"name": "v", "effect": "shared"},
            {"name": "y", "effect": "specific"},
        ],
    }
    fixed = {"pessimism": 0.001, "ridge": 0.1, "sharing": 1.0, "share": "value"}
    return Study.model_validate(sections | changes | {"learning": fixed | changes.get("learning", {})})


def make_table(
    study: Study,
    sites: dict[str, int],
    seed: int = 0,
    *,
    ragged: bool = False,
    constant_within_site: tuple[str, ...] = (),
    duplicate: tuple[str, str] | None = None,
    actions: dict[str, list[float]] | None = None,
) -> pa.Table:
    """A random long table. `duplicate` copies one covariate over another; `actions` limits a site's levels."""
    rng = np.random.default_rng(seed)
    columns: dict[str, list[Any]] = {name: [] for name in ("site", "patient", "step", "action", "reward", "end")}
    values: dict[str, list[float]] = {covariate.name: [] for covariate in study.covariates}
    for site, n in sites.items():
        fixed = {name: rng.random() for name in constant_within_site}
        for patient in range(n):
            length = int(rng.integers(1, study.horizon + 1)) if ragged and patient else study.horizon
            for step in range(length):
                last = step == length - 1
                columns["site"].append(site)
                columns["patient"].append(f"p{patient}")
                columns["step"].append(step)
                columns["action"].append(rng.choice((actions or {}).get(site, list(study.actions.levels))))
                columns["end"].append(rng.choice(sorted(study.ends)) if study.ends and last else None)
                for covariate in study.covariates:
                    low, high = covariate.range
                    share = fixed.get(covariate.name, rng.random())
                    values[covariate.name].append(low + (high - low) * share)
                low, high = study.reward.range
                columns["reward"].append(low + (high - low) * rng.random())
    if duplicate:
        values[duplicate[1]] = values[duplicate[0]]
    ends = {} if study.ends else {"end": None}
    return pa.table({k: v for k, v in (columns | values).items() if k not in ends})


def put_into_duckdb(table: pa.Table, path: Path, name: str = "rows") -> str:
    """The address of a DuckDB file that has `table` under a name."""
    import duckdb

    with duckdb.connect(path) as connection:
        connection.register("arriving", table)
        connection.execute(f"CREATE TABLE {name} AS SELECT * FROM arriving")
    return f"duckdb:{path}"


def make_sites(study: Study, sites: dict[str, int], seed: int = 0, **options: Any) -> dict[str, Trajectories]:
    """The same, read."""
    return read_trajectories(make_table(study, sites, seed, **options), study).by_site()
