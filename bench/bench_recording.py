"""What recording costs: per collective and per step on the fake backend, and per step of DDP on four gloo ranks.

Each figure is a difference or ratio of blocks that alternate within one process, so that what else the machine does
falls on both alike: median of many blocks, of the thread's or process's CPU time where there is one process.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode

from scope.record import Recorder
from scope.record.collectives.recorder import CollectiveRecorder
from scope.record.settings import CaptureSettings
from scope.run.blackbox import BlackBox, BlackBoxIdentity
from scope.run.calls import CallLog

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

RANKS = 4
# 0 leaves DDP out.
DDP_PAIRS = int(os.environ.get("SCOPE_BENCH_PAIRS", "400"))


class _PassThrough(TorchDispatchMode):
    """The cheapest dispatch mode that there can be."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def recording(folder: Path, *, active: bool = True, **options: Any) -> Iterator[CallLog]:
    """Record collectives with a black box; if not `active`, let them pass through the hooks unrecorded."""
    who = BlackBoxIdentity(rank=0, attempt=0, world_size=RANKS, pid=1, process_start_ticks=1, wall_offset_ns=0)
    box = BlackBox(folder / f"box-{os.getpid()}", who)
    log = CallLog(box)
    recorder = CollectiveRecorder(log, **options)
    recorder.attach()
    recorder.tracker.active = active
    log.cost_factor = recorder.cost_factor
    try:
        yield log
    finally:
        recorder.close()
        box.close()


@contextlib.contextmanager
def profiling(folder: Path) -> Iterator[None]:
    """Run under torch.profiler."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        yield


def compare(work: Callable[[], None], variants: dict[str, Any], *, rounds: int, repeat: int) -> dict[str, float]:
    """Return, for each variant, the median CPU microseconds that one `work` takes more than without it."""
    taken: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(rounds):
        for name, enter in variants.items():
            with enter():
                work()
                start = time.thread_time_ns()
                for _ in range(repeat):
                    work()
                taken[name].append((time.thread_time_ns() - start) / repeat / 1000)
    base = taken["none"]
    return {
        name: statistics.median(b - a for a, b in zip(base, values, strict=True)) for name, values in taken.items()
    } | {"base": statistics.median(base)}


def per_collective(folder: Path) -> list[dict[str, Any]]:
    """Return the microseconds that one all_reduce takes more."""
    tensor = torch.ones(1024)

    def hundred() -> None:
        for _ in range(100):
            dist.all_reduce(tensor)

    told: list[float] = []

    @contextlib.contextmanager
    def told_recording() -> Iterator[None]:
        with recording(folder) as log:
            yield
            told.append(log.estimate_cost() / sum(log.num_calls(0)) / 1000)

    variants: dict[str, Any] = {
        "none": contextlib.nullcontext,
        "scope": told_recording,
        "kernel": lambda: recording(folder, active=False),
        "methods": lambda: recording(folder, route="methods"),
        "profiler": lambda: profiling(folder),
        "mode": _PassThrough,
    }
    cost = {name: value / 100 for name, value in compare(hundred, variants, rounds=25, repeat=4).items()}
    return [
        row("all_reduce on the fake backend, without", cost["base"], "us"),
        row("... + Scope (dispatcher, with its record)", cost["scope"], "us", limit=12.0),
        row("...... of which the way through the kernel alone", cost["kernel"], "us"),
        row("...... what the recorder says of itself", statistics.median(told), "us wall"),
        row("... + Scope (patched methods)", cost["methods"], "us"),
        row("... + torch.profiler", cost["profiler"], "us"),
        row("... + a dispatch mode that does nothing", cost["mode"], "us"),
    ]


def per_step(folder: Path) -> list[dict[str, Any]]:
    """Return what 300 collectives add to a step, and what a small transformer's step takes more."""
    torch.set_num_threads(1)
    tensor = torch.ones(1024)

    def many() -> None:
        for _ in range(300):
            dist.all_reduce(tensor)

    recorders: list[Recorder] = []

    @contextlib.contextmanager
    def whole() -> Iterator[None]:
        run = Path(tempfile.mkdtemp(dir=folder))
        with Recorder(run_dir=run, run_id="bench", capture=CaptureSettings(reasons=frozenset())) as recorder:
            recorders.append(recorder)
            # One of the first steps is counted for its FLOPs; what is measured is the steps after.
            for _ in range(12):
                many_with_spans()
            yield
            recorders.clear()

    def many_with_spans() -> None:
        for span in range(40):
            with recorders[0].phase(f"part {span % 4}") if recorders else contextlib.nullcontext():
                for _ in range(8 if span % 2 else 7):
                    dist.all_reduce(tensor)
        if recorders:
            recorders[0].end_step()

    variants: dict[str, Any] = {"none": contextlib.nullcontext, "scope": lambda: recording(folder)}
    cost = compare(many, variants, rounds=25, repeat=2)
    spans = compare(many_with_spans, {"none": contextlib.nullcontext, "scope": whole}, rounds=15, repeat=8)
    layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True, dropout=0.0)
    # DDP's reducer needs a result that the fake backend does not give: the gradients are reduced one by one.
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batch = torch.ones(4, 32, 64)

    def train() -> None:
        optimizer.zero_grad()
        model(batch).sum().backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()

    small = compare(train, variants, rounds=25, repeat=4)
    return [
        row("300 collectives of a step", cost["scope"] / 1000, "ms"),
        row("300 collectives and 40 spans of a step, all of the recorder", spans["scope"] / 1000, "ms", limit=4.0),
        row("step of a small transformer with 24 all-reduces, without", small["base"] / 1000, "ms CPU"),
        row("... + Scope's collectives", small["scope"] / 1000, "ms CPU"),
    ]


def _ddp_rank(rank: int, folder: str, pairs: int) -> None:
    torch.set_num_threads(1)
    store = dist.FileStore(f"{folder}/store", RANKS)
    dist.init_process_group("gloo", rank=rank, world_size=RANKS, store=store)
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(*(nn.Linear(128, 128) for _ in range(6))), bucket_cap_mb=0.1)
    batch = torch.ones(16, 128)

    def block() -> float:
        start = time.perf_counter_ns()
        for _ in range(2):
            model(batch).sum().backward()
        return time.perf_counter_ns() - start

    for _ in range(5):
        block()
    blocks: list[tuple[float, float, float]] = []
    for turn in range(pairs):
        # The order changes, so that neither has the warmer caches.
        order = ["plain", "again", "scope"][turn % 3 :] + ["plain", "again", "scope"][: turn % 3]
        taken: dict[str, float] = {}
        for name in order:
            with recording(Path(folder)) if name == "scope" else contextlib.nullcontext():
                # What the first calls after attaching take is paid once a run.
                block()
                dist.barrier()
                taken[name] = block()
        blocks.append((taken["plain"], taken["again"], taken["scope"]))
    if rank == 0:
        Path(folder, "blocks.json").write_text(json.dumps(blocks))
    dist.destroy_process_group()


def with_ddp(folder: Path) -> list[dict[str, Any]]:
    """Return the speed of DDP on four gloo ranks with recording, as a ratio of that without."""
    mp.spawn(_ddp_rank, args=(str(folder), DDP_PAIRS), nprocs=RANKS)
    blocks = json.loads((folder / "blocks.json").read_text())
    equal = [first / second for first, second, _ in blocks]
    recorded = [first / third for first, _, third in blocks]
    low, high = bootstrap(recorded)
    noise_low, noise_high = bootstrap(equal)
    return [
        row(
            f"DDP on 4 gloo ranks, speed with / without ({len(blocks)} pairs), median", statistics.median(recorded), ""
        ),
        row("... lower 95 % bound", low, "", floor=0.98),
        row("... upper 95 % bound", high, ""),
        row("... two equal runs beside it, 95 % bounds, lower", noise_low, ""),
        row("... two equal runs beside it, 95 % bounds, upper", noise_high, ""),
    ]


def bootstrap(ratios: list[float]) -> tuple[float, float]:
    """Return the 95 % interval of the median, by 2,000 resamplings with a fixed seed."""
    draw = random.Random(0)
    medians = sorted(statistics.median(draw.choices(ratios, k=len(ratios))) for _ in range(2000))
    return medians[50], medians[1949]


def row(
    figure: str, value: float, unit: str, *, limit: float | None = None, floor: float | None = None
) -> dict[str, Any]:
    """Return a row of the results."""
    bound = f"<= {limit}" if limit is not None else f">= {floor}" if floor is not None else ""
    ok = value <= limit if limit is not None else value >= floor if floor is not None else None
    return {"figure": figure, "value": f"{value:.3f}", "unit": unit, "limit": bound, "ok": ok}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    shared = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shared if shared.is_dir() else None) as name:
        folder = Path(name)
        rows = with_ddp(folder) if DDP_PAIRS else []
        dist.init_process_group("fake", rank=0, world_size=RANKS, store=FakeStore())
        rows += per_collective(folder) + per_step(folder)
        dist.destroy_process_group()
    if arguments.json:
        print(json.dumps(rows))
    else:
        for item in rows:
            print(f"{item['figure']}: {item['value']} {item['unit']} {item['limit']}", file=sys.stderr)


if __name__ == "__main__":
    main()
