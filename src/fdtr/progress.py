"""Progress reporting for long work."""

from collections.abc import Callable
from dataclasses import dataclass

Progress = Callable[[str, int, int], None]
"""Called with what is being done, how much of it is done, and of how much."""


def ignore_progress(_what: str, _done: int, _of: int) -> None:
    """Show nothing."""


@dataclass
class Steps:
    """Reports steps of a piece of work whose `total` is known; a step may be more work than another."""

    progress: Progress
    total: int
    done: int = 0

    def begin(self, what: str, work: int = 1) -> None:
        """Report the step that begins; `work` is its part of the total."""
        self.progress(what, self.done, self.total)
        self.done += work

    def end(self) -> None:
        """Report that nothing is left to do."""
        self.progress("done", self.total, self.total)


def stage(progress: Progress, first: int, last: int, of: int = 100) -> Progress:
    """Report a part of longer work, from `first` to `last` of the whole; the end of the part is not reported.

    >>> report = stage(lambda *call: print(*call), 0, 50)
    >>> report("fit", 1, 2)
    fit 25 100
    >>> report("done", 2, 2)
    """

    def report(what: str, done: int, of_stage: int) -> None:
        if done < of_stage:
            progress(what, first + (last - first) * done // of_stage, of)

    return report
