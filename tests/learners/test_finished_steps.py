"""A fit that was killed goes on from its last finished step, to the same bits, and nothing can stop it."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import textwrap
from pathlib import Path
from shutil import copyfile

import numpy as np
import pytest

import fdtr
from fdtr.errors import DamagedFile, DisclosureError
from fdtr.learners import finished_steps
from fdtr.learners.finished_steps import FOLDER, goes_on
from fdtr.site import partition_table
from fdtr.site.fitting import fit_message
from fdtr.trajectories import partition
from fdtr.trajectories.partition import RowGroups, StepOnDisk, step_file
from random_tables import make_study, make_table

TUNED = {"ridge": "auto", "sharing": "auto", "share": "auto", "pessimism": "auto"}
STUDIES = {
    "fixed": make_study(),
    "tuned and ragged": make_study(learning=TUNED, ends={"death": 0.0, "discharge": 1.0}),
}

# Fits, and prints each step of which a row group is read; where asked to, is killed before a group of a step.
FIT = """
    import os, signal, sys
    import numpy as np
    import fdtr
    from fdtr.learners import finished_steps
    from fdtr.trajectories import partition
    finished_steps.LEAST_ROWS = partition.GROUP_ROWS = 64
    read, seen = partition.RowGroups._read_group, []

    def watched(step, paths, files, group):
        seen.append((step.h, group))
        print(*seen[-1], flush=True)
        if len(seen) == int(sys.argv[2]):
            os.kill(os.getpid(), signal.SIGKILL)
        return read(step, paths, files, group)

    partition.RowGroups._read_group = watched
    study = fdtr.Study.load(sys.argv[1] + "/study.toml")
    rows = fdtr.read_trajectories(sys.argv[1] + "/rows", study)
    fit = fdtr.fit_local(study, rows)
    print("theta", fit.theta.tobytes().hex())
"""


@pytest.fixture(autouse=True)
def short(monkeypatch):
    """Row groups of 64 rows, and passes over so many are worth keeping."""
    monkeypatch.setattr(partition, "GROUP_ROWS", 64)
    monkeypatch.setattr("fdtr.trajectories.partition_writer.GROUP_ROWS", 64)
    monkeypatch.setattr(finished_steps, "LEAST_ROWS", 64)


@pytest.fixture(params=list(STUDIES))
def place(request, tmp_path) -> Path:
    """A folder with a study, and a partition of one site's rows."""
    study = STUDIES[request.param]
    study.save(tmp_path / "study.toml")
    partition_table(study, make_table(study, {"a": 700}, ragged=bool(study.ends)), tmp_path / "rows")
    return tmp_path


def opened(place: Path):
    study = fdtr.Study.load(place / "study.toml")
    return study, fdtr.read_trajectories(place / "rows", study)


def kept(place: Path) -> list[Path]:
    return sorted((place / "rows" / "000").glob(f"{FOLDER}/*"))


def fit_apart(place: Path, killed_at: int = 0) -> tuple[int, list[tuple[int, int]], str]:
    """A fit in a process of its own: how it ended, the steps and groups that it read, and θ."""
    command = [sys.executable, "-c", textwrap.dedent(FIT), str(place), str(killed_at)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode in (0, -signal.SIGKILL), ended.stderr
    lines = [line.split() for line in ended.stdout.splitlines()]
    groups = [(int(step), int(group)) for step, group in lines if step != "theta"]
    return ended.returncode, groups, next((theta for word, theta in lines if word == "theta"), "")


def stopped_fit(place: Path, monkeypatch, passes: int) -> None:
    """Leave what a fit leaves that is stopped after so many passes."""
    study, rows = opened(place)
    once, done = finished_steps.once, []

    def stopping(*args):
        if len(done) == passes:
            raise KeyboardInterrupt
        done.append(args)
        return once(*args)

    with monkeypatch.context() as patch:
        patch.setattr("fdtr.learners.accumulate.once", stopping)
        with pytest.raises(KeyboardInterrupt):
            fdtr.fit_local(study, rows)


def steps_read(monkeypatch, function):
    """What a function returns, and the steps of which it begins to read rows."""
    steps: list[int] = []
    chunks = StepOnDisk.chunks
    with monkeypatch.context() as patch:
        patch.setattr(
            StepOnDisk, "chunks", lambda step, *size, **more: steps.append(step.h) or chunks(step, *size, **more)
        )
        return function(), steps


def test_a_fit_that_was_killed_goes_on_from_its_last_finished_step_to_the_same_bits(place):
    _, whole, theta = fit_apart(place)
    assert theta
    assert kept(place) == []  # removed when it is done
    last = max(step for step, _ in whole)
    second = next(n for n, (step, group) in enumerate(whole, 1) if step < last and group == 3)
    ended, before, nothing = fit_apart(place, killed_at=second)
    assert (ended, before, nothing) == (-signal.SIGKILL, whole[:second], "")
    assert len(kept(place)) == 1
    ended, after, again = fit_apart(place)
    assert (ended, again) == (0, theta)
    first_pass = whole.index(next(pair for pair in whole if pair[0] < last))
    assert after == whole[first_pass:]  # the last step is not read again, all others are
    assert kept(place) == []


def test_a_fit_that_is_always_killed_after_some_time_comes_to_its_end(place):
    _, whole, theta = fit_apart(place)
    late = len(whole) * 3 // 4
    assert fit_apart(place, killed_at=late)[0] == -signal.SIGKILL
    ended, _, again = fit_apart(place, killed_at=late)  # what is left of it is shorter
    assert (ended, again) == (0, theta)


def test_a_file_that_is_damaged_or_of_something_else_is_no_finished_step(place, monkeypatch):
    study, rows = opened(place)
    whole, steps = steps_read(monkeypatch, lambda: fdtr.fit_local(study, rows).theta)
    stopped_fit(place, monkeypatch, passes=2)
    first, second = kept(place)
    sound = [path.read_bytes() for path in (first, second)]
    wrongs = {
        "cut short": [content[: len(content) // 2] for content in sound],
        "a bit flipped": [content[:-5] + bytes([content[-5] ^ 1]) + content[-4:] for content in sound],
        "each other's": sound[::-1],
        "empty": [b"", b""],
        "no file of ours": [b"PK\x03\x04" + bytes(2000)] * 2,
    }
    for wrong, contents in wrongs.items():
        for path, content in zip((first, second), contents, strict=True):
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(content)
        again, read = steps_read(monkeypatch, lambda: fdtr.fit_local(study, opened(place)[1]).theta)
        assert np.array_equal(again, whole), wrong
        assert read == steps, wrong
        assert kept(place) == [], wrong
    for path, content in zip((first, second), sound, strict=True):
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
    again, read = steps_read(monkeypatch, lambda: fdtr.fit_local(study, opened(place)[1]).theta)
    assert np.array_equal(again, whole)
    assert read == steps[2:]  # the last two steps


def test_rows_that_have_changed_since_are_read_again(place, monkeypatch):
    study, rows = opened(place)
    whole, steps = steps_read(monkeypatch, lambda: fdtr.fit_local(study, rows).theta)
    stopped_fit(place, monkeypatch, passes=2)
    before = {path.name for path in kept(place)}
    file = place / "rows" / "000" / step_file(0)
    os.utime(file, ns=(file.stat().st_atime_ns, file.stat().st_mtime_ns + 1))
    again, read = steps_read(monkeypatch, lambda: fdtr.fit_local(study, opened(place)[1]).theta)
    assert np.array_equal(again, whole)
    assert read == steps
    assert kept(place) == [], "what was kept of the earlier rows is removed, too"
    assert len(before) == 2


def test_another_fit_takes_nothing_from_one_that_was_stopped(place, monkeypatch):
    study, rows = opened(place)
    bolder = study.model_validate(study.public | {"learning": study.public["learning"] | {"ridge": 3.0, "seed": 1}})
    odd = np.arange(rows.n_patients) % 2 == 1
    others = {"settings": (bolder, lambda r: r), "patients": (study, lambda r: r.select(odd))}
    alone = {name: fdtr.fit_local(s, part(opened(place)[1])).theta for name, (s, part) in others.items()}
    stopped_fit(place, monkeypatch, passes=2)
    left = kept(place)
    for name, (changed, part) in others.items():
        assert np.array_equal(fdtr.fit_local(changed, part(opened(place)[1])).theta, alone[name]), name
    assert {*kept(place)} <= {*left}
    assert kept(place), "what the stopped fit left is still there"


def test_what_is_kept_is_for_its_owner_alone(place, monkeypatch):
    stopped_fit(place, monkeypatch, passes=1)
    (path,) = kept(place)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


@pytest.mark.quick
@pytest.mark.parametrize("why", ["rows in memory", "few rows", "no fit"])
def test_nothing_is_written_where_it_is_not_worth_it(tmp_path, monkeypatch, why):
    study = STUDIES["fixed"]
    table = make_table(study, {"a": 700})
    disk = partition_table(study, table, tmp_path / "rows")
    rows = fdtr.read_trajectories(table, study) if why == "rows in memory" else disk
    if why == "few rows":
        monkeypatch.setattr(finished_steps, "LEAST_ROWS", 701)
    fit = fit_message.__wrapped__ if why == "no fit" else fit_message
    monkeypatch.setattr("fdtr.container.write", lambda *_args, **_options: pytest.fail("it wrote"))
    fit(study, rows)


def test_a_place_that_cannot_be_written_does_not_stop_a_fit(place):
    study, rows = opened(place)
    whole = fdtr.fit_local(study, rows).theta
    (place / "rows" / "000" / FOLDER).write_text("a file, where the folder would be")
    assert np.array_equal(fdtr.fit_local(study, rows).theta, whole)


def test_a_full_disk_does_not_stop_a_fit(place):
    # Files of this process may have no bytes: every write fails as on a full disk.
    limited = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))\n{textwrap.dedent(FIT)}"
    _, _, theta = fit_apart(place)
    command = [sys.executable, "-c", limited, str(place), "0"]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    assert ended.stdout.splitlines()[-1] == f"theta {theta}"
    assert kept(place) == []


def test_a_file_that_is_cut_short_in_mid_fit_is_named_and_finished_steps_stay(place, monkeypatch):
    study, rows = opened(place)
    whole = fdtr.fit_local(study, rows).theta
    file, aside = place / "rows" / "000" / step_file(0), place / "aside"
    changed = file.stat().st_mtime_ns
    copyfile(file, aside)
    read = RowGroups._read_group

    def cut(step, paths, files, group):
        if step.h == 0:
            os.truncate(file, 100)
        return read(step, paths, files, group)

    rows = opened(place)[1]
    with monkeypatch.context() as patch:
        patch.setattr(RowGroups, "_read_group", cut)
        with pytest.raises(DamagedFile, match=r"step-000\.parquet is cut short"):
            fdtr.fit_local(study, rows)
    left = kept(place)
    assert len(left) == study.horizon - 1
    copyfile(aside, file)
    os.utime(file, ns=(changed, changed))  # as it was, the share came back
    again, steps = steps_read(monkeypatch, lambda: fdtr.fit_local(study, opened(place)[1]).theta)
    assert np.array_equal(again, whole)
    assert steps[0] == 0


def test_what_a_function_that_goes_on_leaves_is_removed_by_the_outermost(place):
    study, rows = opened(place)
    seen = []

    @goes_on
    def twice():
        for _ in range(2):
            fit_message(study, rows)
            seen.append(len(kept(place)))

    twice()
    assert seen == [study.horizon] * 2
    assert kept(place) == []


def test_nothing_is_kept_of_what_disclosure_refuses(place):
    study, rows = opened(place)

    @goes_on
    def refused():
        fdtr.fit_local(study, rows)
        assert kept(place)
        raise DisclosureError("N", "Too few patients.")

    with pytest.raises(DisclosureError):
        refused()
    assert not kept(place)
