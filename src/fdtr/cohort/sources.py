"""What reading files of another format gives, and how their paths stand in SQL."""

from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from fdtr.cohort.database import Database
from fdtr.cohort.steps import Extracted
from fdtr.cohort.writing import as_csv
from fdtr.errors import RefusedStatement, UnreadableFile


@dataclass(frozen=True, eq=False, repr=False)
class Read:
    """What was `extracted` from files."""

    extracted: Extracted

    @property
    def left_out(self) -> pa.Table:
        """How many entries could not be used: reason, name, entries."""
        return self.extracted.left_out

    @property
    def repeats(self) -> bool:
        """Whether some person has several stays."""
        stays, persons = (pc.count_distinct(self.extracted.table[name]).as_py() for name in ("patient", "person"))
        return bool(persons < stays)

    def left_out_as_csv(self) -> bytes:
        """The counts as a file."""
        return as_csv(self.left_out.to_pylist(), self.left_out.column_names)


def columns_of(db: Database, source: str, path: Path) -> set[str]:
    """The columns of a table function such as read_parquet('…'), which reads `path`; in small letters."""
    try:
        return {name.lower() for name in db.arrow(f"SELECT * FROM {source} LIMIT 0").column_names}
    except RefusedStatement as error:
        raise UnreadableFile(
            f"{path} could not be read: it is damaged, of another format, or not yours to read. Nothing was written."
        ) from error


def literal(text: str) -> str:
    """A text as SQL takes it, whatever it contains.

    >>> literal("St. Mary's")
    "'St. Mary''s'"
    """
    return "'" + text.replace("'", "''") + "'"
