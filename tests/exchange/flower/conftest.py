import shutil
from collections.abc import Iterator

import pytest

from network_parties import Network


@pytest.fixture
def network(tmp_path) -> Iterator[Network]:
    if shutil.which("nginx", path="/usr/sbin:/usr/bin:/usr/local/bin") is None:
        pytest.skip("nginx is not installed: apt-get install nginx-light")
    made = Network(tmp_path)
    try:
        yield made
    finally:
        made.end()
