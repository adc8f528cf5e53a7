"""The rules: what each refuses, and that nothing but `release` makes a message."""

from dataclasses import replace

import numpy as np
import pytest

from fdtr.disclosure import Bounds, Message, Rules, Smallest, StepFacts, judge, release, require_sites
from fdtr.disclosure.facts import measure
from fdtr.site.fitting import fit_local
from fdtr.site.site_check import check
from fdtr.site.site_message import summarize
from random_tables import make_sites, make_study
from refusals import refuses

pytestmark = pytest.mark.quick
RELAXED = {"jitter": 0, "min_patients": 1, "max_ratio": 1.0, "min_action": 1, "min_cell": 1, "max_leverage": 1.0}
RULES = Rules("schur", 50, 0.1, 11, 11, 0.2, norm_bound=1.0)
GOOD = StepFacts(400, 10, np.array([200, 200]), 5, Bounds(0.9, 0.0, 1.0), 0.1)


def broken(facts, rules=RULES):
    return [(v.rule, v.step) for v in judge(facts, rules) if not v.holds]


def summarized(n, disclosure, **options):
    study = make_study(disclosure=disclosure, **options.pop("study", {}))
    return summarize(study, make_sites(study, {"a": n}, **options)["a"])


def test_enough_patients_may_be_released():
    message = summarized(400, {})
    assert message.summary.site == "a"


def test_rule_n():
    with refuses("N", match="step 0, rule N: 49 patients; the study asks for at least 50"):
        summarized(49, RELAXED | {"min_patients": 50})
    assert summarized(80, RELAXED | {"min_patients": 80})


def test_rule_ratio_counts_independent_features():
    # 15 features: at 149 patients the ratio is just above 0.1, at 150 it is 0.1
    with refuses("RATIO", match="15 independent features for 149 patients"):
        summarized(149, RELAXED | {"max_ratio": 0.1})
    assert summarized(150, RELAXED | {"max_ratio": 0.1})
    # A copied covariate does not count.
    assert summarized(120, RELAXED | {"max_ratio": 0.1}, duplicate=("y", "v"))


def test_rule_action_looks_at_the_actions_that_are_used():
    study = make_study(disclosure=RELAXED | {"min_action": 20})
    rows = make_sites(study, {"a": 80}, actions={"a": [0, 1]})["a"]
    assert summarize(study, rows)  # the third action is not used at all
    with refuses("ACTION", match="none or at least 30"):
        summarized(60, RELAXED | {"min_action": 30})
    # dim ψ + 10 = 15 patients whatever the study says
    with refuses("ACTION", match="none or at least 15"):
        summarized(30, RELAXED)


def test_rule_bound_needs_a_stated_norm_without_unit_scaling():
    unscaled = {"study": {"features": {"scale": "none"}}}
    with refuses("BOUND", match="a stated norm_bound"):
        summarized(400, {}, **unscaled)
    with refuses("BOUND", match="a norm of at most 2"):
        summarized(400, {"norm_bound": 2.0}, study={"features": {"scale": "none"}})
    assert summarized(400, {"norm_bound": 30.0}, study={"features": {"scale": "none"}})


def test_rule_bound_looks_at_targets_and_every_step_is_judged():
    facts = [replace(GOOD, bounds=Bounds(0.9, 0.0, high)) for high in (2.0, 1.0, 1.0)]
    assert not broken(facts)
    for step, wrong in ((1, Bounds(0.9, 0.0, 2.1)), (2, Bounds(0.9, -0.1, 1.0))):
        changed = replace(facts[step], bounds=wrong)
        assert broken([*facts[:step], changed, *facts[step + 1 :]]) == [("BOUND", step)]
    assert broken([replace(GOOD, bounds=Bounds(np.nan, 0.0, 1.0))]) == [("BOUND", 0)]
    late = [*facts[:2], replace(facts[2], n=40)]
    assert set(broken(late)) == {("N", 2), ("RATIO", 2)}


def test_rule_bound_holds_a_site_to_max_patients():
    assert not broken([GOOD], replace(RULES, max_patients=400))
    [verdict] = [v for v in judge([GOOD], replace(RULES, max_patients=399)) if not v.holds]
    assert verdict.sentence.endswith("400 patients; the study asks for a norm of at most 1 and targets inside [0, 1] "
                                     "and at most 399 patients.")  # fmt: skip


@pytest.mark.parametrize(
    ("facts", "rule"),
    [
        ({"cell": Smallest(10, 'column "x"')}, "CELL"),
        ({"nonzero": Smallest(10, 'column "x"')}, "NONZERO"),
        ({"leverage": 0.21}, "LEVERAGE"),
        ({"absorbed": "because"}, "COLLINEAR"),
    ],
)
def test_each_rule_looks_at_its_own_fact(facts, rule):
    assert broken([replace(GOOD, **facts)]) == [(rule, 0)]
    at_the_limit = {"cell": Smallest(11, ""), "nonzero": Smallest(11, ""), "leverage": 0.20, "pair": Smallest(11, "")}
    assert not broken([replace(GOOD, **at_the_limit)], replace(RULES, payload="gram"))


def test_rule_pair_is_asked_of_grams_alone():
    facts = [replace(GOOD, pair=Smallest(10, 'columns "x" and "y"'))]
    assert not broken(facts)
    assert broken(facts, replace(RULES, payload="gram")) == [("PAIR", 0)]


def test_a_small_step_refuses_or_is_withheld_and_bounds_always_refuse():
    facts = [replace(GOOD, n=40), replace(GOOD, bounds=Bounds(2.0, 0.0, 1.0)), replace(GOOD, absorbed="because")]
    for small, what in (("refuse", "refuses"), ("withhold", "withholds")):
        verdicts = [v for v in judge(facts, replace(RULES, small_step=small)) if not v.holds]
        assert all(getattr(v, what) for v in verdicts if v.step == 0)
        assert [v.refuses for v in verdicts if v.step == 1] == [True]
        assert [(v.warns, v.refuses, v.withholds) for v in verdicts if v.step == 2] == [(True, False, False)]


def test_facts_of_other_rows_release_nothing():
    study = make_study()
    sites = make_sites(study, {"a": 400, "b": 500})
    fit = fit_local(study, sites["a"])
    other = measure(sites["b"], study.feature_map, fit_local(study, sites["b"]).fit, study.rules)
    for facts in ([], other):
        with pytest.raises(ValueError, match="not those of the summary"):
            release(fit.summary, facts, study.rules)


def test_every_broken_rule_is_told_and_the_first_names_the_error():
    with refuses("N") as caught:
        summarized(20, {"jitter": 0})
    text = str(caught.value)
    assert all(f"rule {code}" in text for code in ("N", "RATIO", "ACTION"))
    assert "rule BOUND" not in text
    assert text.endswith("Do not forward this message.")


def test_a_refusal_has_two_voices():
    with refuses("N") as caught:
        summarized(20, {})
    assert caught.value.outward == "site declined: disclosure check"
    assert "20" in str(caught.value)


def test_only_release_makes_a_message():
    study = make_study()
    fit = fit_local(study, make_sites(study, {"a": 400})["a"])
    with pytest.raises(TypeError, match="made by disclosure"):
        Message(fit.summary, (), 0.0, object())


def test_rule_sites():
    require_sites([3, 3], 3, 0)
    with refuses("SITES", match="2 sites came together; rule SITES asks for 3"):
        require_sites([2, 2], 3, 0)
    # q0 = 3 site-level shared covariates: K must exceed 6
    require_sites([7], 3, 3)
    with refuses("SITES", match="asks for 7, because 3 shared covariates are constant"):
        require_sites([6], 3, 3)


def test_rule_sites_counts_who_sent_sums_of_each_step():
    require_sites([4, 3, 0], 3, 0)  # a step that nobody sent says nothing of anybody
    with refuses("SITES", match="2 sites came together with sums of step 1, which the others withheld"):
        require_sites([4, 2, 0], 3, 0)


def test_check_previews_what_release_would_say():
    study = make_study(disclosure={"jitter": 0})
    rows = make_sites(study, {"a": 60})["a"]
    verdicts = check(study, rows).verdicts
    rules = study.rules
    assert verdicts == judge(measure(rows, study.feature_map, fit_local(study, rows).fit, rules), rules)
    assert {v.rule for v in verdicts} == {
        "N", "RATIO", "ACTION", "CELL", "NONZERO", "LEVERAGE", "BOUND", "COLLINEAR",
    }  # fmt: skip
    assert {v.rule for v in verdicts if not v.holds} - {"LEVERAGE"} == {"RATIO"} | {
        "ACTION" for counts in np.atleast_2d(check(study, rows).action_counts) if counts.min() < 15
    }
