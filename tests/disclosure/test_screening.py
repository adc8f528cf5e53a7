"""Screening: a site whose rows are not looked at one by one sends what it would send if they were."""

import tracemalloc
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fdtr.container import temporary
from fdtr.disclosure import rare_outcomes, rule_leverage, screening, weighted_sums
from fdtr.disclosure.patient_evidence import EvidenceSums
from fdtr.disclosure.rule_once import Draws
from fdtr.disclosure.step_scan import Largest
from fdtr.disclosure.weighted_step import StepPlan
from fdtr.disclosure.weighted_sums import weigh
from fdtr.site import partition_table
from fdtr.site.fitting import fit_message
from fdtr.site.rows import read_trajectories
from random_tables import make_study

pytestmark = pytest.mark.quick

ONE_BLOCK = {"levels": [0, 1, 2], "degree": 1}
WARD = {"name": "ward", "effect": "shared", "basis": {"kind": "categorical", "levels": [1, 2, 3]}}
SHARED = [{"name": "u", "effect": "shared"}, {"name": "v", "effect": "shared"}, {"name": "x"}]


@pytest.fixture(autouse=True, scope="module")
def _small_steps_too():
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(screening, "FEWEST", 1)
        yield


@dataclass(frozen=True)
class World:
    """How a table of `n` patients is made; `far` patients have another u than all others at `far_steps` steps."""

    n: int = 600
    horizon: int = 2
    outcome: str = "uniform"
    far: int = 0
    far_steps: int = 1
    rare_action: int = 0
    rare_last: bool = False
    ward: float | None = None
    ragged: bool = False
    one_block: bool = False
    membership: float = 0.8
    secure: bool = False
    seed: int = 0

    @property
    def study(self):
        disclosure = {"max_membership": self.membership}
        return make_study(
            horizon=self.horizon,
            covariates=[WARD, *SHARED] if self.ward is not None else SHARED,
            ends={"death": 0.0, "home": 1.0} if self.ragged else {},
            disclosure=disclosure | ({"secure_sum": True, "max_patients": 5000} if self.secure else {}),
            **({"actions": ONE_BLOCK} if self.one_block else {}),
        )

    def table(self):
        rng, n, horizon = np.random.default_rng([self.seed, 7]), self.n, self.horizon
        length = rng.integers(1, horizon + 1, n) if self.ragged else np.full(n, horizon)
        length[: n // 2] = horizon
        patient, step = np.repeat(np.arange(n), length), np.concatenate([np.arange(size) for size in length])
        rows = len(patient)
        u = rng.random(rows) * (0.1 if self.far else 1.0)
        u[(patient < self.far) & (step < self.far_steps)] = 1.0
        rare = patient >= n - self.rare_action if self.rare_last else patient < self.rare_action
        columns = {
            "patient": np.char.add("p", np.char.zfill(patient.astype(str), 6)),
            "step": step,
            "action": np.where(rare, 2, rng.integers(0, 2 if self.rare_action else 3, rows)),
            "reward": OUTCOMES[self.outcome](rng, rows),
            "u": u,
            "v": rng.random(rows),
            "x": rng.random(rows),
        }
        if self.ward is not None:
            columns["ward"] = np.where(rng.random(rows) < self.ward, 3.0, 1.0 + rng.integers(0, 2, rows))
        if self.ragged:
            last = step == length[patient] - 1
            columns["end"] = pa.array(np.where(rng.random(rows) < 0.5, "home", "death"), mask=~last)
        return pa.table(columns)


OUTCOMES = {
    "uniform": lambda rng, n: rng.random(n),
    "normal": lambda rng, n: np.clip(rng.normal(0.5, 0.1, n), 0, 1),
    "even": lambda rng, n: (rng.random(n) < 0.5) * 1.0,
    "three": lambda rng, n: rng.integers(0, 3, n) / 2,
    "often": lambda rng, n: (rng.random(n) < 0.2) * 1.0,
    "rare": lambda rng, n: (np.arange(n) % 97 == 0) * 1.0,
    "one": lambda rng, n: np.where(np.arange(n) == 5, 1.0, 0.1 * rng.random(n)),
    "skewed": lambda rng, n: np.minimum(rng.lognormal(-4, 1.2, n), 1.0),
    "constant": lambda rng, n: np.full(n, 0.5),
}


def steps_and_message(world, monkeypatch, screened=True, rows=None):
    """The steps of a message, as they were in the end, and its weighted sums."""
    study, plans, original = world.study, [], weighted_sums.judge_step
    rows = read_trajectories(world.table(), study, site="a") if rows is None else rows
    draws = Draws(np.random.default_rng([world.seed, 1]).random((rows.horizon, rows.n_patients)))
    with monkeypatch.context() as patched:
        patched.setattr(weighted_sums, "judge_step", lambda plan: plans.append(plan) or original(plan))
        if not screened:
            patched.setattr(weighted_sums, "screen", lambda plan: None)
        weighted = weigh(rows, study.feature_map, fit_message(study, rows).fit, study.rules_among(3), draws)
    return sorted(plans, key=lambda plan: plan.number), weighted


def require_same(weighted, other):
    assert weighted.kept == other.kept
    assert weighted.verdicts == other.verdicts
    assert weighted.leverage == pytest.approx(other.leverage, rel=1e-12)
    for name, array in weighted.sums.packed().items():
        np.testing.assert_allclose(array, other.sums.packed()[name], rtol=1e-12, atol=1e-12, err_msg=name)


CASES = {
    "by far": (World(n=1500), "screened screened"),
    "normal": (World(n=1500, outcome="normal"), "screened screened"),
    "even": (World(n=1500, outcome="even"), "screened screened"),
    "three values": (World(n=1500, outcome="three", one_block=True), "screened screened"),
    "often": (World(n=1500, outcome="often"), "screened screened"),
    "constant": (World(n=1500, outcome="constant"), "screened screened"),
    "ragged": (World(n=1500, horizon=3, ragged=True), "screened screened screened"),
    "rare action": (World(n=1500, rare_action=9), "screened screened"),
    "many alike": (World(n=9000, ward=0.01), "screened screened"),
    "few at an action": (World(n=4000, rare_action=40), "people people"),
    "one step": (World(n=20_000, horizon=3, far=1), "people people people"),
    "ragged and far": (World(n=20_000, horizon=3, ragged=True, far=2), "people people people"),
    "skewed and far": (World(n=20_000, outcome="skewed", far=1), "people people"),
    "all steps": (World(n=1500, horizon=3, far=1, far_steps=3, membership=0.7), "everybody everybody everybody"),
    "one far outcome": (World(n=1500, outcome="one"), "screened everybody"),
    "rare outcomes": (World(n=300, outcome="rare"), "everybody everybody"),
    "low membership": (World(n=900, membership=0.55), "everybody everybody"),
    "few": (World(n=66), "everybody everybody"),
    "secure": (World(n=1500, secure=True), "everybody everybody"),
}


def looked_at(plan):
    """Whose rows of a step were looked at by themselves."""
    return "screened" if plan.screened else "everybody" if plan.people is None else "people"


@pytest.mark.parametrize("name", CASES)
def test_a_screened_site_sends_the_same(monkeypatch, name):
    world, expected = CASES[name]
    plans, weighted = steps_and_message(world, monkeypatch)
    assert [looked_at(plan) for plan in plans] == expected.split()
    for plan in plans:
        of_rows = [vars(plan)[field] for field in ("actions", "weights", "drawn", "measured") if field in vars(plan)]
        most = {"screened": 0, "people": world.n / 4, "everybody": world.n}[looked_at(plan)]
        assert max((array.shape[-1] for array in of_rows), default=0) <= most
    others, looked_closer = steps_and_message(world, monkeypatch, screened=False)
    assert {looked_at(plan) for plan in others} == {"everybody"}
    require_same(weighted, looked_closer)
    if "people" in expected and world.far:
        assert sum(weighted.kept.lighter)


def test_small_steps_are_not_screened_and_their_patients_are_among_the_people(monkeypatch):
    monkeypatch.setattr(screening, "FEWEST", 13_000)
    world = World(n=20_000, horizon=4, ragged=True, far=2)
    monkeypatch.setattr(rule_leverage, "_MOST_PEOPLE", 0.9)
    plans, weighted = steps_and_message(world, monkeypatch)
    assert [looked_at(plan) for plan in plans] == ["people"] * 3 + ["everybody"]
    assert all(len(plan.places) > plans[3].step.n for plan in plans[:3])
    require_same(weighted, steps_and_message(world, monkeypatch, screened=False)[1])


def test_where_others_than_the_people_tell_much_everybody_is_looked_at(monkeypatch):
    """Whoever is not among the suspects is found on the way, and what was done before stays."""
    world, asked = World(n=20_000, horizon=3, far=3), []
    monkeypatch.setattr(rule_leverage, "suspects", lambda plan, *_: asked.append(plan.number) or np.array([1]))
    plans, weighted = steps_and_message(world, monkeypatch)
    assert asked
    assert {looked_at(plan) for plan in plans} == {"everybody"}
    require_same(weighted, steps_and_message(world, monkeypatch, screened=False)[1])


def test_rows_that_are_left_out_have_no_leverage_in_the_sums(monkeypatch):
    """Also where they came to hand only after the rest: the largest leverage is what a person agrees to."""
    world = World(n=6000, horizon=3, far=1, rare_action=9, rare_last=True)
    monkeypatch.setattr(rule_leverage, "suspects", lambda plan, *_: np.array([1]))
    plans, weighted = steps_and_message(world, monkeypatch)
    assert {looked_at(plan) for plan in plans} == {"everybody"}
    assert all(plan.left_out for plan in plans)
    others = steps_and_message(world, monkeypatch, screened=False)[1]
    require_same(weighted, others)
    assert weighted.leverage == pytest.approx(others.leverage, rel=1e-9)


@given(
    st.builds(
        World,
        n=st.integers(60, 900),
        horizon=st.integers(1, 3),
        outcome=st.sampled_from(sorted(OUTCOMES)),
        far=st.sampled_from([0, 0, 1, 3, 14]),
        far_steps=st.integers(1, 3),
        rare_action=st.sampled_from([0, 0, 5, 40]),
        ward=st.sampled_from([None, 0.02, 0.3]),
        ragged=st.booleans(),
        one_block=st.booleans(),
        membership=st.sampled_from([0.6, 0.7, 0.8, 0.95]),
        secure=st.sampled_from([False, False, False, True]),
        seed=st.integers(0, 10**6),
    )
)
@settings(max_examples=40, deadline=None)
def test_whatever_the_table_a_screened_site_sends_the_same(world):
    with pytest.MonkeyPatch.context() as monkeypatch:
        require_same(steps_and_message(world, monkeypatch)[1], steps_and_message(world, monkeypatch, screened=False)[1])


@given(
    st.integers(2, 60).flatmap(
        lambda n: st.tuples(
            arrays(float, (3, n), elements=st.floats(0, 1) | st.sampled_from([0.0, 1.0, 1e-5])),
            arrays(float, n, elements=st.floats(0.5, 1)),
            st.integers(1, n - 1),
        )
    )
)
@settings(max_examples=300, deadline=None)
def test_no_row_tells_more_than_the_bound(drawn):
    values, weights, cut = drawn
    spread = 0.3**2 / 12 / 0.85**2
    parts = [EvidenceSums.of(values[:, part], weights[part]) for part in (slice(cut), slice(cut, None))]
    most = (parts[0] + parts[1]).most(spread)
    assert (most >= EvidenceSums.of(values, weights).evidence(values, weights, spread).max(axis=1)).all()


@pytest.mark.parametrize("outcome", sorted(OUTCOMES))
@pytest.mark.parametrize("one_block", [False, True])
def test_no_more_stand_out_than_are_found_by_looking_at_every_row(monkeypatch, outcome, one_block):
    """And where no more than asked for, just as many; 0 only where nobody does."""
    monkeypatch.setattr(screening, "outcomes_for", lambda _: 0)  # whatever is found
    world = World(n=1500, outcome=outcome, one_block=one_block)
    study, rows = world.study, read_trajectories(world.table(), world.study, site="a")
    fit, draws = fit_message(study, rows).fit, Draws(np.random.default_rng(1).random((2, 1500)))
    for h in range(2):
        plan = StepPlan.of(rows, study.feature_map, fit, h, study.rules, draws)
        screening.screen(plan)
        if not plan.screened:  # nothing could be said of somebody
            continue
        least, most = plan.least.copy(), plan.scan.ends.largest.shape[2]
        marked = rare_outcomes.standing_out(plan)
        for group in np.unique(plan.groups[plan.actions]):
            there = plan.groups[plan.actions] == group
            times = np.unique(plan.measured[0, there], return_counts=True)[1]
            full = np.floor(plan.in_full[:, group] + 1e-9)
            exact = np.array([times.sum() - times.max(), *np.minimum(marked[:, there].sum(axis=1), full)])
            assert (least[:, group] <= exact).all()
            np.testing.assert_array_equal(least[:, group] == 0, exact == 0)
            assert least[0, group] == exact[0] or least[0, group] >= most
            few = exact[3:] < most - 1
            assert (least[3:, group][few] >= exact[3:][few] - 1).all()


class AskedInParts:
    """Draws that remember what was asked for."""

    def __init__(self, n, horizon):
        self._numbers = np.random.default_rng(3).random((horizon, n))
        self.asked = []

    def at(self, step, patients=slice(None)):
        self.asked.append((step, patients.start, patients.stop))
        return self._numbers[step, patients]


def test_weights_are_drawn_once_in_parts_and_no_array_holds_all_rows(monkeypatch, tmp_path):
    monkeypatch.setattr(temporary, "IN_MEMORY", 10_000)
    monkeypatch.setattr("fdtr.learners.accumulate.rows_in_cache", lambda _: 1024)
    world = World(n=9000, horizon=3, ragged=True)
    study = world.study
    rows, draws = partition_table(study, world.table(), tmp_path / "rows", site="a"), AskedInParts(9000, 3)
    features, fit = study.feature_map, fit_message(study, rows).fit
    weighted = weigh(rows, features, fit, study.rules, draws)
    assert {stop - start for _, start, stop in draws.asked} <= set(range(1025))
    for h in range(3):
        starts = [start for step, start, _ in draws.asked if step == h]
        assert starts == list(range(0, rows.step(h).n, 1024))
    with monkeypatch.context() as patched:
        patched.setattr(weighted_sums, "screen", lambda plan: None)
        require_same(weighted, weigh(rows, features, fit, study.rules, draws))


@pytest.mark.parametrize("name", ["ragged", "ragged and far", "one far outcome"])
def test_a_partition_gives_the_same_bits(monkeypatch, tmp_path, name):
    for module in ("partition", "partition_writer"):
        monkeypatch.setattr(f"fdtr.trajectories.{module}.GROUP_ROWS", 512)
    world, expected = CASES[name]
    plans, weighted = steps_and_message(world, monkeypatch)
    rows = partition_table(world.study, world.table(), tmp_path / "rows", site="a")
    on_disk, of_partition = steps_and_message(world, monkeypatch, rows=rows)
    assert [looked_at(plan) for plan in on_disk] == [looked_at(plan) for plan in plans] == expected.split()
    assert of_partition.kept == weighted.kept
    assert of_partition.verdicts == weighted.verdicts
    for field, array in weighted.sums.packed().items():
        np.testing.assert_array_equal(of_partition.sums.packed()[field], array)


@pytest.mark.parametrize("far", [0, 1])
def test_memory_does_not_grow_with_the_number_of_patients(monkeypatch, tmp_path, far):
    """Arrays of numpy, above what the draws hold; four times as many patients take no more than a half more."""
    monkeypatch.setenv("FDTR_THREADS", "1")
    monkeypatch.setattr(temporary, "IN_MEMORY", 50_000)
    for module in ("learners.accumulate", "disclosure.cells", "disclosure.pairs", "disclosure.facts"):
        monkeypatch.setattr(f"fdtr.{module}.rows_in_cache", lambda _: 1024)
    for module in ("partition", "partition_writer"):
        monkeypatch.setattr(f"fdtr.trajectories.{module}.GROUP_ROWS", 1024)
    peaks = []
    for n in (20_000, 80_000):
        world = World(n=n, far=far)
        study = world.study
        rows, draws = partition_table(study, world.table(), tmp_path / f"rows-{n}", site="a"), AskedInParts(n, 2)
        fit = fit_message(study, rows).fit
        tracemalloc.start()
        weigh(rows, study.feature_map, fit, study.rules, draws)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.5 * peaks[0]
    assert peaks[1] < 80_000 * 2 * 8 * 5  # five numbers a row


@given(st.lists(st.lists(st.floats(-5, 5), max_size=9), min_size=1, max_size=6), st.integers(1, 5))
def test_the_largest_of_parts_are_the_largest_of_all(parts, count):
    largest = Largest(2, count)
    for part in parts:
        largest.add(1, largest.among(1, np.array(part)))
    everything = sorted((number for part in parts for number in part), reverse=True)[:count]
    expected = everything + [-np.inf] * (count - len(everything))
    assert sorted(largest.values[1].tolist(), reverse=True) == expected
    assert largest.values[1, 0] == min(expected)


def test_secret_weights_do_not_depend_on_screening(monkeypatch):
    """With another secret both ways of looking give other sums, and again the same ones."""
    world = World(n=1500)
    _, first = steps_and_message(world, monkeypatch)
    other = replace(world, seed=1)
    rows = read_trajectories(world.table(), world.study, site="a")
    _, second = steps_and_message(other, monkeypatch, rows=rows)
    assert not np.allclose(first.sums.schur, second.sums.schur, rtol=1e-6)
    require_same(second, steps_and_message(other, monkeypatch, screened=False, rows=rows)[1])
