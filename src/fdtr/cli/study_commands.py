"""The commands of the study file: its schema, its fingerprint, and the roster of keys in it."""

from typing import Annotated

import typer

from fdtr.cli import show
from fdtr.cli.options import Json, StudyPath
from fdtr.errors import InvalidStudy, WrongSite
from fdtr.signing import fingerprint_of, roster_hash
from fdtr.study import Study, set_roster

Site = Annotated[str, typer.Argument(metavar="SITE", help="A site's name, or hub.")]
Public = Annotated[str, typer.Argument(metavar="KEY", help="Its public key, as `fdtr keys show` prints it.")]

_NEW_ROUND_NEEDED = (
    "The roster is part of what is signed, so messages made before do not count any more. Give everybody the same "
    "roster, compare `fdtr roster show` by telephone, and begin a new round: every site runs `fdtr site summarize` "
    "again with the next --round, the hub `fdtr hub combine` with the same. A round that is over stays valid as it was."
)


def schema() -> None:
    """Print the JSON Schema of a study file. Editors check and complete TOML with it."""
    show.as_json(Study.model_json_schema())


def fingerprint(study: StudyPath) -> None:
    """Print a study's fingerprint. Two sites have the same study when these are the same."""
    show.line(Study.load(study).fingerprint)


def add(study: StudyPath, site: Site, key: Public) -> None:
    """Write a site's public key into the study file. Compare its fingerprint by telephone before."""
    roster = Study.load(study).roster
    if site in roster:
        raise InvalidStudy(
            f"The roster has a key of {site!r} already. Nothing was written. Use `fdtr roster replace` if it was lost."
        )
    set_roster(study, {**roster, site: key})
    _show_key(site, key)
    if roster:
        show.line(_NEW_ROUND_NEEDED)


def remove(study: StudyPath, site: Site) -> None:
    """Take a site out of the roster. Says what has to be done again."""
    roster = Study.load(study).roster
    _require_in_roster(site, roster)
    set_roster(study, {name: key for name, key in roster.items() if name != site})
    show.line(f"{site} is not in the roster any more.")
    show.line(_NEW_ROUND_NEEDED)


def replace(study: StudyPath, site: Site, key: Public) -> None:
    """Give a site a new key. For one that was lost or seen by others; says what has to be done again."""
    roster = Study.load(study).roster
    _require_in_roster(site, roster)
    if roster[site] == key:
        raise InvalidStudy(f"That is the key that the roster has of {site!r}. Nothing was written.")
    set_roster(study, {**roster, site: key})
    _show_key(site, key)
    show.line(_NEW_ROUND_NEEDED)


def show_roster(study: StudyPath, json: Json = False) -> None:
    """Print every site's fingerprint, and one of the whole roster. Compare them by telephone."""
    roster = Study.load(study).roster
    whole = roster_hash(roster)
    fingerprints = {site: fingerprint_of(key) for site, key in roster.items()}
    if json:
        sites = {
            site: {"public_key": roster[site], "fingerprint": f.hex, "words": f.words}
            for site, f in fingerprints.items()
        }
        show.as_json({"sites": sites, "roster": whole})
        return
    if not roster:
        show.line("The study has no roster: messages are not signed. Add keys with `fdtr roster add`.")
        return
    show.table(
        "Who may speak",
        ["site", "fingerprint", "in words"],
        [[site, f.hex, f.words] for site, f in fingerprints.items()],
    )
    show.line(f"The whole roster: {whole[:32]}")


def _require_in_roster(site: str, roster: dict[str, str]) -> None:
    if site not in roster:
        raise WrongSite(f"The roster has no {site!r}; it has {', '.join(roster) or 'nobody'}. Nothing was written.")


def _show_key(site: str, key: str) -> None:
    fingerprint = fingerprint_of(key)
    show.line(f"{site} signs with the key {fingerprint.hex}")
    show.line(f"  in words:  {fingerprint.words}")
