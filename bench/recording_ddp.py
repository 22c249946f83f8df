"""DDP on four gloo ranks with and without recording, in blocks that alternate within one process.

Three jobs: the small transformer of `scope demo` (its model, batch and optimizer) under the whole recorder, as users
run it; the same with four times the batch, as what recording costs does not grow with a step and the first job's steps
are among the shortest that people train with; and a model of six small layers, whose step is a few milliseconds of
which most is communication, under the collectives' hooks alone. Blocks come in the order without, with, with, without,
so that neither side has the warmer caches, and everything else that the machine does falls on both alike; two equal
blocks that follow each other show the noise. Hooks come and go between the blocks, and steps that are not timed follow
each change: what the first calls after attaching take (the interpreter specialises its code anew, the Flight Recorder's
ring is read for the names of groups) is paid once a run, and a run has thousands of steps. A block of the transformer
is about half a second long, so that 400 pairs of both batches take about 25 minutes. The writer thread, which wakes
once a second, works while its job is recorded and rests otherwise: half of the blocks have one of its turns. A turn
takes a few tenths of a percent of a block, far less than blocks differ by, so that it moves the median by its mean:
half a turn a block, as is right.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from scope.record import Recorder
from scope.record.collectives.recorder import CollectiveRecorder
from scope.record.examples.tiny_transformer import VOCABULARY, TinyTransformer
from scope.record.settings import CaptureSettings
from scope.run.blackbox import BlackBox, BlackBoxIdentity
from scope.run.calls import CallLog

if TYPE_CHECKING:
    from collections.abc import Callable

RANKS = 4
MAX_STEPS = 10
STEPS_AFTER_CHANGE = 3
"""A rank takes some 2 ms of processor time more in each of these, and a quarter of that in all that follow."""
ORDER = ("plain", "scope", "scope", "plain")


@dataclass(frozen=True, kw_only=True)
class Job:
    """A training loop to measure.

    Attributes:
        name: Key of its results.
        block_s: Length of a block, from which its number of steps follows (1 to 10).
        whole: Under the whole recorder, else under the collectives' hooks alone.
        batch: Sequences, or rows, of a rank's batch.
    """

    name: str
    block_s: float
    whole: bool
    batch: int


JOBS = (
    Job(name="the demo's transformer", block_s=0.5, whole=True, batch=4),
    Job(name="the demo's transformer, four times its batch", block_s=0.5, whole=True, batch=16),
    Job(name="6 small layers", block_s=0.1, whole=False, batch=16),
)


@dataclass(frozen=True, kw_only=True)
class Result:
    """What one job took, block by block. Blocks stand in the order of `ORDER`, over and over.

    Attributes:
        steps: Steps of a block.
        wall_s: Seconds of rank 0 from a barrier to the end of the block.
        cpu_s: Processor seconds of all ranks and their threads in the block.
        writer_cpu_ratio: Processor time of a rank's writer thread / time with recording; absent without the whole
            recorder.
    """

    steps: int
    wall_s: list[float]
    cpu_s: list[float]
    writer_cpu_ratio: float | None

    @property
    def step_s(self) -> float:
        """Median length of a step without recording."""
        return statistics.median(self.wall_s[at] for at in _places("plain", len(self.wall_s))) / self.steps

    def ratios(self, values: list[float]) -> list[float]:
        """Return without / with of each pair of neighbours."""
        return [
            value
            for at in range(0, len(values) - 3, 4)
            for value in (values[at] / values[at + 1], values[at + 3] / values[at + 2])
        ]

    def equal_ratios(self) -> list[float]:
        """Return the ratio of equal neighbours: both with, or both without."""
        walls = self.wall_s
        inside = [walls[at + 1] / walls[at + 2] for at in range(0, len(walls) - 3, 4)]
        return inside + [walls[at + 3] / walls[at + 4] for at in range(0, len(walls) - 4, 4)]

    def added_cpu_s(self) -> float:
        """Return the median processor seconds that one step of one rank takes more."""
        values = self.cpu_s
        added = [
            value
            for at in range(0, len(values) - 3, 4)
            for value in (values[at + 1] - values[at], values[at + 2] - values[at + 3])
        ]
        return statistics.median(added) / self.steps / RANKS


def measure(job: Job, *, pairs: int) -> Result:
    """Run a job on four ranks and return what its blocks took."""
    shared = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shared if shared.is_dir() else None) as folder:
        mp.spawn(_run_rank, args=(folder, JOBS.index(job), pairs), nprocs=RANKS)
        ranks = [json.loads(Path(folder, f"{rank}.json").read_text(encoding="ascii")) for rank in range(RANKS)]
    cpu = [sum(values) for values in zip(*(rank["cpu_s"] for rank in ranks), strict=True)]
    shares = [rank["writer_cpu_ratio"] for rank in ranks]
    return Result(
        steps=ranks[0]["steps"],
        wall_s=ranks[0]["wall_s"],
        cpu_s=cpu,
        writer_cpu_ratio=None if None in shares else statistics.median(shares),
    )


def bootstrap(ratios: list[float]) -> tuple[float, float]:
    """Return the 95 % interval of the median, by 2,000 resamplings with a fixed seed."""
    draw = random.Random(0)
    medians = sorted(statistics.median(draw.choices(ratios, k=len(ratios))) for _ in range(2000))
    return medians[50], medians[1949]


def _places(kind: str, length: int) -> list[int]:
    return [at for at in range(length) if ORDER[at % 4] == kind]


class _Collectives:
    """The collectives' hooks alone, with a black box."""

    def __init__(self, folder: Path) -> None:
        who = BlackBoxIdentity(rank=0, attempt=0, world_size=RANKS, pid=1, process_start_ticks=1, wall_offset_ns=0)
        self._box = BlackBox(folder / f"box-{os.getpid()}", who)
        self._log = CallLog(self._box)
        self._recorder: CollectiveRecorder | None = None

    def resume(self) -> None:
        self._recorder = CollectiveRecorder(self._log)
        self._recorder.attach()

    def pause(self) -> None:
        if self._recorder is not None:
            self._recorder.close()
            self._recorder = None
        self._log.next_step(0)

    def writer_cpu_s(self) -> float | None:
        return None


class _Whole:
    """The whole recorder. It stays open; its hooks come and go, and its writer thread works while they are there."""

    def __init__(self, folder: Path, step: Callable[[], None]) -> None:
        recorder = Recorder(run_dir=folder / "run", run_id="bench", capture=CaptureSettings(reasons=frozenset()))
        recorder.__enter__()
        # One of the first steps is counted for its FLOPs, once a run.
        for _ in range(8):
            step()
        assert recorder.session is not None
        self._recorder = recorder
        self._session = recorder.session
        # It has read which groups there are, and would read it again each time that hooks come.
        self._session.writer.flush()
        self._flight_recorder = self._session.collectives.flight_recorder
        self._pulse = self._session.writer._pulse
        self.pause()

    def resume(self) -> None:
        session = self._session
        session.collectives.tracker.active = True
        session.collectives.attach()
        session.collectives.flight_recorder = self._flight_recorder
        session.hooks.attach()
        session.checkpoints.attach()
        session.writer._pulse = self._pulse

    def pause(self) -> None:
        session = self._session
        session.writer._pulse = lambda *, final: None
        session.checkpoints.close()
        session.hooks.close()
        session.collectives.close()

    def writer_cpu_s(self) -> float | None:
        thread = self._session.writer._thread
        assert thread is not None
        assert thread.ident is not None
        return time.clock_gettime(time.pthread_getcpuclockid(thread.ident))


def _make_step(job: Job) -> Callable[[], None]:
    torch.manual_seed(0)
    if not job.whole:
        layers = DistributedDataParallel(nn.Sequential(*(nn.Linear(128, 128) for _ in range(6))), bucket_cap_mb=0.1)
        batch = torch.ones(job.batch, 128)

        def tiny_step() -> None:
            layers(batch).sum().backward()

        return tiny_step
    model = DistributedDataParallel(
        TinyTransformer(width=128, num_layers=4, num_heads=4, straggle_s=0.0), bucket_cap_mb=1
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    tokens = torch.randint(VOCABULARY, (job.batch, 129))

    def step() -> None:
        logits = model(tokens[:, :-1])
        functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def _choose_steps(step: Callable[[], None], block_s: float) -> int:
    """Return how many steps a block has; the same on all ranks."""
    for _ in range(5):
        step()
    begin = time.perf_counter()
    for _ in range(5):
        step()
    took = torch.tensor([(time.perf_counter() - begin) / 5])
    dist.broadcast(took, src=0)
    return max(1, min(MAX_STEPS, round(block_s / took.item())))


def _run_rank(rank: int, folder: str, job_number: int, pairs: int) -> None:
    job = JOBS[job_number]
    torch.set_num_threads(1)
    store = dist.FileStore(f"{folder}/store", RANKS)
    dist.init_process_group("gloo", rank=rank, world_size=RANKS, store=store)
    step = _make_step(job)
    steps = _choose_steps(step, job.block_s)
    own = Path(folder, f"rank-{rank}")
    own.mkdir()
    recording = _Whole(own, step) if job.whole else _Collectives(own)
    before = recording.writer_cpu_s()
    recorded_s = 0.0
    result: dict[str, Any] = {"steps": steps, "wall_s": [], "cpu_s": []}
    state, since = "plain", 0.0
    for at in range(4 * ((pairs + 1) // 2)):
        wanted = ORDER[at % 4]
        if wanted != state:
            (recording.resume if wanted == "scope" else recording.pause)()
            state, since = wanted, time.perf_counter()
            for _ in range(STEPS_AFTER_CHANGE):
                step()
        dist.barrier()
        cpu, start = time.process_time(), time.perf_counter()
        for _ in range(steps):
            step()
        result["wall_s"].append(time.perf_counter() - start)
        result["cpu_s"].append(time.process_time() - cpu)
        if ORDER[at % 4 : at % 4 + 2] == ("scope", "plain"):
            recorded_s += time.perf_counter() - since
    after = recording.writer_cpu_s()
    result["writer_cpu_ratio"] = None if before is None or after is None else (after - before) / recorded_s
    Path(folder, f"{rank}.json").write_text(json.dumps(result), encoding="ascii")
    dist.destroy_process_group()
