"""Samples at very large sites: who is in them, what they change, and who is told."""

from __future__ import annotations

import json
import tracemalloc
from dataclasses import replace

import click
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import typer

import fdtr
from fdtr.cli import evaluation_output, site_commands, study_output
from fdtr.disclosure.rules import up_to_tens
from fdtr.errors import UnreadableFile
from fdtr.exchange.release import AGREED_BEFOREHAND, release_message, release_values
from fdtr.exchange.site_state.ledger import site_ledger
from fdtr.exchange.wire import read_values, write_total
from fdtr.hub import combine_messages
from fdtr.pipeline.results import report_again
from fdtr.report.record import load_record
from fdtr.site import evaluate_site, partition_table
from fdtr.site.fitting import fit_federated, fit_local, verify
from fdtr.site.rows import draw_sample, evaluation_folds, read_trajectories, sampled, tuning_folds
from fdtr.site.site_evaluation import summarize_values
from fdtr.summary import combine
from fdtr.trajectories import Sample, partition, partition_writer
from random_tables import make_study, make_table

pytestmark = pytest.mark.quick

N = 600
VALUED, JUDGED = 150, 120
STUDY = make_study(disclosure={"jitter": 0, "min_sites": 2, "min_effective_sample_size": 5})


@pytest.fixture(scope="module")
def table() -> pa.Table:
    return make_table(STUDY, {"a": N, "b": 400}, seed=3)


@pytest.fixture
def rows(table):
    return read_trajectories(table, STUDY, "a")


@pytest.fixture
def few(monkeypatch):
    """About 150 patients are valued, and 120 judged."""
    set_sizes(monkeypatch, VALUED, JUDGED)


@pytest.fixture(scope="module")
def total(table):
    sites = read_trajectories(table, STUDY).by_site()
    return combine(fit_local(STUDY, of_site).summary for of_site in sites.values())


def set_sizes(monkeypatch, valued: int, judged: int) -> None:
    monkeypatch.setattr("fdtr.site.site_evaluation.VALUED", valued)
    for module in ("fitting", "site_evaluation"):
        monkeypatch.setattr(f"fdtr.site.{module}.JUDGED", judged)


def members(rows, size: int = VALUED) -> set[str]:
    return {*np.array(rows.patients.to_pylist())[draw_sample(STUDY, rows, size)]}


def test_a_site_that_is_not_very_large_has_no_sample(rows):
    assert sampled(STUDY, rows, N) is rows
    assert draw_sample(STUDY, rows, N).all()
    assert verify(STUDY, rows, fit_local(STUDY, rows)).sample is None


def test_everybody_is_in_a_sample_by_the_own_id_alone(rows):
    chosen = members(rows)
    assert abs(len(chosen) - VALUED) < 4 * np.sqrt(VALUED)  # four standard deviations of a count
    assert members(rows, JUDGED) < chosen
    shuffled = np.random.default_rng(1).permutation(rows.n_patients) < 450
    fewer = members(rows.select(shuffled))
    among = {*np.array(rows.patients.to_pylist())[shuffled]}
    assert chosen & among <= fewer <= among  # of fewer patients a larger share is drawn
    seeded = STUDY.model_validate(STUDY.public | {"learning": STUDY.public["learning"] | {"seed": 7}})
    assert {*np.array(rows.patients.to_pylist())[draw_sample(seeded, rows, VALUED)]} != chosen


def test_a_sample_has_the_same_share_of_every_fold():
    study, n = make_study(), 20_000
    covariates = {c.name: np.linspace(*c.range, n) for c in study.covariates}
    flat = {"patient": [f"p{i}" for i in range(n)], "step": np.zeros(n, int), "action": np.zeros(n, int)}
    one_step = study.model_validate(study.public | {"horizon": 1})
    rows = read_trajectories(pa.table(flat | {"reward": np.zeros(n)} | covariates), one_step, "a")
    chosen = draw_sample(one_step, rows, 5_000)
    for folds in (tuning_folds(one_step, rows), evaluation_folds(one_step, rows, 5)):
        counts = np.bincount(folds)
        drawn = np.bincount(folds[chosen])
        error = np.sqrt(counts * 0.25 * 0.75)
        assert (np.abs(drawn - 0.25 * counts) < 4 * error).all()


def test_patients_of_a_cluster_are_drawn_one_by_one():
    study = make_study(columns={"cluster": "ward"})
    table = make_table(study, {"a": N}, seed=3)
    wards = [f"w{int(patient[1:]) % 6}" for patient in table["patient"].to_pylist()]
    clustered = read_trajectories(table.append_column("ward", pa.array(wards)), study, "a")
    part = sampled(study, clustered, VALUED)
    assert part.n_clusters == 6  # a sample of whole clusters would have one or two
    assert {*part.patients.to_pylist()} == members(read_trajectories(table, STUDY, "a"))


def test_a_verified_part_is_that_of_the_sample_and_says_so(rows, few, tmp_path):
    fit = fit_local(STUDY, rows)
    verified = verify(STUDY, rows, fit)
    part = rows.draw(draw_sample(STUDY, rows, JUDGED))
    assert verify(STUDY, part, fit).threshold == verified.threshold
    assert verified.sample == Sample(part.n_patients, N)
    verified.save(tmp_path / "a.policy")
    assert fdtr.VerifiedPolicy.load(tmp_path / "a.policy").sample == verified.sample
    assert np.array_equal(verified.policy.theta, fit.policy.theta)


def test_a_file_with_a_sample_that_cannot_be_is_refused(rows, tmp_path):
    verified = verify(STUDY, rows, fit_local(STUDY, rows))
    for wrong in (Sample(5, 5), Sample(0, 5)):
        replace(verified, sample=wrong).save(tmp_path / "a.policy")
        with pytest.raises(UnreadableFile, match="not a sound policy"):
            fdtr.VerifiedPolicy.load(tmp_path / "a.policy")


@pytest.mark.parametrize("split", ["folds", "half"])
def test_policies_know_all_others_and_values_are_those_of_the_sample(rows, total, few, split):
    own = fit_local(STUDY, rows).summary
    found = evaluate_site(STUDY, rows, total, own, n_folds=3, split=split)
    folds = evaluation_folds(STUDY, rows, 2 if split == "half" else 3)
    whole = fit_federated(STUDY, rows.select(folds != 0), total, own)
    assert np.array_equal(found.policies["FDTR"][0].theta, whole.theta)
    held_out = rows.select(folds == 0) if split == "half" else rows
    chosen = draw_sample(STUDY, held_out, VALUED)
    assert found.sample == Sample(int(chosen.sum()), held_out.n_patients)
    valued = evaluation_folds(STUDY, held_out, 3)[chosen]
    assert np.array_equal(found.folds, valued)
    assert found.evaluator.rows.patients.to_pylist() == held_out.select(chosen).patients.to_pylist()
    (caution,) = [c for c in found.value("FDTR").warnings if c.kind == "sampled"]
    assert caution.sentence == f"Valued on {found.sample}."


def test_a_value_of_a_sample_differs_from_that_of_all_by_its_standard_error(rows, total, monkeypatch):
    own = fit_local(STUDY, rows).summary
    whole = evaluate_site(STUDY, rows, total, own)
    set_sizes(monkeypatch, VALUED, JUDGED)
    part = evaluate_site(STUDY, rows, total, own)
    for name in ("FDTR", "Clinicians"):
        of_all, of_sample = whole.value(name), part.value(name)
        assert abs(of_all.value - of_sample.value) < 4 * of_sample.standard_error
        ratio = of_sample.standard_error / of_all.standard_error
        assert 0.5 < ratio / np.sqrt(N / of_sample.n) < 2  # as √n says; weights make it vary


def test_values_that_are_released_are_those_of_the_sample_and_the_ledger_has_everybody(
    rows, total, few, tmp_path, monkeypatch
):
    monkeypatch.setenv("FDTR_STATE", str(tmp_path / "state"))
    found = evaluate_site(STUDY, rows, total, fit_local(STUDY, rows).summary)
    message = summarize_values(STUDY, found)
    released = release_values(STUDY, rows, found, tmp_path / "values.fdtr", confirm=AGREED_BEFOREHAND)
    values = read_values(tmp_path / "values.fdtr")
    assert values.n == released.values.n == message.values.n == up_to_tens(found.sample.n)
    (entry,) = site_ledger().recorded()
    assert entry.n == N
    for value in values.values:
        error = found.assess(value.method, value.over or None).standard_error
        assert value.standard_error == pytest.approx(error, rel=0.1)  # rounded, but that of the sample
    other = rows.select(~draw_sample(STUDY, rows, VALUED))
    with pytest.raises(fdtr.errors.WrongSite, match="not all among"):
        release_values(STUDY, other, found, tmp_path / "more.fdtr", confirm=AGREED_BEFOREHAND)


def test_terminal_json_and_page_say_of_how_many(table, few, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("FDTR_STATE", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    STUDY.save("study.toml")
    messages = []
    for site, of_site in read_trajectories(table, STUDY).by_site().items():
        messages.append(release_message(STUDY, of_site, f"{site}.fdtr", confirm=AGREED_BEFOREHAND).summary)
    write_total(combine_messages(STUDY, messages), tmp_path / "total.fdtr")
    pq.write_table(table, "table.parquet")
    inputs = [tmp_path / name for name in ("study.toml", "table.parquet", "total.fdtr")]
    sample, judged = (Sample(len(members(read_trajectories(table, STUDY, "a"), m)), N) for m in (VALUED, JUDGED))
    capsys.readouterr()
    context = typer.Context(click.Command("fit"))
    site_commands.fit(context, *inputs, out=tmp_path / "a.policy", site="a")
    assert f"judged on {judged}" in " ".join(capsys.readouterr().out.split())
    site_commands.fit(context, *inputs, out=tmp_path / "a.policy", site="a", json=True)
    assert json.loads(capsys.readouterr().out)["verified_on"] == vars(judged)
    site_commands.evaluate(*inputs, site="a", report=tmp_path / "a.html")
    assert f"to {sample}" in " ".join(capsys.readouterr().out.split())
    assert str(sample) in (tmp_path / "a.html").read_text()
    site_commands.evaluate(*inputs, site="a", json=True)
    told = json.loads(capsys.readouterr().out)
    assert told["sample"] == vars(sample)
    assert told["patients"] == sample.n


def test_results_and_report_of_a_run_say_of_how_many(table, few, tmp_path, capsys):
    results = fdtr.run(STUDY, read_trajectories(table, STUDY))
    results.save(tmp_path / "out")
    record = load_record(tmp_path / "out")
    sample, judged = (Sample(len(members(read_trajectories(table, STUDY, "a"), m)), N) for m in (VALUED, JUDGED))
    assert (record.sites["a"].verified_on, record.sites["a"].valued_on) == (judged, sample)
    page = report_again(tmp_path / "out").read_text()
    assert f"values and gains are those of {sample}" in page
    assert f"was judged on {judged}" in page
    study_output.show_results(results, tmp_path / "out", machine=False)
    told = " ".join(capsys.readouterr().out.split())
    assert f"judged on {judged}" in told
    assert f"Values are those of {sample}" in told


def test_what_a_site_holds_in_memory_does_not_grow_with_its_patients_on_disk(tmp_path, monkeypatch):
    set_sizes(monkeypatch, 400, 400)
    for module in (partition, partition_writer):
        monkeypatch.setattr(module, "GROUP_ROWS", 512)
    monkeypatch.setenv("FDTR_THREADS", "1")
    peaks = []
    for n in (1_000, 2_000, 8_000):  # the first loads what is loaded once
        one_site = partition_table(STUDY, make_table(STUDY, {"a": n}), tmp_path / f"{n}")
        fit = fit_local(STUDY, one_site)
        own = fit.summary
        other = fit_local(STUDY, read_trajectories(make_table(STUDY, {"b": 100}, seed=9), STUDY)).summary
        everybody = combine([own, other])
        tracemalloc.start()
        evaluation_output.evaluation_json(STUDY, evaluate_site(STUDY, one_site, everybody, own), None, None)
        verify(STUDY, one_site, fit_federated(STUDY, one_site, everybody, own))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    # Folds and masks take some bytes a patient. All rows would take four times as much.
    assert peaks[2] < 1.3 * peaks[1]
