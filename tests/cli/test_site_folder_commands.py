"""What the commands of a shared folder say to a person."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pytest
from typer.testing import CliRunner

from fdtr.cli.app import app
from fdtr.errors import Exposed, FdtrError, InvalidSettings, NotWithdrawable
from fdtr.exchange.site_state.joined_folders import find_joined
from fdtr.exchange.site_state.ledger import site_ledger
from fdtr.policy import Policy
from fdtr.site.fitting import fit_federated
from fdtr.site.rows import read_trajectories
from fdtr.trajectories.table_in_database import DatabaseTable
from folder_parties import EXACT, Parties, study_of
from random_tables import put_into_duckdb


@pytest.fixture
def parties(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    return Parties(tmp_path).set_up(study_of(masked=True))


def said(parties: Parties, name: str, *arguments: str) -> str:
    with parties.at_home(name):
        done = CliRunner().invoke(app, arguments)
    if done.exception is not None:
        raise done.exception
    return done.stdout


def join(parties: Parties, site: str, *options: str) -> str:
    known = ("--data", f"{site}.csv", "--key", f"{site}.key")
    return said(parties, site, "site", "join", "shared", "--site", site, *known, *options)


def hub(parties: Parties, *arguments: str) -> str:
    return said(parties, "hub", "hub", *arguments, "--key", "hub.key")


def test_a_person_is_told_what_was_done_and_what_is_waited_for(parties):
    assert hub(parties, "open", "shared", "study.toml").startswith("Opened shared with round 1.")
    assert "Who may speak: compare by telephone" in join(parties, "a")
    join(parties, "b")
    join(parties, "c")
    assert "Waiting for: Keys of b and c." in said(parties, "a", "site", "next")
    said(parties, "b", "site", "next")
    done = said(parties, "c", "site", "next", "--yes")
    assert "102 numbers under masks" in done
    assert "asked again" not in done  # nobody is, with --yes
    seen = said(parties, "x", "status", "shared")
    assert "test: round 1, masked, signed" in seen
    assert "Next: Masked counts of a and b: `fdtr site next`." in seen
    told = json.loads(hub(parties, "next", "shared", "--json"))
    assert told["waits"].startswith("Masked counts of a and b")
    with pytest.raises(FdtrError, match="Add --yes"):
        said(parties, "a", "site", "next")
    for name in "ab":
        said(parties, name, "site", "next", "--yes")
    hub(parties, "next", "shared")
    with pytest.raises(FdtrError, match="Add --yes"):
        hub(parties, "new-round", "shared")
    assert hub(parties, "new-round", "shared", "--yes").startswith("Began round 2.")
    assert "its masks are destroyed" in said(parties, "a", "site", "next", "--yes")


def test_who_agrees_to_counts_is_told_that_sums_are_asked_about_again(parties, monkeypatch):
    hub(parties, "open", "shared", "study.toml")
    for name in "abc":
        join(parties, name)
    for name in "abc":
        parties.site(name)
    questions = []
    monkeypatch.setattr("fdtr.cli.site_commands.agreed", lambda question: not questions.append(question))
    said(parties, "a", "site", "next")
    [question] = questions
    assert question.endswith("so that nobody can read it alone? You are asked again before the sums leave.")


def test_another_roster_of_a_secure_sum_asks_for_what_works_in_a_folder(parties):
    told = " ".join(said(parties, "x", "roster", "remove", "study.toml", "c").split())
    assert "the hub runs `fdtr hub new-round`, every site `fdtr site join` again and then `fdtr site next`" in told
    assert "summarize" not in told
    study_of(masked=False).save(parties.root / "open.toml")
    told = " ".join(said(parties, "x", "roster", "remove", "open.toml", "c").split())
    assert "every site runs `fdtr site summarize` again with the next --round" in told


def test_the_hub_is_told_for_either_way_whom_the_folder_is_for_and_what_comes_next(parties):
    opened = " ".join(hub(parties, "open", "shared", "study.toml").split())
    assert "If it is shared, give every site access" in opened
    assert "over the network keep it to yourself (chmod 700 shared)" in opened
    assert "then `fdtr site next`; over the network, `fdtr hub serve`." in opened
    for site in "abc":
        join(parties, site)
        said(parties, site, "site", "next", "--yes")
    begun = " ".join(hub(parties, "new-round", "shared", "--yes").split())
    assert "All sites: `fdtr site next`" in begun
    assert "Over the network: `fdtr hub start-round`." in begun


def test_status_names_who_only_receives_on_the_terminal_as_in_json(parties):
    study_of(tuple("abcd"), masked=False).save(parties.root / "study.toml")
    hub(parties, "open", "shared", "study.toml")
    assert "Receive only" not in said(parties, "x", "status", "shared")
    join(parties, "c", "--receive-only")
    said(parties, "c", "site", "next")
    assert "Receive only: c" in said(parties, "x", "status", "shared").splitlines()
    assert json.loads(said(parties, "x", "status", "shared", "--json"))["receivers"] == ["c"]


def test_joining_with_a_table_that_cannot_be_read_remembers_nothing(parties):
    hub(parties, "open", "shared", "study.toml")
    (parties.root / "a.csv").write_text("nonsense")
    with pytest.raises(FdtrError):
        join(parties, "a")
    with pytest.raises(FdtrError, match="site join"):
        said(parties, "a", "site", "next")


def test_a_table_in_a_database_is_remembered_without_a_password_and_read_when_it_is_needed(
    parties, tmp_path, monkeypatch
):
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    study_of(masked=False, disclosure=EXACT).save(parties.root / "study.toml")
    hub(parties, "open", "shared", "study.toml")
    table = pa.csv.read_csv("a.csv")
    put_into_duckdb(table.take(pa.array(range(table.num_rows)[::-1])), tmp_path / "hospital.db")
    known = ("site", "join", "shared", "--site", "a", "--key", "a.key", "--table", "rows", "--db")
    with pytest.raises(InvalidSettings, match=r"passwords are not kept.*~/\.pgpass"):
        said(parties, "a", *known, "postgresql://me:hunter2@db/icu")
    with pytest.raises(Exposed, match=r"The table .*/shared/hospital\.db lies in the folder"):
        said(parties, "a", *known, "duckdb:shared/hospital.db")
    said(parties, "a", *known, "duckdb:hospital.db")
    join(parties, "b")
    join(parties, "c")
    with parties.at_home("a"):
        joined = find_joined("shared")
        assert joined.data == DatabaseTable(f"duckdb:{tmp_path}/hospital.db", "rows")
    assert "hunter2" not in (joined.place / "joined.json").read_text()
    monkeypatch.chdir(tmp_path / "temporary")
    for name in "abc":
        said(parties, name, "site", "next", "--yes")
    with parties.at_home("hub"):
        parties.hub()
    assert "wrote this site's policy" in said(parties, "a", "site", "next", "--yes", "--out", "../a.policy")
    assert [*(tmp_path / "temporary").iterdir()] == []
    with parties.at_home("a"):
        rows = read_trajectories(joined.data, joined.study, "a")
        again = fit_federated(joined.study, rows, parties.snapshot.checked_total()).policy
    np.testing.assert_array_equal(Policy.load(tmp_path / "a.policy").theta, again.theta)


def test_a_policy_is_not_written_over_a_strangers_file(parties):
    hub(parties, "open", "shared", "study.toml")
    join(parties, "a")
    with pytest.raises(FdtrError, match="did not write"):
        said(parties, "a", "site", "next", "--out", "a.csv")


def test_a_message_that_waits_is_taken_back_and_one_that_was_posted_is_not(parties):
    study_of(masked=False).save(parties.root / "study.toml")
    hub(parties, "open", "shared", "study.toml")
    join(parties, "a")
    in_the_way = parties.folder / "rounds/1/sums"
    in_the_way.write_text("")
    with pytest.raises(FdtrError, match="could not be written"):
        said(parties, "a", "site", "next", "--yes")
    with parties.at_home("a"):
        [recorded] = site_ledger().recorded()
    told = said(parties, "a", "site", "withdraw", recorded.message[:12], "--yes")
    assert told.startswith(f"Struck {recorded.message[:12]}")
    in_the_way.unlink()
    said(parties, "a", "site", "next", "--yes")
    with pytest.raises(NotWithdrawable, match="others may have read it"):
        said(parties, "a", "site", "withdraw", recorded.message, "--yes")


def test_a_person_is_told_before_a_message_is_released_that_noise_left_nothing_of(parties):
    study_of(masked=False, disclosure={"epsilon": 0.01, "delta": 1e-6}).save(parties.root / "study.toml")
    hub(parties, "open", "shared", "study.toml")
    join(parties, "a")
    told = "the noise left nothing of the shared effects at steps 0, 1"
    assert told in said(parties, "a", "site", "next", "--yes")
    summarize = ("site", "summarize", "study.toml", "b.csv", "--key", "b.key", "--yes", "--out")
    assert told in said(parties, "b", *summarize, "first.fdtr")
    assert told in said(parties, "b", *summarize, "again.fdtr")
