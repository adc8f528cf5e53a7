"""A study with differential privacy: what is noised, what is refused, what is told."""

import numpy as np
import pytest

from fdtr.disclosure import SiteValues, judge, release
from fdtr.disclosure.facts import measure
from fdtr.errors import InvalidStudy, NotRepeatable
from fdtr.exchange.site_state.ledger import Ledger
from fdtr.hub import combine_messages
from fdtr.learners.private_fit import Noise
from fdtr.site.fitting import fit_federated, fit_local, fit_message
from fdtr.site.site_check import check
from fdtr.site.site_evaluation import summarize_values
from fdtr.site.site_message import release_of, release_of_values, summarize
from fdtr.summary import combine
from random_tables import make_sites, make_study
from refusals import refuses

SITES = {"a": 300, "b": 260, "c": 280}
PRIVATE = {"epsilon": 10.0, "delta": 1e-6}


@pytest.fixture(scope="module")
def private():
    study = make_study(disclosure=PRIVATE)
    return study, make_sites(study, SITES)


def drawn(scale, seed=0):
    rng = np.random.default_rng(seed)
    return Noise(scale, lambda vector: vector + scale * rng.normal(size=len(vector)))


def test_a_study_learns_together_through_noised_messages(private):
    study, sites = private
    messages = {site: summarize(study, rows) for site, rows in sites.items()}
    total = combine_messages(study, [message.summary for message in messages.values()])
    for site, rows in sites.items():
        summary = messages[site].summary
        assert summary.noised
        assert np.isfinite(fit_federated(study, rows, total, summary).theta).all()
        exact = fit_local(make_study(), rows).summary.sums
        assert not summary.sums.close_to(exact, 1e-3)
        np.testing.assert_array_equal(summary.sums.n, exact.n)


@pytest.mark.quick
def test_the_same_noise_gives_the_same_message_and_other_noise_another(private):
    study, sites = private
    first, again, other = (fit_local(study, sites["a"], drawn(2.0, seed)).summary for seed in (0, 0, 1))
    assert first.digest == again.digest != other.digest
    for fit in (fit_message, fit_local):
        once = fit(study, sites["a"], drawn(2.0))
        assert once.summary is once.summary
        assert once.summary.digest == first.digest


@pytest.mark.quick
def test_the_policy_alone_is_exact(private):
    study, sites = private
    alone = fit_local(study, sites["a"], drawn(2.0))
    np.testing.assert_array_equal(alone.theta, fit_local(make_study(), sites["a"]).theta)


@pytest.mark.quick
def test_without_noise_the_message_is_the_usual_one():
    study, plain = make_study(disclosure=PRIVATE), make_study()
    rows = make_sites(study, SITES)["a"]
    noised = fit_local(study, rows, Noise(0.0, lambda vector: vector)).summary.sums
    exact = fit_local(plain, rows).summary.sums
    np.testing.assert_allclose(noised.schur, exact.schur, rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(noised.schur_moment, exact.schur_moment, rtol=1e-6, atol=1e-6)


@pytest.mark.quick
@pytest.mark.parametrize("payload", ["schur", "gram"])
def test_sums_without_noise_are_never_released(payload):
    study = make_study(disclosure=PRIVATE | {"payload": payload})
    plain = make_study(disclosure={"payload": payload})
    rows = make_sites(study, {"a": 900})["a"]
    exact = fit_local(plain, rows)
    facts = measure(rows, study.feature_map, exact.fit, study.rules)
    assert not any(verdict.refuses for verdict in judge(facts, study.rules))
    with pytest.raises(ValueError, match="noise that the summary does not carry"):
        release(exact.summary, facts, study.rules)
    noised = fit_local(study, rows, drawn(2.0)).summary
    assert release(noised, facts, study.rules).summary.noised


@pytest.mark.quick
def test_a_noised_message_cannot_be_computed_again(private):
    study, sites = private
    fits = {site: fit_local(study, rows, drawn(2.0)) for site, rows in sites.items()}
    total = combine(fit.summary for fit in fits.values())
    with pytest.raises(NotRepeatable, match=r"is not computed again.*as it was sent"):
        fit_federated(study, sites["a"], total)


@pytest.mark.quick
def test_the_same_patients_are_noised_once(private, tmp_path):
    study, sites = private
    ledger, rows = Ledger(tmp_path), sites["a"]
    assert ledger.repeated(release_of(study, rows, None)) is None
    fitted = fit_local(study, rows, drawn(2.0))
    message = summarize(study, rows, ledger, fitted)
    with ledger.recording(release_of(study, rows, message.summary)):
        pass
    assert ledger.repeated(release_of(study, rows, None)) == message.summary.digest
    with refuses("ONCE", match=r"other noise.*Use that message again"):
        summarize(study, rows, ledger, fit_local(study, rows, drawn(2.0, seed=1)))
    assert summarize(study, rows, ledger, fitted).summary == message.summary  # the very one, in another round
    assert ledger.repeated(release_of(study, sites["b"], None)) is None
    # another budget for the same features would add to the first
    generous = make_study(disclosure=PRIVATE | {"epsilon": 50.0})
    with refuses("ONCE", match="other values of the same features"):
        summarize(generous, rows, ledger, fit_local(generous, rows, drawn(1.0)))
    once = check(study, rows, fitted, ledger).verdicts[-1]
    assert once.holds
    assert "used again" in once.measured


@pytest.mark.quick
def test_what_noise_leaves_nothing_of_is_told(private):
    study, sites = private
    rows = sites["a"]
    nothing = summarize(study, rows, fitted=fit_message(study, rows, drawn(1e4)))
    assert not nothing.summary.sums.schur.any()
    assert "the noise left nothing of the shared effects at steps 0, 1, 2; nothing would be learnt" in nothing.lost
    assert summarize(study, rows, fitted=fit_message(study, rows, drawn(1e-3))).lost == ""
    assert summarize(make_study(), rows).lost == ""


@pytest.mark.quick
def test_check_and_the_cost_draw_no_noise(private, tmp_path):
    study, sites = private

    def never(vector):
        raise AssertionError("noise was drawn for what never leaves")

    for fit in (fit_message, fit_local):
        fitted = fit(study, sites["a"], Noise(2.0, never))
        assert check(study, sites["a"], fitted, Ledger(tmp_path)).cost is not None


@pytest.mark.quick
def test_only_messages_count_as_made_before(private, tmp_path):
    study, sites = private
    ledger, rows = Ledger(tmp_path), sites["a"]
    told = SiteValues("a", study.fingerprint, 300, ())
    with ledger.recording(release_of_values(study, rows, told)):
        pass
    assert ledger.repeated(release_of(study, rows, None)) is None
    first = summarize(study, rows, ledger, fit_message(study, rows, drawn(2.0))).summary
    with ledger.recording(release_of(study, rows, first)):
        pass
    ledger.withdraw(first.digest)
    assert ledger.repeated(release_of(study, rows, None)) is None
    second = summarize(study, rows, ledger, fit_message(study, rows, drawn(2.0, seed=1))).summary
    assert second.digest != first.digest


@pytest.mark.quick
def test_check_tells_the_cost(private):
    study, sites = private
    fitted = fit_local(study, sites["a"], drawn(2.0))
    default, many = (check(study, sites["a"], fitted, n_sites=n).cost for n in (None, 9))
    assert default.n_sites == study.disclosure.min_sites
    assert many.n_sites == 9
    assert many.ratio > 1 / 9
    assert check(make_study(), sites["a"]).cost is None


@pytest.mark.quick
def test_values_do_not_leave_without_noise(private):
    with refuses("NOISE", match="without noise"):
        summarize_values(private[0], None)


@pytest.mark.quick
def test_features_have_to_be_bounded():
    with pytest.raises(InvalidStudy, match="epsilon needs"):
        make_study(disclosure=PRIVATE, features={"scale": "none"})
