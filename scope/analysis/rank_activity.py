"""What each rank's device did up to any instant: time under compute, waiting, in copies, idle for input or the host.

The activities of a rank fill its window without overlap, so that differences of the running totals sum to the time
between two instants exactly.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from scope.analysis import spans
from scope.analysis.clock import on_reference_clock
from scope.analysis.collective_tables import MatchedCalls
from scope.analysis.host import host_events
from scope.analysis.host_activity import HostSpans, find_host_spans
from scope.analysis.spans import Spans
from scope.trace.schema import DeviceEvents, Launches

if TYPE_CHECKING:
    from scope.analysis.collectives import Collectives
    from scope.trace.model import Job, RankTrace

ACTIVITIES: Final = ("compute_ns", "waiting_ns", "communication_ns", "memory_ns", "input_ns", "host_ns")
"""In the order of precedence: compute; communication that waits for another rank; other exposed communication; exposed
copies and sets, and idle time in calls that allocate; idle time in which the host fetches data; idle time otherwise."""

_COMPUTE, _WAITING, _COMMUNICATION, _MEMORY, _INPUT, _HOST = ACTIVITIES
_KIND: Final = "span_kind"
_KINDS: Final = ("compute", "waiting", "communication", "memory", "input", "allocation")
PIECE_START: Final = "piece_start_ns"
PIECE_LENGTH: Final = "piece_length_ns"
_BEFORE: Final = "_before"
_ROW: Final = "row_number"


def build_activity(job: Job, collectives: Collectives) -> pl.DataFrame:
    """Return, for each rank and piece of its window, its length, whether each activity fills it, and the totals before.

    Args:
        job: The ranks of the job.
        collectives: Its collectives, for the waits and the clocks.
    """
    parts = [_spans_of(trace) for trace in job.ranks if trace.rank is not None]
    if not parts:
        return pl.DataFrame()
    placed = on_reference_clock(pl.concat(parts), collectives.clock, instants=(Spans.start_ns, Spans.end_ns))
    waits = collectives.calls.filter(pl.col(MatchedCalls.wait_ns) > 0).select(
        MatchedCalls.rank,
        pl.lit("waiting").alias(_KIND),
        pl.col(MatchedCalls.arrival_ns).alias(Spans.start_ns),
        (pl.col(MatchedCalls.arrival_ns) + pl.col(MatchedCalls.wait_ns)).alias(Spans.end_ns),
    )
    layers = {kind: pl.col(_KIND) == kind for kind in _KINDS}
    pieces = spans.sweep(pl.concat([placed, waits]), layers=layers, by=MatchedCalls.rank)
    length = spans.SPAN_NS
    free = pl.lit(value=True)
    filled: list[pl.Expr] = []
    for name, kinds in (
        (_COMPUTE, ("compute",)),
        (_WAITING, ("waiting",)),
        (_COMMUNICATION, ("communication",)),
        (_MEMORY, ("memory", "allocation")),
        (_INPUT, ("input",)),
    ):
        covers = pl.any_horizontal(pl.col(kind) > 0 for kind in kinds)
        filled.append((free & covers).cast(pl.Int64).alias(name))
        free = free & ~covers
    filled.append(free.cast(pl.Int64).alias(_HOST))
    marked = pieces.select(
        MatchedCalls.rank, pl.col(Spans.start_ns).alias(PIECE_START), length.alias(PIECE_LENGTH), *filled
    )
    totals = [
        (
            (pl.col(name) * pl.col(PIECE_LENGTH)).cum_sum().over(MatchedCalls.rank)
            - pl.col(name) * pl.col(PIECE_LENGTH)
        ).alias(f"{name}{_BEFORE}")
        for name in ACTIVITIES
    ]
    return marked.with_columns(totals).sort(PIECE_START)


def totals_at(activity: pl.DataFrame, instants: pl.DataFrame, *, instant: str) -> pl.DataFrame:
    """Return `instants` with the total of each activity of the row's rank up to the instant.

    Args:
        activity: What `build_activity` returned.
        instants: Columns `MatchedCalls.rank` and `instant`; a null instant, or one before the window, has totals 0.
        instant: Name of the Int64 column.

    Returns:
        The rows in their order, with a column for each of `ACTIVITIES`.
    """
    numbered = instants.with_row_index(_ROW)
    known = numbered.filter(pl.col(instant).is_not_null()).sort(instant)
    joined = known.join_asof(
        activity, left_on=instant, right_on=PIECE_START, by=MatchedCalls.rank, check_sortedness=False
    )
    into = pl.min_horizontal(pl.col(instant) - pl.col(PIECE_START), pl.col(PIECE_LENGTH))
    totals = [(pl.col(f"{name}{_BEFORE}") + pl.col(name) * into).fill_null(0).alias(name) for name in ACTIVITIES]
    found = joined.select(_ROW, *totals)
    return (
        numbered.join(found, on=_ROW, how="left", maintain_order="left")
        .with_columns(pl.col(name).fill_null(0) for name in ACTIVITIES)
        .drop(_ROW)
    )


def _spans_of(trace: RankTrace) -> pl.DataFrame:
    """Return what one rank's device and host did, on the rank's own clock."""
    events = host_events(trace) if trace.is_host_timeline else trace.device_events
    host = find_host_spans(trace, trace.launches.clear()).filter(
        pl.col(HostSpans.activity).is_in(["input", "allocation"])
    )
    window = trace.launches.select(pl.col(Launches.start_ns).min(), pl.col(Launches.end_ns).max())
    rank = pl.lit(trace.rank, dtype=MatchedCalls.rank.dtype).alias(MatchedCalls.rank)
    return pl.concat(
        [
            events.select(
                rank, pl.col(DeviceEvents.category).cast(pl.String).alias(_KIND), Spans.start_ns, Spans.end_ns
            ),
            host.select(rank, pl.col(HostSpans.activity).cast(pl.String).alias(_KIND), Spans.start_ns, Spans.end_ns),
            # The host's window: what lies before the first device event is idle too.
            window.drop_nulls().select(rank, pl.lit("window").alias(_KIND), Spans.start_ns, Spans.end_ns),
        ]
    )
