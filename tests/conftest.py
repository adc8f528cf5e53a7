"""Settings of all tests, and what several of them share."""

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Tests run side by side, a worker a core. Threads of the linear algebra library would only wait for one another: with
# them the learners' tests take three times the processor time. This line stands before anything imports numpy.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# No test is timed: a busy machine is slow, not wrong.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Slow tests first, so that no worker begins one when the others are done."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


@pytest.fixture(scope="session")
def demo(tmp_path_factory) -> Path:
    """A folder in which `fdtr demo` ran, with what it printed in `printed.txt`.

    All workers share it: copy what a test changes.
    """
    from command_line import fdtr
    from made_once import made_once

    def make(folder: Path) -> None:
        done = fdtr("demo", cwd=folder, COLUMNS="80")
        assert done.returncode == 0, done.stderr
        (folder / "printed.txt").write_text(done.stdout)

    return made_once(tmp_path_factory, "demo", make)
