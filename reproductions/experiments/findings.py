"""What an experiment found, and the files that keep it: a page, a table, and a figure as SVG and PNG."""

import csv
import dataclasses
import io
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fdtr import __version__
from fdtr.errors import UnwritableFile

if TYPE_CHECKING:
    import altair


Draw = Callable[[], "altair.TopLevelMixin"]


@dataclass(frozen=True, eq=False)
class Table:
    """Rows of one dataclass, written to `name`.csv."""

    name: str
    rows: Sequence[Any]

    def as_csv(self) -> str:
        """The fields as columns; floats as short as they read back."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow([field.name for field in dataclasses.fields(self.rows[0])])
        for row in self.rows:
            writer.writerow([_cell(getattr(row, field.name)) for field in dataclasses.fields(row)])
        return text.getvalue()


@dataclass(frozen=True, eq=False)
class Figure:
    """A chart, written to `name`.svg and `name`.png; `draw` makes it, so that nobody else needs the library."""

    name: str
    title: str
    draw: Draw


@dataclass(frozen=True, eq=False)
class Finding:
    """One experiment: its `title`, what it `shows` in sentences that carry their figures, its tables and figures."""

    title: str
    shows: Sequence[str]
    tables: Sequence[Table]
    figures: Sequence[Figure] = ()


@dataclass(frozen=True)
class Provenance:
    """How files came to be: the `command`, the `seed`, and the wall time in `seconds` on `cores` cores.

    A run that is `resumed` had outcomes of earlier ones, whose time is not counted.
    """

    command: str
    seed: int
    seconds: float
    cores: int
    resumed: bool = False

    @property
    def details(self) -> str:
        """Version, seed and wall time."""
        wall = f"{self.seconds:.0f} s" if self.seconds < 120 else f"{self.seconds / 60:.0f} min"
        cores = "core" if self.cores == 1 else "cores"
        after = " after earlier runs" if self.resumed else ""
        return f"fdtr {__version__}, seed {self.seed}, {wall} on {self.cores} {cores}{after}"


def write_findings(folder: Path, name: str, findings: Sequence[Finding], provenance: Provenance) -> None:
    """Write every table and figure, and a page `name`.md that shows them, into `folder`."""
    files: dict[str, bytes] = {}
    for finding in findings:
        files |= {f"{table.name}.csv": table.as_csv().encode() for table in finding.tables}
        for figure in finding.figures:
            files |= {f"{figure.name}.{kind}": data for kind, data in _render(figure, provenance).items()}
    files[f"{name}.md"] = _page(findings, provenance).encode()
    for file, data in files.items():
        (folder / file).write_bytes(data)


def prepare(folder: Path) -> None:
    """Refuse before hours of work, not after, where nothing can be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise UnwritableFile(f"Nothing can be written into {folder}: {error.strerror}. Name another folder.") from None


def _page(findings: Sequence[Finding], provenance: Provenance) -> str:
    lines = [f"`{provenance.command}`", "", f"{provenance.details}."]
    for finding in findings:
        lines += ["", f"## {finding.title}", ""]
        lines += [f"* {sentence}" for sentence in finding.shows]
        for figure in finding.figures:
            lines += ["", f"![{figure.title}]({figure.name}.svg)"]
        lines += ["", "Numbers: " + ", ".join(f"[{table.name}.csv]({table.name}.csv)" for table in finding.tables)]
    return "\n".join(lines) + "\n"


def _render(figure: Figure, provenance: Provenance) -> Mapping[str, bytes]:
    import altair
    import vl_convert

    subtitle = [provenance.command, provenance.details]
    title = altair.TitleParams(figure.title, subtitle=subtitle, anchor="start", offset=12, subtitleColor="#555555")
    chart = figure.draw().properties(title=title).configure_view(stroke=None)
    spec = chart.to_dict()
    return {
        "svg": vl_convert.vegalite_to_svg(spec).encode(),
        "png": vl_convert.vegalite_to_png(spec, scale=2),
    }


def _cell(value: Any) -> Any:
    return f"{value:.6g}" if isinstance(value, float) else value
