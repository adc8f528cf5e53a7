"""Measure the figures in RESULTS.md: each a ratio of two times taken side by side in one run.

make bench                 prints them
python benchmarks/run.py --write     also rewrites RESULTS.md
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import extraction
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import reference
import scaling
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

import fdtr
from experiments.figure2 import Plan, run_figure2
from fdtr import masking
from fdtr.algebra.normal_equations import factor
from fdtr.algebra.pessimism import LowerBound, Penalty, penalty_roots
from fdtr.algebra.threads import one_blas_thread, thread_count
from fdtr.disclosure import Release, judge
from fdtr.disclosure.facts import measure
from fdtr.disclosure.rule_once import Draws
from fdtr.disclosure.weighted_sums import weigh
from fdtr.evaluation.intervals import bootstrap, weighted_means
from fdtr.exchange.envelopes import seal
from fdtr.exchange.site_state.ledger import Ledger
from fdtr.exchange.streamed_messages import StreamedMessages
from fdtr.exchange.wire import (
    HEADER_BYTES,
    MEMBER_BYTES,
    MESSAGE,
    MOST_SITES,
    SUMS_PHASE,
    message_size,
    total_size,
    write_total,
)
from fdtr.hub import combine_messages
from fdtr.learners.accumulate import accumulate
from fdtr.learners.local import fit_local as fit_alone
from fdtr.signing import numbered_round
from fdtr.simulation import NO_DISCLOSURE_RULES, WorldSpec, make_world
from fdtr.site import fit_many, fit_many_federated, message_settings, others_in
from fdtr.site.fitting import fit_federated, fit_local, fit_message
from fdtr.site.rows import read_trajectories
from fdtr.site.settings_choice import choose_together
from fdtr.site.site_message import count_message
from fdtr.study import Study
from fdtr.summary import combine

ON_DISK = {
    "`table partition`": "partition",
    "LDTR with fixed settings, the fit alone": "ldtr",
    "`check`": "check",
    "`site summarize`": "summarize",
    "`tune`": "tune",
    "`site fit`": "fit",
    "`site evaluate`": "evaluate",
}
"""What `on_disk.py` measures, by the names of its figures."""

SEPSIS = ["noicu", "flow", "weight", "temperature", "sbp", "hemoglobin", "potassium"]


@dataclass
class Figure:
    """One line of the results."""

    what: str
    measured: str
    asked: str
    holds: bool


def sepsis_study(horizon: int) -> Study:
    """The shape of the paper's Section 5.2: 2 + 5 covariates, (1, a, a²), three actions, no intercept: d = 21."""
    return Study.model_validate(
        {
            "name": "bench",
            "horizon": horizon,
            "actions": {"levels": [0, 1, 2]},
            "covariates": [{"name": n, "effect": "shared" if i < 2 else "specific"} for i, n in enumerate(SEPSIS)],
            "features": {"intercept": "none"},
            "learning": {"pessimism": 0.005, "ridge": 1.0, "sharing": 1.0, "share": "value"},
        }
    )


def random_table(rng: np.random.Generator, sites: int, n: int, horizon: int) -> pa.Table:
    rows = sites * n * horizon
    columns: dict[str, object] = {
        "site": np.repeat([f"unit-{k}" for k in range(sites)], n * horizon),
        "patient": np.char.add("p", np.repeat(np.arange(sites * n), horizon).astype(str)),
        "step": np.tile(np.arange(horizon), sites * n),
        "action": rng.integers(0, 3, rows),
        "reward": rng.random(rows),
    }
    return pa.table(columns | {name: rng.random(rows) for name in SEPSIS})


def paired(first: Callable[[], object], second: Callable[[], object], times: int) -> tuple[float, float]:
    """Median seconds of both, taken alternately so that a busy machine hits both."""
    seconds: tuple[list[float], list[float]] = ([], [])
    for _ in range(times):
        for function, into in zip((first, second), seconds, strict=True):
            start = time.perf_counter()
            function()
            into.append(time.perf_counter() - start)
    return statistics.median(seconds[0]), statistics.median(seconds[1])


def import_time() -> Figure:
    def start(statement: str) -> Callable[[], object]:
        return lambda: subprocess.run([sys.executable, "-c", statement], check=True)

    # Over the interpreter's own start, which both pay.
    bare, numeric = paired(start("pass"), start("import numpy, scipy.linalg"), 15)
    bare2, ours = paired(start("pass"), start("import fdtr, numpy, scipy.linalg"), 15)
    ratio = (ours - bare2) / (numeric - bare)
    alone_bare, alone = paired(start("pass"), start("import fdtr"), 15)
    return Figure(
        "`import fdtr` beside `import numpy, scipy.linalg`",
        f"{(alone - alone_bare) / (numeric - bare):.2f}× alone, {ratio:.2f}× both together",
        "at most 1.6×",
        ratio <= 1.6,
    )


def read_parquet() -> Figure:
    rng = np.random.default_rng(0)
    study = sepsis_study(5)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "table.parquet"
        table = random_table(rng, 8, 25_000, 5)
        pq.write_table(table, path)
        columns = table.column_names
        plain, ours = paired(lambda: pq.read_table(path, columns=columns), lambda: read_trajectories(path, study), 15)
    return Figure(
        "Read 1,000,000 rows of Parquet, all checks included, beside `pyarrow.parquet.read_table`",
        f"{ours / plain:.1f}× ({ours * 1e3:.0f} ms)", "at most 8×", ours <= 8 * plain,
    )  # fmt: skip


def local_pass() -> list[Figure]:
    rng = np.random.default_rng(0)
    n = 1_000_000
    study = sepsis_study(2)
    features = study.feature_map
    rows = read_trajectories(random_table(rng, 1, n, 2), study)
    d = features.n_features
    half = rng.normal(size=(d, d))
    roots = penalty_roots(factor(half @ half.T + np.eye(d)), features.embeddings)
    rule = LowerBound.of_penalised(rng.normal(size=d), roots, features.embeddings, Penalty(0.1), 1.0)
    whole = next(rows.step(0).chunks(n))

    def read_once() -> object:
        return whole.states.sum() + whole.next_states.sum()

    def one_pass() -> object:
        with one_blas_thread():
            return accumulate(rows.step(0), features, rule)

    one_pass()
    plain, ours = paired(read_once, one_pass, 25)
    tracemalloc.start()
    one_pass()
    peak = tracemalloc.get_traced_memory()[1] / 2**20
    tracemalloc.stop()
    return [
        Figure(
            "Local pass, sepsis shape, 1,000,000 patients, one step, all cores, beside one thread's `x.sum()`",
            f"{ours / plain:.1f}× ({ours * 1e3:.0f} ms on {thread_count()} cores)", "at most 10×", ours <= 10 * plain,
        ),
        Figure("Its peak extra memory", f"{peak:.1f} MiB", "under 64 MiB", peak < 64),
    ]  # fmt: skip


def growth(write: bool) -> list[Figure]:
    """How the cost grows, and what the machine itself does; with `write` also the table and the picture of it."""
    points, machine = scaling.measure_all(), scaling.limits()
    curves = scaling.by_curve(points)
    if write:
        scaling.write(points, Path(__file__).parent)
    in_n, others = (
        scaling.exponent(curves["n"]),
        {name: scaling.exponent(curves[name]) for name in ("d", "|A|", "H", "K")},
    )
    by_threads = [point.seconds for point in curves["threads"]]
    speedup = by_threads[0] / by_threads[min(1, len(by_threads) - 1)]
    d, share = scaling.spline_fraction(machine.gemm_all)
    limits = (
        f"{machine.memory / 1e9:.1f} GB/s read from memory by one thread, {machine.gemm_one / 1e9:.0f} and "
        f"{machine.gemm_all / 1e9:.0f} GFLOP/s by one and all, {machine.parquet / 1e9:.1f} GB/s of columns from "
        f"Parquet and {machine.database / 1e9:.1f} GB/s from DuckDB by one"
    )
    return [
        Figure("This machine", limits, "–", True),
        Figure(
            "Local pass, exponent in n, 100,000 to 1,600,000 patients ([all curves](scaling.svg))",
            f"{in_n:.2f}", "0.95 to 1.05", abs(in_n - 1) <= 0.05,
        ),
        Figure("Exponents in d, |A|, H and K", ", ".join(f"{name}: {e:.2f}" for name, e in others.items()), "–", True),
        Figure(
            f"Local pass, d = {d} (splines), 2 d² n products beside the machine's peak",
            f"{share:.0%}", "at least 80%", share >= 0.8,
        ),
        Figure(
            "Local pass, 800,000 patients, two threads beside one",
            f"{speedup:.2f}×", "at least 1.7×", speedup >= 1.7,
        ),
    ]  # fmt: skip


def whole_study() -> Figure:
    rng = np.random.default_rng(0)
    n_sites, n, horizon = 9, 2840, 5
    study = sepsis_study(horizon)
    table = random_table(rng, n_sites, n, horizon)
    return beside_reference(
        study, table, SEPSIS, 2, "LDTR + messages + FDTR, K = 9, n = 2840, H = 5, beside the row-by-row reference"
    )


def replication() -> Figure:
    """The fits of one replication of Figure 2's first panel, with the paper's settings."""
    world = make_world(WorldSpec(), np.random.default_rng(0))
    learning = {"pessimism": 0.005, "ridge": 1.0, "sharing": 1.0, "share": "value"}
    study = Study.model_validate(world.study(**learning))
    table = pa.table(world.table(1000, np.random.default_rng(1)))
    what = "The same at n = 1000 in Figure 2's first panel, (d, |A|, H, K) = (8, 6, 15, 5)"
    return beside_reference(study, table, list(world.covariates), 1, what)


def beside_reference(study: Study, table: pa.Table, covariates: list[str], degree: int, what: str) -> Figure:
    """LDTR, messages and FDTR at every site of a table with equally many patients, beside the reference."""
    sites = read_trajectories(table, study).by_site()
    horizon, learning = study.horizon, study.learning
    n = len(table) // len(sites) // horizon

    def ours() -> list[np.ndarray]:
        fits = {site: fit_local(study, rows) for site, rows in sites.items()}
        total = combine(fit.summary for fit in fits.values())
        return [fit_federated(study, rows, total, fits[site].summary).theta for site, rows in sites.items()]

    codes = np.array(study.actions.levels)
    scale = 1 / np.sqrt(len(covariates) * (degree + 1))  # the package divides φ by its largest norm
    arrays = []
    for k in range(len(sites)):
        part = slice(k * n * horizon, (k + 1) * n * horizon)
        states = np.stack([table[name].to_numpy()[part] for name in covariates], axis=1).reshape(n, horizon, -1)
        actions = table["action"].to_numpy()[part].reshape(n, horizon) / codes.max()
        rewards = table["reward"].to_numpy()[part].reshape(n, horizon)
        arrays.append((states.swapaxes(0, 1) * scale, actions.T, rewards.T))
    start = time.perf_counter()
    expected = reference.all_sites(
        arrays, codes / codes.max(), 2, degree, learning.pessimism, learning.ridge, learning.failure_probability
    )
    slow = time.perf_counter() - start
    np.testing.assert_allclose(ours(), expected, rtol=1e-7, atol=1e-9)  # the same numbers, or no comparison
    fast = statistics.median(paired(ours, lambda: None, 7)[:1])
    return Figure(
        what, f"{slow / fast:.0f}× faster ({fast * 1e3:.0f} ms against {slow:.1f} s)", "at least 50×", slow >= 50 * fast
    )


def figure2_panel() -> Figure:
    """All of Figure 2's first panel: sampling, tuning, fitting and valuing every method, on all cores."""
    plan = Plan(panels=("(8,6,15,5)",), replications=20)
    start = time.perf_counter()
    run_figure2(plan)
    seconds = time.perf_counter() - start
    return Figure(
        "`make reproduce WHAT=\"figure2 --panel 1\"`: 20 replications × 5 sample sizes, all methods",
        f"{seconds:.0f} s on {thread_count()} cores", "under 180 s", seconds < 180,
    )  # fmt: skip


def choosing() -> Figure:
    """Everything that one site chooses: the ladder with its ridges, and pessimism by comparing two policies."""
    world = make_world(
        WorldSpec(n_sites=3, n_shared=28, n_specific=28, n_actions=2, horizon=5, behaviour="softmax"),
        np.random.default_rng(0),
    )
    study = Study.model_validate(world.study())
    table = pa.table(world.table(2000, np.random.default_rng(1)))
    sites = read_trajectories(table, study).by_site()
    fits = {site: fit_message(study, rows) for site, rows in sites.items()}
    total = combine(fit.summary for fit in fits.values())
    site, rows = next(iter(sites.items()))
    others = others_in(study, total, fits[site].summary)
    chosen, fit = paired(
        lambda: choose_together(study, rows, others),
        lambda: fit_alone(rows, study.feature_map, message_settings(study)),
        5,
    )
    return Figure(
        f"All that a site chooses, n = 2000, d = {study.feature_map.n_features}, H = {study.horizon}, beside one local "
        "fit", f"{chosen / fit:.0f}× ({chosen:.2f} s)", "under 1 s", chosen < 1,
    )  # fmt: skip


def acting() -> list[Figure]:
    rng = np.random.default_rng(0)
    study = sepsis_study(1)
    policy = fit_local(study, read_trajectories(random_table(rng, 1, 2840, 1), study)).policy
    one, many = rng.random((1, 7)), rng.random((1_000_000, 7))
    policy.act(many, 0)
    times = []
    for _ in range(2000):
        start = time.perf_counter()
        policy.act(one, 0)
        times.append(time.perf_counter() - start)
    single = statistics.median(times)
    bulk = statistics.median(paired(lambda: policy.act(many, 0), lambda: None, 9)[:1])
    return [
        Figure("`policy.act` for one patient", f"{single * 1e6:.0f} µs", "under 200 µs", single < 200e-6),
        Figure(
            "`policy.act` for 1,000,000 patients", f"{1 / bulk:.1f} million decisions a second",
            "at least 5 million", bulk <= 0.2,
        ),
    ]  # fmt: skip


def bootstrap_draws() -> list[Figure]:
    """Half of the paper's 25,568 trajectories, as it splits them."""
    rng = np.random.default_rng(0)
    horizon, n = 5, 12_780
    statistic = weighted_means(rng.random((horizon, n)), rng.gamma(0.5, 2.0, (horizon, n)).cumprod(axis=0))
    bootstrap(statistic, rng, 100)
    seconds = paired(lambda: bootstrap(statistic, rng, 10_000), lambda: None, 3)[0]
    tracemalloc.start()
    bootstrap(statistic, rng, 10_000)
    peak = tracemalloc.get_traced_memory()[1] / 2**20
    tracemalloc.stop()
    return [
        Figure(
            "Bootstrap of a step-weighted value, 10,000 draws of 12,780 patients, H = 5",
            f"{seconds:.2f} s on {thread_count()} cores", "under 2 s", seconds < 2,
        ),
        Figure("Its peak extra memory", f"{peak:.0f} MiB", "under 300 MiB", peak < 300),
    ]  # fmt: skip


def secure_sum() -> Figure:
    """A whole round with 100 sites of the sepsis shape in one process: counts and sums, each from keys to the total.

    Every site takes the masks off the counts for itself, because it relies on them.
    """
    n_sites, horizon, max_patients = 100, 5, 30_000
    rules = {"secure_sum": True, "max_patients": max_patients}
    study = Study.model_validate({**sepsis_study(horizon).model_dump(), "disclosure": rules})
    rows = read_trajectories(random_table(np.random.default_rng(0), 1, 2840, horizon), study)
    fitted, layout = fit_message(study, rows), study.count_layout
    scale = masking.FixedPoint(horizon, fitted.summary.sums.n_shared, n_sites, max_patients)
    counts, sums = count_message(study, rows, fitted=fitted), scale.encode(fitted.summary.sums)
    names = tuple(f"unit-{k:03}" for k in range(n_sites))
    private = {site: Ed25519PrivateKey.generate() for site in names}
    public = {site: key.public_key() for site, key in private.items()}

    def verify(site: str, content: bytes, signature: bytes) -> bool:
        public[site].verify(signature, content)  # raises where it is wrong
        return True

    def play(agreed: masking.Round, numbers: dict[str, np.ndarray], openers: int) -> np.ndarray:
        states = {site: masking.start(agreed, site, masking.History()) for site in names}
        keys = [state.announcement(private[site].sign) for site, state in states.items()]
        states = {site: masking.mask(state, keys, numbers[site], verify) for site, state in states.items()}
        messages = [state.masked(numbers[site], private[site].sign) for site, state in states.items()]
        survivors = masking.list_survivors(agreed, messages, verify)
        history = masking.History()
        states = {site: masking.accept_survivors(state, survivors, history) for site, state in states.items()}
        signed = [state.confirmation(private[site].sign) for site, state in states.items()]
        states = {site: masking.allow_opening(state, signed, history, verify) for site, state in states.items()}
        openings = [state.opening(private[site].sign) for site, state in states.items()]
        for _ in range(openers):
            total = masking.unmask(agreed, survivors, messages, openings, verify)
        return total

    start = time.perf_counter()
    vectors = {site: layout.encode(counts, os.urandom) for site in names}
    opened = play(masking.Round(bytes(32), names, layout.length), vectors, openers=n_sites)
    common = study.common_repairs(opened, n_sites)
    counted = time.perf_counter() - start
    total = play(masking.Round(b"1" * 32, names, scale.length), dict.fromkeys(names, sums), openers=1)
    whole = time.perf_counter() - start
    assert common.steps == ()
    np.testing.assert_array_equal(total, sums * np.uint64(n_sites))
    return Figure(
        f"Secure sum of {n_sites} sites, {layout.length} counts and {scale.length} sums each, in one process, every "
        "signature checked, counts opened by every site",
        f"{whole:.1f} s (counts {counted:.1f} s)", "under 10 s", whole < 10,
    )  # fmt: skip


def disclosure_rules() -> list[Figure]:
    """All rules on a large site of the paper's shape, and ONCE beside 30 releases of the same patients."""
    study = sepsis_study(5)
    features, settings, asked = study.feature_map, message_settings(study), study.rules
    rows = read_trajectories(random_table(np.random.default_rng(0), 1, 30_000, 5), study)
    fit = fit_alone(rows, features, settings)
    alone, judged = paired(
        lambda: fit_alone(rows, features, settings), lambda: judge(measure(rows, features, fit, asked), asked), 25
    )
    draws = Draws(np.random.default_rng(1).random((5, 30_000)))
    fitted, weighed = paired(
        lambda: fit_alone(rows, features, settings), lambda: weigh(rows, features, fit, asked, draws), 25
    )
    ids, steps = rows.patients.to_pylist(), [1 + i % 5 for i in range(30_000)]
    with tempfile.TemporaryDirectory() as folder:
        ledger = Ledger(Path(folder) / "ledger")
        releases = [
            Release("study", f"map-{i}", "site", f"{i:064d}", f"{i}", 10, ids, steps, dict.fromkeys(range(5), ""))
            for i in range(31)
        ]
        for release in releases[:-1]:
            with ledger.recording(release):
                pass
        once = paired(lambda: ledger.judge(releases[-1]), lambda: None, 15)[0]
    return [
        Figure(
            "Weights, rules and repairs of a message, n = 30,000, d = 21, H = 5, beside the local fit of the rows",
            f"{weighed / fitted:.2f}× ({weighed * 1e3:.0f} ms)", "at most 8×", weighed <= 8 * fitted,
        ),
        Figure(
            "Rules of exact sums but ONCE, n = 30,000, d = 21, H = 5, beside the local fit of the same patients",
            f"{judged / alone:.2f}× ({judged * 1e3:.0f} ms)", "at most 3×", judged <= 3 * alone,
        ),
        Figure(
            "Rule ONCE for 30,000 patients, 30 earlier releases of them all",
            f"{once * 1e3:.0f} ms", "under 500 ms", once < 0.5,
        ),
    ]  # fmt: skip


def many_small_sites() -> list[Figure]:
    """4,000 sites of 40 patients, H = 5, d0 = 20, d1 = 4: fits, and the sums as files that a hub adds."""
    n_sites, n, horizon, names = 4000, 40, 5, [f"x{i}" for i in range(12)]
    study = Study.model_validate(
        {
            "name": "devices",
            "horizon": horizon,
            "actions": {"levels": [0, 1], "degree": 1},
            "covariates": [{"name": c, "effect": "shared" if i < 10 else "specific"} for i, c in enumerate(names)],
            "features": {"intercept": "none"},
            "learning": {"pessimism": 0.005, "ridge": 0.1, "sharing": 1.0, "share": "value"},
            "disclosure": NO_DISCLOSURE_RULES,
        }
    )
    rng, rows = np.random.default_rng(0), n_sites * n * horizon
    columns: dict[str, object] = {
        "site": np.repeat([f"device-{k:06}" for k in range(n_sites)], n * horizon),
        "patient": np.tile(np.repeat(np.arange(n), horizon), n_sites),
        "step": np.tile(np.arange(horizon), n_sites * n),
        "action": rng.integers(0, 2, rows),
        "reward": rng.random(rows),
    }
    data = read_trajectories(pa.table(columns | {name: rng.random(rows) for name in names}), study)
    start = time.perf_counter()
    local = fit_many(study, data)
    total = local.total()
    fit_many_federated(study, data, local, total)
    fitted = (time.perf_counter() - start) / n_sites
    here = numbered_round(study.fingerprint, {}, 1)
    with tempfile.TemporaryDirectory() as folder:
        for place, site in enumerate(data.sites):  # as the devices would send them, were there no rules
            packed = local.sums.packed(place)
            content = seal(MESSAGE, SUMS_PHASE, site, {}, packed, here, None, HEADER_BYTES)
            (Path(folder) / f"{n_sites - place}.fdtr").write_bytes(content)
        start = time.perf_counter()
        combined = combine_messages(study, StreamedMessages([folder], study, here))
        read = (time.perf_counter() - start) / n_sites
        tracemalloc.start()
        write_total(combine_messages(study, StreamedMessages([folder], study, here)), Path(folder) / ".total", here)
        peak = tracemalloc.get_traced_memory()[1] / n_sites
        tracemalloc.stop()
    if combined != total:
        raise AssertionError("The hub's total is not that of the fits.")
    return [
        Figure(
            "LDTR, sums, total and FDTR of a site among 4,000 with 40 patients, H = 5, d0 = 20, d1 = 4",
            f"{fitted * 1e3:.2f} ms on {thread_count()} cores", "at most 0.6 ms", fitted <= 0.6e-3,
        ),
        Figure(
            "The hub reads their messages from a folder, with every check, and adds them",
            f"{60 / read:,.0f} a minute", "at least 100,000", read <= 0.6e-3,
        ),
        Figure("Its peak memory, with the total as a file", f"{peak:.0f} bytes a site", "at most 1,024", peak <= 1024),
    ]  # fmt: skip


HOSTILE = """
import resource, sys, time
from fdtr.errors import FdtrError
from fdtr.exchange.wire import read_message, read_total
from fdtr.study import Study
study = Study.load(sys.argv[1])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
slowest = 0.0
for path in sys.argv[2:]:
    for read in (read_message, read_total):
        start = time.perf_counter()
        try:
            read(path, study)
            sys.exit(3)
        except FdtrError:
            slowest = max(slowest, time.perf_counter() - start)
print(slowest, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
"""


def hostile_files() -> list[Figure]:
    """Files made to be slow or large to read: each is refused by both readers, in a process of its own."""
    study = sepsis_study(5)
    size, total, header = message_size(study), total_size(study, MOST_SITES), HEADER_BYTES + MEMBER_BYTES * MOST_SITES
    deep = b"[" * 2**20
    files = {
        "a gigabyte": b"\0" * 8,
        "nothing but a length": (2**63).to_bytes(8, "little").ljust(size, b"\0"),
        "a nest": (2040).to_bytes(8, "little") + deep[: size - 8],
        "a nest in a large total": (header - 8).to_bytes(8, "little") + deep.ljust(total - 8, b"["),
        "many keys": (header - 8).to_bytes(8, "little") + _many_keys(header - 8).ljust(total - 8),
        "a pickle": b"\x80\x05".ljust(size, b"\0"),
        "a zip": b"PK\x03\x04".ljust(size, b"\0"),
    }
    with tempfile.TemporaryDirectory() as folder:
        study.save(Path(folder) / "study.toml")
        paths = [Path(folder) / name for name in files]
        for path, content in zip(paths, files.values(), strict=True):
            path.write_bytes(content)
        with paths[0].open("r+b") as file:
            file.truncate(2**30)  # sparse
        command = [sys.executable, "-c", HOSTILE, str(Path(folder) / "study.toml"), *map(str, paths)]
        output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    seconds, megabytes = map(float, output.split())
    what = f"Refuse each of {len(files)} hostile files, a gigabyte and a nest of brackets among them"
    return [
        Figure(what, f"{seconds * 1e3:.0f} ms at most", "under 1 s", seconds < 1),
        Figure("Peak extra memory of them all", f"{megabytes:.0f} MiB", "under 100 MiB", megabytes < 100),
    ]


def _many_keys(size: int) -> bytes:
    """A JSON object of about so many bytes, all of it keys."""
    keys = ",".join(f'"{i:x}":0' for i in range(size // 10))
    return f"{{{keys}}}".encode()[:size]


def extracting() -> list[Figure]:
    """MIMIC-IV on DuckDB, from a generated database."""
    found = extraction.measured(50_000, 50_000_000)
    seconds, ratio = found["seconds"], found["seconds"] / found["read_once"]
    what = "`fdtr extract mimic-iv`, 50,000 stays × 5 steps from 50 million chart events"
    return [
        Figure(what, f"{seconds:.1f} s on {thread_count()} cores", "under 120 s", seconds < 120),
        Figure("The same beside DuckDB reading those columns once", f"{ratio:.1f}×", "at most 20×", ratio <= 20),
        Figure("Its peak memory", f"{found['memory_gb']:.2f} GiB", "under 4 GiB", found["memory_gb"] < 4),
    ]


def recorded(folder: Path) -> list[str]:
    """What other machines, or hours, are needed for, from the files that `gpu.py` and `on_disk.py` left."""
    lines = [line for run in json.loads((folder / "gpu.json").read_text()) for line in on_device(run)]
    disk = folder / "on_disk.json"
    return [*lines, *(on_disk(json.loads(disk.read_text())) if disk.exists() else [])]


def on_device(run: dict[str, Any]) -> list[str]:
    """The fits of one run of `gpu.py`."""
    lines = [
        "",
        f"## A fit on one {run['device']}, {run['dtype']}",
        "",
        f"`python benchmarks/gpu.py --dtype {run['dtype']}` with PyTorch {run['torch']}: a full LDTR, 5 steps, d = 21,",
        "rows on the device. Moved are the bytes that all operations read and write, and their share of what a copy",
        "moves in that time. Asked: under 40 ms for 10,000,000 patients in float64, and θ of a processor to 1e-9.",
        "",
        "| patients | fit | plain PyTorch | moved | share of bandwidth | largest difference of θ |",
        "|---|---|---|---|---|---|",
    ]
    for fit in run["fits"]:
        share = fit["moved_bytes"] / fit["seconds"] / fit["copy_bandwidth"]
        times = f"{fit['seconds'] * 1e3:.1f} ms | {fit['naive_seconds'] * 1e3:.1f} ms"
        moved = f"{fit['moved_bytes'] / 1e9:.1f} GB | {share:.0%} | {fit['theta_error']:.1g}"
        lines.append(f"| {fit['patients']:,} | {times} | {moved} |")
    return lines


def on_disk(figures: dict[str, float]) -> list[str]:
    """What a site's commands cost on a table that is larger than memory may be."""
    rows = []
    for name, key in ON_DISK.items():
        seconds, ratio, memory = (figures[f"{key}_{unit}"] for unit in ("s", "ratio", "mib"))
        rows.append(f"| {name} | {seconds:.0f} s | {ratio:.1f}× | {memory:,.0f} MiB |")
    patients, transitions, once = (figures[name] for name in ("patients", "transitions", "read_once_s"))
    return [
        "",
        "## A table on disk",
        "",
        f"`python benchmarks/on_disk.py --patients {patients:.0f}`: {transitions:,.0f} transitions, each command in a",
        f"process of its own. Reading its columns once with pyarrow took {once:.1f} s. Asked: at most",
        "4 times that for the fit, 10 times for `site summarize`, and under 1,024 MiB for `summarize`, `tune`, `fit`.",
        "",
        "| what | time | beside reading once | peak memory |",
        "|---|---|---|---|",
        *rows,
    ]


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--write", action="store_true", help="rewrite RESULTS.md")
    write = options.parse_args().write
    figures = [import_time(), read_parquet(), *local_pass(), *growth(write)]
    figures += [whole_study(), replication(), choosing(), *acting()]
    figures += [
        *disclosure_rules(),
        *many_small_sites(),
        *hostile_files(),
        secure_sum(),
        *bootstrap_draws(),
        *extracting(),
        figure2_panel(),
    ]
    for figure in figures:
        print(f"{'ok  ' if figure.holds else 'MISS'} {figure.what}: {figure.measured} (asked: {figure.asked})")
    if write:
        versions = f"fdtr {fdtr.__version__}, NumPy {np.__version__}, PyArrow {pa.__version__}"
        versions += f", Python {platform.python_version()}"
        lines = [
            "# Benchmarks",
            "",
            "Ratios of two times taken side by side in one run, as medians (the row-by-row reference runs once), on a",
            "machine with nothing else to do.",
            f"Made by `python benchmarks/run.py --write` with {versions}, on {thread_count()} cores.",
            "",
            "| what | measured | asked |",
            "|---|---|---|",
            *(f"| {f.what} | {f.measured}{'' if f.holds else ' – **missed**'} | {f.asked} |" for f in figures),
            *recorded(Path(__file__).parent),
        ]
        Path(__file__).with_name("RESULTS.md").write_text("\n".join(lines) + "\n")
    sys.exit(0 if all(figure.holds for figure in figures) else 1)


if __name__ == "__main__":
    main()
