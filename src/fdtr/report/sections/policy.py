"""What the policy does: actions, agreement, rarely used actions, other settings, one made-up patient."""

import math

from fdtr.report import charts
from fdtr.report.figures import figure
from fdtr.report.page import (
    Html,
    enumerated,
    grouped_table,
    number,
    paragraph,
    percent,
    places,
    step_titles,
    table,
    tag,
)
from fdtr.report.record import Choice, Record, Site
from fdtr.report.texts import say
from fdtr.study import Study


def policy(found: Record, asked: Study) -> list[Html]:
    """Charts and tables of what the rules would do, beside what was done."""
    return [
        _practice_chart(found, asked),
        _practice_table(found, asked),
        _agreement(found),
        paragraph(say("policy.rare-note")),
        *_settings(found),
        *_example(found),
    ]


def _practice_chart(found: Record, asked: Study) -> Html:
    rows = [
        {"site": name, "step": h, "kind": say(kind), "action": label, "place": a, "share": shares[h][a]}
        for name, site in found.sites.items()
        for kind, shares in (("policy.given", site.given), ("policy.recommended", site.recommended))
        for h in range(asked.horizon)
        for a, label in enumerate(asked.actions.labels)
    ]
    return figure(charts.practice(rows, asked.actions.labels), say("policy.how"))


def _practice_table(found: Record, asked: Study) -> Html:
    groups = {
        name: [
            [label, *(f"{percent(given[a])} → {percent(rule[a])}" for given, rule in _pairs(site))]
            for a, label in enumerate(asked.actions.labels)
        ]
        for name, site in found.sites.items()
    }
    return grouped_table(say("policy.table"), [say("data.action"), *step_titles(range(asked.horizon))], groups)


def _pairs(site: Site) -> list[tuple[list[float], list[float]]]:
    return list(zip(site.given, site.recommended, strict=True))


def _agreement(found: Record) -> Html:
    methods = list(dict.fromkeys(method for site in found.sites.values() for method in site.agreement_with_baselines))
    rows = [
        [
            name,
            percent(site.agreement_with_practice),
            *(percent(site.agreement_with_baselines[method]) for method in methods),
            percent(_rarest(site)),
        ]
        for name, site in found.sites.items()
    ]
    columns = [say("data.site"), say("policy.clinicians"), *methods, say("policy.rare")]
    return table(say("policy.agreement-table"), columns, rows)


def _rarest(site: Site) -> float:
    """The largest share of rarely used recommendations over steps; NaN where it is not known."""
    shares = site.trust.rare_share if site.trust else []
    return max((share for share in shares if not math.isnan(share)), default=math.nan)


def _settings(found: Record) -> list[Html]:
    rows = [
        {"site": name, "setting": one.setting, "value": one.value, "same": one.same}
        for name, site in found.sites.items()
        for one in site.variations
    ]
    if not rows:
        return []
    asked = dict.fromkeys((one.setting, one.value) for site in found.sites.values() for one in site.variations)
    cells = [
        [f"{setting} = {value:g}", *(percent(same) for same in _same(found, setting, value))]
        for setting, value in asked
    ]
    return [
        figure(charts.settings(rows), say("policy.settings-caption")),
        table(say("policy.settings-table"), [say("policy.setting"), *found.sites], cells),
    ]


def _same(found: Record, setting: str, value: float) -> list[float]:
    parts = (one for site in found.sites.values() for one in site.variations)
    return [one.same for one in parts if (one.setting, one.value) == (setting, value)]


def _example(found: Record) -> list[Html]:
    example = found.example
    if example is None:
        return []
    state = enumerated([f"{name} {number(value)}" for name, value in example.state.items()])
    shown = [choice for choices in example.by_site.values() for choice in choices]
    decimals = places(x for one in shown for x in (one.estimate, one.penalty, one.bound))
    groups = {site: [_choice_row(one, decimals) for one in choices] for site, choices in example.by_site.items()}
    columns = [say(f"policy.{name}") for name in ("estimate", "penalty", "bound", "shared-part", "own-part")]
    return [
        tag("h3", say("policy.example")),
        paragraph(say("policy.example-state", step=example.step, state=state)),
        paragraph(say("policy.example-how")),
        grouped_table(say("policy.example-table"), [say("data.action"), *columns], groups),
    ]


def _choice_row(one: Choice, decimals: int) -> list[str]:
    label = tag("strong", say("policy.chosen", label=one.label)) if one.chosen else one.label
    return [label, *(number(x, decimals) for x in (one.estimate, one.penalty, one.bound, one.shared, one.specific))]
