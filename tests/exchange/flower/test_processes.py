"""What a service starts ends with it."""

import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from fdtr.errors import ServiceError
from fdtr.exchange.flower.processes import (
    Child,
    Children,
    bypass_proxy_for_loopback,
    environment,
    find_program,
    stopping,
)

PYTHON = [sys.executable, "-c"]
SLEEPS = "import time; print('here', flush=True); time.sleep(60)"
DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('here', flush=True); time.sleep(60)"


def said(child, words="here"):
    until = time.monotonic() + 10
    while words not in child.output():
        assert time.monotonic() < until, child.output()
        time.sleep(0.02)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_leaving_the_block_ends_all(tmp_path, monkeypatch):
    monkeypatch.setattr("fdtr.exchange.flower.processes._PATIENCE", 0.3)
    with Children(tmp_path) as children:
        for name, program in (("plain", SLEEPS), ("deaf", DEAF), ("stopped", SLEEPS)):
            said(children.start(name, [*PYTHON, program], environment()))
        pids = [child.process.pid for child in children.running]
        os.kill(pids[2], signal.SIGSTOP)
        assert children.ended() is None
    assert not any(alive(pid) for pid in pids)


def test_one_that_ends_is_noticed_with_its_last_words(tmp_path):
    with Children(tmp_path) as children:
        child = children.start("brief", [*PYTHON, "print('first'); print('why')"], environment())
        child.process.wait(10)
        assert children.ended() is child
        assert child.last_words() == "“why”."
        again = children.start("brief", [*PYTHON, "pass"], environment())
        again.process.wait(10)
        assert again.last_words() == "it said nothing."


FAREWELL = """\
\x1b[91mERROR \x1b[0m:     Exit Code: 305
Failed to initialize the connection to the SuperLink.
[Errno -2] Name or service not known

The SuperNode could not establish a connection to the SuperLink.
For more information, visit: <https://flower.ai/docs>
INFO:     Finished server process [19096]
"""


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (FAREWELL, "“Failed to initialize the connection to the SuperLink. [Errno -2] Name or service not known”."),
        ("why\n\x1b[92mINFO \x1b[0m:      shutdown\n", "“why”."),
        ("INFO:     Finished\n", "“INFO:     Finished”."),
    ],
)
def test_the_reason_is_told_and_not_the_goodbyes(tmp_path, said, told):
    (tmp_path / "log").write_text(said)
    assert Child("brief", None, tmp_path / "log").last_words() == told


def test_the_log_of_a_program_that_goes_on_talking_stays_small(tmp_path, monkeypatch):
    monkeypatch.setattr("fdtr.exchange.flower.processes._LARGE_LOG", 1000)
    talks = "import sys\nfor line in sys.stdin: print(line * 30, flush=True)"
    monkeypatch.setattr(subprocess, "DEVNULL", subprocess.PIPE)  # so that it talks when it is told to
    (tmp_path / "talks.log").write_text("of an earlier one\n")
    with Children(tmp_path) as children:
        child = children.start("talks", [*PYTHON, talks], environment())
        for number in range(10):
            child.process.stdin.write(f"sentence {number}\n".encode())
            child.process.stdin.flush()
            said(child, f"sentence {number}")
            children.bound_logs()
            assert child.log.stat().st_size <= 1000
        child.process.stdin.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["talks.log", "talks.log.1"]
    assert all(path.stat().st_size < 2000 for path in tmp_path.iterdir())


@pytest.mark.parametrize("asked", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_whoever_asks_a_service_to_stop_is_heard(asked):
    before = signal.getsignal(asked)
    with stopping() as stop:
        os.kill(os.getpid(), asked)
        assert stop.wait(5)
    assert signal.getsignal(asked) is before


def test_a_child_ends_when_its_parent_is_killed(tmp_path):
    program = f"""
import sys, time, pathlib
from fdtr.exchange.flower.processes import Child, Children, environment
children = Children(pathlib.Path({str(tmp_path)!r}))
child = children.start("kept", [{sys.executable!r}, "-c", {SLEEPS!r}], environment())
while "here" not in child.output(): time.sleep(0.02)
print(child.process.pid, flush=True)
time.sleep(60)
"""
    parent = subprocess.Popen([*PYTHON, program], stdout=subprocess.PIPE, text=True)
    try:
        pid = int(parent.stdout.readline())
        assert alive(pid)
    finally:
        parent.kill()
        parent.wait()
        parent.stdout.close()
    until = time.monotonic() + 10
    while alive(pid):
        assert time.monotonic() < until
        time.sleep(0.02)


@pytest.mark.slow
def test_a_process_that_hangs_ends_after_its_parent(tmp_path):
    hangs = "from fdtr.exchange.flower.processes import exit_after_parent as e; e(0.1); import time; time.sleep(60)"
    program = f"""
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", {hangs!r}], start_new_session=True)
print(child.pid, flush=True)
time.sleep(1.5)
"""
    parent = subprocess.run([*PYTHON, program], stdout=subprocess.PIPE, text=True, check=True, timeout=30)
    pid = int(parent.stdout)
    until = time.monotonic() + 10
    while alive(pid):
        assert time.monotonic() < until
        time.sleep(0.05)


def test_children_are_told_no_secret_and_no_setting_of_flower(monkeypatch):
    secret = {"FDTR_PASSPHRASE": "secret", "FDTR_PASSPHRASE_FILE": "/secret", "FDTR_KEY": "/secret.key"}
    for name, value in secret.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("FLWR_HOME", "/elsewhere")
    told = environment(FLWR_HOME="/here")
    assert not secret.keys() & told.keys()
    assert told["FLWR_HOME"] == "/here"
    assert told["FLWR_TELEMETRY_ENABLED"] == "0"
    assert told["FLWR_DISABLE_UPDATE_CHECK"] == "1"
    assert secret.items() <= environment(passphrases=True).items()


@pytest.mark.parametrize(
    ("upper", "lower", "direct"),
    [
        (None, None, "127.0.0.1"),
        ("intern.example.org", None, "intern.example.org,127.0.0.1"),
        ("ignored.example.org", "intern.example.org, 127.0.0.1", "intern.example.org,127.0.0.1"),
        ("ignored.example.org", "", "127.0.0.1"),
        ("*", None, "*"),
    ],
)
def test_loopback_is_reached_without_a_proxy_by_the_service_and_its_children(monkeypatch, upper, lower, direct):
    for name, value in (("NO_PROXY", upper), ("no_proxy", lower)):
        monkeypatch.setenv(name, value or "")  # so that it is restored
        if value is None:
            monkeypatch.delenv(name)
    for name in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://proxy.example.org:3128")
    told = environment()
    assert (told["NO_PROXY"], told["no_proxy"]) == (direct, direct)
    bypass_proxy_for_loopback()
    assert (os.environ["NO_PROXY"], os.environ["no_proxy"]) == (direct, direct)
    assert urllib.request.proxy_bypass("127.0.0.1:5000")


def test_a_missing_program_is_named_with_the_command_that_installs_it():
    with pytest.raises(ServiceError, match="apt-get install no-such"):
        find_program("no-such-program", "apt-get install no-such")
