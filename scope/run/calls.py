"""Collective calls on the hot path: one small object a call, totals by step, and closed segments of records.

Whatever sees collectives makes a `Call` when one is issued, gives it to `CallLog.issue`, and to `CallLog.complete` when
its completion is known; both take a few microseconds, hold no lock while they enter the kernel for more than a small
write, and never raise `OSError`.
"""

from __future__ import annotations

import copy
import itertools
import os
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias
from zlib import crc32

import msgspec

from scope.errors import RunError
from scope.run import layout
from scope.run.files import read_span
from scope.run.layout import CALL, CRC, RING, RING_OFFSET, RING_RECORD_BYTES, SEGMENT
from scope.run.schema import DTYPES, OPERATIONS, PHASES, VARIANTS, CollectiveTotal

if TYPE_CHECKING:
    from pathlib import Path

    from scope.run.blackbox import BlackBox

MAX_SEGMENT_BYTES: Final = 64 * 2**20
"""Cap of a segment that is read whole."""
_LARGEST_COUNT: Final = 2**60
_INSTANTS_END: Final = 2**63

_PRIME: Final = layout.FNV_PRIME
_MASK: Final = 2**64 - 1
_RING_MASK: Final = layout.NUM_RING_RECORDS - 1
_RING_SHIFT: Final = layout.NUM_RING_RECORDS.bit_length() - 1
_FIRST_TIMED: Final = 8
"""The calls before it are slow because they come first."""
_TIMED_EVERY: Final = 256
_NUM_TIMED: Final = 15
_NUM_LEAVING: Final = 64
"""The oldest records of the ring, whose places new calls take next: each is written again by itself and at once."""
_APART: Final = layout.FLAG_APART
_COMPLETED: Final = layout.FLAG_COMPLETED
_WAITED: Final = layout.FLAG_COMPLETED | layout.FLAG_WAIT_SEEN
_NOT_COUNTED: Final = 255
"""Earlier open calls in a record of the ring: unknown, or at least as many."""
_pack_ring = RING.pack
_pack_ring_in_parts = layout.RING_IN_PARTS.pack
_pack_call_in_parts = layout.CALL_IN_PARTS.pack
_MARK_BITS: Final = layout.MARK_BITS
_pwrite = os.pwrite
_UNKNOWN_PHASE: Final = -1


_Key: TypeAlias = tuple[int, int, int, int]
"""Group, operation, variant and whether it is control traffic."""


class CallShape(msgspec.Struct, frozen=True, gc=False):
    """What equal calls have in common; made once and shared by all of them.

    Attributes:
        group: Number of the group in `RankInfo.groups` (`RankWriter.put_group`).
        operation: Place in `OPERATIONS`.
        variant: Place in `VARIANTS`.
        dtype: Place in `DTYPES`.
        in_bytes: Bytes that this rank gives.
        out_bytes: Bytes that this rank gets.
        peer: Global rank at the other side of a send or recv; group rank of the root; -1 without.
        tag: Tag of a send or recv, -1 without.
        num_tensors: Tensors of a coalesced call.
        word: `scope.run.layout.hash_word` of it; -1 for send and recv, which do not enter the group's hash.
        codes: Operation, variant and dtype as a record of the ring has them; worked out, as the next one.
        sizes: Bytes given and got, as a record of the ring has them.
    """

    group: int
    operation: int
    variant: int
    dtype: int
    in_bytes: int
    out_bytes: int
    peer: int = -1
    tag: int = -1
    num_tensors: int = 1
    word: int = -1
    codes: bytes = b""
    sizes: bytes = b""

    def __post_init__(self) -> None:
        """Work out what every call of this shape writes into the ring."""
        codes = layout.RING_CODES.pack(self.operation, self.variant, self.dtype)
        msgspec.structs.force_setattr(self, "codes", codes)
        sizes = layout.RING_SIZES.pack(self.in_bytes, self.out_bytes)
        msgspec.structs.force_setattr(self, "sizes", sizes)

    def with_variant(self, variant: int) -> CallShape:
        """Return the same shape under another variant."""
        return msgspec.structs.replace(self, variant=variant)


class Call(msgspec.Struct, gc=False):
    """One collective call of this rank, filled in as it goes on. Instants are monotonic; 0 is unknown.

    Attributes:
        shape: What it has in common with equal calls.
        flags: `scope.run.layout.FLAG_...`, or-ed.
        issued_ns: When the call was made.
        counter: Where its group stands.
        index: Number of the call within the rank, over all groups.
        sequence: Number of the call within its group, from 1; send and recv are counted apart.
        step: Step in which it was made.
        phase: Phase in which it was made, place in `PHASES`.
        rolling_hash: Hash of the group after it.
        arrived_ns: When the device reached it (an event on the caller's stream); on CPUs it is `issued_ns`.
        completed_ns: When it completed.
        blocked_ns: Host time that training was blocked in it or waiting for it, of a call apart (`FLAG_APART`)
            that other threads were; -1 while no such wait site was seen.
        wait_phase: Phase in which the host was blocked, place in `PHASES`; -1 where that is not known, as of waits of a
            device's stream.
    """

    shape: CallShape
    flags: int
    issued_ns: int
    counter: GroupCounter
    index: int
    sequence: int
    step: int
    phase: int
    rolling_hash: int
    arrived_ns: int = 0
    completed_ns: int = 0
    blocked_ns: int = -1
    wait_phase: int = _UNKNOWN_PHASE

    def pack(self) -> bytes:
        """Return the record of a segment."""
        shape = self.shape
        body = _pack_call_in_parts(
            shape.group,
            self.step,
            self.sequence,
            shape.codes,
            self.flags,
            shape.peer,
            shape.tag,
            shape.sizes,
            self.issued_ns,
            self.arrived_ns,
            self.completed_ns,
            self.blocked_ns,
            min(shape.num_tensors, 0xFFFF),
            self.phase,
            self.rolling_hash,
        )
        return CRC.pack(crc32(body)) + body


class _Total:
    """Sums of one (group, operation, variant, control) in one step."""

    __slots__ = ("blocked_ns", "calls", "duration_ns", "in_bytes", "known", "out_bytes", "timed")

    def __init__(self) -> None:
        self.calls = self.in_bytes = self.out_bytes = self.timed = self.duration_ns = self.known = self.blocked_ns = 0

    def add(self, call: Call) -> None:
        """Add a call as far as it is known now."""
        self.calls += 1
        self.in_bytes += call.shape.in_bytes
        self.out_bytes += call.shape.out_bytes
        # The host issues a device's calls long before the device comes to them.
        begun_ns = call.arrived_ns if call.flags & layout.FLAG_DEVICE_TIMED else call.issued_ns
        if call.completed_ns and begun_ns:
            self.timed += 1
            self.duration_ns += call.completed_ns - begun_ns
        if call.blocked_ns >= 0:
            self.known += 1
            self.blocked_ns += call.blocked_ns


@dataclass(slots=True)
class _Sums:
    """What calls of one step add up to.

    Attributes:
        totals: By group, operation, variant and whether it is control traffic.
        phases: Time blocked by the phase it was in, as far as that is known, without calls apart.
        apart: Calls apart, which are in the totals too.
    """

    totals: dict[_Key, _Total] = field(default_factory=dict["_Key", _Total])
    phases: dict[int, int] = field(default_factory=dict[int, int])
    apart: _Total = field(default_factory=_Total)

    def add(self, calls: list[Call]) -> None:
        """Add calls as far as they are known now."""
        totals, phases = self.totals, self.phases
        for call in calls:
            shape = call.shape
            key = (shape.group, shape.operation, shape.variant, call.flags & layout.FLAG_CONTROL)
            total = totals.get(key)
            if total is None:
                total = totals[key] = _Total()
            total.add(call)
            if call.flags & _APART:
                self.apart.add(call)
            elif call.blocked_ns > 0 and call.wait_phase != _UNKNOWN_PHASE:
                phases[call.wait_phase] = phases.get(call.wait_phase, 0) + call.blocked_ns


class GroupCounter:
    """Where the rank stands in one group. Send and recv are counted apart: they rightly differ between ranks."""

    __slots__ = ("completed", "completed_ns", "enqueued", "fr", "last", "point_to_point", "rolling_hash")

    def __init__(self) -> None:
        self.enqueued = self.completed = self.completed_ns = self.point_to_point = 0
        self.rolling_hash = layout.FNV_OFFSET
        self.last: Call | None = None
        self.fr: tuple[int, int, int] = (0, 0, 0)


class StepOutcome(NamedTuple):
    """What all calls of a step come to.

    Attributes:
        collectives: Totals by group, operation, variant and whether it is control traffic.
        wait_ns: Time that the training thread was blocked at wait sites that were seen; absent where none was, 0
            without calls that are not apart.
        wait_coverage_ratio: Share of these calls that it stands for, absent without any.
        wait_phases: It by the phase it was in, as far as that is known; `custom` for the user's own.
    """

    collectives: tuple[CollectiveTotal, ...]
    wait_ns: int | None
    wait_coverage_ratio: float | None
    wait_phases: dict[str, int]


class StepCalls(msgspec.Struct, eq=False):
    """Calls of one step; `CallLog.next_step` hands it over when the step ends.

    Attributes:
        step: Number of the step.
        seen: Every call in order of issue, but for those that were taken early; what is not known yet is filled in
            later.
        keep: Whether the calls go into a segment; totals are complete either way.
        num_left_out: Calls that were taken early and stand in no segment.
    """

    step: int
    keep: bool = True
    seen: list[Call] = []
    num_left_out: int = 0
    _early: _Sums | None = None

    @property
    def calls(self) -> list[Call]:
        """The calls that go into a segment: all, or none in a step whose calls are not recorded."""
        return self.seen if self.keep else []

    def take_early(self, before_ns: int) -> list[Call]:
        """Return the calls at the beginning that were issued before an instant, and keep their totals alone.

        The step may be in progress: other threads go on to add calls. What is not known of the calls yet stays unknown.
        """
        seen = self.seen
        early = list(itertools.takewhile(lambda call: call.issued_ns < before_ns, seen))
        del seen[: len(early)]
        if self._early is None:
            self._early = _Sums()
        self._early.add(early)
        return early

    def num_outstanding(self) -> int:
        """Return the calls whose completion was not seen so far."""
        return sum(not call.flags & layout.FLAG_COMPLETED for call in self.seen)

    def conclude(self) -> StepOutcome:
        """Return what all calls come to, as far as they are known now."""
        sums = copy.deepcopy(self._early) or _Sums()
        sums.add(self.seen)
        totals, apart = sums.totals.values(), sums.apart
        num_calls = sum(total.calls for total in totals) - apart.calls
        num_known = sum(total.known for total in totals) - apart.known
        wait_ns = sum(total.blocked_ns for total in totals) - apart.blocked_ns
        phases = sums.phases.items()
        return StepOutcome(
            collectives=tuple(_make_total(key, total) for key, total in sums.totals.items()),
            wait_ns=wait_ns if num_known or not num_calls else None,
            wait_coverage_ratio=num_known / num_calls if num_calls else None,
            wait_phases={PHASES[code] if code < len(PHASES) else "custom": length for code, length in phases},
        )


def _make_total(key: _Key, total: _Total) -> CollectiveTotal:
    group, operation, variant, control = key
    return CollectiveTotal(
        group=group,
        operation=OPERATIONS[operation],
        variant=VARIANTS[variant],
        control=bool(control),
        num_calls=total.calls,
        in_bytes=total.in_bytes,
        out_bytes=total.out_bytes,
        num_timed=total.timed,
        duration_ns=total.duration_ns if total.timed else None,
        num_blocked_known=total.known,
        blocked_ns=total.blocked_ns if total.known else None,
    )


class CallLog:
    """Numbers, hashes and notes every call; used from several threads.

    There is no lock: what a call changes is changed by single operations of the interpreter. Two threads that call on
    one group at the same instant have no order that other ranks could agree with, and so none here either.

    Attributes:
        keep_calls: Whether calls of the step in progress go into a segment; read when the step ends.
        hashing: Whether the rolling hash is kept (dropped under a tight budget, before any call is).
        phase: Code of the phase in progress, set by whoever tracks phases.
        training_thread: Identity of the thread that trains: the one that made the log, then the one that ended the
            last step.
        threads_apart: Identities of threads that do not train, kept by whoever sees the calls: steps do not count as
            theirs what these call and wait for.
        cost_factor: What seeing and recording a call costs in all, in terms of what `issue` takes; set by whoever sees
            them.
    """

    def __init__(self, black_box: BlackBox | None) -> None:
        self.keep_calls = True
        self.hashing = True
        self.phase = layout.OWN_PHASE
        self.training_thread = threading.get_ident()
        self.threads_apart: set[int] = set()
        self.cost_factor = 1.0
        self._costs: deque[int] = deque(maxlen=_NUM_TIMED)
        self._typical_ns = 0
        self._timed_at = _FIRST_TIMED
        self._cost_ns = 0
        self._num_counted = 0
        self._black_box = black_box
        self._groups: dict[int, GroupCounter] = {}
        self._current = StepCalls(-1)
        self._indices = itertools.count()
        self._ring: list[Call | None] = [None] * layout.NUM_RING_RECORDS
        self._refreshed = -1
        self._open: list[Call | None] = []

    def issue(self, shape: CallShape, flags: int, issued_ns: int) -> Call:
        """Note a call before it is handed to torch, and return it.

        Args:
            shape: What the arguments of the call say.
            flags: `scope.run.layout.FLAG_...`, or-ed.
            issued_ns: When the call was made.
        """
        # Written out where elsewhere there would be functions: each call of one is a tenth of what a record may cost.
        if self.threads_apart and self.is_apart():
            flags |= _APART
        group = shape.group
        word = shape.word
        try:
            counter = self._groups[group]
        except KeyError:
            counter = self._groups.setdefault(group, GroupCounter())
        if word < 0:
            sequence = counter.point_to_point = counter.point_to_point + 1
            outstanding = _NOT_COUNTED
            rolling = counter.rolling_hash
        else:
            sequence = counter.enqueued = counter.enqueued + 1
            outstanding = sequence - 1 - counter.completed
            if outstanding > _NOT_COUNTED:
                outstanding = _NOT_COUNTED
            rolling = counter.rolling_hash
            if self.hashing:
                rolling = counter.rolling_hash = (rolling ^ word) * _PRIME & _MASK
        index = next(self._indices)
        current = self._current
        step = current.step
        phase = self.phase
        call = Call(shape, flags, issued_ns, counter, index, sequence, step, phase, rolling)
        counter.last = call
        current.seen.append(call)
        box = self._black_box
        if box is not None and (descriptor := box.descriptor) >= 0:
            slot = index & _RING_MASK
            self._ring[slot] = call
            record = _pack_ring_in_parts(
                issued_ns,
                shape.codes,
                flags,
                index >> _RING_SHIFT,
                group,
                phase,
                outstanding,
                sequence,
                step,
                shape.peer,
                rolling & 0xFFFFFFFF,
                shape.sizes,
                issued_ns & _MARK_BITS,
            )
            try:
                _pwrite(descriptor, record, RING_OFFSET + slot * RING_RECORD_BYTES)
            except OSError:
                box.num_failed += 1
        if index >= self._timed_at:
            self._take_time(time.monotonic_ns() - issued_ns, index)
        return call

    def _take_time(self, took_ns: int, index: int) -> None:
        """Take what one `issue` took."""
        costs = self._costs
        costs.append(took_ns)
        self._typical_ns = sorted(costs)[(len(costs) - 1) // 2]
        # One after the other at first: where calls are few, one that was interrupted would stand for many steps.
        self._timed_at = index + (_TIMED_EVERY if len(costs) == _NUM_TIMED else 1)

    def complete(self, call: Call, completed_ns: int) -> None:
        """Note that a call has completed; the second time for the same call does nothing.

        An instant of 0 says that it has and not when. The ring of the black box learns it with the next call of the
        group (`outstanding`) and from `refresh_ring`.
        """
        if call.flags & layout.FLAG_COMPLETED:
            return
        call.completed_ns = completed_ns
        call.flags |= layout.FLAG_COMPLETED
        counter = call.counter
        if call.shape.word >= 0:
            if call.sequence > counter.completed:
                counter.completed = call.sequence
            if completed_ns > counter.completed_ns:
                counter.completed_ns = completed_ns

    def end_wait(self, call: Call, start_ns: int, end_ns: int) -> None:
        """Note that the caller was blocked in `[start_ns, end_ns)`, at the end of which the call had completed."""
        # `add_wait` and `complete` in one: every blocking call ends here.
        flags = call.flags
        if self.threads_apart or call.blocked_ns >= 0:
            self.add_wait(call, end_ns - start_ns)
            call.flags |= _COMPLETED
        else:
            call.blocked_ns = end_ns - start_ns
            call.wait_phase = self.phase
            call.flags = flags | _WAITED
        if flags & _COMPLETED:
            return
        call.completed_ns = end_ns
        counter = call.counter
        if call.sequence > counter.completed and call.shape.word >= 0:
            counter.completed = call.sequence
            counter.completed_ns = end_ns

    def add_wait(self, call: Call, blocked_ns: int, *, apart: bool | None = None) -> None:
        """Note host time that a thread was blocked in the call, or waiting for it; several waits add up.

        Args:
            call: The call.
            blocked_ns: How long.
            apart: Whether that thread does not train; it is the caller where absent.
        """
        if apart is None:
            apart = self.is_apart() if self.threads_apart else False
        if apart != bool(call.flags & _APART):
            if apart and (call.flags & layout.FLAG_ASYNCHRONOUS or call.blocked_ns >= 0):
                # What others wait for a call of training tells nothing of how long training is blocked.
                return
            # A call apart that training waits for is one of training's from here on. In a blocking call its own thread
            # waits; where that is its first, nothing was known of the thread before.
            call.flags ^= _APART
            call.blocked_ns = -1
        if call.blocked_ns < 0:
            call.blocked_ns = blocked_ns
            # What a device's stream waited is told later, in whatever phase the host is then.
            call.wait_phase = _UNKNOWN_PHASE if call.flags & layout.FLAG_DEVICE_TIMED else self.phase
        else:
            call.blocked_ns += blocked_ns
        call.flags |= layout.FLAG_WAIT_SEEN

    def is_apart(self) -> bool:
        """Return whether the calling thread does not train."""
        return threading.get_ident() in self.threads_apart

    def refresh_ring(self) -> None:
        """Write again the ring records of calls that have completed since the last time; about once a second."""
        if self._black_box is None:
            return
        newest = max((group.last.index for group in tuple(self._groups.values()) if group.last), default=-1)
        oldest = newest - layout.NUM_RING_RECORDS + 1
        # Those that were open the last time and those issued since: the others are long out of the caches.
        issued = [self._ring[index & _RING_MASK] for index in range(max(self._refreshed + 1, oldest), newest + 1)]
        calls, self._open, self._refreshed = self._open + issued, [], newest
        run: list[bytes] = []  # records of neighbours, which one write takes
        first = 0
        for call in calls:
            if call is None or call.index < oldest:
                continue
            if not call.completed_ns:
                if not call.flags & layout.FLAG_COMPLETED:
                    self._open.append(call)
                continue
            slot = call.index & _RING_MASK
            if slot != first + len(run) or len(run) == _NUM_LEAVING or call.index < oldest + _NUM_LEAVING:
                self._black_box.write_ring(run, first)
                run, first = [], slot
            run.append(_pack_completed(call))
        self._black_box.write_ring(run, first)

    def estimate_cost(self) -> int:
        """Return what recording all calls so far cost, in ns: number x median of what `issue` took x `cost_factor`.

        A few of the first and every 256th `issue` are timed. What stands around it (the way through torch's dispatcher
        and back, the wait site) cannot be timed from inside; it takes as many times longer as the benchmark found.
        Each call counts at the median (of two the lower) of when it was first asked for: a median that changes later
        makes no other cost of what lies behind.
        """
        if self._typical_ns:
            num_calls = 0
            for counter in tuple(self._groups.values()):
                num_calls += counter.enqueued + counter.point_to_point
            new_calls, self._num_counted = num_calls - self._num_counted, num_calls
            self._cost_ns += round(new_calls * self._typical_ns * self.cost_factor)
        return self._cost_ns

    def num_calls(self, group: int) -> tuple[int, int]:
        """Return how many collectives, and how many sends and recvs, were issued on a group."""
        counter = self._groups.get(group)
        return (counter.enqueued, counter.point_to_point) if counter is not None else (0, 0)

    def note_flight_recorder(self, group: int, enqueued: int, started: int, completed: int) -> None:
        """Note what torch's Flight Recorder says of a group; the black box carries it."""
        counter = self._groups.get(group)
        if counter is not None:
            counter.fr = (max(enqueued, 0), max(started, 0), max(completed, 0))

    def silence(self) -> None:
        """Forget the black box: in a forked child it belongs to the parent."""
        self._black_box = None

    def next_step(self, step: int) -> StepCalls:
        """Begin a step, in the thread that trains, and return the calls of the one before."""
        self.training_thread = threading.get_ident()
        self.threads_apart.discard(self.training_thread)
        done, self._current = self._current, StepCalls(step)
        done.keep = self.keep_calls
        return done

    @property
    def in_progress(self) -> StepCalls:
        """The calls of the step in progress; of what comes before the first while none has begun."""
        return self._current

    def pack_groups(self) -> list[bytes]:
        """Return the slots of the black box, the groups used last first."""
        order = sorted(self._groups.items(), key=lambda item: item[1].last.index if item[1].last else -1, reverse=True)
        return [self._pack_group(group, counter) for group, counter in order]

    def _pack_group(self, group: int, counter: GroupCounter) -> bytes:
        last = counter.last
        return layout.GROUP.pack(
            group,
            counter.enqueued,
            counter.completed,
            last.issued_ns if last else 0,
            counter.completed_ns,
            counter.rolling_hash,
            *counter.fr,
            last.shape.operation if last else 0,
            last.shape.dtype if last else 0,
            last.flags if last else 0,
        )


def _pack_completed(call: Call) -> bytes:
    """Return the ring record of a call that has completed; how many others were open is not said again."""
    shape = call.shape
    return _pack_ring(
        call.issued_ns,
        shape.operation,
        shape.variant,
        shape.dtype,
        call.flags,
        call.index >> _RING_SHIFT,
        shape.group,
        call.phase,
        255,
        call.sequence,
        call.step,
        shape.peer,
        call.rolling_hash & 0xFFFFFFFF,
        shape.in_bytes,
        shape.out_bytes,
        call.completed_ns,
    )


@dataclass(frozen=True, kw_only=True)
class CallRecord:
    """One record of a segment. Instants are since the epoch; what is unknown is `None`."""

    rank: int
    group: int
    step: int | None
    sequence: int
    operation: str
    variant: str
    dtype: str
    asynchronous: bool
    control: bool
    device_timed: bool
    peer: int | None
    tag: int | None
    in_bytes: int
    out_bytes: int
    issued_ns: int
    arrived_ns: int | None
    completed_ns: int | None
    blocked_ns: int | None
    num_tensors: int
    rolling_hash: int


def pack_segment_header(*, rank: int, attempt: int, wall_offset_ns: int, first_step: int) -> bytes:
    """Return the header of a segment."""
    body = SEGMENT.pack(
        layout.SEGMENT_MAGIC,
        layout.LAYOUT_MAJOR,
        layout.LAYOUT_MINOR,
        rank,
        attempt,
        layout.CALL_BYTES,
        wall_offset_ns,
        max(first_step, 0),
        0,
    )
    return (body + CRC.pack(crc32(body))).ljust(layout.SEGMENT_HEADER_BYTES, b"\0")


def read_segment(path: Path) -> list[CallRecord]:
    """Return the calls of a segment, closed or not.

    Raises:
        RunError: No regular file, not a segment, of another major version, larger than `MAX_SEGMENT_BYTES`, or a record
            is torn or holds numbers that cannot be; the message has the byte. A last record that is only half there is
            no error: it was being written.
    """
    content = read_span(path, max_bytes=MAX_SEGMENT_BYTES + 1)
    if len(content) > MAX_SEGMENT_BYTES:
        message = f"{path}: is larger than {MAX_SEGMENT_BYTES} bytes; segments are closed long before"
        raise RunError(message)
    header = content[: SEGMENT.size]
    if len(content) < layout.SEGMENT_HEADER_BYTES or header[:8] != layout.SEGMENT_MAGIC:
        message = f"{path}: is not a segment of calls of Scope"
        raise RunError(message)
    _, major, _, rank, _, record_bytes, offset, _, _ = SEGMENT.unpack(header)
    if CRC.unpack_from(content, SEGMENT.size)[0] != crc32(header):
        message = f"{path}: its header is torn (wrong checksum)"
        raise RunError(message)
    if major != layout.LAYOUT_MAJOR or record_bytes < layout.CALL_BYTES:
        message = f"{path}: has layout {major}, this Scope reads {layout.LAYOUT_MAJOR}; use the version that wrote it"
        raise RunError(message)
    records: list[CallRecord] = []
    for at in range(layout.SEGMENT_HEADER_BYTES, len(content) - record_bytes + 1, record_bytes):
        body = content[at + CRC.size : at + record_bytes]
        if CRC.unpack_from(content, at)[0] != crc32(body):
            message = f"{path}: the record at byte {at} is torn (wrong checksum)"
            raise RunError(message)
        record = _parse_call(CALL.unpack_from(body), rank=rank, offset=offset)
        if not _is_plausible(record):
            message = f"{path}: the record at byte {at} holds numbers that cannot be"
            raise RunError(message)
        records.append(record)
    return records


def _is_plausible(record: CallRecord) -> bool:
    """Return whether sizes and instants fit the 64-bit columns that they are read into; a checksum can be forged."""
    instants = (record.issued_ns, record.arrived_ns or 0, record.completed_ns or 0)
    largest = max(record.in_bytes, record.out_bytes, record.sequence, record.blocked_ns or 0)
    return largest <= _LARGEST_COUNT and min(instants) >= 0 and max(instants) < _INSTANTS_END


def _parse_call(fields: tuple[int, ...], *, rank: int, offset: int) -> CallRecord:
    group, step, sequence, operation, variant, dtype, flags, peer, tag, in_bytes, out_bytes, *rest = fields
    issued, arrived, completed, blocked, num_tensors, _, _, _, _, rolling = rest
    return CallRecord(
        rank=rank,
        group=group,
        step=step if step >= 0 else None,
        sequence=sequence,
        operation=OPERATIONS[operation] if operation < len(OPERATIONS) else "unknown",
        variant=VARIANTS[variant] if variant < len(VARIANTS) else "plain",
        dtype=DTYPES[dtype] if dtype < len(DTYPES) else "unknown",
        asynchronous=bool(flags & layout.FLAG_ASYNCHRONOUS),
        control=bool(flags & layout.FLAG_CONTROL),
        device_timed=bool(flags & layout.FLAG_DEVICE_TIMED),
        peer=peer if peer >= 0 else None,
        tag=tag if tag >= 0 else None,
        in_bytes=in_bytes,
        out_bytes=out_bytes,
        issued_ns=issued + offset,
        arrived_ns=arrived + offset if arrived else None,
        completed_ns=completed + offset if completed else None,
        blocked_ns=blocked if blocked >= 0 else None,
        num_tensors=num_tensors,
        rolling_hash=rolling,
    )
