"""The few words in which DuckDB and PostgreSQL differ, written in SQL files as {{word(arguments)}}."""

import re
from collections.abc import Callable, Mapping
from importlib.resources import files

_WORD = re.compile(r"\{\{\s*(\w+)\(([^{}]*)\)\s*\}\}")

Word = Callable[..., str]

DIALECTS: Mapping[str, Mapping[str, Word]] = {
    "duckdb": {
        # Whole microseconds from a to b: exact, so that both engines cut windows at the same instant.
        "microseconds": lambda a, b: f"(epoch_us(CAST({b} AS TIMESTAMP)) - epoch_us(CAST({a} AS TIMESTAMP)))",
    },
    "postgresql": {
        "microseconds": lambda a, b: (
            f"CAST(EXTRACT(EPOCH FROM (CAST({b} AS TIMESTAMP) - CAST({a} AS TIMESTAMP))) * 1000000 AS BIGINT)"
        ),
    },
}


def translate(sql: str, dialect: str) -> str:
    """`sql` in the words of one engine.

    >>> translate("SELECT {{microseconds(a, b)}}", "duckdb")
    'SELECT (epoch_us(CAST(b AS TIMESTAMP)) - epoch_us(CAST(a AS TIMESTAMP)))'
    """
    words = DIALECTS[dialect]
    return _WORD.sub(lambda found: words[found[1]](*(part.strip() for part in found[2].split(","))), sql)


def statement(path: str) -> str:
    """The SQL of one concept: a file under cohort/sql, such as "steps" or "mimic_iv/weight"."""
    return files("fdtr.cohort").joinpath("sql", *f"{path}.sql".split("/")).read_text(encoding="utf-8")


def quoted(name: str) -> str:
    """A name as SQL takes it, whatever it contains.

    >>> quoted('a"b')
    '"a""b"'
    """
    return '"' + name.replace('"', '""') + '"'


def dotted(table: str) -> str:
    """schema.table, each part quoted.

    >>> dotted("mimiciv_icu.icustays")
    '"mimiciv_icu"."icustays"'
    """
    return ".".join(quoted(part) for part in table.split("."))
