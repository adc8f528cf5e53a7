"""What a site tells of its methods: which values may leave, as a file, and pooled at the hub."""

import numpy as np
import pytest
from scipy import stats

from fdtr import container
from fdtr.disclosure import MethodValue, Pair, SiteValues, ValueFacts, ValueMessage, ValueRules, release_values
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
    named = [MethodValue(f"m{i}", "wdr", 1.0 + i, 0.1, verdict="verified") for i in range(len(sizes))]
    return [ValueFacts(value, size, doubt) for value, size in zip(named, sizes, strict=True)]


def gains(*patients, size=90.0, doubt=""):
    """Facts of gains to which so many patients contribute, and so many do not."""
    pairs = enumerate(patients)
    return [
        ValueFacts(MethodValue(f"m{i}", "wdr", 0.1, 0.1, "Clinicians", "verified"), size, doubt, *counts)
        for i, counts in pairs
    ]


def released(*given, n=100, site="a", fingerprint="f" * 64, evaluation="e"):
    return release_values(site, fingerprint, n, given, ValueRules(50, 30.0, 11), evaluation)


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


def test_a_gain_that_few_patients_make_stays_at_home():
    # Weights of patients who are never advised are 1: the effective sample size of all says nothing of the difference.
    message = released(*facts(90.0), *gains((3, 97), (29, 71), (30, 70)))
    assert [one.name for one in message.values.values] == ["m2 − Clinicians"]
    assert [one.why for one in message.withheld] == [
        "with what else is told it would give away a gain that stays at home",  # the value of m0
        "rule PAIRED: 3 patients are treated differently, not 30",
        "rule PAIRED: 29 patients are treated differently, not 30",
    ]
    few_weights = released(*facts(90.0), *gains((40, 60), (40, 60), size=12.0), *facts(90.0, 90.0, 90.0)[2:])
    assert few_weights.withheld[-1].why == "rule ESS: weights worth 12.0 patients at some step, not 30"


def test_what_would_give_a_withheld_gain_away_stays_at_home():
    def gain(method, over, differing):
        return ValueFacts(MethodValue(method, "wdr", 0.1, 0.1, over, "verified"), 90.0, "", differing, 100 - differing)

    def value(method):
        return ValueFacts(MethodValue(method, "wdr", 1.0, 0.1, verdict="verified"), 90.0)

    everything = [value("FDTR"), value("LDTR"), value("Clinicians")]
    alone = released(gain("FDTR", "Clinicians", 3), gain("LDTR", "Clinicians", 50), *everything).values.values
    assert [one.name for one in alone] == [
        "LDTR − Clinicians",
        "LDTR",
        "Clinicians",
    ]  # FDTR less clinicians is the gain
    paired = released(
        gain("FDTR", "LDTR", 3), gain("FDTR", "Clinicians", 50), gain("LDTR", "Clinicians", 50), *everything
    ).values.values
    assert [one.name for one in paired] == ["FDTR − Clinicians", "FDTR", "Clinicians"]


def test_methods_that_differ_for_few_patients_are_not_both_told():
    pairs = {
        ("m0", "m1"): Pair(7, 93),
        ("m0", "m2"): Pair(0, 100),
        ("m0", "m3"): Pair(95, 5),
        ("m2", "m4"): Pair(40, 60),
    }
    given = facts(90.0, 90.0, 90.0, 90.0, 90.0)
    rules = ValueRules(50, 30.0, 11)
    message = release_values("a", "f" * 64, 100, given, rules, "e", pairs)
    assert [one.method for one in message.values.values] == ["m0", "m2", "m4"]
    assert {one.why for one in message.withheld} == {
        "rule PAIRED: it and m0 treat few patients differently, or few alike"
    }


def test_a_value_whose_error_is_rounding_stays_at_home():
    exact = ValueFacts(MethodValue("x", "wdr", 3.0, 1e-15, verdict="verified"), 90.0)
    message = released(*facts(90.0), exact)
    assert [one.why for one in message.withheld] == ["it has no value or no standard error"]


def test_a_gain_with_few_patients_left_out_of_it_stays_at_home():
    message = released(*facts(90.0), *gains((90, 10), (89, 11), (100, 0)))
    assert [one.name for one in message.values.values] == ["m1 − Clinicians", "m2 − Clinicians"]
    assert "10 patients are treated alike; none or 11 may" in message.withheld[1].why


def test_numbers_are_rounded_to_what_their_errors_leave_of_them():
    found = [
        MethodValue("m", "wdr", 1.23456, 0.07111, tolerance=0.012345),
        MethodValue("k", "wdr", 1.23456, 0.0026, tolerance=0.012345),
    ]
    told = released(*(ValueFacts(one, 90.0) for one in found)).values.values
    assert [(one.value, one.standard_error, one.tolerance) for one in told] == [
        (1.23, 0.071, 0.012),
        (1.235, 0.0026, 0.0123),
    ]


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
    message = released(*facts(90.0, 3.0, 50.0), *gains((40, 60)))
    write_values(message, tmp_path / "a.values")
    assert read_values(tmp_path / "a.values") == message.values
    file = container.read(tmp_path / "a.values", "valuation")
    assert set(file.arrays) == {"value", "standard_error", "tolerance"}
    assert set(file.header) == {
        "site", "fingerprint", "round", "context", "phase", "version", "n", "methods", "over", "estimators", "verdicts",
        "evaluation", "kind", "format",
    }  # fmt: skip
    assert file.header["methods"] == ["m0", "m2", "m0"]  # m1 stayed at home, its name too
    assert file.header["over"] == ["", "", "Clinicians"]


@pytest.mark.parametrize(
    "broken",
    [
        {"n": 0}, {"n": "many"}, {"n": True}, {"methods": ["m0"]}, {"methods": "m0"}, {"estimators": [1, 2]},
        {"site": ""}, {"extra": 1}, {"fingerprint": "f"}, {"version": "x y"}, {"over": [""]}, {"evaluation": 3},
    ],
)  # fmt: skip
def test_files_without_sound_values_are_refused(tmp_path, broken):
    header = {
        "site": "a", "fingerprint": "f" * 64, "version": "1", "n": 5, "methods": ["x", "y"],
        "estimators": ["wdr", "fqe"], "over": ["", ""], "verdicts": ["verified", "model-based"], "evaluation": "e",
        "round": "1", "context": "0" * 64, "phase": "values",
    }  # fmt: skip
    arrays = {"value": np.ones(2), "standard_error": np.ones(2), "tolerance": np.zeros(2)}
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
    same = {"fingerprint": study.fingerprint, "evaluation": study.evaluation_fingerprint}
    told = [
        released(*facts(90.0, 90.0 if site == "a" else 1.0), *gains((40, 60)), site=site, n=n, **same).values
        for site, n in (("b", 60), ("a", 100))
    ]
    first, *rest = pool_values(study, told)
    assert (first.method, first.over, first.verdict) == ("m0", "Clinicians", "verified")  # gains come first
    by_method = {one.method: one for one in rest}
    assert by_method["m0"].pooling.sites == ("a", "b")
    assert by_method["m0"].pooling.n == 160
    assert by_method["m0"].pooling.plain.value == 1.0
    assert by_method["m0"].silent == ()
    assert by_method["m1"].silent == ("b",)
    with pytest.raises(WrongSite, match="'a' told its values twice"):
        pool_values(study, [told[1], told[1]])
    with pytest.raises(OtherStudy, match="belongs to another study"):
        pool_values(make_study(name="other"), told)
    with pytest.raises(OtherStudy, match=r"by other settings in \[evaluation\]"):
        pool_values(make_study(evaluation={"min_share": 0.2}), told)


def test_clinicians_stand_beside_a_method_at_the_same_sites():
    study = make_study()

    def site(name, values):
        told = tuple(MethodValue(method, "wdr", value, 0.1, verdict=verdict) for method, value, verdict in values)
        return SiteValues(name, study.fingerprint, 90, told, study.evaluation_fingerprint)

    usual = ("Clinicians", 1.0, "verified")
    told = [site("a", [usual, ("FDTR", 2.0, "model-based")]), site("b", [("Clinicians", 2.0, "verified")])]
    everywhere, beside, rule = pool_values(study, told)
    assert [everywhere.label, beside.label, rule.label] == ["Clinicians", "Clinicians (at a)", "FDTR"]
    assert (everywhere.method, everywhere.pooling.plain.value, everywhere.pooling.sites) == (
        "Clinicians",
        1.5,
        ("a", "b"),
    )
    assert (rule.method, rule.verdict, rule.pooling.sites) == ("FDTR", "model-based", ("a",))
    assert (beside.method, beside.pooling.plain.value, beside.pooling.sites) == ("Clinicians", 1.0, ("a",))


def test_the_error_of_a_model_does_not_average_out_over_sites():
    study = make_study()
    told = [
        SiteValues(
            name,
            study.fingerprint,
            90,
            (MethodValue("FDTR", "richer", 0.5, 0.1, "Clinicians", "model-based", tolerance),),
            study.evaluation_fingerprint,
        )
        for name, tolerance in (("a", 0.1), ("b", 0.3))
    ]
    (gain,) = pool_values(study, told)
    half = gain.pooling.plain.high - gain.pooling.plain.value
    assert gain.pooling.tolerance == pytest.approx(0.2)
    assert half == pytest.approx(stats.t.ppf(0.975, 2 * 89) * 0.1 / np.sqrt(2) + 0.2)


def test_gains_come_in_one_order_whatever_the_sites_told_first():
    study = make_study()
    pairs = [("FDTR", "Clinicians"), ("LDTR (verified)", "Clinicians"), ("FDTR (verified)", "LDTR (verified)"),
             ("FDTR (verified)", "Clinicians"), ("FDTR", ""), ("Clinicians", "")]  # fmt: skip

    def site(name, order):
        values = tuple(MethodValue(method, "wdr", 0.2, 0.1, over, "verified") for method, over in order)
        return SiteValues(name, study.fingerprint, 90, values, study.evaluation_fingerprint)

    pooled = pool_values(study, [site("b", pairs), site("a", pairs[::-1])])
    assert [mean.label for mean in pooled] == [
        "FDTR (verified) over Clinicians", "LDTR (verified) over Clinicians", "FDTR (verified) over LDTR (verified)",
        "FDTR over Clinicians", "Clinicians", "FDTR",
    ]  # fmt: skip


def test_methods_of_the_same_sites_stand_together_below_clinicians_at_these_sites():
    study = make_study()

    def site(name, methods):
        values = tuple(MethodValue(method, "wdr", 1.0, 0.1, "", "verified") for method in ("Clinicians", *methods))
        return SiteValues(name, study.fingerprint, 90, values, study.evaluation_fingerprint)

    pooled = pool_values(study, [site("a", ["x", "y", "z"]), site("b", ["y", "z"]), site("c", ["x", "z"])])
    assert [(mean.label, mean.pooling.sites) for mean in pooled] == [
        ("Clinicians", ("a", "b", "c")), ("z", ("a", "b", "c")), ("Clinicians (without b)", ("a", "c")),
        ("x", ("a", "c")), ("Clinicians (without c)", ("a", "b")), ("y", ("a", "b")),
    ]  # fmt: skip


def test_the_hub_believes_no_value_that_nobody_can_have_and_no_interval_beyond_it():
    study = make_study()

    def told(site, value, error):
        values = (MethodValue("m", "wdr", value, error),)
        return SiteValues(site, study.fingerprint, 90, values, study.evaluation_fingerprint)

    with pytest.raises(InvalidSums, match=r"'b' tells of a value outside \[0, 3\]"):
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
    for told in message.values.values:
        assessed = found.assess(told.method, told.over or None)
        assert abs(told.value - assessed.value) <= assessed.standard_error / 4
        assert told.standard_error == pytest.approx(assessed.standard_error, rel=0.05)
        assert told.verdict == assessed.verdict != "not estimable"
        assert assessed.effective_sample_size >= 20
        if told.over:
            assert assessed.n_differing >= 30
            assert assessed.n_unchanged == 0 or assessed.n_unchanged >= 11
    assert {told.method for told in message.values.values if not told.over} >= {"Clinicians"}
    assert any(told.over for told in message.values.values)
    assert {withheld.why for withheld in message.withheld}, "a study in which every value may leave shows nothing"
