"""The commands on a whole table as real processes: what they print, write, overwrite, and refuse."""

import json
import re

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

from command_line import SITES, fdtr, refused
from fdtr.site.design_menu import BANDS
from fdtr.site.rows import read_trajectories
from fdtr.study import Study
from random_tables import make_study, make_table

pytestmark = pytest.mark.slow  # a process for every command


def test_init_drafts_a_study_that_reads_its_table(place):
    done = fdtr("init", "table.csv", "--out", "draft.toml", "--name", "trial", cwd=place)
    assert done.returncode == 0, done.stderr
    draft = Study.load(place / "draft.toml")
    assert draft.horizon == 3
    assert draft.actions.levels == (0, 1, 2)
    assert {c.name for c in draft.covariates} == {"u", "x", "v", "y"}
    rows = read_trajectories(place / "table.csv", draft)
    assert rows.n_patients == sum(SITES.values())
    assert not any(rows.clipped.values())
    refused(fdtr("init", "table.csv", "--out", "draft.toml", cwd=place), "exists already")


def test_check_tells_everything_and_writes_nothing(place):
    before = sorted(place.iterdir())
    done = fdtr("check", "study.toml", "table.csv", "--all", cwd=place)
    assert done.returncode == 0, done.stderr
    for words in (
        "Patients by action",
        "Share of each shared feature",
        "predict the next value",
        "every site may send all",
    ):
        assert words in done.stdout
    short = fdtr("check", "study.toml", "table.csv", cwd=place).stdout
    assert done.stdout.startswith(short)
    assert len(short.splitlines()) <= 10
    assert "of 3 sites: all at 3, in part at 0, nothing at 0" in short
    found = json.loads(fdtr("check", "study.toml", "table.csv", "--site", "west", "--json", cwd=place).stdout)
    assert list(found) == ["west"]
    assert sum(found["west"]["actions"]["0"].values()) == 220
    assert {verdict["rule"] for verdict in found["west"]["disclosure"]} == {
        "N", "NUMBERS", "ACTION", "CELL", "NONZERO", "REF", "PAIR", "LEVERAGE", "BOUND", "COLLINEAR", "ONCE",
    }  # fmt: skip
    assert sorted(place.iterdir()) == before


def test_a_partition_stands_for_its_table(place):
    done = fdtr("table", "partition", "study.toml", "table.csv", "--out", "parts", "--json", cwd=place)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "folder": "parts",
        "sites": dict(sorted(SITES.items())),
        "rows": 3 * sum(SITES.values()),
    }
    shown = fdtr("table", "partition", "study.toml", "table.csv", "--site", "west", "--out", "west", cwd=place).stdout
    assert 'Wrote west: 220 patients of site "west", 660 rows in 3 steps.' in shown
    table, parts = (fdtr("check", "study.toml", data, "--json", cwd=place) for data in ("table.csv", "parts"))
    assert parts.returncode == 0, parts.stderr
    assert json.loads(parts.stdout).keys() == json.loads(table.stdout).keys()
    for data, out in (("parts", "of-parts"), ("table.csv", "of-table")):
        done = fdtr("run", "study.toml", data, "--out", out, "--json", cwd=place)
        assert done.returncode == 0, done.stderr
    refused(
        fdtr(
            "table", "partition", "study.toml", "--db", "duckdb:no.duckdb", "--table", "t", "--out", "none", cwd=place
        ),
        "There is no database no.duckdb",
    )
    assert not (place / "none").exists()
    refused(fdtr("table", "partition", "study.toml", "table.csv", "--out", "parts", cwd=place), "exists already")
    refused(fdtr("init", "parts", "--out", "draft.toml", cwd=place), "is a partition of a table. Name the table itself")
    (place / "parts/000/step-001.parquet").unlink()
    refused(fdtr("check", "study.toml", "parts", cwd=place), "step-001.parquet is missing", "fdtr table partition")


def test_check_suggests_designs_in_bands_and_writes_nothing(place):
    before = sorted(place.iterdir())
    done = fdtr("check", "study.toml", "table.csv", "--suggest", "--json", cwd=place)
    assert done.returncode == 0, done.stderr
    assert sorted(place.iterdir()) == before
    found = json.loads(done.stdout)
    assert [one["design"] for one in found["designs"]] == [
        "as it is", "none or low as one action", "low or high as one action", "the first 2 steps", "the first step",
        "share u only", "narrower ranges", "a secure sum",
    ]  # fmt: skip
    assert found["designs"][3]["changes"] == ["horizon = 2"]
    assert {band for one in found["designs"] for band in one["could_send"].values()} <= set(BANDS)
    shown = fdtr("check", "study.toml", "table.csv", "--suggest", "--site", "west", cwd=place).stdout
    assert "A secure sum is not tried" in shown
    assert 'labels = ["none", "low or high"]' in shown
    assert not re.search(r"\b(220|260)\b", shown)  # numbers of patients


def test_check_refuses_options_that_would_have_no_effect(place):
    refused(fdtr("check", "study.toml", "table.csv", "--all", "--suggest", cwd=place), "Leave one out")
    make_study(disclosure={"secure_sum": True, "max_patients": 400}).save(place / "secure.toml")
    for study in ("study.toml", "secure.toml"):
        refused(fdtr("check", study, "table.csv", "--sites", "5", cwd=place), "has 3, whose sums are judged together")
        refused(fdtr("check", study, "table.csv", "--sites", "5", "--suggest", cwd=place), "name one of them with")
    one = ("table.csv", "--site", "west", "--sites", "5")
    shown = fdtr("check", "secure.toml", *one, cwd=place).stdout
    assert "judged as if there were 5 sites like it" in " ".join(shown.split())
    done = fdtr("check", "study.toml", *one, cwd=place)
    assert done.returncode == 0
    assert "--sites changes nothing here" in done.stderr


def test_check_counts_clusters_where_there_are_some(place):
    plain = fdtr("check", "study.toml", "table.csv", "--all", cwd=place)
    assert "clusters" not in plain.stdout
    study = make_study(columns={"cluster": "clinician"})
    study.save(place / "clustered.toml")
    table = make_table(study, SITES)
    clinicians = [f"c{int(patient[1:]) % 37}" for patient in table["patient"].to_pylist()]
    pa.csv.write_csv(table.append_column("clinician", [clinicians]), place / "clustered.csv")
    done = fdtr("check", "clustered.toml", "clustered.csv", "--all", cwd=place)
    assert re.search(r"site +patients +clusters +rows", done.stdout), done.stderr
    assert re.search(r"west +220 +37 +660", done.stdout)
    machine = fdtr("check", "clustered.toml", "clustered.csv", "--site", "west", "--json", cwd=place)
    assert json.loads(machine.stdout)["west"]["clusters"] == 37
    refused(fdtr("check", "clustered.toml", "table.csv", cwd=place), 'Column "clinician" is missing.')


def test_check_says_why_nothing_would_be_shared(place):
    study = make_study()
    table = make_table(study, SITES, constant_within_site=("u", "v"))
    pa.parquet.write_table(table, place / "constant.parquet")
    done = fdtr("check", "study.toml", "constant.parquet", "--all", cwd=place)
    assert "it is constant within the site, so the site's own intercept absorbs it" in done.stdout


def test_outcomes_that_are_all_zero_are_no_fault(tmp_path):
    """The best held-out error of such a site is 0, of which nothing is a percentage."""
    study = make_study(learning=dict.fromkeys(("pessimism", "ridge", "sharing", "share"), "auto"), horizon=1)
    table = make_table(study, {"a": 60, "b": 60, "c": 60})
    rewards = [0.0 if row["site"] == "a" else row["reward"] for row in table.to_pylist()]
    place = table.schema.get_field_index("reward")
    pa.csv.write_csv(table.set_column(place, "reward", pa.array(rewards)), tmp_path / "table.csv")
    study.save(tmp_path / "study.toml")
    tuned = fdtr("tune", "study.toml", "table.csv", cwd=tmp_path)
    assert tuned.returncode == 0, tuned.stderr
    assert "–" in tuned.stdout
    ran = fdtr("run", "study.toml", "table.csv", "--out", "results", cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert (tmp_path / "results" / "report.html").exists()


def test_tune_shows_the_ladder_and_writes_nothing(place):
    text = (
        (place / "study.toml")
        .read_text()
        .replace("ridge = 0.1", 'ridge = "auto"')
        .replace("sharing = 1", 'sharing = "auto"')
    )
    (place / "auto.toml").write_text(text)
    before = sorted(place.iterdir())
    done = fdtr("tune", "auto.toml", "table.csv", "--site", "west", cwd=place)
    assert done.returncode == 0, done.stderr
    assert re.match(r"west (shares|stays).*its held-out patients", done.stdout)
    assert re.search(r"values +1 +0\.0\d+ +\S+ +\S+ +(chosen|not tolerated)", done.stdout)
    assert len(re.findall(" chosen", done.stdout)) == 1
    assert "usual care" not in done.stdout  # the study fixes the pessimism
    (place / "auto.toml").write_text(re.sub(r"pessimism = .*", 'pessimism = "auto"', text))
    done = fdtr("tune", "auto.toml", "table.csv", "--site", "west", cwd=place)
    assert re.search(
        r"west .* usual care: .* \(t = -?\d\.\d(, bolder policy t = -?\d\.\d)?, noise = 0\.(03|1)\)", done.stdout
    )
    found = json.loads(fdtr("tune", "auto.toml", "table.csv", "--json", cwd=place).stdout)
    assert set(found) == set(SITES)
    for choice in found.values():
        ways = [(rung["candidate"]["sharing"], rung["candidate"]["share"]) for rung in choice["rungs"]]
        assert ways == [(1.0, "value"), (0.3, "value"), (0.1, "value"), (0.0, "value")]  # the study shares values
        standing = [rung for rung in choice["rungs"] if not rung["rejected"]]
        assert choice["chosen"] == standing[0]["candidate"]
        assert min(rung["excess"] for rung in choice["rungs"]) == 0
        care = choice["usual_care"]
        assert care["better"] == (care["statistic"] > 1.645)
        assert care["closer"] == (care["better"] and (care["bolder"] or 0) <= 1)
        assert care["noise"] == (0.1 if care["closer"] else 0.03)
    assert sorted(place.iterdir()) == before


def test_run_writes_what_it_says_and_can_be_repeated(ran):
    done = fdtr("run", "study.toml", "table.csv", "--out", "results", "--json", cwd=ran)
    assert done.returncode == 0, done.stderr
    assert done.stdout == (ran / "printed.json").read_text()
    printed = json.loads(done.stdout)
    assert printed == json.loads((ran / "results/results.json").read_text())
    assert printed["sites"]["north"]["patients"] == 260
    assert {p.name for p in (ran / "results").iterdir()} == {
        "gains.csv", "policies", "report.html", "results.json", "shared-coefficients.csv", "shared-effects.csv",
        "study.toml", "values.csv",
    }  # fmt: skip
    assert Study.load(ran / "results/study.toml") == Study.load(ran / "study.toml")
    report = (ran / "results/report.html").read_bytes()
    assert b"Compared with FDTR by decisions alone" in report  # as on the terminal
    (ran / "results/report.html").unlink()
    assert fdtr("report", "results", cwd=ran).returncode == 0
    assert (ran / "results/report.html").read_bytes() == report
    refused(fdtr("report", ".", cwd=ran), "holds no readable results.json")
    table = pa.csv.read_csv(ran / "results/shared-coefficients.csv").to_pylist()
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


def test_results_of_an_earlier_run_do_not_linger(ran):
    assert len([*(ran / "results" / "policies").iterdir()]) == 3
    two = fdtr("run", "study.toml", "table.csv", "--site", "west", "--out", "results", cwd=ran)
    assert two.returncode == 0, two.stderr
    assert [path.name for path in (ran / "results" / "policies").iterdir()] == ["west.policy"]


def test_results_never_overwrite_other_files(place):
    (place / "mine").mkdir()
    (place / "mine" / "notes.txt").write_text("keep")
    refused(fdtr("run", "study.toml", "table.csv", "--out", "mine", cwd=place), "holds other files")
    assert [p.name for p in (place / "mine").iterdir()] == ["notes.txt"]
    refused(fdtr("run", "study.toml", "table.csv", "--out", "table.csv", cwd=place), "is a file")
