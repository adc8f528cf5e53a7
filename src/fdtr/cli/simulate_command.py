"""`fdtr simulate`: draw a world whose truth is known."""

from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from fdtr.cli import show
from fdtr.errors import InvalidStudy
from fdtr.pipeline.simulate import simulate as simulate_study
from fdtr.simulation import AuthorsSpec, IcuSpec, WorldSpec

World = Literal["linear", "authors", "sepsis", "icu-sepsis"]


def simulate(
    world: Annotated[World, typer.Argument(metavar="WORLD", help="linear, authors, sepsis or icu-sepsis.")],
    out: Annotated[Path, typer.Option(help="The folder for table.csv and study.toml.")],
    patients: Annotated[int | None, typer.Option(min=1, help="At each site; 200 if left out.")] = None,
    sites: Annotated[int | None, typer.Option(min=1, help="Sites, K.")] = None,
    shared: Annotated[int | None, typer.Option(min=1, help="Shared covariates.")] = None,
    specific: Annotated[int | None, typer.Option(min=2, help="Site-specific covariates.")] = None,
    actions: Annotated[int | None, typer.Option(min=2, help="Action levels.")] = None,
    horizon: Annotated[int | None, typer.Option(min=1, help="Steps, H.")] = None,
    noise: Annotated[float | None, typer.Option(help="Of rewards, from 0 to 1 (linear).")] = None,
    behaviour: Annotated[
        Literal["uniform", "narrow", "softmax"] | None, typer.Option(help="How the data were treated (linear).")
    ] = None,
    shared_kind: Annotated[
        Literal["redrawn", "static", "driving"] | None,
        typer.Option(help="What shared covariates do over time (linear)."),
    ] = None,
    deviation: Annotated[
        float | None, typer.Option(min=0, help="Of sites from what they have in common (linear, icu-sepsis).")
    ] = None,
    site_level: Annotated[
        int | None, typer.Option(min=0, help="How many shared covariates are constant within a site (linear).")
    ] = None,
    effect: Annotated[float | None, typer.Option(min=0, help="Planted, of the dose by state (icu-sepsis).")] = None,
    follow_up: Annotated[
        bool | None, typer.Option("--follow-up", help="Count who survives after the last step too (icu-sepsis).")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same files.")] = 0,
) -> None:
    """Draw a world whose truth is known: a table and its study file. Nothing leaves this machine.

    linear: a valid linear MDP in the paper's feature form. authors: the kind of generator that the paper describes,
    whose transitions are not linear. sepsis: the five hospitals of the demo. icu-sepsis: hospitals cut from the
    ICU-Sepsis benchmark, which pip downloads the first time.
    """
    options: dict[str, Any] = {
        "n_sites": sites, "n_shared": shared, "n_specific": specific, "n_actions": actions, "horizon": horizon,
        "noise": noise, "behaviour": behaviour, "shared_kind": shared_kind, "deviation": deviation,
        "site_level_shared": site_level, "effect": effect, "follow_up": follow_up,
    }  # fmt: skip
    spec = _specification(world, {name: value for name, value in options.items() if value is not None})
    study = simulate_study(spec, out, seed=seed, patients=patients)
    show.line(f"Wrote {out}/table.csv and {out}/study.toml: {study.name}, {study.horizon} steps. Next:")
    show.line(f"  {show.program()} check {out}/study.toml {out}/table.csv")


def _specification(world: World, options: dict[str, Any]) -> WorldSpec | AuthorsSpec | IcuSpec | None:
    """The specification of a world from the options that were given, by field name; None for the demo's hospitals."""
    if world == "sepsis":
        if options:
            raise InvalidStudy(f"The hospitals of the demo are as they are; leave out {_option_names(options)}.")
        return None
    kinds: dict[World, type[WorldSpec | AuthorsSpec | IcuSpec]] = {
        "linear": WorldSpec,
        "authors": AuthorsSpec,
        "icu-sepsis": IcuSpec,
    }
    kind = kinds[world]
    unknown = sorted(set(options) - {field.name for field in fields(kind)})
    if unknown:
        names = _option_names(unknown)
        raise InvalidStudy(f'The world "{world}" has no such options: {names}. Leave them out.')
    try:
        return kind(**options)
    except ValueError as error:
        raise InvalidStudy(f"Such a world cannot be drawn: {error}.") from None


def _option_names(names: Iterable[str]) -> str:
    """The options that set fields of a specification: n_sites is --sites, site_level_shared --site-level."""
    return ", ".join(f"--{name.removeprefix('n_').removesuffix('_shared').replace('_', '-')}" for name in names)
