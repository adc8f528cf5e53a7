"""What reading files of another format gives, and how their paths stand in SQL."""

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from fdtr.cohort.steps import Extracted
from fdtr.cohort.writing import as_csv


@dataclass(frozen=True, eq=False, repr=False)
class Read:
    """What was `extracted`, and how many entries were `left_out` on the way: reason, name, entries."""

    extracted: Extracted
    left_out: pa.Table

    @property
    def repeats(self) -> bool:
        """Whether some person has several stays."""
        stays, persons = (pc.count_distinct(self.extracted.table[name]).as_py() for name in ("patient", "person"))
        return bool(persons < stays)

    def left_out_as_csv(self) -> bytes:
        """The counts as a file."""
        return as_csv(self.left_out.to_pylist(), self.left_out.column_names)


def literal(text: str) -> str:
    """A text as SQL takes it, whatever it contains.

    >>> literal("St. Mary's")
    "'St. Mary''s'"
    """
    return "'" + text.replace("'", "''") + "'"
