"""A site's message of sums: `release` alone makes one, after the disclosure rules hold."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from fdtr.disclosure.masked_counts import SiteCounts
from fdtr.disclosure.rule_once import NOTHING_OF_A_RECEIVER
from fdtr.disclosure.rules import STAND_OUT, Rules, StepFacts, Verdict, judge, up_to_tens, withheld_steps
from fdtr.errors import DisclosureError, RuleCode
from fdtr.summary import SiteSummary
from fdtr.sums import Sums

_MADE_HERE = object()


@dataclass(frozen=True)
class TakenOut:
    """What a `rule` takes out of a step, in words. In a secure sum `totals` says what all sites together fell short of.

    It is empty for what the site's own sums break.
    """

    step: int
    rule: RuleCode
    what: tuple[str, ...]
    totals: str = ""

    def __str__(self) -> str:
        return f"{', '.join(self.what)} ({self.rule}{f' of all sites together: {self.totals}' if self.totals else ''})"


@dataclass(frozen=True)
class Kept:
    """What is left of the shared features in a message, step by step, beside a message without rules.

    `rank` and `possible_rank` count independent directions; `efficiency` is the share of information that is left, a
    mean over the possible directions. `taken_out` is all that repairs took out, in the order of steps. `limited` counts
    patients of whose outcomes a part is left out, `lighter` those whose rows count less, step by step.
    """

    rank: tuple[int, ...]
    possible_rank: tuple[int, ...]
    efficiency: tuple[float, ...]
    taken_out: tuple[TakenOut, ...] = ()
    limited: tuple[int, ...] = ()
    lighter: tuple[int, ...] = ()

    @property
    def whole(self) -> bool:
        """Whether nothing was taken out, limited or made lighter."""
        return self.share == 1.0 and not (self.taken_out or any(self.limited) or any(self.lighter))

    @property
    def lines(self) -> list[str]:
        """What was taken out, one line a step."""
        by_step: dict[int, list[str]] = {}
        for part in self.taken_out:
            by_step.setdefault(part.step, []).append(str(part))
        return [f"Step {step} leaves out {'; '.join(parts)}." for step, parts in by_step.items()]

    @property
    def share(self) -> float:
        """Σ rank / Σ possible rank; 1 where nothing could be told."""
        return sum(self.rank) / sum(self.possible_rank) if sum(self.possible_rank) else 1.0


@dataclass(frozen=True)
class WeightedSums:
    """Weighted sums that the rules of every block let out, as `disclosure.weighted_sums` makes them; counts are true.

    `verdicts` are on the sums before they were repaired; `leverage` is the largest of one row in what is left; `counts`
    are those of a secure sum, None where they are not due.
    """

    sums: Sums
    verdicts: tuple[Verdict, ...]
    leverage: float
    kept: Kept
    counts: SiteCounts | None = None


@dataclass(frozen=True)
class Message:
    """A site's summary that passed the rules. Only `release` makes one, and only `summary` may be sent.

    `verdicts` and the largest `leverage` of one patient must not leave the site. `kept` says how much repairs left of
    what the sums could have told; None for a message without weights, which is not repaired. `counts` are what a
    secure sum is judged on, before it is known what all sites take out; None for any other message.
    """

    summary: SiteSummary
    verdicts: tuple[Verdict, ...] = field(repr=False)
    leverage: float = field(repr=False)
    maker: object = field(repr=False)
    kept: Kept | None = None
    counts: SiteCounts | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.maker is not _MADE_HERE:
            raise TypeError("A Message is made by disclosure.release and by nothing else.")

    @property
    def withheld(self) -> list[int]:
        """Steps that are sent as zeros."""
        return withheld_steps(self.verdicts)

    @property
    def lost(self) -> str:
        """A sentence on steps whose information is lost to noise; empty if there are none."""
        if not self.summary.noised:
            return ""
        absorbed = {verdict.step for verdict in self.verdicts if verdict.warns}
        return lost_to_noise(self.summary, absorbed)


def lost_to_noise(noised: SiteSummary, absorbed: Collection[int | None] = ()) -> str:
    """A sentence on the steps at which noise left nothing of a summary; empty if there are none.

    `absorbed` are the steps at which the exact sums hold nothing either.
    """
    sums = noised.sums
    lost = [h for h in range(sums.horizon) if sums.n[h] and not sums.schur[h].any() and h not in absorbed]
    if not lost or not sums.n_shared:
        return ""
    steps = f"step{'s' * (len(lost) > 1)} {', '.join(map(str, lost))}"
    return (
        f"the noise left nothing of the shared effects at {steps}; nothing would be learnt from this message there. "
        "A larger epsilon in the study, or more patients, would leave more."
    )


Once = Callable[[SiteSummary], Verdict]
"""Rule ONCE: the ledger's verdict on a summary as it would be sent."""


def release(summary: SiteSummary, facts: Sequence[StepFacts], rules: Rules, once: Once | None = None) -> Message:
    """Make a message that may be sent from a summary, or refuse with every reason.

    `facts` are those of the rows that the summary was made from, step by step. If the study withholds steps that break
    a rule, they are left out; if none would remain, the message is refused. Numbers of patients of weighted sums are
    rounded up to tens.
    """
    verdicts = judge(facts, rules)
    withheld = withheld_steps(verdicts)
    sent = [step for step in range(len(facts)) if step not in withheld]
    counted = summary.sums.n.tolist()
    if len(counted) != len(facts) or any(counted[step] != facts[step].n for step in sent):
        raise ValueError("The facts are not those of the summary's own steps.")
    if (summary.grams is not None) != (rules.payload == "gram"):
        raise ValueError("The rules are not those of what the summary would send.")
    if rules.noised and not summary.noised:
        raise ValueError("The study asks for noise that the summary does not carry.")
    shown = summary.without(withheld) if withheld else summary
    if rules.weighted:
        shown = with_weights(shown, shown.sums, rules)
    verdicts += [once(shown)] if once is not None else []
    broken = [verdict for verdict in verdicts if verdict.refuses or (verdict.withholds and not sent)]
    if broken:
        raise DisclosureError(broken[0].rule, refusal(summary.site, broken))
    leverage = max((facts[step].leverage for step in sent), default=0.0)
    return Message(shown, tuple(verdicts), leverage, _MADE_HERE)


def with_weights(summary: SiteSummary, sums: Sums, rules: Rules) -> SiteSummary:
    """A summary with weighted `sums`, as it leaves: numbers of patients are rounded up to tens."""
    n = np.array([float(up_to_tens(count)) for count in sums.n])
    return replace(summary, sums=replace(sums, n=n), mean_weight=1.0 - rules.jitter / 2)


def release_weighted(
    summary: SiteSummary, weighted: WeightedSums, rules: Rules, once: Once | None = None, *, counted: bool = False
) -> Message:
    """Make a message of weighted, repaired sums in place of those of the exact `summary`, or refuse with every reason.

    Numbers of patients are rounded up to tens. `once` judges the message by the ledger. Refused is only what no repair
    helps, and a message with nothing left that could have told something; but not what a site sends after its counts
    were opened, `counted`, because the others then wait for it: it sends zeros.
    """
    sent = with_weights(summary, weighted.sums, rules)
    verdicts = [*weighted.verdicts, *([once(sent)] if once is not None else [])]
    nothing = not counted and (not weighted.kept.share or not sent.sums.n.any())
    broken = [v for v in verdicts if v.refuses or (nothing and (v.withholds or v.repaired))]
    if broken:
        raise DisclosureError(broken[0].rule, refusal(summary.site, broken))
    return Message(sent, tuple(verdicts), weighted.leverage, _MADE_HERE, weighted.kept, weighted.counts)


def refusal(site: str, broken: Sequence[Verdict], what: str = "sums") -> str:
    """The refusal with every broken rule. It holds counts of patients, so it must not leave the site."""
    return (
        f"Site {site!r} may not release its {what}:\n"
        + "\n".join(f"  {verdict.sentence}" for verdict in broken)
        + f"\nNothing was written. {_what_next(broken, what)} Do not forward this message."
    )


def _what_next(broken: Sequence[Verdict], what: str) -> str:
    """What a site may do whose release is refused."""
    if any(verdict.asked == NOTHING_OF_A_RECEIVER for verdict in broken):
        return (
            "Go on receiving: `fdtr site next` in the study's folder, or `fdtr site fit --receive-only`, finishes this "
            "site's policy from the others' total."
        )
    if any(verdict.rule == "LEVERAGE" and verdict.refuses and verdict.step is None for verdict in broken):
        return "Go on without this site in a new round (`fdtr hub new-round`), or let it receive only."
    advice = "Merge levels, drop covariates or steps in the study, wait for more patients, or receive only"
    if what != "sums" or all(verdict.rule == "ONCE" for verdict in broken):
        advice = "Wait for more patients, or use the table as it was"
    if any(verdict.rule == "NONZERO" and STAND_OUT in verdict.measured for verdict in broken):
        advice += (
            ". Where few patients have an outcome far from all others, merging levels or a wider range of the reward "
            "does not help: drop or clip that outcome, or take part in a secure sum"
        )
    if any(verdict.rule == "ONCE" for verdict in broken):
        advice += "; strike an earlier release that was never sent with `fdtr site withdraw`"
    return f"{advice}. The thresholds stand under [disclosure] in the study file."
