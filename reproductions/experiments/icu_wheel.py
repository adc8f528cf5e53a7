"""The arrays of ICU-Sepsis, read from the Python wheel that its authors publish; nothing of it is installed or run.

K. Choudhary, D. Gupta, P. S. Thomas, *ICU-Sepsis: A Benchmark MDP Built from Real Medical Data*, 2024: patients with
sepsis in MIMIC-III, prepared as M. Komorowski and others did (2018) and clustered into 713 states by 47 variables; 25
treatments, five levels of intravenous fluids by five of vasopressors, each for a window of four hours.
"""

import hashlib
import io
import os
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fdtr.errors import FdtrError, ForeignFile, UnreadableFile, UnwritableFile

Array = NDArray[np.float64]

REQUIREMENT = "icu-sepsis==2.0.1"
WHEEL = "icu_sepsis-2.0.1-py3-none-any.whl"
SHA256 = "7f55ff190f11b252593000814b6cd56ecf9b5de6fdca256e4966c0a0dc369466"
MEMBER = "icu_sepsis/envs/assets/dynamics.npz"

LEVELS = 5
"""Of fluids, and of vasopressors: none, then quarters of what was given when any was."""


class Unfetchable(FdtrError):
    """Something that is downloaded when it is first needed could not be had."""


@dataclass(frozen=True, eq=False)
class IcuArrays:
    """An MDP of S states that patients can be in, with F fluid and V vasopressor levels.

    `transitions` (S, F, V, S + 2): the chance of each state four hours later; the last two are death and survival.
    `initial` (S,): where patients arrive. `expert` (S, F, V): what clinicians gave. `centres` (S, 47): the middle of
    each cluster, standardised. `sofa` (S,): its mean Sequential Organ Failure Assessment score.

    A treatment that was hardly ever given has the mean of the others' chances, so that it is never better than all.
    """

    transitions: Array
    initial: Array
    expert: Array
    centres: Array
    sofa: Array


def cache_folder() -> Path:
    """Where downloads are kept: `fdtr` in the user's cache folder."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fdtr"


def fetch_icu_sepsis(cache: str | Path | None = None) -> Path:
    """The path of the ICU-Sepsis wheel in `cache`, by default `cache_folder()`; pip downloads it if it is not there.

    No other function of the experiments needs a network.
    """
    wheel = Path(cache or cache_folder()) / WHEEL
    if wheel.is_file() and _digest(wheel.read_bytes()) == SHA256:
        return wheel
    try:
        wheel.parent.mkdir(parents=True, exist_ok=True)
        beside = tempfile.TemporaryDirectory(dir=wheel.parent)
    except OSError as error:
        raise UnwritableFile(
            f"No download can be kept in {wheel.parent}: {error.strerror}. Set XDG_CACHE_HOME to a folder of your own."
        ) from None
    with beside as folder:
        _download(Path(folder))
        downloaded = Path(folder) / WHEEL
        if _digest(downloaded.read_bytes()) != SHA256:
            raise ForeignFile(
                f"What the package registry gave for {REQUIREMENT} is not the file this version of fdtr knows: its "
                "SHA-256 differs. It was not kept. Do not use it; ask whoever runs the registry."
            )
        downloaded.replace(wheel)
    return wheel


def _download(folder: Path) -> None:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-input", "--quiet"]
    command += ["--disable-pip-version-check", "--retries=1", "--timeout=15", f"--dest={folder}", REQUIREMENT]
    result = subprocess.run(command, capture_output=True, text=True)
    if (folder / WHEEL).is_file():
        return
    if "No module named pip" in result.stderr:
        raise Unfetchable(
            f"ICU-Sepsis is downloaded with pip, and this Python has none. Install it: {sys.executable} -m ensurepip"
        )
    # pip's own words would quote hosts and paths of this machine.
    raise Unfetchable(
        f"ICU-Sepsis could not be downloaded: no package registry answers with {REQUIREMENT}. To see why, run: "
        f"{sys.executable} -m pip download --no-deps {REQUIREMENT}"
    )


def load_icu_sepsis(wheel: str | Path) -> IcuArrays:
    """Read the arrays of ICU-Sepsis from its `wheel`, without unpacking or installing it.

    `make_icu_world(IcuSpec(), load_icu_sepsis(fetch_icu_sepsis()), rng)` cuts hospitals from them.
    """
    try:
        content = Path(wheel).read_bytes()
    except OSError as error:
        raise UnreadableFile(f"The wheel {wheel} could not be read: {error.strerror}.") from None
    if _digest(content) != SHA256:
        raise ForeignFile(
            f"{wheel} is not the wheel of {REQUIREMENT}, or is damaged: its SHA-256 differs. Fetch it again."
        )
    with zipfile.ZipFile(io.BytesIO(content)) as members:
        stored = np.load(io.BytesIO(members.read(MEMBER)), allow_pickle=False)
        arrays = {name: np.asarray(stored[name], dtype=np.float64) for name in _STORED}
    # The last state is where everybody goes who has died or survived; nobody else does.
    live = len(arrays["d_0"]) - 3
    by_treatment = (live, LEVELS, LEVELS)
    return IcuArrays(
        transitions=arrays["tx_mat"][:live, :, :-1].reshape(*by_treatment, live + 2),
        initial=arrays["d_0"][:live],
        expert=arrays["expert_policy"][:live].reshape(by_treatment),
        centres=arrays["state_cluster_centers"][:live],
        sofa=arrays["sofa_scores"][:live],
    )


_STORED = ("tx_mat", "d_0", "expert_policy", "state_cluster_centers", "sofa_scores")


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
