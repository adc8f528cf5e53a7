"""`make sbom` lists what fdtr runs with, in the locked versions, and nothing that only developers need."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
def test_the_bill_of_materials_parses_and_has_the_locked_versions(tmp_path):
    assert "$(BIN)/python scripts/sbom.py dist/sbom.json" in (ROOT / "Makefile").read_text()
    command = [sys.executable, str(ROOT / "scripts/sbom.py"), str(tmp_path / "sbom.json")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    bill = json.loads((tmp_path / "sbom.json").read_text())
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    assert bill["metadata"]["component"]["name"] == "fdtr"
    found = {part["name"].lower(): part["version"] for part in bill["components"]}
    assert {"numpy", "cryptography", "safetensors", "gymnasium", "cffi"} <= found.keys()  # cffi: of cryptography
    assert not {"pytest", "mypy", "cyclonedx-python-lib"} & found.keys()
    lines = [line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line]
    locked = {name.lower(): version for name, version in lines}
    assert {name: locked[name] for name in found} == found
    refs = {part["bom-ref"] for part in bill["components"]} | {"root-component"}
    assert {entry["ref"] for entry in bill["dependencies"]} == refs
    assert all(set(entry.get("dependsOn", ())) <= refs for entry in bill["dependencies"])
