"""Errors of a database in sentences: what failed, at which tables, and what to do.

The driver's own text may quote a patient's value or a part of a password, so none of it is passed on.
"""

from collections.abc import Sequence

from fdtr.errors import NotPermitted, RefusedStatement, Unreachable, UnsuitableTables


def joined(names: Sequence[str]) -> str:
    """Names joined as in a sentence.

    >>> joined(["a", "b", "c"])
    'a, b and c'
    """
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def missing_table() -> UnsuitableTables:
    """A statement names a table that does not exist."""
    return UnsuitableTables("The database lacks a table that this extraction reads. Nothing was written.")


def missing_column(tables: Sequence[str]) -> UnsuitableTables:
    """A statement names a column that does not exist, or compares columns of different types."""
    where = joined(tables) if len(tables) == 1 else f"One of {joined(tables)}" if tables else "A table of the database"
    return UnsuitableTables(
        f"{where} lacks a column that this extraction reads, or has another type there. Nothing was written. Is it a "
        "newer or older version of the format?"
    )


def unsuitable_value(tables: Sequence[str], column: str = "") -> UnsuitableTables:
    """A value has the wrong type, such as the text "<0.5" in place of a number."""
    where = f"The column {column} of {joined(tables)}" if column else f"A column of {_names(tables)}"
    return UnsuitableTables(
        f"{where} holds text that is no number, or no time such as 2150-03-01 08:00:00, where one is needed. Nothing "
        "was written. Convert the column where the table is loaded: text that is no number to an empty value, times to "
        "TIMESTAMP."
    )


def permission_denied(tables: Sequence[str], user: str = "") -> NotPermitted:
    """The user has no permission to read `tables`."""
    role = user or "YOUR_ROLE"
    if not tables:
        return NotPermitted(
            "The database refuses permission to read one of its tables, or to make temporary ones. Nothing was "
            "written. Ask its administrator for SELECT on the tables, USAGE on their schemas, and TEMPORARY on the "
            "database."
        )
    schemas = sorted({table.partition(".")[0] for table in tables})
    return NotPermitted(
        f"The database refuses permission to read {joined(tables)}. Nothing was written. Ask its administrator for: "
        f"GRANT USAGE ON SCHEMA {', '.join(schemas)} TO {role}; GRANT SELECT ON {', '.join(tables)} TO {role};"
    )


def no_temporary_tables(database: str, user: str) -> NotPermitted:
    """The user may read, but may not make temporary tables."""
    return NotPermitted(
        "The database lets you read, and not make the temporary tables that an extraction takes. Nothing was written. "
        f"Ask its administrator for: GRANT TEMPORARY ON DATABASE {database} TO {user};"
    )


def read_only() -> NotPermitted:
    """The session, or the whole server, allows no CREATE, not even of temporary tables."""
    return NotPermitted(
        "The database lets this session only read, and an extraction makes temporary tables, which end with it. "
        "Nothing was written. Connect as a role without default_transaction_read_only, and to the primary server where "
        "this one is a standby copy."
    )


def statement_stopped(tables: Sequence[str]) -> RefusedStatement:
    """The server stopped a statement: a timeout, or somebody cancelled it."""
    return RefusedStatement(
        f"The database stopped reading {_names(tables)}: it took longer than statement_timeout or lock_timeout allows, "
        "or somebody cancelled it. Nothing was written. Ask its administrator for more time, or set it yourself: "
        "PGOPTIONS='-c statement_timeout=0' before the command."
    )


def connection_lost(tables: Sequence[str]) -> Unreachable:
    """The connection to the server broke during the session."""
    return Unreachable(
        f"The connection to the database was lost while {_names(tables)} was read. Nothing was written. Run the same "
        "command again; where it is lost again, ask the administrator whether the server ends long sessions."
    )


def server_full() -> RefusedStatement:
    """The server has no memory or disk left."""
    return RefusedStatement(
        "The database server has no memory or disk left for the temporary tables of an extraction. Nothing was "
        "written. Ask its administrator to make room (temp_file_limit, the disk of its temporary files), or try when "
        "it is idle."
    )


def memory_limit_reached(limit: str) -> RefusedStatement:
    """DuckDB reached its memory `limit`."""
    return RefusedStatement(
        f"DuckDB needs more memory than the {limit} that it may take. Nothing was written. Give it more, such as "
        "--memory 8GB, if the machine has it."
    )


def disk_full(tables: Sequence[str]) -> RefusedStatement:
    """DuckDB's temporary files do not fit on the disk."""
    return RefusedStatement(
        f"The disk became full while {_names(tables)} was read: DuckDB puts into temporary files what does not fit its "
        "memory. Nothing was written. Make room, name a larger place with TMPDIR, or give more with --memory."
    )


def damaged_file(tables: Sequence[str]) -> RefusedStatement:
    """A file is damaged or truncated."""
    return RefusedStatement(
        f"Not all of {_names(tables)} could be read: a file is damaged, or was cut short when it was copied. Nothing "
        "was written. Copy it again from where it came from, or load the table anew."
    )


def other_failure(error: Exception, tables: Sequence[str]) -> RefusedStatement:
    """Any other failure. The message names the kind of error, never the driver's text."""
    return RefusedStatement(
        f"The database could not do what it was asked ({type(error).__name__}) with {_names(tables)}. Nothing was "
        "written. Run the same command with --debug to see more; that may quote data, so read it before you pass it on."
    )


def _names(tables: Sequence[str]) -> str:
    return joined(tables) if tables else "the database"
