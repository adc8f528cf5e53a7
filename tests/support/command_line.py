"""`fdtr` on the command line, without waiting for its imports.

Each command is a process of its own: its arguments, folder, environment, standard streams and exit code are those of
`python -m fdtr`. The process is forked from a server that has imported fdtr once (`python -m command_line`).
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import json
import os
import pkgutil
import select
import signal
import subprocess
import sys
import traceback
import warnings
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NoReturn

FDTR = "from fdtr.cli import main; main()"
EXPERIMENTS = "from experiments.command import main; main()"
REPORTING = (["run"], ["report"], ["demo"])
TIMEOUT = 120
"""Seconds until a command counts as hanging."""
SITES = {"north": 260, "south": 200, "west": 220}
"""Patients of each site in the table of tests/cli (the fixture `place`)."""


@dataclass(eq=False)
class Running:
    """A command that was started and may still run; whoever starts it waits for it."""

    pid: int
    arguments: tuple[object, ...]
    folder: TemporaryDirectory[str]
    code: int | None = None

    @property
    def ended(self) -> bool:
        """Whether it has."""
        if self.code is None:
            self.code = _served({"poll": self.pid})
        return self.code is not None

    def kill(self) -> None:
        """As nothing can keep it from dying: it is not waited for before, so that the number is still its own."""
        if not self.ended:
            os.kill(self.pid, signal.SIGKILL)

    def done(self) -> subprocess.CompletedProcess[str]:
        """Wait until it ends."""
        if self.code is None:
            self.code = _served({"wait": self.pid})
        said = [(Path(self.folder.name) / name).read_text() for name in ("stdout", "stderr")]
        self.folder.cleanup()
        return subprocess.CompletedProcess(self.arguments, self.code, *said)


def start(*arguments: object, cwd: Path, stdin: str = "", program: str = FDTR, **environment: str) -> Running:
    """Start `fdtr` in `cwd`, or another Python `program` with these arguments; warnings are errors."""
    folder = TemporaryDirectory()
    streams = [Path(folder.name) / name for name in ("stdin", "stdout", "stderr")]
    streams[0].write_text(stdin)
    request = {
        "program": program,
        "arguments": [str(argument) for argument in arguments],
        "cwd": str(cwd),
        "environment": {**os.environ, "COLUMNS": "200", **environment},
        "streams": [str(stream) for stream in streams],
    }
    return Running(_served({"start": request}), arguments, folder)


def fdtr(*arguments: object, cwd: Path, stdin: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    """Run `fdtr` in `cwd`, with its state in `cwd/state`, on a wide terminal; warnings are errors."""
    return start(*arguments, cwd=cwd, stdin=stdin, **{"FDTR_STATE": str(cwd / "state"), **environment}).done()


def reproduce(*arguments: object, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run `python -m experiments` in `cwd`, as `make reproduce` does; warnings are errors."""
    return start(*arguments, cwd=cwd, program=EXPERIMENTS, **environment).done()


def refused(result: subprocess.CompletedProcess[str], *sentences: str) -> None:
    """Require that a command ended with exit code 1 and these sentences, and without a traceback."""
    assert result.returncode == 1, result.stdout + result.stderr
    for sentence in sentences:
        assert sentence in result.stderr
    assert "Traceback" not in result.stderr


def _served(request: dict[str, Any]) -> Any:
    """The server's answer: the number of what it started, or an exit code, None of what still runs."""
    server = _server()
    server.stdin.write(json.dumps(request) + "\n")
    server.stdin.flush()
    ready, _, _ = select.select([server.stdout], [], [], TIMEOUT)
    if not ready:
        _stop(server)
        _server.cache_clear()
        raise TimeoutError(f"A command did not end within {TIMEOUT} seconds: {request}")
    return json.loads(server.stdout.readline())


@cache
def _server() -> subprocess.Popen[str]:
    """This test process's server; it ends with it."""
    path = os.pathsep.join(path for path in sys.path if path)
    server = subprocess.Popen(
        [sys.executable, "-W", "error", "-m", "command_line"],
        env={**os.environ, "PYTHONPATH": path},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    atexit.register(_stop, server)
    return server


def _stop(server: subprocess.Popen[str]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(server.pid, 9)
    server.communicate()


def serve() -> None:
    """Start commands and wait for them, as lines of JSON ask for it, and answer with their numbers and exit codes."""
    import_everything()
    while line := sys.stdin.readline():
        [(what, asked)] = json.loads(line).items()
        if what == "start" and asked["arguments"][:1] in REPORTING:
            _bundle_scripts()
        answer = _forked(asked) if what == "start" else _code(asked, os.WNOHANG if what == "poll" else 0)
        print(json.dumps(answer), flush=True)


@cache
def _bundle_scripts() -> None:
    """The scripts of every report, which take seconds to bundle, once: a process that reports has them already.

    A child bundles them, as the bundler starts threads, which would not survive a fork.
    """
    from fdtr.report import render

    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        with os.fdopen(writing, "w") as pipe:
            json.dump(render._scripts(), pipe)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        scripts = tuple(json.load(pipe))
    os.waitpid(child, 0)
    render._scripts = lambda: scripts


def _forked(request: dict[str, Any]) -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of Python 3.12: OpenBLAS has threads, and can fork
        child = os.fork()
    if not child:
        _become(request)
    return child


def _code(child: int, options: int) -> int | None:
    ended, status = os.waitpid(child, options)
    return os.waitstatus_to_exitcode(status) if ended else None


def import_everything() -> None:
    """What commands import when they run; but for Flower, which starts threads."""
    import fdtr

    for module in pkgutil.walk_packages(fdtr.__path__, "fdtr."):
        if not module.name.startswith(("fdtr.__main__", "fdtr.exchange.flower")):
            importlib.import_module(module.name)
    import sklearn.linear_model  # noqa: F401


def _become(request: dict[str, Any]) -> NoReturn:
    """This process becomes the command."""
    code: object = 1
    try:
        for number, (name, flags) in enumerate(
            zip(request["streams"], (os.O_RDONLY, os.O_WRONLY | os.O_CREAT, os.O_WRONLY | os.O_CREAT), strict=True)
        ):
            os.dup2(os.open(name, flags), number)
        os.chdir(request["cwd"])
        os.environ.clear()
        os.environ.update(request["environment"])
        sys.argv = ["fdtr", *request["arguments"]]
        exec(request["program"], {"__name__": "__main__"})
        code = 0
    except SystemExit as end:
        code = end.code
    except BaseException:
        traceback.print_exc()
    finally:
        if isinstance(code, str):
            print(code, file=sys.stderr)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else 1 if code else 0)


if __name__ == "__main__":
    serve()
