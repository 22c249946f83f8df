"""Whatever goes wrong in the recorder as a program ends is kept from the program, counted, and told once."""

from __future__ import annotations

import sys
import threading
from types import SimpleNamespace

import pytest

pytest.importorskip("torch")

from scope.record import autostart
from scope.record.collectives.guard import HookGuard


def test_what_the_end_of_a_recording_raises_stays_within(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python would print it among the program's own words; the guard is told, and a second end does nothing."""
    told: list[tuple[str, str]] = []
    guard = HookGuard(lambda hook, reason: told.append((hook, reason)))
    closed: list[str] = []

    def close(reason: str) -> None:
        closed.append(reason)
        raise TypeError(reason)

    # What an ending puts in their place is taken away again.
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)
    monkeypatch.setattr(autostart, "hide_in_text", lambda: None)
    ending = autostart._Ending()  # pyright: ignore[reportPrivateUsage]
    monkeypatch.setattr(ending, "_session", SimpleNamespace(guard=guard, close=close))
    ending.on_exit()
    ending.on_exit()
    assert closed == ["finished"]
    assert told == [("ending", "TypeError: finished")]
    assert guard.num_failures == 1
