"""Linking: raw columns of one file -> the tables of `scope.trace.schema` and how far to trust them."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from scope.trace.collectives import CallSources, collective_calls
from scope.trace.deviceevents import HostSide, device_events
from scope.trace.eager import is_true, not_negative, taken
from scope.trace.instants import LARGEST_NS
from scope.trace.launches import LAUNCHING_KINDS, launch_kind
from scope.trace.model import DeviceProperties, ProcessGroup, RankTrace, TraceQuality
from scope.trace.nesting import innermost, nest
from scope.trace.ranks import MOST_RANKS
from scope.trace.raw import (
    FILE_ROW,
    RawAnnotations,
    RawFlows,
    RawLaunches,
    RawMemory,
    RawOps,
    RawPython,
    RawSpans,
    RawSyncs,
)
from scope.trace.schema import (
    LAUNCH_KINDS,
    SYNC_KINDS,
    Annotations,
    DeviceEvents,
    Launches,
    Memory,
    Ops,
    PythonCalls,
    Steps,
    Syncs,
)
from scope.trace.untyped import as_list, as_mapping

if TYPE_CHECKING:
    from collections.abc import Callable

    from scope.trace.classes import Pattern
    from scope.trace.columns import Column
    from scope.trace.reader import ReadTrace

_STEP_NAME: Final = re.compile(r"ProfilerStep#(\d+)$")
_WINDOW_CATEGORY: Final = "Trace"
_DEVICE_ANNOTATIONS: Final = frozenset({"gpu_user_annotation", "cuda_event", "cuda_profiler_range", "mtia_insight"})
_NO_ROW: Final = pl.UInt32
_DEEPEST: Final = 65535
_RANKS_END: Final = 2**31
_SYNC_NAMES: Final = (
    ("stream_wait_event", "stream wait event"),
    ("event", "event"),
    ("stream", "stream"),
    ("context", "context"),
    ("context", "device"),
)
_INT64_MAX: Final = 2**63 - 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Identity:
    """Which rank a file is of."""

    label: str
    rank: int | None
    path: str


class Texts:
    """Codes of one file back to names; codes of absent texts become null."""

    def __init__(self, read: ReadTrace) -> None:
        self.names: list[str] = [name or "" for name in read.collected.names.texts()]
        self.texts: list[str | None] = read.collected.texts.texts()
        self._names = pl.DataFrame({"names": self.names}, schema={"names": pl.Categorical()}).to_series()
        self._texts = pl.DataFrame({"texts": self.texts}, schema={"texts": pl.Categorical()}).to_series()

    def name_column(self, codes: pl.Series, column: Column) -> pl.Series:
        """Return names for codes."""
        return taken(self._names, codes).alias(column)

    def text_column(self, codes: pl.Series, column: Column) -> pl.Series:
        """Return texts for codes."""
        return taken(self._texts, codes).alias(column)

    def of_names(self, codes: pl.Series, compute: Callable[[str], Any], dtype: Any) -> pl.Series:
        """Return what `compute` makes of each name, computed once a name."""
        return _mapped(codes, lambda code: compute(self.names[code]), dtype)

    def of_texts(self, codes: pl.Series, compute: Callable[[str | None], Any], dtype: Any) -> pl.Series:
        """Return what `compute` makes of each text, computed once a text."""
        return _mapped(codes, lambda code: compute(self.texts[code]), dtype)


def _mapped(codes: pl.Series, compute: Callable[[int], Any], dtype: Any) -> pl.Series:
    present = codes.unique().sort()
    values = pl.Series([], dtype=dtype)
    if len(present):
        values = values.extend_constant(None, int(present[-1]) + 1)
        values = values.scatter(present, pl.Series([compute(code) for code in present.to_list()], dtype=dtype))
    return taken(values, codes)


@dataclass(frozen=True)
class _LinkedOps:
    table: pl.DataFrame
    file_rows: pl.Series
    """Row of each operator in file order."""
    overlaps: int

    def around(self, points: pl.DataFrame) -> pl.Series:
        """Return the innermost operator around each point (thread, instant)."""
        return innermost(points, self.table.select(Ops.thread, Ops.start_ns, Ops.end_ns, Ops.parent_id))


def assemble(read: ReadTrace, identity: Identity, *, patterns: tuple[Pattern, ...] = ()) -> RankTrace:
    """Link the records of one file."""
    texts = Texts(read)
    base_ns = base_nanoseconds(read.metadata)
    groups = process_groups(read.metadata)
    flows = read.collected.frame(RawFlows)
    annotations, host_ranges = _annotations(read.collected.frame(RawSpans, RawAnnotations), texts, base_ns)
    steps = _steps(annotations, read, base_ns)
    # Each of these drops its raw rows before the next takes its own, which keeps the peak of memory low.
    ops = _linked_ops(read, texts, base_ns, steps, flows)
    launches = _linked_launches(read, texts, base_ns, steps, ops)
    memory = _memory(read, ops, base_ns)
    host = HostSide(launches=launches, ops=ops.table, flows=flows)
    devices = device_events(read, host, texts=texts, base_ns=base_ns, patterns=patterns)
    calls, call_ids = collective_calls(
        CallSources(
            devices=devices,
            ops=ops.table,
            launches=launches,
            op_file_rows=ops.file_rows,
            host_ranges=host_ranges,
            steps_of=lambda starts: _step_of(starts, steps),
            groups=groups,
            collective_args=read.collected.collective_args,
        )
    )
    events = devices.frame.with_columns(call_ids).select(*DeviceEvents.columns())
    launches = _with_counts(launches, events).select(*Launches.columns())
    info = as_mapping(read.metadata.get("distributedInfo"))
    return RankTrace(
        label=identity.label,
        rank=identity.rank,
        path=identity.path,
        world_size=_world_size(info),
        backend=_optional_text(info.get("backend")),
        host=_optional_text(read.metadata.get("host_name")),
        num_processes=max(1, *(len(ids) for ids in read.collected.processes.values())),
        is_host_timeline=events.height == 0,
        device_events=DeviceEvents.check(events),
        ops=Ops.check(ops.table),
        launches=Launches.check(launches),
        collective_calls=calls,
        annotations=Annotations.check(annotations),
        steps=Steps.check(steps),
        memory=Memory.check(memory),
        syncs=Syncs.check(_syncs(read.collected.frame(RawSpans, RawSyncs), texts, base_ns)),
        python_calls=PythonCalls.check(_python_calls(read.collected.frame(RawSpans, RawPython), texts, base_ns)),
        process_groups=tuple(groups.values()),
        devices=device_properties(read.metadata),
        threads=dict(read.collected.threads),
        quality=_quality(read, events, launches, steps, (devices.negative_length, ops.overlaps)),
    )


def _linked_ops(read: ReadTrace, texts: Texts, base_ns: int, steps: pl.DataFrame, flows: pl.DataFrame) -> _LinkedOps:
    raw = _sorted_spans(read.collected.frame(RawSpans, RawOps).with_row_index(FILE_ROW), RawOps.external_id)
    ops = _ops(raw, texts, base_ns)
    nesting = nest(ops[Ops.thread], ops[Ops.start_ns], ops[Ops.end_ns])
    ops = ops.with_columns(
        pl.Series(Ops.parent_id, nesting.parents, dtype=_NO_ROW),
        pl.Series(Ops.depth, nesting.depths, dtype=pl.UInt32).clip(upper_bound=_DEEPEST).cast(pl.UInt16),
        pl.Series(Ops.is_leaf, nesting.is_leaf, dtype=pl.Boolean),
        _step_of(ops[Ops.start_ns], steps).alias(Ops.step_id),
        _forward_ops(raw, flows).alias(Ops.forward_op_id),
    ).select(*Ops.columns())
    return _LinkedOps(ops, raw[FILE_ROW], nesting.overlaps)


def _linked_launches(read: ReadTrace, texts: Texts, base_ns: int, steps: pl.DataFrame, ops: _LinkedOps) -> pl.DataFrame:
    raw = _sorted_spans(read.collected.frame(RawSpans, RawLaunches), RawLaunches.correlation)
    launches = _launches(raw, texts, base_ns, steps)
    op_ids = _by_external_id(ops.around(launches.select(Launches.thread, Launches.start_ns)), raw, ops.table)
    return launches.with_columns(op_ids.alias(Launches.op_id))


def _world_size(info: dict[str, Any]) -> int | None:
    """Return the number of ranks; nonsense, of which lists of ranks would fill the memory, is none."""
    size = _integer(info.get("world_size"))
    return size if size is not None and 0 < size <= MOST_RANKS else None


def base_nanoseconds(metadata: dict[str, Any]) -> int:
    """Return the instant that the file's instants count from."""
    base = metadata.get("baseTimeNanoseconds")
    if isinstance(base, str) and base.isdigit() and len(base) < 20:
        base = int(base)
    if isinstance(base, float) and base.is_integer():
        base = int(base)
    return base if isinstance(base, int) and not isinstance(base, bool) and 0 <= base < LARGEST_NS else 0


def process_groups(metadata: dict[str, Any]) -> dict[str, ProcessGroup]:
    """Return the process groups of `distributedInfo` by their names."""
    config: Any = as_mapping(metadata.get("distributedInfo")).get("pg_config")
    entries = list(as_mapping(config).values()) or as_list(config)
    groups: dict[str, ProcessGroup] = {}
    for entry in entries:
        fields = as_mapping(entry)
        if "pg_name" not in fields:
            continue
        listed = as_list(fields.get("ranks"))
        ranks: list[int] = [rank for rank in listed if type(rank) is int and 0 <= rank < _RANKS_END]
        size = _integer(fields.get("pg_size"))
        name = str(fields["pg_name"])
        groups[name] = ProcessGroup(
            name=name,
            description=_optional_text(fields.get("pg_desc")),
            backend=_optional_text(fields.get("backend_config")),
            ranks=tuple(sorted(ranks)) if size is None or len(ranks) == size else (),
            size=size,
        )
    return groups


def device_properties(metadata: dict[str, Any]) -> tuple[DeviceProperties, ...]:
    """Return what the trace says of its devices."""
    found: list[DeviceProperties] = []
    for position, entry in enumerate(as_list(metadata.get("deviceProperties"))):
        fields = as_mapping(entry)
        major, minor = _integer(fields.get("computeMajor")), _integer(fields.get("computeMinor"))
        index = _integer(fields.get("id"))
        found.append(
            DeviceProperties(
                index=position if index is None else index,
                name=_optional_text(fields.get("name")) or "",
                total_memory_bytes=_integer(fields.get("totalGlobalMem")),
                num_sms=_integer(fields.get("numSms")),
                compute_capability=(major, minor) if major is not None and minor is not None else None,
            )
        )
    return tuple(found)


def _integer(value: Any) -> int | None:
    if isinstance(value, str) and value.isdigit() and len(value) < 19:
        value = int(value)
    return value if type(value) is int and abs(value) < _INT64_MAX else None


def _optional_text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _ends(frame: pl.DataFrame) -> pl.Series:
    return frame[RawSpans.start_ns] + not_negative(frame[RawSpans.duration_ns])


def _sorted_spans(frame: pl.DataFrame, tie: str) -> pl.DataFrame:
    """Sort by start, the longer first; spans that are equal keep the order in which the profiler numbered them."""
    return frame.sort(
        RawSpans.start_ns, RawSpans.duration_ns, tie, descending=[False, True, False], maintain_order=True
    )


def _spans(frame: pl.DataFrame, base_ns: int, start: Column, end: Column) -> list[pl.Series]:
    return [(frame[RawSpans.start_ns] + base_ns).alias(start), (_ends(frame) + base_ns).alias(end)]


def _row_numbers(frame: pl.DataFrame, column: Column) -> pl.Series:
    return pl.int_range(frame.height, dtype=pl.UInt32, eager=True).alias(column)


def _ops(raw: pl.DataFrame, texts: Texts, base_ns: int) -> pl.DataFrame:
    return pl.DataFrame(
        [
            _row_numbers(raw, Ops.op_id),
            raw[RawSpans.thread].alias(Ops.thread),
            texts.name_column(raw[RawSpans.name], Ops.name),
            *_spans(raw, base_ns, Ops.start_ns, Ops.end_ns),
            raw[RawOps.external_id].alias(Ops.external_id),
            raw[RawOps.sequence_number].alias(Ops.sequence_number),
            texts.text_column(raw[RawOps.input_dims], Ops.input_dims),
            texts.text_column(raw[RawOps.input_types], Ops.input_types),
            texts.text_column(raw[RawOps.input_strides], Ops.input_strides),
            texts.text_column(raw[RawOps.concrete_inputs], Ops.concrete_inputs),
            texts.text_column(raw[RawOps.kernel_file], Ops.kernel_file),
        ]
    )


def _launches(raw: pl.DataFrame, texts: Texts, base_ns: int, steps: pl.DataFrame) -> pl.DataFrame:
    frame = pl.DataFrame(
        [
            _row_numbers(raw, Launches.launch_id),
            raw[RawSpans.thread].alias(Launches.thread),
            texts.name_column(raw[RawSpans.name], Launches.name),
            texts.of_names(raw[RawSpans.name], launch_kind, pl.Enum(LAUNCH_KINDS)).alias(Launches.kind),
            *_spans(raw, base_ns, Launches.start_ns, Launches.end_ns),
            raw[RawLaunches.correlation].alias(Launches.correlation),
        ]
    )
    return frame.with_columns(_step_of(frame[Launches.start_ns], steps).alias(Launches.step_id))


def _with_counts(launches: pl.DataFrame, events: pl.DataFrame) -> pl.DataFrame:
    counts = (
        events.drop_nulls(DeviceEvents.launch_id)
        .group_by(pl.col(DeviceEvents.launch_id).alias(Launches.launch_id))
        .agg(pl.len().cast(pl.UInt32).alias(Launches.num_device_events))
    )
    counted = launches.join(counts, on=Launches.launch_id, how="left", maintain_order="left").with_columns(
        pl.col(Launches.num_device_events).fill_null(0)
    )
    # A call of an unknown runtime launches if something was launched by it.
    is_launching = (pl.col(Launches.kind) == "other") & (pl.col(Launches.num_device_events) > 0)
    return counted.with_columns(
        pl.when(is_launching)
        .then(pl.lit("kernel", dtype=pl.Enum(LAUNCH_KINDS)))
        .otherwise(pl.col(Launches.kind))
        .alias(Launches.kind)
    )


def _by_external_id(known: pl.Series, raw: pl.DataFrame, ops: pl.DataFrame) -> pl.Series:
    """Fill in operators by External id where no operator was running on the thread of the call."""
    if known.null_count() == 0 or ops.height == 0:
        return known
    ids = usable_external_ids(raw[RawLaunches.external_id], raw[RawLaunches.correlation])
    return known.fill_null(rows_by_external_id(ids, ops))


def usable_external_ids(external_ids: pl.Series, correlations: pl.Series) -> pl.Series:
    """Return External ids, null where they only repeat the correlation.

    Some versions of the profiler wrote the correlation into them; a file in which most do is not believed at all.
    """
    repeats = (external_ids == correlations).fill_null(value=False)
    if int(repeats.sum()) * 2 > len(external_ids):
        return pl.Series([None] * len(external_ids), dtype=pl.Int64)
    usable = ~repeats & (external_ids > 0)
    return pl.select(pl.when(usable).then(external_ids).otherwise(None)).to_series()


def rows_by_external_id(ids: pl.Series, ops: pl.DataFrame) -> pl.Series:
    """Return the operator of each External id."""
    table = ops.select(Ops.external_id, Ops.op_id).drop_nulls(Ops.external_id).unique(Ops.external_id, keep="first")
    wanted = pl.DataFrame({str(Ops.external_id): ids})
    return wanted.join(table, on=Ops.external_id, how="left", maintain_order="left")[Ops.op_id]


def _annotations(raw: pl.DataFrame, texts: Texts, base_ns: int) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the table, and beside it the texts that only the collectives need, row by row."""
    raw = _sorted_spans(raw, RawAnnotations.external_id)
    frame = pl.DataFrame(
        [
            _row_numbers(raw, Annotations.annotation_id),
            texts.name_column(raw[RawAnnotations.category], Annotations.category),
            texts.name_column(raw[RawSpans.name], Annotations.name),
            raw[RawSpans.thread].alias(Annotations.thread),
            texts.of_names(raw[RawAnnotations.category], _DEVICE_ANNOTATIONS.__contains__, pl.Boolean).alias(
                Annotations.on_device
            ),
            *_spans(raw, base_ns, Annotations.start_ns, Annotations.end_ns),
        ]
    )
    extra = pl.DataFrame(
        [
            texts.text_column(raw[RawAnnotations.input_dims], Ops.input_dims),
            texts.text_column(raw[RawAnnotations.input_types], Ops.input_types),
        ]
    )
    return frame, pl.concat([frame, extra], how="horizontal").filter(~pl.col(Annotations.on_device))


def _steps(annotations: pl.DataFrame, read: ReadTrace, base_ns: int) -> pl.DataFrame:
    on_host = annotations.filter(~pl.col(Annotations.on_device))
    window_start, window_end = _window(on_host, read, base_ns)
    rows: list[dict[str, Any]] = []
    seen: set[tuple[int, int]] = set()
    marks = on_host.filter(pl.col(Annotations.name).cast(pl.String).str.starts_with("ProfilerStep#"))
    for row in marks.iter_rows(named=True):
        match = _STEP_NAME.match(row[Annotations.name])
        if match is None or len(match[1]) > 18 or (int(match[1]), row[Annotations.start_ns]) in seen:
            continue
        seen.add((int(match[1]), row[Annotations.start_ns]))
        rows.append(
            {
                Steps.step_id: len(rows),
                Steps.number: int(match[1]),
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
    if read.is_truncated and read.collected.last_ns is not None:
        end = min(end, read.collected.last_ns + base_ns)
    return start, end


def _step_of(starts: pl.Series, steps: pl.DataFrame) -> pl.Series:
    """Return the step that holds each instant."""
    if steps.height == 0 or len(starts) == 0:
        return pl.Series([None] * len(starts), dtype=_NO_ROW)
    ordered = steps.sort(Steps.start_ns)
    places = ordered[Steps.start_ns].search_sorted(starts, side="right").cast(pl.Int64) - 1
    places = pl.select(pl.when(places >= 0).then(places).otherwise(None)).to_series()
    inside = is_true(starts < taken(ordered[Steps.end_ns], places))
    return (
        pl.select(pl.when(inside).then(taken(ordered[Steps.step_id], places)).otherwise(None)).to_series().cast(_NO_ROW)
    )


def _forward_ops(raw: pl.DataFrame, flows: pl.DataFrame) -> pl.Series:
    """Return for each backward operator its forward operator: by flows, then by sequence number and thread."""
    numbered = raw.select(
        RawOps.sequence_number, RawOps.forward_thread, RawSpans.thread, RawSpans.start_ns
    ).with_row_index("row")
    is_backward = (pl.col(RawOps.forward_thread) > 0) & (pl.col(RawOps.sequence_number) >= 0)
    forward = numbered.filter(
        ~(pl.col(RawOps.forward_thread) > 0).fill_null(value=False) & (pl.col(RawOps.sequence_number) >= 0)
    )
    # Views and other operators share the next number with the one that is recorded: the last of them is it.
    by_number = forward.group_by(RawOps.sequence_number).agg(
        pl.col("row").last().alias("forward_row"), pl.col(RawSpans.thread).n_unique().alias("threads")
    )
    backward = numbered.filter(is_backward).join(
        by_number.filter(pl.col("threads") == 1), on=RawOps.sequence_number, how="inner"
    )
    pairs = dict(zip(backward["row"].to_list(), backward["forward_row"].to_list(), strict=True))
    pairs.update(_flow_pairs(raw, flows.filter(pl.col(RawFlows.is_backward))))
    if not pairs:
        return pl.Series([None] * raw.height, dtype=_NO_ROW)
    table = pl.DataFrame(
        {"row": list(pairs), "forward_row": list(pairs.values())}, schema={"row": _NO_ROW, "forward_row": _NO_ROW}
    )
    rows = pl.DataFrame({"row": pl.int_range(raw.height, dtype=_NO_ROW, eager=True)})
    return rows.join(table, on="row", how="left", maintain_order="left")["forward_row"]


def _flow_pairs(raw: pl.DataFrame, flows: pl.DataFrame) -> dict[int, int]:
    """Match the ends of forward-to-backward arrows to the operators that begin where they stand."""
    if flows.height == 0:
        return {}
    ops = raw.select(RawSpans.thread, pl.col(RawSpans.start_ns).alias(RawFlows.time_ns)).with_row_index("row")
    ops = ops.unique([RawSpans.thread, RawFlows.time_ns], keep="last", maintain_order=True)
    placed = flows.join(ops, on=[RawFlows.thread, RawFlows.time_ns], how="inner").drop_nulls(RawFlows.id)
    starts = placed.filter(pl.col(RawFlows.is_start)).unique(RawFlows.id, keep="first", maintain_order=True)
    ends = placed.filter(~pl.col(RawFlows.is_start)).unique(RawFlows.id, keep="first", maintain_order=True)
    both = ends.join(starts, on=RawFlows.id, suffix="_forward")
    return dict(zip(both["row"].to_list(), both["row_forward"].to_list(), strict=True))


def _memory(read: ReadTrace, ops: _LinkedOps, base_ns: int) -> pl.DataFrame:
    raw = read.collected.frame(RawMemory)
    if raw.height == 0:
        return Memory.empty()
    raw = raw.sort(RawMemory.time_ns, maintain_order=True)
    op_ids = ops.around(raw.select(RawMemory.thread, pl.col(RawMemory.time_ns) + base_ns))
    return pl.DataFrame(
        [
            (raw[RawMemory.time_ns] + base_ns).alias(Memory.time_ns),
            raw[RawMemory.device_type].cast(pl.Int32, strict=False).fill_null(-1).alias(Memory.device_type),
            raw[RawMemory.device].cast(pl.Int32, strict=False).alias(Memory.device),
            raw[RawMemory.thread].alias(Memory.thread),
            raw[RawMemory.address].alias(Memory.address),
            raw[RawMemory.size_bytes].alias(Memory.size_bytes),
            raw[RawMemory.allocated_bytes].alias(Memory.allocated_bytes),
            raw[RawMemory.reserved_bytes].alias(Memory.reserved_bytes),
            op_ids.alias(Memory.op_id),
        ]
    )


def _sync_kind(name: str) -> str:
    lowered = name.lower()
    return next((kind for kind, start in _SYNC_NAMES if lowered.startswith(start)), "other")


def _syncs(raw: pl.DataFrame, texts: Texts, base_ns: int) -> pl.DataFrame:
    if raw.height == 0:
        return Syncs.empty()
    raw = _sorted_spans(raw, RawSyncs.correlation)

    def known(column: Column) -> pl.Series:
        # The profiler writes -1 for none.
        return pl.select(pl.when(raw[column] >= 0).then(raw[column]).otherwise(None)).to_series()

    return pl.DataFrame(
        [
            _row_numbers(raw, Syncs.sync_id),
            texts.of_names(raw[RawSyncs.kind], _sync_kind, pl.Enum(SYNC_KINDS)).alias(Syncs.kind),
            raw[RawSyncs.device].cast(pl.Int32, strict=False).alias(Syncs.device),
            known(RawSyncs.stream).alias(Syncs.stream),
            known(RawSyncs.waited_stream).alias(Syncs.waited_stream),
            known(RawSyncs.waited_correlation).alias(Syncs.waited_event_correlation),
            raw[RawSyncs.correlation].alias(Syncs.correlation),
            *_spans(raw, base_ns, Syncs.start_ns, Syncs.end_ns),
        ]
    )


def _python_calls(raw: pl.DataFrame, texts: Texts, base_ns: int) -> pl.DataFrame:
    if raw.height == 0:
        return PythonCalls.empty()
    raw = _sorted_spans(raw, RawPython.python_id).filter(pl.col(RawPython.python_id).is_not_null())
    return pl.DataFrame(
        [
            raw[RawPython.python_id].alias(PythonCalls.python_id),
            raw[RawPython.parent_id].alias(PythonCalls.parent_id),
            raw[RawPython.module_id].alias(PythonCalls.module_id),
            texts.name_column(raw[RawSpans.name], PythonCalls.name),
            raw[RawSpans.thread].alias(PythonCalls.thread),
            *_spans(raw, base_ns, PythonCalls.start_ns, PythonCalls.end_ns),
        ]
    )


def _quality(
    read: ReadTrace, events: pl.DataFrame, launches: pl.DataFrame, steps: pl.DataFrame, counts: tuple[int, int]
) -> TraceQuality:
    """Count what was seen; `counts` are the events of negative length and the overlapping operators."""
    negative, overlaps = counts
    lengths = events[DeviceEvents.end_ns] - events[DeviceEvents.start_ns]
    total = int(lengths.sum())
    attributed = int(lengths.filter(events[DeviceEvents.op_id].is_not_null()).sum())
    idle_launches = launches.filter(
        pl.col(Launches.kind).cast(pl.String).is_in(LAUNCHING_KINDS) & (pl.col(Launches.num_device_events) == 0)
    )
    return TraceQuality(
        events_read=read.collected.events_read,
        events_lost=read.collected.events_lost,
        events_repaired=read.collected.events_repaired,
        truncated=read.is_truncated,
        zero_length=int((lengths == 0).sum()) - negative,
        negative_length=negative,
        device_events_without_launch=events[DeviceEvents.launch_id].null_count(),
        launches_without_device_event=idle_launches.height if events.height else 0,
        slices_overrun=int((events[DeviceEvents.clipped_end_ns] < events[DeviceEvents.end_ns]).sum()),
        steps_found=steps.height,
        host_overlaps=overlaps,
        attributed_ratio=attributed / total if total else None,
    )
