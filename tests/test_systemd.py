"""The units that ship for systemd: it accepts them, they run commands that exist, and they give nothing away."""

import shutil
import subprocess
from configparser import ConfigParser
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fdtr.cli.app import app

UNITS = sorted((Path(__file__).parents[1] / "packaging" / "systemd").glob("*.service"))
HARDENED = {
    "NoNewPrivileges": "yes",
    "ProtectSystem": "strict",
    "ProtectHome": "yes",
    "PrivateTmp": "yes",
    "PrivateDevices": "yes",
    "CapabilityBoundingSet": "",
    "RestrictNamespaces": "yes",
    "StateDirectoryMode": "0700",
    "UMask": "0077",
    "User": "fdtr",
}


def service(unit: Path) -> dict[str, str]:
    parser = ConfigParser(interpolation=None, strict=True)
    parser.optionxform = str  # type: ignore[assignment]
    parser.read(unit)
    return dict(parser["Service"])


def test_there_is_one_for_each_role():
    assert [unit.stem for unit in UNITS] == ["fdtr-hub", "fdtr-site"]


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_a_unit_is_hardened_and_runs_a_command_that_exists(unit):
    given = service(unit)
    assert {key: given.get(key) for key in HARDENED} == HARDENED
    program, *arguments = given["ExecStart"].split()
    assert program == "/opt/fdtr/bin/fdtr"
    assert CliRunner().invoke(app, [*arguments[:2], "--help"]).exit_code == 0


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_systemd_accepts_a_unit(unit, tmp_path):
    copy = tmp_path / unit.name
    copy.write_text(unit.read_text().replace("/opt/fdtr/bin/fdtr", "/bin/true"))
    done = subprocess.run(["systemd-analyze", "verify", copy], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert unit.stem not in done.stderr
