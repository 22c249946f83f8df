"""The smaller tables of the host: annotations, steps, memory, waits, Python frames."""

from __future__ import annotations

import math
import re
from collections import Counter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import polars as pl

from scope.trace.raw import RawAnnotations, RawMemory, RawPython, RawSpans, RawSyncs
from scope.trace.rawspans import row_numbers, sorted_spans, spans_of
from scope.trace.schema import SYNC_KINDS, Annotations, Memory, Ops, PythonCalls, Steps, Syncs

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from scope.trace.columns import Column
    from scope.trace.hostcalls import LinkedOps
    from scope.trace.reader import ReadTrace
    from scope.trace.texts import Texts

_STEP_NAME: Final = re.compile(r"ProfilerStep#(\d+)$")
_WINDOW_CATEGORY: Final = "Trace"
_DEVICE_ANNOTATIONS: Final = frozenset({"gpu_user_annotation", "cuda_event", "cuda_profiler_range", "mtia_insight"})
_SYNC_NAMES: Final = (
    ("stream_wait_event", "stream wait event"),
    ("event", "event"),
    ("stream", "stream"),
    ("context", "context"),
    ("context", "device"),
)


def annotations_table(raw: pl.DataFrame, texts: Texts, base_ns: int) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the table, and beside it the texts that only the collectives need, row by row."""
    raw = sorted_spans(raw, RawAnnotations.external_id)
    frame = pl.DataFrame(
        [
            row_numbers(raw, Annotations.annotation_id),
            texts.name_column(raw[RawAnnotations.category], Annotations.category),
            texts.name_column(raw[RawSpans.name], Annotations.name),
            raw[RawSpans.thread].alias(Annotations.thread),
            texts.of_names(raw[RawAnnotations.category], _DEVICE_ANNOTATIONS.__contains__, pl.Boolean).alias(
                Annotations.on_device
            ),
            *spans_of(raw, base_ns, Annotations.start_ns, Annotations.end_ns),
        ]
    )
    extra = pl.DataFrame(
        [
            texts.text_column(raw[RawAnnotations.input_dims], Ops.input_dims),
            texts.text_column(raw[RawAnnotations.input_types], Ops.input_types),
        ]
    )
    on_host = frame.hstack(extra.get_columns())
    if frame[Annotations.on_device].any():
        on_host = on_host.filter(~pl.col(Annotations.on_device))
    return frame, on_host


def steps_table(on_host: pl.DataFrame, read: ReadTrace, base_ns: int) -> pl.DataFrame:
    """Return the profiler's steps; `on_host` are the annotations of the host, by their starts.

    Marks of one number that overlap, as where every thread marks its steps, are one step. It is the mark of the thread
    that marks most time: a short mark of another thread makes no step, and steps of different threads do not overlap.
    """
    window_start, window_end = _window(on_host, read, base_ns)
    marks = list(_marks(on_host))
    marked_ns: Counter[int] = Counter()
    for mark in marks:
        marked_ns[mark.thread] += mark.length_ns
    steps = [
        max(overlapping, key=lambda mark: (marked_ns[mark.thread], mark.length_ns))
        for overlapping in _marks_by_step(marks)
    ]
    return pl.DataFrame(
        [
            {
                Steps.step_id: step_id,
                Steps.number: mark.number,
                Steps.thread: mark.thread,
                Steps.start_ns: mark.start_ns,
                Steps.end_ns: mark.end_ns,
                Steps.is_cut: mark.start_ns < window_start or mark.end_ns >= window_end,
            }
            for step_id, mark in enumerate(sorted(steps, key=lambda mark: mark.start_ns))
        ],
        schema=Steps.schema(),
    )


class _Mark(NamedTuple):
    """One `ProfilerStep#n`."""

    number: int
    thread: int
    start_ns: int
    end_ns: int

    @property
    def length_ns(self) -> int:
        return self.end_ns - self.start_ns


def _marks(on_host: pl.DataFrame) -> Iterator[_Mark]:
    columns = (Annotations.name, Annotations.thread, Annotations.start_ns, Annotations.end_ns)
    is_step = pl.col(Annotations.name).cast(pl.String).str.starts_with("ProfilerStep#")
    for name, thread, start_ns, end_ns in on_host.filter(is_step).select(columns).iter_rows():
        match = _STEP_NAME.match(name)
        if match is not None and len(match[1]) <= 18:
            yield _Mark(int(match[1]), thread, start_ns, end_ns)


def _marks_by_step(marks: Iterable[_Mark]) -> list[list[_Mark]]:
    """Return the marks, sorted by start, of each step: those of one number that overlap."""
    found: list[list[_Mark]] = []
    last: dict[int, list[_Mark]] = {}
    until_ns: dict[int, int] = {}
    for mark in marks:
        if mark.number not in last or mark.start_ns >= until_ns[mark.number]:
            last[mark.number] = []
            found.append(last[mark.number])
        last[mark.number].append(mark)
        # Of two empty marks at one instant the second is the same again.
        until_ns[mark.number] = max(until_ns.get(mark.number, mark.end_ns), mark.end_ns, mark.start_ns + 1)
    return found


def _window(on_host: pl.DataFrame, read: ReadTrace, base_ns: int) -> tuple[float, float]:
    """Return what the profiler recorded; where the file ends early, no further than its last record."""
    spans = on_host.filter(pl.col(Annotations.category) == _WINDOW_CATEGORY)
    start: float = -math.inf
    end: float = math.inf
    if spans.height:
        start, end = spans[Annotations.start_ns].min(), spans[Annotations.end_ns].max()  # pyright: ignore[reportAssignmentType]
    last_ns = read.collected.last_end.ns() if read.is_truncated else None
    if last_ns is not None:
        end = min(end, last_ns + base_ns)
    return start, end


def memory_table(read: ReadTrace, ops: LinkedOps | None, base_ns: int) -> pl.DataFrame:
    """Return allocations and releases with the operator around each, where the operators were read."""
    raw = read.collected.frame(RawMemory)
    if raw.height == 0:
        return Memory.empty()
    raw = raw.sort(RawMemory.time_ns, maintain_order=True)
    memory = pl.DataFrame(
        [
            (raw[RawMemory.time_ns] + base_ns).alias(Memory.time_ns),
            raw[RawMemory.device_type].cast(pl.Int32, strict=False).fill_null(-1).alias(Memory.device_type),
            raw[RawMemory.device].cast(pl.Int32, strict=False).alias(Memory.device),
            raw[RawMemory.thread].alias(Memory.thread),
            raw[RawMemory.address].alias(Memory.address),
            raw[RawMemory.size_bytes].alias(Memory.size_bytes),
            raw[RawMemory.allocated_bytes].alias(Memory.allocated_bytes),
            raw[RawMemory.reserved_bytes].alias(Memory.reserved_bytes),
        ]
    )
    if ops is None:
        return memory
    return memory.hstack([ops.around(memory[[Memory.thread, Memory.time_ns]]).alias(Memory.op_id)])


def _sync_kind(name: str) -> str:
    lowered = name.lower()
    return next((kind for kind, start in _SYNC_NAMES if lowered.startswith(start)), "other")


def syncs_table(raw: pl.DataFrame, texts: Texts, base_ns: int) -> pl.DataFrame:
    """Return the waits of streams and of the host."""
    if raw.height == 0:
        return Syncs.empty()
    raw = sorted_spans(raw, RawSyncs.correlation)

    def known(column: Column) -> pl.Series:
        # The profiler writes -1 for none.
        lowest: Any = raw[column].min()
        if lowest is None or lowest >= 0:
            return raw[column]
        return pl.select(pl.when(raw[column] >= 0).then(raw[column]).otherwise(None)).to_series()

    return pl.DataFrame(
        [
            row_numbers(raw, Syncs.sync_id),
            texts.of_names(raw[RawSyncs.kind], _sync_kind, pl.Enum(SYNC_KINDS)).alias(Syncs.kind),
            raw[RawSyncs.device].cast(pl.Int32, strict=False).alias(Syncs.device),
            known(RawSyncs.stream).alias(Syncs.stream),
            known(RawSyncs.waited_stream).alias(Syncs.waited_stream),
            known(RawSyncs.waited_correlation).alias(Syncs.waited_event_correlation),
            raw[RawSyncs.correlation].alias(Syncs.correlation),
            *spans_of(raw, base_ns, Syncs.start_ns, Syncs.end_ns),
        ]
    )


def python_calls_table(raw: pl.DataFrame, texts: Texts, base_ns: int) -> pl.DataFrame:
    """Return Python frames, those without a number apart."""
    if raw.height == 0:
        return PythonCalls.empty()
    raw = sorted_spans(raw, RawPython.python_id).filter(pl.col(RawPython.python_id).is_not_null())
    return pl.DataFrame(
        [
            raw[RawPython.python_id].alias(PythonCalls.python_id),
            raw[RawPython.parent_id].alias(PythonCalls.parent_id),
            raw[RawPython.module_id].alias(PythonCalls.module_id),
            texts.name_column(raw[RawSpans.name], PythonCalls.name),
            raw[RawSpans.thread].alias(PythonCalls.thread),
            *spans_of(raw, base_ns, PythonCalls.start_ns, PythonCalls.end_ns),
        ]
    )
