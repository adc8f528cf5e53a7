"""Keys, rosters and signed files as real processes, and what people see of a message."""

import json
import re
import stat
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pytest

from command_line import fdtr
from fdtr.signing import Key
from fdtr.study import Study
from message_files import small_study
from random_tables import make_study, make_table

pytestmark = pytest.mark.slow  # a process for every command
SITES = {"north": 400, "south": 420, "west": 440}


def done(*arguments: object, cwd: Path, **environment: str) -> str:
    result = fdtr(*arguments, cwd=cwd, **environment)
    assert result.returncode == 0, result.stderr
    return result.stdout


def refused(*arguments: object, cwd: Path, says: str, **environment: str) -> None:
    result = fdtr(*arguments, cwd=cwd, **environment)
    assert result.returncode == 1, result.stdout + result.stderr
    assert re.search(says, result.stderr), result.stderr
    assert "Traceback" not in result.stderr
    assert "nobody foresaw" not in result.stderr


@pytest.fixture
def place(tmp_path):
    study = small_study(horizon=1)
    study.save(tmp_path / "study.toml")
    pa.csv.write_csv(make_table(study, SITES), tmp_path / "table.csv")
    return tmp_path


def summarize(site, *options):
    out = f"{site}.fdtr"
    return ("site", "summarize", "study.toml", "table.csv", "--site", site, "--out", out, "--yes", *options)


def test_a_signed_study_from_keys_to_policy(place):
    for name in (*SITES, "hub"):
        made = json.loads(done("keys", "new", "--out", f"{name}.key", "--json", cwd=place))
        assert stat.S_IMODE((place / f"{name}.key").stat().st_mode) == 0o600
        told = done("roster", "add", "study.toml", name, made["public_key"], cwd=place)
        assert made["fingerprint"] in told
        assert made["words"] in told
    shown = json.loads(done("roster", "show", "study.toml", "--json", cwd=place))
    assert set(shown["sites"]) == {*SITES, "hub"}
    assert set(Study.load(place / "study.toml").roster) == {*SITES, "hub"}

    refused(*summarize("north"), cwd=place, says="must be signed. Give its key with --key")
    refused(*summarize("north", "--key", "west.key"), cwd=place, says="not the one that the roster has of 'north'")
    assert not (place / "north.fdtr").exists()
    for site in SITES:
        result = fdtr(*summarize(site, "--key", f"{site}.key"), cwd=place)
        assert result.returncode == 0, result.stderr
        assert "unsigned" not in result.stderr
    files = [f"{site}.fdtr" for site in SITES]
    combine = ("hub", "combine", "study.toml", *files, "--out", "total.fdtr")
    refused(*combine, cwd=place, says="The roster has a key of 'hub'")
    refused(*combine, "--round", 2, "--key", "hub.key", cwd=place, says="round 1, which is over; this is round 2")
    refused(
        "hub",
        "combine",
        "study.toml",
        *files,
        files[0],
        "--key",
        "hub.key",
        "--out",
        "t",
        cwd=place,
        says="'north'.*again",
    )
    done(*combine, "--key", "hub.key", cwd=place)
    fit = ("site", "fit", "study.toml", "table.csv", "total.fdtr", "--site", "south", "--out", "south.policy")
    done(*fit, cwd=place)
    assert "as the study's roster has its key" in done(
        "message", "show", "total.fdtr", "--study", "study.toml", cwd=place
    )

    # South loses its key.
    new = Key.new().public
    told = done("roster", "replace", "study.toml", "south", new, cwd=place)
    assert "begin a new round" in told
    refused(*fit, cwd=place, says="under another list of keys")
    refused("roster", "replace", "study.toml", "south", new, cwd=place, says="That is the key that the roster has")
    refused("roster", "add", "study.toml", "south", new, cwd=place, says="fdtr roster replace")
    assert "begin a new round" in done("roster", "remove", "study.toml", "south", cwd=place)
    refused("roster", "remove", "study.toml", "south", cwd=place, says="The roster has no 'south'")
    refused("roster", "add", "study.toml", "south", "ed25519:x", cwd=place, says="a public key is")
    refused(*summarize("south", "--key", "south.key"), cwd=place, says="has no site 'south'")


def test_noised_sums_are_signed_again_for_a_new_round_until_they_are_withdrawn(place):
    study = make_study(disclosure={"epsilon": 100.0, "delta": 1e-6})
    study.save(place / "study.toml")
    pa.csv.write_csv(make_table(study, SITES), place / "table.csv")
    for name in SITES:
        made = json.loads(done("keys", "new", "--out", f"{name}.key", "--json", cwd=place))
        done("roster", "add", "study.toml", name, made["public_key"], cwd=place)
    for site in SITES:
        done(*summarize(site, "--key", f"{site}.key"), cwd=place)
    combine = ("hub", "combine", "study.toml", *(f"{site}.fdtr" for site in SITES), "--out", "total.fdtr")
    done(*combine, cwd=place)

    # South loses its key; everybody sends the same sums in a second round.
    made = json.loads(done("keys", "new", "--out", "south-2.key", "--json", cwd=place))
    done("roster", "replace", "study.toml", "south", made["public_key"], cwd=place)
    second = ("--round", "2")
    first = {site: json.loads(done("message", "show", f"{site}.fdtr", "--json", cwd=place)) for site in SITES}
    refused(*summarize("south", *second, "--key", "south.key"), cwd=place, says="not the one that the roster has")
    for site, key in zip(SITES, ("north.key", "south-2.key", "west.key"), strict=True):
        told = done(*summarize(site, *second, "--key", key), cwd=place)
        assert "Noise is drawn once" in told
        assert "strike it" not in told  # the first round has it
        again = json.loads(done("message", "show", f"{site}.fdtr", "--json", cwd=place))
        assert again["sums"] == first[site]["sums"]
        assert again["round"] != first[site]["round"]
    refused(*combine, cwd=place, says="is of round .2.; this is round .1.")
    done(*combine, *second, cwd=place)
    answered = ("study.toml", "table.csv", "total.fdtr", "--site", "south", *second)
    done("site", "fit", *answered, "--out", "south.policy", cwd=place)
    refused(
        "site", "evaluate", *answered, "--out", "v", "--key", "south-2.key", "--yes", cwd=place, says="without noise"
    )
    done("site", "evaluate", *answered, cwd=place)

    # Struck, the patients are noised anew.
    assert "Struck" in done("site", "withdraw", "north.fdtr", "--yes", cwd=place)
    assert "Noise is drawn once" not in done(*summarize("north", "--key", "north.key"), cwd=place)
    assert json.loads(done("message", "show", "north.fdtr", "--json", cwd=place))["sums"] != first["north"]["sums"]


def test_without_a_roster_everything_works_unsigned_and_says_so(place):
    for site in SITES:
        result = fdtr(*summarize(site), cwd=place)
        assert result.returncode == 0
        assert result.stderr.count("unsigned: the study has no [roster]") == 1
    done("hub", "combine", "study.toml", *(f"{site}.fdtr" for site in SITES), "--out", "total.fdtr", cwd=place)
    done("roster", "show", "study.toml", cwd=place)
    shown = done("message", "show", "north.fdtr", cwd=place)
    assert "400 patients of one site" in shown
    assert "signature: none: nobody can tell who made it" in shown
    assert len(json.loads(done("message", "show", "north.fdtr", "--json", cwd=place))["sums"]) == 8
    done("message", "show", "total.fdtr", "--study", "study.toml", "--out", "page.html", cwd=place)
    assert "1,260 patients of 3 sites" in (place / "page.html").read_text()
    refused("message", "show", "total.fdtr", "--out", "page.html", cwd=place, says="exists already")
    refused("message", "show", "table.csv", cwd=place, says="table.csv is not a readable fdtr")
    refused("message", "show", "nowhere", cwd=place, says="does not exist")


def test_locked_keys(place):
    (place / "secret").write_text("correct horse\n")
    told = {"FDTR_PASSPHRASE_FILE": "secret"}
    made = json.loads(done("keys", "new", "--passphrase", "--json", cwd=place, **told))
    assert "ENCRYPTED" in (place / "fdtr.key").read_text()
    assert json.loads(done("keys", "show", "fdtr.key", "--json", cwd=place, **told)) == made
    assert made["words"] in done("keys", "show", "fdtr.key", cwd=place, FDTR_PASSPHRASE="correct horse")
    refused("keys", "show", "fdtr.key", cwd=place, says="passphrase is another one", FDTR_PASSPHRASE="wrong")
    refused("keys", "show", "fdtr.key", cwd=place, says="no terminal to ask on")
    refused("keys", "show", "fdtr.key", cwd=place, says="holds no passphrase", FDTR_PASSPHRASE_FILE="none")
    refused("keys", "new", cwd=place, says="never overwritten")
    refused("keys", "show", "table.csv", cwd=place, says="no private key")
