"""What `fdtr run` and `fdtr demo` say."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fdtr.cli import show, show_checks, show_results

if TYPE_CHECKING:
    from fdtr.pipeline.demo import Demo
    from fdtr.pipeline.results import Results
    from fdtr.report.record import Pooled, Record, Value

_DOUBT = "×"


def demo(made: Demo, machine: bool) -> None:
    """What `fdtr demo` says."""
    if machine:
        show.as_json({"folder": str(made.folder), "values": made.values})
        return
    study = made.results.study
    checks = made.results.checks
    patients = sum(found.n_patients for found in checks.values())
    show.line(f"{len(checks)} simulated hospitals, {patients:,} patients, {study.horizon} decisions each.")
    show.line("Each hospital fits a rule alone, sends one message of sums, and finishes with everybody's totals.")
    show.line()
    sites = list(checks)
    show.table(
        f"Value on fresh simulated patients: sum of {study.horizon} rewards, at most {study.horizon}, ± 95%",
        ["method", "value", *sites],
        [
            [v.method, f"{v.value:.3f} ± {(v.high - v.low) / 2:.3f}", *(f"{v.by_site[s]:.2f}" for s in sites)]
            for v in made.values
        ],
    )
    show.line(
        "Clinicians: what was done. FDTR: learnt together. LDTR and Q-learn: each hospital alone; MV: a majority vote."
    )
    show.line()
    show.line("One made-up patient: " + ", ".join(f"{name} {value:g}" for name, value in made.example.state.items()))
    rows = []
    for site, choices in made.example.by_site.items():
        bounds = "  ".join(f"{a.label} {a.bound:.2f}" for a in choices)
        rows.append([site, next(a.label for a in choices if a.chosen), bounds])
    show.table("What each hospital would do", ["hospital", "fluids", "lower bound of each dose's value"], rows)
    show.line(f"Study, table, policies and report are in {made.folder}/. Open report.html there; edit and re-run:")
    show.line(f"  {show.program()} run {made.folder}/study.toml {made.folder}/table.csv --out {made.folder}-mine")


def results(found: Results, folder: Path, machine: bool) -> None:
    """What `fdtr run` says."""
    if machine:
        show.as_json(found.record)
        return
    rows = []
    for site, check in found.checks.items():
        part = found.record.sites[site]
        refused = sorted({v.rule.rule for v in check.verdicts if v.refuses})
        shares = (part.agreement_with_practice, *part.agreement_with_baselines.values())
        same = [f"{share:.0%}" for share in shares]
        rows.append([site, f"{check.n_patients:,}", *same, ", ".join(refused) or "may release"])
    baselines = [method for method in found.methods if method != "FDTR"]
    title = f"{found.study.name}: in how many decisions FDTR would do the same as practice and as each baseline"
    show.table(title, ["site", "patients", "practice", *baselines, "disclosure"], rows)
    chosen = [(site, fit.chosen) for site, fit in found.federated.items()]
    if "auto" in (found.study.learning.ridge, found.study.learning.sharing, found.study.learning.share):
        rows = [[site, f"{c.ridge:g}", f"{c.sharing:g}", c.share if c.sharing else "nothing"] for site, c in chosen]
        show.table("Chosen by each site's own held-out patients", ["site", "ridge λ", "sharing w", "shares"], rows)
    _values(found.record, found.study.horizon, found.study.reward.range)
    show_results.coefficients_table(
        "Shared coefficients, averaged over sites", found.shared_names, found.shared_coefficients, found.identified
    )
    checks = list(found.checks.values())
    show_checks.privacy_costs(checks)
    alone = show_checks.why_alone(found.study, checks)
    if alone:
        show.line(alone)
    show.line(f"Policies, values, coefficients and report are in {folder}/.")


def _values(found: Record, horizon: int, reward: tuple[float, float]) -> None:
    """A row for each method: the mean over sites by both estimators, in raw units too; doubt is marked."""
    low, high = reward
    by_estimator = [
        {one.method: one for one in found.pooled if one.estimator == estimator and not one.over}
        for estimator in ("wdr", "fqe")
    ]
    raw, rows = reward != (0.0, 1.0), []
    for method, one in by_estimator[0].items():
        row = [method, *(_span(estimates[method]) for estimates in by_estimator)]
        rows.append(row + ([f"{horizon * low + one.plain.value * (high - low):.4g}"] if raw else []))
    if rows:
        title = f"Value on held-out patients, mean over sites (95%): sum of {horizon} mapped rewards, at most {horizon}"
        columns = ["method", "doubly robust (wdr)", "linear model alone (fqe)", *(["wdr in raw units"] if raw else [])]
        show.table(title, columns, rows)
    _doubts([one for one in found.values if one.method == "FDTR" and one.estimator == "wdr"])
    for site, part in found.sites.items():
        if part.not_valued:
            show.line(f"{site} is not valued: {part.not_valued}")
            show.line()


def _span(one: Pooled) -> str:
    doubt = "" if one.believable else f" {_DOUBT}"
    return f"{one.plain.value:.3f} ({one.plain.low:.2f} to {one.plain.high:.2f}){doubt}"


def _doubts(ours: Sequence[Value]) -> None:
    doubtful = [one for one in ours if not one.believable]
    if doubtful:
        show.line(f"{_DOUBT} not to be believed; values.csv has every reason. Of FDTR:")
        for one in doubtful:
            show.line(f"  {one.site}: {one.reason}")
        show.line()
