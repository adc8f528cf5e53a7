"""What `fdtr check` prints: in short what may leave, the tables behind it, and designs that let more out."""

import math
import shutil
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from fdtr.cli import show
from fdtr.disclosure import Verdict
from fdtr.disclosure.rules import counted
from fdtr.inference.identification import rejected
from fdtr.inference.shared_effects import SMALL_P
from fdtr.site.design_menu import BANDS, Tried, weights_remedy
from fdtr.site.site_check import SiteCheck, cost_of_rule
from fdtr.study import Study

_WIDEST = 100  # cells of a line that a person reads
_MOST_NAMED = 4
_COLUMNS = 6  # sites that get a column each in the table of designs
_SHORT = ("nothing", "under ⅓", "⅓ to ⅔", "most", "all")  # the bands above counts of sites
_ZEROS = 'Zeros that are sent mean "0 or too few". '
_OWN_EYES = "For the site's own eyes: do not forward this."
_THEN = {
    "refuse": "nothing may be sent",
    "withhold": "the step is withheld",
    "repair": "taken out, or counted less",
    "warn": "",
}
_NOTHING_LEFT = "what is taken out leaves nothing"


def show_checks(study: Study, checks: Sequence[SiteCheck], machine: bool, *, everything: bool = False) -> None:
    """Print in short what may leave; with `everything`, also what the tables hold and identify, and broken rules."""
    if machine:
        show.as_json({check.site: _check_json(study, check) for check in checks})
        return
    for line in in_short(study, checks):
        show.line(line)
    if everything:
        show.line()
        _show_tables(study, checks)
    privacy_costs(checks)


def in_short(study: Study, checks: Sequence[SiteCheck]) -> list[str]:
    """At most ten lines on a terminal of 100 columns: what may leave, what stops it, and how far off it is."""
    facts = {
        "Study": f"{study.name}, {study.horizon} steps, {study.feature_map.n_shared} shared features of "
        f"{study.feature_map.n_features}, fingerprint {study.fingerprint[:12]}…",
        "May leave": _who_sends(study, checks),
        "Kept": _kept_in_short(study, checks),
        "In the way": _rules(checks, [check.in_the_way for check in checks]) or _no_rule(checks),
        "Repaired": _rules(checks, [check.repaired for check in checks]),
        "Worst": _worst(checks),
    }
    indent = max(map(len, facts)) + 2
    lines = []
    for name, fact in facts.items():
        if fact:
            lines += _wrapped(f"{name + ':':{indent}}{fact}", indent)
    alone = why_alone(study, checks)
    lines += _wrapped(alone) if alone else []
    if any(not verdict.holds for check in checks for verdict in check.verdicts):
        lines += _wrapped((_ZEROS if any(check.steps_sent for check in checks) else "") + _OWN_EYES)
    return [*lines, "More: --all for every table, --suggest for designs that let more out."]


def _wrapped(text: str, indent: int = 0) -> list[str]:
    width = min(shutil.get_terminal_size(fallback=(_WIDEST, 24)).columns, _WIDEST)
    return textwrap.wrap(text, width, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False)


def _who_sends(study: Study, checks: Sequence[SiteCheck]) -> str:
    """How many sites may send everything, a part, or nothing."""
    how = " in a secure sum" if study.disclosure.secure_sum else ""
    if len(checks) == 1 and study.counts_first and checks[0].steps_sent and not checks[0].n_alike:
        contribution = may_send(checks[0], " to a secure sum")
        return (
            f"{checks[0].site} could contribute {contribution}; how much is added is decided on the totals of all sites"
        )
    if len(checks) == 1:
        alike = f", judged as if there were {checks[0].n_alike} sites like it" if checks[0].n_alike else ""
        return f"{checks[0].site} may send {may_send(checks[0], how + alike)}"
    whole = sum(check.sends_all for check in checks)
    silent = [check.site for check in checks if not check.steps_sent]
    directions = sum(check.sends_all_directions for check in checks) - whole
    part = len(checks) - whole - directions - len(silent)
    parts = [f"all at {whole}", f"in part at {part}", f"nothing at {len(silent)}"]
    if directions:
        parts.insert(1, f"all directions at {directions}")
    text = f"of {len(checks)} sites{how}: {', '.join(parts)}"
    if len(silent) == len(checks):
        text += "; there is nothing to receive"
    elif silent:
        more = f" and {len(silent) - _MOST_NAMED} more" if len(silent) > _MOST_NAMED else ""
        text += f", which may only receive ({', '.join(silent[:_MOST_NAMED])}{more})"
    if 0 < len(checks) - len(silent) < study.required_sites:
        text += f"; rule SITES asks for {study.required_sites} senders, so nothing is added up"
    return text


def _kept_in_short(study: Study, checks: Sequence[SiteCheck]) -> str:
    """The steps, rank and efficiency that senders keep."""
    senders = [check for check in checks if check.steps_sent]
    if not senders:
        return ""
    steps = _span([len(check.steps_sent) for check in senders], "{:g}")
    rank = _span([check.share_sent for check in senders], "{:.0%}")
    efficiency = _span([check.efficiency_sent for check in senders], "{:.0%}")
    near = "; near a threshold, functions may differ with a site's secret weights"
    kept = f"{steps} of {study.horizon} steps, rank {rank}, efficiency {efficiency}"
    return kept + (near if any(check.near_threshold for check in senders) else "")


def _span(values: Sequence[float], form: str) -> str:
    """The smallest and the largest of some values, and their median where it is another one."""
    low, high = form.format(min(values)), form.format(max(values))
    if low == high:
        return low
    middle = form.format(median(values))
    return f"{low} to {high}" + (f" (median {middle})" if middle not in (low, high) else "")


def _rules(checks: Sequence[SiteCheck], broken: Sequence[Sequence[Verdict]]) -> str:
    """Some broken rules of every site, and at how many sites or steps."""
    if len(checks) == 1:
        steps = Counter(verdict.rule for verdict in broken[0] if verdict.step is not None)
        whole = [verdict.rule for verdict in broken[0] if verdict.step is None]
        return ", ".join([*whole, *(f"{rule} at {n} step{'s' * (n != 1)}" for rule, n in steps.most_common())])
    sites = Counter(rule for verdicts in broken for rule in {verdict.rule for verdict in verdicts})
    ordered = sorted(sites.items(), key=lambda pair: (-pair[1], pair[0]))
    return ", ".join(f"{rule} at {n} site{'s' * (n != 1)}" for rule, n in ordered)


def _no_rule(checks: Sequence[SiteCheck]) -> str:
    if any(check.repaired for check in checks):
        return ""
    return "no rule" if len(checks) == 1 else "no rule at any site"


def _worst(checks: Sequence[SiteCheck]) -> str:
    """The broken rule that costs most, where it is missed by most, and by how much."""
    found = [(check, check.worst) for check in checks if check.worst is not None]
    if not found:
        return ""
    stops = any(check.in_the_way for check in checks)
    check, verdict = max(found, key=lambda pair: (bool(pair[0].in_the_way) == stops, *cost_of_rule(pair[1])))
    where = ", ".join([check.site] * (len(checks) > 1) + [f"step {verdict.step}"] * (verdict.step is not None))
    off = f", off by a factor of {verdict.excess:.2g}" if verdict.excess > 1 else ""
    place = f"{verdict.rule} at {where}" if where else verdict.rule
    then = _NOTHING_LEFT if verdict.repaired and stops else _THEN[verdict.otherwise]
    return f"{place}: {verdict.measured}; the study asks for {verdict.asked}{off}; {then}"


def _show_tables(study: Study, checks: Sequence[SiteCheck]) -> None:
    """Print what a table holds, what it can identify, and every broken rule."""
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


def _disclosure(checks: Sequence[SiteCheck]) -> None:
    verdicts = [(check.site, verdict) for check in checks for verdict in check.verdicts]
    for title, chosen in (
        ("Disclosure would refuse", [(site, v) for site, v in verdicts if v.refuses]),
        ("Disclosure would withhold the step", [(site, v) for site, v in verdicts if v.withholds]),
        ("Disclosure would take out", [(check.site, v) for check in checks for v in _taken_out(check)]),
        ("Disclosure warns", [(site, v) for site, v in verdicts if v.warns]),
    ):
        if chosen:
            show.table(title, ["site", "why"], [[site, verdict.sentence] for site, verdict in chosen])
    if any(not verdict.holds for _, verdict in verdicts):
        show.line("These tables are for the site's own eyes. Do not forward them.")
    if all(check.sends_all for check in checks):
        show.line("Disclosure: every site may send all that its sums could tell.")
        return
    horizon = len(checks[0].action_counts) if checks else 0
    show.table(
        "What may leave",
        ["site", "steps", "rank of the shared features", "efficiency", "limited outcomes", "rows that count less"],
        [
            [
                c.site,
                f"{len(c.steps_sent)} of {horizon}",
                f"{c.share_sent:.0%}",
                f"{c.efficiency_sent:.0%}",
                *(_most_a_step(counts) for counts in (c.kept.limited, c.kept.lighter)),
            ]
            for c in checks
        ],
    )


def _most_a_step(counts: Sequence[int]) -> str:
    most = max(counts, default=0)
    return f"up to {counted(most)} a step" if most else "none"


def _taken_out(check: SiteCheck) -> list[Verdict]:
    """Broken rules that take something out, but of withheld steps."""
    return [verdict for verdict in (*check.in_the_way, *check.repaired) if verdict.repaired]


def may_send(check: SiteCheck, how: str = "") -> str:
    """What disclosure lets a site send, and `how`, in a few words."""
    if not check.steps_sent:
        rules = sorted({verdict.rule for verdict in check.in_the_way})
        return (f"nothing ({', '.join(rules)})" if rules else "nothing") + how
    horizon, steps = len(check.action_counts), len(check.steps_sent)
    share = f"{check.share_sent:.0%}"
    if check.sends_all_directions:
        share = "all" if check.sends_all else "all directions"
    where = "" if check.sends_all_directions and steps == horizon else f" at {steps} of {horizon} steps"
    limited = max(check.kept.limited, default=0)
    return f"{share}{where}{how}" + (f"; outcomes of up to {counted(limited)} a step are limited" if limited else "")


def privacy_costs(checks: Sequence[SiteCheck]) -> None:
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
    if not any(check.steps_sent for check in checks):
        first = f"Set {weights_remedy(study)}; or use" if weights_remedy(study) else "Use"
        return f"{begin} the disclosure rules let nothing out. {first} fewer features, or larger sites."
    return ""


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
            {name: value for name, value in vars(verdict).items() if name != "advice"} for verdict in check.verdicts
        ],
        "in_the_way": sorted({verdict.rule for verdict in check.in_the_way}),
        "repaired": sorted({verdict.rule for verdict in check.repaired}),
        "taken_out": [vars(part) for part in check.kept.taken_out],
        "sent": {"steps": check.steps_sent, "share": check.share_sent, "efficiency": check.efficiency_sent},
        "near_threshold": check.near_threshold,
        **({"judged_as_sites": check.n_alike} if check.n_alike else {}),
        **({"differential_privacy": show.privacy_json(check.cost)} if check.cost else {}),
    }


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {n:,}" for name, n in counts.items() if n) or "none"


def show_designs(tried: Sequence[Tried], notes: Sequence[str], machine: bool) -> None:
    """Print what every site could send under each design, in bands that may be passed on."""
    if machine:
        designs = [{"design": t.design.name, "changes": t.design.changes, "could_send": t.bands} for t in tried]
        show.as_json({"designs": designs, "notes": notes})
        return
    sites = list(tried[0].bands)
    rows = [[str(n), t.design.name, str(t.directions), *_bands(t.bands, sites)] for n, t in enumerate(tried)]
    columns = sites if len(sites) <= _COLUMNS else [*_SHORT]
    show.table(
        f"What {'each site' if len(sites) <= _COLUMNS else 'so many sites'} could send, as a share of what the design "
        "asks for (steps × shared features)",
        ["", "design", "asks for", *columns],
        rows,
        keys=2,
    )
    for note in notes:
        show.line(note)
    show.line("Bands hold no counts of patients and may be passed on. What each design changes in study.toml:")
    for number, t in enumerate(tried):
        if t.design.changes:
            show.line("\n".join(_wrapped(f"{number}  {'; '.join(t.design.changes)}", indent=3)))


def _bands(bands: Mapping[str, str], sites: Sequence[str]) -> list[str]:
    """The band of every site; of many sites, how many are in each band."""
    if len(sites) <= _COLUMNS:
        return [bands[site] for site in sites]
    counts = Counter(bands.values())
    return [str(counts[band]) for band in BANDS]
