"""`fdtr run` and `fdtr report` as real processes: what they write, overwrite, and refuse."""

import json

import pyarrow as pa
import pyarrow.csv
import pytest

from command_line import SITES, fdtr, refused
from fdtr.study import Study
from worlds import make_study, make_table

pytestmark = pytest.mark.slow  # a process for every command


def test_run_writes_what_it_says_and_can_be_repeated(place):
    for _ in range(2):
        done = fdtr("run", "study.toml", "table.csv", "--out", "results", "--json", cwd=place)
        assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout)
    assert printed == json.loads((place / "results/results.json").read_text())
    assert printed["sites"]["north"]["patients"] == 260
    assert {p.name for p in (place / "results").iterdir()} == {
        "policies", "report.html", "results.json", "shared-coefficients.csv", "shared-effects.csv", "study.toml",
        "values.csv",
    }  # fmt: skip
    assert Study.load(place / "results/study.toml") == Study.load(place / "study.toml")
    report = (place / "results/report.html").read_bytes()
    (place / "results/report.html").unlink()
    assert fdtr("report", "results", cwd=place).returncode == 0
    assert (place / "results/report.html").read_bytes() == report
    refused(fdtr("report", ".", cwd=place), "holds no readable results.json")
    table = pa.csv.read_csv(place / "results/shared-coefficients.csv").to_pylist()
    assert len(table) == 3 * 6
    assert table[1]["feature"] == "v"
    assert table[1]["coefficient"] == printed["shared_coefficients"]["v"]["by_step"][0]
    assert table[1]["identified"] == "yes"


def change(table: pa.Table, column: str, row: int, value: object) -> pa.Table:
    values = table[column].to_pylist()
    values[row] = value
    return table.set_column(table.column_names.index(column), column, pa.array(values))


BAD_TABLES = {
    "missing column": (lambda t: t.drop_columns(["x"]), 'Column "x" is missing'),
    "text": (
        lambda t: change(t.set_column(t.column_names.index("x"), "x", t["x"].cast("string")), "x", 3, "tall"),
        '"x"',
    ),
    "NaN": (lambda t: change(t, "x", 3, None), '"x"'),
    "unknown action": (lambda t: change(t, "action", 3, 7), "action"),
    "hole": (lambda t: t.filter(pa.array([i != 1 for i in range(len(t))])), "hole"),
    "duplicate": (lambda t: pa.concat_tables([t, t.slice(0, 1)]), "more than once"),
    "late step": (lambda t: change(t, "step", 2, 3), "horizon"),
    "early end": (lambda t: t.filter(pa.array([i != 2 for i in range(len(t))])), "[ends]"),
    "reward": (lambda t: change(t, "reward", 3, 2.5), "reward"),
}


@pytest.mark.parametrize("fault", BAD_TABLES)
def test_a_bad_table_is_refused_and_leaves_nothing(place, fault):
    spoil, words = BAD_TABLES[fault]
    pa.csv.write_csv(spoil(make_table(make_study(), SITES)), place / "bad.csv")
    before = sorted(place.rglob("*"))
    refused(fdtr("run", "study.toml", "bad.csv", "--out", "results", cwd=place), words)
    refused(
        fdtr("site", "summarize", "study.toml", "bad.csv", "--site", "north", "--out", "a.fdtr", "--yes", cwd=place)
    )
    assert sorted(place.rglob("*")) == before


def test_files_that_cannot_be_read_are_refused(place):
    refused(fdtr("run", "study.toml", "none.csv", "--out", "results", cwd=place), "does not exist")
    refused(fdtr("run", "none.toml", "table.csv", "--out", "results", cwd=place), "could not be read")
    (place / "cut.parquet").write_bytes(b"PAR1 not parquet")
    refused(fdtr("run", "study.toml", "cut.parquet", "--out", "results", cwd=place), "not sound Parquet")
    text = (place / "study.toml").read_text()
    (place / "typo.toml").write_text(text.replace("horizon", "horizn"))
    refused(fdtr("check", "typo.toml", "table.csv", cwd=place), 'did you mean "horizon"?')
    (place / "twice.toml").write_text(text.replace("levels = [\n    0,", "levels = [\n    0, 0.0,"))
    refused(fdtr("check", "twice.toml", "table.csv", cwd=place), "the level 0 is listed twice")
    assert not (place / "results").exists()


def test_results_of_an_earlier_run_do_not_linger(place):
    assert fdtr("run", "study.toml", "table.csv", "--out", "results", cwd=place).returncode == 0
    two = fdtr("run", "study.toml", "table.csv", "--site", "west", "--out", "results", cwd=place)
    assert two.returncode == 0, two.stderr
    assert [path.name for path in (place / "results" / "policies").iterdir()] == ["west.policy"]


def test_results_never_overwrite_other_files(place):
    (place / "mine").mkdir()
    (place / "mine" / "notes.txt").write_text("keep")
    refused(fdtr("run", "study.toml", "table.csv", "--out", "mine", cwd=place), "holds other files")
    assert [p.name for p in (place / "mine").iterdir()] == ["notes.txt"]
    refused(fdtr("run", "study.toml", "table.csv", "--out", "table.csv", cwd=place), "is a file")
