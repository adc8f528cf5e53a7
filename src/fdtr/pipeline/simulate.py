"""Write a simulated study to disk: a table and its study file."""

import tomllib
from pathlib import Path

import numpy as np

from fdtr.container import write_atomically
from fdtr.errors import InvalidStudy
from fdtr.pipeline.result_folder import staged_folder, table_as_csv
from fdtr.simulation import DiscreteSpec, SimulatedWorld, WorldSpec, make_discrete_world, make_world, sepsis
from fdtr.study import Study

TABLE_FILE = "table.csv"
PATIENTS = 200
"""Patients at each site, where nothing else is said."""


def simulate(
    spec: WorldSpec | DiscreteSpec | SimulatedWorld | None,
    folder: str | Path,
    *,
    seed: int = 0,
    patients: int | None = None,
) -> Study:
    """Draw a world and its patients, write table.csv and study.toml into `folder`, and return the study.

    `spec` says which world: `WorldSpec` is a valid linear MDP, `DiscreteSpec` has vitals in a few levels and exact
    values, and None is the demo's five hospitals. A world that is drawn already only gets its patients here. `patients`
    is the number at each site, 200 if left out; those of the demo are fixed. The same seed gives the same files.

    >>> import tempfile
    >>> from fdtr.simulation import WorldSpec
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     study = simulate(WorldSpec(n_sites=2, horizon=3), f"{folder}/world", patients=20)
    >>> study.name, study.horizon
    ('linear-mdp', 3)
    """
    if not isinstance(spec, WorldSpec | DiscreteSpec | SimulatedWorld | None):
        raise TypeError(f"A WorldSpec, DiscreteSpec, simulated world or None is needed, not {type(spec).__name__}.")
    if patients is not None and patients < 1:
        raise InvalidStudy(f"A site has at least one patient, not {patients}. Nothing was written.")
    world_rng, table_rng = np.random.default_rng(seed).spawn(2)
    if spec is None:
        if patients is not None:
            raise InvalidStudy("The hospitals of the demo are as they are; leave out --patients.")
        study = Study.model_validate(tomllib.loads(sepsis.study_text()))
        table = sepsis.simulate_table(table_rng)
    else:
        world = _drawn(spec, world_rng)
        study = Study.model_validate(world.study())
        table = world.table(PATIENTS if patients is None else patients, table_rng)
    with staged_folder(folder, mark=TABLE_FILE) as staging:
        study.save(staging / "study.toml")
        write_atomically(staging / TABLE_FILE, table_as_csv(table))
    return study


def _drawn(spec: WorldSpec | DiscreteSpec | SimulatedWorld, rng: np.random.Generator) -> SimulatedWorld:
    if isinstance(spec, SimulatedWorld):
        return spec
    return make_world(spec, rng) if isinstance(spec, WorldSpec) else make_discrete_world(spec, rng)
