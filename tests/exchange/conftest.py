"""What the tests of exchanges share."""

import pytest

from fdtr.exchange.site_state import ledger


@pytest.fixture
def weights_of_the_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    """New ledgers have the key by which `fdtr run` weights patients, so that messages are the same again."""
    monkeypatch.setattr(ledger, "new_secret", lambda: b"seed 0")
