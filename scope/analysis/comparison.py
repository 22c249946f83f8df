"""What changed between two runs: kernels, operators and phases, by how much, and how far the two match."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import polars as pl

from scope.analysis.result import Result
from scope.trace.columns import Column, Table

if TYPE_CHECKING:
    from collections.abc import Sequence

CHANGES: Final = ("added", "removed", "slower", "faster", "same")
"""`slower`, `faster`: the time changed by more than the noise given; `added`, `removed`: only one run has it."""


class Changes(Table):
    """One name in both runs, times per step (or per window where a run has no steps) and rank; largest change first."""

    name = Column("name", pl.String, "kernel, operator or phase")
    change = Column("change", pl.Enum(CHANGES), "what happened to it")
    before_ns = Column("before_ns", pl.Float64, "time per rank and step in the first run; 0 if added")
    after_ns = Column("after_ns", pl.Float64, "time per rank and step in the second run; 0 if removed")
    delta_ns = Column("delta_ns", pl.Float64, "after less before")
    ratio = Column("ratio", pl.Float64, "after / before", nullable=True)
    before_count = Column("before_count", pl.Float64, "occurrences per rank and step in the first run")
    after_count = Column("after_count", pl.Float64, "occurrences per rank and step in the second run")


@dataclass(frozen=True, kw_only=True, slots=True)
class ChangeSet(Result):
    """Changes of one kind of thing."""

    changes: pl.DataFrame
    """The table `Changes`."""
    before_ns: float
    """Time per rank and step of all names in the first run."""
    after_ns: float
    match_rate_ratio: float | None
    """Share of the time of both runs that lies in names that both have."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison(Result):
    """Two runs side by side, the first being the base."""

    kernels: ChangeSet
    """Device events by name; lengths add up, overlap included."""
    classes: ChangeSet
    """Device events by class."""
    operators: ChangeSet
    """Operators by name: device time of what they launched."""
    phases: ChangeSet
    """Annotations of the user by name: host time."""
    before_step_ns: int | None
    """Median step of the first run on the host, over ranks and steps."""
    after_step_ns: int | None
    before_num_steps: int
    after_num_steps: int
    unit: str
    """What times are divided by: `rank and step`, or `rank` where a run has no whole steps."""
    warnings: Sequence[str]
