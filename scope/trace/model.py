"""One rank's trace in memory: its tables, what is known of the job, and how far to trust it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from scope.structs import Record

if TYPE_CHECKING:
    import polars as pl

_MOST_NAMED: Final = 4
"""Ranks whose label stands in a `repr`."""


class TraceQuality(Record, frozen=True, kw_only=True):
    """How far one rank's figures can be trusted; travels with every result.

    A field is None when nothing can be said, for example a coverage before it was computed.
    """

    events_read: int = 0
    """Records that were read, the dropped ones apart."""
    events_lost: int = 0
    """Records that could not be read, or hold nonsense that no repair makes true (ts 0 and dur 0)."""
    events_repaired: int = 0
    """Records that were read after a repair: bad UTF-8, a raw control character, a stray backslash. Of records whose
    table was not asked for, what their arguments hold is not looked at and so not counted."""
    asynchronous: int = 0
    """Records of work without a thread (phases `b`, `n`, `e` and the older `S`, `T`, `p`, `F`), which no profiler of
    torch writes: they are read and stand in no table."""
    truncated: bool = False
    """The file ends before its JSON does; what came before was read."""
    zero_length: int = 0
    """Device events of length 0."""
    negative_length: int = 0
    """Device events whose length was negative; they count as length 0."""
    device_events_without_launch: int = 0
    """Device events whose launch is not in the file."""
    launches_without_device_event: int = 0
    """Launching calls of which no device event is in the file."""
    slices_overrun: int = 0
    """Device events that run into the next event of their own stream."""
    host_overlaps: int | None = 0
    """Operators that end after the operator in which they began, on one thread; both keep their spans. None where the
    operators were not read."""
    steps_found: int = 0
    """Profiler steps."""
    missing_ranks: tuple[int, ...] = ()
    """Ranks of the job of which no file was given."""
    clock_interval_ns: int | None = None
    """Width of the interval that the clock offset to the reference rank is known to."""
    attributed_ratio: float | None = None
    """Share of device time whose operator is known."""
    roofline_coverage_ratio: float | None = None
    """Share of compute time that the roofline places."""


class ProcessGroup(Record, frozen=True, kw_only=True):
    """A process group as the trace describes it."""

    name: str
    description: str | None
    backend: str | None
    ranks: tuple[int, ...]
    """Global ranks, sorted; empty when the trace elides them."""
    size: int | None = None


class DeviceProperties(Record, frozen=True, kw_only=True):
    """One entry of the trace's `deviceProperties`; names may be empty or wrong, see `scope.hardware`."""

    index: int
    name: str
    total_memory_bytes: int | None
    num_sms: int | None = None
    compute_capability: tuple[int, int] | None = None


class RankTrace(Record, frozen=True, kw_only=True):
    """Everything that was read from one rank's file.

    The tables are those of `scope.trace.schema`; `python_calls` is empty unless it was asked for. Where only some
    tables were asked for (`ReadOptions.tables`), any use of another raises `UsageError`, and columns that only another
    table could fill are left out: without `ops` no `op_id` and `kernel_class`, without `collective_calls` no `call_id`.
    """

    label: str
    """`rank 3`, or `file 2` when no rank is known."""
    rank: int | None
    path: str
    world_size: int | None = None
    backend: str | None = None
    host: str | None = None
    num_processes: int = 1
    """Processes whose host records stand in the file; more than one where files were merged."""
    is_host_timeline: bool = False
    """No device events: compute and communication are host ranges (CPU training over gloo)."""
    device_events: pl.DataFrame
    ops: pl.DataFrame
    launches: pl.DataFrame
    collective_calls: pl.DataFrame
    annotations: pl.DataFrame
    steps: pl.DataFrame
    memory: pl.DataFrame
    syncs: pl.DataFrame
    python_calls: pl.DataFrame
    not_loaded: tuple[str, ...] = ()
    """Names of the tables above that were not asked for."""
    process_groups: tuple[ProcessGroup, ...] = ()
    devices: tuple[DeviceProperties, ...] = ()
    threads: dict[int, str] = msgspec.field(default_factory=dict[int, str])
    """Names of the threads by their id."""
    quality: TraceQuality

    def __repr__(self) -> str:
        """Name the file instead of its tables."""
        return f"RankTrace({self.label!r}, {self.quality.events_read:,} records, path={self.path!r})"


class Job(Record, frozen=True, kw_only=True):
    """The ranks of one job, sorted by rank, those without a rank last; what `scope.load` returns."""

    ranks: tuple[RankTrace, ...]
    world_size: int | None
    missing_ranks: tuple[int, ...] = ()
    warnings: tuple[str, ...] = ()
    """Sentences for the user: files skipped, ranks guessed, files that overlap little in time."""

    def __repr__(self) -> str:
        """Name the ranks instead of their tables."""
        labels = [trace.label for trace in self.ranks]
        shown = labels if len(labels) <= _MOST_NAMED else [*labels[: _MOST_NAMED - 1], "...", labels[-1]]
        return f"Job({', '.join(shown)}{'' if self.world_size is None else f' of {self.world_size}'})"
