"""The README's program runs as it stands and prints what it says; its table is the demo's."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
GUIDE = (ROOT / "docs/running-a-study.md").read_text()


@pytest.mark.slow
def test_the_program_prints_what_the_readme_says(demo, tmp_path):
    shutil.copytree(demo / "fdtr-demo", tmp_path / "fdtr-demo")
    [program] = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len([line for line in program.splitlines() if line and not line.startswith("import")]) <= 8
    [printed] = re.findall(r"prints `(.*?)`", README)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == printed


@pytest.mark.slow
def test_the_table_is_the_demos(demo):
    shown = re.findall(r"^    ((?:Clinicians|Q-learn|LDTR|FDTR).*)$", README, re.MULTILINE)
    assert len(shown) == 9
    printed = [re.sub(r"\s+", " ", line).strip() for line in (demo / "printed.txt").read_text().splitlines()]
    for line in shown:
        assert re.sub(r"\s+", " ", line).strip() in printed


def test_every_command_in_the_readme_exists():
    import typer

    from fdtr.cli.app import app

    root = typer.main.get_command(app)
    known = {name for name, command in root.commands.items() if not hasattr(command, "commands")}
    for group, command in root.commands.items():
        known |= {f"{group} {name}" for name in getattr(command, "commands", {})}
    command = r"fdtr ((?:(?:site|hub|message|policy|study|table|extract|keys) )?[a-z]+)"
    shown = re.findall(rf"`{command}", README) + re.findall(rf"(?:^ +|`){command}", GUIDE, re.MULTILINE)
    assert len(shown) >= 20
    assert set(shown) <= known


def test_the_front_page_is_short():
    assert len(README.split()) <= 700
