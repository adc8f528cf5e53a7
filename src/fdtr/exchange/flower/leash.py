"""Runs a program that ends when its parent does, even where the parent is killed outright.

Called as a file, `python -I leash.py PARENT PROGRAM …`, so that it starts at once.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1  # linux/prctl.h; the signal outlives exec


def main(parent: int, command: list[str]) -> None:
    """Become `command`."""
    if ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM) != 0 or os.getppid() != parent:
        sys.exit("The parent is gone already.")
    os.execv(command[0], command)  # noqa: S606  the command is ours; no shell reads it


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
