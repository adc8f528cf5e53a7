"""The page of a file that travels between site and hub: every number with its meaning.

It is for people who decide whether the file may leave, such as an ethics board.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fdtr.disclosure import SiteValues
from fdtr.report.pages import render_page
from fdtr.study import Study
from fdtr.summary import SiteSummary, Total
from fdtr.sums import Grams, Sums

ABOUT = "file"
"""Name of the section about the file itself."""
_STEPS_ABREAST = 6
_TITLES = {
    "message": "The message of site {site}",
    "total": "The hub's total",
    "valuation": "The values of site {site}",
}


_WITH_OUTCOME = (
    "Sums as above, with the outcome from this step on in place of the second feature: this step's reward plus what "
    "the site's own first rule expects of the later steps."
)
_WITH_REWARD = "Sums as above, with this step's reward, mapped onto [0, 1], in place of the second feature."


class Meaning(NamedTuple):
    """An array of a message: its symbol, what it is, and what it tells or cannot tell."""

    symbol: str
    title: str
    what: str
    tells: str


MEANINGS = {
    "n": Meaning(
        "n",
        "Patients",
        "How many patients had a decision at each step{rounded}. Only these numbers count people directly.",
        "It does not tell who they are, nor how they were treated.",
    ),
    "schur": Meaning(
        "S",
        "How the shared covariates vary",
        "Each number is a sum over all patients of the product of two features, after the part that the site's own "
        "covariates explain was taken out. A feature is a covariate, scaled, times a power of the treatment's code.",
        "It does not tell what any one patient's covariates or treatment were: a sum over n patients fits countless "
        "different patients, as long as n is far larger than the number of features, which the rules ask for. {cells}",
    ),
    "schur_moment": Meaning(
        "s",
        "How the shared covariates relate to what follows",
        _WITH_OUTCOME,
        "It does not tell any one patient's outcome{solved}.{limited}",
    ),
    "schur_reward": Meaning(
        "s_r",
        "How the shared covariates relate to the reward",
        _WITH_REWARD,
        "It does not tell any one patient's reward{solved}.{limited}",
    ),
    "information": Meaning(
        "W",
        "S, weighted by the site's noise",
        "S divided by σ̂², the variance of the reward around the site's own fit. Sites with less noise weigh more.",
        "Together with S of the same site it tells one number for each step, σ̂², and nothing else.",
    ),
    "information_moment": Meaning(
        "v",
        "s_r, weighted by the site's noise",
        "s_r divided by the same σ̂².",
        "It tells nothing but s_r and σ̂².",
    ),
    "information_square": Meaning(
        "u",
        "How much of the reward the shared covariates explain",
        "One sum of squares for each step, s_rᵀS⁺s_r / σ̂². The test of whether sites agree uses it.",
        "It follows from the sums above and tells nothing else.",
    ),
    "rank": Meaning(
        "g",
        "Directions that were seen",
        "In how many independent directions the shared covariates vary at a site; in a total, added over sites.",
        "It follows from S of each site and tells nothing else.",
    ),
}

GRAM_MEANINGS = {
    "n": Meaning(
        "n",
        "Patients",
        "How many patients had a decision at each step.",
        "It does not tell who they are.",
    ),
    "gram": Meaning(
        "ΦᵀΦ",
        "How all covariates vary together",
        "Each number is a sum over all patients of the product of two features, the site's own among them. A feature "
        "is a covariate, scaled, times a power of the treatment's code. Nothing was taken out.",
        "It can tell how many patients got each treatment; the means and the spread of every covariate, of any two "
        "together, and all this within each treatment; for covariates that are yes or no, how many patients have one, "
        "and how many have two of them. Where a treatment has as few patients as there are covariates, it tells "
        "their rows; the rules ask for ten more.",
    ),
    "moment": Meaning(
        "ΦᵀY",
        "How all covariates relate to what follows",
        _WITH_OUTCOME,
        "It can tell the mean outcome within each treatment, and for those with and without each covariate.",
    ),
    "reward_moment": Meaning(
        "Φᵀr",
        "How all covariates relate to the reward",
        _WITH_REWARD,
        "It can tell the mean reward within each treatment, and for those with and without each covariate.",
    ),
    "reward_square": Meaning(
        "rᵀr",
        "The size of the rewards",
        "One sum for each step: of every patient's reward, mapped onto [0, 1], times itself.",
        "It can tell, with the sums above, how far rewards spread, and of rewards that are 0 or 1 how many are 1.",
    ),
}

AUDIT = (
    "This is an audit message: it holds the sums of all features, from which the usual message can be computed again.",
    "It tells more than the usual one, and whoever holds it sees this one site.",
    "No patient's row, identifier, date or name is in it. Where few patients share a trait, it could reveal them.",
    "It passed stricter disclosure rules; they cannot take into account what a reader already knows.",
    "Two files of one site whose patients differ by one reveal that patient's row and outcome exactly.",
    "A site's own records refuse a second file that differs by a few.",
    "A patient who withdraws consent before it is sent is left out. Afterwards it cannot be taken back.",
)
ALONE = ("No patient's row, identifier, date or name is in this file, and no number in it belongs to one patient.",)
TOGETHER = (
    "Each number is the sum, over the sites named below, of what their messages hold.",
    "No patient's row, identifier, date or name is in it, and no number in it belongs to one patient.",
    "A site that subtracts its own message learns the sum of the others. With two sites, that is the other's message.",
)
MASKED = (
    "Nobody saw the sums of one site: they were masked, and only this total could be opened.",
    "Unless the study asks for exact sums, everybody read totals of counts of patients before, in fives.",
)
CONSENT_ALONE = (
    "Of two files of one site whose patients differ by one or a few, the difference reveals sums over those patients.",
    "A site therefore sends one message for a study, and its own records refuse a second that differs so little.",
    "A patient who withdraws consent before it is sent is left out. Afterwards it cannot be taken back.",
    "A second file without that patient would show exactly that patient; the site's own policy can be made again.",
)
CONSENT_TOGETHER = (
    "A patient who withdraws consent before the site sends is left out. Afterwards the sums cannot be taken back.",
    "A second total without that patient would show, beside this one, exactly that patient.",
    "The site's own policy can be made again without the patient.",
)
VALUES = (
    "For each way of choosing treatments: its value for this site's patients, its gains over others, and their errors.",
    "Values are sums of rewards, each mapped onto [0, 1].",
    "Verified: doubly robust. Model-based: right only as far as the model is; the tolerance estimates its error.",
    "These are means over all patients. They do not tell any one patient's outcome or treatment.",
)


@dataclass(frozen=True)
class OpenedFile:
    """A message, total or valuation: its `body`, `facts` about the file itself, and the names of its `features`.

    `study` says which rules the sums passed; None where only the file is at hand.
    """

    kind: str
    site: str
    body: SiteSummary | Total | SiteValues
    facts: dict[str, str]
    features: tuple[str, ...] = ()
    study: Study | None = None

    @property
    def title(self) -> str:
        """What it is, for a heading."""
        return _TITLES[self.kind].format(site=self.site)


@dataclass(frozen=True)
class Grid:
    """A table: its caption, the titles of its columns, and its rows."""

    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    @property
    def words(self) -> list[int]:
        """Columns that hold words."""
        return [j for j in range(len(self.columns)) if not all(_is_number(row[j]) for row in self.rows)]


@dataclass(frozen=True)
class Section:
    """A section of the page: sentences, then tables."""

    name: str
    title: str
    sentences: tuple[str, ...]
    grids: tuple[Grid, ...]


def render_message(opened: OpenedFile) -> str:
    """The page as one HTML file that needs nothing else."""
    sections = sections_of(opened)
    return render_page("message.html.j2", title=opened.title, lead=sections[0].sentences[0], sections=sections)


def sections_of(opened: OpenedFile) -> list[Section]:
    """The whole page as plain text and tables, for a terminal or a browser."""
    facts = Grid("What it says of itself", ("", ""), tuple(opened.facts.items()))
    about = Section(ABOUT, "The file", _summary(opened), (facts,))
    if isinstance(opened.body, SiteValues):
        return [about, Section("values", "Gains and values", VALUES, _value_grids(opened.body))]
    sums = sums_in(opened.body)
    audit = isinstance(sums, Grams)
    meanings = GRAM_MEANINGS if audit else _meanings(opened)
    count = sums.n_features if isinstance(sums, Grams) else sums.n_shared
    features = opened.features or tuple(f"{'' if audit else 'shared '}feature {j + 1}" for j in range(count))
    members = []
    if isinstance(opened.body, Total):
        caption = "Sites, each with the checksum of its sums"
        grid = Grid(caption, ("site", "SHA-256 of its sums"), opened.body.members)
        members = [Section("sites", "Who is in it", (), (grid,))]
    arrays = [
        Section(
            name,
            f"{meaning.title} ({meaning.symbol})",
            (meaning.what, meaning.tells),
            _grids(getattr(sums, name), features),
        )
        for name, meaning in meanings.items()
    ]
    return [about, *members, *arrays]


def _value_grids(body: SiteValues) -> tuple[Grid, ...]:
    """Every number in a file of values: a table of gains, and one of values."""
    columns = ("verdict", "estimator", "value", "standard error", "tolerance")
    grids = []
    for title, names, values in (
        ("Gains", ("method", "over"), [value for value in body.values if value.over]),
        ("Values", ("method",), [value for value in body.values if not value.over]),
    ):
        rows = tuple(
            (
                *(getattr(value, name) for name in names),
                value.verdict,
                value.estimator,
                *(_number(x) for x in (value.value, value.standard_error, value.tolerance)),
            )
            for value in values
        )
        if rows:
            grids.append(Grid(title, (*names, *columns), rows))
    return tuple(grids)


def sums_in(body: SiteSummary | Total) -> Sums | Grams:
    """The sums that stand in the file; everything else in `body` is derived from them."""
    return body.payload if isinstance(body, SiteSummary) else body.sums


def _summary(opened: OpenedFile) -> tuple[str, ...]:
    """How many numbers, over how many patients; then what they do and do not tell together."""
    if isinstance(opened.body, SiteValues):
        return (
            f"{len(opened.body.values)} gains and values with their standard errors, over {opened.body.n:,} patients.",
            "The number of patients is rounded up to tens.",
        )
    sums = sums_in(opened.body)
    audit = isinstance(sums, Grams)
    about = f"all {sums.n_features}" if isinstance(sums, Grams) else f"{sums.n_shared} shared"
    count = sum(array.size for array in sums.packed().values())
    where = f"of {len(opened.body.sites)} sites" if isinstance(opened.body, Total) else "of one site"
    first = (
        f"{count:,} sums over {int(sums.n.max(initial=0)):,} patients {where}: for each of {sums.horizon} steps "
        f"{count // max(sums.horizon, 1):,} numbers about {about} features. All of them are listed below."
    )
    withheld = [str(h) for h, n in enumerate(sums.n) if n == 0]
    nothing = (f"Nothing is sent about step {', '.join(withheld)}: too few patients, or none.",) if withheld else ()
    return (first, *nothing, *(AUDIT if audit else _told(opened)))


def _meanings(opened: OpenedFile) -> dict[str, Meaning]:
    """MEANINGS as they hold for sums under the study's rules; without a study, for either kind."""
    rules, together = opened.study.rules if opened.study else None, isinstance(opened.body, Total)
    tens = ", rounded up to tens" + " at each site" * together
    rounded = f"{tens} unless the study asks for exact sums" if rules is None else tens if rules.weighted else ""
    cells = "Where few patients had a trait at a treatment, the numbers about it were taken out."
    solved = ""
    if rules is None:
        cells = f"Unless the study asks for exact sums: {cells[0].lower()}{cells[1:]}"
    elif not rules.by_block:
        cells = (
            "Of a trait with two values it can tell how many patients had it; the rules ask for none, or for at least "
            f"{rules.min_cell}."
        )
    if rules is not None and not rules.weighted and not rules.noised:
        solved = ", but outcomes of 0 or 1 of few patients can be solved for by somebody who knows their covariates"
    limited = (
        " Outcomes of a few patients that were far from all others were moved nearer to them before they were added up."
    )
    if rules is None:
        limited = f" Unless the study asks for exact sums:{limited.replace('Outcomes', 'outcomes')}"
    elif not rules.by_block:
        limited = ""
    words = {"rounded": rounded, "cells": cells, "solved": solved, "limited": limited}
    return {name: Meaning(*(part.format(**words) for part in meaning)) for name, meaning in MEANINGS.items()}


def _told(opened: OpenedFile) -> tuple[str, ...]:
    """What the sums of a site, or of several together, tell and do not tell under the study's rules."""
    if not isinstance(opened.body, Total):
        return (*ALONE, *_on_weights(opened), *_on_membership(opened), *CONSENT_ALONE)
    fewest = f"{opened.study.required_sites} sites or more" if opened.study else "as many sites as the study says"
    subtracted = (*TOGETHER, f"The rules therefore require {fewest}.", *(MASKED if opened.body.resolution else ()))
    return (*subtracted, *_on_weights(opened), *_on_membership(opened), *CONSENT_TOGETHER)


def _on_weights(opened: OpenedFile) -> tuple[str, ...]:
    """Weights, rounded numbers of patients, and what zeros mean."""
    if opened.study is None:
        return (
            "Unless the study asks for exact sums, each patient counts with weights that only the site knows.",
            "Numbers of patients are then rounded up to tens, and zeros may mean that too few patients would show.",
        )
    rules = opened.study.rules
    if rules.noised:
        return ("Every sum carries the noise of differential privacy, drawn once. Numbers of patients are exact.",)
    if not rules.weighted:
        return ("These are exact sums: every patient counts as 1, and numbers of patients are exact.",)
    far = ", or less if far from all others" * rules.by_block
    weights = (
        f"Each patient counts with weights from {1 - rules.jitter:g} to 1{far}, that only the patient's site knows.",
        "Sums are therefore not exact, and numbers of patients are rounded up to tens by each site.",
    )
    if not rules.by_block:
        return weights
    if not isinstance(opened.body, Total):
        rare = "Sums in which too few patients would show were taken out"
    elif opened.body.resolution:
        rare = f"All sites took out sums in which, without {_parts(opened.study)}, too few patients would show"
    else:
        rare = "Sums in which too few patients would show, or that too few sites sent, were taken out"
    return (*weights, f"{rare}. Zero means that there are none, or too few.")


def _parts(study: Study) -> str:
    """What sites can subtract from a total, those that may work together counted as one."""
    together = study.disclosure.colluding + 1
    return f"the parts of any {together} sites" if together > 1 else "any one site's part"


def _on_membership(opened: OpenedFile) -> tuple[str, ...]:
    """How well somebody can tell whether a patient is in the sums, and which rule limits that."""
    known = "Who knows everything about one patient can tell better than by chance whether the patient is in it."
    if opened.study is None:
        return (known, "Unless it asks for exact sums, the study says how much better at the most: max_membership.")
    rules = opened.study.rules
    if rules.noised:
        return (known, "The study's epsilon limits how much better; `fdtr check` says what that epsilon means.")
    if not rules.by_block:
        return (known, f"No rule limits how well: max_membership is not used with jitter = {rules.jitter:g}.")
    if rules.max_membership == 1:
        return (known, "No rule limits how well: max_membership is 1 in this study.")
    masked = isinstance(opened.body, Total) and opened.body.resolution
    where = f"for the total without {_parts(opened.study)}" if masked else "for each site's message"
    limit = f"max_membership is {rules.max_membership:g}, where 0.5 is chance and 1 is certainty"
    reckoned = "The rules reckon it for patients who are like many others, and let those who are far out count less."
    return (known, f"The study limits how well, {where}: {limit}.", reckoned)


def _grids(array: NDArray[np.float64], features: Sequence[str]) -> tuple[Grid, ...]:
    """A row for each feature, or for each pair of them, or one in all; a column for each step."""
    labels, caption = ["all patients"], "By step"
    if array.ndim == 2:
        labels, caption = list(features), "By feature and step"
    elif array.ndim == 3:
        labels = [f"{first} × {second}" for i, first in enumerate(features) for second in features[i:]]
        caption = "By pair of features and step"
        array = array[:, *np.triu_indices(len(features))]
    columns = array.reshape(len(array), -1)
    grids = []
    for start in range(0, len(columns), _STEPS_ABREAST):
        steps = range(start, min(start + _STEPS_ABREAST, len(columns)))
        rows = tuple((label, *(_number(columns[h, j]) for h in steps)) for j, label in enumerate(labels))
        grids.append(Grid(caption, ("", *(f"Step {h}" for h in steps)), rows))
    return tuple(grids) if labels else ()


def _is_number(cell: str) -> bool:
    try:
        float(cell.replace(",", ""))
    except ValueError:
        return False
    return True


def _number(value: float) -> str:
    """Six digits; whole numbers as they are."""
    return f"{int(value):,}" if float(value).is_integer() and abs(value) < 1e15 else f"{value:.6g}"
