"""What a recorded run says of its own recording: the route, what was covered, and what it cost."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: E402

from scope.record import Recorder  # noqa: E402
from scope.record.settings import CaptureSettings  # noqa: E402
from scope.run.reader import RankReader, read_steps  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NUM_CALLS = 600
NUM_STEPS = 6


@pytest.fixture(autouse=True)
def world() -> Iterator[None]:
    """A fake world of four ranks."""
    dist.init_process_group("fake", rank=0, world_size=4, store=FakeStore())
    yield
    dist.destroy_process_group()


def step_cpu_ns(tensor: torch.Tensor) -> int:  # pyright: ignore[reportInvalidTypeForm]
    """Return the CPU time of one step of collectives."""
    begin = time.thread_time_ns()
    for _ in range(NUM_CALLS):
        dist.all_reduce(tensor)
    return time.thread_time_ns() - begin


def test_a_run_tells_route_coverage_and_its_own_cost(tmp_path: Path) -> None:
    """The route and the coverage are told, and the cost is of the size that a clock around the loop shows.

    The clock of the test measures with and without the recorder, each at its quickest, which others on the machine
    delay least. What the recorder says of itself may differ from it, but not by the factor of 3 that the way through
    torch's dispatcher makes.
    """
    tensor = torch.ones(64)
    step_cpu_ns(tensor)
    without = min(step_cpu_ns(tensor) for _ in range(2 * NUM_STEPS))
    recorded: list[int] = []
    with Recorder(run_dir=tmp_path, run_id="r", capture=CaptureSettings(reasons=frozenset())) as recorder:
        for _ in range(2 * NUM_STEPS):
            recorded.append(step_cpu_ns(tensor))
            recorder.end_step()
        folder = recorder.folder
    assert folder is not None
    reader = RankReader(folder)
    steps, events = read_steps(folder), reader.new_events()
    assert reader.info().collectives_route in {"hooks", "dispatcher"}
    (covered,) = [event for event in events if event.kind == "coverage" and "seen" in event.detail]
    assert covered.detail["seen"] == len(recorded) * NUM_CALLS
    assert "unknown" in covered.message, "no Flight Recorder counts the fake backend: that is no 100 %"
    told = min(step.recorder_ns for step in steps[-NUM_STEPS:])
    assert 0.5 < told / (min(recorded) - without) < 3


def test_what_a_script_calls_never_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When every part of a recording raises, phases, steps, tokens and the end of the recorder's API still pass."""

    def explode(*_: object, **__: object) -> bool:
        raise ZeroDivisionError

    trained = 0
    with Recorder(run_dir=tmp_path, run_id="r", tokens=lambda _: 1 // 0) as recorder:
        session = recorder.session
        assert session is not None
        monkeypatch.setattr(session.batches, "add_tokens", explode)
        for name in ("begin_own_phase", "end_phase", "begin_input", "next_step", "_tell_ending"):
            setattr(session, name, explode)
        for batch in recorder.steps([torch.ones(2)] * 3, microbatches=1):
            with recorder.phase("rollout"):
                recorder.add_tokens(len(batch))
                trained += 1
            recorder.end_step()
        reasons = session.guard.reasons
    assert trained == 3
    assert set(reasons) == {"tokens", "phase", "input", "step", "batch", "ending"}
    assert all(reason.startswith("ZeroDivisionError") for reason in reasons.values())
    (rank,) = (tmp_path / "attempt-000" / "ranks").iterdir()
    assert RankReader(rank).info().exit_reason == "finished"


def test_a_run_of_few_steps_knows_its_cost(tmp_path: Path) -> None:
    """Each of three short steps without a collective says a cost above 0 and below its length."""
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Recorder(model=model, optimizer=optimizer, run_dir=tmp_path, run_id="r") as recorder:
        for batch in recorder.steps([torch.ones(4, 8)] * 3):
            model(batch).sum().backward()
            optimizer.step()
        folder = recorder.folder
    assert folder is not None
    steps = read_steps(folder)
    assert len(steps) == 3
    for step in steps:
        assert 0 < step.recorder_ns < step.end_ns - step.start_ns
