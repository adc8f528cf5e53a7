import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from folder_parties import study_of
from network_parties import Network


@pytest.fixture
def network(tmp_path) -> Iterator[Network]:
    with _made(tmp_path) as made:
        yield made


@pytest.fixture(scope="module")
def served(tmp_path_factory) -> Iterator[Network]:
    """A network whose hub serves four sites, of which its settings name all but c; the tests of a module share it."""
    with _made(tmp_path_factory.mktemp("served")) as made:
        made.sites = tuple("abcd")
        made.set_up(study_of(made.sites, masked=False), nodes=("a", "b", "d"))
        made.serve_hub()
        yield made


@contextmanager
def _made(root: Path) -> Iterator[Network]:
    if shutil.which("nginx", path="/usr/sbin:/usr/bin:/usr/local/bin") is None:
        pytest.skip("nginx is not installed: apt-get install nginx-light")
    made = Network(root)
    try:
        yield made
    finally:
        made.end()
