"""A study by which sites learn nothing from each other: refused before a message is made, and else said aloud."""

import numpy as np
import pytest
from typer.testing import CliRunner

from fdtr.algebra.normal_equations import minimum_norm
from fdtr.cli.app import app
from fdtr.cli.check_output import why_alone
from fdtr.errors import InvalidStudy
from fdtr.exchange.folder.hub_steps import open_folder
from fdtr.hub import combine_messages
from fdtr.pipeline.run import run
from fdtr.report.render import render
from fdtr.site.fitting import fit_message
from fdtr.site.rows import read_trajectories
from fdtr.site.site_check import check
from fdtr.site.site_message import summarize
from random_tables import make_sites, make_study, make_table

OWN = [{"name": "x", "range": [0, 10]}, {"name": "y"}]
SAYS = "shares no effect, so nothing would be learnt together"


@pytest.mark.quick
def test_no_message_is_made_opened_or_added(tmp_path):
    study = make_study(covariates=OWN)
    sites = make_sites(study, {"a": 300, "b": 300, "c": 300})
    for rows in sites.values():
        with pytest.raises(InvalidStudy, match=SAYS):
            summarize(study, rows)
    with pytest.raises(InvalidStudy, match=SAYS):
        combine_messages(study, [fit_message(study, rows).summary for rows in sites.values()])
    study.save(tmp_path / "study.toml")
    with pytest.raises(InvalidStudy, match=SAYS):
        open_folder(tmp_path / "folder", tmp_path / "study.toml", None)
    assert not (tmp_path / "folder").exists()
    assert minimum_norm(np.zeros((0, 0)), np.zeros(0)).shape == (0,)


def test_a_run_and_its_report_say_that_each_site_is_alone():
    study = make_study(covariates=OWN)
    found = run(study, read_trajectories(make_table(study, {"a": 60, "b": 60}), study))
    assert "Treatment rules of each site alone" in render(found.record)
    assert "no covariate is shared" in why_alone(study, list(found.checks.values()))


@pytest.mark.quick
@pytest.mark.parametrize(
    ("shared", "patients", "says"),
    [
        ({"name": "u", "effect": "shared", "level": "site"}, 300, "own effects absorb every shared one"),
        ({"name": "u", "effect": "shared"}, 30, "let nothing out"),
        ({"name": "u", "effect": "shared"}, 300, ""),
    ],
)
def test_a_check_says_why_shared_effects_teach_nothing(shared, patients, says):
    study = make_study(covariates=[shared, *OWN], disclosure={"small_step": "withhold"})
    constant = ("u",) if "level" in shared else ()
    sites = make_sites(study, {"a": patients, "b": patients}, constant_within_site=constant)
    checks = [check(study, rows) for rows in sites.values()]
    told = why_alone(study, checks)
    assert says in told
    assert bool(told) == bool(says)
    assert why_alone(study, checks[:1]).startswith("THIS SITE TEACHES" if says else "")


@pytest.mark.quick
def test_the_check_command_says_it(tmp_path):
    import pyarrow.parquet as pq

    study = make_study(covariates=OWN)
    study.save(tmp_path / "study.toml")
    pq.write_table(make_table(study, {"a": 60, "b": 60}), tmp_path / "table.parquet")
    done = CliRunner().invoke(app, ["check", str(tmp_path / "study.toml"), str(tmp_path / "table.parquet")])
    assert done.exit_code == 0, done.output
    assert any(line.startswith("NOTHING IS LEARNT TOGETHER") for line in done.stdout.splitlines())
