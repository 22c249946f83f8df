"""Times of collectives on a device's streams: a backend that only queues work, and events with scripted instants."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
from torch.distributed import _functional_collectives as funcol  # noqa: E402
from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: E402

from scope.record import device as device_module  # noqa: E402
from scope.record.collectives import device_times, groups  # noqa: E402
from scope.record.collectives.device_times import DeviceTimes  # noqa: E402
from scope.record.collectives.recorder import CollectiveRecorder  # noqa: E402
from scope.record.collectives.waits import BackwardWaits  # noqa: E402
from scope.run.calls import CallLog, CallShape  # noqa: E402
from scope.run.layout import (  # noqa: E402
    FLAG_COMPLETED,
    FLAG_DEVICE_TIMED,
    FLAG_WAIT_SEEN,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

MS = 1_000_000
HOST_NS = 50_000 * MS
"""What the host's clock shows throughout."""
ANCHOR_NS = 7_000 * MS
"""What the device's clock shows when the anchor is taken: its origin is another than the host's."""


class FakeDevice:
    """Events on the current stream happen at the scripted instants of the device; those up to `now_ns` are done."""

    def __init__(self) -> None:
        self.script_ms: list[float] = []
        self.now_ns = ANCHOR_NS + 1000 * MS
        self.capturing = False
        self.num_made = 0

    def make_event(self) -> FakeEvent:
        """Return an event that has not been recorded."""
        self.num_made += 1
        return FakeEvent(self)


class FakeEvent:
    """Stands for `torch.cuda.Event`."""

    def __init__(self, device: FakeDevice) -> None:
        self.device = device
        self.at_ns = 0

    def record(self, stream: str | None = None) -> None:
        """Happen at the next instant of the script; on the own stream at once."""
        self.at_ns = ANCHOR_NS if stream == "own" else ANCHOR_NS + round(self.device.script_ms.pop(0) * MS)

    def query(self) -> bool:
        """Return whether the device has come past it."""
        assert not self.device.capturing, "a query would break the capture"
        return self.at_ns <= max(self.device.now_ns, ANCHOR_NS)

    def elapsed_time(self, end: FakeEvent) -> float:
        """Return the milliseconds to another event."""
        return (end.at_ns - self.at_ns) / MS


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> FakeDevice:
    """A device whose clock and the host's are at known places."""
    monkeypatch.setattr(device_times, "time", SimpleNamespace(monotonic_ns=lambda: HOST_NS))
    return FakeDevice()


@pytest.fixture
def log() -> CallLog:
    """A log without a black box."""
    return CallLog(None)


@pytest.fixture
def times(log: CallLog, device: FakeDevice) -> DeviceTimes:
    """Times from the fake device."""
    return DeviceTimes(log, make_event=device.make_event, make_stream=lambda: "own", capturing=lambda: device.capturing)


@pytest.fixture(params=["dispatcher", "methods"])
def recorder(
    request: pytest.FixtureRequest, log: CallLog, times: DeviceTimes, monkeypatch: pytest.MonkeyPatch
) -> Iterator[CollectiveRecorder]:
    """A recorder of a fake world whose backend is taken for one that runs on a device."""
    monkeypatch.setattr(groups, "_runs_on_device", lambda process_group: True)
    dist.init_process_group("fake", rank=0, world_size=4, store=FakeStore())
    recorder = CollectiveRecorder(log, route=request.param, device=times)
    recorder.attach()
    yield recorder
    recorder.close()
    dist.destroy_process_group()
    assert recorder.guard.reasons == {}


def test_a_blocked_stream_tells_all_times(log: CallLog, recorder: CollectiveRecorder, device: FakeDevice) -> None:
    """Reached at 10 ms, waited for from 10.5 to 13.5 ms of the device: blocked 3 ms, and over at 13.5 ms."""
    device.script_ms = [10, 10.5, 13.5]
    dist.all_reduce(torch.ones(2))
    (call,) = log.next_step(0).seen
    assert not call.flags & (FLAG_COMPLETED | FLAG_WAIT_SEEN), "the host's return says nothing"
    assert (call.arrived_ns, call.completed_ns, call.blocked_ns) == (0, 0, -1)
    recorder.tracker.release()
    assert call.flags & FLAG_COMPLETED
    assert call.flags & FLAG_WAIT_SEEN
    assert call.flags & FLAG_DEVICE_TIMED
    assert call.arrived_ns == HOST_NS + 10 * MS
    assert call.completed_ns == HOST_NS + 13.5 * MS
    assert call.blocked_ns == 3 * MS


def test_a_stream_of_another_thread_tells_that_a_call_is_over_and_not_what_training_waits(
    log: CallLog, recorder: CollectiveRecorder, device: FakeDevice
) -> None:
    """A thread's stream is blocked from 10.5 to 13.5 ms by a call of training, from which training's may be as well."""
    device.script_ms = [10, 10.5, 13.5]
    work = dist.all_reduce(torch.ones(2), async_op=True)
    assert work is not None
    thread = threading.Thread(target=work.wait)
    thread.start()
    thread.join()
    recorder.tracker.release()
    step = log.next_step(0)
    assert step.conclude()[1:3] == (None, 0.0)
    assert step.seen[0].completed_ns == HOST_NS + 13.5 * MS


def test_an_overlapped_call_is_over_at_an_unknown_instant(
    log: CallLog, recorder: CollectiveRecorder, device: FakeDevice
) -> None:
    """A stream that is not blocked at the wait shows that the call is over, and not since when."""
    device.script_ms = [10, 30, 30.004]
    work = dist.all_reduce(torch.ones(2), async_op=True)
    assert work is not None
    work.wait()
    recorder.tracker.release()
    step = log.next_step(0)
    (call,) = step.seen
    assert call.flags & FLAG_COMPLETED
    assert (call.completed_ns, call.blocked_ns) == (0, 4_000)
    assert step.num_outstanding() == 0
    assert call.counter.completed == 1
    (total,) = step.conclude().collectives
    assert (total.num_timed, total.duration_ns) == (0, None)
    assert (total.num_blocked_known, total.blocked_ns) == (1, 4_000)


def test_the_length_of_a_call_counts_from_its_arrival(
    log: CallLog, recorder: CollectiveRecorder, device: FakeDevice
) -> None:
    """The host issued the call an age before the device came to it at 40 ms; it was over at 42 ms."""
    device.script_ms = [40, 41, 42]
    dist.all_reduce(torch.ones(2))
    recorder.tracker.release()
    (total,) = log.next_step(0).conclude().collectives
    assert (total.num_timed, total.duration_ns) == (1, 2 * MS)


def test_what_is_under_way_stays_unknown(log: CallLog, recorder: CollectiveRecorder, device: FakeDevice) -> None:
    """While the device has reached the call and not its end, only the arrival is known; later polls add the rest."""
    device.script_ms = [10, 10.5, 500]
    device.now_ns = ANCHOR_NS + 20 * MS
    dist.all_reduce(torch.ones(2))
    recorder.tracker.release()
    step = log.next_step(0)
    (call,) = step.seen
    assert call.arrived_ns == HOST_NS + 10 * MS
    assert step.num_outstanding() == 1
    device.now_ns = ANCHOR_NS + 501 * MS
    recorder.tracker.release()
    assert step.num_outstanding() == 0
    assert call.completed_ns == HOST_NS + 500 * MS


def test_a_dropped_work_is_never_called_over(log: CallLog, recorder: CollectiveRecorder, device: FakeDevice) -> None:
    """Nobody waits for it: its arrival is known, its end and its wait are not."""
    device.script_ms = [10]
    dist.all_reduce(torch.ones(2), async_op=True)
    recorder.tracker.release()
    (call,) = log.next_step(0).seen
    assert call.arrived_ns
    assert not call.flags & (FLAG_COMPLETED | FLAG_WAIT_SEEN)


def test_nothing_is_recorded_or_asked_while_a_graph_is_captured(
    log: CallLog, recorder: CollectiveRecorder, device: FakeDevice, times: DeviceTimes
) -> None:
    """A call that is captured gets no times, and events of earlier calls are not asked for until the capture ends."""
    device.script_ms = [10, 10.5, 13.5]
    dist.all_reduce(torch.ones(2))
    device.capturing = True
    dist.all_reduce(torch.ones(2))
    recorder.tracker.release()
    before, captured = log.next_step(0).seen
    assert not before.flags & FLAG_COMPLETED
    device.capturing = False
    recorder.tracker.release()
    assert before.flags & FLAG_COMPLETED
    assert (captured.arrived_ns, captured.completed_ns, captured.blocked_ns) == (0, 0, -1)
    assert not captured.flags & FLAG_COMPLETED
    assert times.num_dropped == 2


def test_events_are_used_again_and_never_too_many(
    log: CallLog, recorder: CollectiveRecorder, device: FakeDevice, times: DeviceTimes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With four events at most, ten calls in flight drop samples and nothing else; finished ones free their events."""
    monkeypatch.setattr(device_module, "_MAX_EVENTS", 4)
    device.now_ns = 0
    device.script_ms = [10] * 4
    for _ in range(10):
        dist.all_reduce(torch.ones(2), async_op=True)
    assert times.num_dropped == 6
    device.now_ns = ANCHOR_NS + 1000 * MS
    recorder.tracker.release()
    made = device.num_made
    device.script_ms = [20, 21, 23] * 5
    for _ in range(5):
        dist.all_reduce(torch.ones(2))
        recorder.tracker.release()
    assert device.num_made == made
    assert [call.blocked_ns for call in log.next_step(0).seen[10:]] == [2 * MS] * 5


def test_a_functional_wait_is_timed_on_the_stream(
    log: CallLog, device: FakeDevice, times: DeviceTimes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Issued at 5 ms, waited for from 6 to 9 ms: the wait of a functional collective is an event pair as well."""
    monkeypatch.setattr(groups, "_runs_on_device", lambda process_group: True)
    dist.init_process_group("fake", rank=0, world_size=4, store=FakeStore())
    recorder = CollectiveRecorder(log, route="dispatcher", device=times)
    recorder.attach()
    try:
        device.script_ms = [5, 6, 9]
        result = funcol.all_reduce(torch.ones(2), "sum", dist.group.WORLD)  # pyright: ignore[reportArgumentType]
        torch.ops._c10d_functional.wait_tensor(result)
        recorder.tracker.release()
    finally:
        recorder.close()
        dist.destroy_process_group()
    (call,) = log.next_step(0).seen
    assert (call.arrived_ns, call.completed_ns) == (HOST_NS + 5 * MS, HOST_NS + 9 * MS)
    assert call.blocked_ns == 3 * MS


def test_the_wait_of_a_backward_is_that_of_its_last_bucket(
    log: CallLog, device: FakeDevice, times: DeviceTimes
) -> None:
    """The stream waits for three buckets in one go, 4 ms: known in sum, unknown for the first two."""
    queued: list[Any] = []
    waits = BackwardWaits(log, SimpleNamespace(disable=None), SimpleNamespace(backward=None), times)  # type: ignore[arg-type]
    waits._queue_callback = queued.append  # pyright: ignore[reportAttributeAccessIssue]
    calls = [log.issue(CallShape(0, 0, 0, 1, 8, 8, word=1), FLAG_DEVICE_TIMED, number) for number in (1, 2, 3)]
    for call in calls:
        waits.watch(call)
    device.script_ms = [100, 104]
    while queued:
        queued.pop(0)()
    times.poll()
    assert [call.blocked_ns for call in calls] == [-1, -1, 4 * MS]
    assert [bool(call.flags & FLAG_COMPLETED) for call in calls] == [False, False, True]
    assert calls[-1].counter.completed == 3


def test_without_an_anchor_no_instant_is_made_up(
    log: CallLog, device: FakeDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the event on the own stream is never seen to be done, lengths are known and instants absent."""
    clock = iter(range(HOST_NS, 2 * HOST_NS, MS))
    monkeypatch.setattr(device_times, "time", SimpleNamespace(monotonic_ns=lambda: next(clock)))
    times = DeviceTimes(log, make_event=device.make_event, make_stream=lambda: "own", capturing=lambda: False)
    call = log.issue(CallShape(0, 0, 0, 1, 8, 8, word=1), FLAG_DEVICE_TIMED, 1)
    device.script_ms = [10, 11, 15]
    times.issued(call)
    times.waited(call, times.mark())
    monkeypatch.setattr(FakeEvent, "query", lambda self: self.at_ns > ANCHOR_NS)
    times.poll()
    assert times.clock.error_ns is None
    assert (call.arrived_ns, call.completed_ns, call.blocked_ns) == (0, 0, 4 * MS)
    assert call.flags & FLAG_COMPLETED


def test_the_anchor_says_how_good_it_is(log: CallLog, device: FakeDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds of 20 us each leave the anchor within 10 us of the middle of its interval."""
    clock = iter(range(HOST_NS, HOST_NS + MS, 10_000))
    monkeypatch.setattr(device_times, "time", SimpleNamespace(monotonic_ns=lambda: next(clock)))
    times = DeviceTimes(log, make_event=device.make_event, make_stream=lambda: "own", capturing=lambda: False)
    times.clock.renew()
    # One reading to begin with, then two a round, 10 us apart.
    assert times.clock.error_ns == 5_000


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_real_device_times_a_call_on_nccl(tmp_path: Any, log: CallLog) -> None:
    """On one GPU: a kernel before the call delays its arrival, and the host's return is not its completion."""
    torch.cuda.set_device(0)
    store = dist.FileStore(str(tmp_path / "store"), 1)  # pyright: ignore[reportPrivateImportUsage]
    dist.init_process_group("nccl", rank=0, world_size=1, store=store)
    recorder = CollectiveRecorder(log)
    try:
        tensor = torch.ones(2**24, device="cuda")
        dist.all_reduce(tensor)
        torch.cuda.synchronize()
        recorder.attach()
        torch.cuda._sleep(200_000_000)
        dist.all_reduce(tensor)
        (call,) = log.next_step(0).seen
        assert not call.flags & FLAG_COMPLETED
        torch.cuda.synchronize()
        recorder.tracker.release()
    finally:
        recorder.close()
        dist.destroy_process_group()
    assert call.flags & FLAG_DEVICE_TIMED
    assert call.flags & FLAG_COMPLETED
    assert call.arrived_ns - call.issued_ns > 20 * MS
    assert call.completed_ns == 0 or call.completed_ns > call.arrived_ns
    assert call.blocked_ns >= 0
