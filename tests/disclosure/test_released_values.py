"""What a site tells of its methods: which values may leave, as a file, and pooled at the hub."""

import numpy as np
import pytest

from fdtr import container
from fdtr.disclosure import MethodValue, SiteValues, ValueFacts, ValueMessage, release_values
from fdtr.errors import ForeignFile, InvalidSums, OtherStudy, UnreadableFile, WrongSite
from fdtr.exchange.wire import read_values, write_values
from fdtr.hub import pool_values
from fdtr.site import evaluate_site
from fdtr.site.fitting import fit_local
from fdtr.site.site_evaluation import summarize_values
from fdtr.summary import combine
from random_tables import make_sites, make_study
from refusals import refuses

pytestmark = pytest.mark.quick


def facts(*sizes, doubt=""):
    return [ValueFacts(MethodValue(f"m{i}", "wdr", 1.0 + i, 0.1), size, doubt) for i, size in enumerate(sizes)]


def released(*given, n=100, site="a", fingerprint="f" * 64, **rules):
    return release_values(site, fingerprint, n, given, **({"min_patients": 50, "min_effective": 30.0} | rules))


def test_values_with_too_little_weight_stay_at_home():
    message = released(*facts(30.0, 29.9, 80.0))
    assert [one.method for one in message.values.values] == ["m0", "m2"]
    assert [(one.estimate.method, one.why) for one in message.withheld] == [
        ("m1", "rule ESS: weights worth 29.9 patients at some step, not 30")
    ]


def test_values_that_the_site_doubts_or_lacks_stay_at_home():
    doubted, undefined = facts(90.0, doubt="because")[0], ValueFacts(MethodValue("x", "fqe", 1.0, np.nan), 90.0)
    message = released(*facts(90.0), doubted, undefined)
    assert [one.method for one in message.values.values] == ["m0"]
    assert [one.why for one in message.withheld] == ["because", "it has no value or no standard error"]


def test_numbers_are_rounded_to_what_their_errors_leave_of_them():
    found = MethodValue("m", "wdr", 1.23456, 0.07111), MethodValue("k", "wdr", 1.23456, 0.0026)
    told = released(*(ValueFacts(one, 90.0) for one in found)).values.values
    assert [(one.value, one.standard_error) for one in told] == [(1.23, 0.071), (1.235, 0.0026)]


def test_nothing_leaves_from_few_patients_or_without_weight():
    with refuses("N", match=r"49 patients; the study asks for at least 50.*Do not forward"):
        released(*facts(90.0), n=49)
    with refuses("ESS", match="m0, wdr: rule ESS") as refusal:
        released(*facts(3.0, 4.0))
    assert refusal.value.rule == "ESS"
    assert "Do not forward this message" in str(refusal.value)


def test_nothing_else_makes_a_message_of_values():
    with pytest.raises(TypeError, match="release_values"):
        ValueMessage(released(*facts(90.0)).values, (), object())


def test_a_file_brings_back_the_same_values_and_holds_nothing_else(tmp_path):
    message = released(*facts(90.0, 3.0, 50.0))
    write_values(message, tmp_path / "a.values")
    assert read_values(tmp_path / "a.values") == message.values
    file = container.read(tmp_path / "a.values", "valuation")
    assert set(file.arrays) == {"value", "standard_error"}
    assert set(file.header) == {
        "site", "fingerprint", "round", "context", "phase", "version", "n", "methods", "estimators", "kind", "format",
    }  # fmt: skip
    assert file.header["methods"] == ["m0", "m2"]  # m1 stayed at home, its name too


@pytest.mark.parametrize(
    "broken",
    [
        {"n": 0}, {"n": "many"}, {"n": True}, {"methods": ["m0"]}, {"methods": "m0"}, {"estimators": [1, 2]},
        {"site": ""}, {"extra": 1}, {"fingerprint": "f"}, {"version": "x y"},
    ],
)  # fmt: skip
def test_files_without_sound_values_are_refused(tmp_path, broken):
    header = {
        "site": "a", "fingerprint": "f" * 64, "version": "1", "n": 5, "methods": ["x", "y"],
        "estimators": ["wdr", "fqe"], "round": "1", "context": "0" * 64, "phase": "values",
    }  # fmt: skip
    arrays = {"value": np.ones(2), "standard_error": np.ones(2)}
    container.write(tmp_path / "good", "valuation", header, arrays)
    assert read_values(tmp_path / "good").n == 5
    container.write(tmp_path / "bad", "valuation", header | broken, arrays)
    with pytest.raises(UnreadableFile, match="Ask its sender"):
        read_values(tmp_path / "bad")
    container.write(tmp_path / "nan", "valuation", header, arrays | {"value": np.array([1.0, np.nan])})
    with pytest.raises(InvalidSums, match=r"not finite .* Ask its sender"):
        read_values(tmp_path / "nan")
    for name, other in (
        ("twice", {"methods": ["x", "x"], "estimators": ["wdr", "wdr"]}),
        ("longer", {"methods": ["x", "y", "z"], "estimators": ["wdr", "fqe", "fqe"]}),
    ):
        container.write(tmp_path / name, "valuation", header | other, arrays)
        with pytest.raises(UnreadableFile, match="Ask its sender"):
            read_values(tmp_path / name)
    container.write(tmp_path / "sure", "valuation", header, arrays | {"standard_error": np.array([1.0, 0.0])})
    with pytest.raises(UnreadableFile, match="Ask its sender"):
        read_values(tmp_path / "sure")
    container.write(tmp_path / "other", "message", header, arrays)
    with pytest.raises(ForeignFile, match="holds a message, not a valuation"):
        read_values(tmp_path / "other")


def test_the_hub_pools_what_it_was_told():
    study = make_study()
    told = [
        released(*facts(90.0, 90.0 if site == "a" else 1.0), site=site, n=n, fingerprint=study.fingerprint).values
        for site, n in (("b", 60), ("a", 100))
    ]
    by_method = {one.method: one for one in pool_values(study, told)}
    assert by_method["m0"].pooling.sites == ("a", "b")
    assert by_method["m0"].pooling.n == 160
    assert by_method["m0"].pooling.plain.value == 1.0
    assert by_method["m0"].silent == ()
    assert by_method["m1"].silent == ("b",)
    with pytest.raises(WrongSite, match="'a' told its values twice"):
        pool_values(study, [told[1], told[1]])
    with pytest.raises(OtherStudy, match="belongs to another study"):
        pool_values(make_study(name="other"), told)


def test_the_hub_believes_no_value_that_nobody_can_have_and_no_interval_beyond_it():
    study = make_study()

    def told(site, value, error):
        return SiteValues(site, study.fingerprint, 90, (MethodValue("m", "wdr", value, error),))

    with pytest.raises(InvalidSums, match=r"'b' tells of a value far outside \[0, 3\]"):
        pool_values(study, [told("a", 1.0, 0.1), told("b", 1e6, 1e-9)])
    (found,) = pool_values(study, [told("a", 0.2, 0.5), told("b", 2.8, 0.5)])
    for one in (found.pooling.plain, found.pooling.fixed, found.pooling.random):
        assert 0 <= one.low <= one.high <= 3


def test_a_site_tells_what_its_own_evaluation_found():
    study = make_study(disclosure={"min_effective_sample_size": 20.0})
    sites = make_sites(study, {"a": 300, "b": 250, "c": 220})
    alone = {name: fit_local(study, rows).summary for name, rows in sites.items()}
    found = evaluate_site(study, sites["a"], combine(alone.values()), alone["a"])
    message = summarize_values(study, found)
    assert message.values.n == 300
    assert message.values.fingerprint == study.fingerprint
    for one in message.values.values:
        estimate = found.value(one.method, one.estimator)
        assert abs(one.value - estimate.value) <= estimate.standard_error / 4
        assert one.standard_error == pytest.approx(estimate.standard_error, rel=0.05)
        assert estimate.believable
        assert estimate.effective_sample_size.min() >= 20
    small = [one for one in message.withheld if one.why.startswith("rule ESS")]
    assert {(one.estimate.method, one.estimate.estimator) for one in small} == {
        (name, estimator)
        for name in found.targets
        for estimator in ("wdr", "fqe")
        if found.value(name, estimator).effective_sample_size.min() < 20
    }
    assert small, "a study in which every value may leave shows nothing"
