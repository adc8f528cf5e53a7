"""Counts before sums: rules are judged on totals, all sites take the same out, and whoever is counted has to send."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fdtr.disclosure.blocks import directions_of
from fdtr.disclosure.common_repairs import CommonRepairs
from fdtr.errors import (
    ChangedSummary,
    DisclosureError,
    FdtrError,
    NotJoined,
    NotWithdrawable,
    OtherRound,
    ProtocolViolation,
    TooFewSurvivors,
)
from fdtr.exchange.folder.masked_phase import MaskedPhase
from fdtr.exchange.folder.round_files import seal_part
from fdtr.exchange.folder.site_session import join
from fdtr.exchange.folder_layout import COUNTED, COUNTS, COUNTS_OPENED, KEYS, MASKED, OPENED, SURVIVORS
from fdtr.exchange.site_state.ledger import site_ledger
from fdtr.exchange.site_state.sent_copies import find_kept
from fdtr.masking import SiteRound, SurvivorList
from fdtr.masking.mask_streams import add_pair_mask, stream
from fdtr.pipeline.run import ALLOWED, run
from fdtr.policy import Policy
from fdtr.signing import HUB
from fdtr.site.fitting import fit_federated
from fdtr.site.rows import read_trajectories
from fdtr.site.site_message import summarize
from fdtr.study import set_roster
from folder_parties import Parties, key_of, study_of
from folder_releases import shorter, standing, taken_back
from random_tables import make_table

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("weights_of_the_seed")]


def ready(root: Path, sites: str = "abcd", n: int = 120, **options) -> Parties:
    parties = Parties(root, tuple(sites)).set_up(study_of(tuple(sites), masked=True, **options), n)
    parties.open()
    return parties.join_all()


def without(parties: Parties, gone: str) -> Parties:
    """The next round, from whose roster a site was taken."""
    roster = parties.snapshot.study.roster
    set_roster(parties.folder / "study.toml", {name: key for name, key in roster.items() if name != gone})
    parties.new_round()
    parties.sites = tuple(site for site in parties.sites if site != gone)
    return parties.join_all()


def withdrawn(parties: Parties, site: str) -> list[str]:
    with parties.at_home(site):
        return [record.message for record in site_ledger().recorded() if record.withdrawn]


INTERACTING = [{"name": "u", "effect": "shared"}, {"name": "x"}]


def test_small_sites_that_may_send_nothing_alone_send_together_what_the_total_hides(tmp_path):
    """Five sites of 40 patients: rule N asks for 50, and each has 13 patients at an action."""
    alone = study_of(tuple("abcde"), masked=False, horizon=1, covariates=INTERACTING)
    assert alone.disclosure.min_patients > 40
    parties = ready(tmp_path, "abcde", n=40, horizon=1, covariates=INTERACTING)
    parties.play()
    board = parties.snapshot
    assert board.common == CommonRepairs()
    total = board.checked_total()
    assert np.linalg.matrix_rank(total.sums.schur[0], tol=1e-6) == 3
    for site in "abcde":
        with parties.at_home(site):
            own = find_kept(total, site, board.study)
        rows = read_trajectories(tmp_path / f"{site}.csv", board.study)
        np.testing.assert_array_equal(parties.policy(site).theta, fit_federated(board.study, rows, total, own).theta)


def test_a_secure_sum_gives_the_policies_that_run_shows_as_disclosure_allows(tmp_path):
    parties = ready(tmp_path, "abcde", n=45, horizon=2, covariates=INTERACTING, learning={"ridge": 1e-3})
    parties.play()
    study = parties.snapshot.study
    rows = read_trajectories(make_table(study, dict.fromkeys("abcde", 45)), study)
    allowed = run(study, rows).methods[ALLOWED]
    assert parties.snapshot.checked_total().sums.schur.any()
    for site in "abcde":
        expected = allowed[site].theta
        assert np.abs(parties.policy(site).theta - expected).max() <= 1e-7 * np.abs(expected).max()


def few_at_one_site(root: Path) -> Parties:
    """Of four sites one has all ten patients with u at an action: their cell of the total would be its own."""
    covariates = [*INTERACTING, {"name": "v", "effect": "shared"}]
    study = study_of(tuple("abcd"), masked=True, horizon=1, covariates=covariates)
    parties = Parties(root, tuple("abcd")).set_up(study, 150)
    for site in "abcd":
        header, *rows = [line.split(",") for line in (root / f"{site}.csv").read_text().splitlines()]
        u, action = header.index('"u"'), header.index('"action"')
        at_first = [row for row in rows if float(row[action]) == 0]
        for i, row in enumerate(rows):
            row[u] = str(float(i % 2)) if float(row[action]) else "0.0"
        for row in at_first[: 10 if site == "a" else 0]:
            row[u] = "1.0"
        (root / f"{site}.csv").write_text("\n".join(",".join(row) for row in [header, *rows]) + "\n")
    parties.open()
    return parties.join_all()


def told_of_u(parties: Parties) -> float:
    """What the total tells of u at the first action."""
    board = parties.snapshot
    design, n_shared = board.study.count_layout.design, board.study.feature_map.n_shared
    v = directions_of([unit for unit in design.within(0) if unit.functions == (0,)], n_shared)
    return float(np.abs(board.checked_total().sums.schur[0] @ v).max())


def test_what_the_totals_show_of_few_patients_is_taken_out_by_all_alike(tmp_path):
    parties = few_at_one_site(tmp_path)
    parties.play()
    board = parties.snapshot
    assert (0, 0, (0,)) in board.common.functions
    assert told_of_u(parties) < 1e-9
    design, n_shared = board.study.count_layout.design, board.study.feature_map.n_shared
    others = directions_of([unit for unit in design.units if unit.action == 1], n_shared)
    assert np.linalg.matrix_rank(others.T @ board.total.sums.schur[0] @ others, tol=1e-6) == 2


def test_a_list_of_counted_sites_that_vanishes_for_a_while_changes_nothing(tmp_path):
    """A synced folder may lag, or the hub may hide it: sites go on with the list that they signed."""
    parties = few_at_one_site(tmp_path).count()
    parties.all()
    listed = parties.snapshot.path(COUNTED, HUB)
    content = listed.read_bytes()
    listed.unlink()
    parties.all()
    assert parties.snapshot.counting.survivors is None
    listed.write_bytes(content)
    parties.play()
    assert told_of_u(parties) < 1e-9


def test_counts_that_leave_nothing_for_anybody_end_the_round_with_a_sentence(tmp_path):
    parties = ready(tmp_path, "abc", n=14).count()
    parties.site("a")
    for site in "bc":
        with pytest.raises(DisclosureError, match="too few for every rule at every step"):
            parties.site(site)
    with pytest.raises(DisclosureError, match="too few for every rule at every step"):
        parties.hub()
    assert parties.snapshot.summing.masked == {}
    assert standing(parties, "c") == []


def test_a_site_lost_after_the_counts_makes_the_next_round_with_one_fewer(tmp_path):
    """Two of the others masked their sums already: nobody can read these, and they make other ones then.

    With three sites fewer patients are left after one is subtracted than ACTION asks for three shared columns.
    """
    covariates = [*INTERACTING, *({"name": name, "effect": "shared"} for name in "vw")]
    parties = ready(tmp_path, n=50, horizon=1, covariates=covariates).count()
    parties.all("a", "b", "c")  # c opens last, and masks
    parties.all("a")
    [first], [kept] = standing(parties, "a"), standing(parties, "c")
    assert set(parties.snapshot.summing.masked) == {"a", "c"}
    assert "Masked sums of b and d, whose counts are in the totals" in parties.hub(close=True).waits
    without(parties, "d").play("a", "b", "c")
    assert parties.snapshot.number == 2
    assert parties.snapshot.checked_total().sites == ("a", "b", "c")
    [second], [last] = standing(parties, "a"), standing(parties, "c")
    assert len({first, second, kept, last}) == 4
    assert withdrawn(parties, "a") == [first]
    assert withdrawn(parties, "c") == [kept]
    assert parties.snapshot.common.functions


def test_a_message_is_free_once_its_masks_are_destroyed_unopened_and_never_before(tmp_path):
    parties = ready(tmp_path).count()
    parties.all()
    parties.all()
    [message] = standing(parties, "a")
    parties.hub()
    parties.all()  # all sign; d, who comes last, opens its masks
    [opened] = standing(parties, "d")
    without(parties, "b")
    parties.site("a")
    assert withdrawn(parties, "a") == [message]
    rounds = [SiteRound.from_json(path.read_bytes()) for path in parties.home_of("a").glob("*/state.json")]
    assert [bool(masks.self_mask) for masks in rounds if masks.survivors] == [False]
    parties.site("d")
    assert standing(parties, "d") == [opened]  # its opening may be anywhere
    with pytest.raises(NotWithdrawable, match="posted in round 1"):
        taken_back(parties, opened, "d")


def test_a_masked_message_without_its_own_mask_is_noise_whatever_the_others_open(tmp_path):
    """Everybody but a opens everything, pair keys with a included: its numbers stay uniform."""
    parties = ready(tmp_path).count()
    parties.all()
    parties.all()
    board = parties.snapshot
    states = {}
    for site in "abcd":
        [path] = parties.home_of(site).glob("*/state.json")
        states[site] = SiteRound.from_json(path.read_bytes())
    rest = board.summing.masked["a"].vector.copy()
    for other in "bcd":
        add_pair_mask(rest, dict(states[other].pair_keys)["a"], other, "a")
    bits = np.unpackbits(rest.view(np.uint8))
    assert abs(bits.mean() - 0.5) < 5 * 0.5 / np.sqrt(len(bits))
    sums = (rest - stream(states["a"].self_mask, len(rest))).view(np.int64) * board.scale.resolution
    assert np.abs(sums).max() < 1e6  # with a's own mask they are sums; nothing else lacks


@pytest.mark.parametrize("hides", [False, True], ids=["shows them", "hides whose counts were opened"])
def test_a_hub_cannot_add_the_sums_of_other_sites_than_were_counted(tmp_path, hides):
    parties = ready(tmp_path, "abcde").count()
    parties.all()
    parties.all()
    board = parties.snapshot

    def show(part: str, phase: MaskedPhase) -> None:
        listed = SurvivorList(tuple((site, phase.masked[site].digest(phase.round)) for site in "abc"))
        path = board.path(part, HUB)
        path.unlink(missing_ok=True)
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(seal_part(part, HUB, listed, board.within, key_of(HUB)))

    show(SURVIVORS, board.summing)
    if hides:
        show(COUNTED, board.counting)
        board.path(COUNTS_OPENED, "e").unlink()
    for _ in range(2):
        for site in "abc":
            with pytest.raises(ProtocolViolation, match="other sites than those whose counts were opened"):
                parties.site(site)
    assert parties.snapshot.summing.confirmed == parties.snapshot.summing.opened == {}


def test_a_table_that_changed_after_it_was_counted_is_not_sent(tmp_path):
    parties = ready(tmp_path).count()
    shorter(tmp_path / "a.csv")
    parties.all("b", "c", "d")
    for _ in range(2):  # it opens what it counted, and sends nothing
        with pytest.raises(ChangedSummary, match=r"counts of site 'a' .* another table"):
            parties.site("a")
    assert standing(parties, "a") == []
    parties.new_round()
    parties.play()


def test_a_person_is_asked_before_counts_leave_and_again_before_sums(tmp_path):
    parties = ready(tmp_path, "abc")
    parties.all("b", "c")
    parties.site("a", says=True)
    with pytest.raises(FdtrError, match="Nothing was written"):
        parties.site("b", says=False)
    assert "b" not in parties.snapshot.counting.masked
    parties.all("b", "c")
    parties.hub()
    parties.all()
    parties.all("a", "b", "c")
    with pytest.raises(FdtrError, match="Nothing was posted"):
        parties.site("a", says=False)
    assert "a" not in parties.snapshot.summing.masked
    parties.play()


def test_another_round_with_the_same_sites_gives_the_same_message(tmp_path):
    parties = ready(tmp_path)
    parties.play()
    before = standing(parties, "a")
    parties.new_round()
    parties.play()
    assert set(standing(parties, "a")) == set(before)


def test_a_later_round_of_more_sites_says_why_the_first_ones_cannot_take_part(tmp_path):
    """With three sites few patients are left and less is told; with six all of it would be."""
    covariates = [*INTERACTING, *({"name": name, "effect": "shared"} for name in "vw")]
    parties = Parties(tmp_path, tuple("abcdef")).set_up(
        study_of(tuple("abcdef"), masked=True, horizon=1, covariates=covariates), 50
    )
    everybody = study_of(tuple("abcdef"), masked=True).roster
    study = study_of(tuple("abc"), masked=True, horizon=1, covariates=covariates)
    study.save(tmp_path / "study.toml")
    parties.sites = tuple("abc")
    parties.open()
    parties.join_all().play()
    assert parties.snapshot.common.functions
    set_roster(parties.folder / "study.toml", dict(everybody))
    parties.new_round()
    parties.sites = tuple("abcdef")
    parties.join_all().count()
    parties.all("a", "b", "d", "e", "f")
    with pytest.raises(DisclosureError, match="left before in a round of this study"):
        parties.site("c")


def test_keys_counts_and_sums_of_a_round_have_masks_of_their_own(tmp_path):
    parties = ready(tmp_path)
    parties.count()
    parties.all()
    parties.all()
    [sums], [counts] = (list(parties.home_of("a").glob(f"*/{name}.json")) for name in ("state", "counting"))
    first, second = (SiteRound.from_json(path.read_bytes()) for path in (sums, counts))
    assert first.round.context != second.round.context
    assert first.self_mask != second.self_mask
    assert not {key for _, key in first.pair_keys} & {key for _, key in second.pair_keys}
    assert {path.name for path in (parties.folder / "rounds/1").iterdir()} >= {KEYS, COUNTS, MASKED}
    assert not (parties.folder / "rounds/1" / OPENED).exists()


def receiving(parties: Parties, site: str) -> None:
    with parties.at_home(site):
        key = tmp_key if (tmp_key := parties.root / f"{site}.key").exists() else None
        join(parties.folder, site, parties.root / f"{site}.csv", key, parties.key(site), receive_only=True)


@pytest.mark.parametrize("masked", [False, True], ids=["open", "masked"])
def test_a_site_that_only_receives_finishes_a_policy_and_never_sends(tmp_path, masked):
    parties = Parties(tmp_path, tuple("abcd")).set_up(study_of(tuple("abcd"), masked=masked), 150)
    shorter(tmp_path / "d.csv", 20)  # too few to send
    parties.open()
    for site in "abc":
        parties.join(site)
    receiving(parties, "d")
    parties.play()
    board = parties.snapshot
    assert board.receivers == ("d",)
    assert board.checked_total().sites == ("a", "b", "c")
    assert not any("d" in part for part in board.secure_sum_parts.values())
    rows = read_trajectories(tmp_path / "d.csv", board.study)
    expected = fit_federated(board.study, rows, board.total, receive_only=True)
    path = parties.site("d").policy
    np.testing.assert_array_equal(Policy.load(path).theta, expected.theta)
    assert standing(parties, "d") == []
    others = read_trajectories(tmp_path / "a.csv", board.study)
    with parties.at_home("d"), pytest.raises(DisclosureError, match="this site only receives in this study"):
        summarize(board.study, others, site_ledger())  # the ledger holds it to its word, in a file too
    with pytest.raises(NotJoined, match="only receives in this study"):
        parties.join("d")


def test_too_few_senders_beside_receivers_are_told_at_once(tmp_path):
    parties = Parties(tmp_path, tuple("abcd")).set_up(study_of(tuple("abcd"), masked=True))
    parties.open()
    parties.join("a")
    parties.join("b")
    for site in "cd":
        receiving(parties, site)
        parties.site(site)
    with pytest.raises(TooFewSurvivors, match="c and d only receive, and 2 sites are left to send"):
        parties.hub()


def test_who_sent_a_key_does_not_turn_into_a_receiver_within_the_round(tmp_path):
    parties = ready(tmp_path)
    parties.site("d")
    receiving(parties, "d")
    with pytest.raises(OtherRound, match="counts site 'd' as a sender"):
        parties.site("d")
    parties.new_round()
    parties.play()
    assert parties.snapshot.receivers == ("d",)


def test_a_site_that_sent_sums_cannot_receive_only_in_the_same_study(tmp_path):
    parties = Parties(tmp_path).set_up(study_of(masked=False))
    parties.open()
    parties.join_all().all()
    with pytest.raises(NotWithdrawable, match="released sums for this study"):
        receiving(parties, "a")
