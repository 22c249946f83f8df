"""Launches that waited for something while their thread sat in a blocking call: that is no slow launching."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from scope.analysis import spans
from scope.analysis.host_activity import HostSpans, call_spans
from scope.analysis.host_overlap import begun_within
from scope.analysis.idle import IdleSpans, find_idle_spans
from scope.analysis.job import summed_ranks
from scope.analysis.step_time import compute_step_time
from scope.analysis.windows import build_timeline
from scope.structs import Record
from scope.trace.schema import Launches

if TYPE_CHECKING:
    from scope.report.results import Results

AWAITED_SHARE: Final = 0.10
"""Share of step time that launched work waits for what the trace does not show, above which that is said."""
_STEP_TIME: Final = "step_time"
_AWAITED: Final = "awaited"
_LAYERS: Final = (_STEP_TIME, _AWAITED)


class Awaited(Record, frozen=True, kw_only=True):
    """Idle time between launch and start, in step time, in which the launching thread waited for the device."""

    time_ns: int
    """Summed over the devices that findings are judged on."""
    calls: tuple[str, ...]
    """The blocking calls it sat in, by name."""


NOTHING: Final = Awaited(time_ns=0, calls=())
"""No launch was awaited, or launches took too little to look for what they waited for."""


def find_awaited_launches(results: Results) -> Awaited:
    """Return the launch latency during which the thread that launched had gone on and into a later blocking call.

    It had launched by then and the device ran nothing, so neither the host nor a launch was slow: what was launched
    waited for something that the trace does not show. The latency of a blocking copy itself is not counted here.
    """
    traces = {trace.label: trace for trace in results.job.ranks}
    total_ns, names = 0, set[str]()
    for rank in summed_ranks(results.analysis.ranks):
        trace = traces[rank.label]
        if trace.is_host_timeline or trace.launches.is_empty():
            continue
        timeline = build_timeline(trace, options=results.analysis.options)
        latency = find_idle_spans(timeline).filter(pl.col(IdleSpans.cause) == "launch_latency")
        stretches = latency.select(IdleSpans.device, IdleSpans.thread, IdleSpans.start_ns, IdleSpans.end_ns)
        # What begins with the stretch or before it is the launching call itself, or is around it.
        later = begun_within(stretches, call_spans(timeline.blocking, "sync"))
        step_time = compute_step_time(device.windows for device in rank.devices)
        time_ns = _shared_ns(step_time, later)
        if time_ns:
            calls = trace.launches[Launches.name].gather(later[HostSpans.launch_id].drop_nulls().unique())
            total_ns, names = total_ns + time_ns, names | set(calls.cast(pl.String))
    return Awaited(time_ns=total_ns, calls=tuple(sorted(names)))


def _shared_ns(step_time: pl.DataFrame, awaited: pl.DataFrame) -> int:
    """Return how long step time and awaited stretches run at once, device by device."""
    both = pl.concat(
        frame.select(
            IdleSpans.device,
            IdleSpans.start_ns,
            IdleSpans.end_ns,
            *(pl.lit(value=layer == own).alias(layer) for layer in _LAYERS),
        )
        for own, frame in ((_STEP_TIME, step_time), (_AWAITED, awaited))
    )
    pieces = spans.sweep(both, layers={layer: pl.col(layer) for layer in _LAYERS}, by=str(IdleSpans.device))
    shared = pieces.filter(pl.all_horizontal(pl.col(layer) > 0 for layer in _LAYERS))
    return int(shared.select(spans.SPAN_NS.sum()).item())
