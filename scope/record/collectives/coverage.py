"""How many of the calls that torch's Flight Recorder counted were seen here, by group and kind.

The recorder's status holds, per group, the sequence numbers of the last collective enqueued, started and completed. It
is read without its ring, in microseconds; the ring is read only when a group appears that the status numbers and the
hooks do not know by that number. Where nothing is recorded (torch 2.6 to 2.9 of gloo's calls) the coverage is unknown.

gloo counts sends and recvs among its collectives, and tells of them with the next collective; a reduce-scatter of lists
it carries out, and counts, as one all-reduce for each rank, and a monitored barrier as its sends and recvs, most of
them on the group's first rank. Its coverage is of all kinds together and "at least". NCCL counts them apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec
import torch

if TYPE_CHECKING:
    from collections.abc import Callable

    from scope.record.collectives.groups import GroupTable
    from scope.run.calls import CallLog

_READ_EVERY: Final = 8
_MAX_RING_READS: Final = 64
_COUNTS_TOGETHER: Final = "gloo"
NO_FLIGHT_RECORDER: Final = "this torch has no Flight Recorder that can be read"
NOT_RECORDED: Final = "the Flight Recorder holds nothing of this kind for the group's backend"


@dataclass(frozen=True, kw_only=True)
class Coverage:
    """Calls of one kind on one group.

    Attributes:
        group: Number of the group.
        kind: `collective`, `point_to_point`, or `all` where the backend does not tell them apart.
        seen: Calls that the hooks saw.
        flight_recorder: Calls that the Flight Recorder counted since the hooks were attached, absent where unknown.
        reason: Why it is unknown.
        at_least: The backend counts some calls several times, so that the ratio is a lower bound.
    """

    group: int
    kind: str
    seen: int
    flight_recorder: int | None
    reason: str | None = None
    at_least: bool = False

    @property
    def ratio(self) -> float | None:
        """Seen / counted, at most 1 (a call is seen before it is counted); None where nothing was counted."""
        return min(1.0, self.seen / self.flight_recorder) if self.flight_recorder else None


class _Status(msgspec.Struct):
    last_enqueued_collective: int = -1
    last_started_collective: int = -1
    last_completed_collective: int = -1


class _Entry(msgspec.Struct):
    pg_id: int
    process_group: tuple[str, ...]
    p2p_seq_id: int = 0


class _Dump(msgspec.Struct):
    pg_status: dict[str, _Status] = {}
    entries: list[_Entry] = []


def find_dump() -> Callable[..., bytes] | None:
    """Return torch's function that dumps the Flight Recorder as JSON, whatever it is called; None without one."""
    module: Any = getattr(torch._C, "_distributed_c10d", None)  # pyright: ignore[reportPrivateUsage]
    for name in ("_dump_fr_trace_json", "_dump_nccl_trace_json"):
        found = getattr(module, name, None)
        if found is not None:
            return found
    return None


class FlightRecorderPoll:
    """Reads the Flight Recorder's status; `poll` belongs to a thread that runs about once a second."""

    def __init__(self, groups: GroupTable, dump: Callable[..., bytes] | None) -> None:
        """Note how far the Flight Recorder is before anything is hooked.

        Args:
            groups: The groups that the hooks know.
            dump: What `find_dump` returned.
        """
        self._groups = groups
        self._dump = dump
        self._decoder = msgspec.json.Decoder(_Dump, strict=False)
        self._names: dict[str, str] = {}
        self._ring_reads = 0
        self._paired_for: tuple[list[tuple[int, str]], list[str], int] | None = None
        self._pairs: dict[int, str] = {}
        self._point_to_point: dict[str, int] = {}
        self._before = {key: max(status.last_enqueued_collective, 0) for key, status in self._read(ring=False).items()}
        self._status: dict[str, _Status] = {}
        self._num_polls = 0
        self._num_groups = 0

    def poll(self, log: CallLog | None = None) -> None:
        """Read the status, and note it in the log for the black box.

        While it tells of no group, as on CPUs, it is read at every eighth call alone, from when a group appeared.
        """
        num_groups = len(self._groups.names())
        if num_groups != self._num_groups:
            self._num_groups, self._num_polls = num_groups, 0
        if self._status or self._num_polls % _READ_EVERY == 0:
            self._status = self._read(ring=False)
        self._num_polls += 1
        unknown = [key for key in self._status if key not in self._names]
        if unknown and self._ring_reads < _MAX_RING_READS:
            self._ring_reads += 1
            self._read(ring=True)
        if log is None:
            return
        self._groups.mark_destroyed()
        for number, key in self._keys().items():
            status = self._status[key]
            log.note_flight_recorder(
                number,
                status.last_enqueued_collective,
                status.last_started_collective,
                status.last_completed_collective,
            )

    def coverage(self, log: CallLog) -> tuple[Coverage, ...]:
        """Return what is known of every group that was used; it reads the ring once more."""
        self._status = self._read(ring=True)
        keys = self._keys()
        found: list[Coverage] = []
        for info in self._groups.infos():
            collectives, point_to_point = log.num_calls(info.group)
            key = keys.get(info.group)
            counted = None
            if key is not None:
                counted = max(self._status[key].last_enqueued_collective - self._before.get(key, 0), 0)
            if info.backend == _COUNTS_TOGETHER:
                found.append(self._cover(info.group, "all", collectives + point_to_point, counted))
                continue
            if collectives or counted:
                found.append(self._cover(info.group, "collective", collectives, counted))
            if point_to_point:
                counted = self._point_to_point.get(info.name) or None
                found.append(self._cover(info.group, "point_to_point", point_to_point, counted))
        return tuple(found)

    def _cover(self, group: int, kind: str, seen: int, counted: int | None) -> Coverage:
        reason = None if counted else NOT_RECORDED if self._dump is not None else NO_FLIGHT_RECORDER
        return Coverage(
            group=group, kind=kind, seen=seen, flight_recorder=counted or None, reason=reason, at_least=kind == "all"
        )

    def _keys(self) -> dict[int, str]:
        """Return the Flight Recorder's number of each of our groups, both in order of appearance for equal names."""
        known = self._groups.names(), [*self._status], len(self._names)
        if known != self._paired_for:
            self._paired_for, self._pairs = known, self._pair()
        return self._pairs

    def _pair(self) -> dict[int, str]:
        keys: dict[str, list[str]] = {}
        for key in sorted(self._status, key=int):
            keys.setdefault(self._names.get(key, ""), []).append(key)
        numbers: dict[str, list[int]] = {}
        for number, name in self._groups.names():
            numbers.setdefault(name, []).append(number)
        # A name comes back after re-init. Aligned from the end, for the first may have been gone before we came.
        pairs = [pair for name in numbers for pair in zip(numbers[name][::-1], keys.get(name, [])[::-1], strict=False)]
        return dict(pairs)

    def _read(self, *, ring: bool) -> dict[str, _Status]:
        if self._dump is None:
            return {}
        try:
            dump = self._decoder.decode(self._dump(includeCollectives=ring))
        except (msgspec.MsgspecError, RuntimeError, TypeError):
            # Another layout than the one known: coverage is unknown, and said to be.
            self._dump = None
            return {}
        for entry in dump.entries:
            self._names[str(entry.pg_id)] = name = entry.process_group[0]
            self._point_to_point[name] = max(self._point_to_point.get(name, 0), entry.p2p_seq_id)
        return dump.pg_status
