"""Changing the [roster] of a study file, and nothing else in it: comments and order stay as people wrote them."""

import re
from collections.abc import Mapping
from pathlib import Path

from fdtr.container import write_atomically
from fdtr.errors import InvalidStudy
from fdtr.study.model import Study, read_study_bytes

_TABLE = re.compile(r"^\s*\[\s*roster\s*\]\s*(#.*)?$")
_ANY_TABLE = re.compile(r"^\s*\[")


def set_roster(path: str | Path, roster: Mapping[str, str]) -> Study:
    """Give a study file this roster; returns the study as it is then.

    The file is written only where it then reads as the same study with that roster.
    """
    content = read_study_bytes(path)
    before, text = Study.parse(content, path), content.decode("utf-8-sig")
    wanted = Study.model_validate({**before.model_dump(), "roster": dict(roster)})
    after = _with_roster(text, wanted.roster)
    try:
        found = Study.model_validate(_parsed(after))
    except InvalidStudy:
        found = None
    if found != wanted:
        raise InvalidStudy(
            f"{path}: its roster is not a table [roster] with a line for each site. It was left as it is. Put it into "
            "that form, at the end of the file."
        )
    write_atomically(path, after.encode(), mode=Path(path).stat().st_mode & 0o777)
    return wanted


def _parsed(text: str) -> object:
    import tomllib

    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return None


def _with_roster(text: str, roster: Mapping[str, str]) -> str:
    """`text` with the lines of its [roster] replaced, at its place or else at the end."""
    import tomli_w

    lines = text.splitlines()
    entries = tomli_w.dumps(dict(roster)).splitlines()
    starts = [i for i, line in enumerate(lines) if _TABLE.match(line)]
    if not starts:
        while lines and not lines[-1].strip():
            lines.pop()
        return "\n".join([*lines, "", "[roster]  # who may speak: compare fingerprints by telephone", *entries, ""])
    start = starts[0] + 1
    end = next((i for i in range(start, len(lines)) if _ANY_TABLE.match(lines[i])), len(lines))
    comments = [line for line in lines[start:end] if line.lstrip().startswith("#")]
    rest = lines[end:]
    return "\n".join([*lines[:start], *comments, *entries, *(["", *rest] if rest else []), ""])
