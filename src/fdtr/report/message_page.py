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
from fdtr.summary import Grams, SiteSummary, Sums, Total

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
        "How many patients had a decision at each step, in tens. These are the only numbers here that count people.",
        "It does not tell who they are, nor how they were treated.",
    ),
    "schur": Meaning(
        "S",
        "How the shared covariates vary",
        "Each number is a sum over all patients of the product of two features, after the part that the site's own "
        "covariates explain was taken out. A feature is a covariate, scaled, times a power of the treatment's code.",
        "It does not tell what any one patient's covariates or treatment were: a sum over n patients fits countless "
        "different patients, as long as n is far larger than the number of features, which the rules ask for. Where "
        "few patients had a trait at a treatment, the numbers about it were taken out.",
    ),
    "schur_moment": Meaning(
        "s",
        "How the shared covariates relate to what follows",
        _WITH_OUTCOME,
        "It does not tell any one patient's outcome.",
    ),
    "schur_reward": Meaning(
        "s_r",
        "How the shared covariates relate to the reward",
        _WITH_REWARD,
        "It does not tell any one patient's reward.",
    ),
    "information": Meaning(
        "W",
        "S, weighted by the site's noise",
        "S divided by σ̂², the variance of the reward around the site's own fit. Sites with less noise weigh more.",
        "Together with S it tells one number for each step, σ̂², and nothing else.",
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
        "In how many independent directions the shared covariates vary at this site.",
        "It follows from S and tells nothing else.",
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
)
ALONE = (
    "No patient's row, identifier, date or name is in this file, and no number in it belongs to one patient.",
    "Unless the study asks for exact sums, each patient counts with a weight that only the site knows.",
    "Numbers of patients are then rounded up to tens, and zeros may mean that too few patients would show.",
    "Who knows everything about one patient can tell a little better than by chance whether the patient is in it.",
    "The study says how much better at the most: max_membership, where 0.5 is chance and 1 is certainty.",
    "Of two files of one site whose patients differ by one or a few, the difference reveals sums over those patients.",
    "A site therefore sends one message for a study, and its own records refuse a second that differs so little.",
    "A patient who withdraws consent before it is sent is left out. Afterwards it cannot be taken back.",
    "A second file without that patient would show exactly that patient; the site's own policy can be made again.",
)
TOGETHER = (
    "Each number is the sum, over the sites named below, of what their messages hold.",
    "No patient's row, identifier, date or name is in it, and no number in it belongs to one patient.",
    "A site that subtracts its own message learns the sum of the others. With two sites, that is the other's message.",
    "The rules therefore require three sites or more.",
)
VALUES = (
    "For each way of choosing treatments: its value for this site's patients, its gains over others, and their errors.",
    "Values are sums of rewards, each mapped onto [0, 1].",
    "Verified: doubly robust. Model-based: right only as far as the model is; the tolerance estimates its error.",
    "These are means over all patients. They do not tell any one patient's outcome or treatment.",
)


@dataclass(frozen=True)
class OpenedFile:
    """A message, total or valuation: its `body`, `facts` about the file itself, and the names of its `features`."""

    kind: str
    site: str
    body: SiteSummary | Total | SiteValues
    facts: dict[str, str]
    features: tuple[str, ...] = ()

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
    meanings = GRAM_MEANINGS if audit else MEANINGS
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
    return (first, *nothing, *(TOGETHER if isinstance(opened.body, Total) else AUDIT if audit else ALONE))


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
