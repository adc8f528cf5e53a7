"""The study file: what it refuses and in which words, its fingerprint, and its round trip."""

import hashlib
import json
import re

import pytest

from fdtr.errors import DamagedFile, InvalidStudy, OtherStudy, UnreadableFile
from fdtr.signing import HUB, Key
from fdtr.study import Study
from random_tables import make_study

pytestmark = pytest.mark.quick


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"horizn": 3}, 'horizn: unknown key; did you mean "horizon"?'),
        ({"learning": {"pesimism": 1}}, 'learning.pesimism: unknown key; did you mean "pessimism"?'),
        ({"disclosure": {"secret_sum": True}}, 'disclosure.secret_sum: unknown key; did you mean "secure_sum"?'),
        ({"disclosure": {"secure_sum": True}}, "disclosure: secure_sum needs max_patients"),
        (
            {"disclosure": {"secure_sum": True, "max_patients": 900}, "features": {"scale": "none"}},
            'secure_sum needs [features] scale = "unit"',
        ),
        (
            {"disclosure": {"secure_sum": True, "max_patients": 900, "small_step": "withhold"}},
            "secure_sum hides who withheld a step",
        ),
        (
            {"disclosure": {"secure_sum": True, "max_patients": 900, "payload": "gram"}},
            'secure_sum adds what payload = "schur" sends',
        ),
        ({"disclosure": {"colluding": 1}}, "it needs secure_sum = true"),
        (
            {"disclosure": {"secure_sum": True, "max_patients": 900, "colluding": -1}},
            "disclosure.colluding: must be greater than or equal to 0",
        ),
        (
            {"disclosure": {"secure_sum": True, "max_patients": 10**9}},
            "leave 28 binary digits behind the point; a secure sum needs 32. Lower `max_patients`",
        ),
        ({"disclosure": {"payload": "rows"}}, "disclosure.payload: must be 'schur' or 'gram'"),
        ({"disclosure": {"small_step": "hide"}}, "disclosure.small_step: must be 'refuse' or 'withhold'"),
        ({"disclosure": {"epsilon": 3.0}}, "epsilon and delta belong together"),
        ({"disclosure": {"delta": 1e-6}}, "epsilon and delta belong together"),
        ({"disclosure": {"epsilon": 3.0, "delta": 1.0}}, "disclosure.delta: must be less than 1"),
        ({"disclosure": {"epsilon": 2000.0, "delta": 1e-6}}, "disclosure.epsilon: must be less than or equal to 1000"),
        ({"disclosure": {"once_margin": -1}}, "disclosure.once_margin: must be greater than or equal to 0"),
        ({"covariates": [{"name": "x", "rnge": [0, 1]}]}, 'covariates[0] “x”.rnge: unknown key; did you mean "range"?'),
        ({"covariates": [{"name": "x", "basis": {"kind": "spline", "knot": [1]}}]}, 'did you mean "knots"?'),
        ({"covariates": [{"name": "x", "basis": {"kind": "splin"}}]}, 'unknown kind; did you mean "spline"?'),
        ({"columns": {"xx": "a"}}, "[columns] has the unknown key 'xx'"),
        ({"covariates": [{"name": "x"}, {"name": "x"}]}, "covariate 'x' is listed twice"),
        ({"covariates": [{"name": "x", "range": [2, 2]}]}, "the lower end must lie below the upper end"),
        ({"reward": {"range": [1, 0]}}, "reward.range: the lower end must lie below"),
        ({"actions": {"levels": [0, 1, 1.0]}}, "the level 1 is listed twice"),
        ({"actions": {"levels": [1]}}, "at least two levels are needed"),
        ({"actions": {"levels": [0, 1], "labels": ["a"]}}, "there are 2 levels and 1 labels"),
        ({"horizon": 0}, "horizon: must be greater than or equal to 1"),
        ({"horizon": "5"}, "horizon: must be a valid integer"),
        ({"covariates": [], "features": {"intercept": "none"}}, "there is no feature at all"),
        ({"covariates": []}, "list at least one covariate"),
        ({"covariates": [{"name": "a"}]}, "two features would be called 'a'"),
        ({"horizon": 10**9}, "horizon: must be less than or equal to 10000"),
        ({"actions": {"levels": [0, 2**60]}}, "a level is too large"),
        ({"covariates": [{"name": "x", "basis": "spline"}]}, "must be a table, such as"),
        ({"covariates": [{"name": "x", "basis": {"kind": "spline", "knots": 3}}]}, "must be a list, in brackets"),
        (
            {"covariates": [{"name": "x", "interacts": False}], "features": {"intercept": "none"}},
            "no feature has an action term",
        ),
        ({"covariates": [{"name": "step"}]}, "a covariate may not be called 'step'"),
        ({"columns": {"x": "reward"}}, "reads the column 'reward' for two different things"),
        ({"columns": {"cluster": "patient"}}, "reads the column 'patient' for two different things"),
        ({"columns": {"cluster": ""}}, "columns.cluster: "),
        ({"columns": {"clster": "clinician"}}, 'did you mean "cluster"?'),
        (
            {"columns": {"cluster": "clinician"}, "covariates": [{"name": "cluster"}]},
            "a covariate may not be called 'cluster': that is a column's role",
        ),
        ({"covariates": [{"name": "x", "basis": {"kind": "spline", "knots": [0.5, 0.2]}}]}, "the knots must increase"),
        ({"covariates": [{"name": "x", "basis": {"kind": "spline", "knots": [0.5, 2]}}]}, "inside the range [0, 1]"),
        (
            {"covariates": [{"name": "x", "basis": {"kind": "categorical", "levels": [1, 1]}}]},
            "a level is listed twice",
        ),
        ({"ends": {"death": 2}}, "ends.death: must be less than or equal to 1"),
        ({"learning": {"ridge": 0}}, "learning.ridge: must be greater than 0"),
        ({"learning": {"pessimism": -1}}, "learning.pessimism: must be greater than or equal to 0"),
        ({"learning": {"ridge": "car"}}, 'learning.ridge: must be a number or "auto"'),
        ({"learning": {"pessimism": {"noise": -1}}}, "learning.pessimism.noise: must be greater than or equal to 0"),
        ({"learning": {"pessimism": {"nois": 1}}}, 'learning.pessimism.nois: unknown key; did you mean "noise"?'),
        ({"learning": {"pessimism": [1]}}, 'learning.pessimism: must be a number, { noise = 0.03 } or "auto"'),
        ({"learning": {"pessimism": {"noise": 1e9}}}, "learning.pessimism.noise: must be less than or equal to 100"),
        ({"learning": {"pessimism": 1e9}}, "learning.pessimism: must be less than or equal to 100"),
        ({"learning": {"sharing": 1.5}}, "learning.sharing: must be less than or equal to 1"),
        ({"format": 2}, "format: must be 1"),
        ({"name": ""}, "name: "),
    ],
)
def test_a_contradiction_is_refused_in_a_sentence(changes, sentence):
    with pytest.raises(InvalidStudy, match=re.escape(sentence)):
        make_study(**changes)


def test_all_faults_are_told_at_once():
    with pytest.raises(InvalidStudy, match="The study is not valid") as caught:
        Study.model_validate({"nme": "x", "horizon": 0})
    for word in ("nme", "horizon", "name", "actions", "covariates"):
        assert word in str(caught.value)


def test_defaults_are_those_of_format_1():
    study = Study.model_validate(
        {"name": "s", "horizon": 1, "actions": {"levels": [0, 1]}, "covariates": [{"name": "x"}]}
    )
    learning = study.learning
    assert (learning.pessimism, learning.ridge, learning.sharing, learning.share) == ("auto", "auto", "auto", "auto")
    assert (learning.failure_probability, learning.misspecification, learning.seed) == (0.99, 0.0, 0)
    assert (study.actions.basis, study.actions.degree, study.actions.scale) == ("polynomial", 2, "unit")
    assert study.actions.labels == ("0", "1")
    assert (study.features.intercept, study.features.scale, study.reward.range) == ("specific", "unit", (0, 1))
    assert study.ends == {}


def test_the_fingerprint_is_the_sha256_of_canonical_json():
    study = make_study()

    # Canonical JSON of RFC 8785, written independently: sorted keys, no spaces, whole floats without a point.
    def canonical(value):
        if isinstance(value, dict):
            return "{" + ",".join(f"{json.dumps(k)}:{canonical(v)}" for k, v in sorted(value.items())) + "}"
        if isinstance(value, list):
            return "[" + ",".join(map(canonical, value)) + "]"
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        return json.dumps(value)

    everything = study.model_dump(mode="json", exclude={"columns", "evaluation", "roster"})
    assert everything["disclosure"].pop("colluding") == 0  # it counts only where it asks for something
    assert everything["actions"].pop("cuts") == []  # so do these
    assert study.fingerprint == hashlib.sha256(canonical(everything).encode()).hexdigest()


def test_a_study_that_expects_colluding_sites_is_another_one():
    asked = {"secure_sum": True, "max_patients": 900}
    plain, none, one = (make_study(disclosure=asked | more) for more in ({}, {"colluding": 0}, {"colluding": 1}))
    assert plain.fingerprint == none.fingerprint != one.fingerprint
    assert Study.model_validate(one.public).disclosure.colluding == 1


@pytest.mark.parametrize(("n_sites", "colluding", "left"), [(0, 0, 2), (3, 0, 2), (5, 0, 2), (6, 0, 3), (9, 0, 5),
                                                            (9, 1, 4), (4, 1, 2), (100, 0, 65)])  # fmt: skip
def test_a_site_reckons_with_two_thirds_of_the_sites_and_no_fewer_than_a_sum_needs(n_sites, colluding, left):
    rules = {"secure_sum": True, "max_patients": 900, "colluding": colluding}
    study = make_study(disclosure=rules)
    assert study.rules.sites_left == study.rules.fewest_left == 2
    assert study.rules_among(n_sites).sites_left == left
    assert study.rules_among(n_sites).fewest_left == 2
    if n_sites:
        signed = make_study(disclosure=rules, roster={f"site-{k}": Key.new().public for k in range(n_sites)})
        assert signed.rules == signed.rules_among(7) == study.rules_among(n_sites)
        with_hub = Study.model_validate({**signed.model_dump(), "roster": {**signed.roster, HUB: Key.new().public}})
        assert with_hub.rules == signed.rules  # the hub sends nothing


def test_sites_that_cut_doses_otherwise_are_in_another_study():
    plain, cut, other = (make_study(actions={"levels": [0, 1, 2], "cuts": c}) for c in ([], [0.0, 180.0], [0.0, 250.0]))
    assert len({plain.fingerprint, cut.fingerprint, other.fingerprint}) == 3
    assert Study.model_validate(cut.public).actions.cuts == (0, 180)
    for cuts, fault in (([180.0, 0.0], "must increase"), ([180.0], "1 cuts make the levels 0 to 1")):
        with pytest.raises(InvalidStudy, match=fault):
            make_study(actions={"levels": [0, 1, 2], "cuts": cuts})


def test_the_fingerprint_ignores_columns_and_how_numbers_are_written():
    study = make_study()
    assert make_study(columns={"patient": "stay_id", "x": "systolic"}).fingerprint == study.fingerprint
    assert (
        make_study(actions={"levels": [0.0, 1.0, 2], "labels": ["none", "low", "high"]}).fingerprint
        == study.fingerprint
    )
    assert make_study(horizon=4).fingerprint != study.fingerprint
    assert make_study(disclosure={"min_patients": 51}).fingerprint != study.fingerprint
    assert make_study(disclosure={"min_patients": 50}).fingerprint == study.fingerprint  # the default, spelt out


def test_a_gram_has_stricter_defaults_which_are_written_out(tmp_path):
    grams, sums = make_study(disclosure={"payload": "gram"}), make_study()
    assert (sums.disclosure.max_ratio, sums.disclosure.max_leverage) == (0.10, 0.20)
    assert (grams.disclosure.max_ratio, grams.disclosure.max_leverage) == (0.05, 0.33)
    spelt = make_study(disclosure={"payload": "gram", "max_ratio": 0.05, "max_leverage": 0.33})
    assert spelt.fingerprint == grams.fingerprint
    assert make_study(disclosure={"payload": "gram", "max_ratio": 0.02}).disclosure.max_ratio == 0.02
    grams.save(tmp_path / "study.toml")
    assert "max_leverage = 0.33" in (tmp_path / "study.toml").read_text()
    assert Study.load(tmp_path / "study.toml") == grams


def test_a_cluster_column_is_each_sites_own_and_there_is_none_by_default(tmp_path):
    plain, clustered = make_study(), make_study(columns={"cluster": "clinician"})
    assert plain.columns.cluster is None
    assert clustered.fingerprint == plain.fingerprint
    for study, written in ((plain, False), (clustered, True)):
        study.save(tmp_path / "study.toml")
        assert ("cluster" in (tmp_path / "study.toml").read_text()) == written
        assert Study.load(tmp_path / "study.toml") == study


def test_a_covariate_may_be_called_cluster_where_no_column_has_that_role():
    # Its name is public and in the fingerprint, while the role is each site's own: only both together are a muddle.
    study = make_study(covariates=[{"name": "cluster"}])
    assert (study.columns.of("cluster"), study.columns.cluster) == ("cluster", None)


def test_save_and_load_keep_everything(tmp_path):
    study = make_study(
        covariates=[
            {"name": "a b", "basis": {"kind": "spline", "knots": [0.2]}, "missing": "forward"},
            {"name": "unit", "basis": {"kind": "categorical", "levels": [3, 1]}, "level": "site", "effect": "shared"},
        ],
        ends={"death": 0, "discharge": 0.5},
        columns={"a b": "col"},
        features={"scale": "none"},
        disclosure={"norm_bound": 5},
    )
    study.save(tmp_path / "study.toml")
    again = Study.load(tmp_path / "study.toml")
    assert again == study
    assert again.fingerprint == study.fingerprint
    text = (tmp_path / "study.toml").read_text()
    for field in ("misspecification", "min_sites", "intercept", "interacts"):
        assert field in text  # defaults are written out


def test_files_that_are_no_study(tmp_path):
    with pytest.raises(UnreadableFile, match="could not be read"):
        Study.load(tmp_path / "none.toml")
    broken = tmp_path / "broken.toml"
    broken.write_text("name = \n")
    with pytest.raises(InvalidStudy, match="not valid TOML"):
        Study.load(broken)
    broken.write_bytes(b"name = '\xff'")
    with pytest.raises(UnreadableFile, match="UTF-8"):
        Study.load(broken)
    broken.write_text('\ufeffname = "x"\nhorizn = 1\n')
    with pytest.raises(InvalidStudy, match=r"(?s)broken\.toml.*did you mean"):
        Study.load(broken)
    for nested in ("x = " + "[" * 100_000, "x = " + "1" * 5000):
        broken.write_text(nested)
        with pytest.raises(InvalidStudy, match="nested too deeply, or has a number of too many digits"):
            Study.load(broken)
    broken.write_bytes(b"#" * (2**20 + 1))
    with pytest.raises(DamagedFile, match="too long for a study file"):
        Study.load(broken)


def test_levels_that_are_whole_are_integers():
    assert make_study(actions={"levels": [0.0, 2.0]}).feature_map.levels.dtype.kind == "i"
    assert make_study(actions={"levels": [0, 0.5]}).feature_map.levels.dtype.kind == "f"


def test_sums_of_another_shape_are_refused():
    with pytest.raises(OtherStudy, match="belong to another study"):
        make_study().check_shape(3, 5)


def test_the_schema_describes_every_section():
    schema = Study.model_json_schema()
    assert set(schema["properties"]) >= {"name", "horizon", "actions", "covariates", "learning", "disclosure"}
    assert set(schema["required"]) == {"name", "horizon", "actions", "covariates"}
