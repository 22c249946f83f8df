"""Step time: the stretches of each device's time that findings and their shares are measured on.

The windows of the steps that were recorded whole; of cut steps where none is whole; the whole window of the device
where no step has one. An event counts when it starts in step time.
"""

from __future__ import annotations

from statistics import median_low
from typing import TYPE_CHECKING, Final

import polars as pl

from scope.analysis import spans
from scope.trace.schema import DeviceEvents

if TYPE_CHECKING:
    from collections.abc import Iterable

    from scope.analysis.windows import DeviceWindows, StepWindow, Window

_COLUMNS: Final = (DeviceEvents.device, DeviceEvents.start_ns, DeviceEvents.end_ns)


def judged_steps(device: DeviceWindows) -> tuple[StepWindow, ...]:
    """Return the steps whose windows are the device's step time; none where its whole window is."""
    steps = tuple(step for step in device.steps if step.window is not None)
    return tuple(step for step in steps if not step.is_cut) or steps


def compute_median_step(devices: Iterable[DeviceWindows], *, cut: bool = False) -> int | None:
    """Return the length of the median step of a job: the median over steps of the median of its devices' windows.

    It is what every report calls the median step. A step that the recording cut on any device does not count.

    Args:
        devices: The windows of all ranks' devices; of a host timeline those of the host.
        cut: The cut steps count, and they alone.

    Returns:
        Nanoseconds, the lower of two middle values; None where no such step has a window.
    """
    lengths: dict[int, list[int]] = {}
    cut_numbers: set[int] = set()
    for device in devices:
        for step in device.steps:
            if step.window is not None:
                lengths.setdefault(step.number, []).append(step.window.length_ns)
                cut_numbers |= {step.number} if step.is_cut else set()
    counted = [median_low(each) for number, each in lengths.items() if (number in cut_numbers) == cut]
    return median_low(counted) if counted else None


def compute_step_time(devices: Iterable[DeviceWindows]) -> pl.DataFrame:
    """Return the step time of one rank's devices as normalised spans: `device`, `start_ns` and `end_ns`."""
    rows = [(device.device, window.start_ns, window.end_ns) for device in devices for window in _judged_windows(device)]
    frame = pl.DataFrame(rows, schema={str(name): name.dtype for name in _COLUMNS}, orient="row")
    return spans.union(frame, by=DeviceEvents.device)


def starts_within(step_time: pl.DataFrame) -> pl.Expr:
    """Return whether an event with the columns `device` and `start_ns` starts in step time."""
    device, start = pl.col(DeviceEvents.device), pl.col(DeviceEvents.start_ns)
    inside = [
        (device == index) & (start >= begin) & (start < end)
        for index, begin, end in step_time.select(*_COLUMNS).iter_rows()
    ]
    return pl.any_horizontal(inside) if inside else pl.lit(value=False)


def _judged_windows(device: DeviceWindows) -> list[Window]:
    steps = judged_steps(device)
    return [step.window for step in steps if step.window is not None] if steps else [device.whole]
