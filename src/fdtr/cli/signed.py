"""What commands that write or read messages share: the round, and the key to sign with."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fdtr.cli import show
from fdtr.errors import UnreadableKey

if TYPE_CHECKING:
    from fdtr.signing import Key, Round
    from fdtr.study import Study

KeyPath = Annotated[
    Path | None,
    typer.Option("--key", envvar="FDTR_KEY", help="The private key to sign with, where the study has a roster."),
]
RoundNumber = Annotated[
    int, typer.Option("--round", min=1, help="Which round of the study this is; a new one begins when keys change.")
]


def round_of(study: Study, number: int) -> Round:
    """The round that messages are made for and must be of; says so where nobody can know who made them."""
    from fdtr.signing import HUB, numbered_round

    if not study.roster:
        show.note("unsigned: the study has no [roster], so nobody can tell who made a file. See `fdtr keys new`.")
    elif HUB not in study.roster:
        show.note("the roster has no key of the hub, so totals are not signed.")
    return numbered_round(study.fingerprint, study.roster, number)


def load_key(path: Path | None) -> Key | None:
    """The key in a file, with its passphrase where it has one."""
    from fdtr.signing import Key, is_locked

    if path is None:
        return None
    return Key.load(path, passphrase(f"Passphrase of {path}") if is_locked(path) else None)


def passphrase(question: str, *, twice: bool = False) -> str:
    """From FDTR_PASSPHRASE, from the file that FDTR_PASSPHRASE_FILE names, or asked on a terminal."""
    from fdtr.signing import stated_passphrase

    told = stated_passphrase()
    if told:
        return told
    if not sys.stdin.isatty():
        raise UnreadableKey(
            "A passphrase is needed, and there is no terminal to ask on. Name a file that holds it in "
            "FDTR_PASSPHRASE_FILE."
        )
    return str(typer.prompt(question, hide_input=True, confirmation_prompt=twice))
