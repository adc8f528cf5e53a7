"""The tutorial, run as it stands on its page."""

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fdtr.policy import Policy

PAGE = Path(__file__).parents[1] / "docs" / "three-hospitals.md"


@pytest.mark.slow
@pytest.mark.network
@pytest.mark.skipif(shutil.which("nginx") is None, reason="nginx is not installed: apt-get install nginx-light")
def test_the_tutorial_works_as_it_stands(tmp_path):
    pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fdtr[flower]'")
    blocks = re.findall(r"^```sh\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    script = "\n".join(["set -euo pipefail", *blocks])
    (tmp_path / "fdtr").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m fdtr "$@"\n')
    (tmp_path / "fdtr").chmod(0o755)
    told = {**os.environ, "PATH": f"{tmp_path}:{Path(sys.executable).parent}:{os.environ['PATH']}"}
    process = subprocess.Popen(
        ["bash", "-c", script], cwd=tmp_path, env=told, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        said, _ = process.communicate(timeout=300)
    finally:
        process.kill()
        for pid in tmp_path.glob("laptop/*/pid"):
            end(int(pid.read_text()))
    assert process.returncode == 0, said
    assert said.count("complete") == 2
    assert said.count(": refused") == 1
    assert "none changed" in said
    for site in ("site-1", "site-2", "site-3"):
        assert Policy.load(tmp_path / "laptop" / site / "own.policy").site == site


def end(pid: int) -> None:
    """Nothing is left behind, also where the page failed half-way."""
    try:
        os.kill(pid, signal.SIGTERM)
    except ProcessLookupError:
        return
