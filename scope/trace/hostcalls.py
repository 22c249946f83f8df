"""Operators and calls of the device runtime: nesting, steps, and which belongs to which."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from scope.structs import Record
from scope.trace.eager import at_most
from scope.trace.forwards import forward_ops
from scope.trace.launches import launch_kind
from scope.trace.nesting import innermost, nest
from scope.trace.raw import FILE_ROW, RawLaunches, RawOps, RawSpans
from scope.trace.rawspans import row_numbers, sorted_spans, spans_of, step_of
from scope.trace.schema import LAUNCH_KINDS, DeviceEvents, Launches, Ops

if TYPE_CHECKING:
    from scope.trace.reader import ReadTrace
    from scope.trace.texts import Texts

_DEEPEST: Final = 65535


class LinkedOps(Record, frozen=True):
    """The table of operators, and what else is known of them."""

    table: pl.DataFrame
    file_rows: pl.Series
    """Row of each operator in file order."""
    overlaps: int

    def around(self, points: pl.DataFrame) -> pl.Series:
        """Return the innermost operator around each point (thread, instant)."""
        return innermost(points, self.table[[Ops.thread, Ops.start_ns, Ops.end_ns, Ops.parent_id]])


def linked_ops(read: ReadTrace, texts: Texts, base_ns: int, steps: pl.DataFrame, flows: pl.DataFrame) -> LinkedOps:
    """Nest the operators of each thread, and find their steps and forward operators."""
    raw = sorted_spans(read.collected.frame(RawSpans, RawOps).with_row_index(FILE_ROW), RawOps.external_id)
    ops = _ops(raw, texts, base_ns)
    nesting = nest(ops[Ops.thread], ops[Ops.start_ns], ops[Ops.end_ns])
    linked = [
        nesting.parents.alias(Ops.parent_id),
        at_most(nesting.depths, _DEEPEST).cast(pl.UInt16).alias(Ops.depth),
        nesting.is_leaf.alias(Ops.is_leaf),
        step_of(ops[Ops.start_ns], steps).alias(Ops.step_id),
        forward_ops(raw, flows).alias(Ops.forward_op_id),
    ]
    return LinkedOps(ops.hstack(linked)[list(Ops.columns())], raw[FILE_ROW], nesting.overlaps)


def linked_launches(
    read: ReadTrace, texts: Texts, base_ns: int, steps: pl.DataFrame, ops: LinkedOps | None
) -> pl.DataFrame:
    """Return the table of calls without their counts; without `op_id` where the operators were not read."""
    raw = sorted_spans(read.collected.frame(RawSpans, RawLaunches), RawLaunches.correlation)
    launches = _launches(raw, texts, base_ns, steps)
    if ops is None:
        return launches
    op_ids = _by_external_id(ops.around(launches[[Launches.thread, Launches.start_ns]]), raw, ops.table)
    return launches.hstack([op_ids.alias(Launches.op_id)])


def _ops(raw: pl.DataFrame, texts: Texts, base_ns: int) -> pl.DataFrame:
    return pl.DataFrame(
        [
            row_numbers(raw, Ops.op_id),
            raw[RawSpans.thread].alias(Ops.thread),
            texts.name_column(raw[RawSpans.name], Ops.name),
            *spans_of(raw, base_ns, Ops.start_ns, Ops.end_ns),
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
            row_numbers(raw, Launches.launch_id),
            raw[RawSpans.thread].alias(Launches.thread),
            texts.name_column(raw[RawSpans.name], Launches.name),
            texts.of_names(raw[RawSpans.name], launch_kind, pl.Enum(LAUNCH_KINDS)).alias(Launches.kind),
            *spans_of(raw, base_ns, Launches.start_ns, Launches.end_ns),
            raw[RawLaunches.correlation].alias(Launches.correlation),
        ]
    )
    return frame.hstack([step_of(frame[Launches.start_ns], steps).alias(Launches.step_id)])


def with_counts(launches: pl.DataFrame, events: pl.DataFrame) -> pl.DataFrame:
    """Count what each call launched."""
    counts = pl.Series(Launches.num_device_events, [0], dtype=pl.UInt32).new_from_index(0, launches.height)
    launch_ids = events[DeviceEvents.launch_id]
    if launch_ids.null_count() < len(launch_ids):
        seen = launch_ids.drop_nulls().value_counts(name=Launches.num_device_events)
        counts = counts.scatter(seen[DeviceEvents.launch_id], seen[Launches.num_device_events])
    counted = launches.hstack([counts])
    # A call of an unknown runtime launches if something was launched by it.
    is_launching = (counted[Launches.kind] == "other") & (counts > 0)
    if not is_launching.any():
        return counted
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
    return known if ids.null_count() == len(ids) else known.fill_null(rows_by_external_id(ids, ops))


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
