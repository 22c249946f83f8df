"""What recording costs: per collective and per step on the fake backend, and per step of DDP on four gloo ranks.

Each figure is a difference or ratio of blocks that alternate within one process, so that what else the machine does
falls on both alike: median of many blocks, of the thread's or process's CPU time where there is one process. The way
of DDP stands in `recording_ddp`, that of TraceML in `recording_traceml`.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import recording_ddp
import recording_traceml
import torch
import torch.distributed as dist
from torch import nn
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


def compare(
    work: Callable[[], None],
    variants: dict[str, Any],
    *,
    rounds: int,
    repeat: int,
    clock: Callable[[], int] = time.thread_time_ns,
    least: bool = True,
) -> dict[str, float]:
    """Return, for each variant, the median CPU microseconds that one `work` takes more than without it.

    What others do on the machine empties the caches and only ever adds.

    Args:
        work: What is measured.
        variants: By name, what makes the context that it runs in; `none` is the one that the others are compared with.
        rounds: How often each variant has its turn.
        repeat: Runs of `work` in a turn, after one that does not count.
        clock: CPU nanoseconds: of this thread, or of the process with all threads.
        least: Take the least disturbed run of a turn, else the mean of all.
    """
    taken: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(rounds):
        for name, enter in variants.items():
            with enter():
                work()
                gc.collect()  # what the variant before has left is not to be cleared away in this one's turn
                runs: list[float] = []
                for _ in range(repeat):
                    start = clock()
                    work()
                    runs.append((clock() - start) / 1000)
                taken[name].append(min(runs) if least else statistics.fmean(runs))
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


@contextlib.contextmanager
def whole(folder: Path, warm_up: Callable[[], None]) -> Iterator[Recorder]:
    """Run under the whole recorder, warmed up: one of the first steps is counted for its FLOPs, once a run."""
    run = Path(tempfile.mkdtemp(dir=folder))
    with Recorder(run_dir=run, run_id="bench", capture=CaptureSettings(reasons=frozenset())) as recorder:
        for _ in range(12):
            warm_up()
        yield recorder


def per_step(folder: Path) -> list[dict[str, Any]]:
    """Return what 300 collectives add to a step, without and with 40 spans."""
    tensor = torch.ones(1024)

    def many() -> None:
        for _ in range(300):
            dist.all_reduce(tensor)

    recorders: list[Recorder] = []

    def many_with_spans() -> None:
        for span in range(40):
            with recorders[0].phase(f"part {span % 4}") if recorders else contextlib.nullcontext():
                for _ in range(8 if span % 2 else 7):
                    dist.all_reduce(tensor)
        if recorders:
            recorders[0].end_step()

    @contextlib.contextmanager
    def with_spans() -> Iterator[None]:
        with whole(folder, many_with_spans) as recorder:
            recorders.append(recorder)
            for _ in range(3):
                many_with_spans()
            yield
            recorders.clear()

    alone = compare(many, {"none": contextlib.nullcontext, "scope": lambda: recording(folder)}, rounds=25, repeat=2)
    spans = compare(many_with_spans, {"none": contextlib.nullcontext, "scope": with_spans}, rounds=15, repeat=8)
    return [
        row("300 collectives of a step", alone["scope"] / 1000, "ms"),
        row("300 collectives and 40 spans of a step, all of the recorder", spans["scope"] / 1000, "ms", limit=4.0),
    ]


def make_training() -> tuple[nn.Module, Callable[[], None]]:
    """Return a small transformer and its training step with 24 all-reduces, for the fake backend."""
    torch.manual_seed(0)
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

    return model, train


def per_training_step(folder: Path) -> list[dict[str, Any]]:
    """Return what a small transformer's step takes more under Scope and its peers, all threads of the process."""
    _, train = make_training()
    variants: dict[str, Any] = {
        "none": contextlib.nullcontext,
        "collectives": lambda: recording(folder),
        "scope": lambda: whole(folder, train),
        "profiler": lambda: profiling(folder),
        "mode": _PassThrough,
    }
    cost = compare(train, variants, rounds=25, repeat=10, clock=time.process_time_ns, least=False)
    peer = recording_traceml.measure()
    rows = [
        row(
            "step of a small transformer with 24 all-reduces on the fake backend, without",
            cost["base"] / 1000,
            "ms CPU",
        ),
        row("... + Scope's collectives", cost["collectives"] / 1000, "ms CPU"),
        row("... + Scope, all of the recorder", cost["scope"] / 1000, "ms CPU"),
        row("... + torch.profiler", cost["profiler"] / 1000, "ms CPU"),
        row("... + a dispatch mode that does nothing", cost["mode"] / 1000, "ms CPU"),
    ]
    if "error" in peer:
        return [*rows, {**row(f"... + TraceML: {peer['error']}", 0.0, ""), "value": "not measured"}]
    told = f"... + {recording_traceml.PACKAGE}, which sees no collectives"
    return [*rows, row(told, peer["added"] / 1000, f"ms CPU (base {peer['base'] / 1000:.3f})")]


def with_ddp() -> list[dict[str, Any]]:
    """Return the speed of DDP on four gloo ranks with recording, as a ratio of that without."""
    rows: list[dict[str, Any]] = []
    for job in recording_ddp.JOBS:
        result = recording_ddp.measure(job, pairs=DDP_PAIRS)
        ratios = result.ratios(result.wall_s)
        low, high = recording_ddp.bootstrap(ratios)
        noise_low, noise_high = recording_ddp.bootstrap(result.equal_ratios())
        cpu = result.ratios(result.cpu_s)
        cpu_low, cpu_high = recording_ddp.bootstrap(cpu)
        what = f"{job.name}, {'all of the recorder' if job.whole else 'collectives alone'}"
        figure = f"DDP on 4 gloo ranks, {what}, step of {result.step_s * 1000:.1f} ms: speed with / without"
        rows += [
            row(f"{figure} ({len(ratios)} pairs of {result.steps} steps), median", statistics.median(ratios), ""),
            row("... lower 95 % bound", low, "", floor=0.98 if job.whole else None),
            row("... upper 95 % bound", high, ""),
            row("... two equal runs beside it, lower 95 % bound", noise_low, ""),
            row("... two equal runs beside it, upper 95 % bound", noise_high, ""),
            row("... by CPU time of all ranks, median", statistics.median(cpu), f"[{cpu_low:.3f}, {cpu_high:.3f}]"),
            row("... CPU added to a step of a rank", result.added_cpu_s() * 1000, "ms"),
        ]
        if result.writer_cpu_ratio is not None:
            rows.append(
                row(
                    "...... of which the writer thread of a rank",
                    result.writer_cpu_ratio * 100,
                    "% of a core",
                )
            )
    return rows


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
    load = os.getloadavg()[0]
    shared = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shared if shared.is_dir() else None) as name:
        folder = Path(name)
        rows = [row("load average of the machine as the benchmark begins", load, "")]
        rows += with_ddp() if DDP_PAIRS else []
        torch.set_num_threads(1)
        dist.init_process_group("fake", rank=0, world_size=RANKS, store=FakeStore())
        rows += per_collective(folder) + per_step(folder) + per_training_step(folder)
        dist.destroy_process_group()
    if arguments.json:
        print(json.dumps(rows))
    else:
        for item in rows:
            print(f"{item['figure']}: {item['value']} {item['unit']} {item['limit']}", file=sys.stderr)


if __name__ == "__main__":
    main()
