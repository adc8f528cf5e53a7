"""The page of a message: every number, its meaning, and nothing that a stranger's file could smuggle in."""

import re
from dataclasses import replace

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


def told(study, body, kind="message"):
    """All sentences of a page: those about the file, and by the name of an array."""
    opened = replace(shown(study, body, kind), study=study)
    sections = {section.name: " ".join(section.sentences) for section in sections_of(opened)}
    html = render_message(opened)
    assert all(str(escape(sentence)) in html for section in sections_of(opened) for sentence in section.sentences)
    return sections.pop("file"), sections


def test_the_page_of_exact_sums_promises_neither_weights_nor_tens_nor_a_limit_of_membership():
    study = small_study(disclosure={"jitter": 0})
    summary = small_messages(study, n=401)["a"].summary
    about, arrays = told(study, summary)
    assert summary.sums.n.tolist() == [401, 401]
    assert "These are exact sums" in about
    assert "No rule limits how well: max_membership is not used with jitter = 0." in about
    assert "tens" not in about + arrays["n"]
    assert "weight" not in about
    assert "taken out" not in about
    assert "or for at least 11" in arrays["schur"]
    assert "can be solved for" in arrays["schur_moment"] + arrays["schur_reward"]
    assert "withdraws consent" in about


def test_the_page_of_weighted_sums_says_how_they_are_weighted_and_what_is_limited(study, summaries):
    about, arrays = told(study, summaries[0])
    assert "weights from 0.7 to 1, or less if far from all others, that only the patient's site knows" in about
    assert "for each site's message: max_membership is 0.8" in about
    assert "Sums in which too few patients would show were taken out. Zero means" in about
    assert arrays["n"].startswith("How many patients had a decision at each step, rounded up to tens.")
    assert "exact sums" not in about + arrays["n"]
    assert "withdraws consent" in about
    little = small_study(disclosure={"jitter": 0.1})
    about, arrays = told(little, small_messages(little, n=401)["a"].summary)
    assert "weights from 0.9 to 1" in about
    assert "rounded up to tens" in arrays["n"]
    assert "max_membership is not used with jitter = 0.1" in about
    all_told = told(small_study(disclosure={"max_membership": 1.0}), summaries[0])[0]
    assert "max_membership is 1 in this study" in all_told


def test_the_page_of_a_total_tells_of_weights_zeros_membership_and_consent(study, summaries):
    about, arrays = told(study, combine(summaries), "total")
    assert "require 3 sites or more" in about
    assert "weights from 0.7 to 1" in about
    assert "for each site's message: max_membership is 0.8" in about
    assert "or that too few sites sent, were taken out. Zero means that there are none, or too few." in about
    assert "withdraws consent before the site sends" in about
    assert "rounded up to tens at each site" in arrays["n"]
    assert "masked" not in about


def test_the_page_of_a_masked_total_says_that_it_was_judged_without_what_a_site_can_subtract(summaries):
    for colluding, parts in ((0, "any one site's part"), (2, "the parts of any 3 sites")):
        study = small_study(disclosure={"secure_sum": True, "max_patients": 5000, "colluding": colluding})
        about, _ = told(study, replace(combine(summaries), resolution=1e-9), "total")
        assert "Nobody saw the sums of one site" in about
        assert f"All sites took out sums in which, without {parts}, too few patients would show" in about
        assert f"for the total without {parts}: max_membership is 0.8" in about
        assert "withdraws consent before the site sends" in about


def test_a_page_without_the_study_promises_nothing_that_only_the_study_knows(study, summaries):
    about, *_ = [" ".join(section.sentences) for section in sections_of(shown(study, summaries[0]))]
    assert "Unless the study asks for exact sums, each patient counts with weights" in about
    n = next(section for section in sections_of(shown(study, summaries[0])) if section.name == "n")
    assert "rounded up to tens unless the study asks for exact sums" in n.sentences[0]


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
