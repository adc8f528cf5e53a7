"""Names of everything in a study's folder: its files, the parts of a round, and whose file is which.

study.toml                     the study, its roster included
rounds/1/hub/begun.fdtr        the hub: this round is open
rounds/1/receives/SITE.fdtr    a site sends nothing, and only receives the total
rounds/1/sums/SITE.fdtr        open rounds: a site's message
rounds/1/keys/SITE.fdtr        masked rounds: a site's keys for this round,
rounds/1/masked/SITE.fdtr        its masked message,
rounds/1/hub/survivors.fdtr      the hub's list of the sites that are left,
rounds/1/confirmed/SITE.fdtr     a site's signature under that list,
rounds/1/opened/SITE.fdtr        what removes its masks from the sum;
rounds/1/counts/SITE.fdtr        before these, the same four parts for counts of patients,
rounds/1/hub/counted.fdtr        on which the rules are judged
rounds/1/countsconfirmed/SITE.fdtr
rounds/1/countsopened/SITE.fdtr
rounds/1/hub/total.fdtr        the hub: the sums over all sites
"""

import hashlib
import os
import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from fdtr.errors import Exposed
from fdtr.signing import HUB

STUDY = "study.toml"
ROUNDS = "rounds"
SUFFIX = ".fdtr"
SUMS, TOTAL = "sums", "total"
BEGUN, KEYS, MASKED, SURVIVORS, CONFIRMED, OPENED = "begun", "keys", "masked", "survivors", "confirmed", "opened"
COUNTS, COUNTED, COUNTS_CONFIRMED, COUNTS_OPENED = "counts", "counted", "countsconfirmed", "countsopened"
RECEIVES = "receives"


class PhaseNames(NamedTuple):
    """The parts of one masked phase: of each site its numbers, its signature and its opening; of the hub its list."""

    masked: str
    survivors: str
    confirmed: str
    opened: str


COUNT_PHASE = PhaseNames(COUNTS, COUNTED, COUNTS_CONFIRMED, COUNTS_OPENED)
SUM_PHASE = PhaseNames(MASKED, SURVIVORS, CONFIRMED, OPENED)
SITE_PARTS = (RECEIVES, SUMS, KEYS, COUNTS, COUNTS_CONFIRMED, COUNTS_OPENED, MASKED, CONFIRMED, OPENED)
HUB_PARTS = (BEGUN, COUNTED, SURVIVORS, TOTAL)
MOST_ROUNDS = 9999
"""Rounds are looked for one by one, from the first: more than anybody needs, and few enough to look for."""


@lru_cache(maxsize=2**14)
def file_name(site: str) -> str:
    """The name of a site's file, different from every other site's on any file system.

    >>> file_name("North"), file_name("north"), file_name("../St. Mary's")
    ('north-43f853bbb592.fdtr', 'north-dc365e79d41c.fdtr', 'st.-mary-s-c16010d0855a.fdtr')
    """
    plain = re.sub(r"[^a-z0-9.]+", "-", site.lower()).strip("-.")[:40] or "site"
    return f"{plain}-{hashlib.sha256(site.encode()).hexdigest()[:12]}{SUFFIX}"


def round_folder(folder: Path, number: int) -> Path:
    """The folder of a round."""
    return folder / ROUNDS / str(number)


def part_path(folder: Path, number: int, part: str, sender: str) -> Path:
    """Where a site or the hub posts a part of a round."""
    place = round_folder(folder, number)
    return place / HUB / f"{part}{SUFFIX}" if sender == HUB else place / part / file_name(sender)


def begun_path(folder: Path, number: int) -> Path:
    """The file in which the hub says that a round is open."""
    return part_path(folder, number, BEGUN, HUB)


def last_round(folder: Path) -> int:
    """The number of rounds that were begun, one after the other.

    Rounds count only without a gap. Otherwise a round numbered far ahead would prevent every later one.
    """
    number = 0
    while number < MOST_ROUNDS and os.path.lexists(begun_path(folder, number + 1)):
        number += 1
    return number


def folder_of(path: Path) -> Path:
    """The study's folder in which a file lies, or the file's own folder. Strangers may write below a study's folder.

    >>> str(folder_of(Path("/share/fluids/rounds/1/hub/total.fdtr"))), str(folder_of(Path("/share/fluids/study.toml")))
    ('/share/fluids', '/share/fluids')
    """
    in_round = path.suffix == SUFFIX and len(path.parents) > 3 and path.parents[2].name == ROUNDS
    return path.parents[3] if in_round else path.parent


def require_apart(folder: Path, *private: tuple[str, Path | None]) -> None:
    """Refuse private files, each a name and a path, that lie in the shared folder."""
    for what, path in private:
        if path is not None and path.resolve().is_relative_to(folder.resolve()):
            raise Exposed(
                f"{what} {path} lies in the folder that all share. Nothing was written. Keep it where only its owner "
                "reads, and see who could read it so far."
            )


def sites_of(roster: Mapping[str, str]) -> tuple[str, ...]:
    """The sites of a roster: everybody but the hub."""
    return _sites_among(tuple(roster))


@lru_cache(maxsize=16)
def _sites_among(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(sorted(site for site in names if site != HUB))
