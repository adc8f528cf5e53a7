"""What commands print of messages, totals and policies that they wrote, and of steps in a shared folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fdtr.cli.show import as_json, line, note, program, table
from fdtr.exchange.folder.round_status import StepsTaken
from fdtr.inference.message_checks import Suspicion
from fdtr.policy import Policy
from fdtr.study import Study
from fdtr.summary import SiteSummary, Total

if TYPE_CHECKING:  # the hub prints totals without loading what fits
    from fdtr.disclosure.noise import Cost


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
                **({"differential_privacy": privacy_json(cost)} if cost else {}),
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


def show_steps(steps: StepsTaken, machine: bool) -> None:
    """Print which steps of a round were taken in a shared folder, and what is waited for."""
    if machine:
        as_json(
            {
                "round": steps.number,
                "done": list(steps.done),
                "waits": steps.waits,
                "notes": list(steps.notes),
                "policy": str(steps.policy) if steps.policy else None,
            }
        )
        return
    for sentence in steps.notes:
        note(sentence)
    for sentence in steps.done:
        line(sentence)
    if steps.waits:
        line(f"Waiting for: {steps.waits}")
    elif not steps.done:
        line(f"Nothing is left to do in round {steps.number}.")


def coefficients_table(title: str, names: Sequence[str], values: NDArray[np.float64], known: Sequence[bool]) -> None:
    """Print a row for each shared feature; one that no site's data inform is marked: it comes from the ridge alone."""
    labels = [name if is_known else f"{name} (not identified)" for name, is_known in zip(names, known, strict=True)]
    if names:
        rows = [[label, *(f"{coefficient:.3f}" for coefficient in values[:, j])] for j, label in enumerate(labels)]
        table(title, ["feature", *(f"step {h}" for h in range(len(values)))], rows)


def privacy_json(cost: Cost) -> dict[str, Any]:
    """What noise costs, as it is printed for machines."""
    return {"experimental": True, **vars(cost), "verdict": cost.verdict}
