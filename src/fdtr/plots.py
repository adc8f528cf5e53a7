"""The charts of the report as Altair objects, for a notebook.

Each function takes the results of a run, or their record, and returns an Altair chart: a notebook shows it, and
`plots.values(results).save("values.svg")` writes it to a file. Charts that show sites side by side show a single one
with `site`. `altair.theme.enable("fdtr")` gives them the fonts and legends of the report.

>>> import fdtr, numpy as np, pyarrow as pa
>>> from fdtr import plots
>>> from fdtr.simulation import WorldSpec, make_world
>>> world = make_world(WorldSpec(n_sites=2, horizon=2, n_actions=2), np.random.default_rng(1))
>>> study = fdtr.Study.model_validate(world.study(ridge=0.1, sharing=1.0, share="value"))
>>> results = fdtr.run(study, fdtr.read_trajectories(pa.table(world.table(60, np.random.default_rng(2))), study))
>>> drawn = [
...     plots.gains(results),
...     plots.gains_by_site(results, site="site-1"),
...     plots.values(results),
...     plots.values_by_site(results, site="site-1"),
...     plots.shared_effects(results),
...     plots.gain_from_sharing(results),
...     plots.actions(results, site="site-1"),
...     plots.settings(results),
...     plots.effective_sample_size(results),
...     plots.overlap(results),
...     plots.calibration(results),
... ]
>>> for chart in drawn:
...     print(chart.title)
Gains, mean over sites
Gains
Value of each method, mean over sites
Value of each method
Shared effects on the reward by step
Patients that sharing is worth
Actions given, and recommended by the verified part and by the full policy
Decisions that stay the same with other settings
Effective sample size of FDTR by step
Recommended actions that clinicians rarely take
Calibration of the propensity model

Charts are put together as in Altair. Their legends differ, so colours and shapes must not be shared:

>>> pair = plots.values(results) | plots.overlap(results)
>>> pair = pair.resolve_scale(color="independent", shape="independent")

A chart for which the study has no data is refused with the reason:

>>> plots.true_values(results)
Traceback (most recent call last):
    ...
fdtr.errors.DataError: There is nothing to draw: the truth is known of the demo's data alone. ...

Saved results, such as those of `fdtr run` and `fdtr demo`, are read from their folder:

>>> import tempfile
>>> with tempfile.TemporaryDirectory() as folder:
...     results.save(f"{folder}/out")
...     record = plots.load_record(f"{folder}/out")
>>> plots.values(record).title
'Value of each method, mean over sites'
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import altair as alt

from fdtr.errors import DataError, UnknownSite
from fdtr.report import charts
from fdtr.report.record import Record, Trust, load_record

if TYPE_CHECKING:
    from fdtr.pipeline.results import Results
    from fdtr.report.charts import Chart, Drawing

__all__ = [
    "Record",
    "actions",
    "calibration",
    "effective_sample_size",
    "gain_from_sharing",
    "gains",
    "gains_by_site",
    "intervals",
    "load_record",
    "overlap",
    "settings",
    "shared_effects",
    "true_values",
    "values",
    "values_by_site",
]

_NOTHING_ESTIMABLE = "no gain can be estimated: too few patients were treated as the policies advise"
_NOT_VALUED = "no site is large enough to be valued on held-out patients; results.not_valued has the reasons"


def gains(results: Results | Record) -> Drawing:
    """What methods gain over clinicians, and over learning alone: plain means over sites, with 95% intervals.

    Filled marks are verified, hollow marks with a dashed line are model-based; what is not estimable is left out.
    """
    return _drawing(charts.gains(_record(results).means), _NOTHING_ESTIMABLE)


def gains_by_site(results: Results | Record, site: str | None = None) -> Drawing:
    """What methods gain over clinicians, and over learning alone, at each site; marks as in `gains`."""
    return _drawing(charts.gains_by_site(_record(results, site).assessments), _NOTHING_ESTIMABLE)


def values(results: Results | Record) -> Drawing:
    """Value of each method, plain mean over sites, with 95% intervals; marks as in `gains`.

    Values are sums of mapped rewards, from 0 to H.
    """
    return _drawing(charts.values(_record(results).means), _NOT_VALUED)


def values_by_site(results: Results | Record, site: str | None = None) -> Drawing:
    """Value of each method at each site, with 95% intervals; marks as in `gains`."""
    return _drawing(charts.values_by_site(_record(results, site).assessments), _NOT_VALUED)


def true_values(results: Results | Record) -> Drawing:
    """True value of each method, found by simulation; only the demo's results have it."""
    return _drawing(charts.true_values(_record(results)), "the truth is known of the demo's data alone")


def shared_effects(results: Results | Record) -> Drawing:
    """Effects on the reward that all sites have in common, by feature and step.

    Lines are 95% intervals of one step; the band holds for all steps of a feature together. Effects that no site
    identifies are left out.
    """
    return _drawing(charts.shared_effects(_record(results)), "no combination of sites identifies any shared effect")


def gain_from_sharing(results: Results | Record, site: str | None = None) -> Drawing:
    """Patients of its own that a site would need to know a shared effect as precisely as all sites do together.

    Medians over steps. Sites that could never tell the effect alone are left out.
    """
    reason = "no site could learn a shared effect alone, however many patients it had"
    return _drawing(charts.gain_from_sharing(_record(results, site)), reason)


def actions(results: Results | Record, site: str | None = None) -> Drawing:
    """Share of patients by action at each step: given, with FDTR's verified part, and recommended by all of FDTR."""
    return _drawing(charts.actions(_record(results, site)), "the results have no site")


def settings(results: Results | Record, site: str | None = None) -> Drawing:
    """Share of FDTR's decisions that stay the same with another pessimism c or sharing w."""
    return _drawing(charts.settings(_record(results, site)), "no other settings were tried")


def effective_sample_size(results: Results | Record, site: str | None = None) -> Drawing:
    """Effective sample size (Σw)² / Σw² of FDTR's importance weights w, by step.

    Below the dashed line no value is verified.
    """
    return _drawing(charts.effective_sample_size(_trusts(results, site)), _NOT_VALUED)


def overlap(results: Results | Record, site: str | None = None) -> Drawing:
    """Share of patients to whom FDTR recommends what clinicians do with a chance below 5%, by step."""
    return _drawing(charts.overlap(_trusts(results, site)), _NOT_VALUED)


def calibration(results: Results | Record, site: str | None = None) -> Drawing:
    """Calibration of the propensity model: observed share of an action against its predicted chance, in ten groups."""
    return _drawing(charts.calibration(_trusts(results, site)), _NOT_VALUED)


def intervals(rows: Sequence[Mapping[str, str | float | bool]], across: str) -> Drawing:
    """Any estimates as dots with their intervals, as the report draws them; `across` names the axis.

    A row has `method`, `estimator`, `value`, `low`, `high` and `believable`; rows with False are drawn hollow.

    >>> row = {"method": "FDTR", "estimator": "mine", "value": 2.5, "low": 2.25, "high": 2.75, "believable": True}
    >>> type(intervals([row], across="value")).__name__
    'LayerChart'
    """
    if not rows:
        raise DataError("There is nothing to draw: no row was given. Give one row for each estimate.")
    return charts.intervals(rows, across)


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
            "assessments": [assessment for assessment in record.assessments if assessment.site == site],
            "gains": [gain for gain in record.gains if gain.site == site],
        }
    )


def _trusts(results: Results | Record, site: str | None) -> Mapping[str, Trust]:
    """How far FDTR's value can be trusted, at each site that is valued."""
    return {name: of_site.trust for name, of_site in _record(results, site).sites.items() if of_site.trust}


def _drawing(chart: Chart, reason: str) -> Drawing:
    if not chart.rows:
        raise DataError(f"There is nothing to draw: {reason}. Choose another chart, or run the study on more data.")
    return chart.drawing.properties(title=chart.title)


@alt.theme.register("fdtr", enable=False)
def _report_style() -> alt.theme.ThemeConfig:
    return {"config": charts.CONFIG}
