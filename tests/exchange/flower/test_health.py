"""A site's health endpoint."""

import json
import urllib.error
import urllib.request

import pytest

from fdtr.errors import InvalidSettings
from fdtr.exchange.flower.health import Health, health_endpoint
from fdtr.exchange.flower.processes import free_port


def test_health_tells_two_things_and_nothing_on_other_paths():
    health, port = Health(connected=lambda: True), free_port()
    with health_endpoint(health, port):
        url = f"http://127.0.0.1:{port}"
        health.answered()
        with urllib.request.urlopen(f"{url}/health", timeout=5) as answer:
            assert set(json.load(answer)) == {"connected", "last_answer"}
        with pytest.raises(urllib.error.HTTPError, match="404") as found:
            urllib.request.urlopen(f"{url}/other", timeout=5)
        found.value.close()
        health.connected = lambda: False
        with pytest.raises(urllib.error.HTTPError, match="503") as found:
            urllib.request.urlopen(f"{url}/health", timeout=5)
        found.value.close()
        with pytest.raises(InvalidSettings, match="Name another"), health_endpoint(health, port):
            pass
