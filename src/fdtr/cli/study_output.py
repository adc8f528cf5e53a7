"""What the commands on a whole table print: `fdtr check`, `fdtr tune`, `fdtr run` and `fdtr demo`."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fdtr.algebra.pessimism import NoiseUnits
from fdtr.cli import show
from fdtr.inference.identification import rejected
from fdtr.inference.shared_effects import SMALL_P
from fdtr.pipeline.results import Results
from fdtr.pipeline.run import ALLOWED
from fdtr.report.record import Record
from fdtr.site.fitting import FederatedFit
from fdtr.site.site_check import SiteCheck
from fdtr.study import Study
from fdtr.tuning import Choice, Rung, UsualCare

_AS_ALLOWED = (
    "FDTR as disclosure allows, from the messages that the rules let out, weighted by the study's seed here; hospitals "
    "that may send nothing receive only."
)


def show_checks(study: Study, checks: Sequence[SiteCheck], machine: bool) -> None:
    """Print what a table holds, what it can identify, and what disclosure would say."""
    if machine:
        show.as_json({check.site: _check_json(study, check) for check in checks})
        return
    labels = study.actions.labels
    show.table(
        f"{study.name}: {study.horizon} steps, {study.feature_map.n_features} features "
        f"({study.feature_map.n_shared} shared), fingerprint {study.fingerprint[:12]}…",
        ["site", "patients", *(["clusters"] if checks[0].n_clusters is not None else []), "rows", "clipped", "filled"],
        [[c.site, *_sizes(c), _counts(c.clipped), _counts(c.filled)] for c in checks],
    )
    show.table(
        "Patients by action",
        ["site", "step", *labels],
        [[c.site, str(h), *(f"{n:,}" for n in row)] for c in checks for h, row in enumerate(c.action_counts.tolist())],
        keys=2,
    )
    _identified(study, checks)
    _transitions(checks)
    _disclosure(checks)
    _privacy_costs(checks)
    alone = why_alone(study, checks)
    if alone:
        show.line()
        show.line(alone)


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
        rows.append([site, f"{check.n_patients:,}", *same, _may_release(check)])
    baselines = [method for method in results.methods if method != "FDTR"]
    title = f"{results.study.name}: in how many decisions FDTR would do the same as practice and as each baseline"
    show.table(title, ["site", "patients", "practice", *baselines, "disclosure"], rows)
    if ALLOWED in results.methods:
        show.line(f"{ALLOWED}: {_AS_ALLOWED}")
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
        [coefficient.identified for coefficient in shared.values()],
    )
    checks = list(results.checks.values())
    _privacy_costs(checks)
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
    show.table(
        f"Value on fresh simulated patients: sum of {study.horizon} rewards, at most {study.horizon}, ± 95%",
        ["method", "value", *checks],
        [
            [v.method, f"{v.value:.3f} ± {(v.high - v.low) / 2:.3f}", *(f"{v.by_site[site]:.2f}" for site in checks)]
            for v in values
        ],
    )
    show.line(
        "Clinicians: what was done. FDTR: learnt together. LDTR and Q-learn: each hospital alone; MV: a majority vote."
    )
    show.line(f"{ALLOWED}: {_AS_ALLOWED}")
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


def why_alone(study: Study, checks: Sequence[SiteCheck]) -> str:
    """Say why this study learns nothing together from these tables: each site's policy is its own. Else empty."""
    nothing = "NOTHING IS LEARNT TOGETHER, and FDTR is LDTR:"
    if not study.feature_map.n_shared:
        return f'{nothing} no covariate is shared. Set effect = "shared" for those that do the same at every site.'
    begin = nothing if len(checks) > 1 else "THIS SITE TEACHES THE OTHERS NOTHING:"
    if all(i.reason for check in checks for i in check.identified):
        return (
            f"{begin} a site's own effects absorb every shared one. Share covariates that differ between the patients "
            'of a site, or set [features] intercept = "none".'
        )
    withheld = [{v.step for v in check.verdicts if v.withholds} | _empty(check) for check in checks]
    if all(steps.issuperset(range(study.horizon)) for steps in withheld):
        return f"{begin} the disclosure rules withhold every step. Use fewer features, or larger sites."
    return ""


def _empty(check: SiteCheck) -> set[int | None]:
    """The steps that no patient reached."""
    return {h for h, row in enumerate(check.action_counts.tolist()) if not sum(row)}


def _disclosure(checks: Sequence[SiteCheck]) -> None:
    verdicts = [(check.site, verdict) for check in checks for verdict in check.verdicts]
    for title, chosen in (
        ("Disclosure would refuse", [(site, v) for site, v in verdicts if v.refuses]),
        ("Disclosure would withhold the step", [(site, v) for site, v in verdicts if v.withholds]),
        ("Disclosure would take out", [(site, v) for site, v in verdicts if v.repaired]),
        ("Disclosure warns", [(site, v) for site, v in verdicts if v.warns]),
    ):
        if chosen:
            show.table(title, ["site", "why"], [[site, verdict.sentence] for site, verdict in chosen])
    if any(not verdict.holds for _, verdict in verdicts):
        show.line("This table is for the site's own eyes. Do not forward it.")
    horizon = len(checks[0].action_counts) if checks else 0
    if all(_may_release(check) == "may release" for check in checks):
        show.line("Disclosure: every site may release its sums.")
        return
    show.table(
        "What may leave",
        ["site", "steps", "directions of the shared features", "information"],
        [[check.site, f"{len(check.steps_sent)} of {horizon}", *_kept(check)] for check in checks],
    )


def _may_release(check: SiteCheck) -> str:
    """What disclosure lets a site send, in a few words."""
    if not check.steps_sent:
        return ", ".join(sorted({v.rule for v in check.verdicts if v.refuses or v.withholds})) or "nothing"
    whole = check.share_sent == 1.0 and len(check.steps_sent) == len(check.action_counts)
    return "may release" if whole else f"may release {check.share_sent:.0%}"


def _kept(check: SiteCheck) -> list[str]:
    """Shares of the directions and of the information that a message keeps."""
    if not check.steps_sent:
        return ["nothing", "nothing"]
    if check.kept is None:
        return ["all", "all"]
    efficiency = min(sum(check.kept.efficiency) / len(check.kept.efficiency), 1.0)
    return [f"{check.share_sent:.0%}", f"{efficiency:.0%}"]


def _privacy_costs(checks: Sequence[SiteCheck]) -> None:
    """Print what differential privacy costs each site, where the study asks for it."""
    costs = [(check.site, check.cost) for check in checks if check.cost is not None]
    if costs:
        show.line()
        show.line(costs[0][1].sentences[0])
        show.table("What the noise costs (experimental)", ["site", "expected"], [[s, c.sentences[1]] for s, c in costs])
        show.line("This comes from exact sums, for the site's own eyes. Do not forward it.")


def _sizes(check: SiteCheck) -> list[str]:
    sizes = (check.n_patients, check.n_clusters, check.n_rows)
    return [f"{size:,}" for size in sizes if size is not None]


def _identified(study: Study, checks: Sequence[SiteCheck]) -> None:
    if not study.feature_map.n_shared:
        return
    rows = [
        [feature, *(f"{check.identified[j].retained:.0%}" for check in checks)]
        for j, feature in enumerate(i.feature for i in checks[0].identified)
    ]
    title = "Share of each shared feature that a site's own effects leave"
    show.table(title, ["feature", *(check.site for check in checks)], rows)
    reasons: dict[tuple[str, str], list[str]] = {}
    for check in checks:
        for i in check.identified:
            if i.reason:
                reasons.setdefault((i.feature, i.reason), []).append(check.site)
    for (feature, reason), sites in reasons.items():
        where = "every site" if len(sites) == len(checks) else ", ".join(sites)
        show.line(f"{feature} carries no information at {where}: {reason}.")
    if reasons:
        show.line()


def _transitions(checks: Sequence[SiteCheck]) -> None:
    tests = [test for check in checks for test in check.transitions]
    p_values = [test.p_value for test in tests if math.isfinite(test.p_value)]
    if not p_values:
        return
    rows = [
        [str(h), *(_marked(check.transitions[h].p_value) for check in checks)]
        for h in range(len(checks[0].transitions))
    ]
    show.table(
        "Do shared features predict the next value, given the site's own? p of an F test",
        ["step", *(check.site for check in checks)],
        rows,
    )
    small, n = sum(p < SMALL_P for p in p_values), len(p_values)
    show.line(f"* below {SMALL_P:g}: {small} of {n}; by chance alone about {n * SMALL_P:.2g} would be.")
    if any(rejected(tests)):
        show.line(
            "They do, and this breaks the model's transitions (1), as a static covariate does. Consider\n"
            'share = "reward", or make the covariate specific. Common effects on the reward are another question.'
        )
    show.line()


def _marked(p: float) -> str:
    if not math.isfinite(p):
        return "–"
    return f"{'<0.001' if p < 0.001 else f'{p:.3f}'}{' *' if p < SMALL_P else ''}"


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
            {"step": h, "F": t.statistic, "df": [t.df_model, t.df_residual], "p": t.p_value}
            for h, t in enumerate(check.transitions)
        ],
        "disclosure": [
            {name: value for name, value in vars(verdict).items() if name not in ("advice", "excess")}
            for verdict in check.verdicts
        ],
        "sent": {"steps": check.steps_sent, "share": check.share_sent},
        **({"differential_privacy": show.privacy_json(check.cost)} if check.cost else {}),
    }


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {n:,}" for name, n in counts.items() if n) or "none"


def _values(study: Study, record: Record) -> None:
    """Print the mean over sites of every method by both estimators, and which sites are in doubt or not valued."""
    means = {
        (p.method, p.estimator): (p.plain.value, p.plain.low, p.plain.high, p.believable)
        for p in record.pooled
        if not p.over
    }
    intervals = {method: [means[method, estimator] for estimator in show.ESTIMATORS] for method, _ in means}
    if intervals:
        show.values_table("Value on held-out patients, mean over sites", study, intervals)
    doubtful = [v for v in record.values if v.method == "FDTR" and v.estimator == "wdr" and not v.believable]
    if doubtful:
        show.line(f"{show.DOUBT} not to be believed; values.csv has every reason. Of FDTR:")
        for value in doubtful:
            show.line(f"  {value.site}: {value.reason}")
        show.line()
    for site, site_record in record.sites.items():
        if site_record.not_valued:
            show.line(f"{site} is not valued: {site_record.not_valued}")
            show.line()
