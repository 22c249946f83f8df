"""Pauses of the garbage collector: what is noted, and that no signal is lost by it."""

from __future__ import annotations

import ctypes
import gc
import signal
import sys
import time
import weakref
from typing import TYPE_CHECKING

import pytest

from scope.record.pauses import Pauses

if TYPE_CHECKING:
    from collections.abc import Iterator


class _Raiser(weakref.ref):
    """Passed to `raise` of C as the number of a signal, which stays pending until Python code runs."""

    _as_parameter_ = int(signal.SIGINT)


class _Cycle:
    """Refers to itself, so that only a collection frees it."""

    def __init__(self) -> None:
        self.me = self


def _raise_inside_collection() -> None:
    cycle = _Cycle()
    raiser = _Raiser(cycle, ctypes.CDLL(None)["raise"])
    del cycle
    gc.collect()
    for _ in range(3):
        assert raiser() is None


@pytest.fixture
def pauses() -> Iterator[Pauses]:
    """Pauses that are attached, with no collection but those of the test, and no callbacks of other libraries."""
    gc.collect()
    gc.disable()
    # Other tests' libraries leave callbacks with Python code in them, which lose signals by themselves.
    others = gc.callbacks.copy()
    gc.callbacks.clear()
    attached = Pauses()
    attached.attach()
    yield attached
    attached.detach()
    gc.callbacks[:] = others
    gc.enable()


@pytest.mark.usefixtures("pauses")
def test_a_signal_during_a_collection_is_raised_behind_it() -> None:
    """Ctrl-C that arrives while garbage is collected interrupts the program, as it does without Scope."""
    with pytest.raises(KeyboardInterrupt):
        _raise_inside_collection()


def test_a_signal_during_a_collection_is_lost_by_a_callback_in_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """The signal of the test above is one that a callback with Python code in it does lose."""
    dropped: list[type[BaseException] | None] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda told: dropped.append(told.exc_type))
    gc.callbacks.append(lost := lambda moment, info: None)
    try:
        _raise_inside_collection()
    finally:
        gc.callbacks.remove(lost)
    assert dropped == [KeyboardInterrupt]


def test_pauses_are_those_of_the_collections(pauses: Pauses) -> None:
    """Each collection is one pause, and all of them are as long as a callback with Python code in it measures."""
    measured: list[int] = []
    gc.callbacks.append(note := lambda moment, info: measured.append(time.monotonic_ns()))
    kept = [[number] for number in range(200_000)]
    for _ in range(3):
        gc.collect()
    gc.callbacks.remove(note)
    length, number = pauses.take(time.monotonic_ns())
    expected = sum(measured[1::2]) - sum(measured[::2])
    assert kept
    assert number == 3
    assert length == pytest.approx(expected, rel=0.2, abs=200_000)
    assert pauses.take(time.monotonic_ns()) == (0, 0)


def test_a_pause_belongs_to_where_it_began(pauses: Pauses) -> None:
    """Pauses that begin at or after an instant are left for the next to ask."""
    gc.collect()
    between = time.monotonic_ns()
    gc.collect()
    gc.collect()
    assert pauses.take(between)[1] == 1
    assert pauses.take(time.monotonic_ns())[1] == 2


def test_many_pauses_are_summed_on_both_sides_of_an_instant(pauses: Pauses) -> None:
    """A program that collects on and on without a step fills no memory, and no pause of the step is lost."""
    for _ in range(3_000):
        gc.collect(0)
    between = time.monotonic_ns()
    for _ in range(2_000):
        gc.collect(0)
    whole = sum(end - begin for begin, end in zip(pauses._ticks[::2], pauses._ticks[1::2], strict=True))
    pauses.shorten(between)
    assert (len(pauses._ticks), len(pauses._pauses)) == (0, 2)
    first, last = pauses.take(between), pauses.take(time.monotonic_ns())
    assert (first[1], last[1]) == (3_000, 2_000)
    assert first[0] + last[0] == whole


def test_a_collection_under_way_at_the_start_is_left_out(pauses: Pauses) -> None:
    """Where recording begins inside a collection its end is no begin of a pause."""
    second = Pauses()
    cycle = _Cycle()
    weakref.finalize(cycle, second.attach)
    del cycle
    gc.collect()
    gc.collect()
    second.detach()
    now = time.monotonic_ns()
    length, number = second.take(now)
    both, _ = pauses.take(now)
    assert number == 1
    assert 0 < length < both


def test_detaching_leaves_nothing_behind() -> None:
    """After `detach` the callbacks are the ones from before; a second call does nothing."""
    before = list(gc.callbacks)
    pauses = Pauses()
    pauses.attach()
    assert len(gc.callbacks) == len(before) + 2
    pauses.detach()
    pauses.detach()
    assert gc.callbacks == before


def test_a_clock_of_the_programs_own_is_never_called_in_a_collection(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a program froze the time before recording began, pauses are refused with the reason, and nothing is run."""
    asked: list[int] = []
    monkeypatch.setattr(time, "monotonic_ns", lambda *given: asked.append(len(given)) or 0)
    before = list(gc.callbacks)
    frozen = Pauses()
    with pytest.raises(TypeError, match=r"replaced time\.monotonic_ns"):
        frozen.attach()
    gc.collect()
    assert gc.callbacks == before
    assert asked == []
