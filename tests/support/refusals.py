"""Expect a refusal by a disclosure rule."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from fdtr.errors import DisclosureError, RuleCode


@contextmanager
def refuses(rule: RuleCode, match: str | None = None) -> Iterator[pytest.ExceptionInfo[DisclosureError]]:
    """Expect a DisclosureError of this rule; `match` is as in `pytest.raises`."""
    with pytest.raises(DisclosureError, match=match) as refusal:
        yield refusal
    assert refusal.value.rule == rule
