"""What the commands print of all that they learnt or wrote: messages, totals, policies and curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fdtr.cli.show import as_json, line, note, privacy, program, table

if TYPE_CHECKING:  # `fdtr --help` must not wait for what it does not need
    import numpy as np
    from numpy.typing import NDArray

    from fdtr.disclosure import Message
    from fdtr.disclosure.noise import Cost
    from fdtr.inference import Suspicion
    from fdtr.pipeline.tuning_curves import JudgedCandidate, TuningCurves
    from fdtr.policy import Explanation, Policy
    from fdtr.study import Study
    from fdtr.summary import SiteSummary, Total

_STEPS_ABREAST = 6  # more do not fit beside a feature's name on 80 columns


def curves(found: Mapping[str, TuningCurves], machine: bool) -> None:
    """What `fdtr tune` says."""
    if machine:
        as_json(
            {
                site: {
                    "chosen": cut.chosen,
                    "ridge": cut.by_ridge,
                    "sharing": cut.by_sharing,
                    "pessimism": cut.by_pessimism,
                }
                for site, cut in found.items()
            }
        )
        return
    columns = ["shares", "ridge λ", "sharing w", "held-out error", "± se", "contrast", "± se"]
    for site, cut in found.items():
        chosen = cut.chosen
        words = f"λ = {chosen.ridge:g}, w = {chosen.sharing:g}, sharing {chosen.share if chosen.sharing else 'nothing'}"
        line(f"{site} chose {words}. Both criteria, as excess over the chosen setting, whose sum is least:")
        for title, judged in (("By ridge", cut.by_ridge), ("By sharing", cut.by_sharing)):
            if len(judged) > 1:
                table(title, columns, [_judged(j) for j in judged])
        if cut.by_pessimism:
            gains = [
                [f"{other.pessimism:g}", f"{other.gain:.3g}", f"{other.standard_error:.3g}"]
                for other in cut.by_pessimism
            ]
            table("By c: gain over 0.0005 in fitted-Q value; more than 2 se moves c", ["c", "gain", "± se"], gains)


def _judged(found: JudgedCandidate) -> list[str]:
    c = found.candidate
    numbers = (found.error, found.error_se, found.contrast, found.contrast_se)
    return [c.share if c.sharing else "nothing", f"{c.ridge:g}", f"{c.sharing:g}", *(f"{x:.3g}" for x in numbers)]


def message(study: Study, made: Message) -> None:
    """What a message holds, before it is posted."""
    from fdtr.exchange.release import describe_message

    for sentence in describe_message(study, made):
        line(sentence)


def message_written(
    summary: SiteSummary, out: Path, kept: Path, cost: Cost | None, machine: bool, *, again: bool = False
) -> None:
    """Where a message went; `again` where its sums may have been sent before."""
    if machine:
        patients = int(summary.sums.n.max())
        as_json(
            {
                "site": summary.site,
                "patients": patients,
                "message": str(out),
                "digest": summary.digest,
                "copy": str(kept),
                **({"differential_privacy": privacy(cost)} if cost else {}),
            }
        )
        return
    line(f"Wrote {out}. Give it to the hub. A copy stays at home: {kept}")
    if not again:
        line(f"If it is never sent, strike it: {program()} site withdraw {summary.digest[:12]}")


def policy_written(policy: Policy, found: Total, out: Path, machine: bool) -> None:
    """Where a policy went."""
    if machine:
        as_json({"site": policy.site, "method": policy.method, "sites": found.sites, "policy": str(out)})
        return
    line(f"Wrote {out}: the policy of {policy.site}, learnt with {len(found.sites) - 1} other sites. Keep it here.")


def total(
    study: Study,
    found: Total,
    coefficients: NDArray[np.float64],
    doubts: Sequence[Suspicion],
    out: Path,
    machine: bool,
) -> None:
    """What `fdtr hub combine` says."""
    names = study.feature_map.names[: study.feature_map.n_shared]
    if machine:
        columns = {name: coefficients[:, j].tolist() for j, name in enumerate(names)}
        as_json(
            {
                "sites": found.sites,
                "patients": int(found.sums.n.max()),
                "shared_coefficients": columns,
                "suspicions": doubts,
            }
        )
        return
    line(f"Added the sums of {len(found.sites)} sites: {', '.join(found.sites)}; {int(found.sums.n.max()):,} patients.")
    known = [bool(found.significant.schur[:, j, j].any()) for j in range(len(names))]
    coefficients_table("Shared coefficients of the totals, S⁺s", names, coefficients, known)
    for doubt in doubts:
        note(doubt.sentence)
    line(f"Wrote {out}. Give it to every site.")


def recommendation(policy: Policy, found: Explanation, machine: bool) -> None:
    """What a policy would do for one state, and why."""
    if machine:
        as_json(
            {
                "site": policy.site,
                "method": policy.method,
                "step": found.step,
                "action": found.chosen.action,
                "actions": found.actions,
                "clipped": found.clipped,
            }
        )
        return
    if found.clipped:
        note(f"outside the study's range, taken as its end: {', '.join(found.clipped)}.")
    line(f"{policy.method} of {policy.site}, step {found.step}: {found.chosen.label} (code {found.chosen.action:g})")
    line()
    left = policy.horizon - found.step
    low, high = policy.study["reward"]["range"]
    raw = (low, high) != (0, 1)
    rows = []
    for a in found.actions:
        numbers = [a.estimate, a.shared, a.specific, a.penalty, a.bound]
        rows.append([a.label, *(f"{x:.3f}" for x in numbers)])
        if raw:
            rows[-1].append(f"{a.bound * (high - low) + left * low:.4g}")
    columns = ["action", "estimate", "of it shared", "of it this site's own", "penalty", "lower bound"]
    title = f"Expected sum of rewards from here on, each mapped onto [0, 1]: at most {left}"
    table(title, [*columns, *(["bound in raw units"] if raw else [])], rows)
    line("The action with the largest lower bound is taken. Research software: not for bedside use.")


def coefficients_table(title: str, names: Sequence[str], values: NDArray[np.float64], known: Sequence[bool]) -> None:
    """A row for each shared feature; one that nobody's data inform is marked, for its number comes from the ridge."""
    labels = [name if told else f"{name} (not identified)" for name, told in zip(names, known, strict=True)]
    for start in range(0, len(values) if names else 0, _STEPS_ABREAST):
        steps = range(start, min(start + _STEPS_ABREAST, len(values)))
        rows = [[label, *(f"{values[h, j]:.3f}" for h in steps)] for j, label in enumerate(labels)]
        table(title, ["feature", *(f"step {h}" for h in steps)], rows)
