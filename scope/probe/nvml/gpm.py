"""GPM: what the multiprocessors, tensor cores and memory really did between two samples (Hopper and later).

GPM uses a counter unit of its own, so it runs beside Nsight and CUPTI, which DCGM's profiling fields do not.
"""

from __future__ import annotations

import math
import struct
from typing import TYPE_CHECKING, Any, Final

from scope.probe.nvml.library import GpuHandle, NvmlFailure
from scope.probe.nvml.tables import GPM_ACTIVITIES
from scope.probe.plausible import is_plausible
from scope.units import NS_PER_MS, NS_PER_S

if TYPE_CHECKING:
    from scope.probe.nvml.fields import Report

_METRIC: Final = struct.Struct("=IId")
MIN_WINDOW_NS: Final = 100 * NS_PER_MS
MAX_WINDOW_NS: Final = 120 * NS_PER_S
OVERSHOOT_RATIO: Final = 0.05
"""How far a ratio may lie above 1: two counters are sampled one after the other, so a full unit can read 100.4 %."""


class GpmReader:
    """Reads the activities of one GPU, or of one GPU instance, over the time since the previous reading.

    Args:
        gpu: The GPU; the parent of a GPU instance.
        gpu_instance: Id of the GPU instance, None for the whole GPU.
    """

    def __init__(self, gpu: GpuHandle, *, gpu_instance: int | None = None) -> None:
        self._gpu = gpu
        self._gpu_instance = gpu_instance
        self._previous: Any = None
        self._spare: Any = None
        self._previous_ns = 0
        self._request: Any = None
        self._last: dict[str, float] = {}

    def is_supported(self) -> bool:
        """Ask whether this GPU has GPM at all."""
        try:
            return bool(self._gpu.ask("nvmlGpmQueryDeviceSupport").isSupportedDevice)
        except NvmlFailure as failure:
            if failure.absent:
                return False
            raise

    def read(self, now_ns: int, report: Report) -> dict[str, float]:
        """Take a sample and return the activities since the one before, 0 to 1.

        The first reading, and one whose window is too long, gives nothing. One whose window is too short (a sample came
        late and the next one in time) repeats the reading before. A metric that the GPU refuses or answers with NaN is
        left out. Up to 105 % is shown as 1; what lies beyond, or below 0, is left out and reported.

        Args:
            now_ns: A monotonic clock.
            report: Told of each value that cannot be.

        Raises:
            NvmlFailure: The sample failed.
        """
        sample = self._take()
        window_ns = now_ns - self._previous_ns
        if self._previous is not None and window_ns < MIN_WINDOW_NS:
            self._spare = sample
            return self._last
        previous, self._previous, self._previous_ns = self._previous, sample, now_ns
        self._spare = previous
        self._last = {}
        if previous is not None and window_ns <= MAX_WINDOW_NS:
            self._last = self._compare(previous, sample, report)
        return self._last

    def close(self) -> None:
        """Free both samples."""
        for sample in (self._previous, self._spare):
            if sample is not None:
                try:
                    self._gpu.call("nvmlGpmSampleFree", sample)
                except NvmlFailure:
                    continue
        self._previous = self._spare = None

    def _take(self) -> Any:
        sample = self._spare
        self._spare = None
        if sample is None:
            sample = self._gpu.call("nvmlGpmSampleAlloc")
        if self._gpu_instance is None:
            self._gpu.ask("nvmlGpmSampleGet", sample)
        else:
            self._gpu.ask("nvmlGpmMigSampleGet", self._gpu_instance, sample)
        return sample

    def _compare(self, earlier: Any, later: Any, report: Report) -> dict[str, float]:
        request = self._request
        if request is None:
            request = self._gpu.library.bindings.c_nvmlGpmMetricsGet_t()
            request.version = 1
            request.numMetrics = len(GPM_ACTIVITIES)
            for slot, metric in enumerate(GPM_ACTIVITIES):
                request.metrics[slot].metricId = metric
            self._request = request
        request.sample1 = earlier
        request.sample2 = later
        self._gpu.call("nvmlGpmMetricsGet", request)
        activities: dict[str, float] = {}
        for slot in range(len(GPM_ACTIVITIES)):
            metric, code, percent = _METRIC.unpack_from(memoryview(request.metrics[slot]).cast("B"))
            if code != 0 or math.isnan(percent):
                continue
            ratio = min(percent / 100, 1.0) if percent / 100 <= 1 + OVERSHOOT_RATIO else percent / 100
            if is_plausible(ratio, "ratio"):
                activities[GPM_ACTIVITIES[metric]] = ratio
            else:
                report("implausible", f"gpm {GPM_ACTIVITIES[metric]}")
        return activities
