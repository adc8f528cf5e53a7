"""The front door: its names, its weight, its logging."""

import logging
import re
import subprocess
import sys

import pytest

import fdtr
from fdtr.disclosure import MethodValue, ValueFacts, ValueRules, release_table, release_values
from random_tables import make_sites, make_study

pytestmark = pytest.mark.quick

PUBLIC = {
    "DatabaseTable", "FdtrError", "FederatedFit", "LocalFit", "Policy", "Results", "SiteSummary", "Study", "Total",
    "Trajectories", "VerifiedPolicy", "__version__", "check", "combine", "draft_study", "evaluate", "fit_baselines",
    "fit_federated", "fit_local", "read_trajectories", "run", "simulate", "tune", "verify",
}  # fmt: skip
MODULES = {
    "cohort", "errors", "evaluation", "exchange", "hub", "inference", "learners", "plots", "signing", "simulation",
    "site", "tuning",
}  # fmt: skip


def test_the_public_names_are_these():
    assert set(fdtr.__all__) == PUBLIC | MODULES
    for name in PUBLIC | MODULES:
        assert getattr(fdtr, name) is not None


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="attribute nothing"):
        fdtr.nothing  # noqa: B018


def test_wrong_arguments_get_a_sentence():
    study = {"name": "x"}
    with pytest.raises(TypeError, match="A Study is needed, not dict"):
        fdtr.fit_local(study, None)
    with pytest.raises(TypeError, match="A Study is needed"):
        fdtr.read_trajectories("x.csv", study)
    with pytest.raises(TypeError, match="Summaries are combined, not str"):
        fdtr.combine(["a"])
    real = make_study()
    with pytest.raises(TypeError, match="Trajectories are needed, not list"):
        fdtr.fit_local(real, [])
    with pytest.raises(TypeError, match="Trajectories are needed, not dict"):
        fdtr.run(real, {})
    with pytest.raises(TypeError, match="A mapping of sites"):
        fdtr.fit_baselines(real, [])


def test_results_print_short(tmp_path):
    study = make_study()
    local = fdtr.fit_local(study, make_sites(study, {"a": 60})["a"])
    total = fdtr.combine([local.summary])
    for thing in (local, local.summary, total, fdtr.fit_federated(study, make_sites(study, {"a": 60})["a"], total)):
        assert len(repr(thing)) < 300
        assert "array" not in repr(thing)


def test_what_a_person_decides_on_prints_as_one_line():
    study = make_study()
    check = fdtr.check(study, make_sites(study, {"a": 60})["a"])
    assert re.fullmatch(
        r"<SiteCheck of 'a': 60 patients, 180 rows, may release \d+% of the directions of its sums>", repr(check)
    )
    facts = [ValueFacts(MethodValue("FDTR", "wdr", 1.25, 0.1), size, "") for size in (90.0, 3.0)]
    values = release_values("a", study.fingerprint, 1200, facts, ValueRules(50, 30.0, 11))
    assert repr(values) == "<ValueMessage of 'a': 1 values over 1,200 patients, 1 withheld>"
    table = release_table("a", study.fingerprint, 100, [], min_patients=50, min_cell=11)
    assert repr(table) == f"<TableOne of 'a': {len(table.rows)} rows>"


def test_importing_brings_nothing_heavy():
    code = "import sys, fdtr; print(' '.join(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    heavy = {"numpy", "scipy", "pyarrow", "pydantic", "narwhals", "rich", "typer", "safetensors", "cryptography"}
    assert not heavy & set(loaded)


def test_the_library_is_silent_unless_asked():
    assert any(isinstance(handler, logging.NullHandler) for handler in logging.getLogger("fdtr").handlers)
