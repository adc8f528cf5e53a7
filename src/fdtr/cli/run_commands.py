"""The commands on a table of all sites in one place: demo, run and report."""

from pathlib import Path
from typing import Annotated

import typer

from fdtr.cli import show, study_output
from fdtr.cli.options import HeldOut, Json, Split, StudyPath
from fdtr.pipeline.demo import run_demo
from fdtr.pipeline.result_folder import refuse_foreign
from fdtr.pipeline.results import report_again
from fdtr.pipeline.run import run as run_study
from fdtr.progress import stage
from fdtr.report.record import RESULTS_FILE
from fdtr.site.rows import read_trajectories
from fdtr.study import Study


def demo(
    out: Annotated[Path, typer.Option(help="The folder to write into.")] = Path("fdtr-demo"),
    fresh: Annotated[bool, typer.Option("--fresh", help="Overwrite an edited study or table there.")] = False,
    json: Json = False,
) -> None:
    """The whole story on built-in data: five simulated hospitals. They are fitted alone and together.

    Writes the study, the table, every hospital's policy and a report into a folder, and prints what each method's
    policies are worth on fresh patients. Nothing leaves this machine.
    """
    with show.progress() as progress:
        finished = run_demo(out, fresh=fresh, progress=progress)
    study_output.show_demo(finished, json)


def run(
    study: StudyPath,
    data: Annotated[Path, typer.Argument(metavar="DATA", help="A table: CSV, Parquet, or a folder of Parquet files.")],
    out: Annotated[Path, typer.Option(help="The folder for policies, coefficients and report.")],
    site: Annotated[str | None, typer.Option(help="Take this site only, or name the table's one site.")] = None,
    split: HeldOut = Split.folds,
    json: Json = False,
) -> None:
    """Fit all sites of one table, alone and together, and report. Baselines are fitted, too.

    For tables that may lie in one place. Nothing is released: what disclosure would say is shown, not enforced.
    """
    refuse_foreign(out, RESULTS_FILE)  # before the work, not after it
    loaded = Study.load(study)
    with show.progress() as progress:
        rows = read_trajectories(data, loaded, site)
        results = run_study(loaded, rows, split=split.value, progress=stage(progress, 0, 90))
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
