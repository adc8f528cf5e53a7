"""A partition on a cluster of real processes: the same numbers whoever sums which rows, and sentences when it fails."""

from __future__ import annotations

import http.client
import os
import signal
import subprocess
import sys
import urllib.request
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest

import fdtr
from fdtr.errors import DamagedFile, InvalidSettings, MissingFile, UnusableCluster
from fdtr.site import cluster, on_cluster, partition_table
from fdtr.trajectories import step_sums
from fdtr.trajectories.partition import step_file
from random_tables import make_study, make_table

dask = pytest.importorskip("dask", reason="Dask is not installed: pip install 'fdtr[cluster]'")
distributed = pytest.importorskip("distributed", reason="Dask is not installed: pip install 'fdtr[cluster]'")

pytestmark = pytest.mark.network

SPLINE = {"name": "x", "range": [0, 1], "basis": {"kind": "spline", "knots": [0.3, 0.6], "degree": 2}}
TUNED = {"ridge": "auto", "sharing": "auto", "share": "auto"}
RAGGED = {"ends": {"death": 0.0, "discharge": 1.0}}
STUDIES = {
    "ragged": RAGGED | {"learning": TUNED | {"pessimism": "auto"}},
    "splines": {"covariates": [SPLINE, {"name": "y", "effect": "shared", "range": [0, 1]}], "learning": TUNED},
}
IN_BLOCK = 120


@pytest.fixture(autouse=True)
def short_blocks(monkeypatch):
    """Chunks, blocks and row groups so short that a step has many, and that none of their borders meet."""
    for name in ("fdtr.trajectories.partition.GROUP_ROWS", "fdtr.trajectories.partition_writer.GROUP_ROWS"):
        monkeypatch.setattr(name, 128)
    monkeypatch.setattr("fdtr.learners.accumulate.rows_in_cache", lambda _: 40)
    monkeypatch.setattr(step_sums, "BLOCK_ROWS", IN_BLOCK)


def made(folder: Path, n: int = 400, **changes):
    """A study, and a partition of two sites."""
    study = make_study(**changes)
    table = make_table(study, {"a": n, "b": 130}, seed=5, ragged=bool(study.ends))
    return study, partition_table(study, table, folder / "made")


@contextmanager
def running(**options):
    """A cluster that somebody else runs, without certificates; its address."""
    scheduler = {"dashboard": False, "dashboard_address": "127.0.0.1:0"}
    quiet = {"dashboard_address": None, "memory_limit": 0, "silence_logs": 50, "scheduler_kwargs": scheduler}
    with (
        TemporaryDirectory() as folder,
        dask.config.set({"temporary-directory": folder}),
        distributed.LocalCluster(threads_per_worker=1, **quiet, **options) as somebody,
    ):
        yield somebody


def at_block(monkeypatch, number, act):
    """Call `act` once, when so many blocks have been added."""
    add, blocks = step_sums.TreeSum.add, []

    def added(self, block):
        blocks.append(block)
        if len(blocks) == number:
            act()
        add(self, block)

    monkeypatch.setattr(cluster.TreeSum, "add", added)
    return blocks


def client_of(rows):
    return rows.by_site()["a"].step(0).rows.cluster._client


def results_of(study, rows):
    """Fits alone and together, with settings that the sites' own folds choose."""
    sites = rows.by_site()
    local = {name: fdtr.fit_local(study, of_site) for name, of_site in sites.items()}
    total = fdtr.combine(fit.summary for fit in local.values())
    return local, fdtr.fit_federated(study, sites["a"], total)  # which computes its own summary again


@pytest.mark.parametrize("changes", STUDIES.values(), ids=STUDIES)
def test_any_number_of_workers_gives_the_numbers_of_one_machine(tmp_path, changes):
    study, rows = made(tmp_path, **changes)
    local, together = results_of(study, rows)
    for workers in (1, 2, 3):
        with on_cluster(rows, workers=workers) as spread:
            assert spread.sites == rows.sites
            local_there, together_there = results_of(study, spread)
        for name, fit in local.items():
            assert np.array_equal(local_there[name].theta, fit.theta)
            assert local_there[name].summary.digest == fit.summary.digest
            assert local_there[name].chosen == fit.chosen
        assert np.array_equal(together_there.theta, together.theta)
        assert together_there.choice == together.choice


def test_the_sums_of_other_blocks_are_the_same_to_ten_digits(tmp_path, monkeypatch):
    study, rows = made(tmp_path, **RAGGED)
    with on_cluster(rows, workers=2) as spread:
        theta = fdtr.fit_local(study, spread.by_site()["a"]).theta
    monkeypatch.setattr(step_sums, "BLOCK_ROWS", 10**6)
    expected = fdtr.fit_local(study, rows.by_site()["a"]).theta
    np.testing.assert_allclose(theta, expected, rtol=0, atol=1e-10)


def test_a_worker_that_is_killed_in_mid_fit_is_done_without(tmp_path, monkeypatch):
    study, rows = made(tmp_path, n=3_000)
    expected = fdtr.fit_local(study, rows.by_site()["a"])
    with on_cluster(rows, workers=2) as spread:
        client = client_of(spread)
        first, second = client.run(os.getpid).values()
        blocks = at_block(monkeypatch, 4, lambda: os.kill(first, signal.SIGKILL))
        found = fdtr.fit_local(study, spread.by_site()["a"])
        assert first not in client.run(os.getpid).values()
        assert second in client.run(os.getpid).values()
    assert len(blocks) == 3 * 3_000 / IN_BLOCK
    assert np.array_equal(found.theta, expected.theta)
    assert found.summary.digest == expected.summary.digest


def test_a_cluster_that_runs_already_is_used_and_left_running(tmp_path):
    study, rows = made(tmp_path)
    with running(n_workers=2) as somebody:
        with on_cluster(rows, scheduler=somebody.scheduler_address) as spread:
            found = fdtr.fit_local(study, spread.by_site()["a"])
        with distributed.Client(somebody, set_as_default=False) as client:
            assert len(client.nthreads()) == 2
    assert np.array_equal(found.theta, fdtr.fit_local(study, rows.by_site()["a"]).theta)


def test_after_the_block_rows_are_summed_here_and_nothing_is_left(tmp_path, monkeypatch):
    study, rows = made(tmp_path)
    environment, folder = dict(os.environ), tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    with suppress(KeyError), on_cluster(rows, workers=1) as spread:
        (pid,) = client_of(spread).run(os.getpid).values()
        (private,) = folder.iterdir()
        assert private.stat().st_mode & 0o777 == 0o700
        assert {address.split(":")[0] for address in client_of(spread).nthreads()} == {"tls"}
        raise KeyError
    assert dict(os.environ) == environment
    assert list(folder.iterdir()) == []
    assert not Path(f"/proc/{pid}").exists()
    sites = spread.by_site()
    assert np.array_equal(fdtr.fit_local(study, sites["a"]).theta, fdtr.fit_local(study, rows.by_site()["a"]).theta)


def test_a_cluster_on_this_machine_lets_nobody_else_in(tmp_path, monkeypatch):
    import psutil

    monkeypatch.setattr(cluster, "CONNECT_SECONDS", 2.0)
    _, rows = made(tmp_path, n=60)
    with on_cluster(rows, workers=1) as spread:
        client = client_of(spread)
        processes = [psutil.Process(), *map(psutil.Process, client.run(os.getpid).values())]
        listening = [one.laddr for each in processes for one in each.net_connections() if one.status == "LISTEN"]
        assert len(listening) >= 4
        assert {address.ip for address in listening} == {"127.0.0.1"}
        address = client.scheduler.address
        for stranger in (address, address.replace("tls", "tcp")):  # without a certificate
            with pytest.raises(UnusableCluster), on_cluster(rows, scheduler=stranger):
                pass
        other = distributed.Security.temporary()
        certificates = {
            f"distributed.comm.tls.{key}": getattr(other, value)
            for key, value in (
                ("ca-file", "tls_ca_file"), ("client.key", "tls_client_key"), ("client.cert", "tls_client_cert")
            )
        }  # fmt: skip
        with dask.config.set(certificates), pytest.raises(UnusableCluster), on_cluster(rows, scheduler=address):
            pass
        for one in listening:  # web servers, which Dask always starts, have no page
            page = f"http://127.0.0.1:{one.port}/info/main/workers.html"
            with suppress(OSError, http.client.HTTPException), urllib.request.urlopen(page, timeout=2):
                raise AssertionError(one)


def test_what_dask_logs_of_a_failed_block_has_no_numbers_of_patients(tmp_path):
    _, rows = made(tmp_path, n=60)
    part = rows.by_site()["a"].select(np.arange(60) % 2 == 0).step(0).part(1, 9)
    block = cluster._Block(part, 4, np.arange(8), cluster._Expected.of(tmp_path / "made"))
    assert part.mask.sum() == 8
    for thing in (block, part):
        assert repr(thing) == object.__repr__(thing)


def test_a_script_that_does_not_guard_its_start_is_told_how(tmp_path):
    study, _ = made(tmp_path, n=60)
    study.save(tmp_path / "study.toml")
    lines = (
        "import fdtr, fdtr.site",
        "study = fdtr.Study.load('study.toml')",
        "with fdtr.site.on_cluster(fdtr.read_trajectories('made', study), workers=1): pass",
    )
    (tmp_path / "script.py").write_text("\n".join(lines))
    done = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert done.stderr.endswith('In a script, start them under `if __name__ == "__main__":`.\n')


def test_a_table_in_memory_has_to_be_made_a_partition():
    study = make_study()
    rows = fdtr.read_trajectories(make_table(study, {"a": 50}), study)
    with (
        pytest.raises(InvalidSettings, match=r"a table in memory.*`fdtr table partition`"),
        on_cluster(rows, workers=1),
    ):
        pass
    for options in ({}, {"workers": 0}, {"workers": 1, "scheduler": "tcp://localhost:1"}):
        with pytest.raises(InvalidSettings, match="Name either"), on_cluster(rows, **options):
            pass


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:9", "127.0.0.1:9", "carrier-pigeon://here", "tls://127.0.0.1:9"])
def test_a_scheduler_that_is_not_there_is_named(tmp_path, monkeypatch, address):
    monkeypatch.setattr(cluster, "CONNECT_SECONDS", 1.0)
    _, rows = made(tmp_path, n=60)
    with (
        pytest.raises(UnusableCluster, match=rf"No Dask scheduler answers at {address}"),
        on_cluster(rows, scheduler=address),
    ):
        pass


@pytest.mark.parametrize(
    ("lacks", "sentence"),
    [({"version": "0.0.1"}, r"has fdtr .*, and 0\.0\.1 asks"), ({"folder": "/nowhere"}, "does not see the partition")],
)
def test_workers_that_lack_what_they_need_are_refused_at_once_and_later(tmp_path, monkeypatch, lacks, sentence):
    study, rows = made(tmp_path, n=300)
    real = cluster._Expected.of(tmp_path / "made")
    wrong = cluster._Expected(**(vars(real) | lacks))
    with running(n_workers=1) as somebody:
        with on_cluster(rows, scheduler=somebody.scheduler_address) as spread:  # as a worker would that came later
            spread.by_site()["a"].step(0).rows.cluster._expected = wrong
            with pytest.raises(UnusableCluster, match=sentence):
                fdtr.fit_local(study, spread.by_site()["a"])
        monkeypatch.setattr(cluster._Expected, "of", lambda _: wrong)
        with pytest.raises(UnusableCluster, match=sentence), on_cluster(rows, scheduler=somebody.scheduler_address):
            pass


def test_a_partition_that_is_gone_or_changed_is_named(tmp_path):
    study, rows = made(tmp_path, n=300)
    file = tmp_path / "made" / "000" / step_file(1)
    with on_cluster(rows, workers=1) as spread:
        file.write_bytes(file.read_bytes()[:-50])
        with pytest.raises(DamagedFile, match=r"step-001\.parquet is cut short"):
            fdtr.fit_local(study, spread.by_site()["a"])
        file.unlink()
        with pytest.raises(MissingFile, match=r"step-001\.parquet is missing"):
            fdtr.fit_local(study, spread.by_site()["a"])
    (tmp_path / "made" / "partition.json").unlink()
    with pytest.raises(MissingFile, match=r"partition\.json is missing"), on_cluster(rows, workers=1):
        pass


def test_a_cluster_without_workers_is_not_waited_for_for_ever(tmp_path, monkeypatch):
    monkeypatch.setattr(cluster, "PATIENCE_SECONDS", 2.0)
    study, rows = made(tmp_path, n=3_000)
    with running(n_workers=1) as somebody:
        with on_cluster(rows, scheduler=somebody.scheduler_address) as spread:
            at_block(monkeypatch, 2, lambda: somebody.scale(0))
            with pytest.raises(UnusableCluster, match="has had no worker for 2 seconds"):
                fdtr.fit_local(study, spread.by_site()["a"])
        with (
            pytest.raises(UnusableCluster, match="has had no worker"),
            on_cluster(rows, scheduler=somebody.scheduler_address),
        ):
            pass


def test_a_scheduler_that_goes_away_in_mid_fit_is_named(tmp_path, monkeypatch):
    study, rows = made(tmp_path, n=3_000)
    with running(n_workers=1) as somebody, on_cluster(rows, scheduler=somebody.scheduler_address) as spread:
        at_block(monkeypatch, 2, somebody.close)
        for _ in ("in mid-step", "before a step"):
            with pytest.raises(UnusableCluster, match=r"cluster tcp://.* cannot be reached any more"):
                fdtr.fit_local(study, spread.by_site()["a"])


class Deadly:
    """Sums that no worker survives."""

    def zeros(self):
        return (np.zeros(1),)

    def __call__(self, chunk, labels, /):
        os.kill(os.getpid(), signal.SIGKILL)


def test_rows_at_which_every_worker_dies_are_given_up(tmp_path):
    import cloudpickle

    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import tests
    _, rows = made(tmp_path, n=60)
    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 0}),
        on_cluster(rows, workers=1) as spread,
        pytest.raises(UnusableCluster, match="Worker after worker of the cluster on this machine died"),
    ):
        spread.by_site()["a"].step(0).sums(Deadly(), 40)


def test_without_dask_the_extra_is_named(tmp_path, monkeypatch):
    _, rows = made(tmp_path, n=60)
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(fdtr.errors.MissingExtra, match=r"pip install 'fdtr\[cluster\]'"), on_cluster(rows, workers=1):
        pass
