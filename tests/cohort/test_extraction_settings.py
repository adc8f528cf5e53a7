"""The settings of extractions: what a file may leave out, what it may not contradict, and how it is printed."""

import tomllib
from typing import Annotated

import pytest
from pydantic import Field

from fdtr.cohort.clif_settings import FLUIDS, ClifSettings
from fdtr.cohort.extraction_settings import COVARIATES, Dose, ExtractionSettings, Options
from fdtr.cohort.meds import MedsSettings, example_settings
from fdtr.cohort.settings_toml import Setting, as_toml
from fdtr.errors import InvalidSettings
from fdtr.study import Study

pytestmark = pytest.mark.quick


@pytest.mark.parametrize(
    ("cuts", "labels"),
    [
        ((0.0, 180.0), ("none", "up to 180 ml", "above 180 ml")),
        ((0.0, 250.0), ("none", "up to 250 ml", "above 250 ml")),
        ((0.0, 50.0, 62.5), ("none", "up to 50 ml", "above 50 and up to 62.5 ml", "above 62.5 ml")),
        ((100.0,), ("up to 100 ml", "above 100 ml")),
        ((0.0,), ("none", "any")),
    ],
)
def test_labels_follow_the_cuts(cuts, labels):
    assert Dose(cuts=cuts).labels == labels


def test_labels_of_ones_own_are_kept_unless_they_contradict_the_cuts():
    assert Dose(cuts=(0.0, 250.0), labels=("no", "some", "over 250 mL")).labels[2] == "over 250 mL"
    with pytest.raises(InvalidSettings, match=r"“up to 180 ml”.*no cut.*0, 250.*leave the labels out"):
        ExtractionSettings.model_validate(
            {"dose": {"cuts": [0, 250], "labels": ["none", "up to 180 ml", "above 180 ml"]}}
        )


STUDY = {
    "name": "x",
    "horizon": 3,
    "actions": {"levels": [0, 1, 2], "cuts": [0, 250]},
    "covariates": [{"name": "sbp", "range": [0, 1]}],
}


def test_an_agreed_study_brings_its_cuts_and_labels():
    assert ExtractionSettings().agreeing_with(Study.model_validate(STUDY)).dose.labels[1] == "up to 250 ml"
    labelled = STUDY | {"actions": STUDY["actions"] | {"labels": ["none", "low", "high"]}}
    assert ExtractionSettings().agreeing_with(Study.model_validate(labelled)).dose.labels == ("none", "low", "high")
    wrong = STUDY | {"actions": STUDY["actions"] | {"labels": ["none", "up to 180 ml", "above 180 ml"]}}
    with pytest.raises(InvalidSettings, match="“up to 180 ml”"):
        ExtractionSettings().agreeing_with(Study.model_validate(wrong))


def test_a_table_changes_what_it_names_and_keeps_the_rest():
    chosen = ClifSettings.model_validate(
        {
            "ends": {"death": 0.25},
            "outcome": {"name": "lactate", "unmeasured": 1.0},
            "clif": {
                "fluids": {"dextrose": "crystalloid", "albumin": "none"},
                "conversions": {"lactate": {"mg/L": 0.0111}},
                "labs": {"temperature": "temp_lab"},
            },
        }
    )
    assert chosen.ends == {"death": 0.25, "discharge": 1.0}
    assert (chosen.outcome.unmeasured, chosen.outcome.range) == (1.0, (0.5, 10.0))
    assert chosen.clif.fluids == {**FLUIDS, "dextrose": "crystalloid", "albumin": "none"}
    assert chosen.clif.conversions["lactate"] == {"mEq/L": 1.0, "mg/dL": 0.1110, "mg/L": 0.0111}
    assert chosen.clif.conversions["potassium"] == {"mmol/L": 1.0}
    assert chosen.clif.labs["temperature"] == "temp_lab"
    assert "temperature" not in chosen.clif.vitals  # it is read from one place
    assert chosen.clif.vitals["sbp"] == "sbp"


def test_a_list_of_covariates_says_which_and_a_known_one_only_what_differs():
    chosen = ExtractionSettings.model_validate({"covariates": [{"name": "sbp", "range": [50, 180]}]})
    assert [one.name for one in chosen.covariates] == ["sbp"]
    assert chosen.covariates[0] == COVARIATES[2].model_copy(update={"range": (50.0, 180.0)})
    with pytest.raises(InvalidSettings, match=r"“heart_rate”.*is required"):
        ExtractionSettings.model_validate({"covariates": [{"name": "heart_rate", "range": [50, 180]}]})


@pytest.mark.parametrize(
    "settings",
    [
        ExtractionSettings(),
        ExtractionSettings(options=Options(source="mimic-iv", sepsis="icd", version="1.2.3")),
        ClifSettings(),
        ClifSettings.model_validate(
            {
                "may_be_absent": ["colloid"],
                "options": {"source": "clif", "site": 'St. "Mary"\n', "time_zone": "UTC", "file_type": "csv"},
                "clif": {"fluids": {"d5w ½": "crystalloid"}, "diagnoses": ["A41"]},
            }
        ),
        example_settings(),
    ],
    ids=lambda one: type(one).__name__,
)
def test_printed_settings_load_again_and_explain_themselves(settings, tmp_path):
    (tmp_path / "s.toml").write_text(settings.as_toml())
    assert type(settings).load(tmp_path / "s.toml") == settings
    text = settings.as_toml()
    assert "step_hours = 4.0  # The length of a step, in hours." in text
    assert "\n# unmeasured = …  # Value to use where none was measured." in text
    assert max(map(len, text.splitlines())) < 200


class Tables(Setting):
    """Lists of tables: one that is empty unless somebody adds to it, and one that somebody emptied."""

    added: Annotated[tuple[Dose, ...], Field(description="May be added to.")] = ()
    emptied: Annotated[tuple[Dose, ...], Field(description="Was emptied.")] = (Dose(),)


def test_a_list_of_tables_that_is_empty_may_be_added_to():
    text = as_toml(Tables(emptied=()))
    assert text == "emptied = []  # Was emptied.\n\n# May be added to.\n# [[added]]\n"
    given = tomllib.loads(text + '[[added]]\nlabels = ["a", "b", "c"]\n')
    assert Tables.model_validate(given).added[0].labels == ("a", "b", "c")


def test_every_setting_has_a_description():
    lacking = [
        f"{model.__name__}.{name}"
        for model in _models()
        for name, field in model.model_fields.items()
        if not field.description and not _models_of(field.annotation)
    ]
    assert lacking == []


def _models():
    found = [ClifSettings, MedsSettings]
    for model in found:
        found += [m for f in model.model_fields.values() for m in _models_of(f.annotation) if m not in found]
    return found


def _models_of(annotation):
    from fdtr.study.validation_messages import _models_in

    return _models_in(annotation)


def test_settings_of_another_source_are_refused(tmp_path):
    (tmp_path / "s.toml").write_text(ExtractionSettings(options=Options(source="mimic-iv")).as_toml())
    with pytest.raises(InvalidSettings, match=r"made with `fdtr extract mimic-iv`.*clif"):
        ClifSettings.load(tmp_path / "s.toml")


def test_files_of_earlier_versions_load(tmp_path):
    (tmp_path / "s.toml").write_text(
        'name = "old"\n[dose]\nnames = ["crystalloid"]\ncuts = [0.0, 180.0]\nlargest = 9000.0\n'
        'labels = ["none", "up to 180 ml", "above 180 ml"]\n'
    )
    assert ExtractionSettings.load(tmp_path / "s.toml").dose.labels == Dose().labels


def test_unknown_settings_are_refused_with_the_nearest_known(tmp_path):
    (tmp_path / "s.toml").write_text("step_hour = 2.0")
    with pytest.raises(InvalidSettings, match='did you mean "step_hours"'):
        ExtractionSettings.load(tmp_path / "s.toml")
    (tmp_path / "s.toml").write_text(ExtractionSettings().as_toml())
    assert ExtractionSettings.load(tmp_path / "s.toml") == ExtractionSettings()


def test_a_file_of_settings_may_hold_only_what_differs(tmp_path):
    (tmp_path / "s.toml").write_text("steps = 4\n[outcome]\nunmeasured = 1.0\n")
    settings = ExtractionSettings.load(tmp_path / "s.toml")
    assert (settings.steps, settings.outcome.unmeasured, settings.outcome.range) == (4, 1.0, (0.5, 10.0))
