"""Memory peaks of a step and of its phases: torch's CUDA allocator, or the resident set where there is no GPU."""

# torch annotates only a part of itself.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# pyright: reportPrivateUsage=false, reportAttributeAccessIssue=false

from __future__ import annotations

import functools
import mmap
import os
from typing import TYPE_CHECKING, Any, Final, Protocol

import torch

from scope.record.patches import PatchTable
from scope.run.files import close_descriptor, identify_descriptor, lift_descriptor
from scope.run.schema import MemoryPeak, MemoryRecord

if TYPE_CHECKING:
    from collections.abc import Callable

_FRESH_NS: Final = 2_000_000
_MAX_READINGS: Final = 64
"""Readings of one phase in one step that are kept before the largest alone is."""
_END: Final = b" 0\n"
"""How a reading ends: the kernel counts no dirty pages there."""
_READERS: Final = ("_cuda_memoryStats", "_accelerator_getDeviceStats")
_RESETS: Final = ("_cuda_resetPeakMemoryStats", "_accelerator_resetPeakStats")


class MemoryMeter(Protocol):
    """What the session needs of a meter of memory."""

    def end_phase(self, name: str, now: int) -> None:
        """Give what was used since the last call to a phase; called at each change of phase, with its instant."""
        ...

    def end_step(self) -> Callable[[], MemoryRecord | None]:
        """Begin the next step; return what works out, on any thread, the peaks of the one that ends."""
        ...

    def close(self) -> None:
        """Let go of files."""
        ...


class ResidentMemory:
    """The resident set of the process, read at changes of phase: the peak is the largest of these readings.

    A reading costs more than all else of a change. One that is younger than 2 ms, in which some ten megabytes may come,
    stands for the phase that ends, so that what is short shares the reading of what was before it. What was read is
    made a number when the step is written.
    """

    def __init__(self) -> None:
        self._read_ns = -_FRESH_NS
        self._last = b""
        self._descriptor = -1
        self._own: tuple[int, int] | None = None
        self._phases: dict[str, list[bytes]] = {}
        self._open()

    def end_phase(self, name: str, now: int) -> None:
        """Read the resident set for the phase that ends.

        Args:
            name: The phase.
            now: Monotonic nanoseconds.
        """
        readings = self._phases.get(name)
        if now - self._read_ns < _FRESH_NS:
            if readings is None:
                self._phases[name] = [self._last]
            return
        try:
            last = os.pread(self._descriptor, 64, 0)
        except OSError:
            last = b""
        if not last.endswith(_END):
            # The program has closed our descriptor, and may have a file of its own under its number.
            self._open()
            last = os.pread(self._descriptor, 64, 0)
        self._read_ns, self._last = now, last
        if readings is None:
            self._phases[name] = [last]
        else:
            readings.append(last)
            if len(readings) > _MAX_READINGS:
                readings[:] = [max(readings, key=_pages_of)]

    def end_step(self) -> Callable[[], MemoryRecord | None]:
        """Begin the next step; return what gives the largest reading of the one that ends, and of each phase."""
        phases, self._phases = self._phases, {}
        return functools.partial(_resident_record, phases)

    def close(self) -> None:
        """Close /proc/self/statm."""
        close_descriptor(self._descriptor, self._own)
        self._descriptor = -1

    def _open(self) -> None:
        self._descriptor = lift_descriptor(os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC))
        self._own = identify_descriptor(self._descriptor)


def _pages_of(reading: bytes) -> int:
    """Return the pages of the resident set: the second number of /proc/self/statm."""
    return int(reading.split(None, 2)[1])


def _resident_record(readings: dict[str, list[bytes]]) -> MemoryRecord | None:
    """Return the record of a step from the readings of each phase."""
    if not readings:
        return None
    sizes = {name: max(map(_pages_of, of_phase)) * mmap.PAGESIZE for name, of_phase in readings.items()}
    return MemoryRecord(
        peak=MemoryPeak(resident_bytes=max(sizes.values())),
        phases={name: MemoryPeak(resident_bytes=size) for name, size in sizes.items()},
        sampled=True,
    )


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

    def end_phase(self, name: str, now: int) -> None:
        """Give the peak since the last change to the phase that ends."""
        del now
        stats = self._stats = self._shadow.take()
        allocated = stats["allocated_bytes"]["all"]["peak"]
        reserved = stats["reserved_bytes"]["all"]["peak"]
        old = self._phases.get(name, (0, 0))
        self._phases[name] = (max(old[0], allocated), max(old[1], reserved))

    def end_step(self) -> Callable[[], MemoryRecord | None]:
        """Begin the next step; return what gives the peaks of the one that ends, and the allocator's state there."""
        record = self._take_step()
        return lambda: record

    def _take_step(self) -> MemoryRecord | None:
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
