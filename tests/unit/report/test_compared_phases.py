"""What a comparison of two runs says of the time that no phase holds."""

from __future__ import annotations

from pathlib import Path

from scope.analysis.comparison import compare_jobs
from scope.report.sections.comparison import changes_table
from scope.report.table import Absent
from scope.trace import load

SAMPLES = Path(__file__).parents[3] / "sample_traces"


def test_time_outside_of_phases_has_no_count_for_a_reason_that_is_its_own() -> None:
    """Every phase has its counts; the reason in the row without them names that row, not the table."""
    before, after = (load([str(SAMPLES / f"gloo-2-ranks-{kind}")]) for kind in ("healthy", "straggler"))
    table = changes_table(compare_jobs(before, after), "phases")
    places = [place for place, each in enumerate(table.columns) if each.key in ("before_count", "after_count")]
    counts = {row[0]: [row[place] for place in places] for row in table.rows}
    reason = Absent("time outside of phases is no phase that occurs")
    assert counts.pop("(outside of phases)") == [reason, reason]
    assert counts
    assert not any(isinstance(count, Absent) for pair in counts.values() for count in pair)
