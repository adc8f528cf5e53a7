"""Rounds through a folder: who does what when, what is recovered, what is refused."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fdtr.errors import (
    BadSignature,
    Busy,
    ChangedSummary,
    Exposed,
    FdtrError,
    NoStudyFolder,
    NotJoined,
    OtherPosting,
    OtherRoster,
    OtherRound,
    OtherStudy,
    OutputExists,
    ProtocolViolation,
    TooFewSurvivors,
    WrongSite,
)
from fdtr.exchange import atomic_files, folder_layout
from fdtr.exchange.folder import hub_steps
from fdtr.exchange.folder.round_files import seal_begun, seal_part
from fdtr.exchange.folder.round_status import status_of
from fdtr.exchange.folder.site_session import join
from fdtr.exchange.folder.site_steps import take_site_steps
from fdtr.exchange.folder_layout import (
    COUNT_PHASE,
    COUNTS,
    HUB_PARTS,
    KEYS,
    SUM_PHASE,
    TOTAL,
    begun_path,
    file_name,
    require_apart,
)
from fdtr.exchange.release import AGREED_BEFOREHAND, release_message
from fdtr.exchange.site_state import use_state_folder
from fdtr.exchange.site_state.joined_folders import find_joined
from fdtr.exchange.site_state.ledger import site_ledger
from fdtr.exchange.site_state.sent_copies import find_kept
from fdtr.exchange.wire import encode_total, read_message, read_total
from fdtr.hub import combine_messages
from fdtr.masking import SiteRound, SurvivorList
from fdtr.pipeline.run import ALLOWED, run
from fdtr.policy import Policy
from fdtr.signing import HUB, numbered_round
from fdtr.site.fitting import fit_federated
from fdtr.site.rows import read_trajectories
from fdtr.site.site_message import count_message, summarize
from fdtr.study import Study, set_roster
from fdtr.summary import SiteSummary, combine
from folder_parties import Parties, key_of, study_of
from random_tables import make_table
from refusals import refuses

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("weights_of_the_seed")]


def ready(root: Path, sites: str = "abc", *, masked: bool, **options) -> Parties:
    parties = Parties(root, tuple(sites)).set_up(study_of(tuple(sites), masked=masked, **options))
    parties.open()
    return parties.join_all()


def listed(parties: Parties) -> Parties:
    """A masked round up to the hub's list of the sites whose sums are added."""
    parties.count()
    parties.all()
    parties.all()
    parties.hub()
    return parties


def test_an_open_round_gives_the_policies_of_one_table(tmp_path):
    parties = ready(tmp_path, masked=False)
    first = parties.site("a")
    assert first.done == ("Posted this site's message: sums over its patients, never a row.",)
    assert parties.hub().waits == "Messages of b and c. Here: a. Go on without them with --close."
    parties.play()
    study = parties.snapshot.study
    rows = {site: read_trajectories(tmp_path / f"{site}.csv", study) for site in parties.sites}
    sent = {site: summarize(study, one).summary for site, one in rows.items()}
    total = combine_messages(study, list(sent.values()))
    for site, one in rows.items():
        policy = parties.policy(site)
        fitted = fit_federated(study, one, total, sent[site])
        np.testing.assert_array_equal(policy.theta, fitted.theta)
        np.testing.assert_array_equal(policy.precision, fitted.policy.precision)


def alone(parties: Parties, sites: str) -> list[SiteSummary]:
    """The sites' messages, made in one process: what all of them take out follows from their counts."""
    study = parties.snapshot.study
    rows = [read_trajectories(parties.root / f"{site}.csv", study) for site in sites]
    common = study.combine_counts([count_message(study, one) for one in rows])
    assert common == parties.snapshot.common
    return [summarize(study, one, common=common).summary for one in rows]


def test_a_masked_round_gives_the_same_within_its_resolution(tmp_path):
    parties = ready(tmp_path, masked=True, learning={"ridge": 1e-5})
    parties.play()
    study = parties.snapshot.study
    rows = {site: read_trajectories(tmp_path / f"{site}.csv", study) for site in parties.sites}
    sent = dict(zip(rows, alone(parties, "abc"), strict=True))
    total = combine(sent.values())
    for site, one in rows.items():
        expected = fit_federated(study, one, total, sent[site]).theta
        assert np.abs(parties.policy(site).theta - expected).max() <= 1e-7 * np.abs(expected).max()


def test_nothing_but_sums_and_masks_is_in_the_folder(tmp_path):
    parties = ready(tmp_path, masked=True)
    parties.play()
    posted = sorted(str(path.relative_to(parties.folder)) for path in parties.folder.rglob("*") if path.is_file())
    hub = [f"rounds/1/hub/{name}.fdtr" for name in ("begun", "counted", "survivors", "total")]
    parts = (KEYS, *(part for names in (COUNT_PHASE, SUM_PHASE) for part in names if part not in HUB_PARTS))
    site = [f"rounds/1/{part}/{file_name(s)}" for part in parts for s in "abc"]
    assert posted == sorted([*hub, *site, "study.toml"])


def test_each_phase_is_resumed_by_a_fresh_home_and_the_round_remembers(tmp_path):
    parties = ready(tmp_path, masked=True)
    seen = []
    for _ in range(8):
        for name in (*parties.sites, HUB):
            seen.append(status_of(parties.snapshot).next)
            turn = parties.turn(name)
            again = parties.turn(name)  # nothing is done twice
            assert again.done == ()
            assert again.waits == turn.waits
    assert len(dict.fromkeys(seen)) >= 17
    assert seen[-1].startswith("The total is there: a, b and c finish")


def test_a_site_that_says_no_posts_nothing(tmp_path):
    parties = ready(tmp_path, masked=False)
    with pytest.raises(FdtrError, match="Nothing was posted"):
        parties.site("a", says=False)
    assert parties.snapshot.sums == {}
    with parties.at_home("a"):
        assert site_ledger().recorded() == []


def test_a_posting_is_in_the_ledger_even_where_the_share_fails(tmp_path, monkeypatch):
    parties = ready(tmp_path, masked=False)
    place = parties.folder / "rounds/1/sums"
    place.write_text("in the way")  # no folder can be made here
    with pytest.raises(FdtrError, match="could not be written"):
        parties.site("a")
    with parties.at_home("a"):
        assert len(site_ledger().recorded()) == 1  # it is what goes out next, whatever the table is then
    place.unlink()
    (tmp_path / "a.csv").unlink()
    assert parties.site("a").done == ("Posted this site's message: sums over its patients, never a row.",)


def test_a_site_that_may_not_release_announces_nothing(tmp_path):
    parties = Parties(tmp_path).set_up(study_of(masked=True), n=9)
    parties.open()
    parties.join_all()
    with pytest.raises(FdtrError, match="Do not forward this message"):
        parties.site("a")
    assert not (parties.folder / "rounds/1/keys").exists()


def test_the_hub_goes_on_without_a_site_only_when_told(tmp_path):
    parties = ready(tmp_path, "abcd", masked=False)
    parties.all("a", "b", "c")
    assert "Messages of d" in parties.hub().waits
    with pytest.raises(WrongSite, match="The roster has no site 'x'"):
        parties.hub(without=["x"])
    assert parties.hub(without=["d"]).done == ("Added the messages of a, b and c and posted the total.",)
    with pytest.raises(OtherRound, match="closed without site 'd'"):
        parties.site("d")
    assert not (parties.folder / "rounds/1/sums" / file_name("d")).exists()
    assert parties.site("a").policy is not None


def test_a_hub_that_jumps_ahead_is_not_followed_and_blocks_nothing(tmp_path):
    parties = ready(tmp_path, masked=False)
    study = parties.snapshot.study
    for number in (3, 9999):
        far = begun_path(parties.folder, number)
        far.parent.mkdir(parents=True)
        far.write_bytes(seal_begun(numbered_round(study.fingerprint, study.roster, number), key_of(HUB)))
    assert parties.snapshot.number == 1
    assert "rounds/3 leaves out round 2" in parties.snapshot.faults[0]
    parties.site("a")
    assert parties.new_round().done[0].startswith("Began round 2.")
    assert parties.snapshot.number == 3  # which it had begun before, and which follows now
    assert parties.site("a").number == 3


def test_the_last_round_that_can_be_numbered_is_the_last(tmp_path, monkeypatch):
    parties = ready(tmp_path, masked=False)
    monkeypatch.setattr(folder_layout, "MOST_ROUNDS", 1)
    monkeypatch.setattr(hub_steps, "MOST_ROUNDS", 1)
    parties.site("a")
    with pytest.raises(OtherRound, match="no more numbers"):
        parties.new_round()
    assert not begun_path(parties.folder, 2).exists()


def test_a_roster_too_small_for_those_who_may_collude_is_refused_before_anything_is_posted(tmp_path):
    asked = {"colluding": 1}
    small = Parties(tmp_path / "small").set_up(study_of(masked=True, disclosure=asked))
    with pytest.raises(TooFewSurvivors, match="has 3 sites; a secure sum here needs 4"):
        small.open()
    assert not small.folder.exists()
    parties = Parties(tmp_path / "four", tuple("abcd")).set_up(study_of(tuple("abcd"), masked=True, disclosure=asked))
    parties.open()
    parties.join_all()
    parties.all()
    parties.all("a", "b")
    with pytest.raises(TooFewSurvivors, match="3 sites are left and 4 are needed"):
        parties.hub(close=True)
    study = parties.snapshot.study
    set_roster(parties.folder / "study.toml", {k: v for k, v in study.roster.items() if k != "c"})
    with pytest.raises(TooFewSurvivors):
        parties.join("a")


def test_a_coarse_resolution_is_told_when_the_folder_is_opened(tmp_path):
    asked = {"max_patients": 2**23}
    turn = Parties(tmp_path).set_up(study_of(masked=True, disclosure=asked)).open()
    assert "36 binary digits" in turn.notes[-1]


def test_too_few_sites_are_never_added(tmp_path):
    parties = ready(tmp_path, masked=False)
    parties.all("a", "b")
    with refuses("SITES"):
        parties.hub(close=True)
    assert parties.snapshot.total is None
    masked = ready(tmp_path / "masked", masked=True)
    masked.all()
    masked.all("a")  # c came last and masked at once
    with pytest.raises(TooFewSurvivors):
        masked.hub(close=True)


def test_a_site_lost_before_the_list_is_recovered(tmp_path):
    parties = ready(tmp_path, "abcd", masked=True)
    parties.all()
    parties.all("a", "b")  # c never masks; d came last and did
    assert "Masked counts of c" in parties.hub().waits
    assert parties.hub(close=True).done == ("Posted the list of survivors for counts: a, b and d, without c.",)
    parties.play("a", "b", "d")
    with pytest.raises(OtherRound, match="closed without site 'c'"):
        parties.site("c")
    total = combine(alone(parties, "abd"))
    assert parties.snapshot.checked_total().sums.close_to(total.sums, 1e-9)


def test_a_site_lost_after_the_list_needs_a_new_round_and_masks_are_destroyed(tmp_path):
    parties = listed(ready(tmp_path, "abcd", masked=True))
    parties.all("a", "b", "d")  # c does not sign
    parties.all("a", "b", "d")
    assert "of c" in parties.hub().waits
    assert parties.snapshot.summing.opened == {}
    [state] = parties.home_of("a").glob("*/state.json")
    assert SiteRound.from_json(state.read_bytes()).self_mask
    set_roster(parties.folder / "study.toml", {k: v for k, v in parties.snapshot.study.roster.items() if k != "c"})
    parties.new_round()
    assert parties.new_round().done == ()  # asked twice, one is begun
    with pytest.raises(OtherRoster, match="c changed"):
        parties.site("a")
    for site in "abd":
        parties.join(site)
    assert parties.site("a").done[0] == "Gave an earlier round up: its masks are destroyed."
    kept = SiteRound.from_json(state.read_bytes())
    assert not kept.self_mask
    assert not kept.pair_keys
    parties.play("a", "b", "d")
    assert parties.snapshot.number == 2
    assert parties.snapshot.checked_total().sites == ("a", "b", "d")


def test_a_round_that_comes_back_is_not_played_again(tmp_path):
    parties = listed(ready(tmp_path, masked=True))
    parties.new_round()
    parties.all()
    for path in sorted((parties.folder / "rounds/2").rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    with pytest.raises(ProtocolViolation, match="gave round 1 up"):
        parties.site("a")


@pytest.mark.parametrize("what", ["counting", "summing"])
def test_a_hub_that_shows_two_lists_gets_nothing(tmp_path, what):
    parties = ready(tmp_path, "abcde", masked=True)
    if what == "summing":
        parties.count()
    parties.all()
    parties.all()
    board = parties.snapshot
    phase = getattr(board, what)
    members = {site: message.digest(phase.round) for site, message in phase.masked.items()}
    path = board.path(phase.names.survivors, HUB)
    refused = r"signed another list of survivors|not the one that site .* signed|sums of other sites than those whose"

    def show(sites: str) -> None:
        path.unlink(missing_ok=True)
        path.parent.mkdir(exist_ok=True)
        shown = SurvivorList(tuple((site, members[site]) for site in sites))
        path.write_bytes(seal_part(phase.names.survivors, HUB, shown, board.within, key_of(HUB)))

    show("abcde")
    parties.all("a", "b", "c")
    show("abcd")
    hidden = {site: board.path(phase.names.confirmed, site).read_bytes() for site in "abc"}
    for site in "abc":  # a hub may hide, too
        board.path(phase.names.confirmed, site).unlink()
    if what == "counting":
        assert parties.site("d").waits == "Signatures under the list of survivors, of a, b and c."
    for site, content in hidden.items():
        board.path(phase.names.confirmed, site).write_bytes(content)
    for site in "abd":
        with pytest.raises(ProtocolViolation, match=refused):
            parties.site(site)
    show("abcde")
    if what == "counting":  # d signed another list before; of the sums it signs none but that of the counts
        for site in "abcd":
            with pytest.raises(ProtocolViolation, match=refused):
                parties.site(site)
        with pytest.raises(ProtocolViolation, match="signed another list of survivors than the one that lies here"):
            parties.hub()
    show("bcde")  # a list without the site itself
    with pytest.raises(ProtocolViolation, match=refused):
        parties.site("a")
    assert getattr(parties.snapshot, what).opened == {}
    assert not list(parties.root.rglob(f"homes/*/studies/*/*/{phase.names.opened}.fdtr"))


def test_a_total_that_is_not_the_sum_is_refused(tmp_path):
    for masked in (False, True):
        parties = ready(tmp_path / str(masked), masked=masked)
        if masked:
            listed(parties)
            parties.all()
            parties.all()
        else:
            parties.all()
        parties.hub()
        board = parties.snapshot
        assert board.total is not None
        wrong = replace(board.total, sums=board.total.sums + board.total.sums)
        path = board.path(TOTAL, HUB)
        path.unlink()
        path.write_bytes(encode_total(wrong, board.within, key_of(HUB)))
        for party in ("a", HUB):
            with pytest.raises(ChangedSummary, match="is not the sum of the sites"):
                parties.turn(party)
        assert not list(parties.home_of("a").rglob("*.policy"))


def test_a_total_is_not_taken_on_trust_where_the_hub_signs_nothing(tmp_path):
    parties = ready(tmp_path, masked=False, roster=False)
    parties.all()
    parties.hub(close=True)
    board = parties.snapshot
    wrong = replace(board.total, sums=board.total.sums + board.total.sums)
    path = board.path(TOTAL, HUB)
    path.unlink()
    path.write_bytes(encode_total(wrong, board.within))
    next((board.path(TOTAL, HUB).parent.parent / "sums").glob("b*")).unlink()
    with pytest.raises(ChangedSummary, match="'b' is no longer in the folder"):
        parties.turn("a")
    assert not list(parties.home_of("a").rglob("*.policy"))


def test_two_turns_at_once_do_it_once(tmp_path, monkeypatch):
    parties = ready(tmp_path, masked=False)
    with parties.at_home("a"):
        home = find_joined()
        with home.locked():
            monkeypatch.setattr(atomic_files, "_wait_for", _impatient(atomic_files._wait_for))
            with pytest.raises(Busy, match="at work for site 'a'"):
                parties.site("a")
    assert parties.snapshot.sums == {}


def _impatient(wait):
    return lambda descriptor, who, _until: wait(descriptor, who, 0.0)


@pytest.mark.parametrize("masked", [False, True], ids=["open", "masked"])
def test_everybody_at_once_and_twice(tmp_path, masked):
    parties = ready(tmp_path, masked=masked)
    for _ in range(4 if masked else 2):
        children = []
        for party in (*parties.sites, HUB) * 2:
            child = os.fork()
            if child == 0:
                try:
                    parties.turn(party)
                except BaseException:
                    os._exit(1)
                os._exit(0)
            children.append(child)
        assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0] * len(children)
        assert parties.snapshot.faults == ()
    parties.play()
    assert not list(parties.root.rglob(".*.part"))


def test_a_share_without_links_is_written_by_renaming(tmp_path, monkeypatch):
    def no_links(*_: object, **__: object) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr("os.link", no_links)
    path = tmp_path / "x" / "file"
    assert atomic_files.post(path, b"one")
    assert not atomic_files.post(path, b"one")
    with pytest.raises(OtherPosting):
        atomic_files.post(path, b"two")
    assert [p.name for p in path.parent.iterdir()] == ["file"]


def test_joining_checks_site_key_and_study(tmp_path):
    parties = ready(tmp_path, masked=False)
    with parties.at_home("x"), pytest.raises(NotJoined, match="site join"):
        find_joined(parties.folder)
    with parties.at_home("x"):
        with pytest.raises(BadSignature, match="the roster has no site 'x'"):
            join(parties.folder, "x", tmp_path / "a.csv", None, None)
        with pytest.raises(BadSignature, match="Give its key with --key"):
            join(parties.folder, "a", tmp_path / "a.csv", None, None)
        with pytest.raises(BadSignature, match="not the one that the roster has of"):
            join(parties.folder, "a", tmp_path / "a.csv", None, key_of("b"))
        other = study_of(masked=False, name="other")
        with pytest.raises(OtherStudy, match=r"change only \[columns\]"):
            join(parties.folder, "a", tmp_path / "a.csv", None, key_of("a"), other)
        with pytest.raises(NoStudyFolder, match=r"no study\.toml"):
            join(tmp_path / "nowhere", "a", tmp_path / "a.csv", None, key_of("a"))


def test_another_study_in_the_folder_is_refused(tmp_path):
    parties = ready(tmp_path, masked=False)
    study_of(masked=False, name="other").save(parties.folder / "study.toml")
    with pytest.raises(OtherStudy, match="holds another study"):
        parties.site("a")


def test_without_a_roster_the_hub_says_when_all_are_here(tmp_path):
    parties = ready(tmp_path, masked=False, roster=False)
    parties.all()
    assert "say with --close" in parties.hub().waits
    parties.hub(close=True)
    parties.play()
    with pytest.raises(NoStudyFolder, match="has no \\[roster\\]"):
        Parties(tmp_path / "m").set_up(study_of(masked=True, roster=False)).open()


def test_progress_is_for_anybody(tmp_path):
    parties = listed(ready(tmp_path, masked=True))
    found = status_of(parties.snapshot)
    counts = dict.fromkeys(("counts", "countsconfirmed", "countsopened"), True)
    assert found.sites["a"] == {"keys": True, **counts, "masked": True, "confirmed": False, "opened": False}
    assert found.survivors == ("a", "b", "c")
    assert found.next == "Signatures under the list of survivors of a, b and c: `fdtr site next`."
    assert json.dumps(vars(found))


def test_a_site_left_out_of_the_list_keeps_its_masks(tmp_path):
    parties = ready(tmp_path, "abcd", masked=True)
    parties.all()
    parties.all()
    path = parties.snapshot.path(COUNTS, "d")
    hidden = path.read_bytes()
    path.unlink()
    parties.hub(close=True)
    path.write_bytes(hidden)
    with pytest.raises(ProtocolViolation, match="lacks site 'd'"):
        parties.site("d")
    parties.play("a", "b", "c")
    assert parties.snapshot.checked_total().sites == ("a", "b", "c")


def test_study_columns_may_be_a_sites_own(tmp_path):
    parties = ready(tmp_path, masked=False)
    study = parties.snapshot.study
    own = Study.model_validate({**study.model_dump(), "columns": {**study.columns.model_dump(), "u": "u_here"}})
    text = (tmp_path / "a.csv").read_text().replace('"u"', '"u_here"', 1)
    (tmp_path / "a.csv").write_text(text)
    with parties.at_home("a"):
        join(parties.folder, "a", tmp_path / "a.csv", tmp_path / "a.key", key_of("a"), own)
    parties.play()


@pytest.mark.parametrize("masked", [False, True], ids=["open", "masked"])
def test_after_the_round_the_policy_and_the_copy_are_there_for_other_commands(tmp_path, masked):
    parties = ready(tmp_path, masked=masked)
    parties.play()
    out = tmp_path / "again.policy"
    assert parties.site("a", out=out).policy == out
    np.testing.assert_array_equal(Policy.load(out).theta, parties.policy("a").theta)
    board = parties.snapshot
    total = read_total(board.path(TOTAL, HUB), board.study, board.within)
    with parties.at_home("a"):
        sent = find_kept(total, "a", board.study)
    assert sent is not None
    assert (total - sent).sites == ("b", "c")


def test_what_is_a_sites_own_may_not_lie_in_the_folder(tmp_path):
    parties = ready(tmp_path, masked=False)
    shared = parties.folder / "a.csv"
    shared.write_bytes((tmp_path / "a.csv").read_bytes())
    with parties.at_home("a"), pytest.raises(Exposed, match="The table"):
        join(parties.folder, "a", shared, None, key_of("a"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FDTR_STATE", str(parties.folder / "state"))
        with pytest.raises(Exposed, match="The state folder"):
            join(parties.folder, "a", tmp_path / "a.csv", None, key_of("a"))
    assert not (parties.folder / "state").exists()
    with pytest.raises(Exposed, match="The policy"):
        require_apart(parties.folder, ("The policy", parties.folder / "rounds" / "a.policy"))


def test_a_policy_is_not_written_where_all_read_nor_over_what_fdtr_did_not_write(tmp_path):
    parties = Parties(tmp_path).set_up(study_of(masked=False))
    parties.open()
    parties.join_all()
    table = tmp_path / "patients.csv"
    table.write_text("site,patient\n")
    with pytest.raises(Exposed, match=r"The policy .* lies in the folder that all share"):
        parties.site("a", out=parties.folder / "a.policy")
    with pytest.raises(OutputExists, match="fdtr did not write"):
        parties.site("a", out=table)
    assert table.read_text() == "site,patient\n"
    assert not list(parties.folder.rglob("a.*"))


def test_a_site_stays_in_the_state_folder_in_which_it_joined(tmp_path, monkeypatch):
    parties = Parties(tmp_path).set_up(study_of(masked=False))
    parties.open()
    parties.join_all()
    with parties.at_home("a"):
        joined = find_joined(parties.folder, "a")
    monkeypatch.setenv("FDTR_STATE", str(tmp_path / "elsewhere"))
    take_site_steps(joined, confirm=lambda _: True, key=parties.key("a"))
    assert not (tmp_path / "elsewhere").exists()
    with parties.at_home("a"):
        assert len(site_ledger().recorded()) == 1


def test_files_and_a_folder_give_the_policies_as_disclosure_allows_under_the_same_keys(tmp_path):
    """Weights included: here every site's secret is what `fdtr run` takes for its key."""
    parties = Parties(tmp_path / "folder").set_up(study_of(masked=False))
    study = Study.load(tmp_path / "folder/study.toml")
    sites = read_trajectories(make_table(study, dict.fromkeys("abc", 120)), study)
    allowed = run(study, sites).methods[ALLOWED]
    assert study.rules.weighted

    parties.open()
    parties.join_all().play()
    first_round, messages = numbered_round(study.fingerprint, study.roster, 1), []
    for site, rows in sites.by_site().items():
        with use_state_folder(tmp_path / f"state-of-{site}"):
            release_message(study, rows, tmp_path / f"{site}.fdtr", confirm=AGREED_BEFOREHAND, key=key_of(site))
        messages.append(read_message(tmp_path / f"{site}.fdtr", study, first_round))
    total = combine_messages(study, messages)
    for (site, rows), own in zip(sites.by_site().items(), messages, strict=True):
        np.testing.assert_array_equal(allowed[site].theta, parties.policy(site).theta)
        np.testing.assert_array_equal(allowed[site].theta, fit_federated(study, rows, total, own).theta)
