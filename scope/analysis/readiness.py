"""When a rank was ready for each of its calls: when its own work that the call depends on was done.

A call begins when it is launched, when the compute launched before it is done, and when its stream is free. So a call
that was queued behind another, of its group or of one whose result it takes up (an all-reduce of what was
reduce-scattered), says by its begin how long that one took, not when the rank was ready: peers that ran ahead of a late
rank under their waits look as late as that one. A rank is ready

- for a call that was not queued: at its begin;
- for a queued one: at the end of the compute launched before it, or of its launch where that was later, but never
  before it was ready for the calls of its group ahead of it and for the one of another group that it was queued behind:
  two calls without compute between them are ready at once.

A call that began while compute launched before it still ran on the stream with most compute depends on no compute (a
gather that runs ahead on a stream of its own): its begin says nothing about the rank's work, so the instant is unknown.
Without launches (graphs, traces without the runtime) a rank is ready at the begin of its call, or at an unknown instant
where compute ran beside the call that it was queued behind. On a host timeline it is ready at the begin.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from scope.analysis.collective_tables import CollectiveRows, MatchedCalls
from scope.analysis.operations import PAIRS
from scope.trace.schema import CollectiveCalls, DeviceEvents, Launches

if TYPE_CHECKING:
    from scope.analysis.collectives import Collectives
    from scope.trace.model import Job, RankTrace

QUEUED_NS: Final = 5_000
"""A call that starts within this of the end of another on its rank waited behind that one."""

READY: Final = "ready_ns"
UNTOLD: Final = "is_untold"
"""A call was queued under compute, and no launch tells which compute it waited for."""

_ROUNDING_NS: Final = 1_000
"""Ends of kernels and begins of calls in traces of whole microseconds disagree by less."""

_KEYS: Final = (MatchedCalls.rank, MatchedCalls.call_id)
_PAIR: Final = "is_of_pair"
_AHEAD: Final = "end_ahead_ns"
_LAUNCHED: Final = "launched_ns"
_LAUNCH_END: Final = "launch_end_ns"
_DONE: Final = "compute_done_ns"
_LAG: Final = "since_launch_ns"
_LEFT: Final = "since_compute_ns"
_SINCE: Final = "since_any_compute_ns"
_AHEAD_START: Final = "start_ahead_ns"
_AHEAD_CALL: Final = "call_ahead"
_SCHEMA: Final = {
    MatchedCalls.rank: pl.Int32,
    MatchedCalls.call_id: pl.UInt32,
    _LAG: pl.Int64,
    _LEFT: pl.Int64,
    _SINCE: pl.Int64,
}


def compute_ready(job: Job, collectives: Collectives) -> pl.DataFrame:
    """Return, by rank and call, the instant on the reference clock at which the rank was ready; null where unknown.

    Args:
        job: The ranks of the job.
        collectives: What `compute_collectives` returned for it.

    Returns:
        Columns `rank`, `call_id` of `MatchedCalls`, `READY` and `UNTOLD`, one row for each of its rows.
    """
    parts = [_lags(trace) for trace in job.ranks if trace.rank is not None and not trace.is_host_timeline]
    lags = pl.concat(parts) if parts else pl.DataFrame(schema=_SCHEMA)
    groups = collectives.collectives.select(
        CollectiveRows.collective_id, CollectiveRows.group_id, CollectiveRows.operation
    )
    arrival = pl.col(MatchedCalls.arrival_ns)
    in_group = (MatchedCalls.rank, CollectiveRows.group_id)
    # What a rank sends and what it gets have a stream each, whose order says nothing of the other.
    is_pair = pl.col(CollectiveRows.operation).is_in(PAIRS).fill_null(value=True)
    lag = pl.min_horizontal(_LAG, _LEFT)
    in_stream = (arrival - pl.col(MatchedCalls.end_ns).shift().over(in_group)).is_between(0, QUEUED_NS)
    start_ahead = pl.when(in_stream).then(arrival.shift().over(in_group)).otherwise(_AHEAD_START)
    # What begins as soon as it can was held up by its launch or by compute, whatever ended then in another group.
    behind_any = (
        (arrival - pl.col(_AHEAD)).is_between(0, QUEUED_NS) & (lag > QUEUED_NS).fill_null(value=True) & ~is_pair
    )
    is_queued = pl.col(CollectiveRows.group_id).is_not_null() & (in_stream | behind_any)
    has_length = pl.col(MatchedCalls.end_ns) > arrival
    calls = collectives.calls.join(groups, on=CollectiveRows.collective_id, how="left")
    ends = calls.filter(has_length, ~is_pair).select(
        MatchedCalls.rank,
        pl.col(MatchedCalls.end_ns).alias(_AHEAD),
        arrival.alias(_AHEAD_START),
        pl.col(MatchedCalls.call_id).alias(_AHEAD_CALL),
    )
    # Whether it was ready before or after the compute that ran beside the call ahead, its launch alone would tell.
    is_untold = pl.col("queued") & pl.col(_LAG).is_null() & (pl.col(_SINCE) < arrival - start_ahead)
    ready = arrival - lag.clip(lower_bound=0)
    runs_ahead = (pl.col(_LEFT) < -_ROUNDING_NS).fill_null(value=False)
    found = (
        calls.join(lags, on=_KEYS, how="left")
        .sort(MatchedCalls.arrival_ns, MatchedCalls.end_ns)
        .join_asof(
            ends.sort(_AHEAD),
            left_on=MatchedCalls.arrival_ns,
            right_on=_AHEAD,
            by=MatchedCalls.rank,
            check_sortedness=False,
        )
        .with_columns(is_queued.fill_null(value=False).alias("queued"))
        .with_columns(is_untold.fill_null(value=False).alias(UNTOLD))
        .select(
            *in_group,
            is_pair.alias(_PAIR),
            MatchedCalls.call_id,
            UNTOLD,
            pl.when(behind_any).then(_AHEAD_CALL).alias(_AHEAD_CALL),
            pl.when(runs_ahead | pl.col(UNTOLD))
            .then(None)
            .when(pl.col("queued") & pl.col(_LAG).is_not_null())
            .then(ready)
            .otherwise(arrival)
            .alias(READY),
        )
    )
    return _in_their_queues(found).select(*_KEYS, UNTOLD, READY)


def _in_their_queues(found: pl.DataFrame) -> pl.DataFrame:
    """Return the calls, in the order of time, none of them ready before those that it was queued behind.

    What a call was queued behind began before it, so that one pass in the order of time tells.
    """
    columns = (MatchedCalls.rank, MatchedCalls.call_id, CollectiveRows.group_id, _PAIR, _AHEAD_CALL, READY)
    latest: dict[tuple[int, int | None], int] = {}
    of_call: dict[tuple[int, int], int] = {}
    queued: list[int | None] = []
    for rank, call, group, is_pair, ahead, ready in found.select(columns).iter_rows():
        if ready is not None and not is_pair:
            ready = max(ready, latest.get((rank, group), ready), of_call.get((rank, ahead), ready))
            latest[rank, group] = ready
            of_call[rank, call] = ready
        queued.append(ready)
    return found.with_columns(pl.Series(READY, queued, dtype=pl.Int64))


def _lags(trace: RankTrace) -> pl.DataFrame:
    """Return, by call, how long it began after its launch and after the compute before it was done.

    Both are differences on the rank's own clock, null where the launch is unknown; that after the compute is below 0
    where the compute still ran. Beside them stands how long it began after the last compute that had begun,
    whatever was launched when.
    """
    launches = trace.launches.select(
        Launches.launch_id, pl.col(Launches.start_ns).alias(_LAUNCHED), pl.col(Launches.end_ns).alias(_LAUNCH_END)
    )
    events = trace.device_events.filter(~pl.col(DeviceEvents.in_graph)).join(launches, on=DeviceEvents.launch_id)
    is_compute = pl.col(DeviceEvents.category) == "compute"
    busy = (
        trace.device_events.filter(is_compute)
        .group_by(DeviceEvents.device, DeviceEvents.stream)
        .agg((pl.col(DeviceEvents.clipped_end_ns) - pl.col(DeviceEvents.start_ns)).sum().alias("busy"))
    )
    main = busy.sort("busy", DeviceEvents.stream, descending=[True, False]).unique(DeviceEvents.device, keep="first")
    lane = (DeviceEvents.device, DeviceEvents.stream)
    kernels = trace.device_events.filter(is_compute).join(main, on=lane, how="semi").sort(DeviceEvents.start_ns)
    done = (
        events.filter(is_compute)
        .join(main, on=lane, how="semi")
        .sort(_LAUNCHED)
        .select(
            DeviceEvents.device,
            _LAUNCHED,
            pl.col(DeviceEvents.clipped_end_ns).cum_max().over(DeviceEvents.device).alias(_DONE),
        )
    )
    first = (
        events.filter(pl.col(DeviceEvents.call_id).is_not_null())
        .group_by(DeviceEvents.call_id)
        .agg(pl.col(DeviceEvents.device).first(), pl.col(_LAUNCHED).min(), pl.col(_LAUNCH_END).min())
    )
    start = pl.col(CollectiveCalls.start_ns)
    calls = (
        trace.collective_calls.select(CollectiveCalls.call_id, CollectiveCalls.device, CollectiveCalls.start_ns)
        .sort(CollectiveCalls.start_ns)
        .join_asof(
            kernels.select(*lane[:1], DeviceEvents.start_ns, pl.col(DeviceEvents.clipped_end_ns).alias(_SINCE)),
            on=CollectiveCalls.start_ns,
            by=CollectiveCalls.device,
            allow_exact_matches=False,
            check_sortedness=False,
        )
        .select(CollectiveCalls.call_id, CollectiveCalls.start_ns, (start - pl.col(_SINCE)).alias(_SINCE))
    )
    launched = (
        first.sort(_LAUNCHED)
        .join_asof(done, on=_LAUNCHED, by=DeviceEvents.device, allow_exact_matches=False, check_sortedness=False)
        .select(CollectiveCalls.call_id, _LAUNCH_END, _DONE)
    )
    return calls.join(launched, on=CollectiveCalls.call_id, how="left").select(
        pl.lit(trace.rank, dtype=pl.Int32).alias(MatchedCalls.rank),
        MatchedCalls.call_id,
        (start - pl.col(_LAUNCH_END)).alias(_LAG),
        (start - pl.col(_DONE)).alias(_LEFT),
        _SINCE,
    )
