"""Commands that take a table: DATA, a file or a folder, or in its place --db ADDRESS with --table NAME."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click
from typer.core import TyperCommand, TyperOption

DATA = "data"
"""The parameter by which a function of a command takes its table, as a path or as a `DatabaseTable`."""

_DB, _TABLE = "db", "table"
_FROM_DATABASE = "fdtr.table_from_database"


class TableCommand(TyperCommand):
    """A command that takes a table of a database, too. With --db there is no DATA among its arguments."""

    def __init__(self, *arguments: Any, params: Sequence[click.Parameter], **settings: Any) -> None:
        place = [parameter.name for parameter in params].index(DATA) + 1
        super().__init__(*arguments, params=[*params[:place], *_database_options(), *params[place:]], **settings)

    @property
    def _has_data_option(self) -> bool:
        """Whether DATA is an option of the command and none of its arguments."""
        return any(each.name == DATA and isinstance(each, click.Option) for each in self.params)

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """All parameters; without DATA where the arguments name a table of a database."""
        params = super().get_params(ctx)
        return [each for each in params if not (each.name == DATA and ctx.meta.get(_FROM_DATABASE))]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the arguments, once it is known where the table is."""
        given, _, _ = self.make_parser(ctx).parse_args([*args])
        address, table = given.get(_DB), given.get(_TABLE)
        if given.get("help") or (address is None and table is None):
            return self._parse_with_data(ctx, args)
        if address is None:
            ctx.fail("--table names a table of a database: add --db ADDRESS, or leave --table out.")
        if table is None:
            ctx.fail("Say which table or view of the database to take: add --table NAME.")
        if (DATA in given and self._has_data_option) or self._superfluous(ctx, args):
            ctx.fail("The table is named twice. Leave DATA out, or --db and --table, which stand in its place.")
        rest = super().parse_args(ctx, args)
        from fdtr.trajectories.table_in_database import DatabaseTable  # no help page needs it

        ctx.params[DATA] = DatabaseTable(address, table)
        return rest

    def _superfluous(self, ctx: click.Context, args: list[str]) -> list[str]:
        """The arguments that are too many without DATA, which has no place from here on."""
        ctx.meta[_FROM_DATABASE] = True
        _, superfluous, _ = self.make_parser(ctx).parse_args([*args])
        return superfluous

    def _parse_with_data(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.MissingParameter as error:
            if error.param is not None and error.param.name == DATA:
                ctx.fail("Name the table: a file or folder, or a table of a database with --db ADDRESS --table NAME.")
            raise


def _database_options() -> list[click.Parameter]:
    return [
        TyperOption(
            param_decls=["--db"],
            metavar="ADDRESS",
            expose_value=False,
            help="A database in place of a file, only read: duckdb:FILE or postgresql://USER@HOST/DB",
        ),
        TyperOption(
            param_decls=["--table"],
            metavar="NAME",
            expose_value=False,
            help="The table or view of --db to take.",
        ),
    ]
