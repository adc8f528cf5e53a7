"""The hub's process stays light: adding messages needs nothing that fits, tunes or evaluates."""

import subprocess
import sys

from fdtr.exchange.wire import write_message
from fdtr.site.site_message import summarize
from random_tables import make_sites, make_study

SITE_ONLY = ("fdtr.learners", "fdtr.tuning", "fdtr.evaluation", "fdtr.site", "sklearn")
"""Packages that fit models or read patients; the hub needs none of them."""


def loaded_by(code):
    """The modules of SITE_ONLY that a fresh Python process has loaded after running `code`."""
    report = f"\nimport sys; print('LOADED', *(name for name in sys.modules if name.startswith({SITE_ONLY!r})))"
    done = subprocess.run([sys.executable, "-c", code + report], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.split("LOADED", 1)[1].split()


def test_the_hubs_modules_load_nothing_that_fits():
    assert loaded_by("import fdtr.hub, fdtr.exchange.wire") == []


def test_combining_on_the_command_line_loads_nothing_that_fits(tmp_path):
    study = make_study()
    study.save(tmp_path / "study.toml")
    for site, rows in make_sites(study, {"a": 300, "b": 300, "c": 300}).items():
        write_message(summarize(study, rows), tmp_path / f"{site}.msg")
    files = [str(tmp_path / name) for name in ("study.toml", "a.msg", "b.msg", "c.msg")]
    command = ["hub", "combine", *files, "--out", str(tmp_path / "total.msg")]
    code = f"from fdtr.cli.app import app\napp({command!r}, standalone_mode=False)"
    assert loaded_by(code) == []
    assert (tmp_path / "total.msg").exists()
