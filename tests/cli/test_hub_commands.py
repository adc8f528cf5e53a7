"""The hub's commands on files, and what `fdtr hub combine` says of a site that contradicts the others."""

import json
from dataclasses import replace

import numpy as np
import pytest

from command_line import fdtr, refused
from fdtr.cli.hub_commands import show_pooled_values, show_total
from fdtr.disclosure import MethodValue, SiteValues
from fdtr.disclosure.blocks import Design
from fdtr.hub import pool_values, pooled_coefficients
from fdtr.inference import infer_effects
from fdtr.inference.message_checks import Suspicion
from fdtr.site.fitting import fit_local
from fdtr.summary import combine
from fdtr.sums import Removed
from random_tables import make_sites, make_study

pytestmark = pytest.mark.slow  # a process for every command


def test_messages_that_do_not_belong_are_refused(place):
    make_study(name="other").save(place / "other.toml")
    for site, study in {"north": "study", "south": "study", "west": "other"}.items():
        arguments = [f"{study}.toml", "table.csv", "--site", site, "--out", f"{site}.fdtr", "--yes"]
        assert fdtr("site", "summarize", *arguments, cwd=place).returncode == 0
    combine = ["hub", "combine", "study.toml"]
    refused(
        fdtr(*combine, "north.fdtr", "south.fdtr", "west.fdtr", "--out", "t.fdtr", cwd=place),
        "belongs to another study",
    )
    refused(fdtr(*combine, "north.fdtr", "south.fdtr", "--out", "t.fdtr", cwd=place), "rule SITES asks for 3")
    refused(fdtr(*combine, "north.fdtr", "north.fdtr", "--out", "t.fdtr", cwd=place), "already in the total")
    (place / "cut.fdtr").write_bytes((place / "south.fdtr").read_bytes()[:-3])
    refused(fdtr(*combine, "north.fdtr", "cut.fdtr", "--out", "t.fdtr", cwd=place), "truncated, damaged")
    assert not (place / "t.fdtr").exists()
    arguments = ["study.toml", "table.csv", "south.fdtr", "--site", "north", "--out", "p.policy"]
    refused(fdtr("site", "fit", *arguments, cwd=place), "holds a message, not a total")
    assert not (place / "p.policy").exists()
    before = (place / "north.fdtr").read_bytes()
    refused(fdtr(*combine, "north.fdtr", "south.fdtr", "--out", "north.fdtr", cwd=place), "one of the files to read")
    assert (place / "north.fdtr").read_bytes() == before


@pytest.mark.quick
def test_a_coefficient_of_what_was_eliminated_is_shown_as_not_identified(capsys, tmp_path):
    """Without the first shared feature at one of three actions, none of its action terms is told at step 0."""
    study = make_study()
    features = study.feature_map
    total = combine(fit_local(study, rows).summary for rows in make_sites(study, {"a": 90, "b": 90, "c": 90}).values())
    [unit] = [unit for unit in Design(features, (0, 1, 2)).within(0) if unit.functions == (0,)]
    gone = Removed(0, (), tuple(map(tuple, unit.directions.tolist())))
    total = replace(total, sums=total.sums.without_directions([gone]))
    expected = np.zeros((study.horizon, features.n_shared), bool)
    expected[0, ::2] = True  # u, a·u and a²·u
    names = features.names[: features.n_shared]
    assert [name for name, missing in zip(names, expected[0], strict=True) if missing] == ["u", "a·u", "a^2·u"]
    np.testing.assert_array_equal(np.isnan(pooled_coefficients(total)), expected)
    np.testing.assert_array_equal(infer_effects(total.significant).identified, ~expected)
    show_total(study, total, (), tmp_path / "total.fdtr", machine=True)
    by_feature = json.loads(capsys.readouterr().out)["shared_coefficients"]
    assert [[number is None for number in by_feature[name]] for name in names] == expected.T.tolist()
    show_total(study, total, (), tmp_path / "total.fdtr", machine=False)
    shown = {line.split()[0]: line.split()[1:] for line in capsys.readouterr().out.splitlines() if line}
    assert [[number == "–" for number in shown[name]] for name in names] == expected.T.tolist()
    assert "not identified" in " ".join(shown["–:"])


@pytest.mark.quick
@pytest.mark.parametrize("machine", [False, True])
def test_a_doubtful_site_is_named_beside_the_total_and_stays_in_it(machine, capsys, tmp_path):
    study = make_study()
    total = combine(fit_local(study, rows).summary for rows in make_sites(study, {"a": 60, "b": 60, "c": 60}).values())
    doubts = (Suspicion("b", "values-differ", 0.0004),)
    show_total(study, total, doubts, tmp_path / "total.fdtr", machine)
    told = capsys.readouterr()
    if machine:
        found = json.loads(told.out)
        assert found["sites"] == ["a", "b", "c"]
        assert found["suspicions"] == [{"site": "b", "name": "values-differ", "p_value": 0.0004}]
        assert told.err == ""
    else:
        assert "Added the sums of 3 sites" in told.out
        assert "Note: Site 'b' differs from the others in what the shared features do to values, by more" in told.err
        assert "(p = 0.0004)" in told.err


@pytest.mark.quick
def test_a_clipped_interval_is_printed_as_it_is(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "160")
    """The upper end is 3, the largest value; value ± (high − value) would show 2.4 as the lower end."""
    study = make_study()
    values = [
        SiteValues(
            site,
            study.fingerprint,
            90,
            (
                MethodValue("FDTR", "fqe", 0.4, 0.3, "Clinicians", "model-based", 0.5),
                MethodValue("FDTR (verified)", "wdr", 0.2, 0.05, "Clinicians", "verified"),
                MethodValue("FDTR", "fqe", 2.7, 0.5, "", "model-based", 0.5),
            ),
            study.evaluation_fingerprint,
        )
        for site in ("a", "b")
    ]
    pooled = pool_values(study, values)
    show_pooled_values(study, pooled, machine=False)
    printed = capsys.readouterr().out
    assert "±" not in printed
    value = next(mean.pooling.plain for mean in pooled if not mean.over)
    assert value.high == 3.0
    assert f"2.700 ({value.low:.3f} to 3.000)" in printed
    rows = [line.split("  ")[0] for line in printed.splitlines() if " over Clinicians " in line]
    assert rows == ["FDTR (verified) over Clinicians", "FDTR over Clinicians"]
    assert "+0.200 (0." in printed


@pytest.mark.quick
def test_clinicians_are_labelled_with_the_sites_that_they_are_over(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "160")
    study = make_study()

    def site(name, *methods):
        values = tuple(MethodValue(method, "wdr", 1.0, 0.1, "", "verified") for method in ("Clinicians", *methods))
        return SiteValues(name, study.fingerprint, 90, values, study.evaluation_fingerprint)

    pooled = pool_values(study, [site("a", "FDTR"), site("b", "FDTR"), site("c")])
    show_pooled_values(study, pooled, machine=False)
    table, rest = capsys.readouterr().out.split("verified: ")
    rows = [line.split("  ")[0] for line in table.splitlines()[2:] if line]
    assert rows == ["Clinicians", "Clinicians (without c)", "FDTR"]
    assert [line.split() for line in rest.splitlines() if line.startswith("FDTR")] == [["FDTR", "c"]]
    show_pooled_values(study, pooled, machine=True)
    assert [mean["sites"] for mean in json.loads(capsys.readouterr().out)] == [["a", "b", "c"], ["a", "b"], ["a", "b"]]
