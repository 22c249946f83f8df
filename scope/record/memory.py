"""Memory peaks of a step and of its phases: torch's CUDA allocator, or the resident set where there is no GPU."""

# torch annotates only a part of itself.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# pyright: reportPrivateUsage=false, reportAttributeAccessIssue=false

from __future__ import annotations

import mmap
import os
import time
from typing import TYPE_CHECKING, Any, Final, Protocol

import torch

from scope.run.files import close_descriptor, identify_descriptor, lift_descriptor
from scope.run.schema import MemoryPeak, MemoryRecord

if TYPE_CHECKING:
    from collections.abc import Callable

    from scope.record.patches import PatchTable

_FRESH_NS: Final = 200_000


class MemoryMeter(Protocol):
    """What the session needs of a meter of memory."""

    def end_phase(self, name: str) -> None:
        """Give what was used since the last call to a phase; called at each change of phase."""
        ...

    def end_step(self) -> MemoryRecord | None:
        """Return the peaks of the step and begin the next."""
        ...

    def close(self) -> None:
        """Let go of files."""
        ...


class ResidentMemory:
    """The resident set of the process, read at changes of phase: the peak is the largest of these readings.

    A reading costs more than all else of a change. One that is younger than 0.2 ms stands for a phase that has had a
    reading of its own in this step, so that many short spans share a few readings.

    Args:
        now: Monotonic clock in nanoseconds.
    """

    def __init__(self, *, now: Callable[[], int] = time.monotonic_ns) -> None:
        self._now = now
        self._read_ns = 0
        self._descriptor = -1
        self._own: tuple[int, int] | None = None
        self._phases: dict[str, int] = {}
        self._open()

    def end_phase(self, name: str) -> None:
        """Read the resident set (about 2 us) for the phase that ends."""
        now = self._now()
        if now - self._read_ns < _FRESH_NS and name in self._phases:
            return
        self._read_ns = now
        try:
            pages = int(os.pread(self._descriptor, 64, 0).split()[1])
        except (OSError, ValueError, IndexError):
            # The program has closed our descriptor, and may have a file of its own under its number.
            self._open()
            pages = int(os.pread(self._descriptor, 64, 0).split()[1])
        resident = pages * mmap.PAGESIZE
        if resident > self._phases.get(name, 0):
            self._phases[name] = resident

    def end_step(self) -> MemoryRecord | None:
        """Return the largest reading of the step and of each phase."""
        phases, self._phases = self._phases, {}
        if not phases:
            return None
        return MemoryRecord(
            peak=MemoryPeak(resident_bytes=max(phases.values())),
            phases={name: MemoryPeak(resident_bytes=value) for name, value in phases.items()},
            sampled=True,
        )

    def close(self) -> None:
        """Close /proc/self/statm."""
        close_descriptor(self._descriptor, self._own)
        self._descriptor = -1

    def _open(self) -> None:
        self._descriptor = lift_descriptor(os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC))
        self._own = identify_descriptor(self._descriptor)


class PeakShadow:
    """Keeps the user's peak counters as they would be without us, though we reset the real ones.

    torch has one peak counter a device. Each of our resets first folds the counter into a shadow;
    `max_memory_allocated` and `max_memory_reserved` answer the larger of both, and the user's own reset clears the
    shadow.

    Args:
        cuda: `torch.cuda`, or a stand-in with the same four functions.
    """

    def __init__(self, cuda: Any, patches: PatchTable) -> None:
        self._cuda = cuda
        self._allocated = 0
        self._reserved = 0
        self._max_allocated = cuda.max_memory_allocated
        self._max_reserved = cuda.max_memory_reserved
        self._reset = cuda.reset_peak_memory_stats
        patches.replace(cuda, "max_memory_allocated", self._make_allocated)
        patches.replace(cuda, "max_memory_reserved", self._make_reserved)
        patches.replace(cuda, "reset_peak_memory_stats", self._make_reset)

    def take(self) -> tuple[int, int]:
        """Return the peaks since the last take (allocated, reserved) and begin anew."""
        allocated, reserved = self._max_allocated(), self._max_reserved()
        self._allocated = max(self._allocated, allocated)
        self._reserved = max(self._reserved, reserved)
        self._reset()
        return allocated, reserved

    def _make_allocated(self, original: Any) -> Any:
        def max_memory_allocated(device: Any = None) -> int:
            return max(original(device), self._allocated if self._is_ours(device) else 0)

        return max_memory_allocated

    def _make_reserved(self, original: Any) -> Any:
        def max_memory_reserved(device: Any = None) -> int:
            return max(original(device), self._reserved if self._is_ours(device) else 0)

        return max_memory_reserved

    def _make_reset(self, original: Any) -> Any:
        def reset_peak_memory_stats(device: Any = None) -> None:
            if self._is_ours(device):
                self._allocated = self._reserved = 0
            original(device)

        return reset_peak_memory_stats

    def _is_ours(self, device: Any) -> bool:
        current = self._cuda.current_device()
        if device is None:
            return True
        index: int | None = device if isinstance(device, int) else getattr(torch.device(device), "index", None)
        return index is None or index == current


class CudaMemory:
    """Peaks of torch's CUDA allocator on the current device, by counter and not by sampling."""

    def __init__(self, patches: PatchTable) -> None:
        self._shadow = PeakShadow(torch.cuda, patches)
        self._shadow.take()
        self._phases: dict[str, tuple[int, int]] = {}
        self._retries = 0

    def end_phase(self, name: str) -> None:
        """Give the peak since the last change to the phase that ends."""
        allocated, reserved = self._shadow.take()
        old = self._phases.get(name, (0, 0))
        self._phases[name] = (max(old[0], allocated), max(old[1], reserved))

    def end_step(self) -> MemoryRecord | None:
        """Return the peaks of the step, and the state of the allocator at its end."""
        phases, self._phases = self._phases, {}
        if not phases:
            return None
        stats = torch.cuda.memory_stats()
        reserved = stats.get("reserved_bytes.all.current", 0)
        split = stats.get("inactive_split_bytes.all.current", 0)
        retries = stats.get("num_alloc_retries", 0)
        new_retries, self._retries = retries - self._retries, retries
        free, total = torch.cuda.mem_get_info()
        return MemoryRecord(
            peak=MemoryPeak(
                allocated_bytes=max(peak[0] for peak in phases.values()),
                reserved_bytes=max(peak[1] for peak in phases.values()),
            ),
            phases={name: MemoryPeak(allocated_bytes=peak[0], reserved_bytes=peak[1]) for name, peak in phases.items()},
            fragmentation_ratio=split / reserved if reserved else None,
            num_alloc_retries=new_retries,
            other_bytes=max(0, total - free - reserved),
            free_bytes=free,
        )

    def close(self) -> None:
        """Nothing to let go of; the patch table restores the counters."""


def choose_meter(patches: PatchTable) -> MemoryMeter:
    """Return the meter for this process: CUDA once it is initialised, else the resident set."""
    return CudaMemory(patches) if torch.cuda.is_available() and torch.cuda.is_initialized() else ResidentMemory()
