"""The experiment on verdicts: shares clustered by replication, cells from records, and cells that miss by name."""

import csv
import json
import math
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

from experiments import verdict_cells, verdict_page, verdicts
from experiments.command import Request, app, reproduce
from experiments.comparison import Case, Drawn, draw
from experiments.intervals import NORMAL, share
from fdtr.evaluation import Evidence
from fdtr.inference import SiteValue, pool
from fdtr.policy import Policy
from fdtr.simulation import WorldSpec
from fdtr.verified_policy import VerifiedPolicy

CASE = Case("tiny", "", 7, WorldSpec())
USELESS = Case("useless, tiny", "", 8, WorldSpec(), purpose="confirmation")


def assessed(verdict="verified", value=0.1, half=0.05, estimator="wdr", tolerance=0.0):
    """What `Evaluator.assess` says, as a record has it."""
    numbers = {"value": value, "low": value - half, "high": value + half, "standard_error": half / 2}
    if verdict == "not estimable":
        numbers = dict.fromkeys(numbers, math.nan)
    return {"verdict": verdict, "estimator": estimator, "tolerance": tolerance, "advised_share": 0.3, **numbers}


def site(behaviour=1.0, truth=1.2, verified_truth=1.1, gain=None, full=None, full_gain=None):
    of_method = {
        "truth": truth,
        "verified truth": verified_truth,
        "verified gain": gain or assessed(),
        "full value": full or assessed("model-based", 1.2, estimator="fqe"),
        "full gain": full_gain or assessed("model-based", 0.2, estimator="fqe"),
        "linear value": [1.2, 0.02, 1.16, 1.24],
        "linear gain": [0.2, 0.03, 0.14, 0.26],
        "full advice": [0.5, 0.1],
        "verified advice": [0.2, math.nan],
    }
    return {"behaviour": behaviour, "FDTR": of_method, "LDTR": of_method}


def shows(runs, case=CASE, n=600):
    return verdict_page.find([(case, [{str(n): run} for run in runs])]).shows


def misses(sentences):
    return [sentence for sentence in sentences if sentence.startswith("Misses")]


# Shares and ratios


def test_a_share_among_some_sites_has_the_cluster_robust_interval():
    hits = np.array([[1, 1, 0], [1, 0, 0], [1, 1, 1], [0, 0, 0]], bool)
    among = np.array([[1, 1, 0], [1, 1, 0], [1, 1, 1], [0, 0, 0]], bool)
    found = verdict_cells.share_among(hits, among)
    # 6 of 7; residuals y − p m of the three replications with cases are 2/7, −5/7 and 3/7
    variance = 3 / 2 * (4 + 25 + 9) / 49 / 7**2
    n = (6 / 7) * (1 / 7) / variance
    middle, wide = 6 / 7 + NORMAL**2 / (2 * n), 1 + NORMAL**2 / n
    half = NORMAL * math.sqrt(6 / 49 / n + NORMAL**2 / (4 * n**2))
    assert n < 7  # the design effect is above 1
    assert (found.estimate, found.cases) == (pytest.approx(6 / 7), 7)
    assert (found.low, found.high) == pytest.approx(((middle - half) / wide, (middle + half) / wide))


def test_hits_that_are_not_among_the_cases_do_not_count():
    among = np.array([[True, False], [True, False]])
    assert verdict_cells.share_among(np.array([[True, True], [False, True]]), among).estimate == 0.5


def test_where_every_site_counts_a_share_is_the_share_of_all():
    hits = np.random.default_rng(0).random((40, 5)) < 0.9
    found = verdict_cells.share_among(hits, np.ones_like(hits))
    np.testing.assert_allclose(found.ends, share(hits).ends, rtol=1e-12)


def test_without_cases_there_is_no_share():
    nothing = np.zeros((3, 2), bool)
    found = verdict_cells.share_among(nothing, nothing)
    assert (math.isnan(found.estimate), found.cases) == (True, 0)


def test_a_ratio_has_students_interval_over_replications():
    found = verdict_cells.ratio(np.array([[1.0, 1.0], [1.0, 2.0], [0.0, 1.0]]), np.full((3, 2), 2.0))
    # 6/12; residuals 0, 1, −1; t on 2 degrees of freedom is 4.3027
    reach = 4.302652729911275 * math.sqrt(3 / 2 * 2 / 144)
    assert found.ends == pytest.approx((0.5, 0.5 - reach, 0.5 + reach))


# Cells


def test_a_cell_counts_what_is_verified_covered_and_kept():
    silent = site(gain=assessed("not estimable"))
    off = site(gain=assessed(value=0.3))
    cell, _ = verdict_cells.cells_of([(CASE, [{"600": [site(), silent]}, {"600": [site(), off]}])])
    assert (cell.sites, cell.verified.estimate) == (4, 0.75)
    assert (cell.gain_covered.estimate, cell.gain_covered.cases) == (pytest.approx(2 / 3), 3)
    assert cell.gain_bias.estimate == pytest.approx(0.2 / 3)
    assert (cell.gain_width, cell.acts_in) == pytest.approx((0.1, 0.3))
    assert (cell.full_gain.estimate, cell.verified_gain.estimate) == pytest.approx((0.2, 0.075))
    assert cell.kept.estimate == pytest.approx(0.375)
    assert (cell.accepted_covered.estimate, cell.rejected.estimate) == (1, 0)
    assert math.isnan(cell.rejected_covered.estimate)
    assert (cell.otherwise, cell.harmful) == pytest.approx((0.5, 0.1))
    assert cell.compared_covered.estimate == 1
    assert math.isnan(cell.verified_harmful)


def test_gains_are_pooled_over_those_of_the_first_sites_that_have_one():
    gains = [assessed(value=0.1, half=0.02), assessed("not estimable"), assessed(value=0.13, half=0.02)]
    run = [site(gain=gain) for gain in gains]
    lone = [site(), *[site(gain=assessed("not estimable"))] * 2]
    cell, _ = verdict_cells.cells_of([(CASE, [{"600": run}, {"600": lone}])])
    plain = pool([SiteValue("a", 0.1, 0.01, 9), SiteValue("b", 0.13, 0.01, 9)]).plain
    assert plain.low > 0.1  # the mean of the truths
    assert (cell.pooled_gain_3.estimate, cell.pooled_gain_3.cases) == (0, 1)  # one verified site is not pooled
    assert cell.pooled_gain_5.cases == 0  # there are three sites
    assert cell.pooled_model_3.estimate == 1


def test_a_tolerance_does_not_average_out_when_values_are_pooled():
    runs = [[site(full=assessed("model-based", 1.3, 0.02, "richer", t))] * 3 for t in (0.0, 0.15)]
    covered = [verdict_cells.cells_of([(CASE, [{"600": run}] * 2)])[0].pooled_model_3.estimate for run in runs]
    assert covered == [0, 1]


# Sentences


def test_a_cell_whose_intervals_cover_half_is_named():
    off = site(gain=assessed(value=0.3))
    said = shows([[site(), off]] * 60)
    assert misses(said) == [
        f"Misses, coverage of verified gains: tiny (design), n = 600, {method}: 50.0% (41.2 to 58.8%)."
        for method in ("FDTR", "LDTR")
    ]
    [sentence] = [s for s in said if s.startswith("Coverage of verified gains (")]
    assert "holds in 0 of 2 cells for design" in sentence


def test_where_all_holds_nothing_is_named():
    said = shows([[site()] * 3] * 60)
    assert said[-1] == "No cell misses anything."
    [sentence] = [s for s in said if s.startswith("Coverage of verified gains (")]
    assert "holds in 2 of 2 cells for design. It is 100.0% to 100.0%" in sentence


def test_few_replications_cannot_show_that_a_cell_misses():
    assert not misses(shows([[site(), site(gain=assessed(value=0.3))], [site()] * 2]))


@pytest.mark.parametrize(("case", "named"), [(USELESS, True), (CASE, False)])
def test_wrong_claims_are_named_where_there_is_nothing_to_gain(case, named):
    claim = site(truth=1.0, verified_truth=1.0, full_gain=assessed("model-based", 0.2, estimator="fqe"))
    about = [sentence.partition(":")[0] for sentence in misses(shows([[claim]] * 60, case))]
    wrong = [
        "Misses, wrong claims that a verified part is better than clinicians, in useless and harmful worlds",
        "Misses, wrong claims that a full policy is better than clinicians, model-based, in useless and harmful worlds",
    ]
    assert [name for name in wrong if name in about] == (wrong if named else [])


@pytest.mark.parametrize(("n", "named"), [(600, True), (200, False)])
def test_a_cell_that_keeps_too_little_of_the_gain_is_named(n, named):
    gain = assessed(value=0.01)
    runs = [[site(truth=1.2 + r / 1000, verified_truth=1.01, gain=gain)] for r in range(60)]
    about = [sentence.partition(":")[0] for sentence in misses(shows(runs, n=n))]
    assert ("Misses, true gain kept by the verified part, n ≥ 600" in about) is named


# Records


def drawn_of(spec):
    plan = verdicts.plan_of(replications=2, chosen=[replace(CASE, spec=spec)])
    return draw(replace(plan.trials()[0], fresh=100))[0]


def test_a_verified_part_that_never_speaks_is_worth_what_clinicians_are(monkeypatch):
    drawn = drawn_of(WorldSpec(n_sites=1, n_actions=2, horizon=2))
    silent, speaking = (object.__new__(VerifiedPolicy) for _ in range(2))
    full = object.__new__(Policy)
    for policy, threshold in ((silent, math.inf), (speaking, 0.0)):
        object.__setattr__(policy, "threshold", threshold)
    valued = []
    monkeypatch.setattr(Drawn, "values_at", lambda _self, _site, acts: valued.extend(acts) or np.arange(len(acts)))
    values = verdicts._true_values(drawn, 0, [full, silent, speaking])
    assert (values.tolist(), len(valued)) == ([0, 1, 0, 2], 3)


def test_clinicians_draw_the_same_where_a_policy_abstains():
    """A rule that speaks for hardly anybody gains hardly anything, even from few simulated patients."""
    drawn = drawn_of(WorldSpec(n_sites=1, n_actions=4, horizon=3))

    def nearly_silent(states, step):
        return np.where(np.arange(len(states)) == 0, 0, verdicts._act_as_usual(states, step))

    usual, nearly = drawn.values_at(0, [verdicts._act_as_usual, nearly_silent])
    assert abs(nearly - usual) < 3 / 100


def test_truths_are_simulated_from_more_patients_than_are_evaluated():
    [small, large] = verdicts._by_size(replace(verdicts.plan_of().trials()[0], sizes=(200, 2000)))
    assert (small.fresh, large.fresh) == (2000, 20000)


def test_every_cell_is_kept_under_a_name_of_its_own():
    trials = [one for trial in verdicts.plan_of(replications=3).trials() for one in verdicts._by_size(trial)]
    assert len({trial.key for trial in trials}) == len(trials) == 3 * len(verdicts.SIZES) * len(verdicts.cases())


# The command


def test_a_quick_run_writes_its_page_and_goes_on_where_it_stopped(tmp_path, monkeypatch):
    request = Request(("verdicts",), quick=True, processes=1, keep=tmp_path / "kept.jsonl")
    [finding] = reproduce("verdicts", tmp_path / "first", request)
    assert (tmp_path / "first/verdicts.md").read_text().startswith('`make reproduce WHAT="verdicts --quick"`')
    assert (tmp_path / "first/verdicts.svg").read_text().count("worlds for") >= 4
    with (tmp_path / "first/verdicts.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["world"], row["method"], row["n"]) for row in rows] == [
        (world, method, "120") for world in ("valid", "useless") for method in verdicts.METHODS
    ]
    assert all(float(row["verified_cases"]) == 6 for row in rows)
    assert rows[0]["harmful"] == "nan"  # the exact Q of a linear world is not known
    assert float(rows[2]["full_gain"]) == pytest.approx(0, abs=verdict_cells.NO_GAIN)
    records = [json.loads(line)["result"] for line in request.keep.read_text().splitlines()]
    assert {site["FDTR"]["verified gain"]["verdict"] for run in records for site in run} <= set(map(str, Evidence))
    monkeypatch.setattr(verdicts, "run_trial", None)
    [again] = reproduce("verdicts", tmp_path / "second", request)
    assert again.shows == finding.shows


def test_worlds_are_chosen_by_their_names():
    assert Request(("verdicts",), worlds=("ward-habits", "valid"), replications=9).command == (
        'make reproduce WHAT="verdicts --world ward-habits --world valid --replications 9"'
    )
    assert len(verdicts.short_names()) == len(verdicts.cases())
    assert all(len(name.split()) == 1 for name in verdicts.short_names())
    refused = CliRunner().invoke(app, ["verdicts", "--world", "mars"])
    assert refused.exit_code == 2
    assert CliRunner().invoke(app, ["verdicts", "--help"]).exit_code == 0


def test_worlds_that_were_recorded_before_stay_on_the_page(tmp_path):
    earlier = verdict_page.find([(CASE, [{"600": [site(), site()]}, {"600": [site()] * 2}])])
    (tmp_path / "verdicts.csv").write_text(earlier.tables[0].as_csv())
    recorded = verdict_cells.read_cells(tmp_path / "verdicts.csv")
    assert verdict_page.find([], recorded).tables[0].as_csv() == earlier.tables[0].as_csv()
    found = verdict_page.find([(USELESS, [{"600": [site()]}])], recorded)
    assert [row.world for row in found.tables[0].rows] == ["tiny"] * 2 + ["useless, tiny"] * 2
    assert "each of 1 to 2 replications and 1 to 4 site-runs" in found.shows[1]
    again = verdict_page.find([(CASE, [{"600": [site()]}])], recorded)
    assert [row.sites for row in again.tables[0].rows] == [1, 1]
    assert verdict_cells.read_cells(tmp_path / "nothing.csv") == []
