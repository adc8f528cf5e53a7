"""Hub and sites as processes: they connect, say so, and end with all that they started."""

import pytest

from folder_parties import study_of

pytestmark = [pytest.mark.network, pytest.mark.slow]


def test_sites_connect_and_everything_ends_when_asked(network):
    network.set_up(study_of(masked=False))
    hub = network.serve_hub()
    site = network.serve_site("a")
    assert network.healthy("a") == {"connected": True, "last_answer": None}
    site.end()
    hub.end()
    assert site.process.returncode == 0
    assert hub.process.returncode == 0
