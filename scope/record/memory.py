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

from scope.record.patches import PatchTable
from scope.run.files import close_descriptor, identify_descriptor, lift_descriptor
from scope.run.schema import MemoryPeak, MemoryRecord

if TYPE_CHECKING:
    from collections.abc import Callable

_FRESH_NS: Final = 2_000_000
_SAME_NS: Final = 100_000
_READERS: Final = ("_cuda_memoryStats", "_accelerator_getDeviceStats")
_RESETS: Final = ("_cuda_resetPeakMemoryStats", "_accelerator_resetPeakStats")


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

    A reading costs more than all else of a change. One that is younger than 2 ms stands for a phase that has had a
    reading of its own in this step, so that many short spans share a few readings; one that is younger than 0.1 ms, in
    which no more than some pages come, stands for every phase.

    Args:
        now: Monotonic clock in nanoseconds.
    """

    def __init__(self, *, now: Callable[[], int] = time.monotonic_ns) -> None:
        self._now = now
        self._read_ns = 0
        self._pages = 0
        self._descriptor = -1
        self._own: tuple[int, int] | None = None
        self._phases: dict[str, int] = {}
        self._open()

    def end_phase(self, name: str) -> None:
        """Read the resident set (about 2 us) for the phase that ends."""
        now = self._now()
        age = now - self._read_ns
        phases = self._phases
        if age < _FRESH_NS and name in phases:
            return
        if age >= _SAME_NS or not self._pages:
            self._read_ns = now
            self._pages = self._read()
        if self._pages > phases.get(name, 0):
            phases[name] = self._pages

    def _read(self) -> int:
        """Return the pages of the resident set."""
        try:
            return int(os.pread(self._descriptor, 64, 0).split(None, 2)[1])
        except (OSError, ValueError, IndexError):
            # The program has closed our descriptor, and may have a file of its own under its number.
            self._open()
            return int(os.pread(self._descriptor, 64, 0).split(None, 2)[1])

    def end_step(self) -> MemoryRecord | None:
        """Return the largest reading of the step and of each phase."""
        phases, self._phases = self._phases, {}
        if not phases:
            return None
        return MemoryRecord(
            peak=MemoryPeak(resident_bytes=max(phases.values()) * mmap.PAGESIZE),
            phases={name: MemoryPeak(resident_bytes=pages * mmap.PAGESIZE) for name, pages in phases.items()},
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

    torch has one set of peak counters a device. Every public name that reads or resets them (`torch.cuda.memory_stats`,
    `max_memory_allocated`, `memory_summary`, `torch.accelerator...`, whenever they were imported) does so by two
    functions of `torch._C` that it looks up at each call. Each of our resets first folds the counters into a shadow;
    reading answers the larger of both, and the user's own reset clears the shadow.

    Args:
        functions: `torch._C`, or a stand-in with these functions.
        current_device: Gives the index of the current device.
    """

    def __init__(self, functions: Any, current_device: Callable[[], int]) -> None:
        self._functions = functions
        self._current_device = current_device
        self._read = getattr(functions, _READERS[0])
        self._reset = getattr(functions, _RESETS[0])
        self._peaks: dict[int, dict[str, Any]] = {}
        self._before_reset: dict[int, dict[str, Any]] = {}
        self._patches = PatchTable()
        self._is_open = False

    def open(self) -> None:
        """Begin to answer for the counters."""
        self._is_open = True
        if not self._patches.holds(self._functions, _READERS[0]):
            for name in _READERS:
                self._patches.replace(self._functions, name, self._wrap_read)
            for name in _RESETS:
                self._patches.replace(self._functions, name, self._wrap_reset)

    def take(self) -> dict[str, Any]:
        """Return the counters, nested, with the peaks since the last take, and begin anew."""
        device = self._current_device()
        stats = self._read(device)
        _fold_peaks(stats, self._peaks.setdefault(device, {}))
        self._reset(device)
        # What the user has reset meanwhile is gone for the user, not for the phase.
        _raise_peaks(stats, self._before_reset.pop(device, {}))
        return stats

    def close(self) -> None:
        """Restore torch's functions, at once or, where the shadow holds a peak of the user's, once they reset it."""
        self._is_open = False
        self._before_reset.clear()
        if not self._peaks:
            self._patches.restore()

    def _wrap_read(self, original: Callable[[int], dict[str, Any]]) -> Callable[[int], dict[str, Any]]:
        def read(device: int) -> dict[str, Any]:
            stats = original(device)
            shadow = self._peaks.get(device)
            if shadow:
                _raise_peaks(stats, shadow)
            return stats

        return read

    def _wrap_reset(self, original: Callable[[int], None]) -> Callable[[int], None]:
        def reset(device: int) -> None:
            if self._is_open:
                _fold_peaks(self._read(device), self._before_reset.setdefault(device, {}))
            self._peaks.pop(device, None)
            original(device)
            if not (self._is_open or self._peaks):
                self._patches.restore()

        return reset


def _fold_peaks(stats: dict[str, Any], shadow: dict[str, Any]) -> None:
    """Raise every peak of the shadow to that of the counters."""
    for name, value in stats.items():
        if type(value) is dict:
            _fold_peaks(value, shadow.setdefault(name, {}))
        elif name == "peak" and value > shadow.get(name, -1):
            shadow[name] = value


def _raise_peaks(stats: dict[str, Any], shadow: dict[str, Any]) -> None:
    """Raise every peak of the counters to that of the shadow."""
    for name, value in shadow.items():
        if type(value) is dict:
            _raise_peaks(stats.get(name, {}), value)
        elif name in stats and value > stats[name]:
            stats[name] = value


class CudaMemory:
    """Peaks of torch's CUDA allocator on the current device, by counter and not by sampling.

    Args:
        shadow: Keeps the counters of the user.
        free_and_total: Free bytes of the device and all of them.
    """

    def __init__(self, shadow: PeakShadow, *, free_and_total: Callable[[], tuple[int, int]] | None = None) -> None:
        self._shadow = shadow
        self._free_and_total = free_and_total or torch.cuda.mem_get_info
        shadow.open()
        self._stats = shadow.take()
        self._phases: dict[str, tuple[int, int]] = {}
        self._retries: int = self._stats.get("num_alloc_retries", 0)

    def end_phase(self, name: str) -> None:
        """Give the peak since the last change to the phase that ends."""
        stats = self._stats = self._shadow.take()
        allocated = stats["allocated_bytes"]["all"]["peak"]
        reserved = stats["reserved_bytes"]["all"]["peak"]
        old = self._phases.get(name, (0, 0))
        self._phases[name] = (max(old[0], allocated), max(old[1], reserved))

    def end_step(self) -> MemoryRecord | None:
        """Return the peaks of the step, and the state of the allocator at its end."""
        phases, self._phases = self._phases, {}
        if not phases:
            return None
        reserved = self._stats["reserved_bytes"]["all"]["current"]
        split = self._stats["inactive_split_bytes"]["all"]["current"]
        retries = self._stats["num_alloc_retries"]
        new_retries, self._retries = retries - self._retries, retries
        free, total = self._free_and_total()
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
        """Let the counters be torch's again."""
        self._shadow.close()


_shadow: PeakShadow | None = None
"""One a process: a peak of the user's outlives a recording, and the next one must not take it for its own."""


def choose_meter() -> MemoryMeter:
    """Return the meter for this process: CUDA once it is initialised, else the resident set."""
    global _shadow
    if not (torch.cuda.is_available() and torch.cuda.is_initialized()):
        return ResidentMemory()
    if _shadow is None:
        _shadow = PeakShadow(torch._C, torch.cuda.current_device)
    return CudaMemory(_shadow)
