"""A table without rows says why: in the text, and on stderr where the form has no place for it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from scope.units import format_duration

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import Done

ON_CPUS = Path(__file__).parents[3] / "sample_traces" / "gloo-2-ranks-healthy"
NO_DEVICES = "no device events in these traces"
EMPTY = {
    "roofline": NO_DEVICES,
    "roofline --coverage": NO_DEVICES,
    "launches": NO_DEVICES,
    "idle": NO_DEVICES,
    "queue": NO_DEVICES,
    "syncs": NO_DEVICES,
    "copies": NO_DEVICES,
    "memory": "record it with profile_memory=True",
    "critical-path": "rank 0, device host: a host timeline has no launches to follow",
    "critical-path --pieces": "rank 1, device host: a host timeline has no launches to follow",
    "kernels --by module": "record them with with_stack=True",
}


WITHOUT_COLLECTIVES = {
    "stragglers": "No stragglers can be told: the traces hold no collective of a known rank.",
    **{
        f"collectives --view {view}": f"{what}: the traces hold no collective of a known rank."
        for view, what in (
            ("summary", "No collectives"),
            ("each", "No collectives"),
            ("waits", "No collectives"),
            ("clock", "No collectives"),
            ("links", "No bandwidth"),
        )
    },
}


def assert_says_why(scope: Callable[..., Done], arguments: list[object], reason: str) -> None:
    """Assert that text holds a reason; that JSON is an empty list, CSV a header, and that both say it on stderr."""
    text = scope(*arguments)
    assert (text.code, text.err) == (0, "")
    assert reason in " ".join(text.out.split())
    for form in ("--json", "--csv"):
        done = scope(*arguments, form)
        assert done.code == 0
        assert reason in done.err
        assert json.loads(done.out) == [] if form == "--json" else done.out.count("\n") == 1


@pytest.mark.parametrize("command", WITHOUT_COLLECTIVES)
def test_a_trace_without_collectives_is_no_mistake(
    scope: Callable[..., Done], trace: Callable[..., Path], command: str
) -> None:
    """As with other tables that a trace cannot fill: the reason, an empty list or a header, and exit code 0."""
    assert_says_why(scope, [*command.split(), trace()], WITHOUT_COLLECTIVES[command])


def test_idle_time_of_unknown_cause_is_told_from_none(scope: Callable[..., Done]) -> None:
    """On CPUs the causes are not known, but how much there is stands in the breakdown, and both commands say it."""
    records = json.loads(scope("breakdown", ON_CPUS, "--json").out)
    (total,) = [record for record in records if record["label"] == "all ranks"]
    said = " ".join(scope("idle", ON_CPUS).out.split())
    assert total["idle_ns"] > 0
    assert "Why they were idle is not known: no device events" in said
    assert f"Idle on the host in all, whatever the cause: {format_duration(total['idle_ns'])} of " in said
    assert "No idle time" not in said


@pytest.mark.parametrize("command", EMPTY)
def test_a_table_that_a_cpu_cannot_fill_says_why(scope: Callable[..., Done], command: str) -> None:
    """Text holds the reason; JSON is an empty list, CSV a header, and both say it on stderr."""
    assert_says_why(scope, [*command.split(), ON_CPUS], EMPTY[command])


def test_what_a_gpu_did_not_do_is_told_from_what_cannot_be_known(
    scope: Callable[..., Done], trace: Callable[..., Path]
) -> None:
    """A trace of kernels says that it holds no copies, not that devices are missing; a full table is silent."""
    done = scope("copies", trace())
    assert "No copies: the traces hold device events, but no copy or set." in done.out
    assert "No communication" in scope("collectives", trace(), "--view", "exposed").out
    assert scope("launches", trace(), "--json").err == ""
