"""`fdtr simulate`: draw a world whose truth is known."""

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from fdtr.cli import show
from fdtr.errors import InvalidStudy
from fdtr.pipeline.simulate import simulate as simulate_study
from fdtr.simulation import WorldSpec


def simulate(
    world: Annotated[Literal["linear", "sepsis"], typer.Argument(metavar="WORLD", help="linear or sepsis.")],
    out: Annotated[Path, typer.Option(help="The folder for table.csv and study.toml.")],
    patients: Annotated[int | None, typer.Option(min=1, help="At each site; 200 if left out.")] = None,
    sites: Annotated[int | None, typer.Option(min=1, help="Sites, K.")] = None,
    shared: Annotated[int | None, typer.Option(min=1, help="Shared covariates.")] = None,
    specific: Annotated[int | None, typer.Option(min=2, help="Site-specific covariates.")] = None,
    actions: Annotated[int | None, typer.Option(min=2, help="Action levels.")] = None,
    horizon: Annotated[int | None, typer.Option(min=1, help="Steps, H.")] = None,
    noise: Annotated[float | None, typer.Option(help="Of rewards, from 0 to 1.")] = None,
    behaviour: Annotated[
        Literal["uniform", "narrow", "softmax"] | None, typer.Option(help="How the data were treated.")
    ] = None,
    shared_kind: Annotated[
        Literal["redrawn", "static", "driving"] | None, typer.Option(help="What shared covariates do over time.")
    ] = None,
    deviation: Annotated[float | None, typer.Option(min=0, help="Of sites from what they have in common.")] = None,
    site_level: Annotated[
        int | None, typer.Option(min=0, help="How many shared covariates are constant within a site.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same files.")] = 0,
) -> None:
    """Draw a world whose truth is known: a table and its study file. Nothing leaves this machine.

    linear: a linear MDP in the paper's feature form; --shared-kind and --deviation break its model. sepsis: the five
    hospitals of the demo, which have no options but --out and --seed.
    """
    options: dict[str, Any] = {
        "n_sites": sites, "n_shared": shared, "n_specific": specific, "n_actions": actions, "horizon": horizon,
        "noise": noise, "behaviour": behaviour, "shared_kind": shared_kind, "deviation": deviation,
        "site_level_shared": site_level,
    }  # fmt: skip
    chosen = {field: value for field, value in options.items() if value is not None}
    if world == "linear":
        try:
            spec = WorldSpec(**chosen)
        except ValueError as error:
            raise InvalidStudy(f"Such a world cannot be drawn: {error}.") from None
    elif chosen:
        # Fields of a specification as options: n_sites is --sites, site_level_shared --site-level.
        names = (field.removeprefix("n_").removesuffix("_shared").replace("_", "-") for field in chosen)
        refused = ", ".join(f"--{name}" for name in names)
        raise InvalidStudy(f"The hospitals of the demo are as they are; leave out {refused}.")
    else:
        spec = None
    study = simulate_study(spec, out, seed=seed, patients=patients)
    show.line(f"Wrote {out}/table.csv and {out}/study.toml: {study.name}, {study.horizon} steps. Next:")
    show.line(f"  {show.program()} check {out}/study.toml {out}/table.csv")
