"""Trajectories: the long table, checked once, as contiguous arrays by site and step."""

from fdtr.trajectories.data import CHUNK_ROWS, Chunk, Step, Trajectories, read
from fdtr.trajectories.tables import Covariate, TableLayout

__all__ = ["CHUNK_ROWS", "Chunk", "Covariate", "Step", "TableLayout", "Trajectories", "read"]
