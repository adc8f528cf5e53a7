"""A PostgreSQL server of the tests' own: made in a temporary folder, as user postgres, and stopped with the session."""

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


def _programs() -> Path | None:
    program = shutil.which("initdb")
    folders = [Path(program).parent] if program else sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return next((folder for folder in folders if (folder / "pg_ctl").exists()), None)


def _free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


@contextmanager
def running_server() -> Iterator[str]:
    """The address of a fresh server; the test is skipped by name where PostgreSQL is not installed."""
    programs = _programs()
    if programs is None:
        pytest.skip("PostgreSQL is not installed: apt-get install postgresql")
    folder = Path(tempfile.mkdtemp(prefix="fdtr-postgres-"))
    as_root = os.geteuid() == 0  # PostgreSQL refuses root
    user = "postgres" if as_root else pwd.getpwuid(os.geteuid()).pw_name
    if as_root:
        shutil.chown(folder, "postgres", "postgres")

    def do(*command: str) -> None:
        subprocess.run(command, check=True, capture_output=True, cwd=folder, user="postgres" if as_root else None)

    port, data = _free_port(), str(folder / "data")
    do(str(programs / "initdb"), "-D", data, "-A", "trust", "-U", user, "--no-sync", "-E", "UTF8", "--locale=C")
    options = f"-p {port} -k {folder} -c listen_addresses=127.0.0.1 -c fsync=off -c shared_buffers=256MB"
    try:
        do(str(programs / "pg_ctl"), "-D", data, "-w", "-l", str(folder / "log"), "-o", options, "start")
        yield f"postgresql://{user}@127.0.0.1:{port}/postgres"
    finally:
        subprocess.run(
            [str(programs / "pg_ctl"), "-D", data, "-m", "immediate", "stop"],
            capture_output=True,
            cwd=folder,
            user="postgres" if as_root else None,
        )
        shutil.rmtree(folder, ignore_errors=True)
