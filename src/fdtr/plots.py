"""The charts of the report as Altair objects, for a notebook.

    from fdtr import plots

    results = fdtr.run(study, data)
    plots.values(results)                         # a notebook shows it
    plots.values(results).save("values.svg")

Each function takes the results of a run, or their `record`, and returns an Altair chart; whatever Altair does with
charts can be done with it. A chart for which the study has no data is refused with the reason. Charts that show sites
side by side show a single one with `site`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fdtr.errors import DataError, UnknownSite
from fdtr.report import charts
from fdtr.report.record import Record

if TYPE_CHECKING:
    from fdtr.pipeline.results import Results
    from fdtr.report.charts import Chart, Drawing

__all__ = [
    "actions",
    "calibration",
    "effective_sample_size",
    "gain_from_sharing",
    "intervals",
    "overlap",
    "settings",
    "shared_effects",
    "true_values",
    "values",
    "values_by_site",
]

_NOT_VALUED = "no site is large enough to be valued on held-out patients; results.not_valued has the reasons"


def values(results: Results | Record) -> Drawing:
    """Value of each method, mean over sites, with 95% intervals, by the doubly robust estimator and the linear model.

    Values are sums of mapped rewards, from 0 to H. Hollow marks with a dashed line are not to be believed.

        plots.values(results)
    """
    return _drawing(charts.values(_record(results)), _NOT_VALUED)


def values_by_site(results: Results | Record, site: str | None = None) -> Drawing:
    """Value of each method at each site, with 95% intervals; hollow marks are not to be believed.

    plots.values_by_site(results, site="a")
    """
    return _drawing(charts.values_by_site(_record(results, site)), _NOT_VALUED)


def true_values(results: Results | Record) -> Drawing:
    """True value of each method, found by simulation; only the demo's results have it.

    plots.true_values(results)
    """
    return _drawing(charts.true_values(_record(results)), "the truth is known of the demo's data alone")


def shared_effects(results: Results | Record) -> Drawing:
    """Effects on the reward that all sites have in common, by feature and step.

    Lines are 95% intervals of one step; the band holds for all steps of a feature together. Effects that no site
    identifies are left out.

        plots.shared_effects(results)
    """
    return _drawing(charts.shared_effects(_record(results)), "no combination of sites identifies any shared effect")


def gain_from_sharing(results: Results | Record, site: str | None = None) -> Drawing:
    """Patients of its own that a site would need to know a shared effect as precisely as all sites do together.

    Medians over steps. Sites that could never tell the effect alone are left out.

        plots.gain_from_sharing(results)
    """
    reason = "no site could learn a shared effect alone, however many patients it had"
    return _drawing(charts.gain_from_sharing(_record(results, site)), reason)


def actions(results: Results | Record, site: str | None = None) -> Drawing:
    """Share of patients by action at each step: given by clinicians (left) and recommended by FDTR (right).

    plots.actions(results, site="a")
    """
    record = _record(results, site)
    return _drawing(charts.actions(record, record.load_study().actions.labels))


def settings(results: Results | Record, site: str | None = None) -> Drawing:
    """Share of FDTR's decisions that stay the same with another pessimism c or sharing w.

    plots.settings(results)
    """
    return _drawing(charts.settings(_record(results, site)), "no other settings were tried")


def effective_sample_size(results: Results | Record, site: str | None = None) -> Drawing:
    """Effective sample size (Σw)² / Σw² of FDTR's importance weights w, by step.

    Below the dashed line no value is believed.

        plots.effective_sample_size(results)
    """
    return _drawing(charts.effective_sample_size(_record(results, site)), _NOT_VALUED)


def overlap(results: Results | Record, site: str | None = None) -> Drawing:
    """Share of patients to whom FDTR recommends what clinicians do with a chance below 5%, by step.

    plots.overlap(results)
    """
    return _drawing(charts.overlap(_record(results, site)), _NOT_VALUED)


def calibration(results: Results | Record, site: str | None = None) -> Drawing:
    """Calibration of the propensity model: observed share of an action against its predicted chance, in ten groups.

    plots.calibration(results)
    """
    return _drawing(charts.calibration(_record(results, site)), _NOT_VALUED)


def intervals(rows: Sequence[Mapping[str, Any]], across: str) -> Drawing:
    """Any estimates as dots with their intervals, in the style of the report; `across` names the axis.

    A row has `method`, `estimator`, `value`, `low`, `high` and `believable`; rows with False are drawn hollow.

    >>> row = {"method": "FDTR", "estimator": "mine", "value": 2.5, "low": 2.25, "high": 2.75, "believable": True}
    >>> type(intervals([row], across="value")).__name__
    'LayerChart'
    """
    if not rows:
        raise DataError("There is nothing to draw: no row was given. Give one row for each estimate.")
    return _styled(charts.intervals(rows, across))


def _record(results: Results | Record, site: str | None = None) -> Record:
    """The record of results, of one site alone where `site` names it."""
    record = results if isinstance(results, Record) else results.record
    if site is None:
        return record
    if site not in record.sites:
        raise UnknownSite(f"The results have no site {site!r}. Choose one of: {', '.join(record.sites)}.")
    return record.model_copy(
        update={
            "sites": {site: record.sites[site]},
            "values": [value for value in record.values if value.site == site],
            "gains": [gain for gain in record.gains if gain.site == site],
        }
    )


def _drawing(chart: Chart | None, reason: str = "") -> Drawing:
    if chart is None:
        raise DataError(f"There is nothing to draw: {reason}. Choose another chart, or run the study on more data.")
    return _styled(chart.drawing.properties(title=chart.title))


def _styled(drawing: Drawing) -> Drawing:
    styled: Drawing = drawing.configure(**charts.CONFIG)
    return styled
