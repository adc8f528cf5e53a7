"""The site's commands on files as real processes: what they print, write, and refuse."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pytest

from command_line import SITES, fdtr, refused
from fdtr.exchange.site_state.ledger import Ledger
from fdtr.policy import Policy
from random_tables import make_study, make_table

pytestmark = pytest.mark.slow  # a process for every command


def test_two_hospital_roles_give_the_same_policy_as_run(place, ran_once):
    make_study(disclosure={"jitter": 0}).save(place / "study.toml")  # the sums of run are exact
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
    for kept in (True, False):
        if not kept:  # recomputed where no copy is left
            for path in (place / "state" / "sent").iterdir():
                path.unlink()
        done = fdtr(
            "site", "fit", "study.toml", "table.csv", "total.fdtr", "--site", "south", "--out", "s.policy", cwd=place
        )
        assert done.returncode == 0, done.stderr
        assert "south shares as the study says" in done.stdout
        through_files, at_once = (
            Policy.load(place / "s.policy"),
            Policy.load(ran_once / "results/policies/south.policy"),
        )
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


def test_sites_value_at_home_as_run_does_and_the_hub_pools(place, ran_once):
    make_study(disclosure={"jitter": 0}).save(place / "study.toml")  # the sums of run are exact
    for site in SITES:
        fdtr(
            "site", "summarize", "study.toml", "table.csv", "--site", site, "--out", f"{site}.fdtr", "--yes", cwd=place
        )
    done = fdtr("hub", "combine", "study.toml", *(f"{s}.fdtr" for s in SITES), "--out", "total.fdtr", cwd=place)
    assert done.returncode == 0, done.stderr
    evaluate = ("site", "evaluate", "study.toml", "table.csv", "total.fdtr", "--site")
    before = sorted(path.name for path in place.iterdir())
    done = fdtr(*evaluate, "north", "--report", "../north.html", cwd=place)
    assert done.returncode == 0, done.stderr
    assert "Wrote ../north.html, for this site alone: it was not checked for disclosure." in done.stdout
    assert "What was found" in (place.parent / "north.html").read_text()
    done = fdtr(*evaluate, "north", cwd=place)
    assert "north: gain to 260 patients" in done.stdout
    assert "FDTR (verified) over Clinicians" in done.stdout
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
    printed = json.loads((ran_once / "printed.json").read_text())
    at_once = {(v["site"], v["method"], v["estimator"]): v for v in printed["values"]}
    for site, found in told.items():
        for method, by_estimator in found["methods"].items():
            for estimator, one in by_estimator.items():
                there = at_once[site, method, estimator]
                assert {"value", "low", "high", "verdict"} < set(there)
                assert {key: one[key] for key in there} == there
    done = fdtr("hub", "pool", "study.toml", *(f"{site}.values" for site in SITES), "--json", cwd=place)
    assert done.returncode == 0, done.stderr
    by_sites = sorted(json.loads(done.stdout), key=lambda one: len(one["sites"]))
    pooled = {(one["method"], one["over"]): one for one in by_sites}
    practice = [told[site]["methods"]["Clinicians"]["wdr"]["value"] for site in SITES]
    assert pooled["Clinicians", ""]["plain"]["value"] == pytest.approx(np.mean(practice), abs=0.01)  # rounded
    for site, found in told.items():
        assessed = {(one["site"], one["method"], one["over"]): one for one in printed["assessments"]}
        for one in found["assessments"]:
            there = assessed[site, one["method"], one["over"]]
            assert {key: one[key] for key in there.keys() & one.keys()} == {
                key: there[key] for key in there.keys() & one.keys()
            }
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
    assert pooled["Clinicians", ""]["warnings"][0]["name"] == "few-sites"
    done = fdtr("hub", "pool", "study.toml", *(f"{site}.values" for site in SITES), cwd=place)
    assert "Values over sites" in done.stdout
    assert "Clinicians" in done.stdout
    refused(fdtr("hub", "pool", "study.toml", "north.fdtr", cwd=place), "holds a message, not a valuation")


def test_an_empty_site_is_refused(place):
    result = fdtr(
        "site", "summarize", "study.toml", "table.csv", "--site", "east", "--out", "a.fdtr", "--yes", cwd=place
    )
    refused(result, 'no rows of site "east"', '"north", "south", "west"')
    (place / "empty.csv").write_text("site,patient,step,action,reward,u,x,v,y\n")
    refused(fdtr("run", "study.toml", "empty.csv", "--out", "results", cwd=place), "no rows")
    assert not (place / "results").exists()


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
    refused(
        fdtr("site", "fit", *arguments, cwd=place), "weights rows by a secret of the site and is not computed again"
    )
    assert not (place / "p.policy").exists()
    assert fdtr("site", "fit", *arguments, "--own", "north.fdtr", cwd=place).returncode == 0


def test_summarize_refuses_small_sites_and_asks_first(place):
    small = make_table(make_study(), {"tiny": 30})
    pa.csv.write_csv(small, place / "tiny.csv")
    arguments = ["study.toml", "tiny.csv", "--site", "tiny", "--out", "tiny.fdtr"]
    refused(fdtr("site", "summarize", *arguments, "--yes", cwd=place), "rule N: 30 patients", "Nothing was written")
    assert not (place / "state").exists()
    asked = fdtr(
        "site", "summarize", "study.toml", "table.csv", "--site", "north", "--out", "a.fdtr", cwd=place, stdin=""
    )
    refused(asked, "Add --yes")
    assert not list(place.rglob("*.fdtr"))  # nor a copy: the ledger has its secret, and no release
    assert Ledger(place / "state" / "ledger").recorded() == []


def test_outputs_never_replace_other_files(place):
    arguments = ["study.toml", "table.csv", "--site", "north", "--yes", "--out"]
    before = (place / "table.csv").read_bytes()
    refused(fdtr("site", "summarize", *arguments, "table.csv", cwd=place), "fdtr did not write")
    assert (place / "table.csv").read_bytes() == before
    refused(fdtr("site", "summarize", *arguments, "no/folder.fdtr", cwd=place), "could not be written")
    assert not list((place / "state").rglob("*.fdtr"))  # no copy of what was not written


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
    checked = fdtr("check", "study.toml", "fewer.csv", "--all", cwd=place)
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
    checked = fdtr("check", "study.toml", "table.csv", "--all", cwd=tmp_path)
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
    refused(fdtr(*fit, cwd=place), "carries noise (epsilon in the study) and is not computed again")
    assert fdtr(*fit, "--own", "north.fdtr", cwd=place).returncode == 0
    refused(
        fdtr(*summarize, "--site", "north", "--out", "third.fdtr", cwd=place), "other noise", "Use that message again"
    )
    assert not (place / "third.fdtr").exists()


def test_a_hospital_that_may_send_nothing_learns_from_the_others_total(tmp_path):
    study = make_study()
    study.save(tmp_path / "study.toml")
    sizes = dict.fromkeys(("north", "south", "west"), 260) | {"small": 20}
    pa.csv.write_csv(make_table(study, sizes), tmp_path / "table.csv")

    def run(*arguments: str, site: str):
        return fdtr(*arguments, "--site", site, cwd=tmp_path, FDTR_STATE=str(tmp_path / f"state-{site}"))

    refused(run("site", "summarize", "study.toml", "table.csv", "--out", "x.fdtr", "--yes", site="small"), "rule N")
    for site in ("north", "south", "west"):
        done = run("site", "summarize", "study.toml", "table.csv", "--out", f"{site}.fdtr", "--yes", site=site)
        assert done.returncode == 0, done.stderr
    names = [f"{site}.fdtr" for site in ("north", "south", "west")]
    assert fdtr("hub", "combine", "study.toml", *names, "--out", "total.fdtr", cwd=tmp_path).returncode == 0
    inputs = ("study.toml", "table.csv", "total.fdtr")
    refused(run("site", "fit", *inputs, "--out", "s.policy", site="small"), "add --receive-only")
    refused(run("site", "fit", *inputs, "--out", "n.policy", "--receive-only", site="north"), "has to be subtracted")
    done = run("site", "fit", *inputs, "--out", "s.policy", "--receive-only", site="small")
    assert done.returncode == 0, done.stderr
    assert "learnt with 3 other sites" in done.stdout
    assert Policy.load(tmp_path / "s.policy").method == "FDTR"
    done = run("site", "evaluate", *inputs, "--receive-only", "--json", site="small")
    assert done.returncode == 0, done.stderr
    assert "FDTR" in json.loads(done.stdout)["methods"]
    pa.csv.write_csv(make_table(study, {"small": 400}), tmp_path / "table.csv")
    again = run("site", "summarize", "study.toml", "table.csv", "--out", "x.fdtr", "--yes", site="small")
    refused(again, "this site only receives in this study")
    assert "Merge levels" not in again.stderr
    assert "Go on receiving" in again.stderr
    assert not (tmp_path / "x.fdtr").exists()
