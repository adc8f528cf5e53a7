"""A user's list of hospitalizations and onsets, since CLIF tables hold none."""

import csv
from datetime import UTC, datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pyarrow as pa

from fdtr.errors import UnreadableFile

SCHEMA = pa.schema({"hospitalization_id": pa.string(), "onset": pa.timestamp("us")})
NO_ONSETS = SCHEMA.empty_table()


def read_onsets(path: Path, zone: str) -> pa.Table:
    """CSV with the columns hospitalization_id and onset, as instants in UTC.

    Times that state an offset are taken as they are, those that state none as local times of `zone`.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError):
        raise UnreadableFile(
            f"The list of onsets {path} could not be read. Nothing was written. Is it a CSV file in UTF-8?"
        ) from None
    try:
        rows = list(csv.DictReader(text.splitlines()))
        ids = [row["hospitalization_id"].strip() for row in rows]
        times = [_instant(row["onset"], zone) for row in rows]
    except (AttributeError, KeyError, OverflowError, ValueError, csv.Error):
        rows = []
    if not rows:
        raise UnreadableFile(
            f"The list of onsets {path} needs a column hospitalization_id and a column onset with times such as "
            "2150-03-01 08:00:00 in every line. Nothing was written."
        )
    if len(set(ids)) < len(ids):
        raise UnreadableFile(
            f"The list of onsets {path} has a hospitalization_id in two lines. Nothing was written. Keep one of them."
        )
    return pa.table([ids, times], schema=SCHEMA)


def _instant(text: str, zone: str) -> datetime:
    time = datetime.fromisoformat(text.strip())
    local = time.replace(tzinfo=ZoneInfo(zone)) if time.tzinfo is None else time
    return local.astimezone(UTC).replace(tzinfo=None)
