"""The experiment on tuning: halves, ratios, harm, the rule before, the worlds, and what is kept."""

import json
from dataclasses import fields, replace

import numpy as np
import pytest
from typer.testing import CliRunner

from experiments import command, comparison, tuning, tuning_cells, worlds
from experiments.comparison import FDTR_AUTO, LDTR_AUTO, Case, Trial, draw, read, rule_of
from experiments.replications import seeds_of
from fdtr.learners import NoiseUnits
from fdtr.learners.federated import fit_with_each
from fdtr.simulation.linear import WorldSpec
from fdtr.site import message_settings, others_in
from fdtr.site.fitting import fit_federated, fit_local, fit_q_learning
from fdtr.site.rows import tuning_folds
from fdtr.study import Study
from fdtr.summary import combine
from fdtr.tuning import Candidate, candidates_of
from fdtr.tuning.ladder import score, sum_folds

CASE = Case("tiny", "(4,2,2,2)", 7, WorldSpec())
SMALL = WorldSpec(n_sites=2, n_actions=3, horizon=3)
N_FIXED = len(tuning.FIXED) * len(tuning.PESSIMISMS)


def made_up(
    methods: dict[str, float | list[float]] | None = None,
    fixed: np.ndarray | float = 1.5,
    size: comparison.Size = 200,
    cautious: tuple[bool, bool] = (False, False),
) -> tuning.Outcome:
    """Of two sites where clinicians reach 1, the best constant action 1.25 and the optimum 2; methods reach 1.5."""
    values = np.full((2, len(tuning.METHODS)), 1.5)
    for name, value in (methods or {}).items():
        values[:, tuning.METHODS.index(name)] = value
    at = tuning.Values(values, np.broadcast_to(fixed, N_FIXED).copy(), np.array([1.0, 0.3]), np.array(cautious))
    return tuning.Outcome({size: at}, np.array([[1.0, 1.25, 2.0]] * 2))


# One cell


def test_the_best_fixed_setting_is_scored_where_it_was_not_chosen():
    """Settings that differ by noise alone: the best of a half has no advantage on the other half."""
    rng = np.random.default_rng(4)
    outcomes = [made_up(fixed=1.5 + rng.normal(0, 0.1, N_FIXED)) for _ in range(40)]
    row = tuning_cells.row_of(CASE, 200, outcomes)
    assert row.auto == pytest.approx(50.0)
    assert abs(row.fixed - 50.0) < 4 * 10 / np.sqrt(40)
    hindsight = 100 * (np.mean([o.by_size[200].fixed for o in outcomes], axis=0).max() - 1.0)
    assert hindsight > 50 + 2 * 10 / np.sqrt(40)  # what choosing and scoring on the same would have claimed
    assert N_FIXED > 50


def test_each_half_is_scored_with_the_setting_of_the_other():
    even, odd = np.full(N_FIXED, 1.5), np.full(N_FIXED, 1.5)
    even[[3, 8]], odd[[3, 8]] = (1.9, 1.2), (1.4, 1.8)  # 3 is best on even replications, 8 on odd ones
    row = tuning_cells.row_of(CASE, 200, [made_up(fixed=even if r % 2 == 0 else odd) for r in range(6)])
    assert row.fixed == pytest.approx((20 + 40) / 2)
    assert row.best == tuning_cells._name(tuning.FIXED[1], tuning.PESSIMISMS[0])  # place 3 of all, and 1.65 on average


def test_a_ratio_is_of_gains_over_clinicians():
    row = tuning_cells.row_of(CASE, 200, [made_up({FDTR_AUTO: 1.6}, fixed=1.8) for _ in range(4)])
    assert (row.ratio, row.ratio_low, row.ratio_high) == pytest.approx((0.75, 0.75, 0.75))
    assert not row.reaches
    assert tuning_cells.row_of(CASE, 200, [made_up({FDTR_AUTO: 1.78}, fixed=1.8) for _ in range(4)]).reaches


@pytest.mark.parametrize(("auto", "reaches"), [(1.035, True), (1.025, False)])
def test_where_nothing_gains_much_there_is_no_ratio_but_a_difference(auto, reaches):
    methods = dict.fromkeys((FDTR_AUTO, LDTR_AUTO, tuning.BEFORE), auto)
    row = tuning_cells.row_of(CASE, 200, [made_up(methods, fixed=1.04) for _ in range(4)])
    assert np.isnan([row.ratio, row.ratio_low, row.ratio_high]).all()
    assert row.reaches is reaches
    [summary, *missed] = tuning_cells.describe([row])[1:]
    assert "nan" not in summary + " ".join(missed)
    assert [sentence.startswith("More than 1% below") for sentence in missed] == ([] if reaches else [True])


def test_a_site_is_harmed_where_it_is_worse_than_alone_by_five_per_cent_of_the_span():
    auto = [[1.44, 1.46], [1.44, 1.6], [1.5, 1.5], [1.5, 1.5]]  # alone: 1.5; the span is 1
    row = tuning_cells.row_of(CASE, 200, [made_up({FDTR_AUTO: at, LDTR_AUTO: 1.5}) for at in auto])
    assert row.harmed == pytest.approx(2 / 8)
    assert row.harmed < row.harmed_high < 1


def test_methods_stand_in_the_columns_named_for_them():
    reached = {method: 1.1 + 0.1 * place for place, method in enumerate(tuning.METHODS)}
    row = tuning_cells.row_of(CASE, 200, [made_up(reached, cautious=(True, False)) for _ in range(2)])
    columns = ("auto", "before", "plain", "ladder_c", "ladder_noise", "ladder_more_noise", "alone", "q_learning")
    assert [getattr(row, column) for column in columns] == pytest.approx([10, 20, 30, 40, 50, 60, 70, 80])
    assert (row.less_before, row.less_constant, row.constant) == pytest.approx((-10, -15, 25))
    assert (row.less_plain, row.less_alone, row.less_q_learning) == pytest.approx((-20, -60, -70))
    assert (row.less_fixed, row.less_fixed_low, row.less_fixed_high) == pytest.approx((-40, -40, -40))
    assert (row.sharing, row.more_cautious, row.span) == pytest.approx((0.65, 0.5, 1.0))


# What is said of all cells


def test_what_a_cell_misses_is_said_where_patients_are_enough():
    outcomes = [made_up({FDTR_AUTO: 1.4, tuning.BEFORE: 1.45, LDTR_AUTO: 1.5}, fixed=1.5) for _ in range(4)]
    row = tuning_cells.row_of(CASE, 200, outcomes)
    sentences = tuning_cells.describe([row, replace(row, purpose="confirmation", n="50")])
    assert [sentence.partition(":")[0] for sentence in sentences] == [
        "Worlds for design, 1 cells (world × n)",
        "Design, n ≥ 200",
        "Less than 97%",
        "Behind the rule before by more than 1%",
        "Harmed more often than 5%",
        "Worlds for confirmation, 1 cells (world × n)",
        "Confirmation, n < 200",
    ]
    assert "in 0 of 1 cells (median 80.0%, least 80.0%)" in sentences[1]


@pytest.mark.parametrize(
    ("ladder", "large_ridge", "why"),
    [
        (1.42, True, "pessimism: with noise = 0.03 at all sites the same sharing would reach 42.0%."),
        (1.34, True, "λ: fixed settings with the λ that auto has reach 40.0% at most."),
        (1.30, False, "sharing: sites took w = 0.65 on average, for values or rewards."),
    ],
)
def test_a_miss_says_which_choice_costs_most(ladder, large_ridge, why):
    fixed = [1.5 if not large_ridge or c.ridge > 0.01 else 1.4 for c in tuning.FIXED for _ in tuning.PESSIMISMS]
    methods = dict.fromkeys((FDTR_AUTO, *tuning.LADDERS), 1.3) | {tuning.LADDERS[1]: ladder}
    row = tuning_cells.row_of(CASE, 200, [made_up(methods, fixed=np.array(fixed)) for _ in range(4)])
    [missed] = [sentence for sentence in tuning_cells.describe([row]) if sentence.startswith("Less than 97%")]
    assert f"Most of it is {why}" in missed


def test_the_world_of_eight_actions_is_compared_with_the_best_constant_one():
    row = replace(tuning_cells.row_of(CASE, 200, [made_up() for _ in range(4)]), world="ward")
    [sentence] = tuning_cells._against_constant([row, replace(row, n="500"), replace(row, world="crossed")])
    assert "the best of eight constant actions reaches 25.0%" in sentence
    assert "FDTR (auto) 50.0%: +25.0% (+25.0% to +25.0%)" in sentence


def test_ratios_are_drawn_by_purpose_without_those_that_are_missing():
    charts = pytest.importorskip("experiments.charts")
    row = tuning_cells.row_of(CASE, 200, [made_up() for _ in range(2)])
    others = [
        replace(row, world="far", purpose="confirmation", n="50 to 5000"),
        replace(row, world="flat", purpose="confirmation", ratio=np.nan),
    ]
    drawing = charts.ratios_by_world([row, *others], 0.97).to_dict()
    assert [chart["title"] for chart in drawing["hconcat"]] == ["worlds for design", "worlds for confirmation"]
    assert '"far, (4,2,2,2)"' in json.dumps(drawing)
    assert "flat" not in json.dumps(drawing)
    assert '"at": 97.0' in json.dumps(drawing)


# One replication


@pytest.fixture(scope="module")
def trial() -> Trial:
    return Trial(replace(SMALL, deviation=2.0), (60,), seeds_of(4, 0), fresh=300)


def site_fits(trial: Trial):
    """By site: its place, the study, its patients, the sums of the others, the total and its own summary."""
    drawn, tables = draw(trial)
    study = Study.model_validate(drawn.world.study())
    sites = read(drawn.world, 60, tables[60]).by_site()
    local = {site: fit_local(study, rows) for site, rows in sites.items()}
    total = combine(fit.summary for fit in local.values())
    for place, (site, rows) in enumerate(sites.items()):
        yield drawn, place, study, rows, others_in(study, total, local[site].summary), total, local[site]


def test_methods_and_fixed_settings_are_valued_at_every_site(trial):
    found = tuning.run_trial(trial)
    values, at_sites = found.by_size[60], []
    setting = next(j for j, c in enumerate(tuning.FIXED) if (c.ridge, c.sharing, c.share) == (0.01, 1.0, "reward"))
    for drawn, place, study, rows, others, total, local in site_fits(trial):
        settings = replace(message_settings(study), ridge=0.01)
        fixed = fit_with_each(rows, study.feature_map, settings, others, 1.0, "reward", tuning.PESSIMISMS)
        auto = fit_federated(study, rows, total, local.summary)
        cautious = replace(message_settings(study), ridge=auto.chosen.ridge, pessimism=NoiseUnits(0.1))
        ladder = fit_with_each(
            rows, study.feature_map, cautious, others, auto.chosen.sharing, auto.chosen.share, (NoiseUnits(0.1),)
        )
        q_learning = fit_q_learning(study, rows)["Q-learn (H)"]
        acts = [auto.policy.act, rule_of(ladder[0], study), local.policy.act, q_learning.act]
        expected = drawn.values_at(place, [*acts, *(rule_of(fit, study) for fit in fixed)])
        names = (FDTR_AUTO, tuning.LADDERS[2], LDTR_AUTO, comparison.Q_LEARN_H)
        stood = values.methods[place, [tuning.METHODS.index(name) for name in names]]
        np.testing.assert_allclose(stood, expected[:4], atol=1e-6)
        at_sites.append(expected[4:])
        assert values.sharing[place] == auto.chosen.sharing
        assert values.cautious[place] == auto.choice.usual_care.closer
        # One of the ladder's fits is that of auto itself, which takes one of its pessimisms.
        own = tuning.LADDERS[tuning.PESSIMISMS.index(auto.choice.usual_care.pessimism)]
        assert values.methods[place, tuning.METHODS.index(own)] == values.methods[place, 0]
    of_setting = values.fixed.reshape(len(tuning.FIXED), -1)[setting]
    np.testing.assert_allclose(of_setting, np.mean(at_sites, axis=0), atol=1e-6)
    known = [drawn.references_at(k) for k in range(2)]
    assert found.references.tolist() == [[r.behaviour, r.constant, r.optimum] for r in known]


def least_by_rows(study: Study, rows, others, candidates) -> Candidate:
    """The least held-out error plus contrast, from the rows themselves: nothing of `fdtr.tuning` but the folds."""
    features, horizon, folds = study.feature_map, study.horizon, tuning_folds(study, rows)
    chunks = [next(iter(rows.step(h).chunks(10**6))) for h in range(horizon)]
    d0, eye, main = features.n_shared, np.eye(features.n_features), features.main_effects
    criterion, ahead = np.zeros(len(candidates)), np.zeros(rows.n_patients)
    for h in reversed(range(horizon)):
        chunk = chunks[h]
        phi, later, target = features.phi(chunk.states, chunk.actions), ahead, chunk.rewards + ahead
        for fold in range(5):
            train, test = folds != fold, folds == fold
            own = phi[train]

            def held_out(candidate, own=own, train=train, test=test, later=later, phi=phi, target=target, h=h):
                w, by_value = candidate.sharing, candidate.share == "value"
                alone = own.T @ own + candidate.ridge * eye
                together, right = alone.copy(), own.T @ (target if by_value else chunks[h].rewards)[train]
                together[:d0, :d0] += w * others.schur[h]
                right[:d0] += w * (others.schur_moment if by_value else others.schur_reward)[h]
                theta = np.linalg.solve(together, right)
                if not by_value:
                    theta = theta + np.linalg.solve(alone, own.T @ later[train])
                contrast = target[test] - phi[test][:, ~main] @ theta[~main]
                effects = np.linalg.lstsq(phi[test][:, main], contrast, rcond=None)[0]
                residual = contrast - phi[test][:, main] @ effects
                return np.sum((target[test] - phi[test] @ theta) ** 2) + np.sum(residual**2)

            criterion += [held_out(candidate) for candidate in candidates]
        plain = np.linalg.solve(phi.T @ phi + 1e-5 * eye, phi.T @ target)
        by_action = [features.phi(chunk.states, np.full(rows.n_patients, a)) @ plain for a in range(features.n_actions)]
        ahead = np.clip(np.max(by_action, axis=0), 0.0, horizon - h)
    return candidates[int(criterion.argmin())]


@pytest.mark.parametrize("deviation", [0.5, 2.0])  # sites where either criterion alone, or another V_ref, differs
def test_the_rule_before_is_the_least_error_plus_contrast_of_143_candidates(trial, deviation):
    assert len(set(tuning.CANDIDATES_BEFORE)) == 143
    for _, _, study, rows, others, _, _ in site_fits(
        replace(trial, spec=replace(SMALL, n_sites=4, deviation=deviation))
    ):
        fits = tuning._Fits(rows, study, message_settings(study), others)
        assert fits.chosen_before() == least_by_rows(study, rows, others, tuning.CANDIDATES_BEFORE)


def test_the_plain_ladder_takes_one_standard_error_and_the_papers_targets(trial):
    for _, _, study, rows, others, _, _ in site_fits(replace(trial, spec=replace(SMALL, n_sites=4))):
        fits = tuning._Fits(rows, study, message_settings(study), others)
        features, folds = study.feature_map, tuning_folds(study, rows)
        papers = fit_with_each(rows, features, fits.settings, others, 1.0, "value", (0.0005,))[0]
        sums = sum_folds(rows, features, folds, [papers.bounds])
        scores = score(sums, others, features.n_shared, features.main_effects, candidates_of())
        criterion = scores.error + scores.contrast
        best = criterion[criterion.sum(axis=1).argmin()]
        for rung in range(0, len(criterion), 3):  # three λ on each rung
            place = rung + criterion[rung : rung + 3].sum(axis=1).argmin()
            difference = criterion[place] - best
            if difference.sum() <= np.sqrt(5) * difference.std(ddof=1):
                break
        assert fits.chosen_plainly() == scores.candidates[place]


# Worlds


def test_hard_cases_are_few_and_each_has_one_purpose():
    hard, plan = comparison.hard_cases(), tuning.plan_of()
    assert sum(len(case.sizes or plan.sizes) for case in hard) <= 60
    assert {case.purpose for case in hard} == {"design", "confirmation"}
    assert len({case.called for case in hard}) == len(hard)
    assert len({case.number for case in plan.cases}) == len(plan.cases)
    seeds = {trial.seeds.spawn_key for trial in plan.trials()}
    assert len(seeds) == len(plan.trials()) == 20 * len(plan.cases)
    assert len({trial.key for trial in plan.trials()}) == len(seeds)
    design, confirmation = ({c.number for c in hard if c.purpose == p} for p in ("design", "confirmation"))
    assert not design & confirmation


def test_hard_cases_have_the_sizes_of_their_sites():
    for case in comparison.hard_cases():
        sites = int(case.shape.strip("()").split(",")[-1])
        assert all(isinstance(n, int) or len(n) == sites for n in case.sizes or ())


# What is kept, and the command


def test_an_outcome_is_read_back_as_it_was():
    size = (50, 120)
    outcome = made_up({FDTR_AUTO: [1.1, 1 / 3]}, size=size, cautious=(True, False))
    again = tuning.Outcome.decode(json.loads(json.dumps(outcome.encode())))
    assert list(again.by_size) == [size]
    assert again.references.tolist() == outcome.references.tolist()
    for field in fields(tuning.Values):
        np.testing.assert_array_equal(
            getattr(again.by_size[size], field.name), getattr(outcome.by_size[size], field.name)
        )


def test_outcomes_with_other_columns_are_not_read(tmp_path, monkeypatch):
    plan = comparison.Plan(3, replications=2, fresh=9, sizes=(200,), cases=[CASE])
    monkeypatch.setattr(tuning, "run_trial", lambda _trial: made_up())
    tuning.run_all(plan, processes=1, keep=tmp_path / "kept")
    before = (tmp_path / "kept").read_text()
    tuning.run_all(plan, processes=1, keep=tmp_path / "kept")
    assert (tmp_path / "kept").read_text() == before
    monkeypatch.setattr(tuning, "METHODS", (*tuning.METHODS, "another"))
    tuning.run_all(plan, processes=1, keep=tmp_path / "kept")
    assert (tmp_path / "kept").read_text().count("\n") == 4


@pytest.fixture
def done(monkeypatch) -> list[Trial]:
    """The trials that were run, each with a made-up outcome."""
    trials: list[Trial] = []

    def run(trial: Trial) -> tuning.Outcome:
        trials.append(trial)
        auto = 1.5 + trial.seeds.spawn_key[-1] / 10 + trial.seeds.spawn_key[-2] / 1000
        return made_up({FDTR_AUTO: auto}, size=trial.sizes[0])

    monkeypatch.setattr(tuning, "run_trial", run)
    return trials


def test_a_run_that_is_kept_is_not_computed_again_and_gives_the_same(tmp_path, done):
    keep, pages, tables = ["--keep", str(tmp_path / "new" / "kept.jsonl")], [], []
    for options, n_done in (([], 6), (keep, 12), ([*keep, "--replications", "2"], 12)):
        words = ["tuning", "--quick", "--processes", "1", *options, "--out", str(tmp_path)]
        result = CliRunner().invoke(command.app, words)
        assert result.exit_code == 0, result.output
        assert len(done) == n_done
        pages.append((tmp_path / "tuning.md").read_text())
        tables.append((tmp_path / "tuning.csv").read_text())
    assert len(set(tables)) == 1
    assert pages[1].startswith('`make reproduce WHAT="tuning --quick"`')
    assert ["after earlier runs" in page for page in pages] == [False, False, True]


@pytest.mark.parametrize("name", ["figure2", "theorems", "evaluation", "effects"])
def test_only_tuning_keeps_outcomes(name, tmp_path):
    assert CliRunner().invoke(command.app, [name, "--keep", str(tmp_path / "kept.jsonl")]).exit_code == 2


def test_hospitals_of_icu_sepsis_are_added_on_request(tmp_path, done, monkeypatch):
    monkeypatch.setattr(comparison, "fetch_icu_sepsis", lambda: None)
    request = command.Request(("tuning",), quick=True, processes=1, icu_sepsis=True)
    against, chosen = command.reproduce("tuning", tmp_path, request)
    tried = [row.world for row in chosen.tables[0].rows]
    assert tried[-2:] == ["ICU-Sepsis", "ICU-Sepsis, planted effect"]
    assert len(tried) == 5
    assert len(against.tables[0].rows) == 5 * len(worlds.RIVALS)
    assert {path.name for path in tmp_path.glob("*.md")} == {"tuning.md", "worlds.md"}
    assert len(done) == 10


# The page of worlds


def test_a_loss_beyond_what_is_allowed_is_named():
    rng = np.random.default_rng(3)
    fine = [made_up({FDTR_AUTO: 1.5 + x}) for x in rng.normal(0, 0.01, 40)]
    lost = [made_up({FDTR_AUTO: 1.4 + x}) for x in rng.normal(0, 0.01, 40)]
    rows = [worlds.rows_of(CASE, (200,), outcomes) for outcomes in (fine, lost)]
    assert [row.against for row in rows[0]] == list(worlds.RIVALS)
    assert all(row.holds for row in rows[0])
    assert not any(row.holds for row in rows[1])
    assert [row.difference for row in rows[1]] == pytest.approx([-10.0] * 2, abs=0.5)
    assert rows[1][0].reached == pytest.approx(0.4, abs=0.005)
    assert sum("Missed" in sentence for sentence in worlds._describe([*rows[0], *rows[1]])) == 2


def test_the_page_of_worlds_leaves_few_patients_out():
    plan = comparison.Plan(3, replications=2, fresh=9, sizes=(50, 200))
    outcomes = [tuning.Outcome(made_up(size=50).by_size | made_up().by_size, made_up().references) for _ in range(2)]
    unequal = replace(CASE, number=8, sizes=((50, 800),))
    finding = worlds.find(plan, [(CASE, outcomes), (unequal, [made_up(size=(50, 800))] * 2)])
    assert [row.n for row in finding.tables[0].rows] == ["200", "200", "50 to 800", "50 to 800"]
