"""The commands of `fdtr`, by role. Help pages list this table; a command's module is imported when it runs."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from inspect import signature
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeAlias

import typer
from typer.core import TyperCommand, TyperGroup

from fdtr import __version__
from fdtr.cli.table_command import DATA, TableCommand

if TYPE_CHECKING:
    import click


class Command(NamedTuple):
    """A command: "module:function" of `fdtr.cli`, and the first sentence of the function's docstring."""

    function: str
    summary: str

    def load(self, name: str) -> click.Command:
        """Import the function's module and let typer read the function's options."""
        module, _, name_in_module = self.function.partition(":")
        function = getattr(import_module(f"fdtr.cli.{module}"), name_in_module)
        program = typer.Typer(add_completion=False)
        program.command(name, cls=TableCommand if DATA in signature(function).parameters else None)(function)
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
    """A group that imports the one command that is called; without `panels`, the program itself."""

    def __init__(self, *, panels: Panels | None = None, **settings: Any) -> None:
        # click suggests similar names by itself; typer would say them once more.
        super().__init__(**{**settings, "suggest_commands": False})
        for panel, entries in (COMMANDS if panels is None else panels).items():
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


_SITE: Panels = {
    "By files": {
        "summarize": Command("site_commands:summarize", "Compute this site's message and write one file."),
        "fit": Command("site_commands:fit", "Finish this site's policy at home from the hub's total."),
        "evaluate": Command("site_commands:evaluate", "Value every method on this site's own patients."),
        "withdraw": Command("site_commands:withdraw", "Remove a message that was never sent from the ledger."),
    },
    "Through a shared folder": {
        "join": Command("site_commands:join", "Join a study's folder: accept the study and the roster in it."),
        "next": Command("site_commands:site_next", "Do this site's next step in a study's folder."),
    },
    "Over a network": {
        "serve": Command("network_commands:serve_site", "Answer the hub's questions until stopped."),
    },
    "As a package for CLIF sites": {
        "package": Command("package_commands:package", "Make a folder that the analysts of CLIF sites run."),
        "run": Command(
            "package_commands:run_package", "Run this site's package: write one message of sums and a Table 1."
        ),
    },
}
_HUB: Panels = {
    "By files": {
        "combine": Command("hub_commands:combine", "Add the sites' messages into one total and write one file."),
        "pool": Command("hub_commands:pool", "Pool the sites' values of each method."),
    },
    "Through a shared folder": {
        "open": Command("hub_commands:open_folder", "Make a folder through which hub and sites run the study."),
        "next": Command("hub_commands:hub_next", "Do the hub's next step in a study's folder."),
        "new-round": Command("hub_commands:new_round", "Begin another round."),
    },
    "Over a network": {
        "certificates": Command(
            "network_commands:certificates", "Make certificates for a trial, which end after 90 days."
        ),
        "serve": Command("network_commands:serve_hub", "Let sites connect, until stopped."),
        "start-round": Command(
            "network_commands:start_round", "Run the study's round with the sites that are connected."
        ),
    },
}
_EXTRACT: Panels = {
    "Sources": {
        "mimic-iv": Command("extract_commands:mimic_iv", "A sepsis cohort like the paper's from MIMIC-IV."),
        "clif": Command("extract_commands:clif", "CLIF tables as a table of trajectories with a draft of its study."),
        "meds": Command("extract_commands:meds", "MEDS events as a table of trajectories with a draft of its study."),
        "minari": Command("extract_commands:minari", "Episodes of Minari datasets as a table of trajectories."),
    }
}
_TABLE: Panels = {
    "Commands": {"partition": Command("table_commands:partition", "Write a table to disk step by step, checked once.")}
}
_STUDY: Panels = {
    "Commands": {
        "schema": Command("study_commands:schema", "Print the JSON Schema of a study file."),
        "fingerprint": Command("study_commands:fingerprint", "Print a study's fingerprint."),
    }
}
_POLICY: Panels = {
    "Commands": {
        "recommend": Command("policy_commands:recommend", "Show what a policy would do for one state, and why.")
    }
}
_MESSAGE: Panels = {
    "Commands": {"show": Command("message_commands:show_message", "Show every number in a message with its meaning.")}
}
_KEYS: Panels = {
    "Commands": {
        "new": Command("study_commands:new", "Make a key pair and write the private key into one file."),
        "show": Command("study_commands:show_key", "Print the public half of a key, and its fingerprint."),
        "node": Command("study_commands:node", "Make the key by which the hub's server knows this machine."),
    }
}
_ROSTER: Panels = {
    "Commands": {
        "add": Command("study_commands:add", "Write a site's public key into the study file."),
        "remove": Command("study_commands:remove", "Take a site out of the roster."),
        "replace": Command("study_commands:replace", "Give a site a new key."),
        "show": Command("study_commands:show_roster", "Print every site's fingerprint, and one of the whole roster."),
    }
}
_AUDIT: Panels = {
    "Commands": {
        "verify": Command("network_commands:verify", "Check that no line of an audit was changed, removed or moved.")
    }
}

COMMANDS: Panels = {
    "Try it": {
        "demo": Command("table_commands:demo", "Run a complete example study on simulated hospitals."),
        "simulate": Command(
            "simulate_command:simulate", "Draw a world whose truth is known: a table and its study file."
        ),
        "run": Command("table_commands:run", "Fit all sites of one table, alone and together, and report."),
        "report": Command("table_commands:report", "Write the report of a folder of results anew."),
    },
    "Study and policy": {
        "extract": Group(
            "From a hospital's tables to a study's table. Writes one folder on this machine; sends nothing.", _EXTRACT
        ),
        "init": Command("table_commands:init", "Draft a study file from a table."),
        "check": Command("table_commands:check", "What a table holds, can identify, and may release."),
        "tune": Command("table_commands:tune", "How each site's held-out patients judge sharing, λ and usual care."),
        "table": Group("Prepare a table that is too large for memory.", _TABLE),
        "study": Group("The study file itself: its schema and its fingerprint.", _STUDY),
        "policy": Group("Use a policy: what it would do for one state, and why.", _POLICY),
        "message": Group("Show what a message holds.", _MESSAGE),
    },
    "At a site": {
        "site": Group("A hospital's part: send sums, finish a policy, value it.", _SITE),
        "keys": Group("Make and show the key that signs a site's messages.", _KEYS),
        "audit": Group("What a site was asked, checked and sent.", _AUDIT),
    },
    "At the hub": {
        "hub": Group("The hub's part: add up what sites send, and pool their values.", _HUB),
        "roster": Group("Who may speak in a study: a public key for each site.", _ROSTER),
        "status": Command("hub_commands:status", "Who is where in a study's folder."),
    },
}


app = typer.Typer(
    name="fdtr",
    cls=CommandGroup,
    help="Hospitals learn a treatment rule together. Each sends sums over its patients, never a row. "
    "Research software, not for bedside use.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"fdtr {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show where an error came from; may quote data.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="Say what is being done.")] = False,
    threads: Annotated[
        int | None,
        typer.Option("--threads", min=1, help="Use so many threads; as many as there are cores if left out."),
    ] = None,
) -> None:
    """Options that every command takes."""
