"""Which stretch of a device's time belongs to which step, and the events that stand on it.

One device is one timeline. Its window runs from the start of its first event to the largest end. A step's window on
the device begins at the first compute kernel launched in the step on the stream with most compute, and ends where the
next step's begins; the last step's ends with the last event launched in it. So `before` + steps + `after` is the
window exactly, and a copy that is prefetched for a later step belongs to the step during which it runs.

A host timeline (training on CPUs) is one timeline more, device `HOST`: a step's window begins where the step begins on
the host and ends where the next begins; the last ends where it ends on the host.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

import polars as pl

from scope.analysis.result import Result
from scope.trace.columns import Column, Table

if TYPE_CHECKING:
    from scope.analysis.options import Options
    from scope.trace.model import RankTrace

HOST: Final = -1
"""The device index under which a host timeline is shown."""

Place = Literal["before", "step", "after", "whole"]
"""Where a part of the window lies; `whole` is the single part of a window in which no step has a window."""

PLACES: Final[tuple[Place, ...]] = ("before", "step", "after", "whole")


class Parts(Table):
    """The parts that each device's window falls into, in the order of time; they are adjacent and cover it."""

    part_id = Column("part_id", pl.UInt32, "row number")
    device = Column("device", pl.Int32, "device index in the trace; `HOST` for a host timeline")
    place = Column("place", pl.Enum(PLACES), "where it lies")
    step_id = Column("step_id", pl.UInt32, "the step, where `place` is step", nullable=True)
    start_ns = Column("start_ns", pl.Int64, "first nanosecond")
    end_ns = Column("end_ns", pl.Int64, "end, not part of it; equal to the start for a part that is empty")


@dataclass(frozen=True, kw_only=True, slots=True)
class Window(Result):
    """A half-open stretch of time [start_ns, end_ns)."""

    start_ns: int
    end_ns: int

    @property
    def length_ns(self) -> int:
        """Nanoseconds from start to end."""
        return self.end_ns - self.start_ns

    def _check_sums(self) -> None:
        assert self.start_ns <= self.end_ns, f"a window ends at {self.end_ns}, before {self.start_ns}"


@dataclass(frozen=True, kw_only=True, slots=True)
class StepWindow(Result):
    """One profiler step on one device."""

    step_id: int
    """Row of the rank's table of steps."""
    number: int
    """n of `ProfilerStep#n`."""
    device: int
    is_cut: bool
    """The recording began or ended inside the step, so its figures are those of a part of it."""
    host: Window
    """The step on the host."""
    window: Window | None
    """The step's stretch of the device's time."""
    ends_with: Literal["next step", "last event", "host step"] | None
    """What ended the window: the next step, or for the last one its last event or the step's end on the host."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceWindows(Result):
    """The window of one device and its parts."""

    device: int
    whole: Window
    main_stream: int | None
    """The stream with most compute (the lowest of several equals); steps begin on it."""
    before: Window | None
    """From the start of the window to the first step."""
    steps: tuple[StepWindow, ...]
    """Every step of the trace, in the order of their start on the host, those without a window too."""
    after: Window | None
    """From the end of the last step to the end of the window."""

    def _check_sums(self) -> None:
        if self.before is None or self.after is None:
            return
        windows = sorted(
            (step.window for step in self.steps if step.window is not None), key=lambda each: each.start_ns
        )
        parts = [self.before, *windows, self.after]
        assert parts[0].start_ns == self.whole.start_ns
        assert parts[-1].end_ns == self.whole.end_ns
        assert sum(part.length_ns for part in parts) == self.whole.length_ns


@dataclass(frozen=True, kw_only=True, slots=True)
class Timeline:
    """One rank's events as the analyses see them: chosen by the options, with the parts of each device's window."""

    trace: RankTrace
    options: Options
    events: pl.DataFrame
    """Columns of `DeviceEvents`, sorted by start; for a host timeline made of host ranges, with device `HOST`."""
    devices: tuple[DeviceWindows, ...]
    """Sorted by device; empty for a trace with no events."""
    parts: pl.DataFrame
    """The table `Parts`."""
