"""A release from Python, as in a notebook: as safe as from the command line."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from crash_points import at, fail, hook
from fdtr.errors import (
    DifferencingRisk,
    FdtrError,
    OtherRound,
    OutputExists,
    PerhapsWritten,
    UnwritableFile,
    WrongSite,
)
from fdtr.exchange import release
from fdtr.exchange.folder.site_steps import take_site_steps
from fdtr.exchange.release import (
    AGREED_BEFOREHAND,
    Proposal,
    release_message,
    release_table,
    release_values,
)
from fdtr.exchange.site_state.ledger import site_ledger
from fdtr.exchange.site_state.release_guard import history_locked, save_history
from fdtr.exchange.site_state.sent_copies import find_copy
from fdtr.exchange.wire import TABLE_HEADINGS, open_message, read_message, read_values
from fdtr.signing import Key
from fdtr.site import evaluate_site, summarize_table
from fdtr.site.fitting import fit_local
from fdtr.site.site_message import summarize
from fdtr.summary import combine
from message_files import round_of, with_roster
from random_tables import make_sites, make_study, make_table
from refusals import refuses

pytestmark = pytest.mark.quick
PRIVATE = {"epsilon": 100.0, "delta": 1e-6}


@pytest.fixture(autouse=True)
def state(tmp_path, monkeypatch):
    monkeypatch.setenv("FDTR_STATE", str(tmp_path / "state"))


@pytest.fixture
def study():
    return make_study()


@pytest.fixture
def rows(study):
    return make_sites(study, {"a": 400})["a"]


def standing() -> list[str]:
    return [entry.message for entry in site_ledger().recorded() if not entry.withdrawn]


def left_files(place: Path) -> list[Path]:
    return sorted(place.rglob("*.fdtr"))


def test_a_notebook_shows_asks_records_keeps_and_writes(study, rows, tmp_path):
    shown: list[Proposal] = []

    def confirm(proposal: Proposal) -> bool:
        shown.append(proposal)
        assert left_files(tmp_path) == []
        assert standing() == []
        return True

    released = release_message(study, rows, tmp_path / "a.fdtr", confirm=confirm)
    [proposal] = shown
    assert "sums over 400 patients, 3 steps" in str(proposal)
    assert not proposal.again
    assert released.summary == read_message(tmp_path / "a.fdtr", study) == proposal.summary
    assert released.copy.read_bytes() == (tmp_path / "a.fdtr").read_bytes()
    assert released.copy.stat().st_mode & 0o077 == 0
    assert (released.path, released.cost, released.again) == (tmp_path / "a.fdtr", None, False)
    assert standing() == [released.summary.digest]


def test_nobody_is_asked_who_agreed_beforehand_and_somebody_has_to(study, rows, tmp_path):
    with pytest.raises(TypeError, match="confirm"):
        release_message(study, rows, tmp_path / "a.fdtr")  # type: ignore[call-arg]
    assert left_files(tmp_path) == []
    release_message(study, rows, tmp_path / "a.fdtr", confirm=AGREED_BEFOREHAND)
    assert len(standing()) == 1


@pytest.mark.parametrize("answer", [False, None, "no", "yes", 1])
def test_only_true_is_a_yes(study, rows, tmp_path, answer):
    with pytest.raises(FdtrError, match=r"Nothing was written\."):
        release_message(study, rows, tmp_path / "a.fdtr", confirm=lambda _: answer)
    assert left_files(tmp_path) == []
    assert standing() == []


@pytest.mark.parametrize("why", [RuntimeError("no kernel"), KeyboardInterrupt()], ids=["fails", "Ctrl-C"])
def test_whoever_cannot_be_asked_has_not_agreed(study, rows, tmp_path, why):
    def ask(_: Proposal) -> bool:
        raise why

    with pytest.raises(type(why)):
        release_message(study, rows, tmp_path / "a.fdtr", confirm=ask)
    assert left_files(tmp_path) == []
    assert standing() == []


def test_an_answer_in_place_of_a_question_is_refused_at_once(study, rows, tmp_path, monkeypatch):
    monkeypatch.setattr(release, "fit_message", never)
    for confirm in (True, "yes", None):
        with pytest.raises(TypeError, match=r"confirm is .*AGREED_BEFOREHAND"):
            release_message(study, rows, tmp_path / "a.fdtr", confirm=confirm)
        with pytest.raises(TypeError, match="confirm is"):
            release_values(study, rows, None, tmp_path / "v.fdtr", confirm=confirm)
        with pytest.raises(TypeError, match="confirm is"):
            release_table(study, rows, None, tmp_path / "t.csv", confirm=confirm)
        with pytest.raises(TypeError, match="confirm is"):
            take_site_steps(None, confirm=confirm)
    assert not left_files(tmp_path)


def never(_: object) -> bool:
    raise AssertionError("A person was asked about what may not leave.")


def test_what_a_rule_refuses_is_not_even_asked(study, rows, tmp_path):
    few = make_sites(study, {"a": 30})["a"]
    with refuses("N"):
        release_message(study, few, tmp_path / "few.fdtr", confirm=never)
    release_message(study, rows, tmp_path / "a.fdtr", confirm=AGREED_BEFOREHAND)
    almost = rows.select([True] * 397 + [False] * 3)
    with refuses("ONCE"):
        release_message(study, almost, tmp_path / "almost.fdtr", confirm=never)
    secure = make_study(disclosure={"secure_sum": True, "max_patients": 1000})
    with pytest.raises(FdtrError, match="asks for a secure sum"):
        release_message(secure, rows, tmp_path / "secure.fdtr", confirm=never)
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(OutputExists, match="did not write"):
        release_message(study, rows, tmp_path / "mine.txt", confirm=never)
    assert [path.name for path in tmp_path.glob("*.fdtr")] == ["a.fdtr"]
    assert len(standing()) == 1


@pytest.mark.parametrize("opened", ["before", "while a person is asked"])
def test_sums_of_an_opened_secure_sum_do_not_leave(study, rows, tmp_path, opened):
    content = summarize(study, rows, site_ledger()).summary.content

    def open_sum(_: object = None) -> bool:
        with history_locked() as history:
            save_history(history.opened(bytes(32), "study", content, {"a": "k1", "b": "k2", "c": "k3"}))
        return True

    if opened == "before":
        open_sum()
    with pytest.raises(DifferencingRisk, match="part of a secure sum that was opened"):
        release_message(study, rows, tmp_path / "a.fdtr", confirm=never if opened == "before" else open_sum)
    assert left_files(tmp_path) == []
    assert standing() == []


def test_a_signed_message_needs_the_key_of_the_site(tmp_path):
    study, keys = with_roster(make_study(), "a", "b", "c")
    rows = make_sites(study, {"a": 400})["a"]
    for key in (None, Key.new(), keys["b"]):
        with pytest.raises(FdtrError):
            release_message(study, rows, tmp_path / "a.fdtr", key=key, confirm=never)
    release_message(study, rows, tmp_path / "a.fdtr", round_number=2, key=keys["a"], confirm=AGREED_BEFOREHAND)
    assert open_message(tmp_path / "a.fdtr", study, round_of(study, 2)).verified


def failing(monkeypatch: pytest.MonkeyPatch, *, renamed: bool) -> None:
    """The disk fails when the message gets its name, before or after."""
    replace = os.replace

    def fails(source: Path, target: Path) -> None:
        ours = Path(target).name == "a.fdtr"
        if renamed or not ours:
            replace(source, target)
        if ours:
            raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "replace", fails)


def test_what_was_surely_not_written_leaves_no_record_and_no_copy(study, rows, tmp_path, monkeypatch):
    with monkeypatch.context() as patched:
        failing(patched, renamed=False)
        with pytest.raises(UnwritableFile, match="Nothing was written"):
            release_message(study, rows, tmp_path / "a.fdtr", confirm=AGREED_BEFOREHAND)
    assert left_files(tmp_path) == []
    assert standing() == []
    first = release_message(study, rows, tmp_path / "other.fdtr", confirm=AGREED_BEFOREHAND)
    failing(monkeypatch, renamed=False)
    with pytest.raises(UnwritableFile):
        release_message(study, rows, tmp_path / "a.fdtr", confirm=AGREED_BEFOREHAND)
    assert first.copy.exists()  # it is the copy of the message that was written


def test_what_may_have_been_written_keeps_record_and_copy(study, rows, tmp_path, monkeypatch):
    failing(monkeypatch, renamed=True)
    with pytest.raises(PerhapsWritten, match="The ledger keeps its record"):
        release_message(study, rows, tmp_path / "a.fdtr", confirm=AGREED_BEFOREHAND)
    [digest] = standing()
    assert find_copy(digest) is not None


def test_noise_is_drawn_once_and_written_again(tmp_path):
    study = make_study(disclosure=PRIVATE)
    rows = make_sites(study, {"a": 400})["a"]
    first = release_message(study, rows, tmp_path / "one.fdtr", confirm=AGREED_BEFOREHAND)
    assert first.cost is not None
    shown: list[Proposal] = []
    with pytest.raises(FdtrError, match=r"Nothing was written\."):
        release_message(study, rows, tmp_path / "two.fdtr", confirm=lambda proposal: bool(shown.append(proposal)))
    assert shown[0].again
    assert "Noise is drawn once" in str(shown[0])
    assert not (tmp_path / "two.fdtr").exists()
    again = release_message(study, rows, tmp_path / "two.fdtr", confirm=AGREED_BEFOREHAND)
    assert (again.again, again.copy, again.cost) == (True, first.copy, None)
    assert (tmp_path / "two.fdtr").read_bytes() == (tmp_path / "one.fdtr").read_bytes()
    assert standing() == [first.summary.digest]


def test_values_leave_by_the_same_transaction(study, tmp_path):
    sites = make_sites(study, dict.fromkeys("abc", 400))
    locals_ = {site: fit_local(study, rows) for site, rows in sites.items()}
    total = combine([fit.summary for fit in locals_.values()])
    found = evaluate_site(study, sites["a"], total, locals_["a"].summary, split="half")
    with pytest.raises(FdtrError, match=r"Nothing was written\."):
        release_values(study, sites["a"], found, tmp_path / "a.values", confirm=lambda _: False)
    assert not (tmp_path / "a.values").exists()
    assert standing() == []
    message = release_values(study, sites["a"], found, tmp_path / "a.values", confirm=AGREED_BEFOREHAND)
    assert read_values(tmp_path / "a.values") == message.values
    assert standing() == [message.values.digest]
    private = make_study(disclosure=PRIVATE)
    with refuses("NOISE"):
        release_values(private, sites["a"], found, tmp_path / "b.values", confirm=never)


def test_a_table_leaves_by_the_same_transaction(study, tmp_path):
    source = make_table(study, {"a": 400})
    rows = make_sites(study, {"a": 400})["a"]
    table = summarize_table(study, rows, source)
    with pytest.raises(FdtrError, match=r"Nothing was written\."):
        release_table(study, rows, table, tmp_path / "a.csv", confirm=lambda _: False)
    assert not (tmp_path / "a.csv").exists()
    release_table(study, rows, table, tmp_path / "a.csv", confirm=AGREED_BEFOREHAND)
    assert (tmp_path / "a.csv").read_text().splitlines()[0] == ",".join(TABLE_HEADINGS)
    assert standing() == [table.digest]
    almost = rows.select([True] * 397 + [False] * 3)
    with refuses("ONCE"):
        release_table(study, almost, table, tmp_path / "b.csv", confirm=never)


def test_values_of_other_patients_than_the_ledger_would_record_are_refused(study, tmp_path):
    sites = make_sites(study, {"a": 300, "b": 300})
    local = {site: fit_local(study, rows) for site, rows in sites.items()}
    total = combine(fit.summary for fit in local.values())
    evaluation = evaluate_site(study, sites["a"], total, local["a"].summary)
    few = sites["a"].select(np.arange(300) < 12)
    for other in (sites["b"], few):
        with pytest.raises(WrongSite, match="the ledger would record others"):
            release_values(study, other, evaluation, tmp_path / "a.values", confirm=AGREED_BEFOREHAND)
    assert standing() == []
    assert not (tmp_path / "a.values").exists()


def test_a_table_replaces_a_table_and_nothing_else(study, tmp_path):
    table = make_table(study, {"a": 300, "b": 300})
    sites = make_sites(study, {"a": 300, "b": 300})
    table_one = summarize_table(study, sites["a"], table)
    with pytest.raises(WrongSite, match="The Table 1 is of site 'a'"):
        release_table(study, sites["b"], table_one, tmp_path / "one.csv", confirm=AGREED_BEFOREHAND)
    patients = tmp_path / "patients.csv"
    patients.write_text("site,patient,step\n")
    with pytest.raises(OutputExists, match="fdtr did not write"):
        release_table(study, sites["a"], table_one, patients, confirm=AGREED_BEFOREHAND)
    assert patients.read_text() == "site,patient,step\n"
    assert standing() == []
    for _ in range(2):
        release_table(study, sites["a"], table_one, tmp_path / "one.csv", confirm=AGREED_BEFOREHAND)


@pytest.mark.parametrize("number", [0, -1])
def test_there_is_no_round_before_the_first(study, rows, tmp_path, number):
    with pytest.raises(OtherRound, match="Rounds count from 1"):
        release_message(study, rows, tmp_path / "a.fdtr", confirm=AGREED_BEFOREHAND, round_number=number)
    assert standing() == []


def test_no_message_lies_anywhere_without_its_record_wherever_the_disk_fails(study, rows, tmp_path, monkeypatch):
    out, point, failed = tmp_path / "a.fdtr", 0, True
    while failed:
        point, failed = point + 1, False

        def now(name: str) -> None:
            nonlocal failed
            failed = True
            assert not out.exists() or standing(), name
            fail(name, errno.EIO if point % 2 else errno.ENOSPC)  # noqa: B023

        monkeypatch.setenv("FDTR_STATE", str(tmp_path / f"state-{point}"))
        with monkeypatch.context() as patched:
            hook(at(point, now), patched.setattr)
            with suppress(FdtrError):
                release_message(study, rows, out, confirm=AGREED_BEFOREHAND)
        assert not out.exists() or standing(), point
        out.unlink(missing_ok=True)
    assert point > 20
