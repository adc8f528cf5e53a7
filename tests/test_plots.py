"""The report's charts as objects: each is valid, they go together, and what cannot be drawn is refused."""

import inspect
import json
import math

import altair as alt
import pytest

import fdtr
from fdtr import plots
from fdtr.errors import DataError, UnknownSite, UnreadableFile
from fdtr.report.record import KnownValue, Record
from fdtr.report.render import render
from random_tables import make_study, make_table

pytestmark = pytest.mark.slow

OF_RESULTS = sorted(set(plots.__all__) - {"intervals", "load_record", "Record"})
BY_SITE = [name for name in OF_RESULTS if "site" in inspect.signature(getattr(plots, name)).parameters]


@pytest.fixture(scope="module")
def results() -> fdtr.Results:
    study = make_study()
    return fdtr.run(study, fdtr.read_trajectories(make_table(study, {"a": 200, "b": 200}), study))


@pytest.fixture(scope="module")
def record(results) -> Record:
    known = KnownValue(method="FDTR", value=1.8, low=1.7, high=1.9, by_site=dict.fromkeys(results.record.sites, 1.8))
    return results.record.model_copy(update={"known_values": [known]})


@pytest.mark.parametrize("name", OF_RESULTS)
def test_each_chart_is_valid_and_has_a_title(name, record):
    chart = getattr(plots, name)(record)
    assert isinstance(chart, alt.TopLevelMixin)
    assert chart.to_dict()["title"]  # Altair validates it against Vega-Lite's schema


def test_charts_can_be_put_together(record):
    charts = [getattr(plots, name)(record) for name in OF_RESULTS]
    together = (alt.vconcat(*charts) & (charts[0] | charts[1])).to_dict()
    assert len(together["vconcat"]) == len(charts) + 1


def test_the_style_of_the_report_is_a_theme_that_the_reader_enables(record):
    assert alt.theme.active == "default"
    assert "legend" not in plots.values(record).to_dict()["config"]
    with alt.theme.enable("fdtr"):
        assert plots.values(record).to_dict()["config"]["legend"]["orient"] == "bottom"


def test_results_and_their_record_give_the_same_chart(results):
    assert plots.values(results).to_dict() == plots.values(results.record).to_dict()


def test_a_saved_record_is_read_from_its_folder(results, tmp_path):
    (tmp_path / "results.json").write_text(json.dumps(results.record.as_json()))
    assert plots.load_record(tmp_path).as_json() == results.record.as_json()
    with pytest.raises(UnreadableFile, match=r"holds no readable results\.json"):
        plots.load_record(tmp_path / "elsewhere")


def test_the_titles_are_those_of_the_report(record):
    html = render(record)
    for name in OF_RESULTS:
        assert f"<h3>{getattr(plots, name)(record).to_dict()['title']}</h3>" in html


def test_what_is_not_estimable_is_not_drawn_and_what_is_has_its_verdict(record):
    first, *others = record.assessments
    nothing = first.model_copy(
        update={"verdict": "not estimable", "value": math.nan, "low": math.nan, "high": math.nan}
    )
    changed = record.model_copy(update={"assessments": [nothing, *others]})
    drawing = plots.gains_by_site if first.over else plots.values_by_site
    kind = [one for one in others if bool(one.over) == bool(first.over) and one.verdict != "not estimable"]
    (rows,) = drawing(changed).to_dict()["datasets"].values()
    assert [(row["site"], row["method"], row["verdict"]) for row in rows] == [
        (one.site, one.method, one.verdict) for one in kind
    ]


@pytest.mark.parametrize("name", BY_SITE)
def test_one_site_alone_can_be_drawn(name, record):
    data = getattr(plots, name)(record, site="b").to_json()
    assert '"site": "b"' in data
    assert '"site": "a"' not in data
    with pytest.raises(UnknownSite, match="no site 'c'"):
        getattr(plots, name)(record, site="c")


def test_a_chart_without_data_is_refused_with_the_reason(results):
    with pytest.raises(DataError, match="nothing to draw: the truth is known of the demo's data alone"):
        plots.true_values(results)
    with pytest.raises(DataError, match="no row was given"):
        plots.intervals([], "value")
    empty = {"assessments": [], "means": [], "shared_effects": [], "gains": []}
    bare = results.record.model_copy(update=empty)
    for name in ("gains", "gains_by_site", "values", "values_by_site", "shared_effects", "gain_from_sharing"):
        with pytest.raises(DataError, match="nothing to draw"):
            getattr(plots, name)(bare)
