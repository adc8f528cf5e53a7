"""What `check` says that may leave, and what the terminal, the JSON and the report make of it: one truth."""

import json

import numpy as np
import pytest

from fdtr.cli.check_output import in_short, may_send, show_checks
from fdtr.disclosure.common_repairs import CommonRepairs
from fdtr.errors import DisclosureError
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
        ({}, {"a": 300, "b": 300, "c": 52}, []),  # c is repaired
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
        assert checks[site].kept == summarize(study, sites[site], common=common).kept
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
