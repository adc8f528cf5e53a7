"""Where everything lies in a study's folder, and under which name."""

import hashlib
import re
from functools import lru_cache
from pathlib import Path

STUDY = "study.toml"
ROUNDS = "rounds"
SUMS, TOTAL = "sums", "total"
SUFFIX = ".fdtr"


@lru_cache(maxsize=2**14)
def file_name(site: str) -> str:
    """A site's file, told apart from every other site's on any file system, whatever its name is.

    >>> file_name("North"), file_name("north"), file_name("../St. Mary's")
    ('north-43f853bbb592.fdtr', 'north-dc365e79d41c.fdtr', 'st.-mary-s-c16010d0855a.fdtr')
    """
    plain = re.sub(r"[^a-z0-9.]+", "-", site.lower()).strip("-.")[:40] or "site"
    return f"{plain}-{hashlib.sha256(site.encode()).hexdigest()[:12]}{SUFFIX}"


def round_folder(folder: Path, number: int) -> Path:
    """Where a round's files lie."""
    return folder / ROUNDS / str(number)


def folder_of(path: Path) -> Path:
    """The study's folder that a file lies in: whatever is below it is in strangers' hands; of other files, their own.

    >>> str(folder_of(Path("/share/fluids/rounds/1/hub/total.fdtr"))), str(folder_of(Path("/share/fluids/study.toml")))
    ('/share/fluids', '/share/fluids')
    """
    in_round = path.suffix == SUFFIX and len(path.parents) > 3 and path.parents[2].name == ROUNDS
    return path.parents[3] if in_round else path.parent
