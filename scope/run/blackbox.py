"""The black box: the state of a rank now and its last collective calls, readable after SIGKILL.

The layout and who writes which block stand in `scope.run.layout`.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final
from zlib import crc32

from scope.errors import RunError
from scope.run import layout
from scope.run.files import FILE_MODE, close_descriptor, identify_descriptor, lift_descriptor, read_span
from scope.run.layout import CRC, GROUP, IDENTITY, MARK, MARKED_STATE, PULSE, RING, STATE
from scope.run.schema import DTYPES, MOST_RANKS, OPERATIONS, PHASES, VARIANTS

if TYPE_CHECKING:
    import struct
    from pathlib import Path

_READ_TRIES: Final = 3
_POINT_TO_POINT: Final = ("send", "recv")
_MANY_OUTSTANDING: Final = 255
_LARGEST_COUNT: Final = 2**60
_INSTANTS_END: Final = 2**63
_pwrite = os.pwrite


@dataclass(frozen=True, kw_only=True)
class BlackBoxIdentity:
    """Whose black box it is.

    Attributes:
        rank: Global rank.
        attempt: Attempt of the run.
        world_size: Number of ranks, absent before it is known.
        pid: Process id.
        process_start_ticks: Field 22 of /proc/PID/stat.
        wall_offset_ns: Monotonic instant + this = nanoseconds since the epoch.
    """

    rank: int
    attempt: int
    world_size: int | None
    pid: int
    process_start_ticks: int | None
    wall_offset_ns: int


@dataclass(frozen=True, kw_only=True)
class GroupState:
    """Where a rank stands in one process group.

    Attributes:
        group: Number of the group in `RankInfo.groups`.
        enqueued: Sequence number of the last call issued (from 1; 0 none).
        completed: Largest sequence number whose completion was seen.
        enqueued_ns: When that call was issued, since the epoch.
        completed_ns: When the last completion was seen.
        hash_low: Low 32 bits of `roll_hash` over all calls up to `enqueued`.
        operation: Operation of the last call.
        dtype: Its element type.
        flight_recorder: (enqueued, started, completed) of torch's Flight Recorder, where it has them.
    """

    group: int
    enqueued: int
    completed: int
    enqueued_ns: int | None
    completed_ns: int | None
    hash_low: int
    operation: str
    dtype: str
    flight_recorder: tuple[int, int, int] | None = None


_NO_CALLS: Final = GroupState(
    group=0,
    enqueued=0,
    completed=0,
    enqueued_ns=None,
    completed_ns=None,
    hash_low=0,
    operation="unknown",
    dtype="unknown",
)


@dataclass(frozen=True, kw_only=True)
class RingCall:
    """One of the last calls. Instants are since the epoch.

    Attributes:
        hash_low: Low half of the group's hash after the call.
        outstanding: Earlier calls of the group that had not completed when the record was written; 255 unknown.
    """

    place: int
    group: int
    sequence: int
    step: int | None
    phase: str | None
    operation: str
    variant: str
    dtype: str
    flags: int
    peer: int | None
    hash_low: int
    in_bytes: int
    out_bytes: int
    issued_ns: int
    completed_ns: int | None
    outstanding: int = 255


@dataclass(frozen=True, kw_only=True)
class BlackBoxState:
    """What a black box says.

    Attributes:
        identity: Whose it is.
        step: Step in progress, absent before the first.
        num_steps: Steps finished.
        step_start_ns: When the step began.
        phase: Innermost phase.
        phase_start_ns: When it began.
        beat_ns: Last sign of life of the training thread.
        pulse_ns: Last sign of life of the 1 Hz thread, absent before its first.
        last_step_duration_ns: Length of the last finished step.
        num_dropped: Records dropped so far.
        closed: Recording was closed in order (`exception`: because the program raised).
        exception: See `closed`.
        groups: One entry a process group, the newer of header and ring.
        groups_left_out: Groups that the header had no slot for.
        calls: The last calls, oldest first.
        num_torn: Ring records of which a part is missing (written at the instant of death), or that cannot be.
    """

    identity: BlackBoxIdentity
    step: int | None
    num_steps: int
    step_start_ns: int | None
    phase: str | None
    phase_start_ns: int | None
    beat_ns: int | None
    pulse_ns: int | None
    last_step_duration_ns: int | None
    num_dropped: int
    closed: bool
    exception: bool
    groups: tuple[GroupState, ...]
    groups_left_out: int = 0
    calls: tuple[RingCall, ...] = ()
    num_torn: int = 0


class BlackBox:
    """Writes one black box. Every method takes about a microsecond and never raises `OSError`.

    Attributes:
        absent_reason: Why there is none (the file could not be allocated), or `None`.
        num_failed: Writes that failed since.
        descriptor: The open file, -1 when there is none.
    """

    def __init__(self, path: Path, identity: BlackBoxIdentity) -> None:
        self.absent_reason: str | None = None
        self.num_failed = 0
        self.identity = identity
        self.descriptor = -1
        self._path = path
        self._own: tuple[int, int] | None = None
        descriptor = -1
        try:
            flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
            descriptor = os.open(path, flags, FILE_MODE)
            os.posix_fallocate(descriptor, 0, layout.BLACK_BOX_BYTES)
        except OSError as error:
            self.absent_reason = f"{path} could not be allocated ({error.strerror})"
            if descriptor >= 0:
                os.close(descriptor)
                with contextlib.suppress(OSError):
                    path.unlink()
            return
        self.descriptor = lift_descriptor(descriptor)
        self._own = identify_descriptor(self.descriptor)
        self.write_identity()

    def write_identity(self) -> None:
        """Write the identity block (again: a truncated file becomes readable once more, a closed one open)."""
        self._reopen()
        self._restore_size()
        who = self.identity
        body = IDENTITY.pack(
            layout.BLACK_BOX_MAGIC,
            layout.BLACK_BOX_MAJOR,
            layout.BLACK_BOX_MINOR,
            who.rank,
            who.attempt,
            who.world_size or 0,
            who.pid,
            who.process_start_ticks or 0,
            who.wall_offset_ns,
            layout.NUM_RING_RECORDS,
            layout.RING_RECORD_BYTES,
        )
        self._write(body + CRC.pack(crc32(body)), layout.IDENTITY_OFFSET)

    def write_state(self, body: bytes) -> None:
        """Write the state block, `STATE.pack(...)`."""
        mark = MARK.pack(crc32(body))
        self.write_marked_state(mark + body + mark)

    def write_marked_state(self, content: bytes) -> None:
        """Write the state block, `MARKED_STATE.pack(...)` with any two equal marks; at each change of phase."""
        if self.descriptor >= 0:
            try:
                _pwrite(self.descriptor, content, layout.STATE_OFFSET)
            except OSError:
                self.num_failed += 1

    def write_pulse(self, body: bytes) -> None:
        """Write the pulse block, `PULSE.pack(...)`."""
        self._write(CRC.pack(crc32(body)) + body, layout.PULSE_OFFSET)

    def write_groups(self, bodies: list[bytes]) -> None:
        """Write the table of groups, one `GROUP.pack(...)` a slot; those beyond 48 are left out."""
        table = b"".join(CRC.pack(crc32(body)) + body for body in bodies[: layout.NUM_GROUP_SLOTS])
        self._write(table.ljust(layout.NUM_GROUP_SLOTS * layout.GROUP_BYTES, b"\0"), layout.GROUPS_OFFSET)

    def write_ring(self, bodies: list[bytes], slot: int) -> None:
        """Write records of the ring again, `RING.pack(...)` from a slot on: more is known of their calls."""
        if bodies:
            self._write(b"".join([body + body[: MARK.size] for body in bodies]), layout.RING_OFFSETS[slot])

    def close(self) -> None:
        """Close the file; writes after it do nothing."""
        close_descriptor(self.descriptor, self._own)
        self.descriptor = -1

    def _reopen(self) -> None:
        """Open the file again where the program has closed our descriptor, whoever has its number now."""
        if self.descriptor < 0 or identify_descriptor(self.descriptor) == self._own:
            return
        self.descriptor = -1
        try:
            found = os.open(self._path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            self.num_failed += 1
            return
        if identify_descriptor(found) == self._own:
            self.descriptor = lift_descriptor(found)
        else:
            os.close(found)

    def _restore_size(self) -> None:
        try:
            if self.descriptor >= 0 and os.fstat(self.descriptor).st_size < layout.BLACK_BOX_BYTES:
                os.ftruncate(self.descriptor, layout.BLACK_BOX_BYTES)
        except OSError:
            self.num_failed += 1

    def _write(self, content: bytes, offset: int) -> None:
        if self.descriptor < 0:
            return
        try:
            os.pwrite(self.descriptor, content, offset)
        except OSError:
            self.num_failed += 1


def read_black_box(path: Path, *, with_ring: bool = True) -> BlackBoxState:
    """Return what a black box says, of a live process or a dead one.

    Args:
        path: The file.
        with_ring: Also read the ring of last calls; without it one page is read, and groups are as of the last pulse.

    Raises:
        RunError: No regular file, not a black box, of another major version, or its header is torn.
    """
    for left in reversed(range(_READ_TRIES)):
        content = read_span(path, max_bytes=layout.BLACK_BOX_BYTES if with_ring else layout.PAGE_BYTES)
        try:
            return parse_black_box(content, path=path, with_ring=with_ring)
        except RunError:
            if not left:
                raise
    raise AssertionError


def parse_black_box(content: bytes, *, path: Path, with_ring: bool = True) -> BlackBoxState:
    """Return what the bytes of a black box say; `path` is for messages, without `with_ring` the header page is enough.

    Raises:
        RunError: Not a black box, of another major version, its header is torn, or it holds numbers that cannot be.
    """
    identity, major = _parse_identity(content, path)
    state = _parse_state(content, path) if major > 1 else _parse_old_state(content, path)
    offset = identity.wall_offset_ns
    beat, _, dropped, flags, left_out, _ = _block(content, layout.PULSE_OFFSET, PULSE) or (0, 0, 0, 0, 0, 0)
    calls, torn = _parse_ring(content, offset, major) if with_ring else ((), 0)
    step, num_steps, step_start, phase_start, training_beat, last_step, _, name = state
    phase = name.rstrip(b"\0").decode(errors="replace")
    parsed = BlackBoxState(
        identity=identity,
        step=step if step >= 0 else None,
        num_steps=num_steps,
        step_start_ns=_instant(step_start, offset),
        phase=phase or None,
        phase_start_ns=_instant(phase_start, offset),
        beat_ns=max((t for t in (_instant(training_beat, offset), *(c.issued_ns for c in calls)) if t), default=None),
        pulse_ns=_instant(beat, offset),
        last_step_duration_ns=last_step or None,
        num_dropped=dropped,
        closed=bool(flags & layout.PULSE_CLOSED),
        exception=bool(flags & layout.PULSE_EXCEPTION),
        groups=_merge_groups(_parse_groups(content, offset), calls),
        groups_left_out=left_out,
        calls=calls,
        num_torn=torn,
    )
    if not _is_plausible(parsed):
        message = f"{path}: holds numbers that cannot be"
        raise RunError(message)
    return parsed


def _is_plausible(state: BlackBoxState) -> bool:
    """Return whether the figures are within the ranges of `scope.run.schema`; a checksum can be forged."""
    instants = [state.step_start_ns, state.phase_start_ns, state.beat_ns, state.pulse_ns]
    counts = [state.num_steps, state.last_step_duration_ns or 0, state.num_dropped]
    for group in state.groups:
        instants += (group.enqueued_ns, group.completed_ns)
        counts += (group.enqueued, group.completed)
    fits = all(instant is None or 0 <= instant < _INSTANTS_END for instant in instants)
    world_fits = (state.identity.world_size or 0) <= MOST_RANKS
    return fits and world_fits and min(counts) >= 0 and max(counts) <= _LARGEST_COUNT


def _are_instants(monotonic_ns: tuple[int, ...], offset: int) -> bool:
    return all(instant >= 0 and 0 <= instant + offset < _INSTANTS_END for instant in monotonic_ns)


def _instant(monotonic_ns: int, offset: int) -> int | None:
    return monotonic_ns + offset if monotonic_ns else None


def _block(content: bytes, offset: int, form: struct.Struct) -> tuple[int, ...] | None:
    """Return the fields of a block; `None` if it was never written or is torn."""
    body = content[offset + CRC.size : offset + CRC.size + form.size]
    if len(body) < form.size or CRC.unpack_from(content, offset)[0] != crc32(body):
        return None
    return form.unpack(body)


def _parse_identity(content: bytes, path: Path) -> tuple[BlackBoxIdentity, int]:
    """Return whose it is and the major version of its layout."""
    if content[: len(layout.BLACK_BOX_MAGIC)] != layout.BLACK_BOX_MAGIC:
        message = f"{path}: is not a black box of Scope (wrong first bytes)"
        raise RunError(message)
    if len(content) < layout.RING_OFFSET:
        message = f"{path}: is torn: {len(content)} bytes, the header alone has {layout.RING_OFFSET}"
        raise RunError(message)
    body = content[: IDENTITY.size]
    _, major, _, rank, attempt, world, pid, ticks, offset, records, record_bytes = IDENTITY.unpack(body)
    if not layout.OLDEST_BLACK_BOX <= major <= layout.BLACK_BOX_MAJOR:
        known = f"{layout.OLDEST_BLACK_BOX} to {layout.BLACK_BOX_MAJOR}"
        message = f"{path}: has layout {major}, this Scope reads {known}; use the version that wrote it"
        raise RunError(message)
    wanted = (layout.NUM_RING_RECORDS, layout.RING_RECORD_BYTES)
    if CRC.unpack_from(content, IDENTITY.size)[0] != crc32(body) or (records, record_bytes) != wanted:
        message = f"{path}: its identity block is torn (wrong checksum)"
        raise RunError(message)
    who = BlackBoxIdentity(
        rank=rank,
        attempt=attempt,
        world_size=world or None,
        pid=pid,
        process_start_ticks=ticks or None,
        wall_offset_ns=offset,
    )
    return who, major


def _parse_state(content: bytes, path: Path) -> tuple[int, int, int, int, int, int, int, bytes]:
    block = content[layout.STATE_OFFSET : layout.STATE_OFFSET + MARKED_STATE.size]
    if block[: MARK.size] != block[-MARK.size :] or not any(block):
        message = f"{path}: its state block is torn (a part of what was written is missing)"
        raise RunError(message)
    return STATE.unpack_from(block, MARK.size)


def _parse_old_state(content: bytes, path: Path) -> tuple[int, int, int, int, int, int, int, bytes]:
    body = content[layout.STATE_OFFSET + CRC.size : layout.STATE_OFFSET + CRC.size + STATE.size]
    if CRC.unpack_from(content, layout.STATE_OFFSET)[0] != crc32(body):
        message = f"{path}: its state block is torn (wrong checksum)"
        raise RunError(message)
    return STATE.unpack(body)


def _parse_groups(content: bytes, offset: int) -> list[GroupState]:
    groups: list[GroupState] = []
    for slot in range(layout.NUM_GROUP_SLOTS):
        fields = _block(content, layout.GROUPS_OFFSET + slot * layout.GROUP_BYTES, GROUP)
        if fields is None:
            continue
        group, enqueued, completed, enqueued_at, completed_at, rolling, *fr, operation, dtype, _ = fields
        groups.append(
            GroupState(
                group=group,
                enqueued=enqueued,
                completed=completed,
                enqueued_ns=_instant(enqueued_at, offset),
                completed_ns=_instant(completed_at, offset),
                hash_low=rolling & 0xFFFFFFFF,
                operation=_name(OPERATIONS, operation),
                dtype=_name(DTYPES, dtype),
                flight_recorder=(fr[0], fr[1], fr[2]) if any(fr) else None,
            )
        )
    return groups


def _name(names: tuple[str, ...], code: int) -> str:
    """Return the name of a code; one from a newer version is `unknown`."""
    return names[code] if code < len(names) else "unknown"


def _ring_fields(content: bytes, at: int, major: int) -> tuple[int, ...] | None:
    """Return the fields of a ring record; `None` if it was never written or is torn."""
    if major == 1:
        fields = _block(content, at, layout.OLD_RING)
        return None if fields is None else (fields[-2], *fields[:-2], fields[-1])
    record = content[at : at + layout.RING_RECORD_BYTES]
    whole = len(record) == layout.RING_RECORD_BYTES and record[: MARK.size] == record[-MARK.size :] and any(record)
    return RING.unpack_from(record) if whole else None


def _parse_ring(content: bytes, offset: int, major: int) -> tuple[tuple[RingCall, ...], int]:
    calls: list[RingCall] = []
    torn = 0
    for slot in range(layout.NUM_RING_RECORDS):
        at = layout.RING_OFFSET + slot * layout.RING_RECORD_BYTES
        fields = _ring_fields(content, at, major)
        if fields is None:
            torn += any(content[at : at + layout.RING_RECORD_BYTES])
            continue
        issued, operation, variant, dtype, flags, lap, group, phase, outstanding, *rest = fields
        sequence, step, peer, low, in_bytes, out_bytes, completed = rest
        if max(in_bytes, out_bytes) > _LARGEST_COUNT or not _are_instants((issued, completed), offset):
            torn += 1
            continue
        calls.append(
            RingCall(
                place=lap * layout.NUM_RING_RECORDS + slot,
                group=group,
                sequence=sequence,
                step=step if step >= 0 else None,
                phase=PHASES[phase] if phase < len(PHASES) else None,
                operation=_name(OPERATIONS, operation),
                variant=_name(VARIANTS, variant),
                dtype=_name(DTYPES, dtype),
                flags=flags,
                peer=peer if peer >= 0 else None,
                hash_low=low,
                in_bytes=in_bytes,
                out_bytes=out_bytes,
                issued_ns=issued + offset,
                completed_ns=_instant(completed, offset),
                outstanding=outstanding,
            )
        )
    calls.sort(key=lambda call: call.place)
    return tuple(calls), torn


def _merge_groups(slots: list[GroupState], calls: tuple[RingCall, ...]) -> tuple[GroupState, ...]:
    merged = {slot.group: slot for slot in slots}
    for call in calls:
        if call.operation in _POINT_TO_POINT:
            continue
        state = merged.get(call.group, replace(_NO_CALLS, group=call.group))
        # A record that was written with the call itself tells how far the calls before it had come.
        before = call.sequence - 1 - call.outstanding
        if call.outstanding < _MANY_OUTSTANDING and before > state.completed:
            state = replace(state, completed=before)
        if call.sequence > state.enqueued:
            state = replace(
                state,
                enqueued=call.sequence,
                enqueued_ns=call.issued_ns,
                hash_low=call.hash_low,
                operation=call.operation,
                dtype=call.dtype,
            )
        if call.completed_ns is not None and call.sequence > state.completed:
            state = replace(state, completed=call.sequence, completed_ns=call.completed_ns)
        merged[call.group] = state
    return tuple(merged[group] for group in sorted(merged))
