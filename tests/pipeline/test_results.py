"""A whole study in one table: every method for every site, and what is kept."""

import json
import re
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pytest

import fdtr
from fdtr.errors import TooFewClusters, UnreadableFile, WrongSite
from fdtr.evaluation.evaluator import Evaluator
from fdtr.hub import combine_messages
from fdtr.inference import infer_effects
from fdtr.pipeline import run as running
from fdtr.pipeline import study_record
from fdtr.pipeline.run import ALLOWED, practice_of
from fdtr.report.record import load_record
from fdtr.site.site_message import summarize
from random_tables import make_study, make_table

pytestmark = pytest.mark.quick
METHODS = ["FDTR", "LDTR", "LDTR (MV)", "Q-learn (1)", "Q-learn (1-MV)", "Q-learn (H)"]


@pytest.fixture(scope="module")
def study():
    return make_study()


@pytest.fixture(scope="module")
def data(study):
    return fdtr.read_trajectories(make_table(study, {"b": 120, "a": 150, "c/d": 130}), study)


@pytest.fixture(scope="module")
def results(study, data):
    return fdtr.run(study, data)


def test_every_method_has_a_policy_for_every_site(results):
    assert list(results.methods) == [METHODS[0], ALLOWED, *METHODS[1:]]
    for policies in results.methods.values():
        assert list(policies) == ["a", "b", "c/d"]
        assert set(policies["a"].act(np.zeros((5, 4)), 0)) <= {0, 1, 2}


def test_as_disclosure_allows_is_what_released_messages_give(study, data, results):
    sites = data.by_site()
    messages = {name: summarize(study, rows).summary for name, rows in sites.items()}
    total = combine_messages(study, list(messages.values()))
    for name, rows in sites.items():
        expected = fdtr.fit_federated(study, rows, total, messages[name])
        np.testing.assert_array_equal(results.methods[ALLOWED][name].theta, expected.theta)
        assert results.record.sites[name].agreement_with_baselines[ALLOWED] > 0.5
    exact = make_study(disclosure={"jitter": 0, "max_ratio": 1.0, "max_leverage": 1.0})
    same = fdtr.run(exact, fdtr.read_trajectories(make_table(exact, {"a": 150, "b": 150, "c": 150}), exact))
    for name, policy in same.methods["FDTR"].items():
        np.testing.assert_array_equal(same.methods[ALLOWED][name].theta, policy.theta)


def test_a_site_that_may_send_nothing_receives_only():
    study = make_study()
    data = fdtr.read_trajectories(make_table(study, {"a": 300, "b": 300, "c": 300, "small": 40}), study)
    results = fdtr.run(study, data)
    assert (results.record.sites["small"].steps_sent, results.record.sites["small"].share_sent) == ([], 0.0)
    sites = data.by_site()
    total = combine_messages(study, [summarize(study, sites[name]).summary for name in "abc"])
    fit = fdtr.fit_federated(study, sites["small"], total, receive_only=True)
    np.testing.assert_array_equal(results.methods[ALLOWED]["small"].theta, fit.theta)
    assert not np.allclose(fit.theta, fdtr.fit_local(study, sites["small"]).theta)
    with pytest.raises(WrongSite, match="'a' is in the total, so that it cannot receive only"):
        fdtr.fit_federated(study, sites["a"], total, receive_only=True)


def test_baselines_alone_are_the_same(study, data, results):
    alone = fdtr.fit_baselines(study, data.by_site())
    states = np.random.default_rng(0).random((40, 4))
    assert list(alone) == METHODS[1:]
    for method, policies in alone.items():
        for site, policy in policies.items():
            np.testing.assert_array_equal(policy.act(states, 1), results.methods[method][site].act(states, 1))


def test_shared_coefficients_are_the_average_over_sites(results):
    by_hand = np.mean([fit.theta[:, :6] for fit in results.federated.values()], axis=0)
    np.testing.assert_allclose(results.shared_coefficients, by_hand)
    assert [found.identified for found in results.record.shared_coefficients.values()] == [True] * 6


def test_a_coefficient_that_nobody_identifies_is_marked(study):
    table = make_table(study, {"a": 100, "b": 100}, constant_within_site=("u",))
    results = fdtr.run(study, fdtr.read_trajectories(table, study))
    marked = {name: found["identified"] for name, found in results.record.as_json()["shared_coefficients"].items()}
    assert marked == {"u": False, "v": True, "a·u": False, "a·v": True, "a^2·u": False, "a^2·v": True}


def test_a_coefficient_that_is_not_identified_at_one_step_has_no_number_there(study, tmp_path):
    table = make_table(study, {"a": 100, "b": 100})
    u = np.where(table["step"].to_numpy() == 1, 0.5, table["u"].to_numpy())
    table = table.set_column(table.column_names.index("u"), "u", pa.array(u))
    results = fdtr.run(study, fdtr.read_trajectories(table, study))
    expected = [[name.endswith("u") and h == 1 for h in range(study.horizon)] for name in study.feature_map.names[:6]]
    np.testing.assert_array_equal(np.isnan(results.shared_coefficients).T, expected)
    results.save(tmp_path / "out")
    told = json.loads((tmp_path / "out" / "results.json").read_text())["shared_coefficients"].values()
    assert [[number is None for number in one["by_step"]] for one in told] == expected
    assert [[number is None for number in one["by_site"]["a"]] for one in told] == expected
    assert all(one["identified"] for one in told)
    rows = pa.csv.read_csv(tmp_path / "out" / "shared-coefficients.csv").to_pylist()
    missing = [[row["step"], row["feature"]] for row in rows if row["coefficient"] is None]
    assert missing == [[1, name] for name in study.feature_map.names[:6] if name.endswith("u")]
    assert all((row["identified"] == "no") == (row["coefficient"] is None) for row in rows)


def test_practice_counts_shares(data, results):
    rows = data.by_site()["a"]
    others = {"same": results.federated["a"].policy, "LDTR": results.local["a"].policy}
    verified = replace(results.verified["a"], threshold=0.0, least_z=0.0)
    practice = practice_of(results.federated["a"].policy, verified, rows, others)
    assert practice.agreement_with_baselines["same"] == 1
    assert 0 < practice.agreement_with_baselines["LDTR"] <= 1
    np.testing.assert_allclose(practice.given.sum(axis=1), 1)
    np.testing.assert_allclose(practice.recommended.sum(axis=1), 1)
    np.testing.assert_allclose(practice.given, rows.action_counts() / 150)
    np.testing.assert_allclose(practice.with_part.sum(axis=1), 1)
    for h in range(rows.horizon):
        (chunk,) = rows.step(h).chunks()
        states, done = dict(zip(rows.covariates, chunk.states, strict=True)), verified.policy.features.levels
        acts = verified.act(states, h, given=done[chunk.actions])
        np.testing.assert_allclose(practice.with_part[h], [np.mean(acts == level) for level in done])
        assert practice.advised[h] == pytest.approx(np.mean(verified.advises(states, h)))
    assert 0 < practice.advised.mean() <= 1
    assert 0 < practice.agreement_with_practice < 1


@pytest.mark.parametrize("split", ["folds", "half"])
def test_progress_is_told_in_order(study, data, split):
    calls = []
    fdtr.run(study, data, split=split, progress=lambda *call: calls.append(call))
    names, done, of = zip(*calls, strict=True)
    assert list(done) == sorted(set(done))  # every step counts for something
    assert (done[0], set(of), calls[-1]) == (0, {done[-1]}, ("done", of[0], of[0]))
    assert len(set(names)) == len(names)
    for site in ("a", "b", "c/d"):
        assert f"{site}: every method valued" in names


def test_all_estimating_is_over_when_progress_ends_and_saving_only_writes(study, data, tmp_path, monkeypatch):
    ended = []

    def watch(owner, name):
        original = getattr(owner, name)

        def watched(*args, **options):
            assert not ended, f"{name} was called after the last progress line"
            return original(*args, **options)

        monkeypatch.setattr(owner, name, watched)

    for name in ("value", "compare", "diagnose", "sensitivity"):
        watch(Evaluator, name)
    for name in ("near_ties", "fit_local", "fit_federated", "practice_of", "value_site"):
        watch(running, name)
    for name in ("infer_effects", "gain_from_sharing", "heterogeneity", "pool_methods"):
        watch(study_record, name)
    results = fdtr.run(study, data, progress=lambda _what, done, of: ended.append(True) if done == of else None)
    assert ended == [True]
    results.save(tmp_path / "out")
    results.report(tmp_path / "report.html")
    assert len(results.record.as_json()["values"]) == 3 * 12 * 5


def test_a_site_that_fails_while_it_is_valued_is_named_and_the_others_are_valued(study, data, monkeypatch, tmp_path):
    original = Evaluator.sensitivity

    def failing(evaluator, target):
        if evaluator.rows.site == "b":
            raise TooFewClusters("Site 'b' has nobody to compare.")
        return original(evaluator, target)

    monkeypatch.setattr(Evaluator, "sensitivity", failing)
    results = fdtr.run(study, data)
    assert results.not_valued == {"b": "Site 'b' has nobody to compare."}
    assert list(results.evaluations) == ["a", "c/d"]
    assert results.record.sites["b"].not_valued == "Site 'b' has nobody to compare."
    assert results.record.sites["b"].trust is None
    assert {v.site for v in results.record.values} == {"a", "c/d"}
    assert all("b" not in mean.sites for mean in results.record.means)
    results.save(tmp_path / "out")


def test_sites_whose_names_are_no_file_names_are_kept_apart(results, tmp_path):
    results.save(tmp_path / "out")
    names = sorted(path.name for path in (tmp_path / "out" / "policies").iterdir())
    assert names == ["a.policy", "b.policy", "c-d.policy"]
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_a_report_alone_can_be_written(results, tmp_path):
    results.report(tmp_path / "r.html")
    assert "<!doctype html>" in (tmp_path / "r.html").read_text().lower()


def test_every_method_is_valued_on_held_out_patients_by_every_estimator(study, data, results):
    found = results.record
    assert {(v.site, v.estimator) for v in found.values} == {
        (site, estimator) for site in ("a", "b", "c/d") for estimator in ("pdis", "wis", "fqe", "dr", "wdr")
    }
    parts = {"FDTR (verified)", "LDTR (verified)"}
    assert {v.method for v in found.values} == {
        *METHODS,
        *parts,
        "Clinicians",
        "Always none",
        "Always low",
        "Always high",
    }
    by_hand = results.evaluations["b"].value("LDTR", "dr")
    one = next(v for v in found.values if (v.site, v.method, v.estimator) == ("b", "LDTR", "dr"))
    assert (one.value, one.low, one.high, one.n) == (by_hand.value, by_hand.low, by_hand.high, 120)
    verdicts = {(a.site, a.method): a.verdict for a in found.assessments if not a.over}
    for v in found.values:
        assert v.verdict == verdicts[v.site, v.method]


def test_the_record_says_what_each_site_assesses(results):
    record = results.record
    for one in record.assessments:
        found = results.evaluations[one.site].assess(one.method, one.over or None)
        assert (one.verdict, one.reason, one.n_advised) == (found.verdict, found.reason, found.n_advised)
        assert np.isnan(one.value) == (one.verdict == "not estimable")
        np.testing.assert_equal([one.value, one.low, one.high], [found.value, found.low, found.high])
    assert {(one.method, one.over) for one in record.assessments} >= {
        ("FDTR (verified)", "Clinicians"), ("FDTR", "LDTR"), ("Clinicians", ""),
    }  # fmt: skip
    usual = next(mean for mean in record.means if (mean.method, mean.over) == ("Clinicians", ""))
    assert usual.verdict == "verified"
    observed = [one.value for one in record.assessments if (one.method, one.over) == ("Clinicians", "")]
    assert usual.plain.value == pytest.approx(np.mean(observed))


def test_the_saved_policy_has_its_verified_part(results, tmp_path):
    results.save(tmp_path / "out")
    saved = fdtr.VerifiedPolicy.load(tmp_path / "out" / "policies" / "a.policy")
    assert saved.threshold == results.verified["a"].threshold
    states = np.random.default_rng(0).uniform([-1, 0, 0, 0], [1, 10, 1, 1], (50, 4))
    np.testing.assert_array_equal(saved.advises(states, 0), results.verified["a"].advises(states, 0))


def test_clusters_are_counted_where_errors_are_by_cluster(results, tmp_path):
    study = make_study(columns={"cluster": "clinician"})
    table = make_table(study, {"a": 100, "b": 110})
    clinicians = [f"nurse-{int(patient[1:]) % 25}" for patient in table["patient"].to_pylist()]
    clustered = fdtr.run(study, fdtr.read_trajectories(table.append_column("clinician", [clinicians]), study))
    assert {(v.site, v.n, v.n_clusters) for v in clustered.record.values} == {("a", 100, 25), ("b", 110, 25)}
    assert {check.n_clusters for check in clustered.checks.values()} == {25}
    assert {v.n_clusters for v in results.record.values} == {None}
    assert {check.n_clusters for check in results.checks.values()} == {None}
    clustered.save(tmp_path / "out")
    assert ",100,25," in (tmp_path / "out" / "values.csv").read_text()
    page = (tmp_path / "out" / "report.html").read_text()
    assert "Errors are clustered by the column with the role cluster: 25 clusters at a and 25 clusters at b." in page
    assert load_record(tmp_path / "out").as_json() == clustered.record.as_json()
    assert "nurse-24" not in page


def test_the_mean_over_sites_has_the_worst_verdict_of_its_sites(results):
    found = results.record
    assert found.means
    for mean in found.means:
        parts = [
            a for a in found.assessments if (a.method, a.over) == (mean.method, mean.over) and a.site in mean.sites
        ]
        assert mean.plain.value == pytest.approx(np.mean([part.value for part in parts]))
        assert {part.verdict for part in parts} <= {"verified", mean.verdict}


def test_a_site_too_small_to_be_valued_is_named(study):
    table = make_table(study, {"a": 100, "b": 110, "tiny": 3})
    found = fdtr.run(study, fdtr.read_trajectories(table, study)).record
    assert "too few to hold out" in found.sites["tiny"].not_valued
    assert found.sites["tiny"].trust is None
    assert {v.site for v in found.values} == {"a", "b"}


def test_shared_effects_are_those_of_the_total(study, results):
    effects = infer_effects(results.total.sums)
    rows = results.record.shared_effects
    assert len(rows) == study.horizon * 6
    np.testing.assert_allclose([row.estimate for row in rows], effects.estimates.ravel())
    assert {gain.site for gain in results.record.gains} == {"a", "b", "c/d"}
    assert [q.step for q in results.record.heterogeneity] == [0, 1, 2, None]


def test_the_record_comes_back_from_its_file(results, tmp_path):
    results.save(tmp_path / "out")
    file = tmp_path / "out" / "results.json"
    text = file.read_text()
    assert load_record(tmp_path / "out").as_json() == results.record.as_json()
    before_clusters = re.sub(r'"n_clusters": null,\s*', "", text)
    assert before_clusters != text
    file.write_text(before_clusters)
    assert load_record(tmp_path / "out").as_json() == results.record.as_json()
    file.write_text(text.replace('"study"', '"stdy"'))
    with pytest.raises(UnreadableFile, match="not what this version"):
        load_record(tmp_path / "out")
    rows = (tmp_path / "out" / "values.csv").read_text().splitlines()
    assert rows[0] == "site,method,estimator,value,low,high,standard_error,n,n_clusters,verdict,reason"
    assert len(rows) == 1 + len(results.record.values)
    gains = pa.csv.read_csv(tmp_path / "out" / "gains.csv").to_pylist()
    told = [(a.method, a.over, a.site, a.verdict, a.reason) for a in results.record.assessments if a.over]
    assert [(row["method"], row["over"], row["site"], row["verdict"], row["reason"]) for row in gains] == told
    assert {"value", "low", "high", "standard_error", "tolerance", "advised_share"} < gains[0].keys()
    assert all((row["value"] is None) == (row["verdict"] == "not estimable") for row in gains)


def test_means_are_those_that_a_hub_would_pool(results):
    labels = [mean.label for mean in results.record.means]
    assert len(set(labels)) == len(labels)
    gains = [bool(mean.over) for mean in results.record.means]
    assert gains == sorted(gains, reverse=True)


def test_what_a_value_rests_on_is_recorded_for_the_part_and_the_full_policy(results):
    for site, evaluation in results.evaluations.items():
        trust = results.record.sites[site].trust
        assert [check.method for check in trust.checks] == ["FDTR (verified)", "FDTR"]
        for check in trust.checks:
            target = evaluation.evaluator.evaluation(evaluation.targets[check.method])
            assert check.effective_sample_size == target.weights.effective_sample_size.tolist()
            assert check.usual_misfit == target.richer.usual_misfit
            assert np.isnan(check.misfit) == (target.richer.misfit == 0)  # no richer model: nothing was compared
            behind = target.patients_behind()
            assert np.isnan(check.patients_behind) if np.isinf(behind) else check.patients_behind == behind


def test_the_chosen_settings_change_nothing(results):
    for site, fit in results.federated.items():
        same = {(v.setting, v.value): v.same for v in results.record.sites[site].variations}
        assert same["w", fit.chosen.sharing] == 1
        assert all(0 <= share <= 1 for share in same.values())


def test_a_site_in_which_nobody_was_treated_so_is_in_no_mean():
    study = make_study(horizon=6)
    table = make_table(study, {"a": 40, "b": 60}, actions={"a": [0.0]})  # "a" never did anything but 0
    found = fdtr.run(study, fdtr.read_trajectories(table, study)).record
    verdicts = {a.site: a for a in found.assessments if (a.method, a.over) == ("Always high", "")}
    assert verdicts["a"].verdict == "not estimable"
    assert np.isnan(verdicts["a"].value)
    assert all("a" not in mean.sites for mean in found.means if mean.method == "Always high")
    clinicians = {mean.label: mean for mean in found.means if mean.method == "Clinicians"}
    assert 0 < clinicians["Clinicians"].plain.low < clinicians["Clinicians"].plain.high < 6
    labels = [mean.label for mean in found.means]
    beside = clinicians["Clinicians (at b)"]
    assert (beside.sites, labels.index(beside.label)) == (["b"], labels.index("Always low") - 1)
