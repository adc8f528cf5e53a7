"""What the commands on a whole table print: `fdtr tune`, `fdtr run` and `fdtr demo`."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fdtr.algebra.pessimism import NoiseUnits
from fdtr.cli import show
from fdtr.cli.check_output import may_send, privacy_costs, why_alone
from fdtr.comparisons import FDTR, LEGEND, VERIFIED
from fdtr.pipeline.results import Results
from fdtr.pipeline.run import ALLOWED
from fdtr.report.findings import findings_of, first_screen, meaning
from fdtr.report.record import Record
from fdtr.site.fitting import FederatedFit
from fdtr.study import Study
from fdtr.tuning import Choice, Rung, UsualCare

_AS_ALLOWED = (
    "FDTR as disclosure allows, from the messages that the rules let out, weighted by the study's seed here; hospitals "
    "that may send nothing receive only."
)
_NOT_VALUED = (
    "Compared with FDTR by decisions alone: to value these rules too, each would be fitted again without the patients "
    "whom it is valued on, which takes about a tenth longer."
)


def show_tuning(by_site: Mapping[str, Choice], machine: bool) -> None:
    """Print how each site's held-out patients judge the settings."""
    if machine:
        show.as_json(
            {
                site: {
                    "chosen": choice.candidate,
                    "few": choice.few,
                    "held_out_error": choice.error,
                    "rungs": [{**vars(rung), "rejected": rung.rejected} for rung in choice.rungs],
                    "in_words": choice.in_words(site),
                    "usual_care": _care(choice.usual_care, site),
                }
                for site, choice in by_site.items()
            }
        )
        return
    columns = ["shares", "weight w", "ridge λ", "excess error", "tolerated", "verdict"]
    for site, choice in by_site.items():
        show.line(choice.in_words(site))
        if choice.usual_care is not None:
            care = choice.usual_care
            compared = f", bolder policy t = {care.bolder:.1f}" if care.bolder is not None else ""
            shown = f"t = {care.statistic:.1f}{compared}, " if care.statistic is not None else ""
            show.line(f"{care.in_words(site)} ({shown}noise = {care.pessimism.noise:g})")
        if len(choice.rungs) > 1:
            show.table(
                "From the most sharing to none; the first that is tolerated is taken:",
                columns,
                [_rung(rung, choice) for rung in choice.rungs],
                keys=2,
            )


def _care(care: UsualCare | None, site: str) -> dict[str, Any] | None:
    if care is None:
        return None
    numbers = {**vars(care), "better": care.better, "closer": care.closer, "noise": care.pessimism.noise}
    return {**numbers, "in_words": care.in_words(site)}


def _rung(rung: Rung, choice: Choice) -> list[str]:
    c = rung.candidate
    verdict = "not tolerated" if rung.rejected else "chosen" if c == choice.candidate else "not needed"
    numbers = (_percent(choice.relative(rung.excess)), _percent(choice.relative(rung.tolerance)))
    return [f"{c.share}s" if c.sharing else "nothing", f"{c.sharing:g}", f"{c.ridge:g}", *numbers, verdict]


def _percent(share: float) -> str:
    return f"{share:.2%}" if math.isfinite(share) else "–"


def _chosen(fit: FederatedFit) -> list[str]:
    c, pessimism = fit.chosen, fit.settings.pessimism
    how = f"noise {pessimism.noise:g}" if isinstance(pessimism, NoiseUnits) else f"c {pessimism:g}"
    return [f"{c.share}s" if c.sharing else "nothing", f"{c.sharing:g}", f"{c.ridge:g}", how]


def show_results(results: Results, folder: Path, machine: bool) -> None:
    """Print what `fdtr run` found and where it is."""
    if machine:
        show.as_json(results.record)
        return
    rows = []
    for site, check in results.checks.items():
        site_record = results.record.sites[site]
        shares = (site_record.agreement_with_practice, *site_record.agreement_with_baselines.values())
        same = [f"{share:.0%}" for share in shares]
        rows.append([site, f"{check.n_patients:,}", *same, may_send(check)])
    baselines = [method for method in results.methods if method != "FDTR"]
    title = f"{results.study.name}: in how many decisions FDTR would do the same as practice and as each baseline"
    show.table(title, ["site", "patients", "practice", *baselines, "may send"], rows)
    if ALLOWED in results.methods:
        show.line(f"{ALLOWED}: {_AS_ALLOWED} {_NOT_VALUED}")
        show.line()
    learning = results.study.learning
    if "auto" in (learning.pessimism, learning.ridge, learning.sharing, learning.share):
        columns = ["site", "shares", "weight w", "ridge λ", "pessimism"]
        rows = [[site, *_chosen(fit)] for site, fit in results.federated.items()]
        show.table("Settings of each site; what the study leaves open, its own held-out patients chose", columns, rows)
    _values(results.study, results.record)
    shared = results.record.shared_coefficients
    show.coefficients_table(
        "Shared coefficients, averaged over sites",
        {name: coefficient.by_step for name, coefficient in shared.items()},
    )
    checks = list(results.checks.values())
    privacy_costs(checks)
    alone = why_alone(results.study, checks)
    if alone:
        show.line(alone)
    show.line(f"Policies, values, coefficients and report are in {folder}/.")


def show_demo(results: Results, folder: Path, machine: bool) -> None:
    """Print what `fdtr demo` found and where it is."""
    values, example = results.record.known_values, results.record.example
    if machine:
        show.as_json({"folder": folder, "values": values})
        return
    study, checks = results.study, results.checks
    patients = sum(check.n_patients for check in checks.values())
    show.line(f"{len(checks)} simulated hospitals, {patients:,} patients, {study.horizon} decisions each.")
    show.line("Each hospital fits a rule alone, sends one message of sums, and finishes with everybody's totals.")
    show.line()
    error = max(known.high - known.value for known in values)
    show.table(
        f"Value on fresh simulated patients: sum of {study.horizon} rewards, at most {study.horizon}; "
        f"95% ± {error:.3f}",
        ["method", "value", *checks],
        [[known.method, f"{known.value:.3f}", *(f"{known.by_site[site]:.2f}" for site in checks)] for known in values],
    )
    show.line(
        "Clinicians: what was done. FDTR: learnt together. LDTR and Q-learn: each hospital alone; MV: a majority vote."
    )
    show.line(f"{VERIFIED[FDTR]}: advises where the data can check its advice; elsewhere clinicians decide.")
    show.line(f"{ALLOWED}: {_AS_ALLOWED}")
    show.line()
    findings = findings_of(results.record)
    show.line(f"On the hospitals' own held-out patients: {meaning(findings, first_screen(findings))[0]}")
    if example is not None:
        show.line()
        show.line("One made-up patient: " + ", ".join(f"{name} {value:g}" for name, value in example.state.items()))
        rows = []
        for site, choices in example.by_site.items():
            bounds = "  ".join(f"{choice.label} {choice.bound:.2f}" for choice in choices)
            rows.append([site, next(choice.label for choice in choices if choice.chosen), bounds])
        columns = ["hospital", "fluids", "cautious estimate of each dose's value"]
        show.table("What each hospital would do", columns, rows)
    show.line(f"Study, table, policies and report are in {folder}/. Open report.html there; edit and re-run:")
    show.line(f"  {show.program()} run {folder}/study.toml {folder}/table.csv --out {folder}-mine")


def _values(study: Study, record: Record) -> None:
    """Print gains and values, means over sites, with their verdicts, and which sites are not valued."""
    findings = findings_of(record)
    if findings.valued:
        show.line(meaning(findings, first_screen(findings))[0])
        show.line()
    for gains in (True, False):
        rows = [
            show.AssessedRow(mean.label, mean.plain, mean.verdict, str(len(mean.sites)))
            for mean in record.means
            if bool(mean.over) == gains
        ]
        if rows:
            what = "Gains on held-out patients" if gains else "Values on held-out patients"
            show.values_table(f"{what}, mean over sites", study, rows, "sites", gains)
    show.subgroups_table(record.subgroups)
    if record.means:
        show.line(LEGEND)
        show.line()
    for site, site_record in record.sites.items():
        if site_record.verified_on:
            judged = f"which part of its policy can be verified was judged on {site_record.verified_on}"
            valued = f"Values are those of {site_record.valued_on}. " if site_record.valued_on else ""
            show.line(f"{site}: {judged}. {valued}Policies were fitted to all who are not held out.")
            show.line()
        if site_record.not_valued:
            show.line(f"{site} is not valued: {site_record.not_valued}")
            show.line()
