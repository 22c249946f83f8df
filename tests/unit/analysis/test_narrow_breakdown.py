"""The breakdown needs device events, launches and steps alone; of every real trace it is the same without the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING

from polars.testing import assert_frame_equal

from scope.analysis.breakdown import compute_part_breakdowns
from scope.analysis.options import Options
from scope.analysis.windows import build_timeline
from scope.trace import ReadOptions, load_rank
from scope.trace.narrowing import TABLE_NAMES
from scope.trace.schema import DeviceEvents

if TYPE_CHECKING:
    from pathlib import Path

    import polars as pl


def test_breakdown_without_the_other_tables(shared_trace: Path) -> None:
    """Every part of every device has the same figures, and every table that was read the same rows."""
    whole, narrow = load_rank(shared_trace), load_rank(shared_trace, options=ReadOptions(tables=(DeviceEvents,)))
    timelines = [build_timeline(trace, options=Options()) for trace in (whole, narrow)]
    first, second = map(compute_part_breakdowns, timelines)
    assert first == second
    assert first or whole.is_host_timeline
    assert_frame_equal(timelines[0].parts, timelines[1].parts)
    assert narrow.not_loaded or whole.is_host_timeline
    for table in set(TABLE_NAMES) - set(narrow.not_loaded):
        frame: pl.DataFrame = getattr(narrow, table)
        assert_frame_equal(frame, getattr(whole, table).select(frame.columns), categorical_as_str=True)
    for count in ("events_read", "events_lost", "truncated", "device_events_without_launch", "slices_overrun"):
        assert getattr(narrow.quality, count) == getattr(whole.quality, count)
