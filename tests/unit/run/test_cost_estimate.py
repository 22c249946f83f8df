"""What the log of calls says that recording costs, by a clock that the test moves on."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING

from scope.run import calls
from scope.run.calls import CallLog, CallShape

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest


def make_log(monkeypatch: pytest.MonkeyPatch) -> tuple[CallLog, Callable[[int, int], None]]:
    """Return a log with a factor of 2, and what issues so many calls that take so long."""
    clock = [0]
    monkeypatch.setattr(calls, "time", SimpleNamespace(monotonic_ns=lambda: clock[0]))
    log = CallLog(None)
    log.cost_factor = 2.0
    shape = CallShape(group=0, operation=0, variant=0, dtype=0, in_bytes=8, out_bytes=8)

    def issue(num_calls: int, took_ns: int) -> None:
        for _ in range(num_calls):
            issued_ns = clock[0]
            clock[0] += took_ns
            log.issue(shape, 0, issued_ns)

    return log, issue


def test_a_call_costs_what_calls_took_when_it_was_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """256 calls of 1 us and 5,120 of 3 us at a factor of 2; asked again, or after a change of pace, the past stands."""
    log, issue = make_log(monkeypatch)
    assert log.estimate_cost() == 0
    issue(256, 1000)
    assert log.estimate_cost() == 256 * 1000 * 2
    issue(5120, 3000)
    assert log.estimate_cost() == 256 * 1000 * 2 + 5120 * 3000 * 2
    assert log.estimate_cost() == 256 * 1000 * 2 + 5120 * 3000 * 2


def test_one_call_that_is_interrupted_stands_for_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """At two calls of 1 us a step, whichever of the first 40 is held up for 25 ms, no step is said to cost that."""
    for held_up in range(40):
        log, issue = make_log(monkeypatch)
        for step in range(30):
            before = log.estimate_cost()
            for call in (2 * step, 2 * step + 1):
                issue(1, 25_000_000 if call == held_up else 1000)
            assert log.estimate_cost() - before <= (2 * step + 2) * 1000 * 2
        assert log.estimate_cost() == 60 * 1000 * 2
