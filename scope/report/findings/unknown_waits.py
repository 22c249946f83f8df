"""Exposed communication of which nobody knows whether it is waiting: calls at a window's edge, or without partners."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from scope.analysis import spans
from scope.analysis.breakdown import counts_as_compute
from scope.analysis.collective_tables import CollectiveRows, MatchedCalls
from scope.analysis.host import host_events
from scope.analysis.job import summed_ranks
from scope.analysis.step_time import compute_step_time
from scope.trace.schema import DeviceEvents

if TYPE_CHECKING:
    from scope.report.results import Results
    from scope.trace.model import RankTrace

_COMPUTE: Final = "compute"
_COMMUNICATION: Final = "communication"
_STEP_TIME: Final = "step_time"
_KNOWN: Final = "known"
_LAYERS: Final = (_COMPUTE, _COMMUNICATION, _STEP_TIME, _KNOWN)


def exposed_with_unknown_waits(results: Results) -> int:
    """Return for how long, in step time, only communication whose waits are not known ran, and no compute; in ns.

    Those are calls of collectives that some window's edge cuts, and calls that were not matched with those of other
    ranks (ambiguous ones, of an unknown group, without metadata). Where another call with known waits runs beside them
    the time is that one's. Summed over the ranks that findings are judged on; 0 where no ranks were compared.
    """
    if results.collectives is None:
        return 0
    traces = {trace.label: trace for trace in results.job.ranks}
    known = results.collectives.calls.filter(pl.col(MatchedCalls.state) == "matched").join(
        results.collectives.collectives.filter(~pl.col(CollectiveRows.is_cut)),
        on=MatchedCalls.collective_id,
        how="semi",
    )
    total_ns = 0
    for rank in summed_ranks(results.analysis.ranks):
        # A trace that does not say its rank has no matched calls.
        calls = known.filter(pl.col(MatchedCalls.rank).eq_missing(pl.lit(rank.rank, dtype=MatchedCalls.rank.dtype)))
        step_time = compute_step_time(device.windows for device in rank.devices)
        computes = counts_as_compute(results.analysis.options)
        total_ns += _exposed_beside(traces[rank.label], calls[MatchedCalls.call_id], step_time, computes=computes)
    return total_ns


def _exposed_beside(trace: RankTrace, known: pl.Series, step_time: pl.DataFrame, *, computes: pl.Expr) -> int:
    """Return how long one rank's devices communicated in step time without compute and without any of the calls."""
    events = host_events(trace) if trace.is_host_timeline else trace.device_events
    is_known = pl.col(DeviceEvents.call_id).is_in(known.implode()).fill_null(value=False)
    communicates = pl.col(DeviceEvents.category) == _COMMUNICATION
    parts = [
        _flagged(events.filter(computes | communicates), computes, communicates, pl.lit(value=False), is_known),
        _flagged(step_time, *(pl.lit(value=name == _STEP_TIME) for name in _LAYERS)),
    ]
    pieces = spans.sweep(pl.concat(parts), layers={name: pl.col(name) for name in _LAYERS}, by=str(DeviceEvents.device))
    runs = {name: pl.col(name) > 0 for name in _LAYERS}
    counts = runs[_COMMUNICATION] & runs[_STEP_TIME] & ~runs[_COMPUTE] & ~runs[_KNOWN]
    return int(pieces.filter(counts).select(spans.SPAN_NS.sum()).item())


def _flagged(frame: pl.DataFrame, *belong: pl.Expr) -> pl.DataFrame:
    """Return the spans of a frame with the layers that each belongs to."""
    flags = (each.alias(name) for name, each in zip(_LAYERS, belong, strict=True))
    return frame.select(DeviceEvents.device, DeviceEvents.start_ns, DeviceEvents.end_ns, *flags)
