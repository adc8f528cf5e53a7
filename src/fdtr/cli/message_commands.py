"""The command that shows every number in a message, and what it means."""

from pathlib import Path
from typing import Annotated, Any

import typer

from fdtr.cli import show
from fdtr.cli.options import Json
from fdtr.container import UNSIGNED, size_of, write_atomically
from fdtr.disclosure import SiteValues
from fdtr.errors import OutputExists
from fdtr.exchange.envelopes import Received
from fdtr.exchange.wire import inspect
from fdtr.report.message_page import ABOUT, OpenedFile, render_message, sections_of, sums_in
from fdtr.signing import Round
from fdtr.study import Study
from fdtr.summary import SiteSummary
from fdtr.sums import Grams


def show_message(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A message, a total, or a site's values.")],
    study: Annotated[
        Path | None, typer.Option(help="The study file: names the features, and checks the sender where it has keys.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Write a page (HTML) instead, for people to read.")] = None,
    json: Json = False,
) -> None:
    """Show every number in a message with its meaning. Says what it can and cannot reveal, for an ethics board."""
    if out is not None and out.exists():
        raise OutputExists(f"{out} exists already. Nothing was written. Name another file with --out.")
    loaded = Study.load(study) if study else None
    received = inspect(file, loaded, None)
    if loaded is not None:
        received = inspect(file, loaded, Round(loaded.fingerprint, loaded.roster, received.envelope.round))
    opened = _opened(received, loaded, size_of(file))
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


def _opened(received: Received[Any], study: Study | None, size: int) -> OpenedFile:
    envelope = received.envelope
    facts = {
        **({"study": study.name} if study else {}),
        "study's fingerprint": envelope.fingerprint,
        "round": envelope.round,
        "sender": envelope.site,
        "signature": _signature(received),
        "SHA-256": envelope.digest,
        "bytes": f"{size:,}",
        "written by": f"fdtr {received.version}",
    }
    features: tuple[str, ...] = ()
    if study is not None:
        all_features = isinstance(received.body, SiteSummary) and received.body.grams is not None
        features = tuple(study.feature_map.names[: None if all_features else study.feature_map.n_shared])
    return OpenedFile(received.kind, envelope.site, received.body, facts, features, study)


def _signature(received: Received[Any]) -> str:
    if received.verified:
        return f"that of {received.envelope.site}, as the study's roster has its key"
    if received.signature == UNSIGNED:
        return "none: nobody can tell who made it"
    return "not checked: give the study with --study"


def _as_json(opened: OpenedFile) -> dict[str, Any]:
    content: dict[str, Any] = {"kind": opened.kind, "site": opened.site, **opened.facts}
    if isinstance(opened.body, SiteValues):
        return {**content, "patients": opened.body.n, "values": [vars(value) for value in opened.body.values]}
    sums = sums_in(opened.body)
    arrays = {name: array.tolist() for name, array in sums.packed().items()}
    return {**content, "features": list(opened.features), "grams" if isinstance(sums, Grams) else "sums": arrays}
