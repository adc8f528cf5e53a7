"""A site's rows: read as the study describes them, divided into folds, and sampled where they are very many.

In a fold nobody is judged by what was fitted to them, nor by what was fitted to others of their cluster. What has to
hold patients in memory, models of care, thresholds and values, takes a sample at very large sites; policies are always
fitted to all.
"""

import logging
import os
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from fdtr import trajectories
from fdtr.errors import DisclosureError, OtherStudy, TooFewClusters
from fdtr.study import Study, require_study
from fdtr.trajectories import Trajectories
from fdtr.trajectories.device_rows import to_device as to_device
from fdtr.trajectories.partition import open_partition
from fdtr.trajectories.partition_writer import write_partition
from fdtr.trajectories.table_in_database import DatabaseTable
from fdtr.trajectories.table_sources import is_partition
from fdtr.tuning.ladder import N_FOLDS, assign_folds

Folds = NDArray[Any]
"""The fold of each patient, (n,): whole numbers in as few bytes as they need."""

log = logging.getLogger("fdtr.site")

_MADE: WeakKeyDictionary[Trajectories, dict[tuple[int, int, bytes], Folds]] = WeakKeyDictionary()
VALUED, JUDGED = 100_000, 50_000
"""Patients, more or less, who are valued at a very large site, and on whom it is judged what can be verified.

docs/methods.md has the errors that these numbers leave. Memory grows with them, and with the width of the features.
"""

_EVALUATION, _SAMPLE = b"evaluation", b"sample"
_HASHES = 2**32


def read_trajectories(source: Any, study: Study, site: str | None = None) -> Trajectories:
    """Read a table of trajectories with one row per patient and step; it may hold several sites.

    `source` is a CSV file, a Parquet file, a folder of Parquet files, a partition (`fdtr table partition`), whose rows
    stay on disk, a `DatabaseTable`, whose rows are copied to a private temporary folder until nothing uses them, or a
    dataframe of any library that narwhals knows. `site` names the one site of a table without a site column, or picks
    one of several. All faults of the table are reported together.

    >>> import pyarrow as pa
    >>> study = Study.model_validate({
    ...     "name": "fluids", "horizon": 2, "actions": {"levels": [0, 1]},
    ...     "covariates": [{"name": "sbp", "range": [40, 220]}],
    ... })
    >>> table = pa.table({
    ...     "patient": ["p", "p", "q", "q"], "step": [0, 1, 0, 1], "action": [0, 1, 1, 1],
    ...     "reward": [0.2, 0.9, 0.1, 0.4], "sbp": [90, 110, 60, 250],
    ... })
    >>> rows = read_trajectories(table, study, site="north")
    >>> rows, rows.clipped
    (<Trajectories: site "north", 2 patients, 4 rows, horizon 2>, {'sbp': 1})
    """
    require_study(study)
    if isinstance(source, DatabaseTable):
        from fdtr.cohort.database_table import read_database_table  # loads no driver elsewhere

        rows = read_database_table(source, study.table_layout, site)
    elif isinstance(source, str | os.PathLike) and is_partition(Path(source)):
        rows = open_partition(Path(source), study.table_layout, site)
    else:
        rows = trajectories.read(source, study.table_layout, site)
    log.info("read %d rows of %d patients at %d sites", rows.n_rows, rows.n_patients, len(rows.sites))
    return rows


def partition_table(study: Study, source: Any, folder: str | os.PathLike[str], site: str | None = None) -> Trajectories:
    """Check a table and write it to `folder` as a partition, and open that; for tables that do not fit into memory.

    `source` and `site` are as in `read_trajectories`, which takes the folder afterwards.

    >>> import tempfile, pyarrow as pa
    >>> study = Study.model_validate({
    ...     "name": "fluids", "horizon": 1, "actions": {"levels": [0, 1]},
    ...     "covariates": [{"name": "sbp", "range": [40, 220]}],
    ... })
    >>> table = pa.table({"patient": ["q", "p"], "step": [0, 0], "action": [0, 1], "reward": [0.2, 1], "sbp": [90, 80]})
    >>> with tempfile.TemporaryDirectory() as place:
    ...     rows = partition_table(study, table, f"{place}/rows", site="north")
    ...     print(rows, rows.patients.to_pylist())
    <Trajectories: site "north", 2 patients, 2 rows, horizon 1> ['p', 'q']
    """
    require_study(study)
    write_partition(source, study.table_layout, Path(folder), site)
    return open_partition(Path(folder), study.table_layout)


def require_rows(study: Study, rows: Trajectories) -> None:
    """Refuse anything but trajectories that were read with this study."""
    require_study(study)
    if not isinstance(rows, Trajectories):
        raise TypeError(f"Trajectories are needed, not {type(rows).__name__}: read_trajectories(table, study).")
    if rows.meaning != study.table_layout.meaning:
        raise OtherStudy("The rows were read with another study. Read them again with this one.")


def tuning_folds(study: Study, rows: Trajectories) -> Folds:
    """Fold of every patient for tuning the settings, (n,)."""
    folds = folds_of(rows, study.learning.seed)
    return _without_gaps(rows, folds) if rows.clustered else folds


def evaluation_folds(study: Study, rows: Trajectories, n_folds: int) -> Folds:
    """Fold of every patient for evaluating policies, (n,): `n_folds` of them, or fewer if there are few clusters."""
    folds = folds_of(rows, study.learning.seed, n_folds, _EVALUATION)
    if rows.clustered:
        return _without_gaps(rows, folds)
    if len(np.unique(folds)) < n_folds:
        n = rows.n_patients
        raise DisclosureError(
            "N",
            f"Site {rows.site!r} has {n} patient{'s' * (n != 1)}, too few to hold out one fold of {n_folds} after "
            "another. Its policies cannot be valued on its own patients.",
        )
    return folds


def folds_of(rows: Trajectories, seed: int, n_folds: int = N_FOLDS, purpose: bytes = b"") -> Folds:
    """`assign_folds` of a site's patients, made once for each table and setting: hashes of all ids take a while."""
    made = _MADE.setdefault(rows, {})
    setting = seed, n_folds, purpose
    if setting not in made:
        made[setting] = assign_folds(rows.units(), seed, n_folds, purpose)
        made[setting].flags.writeable = False
    return made[setting]


def draw_sample(study: Study, rows: Trajectories, size: int) -> NDArray[np.bool_]:
    """Which patients a sample of about `size` has, (n,): all of them where they are not more, or are a sample.

    Everybody is in it or not by a hash of the own id and the study's seed: with the same chance, whatever the fold and
    the cluster. A smaller sample is part of a larger one, and with more patients at the site a sample only loses some
    of the earlier ones.
    """
    n, seed = rows.n_patients, study.learning.seed
    if n <= size or rows.sample is not None:
        return np.ones(n, np.bool_)
    return np.asarray(assign_folds(rows.ids, seed, _HASHES, _SAMPLE) < _HASHES * size // n)


def sampled(study: Study, rows: Trajectories, size: int) -> Trajectories:
    """The patients of `draw_sample`; the rows as they are where these are all."""
    chosen = draw_sample(study, rows, size)
    return rows if chosen.all() else rows.draw(chosen)


def _without_gaps(rows: Trajectories, folds: Folds) -> Folds:
    """Folds numbered 0, 1, … without empty ones: ten clusters leave one of five folds empty every other time."""
    filled = np.unique(folds)
    if len(filled) < 2:
        n = rows.n_clusters
        raise TooFewClusters(
            f"Site {rows.site!r}: {rows.n_patients} patients of {n} cluster{'s' * (n != 1)} lie in one fold: "
            "none can be held out. Give another cluster column in [columns] of the study file, or none."
        )
    return np.searchsorted(filled, folds).astype(folds.dtype)
