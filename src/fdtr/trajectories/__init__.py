"""Trajectories: the long table, checked once, as contiguous arrays by site and step."""

from fdtr.trajectories.chunks import CHUNK_ROWS, Chunk, Step
from fdtr.trajectories.rows_in_memory import rows_at
from fdtr.trajectories.table_sources import Covariate, TableLayout
from fdtr.trajectories.trajectory_data import ManySites, Sample, Trajectories, read

__all__ = [
    "CHUNK_ROWS",
    "Chunk",
    "Covariate",
    "ManySites",
    "Sample",
    "Step",
    "TableLayout",
    "Trajectories",
    "read",
    "rows_at",
]
