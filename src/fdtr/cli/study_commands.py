"""The commands of the study file and of keys: its schema and fingerprint, its roster, and key pairs."""

from pathlib import Path
from typing import Annotated

import typer

from fdtr.cli import show
from fdtr.cli.options import Json, StudyPath, load_key, passphrase
from fdtr.errors import InvalidStudy, OutputExists, WrongSite
from fdtr.exchange.flower.node_keys import new_node_key, node_fingerprint, settings_line
from fdtr.signing import Key, fingerprint_of, roster_hash
from fdtr.study import Study, set_roster

Site = Annotated[str, typer.Argument(metavar="SITE", help="A site's name, or hub.")]
Public = Annotated[str, typer.Argument(metavar="KEY", help="Its public key, as `fdtr keys show` prints it.")]

_CHANGED = (
    "The roster is part of what is signed, so messages made before do not count any more. Give everybody the same "
    "roster, compare `fdtr roster show` by telephone, and begin a new round: "
)
_BY_FILES = (
    "every site runs `fdtr site summarize` again with the next --round, the hub `fdtr hub combine` with the same; in a "
    "shared folder, "
)
_IN_A_FOLDER = (
    "the hub runs `fdtr hub new-round`, every site `fdtr site join` again and then `fdtr site next`. A round that is "
    "over stays valid as it was."
)


def schema() -> None:
    """Print the JSON Schema of a study file. Editors check and complete TOML with it."""
    show.as_json(Study.model_json_schema())


def fingerprint(study: StudyPath) -> None:
    """Print a study's fingerprint. Two sites have the same study when these are the same."""
    show.line(Study.load(study).fingerprint)


def add(study: StudyPath, site: Site, key: Public) -> None:
    """Write a site's public key into the study file. Compare its fingerprint by telephone before."""
    before = Study.load(study)
    roster = before.roster
    if site in roster:
        raise InvalidStudy(
            f"The roster has a key of {site!r} already. Nothing was written. Use `fdtr roster replace` if it was lost."
        )
    set_roster(study, {**roster, site: key})
    _show_roster_entry(site, key)
    if roster:
        show.line(_new_round(before))


def remove(study: StudyPath, site: Site) -> None:
    """Take a site out of the roster. Says what has to be done again."""
    before = Study.load(study)
    roster = before.roster
    _require_in_roster(site, roster)
    set_roster(study, {name: key for name, key in roster.items() if name != site})
    show.line(f"{site} is not in the roster any more.")
    show.line(_new_round(before))


def replace(study: StudyPath, site: Site, key: Public) -> None:
    """Give a site a new key. For one that was lost or seen by others; says what has to be done again."""
    before = Study.load(study)
    roster = before.roster
    _require_in_roster(site, roster)
    if roster[site] == key:
        raise InvalidStudy(f"That is the key that the roster has of {site!r}. Nothing was written.")
    set_roster(study, {**roster, site: key})
    _show_roster_entry(site, key)
    show.line(_new_round(before))


def _new_round(study: Study) -> str:
    """What has to be done again; a secure sum takes place in a shared folder alone."""
    return _CHANGED + ("" if study.disclosure.secure_sum else _BY_FILES) + _IN_A_FOLDER


def show_roster(study: StudyPath, json: Json = False) -> None:
    """Print every site's fingerprint, and one of the whole roster. Compare them by telephone."""
    roster = Study.load(study).roster
    whole, sites = roster_hash(roster), {site: _fingerprint_json(key) for site, key in roster.items()}
    if json:
        show.as_json({"sites": sites, "roster": whole})
        return
    if not roster:
        show.line("The study has no roster: messages are not signed. Add keys with `fdtr roster add`.")
        return
    rows = [[site, key["fingerprint"], key["words"]] for site, key in sites.items()]
    show.table("Who may speak", ["site", "fingerprint", "in words"], rows)
    show.line(f"The whole roster: {whole[:32]}")


def _require_in_roster(site: str, roster: dict[str, str]) -> None:
    if site not in roster:
        raise WrongSite(f"The roster has no {site!r}; it has {', '.join(roster) or 'nobody'}. Nothing was written.")


def _show_roster_entry(site: str, key: str) -> None:
    fingerprint = fingerprint_of(key)
    show.line(f"{site} signs with the key {fingerprint.hex}")
    show.line(f"  in words:  {fingerprint.words}")


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
    """Make a key pair and write the private key into one file. You alone can read it. Nothing is sent."""
    if out.exists():
        raise OutputExists(f"{out} exists already, and a key is never overwritten. Name another file with --out.")
    secret = passphrase("Passphrase", twice=True) if locked else None
    key = Key.new()
    key.save(out, secret)
    if not json:
        show.line(f"Wrote {out}. Keep it at this site, and a copy where only you can reach it. To the others give:")
    _show_key(key.public, json)


def show_key(
    key: Annotated[Path, typer.Argument(metavar="FILE", help="A private key that `fdtr keys new` made.")],
    json: Json = False,
) -> None:
    """Print the public half of a key, and its fingerprint. Read it out by telephone. Writes and sends nothing."""
    _show_key(load_key(key).public, json)


def _show_key(public: str, machine: bool) -> None:
    key = _fingerprint_json(public)
    if machine:
        show.as_json(key)
        return
    show.line(f"  {public}")
    show.line(f"Fingerprint: {key['fingerprint']}")
    show.line(f"  in words:  {key['words']}")


def _fingerprint_json(public: str) -> dict[str, str]:
    fingerprint = fingerprint_of(public)
    return {"public_key": public, "fingerprint": fingerprint.hex, "words": fingerprint.words}


def node(
    out: Annotated[Path, typer.Option(help="The file to write; an existing one is never overwritten.")] = Path(
        "node.key"
    ),
    site: Annotated[str, typer.Option("--site", help="This site's name, as in the roster.")] = "SITE",
    json: Json = False,
) -> None:
    """Make the key by which the hub's server knows this machine. It opens the connection, signs nothing."""
    line = new_node_key(out)
    if json:
        show.as_json({"node_key": line, "fingerprint": node_fingerprint(line)})
        return
    show.line(f"Wrote {out}. Keep it at this site. To the hub, for [nodes] of its settings, give:")
    show.line(f"  {settings_line(site, line)}")
    show.line(f"Fingerprint: {node_fingerprint(line)}")
