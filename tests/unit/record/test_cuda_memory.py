"""Peaks of CUDA's allocator without wiping the user's: torch's own functions over a stand-in of the allocator."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("torch")

import torch

from scope.record import memory
from scope.record.memory import CudaMemory, PeakShadow

if TYPE_CHECKING:
    from collections.abc import Callable

MODULES = {
    "torch.cuda": torch.cuda,
    "torch.cuda.memory": torch.cuda.memory,
    "torch.accelerator": torch.accelerator,
    "torch.accelerator.memory": getattr(torch.accelerator, "memory", None),  # since torch 2.9
}
READERS = (
    *("memory_stats", "memory_stats_as_nested_dict", "memory_summary", "max_memory_cached"),
    *("max_memory_allocated", "max_memory_reserved", "memory_allocated", "memory_reserved"),
)
RESETS = ("reset_peak_memory_stats", "reset_max_memory_allocated", "reset_max_memory_cached")
POOLED = (
    *("allocation", "segment", "active", "inactive_split"),
    *("allocated_bytes", "reserved_bytes", "active_bytes", "inactive_split_bytes", "requested_bytes"),
)


class Device:
    """The counters of one device, as the caching allocator keeps them: each has a value now and the largest so far."""

    def __init__(self) -> None:
        plain = [(name, pool) for name in POOLED for pool in ("all", "small_pool", "large_pool")]
        self.now = dict.fromkeys([*plain, ("oversize_allocations", ""), ("oversize_segments", "")], 0)
        self.peak = dict(self.now)
        self.retries = 0

    def use(self, num_bytes: int) -> None:
        """Have so many bytes allocated, each counter at a value of its own."""
        for place, key in enumerate(self.now):
            self.now[key] = num_bytes * (place + 1)
            self.peak[key] = max(self.peak[key], self.now[key])

    def reset_peak(self) -> None:
        """Begin every peak anew."""
        self.peak = dict(self.now)

    def stats(self) -> dict[str, Any]:
        """Return the counters as the C++ binding does, in a new dictionary."""
        nested: dict[str, Any] = {"num_alloc_retries": self.retries, "num_ooms": 0, "max_split_size": -1}
        for (name, pool), now in self.now.items():
            stat = {"current": now, "peak": self.peak[name, pool], "allocated": 7, "freed": 3}
            if pool:
                nested.setdefault(name, {})[pool] = stat
            else:
                nested[name] = stat
        return nested


class Driver:
    """Two devices behind the functions of `torch._C` that torch's public ones call."""

    def __init__(self) -> None:
        self.devices = [Device(), Device()]
        self.current = 0

    def put_in_place(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Let this torch believe that it has these devices."""
        functions: dict[str, Callable[..., Any]] = {
            "_cuda_memoryStats": lambda device: self.devices[device].stats(),
            "_accelerator_getDeviceStats": lambda device: self.devices[device].stats(),
            "_cuda_resetPeakMemoryStats": lambda device: self.devices[device].reset_peak(),
            "_accelerator_resetPeakStats": lambda device: self.devices[device].reset_peak(),
            "_accelerator_isAllocatorInitialized": lambda: True,
            "_accelerator_getDeviceIndex": lambda: self.current,
        }
        for name, function in functions.items():
            monkeypatch.setattr(torch._C, name, function, raising=False)
        monkeypatch.setattr(torch.cuda, "current_device", lambda: self.current)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda.memory, "is_initialized", lambda: True)


def public_functions(names: tuple[str, ...]) -> dict[str, Any]:
    """Return what this torch has of some names, by full name."""
    return {
        f"{module}.{name}": getattr(owner, name)
        for module, owner in MODULES.items()
        for name in names
        if hasattr(owner, name)
    }


ANSWERS = public_functions(READERS)  # imported before anything is recorded, as a program does
BEGINNINGS = public_functions(RESETS)


def ask_everything() -> dict[str, Any]:
    """Return what every public reader says, of the current device and of each by number."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return {f"{name}({index})": read(index) for name, read in ANSWERS.items() for index in (None, 0, 1)}


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    """The devices, and no shadow of another test."""
    driver = Driver()
    driver.put_in_place(monkeypatch)
    monkeypatch.setattr(memory, "_shadow", None)
    return driver


def live(driver: Driver, take: Callable[[], object], reset: Callable[[Any], object]) -> list[dict[str, Any]]:
    """Use both devices and reset one in the middle; return what every reader says after each act."""
    said: list[dict[str, Any]] = []
    first, second = driver.devices

    def look() -> None:
        take()
        said.append(ask_everything())

    for device, num_bytes in ((first, 500), (first, 100), (second, 900), (first, 300), (first, 50)):
        device.use(num_bytes)
        look()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        reset(0)
    look()
    for num_bytes in (70, 10):
        first.use(num_bytes)
        look()
    driver.current = 1
    look()
    for num_bytes in (400, 20):
        second.use(num_bytes)
        look()
    return said


@pytest.mark.parametrize("reset", sorted(BEGINNINGS))
def test_every_public_name_says_what_it_would_without_us(
    driver: Driver, monkeypatch: pytest.MonkeyPatch, reset: str
) -> None:
    """With our resets between, each reader of torch answers as it does where nothing is recorded, also by old names."""
    without = live(driver, take=lambda: None, reset=BEGINNINGS[reset])
    again = Driver()
    again.put_in_place(monkeypatch)
    shadow = PeakShadow(torch._C, torch.cuda.current_device)
    shadow.open()
    assert live(again, take=shadow.take, reset=BEGINNINGS[reset]) == without


def test_every_module_of_torch_is_asked() -> None:
    """The readers and resets that are tried are those of torch.cuda, and of torch.accelerator where it has them."""
    expected = {"torch.cuda", "torch.cuda.memory"}
    if MODULES["torch.accelerator.memory"] is not None:
        expected = set(MODULES)
    assert {name.rpartition(".")[0] for name in ANSWERS} == expected
    assert {name.rpartition(".")[0] for name in BEGINNINGS} == expected
    assert len(ANSWERS) >= 16


def test_phases_have_their_own_peaks(driver: Driver) -> None:
    """A phase's peak is the largest since it began, what the user resets inside it included; the step's is theirs."""
    device = driver.devices[0]
    device.retries = 4
    meter = CudaMemory(PeakShadow(torch._C, torch.cuda.current_device), free_and_total=lambda: (1000, 5000))
    device.use(30)
    device.use(1)
    meter.end_phase("forward", 0)
    device.use(20)
    device.use(2)
    torch.cuda.reset_peak_memory_stats()
    device.use(10)
    device.use(3)
    assert torch.cuda.memory_stats()["allocated_bytes.all.peak"] == 10 * device.now["allocated_bytes", "all"] // 3
    meter.end_phase("backward", 0)
    device.retries = 5
    meter.end_phase("other", 0)
    record = meter.end_step()()
    assert record is not None
    allocated, reserved = (list(device.now).index((name, "all")) + 1 for name in ("allocated_bytes", "reserved_bytes"))
    split = list(device.now).index(("inactive_split_bytes", "all")) + 1
    peaks = {name: (peak.allocated_bytes, peak.reserved_bytes) for name, peak in record.phases.items()}
    assert peaks == {
        "forward": (30 * allocated, 30 * reserved),
        "backward": (20 * allocated, 20 * reserved),
        "other": (3 * allocated, 3 * reserved),
    }
    assert (record.peak.allocated_bytes, record.peak.reserved_bytes) == peaks["forward"]
    assert record.num_alloc_retries == 1
    assert record.fragmentation_ratio == pytest.approx(split / reserved)
    assert (record.other_bytes, record.free_bytes) == (4000 - 3 * reserved, 1000)
    assert meter.end_step()() is None


def test_the_users_peak_outlives_a_recording(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the end readers still answer the user's peak; its own reset then leaves torch as it was, a new one too."""
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (1000, 5000))
    originals = dict(vars(torch._C))
    device = driver.devices[0]
    device.use(500)
    device.use(5)
    for _ in range(2):
        meter = memory.choose_meter()
        assert isinstance(meter, CudaMemory)
        device.use(20)
        device.use(5)
        meter.end_phase("forward", 0)
        record = meter.end_step()()
        assert record is not None
        assert record.peak.allocated_bytes == 20 * device.now["allocated_bytes", "all"] // 5
        meter.close()
        assert torch.cuda.max_memory_allocated() == 500 * device.now["allocated_bytes", "all"] // 5
    torch.cuda.reset_peak_memory_stats()
    assert torch.cuda.max_memory_allocated() == device.now["allocated_bytes", "all"]
    assert dict(vars(torch._C)) == originals
