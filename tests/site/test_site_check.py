"""What `check` says that may leave, and what the terminal, the JSON and the report make of it: one truth."""

import json

import numpy as np
import pytest

from fdtr.cli.check_output import in_short, may_send, show_checks
from fdtr.disclosure.common_repairs import CommonRepairs, parts_taken_out, taken_out
from fdtr.errors import DisclosureError
from fdtr.exchange.release import describe_message
from fdtr.pipeline.run import ALLOWED, run
from fdtr.report.render import render
from fdtr.site.fitting import fit_message
from fdtr.site.rows import read_trajectories
from fdtr.site.site_check import agree_on_repairs, check, check_sites
from fdtr.site.site_message import summarize
from random_tables import make_sites, make_study, make_table

WITHHELD = {"jitter": 0, "small_step": "withhold"}
SECURE = {"secure_sum": True, "max_patients": 400}


def told(capsys, study, checks):
    """The JSON of `fdtr check`."""
    show_checks(study, checks, machine=True)
    return json.loads(capsys.readouterr().out)


def plain(html):
    return " ".join(html.split())


@pytest.mark.parametrize(
    ("disclosure", "sites", "silent"),
    [
        (WITHHELD, {"a": 300, "b": 300, "c": 40}, ["c"]),  # every step of c is withheld
        (WITHHELD, {"a": 40, "b": 40, "c": 40}, ["a", "b", "c"]),
        ({}, {"a": 300, "b": 300, "c": 56}, []),  # c is repaired
        ({"max_membership": 0.51}, {"a": 300, "b": 300, "c": 300}, ["a", "b", "c"]),  # repairs leave nothing
    ],
)
def test_terminal_json_and_report_agree_on_who_may_send(disclosure, sites, silent, capsys):
    study = make_study(disclosure=disclosure)
    rows = read_trajectories(make_table(study, sites), study)
    results = run(study, rows)
    checks = list(results.checks.values())
    assert [one.site for one in checks if not one.steps_sent] == silent
    machine = told(capsys, study, checks)
    report = plain(render(results.record))
    assert f"would let {len(sites) - len(silent)} of {len(sites)} sites send" in report
    short = plain(" ".join(in_short(study, checks)))
    assert f"nothing at {len(silent)}" in short
    assert ("Rule SITES asks for 3" in report) == ("rule SITES asks for 3" in short) == (len(silent) in (1, 2))
    for one in checks:
        recorded, sent = results.record.sites[one.site], machine[one.site]["sent"]
        assert recorded.steps_sent == sent["steps"] == one.steps_sent
        assert recorded.share_sent == sent["share"] == one.share_sent
        assert recorded.efficiency_sent == sent["efficiency"] == one.efficiency_sent
        assert may_send(one).startswith("nothing") == (one.site in silent)
        if one.site not in silent:
            assert f"at {len(one.steps_sent)} of {study.horizon} steps" in report
        try:  # and this is what a release does
            sums = summarize(study, rows.by_site()[one.site]).summary.sums
        except DisclosureError:
            assert one.site in silent
        else:
            assert [h for h in range(study.horizon) if sums.schur[h].any()] == one.steps_sent


def test_the_worst_step_is_quoted_and_not_the_first():
    study = make_study(ends={"left": 0.5}, disclosure=WITHHELD)
    rows = read_trajectories(make_table(study, {"a": 48, "b": 300, "c": 300}, ragged=True), study)
    results = run(study, rows)
    [patients] = [rule for rule in results.record.sites["a"].disclosure if rule.rule == "N"]
    counts = np.array(results.record.sites["a"].actions).sum(axis=1)
    assert patients.worst == int(np.argmin(counts)) == patients.steps[-1] > patients.steps[0]
    assert patients.measured == f"{counts.min()} patients"
    assert f"by most at step {patients.worst}: {counts.min()} patients" in plain(render(results.record))


def test_nine_sites_are_told_in_ten_lines(monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    study = make_study()
    sites = {f"University Hospital {k}": 30 + 40 * k for k in range(9)}
    checks = check_sites(study, make_sites(study, sites))
    lines = in_short(study, checks)
    assert len(lines) <= 10
    assert max(map(len, lines)) <= 100
    worst = max((v for one in checks for v in one.verdicts if not v.holds), key=lambda v: (v.withholds, v.excess))
    assert f"off by a factor of {worst.excess:.2g}" in plain(" ".join(lines))
    assert "0 or too few" in lines[-2]


def test_a_secure_sum_is_judged_on_the_total_of_all_sites():
    study = make_study(horizon=1, disclosure=SECURE)
    sites = make_sites(study, {"a": 40, "b": 40, "c": 40, "d": 40, "tiny": 5})
    checks = {one.site: one for one in check_sites(study, sites)}
    assert not checks["tiny"].steps_sent  # too few patients at every action: it receives only
    common = agree_on_repairs(study, sites, {site: fit_message(study, rows) for site, rows in sites.items()})
    for site in "abcd":
        assert checks[site].kept == summarize(study, sites[site], common=common, n_sites=5).kept
        assert checks[site].steps_sent == [0]
    # Two sites are too few for any total, so that all is taken out.
    pair = check_sites(study, {site: sites[site] for site in "ab"})
    assert [one.steps_sent for one in pair] == [[], []]
    assert agree_on_repairs(study, {"a": sites["a"]}, {"a": fit_message(study, sites["a"])}) is None
    assert check(study, sites["a"], common=CommonRepairs(steps=(0,))).share_sent == 0.0


def test_as_allowed_uses_the_common_repairs_of_a_secure_sum():
    study = make_study(horizon=1, disclosure=SECURE)
    rows = read_trajectories(make_table(study, {"a": 40, "b": 40, "c": 40, "d": 40, "tiny": 5}), study)
    results = run(study, rows)
    alone = results.methods["LDTR"]
    assert [site for site, one in results.checks.items() if one.steps_sent] == ["a", "b", "c", "d"]
    for site, policy in results.methods[ALLOWED].items():
        assert not np.allclose(policy.theta, alone[site].theta), site
    pair = run(study, read_trajectories(make_table(study, {"a": 40, "b": 40}), study))
    for site, policy in pair.methods[ALLOWED].items():
        np.testing.assert_array_equal(policy.theta, pair.methods["LDTR"][site].theta)


SHARED = [{"name": "u", "effect": "shared"}, {"name": "v", "effect": "shared"}, {"name": "x"}]


def short_of(study, checks):
    return plain(" ".join(in_short(study, checks)))


def test_a_step_that_the_totals_withhold_is_not_laid_to_a_rule_that_would_shrink_weights(capsys):
    """Each of three sites of 37 patients has some who are far out; without one site, too few are left."""
    study = make_study(horizon=2, covariates=SHARED, disclosure=SECURE)
    rows = read_trajectories(make_table(study, {"a": 37, "b": 37, "c": 37}), study)
    results = run(study, rows)
    checks = list(results.checks.values())
    machine, report = told(capsys, study, checks), plain(render(results.record))
    for one in checks:
        assert {v.rule for v in one.verdicts if v.withholds} == {"SITES"}
        assert all(v.repaired for v in one.verdicts if v.rule == "LEVERAGE" and not v.holds)
        assert one.worst.rule == "SITES"
        assert {rule.rule for rule in results.record.sites[one.site].disclosure} == {"SITES"}
        assert machine[one.site]["in_the_way"] == ["SITES"]
        assert machine[one.site]["repaired"] == []
        assert [(part["step"], part["rule"]) for part in machine[one.site]["taken_out"]] == [(0, "N"), (1, "N")]
    text = "without one site the others have 30 patients for the whole step (rule N, in fives); the study asks for"
    short = short_of(study, checks)
    assert f"Worst: SITES at a, step 0: {text} at least 50, off by a factor of 1.7; the step is withheld" in short
    assert "LEVERAGE" not in short
    assert "Zeros that are sent" not in short  # nothing is
    assert text in report
    message = summarize(study, rows.by_site()["a"], common=agreed_by(study, rows.by_site()), n_sites=3)
    assert message.withheld == [0, 1]
    shown = [line for line in describe_message(study, message) if "Withheld" in line]
    assert len(shown) == 2
    assert all("rule SITES" in line for line in shown)


def agreed_by(study, sites):
    return agree_on_repairs(study, sites, {site: fit_message(study, rows) for site, rows in sites.items()})


def test_common_repairs_name_their_rules_and_distances_the_largest_parts_first():
    covariates = [*SHARED, *({"name": name, "effect": "shared"} for name in "wz")]
    study = make_study(horizon=3, covariates=covariates, disclosure=SECURE, ends={"left": 0.5})
    sites = make_sites(study, dict.fromkeys("abcd", 62), ragged=True)
    common = agreed_by(study, sites)
    assert len(common.why) == len(common.functions) + len(common.blocks) + len(common.steps)
    assert common.steps
    assert common.functions
    parts = parts_taken_out(study.feature_map, common)
    assert [part.step for part in parts if part.whole] == list(common.steps)
    assert not any(part.whole for part in parts[len(common.steps) :])
    assert not {part.step for part in parts[len(common.steps) :]} & set(common.steps)
    rules = {part.why.rule for part in parts}
    assert rules <= {"N", "ACTION", "CELL", "NONZERO", "REF", "PAIR", "NUMBERS", "SITES"}
    assert len(rules) > 1
    for part, words in zip(parts, taken_out(study.feature_map, common), strict=True):
        assert f"({part.why.rule}: {part.why})" in words
        assert part.why.left is None or (part.why.left < part.why.needed) == (part.why.rule != "NUMBERS")
    for one in check_sites(study, sites):
        lines = "\n".join(one.kept.lines)
        verdicts = {v.step: v for v in one.verdicts if v.rule == "SITES" and not v.holds and not v.warns}
        for part in parts:
            if part.whole:
                assert f"Step {part.step} leaves out the whole step ({part.why.rule}" in lines
            assert part.what.split(" at action ")[0] in lines
            assert verdicts[part.step].withholds == part.whole
            assert part.whole or part.what in verdicts[part.step].advice


def test_repairs_are_told_from_what_is_in_the_way():
    study = make_study(horizon=2, covariates=SHARED, disclosure=SECURE, learning={"seed": 1})
    checks = check_sites(study, make_sites(study, {"a": 60, "b": 60, "c": 60}))
    short = short_of(study, checks)
    assert "all directions at 3" in short
    assert "In the way" not in short
    assert "Repaired: LEVERAGE at 3 sites" in short
    assert "among others alike" not in short  # where that is no more than the others may have
    assert "Zeros that are sent" in short
    refused = check_sites(make_study(disclosure={"max_membership": 0.51}), make_sites(make_study(), {"a": 300}))
    assert "In the way: NUMBERS" in short_of(study, refused)
    assert "Repaired" not in short_of(study, refused)


def test_functions_near_a_threshold_are_said_to_depend_on_secret_weights(capsys):
    study = make_study(horizon=1, covariates=SHARED, disclosure=SECURE)
    table = make_table(study, dict.fromkeys("abcd", 390))
    checks = check_sites(study, read_trajectories(table, study).by_site())
    assert "near a threshold" not in short_of(study, checks)
    assert not any(one["near_threshold"] for one in told(capsys, study, checks).values())
    table = make_table(study, dict.fromkeys("abcd", 60))  # five to ten have another u at an action of a site
    table = table.set_column(table.column_names.index("u"), "u", [[float(i % 3 == 0) for i in range(240)]])
    results = run(study, read_trajectories(table, study))
    checks = list(results.checks.values())
    assert "near a threshold, functions may differ with a site's secret weights" in short_of(study, checks)
    assert all(one["near_threshold"] for one in told(capsys, study, checks).values())
    assert "Near a threshold, functions may differ" in plain(render(results.record))


def test_one_table_for_many_says_that_it_stands_for_sites_like_it(capsys):
    study = make_study(horizon=1, covariates=SHARED, disclosure=SECURE)
    sites = make_sites(study, {"a": 60})
    checks = check_sites(study, sites, n_sites=5)
    assert "in a secure sum, judged as if there were 5 sites like it" in short_of(study, checks)
    assert told(capsys, study, checks)["a"]["judged_as_sites"] == 5
    alone = check_sites(study, sites)
    assert "could contribute" in short_of(study, alone)
    assert "judged_as_sites" not in told(capsys, study, alone)["a"]


def test_weights_are_the_first_remedy_where_rows_have_none():
    few = {"a": 100, "b": 100, "c": 100}
    bare = make_study(horizon=1, covariates=SHARED, disclosure={"jitter": 0.1})
    short = short_of(bare, check_sites(bare, make_sites(bare, few)))
    assert "let nothing out. Set jitter = 0.3 under [disclosure]; or use fewer features, or larger sites." in short
    weighted = make_study(horizon=1, covariates=SHARED)
    assert all(one.steps_sent for one in check_sites(weighted, make_sites(weighted, few)))
    tiny = make_sites(weighted, {"a": 20, "b": 20, "c": 20})
    assert "let nothing out. Use fewer features" in short_of(weighted, check_sites(weighted, tiny))
