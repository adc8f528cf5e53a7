"""How long work tells how far it is."""

from collections.abc import Callable

Progress = Callable[[str, int, int], None]
"""Called with what is being done, how much of it is done, and of how much."""


def ignore_progress(_what: str, _done: int, _of: int) -> None:
    """Show nothing."""
