"""The smaller tables of the host: annotations, steps, memory, waits, Python frames."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from scope.trace.raw import RawAnnotations, RawMemory, RawPython, RawSpans, RawSyncs
from scope.trace.rawspans import row_numbers, sorted_spans, spans_of
from scope.trace.schema import SYNC_KINDS, Annotations, Memory, Ops, PythonCalls, Steps, Syncs

if TYPE_CHECKING:
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

    A mark that begins within one of the same number, as where every thread marks its steps, is the same step again.
    """
    window_start, window_end = _window(on_host, read, base_ns)
    rows: list[dict[str, Any]] = []
    taken_until_ns: dict[int, int] = {}
    marks = on_host.filter(pl.col(Annotations.name).cast(pl.String).str.starts_with("ProfilerStep#"))
    for row in marks.iter_rows(named=True):
        match = _STEP_NAME.match(row[Annotations.name])
        if match is None or len(match[1]) > 18:
            continue
        number = int(match[1])
        if row[Annotations.start_ns] < taken_until_ns.get(number, row[Annotations.start_ns]):
            continue
        taken_until_ns[number] = max(row[Annotations.end_ns], row[Annotations.start_ns] + 1)
        rows.append(
            {
                Steps.step_id: len(rows),
                Steps.number: number,
                Steps.thread: row[Annotations.thread],
                Steps.start_ns: row[Annotations.start_ns],
                Steps.end_ns: row[Annotations.end_ns],
                Steps.is_cut: row[Annotations.start_ns] < window_start or row[Annotations.end_ns] >= window_end,
            }
        )
    return pl.DataFrame(rows, schema=Steps.schema())


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
