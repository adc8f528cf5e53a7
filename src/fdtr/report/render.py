"""The report: one HTML file that needs nothing else, made from the templates beside this module."""

import csv
import io
import json
import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import vl_convert
from markupsafe import Markup

from fdtr.inference.shared_effects import SMALL_P
from fdtr.report import charts
from fdtr.report.charts import Chart
from fdtr.report.pages import grouped, listed, number, places, printable, render_page, resource
from fdtr.report.record import MODEL, ROBUST, Pooled, Record, Rung
from fdtr.study import Study

# The bundle's own names for Vega and Vega-Lite are empty: vega-embed is the way to them. Its menu stays off.
_LIBRARIES = "window.vegaEmbed = vegaEmbed;"


def render(record: Record) -> str:
    """The report of a study as HTML."""
    study = record.load_study()
    return render_page(
        "report.html.j2",
        _scripts(),
        record=record,
        study=study,
        charts=charts,
        estimators=charts.ESTIMATORS,
        ROBUST=ROBUST,
        MODEL=MODEL,
        SMALL_P=SMALL_P,
        specify=specify,
        picture=picture,
        chart_data=chart_data,
        **_view(record, study),
    )


def _view(record: Record, study: Study) -> dict[str, Any]:
    """What the templates show and the record does not hold as such."""
    sites = record.sites.values()
    rows = sum(site.rows for site in sites)
    valued = [site.trust for site in sites if site.trust]
    example = record.example
    choices = [choice for site in example.by_site.values() for choice in site] if example else []
    clusters = {value.site: value.n_clusters for value in record.values if value.n_clusters is not None}

    def pooled(method: str, estimator: str, over: str = "") -> Pooled | None:
        """The mean over sites, of a method or of its difference from another, where there is one."""
        return next((p for p in record.pooled if (p.method, p.over, p.estimator) == (method, over, estimator)), None)

    return {
        "steps": [f"Step {step}" for step in range(study.horizon)],
        "patients": sum(site.patients for site in sites),
        "rows": rows,
        "filled": sum(sum(site.filled.values()) for site in sites),
        "clipped": sum(sum(site.clipped.values()) for site in sites),
        "agreement": sum(site.agreement_with_practice * site.rows for site in sites) / max(rows, 1),
        "pooled": pooled,
        "known": {value.method: value for value in record.known_values}.get,
        "clusters": [f"{n:,} clusters at {site}" for site, n in clusters.items()],
        "clear_effects": _clear_effects(record),
        "silent_features": _silent_features(record),
        "variations": _variations(record),
        "ladder": _ladder(record),
        "choosing": [name for name, site in record.sites.items() if len(site.ladder) > 1],
        "few": [name for name, site in record.sites.items() if len(site.ladder) > 1 and site.few],
        "nearness": [site.nearness for site in record.sites.values() if site.nearness],
        "example_state": [f"{name} {number(x)}" for name, x in example.state.items()] if example else [],
        "example_decimals": places(x for c in choices for x in (c.estimate, c.penalty, c.bound)),
        "odds": [f"Γ = {number(odds)}" for odds in valued[0].odds] if valued else [],
        "warnings": [(n, text) for n, site in record.sites.items() if site.trust for text in site.trust.warnings],
    }


def _clear_effects(record: Record) -> list[str]:
    """Shared effects that are not 0, all of them judged together, each with its steps."""
    clear = [effect for effect in record.shared_effects if effect.identified and effect.adjusted_p_value < SMALL_P]
    by_feature = grouped(clear, "feature")
    return [f"{feature} (step {listed(e.step for e in effects)})" for feature, effects in by_feature]


def _silent_features(record: Record) -> list[tuple[str, list[str], str]]:
    """Shared features of which sites say nothing: the feature, those sites, and why."""
    sites: dict[tuple[str, str], list[str]] = {}
    for name, site in record.sites.items():
        for share in site.identified:
            if share.reason:
                sites.setdefault((share.feature, share.reason), []).append(name)
    return [(feature, names, reason) for (feature, reason), names in sites.items()]


def _variations(record: Record) -> dict[str, list[float]]:
    """Share of decisions that stay the same with another setting, one for each site; NaN where a site has none."""
    sites = [{(v.setting, v.value): v.same for v in site.variations} for site in record.sites.values()]
    settings = dict.fromkeys(key for shares in sites for key in shares)
    return {
        f"{name} = {value:g}": [shares.get((name, value), math.nan) for shares in sites] for name, value in settings
    }


def _ladder(record: Record) -> list[tuple[Rung, list[Rung | None]]]:
    """Every way to share that the study leaves open, and how each site with a choice judges it; None: not tried."""
    ladders = [{(r.sharing, r.share): r for r in site.ladder} for site in record.sites.values() if len(site.ladder) > 1]
    longest = max(ladders, key=len, default={})
    return [(rung, [ladder.get(way) for ladder in ladders]) for way, rung in longest.items()]


def specify(chart: Chart) -> dict[str, Any]:
    """The chart's Vega-Lite specification, in the style of the report."""
    # Charts are valid by construction, and a test of each holds that; validating them again would only take time.
    specification: dict[str, Any] = printable({**chart.drawing.to_dict(validate=False), "config": charts.CONFIG})
    return specification


def picture(specification: dict[str, Any]) -> Markup:
    """A chart as SVG."""
    return Markup(vl_convert.vegalite_to_svg(specification))  # noqa: S704 - it escapes what it draws


def chart_data(chart: Chart, specification: dict[str, Any]) -> Markup:
    """The chart for the page's script; "<" is written as JSON can, so that nothing ends the element."""
    data = {"name": chart.name, "csv": _csv(chart.rows), "spec": specification}
    return Markup(json.dumps(data, ensure_ascii=False).replace("<", "\\u003c"))  # noqa: S704 - see above


def _csv(rows: Sequence[charts.Row]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


@cache
def _scripts() -> tuple[str, str]:
    """Vega and Vega-Lite, once for the page, and what draws the charts."""
    return vl_convert.javascript_bundle(snippet=_LIBRARIES), resource("page.js")
