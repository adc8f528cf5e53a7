"""The commands of a round through a shared folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fdtr.cli import show
from fdtr.cli.options import Json, agreed, spare_inputs
from fdtr.cli.roles import hub_app, site_app
from fdtr.cli.signed import KeyPath, load_key
from fdtr.errors import FdtrError

if TYPE_CHECKING:
    from fdtr.disclosure import Message
    from fdtr.exchange.folder.round_status import RoundStatus, StepsTaken
    from fdtr.exchange.site_state.joined_folders import JoinedFolder

FolderPath = Annotated[Path, typer.Argument(metavar="FOLDER", help="The study's folder, which all parties share.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask before anything is posted.")]


@hub_app.command("open")
def open_folder(
    folder: FolderPath,
    study: Annotated[Path, typer.Argument(metavar="STUDY", help="The study file (TOML), roster included.")],
    key: KeyPath = None,
    json: Json = False,
) -> None:
    """Make a folder through which hub and sites run the study, and open its first round."""
    from fdtr.exchange.folder.hub_steps import open_folder as make
    from fdtr.exchange.folder_layout import require_apart

    require_apart(folder, ("The key", key))
    _told(make(folder, study, load_key(key)), json)


@hub_app.command("next")
def hub_next(
    folder: FolderPath,
    key: KeyPath = None,
    close: Annotated[bool, typer.Option("--close", help="Wait no longer: go on with those who are there.")] = False,
    without: Annotated[list[str] | None, typer.Option("--without", help="Do not wait for this site.")] = None,
    json: Json = False,
) -> None:
    """Do the hub's next step: list the survivors of a masked round, add up, post the total. Says what it waits for."""
    from fdtr.exchange.folder.hub_steps import take_hub_steps
    from fdtr.exchange.folder_layout import require_apart

    require_apart(folder, ("The key", key))
    _told(take_hub_steps(folder, load_key(key), close, without or ()), json)


@hub_app.command("new-round")
def new_round(folder: FolderPath, key: KeyPath = None, yes: Yes = False, json: Json = False) -> None:
    """Begin another round: when a site was lost after the list of survivors, or the roster changed.

    What was posted before counts no more, and sites destroy their masks of the round that is given up.
    """
    from fdtr.exchange.folder.hub_steps import new_round as begin

    if not yes and not agreed(f"Give the present round in {folder} up, for all sites?"):
        raise FdtrError("Nothing was written.")
    _told(begin(folder, load_key(key)), json)


@site_app.command()
def join(
    folder: FolderPath,
    site: Annotated[str, typer.Option("--site", help="This site's name, as in the roster.")],
    data: Annotated[Path, typer.Option("--data", help="This site's table. It stays here.")],
    key: KeyPath = None,
    study: Annotated[
        Path | None, typer.Option(help="A study file of the same study with this site's own [columns].")
    ] = None,
    json: Json = False,
) -> None:
    """Remember a study's folder, and accept the study and the roster in it. Posts nothing.

    Compare the fingerprints that it prints by telephone: from here on, another roster in the folder is refused.
    """
    from fdtr.exchange.folder.site_session import join as remember
    from fdtr.study import Study

    home = remember(folder, site, data, key, load_key(key), Study.load(study) if study else None)
    if json:
        show.as_json({"site": site, "study": home.study.name, "fingerprint": home.study.fingerprint})
        return
    show.line(f"Joined {folder} as {site}. Nothing was posted.")
    _accepted(home)
    show.line(f"Next: {show.program()} site next {folder} --site {site}")


def _accepted(home: JoinedFolder) -> None:
    from fdtr.exchange.folder.round_snapshot import cautions
    from fdtr.signing import fingerprint_of

    study = home.study
    way = "a secure sum: nobody sees this site's sums" if study.disclosure.secure_sum else "open"
    show.line(f"The study {study.name}, fingerprint {study.fingerprint[:32]}; {way}.")
    for caution in cautions(study):
        show.note(caution)
    if not study.disclosure.secure_sum:
        show.note("whoever can read the folder can read this site's sums. See secure_sum under [disclosure].")
    if not study.roster:
        show.note("unsigned: the study has no [roster], so nobody can tell who made a file. See `fdtr keys new`.")
        return
    rows = [[name, fingerprint_of(key).hex, fingerprint_of(key).words] for name, key in study.roster.items()]
    show.table("Who may speak: compare by telephone", ["site", "fingerprint", "in words"], rows)


@site_app.command("next")
def site_next(
    folder: Annotated[
        Path | None, typer.Argument(metavar="FOLDER", help="The study's folder; needed where several were joined.")
    ] = None,
    site: Annotated[str | None, typer.Option("--site", help="This site; needed where several joined here.")] = None,
    out: Annotated[Path | None, typer.Option(help="The policy to write at the end; confidential to this site.")] = None,
    yes: Yes = False,
    json: Json = False,
) -> None:
    """Do this site's next step in a study's folder, and say what it waits for.

    Sums leave only after the disclosure rules, the ledger, and you agreed. The last step checks the total and writes
    this site's policy.
    """
    from fdtr.exchange.folder.site_steps import take_site_steps
    from fdtr.exchange.folder_layout import require_apart
    from fdtr.exchange.release import describe_message
    from fdtr.exchange.site_state.joined_folders import find_joined

    home = find_joined(folder, site)
    require_apart(home.folder, ("The policy", out))
    if out is not None:
        spare_inputs(out, home.data, home.key)

    def agree(message: Message) -> bool:
        for sentence in () if json else describe_message(home.study, message):
            show.line(sentence)
        how = "masked, so that nobody can read it" if home.study.disclosure.secure_sum else "where all parties read it"
        return yes or agreed(f"Post this in {home.folder}, {how}?")

    _told(take_site_steps(home, load_key(home.key), agree, out), json)


def _told(turn: StepsTaken, machine: bool) -> None:
    if machine:
        show.as_json(
            {
                "round": turn.number,
                "done": list(turn.done),
                "waits": turn.waits,
                "notes": list(turn.notes),
                "policy": str(turn.policy) if turn.policy else None,
            }
        )
        return
    for note in turn.notes:
        show.note(note)
    for done in turn.done:
        show.line(done)
    if turn.waits:
        show.line(f"Waiting for: {turn.waits}")
    elif not turn.done:
        show.line(f"Nothing is left to do in round {turn.number}.")


def status(folder: FolderPath, json: Json = False) -> None:
    """Who is where in a study's folder, with every signature checked. Anybody may look; nothing is written."""
    from fdtr.exchange.folder.round_snapshot import read_round
    from fdtr.exchange.folder.round_status import status_of

    found = status_of(read_round(folder))
    if json:
        show.as_json({**vars(found), "faults": list(found.faults)})
    else:
        _shown(found)


def _shown(found: RoundStatus) -> None:
    for fault in found.faults:
        show.note(fault)
    kind = "masked" if found.masked else "open"
    keys = "signed" if found.signed else "unsigned"
    parts = list(next(iter(found.sites.values()), {}))
    rows = [[site, *("yes" if there else "–" for there in given.values())] for site, given in found.sites.items()]
    show.table(f"{found.study}: round {found.number}, {kind}, {keys}", ["site", *parts], rows)
    if found.survivors is not None:
        show.line(f"Survivors: {', '.join(found.survivors)}")
    if found.total is not None:
        show.line(f"Total of: {', '.join(found.total)}")
    show.line(f"Next: {found.next}")
