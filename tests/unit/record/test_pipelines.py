"""Schedules of `torch.distributed.pipelining`: where their steps begin, and that finding out shapes is no work."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("torch")

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe, schedules, stage

from scope.record import Recorder
from scope.record.settings import CaptureSettings
from scope.run.reader import RankReader, read_steps

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from scope.run.schema import StepRecord

NUM_MICROBATCHES = 4
# Two samples a micro-batch: forward 2 x 2 x (8 x 16 + 16 x 4); backward the same for the weights, and the second
# layer's input; nobody needs the gradient of the batch.
FLOP = NUM_MICROBATCHES * (2 * (2 * 2 * (8 * 16 + 16 * 4)) + 2 * 2 * 16 * 4)
PATCHED = [
    (owner, name)
    for owner in (*vars(schedules).values(), *vars(stage).values())
    for name in (
        "step",
        "_prepare_forward_infra",
        "_prepare_backward_infra",
        "backward_one_chunk",
        "backward_weight_one_chunk",
    )
    if isinstance(owner, type)
]


def snapshot() -> list[Any]:
    """What stands in the classes of pipelines, by identity."""
    return [vars(owner).get(name) for owner, name in PATCHED]


@pytest.fixture(autouse=True)
def alone() -> Iterator[None]:
    """A process group of this process alone, and after every test all hooks are gone."""
    before = snapshot()
    store = dist.HashStore()  # pyright: ignore[reportPrivateImportUsage]
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()
    assert snapshot() == before


class Stage(PipelineStage):
    """A stage that notes when a schedule begins a step, and takes its time there."""

    begun_ns: list[int]

    def clear_runtime_states(self) -> None:
        """Clear what the step before has left."""
        self.begun_ns.append(time.monotonic_ns())
        time.sleep(0.01)
        super().clear_runtime_states()


class Pipeline:
    """A pipeline of one stage, which exchanges shapes with itself as one of many does."""

    def __init__(self) -> None:
        self.module = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
        self.stage = Stage(self.module, 0, 1, torch.device("cpu"))
        self.stage.begun_ns = []
        self.schedule = ScheduleGPipe(self.stage, NUM_MICROBATCHES, loss_fn=nn.functional.mse_loss)
        self.optimizer = torch.optim.SGD(self.module.parameters(), lr=0.1)

    def update(self) -> None:
        """Make one update."""
        self.schedule.step(torch.ones(8, 8), target=torch.zeros(8, 4))
        self.optimizer.step()
        self.optimizer.zero_grad()

    def evaluate(self) -> None:
        """Run forward alone."""
        with torch.no_grad():
            self.schedule.eval(torch.ones(8, 8), target=torch.zeros(8, 4))


def record(folder: Path, train: Callable[[Recorder], None]) -> list[StepRecord]:
    """Record what a function does and return its steps."""
    options = {"capture": CaptureSettings(reasons=frozenset()), "peak_flop_per_s": 1e9}
    with Recorder(run_dir=folder, run_id="r", **options) as recorder:
        rank = recorder.folder
        train(recorder)
    assert rank is not None
    assert not [event for event in RankReader(rank).new_events() if event.kind == "hook_disabled"]
    return read_steps(rank)


def test_finding_out_shapes_is_no_work_of_a_step(tmp_path: Path) -> None:
    """The first step has four micro-batches and the FLOPs of four, worked by hand, as all others have."""

    def train(recorder: Recorder) -> None:
        pipeline = Pipeline()
        for _ in range(3):
            pipeline.update()

    steps = record(tmp_path, train)
    assert [step.num_microbatches for step in steps] == [NUM_MICROBATCHES] * 3
    assert [(step.model_flop, step.hardware_flop) for step in steps] == [(FLOP, FLOP)] * 3
    assert [step.disturbed for step in steps] == ["flops_counted", None, "end_unknown"]


def test_an_evaluation_makes_shapes_be_found_out_again(tmp_path: Path) -> None:
    """A schedule's `eval` neither ends a step nor adds to it, before the first update as between two."""

    def train(recorder: Recorder) -> None:
        pipeline = Pipeline()
        for _ in range(3):
            pipeline.evaluate()
            pipeline.update()
        pipeline.evaluate()

    steps = record(tmp_path, train)
    assert [step.num_microbatches for step in steps] == [NUM_MICROBATCHES] * 3
    assert [step.model_flop for step in steps] == [FLOP] * 3
    assert all(step.phases["evaluation"] > 0 for step in steps)


def test_a_step_begins_where_its_schedule_is_called(tmp_path: Path) -> None:
    """Before its first forward a schedule takes 10 ms: they are in the step that it makes, not in the one before."""
    called: list[int] = []
    begun: list[int] = []
    offset: list[int] = []

    def train(recorder: Recorder) -> None:
        assert recorder.session is not None
        offset.append(recorder.session.writer.wall_offset_ns)
        pipeline = Pipeline()
        for _ in range(4):
            called.append(time.monotonic_ns())
            pipeline.update()
        begun.extend(pipeline.stage.begun_ns)

    steps = record(tmp_path, train)
    starts = [step.start_ns - offset[0] for step in steps]
    assert len(starts) == 4
    assert all(before <= start <= after for before, start, after in zip(called, starts, begun, strict=True))
    assert all(step.phases["other"] >= 10**7 for step in steps)


def test_pipelines_imported_after_the_optimizer_was_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then the first schedule runs already when it is found: of its step nothing is said, the second is counted."""
    name = schedules.__name__

    def train(recorder: Recorder) -> None:
        pipeline = Pipeline()
        sys.modules[name] = schedules
        for _ in range(3):
            pipeline.update()

    monkeypatch.delitem(sys.modules, name)
    steps = record(tmp_path, train)
    assert [step.model_flop for step in steps] == [None, FLOP, FLOP]
    assert [step.num_microbatches for step in steps] == [NUM_MICROBATCHES] * 3
    assert [step.disturbed for step in steps] == [None, "flops_counted", "end_unknown"]


def test_a_zero_bubble_schedule_counts_each_micro_batch_once_a_stage(tmp_path: Path) -> None:
    """It runs the backward of the inputs and that of the weights apart: four micro-batches on two stages are eight.

    The FLOPs are those of one whole backward: each stage 2 x 2 x 8 x 8 a sample, but for the input of the first.
    """

    def train(recorder: Recorder) -> None:
        modules = [nn.Linear(8, 8, bias=False) for _ in range(2)]
        stages: list[Any] = [
            PipelineStage(module, place, 2, torch.device("cpu")) for place, module in enumerate(modules)
        ]
        schedule = schedules.ScheduleInterleavedZeroBubble(stages, NUM_MICROBATCHES, loss_fn=nn.functional.mse_loss)
        optimizer = torch.optim.SGD([weight for module in modules for weight in module.parameters()], lr=0.1)
        for _ in range(3):
            schedule.step(torch.ones(8, 8), target=torch.zeros(8, 8))
            optimizer.step()
            optimizer.zero_grad()

    steps = record(tmp_path, train)
    assert [step.num_microbatches for step in steps] == [2 * NUM_MICROBATCHES] * 3
    product = 2 * 8 * 8 * 8
    assert [step.model_flop for step in steps] == [5 * product] * 3
