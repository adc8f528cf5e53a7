"""Measure a full LDTR on a device of PyTorch, with the rows resident there, beside a plain PyTorch program.

    PYTHONPATH=src python benchmarks/gpu.py --json gpu.json            # on "cuda"
    PYTHONPATH=src python benchmarks/gpu.py --device cpu --patients 1000 100000

Needs PyTorch, NumPy, SciPy, array-api-compat, lazy-loader and threadpoolctl, and nothing else that fdtr uses. Where the
last three are not installed, their wheels may lie in PYTHONPATH.

Patients have the shape of the paper's Section 5.2: 5 steps, 2 + 5 covariates, (1, a, a²), three actions: d = 21.
"read once" is the time in which the device copies as many bytes as the rows have; "moved" are the bytes that the
operations of one fit read and write; both as shares of the measured bandwidth of a copy.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fdtr.features import FeatureMap, build_features
from fdtr.learners import Settings, fit_local
from fdtr.trajectories import Trajectories
from fdtr.trajectories.device_rows import to_device
from fdtr.trajectories.rows_in_memory import RowsInMemory

HORIZON, COVARIATES, ACTIONS = 5, 7, 3
SETTINGS = Settings(pessimism=0.005, ridge=1.0, failure_probability=0.99, misspecification=0.0)


@dataclass(frozen=True)
class Measured:
    """One line of the table."""

    patients: int
    seconds: float
    naive_seconds: float
    data_bytes: int
    moved_bytes: int
    copy_bandwidth: float
    theta_error: float
    naive_theta_error: float
    gram_error: float
    to_device_seconds: float
    processor_seconds: float


def sepsis_features() -> FeatureMap:
    """The feature map of `benchmarks/run.py:sepsis_study`, without a study."""
    covariates = [
        {"name": f"x{i}", "effect": "shared" if i < 2 else "specific", "range": [0, 1], "basis": {"kind": "linear"}}
        | {"interacts": True}
        for i in range(COVARIATES)
    ]
    actions = {"levels": [*range(ACTIONS)], "basis": "polynomial", "degree": 2, "scale": "unit"}
    return build_features(actions, covariates, {"intercept": "none", "scale": "unit"})


def random_patients(n: int, rng: np.random.Generator) -> Trajectories:
    """Patients who all stay for 5 steps; ids are nowhere needed."""
    rows = RowsInMemory(
        states=rng.random((COVARIATES, HORIZON * n)),
        actions=rng.integers(0, ACTIONS, HORIZON * n),
        rewards=rng.random(HORIZON * n),
        start=tuple(range(0, (HORIZON + 1) * n, n)),
        patients=None,
        clusters=None,
        ended_value=np.zeros(n),
        clipped=(0,) * COVARIATES,
        filled=(0,) * COVARIATES,
    )
    return Trajectories(HORIZON, tuple(f"x{i}" for i in range(COVARIATES)), ACTIONS, (), {"a": rows})


class Naive:
    """LDTR as one would write it for PyTorch: Φ (n, d) of some million rows at a time, and ΦᵀΦ."""

    def __init__(self, rows: Trajectories, features: FeatureMap, device: str, dtype: torch.dtype) -> None:
        self.chunk = 2**22
        self.scale = float(np.abs(features.embeddings).max())
        self.steps = []
        for h in range(HORIZON):
            (whole,) = rows.step(h).chunks(rows.n_patients)
            columns = (whole.states.T, whole.actions / (ACTIONS - 1), whole.rewards)
            self.steps.append([torch.tensor(column).to(device, dtype).contiguous() for column in columns])
        d, n = features.n_features, rows.n_patients
        log_term = np.log(2 * d * HORIZON * n / SETTINGS.failure_probability)
        self.alpha = float(SETTINGS.pessimism) * d * HORIZON * float(np.sqrt(log_term))
        self.eye = torch.eye(d, device=device, dtype=dtype)

    def phi(self, states: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
        """Φ, (n, d)."""
        psi, a = states * self.scale, action[:, None]
        shared, own = psi[:, :2], psi[:, 2:]
        return torch.cat([shared, a * shared, a * a * shared, own, a * own, a * a * own], dim=1)

    def value(self, states: torch.Tensor, theta: torch.Tensor, inverse: torch.Tensor, cap: int) -> torch.Tensor:
        """V(x), (n,)."""
        bounds = []
        for action in range(ACTIONS):
            level = torch.full_like(states[:, 0], action / (ACTIONS - 1))
            phi = self.phi(states, level)
            bounds.append(phi @ theta - self.alpha * ((phi @ inverse) * phi).sum(dim=1).sqrt())
        return torch.stack(bounds).amax(dim=0).clamp(0, cap)

    def fit(self) -> np.ndarray:
        """θ, (H, d)."""
        thetas: list[torch.Tensor] = []
        inverse = self.eye
        for h in reversed(range(HORIZON)):
            gram, moment = torch.zeros_like(self.eye), torch.zeros_like(self.eye[0])
            states, actions, rewards = self.steps[h]
            for start in range(0, len(rewards), self.chunk):
                here = slice(start, start + self.chunk)
                phi, target = self.phi(states[here], actions[here]), rewards[here]
                if thetas:
                    following = self.steps[h + 1][0][here]
                    target = target + self.value(following, thetas[-1], inverse, HORIZON - h - 1)
                gram += phi.T @ phi
                moment += phi.T @ target
            inverse = torch.linalg.inv(gram + self.eye)
            thetas.append(inverse @ moment)
        return np.stack([theta.cpu().numpy() for theta in reversed(thetas)])


class Traffic(TorchDispatchMode):
    """Counts the bytes that operations read and write; views move none."""

    def __init__(self) -> None:
        super().__init__()
        self.moved = 0

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = function(*args, **(kwargs or {}))
        returned = function._schema.returns
        if any(out.alias_info is not None and not out.alias_info.is_write for out in returned):
            return result
        read: dict[tuple[int, int], int] = {}
        named = dict(zip((a.name for a in function._schema.arguments), args, strict=False)) | (kwargs or {})
        for argument in function._schema.arguments:
            only_written = argument.kwarg_only or function._schema.name in ("aten::copy_", "aten::fill_")
            if argument.alias_info is None or not argument.alias_info.is_write or not only_written:
                for tensor in _tensors(named.get(argument.name)):
                    read[tensor.data_ptr(), tensor.numel()] = _bytes(tensor)
        self.moved += sum(read.values()) + sum(map(_bytes, _tensors(result)))
        return result


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    return [tensor for part in value for tensor in _tensors(part)] if isinstance(value, list | tuple) else []


def _bytes(tensor: torch.Tensor) -> int:
    sides = [side for side, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride]
    return int(np.prod(sides, dtype=np.int64)) * tensor.element_size()


def median_seconds(work: Callable[[], object], device: str, times: int) -> float:
    seconds = []
    for number in range(times + 2):
        _wait(device)
        start = time.perf_counter()
        work()
        _wait(device)
        if number >= 2:  # the first ones make room and load kernels
            seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def _wait(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)


def copy_bandwidth(device: str) -> float:
    """Bytes read and written in a second by a copy of 4 GiB; of 256 MiB on a processor."""
    source = torch.rand(2**29 if device.startswith("cuda") else 2**25, dtype=torch.float64, device=device)
    target = torch.empty_like(source)
    return 2 * source.nbytes / median_seconds(lambda: target.copy_(source), device, 10)


def measure(n: int, device: str, dtype: str, times: int, bandwidth: float) -> Measured:
    features, rows = sepsis_features(), random_patients(n, np.random.default_rng(n))
    start = time.perf_counter()
    resident = to_device(rows, device, dtype)  # type: ignore[arg-type]
    _wait(device)
    moved_in = time.perf_counter() - start
    start = time.perf_counter()
    expected = fit_local(rows, features, SETTINGS)
    processor = time.perf_counter() - start
    fit = fit_local(resident, features, SETTINGS)
    again = fit_local(resident, features, SETTINGS)
    if not np.array_equal(fit.theta, again.theta):
        raise AssertionError("The same fit on the same device gave other numbers.")
    seconds = median_seconds(lambda: fit_local(resident, features, SETTINGS), device, times)
    with Traffic() as traffic:
        fit_local(resident, features, SETTINGS)
    naive = Naive(rows, features, device, getattr(torch, dtype))
    naive_theta = naive.fit()
    grams = [(ours.gram, theirs.gram) for ours, theirs in zip(fit.statistics, expected.statistics, strict=True)]
    return Measured(
        patients=n,
        seconds=seconds,
        naive_seconds=median_seconds(naive.fit, device, times),
        data_bytes=HORIZON * n * (COVARIATES + 1) * (8 if dtype == "float64" else 4),
        moved_bytes=traffic.moved,
        copy_bandwidth=bandwidth,
        theta_error=float(np.abs(fit.theta - expected.theta).max()),
        naive_theta_error=float(np.abs(naive_theta - expected.theta).max()),
        gram_error=float(max(np.abs(ours - theirs).max() / np.abs(theirs).max() for ours, theirs in grams)),
        to_device_seconds=moved_in,
        processor_seconds=processor,
    )


def line(m: Measured) -> str:
    once, moved = (size / m.seconds / m.copy_bandwidth for size in (m.data_bytes, m.moved_bytes))
    cells = [
        f"{m.patients:,}", f"{m.seconds * 1e3:.2f}", f"{m.naive_seconds * 1e3:.2f}",
        f"{m.naive_seconds / m.seconds:.1f}", f"{m.data_bytes / 1e9:.3f}", f"{once:.1%}", f"{m.moved_bytes / 1e9:.2f}",
        f"{moved:.0%}", f"{m.theta_error:.1e}", f"{m.naive_theta_error:.1e}", f"{m.gram_error:.1e}",
        f"{m.to_device_seconds:.2f}", f"{m.processor_seconds:.2f}",
    ]  # fmt: skip
    return "| " + " | ".join(cells) + " |"


HEADINGS = (
    "patients", "ms", "naive ms", "ratio", "data GB", "read once", "moved GB", "moved", "θ − θ_cpu", "naive's",
    "Gram, relative", "to device s", "processor s",
)  # fmt: skip


def profile(n: int, device: str, dtype: str) -> None:
    """Print where the time of one fit goes, by kernel."""
    from torch.profiler import ProfilerActivity

    features, rows = sepsis_features(), random_patients(n, np.random.default_rng(n))
    resident = to_device(rows, device, dtype)  # type: ignore[arg-type]
    fit_local(resident, features, SETTINGS)
    cuda = device.startswith("cuda")
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]
    with torch.profiler.profile(activities=activities) as seen:
        fit_local(resident, features, SETTINGS)
        _wait(device)
    order = "self_cuda_time_total" if cuda else "self_cpu_time_total"
    print(seen.key_averages().table(sort_by=order, row_limit=20, max_name_column_width=70))


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--device", default="cuda")
    options.add_argument("--dtype", default="float64", choices=["float64", "float32"])
    options.add_argument("--patients", type=int, nargs="+", default=[10**5, 10**6, 10**7])
    options.add_argument("--times", type=int, default=9, help="fits whose median is taken")
    options.add_argument("--json", type=Path, help="write all figures to this file")
    options.add_argument(
        "--profile", action="store_true", help="afterwards, the kernels of one fit of the largest size"
    )
    chosen = options.parse_args()
    bandwidth = copy_bandwidth(chosen.device)
    name = torch.cuda.get_device_name(chosen.device) if chosen.device.startswith("cuda") else "processor"
    print(f"{name}, {chosen.dtype}, PyTorch {torch.__version__}, copy {bandwidth / 1e12:.3f} TB/s read and written")
    print("| " + " | ".join(HEADINGS) + " |")
    print("|" + "---|" * len(HEADINGS))
    measured = []
    for n in chosen.patients:
        measured.append(measure(n, chosen.device, chosen.dtype, chosen.times, bandwidth))
        print(line(measured[-1]), flush=True)
    if chosen.json:
        figures = {"device": name, "dtype": chosen.dtype, "torch": torch.__version__, "python": sys.version.split()[0]}
        chosen.json.write_text(json.dumps(figures | {"fits": [asdict(m) for m in measured]}, indent=1) + "\n")
    if chosen.profile:
        profile(max(chosen.patients), chosen.device, chosen.dtype)


if __name__ == "__main__":
    main()
