"""Every plotly figure of the product: tables in, figures out.

All names that come from traces are escaped here, since plotly reads a subset of HTML in every text.
"""

from scope.report.figures.bars import (
    StackedTimes,
    idle_causes,
    kernels_by_time,
    parts_by_bytes,
    parts_by_time,
    phase_breakdown,
    rank_breakdown,
    rank_excess,
    step_breakdown,
    wait_and_transfer,
)
from scope.report.figures.heat import HeatAxes, HeatCells, heat_map
from scope.report.figures.points import (
    BandwidthCeiling,
    CollectiveBubble,
    RooflineBubble,
    RooflineCeiling,
    collective_bandwidth,
    roofline,
)
from scope.report.figures.series import Samples, link_use_over_time, memory_over_time, samples_over_time
from scope.report.figures.style import COLORS, MAX_MARKS
from scope.report.figures.timeline import TimelineSpans, timeline

__all__ = [
    "COLORS",
    "MAX_MARKS",
    "BandwidthCeiling",
    "CollectiveBubble",
    "HeatAxes",
    "HeatCells",
    "RooflineBubble",
    "RooflineCeiling",
    "Samples",
    "StackedTimes",
    "TimelineSpans",
    "collective_bandwidth",
    "heat_map",
    "idle_causes",
    "kernels_by_time",
    "link_use_over_time",
    "memory_over_time",
    "parts_by_bytes",
    "parts_by_time",
    "phase_breakdown",
    "rank_breakdown",
    "rank_excess",
    "roofline",
    "samples_over_time",
    "step_breakdown",
    "timeline",
    "wait_and_transfer",
]
