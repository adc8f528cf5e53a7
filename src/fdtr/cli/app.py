"""The commands of `fdtr`."""

from pathlib import Path
from typing import Annotated

import typer

from fdtr import __version__
from fdtr.cli import show, study_output
from fdtr.cli.extract import extract_app
from fdtr.cli.folder import status
from fdtr.cli.keys import keys_app, roster_app
from fdtr.cli.messages import message_app
from fdtr.cli.network import audit_app
from fdtr.cli.options import HeldOut, Json, Split, StudyPath
from fdtr.cli.package import package, run_package
from fdtr.cli.policies import policy_app
from fdtr.cli.roles import LikeSites, hub_app, site_app
from fdtr.cli.signed import RoundNumber, round_of
from fdtr.cli.simulation import simulate

app = typer.Typer(
    name="fdtr",
    help="Hospitals learn a treatment rule together. Each sends sums over its patients, never a row. "
    "Research software, not for bedside use.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
study_app = typer.Typer(help="The study file itself.", no_args_is_help=True)
app.add_typer(site_app, name="site")
app.add_typer(hub_app, name="hub")
app.add_typer(policy_app, name="policy")
app.add_typer(study_app, name="study")
app.add_typer(message_app, name="message")
app.add_typer(keys_app, name="keys")
app.add_typer(roster_app, name="roster")
app.add_typer(audit_app, name="audit")
app.add_typer(extract_app, name="extract")

DataPath = Annotated[Path, typer.Argument(metavar="DATA", help="A table: CSV, Parquet, or a folder of Parquet files.")]


def _version(asked: bool) -> None:
    if asked:
        show.line(f"fdtr {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show where an error came from; may quote data.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="Say what is being done.")] = False,
) -> None:
    """Options that every command takes."""


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="The folder to write into.")] = Path("fdtr-demo"),
    fresh: Annotated[bool, typer.Option("--fresh", help="Overwrite an edited study or table there.")] = False,
    json: Json = False,
) -> None:
    """The whole story on built-in data: five simulated hospitals, fitted alone and together.

    Writes the study, the table, every hospital's policy and a report into a folder, and prints what each method's
    policies are worth on fresh patients. Nothing leaves this machine.
    """
    from fdtr.pipeline.demo import run_demo

    with show.progress() as progress:
        made = run_demo(out, fresh=fresh, progress=progress)
    study_output.show_demo(made, json)


site_app.command()(package)
site_app.command("run")(run_package)
app.command()(simulate)
app.command()(status)


@app.command()
def init(
    data: DataPath,
    out: Annotated[Path, typer.Option(help="The study file to write.")] = Path("study.toml"),
    name: Annotated[str, typer.Option(help="What to call the study.")] = "my-study",
) -> None:
    """Draft a study file from a table, with comments on what you have to decide.

    Reads the table, writes one file, sends nothing. An existing file is not overwritten.
    """
    from fdtr.container import write_atomically
    from fdtr.errors import OutputExists
    from fdtr.pipeline.draft import draft_study

    if out.exists():
        raise OutputExists(f"{out} exists already. Nothing was written. Name another file with --out.")
    draft = draft_study(data, name)
    write_atomically(out, draft.text.encode())
    site = "" if draft.has_site else " --site NAME"
    show.line(f"Wrote {out}. Read its comments, decide, then run: {show.program()} check {out} {data}{site}")


@app.command()
def check(
    study: StudyPath,
    data: DataPath,
    site: Annotated[str | None, typer.Option(help="Check this site only, or name the table's one site.")] = None,
    sites: LikeSites = None,
    json: Json = False,
) -> None:
    """What the table holds, what it can identify, and what disclosure would say. Writes and sends nothing."""
    from fdtr.exchange.site_state.ledger import site_ledger
    from fdtr.site.rows import read_trajectories
    from fdtr.site.site_check import check as check_site
    from fdtr.study import Study

    loaded = Study.load(study)
    rows = read_trajectories(data, loaded, site).by_site()
    study_output.show_checks(
        loaded, [check_site(loaded, part, ledger=site_ledger(), n_sites=sites) for part in rows.values()], json
    )


@app.command()
def tune(
    study: StudyPath,
    data: DataPath,
    total: Annotated[Path | None, typer.Option(help="The hub's answer; without it the sites of the table.")] = None,
    site: Annotated[str | None, typer.Option(help="Take this site only, or name the table's one site.")] = None,
    round_number: RoundNumber = 1,
    json: Json = False,
) -> None:
    """How each site's own held-out patients judge λ, w and what to share. Writes and sends nothing.

    Shown are held-out errors, and those of the contrasts between actions; they choose settings and are no estimate of
    what a policy is worth.
    """
    from fdtr.exchange.site_state.sent_copies import find_kept
    from fdtr.exchange.wire import read_total
    from fdtr.pipeline.tuning_curves import tune as tune_sites
    from fdtr.site.rows import read_trajectories
    from fdtr.study import Study

    loaded = Study.load(study)
    rows = read_trajectories(data, loaded, site if total else None)
    answer = read_total(total, loaded, round_of(loaded, round_number)) if total else None
    curves = tune_sites(loaded, rows, answer, find_kept(answer, rows.site, loaded) if answer else None)
    study_output.show_tuning({name: of_site for name, of_site in curves.items() if site in (None, name)}, json)


@app.command()
def run(
    study: StudyPath,
    data: DataPath,
    out: Annotated[Path, typer.Option(help="The folder for policies, coefficients and report.")],
    site: Annotated[str | None, typer.Option(help="Take this site only, or name the table's one site.")] = None,
    split: HeldOut = Split.folds,
    json: Json = False,
) -> None:
    """All sites in one table: fit every site alone and together, with baselines, and write a report.

    For tables that may lie in one place. Nothing is released: what disclosure would say is shown, not enforced.
    """
    from fdtr.pipeline.result_folder import refuse_foreign
    from fdtr.pipeline.results import RESULTS_FILE
    from fdtr.pipeline.run import run as run_study
    from fdtr.progress import stage
    from fdtr.site.rows import read_trajectories
    from fdtr.study import Study

    refuse_foreign(out, RESULTS_FILE)  # before the work, not after it
    loaded = Study.load(study)
    with show.progress() as progress:
        rows = read_trajectories(data, loaded, site)
        results = run_study(loaded, rows, split=split.value, progress=stage(progress, 0, 90))
        progress("policies, tables and report", 90, 100)
        results.save(out)
        progress("done", 100, 100)
    study_output.show_results(results, out, json)


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(metavar="RESULTS", help="A folder that `fdtr run` or `fdtr demo` made.")],
) -> None:
    """Write the report of a folder of results anew, from its results.json. Fits nothing, reads no patient's row.

    One HTML file that opens from disk and fetches nothing: values with intervals, shared effects, what the rules do,
    and how far to trust it.
    """
    from fdtr.pipeline.results import report_again

    show.line(f"Wrote {report_again(folder)}.")


@study_app.command()
def schema() -> None:
    """Print the JSON Schema of a study file, for editors that check and complete TOML."""
    from fdtr.study import Study

    show.as_json(Study.model_json_schema())


@study_app.command()
def fingerprint(study: StudyPath) -> None:
    """Print a study's fingerprint: two sites have the same study when these are the same."""
    from fdtr.study import Study

    show.line(Study.load(study).fingerprint)
