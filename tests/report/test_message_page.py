"""The page of a message: every number, its meaning, and nothing that a stranger's file could smuggle in."""

import re

import pytest
from markupsafe import escape

from fdtr.report.message_page import GRAM_MEANINGS, MEANINGS, OpenedFile, render_message, sections_of
from fdtr.summary import SiteSummary, combine
from message_files import small_messages, small_study, small_values

pytestmark = pytest.mark.quick


@pytest.fixture(scope="module")
def study():
    return small_study(covariates=[{"name": n, "effect": "shared"} for n in "uv"] + [{"name": "x"}])


@pytest.fixture(scope="module")
def summaries(study):
    return [message.summary for message in small_messages(study).values()]


def shown(study, body, kind="message", site="a"):
    return OpenedFile(kind, site, body, {"sender": site}, tuple(study.feature_map.names[: study.feature_map.n_shared]))


def test_every_number_of_a_message_is_there_with_its_meaning(study, summaries):
    sums = summaries[0].sums
    found = {section.name: section for section in sections_of(shown(study, summaries[0]))}
    assert list(MEANINGS) == [name for name in found if name != "file"]
    assert set(MEANINGS) == set(sums.packed())
    for name, array in sums.packed().items():
        told = [cell for grid in found[name].grids for row in grid.rows for cell in row[1:]]
        assert len(told) == array.size
        for number in array.ravel():
            assert (f"{number:.6g}" in told) or f"{int(number):,}" in told
        assert len(found[name].sentences) == 2  # what it is, and what it cannot tell
    assert (
        f"{sum(a.size for a in sums.packed().values())} sums over 400 patients of one site"
        in found["file"].sentences[0]
    )
    html = render_message(shown(study, summaries[0]))
    assert all(f"<h2>{escape(section.title)}</h2>" in html for section in found.values())


def test_a_gram_is_shown_whole_and_says_what_it_can_tell():
    study = small_study(disclosure={"payload": "gram"})
    summary = small_messages(study)["a"].summary
    names = tuple(study.feature_map.names)
    found = {section.name: section for section in sections_of(OpenedFile("message", "a", summary, {}, names))}
    assert list(GRAM_MEANINGS) == [name for name in found if name != "file"]
    assert set(GRAM_MEANINGS) == set(summary.grams.packed())
    for name, array in summary.grams.packed().items():
        told = [cell for grid in found[name].grids for row in grid.rows for cell in row[1:]]
        assert len(told) == array.size
        assert all((f"{number:.6g}" in told) or f"{int(number):,}" in told for number in array.ravel())
    assert all("It can tell" in found[name].sentences[1] for name in GRAM_MEANINGS if name != "n")
    first, audit, *_ = found["file"].sentences
    assert f"numbers about all {len(names)} features" in first
    assert "This is an audit message" in audit
    assert f"{names[0]} × {names[-1]}" in render_message(OpenedFile("message", "a", summary, {}, names))
    unnamed = sections_of(OpenedFile("message", "a", summary, {}))[-3]
    assert unnamed.grids[0].rows[-1][0] == f"feature {len(names)}"


def test_a_total_has_a_page_too(study, summaries):
    html = render_message(shown(study, combine(summaries), "total", "hub"))
    assert "sums over 1,200 patients of 3 sites" in html
    assert all(summary.digest in html for summary in summaries)


def test_gains_and_values_have_a_page_with_every_number_and_verdict(study):
    values = small_values(study).values
    opened = shown(study, values, "valuation")
    html = render_message(opened)
    assert f"{len(values.values)} gains and values with their standard errors, over 400 patients" in html
    grids = {grid.caption: grid for grid in sections_of(opened)[1].grids}
    assert list(grids) == ["Gains", "Values"]
    assert grids["Gains"].rows == (("FDTR", "Clinicians", "model-based", "fqe", "0.25", "0.1", "0.05"),)
    assert [row[0] for row in grids["Values"].rows] == [value.method for value in values.values if not value.over]
    assert all(len(grid.rows[0]) == len(grid.columns) for grid in grids.values())


def test_a_withheld_step_is_told(study, summaries):
    sums = summaries[0].sums
    arrays = {name: array.copy() for name, array in vars(sums).items()}
    for array in arrays.values():
        array[1] = 0.0
    html = render_message(shown(study, SiteSummary("a", "f", type(sums)(**arrays))))
    assert "Nothing is sent about step 1" in html


def test_the_page_fetches_and_runs_nothing(study, summaries):
    html = render_message(shown(study, summaries[0], site="<script>alert(1)</script>"))
    assert "<script" not in html
    assert "&lt;script&gt;" in html
    assert "default-src 'none'; style-src 'unsafe-inline'" in html
    assert not re.search(r"(src|href)=\"(?!#)", html)
