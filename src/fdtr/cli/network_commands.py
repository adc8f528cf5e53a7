"""The commands of a federation over the network: certificates, services, rounds and the audit."""

import logging
import sys
from dataclasses import asdict
from importlib import util
from pathlib import Path
from typing import Annotated

import typer

from fdtr.cli import show
from fdtr.cli.options import Json, load_key
from fdtr.errors import InvalidSettings, MissingExtra
from fdtr.exchange.flower.certificates import TRIAL_DAYS, certificate_fingerprint, make_certificates
from fdtr.exchange.flower.network_settings import HubSettings, SiteSettings
from fdtr.exchange.flower.node_keys import node_fingerprint
from fdtr.exchange.remote import audit
from fdtr.exchange.remote.jobs import Ending, Result
from fdtr.signing import Key, is_locked, stated_passphrase
from fdtr.study import Study

HubToml = Annotated[Path, typer.Argument(metavar="HUB.TOML", help="The hub's settings.")]
SiteToml = Annotated[Path, typer.Argument(metavar="SITE.TOML", help="This site's settings.")]


def certificates(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Where to write them.")],
    host: Annotated[list[str], typer.Option("--host", help="A name or address by which sites reach the hub.")],
) -> None:
    """Make certificates for a trial, which end after 90 days. One is an authority for the sites, one the hub's own.

    A real deployment uses a certificate of its institution; sites then need no authority of ours.
    """
    files = make_certificates(folder, host)
    show.line(f"Wrote {files.certificate} and {files.key}, for [tls] of the hub's settings. The key stays here.")
    show.line(f"Wrote {files.authority}. Give it to every site, and compare its fingerprint by telephone:")
    show.line(f"  {certificate_fingerprint(files.authority)}")
    show.line(
        f"They are for a trial, and end after {TRIAL_DAYS} days. A real deployment brings a certificate of its "
        "institution for [tls]; sites then need no authority of ours."
    )


def serve_hub(settings: HubToml) -> None:
    """Let sites connect, until stopped. Starts nothing by itself: rounds begin with `fdtr hub start-round`.

    Flower's server listens on this machine only; sites reach a reverse proxy that forwards what their connection needs.
    """
    _require_flower()
    from fdtr.exchange.flower.hub_service import serve_hub as serve

    loaded = HubSettings.load(settings)
    serve(loaded, _hub_key(loaded.key), _show_serving)


def _show_serving(settings: HubSettings, study: Study) -> None:
    rows = [[site, node_fingerprint(line)] for site, line in settings.nodes.items()]
    show.table("Who may connect", ["site", "node key"], rows)
    show.line(f"The study {study.name}, fingerprint {study.fingerprint}")
    show.line(f'Serving. Sites connect with hub = "{settings.address}". Stop with Ctrl-C or SIGTERM.')


def start_round(
    settings: HubToml,
    deadline: Annotated[
        float | None,
        typer.Option(help="Seconds that sites have for one message, 5 to 86400; else the settings'."),
    ] = None,
    min_sites: Annotated[
        int | None, typer.Option("--min-sites", min=3, help="Fewer are refused; else the settings'.")
    ] = None,
    sites: Annotated[list[str] | None, typer.Option("--site", help="Ask this site; all where none is named.")] = None,
    json: Json = False,
) -> None:
    """Run the study's round with the sites that are connected. Says who was in it. A round that stopped goes on.

    Exits with 0 only where there is a total and every site in it wrote its policy.
    """
    _require_flower()
    from fdtr.exchange.flower.hub_service import start_round as start

    finished = start(HubSettings.load(settings), tuple(sites or ()), min_sites, deadline)
    if json:
        show.as_json({**asdict(finished.result), "file": str(finished.file)})
    else:
        _show_result(finished.result)
        show.line(f"The result is kept in {finished.file}")
    if finished.result.ending is not Ending.COMPLETE:
        raise typer.Exit(1)


def _show_result(result: Result) -> None:
    if not result.study:  # the study could not be read
        show.line(f"No round was run. {result.next}")
        return
    for note in result.notes:
        show.note(note)
    show.line(f"{result.study}, round {result.round}, {result.mode}: {result.ending}")
    rows = [
        [site, "in", "finished" if site in result.finished else "not known to have finished"] for site in result.members
    ]
    rows += [
        [absence.site, "out", f"{absence.reason}, at {absence.phase} of round {absence.round}"]
        for absence in result.absent
    ]
    show.table("Sites", ["site", "", ""], rows)
    show.line(result.next)


def serve_site(settings: SiteToml) -> None:
    """Answer the hub's questions until stopped. They are about the studies in the settings.

    Connects to the hub and listens to nobody outside. A study's entry in the settings is your consent: the disclosure
    rules decide without asking. Only the code installed here runs. Everything asked and sent is in the audit.
    """
    _require_flower()
    from fdtr.exchange.flower.site_service import serve_site as serve

    loaded = SiteSettings.load(settings)
    logging.basicConfig(format="%(message)s", stream=sys.stderr)
    logging.getLogger("fdtr").setLevel(logging.INFO)  # the site's own log says why a request was declined
    serve(loaded, load_key(loaded.key), show.line)


def verify(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A site's audit: audit.jsonl in its state folder.")],
    head: Annotated[str | None, typer.Option("--head", help="A head noted earlier, which must still be in it.")] = None,
    json: Json = False,
) -> None:
    """Check that no line of an audit was changed, removed or moved.

    Lines that were cut off at the end are found by the head that the site keeps beside its audit. Somebody who can
    change both files can cut both, so write the head that this prints down elsewhere.
    """
    verified = audit.verify(file, head)
    audit.Audit(file).require_whole()
    if json:
        show.as_json(vars(verified))
        return
    torn = f", {verified.torn} torn by a crash" if verified.torn else ""
    show.line(f"{verified.lines} lines{torn}, none changed. Head: {verified.head}")
    if verified.lost_heads:
        show.line(
            f"Lost heads: {verified.lost_heads}. {audit.Audit(file).head.name} was gone, and lines may have been cut "
            "off before: compare with a head that was noted elsewhere (--head)."
        )


def _hub_key(path: Path) -> Key:
    """The hub's key. Rounds open it again in a program that cannot ask for a passphrase."""
    if is_locked(path) and stated_passphrase() is None:
        raise InvalidSettings(
            f"{path} has a passphrase, which every round needs and cannot ask for. Nothing was started. Write it into "
            "a file that its owner alone can read, and name that file in FDTR_PASSPHRASE_FILE."
        )
    return load_key(path)


def _require_flower() -> None:
    """Refuse where Flower, an optional part, is not installed. What imports it is imported after this check."""
    if util.find_spec("flwr") is None:
        raise MissingExtra("A federation over the network needs Flower. Install it with: pip install 'fdtr[flower]'")
