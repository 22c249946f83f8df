"""How the host feeds the device: delay from launch to start, depth of the queue, host-bound share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import polars as pl

from scope.analysis.result import Distribution, Result
from scope.trace.columns import Column, Table
from scope.trace.schema import LAUNCH_KINDS

APIS: Final = ("cuda_runtime", "cuda_driver", "hip", "other")
"""Families of launching calls, told by the call's name."""


class LaunchStats(Table):
    """Launching calls grouped by call; sorted by `num_calls` descending, then by name.

    The delay of a launch is from the start of its call to the start of the first event that it launched; it may be
    negative when the trace's clocks disagree, which `num_negative_delays` counts.
    """

    name = Column("name", pl.String, "name of the call")
    api = Column("api", pl.Enum(APIS), "family of the call")
    kind = Column("kind", pl.Enum(LAUNCH_KINDS), "what the call launches")
    num_calls = Column("num_calls", pl.UInt32, "calls, those with no event in the trace too")
    num_device_events = Column("num_device_events", pl.UInt32, "device events that they launched")
    call_ns = Column("call_ns", pl.Int64, "sum of the calls' own lengths on the host")
    total_delay_ns = Column("total_delay_ns", pl.Int64, "sum of delays; null when none is known", nullable=True)
    min_delay_ns = Column("min_delay_ns", pl.Int64, "shortest delay", nullable=True)
    median_delay_ns = Column("median_delay_ns", pl.Int64, "median delay, the lower of two", nullable=True)
    p90_delay_ns = Column("p90_delay_ns", pl.Int64, "delay that a tenth exceeds", nullable=True)
    max_delay_ns = Column("max_delay_ns", pl.Int64, "longest delay", nullable=True)
    num_negative_delays = Column("num_negative_delays", pl.UInt32, "events that start before their call does")


@dataclass(frozen=True, kw_only=True, slots=True)
class QueueDepth(Result):
    """Launched minus started over one window (or the sum of several), weighted by time.

    A launch is in the queue from the start of its call to the start of its first event; a graph counts once. Events
    without a launch are not seen, and `num_unseen_events` counts those.
    """

    window_ns: int
    num_launches: int
    """Launches of which some event starts in the window."""
    num_unseen_events: int
    """Events that start in the window and have no launch in the trace."""
    waited_ns: int
    """Sum over launches of the time in the queue inside the window: the integral of the depth."""
    max_depth: int
    empty_ns: int
    """Time in which nothing is launched and not yet started."""
    host_bound_ns: int
    """Empty time in which the thread that launches next is busy: neither in a blocking call nor fetching data."""
    mean_depth: float | None
    """`waited_ns / window_ns`."""
    host_bound_ratio: float | None
    """`host_bound_ns / window_ns`."""

    def _check_sums(self) -> None:
        assert 0 <= self.host_bound_ns <= self.empty_ns <= self.window_ns


@dataclass(frozen=True, kw_only=True, slots=True)
class LaunchDelays(Result):
    """Delays from the start of the launching call to the start of its first event, over a set of launches."""

    delay: Distribution | None
    num_negative_delays: int
    """Launches whose event starts before their call does: the clocks of host and device disagree by that much."""
