"""`make bundle`: a requirements file that pip takes with --require-hashes, from real wheels and from nowhere else."""

import hashlib
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def make_wheel(folder, name):
    """The smallest wheel that pip installs."""
    info = f"{name}-1.0.dist-info"
    path = folder / f"{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr(f"{name}.py", "")
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    return path


STAND_IN = """\
#!/bin/sh
# Python for scripts/bundle: builds one wheel, fetches and installs nothing.
case "$*" in
"-c import fdtr"*) echo 1.0 ;;
"-c import platform"*) echo python-test ;;
"-m build"*) touch "$6/fdtr-1.0-py3-none-any.whl" ;;
"-m venv"*) mkdir -p "$3/bin"; cp "$0" "$3/bin/python"; cp "$0" "$3/bin/fdtr" ;;
scripts/pinned.py*) echo fdtr==1.0 ;;
esac
"""


def test_the_units_for_systemd_are_in_the_bundle_with_their_hashes(tmp_path):
    for name in ("scripts", "packaging"):
        shutil.copytree(ROOT / name, tmp_path / name)
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(STAND_IN)
    python.chmod(0o755)
    done = subprocess.run(["scripts/bundle", python], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    [made] = (tmp_path / "dist").glob("*.tar")
    with tarfile.open(made) as bundle:
        bundle.extractall(tmp_path / "there", filter="data")
    [folder] = (tmp_path / "there").iterdir()
    for unit in ("fdtr-hub.service", "fdtr-site.service"):
        content = (folder / "systemd" / unit).read_bytes()
        assert content == (ROOT / "packaging" / "systemd" / unit).read_bytes()
        assert f"{hashlib.sha256(content).hexdigest()}  systemd/{unit}\n" in (folder / "SHA256SUMS").read_text()
    assert "systemd/" in (folder / "INSTALL.txt").read_text()


@pytest.mark.slow
def test_every_wheel_is_pinned_by_its_hash_and_a_changed_one_is_not_installed(tmp_path):
    wheels = [make_wheel(tmp_path, name) for name in ("one_thing", "other")]
    script = [sys.executable, str(ROOT / "scripts/pinned.py"), str(tmp_path)]
    pinned = subprocess.run(script, capture_output=True, text=True, check=True).stdout
    hashes = [hashlib.sha256(wheel.read_bytes()).hexdigest() for wheel in wheels]
    assert pinned.splitlines() == [
        f"one-thing==1.0 --hash=sha256:{hashes[0]}",
        f"other==1.0 --hash=sha256:{hashes[1]}",
    ]
    (tmp_path / "requirements.txt").write_text(pinned)
    pip = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--no-index", "--require-hashes"]
    pip += ["--find-links", str(tmp_path), "--requirement", str(tmp_path / "requirements.txt"), "--target"]
    first = subprocess.run([*pip, str(tmp_path / "first")], capture_output=True, text=True)
    assert first.returncode == 0, first.stderr
    assert {"one_thing.py", "other.py"} <= {path.name for path in (tmp_path / "first").iterdir()}
    with zipfile.ZipFile(wheels[1], "a") as wheel:
        wheel.writestr("planted.py", "")
    second = subprocess.run([*pip, str(tmp_path / "second")], capture_output=True, text=True)
    assert second.returncode != 0
    assert "DO NOT MATCH THE HASHES" in second.stderr
