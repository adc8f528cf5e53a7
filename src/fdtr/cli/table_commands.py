"""The commands on a whole table: init, check and tune look at it; run, report and demo fit and show."""

from pathlib import Path
from typing import Annotated

import typer

from fdtr.cli import check_output, show, study_output
from fdtr.cli.options import (
    DataTable,
    HeldOut,
    Json,
    LikeSites,
    RoundNumber,
    Scheduler,
    StudyPath,
    Workers,
    round_of,
    spread,
)
from fdtr.container import write_atomically
from fdtr.errors import InvalidSettings, OutputExists
from fdtr.exchange.site_state.ledger import site_ledger
from fdtr.exchange.site_state.sent_copies import find_kept
from fdtr.exchange.wire import read_total
from fdtr.pipeline.demo import run_demo
from fdtr.pipeline.draft import draft_study
from fdtr.pipeline.result_folder import refuse_foreign
from fdtr.pipeline.results import report_again
from fdtr.pipeline.run import run as run_study
from fdtr.pipeline.run import tune as tune_sites
from fdtr.progress import stage
from fdtr.report.record import RESULTS_FILE
from fdtr.site.design_menu import try_designs
from fdtr.site.rows import partition_table, read_trajectories
from fdtr.site.site_check import check_sites
from fdtr.study import Study
from fdtr.trajectories.table_in_database import DatabaseTable


def init(
    data: DataTable,
    out: Annotated[Path, typer.Option(help="The study file to write.")] = Path("study.toml"),
    name: Annotated[str, typer.Option(help="What to call the study.")] = "my-study",
) -> None:
    """Draft a study file from a table. Its comments say what you have to decide.

    Reads the table, writes one file, sends nothing. An existing file is not overwritten.
    """
    if out.exists():
        raise OutputExists(f"{out} exists already. Nothing was written. Name another file with --out.")
    draft = draft_study(data, name)
    write_atomically(out, draft.text.encode())
    table = data.options if isinstance(data, DatabaseTable) else data
    site = "" if draft.has_site else " --site NAME"
    show.line(f"Wrote {out}. Read its comments, decide, then run: {show.program()} check {out} {table}{site}")


def check(
    study: StudyPath,
    data: DataTable,
    site: Annotated[str | None, typer.Option(help="Check this site only, or name the table's one site.")] = None,
    sites: LikeSites = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Also every table: counts, what is identified, and each broken rule.")
    ] = False,
    suggest: Annotated[
        bool,
        typer.Option("--suggest", help="Instead: what each site could send under other designs, in bands to pass on."),
    ] = False,
    json: Json = False,
) -> None:
    """What a table holds, can identify, and may release. Writes and sends nothing.

    Says in ten lines what may leave, what stops it or is taken out, and how far off it is. In a table of several sites,
    a secure sum is judged on their total.
    """
    if everything and suggest:
        raise InvalidSettings(
            "--all prints the tables behind the study as it is, and --suggest tries others instead. Leave one out."
        )
    loaded = Study.load(study)
    rows = read_trajectories(data, loaded, site)
    if sites is not None and len(rows.sites) > 1 and (suggest or loaded.disclosure.epsilon is None):
        raise InvalidSettings(
            f"--sites stands for so many sites like one, and {data} has {len(rows.sites)}, whose sums are judged "
            "together. Leave --sites out, or name one of them with --site."
        )
    if suggest:
        with show.progress() as progress:
            tried, notes = try_designs(loaded, rows, progress, sites)
        check_output.show_designs(tried, notes, json)
        return
    if sites is not None and not loaded.counts_first and loaded.disclosure.epsilon is None:
        show.note("--sites changes nothing here: sums that the hub reads are judged site by site.")
    checks = check_sites(loaded, rows.by_site(), site_ledger(), sites)
    check_output.show_checks(loaded, checks, json, everything=everything)


def partition(
    study: StudyPath,
    data: DataTable,
    out: Annotated[Path, typer.Option(help="The folder to write, which must not exist.")],
    site: Annotated[str | None, typer.Option(help="Take this site only, or name the table's one site.")] = None,
    json: Json = False,
) -> None:
    """Write a table to disk step by step, checked once. Every command takes the folder in place of the table.

    For tables that are too large for memory, and for tables of a database, which are then read once for several
    commands. The folder holds patients' rows and stays at the site. With another study it has to be made anew.
    """
    loaded = Study.load(study)
    if isinstance(data, DatabaseTable):
        from fdtr.cohort import partition_database_table  # loads no driver elsewhere

        rows = partition_database_table(loaded, data.address, data.table, out, site)
    else:
        rows = partition_table(loaded, data, out, site)
    if json:
        patients = {name: of_site.n_patients for name, of_site in rows.by_site().items()}
        show.as_json({"folder": str(out), "sites": patients, "rows": rows.n_rows})
        return
    sites = f"{len(rows.sites)} sites" if len(rows.sites) > 1 else f'site "{rows.site}"'
    show.line(f"Wrote {out}: {rows.n_patients:,} patients of {sites}, {rows.n_rows:,} rows in {rows.horizon} steps.")
    show.line("It holds patients' rows, so keep it where the table is kept. Name it wherever a command takes a table.")


def tune(
    context: typer.Context,
    study: StudyPath,
    data: DataTable,
    total: Annotated[Path | None, typer.Option(help="The hub's answer; without it the sites of the table.")] = None,
    site: Annotated[str | None, typer.Option(help="Take this site only, or name the table's one site.")] = None,
    round_number: RoundNumber = 1,
    workers: Workers = None,
    scheduler: Scheduler = None,
    json: Json = False,
) -> None:
    """How each site's held-out patients judge sharing, λ and usual care. Writes and sends nothing.

    Shown are errors on held-out patients, of outcomes and of contrasts between actions. They choose settings and are no
    estimate of what a policy is worth.
    """
    loaded = Study.load(study)
    rows = read_trajectories(data, loaded, site if total else None)
    answer = read_total(total, loaded, round_of(loaded, round_number)) if total else None
    rows = spread(context, rows, workers, scheduler)
    choices = tune_sites(loaded, rows, answer, find_kept(answer, rows.site, loaded) if answer else None)
    study_output.show_tuning({name: of_site for name, of_site in choices.items() if site in (None, name)}, json)


def run(
    context: typer.Context,
    study: StudyPath,
    data: DataTable,
    out: Annotated[Path, typer.Option(help="The folder for policies, coefficients and report.")],
    site: Annotated[str | None, typer.Option(help="Take this site only, or name the table's one site.")] = None,
    split: HeldOut = "folds",
    workers: Workers = None,
    scheduler: Scheduler = None,
    json: Json = False,
) -> None:
    """Fit all sites of one table, alone and together, and report. Baselines are fitted, too.

    For tables that may lie in one place. Nothing is released: what disclosure would say is shown, not enforced.
    """
    refuse_foreign(out, RESULTS_FILE)  # before the work, not after it
    loaded = Study.load(study)
    with show.progress() as progress:
        rows = spread(context, read_trajectories(data, loaded, site), workers, scheduler)
        results = run_study(loaded, rows, split=split, progress=stage(progress, 0, 90))
        progress("policies, tables and report", 90, 100)
        results.save(out)
        progress("done", 100, 100)
    study_output.show_results(results, out, json)


def report(
    folder: Annotated[Path, typer.Argument(metavar="RESULTS", help="A folder that `fdtr run` or `fdtr demo` made.")],
) -> None:
    """Write the report of a folder of results anew. Takes its results.json; fits nothing, reads no patient's row.

    One HTML file that opens from disk and fetches nothing: values with intervals, shared effects, what the rules do,
    and how far to trust it.
    """
    show.line(f"Wrote {report_again(folder)}.")


def demo(
    out: Annotated[Path, typer.Option(help="The folder to write into.")] = Path("fdtr-demo"),
    fresh: Annotated[bool, typer.Option("--fresh", help="Overwrite an edited study or table there.")] = False,
    json: Json = False,
) -> None:
    """Run a complete example study on simulated hospitals. The five hospitals are fitted alone and together.

    Writes the study, the table, every hospital's policy and a report into a folder, and prints what each method's
    policies are worth on fresh patients. Nothing leaves this machine.
    """
    with show.progress() as progress:
        results = run_demo(out, fresh=fresh, progress=progress)
    study_output.show_demo(results, out, json)
