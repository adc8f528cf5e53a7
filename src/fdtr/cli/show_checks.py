"""What `fdtr check` prints of a site."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fdtr.cli.show import as_json, line, privacy, table

if TYPE_CHECKING:  # `fdtr --help` must not wait for what it does not need
    from fdtr.site import SiteCheck
    from fdtr.study import Study


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
    alone = why_alone(study, found)
    if alone:
        line()
        line(alone)


def why_alone(study: Study, found: Sequence[SiteCheck]) -> str:
    """Why nothing is learnt together by this study and these tables, as a person has to hear it; empty if something is.

    Then all sites' policies are their own, whatever they send.
    """
    nothing = "NOTHING IS LEARNT TOGETHER, and FDTR is LDTR:"
    if not study.feature_map.n_shared:
        return f'{nothing} no covariate is shared. Set effect = "shared" for those that do the same at every site.'
    begin = nothing if len(found) > 1 else "THIS SITE TEACHES THE OTHERS NOTHING:"
    if all(i.reason for check in found for i in check.identified):
        return (
            f"{begin} a site's own effects absorb every shared one. Share covariates that differ between the patients "
            'of a site, or set [features] intercept = "none".'
        )
    withheld = [{v.step for v in check.verdicts if v.withholds} | _empty(check) for check in found]
    if all(steps.issuperset(range(study.horizon)) for steps in withheld):
        return f"{begin} the disclosure rules withhold every step. Use fewer features, or larger sites."
    return ""


def _empty(check: SiteCheck) -> set[int | None]:
    """The steps that nobody reached."""
    return {h for h, row in enumerate(check.action_counts.tolist()) if not sum(row)}


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
            {"step": h, "F": t.statistic, "df": [t.df_model, t.df_residual], "p": t.p_value}
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


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {n:,}" for name, n in counts.items() if n) or "none"
