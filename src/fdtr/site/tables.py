"""A site's table as the study reads it."""

import logging
from typing import Any

from fdtr import trajectories
from fdtr.errors import OtherStudy
from fdtr.study import Study
from fdtr.trajectories import Trajectories

log = logging.getLogger("fdtr.site")


def read_trajectories(source: Any, study: Study, site: str | None = None) -> Trajectories:
    """Read a table of trajectories: CSV, Parquet (a file or a folder), or a dataframe; it may hold many sites.

    Every fault is found in one pass and reported together. `site` names the one site of a table without a site
    column, or picks one of several.
    """
    require_study(study)
    found = trajectories.read(source, study.table_layout, site)
    log.info("read %d rows of %d patients at %d sites", found.n_rows, found.n_patients, len(found.sites))
    return found


def require_study(study: Study) -> None:
    """Refuse what is no study."""
    if not isinstance(study, Study):
        raise TypeError(
            f"A Study is needed, not {type(study).__name__}: Study.load(path) or Study.model_validate({{…}})."
        )


def require_rows(study: Study, rows: Trajectories) -> None:
    """Refuse what are no rows of this study."""
    require_study(study)
    if not isinstance(rows, Trajectories):
        raise TypeError(f"Trajectories are needed, not {type(rows).__name__}: read_trajectories(table, study).")
    if rows.meaning != study.table_layout.meaning:
        raise OtherStudy("The rows were read with another study. Read them again with this one.")
