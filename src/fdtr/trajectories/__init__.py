"""Trajectories: the long table, checked once, as contiguous arrays by site and step."""

from fdtr.trajectories.table_sources import Covariate, TableLayout
from fdtr.trajectories.trajectory_data import CHUNK_ROWS, Chunk, ManySites, Sample, Step, Trajectories, read, rows_at

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
