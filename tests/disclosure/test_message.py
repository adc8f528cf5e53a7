"""What leaves a site: whole steps or none, sums or Grams, and what the others make of it."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from fdtr.errors import ChangedSummary, OtherStudy
from fdtr.exchange.site_state.ledger import Ledger
from fdtr.hub import combine_messages
from fdtr.inference import heterogeneity, infer_effects
from fdtr.inference.shared_effects import gain_from_sharing, theorem3_bound
from fdtr.pipeline.run import run
from fdtr.site import message_settings
from fdtr.site.fitting import fit_federated, fit_local
from fdtr.site.rows import read_trajectories
from fdtr.site.site_message import release_of, summarize
from fdtr.summary import SiteSummary, combine
from fdtr.sums import Grams
from random_tables import make_sites, make_study, make_table
from refusals import refuses

pytestmark = pytest.mark.quick
WITHHOLD = {
    "jitter": 0,
    "small_step": "withhold",
    "min_patients": 110,
    "max_ratio": 1.0,
    "max_leverage": 1.0,
    "min_action": 1,
}
ENDS = {"death": 0.0, "discharge": 1.0}


@pytest.fixture(scope="module")
def ragged():
    """Of 240 patients a site some 160 reach the second step and 80 the third, which is withheld."""
    study = make_study(ends=ENDS, disclosure=WITHHOLD)
    return study, make_sites(study, {"a": 240, "b": 240, "c": 240, "d": 400}, ragged=True)


def test_a_small_step_is_sent_as_zeros(ragged):
    study, sites = ragged
    message = summarize(study, sites["a"])
    assert message.withheld == [2]
    assert all(not array[2].any() for array in message.summary.sums.packed().values())
    full = fit_local(study.model_copy(update={"disclosure": make_study().disclosure}), sites["a"]).summary.sums
    for name, array in message.summary.sums.packed().items():
        np.testing.assert_array_equal(array[:2], full.packed()[name][:2])
    assert summarize(study, sites["d"]).withheld == []


def test_the_ledger_is_told_which_steps_leave_and_how_many_each_patient_has(ragged):
    study, sites = ragged
    rows = sites["a"]
    message = summarize(study, rows)
    release = release_of(study, rows, message.summary)
    assert list(release.released) == [0, 1]
    undrawn = dict.fromkeys(release.released, "")
    assert len({*release.released.values()} - {""}) == 2
    assert release_of(study, rows, None, message.withheld) == replace(release, message="", content="", released=undrawn)
    rows_of_each = Counter(make_table(study, {"a": 240}, ragged=True)["patient"].to_pylist())
    assert dict(zip(release.patients, release.steps, strict=True)) == rows_of_each


@pytest.mark.parametrize(("small_step", "refused_at"), [("withhold", None), ("refuse", 2)])
def test_only_what_leaves_is_compared_with_earlier_releases(tmp_path, small_step, refused_at):
    """One patient fewer reaches the third step, which is withheld or which everybody has seen."""
    asked = {"small_step": small_step, "min_patients": 110 if small_step == "withhold" else 20}
    study = make_study(ends=ENDS, disclosure=WITHHOLD | asked)
    rows, ledger = make_sites(study, {"a": 240}, ragged=True)["a"], Ledger(tmp_path)
    release = release_of(study, rows, summarize(study, rows).summary)
    with ledger.recording(release):
        pass
    assert release.steps[5] == 3
    verdict = ledger.judge(replace(release, feature_map="another", steps=[*release.steps[:5], 2, *release.steps[6:]]))
    assert (verdict.holds, verdict.step) == (refused_at is None, refused_at)


def test_a_study_that_refuses_small_steps_sends_nothing():
    study = make_study(ends=ENDS, disclosure=WITHHOLD | {"small_step": "refuse"})
    with refuses("N", match="step 2, rule N"):
        summarize(study, make_sites(study, {"a": 240}, ragged=True)["a"])


def test_bounds_refuse_even_where_steps_are_withheld():
    study = make_study(features={"scale": "none"}, disclosure=WITHHOLD | {"norm_bound": 0.5})
    with refuses("BOUND", match="rule BOUND"):
        summarize(study, make_sites(study, {"a": 300})["a"])


def test_a_message_without_any_step_is_no_message():
    study = make_study(disclosure=WITHHOLD)
    with refuses("N", match="step 0, rule N: 60 patients"):
        summarize(study, make_sites(study, {"a": 60})["a"])


def test_everybody_copes_with_withheld_steps(ragged):
    study, sites = ragged
    messages = {name: summarize(study, rows).summary for name, rows in sites.items()}
    with refuses("SITES", match="1 site came together with sums of step 2, which the others withheld"):
        combine_messages(study, list(messages.values()))
    total = combine(messages.values())
    assert total.sums.n[2] == messages["d"].sums.n[2]
    np.testing.assert_array_equal(total.sums.schur[2], messages["d"].sums.schur[2])
    for name, rows in sites.items():
        # What is computed again is what was sent, so that it can be subtracted.
        fit = fit_federated(study, rows, total)
        np.testing.assert_array_equal(fit.theta, fit_federated(study, rows, total, messages[name]).theta)
    assert infer_effects(total.sums).identified.all()
    assert (heterogeneity(total.sums).df > 0).tolist() == [True, True, False]
    assert np.isnan(gain_from_sharing(messages["a"].sums, total.sums).worth[2]).all()
    assert np.isfinite(gain_from_sharing(messages["d"].sums, total.sums).worth).all()


def test_run_gives_what_messages_with_withheld_steps_give(ragged):
    study, _ = ragged
    data = read_trajectories(make_table(study, {"a": 240, "d": 400}, ragged=True), study)
    results = run(study, data)
    total = combine(summarize(study, rows).summary for rows in data.by_site().values())
    assert (total.sums.n > 0).all()
    assert results.total == total
    assert results.record.as_json()


def test_a_withheld_first_step_counts_nobody_in_the_others_patients():
    study = make_study(disclosure=WITHHOLD | {"min_patients": 1, "min_cell": 12})
    sites = make_sites(study, {"a": 200, "b": 220, "c": 210})
    summaries = [fit_local(study, rows).summary for rows in sites.values()]
    total = combine([summaries[0].without([0]), *summaries[1:]])
    assert total.sums.n.tolist() == [430, 630, 630]
    assert np.isfinite(fit_federated(study, sites["b"], total, summaries[1]).theta).all()
    silent = combine([one.without([0]) for one in summaries])
    assert silent.sums.n[0] == 0
    assert np.isfinite(fit_federated(study, sites["b"], silent, summaries[1].without([0])).theta).all()
    bound = theorem3_bound(silent.sums, study.feature_map.n_features, message_settings(study))
    assert np.isfinite(bound).all()


@pytest.fixture(scope="module")
def grams():
    study = make_study(disclosure={"payload": "gram"})
    sites = make_sites(study, {"a": 330, "b": 360, "c": 400})
    return study, sites, {name: summarize(study, rows).summary for name, rows in sites.items()}


def test_grams_give_the_policies_that_sums_give(grams):
    study, sites, messages = grams
    # As a file brings them: packed, unpacked, and derived by whoever reads them.
    d0 = study.feature_map.n_shared
    read = [
        SiteSummary(one.site, one.fingerprint, grams.sums(d0), grams)
        for one in messages.values()
        for grams in [Grams.unpacked(one.grams.packed())]
    ]
    total = combine_messages(study, read)
    schur = make_study()
    same = make_sites(schur, {"a": 330, "b": 360, "c": 400})
    expected = combine(fit_local(schur, rows).summary for rows in same.values())
    assert total.sums == expected.sums
    np.testing.assert_array_equal(
        fit_federated(study, sites["b"], total).theta, fit_federated(study, sites["b"], total, messages["b"]).theta
    )


def test_grams_hold_what_they_say(grams):
    study, sites, messages = grams
    d = study.feature_map.n_features
    packed = messages["a"].payload.packed()
    assert set(packed) == {"gram", "moment", "reward_moment", "reward_square", "n"}
    assert sum(array.size for array in packed.values()) == 3 * (d * (d + 1) // 2 + 2 * d + 2)
    chunk = next(sites["a"].step(2).chunks(10**9))
    phi = study.feature_map.phi(chunk.states, chunk.actions)
    np.testing.assert_allclose(messages["a"].grams.gram[2], phi.T @ phi, rtol=1e-10)
    np.testing.assert_allclose(messages["a"].grams.moment[2], phi.T @ chunk.rewards, rtol=1e-10)
    assert Grams.unpacked(packed) == messages["a"].grams
    with pytest.raises(OtherStudy, match="their shapes disagree"):
        Grams.unpacked(packed | {"moment": packed["moment"][:, :-1]})


def test_the_digest_is_that_of_what_was_sent(grams):
    study, _, messages = grams
    a = messages["a"]
    # Another machine may derive sums that differ in the last bit; the Grams are the same.
    elsewhere = SiteSummary(a.site, a.fingerprint, a.sums + a.sums.without([0, 1, 2]), a.grams)
    assert elsewhere.digest == a.digest
    total = combine_messages(study, list(messages.values()))
    assert (total - elsewhere).sites == ("b", "c")
    with pytest.raises(ChangedSummary, match="not the one that went into the total"):
        total - SiteSummary(a.site, a.fingerprint, a.sums)


def test_the_hub_takes_what_the_study_asks_for(grams):
    study, _, messages = grams
    bare = [SiteSummary(one.site, one.fingerprint, one.sums) for one in messages.values()]
    with pytest.raises(OtherStudy, match='has the payload "schur"; the study asks for "gram"'):
        combine_messages(study, bare)
    schur = make_study()
    more = [SiteSummary(one.site, schur.fingerprint, one.sums, one.grams) for one in messages.values()]
    with pytest.raises(OtherStudy, match='has the payload "gram"; the study asks for "schur"'):
        combine_messages(schur, more)


def test_rule_sites_is_asked_of_sums_alone(grams):
    """A Gram passed rules under which one site may be seen by itself."""
    study, _, messages = grams
    assert combine_messages(study, [messages["a"], messages["b"]]).sites == ("a", "b")


def test_withheld_steps_of_grams_are_zeros_too():
    study = make_study(ends=ENDS, disclosure=WITHHOLD | {"payload": "gram"})
    summary = summarize(study, make_sites(study, {"a": 240}, ragged=True)["a"]).summary
    assert not any(array[2].any() for array in summary.payload.packed().values())
    assert Grams.unpacked(summary.grams.packed()).sums(study.feature_map.n_shared) == summary.sums
