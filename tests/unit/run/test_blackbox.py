"""The black box and call records: what is written comes back, torn or foreign bytes are told apart."""

from __future__ import annotations

import os
import random
import struct
import threading
from pathlib import Path
from typing import TYPE_CHECKING
from zlib import crc32

import pytest

from scope.errors import RunError
from scope.run import layout
from scope.run.blackbox import BlackBox, BlackBoxIdentity, read_black_box
from scope.run.calls import CallLog, CallShape, pack_segment_header, read_segment
from scope.run.schema import OPERATIONS, PHASES

if TYPE_CHECKING:
    from collections.abc import Callable

    from scope.run.calls import Call, StepCalls

SAMPLE_RANK = Path(__file__).parents[3] / "sample_traces/gloo-4-ranks-straggler/attempt-000/ranks/00000"
WHO = BlackBoxIdentity(rank=3, attempt=1, world_size=8, pid=77, process_start_ticks=1234, wall_offset_ns=1_000_000)
ALL_REDUCE = OPERATIONS.index("all_reduce")
SEND = OPERATIONS.index("send")

SHAPE = CallShape(0, ALL_REDUCE, 0, 1, 64, 64, word=layout.hash_word(operation=ALL_REDUCE, dtype=1, root=-1, count=16))


def make_box(path: Path) -> BlackBox:
    """A black box that is in forward of step 7."""
    box = BlackBox(path, WHO)
    box.write_state(layout.STATE.pack(7, 7, 100, 150, 160, 90, 1, b"forward"))
    return box


def test_state_round_trip(tmp_path: Path) -> None:
    """Identity, step, phase and their instants come back, the wall offset added."""
    box = make_box(tmp_path / "blackbox.bin")
    state = read_black_box(tmp_path / "blackbox.bin")
    box.close()
    assert state.identity == WHO
    assert (state.step, state.num_steps, state.phase) == (7, 7, "forward")
    assert (state.step_start_ns, state.phase_start_ns, state.beat_ns) == (1_000_100, 1_000_150, 1_000_160)
    assert state.last_step_duration_ns == 90
    assert state.pulse_ns is None
    assert not state.closed


def test_ring_keeps_the_last_calls_and_groups_without_a_pulse(tmp_path: Path) -> None:
    """After 1,500 calls the ring holds the last 1,024, and groups are known though the 1 Hz thread never ran."""
    box = make_box(tmp_path / "b")
    log = CallLog(box)
    log.next_step(7)
    for number in range(1500):
        call = log.issue(SHAPE, 0, 1000 + number)
        if number < 1499:
            log.complete(call, 2000 + number)
    (group,) = read_black_box(tmp_path / "b").groups
    assert (group.enqueued, group.completed) == (1500, 1499)
    log.refresh_ring()
    state = read_black_box(tmp_path / "b")
    assert [call.sequence for call in state.calls] == list(range(477, 1501))
    assert state.calls[-1].completed_ns is None
    (group,) = state.groups
    assert (group.enqueued, group.completed, group.operation) == (1500, 1499, "all_reduce")
    assert group.enqueued_ns == 1_000_000 + 1000 + 1499
    box.write_groups(log.pack_groups())
    assert read_black_box(tmp_path / "b").groups == (group,)


def test_the_ring_learns_of_each_completion_whenever_it_is_told(tmp_path: Path) -> None:
    """Completions told out of order and seconds late reach the ring; that of a call whose place is taken does not."""
    box = make_box(tmp_path / "b")
    log = CallLog(box)

    def completed() -> list[int | None]:
        log.refresh_ring()
        return [call.completed_ns and call.completed_ns - 1_000_000 for call in read_black_box(tmp_path / "b").calls]

    first, second, third = (log.issue(SHAPE, 0, number) for number in (10, 20, 30))
    assert completed() == [None, None, None]
    log.complete(third, 5_000_000_000)
    assert completed() == [None, None, 5_000_000_000]
    log.complete(first, 40)
    assert completed() == [40, None, 5_000_000_000]
    for number in range(layout.NUM_RING_RECORDS - 2):
        log.issue(SHAPE, 0, 100 + number)
    log.complete(second, 50)
    assert completed()[:2] == [50, 5_000_000_000]
    newest = log.issue(SHAPE, 0, 10_000)
    log.complete(second, 60)
    assert completed()[-1] is None
    log.complete(newest, 10_001)
    assert completed()[-1] == 10_001


@pytest.mark.parametrize("num_calls", [200, 1024, 1500])
def test_the_ring_learns_of_completions_in_any_pattern(tmp_path: Path, num_calls: int) -> None:
    """Each call that has completed bears its own instant in the ring, each other none, wherever they stand in it."""
    log = CallLog(make_box(tmp_path / "b"))
    calls = [log.issue(SHAPE, 0, 1000 + number) for number in range(num_calls)]
    draw = random.Random(0)
    expected: list[int | None] = [None] * num_calls
    for _ in range(3):
        for number in draw.sample(range(num_calls), num_calls // 3):
            if expected[number] is None:
                log.complete(calls[number], 5000 + number)
                expected[number] = 1_000_000 + 5000 + number
        log.refresh_ring()
        found = read_black_box(tmp_path / "b").calls
        assert [call.sequence for call in found] == list(range(max(1, num_calls - 1023), num_calls + 1))
        assert [call.completed_ns for call in found] == expected[-1024:]


def test_hash_is_fnv1a_over_words(tmp_path: Path) -> None:
    """The rolling hash equals FNV-1a computed step by step, and sends do not enter it."""
    log = CallLog(None)
    log.issue(SHAPE, 0, 1)
    log.issue(CallShape(0, SEND, 0, 1, 64, 0, peer=1), 0, 2)
    start = 0xCBF29CE484222325
    word = start
    for part in (ALL_REDUCE | 1 << 8 | 0 << 16, 16):
        word = ((word ^ part) * 0x100000001B3) % 2**64
    expected = ((start ^ word) * 0x100000001B3) % 2**64
    (slot,) = log.pack_groups()
    assert layout.GROUP.unpack(slot)[5] == expected


def test_totals_and_waits_are_complete(tmp_path: Path) -> None:
    """Totals count every call, add up waits of one call, and say how many completions were seen."""
    log = CallLog(None)
    log.next_step(0)
    first = log.issue(CallShape(0, ALL_REDUCE, 0, 1, 100, 100, word=1), 0, 10)
    log.issue(CallShape(0, ALL_REDUCE, 0, 1, 28, 28, word=1), 0, 20)
    log.complete(first, 15)
    log.complete(first, 99)
    log.add_wait(first, 3)
    log.add_wait(first, 4)
    step = log.next_step(1)
    (total,) = step.conclude().collectives
    assert (total.num_calls, total.in_bytes, total.num_timed, total.duration_ns) == (2, 128, 1, 5)
    assert (total.num_blocked_known, total.blocked_ns) == (1, 7)
    assert step.conclude()[1:3] == (7, 0.5)
    assert step.num_outstanding() == 1


def test_a_wait_is_in_the_phase_that_the_host_was_in(tmp_path: Path) -> None:
    """A call of backward waited for 5 ns outside of it, one of 3 ns in a phase of the user's own, and a device's."""
    log = CallLog(None)
    log.next_step(0)
    shape = CallShape(0, ALL_REDUCE, 0, 1, 8, 8, word=1)
    log.phase = PHASES.index("backward")
    asynchronous, on_device = log.issue(shape, 0, 10), log.issue(shape, layout.FLAG_DEVICE_TIMED, 20)
    log.phase = PHASES.index("other")
    log.end_wait(asynchronous, 30, 35)
    log.add_wait(on_device, 100)
    log.phase = layout.OWN_PHASE
    log.add_wait(log.issue(shape, 0, 40), 3)
    step = log.next_step(1)
    assert step.conclude()[1:3] == (108, 1.0)
    assert step.conclude().wait_phases == {"other": 5, "custom": 3}
    step.take_early(15)
    assert step.conclude().wait_phases == {"other": 5, "custom": 3}


def in_thread_apart(log: CallLog, act: Callable[[], object]) -> None:
    """Do something in a thread that does not train."""

    def run() -> None:
        log.threads_apart.add(threading.get_ident())
        act()

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()


@pytest.mark.parametrize("training_is_first", [True, False])
def test_a_step_waits_for_what_its_own_thread_waits_for(training_is_first: bool) -> None:
    """Training waits 5 ns for a call, 3 and 2 ns for calls that another thread waits for too, and not for a fourth.

    The other thread has made that of 2 ns, and one of 70 ns that is its own affair.
    """
    log = CallLog(None)
    log.next_step(0)
    log.phase = PHASES.index("backward")
    shape = CallShape(0, ALL_REDUCE, 0, 1, 8, 8, word=1)
    log.end_wait(log.issue(shape, 0, 10), 10, 15)
    both, others = (log.issue(shape, layout.FLAG_ASYNCHRONOUS, instant) for instant in (20, 30))
    made: list[Call] = []

    def issue() -> None:
        made.extend((log.issue(shape, layout.FLAG_ASYNCHRONOUS, 40), log.issue(shape, 0, 50)))

    def wait() -> None:
        log.end_wait(both, 60, 260)
        log.add_wait(others, 100)
        log.add_wait(made[0], 300)
        log.end_wait(made[1], 50, 120)

    def train() -> None:
        log.end_wait(both, 60, 63)
        log.add_wait(made[0], 2)

    in_thread_apart(log, issue)
    if training_is_first:
        train()
    in_thread_apart(log, wait)
    if not training_is_first:
        train()
    step = log.next_step(1)
    assert [call.blocked_ns for call in step.seen] == [5, 3, -1, 2, 70]
    for _ in range(2):
        outcome = step.conclude()
        assert [(total.num_calls, total.num_blocked_known, total.blocked_ns) for total in outcome.collectives] == [
            (5, 4, 80)
        ]
        assert outcome[1:] == (10, 3 / 4, {"backward": 10})
        step.take_early(45)


def test_a_step_without_a_wait_of_its_own_has_none() -> None:
    """What another thread waits in a blocking call, be it the first that is known of it, is no wait of training's."""
    log = CallLog(None)
    log.next_step(0)
    shape = CallShape(0, ALL_REDUCE, 0, 1, 8, 8, word=1)
    call = log.issue(shape, 0, 20)
    in_thread_apart(log, lambda: log.end_wait(call, 20, 90))
    assert log.next_step(1).conclude()[1:3] == (0, None)
    log.issue(shape, layout.FLAG_ASYNCHRONOUS, 100)
    call = log.issue(shape, 0, 110)
    in_thread_apart(log, lambda: log.end_wait(call, 110, 180))
    assert log.next_step(2).conclude()[1:3] == (None, 0.0)


def test_whoever_ends_steps_trains() -> None:
    """Calls of a thread that was taken for another than training count from when it ends a step."""
    log = CallLog(None)
    shape = CallShape(0, ALL_REDUCE, 0, 1, 8, 8, word=1)
    steps: list[StepCalls] = []

    def loop() -> None:
        for step in range(3):
            log.end_wait(log.issue(shape, 0, 10), 10, 15)
            steps.append(log.next_step(step))

    in_thread_apart(log, loop)
    assert [step.conclude()[1:3] for step in steps] == [(0, None), (5, 1.0), (5, 1.0)]


@pytest.mark.parametrize("whole", [1, 4, 20, 60, 63])
def test_torn_record_is_counted_not_believed(tmp_path: Path, whole: int) -> None:
    """Of a record that was written over another, at whatever byte that stopped, neither is believed."""
    path = tmp_path / "b"
    box = make_box(path)
    log = CallLog(box)
    for number in range(3):
        log.issue(SHAPE, 0, 0x01010101 * (number + 1))
    descriptor = os.open(path, os.O_RDWR)
    newer = os.pread(descriptor, whole, layout.RING_OFFSET + 128)
    os.pwrite(descriptor, newer, layout.RING_OFFSET + 64)
    os.close(descriptor)
    state = read_black_box(path)
    assert [call.sequence for call in state.calls] == [1, 3]
    assert state.num_torn == 1


def test_a_damaged_record_costs_itself_alone(tmp_path: Path) -> None:
    """A record whose numbers cannot be is left out and counted; the others and the state are read."""
    path = tmp_path / "b"
    box = make_box(path)
    log = CallLog(box)
    for number in range(3):
        log.issue(SHAPE, 0, number + 1)
    descriptor = os.open(path, os.O_RDWR)
    os.pwrite(descriptor, b"\xff" * 8, layout.RING_OFFSET + 64 + 40)
    os.close(descriptor)
    state = read_black_box(path)
    assert [call.sequence for call in state.calls] == [1, 3]
    assert (state.num_torn, state.phase) == (1, "forward")


@pytest.mark.parametrize("missing", [1, 40, layout.MARKED_STATE.size - 1])
def test_a_torn_state_is_an_error_and_no_state(tmp_path: Path, missing: int) -> None:
    """A state of which the end still is that of an earlier one is not believed, at whatever byte it stopped."""
    path = tmp_path / "b"
    box = make_box(path)
    descriptor = os.open(path, os.O_RDWR)
    before = os.pread(descriptor, layout.MARKED_STATE.size, layout.STATE_OFFSET)
    box.write_state(layout.STATE.pack(8, 8, 101, 151, 161, 91, 0, b"backward"))
    assert read_black_box(path).phase == "backward"
    os.pwrite(descriptor, before[-missing:], layout.STATE_OFFSET + len(before) - missing)
    os.close(descriptor)
    with pytest.raises(RunError, match="state block is torn"):
        read_black_box(path)


def test_black_boxes_of_the_first_version_are_read() -> None:
    """That of a rank of the straggler's sample run, written with checksums, has the calls that its segment has."""
    path = SAMPLE_RANK / "blackbox.bin"
    assert path.read_bytes()[8:10] == b"\1\0"
    state = read_black_box(path)
    (segment,) = (SAMPLE_RANK / "calls").iterdir()
    written = {(call.sequence, call.issued_ns): (call.completed_ns, call.out_bytes) for call in read_segment(segment)}
    assert (state.step, state.num_steps, state.phase, state.num_torn, state.closed) == (59, 59, "other", 0, True)
    calls_of_steps = [call for call in state.calls if call.step is not None]
    assert len(calls_of_steps) == len(written)
    for call in calls_of_steps:
        completed_ns, out_bytes = written[call.sequence, call.issued_ns]
        assert (call.completed_ns or completed_ns, call.out_bytes) == (completed_ns, out_bytes)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "not a black box"),
        (b"hello world" * 9000, "not a black box"),
        (layout.BLACK_BOX_MAGIC + b"\0" * 100, "torn"),
        (layout.BLACK_BOX_MAGIC + struct.pack("<HH", 9, 0) + b"\0" * 70000, "layout 9"),
        (layout.BLACK_BOX_MAGIC + struct.pack("<HH", 1, 0) + b"\0" * 70000, "checksum"),
    ],
)
def test_foreign_bytes_are_an_error_that_names_the_file(tmp_path: Path, content: bytes, reason: str) -> None:
    """Empty, foreign, short, newer and torn files each raise a RunError with the path and the reason."""
    path = tmp_path / "blackbox.bin"
    path.write_bytes(content)
    with pytest.raises(RunError, match=reason) as error:
        read_black_box(path)
    assert str(path) in str(error.value)


def test_links_and_pipes_are_refused(tmp_path: Path) -> None:
    """A symbolic link is not followed and a pipe does not block the reader."""
    make_box(tmp_path / "real").close()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(RunError, match="cannot be opened"):
        read_black_box(tmp_path / "link")
    with pytest.raises(RunError, match="not a regular file"):
        read_black_box(tmp_path / "pipe")


def test_truncation_under_the_writer_costs_nothing(tmp_path: Path) -> None:
    """Writing goes on after somebody truncated the file, and the identity written again makes it readable."""
    path = tmp_path / "b"
    box = make_box(path)
    os.truncate(path, 0)
    box.write_state(layout.STATE.pack(8, 8, 100, 150, 160, 90, 1, b"backward"))
    box.write_identity()
    CallLog(box).issue(SHAPE, 0, 5)
    state = read_black_box(path)
    assert (state.step, state.phase, len(state.calls)) == (8, "backward", 1)
    assert box.num_failed == 0


def test_no_room_means_no_black_box_and_a_reason(tmp_path: Path) -> None:
    """Where the file cannot be made there is no black box, said, and every write is silent."""
    box = BlackBox(tmp_path / "missing" / "b", WHO)
    box.write_state(b"")
    assert box.absent_reason is not None
    assert "No such file" in box.absent_reason


def test_segment_round_trip_and_tear(tmp_path: Path) -> None:
    """Call records come back in full; a half-written tail is ignored; a damaged record is an error with its byte."""
    call = CallLog(None).issue(CallShape(2, ALL_REDUCE, 1, 3, 4096, 8192, num_tensors=3), layout.FLAG_ASYNCHRONOUS, 500)
    call.step, call.sequence, call.completed_ns = 9, 4, 700
    path = tmp_path / "000001-9.bin"
    header = pack_segment_header(rank=5, attempt=0, wall_offset_ns=10_000, first_step=9)
    path.write_bytes(header + call.pack() + call.pack()[:50])
    (record,) = read_segment(path)
    assert (record.rank, record.group, record.step, record.sequence) == (5, 2, 9, 4)
    assert (record.operation, record.variant, record.dtype) == ("all_reduce", "coalesced", "bfloat16")
    assert (record.issued_ns, record.completed_ns, record.arrived_ns, record.blocked_ns) == (10_500, 10_700, None, None)
    assert record.asynchronous
    assert record.num_tensors == 3
    damaged = bytearray(header + call.pack())
    damaged[80] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(RunError, match="byte 64"):
        read_segment(path)


def test_longer_records_of_a_newer_minor_version_are_read(tmp_path: Path) -> None:
    """A segment whose records have eight more bytes gives the fields that this version knows."""
    call = CallLog(None).issue(SHAPE, 0, 5)
    body = call.pack()[4:] + b"\7" * 8
    header_body = layout.SEGMENT.pack(layout.SEGMENT_MAGIC, 1, 9, 0, 0, layout.CALL_BYTES + 8, 0, 0, 0)
    header = (header_body + struct.pack("<I", crc32(header_body))).ljust(64, b"\0")
    path = tmp_path / "s.bin"
    path.write_bytes(header + struct.pack("<I", crc32(body)) + body)
    (record,) = read_segment(path)
    assert record.issued_ns == 5
