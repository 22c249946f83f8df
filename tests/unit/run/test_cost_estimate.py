"""What the log of calls says that recording costs, by a clock that the test moves on."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING

from scope.run import calls
from scope.run.calls import CallLog, CallShape

if TYPE_CHECKING:
    import pytest


def test_a_call_costs_what_calls_took_when_it_was_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """256 calls of 1 us and 5,120 of 3 us at a factor of 2; asked again, or after a change of pace, the past stands."""
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

    assert log.estimate_cost() == 0
    issue(256, 1000)
    assert log.estimate_cost() == 256 * 1000 * 2
    issue(5120, 3000)
    assert log.estimate_cost() == 256 * 1000 * 2 + 5120 * 3000 * 2
    assert log.estimate_cost() == 256 * 1000 * 2 + 5120 * 3000 * 2
