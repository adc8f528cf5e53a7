"""The example in docs/study-file.md is a study, and shows every key there is."""

import re
import tomllib
from pathlib import Path

import pytest

from fdtr.study import Study
from fdtr.study.sections import Actions, Columns, Covariate, Disclosure, Evaluation, Features, Learning, Reward

pytestmark = pytest.mark.quick
PAGE = (Path(__file__).parents[2] / "docs" / "study-file.md").read_text()
[EXAMPLE] = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)


def test_the_example_is_a_study():
    study = Study.model_validate(tomllib.loads(EXAMPLE))
    assert study.columns.of("sbp") == "systolic_bp"
    assert study.feature_map.n_shared == 6


def test_every_key_is_shown():
    given = tomllib.loads(EXAMPLE)
    sections = {
        "actions": Actions,
        "features": Features,
        "reward": Reward,
        "learning": Learning,
        "disclosure": Disclosure,
        "evaluation": Evaluation,
    }
    for name, model in sections.items():
        assert set(given[name]) == set(model.model_fields), name
    assert set(given) == set(Study.model_fields)
    assert {key for covariate in given["covariates"] for key in covariate} == set(Covariate.model_fields)
    assert all(f"`{role}`" in PAGE for role in Columns.ROLES)


def test_the_defaults_are_those_shown():
    given = tomllib.loads(EXAMPLE)
    bare = Study.model_validate({"name": "x", "horizon": 5, "actions": given["actions"], "covariates": [{"name": "x"}]})
    for section in ("features", "reward", "learning"):
        shown = {key: tuple(value) if isinstance(value, list) else value for key, value in given[section].items()}
        assert getattr(bare, section).model_dump() == shown
    optional = {"norm_bound", "max_patients", "epsilon", "delta"}  # none by default
    shown = {key: value for key, value in given["disclosure"].items() if key not in optional}
    assert bare.disclosure.model_dump(exclude_none=True) == shown
