"""A site's Table 1 as a file: CSV, for people and spreadsheets."""

import csv
import io
from pathlib import Path

from fdtr import container
from fdtr.disclosure import TableOne

HEADINGS = ("variable", "level", "patients", "percent", "mean", "standard_deviation")


def write_table(table: TableOne, path: str | Path) -> None:
    """Write a Table 1. Takes only what `disclosure.release_table` made."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(HEADINGS)
    writer.writerows(row.cells for row in table.rows)
    container.write_atomically(path, text.getvalue().encode())
