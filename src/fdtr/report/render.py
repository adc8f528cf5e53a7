"""The report: one HTML file that needs nothing else, made from the templates beside this module."""

import csv
import io
import json
import math
from collections.abc import Sequence
from functools import cache
from typing import Any, Literal

import vl_convert
from markupsafe import Markup

from fdtr import __version__
from fdtr.evaluation.richer_q import CRITICAL
from fdtr.inference.shared_effects import SMALL_P
from fdtr.report import charts, forest
from fdtr.report.charts import Chart
from fdtr.report.findings import Findings, findings_of, first_screen, gain_decimals, meaning, model_checks
from fdtr.report.pages import grouped, listed, number, places, printable, render_page, resource
from fdtr.report.record import Assessment, Record, Rung, Subgroup, Trust
from fdtr.study import Study

# The bundle's own names for Vega and Vega-Lite are empty: vega-embed is the way to them. Its menu stays off.
_LIBRARIES = "window.vegaEmbed = vegaEmbed;"


def render(record: Record) -> str:
    """The report of a study as HTML."""
    findings = findings_of(record)
    return render_page(
        "report.html.j2",
        _scripts(),
        record=record,
        estimators=charts.ESTIMATORS,
        SMALL_P=SMALL_P,
        **_values_view(findings),
        **_view(record),
    )


def render_site_page(
    study: Study,
    site: str,
    assessments: Sequence[Assessment],
    subgroups: Sequence[Subgroup],
    trust: Trust,
    n: int,
    *,
    near_ties: Sequence[float] = (),
    withheld: str = "",
    n_clusters: int | None = None,
    split: Literal["folds", "half"] = "folds",
    sample: object = None,
) -> str:
    """The values of one site as HTML, for that site alone: gains and values, subgroups, and how far to trust them.

    `n` patients were valued. `near_ties` are the shares of patients with nearly tied actions by step, and `withheld` is
    what is not shown because of them, as a `NearTies` has both; without them the page says that near ties were not
    examined. `n_clusters` is given where errors are by cluster, and the `sample` that they are where not all were
    valued.
    """
    findings = Findings(
        study=study,
        patients={site: n},
        assessments=assessments,
        subgroups=subgroups,
        trust={site: trust},
        near_ties={site: near_ties} if len(near_ties) else {},
        decisions={site: trust.present},
        withheld={site: withheld} if withheld else {},
        split=split,
        clusters=[] if n_clusters is None else [f"{n_clusters:,} clusters at {site}"],
        samples={site: str(sample)} if sample else {},
    )
    return render_page("site.html.j2", _scripts(), site=site, version=__version__, **_values_view(findings))


def _values_view(findings: Findings) -> dict[str, Any]:
    """What the sections on values show, on the page of a study and on that of a site."""
    screen = first_screen(findings)
    checks = list(model_checks(findings))
    trusts = findings.trust
    return {
        "study": findings.study,
        "findings": findings,
        "screen": screen,
        "meaning": meaning(findings, screen) if screen else [],
        "axis": forest.make_axis(screen),
        "axis_strip": forest.axis_strip,
        "strip": forest.strip,
        "key": forest.key,
        "decimals": gain_decimals(screen),
        "model_checks": checks,
        "rejected": [f"{check.method} at {check.site}" for check in checks if check.misfit > CRITICAL],
        "CRITICAL": CRITICAL,
        "charts": charts,
        "specify": specify,
        "picture": picture,
        "chart_data": chart_data,
        "steps": [f"Step {step}" for step in range(findings.study.horizon)],
        "odds": next(([f"Γ = {number(odds)}" for odds in trust.odds] for trust in trusts.values()), []),
        "warnings": [(site, text) for site, trust in trusts.items() for text in trust.warnings],
    }


def _view(record: Record) -> dict[str, Any]:
    """What the other sections show and the record does not hold as such."""
    sites = record.sites.values()
    rows = sum(site.rows for site in sites)
    example = record.example
    choices = [choice for site in example.by_site.values() for choice in site] if example else []
    return {
        "patients": sum(site.patients for site in sites),
        "rows": rows,
        "filled": sum(sum(site.filled.values()) for site in sites),
        "clipped": sum(sum(site.clipped.values()) for site in sites),
        "agreement": sum(site.agreement_with_practice * site.rows for site in sites) / max(rows, 1),
        "known": {value.method: value for value in record.known_values}.get,
        "clear_effects": _clear_effects(record),
        "silent_features": _silent_features(record),
        "variations": _variations(record),
        "ladder": _ladder(record),
        "choosing": [name for name, site in record.sites.items() if len(site.ladder) > 1],
        "few": [name for name, site in record.sites.items() if len(site.ladder) > 1 and site.few],
        "nearness": [site.nearness for site in record.sites.values() if site.nearness],
        "example_state": [f"{name} {number(x)}" for name, x in example.state.items()] if example else [],
        "example_decimals": places(x for c in choices for x in (c.estimate, c.penalty, c.bound)),
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
