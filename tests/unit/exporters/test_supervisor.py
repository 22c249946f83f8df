"""The rules for a sampling process that hangs, dies or cannot be killed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from exporters.supervisor import FIRST_QUARANTINE_NS, Supervisor
from exporters.wire import EXIT_DRIVER_GONE, IDLE, LENGTH, Sample, SamplerSettings, SharedPage
from scope.units import NS_PER_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class FakeProcess:
    """A process whose death the test decides."""

    def __init__(self, settings: SamplerSettings, receive: Callable[[bytes], None]) -> None:
        self.settings = settings
        self.receive = receive
        self.status: int | None = None
        self.killed = False
        self.killable = True

    def kill(self) -> None:
        """Die, unless the kernel holds it."""
        self.killed = True
        if self.killable:
            self.status = -9

    def poll(self) -> int | None:
        """Return the status once dead."""
        return self.status


class World:
    """A supervisor with a clock and processes that the test controls."""

    def __init__(self) -> None:
        # The page carries real monotonic times, so the fake clock begins there.
        import time

        self.now_ns = time.monotonic_ns()
        self.processes: list[FakeProcess] = []
        self.samples: list[Sample] = []
        settings = SamplerSettings(collectors=["gpu"], interval_ns=NS_PER_S, slow_interval_ns=NS_PER_S)
        self.supervisor = Supervisor(
            settings, self.samples.append, deadline_ns=10 * NS_PER_S, launch=self.launch, clock_ns=lambda: self.now_ns
        )

    def launch(self, settings: SamplerSettings, receive: Callable[[bytes], None]) -> FakeProcess:
        """Start a fake process."""
        self.processes.append(FakeProcess(settings, receive))
        return self.processes[-1]

    def announce(self, subject: str, call: str) -> None:
        """Say as the process what comes next."""
        self.supervisor.page.announce(subject, call)

    def tick(self, seconds: float = 0) -> None:
        """Let time pass and the supervisor look."""
        self.now_ns += int(seconds * NS_PER_S)
        self.supervisor.tick()


@pytest.fixture
def world() -> Iterator[World]:
    """A world with a running process."""
    made = World()
    made.tick()
    yield made
    made.supervisor.page.close()


def test_a_call_past_its_deadline_costs_the_process(world: World) -> None:
    """The process is killed, and its successor starts at once with that GPU set aside."""
    world.announce("3", "nvmlDeviceGetPowerUsage")
    world.tick(9)
    assert not world.processes[0].killed
    world.tick(2)
    assert world.processes[0].killed
    world.tick()
    world.tick()
    assert len(world.processes) == 2
    assert list(world.processes[1].settings.avoid) == ["3"]
    assert world.processes[1].settings.avoid["3"] - world.now_ns == pytest.approx(FIRST_QUARANTINE_NS, abs=NS_PER_S)
    assert world.supervisor.quarantines["3"].call == "nvmlDeviceGetPowerUsage"
    assert world.supervisor.restarts["hang"] == 1


def test_a_second_hang_doubles_the_time_aside(world: World) -> None:
    """Backoff: 60 s, then 120 s for the same GPU."""
    for _ in range(2):
        world.announce("3", "call")
        world.now_ns += 60 * NS_PER_S
        world.tick(11)
        world.tick()
        world.tick()
    assert world.supervisor.quarantines["3"].length_ns == 2 * FIRST_QUARANTINE_NS
    assert len(world.processes) == 3


def test_no_successor_while_the_process_cannot_be_killed(world: World) -> None:
    """A process that the kernel holds has no successor until it is reaped."""
    world.processes[0].killable = False
    world.announce("3", "call")
    world.tick(11)
    for _ in range(50):
        world.tick(60)
    assert len(world.processes) == 1
    assert world.supervisor.stuck
    world.processes[0].status = -9
    world.tick()
    world.tick()
    assert len(world.processes) == 2
    assert not world.supervisor.stuck


def test_an_idle_process_is_left_alone(world: World) -> None:
    """Between samples nothing is late; a process that then never comes back is replaced, and nobody is blamed."""
    world.announce("", IDLE)
    world.tick(12)
    assert not world.processes[0].killed
    world.tick(30)
    assert world.processes[0].killed
    assert world.supervisor.quarantines == {}


@pytest.mark.parametrize(
    ("status", "subject", "call", "aside"),
    [
        (-11, "3", "nvmlDeviceGetPowerUsage", ["3"]),
        (1, "rdma", "begin", ["rdma"]),
        # The out-of-memory killer, or a person: whatever was being read is not to blame.
        (-9, "3", "nvmlDeviceGetPowerUsage", []),
        (-11, "", IDLE, []),
        (EXIT_DRIVER_GONE, "3", "nvmlDeviceGetPowerUsage", []),
    ],
)
def test_a_call_that_crashes_costs_what_it_read(
    world: World, status: int, subject: str, call: str, aside: list[str]
) -> None:
    """The successor leaves the GPU or collector alone in which the process crashed, and reads the others."""
    world.announce(subject, call)
    world.processes[0].status = status
    world.tick()
    world.tick(1.1)
    assert list(world.processes[1].settings.avoid) == aside


def test_restarts_after_a_crash_wait_longer_each_time(world: World) -> None:
    """One second, then two: a process that cannot start does not spin."""
    world.processes[0].status = 1
    world.tick()
    world.tick(0.5)
    assert len(world.processes) == 1
    world.tick(0.6)
    assert len(world.processes) == 2
    world.processes[1].status = EXIT_DRIVER_GONE
    world.tick()
    world.tick(1.5)
    assert len(world.processes) == 2
    world.tick(0.6)
    assert len(world.processes) == 3
    assert world.supervisor.restarts == {"hang": 0, "exit": 1, "driver": 1}


def test_a_torn_sample_is_dropped(world: World) -> None:
    """Bytes that are no sample change nothing."""
    world.processes[0].receive(b"\xff\x00garbage")
    assert world.samples == []


def test_a_gpu_that_answers_again_is_forgiven(world: World) -> None:
    """After twice its time aside without a hang, the next hang counts as the first."""
    import msgspec

    world.announce("3", "call")
    world.tick(11)
    world.tick()
    world.tick()
    world.now_ns += 4 * FIRST_QUARANTINE_NS
    world.processes[-1].receive(msgspec.msgpack.encode(Sample(1, 2, 3)))
    assert world.supervisor.quarantines == {}
    assert [sample.sequence for sample in world.samples] == [1]


def test_the_page_is_shared_between_two_mappings() -> None:
    """What one side announces, the other reads; long names are cut, not refused."""
    import os

    page = SharedPage()
    other = SharedPage(os.dup(page.descriptor))
    page.announce("7", "x" * 200)
    seen = other.read()
    assert seen is not None
    assert (seen.subject, seen.call) == ("7", "x" * 64)
    page.clear()
    assert other.read() == ("", "", 0)
    other.close()
    page.close()


def test_lengths_on_the_pipe_are_four_bytes() -> None:
    """The frame that both processes agree on."""
    assert LENGTH.size == 4


def test_a_process_that_cannot_be_started_is_tried_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """No descriptor or memory left just now: the server lives, counts it, and tries after 1 s, then after 2 s."""
    attempts: list[int] = []

    def refuse(*_arguments: object) -> FakeProcess:
        attempts.append(world.now_ns)
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(world.supervisor, "_launch", refuse)
    world.processes[-1].status = 1
    world.tick()
    world.tick(1.01)
    assert len(attempts) == 1
    world.tick(0.5)
    assert len(attempts) == 1
    world.tick(2)
    assert len(attempts) == 2
    assert world.supervisor.restarts["exit"] == 3
    monkeypatch.undo()
    world.tick(5)
    assert len(world.processes) == 2
