"""What commands print of a message, a total or a policy: where it was written, and what it says."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fdtr.cli.show import as_json, line, note, privacy, program, table

if TYPE_CHECKING:  # `fdtr --help` must not wait for what it does not need
    import numpy as np
    from numpy.typing import NDArray

    from fdtr.disclosure.noise import Cost
    from fdtr.inference import Suspicion
    from fdtr.policy import Explanation, Policy
    from fdtr.study import Study
    from fdtr.summary import SiteSummary, Total


def show_message_written(
    summary: SiteSummary, out: Path, sent_copy: Path, cost: Cost | None, machine: bool, *, again: bool = False
) -> None:
    """Say where a message was written; `again` if its sums may have been sent before."""
    if machine:
        as_json(
            {
                "site": summary.site,
                "patients": int(summary.sums.n.max()),
                "message": str(out),
                "digest": summary.digest,
                "copy": str(sent_copy),
                **({"differential_privacy": privacy(cost)} if cost else {}),
            }
        )
        return
    line(f"Wrote {out}. Give it to the hub. A copy stays at home: {sent_copy}")
    if not again:
        line(f"If it is never sent, strike it: {program()} site withdraw {summary.digest[:12]}")


def show_policy_written(policy: Policy, total: Total, out: Path, machine: bool) -> None:
    """Say where a policy was written."""
    if machine:
        as_json({"site": policy.site, "method": policy.method, "sites": total.sites, "policy": str(out)})
        return
    line(f"Wrote {out}: the policy of {policy.site}, learnt with {len(total.sites) - 1} other sites. Keep it here.")


def show_total(
    study: Study,
    total: Total,
    coefficients: NDArray[np.float64],
    doubts: Sequence[Suspicion],
    out: Path,
    machine: bool,
) -> None:
    """Say what `fdtr hub combine` added, and which sites contradict the others."""
    names = study.feature_map.names[: study.feature_map.n_shared]
    if machine:
        columns = {name: coefficients[:, j].tolist() for j, name in enumerate(names)}
        as_json(
            {
                "sites": total.sites,
                "patients": int(total.sums.n.max()),
                "shared_coefficients": columns,
                "suspicions": doubts,
            }
        )
        return
    line(f"Added the sums of {len(total.sites)} sites: {', '.join(total.sites)}; {int(total.sums.n.max()):,} patients.")
    known = [bool(total.significant.schur[:, j, j].any()) for j in range(len(names))]
    coefficients_table("Shared coefficients of the totals, S⁺s", names, coefficients, known)
    for doubt in doubts:
        note(doubt.sentence)
    line(f"Wrote {out}. Give it to every site.")


def show_recommendation(policy: Policy, explanation: Explanation, machine: bool) -> None:
    """Print what a policy recommends for one state, and why."""
    if machine:
        as_json(
            {
                "site": policy.site,
                "method": policy.method,
                "step": explanation.step,
                "action": explanation.chosen.action,
                "actions": explanation.actions,
                "clipped": explanation.clipped,
            }
        )
        return
    if explanation.clipped:
        note(f"outside the study's range, taken as its end: {', '.join(explanation.clipped)}.")
    chosen = explanation.chosen
    line(f"{policy.method} of {policy.site}, step {explanation.step}: {chosen.label} (code {chosen.action:g})")
    line()
    left = policy.horizon - explanation.step
    low, high = policy.study["reward"]["range"]
    raw = (low, high) != (0, 1)
    rows = []
    for a in explanation.actions:
        numbers = [a.estimate, a.shared, a.specific, a.penalty, a.bound]
        rows.append([a.label, *(f"{x:.3f}" for x in numbers)])
        if raw:
            rows[-1].append(f"{a.bound * (high - low) + left * low:.4g}")
    columns = ["action", "estimate", "of it shared", "of it this site's own", "penalty", "lower bound"]
    title = f"Expected sum of rewards from here on, each mapped onto [0, 1]: at most {left}"
    table(title, [*columns, *(["bound in raw units"] if raw else [])], rows)
    line("The action with the largest lower bound is taken. Research software: not for bedside use.")


def coefficients_table(title: str, names: Sequence[str], values: NDArray[np.float64], known: Sequence[bool]) -> None:
    """Print a row for each shared feature; one that no site's data inform is marked: it comes from the ridge alone."""
    labels = [name if is_known else f"{name} (not identified)" for name, is_known in zip(names, known, strict=True)]
    if names:
        rows = [[label, *(f"{coefficient:.3f}" for coefficient in values[:, j])] for j, label in enumerate(labels)]
        table(title, ["feature", *(f"step {h}" for h in range(len(values)))], rows)
