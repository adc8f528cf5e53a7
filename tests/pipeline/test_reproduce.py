"""Experiments on known worlds: pairing, halves, intervals, determinism, and what is written."""

import csv
import sys
from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pytest

from fdtr.errors import MissingExtra, UnwritableFile
from fdtr.pipeline.reproduce import choices, figure2, worlds
from fdtr.pipeline.reproduce.cases import few_cases
from fdtr.pipeline.reproduce.experiments import Asked, reproduce, reproduce_figure2
from fdtr.pipeline.reproduce.finding import prepare
from fdtr.pipeline.reproduce.intervals import holm, mean, p_below
from fdtr.pipeline.reproduce.replications import replicate, seeds_of
from fdtr.pipeline.reproduce.trial import BASELINES, FDTR_AUTO, METHODS, Outcome, References, Trial, draw, run_trial
from fdtr.simulation.authors import AuthorsSpec
from fdtr.simulation.linear import WorldSpec
from fdtr.simulation.worlds import constant

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


def test_a_trial_gives_the_same_again_and_in_other_processes():
    jobs = [small_trial(number) for number in range(3)]
    here = replicate(run_trial, jobs, "trial", processes=1)
    again = replicate(run_trial, jobs, "trial", processes=1)
    elsewhere = replicate(run_trial, jobs, "trial", processes=2)
    assert [o.methods for o in here] == [o.methods for o in again] == [o.methods for o in elsewhere]
    assert [o.references for o in here] == [o.references for o in elsewhere]
    assert len({o.methods[60][FDTR_AUTO] for o in here}) == 3  # each from its own seeds


def test_sites_keep_their_patients_when_others_join():
    drawn, _ = draw(small_trial())
    three, _ = draw(small_trial(spec=replace(SMALL, n_sites=3)))
    assert drawn.patients[1].spawn_key == three.patients[1].spawn_key


def test_every_rule_meets_the_same_patients():
    drawn, _ = draw(small_trial(spec=AuthorsSpec(n_sites=2, n_actions=3, horizon=3)))
    known = drawn.references_at(1)
    assert known.constant == known.optimum  # the highest dose for everybody is the optimum there
    assert drawn.values_at(1, [constant(2)]).tolist() == [known.optimum]
    assert drawn.values_at(1, [constant(0), None, constant(2)])[2] == known.optimum


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


def test_a_loss_beyond_what_is_allowed_is_named():
    rng = np.random.default_rng(3)
    fine = worlds.rows_of(CASE, (200,), [outcome(1.5 + x, 1.5) for x in rng.normal(0, 0.01, 40)])
    lost = worlds.rows_of(CASE, (200,), [outcome(1.4 + x, 1.5) for x in rng.normal(0, 0.01, 40)])
    assert all(row.holds for row in fine)
    assert not any(row.holds for row in lost)
    assert sum("Missed" in sentence for sentence in worlds._describe([*fine, *lost])) == len(lost)


def test_the_best_fixed_setting_is_scored_where_it_was_not_chosen():
    """Settings that differ by noise alone: the best of a half has no advantage on the other half."""
    rng, n_fixed = np.random.default_rng(4), len(choices.FIXED) * len(choices.PESSIMISMS)
    outcomes = []
    for _ in range(40):
        fixed = 1.5 + rng.normal(0, 0.1, (len(choices.FIXED), len(choices.PESSIMISMS)))
        rules = dict.fromkeys([*choices.RULES, choices.FULL_AUTO], 1.5)
        outcomes.append(choices.Outcome({200: choices.Chosen(rules, fixed, 0.5, 0.0)}, behaviour=1.0, optimum=2.0))
    row = choices.fixed_row(CASE, 200, outcomes)
    assert row.auto == pytest.approx(0.5)
    assert abs(row.fixed - 0.5) < 4 * 0.1 / np.sqrt(40)
    hindsight = max(np.mean([o.by_size[200].fixed.ravel() for o in outcomes], axis=0)) - 1.0
    assert hindsight > 0.5 + 2 * 0.1 / np.sqrt(40)  # what choosing and scoring on the same would have claimed
    assert n_fixed > 50


def test_the_rules_of_an_experiment_are_those_of_the_package():
    found = choices.run_trial(small_trial())
    chosen = found.by_size[60]
    assert set(chosen.rules) == {*choices.RULES, choices.FULL_AUTO}
    assert chosen.fixed.shape == (len(choices.FIXED), len(choices.PESSIMISMS))
    assert found.behaviour < found.optimum
    # Alone, it does not matter what would be shared, and c = 0.0005 with λ = 0.01 is what LDTR sends.
    assert np.ptp(chosen.fixed) > 0


@pytest.mark.slow
@pytest.mark.parametrize("world", ["valid", "authors"])
def test_figure_2_writes_pages_tables_and_figures(tmp_path, world):
    asked = Asked(f"fdtr reproduce figure2 --world {world} --quick", quick=True, processes=1)
    finding = reproduce_figure2(tmp_path, asked, world)
    name = f"figure2-{world}"
    files = {f"{name}{part}.{kind}" for part in ("", "-differences") for kind in ("csv", "svg", "png")}
    assert {path.name for path in tmp_path.iterdir()} == files | {f"{name}.md"}
    page = (tmp_path / f"{name}.md").read_text()
    assert all(sentence in page for sentence in finding.shows)
    assert asked.command in page
    drawing = ElementTree.parse(tmp_path / f"{name}.svg").getroot()
    words = " ".join(drawing.itertext())
    assert asked.command in words.replace("\xa0", " ")
    assert "seed 0" in words.replace("\xa0", " ")
    for method in (*METHODS, "optimum", "best constant action", "behaviour"):
        assert method in words
    assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    with (tmp_path / f"{name}.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["method"] for row in rows} == {*METHODS, "optimum", "best constant action", "behaviour"}
    assert all(float(row["low"]) <= float(row["value"]) <= float(row["high"]) for row in rows)


@pytest.mark.slow
@pytest.mark.parametrize("experiment", ["worlds", "tuning"])
def test_other_experiments_run_quickly(tmp_path, experiment):
    asked = Asked(f"fdtr reproduce {experiment} --quick", quick=True)
    (finding,) = reproduce(experiment, tmp_path, asked)
    assert (tmp_path / f"{experiment}.md").exists()
    for table in finding.tables:
        assert (tmp_path / f"{table.name}.csv").read_text() == table.as_csv()
        assert len(table.rows) >= 3


def test_a_missing_extra_is_said_before_the_work(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "altair", None)
    with pytest.raises(MissingExtra, match=r"pip install 'fdtr\[figures\]'"):
        prepare(tmp_path)


def test_a_folder_that_cannot_be_written_is_said_before_the_work(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UnwritableFile, match="Name another folder"):
        reproduce("theorems", tmp_path / "file", Asked("fdtr reproduce theorems"))
