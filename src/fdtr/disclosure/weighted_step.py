"""One step of a weighted message: what its blocks show, and what the rules take out of them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fdtr.algebra.pessimism import LowerBound
from fdtr.algebra.schur import as_own, eliminate, present, rank_beside
from fdtr.disclosure.blocks import Design, Unit, describe, directions_of
from fdtr.disclosure.cells import Cells, References
from fdtr.disclosure.common_repairs import CommonRepairs
from fdtr.disclosure.pairs import Pair, count_pairs
from fdtr.disclosure.rule_once import Draws
from fdtr.disclosure.rules import Rules, Verdict, counted, numbers_told, outcomes_for, patients_for
from fdtr.disclosure.step_rows import StepRows
from fdtr.disclosure.step_scan import scan_step
from fdtr.errors import RuleCode
from fdtr.features import FeatureMap
from fdtr.learners.backward import Fit
from fdtr.sums import Sums, summarize_step
from fdtr.trajectories import Trajectories

Array = NDArray[np.float64]
Counts = NDArray[np.int64]

WHOLE_STEP = "the whole step"
_ROUNDING = 1e-9


@dataclass(eq=False, kw_only=True)
class StepPlan(StepRows):
    """One step: what its rows show, and what is taken out of them.

    Blocks are named by the position of an action, or None for the whole step; `groups` (A,) maps actions to blocks.
    `gram` is ΦᵀΦ of the exact sums. `absorbed` units and the rows of actions in `left_out` are taken out. `outcomes`
    (G,) counts the patients whose reward is not their group's most common one, or fewer who stand out. `broken` says
    how a rule was broken, `repairs` what it took out, and `withheld_by` which one took out the rest of the step. Sums
    leave times `scale`; `shown`, of each row (n,), is the share of its evidence in the site's own sums that a secure
    sum shows; `shown_by_number`, by which outcomes are judged, what it would be if all sites varied alike, and
    `shown_among_few`, for which they are moved, the same among fewer sites.

    While a step is `screened`, `least` (6, G) counts how many patients have another reward than the most common one,
    and how many stand out by each measure (`rare_outcomes`): exactly where they are few, and otherwise at least so
    many. Else `in_full` (5, G) says how many do so in full, and `differences` (5, n) by how much outcomes as measured
    differ (`limited_outcomes`).
    """

    number: int
    horizon: int
    rules: Rules
    following: LowerBound | None
    design: Design
    groups: NDArray[np.intp]
    pairs: list[Pair]
    outcomes: Counts
    gram: Array
    scale: float = 1.0
    shown: Array | float = 1.0
    shown_by_number: Array | float = 1.0
    shown_among_few: Array | float = 1.0
    absorbed: list[Unit] = field(default_factory=list)
    least: Counts | None = None
    differences: Array | None = None
    in_full: Array = field(default_factory=lambda: np.zeros((0, 0)))
    left_out: set[int] = field(default_factory=set)
    withheld_by: RuleCode | None = None
    largest_leverage: float = 0.0
    broken: dict[RuleCode, Verdict] = field(default_factory=dict)
    repairs: dict[RuleCode, list[str]] = field(default_factory=dict)

    @classmethod
    def of(cls, rows: Trajectories, features: FeatureMap, fit: Fit, h: int, rules: Rules, draws: Draws) -> "StepPlan":
        """Step `h` before anything is taken out; `draws` make the weights of all patients at it."""
        step, exact = rows.step(h), fit.statistics[h]
        used = tuple(int(a) for a in np.flatnonzero(exact.action_counts))
        design = Design(features, used)
        apart = design.by_action or design.separable or not rules.alone
        groups = np.arange(features.n_actions) if apart else np.zeros(features.n_actions, np.intp)
        following = fit.bounds[h + 1] if h + 1 < rows.horizon else None
        scan = scan_step(
            step,
            features,
            following,
            lambda here: 1.0 - rules.jitter * draws.at(h, here),
            groups,
            exact.action_counts,
            design.functions,
            rules.min_cell,
            outcomes_for(rows.horizon * features.n_shared),
        )
        try:
            pairs = count_pairs(step, features, groups, scan.cells, design.functions, references=True)
        except BaseException:
            scan.parked.close()
            raise
        plan = cls(
            number=h,
            horizon=rows.horizon,
            step=step,
            features=features,
            rules=rules,
            following=following,
            design=design,
            groups=groups,
            scan=scan,
            pairs=pairs,
            outcomes=np.zeros(len(scan.cells.n), np.int64),
            gram=exact.gram,
        )
        plan.products = scan.products
        return plan

    # What is left in the blocks.

    @property
    def withheld(self) -> bool:
        """Whether nothing of the step is sent."""
        return self.withheld_by is not None

    @property
    def blocks(self) -> list[int | None]:
        """Blocks whose rows count."""
        return list(self.kept_actions) if self.design.by_action else [None] * bool(self.kept_actions)

    @property
    def kept_actions(self) -> list[int]:
        """Actions whose rows count."""
        return [] if self.withheld else [a for a in self.design.used if a not in self.left_out]

    @property
    def groups_kept(self) -> list[tuple[int, int | None]]:
        """Groups of patients in which cells are counted, each with the block that it belongs to."""
        if self.design.separable:
            return [(action, None) for action in self.kept_actions] if self.blocks else []
        return [(0 if block is None else block, block) for block in self.blocks]

    @property
    def cells(self) -> Cells:
        """Counts in each column, as of all rows."""
        return self.scan.cells

    @property
    def references(self) -> References:
        """Patients at reference levels."""
        return self.scan.references

    def groups_in(self, block: int | None) -> list[int]:
        """Groups of the patients of a block whose rows count."""
        actions = self.kept_actions if block is None else [block]
        return np.unique(self.groups[actions]).tolist() if actions else []

    def patients(self, block: int | None) -> int:
        """n_a, the true number of patients of a block."""
        if block is None and len(self.cells.n) > 1:
            return int(self.cells.n[self.kept_actions].sum())
        return int(self.cells.n[0 if block is None else block])

    @property
    def n(self) -> int:
        """Patients whose rows count."""
        return sum(self.patients(block) for block in self.blocks)

    @property
    def limited(self) -> NDArray[np.bool_]:
        """Patients (n,) whose rows count, and of whose outcomes a part is left out."""
        changed: NDArray[np.bool_] = (self.outcomes_sent != self.measured).any(axis=0)
        return changed & self.rows_of(None)

    @property
    def n_limited(self) -> int:
        """How many are `limited`."""
        return 0 if self.screened else int(self.limited.sum())

    @property
    def n_lighter(self) -> int:
        """How many are `lighter`."""
        return 0 if self.screened else int(self.lighter.sum())

    @property
    def lighter(self) -> NDArray[np.bool_]:
        """Patients (n,) whose rows count, but less than their weights were drawn."""
        return (self.weights < self.drawn * (1 - _ROUNDING)) & self.rows_of(None)

    @cached_property
    def schur(self) -> tuple[Array, Array]:
        """S before anything is taken out, and Λ00, over the rows that count."""
        gram, d0 = self.products.assembled(self.kept_actions)[0], self.features.n_shared
        return eliminate(gram, np.zeros((len(gram), 0)), d0).schur, gram[:d0, :d0]

    def rank(self, block: int | None) -> int:
        """r, the directions that are left of the shared features in a block."""
        if ("rank", block) not in self.remembered:
            within = [unit for unit in self.absorbed if block is None or unit.action == block]
            self.remembered["rank", block] = self._rank(self.design.within(block), within)
        return int(self.remembered["rank", block])

    def rank_left(self) -> int:
        """The directions that are left at the whole step."""
        if "rank left" not in self.remembered:
            self.remembered["rank left"] = self._rank(self.design.units, self.absorbed) if self.blocks else 0
        return int(self.remembered["rank left"])

    def _rank(self, units: Sequence[Unit], absorbed: Sequence[Unit]) -> int:
        schur, reference = self.schur
        extend = as_own(schur, directions_of(absorbed, len(schur)))
        rest = eliminate(extend.T @ schur @ extend, np.zeros((extend.shape[1], 0)), len(schur)).schur
        left = present(directions_of([unit for unit in units if unit not in absorbed], len(schur)), reference)
        return rank_beside(left.T @ rest @ left, left.T @ reference @ left)

    @cached_property
    def shares(self) -> Array:
        """p/n_a of the block of each action, (A,); 0 where its rows do not count."""
        shares = np.zeros(self.features.n_actions)
        for block in self.blocks:
            told = self._numbers(self.rank(block)) / self.patients(block)
            if self.design.partly:
                told += self._numbers(self.rank_left()) / self.n
            shares[slice(None) if block is None else block] = told
        if self.design.separable:  # what can be told of one action, where it is more
            told_apart = self._numbers(self._functions_left())
            for action in self.kept_actions:
                shares[action] = max(shares[action], told_apart / self.cells.n[action])
        shares[[a for a in range(len(shares)) if a not in self.kept_actions]] = 0.0
        return shares

    def _functions_left(self) -> int:
        """Shared functions that are not taken out of a step with one block; at most its rank."""
        left = sum(unit not in self.absorbed for unit in self.design.units)
        return min(left, self.rank(None))

    def _numbers(self, rank: int) -> float:
        return numbers_told(rank, last=self.number == self.horizon - 1)

    # Repairs.

    def take_out(self, block: int | None, functions: tuple[int, ...], rule: RuleCode) -> None:
        """Take a function out of a block; one whose effect is the same at every action goes out of the step.

        Several functions stand for the reference level of their covariate.
        """
        for unit in (*self.design.units, *self.design.references):
            if unit.functions == functions and unit.action in (block, None) and unit not in self.absorbed:
                self.absorbed.append(unit)
                self.forget("shares")
                self._record(rule, describe(self.features, unit))

    def take_out_last(self, block: int | None, rule: RuleCode) -> bool:
        """Take out the last function that is left in a block; whether there was one.

        With None it is one whose effect is the same at every action, if there is any.
        """
        left = [unit for unit in self.design.within(block) if unit not in self.absorbed]
        if left:
            unit = next((unit for unit in reversed(left) if unit.action == block), left[-1])
            self.take_out(unit.action, unit.functions, rule)
        return bool(left)

    def leave_out(self, action: int, rule: RuleCode) -> None:
        """Leave out the rows of an action."""
        self.left_out.add(action)
        self.forget("shares", "schur")
        self._record(rule, f"all patients at action {self.features.levels[action]:g}")

    def _record(self, rule: RuleCode, what: str) -> None:
        """Note what a rule took out; the rule that took out something last comes last."""
        self.repairs[rule] = [*self.repairs.pop(rule, []), what]

    def leave_out_emptied(self) -> None:
        """Leave out blocks of which repairs left nothing, and withhold the step if too few patients are left.

        The rule that took out the last of it says why. A step that has nothing to tell, whatever the rules, is not
        emptied by them.
        """
        for block in self.blocks:
            touched = any(block is None or unit.action in (block, None) for unit in self.absorbed)
            main = self.design.partly and self.rank_left() > 0  # effects that are the same at every action
            emptied = touched and self.rank(block) == 0 and not main
            if emptied and block is not None:
                self.leave_out(block, self._took_out_last)
            elif emptied:
                self.withhold(self._took_out_last)
        if self.rules.alone and not self.withheld and self.n < self.rules.min_patients:
            if self.n or not self.repairs:
                self._note_patients(f"{counted(self.n)} {'is' if self.n == 1 else 'are'} left", self.n)
            self.withhold("N" if self.n or not self.repairs else self._took_out_last)

    @property
    def _took_out_last(self) -> RuleCode:
        return list(self.repairs)[-1]

    def require_patients(self, least: int) -> None:
        """Withhold a step of too few patients."""
        if self.step.n < least:
            self.note("N", counted(self.step.n), f"at least {least}", least / max(self.step.n, 1))
            self.withhold("N")

    def leave_out_rare_actions(self) -> None:
        """Leave out the rows of actions with few patients.

        Of a separable step these are all with too few for its functions, which cannot be taken out of one action.
        """
        if not (self.design.by_action or self.design.separable):
            return
        needed = self.rules.min_action
        if self.design.separable and self.blocks:
            needed = max(needed, patients_for(self._functions_left()))
        for action in self.kept_actions:
            n = int(self.cells.n[action])
            if n < needed:
                self.note("ACTION", f"{counted(n)}{self.at(action)}", f"none or at least {needed}", needed / n)
                self.leave_out(action, "ACTION")

    def repair_directions(self) -> None:
        """Take functions out of blocks with few patients for what is shared; main effects out of the step."""
        for block in self.blocks:
            n, rank = self.patients(block), self.rank(block)
            self._note_directions(n, rank, self.at(block))
            while n < patients_for(self.rank(block)):
                self.take_out_last(block, "ACTION")
        if self.design.partly:
            self._note_directions(self.n, self.rank_left(), "")
            while self.n < patients_for(self.rank_left()):
                self.take_out_last(None, "ACTION")

    def rows_of(self, block: int | None) -> NDArray[np.bool_]:
        """Which rows are those of a block, (n,)."""
        kept: NDArray[np.bool_] = np.isin(self.actions, self.kept_actions) if block is None else self.actions == block
        return kept

    def withhold(self, rule: RuleCode) -> None:
        """Take out what is left of the step."""
        self.withheld_by = rule
        self.forget("shares", "schur")
        self._record(rule, WHOLE_STEP)

    def apply(self, common: CommonRepairs) -> None:
        """Take out what all sites of a secure sum take out; `repairs` stay the site's own."""
        own = dict(self.repairs)
        for step, action, functions in common.functions:
            if step == self.number:
                for block in [None, *self.blocks] if action is None else [action]:
                    self.take_out(block, functions, "SITES")
        for step, action in common.blocks:
            if step == self.number and action in self.kept_actions:
                self.leave_out(action, "SITES")
        if self.number in common.steps and not self.withheld:
            self.withhold("SITES")
        self.repairs = own
        self.forget("products")

    # What is sent, and what is noted.

    def summarize(self) -> Sums:
        """The sums that are left; n is the true number of patients in them."""
        d0, d = self.features.n_shared, self.features.n_features
        if not self.blocks:
            return summarize_step(np.zeros((d, d)), np.zeros(d), np.zeros(d), 0.0, 0, d0)
        absorbed = directions_of(self.absorbed, d0) if self.absorbed else None
        sums = summarize_step(*self.products.assembled(self.kept_actions), self.n, d0, absorbed)
        return sums.times(self.scale)  # and not the weights: σ̂² has a floor

    def note(self, rule: RuleCode, measured: str, required: str, excess: float) -> None:
        """Remember how a rule was broken, where it was missed by most."""
        before = self.broken.get(rule)
        if before is None or excess > before.excess:
            self.broken[rule] = Verdict(rule, self.number, False, measured, required, "repair", excess=excess)

    def _note_patients(self, measured: str, n: int) -> None:
        self.note("N", measured, self._at_least_patients, self.rules.min_patients / max(n, 1))

    def _note_directions(self, n: int, rank: int, where: str) -> None:
        if n < patients_for(rank):
            measured = f"{counted(n)} for {rank} independent shared features{where}"
            self.note("ACTION", measured, f"at least {patients_for(rank)}", patients_for(rank) / max(n, 1))

    def at(self, block: int | None) -> str:
        """Where a block is, in words; empty for the whole step."""
        return "" if block is None else f" at action {self.features.levels[block]:g}"

    @property
    def at_least_cell(self) -> str:
        """What rules on cells ask for, in words."""
        return f"none or at least {self.rules.min_cell}"

    @property
    def _at_least_patients(self) -> str:
        return f"at least {self.rules.min_patients}"
