"""The hooks on collectives alone, on the fake backend: guards, restoration, forks, identities, wait sites."""

from __future__ import annotations

import gc
import os
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
from torch.distributed import _functional_collectives as funcol  # noqa: E402
from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from scope.record.collectives import callers, tracker  # noqa: E402
from scope.record.collectives.coverage import FlightRecorderPoll  # noqa: E402
from scope.record.collectives.described import measure_described  # noqa: E402
from scope.record.collectives.operations import FUNCTIONAL, PLAIN, SPECS  # noqa: E402
from scope.record.collectives.recorder import CollectiveRecorder  # noqa: E402
from scope.run.calls import CallLog  # noqa: E402
from scope.run.layout import FLAG_ASYNCHRONOUS, FLAG_COMPLETED, FLAG_WAIT_SEEN  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from scope.run.calls import StepCalls


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """A fake world of four ranks; after each test no kernel and no patch of ours is left."""
    wait = dist.Work.wait
    methods = {name: getattr(dist.ProcessGroup, name) for name in ("allreduce", "broadcast", "send")}
    dist.init_process_group("fake", rank=0, world_size=4, store=FakeStore())
    yield
    dist.destroy_process_group()
    assert dist.Work.wait is wait
    assert all(getattr(dist.ProcessGroup, name) is method for name, method in methods.items())
    for spec in SPECS:
        assert not torch._C._dispatch_has_kernel_for_dispatch_key(f"c10d::{spec.name}", "BackendSelect")


@pytest.fixture
def log() -> CallLog:
    """A log without a black box."""
    return CallLog(None)


@pytest.fixture
def recorder(log: CallLog) -> Iterator[CollectiveRecorder]:
    """An attached recorder, closed at the end."""
    recorder = CollectiveRecorder(log)
    recorder.attach()
    yield recorder
    recorder.close()


def in_thread(act: Callable[[], object]) -> None:
    """Do something in another thread."""
    thread = threading.Thread(target=act)
    thread.start()
    thread.join()


def test_attach_and_close_may_be_repeated(log: CallLog, recorder: CollectiveRecorder) -> None:
    """A second attach or close changes nothing, and after close nothing is recorded any more."""
    recorder.attach()
    dist.all_reduce(torch.ones(2))
    recorder.close()
    recorder.close()
    dist.all_reduce(torch.ones(2))
    assert len(log.next_step(0).seen) == 1


def test_a_sink_that_raises_never_reaches_training(recorder: CollectiveRecorder) -> None:
    """A hook whose sink raises is switched off, counted and told once, and the collective still happens."""
    told: list[str] = []

    class Broken(CallLog):
        def issue(self, shape: Any, flags: int, issued_ns: int) -> Any:
            message = "disk on fire"
            raise RuntimeError(message)

    broken = CollectiveRecorder(Broken(None), hook_disabled=lambda hook, reason: told.append(reason))
    recorder.close()
    broken.attach()
    for _ in range(3):
        dist.all_reduce(torch.ones(2))
    broken.close()
    assert told == ["RuntimeError: disk on fire"]
    assert broken.guard.num_failures == 1


def test_a_failing_collective_raises_as_before(log: CallLog, recorder: CollectiveRecorder) -> None:
    """An error of the backend reaches the caller unchanged, and its call is not called completed."""
    with pytest.raises(NotImplementedError):
        dist.all_reduce(torch.ones(2, 2).to_mkldnn())
    # Without a kernel for such tensors the call never comes to the group, whose hooks torch 2.14 offers.
    seen = log.next_step(0).seen
    assert len(seen) == (recorder.route != "hooks")
    assert not any(call.flags & FLAG_COMPLETED for call in seen)
    assert recorder.guard.reasons == {}
    dist.all_reduce(torch.ones(2))
    assert log.next_step(1).seen[0].flags & FLAG_COMPLETED


@pytest.mark.parametrize("by", ["a blocking call", "Work.wait", "a functional wait"])
def test_waits_of_a_thread_beside_training_are_not_the_steps(
    log: CallLog, recorder: CollectiveRecorder, by: str
) -> None:
    """A checkpoint's thread waits in calls of its own: the step's wait is that of the training thread's calls alone."""

    def save() -> None:
        if by == "a blocking call":
            dist.all_reduce(torch.ones(64))
        elif by == "Work.wait":
            work = dist.all_reduce(torch.ones(64), async_op=True)
            assert work is not None
            work.wait()
        else:
            result = funcol.all_reduce(torch.ones(64), "sum", dist.group.WORLD)  # pyright: ignore[reportArgumentType]
            funcol.wait_tensor(result)

    dist.all_reduce(torch.ones(2))
    in_thread(save)
    dist.all_reduce(torch.ones(2))
    step = log.next_step(0)
    own, other, last = step.seen
    assert min(own.blocked_ns, other.blocked_ns, last.blocked_ns) > 0
    outcome = step.conclude()
    trained_ns = own.blocked_ns + last.blocked_ns
    assert outcome.wait_ns == trained_ns
    assert sum(total.blocked_ns or 0 for total in outcome.collectives) == trained_ns + other.blocked_ns


@pytest.mark.parametrize("is_first", [True, False])
def test_whoever_ends_steps_trains(log: CallLog, recorder: CollectiveRecorder, is_first: bool) -> None:
    """A loop in another thread than the recorder's waits in its own calls, whether it first calls or ends a step."""

    def loop() -> None:
        if is_first:
            dist.all_reduce(torch.ones(2))
        log.next_step(0)
        dist.all_reduce(torch.ones(2))
        steps.append(log.next_step(1))

    steps: list[StepCalls] = []
    in_thread(loop)
    (call,) = steps[0].seen
    assert call.blocked_ns > 0
    assert steps[0].conclude()[1:3] == (call.blocked_ns, 1.0)


@pytest.mark.parametrize("is_functional", [True, False])
def test_how_long_training_waits_a_helper_does_not_tell(
    log: CallLog, recorder: CollectiveRecorder, is_functional: bool
) -> None:
    """A thread waits for a call of training: the wait of the step is not known, and the call is over."""
    if is_functional:
        result = funcol.all_reduce(torch.ones(64), "sum", dist.group.WORLD)  # pyright: ignore[reportArgumentType]
        in_thread(lambda: funcol.wait_tensor(result))
    else:
        work = dist.all_reduce(torch.ones(64), async_op=True)
        assert work is not None
        in_thread(work.wait)
    step = log.next_step(0)
    assert step.conclude()[1:3] == (None, 0.0)
    assert step.num_outstanding() == 0


def test_training_may_wait_for_what_a_helper_has_waited_for(log: CallLog, recorder: CollectiveRecorder) -> None:
    """Both wait for one Work, the helper first: the wait is that of training."""
    work = dist.all_reduce(torch.ones(64), async_op=True)
    assert work is not None
    in_thread(work.wait)
    work.wait()
    step = log.next_step(0)
    (call,) = step.seen
    assert call.blocked_ns > 0
    assert step.conclude()[1:3] == (call.blocked_ns, 1.0)


def test_threads_of_a_backward_belong_to_training(log: CallLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a thread of the autograd engine waits, training waits, even where a thread that is gone had its identity."""
    tracker.ThreadState(log)
    assert log.threads_apart == set()
    log.training_thread += 1
    tracker.ThreadState(log)
    assert log.threads_apart == {threading.get_ident()}
    monkeypatch.setattr(tracker, "_in_backward", lambda: 3)
    tracker.ThreadState(log)
    assert log.threads_apart == set()


def test_wait_is_known_by_its_work(log: CallLog, recorder: CollectiveRecorder) -> None:
    """Of two asynchronous calls only the one that is waited for has a wait site."""
    first = dist.all_reduce(torch.ones(2), async_op=True)
    second = dist.all_reduce(torch.ones(2), async_op=True)
    assert first is not None
    first.wait()
    one, two = log.next_step(0).seen
    assert one.flags & FLAG_WAIT_SEEN
    assert not two.flags & FLAG_WAIT_SEEN
    assert one.flags & two.flags & FLAG_ASYNCHRONOUS
    assert second is not None


def test_no_work_is_kept_after_release(recorder: CollectiveRecorder) -> None:
    """A Work that the program drops is gone after the end of the step, and its tensor at once after it."""
    tensor = torch.ones(1024)
    work = dist.all_reduce(tensor, async_op=True)
    gone = weakref.ref(work)
    kept = weakref.ref(tensor)
    del work, tensor
    recorder.tracker.release()
    gc.collect()
    assert gone() is None
    assert kept() is None


def test_blocking_call_is_complete_when_it_returns(log: CallLog, recorder: CollectiveRecorder) -> None:
    """A blocking call has its wait and completion, in order."""
    dist.all_reduce(torch.ones(2))
    (call,) = log.next_step(0).seen
    assert call.flags & FLAG_COMPLETED
    assert 0 < call.issued_ns <= call.issued_ns + call.blocked_ns <= call.completed_ns


def test_sparse_tensors_count_values_and_indices(log: CallLog, recorder: CollectiveRecorder) -> None:
    """A sparse tensor of two elements is two float32 values and 2 x 1 int64 indices: 24 bytes."""
    sparse = torch.sparse_coo_tensor(torch.tensor([[0, 5]]), torch.ones(2), (1000,), check_invariants=True)
    dist.all_reduce(sparse)
    (call,) = log.next_step(0).seen
    assert (call.shape.in_bytes, call.shape.out_bytes) == (24, 24)


def test_groups_are_released_and_numbered_anew(recorder: CollectiveRecorder) -> None:
    """A group that is destroyed is marked so; a later one at the same address is another."""
    group = dist.new_group([0, 1])
    dist.all_reduce(torch.ones(2), group=group)
    dist.destroy_process_group(group)  # type: ignore[arg-type]
    del group
    gc.collect()
    other = dist.new_group([0, 2])
    dist.all_reduce(torch.ones(2), group=other)
    first, second = recorder.groups.infos()
    assert (first.ranks, second.ranks) == ((0, 1), (0, 2))
    assert first.destroyed_ns is not None
    assert second.destroyed_ns is None


def test_a_group_of_the_programs_own_is_kept_no_longer_than_by_the_program(recorder: CollectiveRecorder) -> None:
    """A group that torch does not know stands as long as the program holds it, without a name; then it is let go."""
    if recorder.route == "hooks":
        pytest.skip("the hooks of torch 2.14 are attached to the groups of torch.distributed, which is told")
    store, gloo = dist.HashStore(), dist.ProcessGroup.BackendType.GLOO  # type: ignore[attr-defined]
    group = dist.ProcessGroup(store, 0, 1)
    group._set_default_backend(gloo)
    group._register_backend(torch.device("cpu"), gloo, dist.ProcessGroupGloo(store, 0, 1))  # type: ignore[attr-defined]
    group.allreduce([torch.ones(2)]).wait()
    reference = weakref.ref(group)
    (info,) = recorder.groups.infos()
    assert (info.name, info.ranks, info.backend, info.destroyed_ns) == ("", (0,), "gloo", None)
    del group
    assert reference() is not None
    for _ in range(100):  # the last completion may be on its way
        (info,) = recorder.groups.infos()
        if reference() is None:
            break
        time.sleep(0.05)
    assert info.destroyed_ns is not None
    assert reference() is None


def test_a_group_that_is_destroyed_leaves_its_calls_open(log: CallLog, recorder: CollectiveRecorder) -> None:
    """Of a call that is under way when its group is destroyed nothing is made up, and the next group starts at 1."""
    group = dist.new_group([0, 1])
    work = dist.all_reduce(torch.ones(2), group=group, async_op=True)
    dist.destroy_process_group(group)  # type: ignore[arg-type]
    del group, work
    gc.collect()
    dist.all_reduce(torch.ones(2), group=dist.new_group([0, 2]))
    open_call, after = log.next_step(0).seen
    assert not open_call.flags & FLAG_WAIT_SEEN
    assert (open_call.shape.group, open_call.sequence) == (0, 1)
    assert (after.shape.group, after.sequence) == (1, 1)
    assert recorder.guard.reasons == {}


def test_a_dispatch_mode_does_not_make_calls_functional(log: CallLog, recorder: CollectiveRecorder) -> None:
    """Under a mode that calls each operator anew, as a FLOP counter does, calls keep the variant of who issued them."""

    class PassThrough(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return func(*args, **(kwargs or {}))

    with PassThrough(), PassThrough():
        dist.all_reduce(torch.ones(2))
        funcol.all_reduce(torch.ones(2), "sum", dist.group.WORLD)  # pyright: ignore[reportArgumentType]
    plain, functional = log.next_step(0).seen
    assert (plain.shape.variant, functional.shape.variant) == (PLAIN, FUNCTIONAL)
    assert plain.flags & FLAG_WAIT_SEEN
    assert not plain.flags & FLAG_ASYNCHRONOUS
    assert functional.flags & FLAG_ASYNCHRONOUS


def test_a_dropped_work_is_forgotten_when_others_come(log: CallLog, recorder: CollectiveRecorder) -> None:
    """Works that nobody waits for do not pile up: of 10,000 at most the newest few thousand entries are kept."""
    for _ in range(10_000):
        dist.all_reduce(torch.ones(2), async_op=True)
    assert len(recorder.tracker.works) <= 4096
    assert not any(call.flags & FLAG_WAIT_SEEN for call in log.next_step(0).seen)


def test_a_forked_child_passes_through(log: CallLog, recorder: CollectiveRecorder) -> None:
    """After a fork the child records nothing, and its collectives still work."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        dist.all_reduce(torch.ones(2))
        os.write(writing, b"%d" % len(log.next_step(0).seen))
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as answer:
        assert answer.read() == "0"
    os.waitpid(child, 0)
    assert recorder.tracker.active


def test_methods_route_restores_and_says_its_blindness(log: CallLog, recorder: CollectiveRecorder) -> None:
    """Patched methods see the Python API, and say what they cannot see."""
    recorder.close()
    methods = CollectiveRecorder(log, route="methods")
    methods.attach()
    dist.broadcast(torch.ones(4), src=0)
    methods.close()
    (call,) = log.next_step(0).seen
    assert (call.shape.in_bytes, call.shape.out_bytes) == (16, 0)
    assert "DDP's reducer" in methods.blind_to


@pytest.mark.parametrize(
    ("operation", "inputs", "outputs", "root", "expected"),
    [
        ("all_reduce", (6,), (), -1, (24, 24, False)),
        ("broadcast", (6,), (), 0, (24, 0, False)),
        ("broadcast", (6,), (), 1, (0, 24, False)),
        ("reduce", (6,), (), 1, (24, 0, False)),
        ("all_gather", (2,), (2, 2, 3), -1, (8, 28, True)),
        ("scatter", (2, 2), (2,), 0, (16, 8, False)),
        ("gather", (2,), (2, 2), 0, (8, 16, False)),
        ("all_to_all", (1, 3), (2, 2), -1, (16, 16, True)),
    ],
)
def test_described_calls(
    operation: str, inputs: tuple[int, ...], outputs: tuple[int, ...], root: int, expected: tuple[int, int, bool]
) -> None:
    """What a hook describes gives rank 0's bytes: a root gives or gets, others the other way round."""
    measured = measure_described(
        operation, [torch.ones(n) for n in inputs], [torch.ones(n) for n in outputs], root=root, rank=0
    )
    assert (measured.in_bytes, measured.out_bytes, measured.uneven) == expected


@pytest.mark.parametrize(
    ("path", "name", "kind"),
    [
        ("/x/torch/distributed/distributed_c10d.py", "all_reduce", callers.API),
        ("/x/torch/distributed/distributed_c10d.py", "broadcast_object_list", callers.API_OBJECT),
        ("/x/torch/distributed/distributed_c10d.py", "recv", callers.API_BLOCKING_P2P),
        ("/x/torch/autograd/graph.py", "_engine_run_backward", callers.ENGINE),
        ("/x/torch/_ops.py", "__call__", callers.FUNCTIONAL),
        ("<eval_with_key>.3", "forward", callers.COMPILED),
        ("/tmp/torchinductor_me/ab/c.py", "call", callers.COMPILED),
        ("/home/me/train.py", "main", callers.USER),
    ],
)
def test_callers_are_told_apart(path: str, name: str, kind: int) -> None:
    """The file and name of the calling function say by which API a call was made."""
    assert callers.classify_code(path, name) == kind


def test_coverage_is_unknown_without_a_flight_recorder(log: CallLog, recorder: CollectiveRecorder) -> None:
    """Without a Flight Recorder, or with one in an unknown layout, coverage is absent with its reason, never 100 %."""
    dist.all_reduce(torch.ones(2))
    for dump in (None, lambda **_: b"not json"):
        (item,) = FlightRecorderPoll(recorder.groups, dump).coverage(log)
        assert (item.seen, item.flight_recorder, item.ratio) == (1, None, None)
        assert item.reason is not None


def test_an_empty_flight_recorder_is_read_seldom(recorder: CollectiveRecorder) -> None:
    """While it tells of no group it is read at every eighth poll, and at each once it does."""
    status, num_reads = "", 0

    def dump(**_: bool) -> bytes:
        nonlocal num_reads
        num_reads += 1
        return f'{{"pg_status": {{{status}}}, "entries": []}}'.encode()

    poll = FlightRecorderPoll(recorder.groups, dump)
    num_reads = 0
    for _ in range(17):
        poll.poll()
    assert num_reads == 3
    status = '"0": {"last_enqueued_collective": "1"}'
    poll._names["0"] = "default_pg"
    for _ in range(10):
        poll.poll()
    assert num_reads == 3 + 3


def test_a_flight_recorder_is_read_at_once_when_a_group_appears(recorder: CollectiveRecorder) -> None:
    """The first poll comes before any group: the next one after the first call reads the status, not the eighth."""
    reads: list[bool] = []

    def dump(*, includeCollectives: bool) -> bytes:
        reads.append(includeCollectives)
        return b"{}"

    poll = FlightRecorderPoll(recorder.groups, dump)
    poll.poll()
    reads.clear()
    poll.poll()
    assert reads == []
    dist.all_reduce(torch.ones(2))
    poll.poll()
    poll.poll()
    assert reads == [False]


def test_coverage_counts_from_the_attachment(log: CallLog, recorder: CollectiveRecorder) -> None:
    """What the Flight Recorder had counted before is not held against the hooks: of four more, one was seen."""
    counted = 10

    def dump(**_: bool) -> bytes:
        entry = '{"pg_id": 0, "process_group": ["0", "default_pg"], "p2p_seq_id": 0}'
        status = f'{{"0": {{"last_enqueued_collective": "{counted}"}}}}'
        return f'{{"pg_status": {status}, "entries": [{entry}]}}'.encode()

    poll = FlightRecorderPoll(recorder.groups, dump)
    dist.all_reduce(torch.ones(2))
    counted = 14
    (item,) = poll.coverage(log)
    assert (item.seen, item.flight_recorder, item.ratio) == (1, 4, 0.25)
