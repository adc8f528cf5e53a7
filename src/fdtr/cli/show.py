"""What the commands print: tables for people, JSON for machines."""

from __future__ import annotations

import json
import math
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

if TYPE_CHECKING:  # `fdtr --help` must not wait for what it does not need
    import numpy as np
    from numpy.typing import NDArray

    from fdtr.disclosure import Cost, Message
    from fdtr.inference import Suspicion
    from fdtr.pipeline.curves import Curves, Judged
    from fdtr.pipeline.reproduce.finding import Finding
    from fdtr.policy import Explanation, Policy
    from fdtr.progress import Progress as Report
    from fdtr.site import SiteCheck
    from fdtr.study import Study
    from fdtr.summary import SiteSummary, Total

_out = Console(highlight=False, markup=False, soft_wrap=True)
_STEPS_ABREAST = 6  # more do not fit beside a feature's name on 80 columns
_err = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)


def line(text: str = "") -> None:
    """One line of plain text."""
    _out.print(text)


def note(text: str) -> None:
    """Something a person should know, beside the result."""
    _err.print(f"Note: {text}")


def fail(text: str) -> NoReturn:
    """Print what went wrong and leave with exit code 1."""
    _err.print(text)
    sys.exit(1)


def program() -> str:
    """How this program was called, so that a suggested command can be typed as it stands."""
    called = Path(sys.argv[0])
    return "fdtr" if called.name != "fdtr" or shutil.which("fdtr") == str(called) else str(called)


def as_json(value: Any) -> None:
    """Print a machine's view."""
    _out.print(json.dumps(value, indent=2, ensure_ascii=False))


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table: words to the left, numbers to the right."""
    view = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for number, column in enumerate(columns):
        numeric = rows and all(row[number][:1] in "-0123456789." for row in rows if row[number])
        view.add_column(column, justify="right" if numeric else "left", no_wrap=number == 0)
    for row in rows:
        view.add_row(*row)
    _out.print(view)
    _out.print()


@contextmanager
def progress() -> Iterator[Report]:
    """A bar on a terminal, plain lines on standard error elsewhere."""
    if not _err.is_terminal:
        yield lambda what, done, of: _err.print(f"{done}/{of} {what}")
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=_err, transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda what, done, of: bar.update(task, description=what, completed=done, total=of)


def checks(study: Study, found: Sequence[SiteCheck], machine: bool) -> None:
    """What `fdtr check` says."""
    if machine:
        as_json({check.site: _check_json(study, check) for check in found})
        return
    labels = study.actions.labels
    table(
        f"{study.name}: {study.horizon} steps, {study.feature_map.n_features} features "
        f"({study.feature_map.n_shared} shared), fingerprint {study.fingerprint[:12]}…",
        ["site", "patients", *(["clusters"] if found[0].n_clusters is not None else []), "rows", "clipped", "filled"],
        [[c.site, *_sizes(c), _counts(c.clipped), _counts(c.filled)] for c in found],
    )
    table(
        "Patients by action",
        ["site", "step", *labels],
        [[c.site, str(h), *(f"{n:,}" for n in row)] for c in found for h, row in enumerate(c.action_counts.tolist())],
    )
    _identified(study, found)
    _transitions(found)
    _disclosure(found)
    privacy_costs(found)


def _disclosure(found: Sequence[SiteCheck]) -> None:
    verdicts = [(check.site, verdict) for check in found for verdict in check.verdicts]
    for title, chosen in (
        ("Disclosure would refuse", [(site, v) for site, v in verdicts if v.refuses]),
        ("Disclosure would withhold the step", [(site, v) for site, v in verdicts if v.withholds]),
        ("Disclosure warns", [(site, v) for site, v in verdicts if v.warns]),
    ):
        if chosen:
            table(title, ["site", "why"], [[site, verdict.sentence] for site, verdict in chosen])
    if any(not verdict.holds for _, verdict in verdicts):
        line("This table is for the site's own eyes. Do not forward it.")
    if not any(verdict.refuses for _, verdict in verdicts):
        line("Disclosure: every site may release its sums.")


def privacy_costs(found: Sequence[SiteCheck]) -> None:
    """What differential privacy costs each site, where the study asks for it."""
    costs = [(check.site, check.cost) for check in found if check.cost is not None]
    if costs:
        line()
        line(costs[0][1].sentences[0])
        table("What the noise costs (experimental)", ["site", "expected"], [[s, c.sentences[1]] for s, c in costs])
        line("This comes from exact sums, for the site's own eyes. Do not forward it.")


def _sizes(check: SiteCheck) -> list[str]:
    sizes = (check.n_patients, check.n_clusters, check.n_rows)
    return [f"{size:,}" for size in sizes if size is not None]


def _identified(study: Study, found: Sequence[SiteCheck]) -> None:
    if not study.feature_map.n_shared:
        line('No covariate is shared: nothing is learnt from other sites. Set effect = "shared" where that is meant.')
        line()
        return
    rows = [
        [feature, *(f"{check.identified[j].retained:.0%}" for check in found)]
        for j, feature in enumerate(i.feature for i in found[0].identified)
    ]
    table("Share of each shared feature that a site's own effects leave", ["feature", *(c.site for c in found)], rows)
    reasons: dict[tuple[str, str], list[str]] = {}
    for check in found:
        for i in check.identified:
            if i.reason:
                reasons.setdefault((i.feature, i.reason), []).append(check.site)
    for (feature, reason), sites in reasons.items():
        where = "every site" if len(sites) == len(found) else ", ".join(sites)
        line(f"{feature} carries no information at {where}: {reason}.")
    if reasons:
        line()


def _transitions(found: Sequence[SiteCheck]) -> None:
    from fdtr.inference import SMALL_P, rejected

    tests = [test for check in found for test in check.transitions]
    made = [test.p_value for test in tests if math.isfinite(test.p_value)]
    if not made:
        return
    rows = [
        [str(h), *(_marked(check.transitions[h].p_value, SMALL_P) for check in found)]
        for h in range(len(found[0].transitions))
    ]
    table("Do shared features predict the next value, given the site's own? p of an F test", _steps_by(found), rows)
    small = sum(p < SMALL_P for p in made)
    line(f"* below {SMALL_P:g}: {small} of {len(made)}; by chance alone about {len(made) * SMALL_P:.2g} would be.")
    if any(rejected(tests)):
        line("They do, and this breaks the model's transitions (1), as a static covariate does. Consider")
        line('share = "reward", or make the covariate specific. Common effects on the reward are another question.')
    line()


def _marked(p: float, small: float) -> str:
    if not math.isfinite(p):
        return "–"
    return f"{'<0.001' if p < 0.001 else f'{p:.3f}'}{' *' if p < small else ''}"


def _steps_by(found: Sequence[SiteCheck]) -> list[str]:
    return ["step", *(check.site for check in found)]


def _check_json(study: Study, check: SiteCheck) -> dict[str, Any]:
    return {
        "patients": check.n_patients,
        "clusters": check.n_clusters,
        "rows": check.n_rows,
        "clipped": check.clipped,
        "filled": check.filled,
        "actions": {
            str(h): dict(zip(study.actions.labels, row, strict=True))
            for h, row in enumerate(check.action_counts.tolist())
        },
        "shared_features": {i.feature: {"retained": i.retained, "reason": i.reason} for i in check.identified},
        "transitions": [
            {"step": h, "F": finite(t.statistic), "df": [t.df_model, t.df_residual], "p": finite(t.p_value)}
            for h, t in enumerate(check.transitions)
        ],
        "disclosure": [
            {
                "rule": v.rule.rule,
                "step": v.step,
                "holds": v.holds,
                "measured": v.measured,
                "asked": v.asked,
                "otherwise": v.otherwise,
            }
            for v in check.verdicts
        ],
        **({"differential_privacy": privacy(check.cost)} if check.cost else {}),
    }


def curves(found: Mapping[str, Curves], machine: bool) -> None:
    """What `fdtr tune` says."""
    if machine:
        cuts = {site: {"ridge": c.by_ridge, "sharing": c.by_sharing} for site, c in found.items()}
        as_json(
            {
                site: {
                    "chosen": vars(found[site].chosen),
                    **{name: [{**vars(j), "candidate": vars(j.candidate)} for j in cut] for name, cut in by.items()},
                    "pessimism": [vars(other) for other in found[site].by_pessimism],
                }
                for site, by in cuts.items()
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


def _judged(found: Judged) -> list[str]:
    c = found.candidate
    numbers = (found.error, found.error_se, found.contrast, found.contrast_se)
    return [c.share if c.sharing else "nothing", f"{c.ridge:g}", f"{c.sharing:g}", *(f"{x:.3g}" for x in numbers)]


def message(study: Study, made: Message, cost: Cost | None = None) -> None:
    """What a message holds, before it is written."""
    summary = made.summary
    sums = summary.sums
    numbers = sum(array.size for array in summary.payload.packed().values())
    line(f"The message of site {summary.site} for the study {study.name}:")
    patients = f"{int(sums.n.max()):,} patients, {sums.horizon} steps"
    line(f"  {numbers} sums over {patients}, {sums.n_shared} shared features.")
    line(f"  Nobody's leverage in them is more than {made.leverage:.2f}.")
    if summary.grams is not None:
        line(f"  They are those of all {summary.grams.n_features} features, the site's own included: an audit message.")
    for sentence in cost.sentences if cost else ():
        line(f"  {sentence}")
    told = [v for v in made.verdicts if v.withholds or v.warns]
    for verdict in told:
        line(f"  {'Withheld' if verdict.withholds else 'Note'}: {verdict.sentence}")
    if made.lost:
        line(f"  Note: {made.lost}")
    if told or cost or made.lost:
        line("  Do not forward these lines.")


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


def privacy(cost: Cost) -> dict[str, Any]:
    """What noise costs, for machines."""
    return {"experimental": True, **vars(cost), "verdict": cost.verdict}


def policy_written(policy: Policy, found: Total, out: Path, machine: bool) -> None:
    """Where a policy went."""
    if machine:
        as_json({"site": policy.site, "method": policy.method, "sites": list(found.sites), "policy": str(out)})
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
                "sites": list(found.sites),
                "patients": int(found.sums.n.max()),
                "shared_coefficients": columns,
                "suspicions": [vars(doubt) for doubt in doubts],
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
        actions = [vars(action) for action in found.actions]
        as_json(
            {
                "site": policy.site,
                "method": policy.method,
                "step": found.step,
                "action": found.chosen.action,
                "actions": actions,
                "clipped": list(found.clipped),
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


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {n:,}" for name, n in counts.items() if n) or "none"


def finite(number: float) -> float | None:
    """The number, or None, for JSON has no NaN."""
    return number if math.isfinite(number) else None


def findings(found: Sequence[Finding], folder: Path) -> None:
    """What experiments show, and where the rest lies."""
    for finding in found:
        line(finding.title)
        for sentence in finding.shows:
            line(f"  {sentence}")
        line()
    line(f"Pages, tables and figures: {folder}/")
