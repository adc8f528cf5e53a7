"""The command that shows what a message holds."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fdtr.cli import show
from fdtr.errors import OutputExists

if TYPE_CHECKING:
    from fdtr.exchange.letters import Letter
    from fdtr.report.letter import Shown
    from fdtr.study import Study

message_app = typer.Typer(help="Look at what travels.", no_args_is_help=True)


@message_app.callback()
def messages() -> None:
    """Look at what travels."""


@message_app.command("show")
def show_message(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A message, a total, or a site's values.")],
    study: Annotated[
        Path | None, typer.Option(help="The study file: names the features, and checks the sender where it has keys.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Write a page (HTML) instead, for people to read.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print a machine's view instead of a person's.")] = False,
) -> None:
    """Every number in a message with its meaning, and what it can tell and what not: for an ethics board."""
    from fdtr.container import size_of, write_atomically
    from fdtr.exchange.wire import inspect
    from fdtr.report.letter import ABOUT, as_html, parts
    from fdtr.signing import Round
    from fdtr.study import Study

    if out is not None and out.exists():
        raise OutputExists(f"{out} exists already. Nothing was written. Name another file with --out.")
    asked = Study.load(study) if study else None
    letter = inspect(file, asked, None)
    if asked is not None:
        letter = inspect(file, asked, Round(asked.fingerprint, asked.roster, letter.envelope.round))
    shown = _shown(letter, asked, size_of(file))
    if out is not None:
        write_atomically(out, as_html(shown).encode())
    if json:
        show.as_json(_machine(shown))
    elif out is not None:
        show.line(f"Wrote {out}. It opens from disk and fetches nothing.")
    else:
        show.line(shown.title)
        for name, fact in shown.facts.items():
            show.line(f"  {name}: {fact}")
        for part in parts(shown):
            show.line()
            show.line(part.title)
            for sentence in part.sentences:
                show.line(f"  {sentence}")
            for grid in part.grids if part.name != ABOUT else ():
                show.table(grid.caption, grid.columns, grid.rows)


def _shown(letter: Letter[Any], study: Study | None, size: int) -> Shown:
    from fdtr.report.letter import Shown
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
        whole = isinstance(letter.body, SiteSummary) and letter.body.grams is not None
        features = tuple(study.feature_map.names[: None if whole else study.feature_map.n_shared])
    return Shown(letter.kind, envelope.site, letter.body, facts, features)


def _signature(letter: Letter[Any]) -> str:
    from fdtr.container import UNSIGNED

    if letter.verified:
        return f"that of {letter.envelope.site}, as the study's roster has its key"
    if letter.signature == UNSIGNED:
        return "none: nobody can tell who made it"
    return "not checked: give the study with --study"


def _machine(shown: Shown) -> dict[str, Any]:
    from fdtr.disclosure import SiteValues
    from fdtr.report.letter import numbers_of
    from fdtr.summary import Grams

    found: dict[str, Any] = {"kind": shown.kind, "site": shown.site, **shown.facts}
    if isinstance(shown.body, SiteValues):
        return {**found, "patients": shown.body.n, "values": [vars(one) for one in shown.body.values]}
    numbers = numbers_of(shown.body)
    arrays = {name: array.tolist() for name, array in numbers.packed().items()}
    return {**found, "features": list(shown.features), "grams" if isinstance(numbers, Grams) else "sums": arrays}
