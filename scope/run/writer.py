"""The writer of one rank: queues on the training thread, one thread that writes every second.

The training thread only appends to queues and writes the black box. The 1 Hz thread encodes and writes, in short turns
that let go of the interpreter lock, into the node-local spool; a full disk drops records and counts them.
"""

from __future__ import annotations

import collections
import contextlib
import os
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic, monotonic_ns, sleep
from typing import TYPE_CHECKING, Any, Final

import msgspec

from scope.errors import RunError
from scope.run import layout, paths
from scope.run.blackbox import BlackBox, BlackBoxIdentity
from scope.run.calls import CallLog, StepCalls, pack_segment_header
from scope.run.clock import read_anchor, wall_offset
from scope.run.files import AppendFile, make_folders, replace_document
from scope.run.folding import fold_file
from scope.run.schema import EventKind, EventRecord, GroupInfo, RankInfo, StepRecord

if TYPE_CHECKING:
    from pathlib import Path

    from scope.run.calls import Call
    from scope.run.schema import Detail

_PULSE_S: Final = 1.0
_PULSE_NS: Final = 1_000_000_000
_MAX_QUEUE: Final = 10_000
_SETTLE_NS: Final = 2_000_000_000
_RECORDS_PER_TURN: Final = 64
_ANCHOR_EVERY_BEATS: Final = 300
_ANOMALY_FACTOR: Final = 1.5
_STEPS_AROUND_ANOMALY: Final = 4
_MAX_CALLS_HELD: Final = 4096
"""Calls of a step in progress that are held until it ends; of more the settled ones are written before, for a program
may have no steps, or none whose end can be told."""
_encoder: Final = msgspec.json.Encoder()


@dataclass(frozen=True, kw_only=True)
class WriterBudget:
    """What a rank may write.

    Attributes:
        max_bytes: All files of the rank together, traces apart: a quarter for steps, the rest for calls.
        max_calls_per_s: Above this rate only one step in 2^k has its calls recorded.
        segment_bytes: Size at which a segment of calls is closed.
        segment_age_s: Age at which it is closed however small.
    """

    max_bytes: int = 256 * 2**20
    max_calls_per_s: int = 5_000
    segment_bytes: int = 2**20
    segment_age_s: float = 10.0


class StepDraft(msgspec.Struct, eq=False):
    """A finished step on its way to disk.

    Attributes:
        record: All but collectives, communication wait, device times and what `complete` gives.
        calls: Its calls.
        device_ns: Asked at each pulse; GPU time by phase once known, `None` while events are pending.
        complete: Works out of the record, on the thread that writes, more of its fields by name.
        queued_ns: When it was queued, monotonic.
    """

    record: StepRecord
    calls: StepCalls
    device_ns: Callable[[], dict[str, int] | None] | None = None
    complete: Callable[[StepRecord], dict[str, Any]] | None = None
    queued_ns: int = msgspec.field(default_factory=monotonic_ns)


class RankWriter:
    """Writes the folder of one rank of one attempt.

    Every public method may be called from any thread and does nothing in a forked child. None raises `OSError`, and
    `flush` and `close` nothing at all.

    Attributes:
        folder: The rank's folder in the spool.
        calls: The log that collective calls go to.
        pollers: Called at every pulse, by the 1 Hz thread: device events, the Flight Recorder's status.
        wall_offset_ns: Monotonic instant + this = nanoseconds since the epoch.
        enabled: False in a forked child, which shares files that are not its own.
        num_dropped: Records dropped since the start.
        is_displaced: A rank that this process spawned has taken its place, and nothing is written any more.

    Calls outside finished steps (before the first one, or in one that the end of the program cuts off) go to the
    segments as well; they have no line in the file of steps.
    """

    def __init__(self, folder: Path, info: RankInfo, *, budget: WriterBudget | None = None) -> None:
        self.folder = folder
        self.enabled = True
        self._displaced = os.fspath(paths.displaced_folder(folder, info.pid))
        self.pollers: list[Callable[[], None]] = []
        self.num_dropped = 0
        self.is_displaced = False
        self._budget = budget or WriterBudget()
        self._info = info
        self._info_dirty = True
        self._lock = threading.RLock()
        self._queue: collections.deque[StepDraft] = collections.deque()
        self._loose: collections.deque[StepCalls] = collections.deque(maxlen=_MAX_QUEUE)
        self._events: collections.deque[EventRecord] = collections.deque(maxlen=_MAX_QUEUE)
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._beats = 0
        self._told_failure = False
        self._make_folders()
        anchor = info.anchors[0] if info.anchors else read_anchor()
        self.wall_offset_ns = wall_offset(anchor)
        self._info = msgspec.structs.replace(info, anchors=info.anchors or (anchor,))
        self.black_box = BlackBox(folder / paths.BLACK_BOX_FILE, self._identity())
        if self.black_box.absent_reason:
            absent = {**info.absent, "black_box": self.black_box.absent_reason}
            self._info = msgspec.structs.replace(self._info, absent=absent)
        started = monotonic_ns()
        self.black_box.write_state(layout.STATE.pack(-1, 0, 0, started, started, 0, 0, b"startup"))
        self.calls = CallLog(self.black_box)
        self._steps_file = AppendFile(folder / paths.STEPS_FILE)
        self._events_file = AppendFile(folder / paths.EVENTS_FILE)
        self._segments = _Segments(folder / paths.CALLS_FOLDER, self._info, self.wall_offset_ns, self._budget)
        _writers.add(self)

    @property
    def info(self) -> RankInfo:
        """What `rank.json` says, or will at the next pulse."""
        return self._info

    def start(self) -> None:
        """Write `rank.json` and start the 1 Hz thread."""
        self._write_info()
        self._thread = threading.Thread(target=self._run, name="scope-writer", daemon=True)
        self._thread.start()

    def update_info(self, **changes: object) -> None:
        """Change fields of `rank.json`; written at the next pulse."""
        with self._lock:
            self._info = msgspec.structs.replace(self._info, **changes)
            self._info_dirty = True
        if "world_size" in changes or "rank" in changes:
            self.black_box.identity = self._identity()

    def put_group(self, group: GroupInfo) -> None:
        """Add a process group to `rank.json`, or replace what is known of the one with its number."""
        with self._lock:
            groups = [known for known in self._info.groups if known.group != group.group]
            self.update_info(groups=tuple(sorted((*groups, group), key=lambda known: known.group)))

    def add_event(
        self,
        kind: EventKind,
        message: str,
        *,
        time_ns: int | None = None,
        step: int | None = None,
        phase: str | None = None,
        duration_ns: int | None = None,
        **detail: Detail,
    ) -> None:
        """Note something rare.

        Args:
            kind: What it is.
            message: One sentence for people.
            time_ns: Monotonic instant; now when absent.
            step: The step in which it happened.
            phase: The phase in which it happened.
            duration_ns: Its length.
            **detail: Figures by name.
        """
        if not self.enabled:
            return
        if len(self._events) == _MAX_QUEUE:
            self.num_dropped += 1
        at = monotonic_ns() if time_ns is None else time_ns
        self._events.append(
            EventRecord(
                time_ns=at + self.wall_offset_ns,
                kind=kind,
                message=message,
                step=step,
                phase=phase,
                duration_ns=duration_ns,
                detail=detail,
            )
        )

    def add_step(self, draft: StepDraft) -> None:
        """Queue a finished step; above 10,000 waiting ones it is dropped and counted."""
        if not self.enabled:
            return
        if len(self._queue) >= _MAX_QUEUE:
            self.num_dropped += 1
            return
        self._queue.append(draft)

    def add_loose_calls(self, calls: StepCalls) -> None:
        """Queue the calls of what is no finished step."""
        if self.enabled and calls.calls:
            self._loose.append(calls)

    def close(self, exit_reason: str, *, exception: bool = False) -> None:
        """Write all that waits, close the segment, and mark the black box as closed in order."""
        if not self.enabled:
            return
        self._stop.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout=10 * _PULSE_S)
        ended = monotonic_ns() + self.wall_offset_ns
        flags = layout.PULSE_CLOSED | (layout.PULSE_EXCEPTION if exception else 0)
        self._guard(lambda: self.update_info(ended_ns=ended, exit_reason=exit_reason))
        self._pulse(final=True)
        for part in (
            lambda: self._write_pulse(flags),
            self._steps_file.close,
            self._events_file.close,
            self.black_box.close,
        ):
            self._guard(part)
        self.enabled = False

    def flush(self) -> None:
        """Do now what the next pulse would do; for tests and before a process that is about to be killed."""
        self._pulse(final=False)

    def _identity(self) -> BlackBoxIdentity:
        return BlackBoxIdentity(
            rank=self._info.rank,
            attempt=self._info.attempt,
            world_size=self._info.world_size,
            pid=self._info.pid,
            process_start_ticks=self._info.process_start_ticks,
            wall_offset_ns=self.wall_offset_ns,
        )

    def _make_folders(self) -> None:
        for folder in (self.folder, self.folder / paths.CALLS_FOLDER, self.folder / paths.TRACES_FOLDER):
            with contextlib.suppress(OSError):
                make_folders(folder)

    def _run(self) -> None:
        while self.enabled and not self._stop.wait(_PULSE_S):
            self._pulse(final=False)

    def _pulse(self, *, final: bool) -> None:
        with self._lock:
            if self.enabled and os.path.lexists(self._displaced):
                self.enabled, self.is_displaced = False, True
            if not self.enabled:
                return
            for poll in tuple(self.pollers):
                self._guard(poll)
            self._beats += 1
            if self._beats % _ANCHOR_EVERY_BEATS == 0:
                self.update_info(anchors=(*self._info.anchors, read_anchor())[-100:])
            for part in (
                lambda: self._write_steps(final=final),
                self._write_events,
                lambda: self._segments.close_when_due(final=final),
                *([self._note_written] if final else []),
                self._write_info_if_dirty,
                self.black_box.write_identity,
                self.calls.refresh_ring,
                lambda: self.black_box.write_groups(self.calls.pack_groups()),
                lambda: self._write_pulse(0),
            ):
                self._guard(part)

    def _guard(self, part: Callable[[], None]) -> None:
        """Run a part of what is written; what it raises is counted, told once, and reaches neither program nor thread.

        The other parts are written all the same: the black box, above all, goes on to say that this rank is alive.
        """
        try:
            part()
        except Exception as error:  # noqa: BLE001 - the one guard of the writer
            self._note_failure(error)

    def _note_failure(self, error: Exception) -> None:
        self.num_dropped += 1
        if not self._told_failure:
            self._told_failure = True
            self.add_event("warning", f"a part of the recording could not be written: {type(error).__name__}")

    def _write_pulse(self, flags: int) -> None:
        failed = self._steps_file.num_dropped + self._events_file.num_dropped + self._segments.num_dropped
        left_out = max(0, len(self._info.groups) - layout.NUM_GROUP_SLOTS)
        self.black_box.write_pulse(
            layout.PULSE.pack(
                monotonic_ns(), self._beats, self.num_dropped + failed, flags, left_out, -1 if not flags else 0
            )
        )

    def _note_written(self) -> None:
        """Say in `rank.json` how much stands in the files, so that readers can tell what was lost since."""
        sizes: dict[str, int] = {}
        for file in (self._steps_file, self._events_file):
            with contextlib.suppress(FileNotFoundError):
                sizes[file.path.name] = file.path.stat().st_size
        self.update_info(written_bytes=sizes, num_call_records=self._segments.count_kept())

    def _write_info_if_dirty(self) -> None:
        if self._info_dirty:
            self._write_info()

    def _write_info(self) -> None:
        with self._lock:
            self._info_dirty = False
            try:
                replace_document(self.folder / paths.RANK_FILE, msgspec.json.encode(self._info))
            except (OSError, TypeError, ValueError):
                self._make_folders()
                self._info_dirty = True
                self.num_dropped += 1

    def _write_steps(self, *, final: bool) -> None:
        while self._loose:
            self._segments.add_calls(calls := self._loose.popleft(), calls.step)
        while drafts := self._take_settled(final=final):
            recorded = self._segments.add(drafts)
            lines: list[bytes] = []
            for draft, is_recorded in zip(drafts, recorded, strict=True):
                lines += self._encode(self._finish(draft, recorded=is_recorded))
            self._append_steps(lines)
            if self._queue:
                sleep(0)  # as between two turns of calls
        if len((held := self.calls.in_progress).seen) > _MAX_CALLS_HELD:
            self._segments.add_early(held, before_ns=monotonic_ns() - _SETTLE_NS)

    def _finish(self, draft: StepDraft, *, recorded: bool) -> StepRecord:
        """Return the record with what became known, or was left to this thread, after the step ended."""
        outcome = draft.calls.conclude()
        more: dict[str, Any] = {}
        if draft.complete is not None:
            try:
                more = draft.complete(draft.record)
            except Exception as error:  # noqa: BLE001 - the one guard of the writer
                self._note_failure(error)
        return msgspec.structs.replace(
            draft.record,
            collectives=outcome.collectives,
            communication_wait_ns=outcome.wait_ns,
            communication_wait_coverage_ratio=outcome.wait_coverage_ratio,
            communication_wait_phases=outcome.wait_phases or None,
            device_ns=draft.device_ns() if draft.device_ns else None,
            calls_recorded=recorded,
            **more,
        )

    def _take_settled(self, *, final: bool) -> list[StepDraft]:
        """Return the steps of one turn: as many as have about as many calls as a turn has records."""
        drafts: list[StepDraft] = []
        num_records = 0
        while num_records < _RECORDS_PER_TURN and self._queue and (final or self._is_settled(self._queue[0])):
            draft = self._queue.popleft()
            drafts.append(draft)
            num_records += 1 + len(draft.calls.seen)
        return drafts

    def _encode(self, record: StepRecord | EventRecord) -> list[bytes]:
        """Return a record as a line; none, counted, where it holds a value that no document can."""
        try:
            return [_encoder.encode(record) + b"\n"]
        except (TypeError, ValueError, OverflowError, RecursionError):
            self.num_dropped += 1
            return []

    def _append_steps(self, lines: list[bytes]) -> None:
        if not lines:
            return
        if not self._steps_file.append(b"".join(lines)):
            # One write is one failure to the file, but as many records to the reader.
            self.num_dropped += len(lines) - 1
        self._fold_steps()

    def _fold_steps(self) -> None:
        max_bytes = self._budget.max_bytes // 4
        try:
            if self._steps_file.path.stat().st_size <= max_bytes:
                return
            self._steps_file.close()
            fold_file(self._steps_file.path, max_bytes=max_bytes)
        except (OSError, RunError, msgspec.MsgspecError):
            self.num_dropped += 1

    def _is_settled(self, draft: StepDraft) -> bool:
        """Whether nothing more will be known of a step: all is known, or it has waited long enough."""
        if monotonic_ns() - draft.queued_ns > _SETTLE_NS:
            return True
        if draft.device_ns is not None and draft.device_ns() is None:
            return False
        return draft.calls.num_outstanding() == 0

    def _write_events(self) -> None:
        lines: list[bytes] = []
        while self._events:
            lines += self._encode(self._events.popleft())
        if lines and not self._events_file.append(b"".join(lines)):
            self.num_dropped += len(lines) - 1


class _Segments:
    """Call records of steps, in segments that are closed by size or age."""

    def __init__(self, folder: Path, info: RankInfo, wall_offset_ns: int, budget: WriterBudget) -> None:
        self.num_dropped = 0
        self._folder = folder
        self._info = info
        self._wall_offset_ns = wall_offset_ns
        self._budget = budget
        self._max_bytes = budget.max_bytes * 3 // 4
        self._number = 0
        self._file: AppendFile | None = None
        self._size = 0
        self._num_records = 0
        self._opened = 0.0
        self._stride = 1
        self._num_early = 0
        self._typical_ns = 0.0
        self._keep_until = -1

    def add(self, drafts: list[StepDraft]) -> list[bool]:
        """Write the calls of steps but for those whose turn it is not; return of each whether all were written."""
        taken = [self._is_its_turn(draft) for draft in drafts]
        calls = [call for draft, is_taken in zip(drafts, taken, strict=True) if is_taken for call in draft.calls.calls]
        written = self._write_calls(calls, drafts[0].record.step)
        return [
            not draft.calls.num_left_out and (not draft.calls.calls or (is_taken and written))
            for draft, is_taken in zip(drafts, taken, strict=True)
        ]

    def add_early(self, held: StepCalls, *, before_ns: int) -> None:
        """Write the calls of a step in progress that were issued before an instant, above the rate some of them."""
        early = held.take_early(before_ns)
        if not early:
            return
        self._num_early += 1
        stride = self._stride_of(len(early), max(early[-1].issued_ns - early[0].issued_ns, _PULSE_NS))
        if not held.keep or self._num_early % stride or not self._write_calls(early, held.step):
            held.num_left_out += len(early)

    def add_calls(self, of_step: StepCalls, step: int) -> bool:
        """Write calls; return whether all of them were written."""
        return self._write_calls(of_step.calls, step)

    def _write_calls(self, calls: list[Call], step: int) -> bool:
        for at in range(0, len(calls), _RECORDS_PER_TURN):
            if at:
                sleep(0)  # lets the training thread have the interpreter
            packed = b"".join([call.pack() for call in calls[at : at + _RECORDS_PER_TURN]])
            if not self._append(packed, step):
                self.num_dropped += len(calls) - at - 1
                return False
        return True

    def close_when_due(self, *, final: bool) -> None:
        """Give the open segment its final name when it is large or old enough, or at the end."""
        file = self._file
        if file is None:
            return
        old = monotonic() - self._opened > self._budget.segment_age_s
        if final or old or self._size >= self._budget.segment_bytes:
            file.close()
            with contextlib.suppress(OSError):
                file.path.rename(file.path.with_suffix(paths.SEGMENT_SUFFIX))
            self._file = None
            self._keep_budget()

    def _is_its_turn(self, draft: StepDraft) -> bool:
        step, calls = draft.record.step, draft.calls.calls
        if not calls:
            return False
        self._adapt(len(calls), draft.record.end_ns - draft.record.start_ns, step)
        return not step % self._stride or step <= self._keep_until

    def _adapt(self, num_calls: int, length_ns: int, step: int) -> None:
        """Choose how many steps are recorded from the rate of calls, and keep the steps around an anomaly."""
        if self._typical_ns and length_ns > _ANOMALY_FACTOR * self._typical_ns:
            self._keep_until = step + _STEPS_AROUND_ANOMALY
        self._typical_ns = 0.9 * self._typical_ns + 0.1 * length_ns if self._typical_ns else float(length_ns)
        self._stride = self._stride_of(num_calls, length_ns)

    def _stride_of(self, num_calls: int, length_ns: int) -> int:
        rate = num_calls * 1e9 / max(length_ns, 1)
        stride = 1
        while rate / stride > self._budget.max_calls_per_s:
            stride *= 2
        return stride

    def _append(self, packed: bytes, step: int) -> bool:
        num_records = len(packed) // layout.CALL_BYTES
        if self._file is None:
            self._number += 1
            path = self._folder / f"{self._number:06d}-{max(step, 0)}{paths.OPEN_SEGMENT_SUFFIX}"
            self._file = AppendFile(path)
            self._size = 0
            self._opened = monotonic()
            header = pack_segment_header(
                rank=self._info.rank,
                attempt=self._info.attempt,
                wall_offset_ns=self._wall_offset_ns,
                first_step=step,
            )
            packed = header + packed
        if not self._file.append(packed):
            self.num_dropped += 1
            if not self._size:  # else records of steps before stand in it
                self._file.close()
                with contextlib.suppress(OSError):
                    self._file.path.unlink()
                self._file = None
            return False
        self._size += len(packed)
        self._num_records += num_records
        self.close_when_due(final=False)
        return True

    def count_kept(self) -> int | None:
        """Return how many records stand in the segments; None where there was no room for all that were written."""
        num_bytes = self._num_records * layout.CALL_BYTES + self._number * layout.SEGMENT_HEADER_BYTES
        return self._num_records if num_bytes <= self._max_bytes else None

    def _keep_budget(self) -> None:
        """Delete the oldest closed segments beyond three quarters of the budget, as the publisher does."""
        try:
            segments = sorted(self._folder.glob(f"*{paths.SEGMENT_SUFFIX}"))
            sizes = [path.stat().st_size for path in segments]
            surplus = sum(sizes) - self._max_bytes
            for path, size in zip(segments, sizes, strict=True):
                if surplus <= 0:
                    break
                path.unlink()
                surplus -= size
        except OSError:
            return


_writers: weakref.WeakSet[RankWriter] = weakref.WeakSet()


def _after_fork() -> None:
    """Silence every writer in a forked child: files, thread and black box belong to the parent."""
    for writer in list(_writers):
        writer.enabled = False
        writer.calls.silence()
        writer.black_box.close()


os.register_at_fork(after_in_child=_after_fork)
