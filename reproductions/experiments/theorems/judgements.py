"""What was judged of Theorem 2, by c and by κ: shares of cases with intervals, as rows of tables."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from experiments.intervals import Interval, mean, share
from experiments.theorems.truth import Cell

GOAL = 0.95
"""Share of cases in which a statement has to hold."""


@dataclass(frozen=True, eq=False)
class Judgements:
    """What was judged in one `world` with one λ, by c and, in units of noise, by κ (`noise_cells`).

    `theory` is the c that the proof asks for.
    """

    world: str
    horizon: int
    theory: float
    ridge: float
    cells: Mapping[float, Cell]
    noise_cells: Mapping[float, Cell]

    @property
    def name(self) -> str:
        """World and λ in words."""
        return f"{self.world}, λ = {self.ridge:g}"


@dataclass(frozen=True)
class Row:
    """What every row has: the world, λ, c, and a share of cases with its 95% interval."""

    world: str
    ridge: float
    pessimism: float
    share: float
    low: float
    high: float

    @property
    def interval(self) -> Interval:
        """The share."""
        return Interval(self.share, self.low, self.high)


@dataclass(frozen=True)
class PessimismRow(Row):
    """The share of (run, site) with V̂₁ ≤ V₁^π̂, the mean V̂₁ (`promised`) and V₁^π̂ (`value`), with intervals.

    `states` is the share of first states at which the same holds; `promised_largest` the largest V̂₁ of all;
    `monte_carlo` the mean standard error of V₁^π̂; `best` the mean of V₁*.
    """

    states: float
    promised: float
    promised_low: float
    promised_high: float
    promised_largest: float
    value: float
    value_low: float
    value_high: float
    monte_carlo: float
    best: float


@dataclass(frozen=True)
class EventRow(Row):
    """The confidence event: the share of (run, site, step) in which it holds at every probed pair (x, a).

    `everywhere` is the share in which ‖θ̂ − θ̄‖_Σ ≤ α, so that it holds at every pair there could be; `pairs` the share
    of pairs; `all_steps` the share of (run, site) in which it holds at every step, with its interval.
    """

    everywhere: float
    pairs: float
    all_steps: float
    all_steps_low: float
    all_steps_high: float


@dataclass(frozen=True)
class BoundRow(Row):
    """The share of (run, site) with SubOpt ≤ 2 Σ_h E_π*[Γ_h], and the means of both sides and of their `ratio`.

    `empty` is the share of (run, site) whose bound exceeds H, which any policy keeps. `confident` counts the
    (run, site) in which the confidence event held, and `broken` those of them in which the bound or V̂₁ ≤ V₁^π̂ did not.
    """

    suboptimality: float
    suboptimality_low: float
    suboptimality_high: float
    bound: float
    bound_low: float
    bound_high: float
    ratio: float
    empty: float
    confident: int
    broken: int


@dataclass(frozen=True)
class NoiseRow:
    """One κ: how often V̂₁ ≤ V₁^π̂, the confidence event and the bound of SubOpt hold, with 95% intervals.

    `share` is of (run, site) with V̂₁ ≤ V₁^π̂, `event` of (run, site, step) in which the confidence event holds at every
    probed pair, `bounded` of (run, site) with SubOpt ≤ 2 Σ_h E_π*[Γ_h]. `states`, V̂₁ (`promised`), V₁^π̂ (`value`) and
    V₁* (`best`) are as in `PessimismRow`.
    """

    world: str
    ridge: float
    noise: float
    share: float
    low: float
    high: float
    states: float
    promised: float
    promised_low: float
    promised_high: float
    value: float
    value_low: float
    value_high: float
    best: float
    event: float
    event_low: float
    event_high: float
    bounded: float
    bounded_low: float
    bounded_high: float

    @property
    def interval(self) -> Interval:
        """The share."""
        return Interval(self.share, self.low, self.high)


def pessimism_rows(judged: Judgements) -> list[PessimismRow]:
    """A row for each c."""
    rows = []
    for c, cell in judged.cells.items():
        holds, promised, value = (cell.each(name) for name in ("pessimistic", "promised", "value"))
        rows.append(
            PessimismRow(
                judged.world, judged.ridge, c, *share(holds).ends, float(cell.each("kept").mean()),
                *mean(promised).ends, float(promised.max()), *mean(value).ends,
                float(cell.each("standard_error").mean()), float((value + cell.each("suboptimality")).mean()),
            )
        )  # fmt: skip
    return rows


def event_rows(judged: Judgements) -> list[EventRow]:
    """A row for each c."""
    rows = []
    for c, cell in judged.cells.items():
        inside, everywhere = cell.each("inside"), float(cell.each("everywhere").mean())
        all_steps = share(cell.each("confident")).ends
        rows.append(
            EventRow(
                judged.world, judged.ridge, c, *share(inside == 1.0).ends, everywhere, float(inside.mean()), *all_steps
            )
        )
    return rows


def bound_rows(judged: Judgements) -> list[BoundRow]:
    """A row for each c but 0, whose bound is 0."""
    rows = []
    for c, cell in judged.cells.items():
        if c == 0:
            continue
        suboptimality, bound, confident = (cell.each(name) for name in ("suboptimality", "bound", "confident"))
        bounded = suboptimality <= bound
        broken = confident & ~(bounded & cell.each("pessimistic"))
        rows.append(
            BoundRow(
                judged.world, judged.ridge, c, *share(bounded).ends, *mean(suboptimality).ends, *mean(bound).ends,
                float((suboptimality / bound).mean()), float((bound > judged.horizon).mean()),
                int(confident.sum()), int(broken.sum()),
            )
        )  # fmt: skip
    return rows


def noise_rows(judged: Judgements) -> list[NoiseRow]:
    """A row for each κ."""
    rows = []
    for noise, cell in judged.noise_cells.items():
        value, suboptimality = cell.each("value"), cell.each("suboptimality")
        rows.append(
            NoiseRow(
                judged.world, judged.ridge, noise, *share(cell.each("pessimistic")).ends,
                float(cell.each("kept").mean()), *mean(cell.each("promised")).ends, *mean(value).ends,
                float((value + suboptimality).mean()), *share(cell.each("inside") == 1.0).ends,
                *share(suboptimality <= cell.each("bound")).ends,
            )
        )  # fmt: skip
    return rows


def first_to_reach(shares: Sequence[float], goal: float = GOAL) -> int | None:
    """The place from which on a share is never below `goal`; None where the last one is.

    >>> first_to_reach([0.2, 0.96, 0.94, 0.97, 1.0])
    3
    """
    below = [place for place, share in enumerate(shares) if share < goal]
    first = below[-1] + 1 if below else 0
    return first if first < len(shares) else None
