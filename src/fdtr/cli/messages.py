"""The command that shows what a message holds."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fdtr.cli import show
from fdtr.errors import OutputExists

if TYPE_CHECKING:
    from fdtr.exchange.envelopes import Received
    from fdtr.report.message_page import OpenedFile
    from fdtr.study import Study

message_app = typer.Typer(help="Show what a message holds.", no_args_is_help=True)


@message_app.callback()
def messages() -> None:
    """Show what a message holds."""


@message_app.command("show")
def show_message(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A message, a total, or a site's values.")],
    study: Annotated[
        Path | None, typer.Option(help="The study file: names the features, and checks the sender where it has keys.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Write a page (HTML) instead, for people to read.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print a machine's view instead of a person's.")] = False,
) -> None:
    """Show every number in a message with its meaning and what it can and cannot reveal: for an ethics board."""
    from fdtr.container import size_of, write_atomically
    from fdtr.exchange.wire import inspect
    from fdtr.report.message_page import ABOUT, render_message, sections_of
    from fdtr.signing import Round
    from fdtr.study import Study

    if out is not None and out.exists():
        raise OutputExists(f"{out} exists already. Nothing was written. Name another file with --out.")
    loaded = Study.load(study) if study else None
    letter = inspect(file, loaded, None)
    if loaded is not None:
        letter = inspect(file, loaded, Round(loaded.fingerprint, loaded.roster, letter.envelope.round))
    opened = _opened(letter, loaded, size_of(file))
    if out is not None:
        write_atomically(out, render_message(opened).encode())
    if json:
        show.as_json(_as_json(opened))
    elif out is not None:
        show.line(f"Wrote {out}. It opens from disk and fetches nothing.")
    else:
        show.line(opened.title)
        for name, fact in opened.facts.items():
            show.line(f"  {name}: {fact}")
        for section in sections_of(opened):
            show.line()
            show.line(section.title)
            for sentence in section.sentences:
                show.line(f"  {sentence}")
            for grid in section.grids if section.name != ABOUT else ():
                show.table(grid.caption, grid.columns, grid.rows)


def _opened(letter: Received[Any], study: Study | None, size: int) -> OpenedFile:
    from fdtr.report.message_page import OpenedFile
    from fdtr.summary import SiteSummary

    envelope = letter.envelope
    facts = {
        **({"study": study.name} if study else {}),
        "study's fingerprint": envelope.fingerprint,
        "round": envelope.round,
        "sender": envelope.site,
        "signature": _signature(letter),
        "SHA-256": envelope.digest,
        "bytes": f"{size:,}",
        "written by": f"fdtr {letter.version}",
    }
    features: tuple[str, ...] = ()
    if study is not None:
        all_features = isinstance(letter.body, SiteSummary) and letter.body.grams is not None
        features = tuple(study.feature_map.names[: None if all_features else study.feature_map.n_shared])
    return OpenedFile(letter.kind, envelope.site, letter.body, facts, features)


def _signature(letter: Received[Any]) -> str:
    from fdtr.container import UNSIGNED

    if letter.verified:
        return f"that of {letter.envelope.site}, as the study's roster has its key"
    if letter.signature == UNSIGNED:
        return "none: nobody can tell who made it"
    return "not checked: give the study with --study"


def _as_json(opened: OpenedFile) -> dict[str, Any]:
    from fdtr.disclosure import SiteValues
    from fdtr.report.message_page import sums_in
    from fdtr.summary import Grams

    content: dict[str, Any] = {"kind": opened.kind, "site": opened.site, **opened.facts}
    if isinstance(opened.body, SiteValues):
        return {**content, "patients": opened.body.n, "values": [vars(value) for value in opened.body.values]}
    sums = sums_in(opened.body)
    arrays = {name: array.tolist() for name, array in sums.packed().items()}
    return {**content, "features": list(opened.features), "grams" if isinstance(sums, Grams) else "sums": arrays}
