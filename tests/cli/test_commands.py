"""The commands as real processes: what they print, write, and refuse."""

import json
import re
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

from command_line import fdtr
from fdtr.policy import Policy
from fdtr.site.rows import read_trajectories
from fdtr.study import Study
from worlds import make_study, make_table

pytestmark = pytest.mark.slow  # a process for every command
SITES = {"north": 260, "south": 200, "west": 220}


def refused(result: subprocess.CompletedProcess[str], *sentences: str) -> None:
    assert result.returncode == 1, result.stdout + result.stderr
    for sentence in sentences:
        assert sentence in result.stderr
    assert "Traceback" not in result.stderr


@pytest.fixture
def place(tmp_path):
    study = make_study()
    study.save(tmp_path / "study.toml")
    pa.csv.write_csv(make_table(study, SITES), tmp_path / "table.csv")
    return tmp_path


def test_two_hospital_roles_give_the_same_policy_as_run(place):
    for site in SITES:
        done = fdtr(
            "site", "summarize", "study.toml", "table.csv", "--site", site, "--out", f"{site}.fdtr", "--yes", cwd=place
        )
        assert done.returncode == 0, done.stderr
        assert f"sums over {SITES[site]} patients" in done.stdout
    messages = [f"{site}.fdtr" for site in reversed(SITES)]
    done = fdtr("hub", "combine", "study.toml", *messages, "--out", "total.fdtr", cwd=place)
    assert done.returncode == 0, done.stderr
    assert "3 sites: north, south, west" in done.stdout
    done = fdtr("tune", "study.toml", "table.csv", "--total", "total.fdtr", "--site", "south", "--json", cwd=place)
    assert json.loads(done.stdout)["south"]["chosen"] == {"ridge": 0.1, "sharing": 1.0, "share": "value"}
    done = fdtr("run", "study.toml", "table.csv", "--out", "results", cwd=place)
    assert done.returncode == 0, done.stderr
    for kept in (True, False):
        if not kept:  # recomputed where no copy is left
            for path in (place / "state" / "sent").iterdir():
                path.unlink()
        done = fdtr(
            "site", "fit", "study.toml", "table.csv", "total.fdtr", "--site", "south", "--out", "s.policy", cwd=place
        )
        assert done.returncode == 0, done.stderr
        through_files, at_once = Policy.load(place / "s.policy"), Policy.load(place / "results/policies/south.policy")
        np.testing.assert_array_equal(through_files.theta, at_once.theta)
        np.testing.assert_array_equal(through_files.precision, at_once.precision)


def test_grams_go_the_same_way_for_an_audit(tmp_path):
    study = make_study(disclosure={"payload": "gram"})
    study.save(tmp_path / "study.toml")
    sizes = {"north": 360, "south": 330}  # two sites suffice: each was judged to be seen by itself
    pa.csv.write_csv(make_table(study, sizes), tmp_path / "table.csv")
    for site in sizes:
        done = fdtr(
            "site", "summarize", "study.toml", "table.csv", "--site", site, "--out", f"{site}.fdtr", "--yes",
            cwd=tmp_path,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert "the site's own included: an audit message" in done.stdout
    done = fdtr("hub", "combine", "study.toml", "north.fdtr", "south.fdtr", "--out", "total.fdtr", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert fdtr("run", "study.toml", "table.csv", "--out", "results", cwd=tmp_path).returncode == 0
    for site in sizes:
        done = fdtr(
            "site", "fit", "study.toml", "table.csv", "total.fdtr", "--site", site, "--out", "x.policy", cwd=tmp_path
        )
        assert done.returncode == 0, done.stderr
        through_files = Policy.load(tmp_path / "x.policy")
        at_once = Policy.load(tmp_path / f"results/policies/{site}.policy")
        np.testing.assert_array_equal(through_files.theta, at_once.theta)
        np.testing.assert_array_equal(through_files.precision, at_once.precision)
    shown = fdtr("message", "show", "north.fdtr", "--study", "study.toml", cwd=tmp_path)
    assert "This is an audit message" in shown.stdout
    assert "It can tell" in shown.stdout
    for more in (("--study", "study.toml"), ()):
        told = json.loads(fdtr("message", "show", "north.fdtr", *more, "--json", cwd=tmp_path).stdout)
        assert told["grams"]["n"] == [360, 360, 360]
    done = fdtr("site", "withdraw", "north.fdtr", "--yes", cwd=tmp_path)
    assert "Struck" in done.stdout


def test_sites_value_at_home_as_run_does_and_the_hub_pools(place):
    for site in SITES:
        fdtr(
            "site", "summarize", "study.toml", "table.csv", "--site", site, "--out", f"{site}.fdtr", "--yes", cwd=place
        )
    done = fdtr("hub", "combine", "study.toml", *(f"{s}.fdtr" for s in SITES), "--out", "total.fdtr", cwd=place)
    assert done.returncode == 0, done.stderr
    evaluate = ("site", "evaluate", "study.toml", "table.csv", "total.fdtr", "--site")
    before = sorted(path.name for path in place.iterdir())
    done = fdtr(*evaluate, "north", cwd=place)
    assert done.returncode == 0, done.stderr
    assert "north: value to 260 patients" in done.stdout
    assert "Nothing was written. Add --out FILE" in done.stdout
    assert "FDTR's importance weights by step" in done.stdout
    asked = fdtr(*evaluate, "north", "--out", "n.values", "--json", cwd=place, stdin="")
    refused(asked, "Add --yes to answer beforehand")
    assert asked.stdout == ""  # nothing was released, and nothing says so
    assert sorted(path.name for path in place.iterdir()) == before
    told = {}
    for site in SITES:
        done = fdtr(*evaluate, site, "--out", f"{site}.values", "--yes", "--json", cwd=place)
        assert done.returncode == 0, done.stderr
        told[site] = json.loads(done.stdout, parse_constant=pytest.fail)  # NaN is no JSON
    table = pa.csv.read_csv(place / "table.csv")  # one patient less
    keep = [row["site"] != "north" or row["patient"] != "p0" for row in table.to_pylist()]
    pa.csv.write_csv(table.filter(pa.array(keep)), place / "fewer.csv")
    fewer = (
        "site",
        "evaluate",
        "study.toml",
        "fewer.csv",
        "total.fdtr",
        "--site",
        "north",
        "--yes",
        "--out",
        "f.values",
    )
    refused(fdtr(*fewer, cwd=place), "may not release its values", "rule ONCE: 1 patient differs", "Do not forward")
    assert not (place / "f.values").exists()
    assert fdtr("site", "withdraw", "north.values", "--yes", cwd=place).returncode == 0
    assert fdtr(*fewer, cwd=place).returncode == 0
    assert fdtr("site", "withdraw", "f.values", "--yes", cwd=place).returncode == 0
    done = fdtr("run", "study.toml", "table.csv", "--out", "results", "--json", cwd=place)
    at_once = {(v["site"], v["method"], v["estimator"]): v for v in json.loads(done.stdout)["values"]}
    for site, found in told.items():
        for method, by_estimator in found["methods"].items():
            for estimator, one in by_estimator.items():
                there = at_once[site, method, estimator]
                assert {"value", "low", "high", "believable"} < set(there)
                assert {key: one[key] for key in there} == there
    done = fdtr("hub", "pool", "study.toml", *(f"{site}.values" for site in SITES), "--json", cwd=place)
    assert done.returncode == 0, done.stderr
    pooled = {(one["method"], one["estimator"]): one for one in json.loads(done.stdout)}
    practice = [told[site]["methods"]["Clinicians"]["wdr"]["value"] for site in SITES]
    assert pooled["Clinicians", "wdr"]["plain"]["value"] == pytest.approx(np.mean(practice), abs=0.01)  # rounded
    assert told["north"]["trust"]["effective_sample_size"]
    half = fdtr(*evaluate, "north", "--split", "half", "--json", cwd=place)
    assert 100 < json.loads(half.stdout)["patients"] < 160
    done = fdtr("run", "study.toml", "table.csv", "--out", "halves", "--split", "half", "--json", cwd=place)
    in_halves = {(v["site"], v["method"], v["estimator"]): v for v in json.loads(done.stdout)["values"]}
    alone = json.loads(half.stdout)["methods"]
    assert in_halves["north", "LDTR", "wdr"]["value"] == alone["LDTR"]["wdr"]["value"]
    # At a site the others' sums are those that were sent, of all their patients; here of one half.
    assert in_halves["north", "FDTR", "wdr"]["value"] != alone["FDTR"]["wdr"]["value"]
    assert "fitted and tuned again on one half" in (place / "halves" / "report.html").read_text()
    assert pooled["Clinicians", "wdr"]["warnings"][0]["name"] == "few-sites"
    done = fdtr("hub", "pool", "study.toml", *(f"{site}.values" for site in SITES), cwd=place)
    assert "Value over sites" in done.stdout
    assert "Clinicians" in done.stdout
    refused(fdtr("hub", "pool", "study.toml", "north.fdtr", cwd=place), "holds a message, not a valuation")


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


def test_check_tells_everything_and_writes_nothing(place):
    before = sorted(place.iterdir())
    done = fdtr("check", "study.toml", "table.csv", cwd=place)
    assert done.returncode == 0, done.stderr
    for words in (
        "Patients by action",
        "Share of each shared feature",
        "predict the next value",
        "every site may release",
    ):
        assert words in done.stdout
    found = json.loads(fdtr("check", "study.toml", "table.csv", "--site", "west", "--json", cwd=place).stdout)
    assert list(found) == ["west"]
    assert sum(found["west"]["actions"]["0"].values()) == 220
    assert {verdict["rule"] for verdict in found["west"]["disclosure"]} == {
        "N", "RATIO", "ACTION", "CELL", "NONZERO", "LEVERAGE", "BOUND", "COLLINEAR", "ONCE",
    }  # fmt: skip
    assert sorted(place.iterdir()) == before


def test_check_counts_clusters_where_there_are_some(place):
    plain = fdtr("check", "study.toml", "table.csv", cwd=place)
    assert "clusters" not in plain.stdout
    study = make_study(columns={"cluster": "clinician"})
    study.save(place / "clustered.toml")
    table = make_table(study, SITES)
    clinicians = [f"c{int(patient[1:]) % 37}" for patient in table["patient"].to_pylist()]
    pa.csv.write_csv(table.append_column("clinician", [clinicians]), place / "clustered.csv")
    done = fdtr("check", "clustered.toml", "clustered.csv", cwd=place)
    assert re.search(r"site +patients +clusters +rows", done.stdout), done.stderr
    assert re.search(r"west +220 +37 +660", done.stdout)
    machine = fdtr("check", "clustered.toml", "clustered.csv", "--site", "west", "--json", cwd=place)
    assert json.loads(machine.stdout)["west"]["clusters"] == 37
    refused(fdtr("check", "clustered.toml", "table.csv", cwd=place), 'Column "clinician" is missing.')


def test_tune_shows_both_criteria_and_writes_nothing(place):
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
    assert "west chose λ = " in done.stdout
    assert "held-out error" in done.stdout
    assert "By c" not in done.stdout  # the study fixes it
    (place / "auto.toml").write_text(re.sub(r"pessimism = .*", 'pessimism = "auto"', text))
    done = fdtr("tune", "auto.toml", "table.csv", "--site", "west", cwd=place)
    assert "By c: gain over 0.0005" in done.stdout
    found = json.loads(fdtr("tune", "auto.toml", "table.csv", "--json", cwd=place).stdout)
    assert set(found) == set(SITES)
    for curves in found.values():
        assert min(point["error"] + point["contrast"] for point in curves["ridge"] + curves["sharing"]) == 0
        assert len(curves["ridge"]) == 11
        assert len(curves["sharing"]) == 7
        assert [other["pessimism"] for other in curves["pessimism"]] == [0.0, 0.0002, 0.001, 0.002, 0.005]
    assert sorted(place.iterdir()) == before


def test_check_says_why_nothing_would_be_shared(place):
    study = make_study()
    table = make_table(study, SITES, constant_within_site=("u", "v"))
    pa.parquet.write_table(table, place / "constant.parquet")
    done = fdtr("check", "study.toml", "constant.parquet", cwd=place)
    assert "it is constant within the site, so the site's own intercept absorbs it" in done.stdout


def test_recommend_explains(place):
    assert fdtr("run", "study.toml", "table.csv", "--out", "results", cwd=place).returncode == 0
    policy = "results/policies/north.policy"
    done = fdtr("policy", "recommend", policy, "--step", 1, "u=0.1", "x=4", "v=0.5", "y=0.2", cwd=place)
    assert done.returncode == 0, done.stderr
    assert "not for bedside use" in done.stdout
    machine = fdtr("policy", "recommend", policy, "--step", 1, "--json", "u=0.1", "x=4", "v=0.5", "y=0.2", cwd=place)
    found = json.loads(machine.stdout)
    assert found["action"] == Policy.load(place / policy).act([[0.1, 4, 0.5, 0.2]], 1)[0]
    assert [a["label"] for a in found["actions"]] == ["none", "low", "high"]
    refused(fdtr("policy", "recommend", policy, "u=0.1", "x=4", "v=0.5", cwd=place), "lack 'y'")
    refused(fdtr("policy", "recommend", policy, "u=0.1", "sbp=4", cwd=place), "knows no 'sbp'")
    refused(fdtr("policy", "recommend", policy, "u", cwd=place), "NAME=VALUE")
    refused(fdtr("policy", "recommend", policy, "u=0,5", cwd=place), "not a number. Write a decimal point")
    refused(fdtr("policy", "recommend", policy, "u=1", "u=2", cwd=place), "given twice")
    clipped = fdtr("policy", "recommend", policy, "u=0.1", "x=400", "v=0.5", "y=0.2", cwd=place)
    assert "outside the study's range, taken as its end: x" in clipped.stderr
    refused(fdtr("policy", "recommend", policy, "--step", 9, "u=1", "x=1", "v=1", "y=1", cwd=place), "from 0 to 2")
    refused(fdtr("policy", "recommend", "study.toml", "u=1", cwd=place), "not a readable fdtr policy file")


def test_simulate_writes_a_table_and_its_study(tmp_path):
    options = ["--patients", 60, "--sites", 3, "--horizon", 4, "--shared-kind", "static", "--seed", 7]
    for folder in ("one", "two"):
        done = fdtr("simulate", "linear", "--out", folder, *options, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    study = Study.load(tmp_path / "one/study.toml")
    rows = read_trajectories(tmp_path / "one/table.csv", study)
    assert (len(rows.sites), rows.n_patients, rows.horizon) == (3, 180, 4)
    assert (tmp_path / "one/table.csv").read_bytes() == (tmp_path / "two/table.csv").read_bytes()
    for world in ("authors", "sepsis"):
        assert fdtr("simulate", world, "--out", world, cwd=tmp_path).returncode == 0
        assert read_trajectories(tmp_path / world / "table.csv", Study.load(tmp_path / world / "study.toml")).n_patients
    refused(fdtr("simulate", "sepsis", "--sites", 3, "--out", "x", cwd=tmp_path), "are as they are")
    refused(fdtr("simulate", "authors", "--noise", 0.3, "--out", "x", cwd=tmp_path), "no such options: --noise")
    refused(fdtr("simulate", "linear", "--noise", 7, "--out", "x", cwd=tmp_path), "cannot be drawn")
    assert fdtr("simulate", "mars", "--out", "x", cwd=tmp_path).returncode == 2
    assert not (tmp_path / "x").exists()


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


def test_study_commands(place):
    assert fdtr("study", "fingerprint", "study.toml", cwd=place).stdout.strip() == make_study().fingerprint
    assert "horizon" in json.loads(fdtr("study", "schema", cwd=place).stdout)["properties"]


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


def test_an_empty_site_is_refused(place):
    result = fdtr(
        "site", "summarize", "study.toml", "table.csv", "--site", "east", "--out", "a.fdtr", "--yes", cwd=place
    )
    refused(result, 'no rows of site "east"', '"north", "south", "west"')
    (place / "empty.csv").write_text("site,patient,step,action,reward,u,x,v,y\n")
    refused(fdtr("run", "study.toml", "empty.csv", "--out", "results", cwd=place), "no rows")
    assert not (place / "results").exists()


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


def test_messages_that_do_not_belong_are_refused(place):
    make_study(name="other").save(place / "other.toml")
    for site, study in {"north": "study", "south": "study", "west": "other"}.items():
        arguments = [f"{study}.toml", "table.csv", "--site", site, "--out", f"{site}.fdtr", "--yes"]
        assert fdtr("site", "summarize", *arguments, cwd=place).returncode == 0
    combine = ["hub", "combine", "study.toml"]
    refused(
        fdtr(*combine, "north.fdtr", "south.fdtr", "west.fdtr", "--out", "t.fdtr", cwd=place),
        "belongs to another study",
    )
    refused(fdtr(*combine, "north.fdtr", "south.fdtr", "--out", "t.fdtr", cwd=place), "rule SITES asks for 3")
    refused(fdtr(*combine, "north.fdtr", "north.fdtr", "--out", "t.fdtr", cwd=place), "already in the total")
    (place / "cut.fdtr").write_bytes((place / "south.fdtr").read_bytes()[:-3])
    refused(fdtr(*combine, "north.fdtr", "cut.fdtr", "--out", "t.fdtr", cwd=place), "truncated, damaged")
    assert not (place / "t.fdtr").exists()
    arguments = ["study.toml", "table.csv", "south.fdtr", "--site", "north", "--out", "p.policy"]
    refused(fdtr("site", "fit", *arguments, cwd=place), "holds a message, not a total")
    assert not (place / "p.policy").exists()
    before = (place / "north.fdtr").read_bytes()
    refused(fdtr(*combine, "north.fdtr", "south.fdtr", "--out", "north.fdtr", cwd=place), "one of the files to read")
    assert (place / "north.fdtr").read_bytes() == before


def test_a_site_whose_data_changed_must_not_subtract_something_else(place):
    for site in SITES:
        arguments = ["study.toml", "table.csv", "--site", site, "--out", f"{site}.fdtr", "--yes"]
        assert fdtr("site", "summarize", *arguments, cwd=place).returncode == 0
    files = [f"{site}.fdtr" for site in SITES]
    assert fdtr("hub", "combine", "study.toml", *files, "--out", "total.fdtr", cwd=place).returncode == 0
    pa.csv.write_csv(make_table(make_study(), SITES, seed=1), place / "table.csv")
    arguments = ["study.toml", "table.csv", "total.fdtr", "--site", "north", "--out", "p.policy"]
    noted = fdtr("site", "fit", *arguments, cwd=place)  # the copy at home is subtracted, and the change is told
    assert noted.returncode == 0
    assert "This table is not the one that the message of north was made from" in noted.stderr
    (place / "p.policy").unlink()
    for path in (place / "state" / "sent").iterdir():
        path.unlink()
    refused(fdtr("site", "fit", *arguments, cwd=place), "not the one that went into the total")
    assert not (place / "p.policy").exists()
    assert fdtr("site", "fit", *arguments, "--own", "north.fdtr", cwd=place).returncode == 0


def test_summarize_refuses_small_sites_and_asks_first(place):
    small = make_table(make_study(), {"tiny": 30})
    pa.csv.write_csv(small, place / "tiny.csv")
    arguments = ["study.toml", "tiny.csv", "--site", "tiny", "--out", "tiny.fdtr"]
    refused(fdtr("site", "summarize", *arguments, "--yes", cwd=place), "rule N: 30 patients", "Nothing was written")
    asked = fdtr(
        "site", "summarize", "study.toml", "table.csv", "--site", "north", "--out", "a.fdtr", cwd=place, stdin=""
    )
    refused(asked, "Add --yes")
    assert not list(place.glob("*.fdtr"))
    assert not (place / "state").exists()


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


def test_outputs_never_replace_other_files(place):
    arguments = ["study.toml", "table.csv", "--site", "north", "--yes", "--out"]
    before = (place / "table.csv").read_bytes()
    refused(fdtr("site", "summarize", *arguments, "table.csv", cwd=place), "fdtr did not write")
    assert (place / "table.csv").read_bytes() == before
    refused(fdtr("site", "summarize", *arguments, "no/folder.fdtr", cwd=place), "could not be written")
    assert not list((place / "state").rglob("*.fdtr"))  # no copy of what was not written


def test_ctrl_c_is_said_and_leaves_nothing(place):
    code = (
        "import os, signal, sys, fdtr.cli, fdtr.pipeline.run as r\n"
        "def stopped(*_, **__): os.kill(os.getpid(), signal.SIGINT)\n"
        "r.run = stopped\n"
        "sys.argv = ['fdtr', 'run', 'study.toml', 'table.csv', '--out', 'results']\n"
        "fdtr.cli.main()\n"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=place, capture_output=True, text=True, timeout=60)
    refused(result, "Stopped.")
    assert not (place / "results").exists()


def test_wrong_usage_is_exit_code_2(place):
    assert fdtr("run", "study.toml", cwd=place).returncode == 2
    assert fdtr("nonsense", cwd=place).returncode == 2
    assert fdtr("--version", cwd=place).stdout.startswith("fdtr ")


def test_debug_shows_where_and_verbose_says_what(place):
    result = fdtr("run", "none.toml", "table.csv", "--out", "results", "--debug", cwd=place)
    assert result.returncode == 1
    assert "Traceback" in result.stderr
    quiet, loud = (fdtr("check", "study.toml", "table.csv", *flags, cwd=place) for flags in ((), ("--verbose",)))
    assert "fdtr.site: site north: computing its sums" in loud.stderr
    assert "fdtr.site" not in quiet.stderr


def test_an_unforeseen_error_shows_its_kind_alone(place, monkeypatch):
    code = (
        "import sys, fdtr.cli, fdtr.site as s\n"
        "def broken(*_): raise RuntimeError('secret 4711')\n"
        "s.read_trajectories = broken\n"
        "sys.argv = ['fdtr', 'check', 'study.toml', 'table.csv']\n"
        "fdtr.cli.main()\n"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=place, capture_output=True, text=True, timeout=60)
    refused(result, "RuntimeError", "--debug")
    assert "4711" not in result.stderr


@pytest.mark.parametrize("command", [
    [], ["demo"], ["init"], ["check"], ["tune"], ["simulate"], ["run"], ["report"], ["site"], ["site", "summarize"],
    ["site", "fit"], ["hub", "combine"], ["policy", "recommend"], ["study", "schema"],
    ["site", "evaluate"], ["hub", "pool"], ["keys"], ["keys", "new"], ["keys", "show"], ["roster"], ["roster", "add"],
    ["roster", "remove"], ["roster", "replace"], ["roster", "show"], ["message", "show"],
])  # fmt: skip
def test_every_command_has_help(command, tmp_path):
    result = fdtr(*command, "--help", cwd=tmp_path)
    assert result.returncode == 0
    assert len(result.stdout) > 150


def test_almost_the_same_patients_are_not_released_twice(place):
    table = make_table(make_study(), SITES)
    people = zip(table["site"].to_pylist(), table["patient"].to_pylist(), strict=True)
    fewer = table.filter(pa.array([person != ("north", "p7") for person in people]))
    pa.csv.write_csv(fewer, place / "fewer.csv")
    summarize = ["site", "summarize", "study.toml"]
    options = ["--site", "north", "--yes", "--out"]
    assert fdtr(*summarize, "table.csv", *options, "one.fdtr", cwd=place).returncode == 0
    assert fdtr(*summarize, "table.csv", *options, "again.fdtr", cwd=place).returncode == 0  # the same message
    assert (place / "one.fdtr").read_bytes() == (place / "again.fdtr").read_bytes()
    before = sorted(place.rglob("*"))
    refused(
        fdtr(*summarize, "fewer.csv", *options, "two.fdtr", cwd=place),
        "rule ONCE: 1 patient differs from those released on",
        "Do not forward this message.",
    )
    assert sorted(place.rglob("*")) == before
    checked = fdtr("check", "study.toml", "fewer.csv", cwd=place)
    assert "rule ONCE: 1 patient differs" in checked.stdout
    # Written nowhere: no record, and the copy of the earlier message stays.
    refused(fdtr(*summarize, "table.csv", *options, "no/folder.fdtr", cwd=place), "could not be written")
    assert len(list((place / "state" / "sent").iterdir())) == 1
    refused(fdtr("site", "withdraw", "one.fdtr", cwd=place, stdin=""), "Add --yes")
    done = fdtr("site", "withdraw", "one.fdtr", "--yes", cwd=place)
    assert done.returncode == 0, done.stderr
    assert "260 patients, site north" in done.stdout
    refused(fdtr("site", "withdraw", "one.fdtr", "--yes", cwd=place), "holds no release under")
    assert fdtr(*summarize, "fewer.csv", *options, "two.fdtr", cwd=place).returncode == 0


def test_withheld_steps_are_told_at_home(tmp_path):
    asked = {"small_step": "withhold", "min_patients": 110, "max_leverage": 1.0, "max_ratio": 1.0}
    study = make_study(ends={"death": 0.0}, disclosure=asked)
    study.save(tmp_path / "study.toml")
    pa.csv.write_csv(make_table(study, {"a": 240}, ragged=True), tmp_path / "table.csv")
    checked = fdtr("check", "study.toml", "table.csv", cwd=tmp_path)
    assert "Disclosure would withhold the step" in checked.stdout
    done = fdtr("site", "summarize", "study.toml", "table.csv", "--out", "a.fdtr", "--yes", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Withheld: step 2, rule N" in done.stdout
    assert "Do not forward these lines." in done.stdout


def test_an_open_message_is_not_written_for_a_secure_sum(place):
    make_study(disclosure={"secure_sum": True, "max_patients": 900}).save(place / "secure.toml")
    arguments = ["secure.toml", "table.csv", "--site", "north", "--out", "a.fdtr", "--yes"]
    refused(fdtr("site", "summarize", *arguments, cwd=place), "asks for a secure sum")
    assert not list(place.glob("*.fdtr"))


def test_noised_messages_are_made_once_and_cannot_be_recomputed(place):
    # So much ε that two draws surely differ: noise that leaves nothing gives the same message, of zeros, every time.
    make_study(disclosure={"epsilon": 200.0, "delta": 1e-6}).save(place / "study.toml")
    checked = fdtr("check", "study.toml", "table.csv", "--sites", "9", cwd=place)
    assert checked.returncode == 0, checked.stderr
    assert "Differential privacy (experimental): ε = 200, δ = 1e-06" in checked.stdout
    assert "At 9 sites like this one" in checked.stdout
    summarize = ("site", "summarize", "study.toml", "table.csv", "--yes")
    for site in SITES:
        done = fdtr(*summarize, "--site", site, "--out", f"{site}.fdtr", cwd=place)
        assert done.returncode == 0, done.stderr
        assert "At 3 sites like this one the shared effects have" in done.stdout
        assert "Do not forward these lines." in done.stdout
    again = fdtr(*summarize, "--site", "north", "--out", "again.fdtr", cwd=place)
    assert again.returncode == 0, again.stderr
    assert "Noise is drawn once" in again.stdout
    assert (place / "again.fdtr").read_bytes() == (place / "north.fdtr").read_bytes()
    done = fdtr("hub", "combine", "study.toml", *(f"{site}.fdtr" for site in SITES), "--out", "total.fdtr", cwd=place)
    assert done.returncode == 0, done.stderr
    fit = ("site", "fit", "study.toml", "table.csv", "total.fdtr", "--site", "north", "--out", "north.policy")
    done = fdtr(*fit, cwd=place)
    assert done.returncode == 0, done.stderr
    evaluate = ("site", "evaluate", "study.toml", "table.csv", "total.fdtr", "--site", "north", "--yes")
    refused(
        fdtr(*evaluate, "--out", "values.fdtr", cwd=place), "values of policies would leave this site without noise"
    )
    assert not (place / "values.fdtr").exists()
    for kept in (place / "state" / "sent").iterdir():
        kept.unlink()
    refused(fdtr(*fit, cwd=place), "cannot be computed again")
    assert fdtr(*fit, "--own", "north.fdtr", cwd=place).returncode == 0
    refused(
        fdtr(*summarize, "--site", "north", "--out", "third.fdtr", cwd=place), "other noise", "Use that message again"
    )
    assert not (place / "third.fdtr").exists()
