"""Since when a live run makes no steps, and what to do: many usual steps long, or so long that it hangs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from scope.report.standing import age, clock
from scope.units import NS_PER_S

if TYPE_CHECKING:
    from collections.abc import Mapping

_MANY_STEPS: Final = 10
_PUBLISHED_NS: Final = 3 * NS_PER_S
"""Steps that ended less long before the last sign of life may be yet to be published."""


def still_line(state: Mapping[str, Any]) -> str | None:
    """Return since when no step has ended and what to do; None of a run that goes on, or does not live.

    Args:
        state: What `describe_run` returns.
    """
    standing, since_ns = state["state"]["standing"], state["state"]["last_step_ns"]
    if standing not in ("running", "no step") or since_ns is None:
        return None
    since = f"no step has ended since {clock(since_ns)}"
    doctor = f"scope doctor {state['path']}"
    if standing == "no step":
        return f"{since}: {doctor} says what to do about each rank"
    speed = state["summary"]["speed"]["step_time"]
    usual_ns = 0 if speed is None else speed["median_ns"]
    # What fell silent may go on unseen.
    seen_ns = state["state"]["last_sign_ns"] - since_ns
    if not usual_ns or seen_ns <= max(_PUBLISHED_NS, _MANY_STEPS * usual_ns):
        return None
    length_ns = state["now_ns"] - since_ns
    many = f"{age(length_ns)}, {length_ns // usual_ns:,} usual steps"
    return (
        f"{since} ({many}): a checkpoint, an evaluation or a hang; if it lasts, {doctor} says who has not arrived where"
    )
