"""`fdtr simulate`: draw a world whose truth is known."""

from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from fdtr.cli import show
from fdtr.errors import InvalidStudy
from fdtr.pipeline.simulate import simulate as simulate_study
from fdtr.simulation import DiscreteSpec, WorldSpec

World = Literal["linear", "discrete", "sepsis"]


def simulate(
    world: Annotated[World, typer.Argument(metavar="WORLD", help="linear, discrete or sepsis.")],
    out: Annotated[Path, typer.Option(help="The folder for table.csv and study.toml.")],
    patients: Annotated[int | None, typer.Option(min=1, help="At each site; 200 if left out.")] = None,
    sites: Annotated[int | None, typer.Option(min=1, help="Sites, K.")] = None,
    shared: Annotated[int | None, typer.Option(min=1, help="Shared covariates (linear).")] = None,
    specific: Annotated[int | None, typer.Option(min=2, help="Site-specific covariates (linear).")] = None,
    actions: Annotated[int | None, typer.Option(min=2, help="Action levels (linear).")] = None,
    horizon: Annotated[int | None, typer.Option(min=1, help="Steps, H.")] = None,
    noise: Annotated[float | None, typer.Option(help="Of rewards, from 0 to 1 (linear).")] = None,
    behaviour: Annotated[
        Literal["uniform", "narrow", "softmax"] | None, typer.Option(help="How the data were treated (linear).")
    ] = None,
    shared_kind: Annotated[
        Literal["redrawn", "static", "driving"] | None,
        typer.Option(help="What shared covariates do over time (linear)."),
    ] = None,
    deviation: Annotated[float | None, typer.Option(min=0, help="Of sites from what they have in common.")] = None,
    site_level: Annotated[
        int | None, typer.Option(min=0, help="How many shared covariates are constant within a site (linear).")
    ] = None,
    kind: Annotated[
        Literal["ward", "crossed"] | None, typer.Option(help="Three treatments, or a Q far from linear (discrete).")
    ] = None,
    confounding: Annotated[
        float | None, typer.Option(min=0, help="Log odds ratio of a cause that no table shows (discrete).")
    ] = None,
    ends: Annotated[bool | None, typer.Option("--ends", help="Patients die or are discharged (discrete).")] = None,
    censoring: Annotated[
        float | None, typer.Option(min=0, help="Chance that the sickest are lost at a step (discrete).")
    ] = None,
    habit: Annotated[
        bool | None,
        typer.Option("--habit", help="Clinicians treat visible symptoms by a fixed habit (discrete, ward)."),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same files.")] = 0,
) -> None:
    """Draw a world whose truth is known: a table and its study file. Nothing leaves this machine.

    linear: a linear MDP in the paper's feature form; --shared-kind and --deviation break its model. discrete: vitals in
    a few levels, values exact, and no linear Q. sepsis: the five hospitals of the demo, which have no options but --out
    and --seed.
    """
    options: dict[str, Any] = {
        "n_sites": sites, "n_shared": shared, "n_specific": specific, "n_actions": actions, "horizon": horizon,
        "noise": noise, "behaviour": behaviour, "shared_kind": shared_kind, "deviation": deviation,
        "site_level_shared": site_level, "kind": kind, "confounding": confounding, "ends": ends, "censoring": censoring,
        "habit": habit,
    }  # fmt: skip
    spec = _specification(world, {field: value for field, value in options.items() if value is not None})
    study = simulate_study(spec, out, seed=seed, patients=patients)
    show.line(f"Wrote {out}/table.csv and {out}/study.toml: {study.name}, {study.horizon} steps. Next:")
    show.line(f"  {show.program()} check {out}/study.toml {out}/table.csv")


def _specification(world: World, options: dict[str, Any]) -> WorldSpec | DiscreteSpec | None:
    """The specification of a world from the options that were stated, by field name; None for the demo's hospitals."""
    if world == "sepsis":
        if options:
            raise InvalidStudy(f"The hospitals of the demo are as they are; leave out {_option_names(options)}.")
        return None
    kinds: dict[str, type[WorldSpec | DiscreteSpec]] = {"linear": WorldSpec, "discrete": DiscreteSpec}
    unknown = sorted(set(options) - {field.name for field in fields(kinds[world])})
    if unknown:
        raise InvalidStudy(f'The world "{world}" has no such options: {_option_names(unknown)}. Leave them out.')
    try:
        return kinds[world](**options)
    except ValueError as error:
        raise InvalidStudy(f"Such a world cannot be drawn: {error}.") from None


def _option_names(fields_of_specification: Iterable[str]) -> str:
    """Fields of a specification as options: n_sites is --sites, site_level_shared --site-level."""
    names = (field.removeprefix("n_").removesuffix("_shared").replace("_", "-") for field in fields_of_specification)
    return ", ".join(f"--{name}" for name in names)
