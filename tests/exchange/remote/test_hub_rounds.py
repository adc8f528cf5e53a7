"""Whole federations, the network a function call: who is in, who is not and why, and what everybody ends with."""

from __future__ import annotations

import os
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest

from fdtr import __version__
from fdtr.errors import Busy, InvalidStudy, UnwritableFile
from fdtr.exchange import atomic_files
from fdtr.exchange.folder import site_steps
from fdtr.exchange.remote import hub_rounds
from fdtr.exchange.remote.audit import verify
from fdtr.exchange.remote.hub_rounds import collect, run_federation
from fdtr.exchange.remote.jobs import Absence, Ending, Reason
from fdtr.exchange.remote.requests import Answer, Outcome, Phase, Posting, phases_of
from fdtr.exchange.site_state import use_state_folder
from fdtr.exchange.wire import encode_message
from fdtr.masking import start
from fdtr.pipeline.run import ALLOWED, run
from fdtr.signing import HUB, Key
from fdtr.site.rows import read_trajectories
from fdtr.site.site_message import summarize
from fdtr.study import Study, set_roster
from folder_parties import Parties, key_of, study_of
from message_files import forged
from random_tables import make_sites, make_table
from remote_parties import Network, handler, network, silent
from secure_sum import entropy

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("weights_of_the_seed")]


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch):
    """Nobody waits for the disk, which survives a test."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


def same_policies(left, right, sites) -> None:
    for site in sites:
        np.testing.assert_array_equal(left.policy(site).theta, right.policy(site).theta)
        np.testing.assert_array_equal(left.policy(site).precision, right.policy(site).precision)


@pytest.fixture
def same_masks(monkeypatch):
    """The same keys for a site and round, however they travel."""
    monkeypatch.setattr(
        site_steps, "start", lambda agreed, site, history: start(agreed, site, history, entropy(site, agreed.context))
    )


@pytest.mark.parametrize("masked", [False, True], ids=["open", "masked"])
def test_the_network_gives_the_policies_of_the_shared_folder(tmp_path, same_masks, masked):
    net = network(tmp_path / "net", "abcd", masked=masked)
    result = net.run()
    assert (result.ending, result.round, result.mode) == (Ending.COMPLETE, 1, "masked" if masked else "open")
    assert result.members == result.finished == tuple("abcd")
    assert result.absent == result.given_up == ()
    assert result.fingerprint == net.study.fingerprint
    assert result.total == sha256(net.snapshot.path("total", HUB).read_bytes()).hexdigest()
    assert result.versions["fdtr"] == __version__
    assert result.began <= result.ended
    shared = Parties(tmp_path / "folder", tuple("abcd")).set_up(net.study)
    shared.open()
    shared.join_all().play()
    same_policies(net, shared, "abcd")


def test_an_open_federation_gives_the_policies_of_one_run_on_one_table(tmp_path):
    net = network(tmp_path, masked=False)
    net.run()
    table = make_table(net.study, dict.fromkeys("abc", 120))
    fitted = run(net.study, read_trajectories(table, net.study))
    for site in "abc":
        np.testing.assert_array_equal(net.policy(site).theta, fitted.methods[ALLOWED][site].theta)


def test_a_site_never_gets_anothers_open_sums(tmp_path):
    net = network(tmp_path, masked=False)
    net.run()
    assert {path.name for path in (tmp_path / "homes/a/mirrors").rglob("*.fdtr")} == {
        "begun.fdtr", "total.fdtr", net.snapshot.path("sums", "a").name
    }  # fmt: skip


def test_a_finished_federation_may_be_run_again(tmp_path):
    net = network(tmp_path, "abcd", masked=False)
    net.faults.append(silent("d"))
    first = net.run()
    before = net.policy("a")
    again = net.run()
    assert (again.ending, again.total) == (first.ending, first.total)
    assert again.absent == (Absence("d", 1, "", Reason.LEFT_OUT),)
    np.testing.assert_array_equal(net.policy("a").theta, before.theta)


# Faults of one site, in an open round


@pytest.mark.quick
def test_an_open_round_goes_on_without_a_site_that_is_down(tmp_path):
    net = network(tmp_path, "abcd", masked=False)
    net.faults.append(silent("d"))
    result = net.run()
    assert (result.ending, result.members) == (Ending.COMPLETE, ("a", "b", "c"))
    assert result.absent == (Absence("d", 1, "sums", Reason.NO_ANSWER),)


def test_a_site_that_no_node_speaks_for_is_not_asked(tmp_path):
    net = network(tmp_path, "abcd", masked=False)
    result = net.run(nodes={"a": 1, "b": 2, "c": 3})
    assert result.absent == (Absence("d", 1, "sums", Reason.NOT_ASKED),)
    assert "d" not in {site for _, site, _ in net.answers}


def test_fewer_than_asked_for_are_never_added(tmp_path):
    net = network(tmp_path, "abcd", masked=False)
    net.faults.append(silent("d"))
    result = net.run(min_sites=4)
    assert (result.ending, result.members, result.total) == (Ending.REFUSED, (), None)
    assert "3 sites sent their sums, and 4 were asked for" in result.next
    assert net.snapshot.total is None
    net.faults.clear()
    asked = len(net.answers)
    assert net.run(min_sites=4).members == tuple("abcd")
    assert [site for phase, site, _ in net.answers[asked:] if phase is Phase.SUMS] == ["d"]  # nobody sends twice


def test_the_studys_own_minimum_holds_whatever_the_job_says(tmp_path):
    net = network(tmp_path, masked=False)
    net.faults.append(silent("c"))
    result = net.run(min_sites=1)
    assert result.ending is Ending.REFUSED
    assert "rule SITES asks for 3" in result.next


def test_a_site_that_may_not_release_declines_without_a_reason(tmp_path):
    net = network(tmp_path, "abcd", masked=False)
    few = (tmp_path / "d.csv").read_text().splitlines(keepends=True)
    (tmp_path / "d.csv").write_text("".join(few[: 1 + 2 * 30]))
    result = net.run()
    assert result.absent == (Absence("d", 1, "sums", Reason.DECLINED),)
    assert result.members == ("a", "b", "c")
    [said] = [answer for _, site, answer in net.answers if site == "d"]
    assert said == Answer("d", Outcome.DECLINED)


def test_a_site_with_another_study_or_roster_says_so(tmp_path):
    net = network(tmp_path, "abcde", masked=False)
    net.handlers["d"] = handler(tmp_path, "d", study_of(tuple("abcde"), masked=False, name="other"))
    changed = {**net.study.roster, "c": Key.new().public}
    net.handlers["e"] = handler(tmp_path, "e", Study.model_validate({**net.study.model_dump(), "roster": changed}))
    result = net.run()
    assert result.absent == (
        Absence("d", 1, "sums", Reason.UNKNOWN_STUDY),
        Absence("e", 1, "sums", Reason.OTHER_ROSTER),
    )


def wrongly_signed(posting: Posting) -> Posting:
    return replace(posting, content=forged(posting.content))


def test_what_a_site_did_not_sign_is_not_taken(tmp_path):
    net = network(tmp_path, "abcdef", masked=False)

    def fault(phase, site, request):
        if phase is not Phase.SUMS or site in "abc":
            return None
        said = net.handlers[site].answer(request)
        [own] = said.postings
        if site == "d":
            return replace(said, postings=(wrongly_signed(own),))
        if site == "e":  # as another
            return replace(said, site="a", postings=(replace(own, sender="a"),))
        return replace(said, postings=(own, replace(own, part="keys")))

    net.faults.append(fault)
    result = net.run()
    assert result.absent == (
        Absence("d", 1, "sums", Reason.WRONG_SIGNATURE),
        Absence("e", 1, "sums", Reason.OTHER_SITE),
        Absence("f", 1, "sums", Reason.BAD_ANSWER),
    )
    assert result.members == ("a", "b", "c")


def test_sites_whose_nodes_were_mixed_up_are_told_from_those_who_fail(tmp_path):
    net = network(tmp_path, "abcde", masked=False)
    other = {"d": "e", "e": "d"}
    net.faults.append(lambda _, site, request: net.handlers[other[site]].answer(request) if site in other else None)
    result = net.run()
    assert result.members == ("a", "b", "c")
    assert [(one.site, one.reason) for one in result.absent] == [("d", Reason.OTHER_SITE), ("e", Reason.OTHER_SITE)]


def test_a_site_has_not_finished_because_another_says_so(tmp_path):
    net = network(tmp_path, masked=False)
    net.faults.append(
        lambda phase, site, _: Answer("b", Outcome.DONE) if (phase, site) == (Phase.FINISH, "a") else None
    )
    result = net.run()
    assert result.finished == ("b", "c")
    assert result.absent == (Absence("a", 1, "finish", Reason.OTHER_SITE),)


def test_a_part_that_was_not_asked_for_is_not_kept_however_well_it_is_signed(tmp_path):
    net = network(tmp_path, "abcd", masked=False)
    begun = Posting("begun", HUB, net.snapshot.path("begun", HUB).read_bytes())
    net.faults.append(lambda _, site, __: Answer("d", Outcome.DONE, (begun,)) if site == "d" else None)
    result = net.run()
    assert result.absent == (Absence("d", 1, "sums", Reason.BAD_ANSWER),)
    assert not net.snapshot.path("begun", "d").exists()


def test_a_site_that_says_done_and_posts_nothing_is_not_in(tmp_path):
    net = network(tmp_path, "abcd", masked=False)
    net.faults.append(lambda _, site, __: Answer("d", Outcome.DONE) if site == "d" else None)
    result = net.run()
    assert (result.members, result.absent) == (tuple("abc"), (Absence("d", 1, "sums", Reason.BAD_ANSWER),))


def test_a_site_with_a_full_disk_fails_and_comes_back(tmp_path, monkeypatch):
    net = network(tmp_path, "abcd", masked=False)
    write, full = os.fdopen, [True]

    def fdopen(descriptor, *arguments):
        if full[0] and str(tmp_path / "homes" / "d") in str(Path(f"/proc/self/fd/{descriptor}").readlink()):
            os.close(descriptor)
            raise OSError(28, "No space left on device")
        return write(descriptor, *arguments)

    monkeypatch.setattr(os, "fdopen", fdopen)
    result = net.run(min_sites=4)
    assert result.absent == (Absence("d", 1, "sums", Reason.FAILED),)
    full[0] = False
    assert net.run(min_sites=4).members == tuple("abcd")


def test_a_late_answer_is_not_added(tmp_path):
    net = network(tmp_path, "abcd", masked=False)
    late: list[Answer] = []

    def fault(phase, site, request):
        if site == "d":
            late.append(net.handlers["d"].answer(request))
            return Reason.NO_ANSWER
        if phase is Phase.FINISH and site == "a":
            return replace(late[0], site="a")  # arrives with the next phase, under whatever name
        return None

    net.faults.append(fault)
    result = net.run()
    assert result.members == ("a", "b", "c")
    assert result.ending is Ending.INCOMPLETE
    assert result.absent == (
        Absence("a", 1, "finish", Reason.BAD_ANSWER),
        Absence("d", 1, "sums", Reason.NO_ANSWER),
    )
    assert list(net.snapshot.sums) == ["a", "b", "c"]
    net.faults.clear()
    assert net.run().ending is Ending.COMPLETE


def test_a_site_that_is_asked_twice_says_the_same(tmp_path):
    net = network(tmp_path, masked=False)
    net.faults.append(lambda phase, site, request: net.handlers[site].answer(request) and None)
    assert net.run().ending is Ending.COMPLETE
    assert [said for phase, site, said in net.answers if phase is Phase.SUMS and site == "a"] == [
        Answer("a", Outcome.DONE, (Posting("sums", "a", net.snapshot.path("sums", "a").read_bytes()),))
    ]


def test_a_site_whose_second_answer_differs_is_not_believed(tmp_path):
    net = network(tmp_path, masked=False)
    net.faults.append(silent("c"))
    net.run()
    board = net.snapshot
    first = board.path("sums", "a").read_bytes()
    other = summarize(net.study, make_sites(net.study, {"a": 150}, seed=9)["a"])
    said = Answer("a", Outcome.DONE, (Posting("sums", "a", encode_message(other, board.within, key_of("a"))),))
    found = collect(board, Phase.SUMS, ["a"], ["a"], lambda *_: {"a": said})
    assert (found.done, found.absent) == ((), {"a": Reason.BAD_ANSWER})
    assert board.path("sums", "a").read_bytes() == first


# The same in a masked one


def test_a_masked_round_needs_every_key(tmp_path):
    net = network(tmp_path, "abcd", masked=True)
    net.faults.append(silent("d"))
    result = net.run()
    assert result.ending is Ending.REFUSED
    assert result.absent == (Absence("d", 1, "keys", Reason.NO_ANSWER),)
    assert "No key came from d" in result.next
    assert "fdtr roster remove" in result.next
    net.faults.clear()
    assert net.run().members == tuple("abcd")


@pytest.mark.parametrize(("phase", "rules"), [(Phase.COUNTS, {}), (Phase.MASKED, {"jitter": 0})])
def test_a_site_lost_before_its_masked_numbers_is_recovered(tmp_path, phase, rules):
    net = network(tmp_path, "abcd", masked=True, disclosure=rules)
    net.faults.append(silent("d", phase))
    result = net.run()
    assert (result.ending, result.round, result.members) == (Ending.COMPLETE, 1, ("a", "b", "c"))
    assert result.absent == (Absence("d", 1, phase.value, Reason.NO_ANSWER),)


def test_a_site_that_is_lost_after_its_counts_is_waited_for_and_the_next_round_does_without(tmp_path):
    net = network(tmp_path, "abcd", masked=True)
    net.faults.append(silent("d", Phase.MASKED))
    result = net.run()
    assert (result.ending, result.round, result.total) == (Ending.REFUSED, 1, None)
    assert "d is on the list of survivors and does not answer" in result.next
    roster = {name: key for name, key in net.study.roster.items() if name != "d"}
    set_roster(tmp_path / "shared" / "study.toml", roster)
    net.parties.sites = tuple("abc")
    net.parties.new_round()
    net.handlers = {site: handler(tmp_path, site, net.snapshot.study) for site in "abc"}
    again = net.run()
    assert (again.ending, again.round, again.members) == (Ending.COMPLETE, 2, ("a", "b", "c"))


@pytest.mark.parametrize("masked", [False, True], ids=["open", "masked"])
def test_a_site_that_only_receives_gets_the_total_and_sends_nothing(tmp_path, masked):
    net = network(tmp_path, "abcd", masked=masked)
    net.handlers["d"] = handler(tmp_path, "d", net.study, receive_only=True)
    result = net.run()
    assert (result.ending, result.members, result.absent) == (Ending.COMPLETE, ("a", "b", "c"), ())
    assert set(result.finished) == {*"abcd"}
    sent = [answer for _, site, answer in net.answers if site == "d"]
    assert [posting.part for answer in sent for posting in answer.postings] == ["receives"]
    assert net.policy("d").method == "FDTR"


@pytest.mark.parametrize("phase", [Phase.COUNTS_CONFIRMED, Phase.COUNTS_OPENED, Phase.CONFIRMED, Phase.OPENED])
def test_a_survivor_that_is_silent_is_asked_once_more(tmp_path, phase):
    net = network(tmp_path, "abcd", masked=True)
    net.faults.append(silent("d", phase, times=1))
    result = net.run()
    assert (result.ending, result.round, result.absent) == (Ending.COMPLETE, 1, ())


@pytest.mark.parametrize("phase", [Phase.COUNTS_CONFIRMED, Phase.COUNTS_OPENED, Phase.CONFIRMED, Phase.OPENED])
def test_a_round_waits_for_a_survivor_that_stays_away(tmp_path, phase):
    net = network(tmp_path, "abcd", masked=True)
    net.faults.append(silent("d", phase))
    result = net.run()
    assert (result.ending, result.round, result.total) == (Ending.REFUSED, 1, None)
    assert result.absent == (Absence("d", 1, phase.value, Reason.LOST_LATE),)
    assert "d is on the list of survivors and does not answer" in result.next
    net.faults.clear()
    again = net.run()
    assert (again.ending, again.round, again.members) == (Ending.COMPLETE, 1, tuple("abcd"))


def test_a_survivor_that_lost_its_masks_gets_a_new_round_for_all(tmp_path):
    net = network(tmp_path, "abcd", masked=True)

    def forget(phase, site, _request):
        if phase is Phase.CONFIRMED and site == "d":
            for state in (tmp_path / "homes/d/studies").glob("*/*/state.json"):
                state.unlink()
            net.faults.clear()

    net.faults.append(forget)
    result = net.run()
    assert (result.ending, result.round, result.given_up) == (Ending.COMPLETE, 2, (1,))
    assert result.members == tuple("abcd")
    assert result.absent == (Absence("d", 1, "confirmed", Reason.REFUSED),)


def test_a_second_round_that_is_lost_is_the_last(tmp_path):
    net = network(tmp_path, "abcd", masked=True)
    net.faults.append(
        lambda phase, site, _: Answer("d", Outcome.FAILED) if phase is Phase.CONFIRMED and site == "d" else None
    )
    result = net.run()
    assert (result.ending, result.round, result.given_up) == (Ending.REFUSED, 2, (1,))
    assert "Round 2 was given up as well" in result.next
    net.faults.clear()
    assert net.run().ending is Ending.COMPLETE


def test_a_changed_roster_is_a_new_round_once_everybody_has_it(tmp_path):
    net = network(tmp_path, "abcd", masked=True)
    net.faults.append(silent("d"))
    net.run()
    roster = {name: key for name, key in net.study.roster.items() if name != "d"}
    changed = set_roster(net.parties.folder / "study.toml", roster)
    net.parties.new_round()
    assert {one.reason for one in net.run().absent} == {Reason.OTHER_ROSTER}
    for site in "abc":
        net.handlers[site] = handler(tmp_path, site, changed)
    result = net.run()
    assert (result.ending, result.round, result.members) == (Ending.COMPLETE, 2, ("a", "b", "c"))


# The hub


@pytest.mark.parametrize("masked", [False, True], ids=["open", "masked"])
def test_a_hub_that_is_stopped_between_phases_goes_on(tmp_path, same_masks, masked):
    straight = network(tmp_path / "straight", masked=masked)
    straight.run()
    net = network(tmp_path / "stopped", masked=masked)
    phases = list(dict.fromkeys(phase for phase, *_ in straight.answers))

    class Stopped(Exception):
        pass

    for phase in phases:
        for after in (False, True):

            def ask(asked, requests, phase=phase, after=after):
                said = net.ask(asked, requests) if after or asked is not phase else {}
                if asked is phase:
                    raise Stopped
                return said

            ends = Network(net.parties, net.study, net.handlers)
            ends.ask = ask
            with pytest.raises(Stopped):
                ends.run()
            assert not (net.root / "result.json").exists()
    result = net.run()
    assert (result.ending, result.round) == (Ending.COMPLETE, 1)
    same_policies(net, straight, "abc")


def test_a_study_whose_roster_lacks_the_hub_is_refused_on_both_sides(tmp_path):
    study = study_of(masked=False)
    bare = Study.model_validate(
        {**study.model_dump(), "roster": {k: v for k, v in study.roster.items() if k != HUB}}
    )  # fmt: skip
    with pytest.raises(InvalidStudy, match="no key of the hub"):
        handler(tmp_path, "a", bare)
    parties = Parties(tmp_path).set_up(bare)
    (tmp_path / "hub.key").unlink(missing_ok=True)
    parties.open()
    result = Network(parties, bare, {}).run()
    assert result.ending is Ending.REFUSED
    assert "fdtr roster add" in result.next


def test_a_hub_whose_disk_is_full_says_so(tmp_path, monkeypatch):
    net = network(tmp_path, masked=False)

    def full(*_):
        raise UnwritableFile("total.fdtr could not be written: No space left on device.")

    monkeypatch.setattr(hub_rounds, "post", full)
    result = net.run()
    assert result.ending is Ending.REFUSED
    assert "No space left" in result.next


def test_every_site_has_a_log_whose_chain_holds(tmp_path):
    net = network(tmp_path, masked=True)
    net.run()
    for site in "abc":
        assert verify(net.log(site)).lines == len(phases_of(net.study)) == 8
        assert key_of(site).public not in net.log(site).read_text()


def test_one_federation_at_a_time_is_at_work_in_a_folder(tmp_path, monkeypatch):
    net = network(tmp_path, masked=False)
    waits = atomic_files.locked
    monkeypatch.setattr("fdtr.exchange.remote.hub_rounds.locked", lambda path, who: waits(path, who, patience=0.1))
    asked: list[Phase] = []

    def during(phase: Phase, requests) -> dict[str, Answer | Reason]:
        asked.append(phase)
        with pytest.raises(Busy, match="a round of this hub"):
            net.run()
        return dict.fromkeys(requests, Reason.NO_ANSWER)

    with use_state_folder(tmp_path / "homes" / HUB):
        assert run_federation(net.job(), key_of(HUB), during).ending is Ending.REFUSED
    assert (asked, net.answers) == ([Phase.SUMS], [])
    assert net.run().ending is Ending.COMPLETE
