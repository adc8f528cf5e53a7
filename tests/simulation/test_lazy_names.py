"""The public names of `fdtr.simulation`: each is found, none is imported before it is used."""

import subprocess
import sys

import pytest

import fdtr.simulation


def test_every_name_is_found():
    assert set(fdtr.simulation.__all__) <= set(dir(fdtr.simulation))
    for name in fdtr.simulation.__all__:
        assert getattr(fdtr.simulation, name) is not None
    with pytest.raises(AttributeError, match="attribute make_mars"):
        _ = fdtr.simulation.make_mars


def test_importing_the_package_imports_no_world():
    code = "import sys, fdtr.simulation; print([name for name in sys.modules if name.startswith('fdtr.simulation.')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
