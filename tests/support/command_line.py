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
import subprocess
import sys
import traceback
import warnings
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NoReturn

TIMEOUT = 120
"""Seconds until a command counts as hanging."""
SITES = {"north": 260, "south": 200, "west": 220}
"""Patients of each site in the table of tests/cli (the fixture `place`)."""


def fdtr(*arguments: object, cwd: Path, stdin: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    """Run `fdtr` in `cwd`, with its state in `cwd/state`, on a wide terminal; warnings are errors."""
    variables = {**os.environ, "FDTR_STATE": str(cwd / "state"), "COLUMNS": "200", **environment}
    with TemporaryDirectory() as folder:
        streams = [Path(folder) / name for name in ("stdin", "stdout", "stderr")]
        streams[0].write_text(stdin)
        code = _served(
            {
                "arguments": [str(argument) for argument in arguments],
                "cwd": str(cwd),
                "environment": variables,
                "streams": [str(stream) for stream in streams],
            }
        )
        return subprocess.CompletedProcess(arguments, code, streams[1].read_text(), streams[2].read_text())


def reproduce(*arguments: object, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run `python -m experiments` in `cwd`, as `make reproduce` does; warnings are errors."""
    folder = Path(__file__).parents[2] / "reproductions"
    paths = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    variables = {**os.environ, "PYTHONPATH": paths, "COLUMNS": "200", **environment}
    command = [sys.executable, "-W", "error", "-m", "experiments", *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, env=variables, capture_output=True, text=True, timeout=TIMEOUT)


def refused(result: subprocess.CompletedProcess[str], *sentences: str) -> None:
    """Require that a command ended with exit code 1 and these sentences, and without a traceback."""
    assert result.returncode == 1, result.stdout + result.stderr
    for sentence in sentences:
        assert sentence in result.stderr
    assert "Traceback" not in result.stderr


def _served(request: dict[str, Any]) -> int:
    server = _server()
    server.stdin.write(json.dumps(request) + "\n")
    server.stdin.flush()
    ready, _, _ = select.select([server.stdout], [], [], TIMEOUT)
    if not ready:
        _stop(server)
        _server.cache_clear()
        raise TimeoutError(f"fdtr {' '.join(request['arguments'])} did not end within {TIMEOUT} seconds.")
    return int(server.stdout.readline())


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
    """Run one command after another, each asked for by a line of JSON, and answer with its exit code."""
    import_everything()
    while line := sys.stdin.readline():
        request = json.loads(line)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of Python 3.12: OpenBLAS has threads, and can fork
            child = os.fork()
        if not child:
            _become(request)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


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
        from fdtr.cli import main

        main()
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
