"""Drafted study files: what they share, and every digit of the settings."""

from fdtr.cohort.extraction_settings import ExtractionSettings
from fdtr.cohort.study_drafts import draft_study_from_settings
from fdtr.study import Study


def test_a_draft_shares_what_patients_differ_in_and_leaves_out_what_an_intercept_absorbs():
    text = draft_study_from_settings(ExtractionSettings())
    study = Study.parse(text.encode(), "study.toml")
    assert {c.effect for c in study.covariates} == {"shared"}
    assert {c.name for c in study.covariates} == {c.name for c in ExtractionSettings().covariates}
    assert study.features.intercept == "specific"
    assert (study.learning.ridge, study.learning.sharing, study.learning.share) == ("auto", "auto", "auto")
    assert "no_icu and flow too, constant within a site" in text
    assert "NOTHING IS LEARNT TOGETHER" not in text


def test_a_draft_has_every_digit_of_the_settings():
    dose = {"cuts": [0, 1234.5678, 2_000_000]}
    settings = ExtractionSettings.model_validate(
        {"dose": dose, "ends": {"death": 0.12345678}, "covariates": [{"name": "sbp", "range": [60.1234567, 200]}]}
    )
    study = Study.parse(draft_study_from_settings(settings).encode(), "study.toml")
    assert study.actions.cuts == (0, 1234.5678, 2_000_000)
    assert study.actions.labels[2] == "above 1234.5678 and up to 2000000 ml"
    assert study.ends["death"] == 0.12345678
    assert study.covariates[0].range == (60.1234567, 200)


def test_a_draft_that_shares_nothing_says_so_first():
    own = [one.model_copy(update={"effect": "specific"}) for one in ExtractionSettings().covariates]
    text = draft_study_from_settings(ExtractionSettings(covariates=tuple(own), site_covariates=()))
    assert not Study.parse(text.encode(), "study.toml").feature_map.n_shared
    assert text.index("NOTHING IS LEARNT TOGETHER") < text.index("format = 1")
    assert "constant within a site" not in text
