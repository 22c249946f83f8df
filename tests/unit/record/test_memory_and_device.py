"""The resident set by phase, and GPU times by pooled events on stand-ins that behave like the driver's."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

from scope.record.device import DevicePhases
from scope.record.memory import ResidentMemory


def test_resident_peak_is_the_largest_reading_of_each_phase() -> None:
    """Memory that a phase holds when it ends shows in that phase and in the step, and the next step begins anew."""
    meter = ResidentMemory()
    meter.end_phase("other", 1_000_000)
    held = bytearray(64 * 2**20)
    held[::4096] = b"x" * len(held[::4096])
    meter.end_phase("forward", 4_000_000)
    del held
    meter.end_phase("other", 7_000_000)
    record = meter.end_step()()
    assert record is not None
    assert record.sampled
    forward, other = record.phases["forward"].resident_bytes, record.phases["other"].resident_bytes
    assert forward is not None
    assert other is not None
    assert forward - other > 48 * 2**20
    assert record.peak.resident_bytes == forward
    assert meter.end_step()() is None
    meter.close()


def test_a_reading_that_is_fresh_stands_for_every_phase() -> None:
    """What ends within 2 ms of a reading has that one, also in the step that follows; later it has its own."""
    now = 1_000_000
    meter = ResidentMemory()
    meter.end_phase("forward", now)
    held = bytearray(64 * 2**20)
    held[::4096] = b"x" * len(held[::4096])
    now += 1_999_999
    meter.end_phase("forward", now)
    meter.end_phase("other", now)
    first = meter.end_step()()
    meter.end_phase("other", now)
    second = meter.end_step()()
    now += 1
    meter.end_phase("other", now)
    third = meter.end_step()()
    assert first is not None
    assert second is not None
    assert third is not None
    assert first.phases["other"] == first.phases["forward"] == second.phases["other"]
    assert (third.peak.resident_bytes or 0) - (first.peak.resident_bytes or 0) > 48 * 2**20
    assert len(held) == 64 * 2**20
    meter.close()


class Event:
    """A timing event on a stream that the test moves on."""

    clock_ms = 0.0
    done_ms = 0.0
    made = 0

    def __init__(self) -> None:
        Event.made += 1
        self.at = -1.0

    def record(self) -> None:
        """Stand in the stream here."""
        self.at = Event.clock_ms

    def query(self) -> bool:
        """Whether the device has come so far."""
        return self.at <= Event.done_ms

    def elapsed_time(self, end: Event) -> float:
        """Milliseconds to another event."""
        assert self.query()
        assert end.query()
        return end.at - self.at


def test_times_come_when_the_device_is_there_and_events_are_used_again() -> None:
    """A step's GPU times are unknown until its last pair is done, then exact; nothing is waited for."""
    Event.made = 0
    capturing = [False]
    device = DevicePhases(make_event=Event, capturing=lambda: capturing[0])
    asks: list[Any] = []
    for _ in range(2):
        for name, length in (("forward", 3.0), ("forward", 1.0), ("backward", 6.5)):
            begun = device.begin(name)
            assert begun is not None
            Event.clock_ms += length
            device.end(begun)
        asks.append(device.end_step())
    device.poll()
    assert asks[0]() is None
    Event.done_ms = 10.5
    device.poll()
    assert asks[0]() == {"forward": 4_000_000, "backward": 6_500_000}
    assert asks[1]() is None
    Event.done_ms = 100.0
    device.poll()
    assert asks[1]() == asks[0]()
    made = Event.made
    begun = device.begin("forward")
    assert begun is not None
    device.end(begun)
    assert Event.made == made
    capturing[0] = True
    assert device.begin("forward") is None
