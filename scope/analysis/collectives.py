"""Collectives across ranks: arrival, wait, transfer, skew and bandwidth."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from scope.analysis.result import Result

if TYPE_CHECKING:
    import polars as pl

    from scope.analysis.clock import ClockAlignment


@dataclass(frozen=True, kw_only=True, slots=True)
class Collectives(Result):
    """All collectives of a job; the tables are those of `scope.analysis.collective_tables`."""

    collectives: pl.DataFrame
    """The table `CollectiveRows`: one row per logical operation."""
    calls: pl.DataFrame
    """The table `MatchedCalls`: one row per rank's part."""
    groups: pl.DataFrame
    """The table `GroupRows`."""
    summary: pl.DataFrame
    """The table `CollectiveSummaryRows`: by group, operation and size."""
    rank_waits: pl.DataFrame
    """The table `RankWaitRows`."""
    clock: ClockAlignment
    num_calls: int
    """Calls of all ranks whose rank is known."""
    num_matched: int
    """Calls with a partner on another rank."""
    num_alone: int
    """Calls that no other rank's trace shows."""
    num_ambiguous: int
    """Calls left out because their partners can't be told."""
    num_unmatchable: int
    num_incomplete: int
    """Collectives that some rank of the group is missing from."""
    num_cut: int
    """Collectives at the edge of some rank's window; left out of the summaries and of stragglers."""
    is_group_assumed: bool
    """Some calls carry no group: they were matched by operation and ordinal over all ranks."""

    def _check_sums(self) -> None:
        parts = self.num_matched + self.num_alone + self.num_ambiguous + self.num_unmatchable
        assert parts == self.num_calls, f"{parts} calls by state, {self.num_calls} in all"
