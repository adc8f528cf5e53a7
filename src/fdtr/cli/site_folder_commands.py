"""A site's commands in a shared folder: join it, then take the next step."""

from pathlib import Path
from typing import Annotated

import typer

from fdtr.cli import message_output, show
from fdtr.cli.options import UNSIGNED, FolderPath, Json, KeyPath, PostYes, agreed, optional_key, spare_inputs
from fdtr.exchange.folder import site_session
from fdtr.exchange.folder.round_snapshot import cautions
from fdtr.exchange.folder.site_steps import take_site_steps
from fdtr.exchange.folder_layout import require_apart
from fdtr.exchange.release import Proposal
from fdtr.exchange.site_state.joined_folders import find_joined
from fdtr.signing import fingerprint_of
from fdtr.study import Study


def join(
    folder: FolderPath,
    site: Annotated[str, typer.Option("--site", help="This site's name, as in the roster.")],
    data: Annotated[Path, typer.Option("--data", help="This site's table. It stays here.")],
    key: KeyPath = None,
    study: Annotated[
        Path | None, typer.Option(help="A study file of the same study with this site's own \\[columns].")
    ] = None,
    json: Json = False,
) -> None:
    """Join a study's folder: accept the study and the roster in it. Posts nothing.

    Compare the fingerprints that it prints by telephone: from here on, another roster in the folder is refused.
    """
    own_study = Study.load(study) if study else None
    joined = site_session.join(folder, site, data, key, optional_key(key), own_study)
    if json:
        show.as_json({"site": site, "study": joined.study.name, "fingerprint": joined.study.fingerprint})
        return
    show.line(f"Joined {folder} as {site}. Nothing was posted.")
    _show_accepted(joined.study)
    show.line(f"Next: {show.program()} site next {folder} --site {site}")


def _show_accepted(study: Study) -> None:
    """Print the study and the roster that the site accepts by joining."""
    way = "a secure sum: nobody sees this site's sums" if study.disclosure.secure_sum else "open"
    show.line(f"The study {study.name}, fingerprint {study.fingerprint[:32]}; {way}.")
    for caution in cautions(study):
        show.note(caution)
    if not study.disclosure.secure_sum:
        show.note("whoever can read the folder can read this site's sums. See secure_sum under [disclosure].")
    if not study.roster:
        show.note(UNSIGNED)
        return
    rows = [[name, fingerprint_of(key).hex, fingerprint_of(key).words] for name, key in study.roster.items()]
    show.table("Who may speak: compare by telephone", ["site", "fingerprint", "in words"], rows)


def site_next(
    folder: Annotated[
        Path | None, typer.Argument(metavar="FOLDER", help="The study's folder; needed where several were joined.")
    ] = None,
    site: Annotated[str | None, typer.Option("--site", help="This site; needed where several joined here.")] = None,
    out: Annotated[Path | None, typer.Option(help="The policy to write at the end; confidential to this site.")] = None,
    yes: PostYes = False,
    json: Json = False,
) -> None:
    """Do this site's next step in a study's folder. Says what it waits for.

    Sums leave only after the disclosure rules, the ledger, and you agreed. The last step checks the total and writes
    this site's policy.
    """
    joined = find_joined(folder, site)
    require_apart(joined.folder, ("The policy", out))
    if out is not None:
        spare_inputs(out, joined.data, joined.key)

    def agree(proposal: Proposal) -> bool:
        for sentence in () if json else proposal.sentences:
            show.line(sentence)
        masked = joined.study.disclosure.secure_sum
        how = "masked, so that nobody can read it" if masked else "where all parties read it"
        return yes or agreed(f"Post this in {joined.folder}, {how}?")

    steps = take_site_steps(joined, confirm=agree, key=optional_key(joined.key), out=out)
    message_output.show_steps(steps, json)
