"""The host's side of the critical path: what each thread was doing, and what it had to wait for."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Final

import polars as pl

from scope.analysis import spans
from scope.analysis.host_activity import HostSpans
from scope.structs import Record
from scope.trace.columns import Column, Table
from scope.trace.schema import Launches, Ops, Steps, Syncs

if TYPE_CHECKING:
    from scope.analysis.windows import StepWindow, Timeline


class HostPieces(Table):
    """What filled each stretch of a thread's time: its innermost operator or call, or nothing."""

    thread = Column("thread", pl.Int64, "thread id")
    start_ns = Column("start_ns", pl.Int64, "first nanosecond")
    end_ns = Column("end_ns", pl.Int64, "end, not part of it")
    op_id = Column("op_id", pl.UInt32, "the operator, where one is innermost", nullable=True)
    launch_id = Column("launch_id", pl.UInt32, "the call, where one is innermost", nullable=True)


_DEEPEST: Final = 1 << 20
"""Calls of the runtime are inside every operator."""

_IS_START: Final = "is_start"
_ORDER: Final = "order"
_FIRST: Final = "first_row"
_LAST: Final = "last_row"
_SILENT: Final = "silent_ns"
_OWN_SILENT: Final = "own_silent_ns"
_FROM: Final = "from_thread"


class BlockingCall(Record, frozen=True):
    """A call that made its thread wait for the device."""

    start_ns: int
    end_ns: int
    launch_id: int
    stream: int | None
    """The stream that it waited for; None for any."""
    is_copy: bool
    """It waited for the copy that it launched itself."""


class HandOver(Record, frozen=True):
    """A thread that begins after another of the step's threads fell silent: control passed from that one."""

    start_ns: int
    thread: int
    """The thread that had control before."""
    silent_ns: int
    """When it fell silent."""


class HostSide(Record, frozen=True, kw_only=True):
    """The threads of one step."""

    start_ns: int
    """Start of the step on the host."""
    pieces: dict[int, pl.DataFrame]
    """By thread: the table `HostPieces`, sorted, from its first item in the step to its last."""
    blocking: dict[int, list[BlockingCall]]
    """By thread, sorted by end."""
    hand_overs: dict[int, list[HandOver]]
    """By thread, sorted by start."""
    input_spans: dict[int, pl.DataFrame]
    """By thread: the spans in which it fetched data, for threads that did."""

    def last_blocking(self, thread: int, before_ns: int) -> BlockingCall | None:
        """Return the last blocking call of a thread that ended by an instant."""
        calls = self.blocking.get(thread, [])
        position = bisect_right(calls, before_ns, key=lambda call: call.end_ns)
        return calls[position - 1] if position else None

    def last_hand_over(self, thread: int, before_ns: int) -> HandOver | None:
        """Return the last time that control came to a thread, up to an instant."""
        found = self.hand_overs.get(thread, [])
        position = bisect_right(found, before_ns, key=lambda each: each.start_ns)
        return found[position - 1] if position else None

    def fill(self, thread: int, stretches: pl.DataFrame) -> pl.DataFrame:
        """Return the pieces of a thread that lie in some disjoint stretches, cut at their edges, gaps included.

        Args:
            thread: The thread.
            stretches: Columns `start_ns` and `end_ns`, sorted, disjoint, none empty.
        """
        pieces = self.pieces.get(thread)
        if pieces is None or pieces.is_empty():
            return _gaps(thread, stretches)
        first, last = int(pieces[HostPieces.start_ns][0]), int(pieces[HostPieces.end_ns][-1])
        low = pieces[HostPieces.end_ns].search_sorted(stretches[HostPieces.start_ns], side="right")
        high = pieces[HostPieces.start_ns].search_sorted(stretches[HostPieces.end_ns], side="left")
        start, end = pl.col(HostPieces.start_ns), pl.col(HostPieces.end_ns)
        rows = (
            stretches.with_columns(low.cast(pl.Int64).alias(_FIRST), high.cast(pl.Int64).alias(_LAST))
            .select(pl.int_ranges(_FIRST, _LAST).alias(_ORDER), start.alias(_FIRST), end.alias(_LAST))
            .explode(_ORDER)
            .drop_nulls(_ORDER)
        )
        inside = pl.concat([pieces[rows[_ORDER]], rows.select(_FIRST, _LAST)], how="horizontal")
        cut = inside.with_columns(pl.max_horizontal(start, _FIRST), pl.min_horizontal(end, _LAST))
        outside = [
            stretches.select(start, end.clip(None, first)),
            stretches.select(start.clip(last, None), end),
        ]
        gaps = _gaps(thread, pl.concat(outside).filter(start < end))
        return pl.concat([cut.select(HostPieces.columns()), gaps]).sort(start)


def _gaps(thread: int, stretches: pl.DataFrame) -> pl.DataFrame:
    """Return stretches in which a thread did nothing that the trace holds."""
    columns = {"thread": pl.lit(thread), "op_id": pl.lit(None), "launch_id": pl.lit(None)}
    placed = stretches.with_columns(**columns)
    return placed.select(pl.col(column).cast(column.dtype) for column in HostPieces.columns())


def build_host_side(timeline: Timeline, step: StepWindow) -> HostSide:
    """Return the threads that launch work in a step, and the thread of the step itself."""
    trace = timeline.trace
    window = step.host
    during = (pl.col(Ops.start_ns) < window.end_ns) & (pl.col(Ops.end_ns) > window.start_ns)
    launches = trace.launches.filter(during)
    launching = launches.filter(pl.col(Launches.num_device_events) > 0)[Launches.thread]
    own = trace.steps.filter(pl.col(Steps.step_id) == step.step_id)[Steps.thread]
    threads = pl.concat([launching, own]).unique().implode()
    ops = trace.ops.filter(during, pl.col(Ops.thread).is_in(threads))
    launches = launches.filter(pl.col(Launches.thread).is_in(threads))
    # A call that the runtime makes to the driver stands for nothing of its own: the outer one is the launch.
    reach = pl.col(Launches.end_ns).cum_max().shift(1).over(Launches.thread)
    launches = launches.filter((pl.col(Launches.end_ns) > reach).fill_null(value=True))
    pieces = _innermost(ops, launches)
    return HostSide(
        start_ns=window.start_ns,
        pieces={int(part[HostPieces.thread][0]): part for part in pieces.partition_by(HostPieces.thread)},
        blocking=_blocking(timeline, launches),
        hand_overs=_hand_overs(ops, launches),
        input_spans={
            int(part[HostSpans.thread][0]): part
            for part in timeline.host_spans.filter(
                during, pl.col(HostSpans.activity) == "input", pl.col(HostSpans.thread).is_in(threads)
            ).partition_by(HostSpans.thread)
        },
    )


def _innermost(ops: pl.DataFrame, launches: pl.DataFrame) -> pl.DataFrame:
    """Return the table `HostPieces` of operators and calls, which are nested on each thread.

    From the start of an item on it is innermost itself, from its end on what stands around it is. At one instant the
    ends come first, the outermost last; then the starts, the innermost last; and what comes last holds.
    """
    nothing = pl.lit(None, dtype=pl.UInt32)
    no_call = nothing.alias(HostPieces.launch_id)
    begin, end = pl.col(Ops.start_ns), pl.col(Ops.end_ns).alias(Ops.start_ns)
    depth = pl.col(Ops.depth).cast(pl.Int32)
    in_call = pl.lit(_DEEPEST, dtype=pl.Int32)
    around = pl.col(Ops.parent_id).alias(Ops.op_id)
    solid_ops, solid_calls = ops.filter(spans.SPAN_NS > 0), launches.filter(spans.SPAN_NS > 0)
    edges = [
        solid_ops.select(Ops.thread, begin, Ops.op_id, no_call, *_order(depth, is_start=True)),
        solid_ops.select(Ops.thread, end, around, no_call, *_order(-depth, is_start=False)),
        solid_calls.select(
            Ops.thread, begin, nothing.alias(Ops.op_id), Launches.launch_id, *_order(in_call, is_start=True)
        ),
        solid_calls.select(Ops.thread, end, Launches.op_id, no_call, *_order(-in_call, is_start=False)),
    ]
    keys = (HostPieces.thread, HostPieces.start_ns)
    is_last = pl.any_horizontal(pl.col(key) != pl.col(key).shift(-1) for key in keys).fill_null(value=True)
    return (
        pl.concat(edges)
        .sort(*keys, _IS_START, _ORDER)
        .filter(is_last)
        .with_columns(pl.col(HostPieces.start_ns).shift(-1).over(HostPieces.thread).alias(HostPieces.end_ns))
        .drop_nulls(HostPieces.end_ns)
        .select(HostPieces.columns())
    )


def _order(place: pl.Expr, *, is_start: bool) -> tuple[pl.Expr, pl.Expr]:
    """Return the columns that decide between edges at one instant."""
    return pl.lit(is_start).alias(_IS_START), place.alias(_ORDER)


def _blocking(timeline: Timeline, launches: pl.DataFrame) -> dict[int, list[BlockingCall]]:
    """Return the blocking calls among some calls, with the stream that each waited for."""
    syncs = timeline.trace.syncs.select(
        Syncs.correlation,
        pl.when(pl.col(Syncs.kind) == "event")
        .then(pl.col(Syncs.waited_stream))
        .when(pl.col(Syncs.kind) == "stream")
        .then(pl.col(Syncs.stream))
        .alias(Syncs.stream),
    ).unique(Syncs.correlation)
    calls = (
        timeline.blocking.join(launches.select(Launches.launch_id), on=Launches.launch_id, how="semi")
        .join(syncs, on=Syncs.correlation, how="left")
        .sort(Launches.end_ns, Launches.start_ns)
        .select(
            Launches.thread,
            Launches.start_ns,
            Launches.end_ns,
            Launches.launch_id,
            pl.when(pl.col(Syncs.stream) >= 0).then(pl.col(Syncs.stream)).alias(Syncs.stream),
            (pl.col(Launches.kind) != "sync").alias("is_copy"),
        )
    )
    found: dict[int, list[BlockingCall]] = {}
    for thread, *call in calls.iter_rows():
        found.setdefault(thread, []).append(BlockingCall(*call))
    return found


def _hand_overs(ops: pl.DataFrame, launches: pl.DataFrame) -> dict[int, list[HandOver]]:
    """Return where control passes between threads.

    A thread's outermost item begins while the thread was silent. If another thread fell silent later than this one
    did, and before the item begins, then control came from there: backward runs on a thread of its own while the
    caller waits for it, and nothing else in the trace ties the two together.
    """
    columns = (Ops.thread, Ops.start_ns, Ops.end_ns)
    # Items of no length give nobody control; two at one instant would hand it to and fro.
    both = pl.concat([ops.select(columns), launches.select(columns)]).filter(spans.SPAN_NS > 0)
    items = both.sort(Ops.start_ns, -pl.col(Ops.end_ns))
    if items[Ops.thread].n_unique() <= 1:
        return {}
    reach = pl.col(Ops.end_ns).cum_max().shift(1).over(Ops.thread)
    outermost = items.with_columns(reach.alias(_OWN_SILENT)).filter(
        (pl.col(Ops.start_ns) >= pl.col(_OWN_SILENT)).fill_null(value=True)
    )
    found: dict[int, list[HandOver]] = {}
    for thread in outermost[Ops.thread].unique().sort():
        others = (
            outermost.filter(pl.col(Ops.thread) != thread)
            .select(pl.col(Ops.end_ns).alias(Ops.start_ns), pl.col(Ops.thread).alias(_FROM), _end_as(_SILENT))
            .sort(Ops.start_ns)
        )
        mine = outermost.filter(pl.col(Ops.thread) == thread).select(Ops.start_ns, _OWN_SILENT)
        passed = mine.join_asof(others, on=Ops.start_ns).filter(
            (pl.col(_SILENT) > pl.col(_OWN_SILENT)).fill_null(value=True), pl.col(_SILENT).is_not_null()
        )
        found[thread] = [HandOver(*row) for row in passed.select(Ops.start_ns, _FROM, _SILENT).iter_rows()]
    return found


def _end_as(name: str) -> pl.Expr:
    return pl.col(Ops.end_ns).alias(name)
