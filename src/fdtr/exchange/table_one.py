"""A site's Table 1 as a file: CSV, for people and spreadsheets."""

import csv
import io
from pathlib import Path

from fdtr import container
from fdtr.disclosure import TableOne

HEADINGS = ("site", "variable", "unit", "level", "patients", "percent", "mean", "standard_deviation")


def lines_of(table: TableOne) -> list[list[str]]:
    """Its lines under `HEADINGS`."""
    return [[table.site, *row.cells] for row in table.rows]


def write_table(table: TableOne, path: str | Path) -> None:
    """Write a Table 1, the site in every line, so that those of many sites may be put into one.

    Takes only what `disclosure.release_table` made.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(HEADINGS)
    writer.writerows(lines_of(table))
    container.write_atomically(path, text.getvalue().encode())
