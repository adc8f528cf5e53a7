"""Shared coefficients over time, whether they are common, and what sharing gains."""

from collections.abc import Sequence

from fdtr.inference import SMALL_P
from fdtr.report import charts
from fdtr.report.figures import figure
from fdtr.report.page import (
    Html,
    bullets,
    enumerated,
    folded,
    grouped_table,
    number,
    p_value,
    paragraph,
    percent,
    places,
    step_titles,
    table,
    tag,
)
from fdtr.report.record import Effect, Gain, Record
from fdtr.report.texts import say
from fdtr.study import Study


def effects(found: Record, asked: Study) -> list[Html]:
    """Effects on the reward with intervals and bands; FDTR's own estimates after them."""
    if not found.shared_effects:
        return [paragraph(say("effects.none"))]
    known = [effect for effect in found.shared_effects if effect.identified]
    rows = [effect.model_dump(exclude={"identified", "raw"}) for effect in known]
    drawn = (
        figure(charts.effects(rows), say("effects.chart-caption")) if rows else paragraph(say("effects.unidentified"))
    )
    return [
        paragraph(say("effects.how")),
        paragraph(say("effects.observed")),
        drawn,
        paragraph(_clear(known)),
        folded(say("effects.numbers"), _table(found.shared_effects)),
        tag("h3", say("effects.fdtr")),
        paragraph(say("effects.fdtr-how")),
        _own(found, asked.horizon),
        *_own_by_site(found, asked.horizon),
    ]


def _clear(known: Sequence[Effect]) -> str:
    """Which effects are not 0, all of them judged together."""
    steps: dict[str, list[str]] = {}
    for effect in known:
        if effect.adjusted_p_value < SMALL_P:
            steps.setdefault(effect.feature, []).append(str(effect.step))
    named = [say("effects.at-steps", feature=feature, steps=enumerated(at)) for feature, at in steps.items()]
    return say("effects.clear", effects=enumerated(named)) if named else say("effects.nothing-clear")


def _table(rows: Sequence[Effect]) -> Html:
    decimals = places(abs(effect.estimate) for effect in rows if effect.identified)
    groups: dict[str, list[list[str]]] = {}
    for effect in rows:
        groups.setdefault(effect.feature, []).append(_effect_row(effect, decimals))
    columns = [say(f"effects.{name}") for name in ("step", "estimate", "interval", "band", "p", "raw")]
    return grouped_table(say("effects.table"), columns, groups)


def _effect_row(effect: Effect, decimals: int) -> list[str]:
    if not effect.identified:
        return [str(effect.step), say("effects.not-identified"), "", "", "", ""]
    low, high, band_low, band_high = (
        number(x, decimals) for x in (effect.low, effect.high, effect.band_low, effect.band_high)
    )
    spans = [say("method.range", low=low, high=high), say("method.range", low=band_low, high=band_high)]
    raw = number(effect.estimate * effect.raw)
    return [str(effect.step), number(effect.estimate, decimals), *spans, p_value(effect.adjusted_p_value), raw]


def _own(found: Record, horizon: int) -> Html:
    rows = [
        [
            name if one.identified else f"{name} ({say('effects.not-identified')})",
            *(number(x, places(one.by_step)) for x in one.by_step),
        ]
        for name, one in found.shared_coefficients.items()
    ]
    rows.append([say("effects.bound"), *(number(x) for x in found.theorem3_bound)])
    return table(say("effects.fdtr-table"), [say("effects.feature"), *step_titles(range(horizon))], rows)


def _own_by_site(found: Record, horizon: int) -> list[Html]:
    groups = {
        name: [[site, *(number(x, places(steps)) for x in steps)] for site, steps in one.by_site.items()]
        for name, one in found.shared_coefficients.items()
        if one.by_site
    }
    if not groups:
        return []
    shown = grouped_table(say("effects.by-site-table"), [say("data.site"), *step_titles(range(horizon))], groups)
    return [folded(say("effects.by-site"), shown)]


def sharing(found: Record, _asked: Study) -> list[Html]:
    """Cochran's Q, what the others are worth, and what each site can say."""
    if not found.gains:
        return [paragraph(say("sharing.none"))]
    q = [
        [
            say("sharing.all-steps") if one.step is None else say("page.step", step=one.step),
            *(number(one.statistic), str(one.df), p_value(one.p_value), percent(one.i_squared)),
        ]
        for one in found.heterogeneity
    ]
    columns = [say("effects.step"), *(say(f"sharing.{name}") for name in ("statistic", "df", "p", "i-squared"))]
    return [
        paragraph(say("sharing.q")),
        table(say("sharing.q-table"), columns, q),
        paragraph(say("sharing.gain")),
        *_gain_chart(found.gains),
        _gain_table(found),
        paragraph(say("sharing.identified")),
        *_identified(found),
    ]


def _gain_chart(gains: Sequence[Gain]) -> list[Html]:
    rows = [{"feature": g.feature, "site": g.site, "worth": g.worth} for g in gains if g.worth > 0]
    return [figure(charts.gains(rows), say("sharing.gain-caption"))] if rows else []


def _gain_table(found: Record) -> Html:
    rows = [[say("sharing.has"), *(f"{site.patients:,}" for site in found.sites.values())]]
    cells = {(g.feature, g.site): say("sharing.never") if g.only_together else number(g.worth, 0) for g in found.gains}
    for feature in found.shared_coefficients:
        rows.append([feature, *(cells[feature, site] for site in found.sites)])
    return table(say("sharing.gain-table"), [say("effects.feature"), *found.sites], rows)


def _identified(found: Record) -> list[Html]:
    shares = {name: {one.feature: one for one in site.identified} for name, site in found.sites.items()}
    rows = [
        [feature, *("0%" if by[feature].reason else percent(by[feature].retained) for by in shares.values())]
        for feature in found.shared_coefficients
    ]
    silent: dict[tuple[str, str], list[str]] = {}
    for name, by in shares.items():
        for one in by.values():
            if one.reason:
                silent.setdefault((one.feature, one.reason), []).append(name)
    told = [
        say("sharing.silent", feature=feature, sites=enumerated(sites), reason=reason)
        for (feature, reason), sites in silent.items()
    ]
    shown = table(say("sharing.identified-table"), [say("effects.feature"), *found.sites], rows)
    return [shown, *([bullets(told)] if told else [])]
