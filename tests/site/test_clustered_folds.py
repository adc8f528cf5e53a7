"""Patients who belong together: one fold for all of them, in tuning and in evaluation, and errors that say so."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fdtr
from fdtr.errors import TooFewClusters
from fdtr.evaluation import Behaviour, Constant, Evaluator
from fdtr.evaluation.estimate import CautionKind
from fdtr.site import evaluate_site
from fdtr.site.fitting import fit_local
from fdtr.site.rows import evaluation_folds, tuning_folds
from fdtr.site.settings_choice import choose_together, no_others
from fdtr.site.site_evaluation import evaluate
from fdtr.study import Study
from fdtr.trajectories import Trajectories
from fdtr.tuning import ladder, usual_care
from random_tables import make_study, make_table
from refusals import refuses

AUTO = {"ridge": "auto", "pessimism": "auto"}
CLUSTERED = make_study(columns={"cluster": "clinician"}, learning=AUTO)
PLAIN = make_study(learning=AUTO)


def read(n: int, n_clusters: int, study: Study = CLUSTERED) -> Trajectories:
    """One site; patient i is in cluster i mod `n_clusters`."""
    made = make_table(study, {"a": n})
    clinicians = [f"c{int(patient[1:]) % n_clusters}" for patient in made["patient"].to_pylist()]
    return fdtr.read_trajectories(made.append_column("clinician", pa.array(clinicians)), study)


def folds_by_hash(ids: Any, seed: int, purpose: bytes) -> list[int]:
    key = seed.to_bytes(8, "little")
    hashes = [hashlib.blake2b(i.encode(), digest_size=8, key=key, person=purpose) for i in ids]
    return [int.from_bytes(one.digest(), "little") % 5 for one in hashes]


# ── folds ──


@given(seed=st.integers(0, 1000), n_clusters=st.integers(8, 60))
@settings(max_examples=25)
def test_folds_never_split_a_cluster(seed: int, n_clusters: int) -> None:
    rows = read(120, n_clusters)
    study = make_study(columns={"cluster": "clinician"}, learning={**AUTO, "seed": seed})
    for folds in (tuning_folds(study, rows), evaluation_folds(study, rows, 5)):
        pairs = set(zip(rows.clusters.to_pylist(), folds.tolist(), strict=True))
        assert len(pairs) == rows.n_clusters == n_clusters
        assert set(folds.tolist()) == set(range(folds.max() + 1))  # none is empty


def test_without_a_cluster_column_folds_are_by_patient_as_ever() -> None:
    rows = read(200, 40, PLAIN)
    ids = rows.patients.to_pylist()
    assert tuning_folds(PLAIN, rows).tolist() == folds_by_hash(ids, 0, b"")
    assert evaluation_folds(PLAIN, rows, 5).tolist() == folds_by_hash(ids, 0, b"evaluation")


def test_with_one_they_are_by_its_label() -> None:
    rows = read(200, 40)
    labels = rows.clusters.to_pylist()
    assert tuning_folds(CLUSTERED, rows).tolist() == folds_by_hash(labels, 0, b"")
    assert evaluation_folds(CLUSTERED, rows, 5).tolist() == folds_by_hash(labels, 0, b"evaluation")


def test_few_clusters_make_fewer_folds_and_one_makes_none() -> None:
    few = read(120, 3)
    found = evaluate(CLUSTERED, few, Behaviour())
    assert found.n_clusters == 3
    assert 2 <= evaluation_folds(CLUSTERED, few, 5).max() + 1 <= 3
    one = read(120, 1)
    sentence = "Site 'a': 120 patients of 1 cluster lie in one fold: none can be held out. Give another cluster column"
    with pytest.raises(TooFewClusters, match=sentence):
        evaluate(CLUSTERED, one, Behaviour())
    with pytest.raises(TooFewClusters, match=sentence):
        fit_local(CLUSTERED, one)
    with refuses("N", match="has 6 patients, too few to hold out"):
        evaluate(PLAIN, read(6, 1, PLAIN), Behaviour())


# ── where they are used ──


def test_settings_are_chosen_without_splitting_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, used = read(150, 30), []
    for room, name in ((ladder, "sum_folds"), (usual_care, "judge_usual_care"), (usual_care, "compare_policies")):
        real = getattr(room, name)
        monkeypatch.setattr(room, name, lambda *a, real=real: used.append(a[2]) or real(*a))
    monkeypatch.setattr(usual_care, "CRITICAL", -np.inf)  # so that policies are compared
    choose_together(CLUSTERED, rows, no_others(CLUSTERED))
    assert len(used) == 3
    for folds in used:
        np.testing.assert_array_equal(folds, tuning_folds(CLUSTERED, rows))


def test_a_value_has_errors_by_cluster() -> None:
    rows = read(200, 40)
    found = evaluate(CLUSTERED, rows, Constant(1))
    assert (found.n, found.n_clusters) == (200, 40)
    assert CautionKind.CLUSTER_SPLIT not in {caution.kind for caution in found.warnings}
    labels = np.array(rows.clusters.to_pylist())
    by_hand = Evaluator(rows, CLUSTERED.feature_map, evaluation_folds(CLUSTERED, rows, 5), labels)
    assert found.standard_error == pytest.approx(by_hand.value(Constant(1)).standard_error, rel=1e-12)
    plain = evaluate(PLAIN, read(200, 40, PLAIN), Constant(1))
    assert (plain.n, plain.n_clusters) == (200, 200)


def test_a_sites_values_have_errors_by_cluster() -> None:
    study = make_study(columns={"cluster": "clinician"})
    rows = read(200, 40, study)
    local = fit_local(study, rows)
    found = evaluate_site(study, rows, fdtr.combine([local.summary]), local.summary)
    for name in found.targets:
        value = found.value(name)
        assert value.n_clusters == 40, name
        assert CautionKind.CLUSTER_SPLIT not in {caution.kind for caution in value.warnings}
    few = read(120, 3, study)
    local = fit_local(study, few)
    assert evaluate_site(study, few, fdtr.combine([local.summary]), local.summary).value("FDTR").n_clusters == 3


# ── why ──


def outcomes_by_clinician(rng: np.random.Generator) -> pa.Table:
    """One step, 30 clinicians with 8 patients each: a clinician's patients share half of what moves their outcome."""
    clinician = np.repeat(np.arange(30), 8)
    action = rng.integers(0, 2, len(clinician))
    reward = 0.4 + 0.2 * action + 0.2 * rng.uniform(-1, 1, 30)[clinician] + 0.2 * rng.uniform(-1, 1, len(clinician))
    return pa.table(
        {
            "patient": np.arange(len(clinician)),
            "step": np.zeros(len(clinician)),
            "action": action,
            "reward": reward,
            "x": rng.random(len(clinician)),
            "clinician": clinician,
        }
    )


@pytest.mark.slow
def test_errors_by_cluster_cover_the_truth_where_errors_by_patient_do_not() -> None:
    # Always treating is worth 0.6. Of 80 intervals 76 ± 1.9 should cover it. By patient the error is too small by
    # √(1 + 7/4) = 1.66, as a quarter of the variance of weighted outcomes is shared: 80 · P(|z| < 1.18) = 61 ± 3.8.
    parts = {"horizon": 1, "actions": {"levels": [0, 1]}, "covariates": [{"name": "x"}]}
    studies = [make_study(**parts, columns=columns) for columns in ({"cluster": "clinician"}, {})]
    covered, errors = np.zeros(2), np.zeros(2)
    for draw in range(80):
        made = outcomes_by_clinician(np.random.default_rng([draw, 5]))
        for k, study in enumerate(studies):
            found = evaluate(study, fdtr.read_trajectories(made, study, "a"), Constant(1))
            covered[k] += found.low <= 0.6 <= found.high
            errors[k] += found.standard_error
    assert errors[0] > 1.2 * errors[1]
    assert covered[0] >= 72
    assert covered[1] <= 68
