"""Experiments on known worlds: pairing, intervals, determinism, and what is written."""

import csv
from xml.etree import ElementTree

import numpy as np
import pytest

from experiments import figure2, tuning
from experiments.authors_world import AuthorsSpec
from experiments.command import Request, reproduce, reproduce_figure2
from experiments.comparison import (
    AUTO,
    BASELINES,
    FDTR_AUTO,
    LDTR_AUTO,
    METHODS,
    PAPER,
    PAPERS,
    Q_LEARN_H,
    Outcome,
    References,
    Trial,
    draw,
    few_cases,
    fit_methods,
    read,
    run_trial,
)
from experiments.intervals import holm, mean, p_below
from experiments.replications import anew, replicate, seeds_of
from fdtr.errors import UnwritableFile
from fdtr.pipeline.run import run as fit_all
from fdtr.simulation.linear import WorldSpec
from fdtr.simulation.worlds import constant_rule
from fdtr.study import Study

CASE = few_cases()[0]
SMALL = WorldSpec(n_sites=2, n_actions=3, horizon=3)


def small_trial(number: int = 0, spec=SMALL) -> Trial:
    return Trial(spec, (60,), seeds_of(4, number), fresh=300)


def test_intervals_cover_the_truth_as_often_as_they_say():
    rng = np.random.default_rng(0)
    found = [mean(rng.normal(0.3, 2.0, 12)) for _ in range(4000)]
    covered = np.mean([one.low <= 0.3 <= one.high for one in found])
    assert abs(covered - 0.95) < 4 * np.sqrt(0.95 * 0.05 / 4000)
    at_zero = [p_below(rng.normal(0.0, 2.0, 12)) for _ in range(4000)]
    assert abs(np.mean(np.array(at_zero) < 0.1) - 0.1) < 4 * np.sqrt(0.1 * 0.9 / 4000)


def test_an_interval_of_one_or_of_equals_says_what_it_knows():
    assert (mean([0.2]).low, mean([0.2]).high) == (-np.inf, np.inf)
    assert (p_below([0.0, 0.0]), p_below([-1.0, -1.0]), p_below([0.2])) == (1.0, 0.0, 0.5)


def test_holm_keeps_the_level_for_all_together():
    rng = np.random.default_rng(1)
    rejected = [min(holm(rng.random(20).tolist())) < 0.05 for _ in range(4000)]
    assert np.mean(rejected) < 0.05 + 4 * np.sqrt(0.05 * 0.95 / 4000)


@pytest.mark.slow
def test_a_trial_gives_the_same_again_and_in_other_processes():
    jobs = [small_trial(number) for number in range(3)]
    here = replicate(run_trial, jobs, "trial", processes=1)
    again = replicate(run_trial, jobs, "trial", processes=1)
    elsewhere = replicate(run_trial, jobs, "trial", processes=2)
    assert [o.methods for o in here] == [o.methods for o in again] == [o.methods for o in elsewhere]
    assert [o.references for o in here] == [o.references for o in elsewhere]
    assert len({o.methods[60][FDTR_AUTO] for o in here}) == 3  # each from its own seeds


def test_no_two_replications_have_the_same_seeds(monkeypatch):
    keys = []

    def note(_work, jobs, *_):
        keys.extend(job.seeds.spawn_key for job in jobs)
        raise StopIteration

    for module in (figure2, tuning):
        monkeypatch.setattr(module, "replicate", note)
    plans = [(figure2.run_figure2, figure2.Plan(world=world)) for world in figure2.WORLDS]
    for run, plan in [*plans, (tuning.run_all, tuning.plan_of())]:
        with pytest.raises(StopIteration):
            run(plan)
    assert len(set(keys)) == len(keys) > 900


@pytest.mark.slow
def test_methods_are_those_of_the_package():
    drawn, tables = draw(small_trial())
    world, sites = drawn.world, read(drawn.world, 60, tables[60]).by_site()
    found = fit_methods(world, sites)
    states = np.vstack([world.arrive(0, 200, np.random.default_rng(5)), world.arrive(1, 200, np.random.default_rng(6))])
    for learning, names in (
        (AUTO, {"FDTR": FDTR_AUTO, "LDTR": LDTR_AUTO, "LDTR (MV)": "LDTR (MV, auto)", "Q-learn (1)": "Q-learn (1)",
                "Q-learn (1-MV)": "Q-learn (1-MV)", "Q-learn (H)": Q_LEARN_H}),
        (PAPER, {"FDTR": PAPERS[0], "LDTR": PAPERS[1]}),
    ):  # fmt: skip
        results = fit_all(Study.model_validate(world.study(**learning)), read(world, 60, anew(tables[60])))
        for theirs, ours in names.items():
            for place, site in enumerate(sites):
                for step in range(3):
                    expected = results.methods[theirs][site].act(states, step)
                    np.testing.assert_array_equal(found[ours][place](states, step), expected)
    assert set(found) == set(METHODS)


def test_auto_is_what_a_study_without_settings_does():
    world = draw(small_trial())[0].world
    plain, auto, paper = (Study.model_validate(world.study(**learning)) for learning in ({}, AUTO, PAPER))
    assert plain.fingerprint == auto.fingerprint != paper.fingerprint


def test_references_are_those_of_the_world():
    drawn, _ = draw(small_trial())
    known, world = drawn.references_at(1), drawn.world
    rng = np.random.default_rng(1)
    assert known.behaviour == pytest.approx(world.behaviour_value(1, 50_000, rng).mean, abs=0.1)
    constants = world.values(1, [constant_rule(code) for code in range(world.n_actions)], 50_000, rng)
    assert known.constant == pytest.approx(max(value.mean for value in constants), abs=0.1)
    assert known.optimum == pytest.approx(world.optimal(1).value, abs=0.1)
    assert known.behaviour < known.optimum


def test_every_rule_meets_the_same_patients():
    drawn, _ = draw(small_trial(spec=AuthorsSpec(n_sites=2, n_actions=3, horizon=3)))
    known = drawn.references_at(1)
    assert known.constant == known.optimum  # the highest dose for everybody is the optimum there
    assert drawn.values_at(1, [constant_rule(2)]).tolist() == [known.optimum]
    assert drawn.values_at(1, [constant_rule(0), None, constant_rule(2)])[2] == known.optimum


def outcome(fdtr: float, other: float) -> Outcome:
    methods = dict.fromkeys(METHODS, other) | {FDTR_AUTO: fdtr}
    return Outcome({50: methods, 200: methods}, References(1.0, 1.5, 2.0))


def test_figure_2_counts_differences_and_shares():
    rng = np.random.default_rng(2)
    outcomes = [outcome(1.8 + x, 1.5 + x) for x in rng.normal(0, 0.1, 30)]
    rows = figure2.value_rows("p", (50, 200), outcomes)
    found = {(row.n, row.method): row for row in rows}
    assert found[200, "optimum"].low == found[200, "optimum"].high == 2.0
    assert found[200, FDTR_AUTO].share == pytest.approx(found[200, FDTR_AUTO].value - 1.0)
    assert found[50, "behaviour"].share == 0.0
    differences = figure2.difference_rows({"p": outcomes}, (50, 200))
    assert [row.difference for row in differences] == pytest.approx([0.3] * 2 * len(BASELINES))
    assert all((row.holm is None) is (row.n == 50) for row in differences)
    behind = figure2.difference_rows({"p": [outcome(1.4 + x, 1.5) for x in rng.normal(0, 0.01, 30)]}, (200,))
    assert all(row.holm < 0.05 for row in behind)


def test_figure_2_counts_intervals_and_not_means():
    rows = [
        figure2.DifferenceRow("p", n, "LDTR (auto)", difference, low, high, holm)
        for n, difference, low, high, holm in (
            (200, 0.2, 0.1, 0.3, 1.0), (200, 0.2, -0.1, 0.5, 1.0), (200, -0.2, -0.3, -0.1, 0.2),
            (200, -0.2, -0.3, -0.1, 0.0), (50, 0.2, 0.1, 0.3, None),
        )
    ]  # fmt: skip
    enough, few = figure2._ahead(rows)
    assert "4 cells" in enough
    assert "above 0 in 1 (25%), and with it below 0 in 2 (after Holm in 1)" in enough
    assert "1 cells" in few
    assert "above 0 in 1 (100%), and with it below 0 in 0." in few


def test_the_interval_of_a_value_leaves_out_how_worlds_differ():
    methods = dict.fromkeys(METHODS, 0.0)
    outcomes = [
        Outcome({200: dict.fromkeys(methods, level + 0.5)}, References(level, level + 0.6, level + 1.0))
        for level in (0.0, 5.0, 10.0)
    ]
    row = next(row for row in figure2.value_rows("p", (200,), outcomes) if row.method == FDTR_AUTO)
    assert (row.value, row.low, row.high) == (5.5, 5.5, 5.5)
    assert row.share == pytest.approx(0.5)


@pytest.mark.slow
@pytest.mark.parametrize("world", ["valid", "authors"])
def test_figure_2_writes_pages_tables_and_figures(tmp_path, world):
    request = Request(("figure2", "--world", world), quick=True, processes=1)
    finding = reproduce_figure2(tmp_path, request, world)
    name = f"figure2-{world}"
    files = {f"{name}{part}.{kind}" for part in ("", "-differences") for kind in ("csv", "svg", "png")}
    assert {path.name for path in tmp_path.iterdir()} == files | {f"{name}.md"}
    page = (tmp_path / f"{name}.md").read_text()
    assert all(sentence in page for sentence in finding.shows)
    assert request.command in page
    drawing = ElementTree.parse(tmp_path / f"{name}.svg").getroot()
    words = " ".join(drawing.itertext())
    assert request.command in words.replace("\xa0", " ")
    assert "seed 0" in words.replace("\xa0", " ")
    for method in (*METHODS, "optimum", "best constant action", "behaviour"):
        assert method in words
    assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    with (tmp_path / f"{name}.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["method"] for row in rows} == {*METHODS, "optimum", "best constant action", "behaviour"}
    assert all(float(row["low"]) <= float(row["value"]) <= float(row["high"]) for row in rows)


@pytest.mark.slow
@pytest.mark.parametrize(("experiment", "processes"), [("tuning", None), ("evaluation", 1), ("effects", 1)])
def test_other_experiments_run_quickly(tmp_path, experiment, processes):
    request = Request((experiment,), quick=True, processes=processes)
    findings = reproduce(experiment, tmp_path, request)
    assert (tmp_path / f"{experiment}.md").exists()
    for table in (table for finding in findings for table in finding.tables):
        assert (tmp_path / f"{table.name}.csv").read_text() == table.as_csv()
        assert len(table.rows) >= 3


def test_a_folder_that_cannot_be_written_is_said_before_the_work(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UnwritableFile, match="Name another folder"):
        reproduce("theorems", tmp_path / "file", Request(("theorems",)))
