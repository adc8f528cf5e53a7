"""A file that travels between site and hub, number by number, for people who decide whether it may: an ethics board."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fdtr.disclosure import SiteValues
from fdtr.report.letter_texts import ALONE, AUDIT, GRAM_MEANINGS, MEANINGS, TOGETHER, VALUES, Meaning
from fdtr.report.page import contents, document, markup, paragraph, section, step_titles, table, tag
from fdtr.report.texts import say
from fdtr.summary import Grams, SiteSummary, Sums, Total

ABOUT = "file"
"""The part that tells of the file itself."""
_STEPS_ABREAST = 6
_KINDS = {"message": "The message of site {site}", "total": "The hub's total", "valuation": "The values of site {site}"}


@dataclass(frozen=True)
class Shown:
    """What is known of a file: its `body`, and `facts` about the file itself. `features` name those it is about."""

    kind: str
    site: str
    body: SiteSummary | Total | SiteValues
    facts: dict[str, str]
    features: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """What it is, for a heading."""
        return _KINDS[self.kind].format(site=self.site)


@dataclass(frozen=True)
class Grid:
    """A table: its caption, the titles of its columns, and its rows."""

    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Part:
    """A part of the page: sentences, then tables."""

    name: str
    title: str
    sentences: tuple[str, ...]
    grids: tuple[Grid, ...]


def numbers_of(body: SiteSummary | Total) -> Sums | Grams:
    """What of it stands in the file; the rest is derived."""
    return body.payload if isinstance(body, SiteSummary) else body.sums


def parts(shown: Shown) -> list[Part]:
    """The whole page as plain text and tables, for a terminal or a browser."""
    about = Part(
        ABOUT, "The file", _summary(shown), (Grid("What it says of itself", ("", ""), tuple(shown.facts.items())),)
    )
    if isinstance(shown.body, SiteValues):
        rows = tuple((v.method, v.estimator, _number(v.value), _number(v.standard_error)) for v in shown.body.values)
        columns = ("method", "estimator", "value", "standard error")
        return [about, Part("values", "Values", VALUES, (Grid("Every number in the file", columns, rows),))]
    numbers = numbers_of(shown.body)
    audit = isinstance(numbers, Grams)
    meanings = GRAM_MEANINGS if audit else MEANINGS
    count = numbers.n_features if isinstance(numbers, Grams) else numbers.n_shared
    features = shown.features or tuple(f"{'' if audit else 'shared '}feature {j + 1}" for j in range(count))
    members = []
    if isinstance(shown.body, Total):
        caption = "Sites, each with the checksum of its sums"
        grid = Grid(caption, ("site", "SHA-256 of its sums"), shown.body.members)
        members = [Part("sites", "Who is in it", (), (grid,))]
    return [about, *members, *(_array(meanings[name], name, numbers, features) for name in meanings)]


def as_html(shown: Shown) -> str:
    """The same as one HTML file that needs nothing else."""
    found = parts(shown)
    header = markup(
        tag("h1", shown.title),
        tag("p", _summary(shown)[0], class_="lead"),
        contents({part.name: part.title for part in found}),
    )
    main = markup(
        *(
            section(
                part.name,
                part.title,
                *map(paragraph, part.sentences[part.name == ABOUT :]),  # its first is the lead
                *(table(grid.caption, grid.columns, grid.rows, text=_words(grid)) for grid in part.grids),
            )
            for part in found
        )
    )
    footer = paragraph(tag("strong", say("page.research")), " ", say("page.not-clinical"))
    return document(shown.title, header, main, footer, ())


def _summary(shown: Shown) -> tuple[str, ...]:
    """How many numbers, over how many patients; then what they do and do not tell together."""
    if isinstance(shown.body, SiteValues):
        return (f"{len(shown.body.values)} values with their standard errors, over {shown.body.n:,} patients.",)
    sums = numbers_of(shown.body)
    audit = isinstance(sums, Grams)
    about = f"all {sums.n_features}" if isinstance(sums, Grams) else f"{sums.n_shared} shared"
    count = sum(array.size for array in sums.packed().values())
    where = f"of {len(shown.body.sites)} sites" if isinstance(shown.body, Total) else "of one site"
    first = (
        f"{count:,} sums over {int(sums.n.max(initial=0)):,} patients {where}: for each of {sums.horizon} steps "
        f"{count // max(sums.horizon, 1):,} numbers about {about} features. All of them stand below."
    )
    withheld = [str(h) for h, n in enumerate(sums.n) if n == 0]
    nothing = (f"Nothing is told of step {', '.join(withheld)}: too few patients, or none.",) if withheld else ()
    return (first, *nothing, *(TOGETHER if isinstance(shown.body, Total) else AUDIT if audit else ALONE))


def _array(meaning: Meaning, name: str, numbers: Sums | Grams, features: Sequence[str]) -> Part:
    grids = _grids(getattr(numbers, name), features)
    return Part(name, f"{meaning.title} ({meaning.symbol})", (meaning.what, meaning.tells), grids)


def _grids(array: NDArray[np.float64], features: Sequence[str]) -> tuple[Grid, ...]:
    """A row for each feature, or for each pair of them, or one in all; a column for each step."""
    labels, caption = ["all patients"], "By step"
    if array.ndim == 2:
        labels, caption = list(features), "By feature and step"
    elif array.ndim == 3:
        labels = [f"{one} × {other}" for i, one in enumerate(features) for other in features[i:]]
        caption = "By pair of features and step"
        array = array[:, *np.triu_indices(len(features))]
    columns = array.reshape(len(array), -1)
    grids = []
    for start in range(0, len(columns), _STEPS_ABREAST):
        steps = range(start, min(start + _STEPS_ABREAST, len(columns)))
        rows = tuple((label, *(_number(columns[h, j]) for h in steps)) for j, label in enumerate(labels))
        grids.append(Grid(caption, ("", *step_titles(steps)), rows))
    return tuple(grids) if labels else ()


def _number(value: float) -> str:
    """Six digits; whole numbers as they are."""
    return f"{int(value):,}" if float(value).is_integer() and abs(value) < 1e15 else f"{value:.6g}"


def _words(grid: Grid) -> set[int]:
    """Columns that hold words."""
    return {j for j in range(len(grid.columns)) if any(row[j][:1] not in "-0123456789" for row in grid.rows)}
