"""Commands that help pages list from a table, and that are imported only when they run."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import typer
from typer.core import TyperCommand, TyperGroup

if TYPE_CHECKING:
    import click


class Command(NamedTuple):
    """A command: "module:function" of `fdtr.cli`, and the first sentence of the function's docstring."""

    function: str
    summary: str

    def load(self, name: str) -> click.Command:
        """Import the function's module and let typer read the function's options."""
        module, _, function = self.function.partition(":")
        program = typer.Typer(add_completion=False)
        program.command(name)(getattr(import_module(f"fdtr.cli.{module}"), function))
        return typer.main.get_command(program)


class Group(NamedTuple):
    """A command with commands of its own, such as `fdtr site`."""

    summary: str
    panels: Panels


Panels: TypeAlias = Mapping[str, Mapping[str, Command | Group]]
"""What a help page lists: under the title of each panel its commands by name, in the order of use."""


class ListedCommand(TyperCommand):
    """A command as a help page lists it. Nothing of it is imported yet."""

    def __init__(self, name: str, command: Command, panel: str) -> None:
        super().__init__(name, help=command.summary, rich_help_panel=panel)
        self.command = command


class CommandGroup(TyperGroup):
    """A group that imports the one command that is called."""

    def __init__(self, *, panels: Panels, **settings: Any) -> None:
        # click suggests similar names by itself; typer would say them once more.
        super().__init__(**{**settings, "suggest_commands": False})
        for panel, entries in panels.items():
            for name, entry in entries.items():
                self.commands[name] = _listed(name, entry, panel)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that the arguments name, and import it."""
        name, command, rest = super().resolve_command(ctx, args)
        if isinstance(command, ListedCommand):
            command = command.command.load(name or "")
        return name, command, rest


def _listed(name: str, entry: Command | Group, panel: str) -> click.Command:
    if isinstance(entry, Command):
        return ListedCommand(name, entry, panel)
    return CommandGroup(name=name, panels=entry.panels, help=entry.summary, no_args_is_help=True, rich_help_panel=panel)
