"""`Recorder` in this process: steps, phases, tokens, FLOPs and safety on real torch training loops."""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import sys
import time
from typing import TYPE_CHECKING, Any, cast

import pytest

pytest.importorskip("torch")

import torch
from torch import nn
from torch.optim import optimizer as optimizers  # pyright: ignore[reportAttributeAccessIssue]
from torch.utils.data import DataLoader, dataloader

from scope.frames import open_run
from scope.record import Recorder, session
from scope.record.settings import CaptureSettings
from scope.report.run_state import describe_run, render_run
from scope.run.goodbyes import AFTER_UPDATE
from scope.run.reader import RankReader, RunReader, read_steps
from scope.run.schema import StepRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


NO_CAPTURE = CaptureSettings(reasons=frozenset())
PATCHED = (
    (nn.Module, "__call__"),
    (nn.Sequential, "__call__"),
    (nn.Module, "train"),
    (torch, "save"),
    (torch.autograd, "backward"),
    (torch.autograd, "grad"),
    (torch.amp.GradScaler, "step"),
    (torch.optim.Optimizer, "__init__"),
    (dataloader._BaseDataLoaderIter, "__next__"),
    (torch.autograd.profiler.profile, "_prepare_trace"),
)


def make_loader(samples: list[torch.Tensor], **options: Any) -> DataLoader[torch.Tensor]:
    """A loader over samples that stand in a list."""
    return DataLoader(cast("torch.utils.data.Dataset[torch.Tensor]", samples), **options)


def snapshot() -> list[Any]:
    """Everything that a recording may replace, by identity."""
    hooks = [dict(optimizers._global_optimizer_pre_hooks), dict(optimizers._global_optimizer_post_hooks)]
    return [*[owner.__dict__.get(name) for owner, name in PATCHED], *hooks, list(gc.callbacks), sys.excepthook]


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """After every test all hooks are gone."""
    before = snapshot()
    yield
    assert session.current is None
    assert snapshot() == before


def make_model() -> nn.Module:
    """A model whose FLOPs are easy: 8 x 16 and 16 x 4."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


def record(folder: Path, train: Callable[[Recorder], None], **options: Any) -> list[StepRecord]:
    """Record a loop and return its steps, each checked to sum up exactly."""
    with Recorder(run_dir=folder, run_id="r", capture=NO_CAPTURE, **options) as recorder:
        rank = recorder.folder
        train(recorder)
    assert rank is not None
    steps = read_steps(rank)
    for step in steps:
        assert sum(step.phases.values()) == step.end_ns - step.start_ns
    for one, other in itertools.pairwise(steps):
        assert one.end_ns == other.start_ns
    return steps


def test_a_loop_that_knows_nothing(tmp_path: Path) -> None:
    """A plain loop gives a step an update, with each phase's planted sleep in it and in no other."""

    class Slow(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, value: torch.Tensor) -> torch.Tensor:
            time.sleep(0.03)
            return value.clone()

        @staticmethod
        def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
            time.sleep(0.05)
            return gradients[0]

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 4)

        def forward(self, batch: torch.Tensor) -> torch.Tensor:
            return Slow.apply(self.layer(batch))

    class Data(torch.utils.data.Dataset[torch.Tensor]):
        def __len__(self) -> int:
            return 6

        def __getitem__(self, index: int) -> torch.Tensor:
            time.sleep(0.01)
            return torch.zeros(8)

    def train(recorder: Recorder) -> None:
        model = Model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer.register_step_pre_hook(lambda *_: time.sleep(0.02))
        for batch in DataLoader(Data(), batch_size=2):
            loss = model(batch).sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    steps = record(tmp_path, train)
    assert [step.step for step in steps] == [0, 1, 2]
    for step in steps[1:]:
        phases = {name: length / 1e6 for name, length in step.phases.items()}
        assert phases["input"] >= 20
        assert phases["forward"] >= 30
        assert phases["backward"] >= 50
        assert phases["optimizer"] > 0
        assert step.input_bytes == 2 * 8 * 4
        assert step.samples == 2
        assert step.tokens is None
        assert step.num_microbatches == 1


def test_accumulation_scaler_and_evaluation(tmp_path: Path) -> None:
    """Four micro-batches are one step; an evaluation is one phase, its batches not counted; a skipped step is one."""

    def train(recorder: Recorder) -> None:
        model = make_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0, enabled=True)
        loader = make_loader([torch.ones(8)] * 16, batch_size=2)
        for number, batch in enumerate(loader):
            loss = model(batch).mean() * (float("inf") if number == 7 else 1.0)
            scaler.scale(loss).backward()
            if number % 4 == 3:
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
                if number == 3:
                    model.eval()
                    with torch.no_grad():
                        for held_out in make_loader([torch.ones(8)] * 4, batch_size=2):
                            model(held_out)
                            time.sleep(0.01)
                    model.train()

    steps = record(tmp_path, train)
    assert [step.num_microbatches for step in steps] == [4, 4]
    assert [step.samples for step in steps] == [8, 8]
    assert [step.num_skipped_optimizer_steps for step in steps] == [0, 1]
    assert steps[0].phases["evaluation"] >= 20e6
    assert "evaluation" not in steps[1].phases


@pytest.mark.parametrize("counts", [True, False])
def test_several_updates_on_one_batch(tmp_path: Path, counts: bool) -> None:
    """Three updates for each of four batches are twelve: one a step but for the first, which is marked."""

    def train(recorder: Recorder) -> None:
        model = make_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for batch in make_loader([torch.ones(8)] * 8, batch_size=2):
            for _ in range(3):
                model(batch).sum().backward()
                optimizer.step()

    steps = record(tmp_path, train, flop_per_token=None if counts else 1.0)
    assert [(step.num_optimizer_steps, step.num_microbatches) for step in steps] == [(2, 2), *[(1, 1)] * 10]
    assert steps[0].disturbed == ("flops_counted" if counts else "updates_merged")
    marks = [step.disturbed for step in steps[1:]]
    assert set(marks) <= {None, "flops_counted", "end_unknown"}
    # 2 x 2 samples through 8 x 16 and 16 x 4: forward, for weights, and for the input of the second.
    by_hand = 2 * 2 * (2 * 8 * 16 + 3 * 16 * 4)
    assert {step.model_flop for step in steps[4:]} == ({by_hand} if counts else {None})


def test_two_optimizers_without_a_loader(tmp_path: Path) -> None:
    """A loop with two optimizers and no loader has one step a round, once both have been seen or were named."""

    def train(recorder: Recorder) -> None:
        for _ in range(4):
            for model, optimizer in zip(models, optimizers, strict=True):
                model(torch.ones(2, 8)).sum().backward()
                optimizer.step()
                optimizer.zero_grad()

    models = [make_model(), make_model()]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
    steps = record(tmp_path, train, optimizer=optimizers)
    assert [(step.num_optimizer_steps, step.num_microbatches) for step in steps] == [(2, 2)] * 4


class OwnOptimizer:
    """An optimizer that torch knows nothing of."""

    def __init__(self, parameters: list[torch.Tensor]) -> None:
        self._parameters = parameters

    def step(self) -> None:
        """Move along the gradients and clear them."""
        with torch.no_grad():
            for parameter in self._parameters:
                assert parameter.grad is not None
                parameter -= 0.1 * parameter.grad
                parameter.grad = None


@pytest.mark.parametrize(
    ("num_batches", "marks", "told_while_it_runs"), [(5, False, False), (130, False, True), (5, True, False)]
)
def test_an_optimizer_of_the_programs_own(
    tmp_path: Path, num_batches: int, marks: bool, told_while_it_runs: bool
) -> None:
    """A run whose steps cannot be told says so and how to mark them, early where many pass; marked ones are steps."""
    model = make_model()
    optimizer = OwnOptimizer(list(model.parameters()))
    with Recorder(run_dir=tmp_path, run_id="r", capture=NO_CAPTURE) as recorder:
        rank, current = recorder.folder, recorder.session
        for _ in range(num_batches):
            model(torch.ones(2, 8)).sum().backward()
            optimizer.step()
            if marks:
                recorder.end_step()
        assert current is not None
        assert ("steps" in current.writer.info.absent) == told_while_it_runs
    assert rank is not None
    assert len(read_steps(rank)) == (num_batches if marks else 0)
    told = [event.message for event in RankReader(rank).new_events() if event.kind == "warning"]
    reason = RankReader(rank).info().absent.get("steps")
    if marks:
        assert told == []
        assert reason is None
        return
    assert told == [reason]
    passes = 128 if told_while_it_runs else num_batches
    assert told[0].startswith(f"{passes} backward passes and no step of a torch.optim.Optimizer")
    assert "call recorder.end_step()" in told[0]
    assert f"no steps: {reason}" in render_run(describe_run(open_run(tmp_path)))


def test_own_phases_nest_and_a_raise_closes_them(tmp_path: Path) -> None:
    """The innermost phase owns the time, an exception closes both, and a phase that leads the step begins it."""

    def raise_inside(recorder: Recorder) -> None:
        with recorder.phase("rollout"):
            time.sleep(0.01)
            with recorder.phase("reward"):
                time.sleep(0.02)
                raise KeyError

    def train(recorder: Recorder) -> None:
        model = make_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            with pytest.raises(KeyError):
                raise_inside(recorder)
            model(torch.ones(2, 8)).sum().backward()
            optimizer.step()
        recorder.end_step()

    steps = record(tmp_path, train)
    for step in steps[:2]:
        # Each at least as long as it sleeps; `record` has checked that no time is in two of them.
        assert step.phases["rollout"] >= 10e6
        assert step.phases["reward"] >= 20e6


def test_steps_of_any_iterable_and_users_tokens(tmp_path: Path) -> None:
    """`steps` times a generator as input, ends a step every n batches, and counts tokens as the user does."""

    def batches() -> Iterator[dict[str, torch.Tensor]]:
        for _ in range(6):
            time.sleep(0.01)
            yield {"input_ids": torch.zeros(2, 5, dtype=torch.int64)}

    def train(recorder: Recorder) -> None:
        for batch in recorder.steps(batches(), microbatches=2):
            assert batch["input_ids"].shape == (2, 5)
        recorder.end_step()

    steps = record(tmp_path / "shape", train)
    assert [step.tokens for step in steps[:3]] == [20, 20, 20]
    assert all(step.phases["input"] >= 20e6 for step in steps[:3])
    steps = record(tmp_path / "own", train, tokens=lambda batch: 3)
    assert [step.tokens for step in steps[:3]] == [6, 6, 6]


def test_flops_of_a_step_by_hand(tmp_path: Path) -> None:
    """Forward 2mnk a layer; backward twice that, less the input gradient of the first layer that nobody needs."""

    def train(recorder: Recorder) -> None:
        model = make_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for batch in make_loader([torch.ones(8)] * 6, batch_size=2):
            model(batch).sum().backward()
            optimizer.step()

    steps = record(tmp_path, train, peak_flop_per_s=1e9)
    first, second = 2 * 2 * 8 * 16, 2 * 2 * 16 * 4
    assert {step.model_flop for step in steps} == {3 * first + 3 * second - first}
    length = steps[1].end_ns - steps[1].start_ns
    assert steps[1].mfu_ratio == pytest.approx((2 * first + 3 * second) / length)
    assert [step.disturbed for step in steps] == ["flops_counted", None, None]


def test_a_hook_that_raises_is_switched_off(tmp_path: Path) -> None:
    """A hook made to raise costs its own figures and an event; the loop and the other phases go on."""

    def train(recorder: Recorder) -> None:
        assert recorder.session is not None
        recorder.session.begin_backward = explode  # type: ignore[method-assign]
        recorder.session.batches.note = explode  # type: ignore[method-assign]
        model = make_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for batch in make_loader([torch.ones(8)] * 6, batch_size=2):
            model(batch).sum().backward()
            optimizer.step()
        assert recorder.session.guard.num_failures == 2

    def explode(*_: Any) -> bool:
        raise ZeroDivisionError

    steps = record(tmp_path, train)
    assert len(steps) == 3
    assert all("forward" in step.phases and "backward" not in step.phases for step in steps)
    rank = next((tmp_path / "attempt-000" / "ranks").iterdir())
    disabled = [event.detail["hook"] for event in RankReader(rank).new_events() if event.kind == "hook_disabled"]
    assert sorted(map(str, disabled)) == ["backward", "batch"]


def test_checkpoints_say_bytes_and_time(tmp_path: Path) -> None:
    """`torch.save` to a path and to a buffer gives events with the bytes that were written."""
    import io

    def train(recorder: Recorder) -> None:
        model = make_model()
        torch.save(model.state_dict(), tmp_path / "model.pt")
        torch.save(model.state_dict(), buffer)

    buffer = io.BytesIO()
    record(tmp_path / "run", train)
    rank = next((tmp_path / "run" / "attempt-000" / "ranks").iterdir())
    events = [event for event in RankReader(rank).new_events() if event.kind == "checkpoint"]
    assert [event.detail["bytes"] for event in events] == [
        (tmp_path / "model.pt").stat().st_size,
        len(buffer.getvalue()),
    ]
    assert events[0].detail["path"] == str(tmp_path / "model.pt")
    assert all((event.duration_ns or 0) > 0 for event in events)


def test_a_second_recorder_joins_and_a_second_run_is_an_attempt(tmp_path: Path) -> None:
    """An inner recorder leaves the outer one running; the same run recorded again is a new attempt beside the old."""
    for _ in range(2):
        with Recorder(run_dir=tmp_path, run_id="r", capture=NO_CAPTURE) as outer:
            with Recorder() as inner:
                assert inner.folder == outer.folder
            assert session.current is not None
    assert sorted(path.name for path in tmp_path.glob("attempt-*")) == ["attempt-000", "attempt-001"]


def test_run_dir_is_where_a_joined_recording_is_read(tmp_path: Path) -> None:
    """After the block of a recorder that joined, `run_dir` is the outer one's folder and holds the steps that ended."""
    with Recorder(run_dir=tmp_path / "run", run_id="r", capture=NO_CAPTURE) as outer:
        with Recorder(run_dir=tmp_path / "other") as inner:
            for _ in range(3):
                outer.end_step()
        assert inner.folder is None
        assert inner.run_dir == outer.run_dir == tmp_path / "run"
        (rank,) = (tmp_path / "run" / "attempt-000" / "ranks").iterdir()
        assert [step.step for step in RankReader(rank).new_steps() if isinstance(step, StepRecord)] == [0, 1]
    assert outer.run_dir == tmp_path / "run"
    assert Recorder().run_dir is None
    assert not (tmp_path / "other").exists()


def test_the_users_exception_passes_and_is_noted(tmp_path: Path) -> None:
    """What the program raises leaves the block unchanged; the run says how it ended."""

    def fail(recorder: Recorder) -> None:
        msg = "mine"
        raise ValueError(msg)

    with pytest.raises(ValueError, match="mine"):
        record(tmp_path, fail)
    rank = next((tmp_path / "attempt-000" / "ranks").iterdir())
    reader = RankReader(rank)
    assert reader.info().exit_reason == "exception"
    assert "ValueError: mine" in [event.message for event in reader.new_events()]
    state = reader.state()
    assert state is not None
    assert state.exception


@pytest.mark.parametrize(
    ("place", "step", "is_after_update"), [("before", 2, True), ("forward", 3, False), ("optimizer", 3, False)]
)
def test_an_exception_between_two_steps_says_so(tmp_path: Path, place: str, step: int, is_after_update: bool) -> None:
    """Before the forward of round 3 only step 2 is known, and that it had its update; within round 3 the step is 3."""
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def train(recorder: Recorder) -> None:
        for number in range(5):
            is_bad = number == 3
            if is_bad and place == "before":
                raise ValueError(place)
            model(torch.ones(2, 9 if is_bad and place == "forward" else 8)).sum().backward()
            if is_bad and place == "optimizer":
                raise ValueError(place)
            optimizer.step()

    with pytest.raises((ValueError, RuntimeError)):
        record(tmp_path, train, model=model)
    rank = next((tmp_path / "attempt-000" / "ranks").iterdir())
    (event,) = (each for each in RankReader(rank).new_events() if each.kind == "exception")
    assert (event.step, AFTER_UPDATE in event.detail) == (step, is_after_update)


def test_a_traceback_shows_no_frame_of_scope(tmp_path: Path) -> None:
    """What a model's call raises leaves the recorder's block with the frames of torch and the program alone."""
    model = make_model()
    with pytest.raises(RuntimeError) as raised, Recorder(model=model, run_dir=tmp_path, run_id="r"):
        model(torch.ones(2, 9))
    files = [entry.frame.code.path for entry in raised.traceback]
    assert not any("/scope/record/" in str(path) for path in files)
    assert len(files) > 3


def test_a_folder_that_cannot_be_written_lets_training_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a place to write to, the loop runs unrecorded and one line says why."""
    (tmp_path / "file").write_text("")
    with Recorder(run_dir=tmp_path / "file" / "run", run_id="r") as recorder:
        assert recorder.folder is None
        assert list(recorder.steps([1, 2])) == [1, 2]
        with recorder.phase("x"):
            pass
    assert "unrecorded" in capsys.readouterr().err


def test_a_forked_worker_is_not_recorded(tmp_path: Path) -> None:
    """A loader with a forked worker works, and a forked child finds no session."""

    def train(recorder: Recorder) -> None:
        loader = make_loader([torch.ones(8)] * 4, batch_size=2, num_workers=1, multiprocessing_context="fork")
        assert len([*recorder.steps(loader, microbatches=1)]) == 2
        child = os.fork()
        if child == 0:
            os._exit(3 if session.current is not None else 0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0

    assert len(record(tmp_path, train)) >= 1


def test_parameters_are_bit_identical(tmp_path: Path) -> None:
    """Fifty steps with dropout, recorded and not, end in the same bits."""

    def run() -> list[torch.Tensor]:
        torch.manual_seed(7)
        model = nn.Sequential(nn.Linear(8, 32), nn.Dropout(0.2), nn.GELU(), nn.Linear(32, 4))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        for _ in range(50):
            model(torch.randn(4, 8)).pow(2).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        return [parameter.detach().clone() for parameter in model.parameters()]

    plain = run()
    with Recorder(run_dir=tmp_path, run_id="r", capture=NO_CAPTURE):
        recorded = run()
    assert all(torch.equal(one, other) for one, other in zip(plain, recorded, strict=True))


def test_a_loop_that_fetches_ahead_counts_each_batch_where_it_is_used(tmp_path: Path) -> None:
    """With the next batch fetched before the last is used, every step still has its own batch's samples and FLOPs."""

    def train(recorder: Recorder) -> None:
        model = make_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        iterator = iter(make_loader([torch.ones(8)] * 7, batch_size=2))
        batch: torch.Tensor | None = next(iterator)
        while batch is not None:
            following = next(iterator, None)
            model(batch).sum().backward()
            optimizer.step()
            batch = following

    steps = record(tmp_path, train)
    assert [step.samples for step in steps] == [2, 2, 2, 1]


class Model(nn.Module):
    """A layer in a class of its own: the compiler takes no bare layer of torch's in place."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 4)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        """Run the layer."""
        return self.layer(batch).relu()


class Outer(nn.Module):
    """A model around another."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        """Run the inner model."""
        return 2 * self.inner(batch)


@pytest.mark.parametrize("how", ["whole", "in-place", "inner"])
def test_compiled_models_train_as_one_graph(tmp_path: Path, how: str) -> None:
    """A model compiled as one graph, whole or in part, is neither broken nor compiled again; its phases are there."""
    compilations: list[int] = []

    def backend(graph: Any, inputs: Any) -> Any:
        compilations.append(len(inputs))
        return graph.forward

    def train(recorder: Recorder) -> None:
        inner = Model()
        model = Outer(inner)
        called: Any = model
        if how == "whole":
            called = torch.compile(model, backend=backend, fullgraph=True)
        elif how == "in-place":
            model.compile(backend=backend, fullgraph=True)
        else:
            inner.compile(backend=backend, fullgraph=True)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(5):
            called(torch.ones(2, 8)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    torch.compiler.reset()
    steps = record(tmp_path, train)
    assert len(compilations) == 1
    assert len(steps) == 5
    # Without a loader the first sign of a step is its backward, so the model is known from the second step on.
    assert all(step.phases["forward"] > 0 and step.phases["backward"] > 0 for step in steps[1:])
    rank = next((tmp_path / "attempt-000" / "ranks").iterdir())
    assert not [event for event in RankReader(rank).new_events() if event.kind == "hook_disabled"]


def test_over_budget_gives_up_what_costs_least_to_lose(tmp_path: Path) -> None:
    """Fifty steps in a row above the budget give up memory by phase, then hashes; each is said, phases stay."""

    def train(recorder: Recorder) -> None:
        model = make_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        assert recorder.session is not None
        recorder.session.estimate_cost = costs.pop  # type: ignore[method-assign]
        for _ in range(130):
            model(torch.ones(2, 8)).sum().backward()
            optimizer.step()
        assert recorder.session.clock.on_change is None
        assert not recorder.session.writer.calls.hashing

    costs = [10**12 * number for number in range(200, 0, -1)]
    steps = record(tmp_path, train)
    assert len(steps) == 130
    assert steps[-2].memory is not None
    # Its one reading would be that of the close, by when the program has done other things.
    assert steps[-1].memory is None
    assert steps[-1].phases["backward"] > 0
    rank = next((tmp_path / "attempt-000" / "ranks").iterdir())
    said = [event.message for event in RankReader(rank).new_events() if event.kind == "warning"]
    assert [message.partition(": ")[2] for message in said] == [
        "memory by phase given up",
        "hashes of collectives given up",
    ]


def test_parts_that_are_called_one_by_one_are_found(tmp_path: Path) -> None:
    """A model that is never called itself has a forward phase once its parts are known."""

    def train(recorder: Recorder) -> None:
        model = Outer(Model())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for batch in make_loader([torch.ones(8)] * 8, batch_size=2):
            model.inner(batch).sum().backward()
            optimizer.step()

    gc.collect()
    steps = record(tmp_path, train)
    assert ["forward" in step.phases for step in steps] == [False, True, True, True]
    assert steps[-1].model_flop is not None


def test_the_run_says_which_model_is_trained(tmp_path: Path) -> None:
    """Name, parameters and type of the model are told, those of several models together; here counted by hand."""

    def train(recorder: Recorder) -> None:
        models = [make_model(), nn.Linear(4, 3)]
        optimizer = torch.optim.SGD([each for model in models for each in model.parameters()], lr=0.1)
        for _ in range(3):
            models[1](models[0](torch.ones(2, 8))).sum().backward()
            optimizer.step()

    record(tmp_path, train)
    info = RunReader(tmp_path).info()
    assert info.model is not None
    assert sorted((info.model.name or "").split(" + ")) == ["Linear", "Sequential"]
    assert info.model.num_parameters == (8 * 16 + 16) + (16 * 4 + 4) + (4 * 3 + 3)
    assert info.model.dtype == "float32"
    assert (info.world_size, info.parallel) == (1, {})
    assert info.versions["torch"] == torch.__version__


def test_pauses_of_the_garbage_collector_are_counted(tmp_path: Path) -> None:
    """Each collection is counted in the step in which it ran, and its time is an overlay within the step."""

    def train(recorder: Recorder) -> None:
        model = make_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        gc.disable()
        try:
            for step in range(4):
                model(torch.ones(2, 8)).sum().backward()
                for _ in range(3 if step == 2 else 0):
                    gc.collect()
                optimizer.step()
        finally:
            gc.enable()

    steps = record(tmp_path, train)
    assert [step.num_gc for step in steps] == [0, 0, 3, 0]
    assert 0 < steps[2].gc_ns <= steps[2].end_ns - steps[2].start_ns
    assert all(step.gc_ns == 0 for step in steps if step.step != 2)


def test_the_cost_of_recording_is_never_negative(tmp_path: Path) -> None:
    """Where the estimate falls, because a later median is lower, a step says 0, and the sum is the highest estimate."""

    def train(recorder: Recorder) -> None:
        model = make_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        assert recorder.session is not None
        recorder.session.estimate_cost = costs.pop  # type: ignore[method-assign]
        for _ in range(5):
            model(torch.ones(2, 8)).sum().backward()
            optimizer.step()

    costs = [8_000, 6_000, 5_000, 7_000, 1_000, 0]
    steps = record(tmp_path, train)
    assert [step.recorder_ns for step in steps] == [1_000, 6_000, 0, 0, 1_000]


@pytest.mark.parametrize("names", [(), ("backward",), ("forward", "backward", "optimizer")], ids=len)
def test_phases_of_the_user_may_bear_built_in_names(tmp_path: Path, names: tuple[str, ...]) -> None:
    """They add to the built-in ones; passes, FLOPs and the sum of the phases are as without them.

    Two samples through 8 x 16 and 16 x 4: forward 2 x 2 x 192, backward the same for weights, 2 x 2 x 64 for an input.
    """
    model = nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Recorder(run_dir=tmp_path, run_id="r", model=model, capture=NO_CAPTURE, peak_flop_per_s=1e9) as recorder:
        folder = recorder.folder
        phases = {name: recorder.phase(name) for name in names}
        for _ in recorder.steps(range(3)):
            with phases.get("forward", contextlib.nullcontext()):
                loss = model(torch.ones(2, 8)).sum()
            with phases.get("backward", contextlib.nullcontext()):
                time.sleep(0.01)
                loss.backward()
            with phases.get("optimizer", contextlib.nullcontext()):
                optimizer.step()
                optimizer.zero_grad()
    assert folder is not None
    steps = read_steps(folder)
    assert [(step.num_microbatches, step.model_flop) for step in steps] == [(1, 1_792)] * 3
    for step in steps:
        assert sum(step.phases.values()) == step.end_ns - step.start_ns
        assert set(step.phases) <= {"startup", "init", "input", "forward", "backward", "optimizer", "other"}
        assert (step.phases["backward"] >= 10**7) is bool(names)
