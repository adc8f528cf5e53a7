"""What every method is worth: over sites, at each site, by two estimators, and the truth where it is known."""

from fdtr.report import charts
from fdtr.report.figures import figure
from fdtr.report.page import (
    Html,
    bullets,
    enumerated,
    folded,
    grouped_table,
    number,
    paragraph,
    percent,
    struck,
    table,
    tag,
)
from fdtr.report.record import MAIN, MODEL, Pooled, Record, Span, Value
from fdtr.report.texts import say
from fdtr.study import Study

_DECIMALS = 2
_ESTIMATORS = {MAIN: "values.robust", MODEL: "values.model"}


def values(found: Record, asked: Study) -> list[Html]:
    """Charts and tables, with what is not believable struck through."""
    left_out = [
        say("values.not-valued", site=s, reason=one.not_valued) for s, one in found.sites.items() if one.not_valued
    ]
    told = [bullets(left_out)] if left_out else []
    if not found.values:
        return [paragraph(say("values.none")), *told, *_known(found)]
    return [
        *_known(found),
        paragraph(f"{say(f'values.how-{found.split}')} {say('values.methods')}"),
        paragraph(say("values.estimators")),
        *_clustered(found),
        *told,
        _chart(found),
        _overall(found, asked),
        *_differences(found),
        _by_site_chart(found),
        _by_site(found),
        *_reasons(found),
    ]


def _known(found: Record) -> list[Html]:
    if not found.known_values:
        return []
    title, name = say("values.known-chart"), say("values.known")
    rows = [
        {"method": v.method, "estimator": name, "value": v.value, "low": v.low, "high": v.high, "believable": True}
        for v in found.known_values
    ]
    columns = [say("values.method"), say("values.all"), say("values.interval"), *found.sites]
    cells = [
        [v.method, number(v.value, _DECIMALS + 1), f"{number(v.low, _DECIMALS + 1)} – {number(v.high, _DECIMALS + 1)}"]
        + [number(v.by_site[site], _DECIMALS) for site in found.sites]
        for v in found.known_values
    ]
    return [
        figure(charts.intervals("true-values", title, rows, name), found.known_values_note),
        table(say("values.known-table"), columns, cells),
    ]


def _clustered(found: Record) -> list[Html]:
    clusters = {v.site: v.n_clusters for v in found.values if v.n_clusters is not None}
    counts = [say("values.clusters", n=f"{n:,}", site=site) for site, n in clusters.items()]
    return [paragraph(say("values.clustered", counts=enumerated(counts)))] if counts else []


def _chart(found: Record) -> Html:
    rows = [
        {
            "method": p.method,
            "estimator": say(_ESTIMATORS[p.estimator]),
            **p.plain.model_dump(),
            "believable": p.believable,
        }
        for p in found.pooled
        if not p.over
    ]
    chart = charts.intervals("values", say("values.chart"), rows, say("values.all"))
    return figure(chart, say("values.chart-caption"))


def _overall(found: Record, asked: Study) -> Html:
    low, high = asked.reward.range
    raw = (low, high) != (0.0, 1.0)
    by_estimator = [{p.method: p for p in found.pooled if p.estimator == name and not p.over} for name in _ESTIMATORS]
    rows = []
    for method, main in by_estimator[0].items():
        pair = [estimates[method] for estimates in by_estimator]
        row: list[str] = [method, *(_span(p, p.plain) for p in pair)]
        if raw:
            worth = (number(asked.horizon * low + p.plain.value * (high - low)) for p in pair)
            row += [text if p.believable else struck(text) for p, text in zip(pair, worth, strict=True)]
        rows.append([*row, say("page.yes") if main.believable else f"{say('page.no')}. {main.reason}"])
    columns = [say("values.method"), say("values.robust"), say("values.model")]
    columns += [say("values.robust-raw"), say("values.model-raw")] if raw else []
    return table(say("values.table"), [*columns, say("values.believed")], rows, text=(len(columns),))


def _span(one: Pooled, span: Span) -> str:
    value, low, high = (number(x, _DECIMALS) for x in (span.value, span.low, span.high))
    text = say("values.span", value=value, low=low, high=high)
    return text if one.believable else struck(text)


def _by_site_chart(found: Record) -> Html:
    rows = [
        {"site": v.site, "method": v.method, "estimator": say(name), "value": v.value, "low": v.low, "high": v.high,
         "believable": v.believable}
        for estimator, name in _ESTIMATORS.items()
        for v in found.values
        if v.estimator == estimator
    ]  # fmt: skip
    chart = charts.intervals_by_site("values-by-site", say("values.by-site-chart"), rows, say("values.value"))
    return figure(chart, say("values.by-site-caption"))


def _by_site(found: Record) -> Html:
    sites = list(dict.fromkeys(v.site for v in found.values))
    cells: dict[str, dict[str, dict[str, str]]] = {}
    for v in found.values:
        if v.estimator in _ESTIMATORS:
            value, low, high = (number(x, _DECIMALS) for x in (v.value, v.low, v.high))
            text = say("values.span", value=value, low=low, high=high)
            by_method = cells.setdefault(v.estimator, {}).setdefault(v.method, {})
            by_method[v.site] = text if v.believable else struck(text)
    groups = {
        say(name): [[method, *(by_site[site] for site in sites)] for method, by_site in cells[estimator].items()]
        for estimator, name in _ESTIMATORS.items()
    }
    return grouped_table(say("values.by-site-table"), [say("values.method"), *sites], groups)


def _reasons(found: Record) -> list[Html]:
    methods: dict[str, dict[str, list[str]]] = {}
    for v in _main(found):
        if not v.believable:
            methods.setdefault(v.site, {}).setdefault(v.reason, []).append(v.method)
    if not methods:
        return []
    groups = {site: [[enumerated(names), why] for why, names in reasons.items()] for site, reasons in methods.items()}
    why = grouped_table(say("values.why-table"), [say("values.method"), say("values.reason")], groups, text=(1,))
    return [folded(say("values.why"), why)]


def _main(found: Record) -> list[Value]:
    return [v for v in found.values if v.estimator == MAIN]


def _differences(found: Record) -> list[Html]:
    rows, warnings = [], []
    for p in found.pooled:
        if p.over:
            spans = [_span(p, span) for span in (p.plain, p.fixed, p.random)]
            rows.append([p.over, say(_ESTIMATORS[p.estimator]), *spans, percent(p.i_squared)])
            warnings += p.warnings
    columns = [say(f"values.{name}") for name in ("over", "estimator", "plain", "fixed", "random")]
    return [
        tag("h3", say("values.pooling")),
        table(say("values.pooling-table"), [*columns, say("sharing.i-squared")], rows, text=(1,)),
        paragraph(say("values.pooling-note"), " ", " ".join(dict.fromkeys(warnings))),
    ]
