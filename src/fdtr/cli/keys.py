"""The commands of keys, and of the roster that says whose they are."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fdtr.cli import show
from fdtr.cli.options import Json, StudyPath
from fdtr.cli.signed import load_key, passphrase
from fdtr.errors import InvalidStudy, WrongSite

if TYPE_CHECKING:
    from fdtr.signing import Fingerprint
    from fdtr.study import Study

keys_app = typer.Typer(help="Make and show the key that signs a site's messages.", no_args_is_help=True)
roster_app = typer.Typer(help="Who may speak in a study: a public key for each site.", no_args_is_help=True)

Site = Annotated[str, typer.Argument(metavar="SITE", help="A site's name, or hub.")]
Public = Annotated[str, typer.Argument(metavar="KEY", help="Its public key, as `fdtr keys show` prints it.")]

_AGAIN = (
    "The roster is part of what is signed, so messages made before do not count any more. Give everybody the same "
    "roster, compare `fdtr roster show` by telephone, and begin a new round: every site runs `fdtr site summarize` "
    "again with the next --round, the hub `fdtr hub combine` with the same. A round that is over stays valid as it was."
)


@keys_app.command()
def new(
    out: Annotated[Path, typer.Option(help="The file to write; an existing one is never overwritten.")] = Path(
        "fdtr.key"
    ),
    locked: Annotated[
        bool,
        typer.Option(
            "--passphrase", help="Lock it; asked twice, or from FDTR_PASSPHRASE or the file FDTR_PASSPHRASE_FILE names."
        ),
    ] = False,
    json: Json = False,
) -> None:
    """Make a key pair and write the private key into one file, readable by you alone. Nothing is sent."""
    from fdtr.errors import OutputExists
    from fdtr.signing import Key

    if out.exists():
        raise OutputExists(f"{out} exists already, and a key is never overwritten. Name another file with --out.")
    secret = passphrase("Passphrase", twice=True) if locked else None
    key = Key.new()
    key.save(out, secret)
    if not json:
        show.line(f"Wrote {out}. Keep it at this site, and a copy where only you can reach it. To the others give:")
    _public(key.public, json)


@keys_app.command("show")
def show_key(
    key: Annotated[Path, typer.Argument(metavar="FILE", help="A private key that `fdtr keys new` made.")],
    json: Json = False,
) -> None:
    """Print the public half of a key, and its fingerprint to read over the telephone. Writes and sends nothing."""
    loaded = load_key(key)
    if loaded is not None:
        _public(loaded.public, json)


def _public(public: str, machine: bool) -> None:
    from fdtr.signing import fingerprint_of

    found = fingerprint_of(public)
    if machine:
        show.as_json({"public_key": public, **_readable(found)})
        return
    show.line(f"  {public}")
    show.line(f"Fingerprint: {found.hex}")
    show.line(f"  in words:  {found.words}")


def _readable(found: Fingerprint) -> dict[str, str]:
    return {"fingerprint": found.hex, "words": found.words}


@roster_app.command()
def add(study: StudyPath, site: Site, key: Public) -> None:
    """Write a site's public key into the study file, after you have compared its fingerprint by telephone."""
    from fdtr.study import Study

    roster = Study.load(study).roster
    if site in roster:
        raise InvalidStudy(
            f"The roster has a key of {site!r} already. Nothing was written. Use `fdtr roster replace` if it was lost."
        )
    _change(study, {**roster, site: key})
    _told(site, key)
    if roster:
        show.line(_AGAIN)


@roster_app.command()
def remove(study: StudyPath, site: Site) -> None:
    """Take a site out of the roster, and say what has to be done again."""
    from fdtr.study import Study

    roster = Study.load(study).roster
    _require(site, roster)
    _change(study, {name: key for name, key in roster.items() if name != site})
    show.line(f"{site} is not in the roster any more.")
    show.line(_AGAIN)


@roster_app.command()
def replace(study: StudyPath, site: Site, key: Public) -> None:
    """Give a site a new key, because the old one was lost or seen by others, and say what has to be done again."""
    from fdtr.study import Study

    roster = Study.load(study).roster
    _require(site, roster)
    if roster[site] == key:
        raise InvalidStudy(f"That is the key that the roster has of {site!r}. Nothing was written.")
    _change(study, {**roster, site: key})
    _told(site, key)
    show.line(_AGAIN)


@roster_app.command("show")
def show_roster(study: StudyPath, json: Json = False) -> None:
    """Print every site's fingerprint, and one of the whole roster: to be compared by telephone."""
    from fdtr.signing import fingerprint_of, roster_hash
    from fdtr.study import Study

    roster = Study.load(study).roster
    whole = roster_hash(roster)
    prints = {site: fingerprint_of(key) for site, key in roster.items()}
    if json:
        sites = {
            site: {"public_key": roster[site], "fingerprint": f.hex, "words": f.words} for site, f in prints.items()
        }
        show.as_json({"sites": sites, "roster": whole})
        return
    if not roster:
        show.line("The study has no roster: messages are not signed. Add keys with `fdtr roster add`.")
        return
    show.table(
        "Who may speak", ["site", "fingerprint", "in words"], [[site, f.hex, f.words] for site, f in prints.items()]
    )
    show.line(f"The whole roster: {whole[:32]}")


def _require(site: str, roster: dict[str, str]) -> None:
    if site not in roster:
        raise WrongSite(f"The roster has no {site!r}; it has {', '.join(roster) or 'nobody'}. Nothing was written.")


def _change(path: Path, roster: dict[str, str]) -> Study:
    from fdtr.study import set_roster

    return set_roster(path, roster)


def _told(site: str, key: str) -> None:
    from fdtr.signing import fingerprint_of

    found = fingerprint_of(key)
    show.line(f"{site} signs with the key {found.hex}")
    show.line(f"  in words:  {found.words}")
