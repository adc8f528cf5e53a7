"""The commands that make and show keys: one that signs a site's messages, one that opens its connection."""

from pathlib import Path
from typing import Annotated

import typer

from fdtr.cli import show
from fdtr.cli.options import Json, load_key, passphrase
from fdtr.errors import OutputExists
from fdtr.exchange.flower.node_keys import new_node_key, node_fingerprint, settings_line
from fdtr.signing import Key, fingerprint_of


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
    _show_public(key.public, json)


def show_key(
    key: Annotated[Path, typer.Argument(metavar="FILE", help="A private key that `fdtr keys new` made.")],
    json: Json = False,
) -> None:
    """Print the public half of a key, and its fingerprint. Read it out by telephone. Writes and sends nothing."""
    _show_public(load_key(key).public, json)


def _show_public(public: str, machine: bool) -> None:
    fingerprint = fingerprint_of(public)
    if machine:
        show.as_json({"public_key": public, "fingerprint": fingerprint.hex, "words": fingerprint.words})
        return
    show.line(f"  {public}")
    show.line(f"Fingerprint: {fingerprint.hex}")
    show.line(f"  in words:  {fingerprint.words}")


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
