"""How far to trust the values: weights, overlap, calibration, confounding, the past, transitions, ties."""

import math
from collections.abc import Callable, Iterable, Mapping

import altair as alt

from fdtr.evaluation.diagnostics import FEWEST, LEAST_SHARE
from fdtr.inference import SMALL_P
from fdtr.report import charts
from fdtr.report.figures import figure
from fdtr.report.page import Html, bullets, number, p_value, paragraph, percent, step_titles, struck, table, tag
from fdtr.report.record import Curve, Past, Record, Trust
from fdtr.report.texts import say
from fdtr.study import Study

_TICKS = [0, 1, 3, 10, 30, 100, 300, 1000, 3000, 10000]
_WEIGHTS = ("smallest-ess", "zero", "largest", "rare", "low", "mean")
Trusts = Mapping[str, Trust]


def trust(found: Record, asked: Study) -> list[Html]:
    """Everything that could make a value wrong, as far as the data can show it."""
    trusts = {name: site.trust for name, site in found.sites.items() if site.trust}
    valued = [*_weights(trusts), *_calibration(trusts), *_confounding(trusts), *_markov(trusts)] if trusts else []
    warnings = [say("trust.warning", site=s, sentence=text) for s, one in trusts.items() for text in one.warnings]
    return [
        *(valued or [paragraph(say("trust.none"))]),
        *_transitions(found, asked.horizon),
        paragraph(say("trust.ties")),
        table(
            say("trust.ties-table"),
            [say("data.site"), *step_titles(range(asked.horizon))],
            [[name, *(percent(share) for share in site.near_ties)] for name, site in found.sites.items()],
        ),
        *_withheld(found),
        *([tag("h3", say("trust.warnings")), bullets(warnings)] if warnings else []),
    ]


def _withheld(found: Record) -> list[Html]:
    told = [say("trust.warning", site=name, sentence=s.withheld) for name, s in found.sites.items() if s.withheld]
    return [bullets(told)] if told else []


def _weights(trusts: Trusts) -> list[Html]:
    ess = alt.Y("value:Q", title=say("trust.ess-axis"), scale=alt.Scale(type="symlog"), axis=alt.Axis(values=_TICKS))
    rare = alt.Y("value:Q", title=say("trust.overlap-axis"), axis=alt.Axis(format="%"))
    sizes = _by_step(trusts, lambda one: one.effective_sample_size)
    least = max(FEWEST, LEAST_SHARE * max(one.present[0] for one in trusts.values()))
    size_chart = charts.by_step(
        "effective-sample-size", say("trust.ess-chart"), say("trust.ess-caption"), sizes, ess, least
    )
    rarely = _by_step(trusts, lambda one: one.rare_share)
    rare_chart = charts.by_step("overlap", say("trust.overlap-chart"), say("trust.overlap-caption"), rarely, rare)
    rows = [
        [
            site,
            number(min(_finite(one.effective_sample_size), default=math.nan), 1),
            *(percent(max(_finite(x), default=math.nan)) for x in (one.zero_share, one.largest_share, one.rare_share)),
            number(min(_finite(one.low_propensity), default=math.nan), 3),
            number(min(_finite(one.mean_weight), default=math.nan), 2),
        ]
        for site, one in trusts.items()
    ]
    columns = [say("data.site"), *(say(f"trust.{name}") for name in _WEIGHTS)]
    return [
        paragraph(say("trust.ess")),
        figure(size_chart, say("trust.ess-caption")),
        figure(rare_chart, say("trust.overlap-caption")),
        table(say("trust.weights-table"), columns, rows),
    ]


def _by_step(trusts: Trusts, read: Callable[[Trust], list[float]]) -> list[dict[str, object]]:
    return [
        {"site": site, "step": h, "value": value}
        for site, one in trusts.items()
        for h, value in enumerate(read(one))
        if not math.isnan(value)
    ]


def _finite(values: Iterable[float]) -> list[float]:
    return [value for value in values if math.isfinite(value)]


def _calibration(trusts: Trusts) -> list[Html]:
    rows = [
        {"site": site, "action": action, "predicted": predicted, "observed": observed, "rows": count}
        for site, one in trusts.items()
        for action, curve in one.calibration.items()
        for predicted, observed, count in zip(curve.predicted, curve.observed, curve.count, strict=True)
        if count
    ]
    actions = list(dict.fromkeys(action for one in trusts.values() for action in one.calibration))
    cells = [[site, *(number(_distance(one.calibration[a]), 3) for a in actions)] for site, one in trusts.items()]
    return [
        figure(charts.calibration(rows), say("trust.calibration-caption")),
        table(say("trust.calibration-table"), [say("data.site"), *actions], cells),
    ]


def _distance(curve: Curve) -> float:
    """Mean |predicted − observed|, bins weighted by their rows."""
    bins = [(abs(p - o), n) for p, o, n in zip(curve.predicted, curve.observed, curve.count, strict=True) if n]
    return sum(gap * n for gap, n in bins) / max(sum(n for _, n in bins), 1)


def _confounding(trusts: Trusts) -> list[Html]:
    odds = next(iter(trusts.values())).odds
    rows = [[site, number(one.practice, 2), *_bounds(one), _tipping(one)] for site, one in trusts.items()]
    titles = [say("trust.odds", odds=number(gamma)) for gamma in odds]
    columns = [say("data.site"), say("policy.clinicians"), *titles, say("trust.tipping")]
    return [paragraph(say("trust.confounding")), table(say("trust.confounding-table"), columns, rows)]


def _bounds(one: Trust) -> list[str]:
    pairs = zip(one.odds_low, one.odds_high, strict=True)
    ranges = [say("method.range", low=number(low, 2), high=number(high, 2)) for low, high in pairs]
    return [struck(text) for text in ranges] if one.confounding_doubt else ranges


def _tipping(one: Trust) -> str:
    if one.confounding_doubt:
        return say("trust.no-tipping")
    return say("trust.beyond") if math.isnan(one.tipping_odds) else number(one.tipping_odds, 2)


def _markov(trusts: Trusts) -> list[Html]:
    rows = [[site, *(_past(past) for past in one.past)] for site, one in trusts.items()]
    columns = [say("data.site"), say("trust.reward"), say("trust.value")]
    return [paragraph(say("trust.markov")), table(say("trust.markov-table"), columns, rows)]


def _past(past: Past) -> str:
    return f"{number(past.gain, 3)} ± {number(past.standard_error, 3)}{' *' if past.clear else ''}"


def _transitions(found: Record, horizon: int) -> list[Html]:
    if horizon == 1 or not found.shared_effects:
        return []
    rows = [
        [name, *(f"{p_value(p)} *" if p < SMALL_P else p_value(p) for p in site.transitions)]
        for name, site in found.sites.items()
    ]
    columns = [say("data.site"), *step_titles(range(horizon - 1))]
    return [paragraph(say("trust.transitions")), table(say("trust.transitions-table"), columns, rows)]
