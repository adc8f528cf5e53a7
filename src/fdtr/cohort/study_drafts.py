"""Drafts for people to agree on: the study file of an extracted table, and the target trial that it imitates."""

from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from fdtr.cohort.extraction_settings import ExtractionSettings
from fdtr.cohort.settings_toml import exact, toml_scalar
from fdtr.cohort.time_steps import ExtractedTable


@cache
def _templates() -> Environment:
    environment = Environment(  # noqa: S701 - these are TOML and Markdown, and no HTML
        loader=PackageLoader("fdtr.cohort"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters.update(exact=exact, toml=toml_scalar, short="{:g}".format, thousands="{:,}".format)
    return environment


def fill_in(template: str, **values: Any) -> str:
    """The text of a template beside this module."""
    return _templates().get_template(template).render(values)


def draft_study_from_settings(
    settings: ExtractionSettings, *, ragged: bool = True, cluster: bool = False, teaching: bool = False
) -> str:
    """The text of a study file that loads, with comments on what has to be decided.

    `ragged`: stays may end early. `cluster`: some persons have several stays. `teaching`: the patients are public
    already, and the disclosure rules are relaxed.

    Effects of a patient's state are shared by all sites. Each site has an intercept of its own for every action. A
    covariate that is constant within a site cannot be told from that intercept: it is named in a comment, not drafted.

    >>> draft_study_from_settings(ExtractionSettings(steps=3)).splitlines()[4]
    'horizon = 3  # steps of 4 hours from time zero'
    """
    return fill_in("study.toml.j2", settings=settings, ragged=ragged, cluster=cluster, teaching=teaching)


def draft_target_trial(extracted: ExtractedTable) -> str:
    """A page in Markdown that describes the randomised trial which an analysis of the table imitates.

    People must agree on it before any result means something. After M. A. Hernán and J. M. Robins, *Using Big Data to
    Emulate a Target Trial When a Randomized Trial Is Not Available*, American Journal of Epidemiology 183 (2016).
    """
    return fill_in("target_trial.md.j2", settings=extracted.settings, flow=extracted.flow)
