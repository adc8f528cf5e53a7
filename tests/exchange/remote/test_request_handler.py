"""A site's request handler: what it releases, what it refuses, and that nothing else leaves the site."""

from __future__ import annotations

import gc
import json
import logging
import os
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from shutil import rmtree

import pyarrow as pa
import pyarrow.csv
import pytest

from fdtr.errors import BadSignature, Busy, DisclosureError, Exposed, FdtrError, NotJoined
from fdtr.exchange.folder.round_files import seal_begun, seal_part
from fdtr.exchange.folder_layout import file_name
from fdtr.exchange.remote import request_handler
from fdtr.exchange.remote.audit import Audit, verify
from fdtr.exchange.remote.jobs import Ending
from fdtr.exchange.remote.request_handler import LocalCopy, RequestHandler, ServedStudy, outcome_of
from fdtr.exchange.remote.requests import Answer, Outcome, Phase, Posting, Request
from fdtr.masking import SurvivorList
from fdtr.signing import HUB, Key, numbered_round
from fdtr.trajectories.table_in_database import DatabaseTable
from folder_parties import key_of, study_of
from message_files import forged
from random_tables import make_table, put_into_duckdb
from remote_parties import Network, network, silent


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch):
    """Nobody waits for the disk, which survives a test."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


def begun(net: Network) -> Posting:
    return Posting("begun", HUB, net.snapshot.path("begun", HUB).read_bytes())


def first(net: Network, **changes) -> Request:
    """What the hub asks for to begin with."""
    phase = Phase.KEYS if net.study.disclosure.secure_sum else Phase.SUMS
    return replace(Request(net.study.fingerprint, 1, phase, (begun(net),)), **changes)


def lines(net: Network, site: str = "a") -> list[dict]:
    return [json.loads(line) for line in net.log(site).read_text().splitlines()]


def mirrored(net: Network, site: str = "a") -> list[str]:
    return sorted(path.name for path in (net.root / "homes" / site).glob("mirrors/*/folder/rounds/**/*.fdtr"))


def test_sums_leave_once_and_the_log_says_what_was_asked_checked_and_sent(tmp_path):
    net = network(tmp_path, masked=False)
    said = net.handlers["a"].answer(first(net))
    assert said.outcome is Outcome.DONE
    [sent] = said.postings
    assert (sent.part, sent.sender) == ("sums", "a")
    assert net.handlers["a"].answer(first(net)) == said  # to the last byte
    one, two = lines(net)
    asked = {"study": net.study.fingerprint, "round": 1, "phase": "sums", "bytes": len(begun(net).content)}
    told = [{"part": "sums", "bytes": len(sent.content), "sha256": sha256(sent.content).hexdigest()}]
    assert (one["asked"], one["sent"], one["outcome"]) == (asked, told, "done")
    cells = ("CELL", "NONZERO", "REF", "PAIR")
    rules = ("N", "NUMBERS", "ACTION", *cells, "LEVERAGE", "BOUND", "COLLINEAR", "ONCE", "CONSENT")
    assert one["checked"] == dict.fromkeys(rules, "held")
    assert (two["checked"], two["sent"]) == ({}, told)  # nothing new was released


def test_a_refusal_by_the_rules_is_one_word_outside_and_a_table_without_values_in_the_log(tmp_path, caplog):
    net = network(tmp_path, masked=False, n=30)
    assert net.handlers["a"].answer(first(net)) == Answer("a", Outcome.DECLINED)
    [line] = lines(net)
    assert line["checked"]["N"] == "failed"
    assert line["checked"]["BOUND"] == "held"
    assert line["sent"] == []
    assert "30" not in json.dumps(line["checked"])
    assert "30 patients" in caplog.text  # for the site's own eyes


@pytest.mark.parametrize(
    "error",
    [
        DisclosureError("N", "patient p17 at /secret/table.csv"),
        FdtrError("patient p17 at /secret/table.csv"),
        OSError(28, "No space left on device", "/secret/table.csv"),
        KeyError("/secret/table.csv"),
        MemoryError("/secret/table.csv"),
        RecursionError("patient p17"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_nothing_of_an_exception_crosses(tmp_path, monkeypatch, error):
    net = network(tmp_path, masked=False)

    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(request_handler, "take_site_steps", fail)
    said = net.handlers["a"].answer(first(net))
    assert said == Answer("a", said.outcome)
    crossed = repr(said).encode()
    assert b"secret" not in crossed
    assert b"p17" not in crossed
    assert said.outcome is (Outcome.DECLINED if isinstance(error, DisclosureError) else Outcome.FAILED)
    log = net.log("a").read_text()
    assert "secret" not in log
    assert "p17" not in log


@pytest.mark.parametrize("releases", [1, 2])
def test_other_messages_leave_only_as_often_as_the_administrator_agreed(tmp_path, releases, caplog):
    net = network(tmp_path, masked=False)
    agreed = ServedStudy(net.study, tmp_path / "a.csv", None, releases)
    site = RequestHandler("a", [agreed], key_of("a"), Audit(net.log("a")), tmp_path / "homes" / "a")
    outcomes = []
    for number, patients in enumerate((120, 120, 140, 160), 1):
        pa.csv.write_csv(make_table(net.study, {"a": patients}), tmp_path / "a.csv")
        within = numbered_round(net.study.fingerprint, net.study.roster, number)
        opened = Posting("begun", HUB, seal_begun(within, key_of(HUB)))
        outcomes.append(site.answer(Request(net.study.fingerprint, number, Phase.SUMS, (opened,))).outcome)
    told = [Outcome.DONE, Outcome.DONE, Outcome.DONE if releases == 2 else Outcome.DECLINED, Outcome.DECLINED]
    assert outcomes == told
    assert [line["checked"].get("CONSENT") for line in lines(net)][-1] == "failed"
    assert "raise `releases`" in caplog.text


@pytest.mark.parametrize("masked", [False, True], ids=["open", "masked"])
def test_a_table_in_a_database_is_read_anew_for_each_request_and_no_row_stays(tmp_path, monkeypatch, masked):
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    net = network(tmp_path, "abcd", masked=masked)
    table = DatabaseTable(put_into_duckdb(pa.csv.read_csv(tmp_path / "a.csv"), tmp_path / "a.duckdb"), "rows")
    served = ServedStudy(net.study, table, tmp_path / "a.policy")
    net.handlers["a"] = RequestHandler("a", [served], key_of("a"), Audit(net.log("a")), tmp_path / "homes" / "a")

    def nothing_stays(*_: object) -> None:
        gc.collect()
        assert [*(tmp_path / "temporary").iterdir()] == []

    net.faults.append(nothing_stays)
    result = net.run()
    assert (result.ending, result.finished) == (Ending.COMPLETE, tuple("abcd"))
    assert net.policy("a").site == "a"
    nothing_stays()


def test_nothing_is_sent_that_the_log_does_not_hold(tmp_path):
    net = network(tmp_path, masked=False)
    net.log("a").mkdir()
    assert net.handlers["a"].answer(first(net)) == Answer("a", Outcome.FAILED)


def test_studies_that_are_not_on_the_list_are_unknown(tmp_path):
    net = network(tmp_path, masked=False)
    for fingerprint in ("0" * 64, "", "../../etc", "\ud7ff"):
        assert net.handlers["a"].answer(first(net, fingerprint=fingerprint)) == Answer("a", Outcome.UNKNOWN_STUDY)
    assert mirrored(net) == []
    assert [line["asked"]["study"] for line in lines(net)] == ["0" * 64, "", "", ""]
    assert verify(net.log("a")).lines == 4


def test_what_cannot_be_read_is_refused(tmp_path):
    net = network(tmp_path, masked=False)
    assert net.handlers["a"].answer(None) == Answer("a", Outcome.REFUSED)
    assert lines(net)[0]["outcome"] == "refused"


@pytest.mark.parametrize("masked", [False, True], ids=["open", "masked"])
def test_postings_that_the_phase_cannot_have_are_refused_before_anything_is_written(tmp_path, masked):
    net = network(tmp_path, masked=masked)
    good = begun(net)
    other = "sums" if masked else "keys"
    refused = [
        (Posting("sums", "b", b"x"),),  # others' open sums
        (Posting("keys", "a", b"x"),),  # over its own
        (Posting(other, "a", b"x"),),
        (Posting("masked", "b", b"x"),),  # of a later phase
        (Posting("total", HUB, b"x"),),
        (Posting("begun", "b", b"x"),),
        (Posting("keys", "nobody", b"x"),),
        (Posting("../../../evil", HUB, b"x"),),
        (Posting("begun", "../../evil", b"x"),),
        (good, good),
        (Posting("begun", HUB, good.content + b"\0"),),
        (),
    ]
    for postings in refused:
        assert net.handlers["a"].answer(first(net, postings=postings)) == Answer("a", Outcome.REFUSED), postings
    for changes in ({"round": 0}, {"round": 10_000}, {"round": -1}, {"round": 2**62}):
        assert net.handlers["a"].answer(first(net, **changes)) == Answer("a", Outcome.REFUSED)
    wrong = Phase.SUMS if masked else Phase.KEYS
    assert net.handlers["a"].answer(first(net, phase=wrong)) == Answer("a", Outcome.REFUSED)
    assert mirrored(net) == []
    assert verify(net.log("a")).lines == len(refused) + 5


def test_a_round_that_the_hub_did_not_begin_is_refused(tmp_path):
    net = network(tmp_path, masked=False)
    wrong = replace(begun(net), content=forged(begun(net).content))
    assert net.handlers["a"].answer(first(net, postings=(wrong,))).outcome is Outcome.REFUSED
    assert net.handlers["a"].answer(first(net, round=2)).outcome is Outcome.REFUSED  # signed for the first
    assert mirrored(net) == []


def test_an_earlier_round_is_not_played_after_a_later_one(tmp_path):
    net = network(tmp_path, masked=True)
    old = first(net)
    net.faults.append(silent("c"))
    net.run()
    net.parties.new_round()
    assert net.snapshot.number == 2
    assert net.handlers["a"].answer(replace(old, round=2, postings=(begun(net),))).outcome is Outcome.DONE
    assert net.handlers["a"].answer(old) == Answer("a", Outcome.REFUSED)


def test_a_site_that_was_away_joins_a_later_round_and_follows_no_jump(tmp_path):
    net = network(tmp_path, masked=False)

    def of_round(number: int) -> Request:
        within = numbered_round(net.study.fingerprint, net.study.roster, number)
        return first(net, round=number, postings=(Posting("begun", HUB, seal_begun(within, key_of(HUB))),))

    answer = net.handlers["a"].answer
    assert answer(of_round(102)) == Answer("a", Outcome.REFUSED)  # a hundred may go by, no more
    assert answer(replace(of_round(3), postings=())) == Answer("a", Outcome.REFUSED)
    assert answer(of_round(3)).outcome is Outcome.DONE
    assert answer(of_round(2)) == Answer("a", Outcome.REFUSED)
    assert answer(of_round(4)).outcome is Outcome.DONE


@pytest.mark.parametrize("masked", [False, True])
def test_a_site_that_lost_its_copy_of_the_folder_joins_again(tmp_path, masked):
    net = network(tmp_path, masked=masked)
    said = net.handlers["a"].answer(first(net))
    rmtree(tmp_path / "homes" / "a" / "mirrors")
    assert net.handlers["a"].answer(first(net)) == said  # to the last byte
    assert net.run().ending is Ending.COMPLETE


def test_a_hub_that_asks_out_of_turn_gets_nothing(tmp_path):
    net = network(tmp_path, masked=True)
    for phase in (Phase.MASKED, Phase.CONFIRMED, Phase.OPENED, Phase.FINISH):
        assert net.handlers["a"].answer(first(net, phase=phase)) == Answer("a", Outcome.REFUSED)


@pytest.mark.slow
def test_a_hub_that_shows_two_lists_gets_no_opening(tmp_path):
    """Two lists of survivors, each verified by its signature: a site signs one, and opens nothing under another."""
    net = network(tmp_path, "abcd", masked=True)
    net.faults.append(silent("a", Phase.COUNTS_CONFIRMED))
    net.run()
    board = net.snapshot
    assert board.counting.survivors is not None
    shorter = SurvivorList(board.counting.survivors.members[:3])
    other = seal_part("counted", HUB, shorter, board.within, key_of(HUB))
    ask = first(net, phase=Phase.COUNTS_CONFIRMED, postings=(begun(net), Posting("counted", HUB, other)))
    assert net.handlers["a"].answer(ask).outcome is Outcome.DONE
    assert net.handlers["b"].answer(ask) == Answer("b", Outcome.REFUSED)  # it signed the longer one
    names = ("countsconfirmed", "countsopened")
    shown = tuple(Posting(names[0], site, board.path(names[0], site).read_bytes()) for site in "bcd")
    opened = first(net, phase=Phase.COUNTS_OPENED, postings=(begun(net), *shown))
    assert net.handlers["a"].answer(opened) == Answer("a", Outcome.REFUSED)


def test_a_desk_with_another_key_does_not_open(tmp_path):
    net = network(tmp_path, masked=False)
    with pytest.raises(BadSignature, match="not the one that the roster has of"):
        RequestHandler("a", [ServedStudy(net.study, tmp_path / "a.csv")], Key.new(), Audit(tmp_path / "log"))


def test_a_table_that_cannot_be_read_is_a_failure_at_home(tmp_path, caplog):
    net = network(tmp_path, masked=False)
    (tmp_path / "a.csv").write_text("nothing,of,use\n1,2,3\n")
    with caplog.at_level(logging.ERROR):
        assert net.handlers["a"].answer(first(net)) == Answer("a", Outcome.FAILED)
    assert "column" in caplog.text


@pytest.mark.slow
def test_the_policy_is_written_once_where_the_administrator_says(tmp_path):
    net = network(tmp_path, masked=False)
    net.run()
    path = tmp_path / "a.policy"
    path.unlink()
    assert net.run().ending == "complete"
    assert not path.exists()  # the round is through; the copy beside the state is the site's own
    assert list((tmp_path / "homes/a/studies").rglob("round-1.policy"))


def test_a_sites_name_is_no_way_out_of_the_mirror(tmp_path):
    assert Path(file_name("../../evil")).name == file_name("../../evil")
    assert LocalCopy("../../evil", study_of(masked=False)).place.parent.name == "mirrors"


def test_a_desk_whose_log_was_changed_sends_nothing_and_says_why_at_home(tmp_path, caplog):
    net = network(tmp_path, masked=False)
    net.handlers["a"].answer(first(net))
    net.log("a").write_bytes(net.log("a").read_bytes().replace(b"done", b"none"))
    assert net.handlers["a"].answer(first(net)) == Answer("a", Outcome.FAILED)
    assert "ends with a line that was changed" in caplog.text


@pytest.mark.parametrize("error", [Busy("x"), NotJoined("x"), Exposed("x")], ids=lambda error: type(error).__name__)
def test_what_is_wrong_at_home_is_not_told_as_the_hubs_fault(error):
    assert outcome_of(error) is Outcome.FAILED
    assert outcome_of(BadSignature("x")) is Outcome.REFUSED
