"""Rule ONCE: which second releases it refuses, and that the record is there exactly when the message is."""

import hashlib
import hmac
import json
import os
import sqlite3
import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from fdtr.disclosure import VALUES, Release
from fdtr.disclosure.rule_once import MOST_VALUES, Patients
from fdtr.errors import (
    DisclosureError,
    ForeignFile,
    LostState,
    NotWithdrawable,
    PerhapsWritten,
    UnreadableFile,
    UnwritableFile,
)
from fdtr.exchange.site_state.ledger import Ledger
from fdtr.site.site_check import check
from fdtr.site.site_message import summarize
from fdtr.trajectories import patient_ids
from fdtr.trajectories.keyed_hashes import HashPart, SortedHashes, sort_hashes
from random_tables import make_sites, make_study
from refusals import refuses

pytestmark = pytest.mark.quick
IDS = [f"p{i}" for i in range(200)]
FIRST = Release("study-1", "map-1", "north", "0123456789abcdef", "values-1", 10, IDS)


@pytest.fixture
def ledger(tmp_path):
    return Ledger(tmp_path / "state" / "ledger")


def record(ledger, release):
    with ledger.recording(release):
        pass


@pytest.mark.parametrize(
    ("changes", "holds"),
    [
        ({}, True),  # the same again
        ({"study": "study-2"}, True),
        ({"content": "values-2"}, False),
        ({"content": "values-2", "feature_map": "map-2"}, True),
        ({"patients": IDS[1:]}, False),
        ({"patients": [*IDS, "new"]}, False),
        ({"patients": [*IDS[5:], *(f"q{i}" for i in range(5))]}, False),  # 5 left and 5 came: 10
        ({"patients": [*IDS[5:], *(f"q{i}" for i in range(6))]}, True),
        ({"patients": IDS[10:], "feature_map": "map-2", "study": "study-2"}, False),  # whatever the study
        ({"patients": IDS[11:]}, True),
        ({"patients": IDS[1:], "site": "norht", "study": "study-2"}, False),  # and whatever the site was called there
        ({"patients": IDS[1:], "site": "south", "content": "values-2"}, False),  # nor does a name tell people apart
        ({"site": "south", "content": "values-2"}, False),
        ({"patients": IDS[1:], "margin": 0}, False),  # the earlier study promised ten
        ({"patients": IDS[12:], "margin": 12}, False),
        ({"patients": list(reversed(IDS))}, True),
    ],
)
def test_the_rule(ledger, changes, holds):
    record(ledger, FIRST)
    again = replace(FIRST, **changes)
    assert ledger.judge(again).holds == holds
    if holds:
        record(ledger, again)
    else:
        with refuses("ONCE", match=r"(?s)rule ONCE: .*fdtr site withdraw.*Do not forward") as refused:
            record(ledger, again)
        assert refused.value.outward == "site declined: disclosure check"
        assert not any(patient in str(refused.value) for patient in ("p1", "new", "q0"))
    assert len(ledger.recorded()) == 1 + holds


@pytest.mark.parametrize(
    ("changes", "holds"),
    [
        ({}, True),
        ({"content": "values-2"}, True),  # other policies, the same patients
        ({"study": "study-2", "content": "values-2"}, True),
        ({"patients": IDS[1:]}, False),
        ({"patients": IDS[10:], "study": "study-2", "site": "norht"}, False),
        ({"patients": IDS[11:]}, True),
        ({"patients": IDS[1:], "feature_map": "map-1"}, True),  # sums are held to sums
        ({"patients": IDS[1:], "margin": 0}, False),
    ],
)
def test_values_are_held_to_the_rule_among_themselves(ledger, changes, holds):
    first = replace(FIRST, feature_map=VALUES)
    record(ledger, first)
    again = replace(first, **changes)
    assert ledger.judge(again).holds == holds
    if holds:
        ledger.require(again)
        record(ledger, again)
    else:
        for act in (ledger.require, lambda release: record(ledger, release)):
            with refuses("ONCE", match=r"(?s)may not release its values.*rule ONCE"):
                act(again)
    assert len(ledger.recorded()) == 1 + holds


def test_a_site_that_receives_only_tells_values_and_no_sums(ledger):
    ledger.receive_only("study-1", "north")
    values = replace(FIRST, feature_map=VALUES)
    record(ledger, values)
    ledger.receive_only("study-1", "north")  # once more does no harm
    for act in (ledger.require, lambda release: record(ledger, release)):
        with refuses("ONCE", match="this site only receives in this study"):
            act(FIRST)
    record(ledger, replace(FIRST, study="study-2", message="f" * 16))
    with pytest.raises(NotWithdrawable, match="released sums for this study"):
        ledger.receive_only("study-2", "north")
    ledger.withdraw("f" * 16)
    ledger.receive_only("study-2", "north")


def test_values_may_follow_sums_of_almost_the_same_patients(ledger):
    record(ledger, FIRST)
    ledger.require(replace(FIRST, feature_map=VALUES, patients=IDS[1:]))


def test_values_of_the_same_patients_leave_a_few_times_with_other_numbers(ledger):
    told = [
        replace(FIRST, feature_map=VALUES, study=f"study-{i}", message=f"{i:016d}", content=f"values-{i}")
        for i in range(MOST_VALUES + 1)
    ]
    for release in told[:-1]:
        record(ledger, release)
        record(ledger, release)  # the same again does not count
    for act in (ledger.require, lambda release: record(ledger, release)):
        with refuses("ONCE", match=r"have left 10 times.*Give the hub a file of values from before"):
            act(told[-1])
    ledger.require(replace(told[-1], content="values-3"))
    ledger.require(replace(told[-1], patients=IDS[11:]))
    ledger.require(replace(told[-1], feature_map="map-1"))
    ledger.withdraw(told[0].message)
    ledger.require(told[-1])


def test_a_machine_that_plays_several_sites_is_told_how(ledger):
    record(ledger, FIRST)
    with refuses("ONCE", match=r"released as site 'north'\. .* a state folder of its own \(FDTR_STATE\)"):
        ledger.require(replace(FIRST, site="south", content="values-2"))
    with refuses("ONCE") as refused:
        ledger.require(replace(FIRST, content="values-2"))
    assert "FDTR_STATE" not in str(refused.value)


LONG, OTHERS = IDS[:60], [f"q{i}" for i in range(140)]


def numbered(*steps):
    """Steps that are released, each with the digest that it has in every release where nothing was changed."""
    return {step: f"numbers-{step}" for step in steps}


BY_STEP = replace(FIRST, steps=[3] * 60 + [1] * 140, released=numbered(0, 1, 2))


@pytest.mark.parametrize(
    ("steps", "released", "refused_at"),
    [
        ([3] * 60, (0, 1, 2), None),  # nobody joined or left the late steps
        ([3] * 59 + [1], (0, 1, 2), 1),
        ([3] * 59 + [2], (0, 1, 2), 2),
        ([4] * 59 + [2], (0, 1, 2, 3), 2),
        ([3] * 59 + [1], (0, 2), 2),
        ([3] * 59 + [1], (0,), None),  # what is withheld is not compared
        ([3] * 50 + [1] * 10, (0, 1, 2), 1),
        ([3] * 49 + [1] * 11, (0, 1, 2), None),
        ([2] * 60, (0, 1), None),  # a step that nobody has is no release of it
    ],
)
def test_every_step_is_held_to_the_rule(ledger, steps, released, refused_at):
    """The tables differ by 280 patients, all of one step."""
    record(ledger, BY_STEP)
    again = replace(
        BY_STEP, content="values-2", patients=[*LONG, *OTHERS], steps=[*steps, *[1] * 140], released=numbered(*released)
    )
    verdict = ledger.judge(again)
    assert (verdict.holds, verdict.step) == (refused_at is None, refused_at)
    if refused_at is None:
        record(ledger, again)
    else:
        with refuses("ONCE", match=rf"step {refused_at}, rule ONCE: .* differ.*or none\."):
            record(ledger, again)


def test_a_step_that_was_withheld_before_is_not_compared(ledger):
    record(ledger, replace(BY_STEP, released=numbered(0, 1)))
    again = replace(BY_STEP, content="values-2", patients=[*LONG, *OTHERS], steps=[3] * 59 + [2] + [1] * 140)
    assert ledger.judge(again).holds


def test_the_same_patients_may_not_come_back_with_other_steps(ledger):
    record(ledger, BY_STEP)
    again = replace(BY_STEP, feature_map="map-2", content="values-2")
    assert ledger.judge(again).holds
    assert ledger.judge(replace(again, steps=[3] * 60 + [2] + [1] * 139)).step == 1


@pytest.mark.parametrize(
    ("changes", "refused_at"),
    [
        ({}, None),
        ({"released": numbered(0, 1) | {2: "others"}}, 2),
        ({"released": numbered(0, 1) | {2: "others"}, "feature_map": "map-2"}, None),
        ({"released": numbered(0, 1) | {2: ""}}, None),  # noise that is not drawn yet
    ],
)
def test_the_same_patients_of_a_late_step_have_the_same_numbers(ledger, changes, refused_at):
    """The tables differ by 280 patients, all of one step; those who stay are the same, and one row was changed."""
    record(ledger, BY_STEP)
    again = replace(BY_STEP, content="values-2", patients=[*LONG, *OTHERS], **changes)
    verdict = ledger.judge(again)
    assert (verdict.holds, verdict.step) == (refused_at is None, refused_at)
    if refused_at:
        assert "with other values of the same features" in verdict.measured


def test_a_table_that_grew_by_many_is_compared_at_its_late_steps(ledger):
    record(ledger, BY_STEP)
    grown = replace(BY_STEP, content="values-2", patients=[*IDS, *OTHERS], steps=[*BY_STEP.steps, 3, *[1] * 139])
    assert ledger.judge(grown).step == 1


def test_an_id_has_one_spelling(ledger):
    accented = replace(FIRST, patients=[f"Zo\u00eb {i}" for i in range(200)])
    record(ledger, accented)
    others = [f" Zoe\u0308 {i} " for i in range(199)]
    assert "1 patient differs" in ledger.judge(replace(accented, patients=others, content="values-2")).measured


def sorted_hashes(present):
    """Patients' hashes, in order, and the steps of each, as one part."""
    part = HashPart(b"".join(present), np.array([*present.values()], np.uint16))
    return SortedHashes.of(lambda: iter([part]))


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1), st.integers(0, 12))
def test_differences_are_those_of_sets_of_ids(lengths, margin):
    """Each patient has so many steps in one release and in the other, 0 where it is not in it."""
    hashes = sorted(hashlib.sha256(bytes([i])).digest()[:16] for i in range(len(lengths)))
    both = [{one: pair[which] for one, pair in zip(hashes, lengths, strict=True) if pair[which]} for which in (0, 1)]
    assume(all(both))
    first, second = (Patients(sorted_hashes(present), dict.fromkeys(range(4), "")) for present in both)
    found = dict(first.differing(second, margin))
    for step in range(4):
        mine, theirs = ({one for one, steps in present.items() if steps > step} for present in both)
        differ = len(mine ^ theirs) if mine and theirs else None
        assert found.get(step) == differ or (not found and differ > margin)


def as_format(number, tmp_path):
    """Make the ledger one of an older format: 1 does not know steps, and 1 to 3 hold each release in one row."""
    file = tmp_path / "state" / "ledger" / "releases.sqlite"
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        connection.execute(
            "UPDATE releases SET (patients, steps) = (SELECT patients, steps FROM parts WHERE release = id)"
        )
        connection.execute("DROP TABLE parts")
        connection.execute("ALTER TABLE releases DROP COLUMN counts")
        connection.execute("ALTER TABLE secret DROP COLUMN weights")
        if number == 1:
            connection.execute("ALTER TABLE releases DROP COLUMN steps")
            connection.execute("ALTER TABLE releases DROP COLUMN released")
            connection.execute("DROP TABLE receiving")
        connection.execute(f"PRAGMA user_version = {number}")
    return lambda: closing(sqlite3.connect(file))


def test_an_older_ledger_is_read_as_whole_tables_and_brought_up_to_date_when_written(ledger, tmp_path):
    record(ledger, BY_STEP)
    connected = as_format(1, tmp_path)
    late = replace(BY_STEP, content="values-2", patients=[*LONG, *OTHERS], steps=[3] * 59 + [1] * 141)
    assert ledger.judge(late).holds
    assert not ledger.judge(replace(BY_STEP, patients=IDS[1:], steps=BY_STEP.steps[1:])).holds
    with connected() as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (1,)
    record(ledger, late)
    with connected() as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (4,)
        told = connection.execute(
            "SELECT length(parts.steps), released, counts FROM releases LEFT JOIN parts ON release = id ORDER BY id"
        ).fetchall()
    assert [(length, *(text and json.loads(text) for text in texts)) for length, *texts in told] == [
        (None, None, None),
        (400, {"0": "numbers-0", "1": "numbers-1", "2": "numbers-2"}, [200, 59, 59]),
    ]
    assert ledger.judge(BY_STEP).step == 1  # its steps are compared with those of `late`
    record(ledger, late)


def test_a_ledger_of_format_3_is_read_with_its_steps(ledger, tmp_path):
    record(ledger, BY_STEP)
    as_format(3, tmp_path)
    late = replace(BY_STEP, content="values-2", patients=[*LONG, *OTHERS], steps=[3] * 59 + [1] * 141)
    for _ in range(2):  # as it is, and brought up to date
        assert ledger.judge(late).step == 1
        assert ledger.judge(replace(BY_STEP, patients=list(reversed(IDS)), steps=BY_STEP.steps[::-1])).holds
        assert ledger.repeated(replace(BY_STEP, patients=list(reversed(IDS)))) == BY_STEP.message
        ledger.receive_only("study-9", "north")


def test_a_ledger_keeps_the_weights_that_it_began_with(ledger, tmp_path):
    """Those of formats 1 to 3 came from digests that hold four numbers each: here by hand."""
    new = ledger.draws(["p1", "p2"], 6, make=True)
    record(ledger, FIRST)
    as_format(3, tmp_path)
    secret = (tmp_path / "state" / "ledger" / "secret").read_bytes()
    expected = []
    for patient in (b"p1", b"p2"):
        digests = b"".join(hmac.digest(secret, b"weight %d " % block + patient, "sha256") for block in (0, 1))
        expected.append([int.from_bytes(digests[8 * h : 8 * h + 8]) // 2**11 / 2**53 for h in range(6)])
    for make in (False, True, False):
        old = ledger.draws(["p1", " p2"], 6, make=make)
        assert [old.at(h).tolist() for h in range(6)] == np.transpose(expected).tolist()
    assert old.at(0).tolist() != new.at(0).tolist()


def test_many_patients_are_recorded_and_compared_part_by_part(ledger, tmp_path, monkeypatch):
    """Parts of two releases need not be cut alike."""
    for most in (7, 300, 60):
        monkeypatch.setattr(patient_ids, "sort_hashes", partial(sort_hashes, most=most))
        again = replace(BY_STEP, message=f"{most:016}")
        if most == 7:
            record(ledger, again)
            with closing(sqlite3.connect(tmp_path / "state" / "ledger" / "releases.sqlite")) as connection:
                [(parts, longest)] = connection.execute("SELECT count(*), max(length(patients)) FROM parts").fetchall()
            assert parts == 32
            assert longest < 20 * 16
        assert ledger.judge(again).holds
        assert (
            "10 patients differ" in ledger.judge(replace(again, patients=IDS[10:], steps=BY_STEP.steps[10:])).measured
        )
        assert ledger.judge(replace(again, patients=[*IDS], steps=[3] * 60 + [2] + [1] * 139)).step == 1
        assert ledger.repeated(replace(again, patients=[*IDS])) == f"{7:016}"
        assert ledger.repeated(replace(again, patients=[*IDS[1:], "q"])) is None


def test_a_record_that_is_taken_back_leaves_no_patient(ledger, tmp_path):
    record(ledger, FIRST)
    with pytest.raises(UnwritableFile), ledger.recording(replace(FIRST, message="f" * 16)):
        raise UnwritableFile("the disk is full")
    with closing(sqlite3.connect(tmp_path / "state" / "ledger" / "releases.sqlite")) as connection:
        assert connection.execute("SELECT release FROM parts").fetchall() == [(1,)]


def test_studies_without_the_rule_are_not_held_to_it(ledger):
    record(ledger, replace(FIRST, margin=0))
    assert ledger.judge(replace(FIRST, margin=0, patients=IDS[1:])).holds
    assert ledger.judge(replace(FIRST, margin=0, content="values-2")).holds
    assert not ledger.judge(replace(FIRST, patients=IDS[1:])).holds


def test_judging_leaves_nothing_behind(ledger, tmp_path):
    assert ledger.judge(FIRST).holds
    assert ledger.recorded() == []
    assert list(tmp_path.iterdir()) == []


def test_what_was_not_written_is_not_recorded(ledger):
    with pytest.raises(UnwritableFile), ledger.recording(FIRST):
        raise UnwritableFile("the disk is full")
    assert ledger.recorded() == []
    record(ledger, FIRST)
    with pytest.raises(UnwritableFile), ledger.recording(FIRST):
        raise UnwritableFile("the disk is full")
    assert len(ledger.recorded()) == 1  # that of the message which was written


def test_what_may_have_been_written_stays_recorded_and_that_is_said(ledger):
    with pytest.raises(PerhapsWritten, match=r"keeps its record.*site withdraw 0123456789ab"), ledger.recording(FIRST):
        raise PerhapsWritten("m.fdtr may have been written or not: Input/output error.")
    assert not ledger.judge(replace(FIRST, patients=IDS[1:])).holds


def test_an_interruption_leaves_the_record(ledger):
    with pytest.raises(KeyboardInterrupt), ledger.recording(FIRST):
        raise KeyboardInterrupt
    assert not ledger.judge(replace(FIRST, patients=IDS[1:])).holds
    record(ledger, FIRST)  # the same message may be made again


@pytest.mark.parametrize("recorded", [False, True])
def test_a_killed_process_leaves_the_whole_record_or_none(ledger, tmp_path, recorded):
    record(ledger, FIRST)
    child = os.fork()
    if not child:
        if recorded:
            ledger.recording(replace(FIRST, site="south")).__enter__()
        else:
            connection = sqlite3.connect(tmp_path / "state" / "ledger" / "releases.sqlite", isolation_level=None)
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("INSERT INTO releases SELECT 99, time, study, feature_map, site, message, content, "
                               "margin, state, n, patients, steps, released, counts FROM releases")  # fmt: skip
            connection.execute("INSERT INTO parts SELECT 99, number, patients, steps FROM parts")
        os._exit(9)
    os.waitpid(child, 0)
    assert [one.site for one in ledger.recorded()] == ["north", *(["south"] * recorded)]
    record(ledger, FIRST)


def test_the_record_is_there_before_the_message(ledger):
    with ledger.recording(FIRST):
        assert len(ledger.recorded()) == 1


def test_a_withdrawn_release_does_not_count(ledger):
    record(ledger, FIRST)
    record(ledger, replace(FIRST, message="fedcba9876543210", patients=IDS[50:]))
    for wrong in ("0123", "00000000", ""):
        with pytest.raises(NotWithdrawable, match="0123456789ab of "):
            ledger.withdraw(wrong)
    [struck] = ledger.withdraw("01234567")
    assert (struck.site, struck.n, struck.withdrawn) == ("north", 200, False)
    assert [one.withdrawn for one in ledger.recorded()] == [True, False]
    assert ledger.judge(replace(FIRST, patients=IDS[1:])).holds
    with pytest.raises(NotWithdrawable, match="The ledger holds no release under"):
        ledger.withdraw("01234567")


def test_no_id_is_in_the_ledger_and_only_its_owner_reads_it(ledger, tmp_path):
    record(ledger, replace(FIRST, patients=["patient-4711", *IDS]))
    folder = tmp_path / "state" / "ledger"
    assert {path.name for path in folder.iterdir()} == {"made", "releases.sqlite", "secret"}
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in folder.iterdir())
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert len((folder / "secret").read_bytes()) == 32
    assert all(b"4711" not in path.read_bytes() for path in folder.iterdir())
    other = Ledger(tmp_path / "elsewhere")
    record(other, FIRST)
    first, second = (
        sqlite3.connect(place / "releases.sqlite").execute("SELECT patients FROM parts").fetchone()[0]
        for place in (folder, tmp_path / "elsewhere")
    )
    assert not {first[i : i + 16] for i in range(0, len(first), 16)} & {
        second[i : i + 16] for i in range(0, len(second), 16)
    }  # without the secret an id cannot be looked up


def test_a_lost_secret_is_told_and_nothing_is_released(ledger, tmp_path):
    record(ledger, FIRST)
    for change in (lambda file: file.write_bytes(b"x" * 32), lambda file: file.unlink()):
        change(tmp_path / "state" / "ledger" / "secret")
        for act in (ledger.judge, lambda release: record(ledger, release)):
            with pytest.raises(UnreadableFile, match="Restore the folder"):
                act(FIRST)


def without_its_mark(file: Path) -> None:
    file.unlink()
    (file.parent / "made").unlink()


@pytest.mark.parametrize("lose", [Path.unlink, lambda file: file.write_bytes(b""), without_its_mark])
def test_a_ledger_that_vanished_beside_its_secret_is_not_begun_anew(ledger, tmp_path, lose):
    record(ledger, FIRST)
    lose(tmp_path / "state" / "ledger" / "releases.sqlite")
    again = replace(FIRST, patients=IDS[1:])
    for act in (ledger.judge, ledger.repeated, lambda release: record(ledger, release)):
        with pytest.raises(LostState, match=r"releases\.sqlite' is gone or empty.* Restore the folder"):
            act(again)
    for look in (ledger.recorded, lambda: ledger.withdraw(FIRST.message), lambda: ledger.stands(FIRST.message)):
        with pytest.raises(LostState):
            look()


def test_whoever_died_while_the_ledger_was_made_has_forgotten_nothing(ledger, tmp_path):
    """All that lies in its folder at each boundary, up to the mark that it was made."""
    folder = tmp_path / "state" / "ledger"
    record(Ledger(tmp_path / "whole"), FIRST)
    folder.mkdir(parents=True)
    for name, content in (("releases.sqlite", b""), ("secret", (tmp_path / "whole" / "secret").read_bytes())):
        (folder / name).write_bytes(content)
        assert ledger.judge(FIRST).measured == "no earlier release"
    record(ledger, FIRST)
    (folder / "made").unlink()  # died before it, or made by an earlier version
    assert not ledger.judge(replace(FIRST, patients=IDS[1:])).holds
    record(ledger, FIRST)
    assert (folder / "made").exists()


def test_a_ledger_that_cannot_be_used_says_what_to_do(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UnwritableFile, match="Set FDTR_STATE"):
        record(Ledger(tmp_path / "file"), FIRST)
    broken = Ledger(tmp_path / "broken")
    record(broken, FIRST)
    (tmp_path / "broken" / "releases.sqlite").write_bytes(b"no database at all" * 100)
    with pytest.raises(UnreadableFile, match="restore the folder"):
        broken.judge(FIRST)
    newer = Ledger(tmp_path / "newer")
    record(newer, FIRST)
    with sqlite3.connect(tmp_path / "newer" / "releases.sqlite") as connection:
        connection.execute("PRAGMA user_version = 5")
    with pytest.raises(ForeignFile, match="newer fdtr"):
        newer.judge(FIRST)


def test_of_two_who_release_at_once_one_is_refused(tmp_path):
    together = threading.Barrier(8)

    def act(number):
        together.wait()
        try:
            record(Ledger(tmp_path / "ledger"), replace(FIRST, patients=IDS[number:], content=f"values-{number}"))
        except DisclosureError as refusal:
            if refusal.rule != "ONCE":
                raise
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(act, range(8))) == 1
    assert len(Ledger(tmp_path / "ledger").recorded()) == 1


def test_a_site_is_held_to_what_it_released(ledger):
    study = make_study()
    rows = make_sites(study, {"a": 300})["a"]
    summarize(study, rows, ledger)
    [verdict] = [v for v in check(study, rows, ledger=ledger).verdicts if v.rule == "ONCE"]
    assert (verdict.holds, verdict.step, verdict.measured) == (
        True,
        None,
        "no earlier release of nearly the same patients",
    )
    assert not any(v.rule == "ONCE" for v in check(study, rows).verdicts)


def test_the_feature_map_is_what_makes_the_features():
    usual = make_study().feature_fingerprint
    labels = {"levels": [0, 1, 2], "labels": ["a", "b", "c"]}
    assert make_study(actions=labels).feature_fingerprint == usual
    assert (
        make_study(name="other", learning={"ridge": 1.0}, disclosure={"min_patients": 99}).feature_fingerprint == usual
    )
    covariates = [covariate.model_dump() for covariate in make_study().covariates]
    assert make_study(covariates=covariates[::-1]).feature_fingerprint == usual
    assert make_study(actions={"levels": [0, 1, 2], "degree": 1}).feature_fingerprint != usual
    assert make_study(features={"intercept": "none"}).feature_fingerprint != usual
    covariates[0]["effect"] = "specific"
    assert make_study(covariates=covariates).feature_fingerprint != usual
