"""Write a simulated study to disk: a table and its study file."""

import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fdtr.container import write_atomically
from fdtr.errors import InvalidStudy
from fdtr.pipeline.folders import staged_folder, table_as_csv
from fdtr.simulation import sepsis
from fdtr.simulation.authors import AuthorsSpec, make_authors_world
from fdtr.simulation.icu_sepsis import IcuSpec, make_icu_world
from fdtr.simulation.icu_wheel import fetch, load_arrays
from fdtr.simulation.linear import WorldSpec, make_world
from fdtr.study import Study

Kind = Literal["linear", "authors", "sepsis", "icu-sepsis"]
SPECIFICATIONS: dict[str, Any] = {"linear": WorldSpec, "authors": AuthorsSpec, "icu-sepsis": IcuSpec}
MARK = "table.csv"


def simulate(kind: Kind, folder: str | Path, seed: int, patients: int | None, **options: Any) -> Study:
    """Draw a world and its patients, and write table.csv and study.toml into `folder`.

    "linear" is a valid linear MDP, "authors" the kind of generator that the paper describes, "sepsis" the demo's five
    hospitals, whose sizes are fixed, "icu-sepsis" hospitals cut from ICU-Sepsis, which is downloaded unless it was
    before. `patients` are those of each site; `options` are fields of the world's specification, None for its default.
    The same seed gives the same files.
    """
    world_rng, table_rng = np.random.default_rng(seed).spawn(2)
    given = {name: value for name, value in options.items() if value is not None}
    if kind == "sepsis":
        if given or patients is not None:
            left_out = _options(given) or "--patients"
            raise InvalidStudy(f"The hospitals of the demo are as they are; leave out {left_out}.")
        study = Study.model_validate(tomllib.loads(sepsis.study_text()))
        table = sepsis.simulate_table(table_rng)
    else:
        world = _draw(kind, given, world_rng)
        study, table = Study.model_validate(world.study()), world.table(patients or 200, table_rng)
    with staged_folder(folder, mark=MARK) as made:
        study.save(made / "study.toml")
        write_atomically(made / MARK, table_as_csv(table))
    return study


def _draw(kind: Kind, given: dict[str, Any], rng: np.random.Generator) -> Any:
    specification = SPECIFICATIONS[kind]
    unknown = sorted(set(given) - set(specification.__dataclass_fields__))
    if unknown:
        raise InvalidStudy(f'The world "{kind}" has no such options: {_options(unknown)}. Leave them out.')
    try:
        spec = specification(**given)
    except ValueError as error:
        raise InvalidStudy(f"Such a world cannot be drawn: {error}.") from None
    if kind == "icu-sepsis":
        return make_icu_world(spec, load_arrays(fetch()), rng)
    return make_world(spec, rng) if kind == "linear" else make_authors_world(spec, rng)


def _options(fields: Iterable[str]) -> str:
    """What the command line calls fields of a specification: n_sites is --sites, site_level_shared --site-level."""
    names = (field.removeprefix("n_").removesuffix("_shared").replace("_", "-") for field in fields)
    return ", ".join(f"--{name}" for name in names)
