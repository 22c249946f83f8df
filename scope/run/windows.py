"""When profiler windows are taken: read by `scope run`, which refuses mistakes, and by the ranks that take them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from scope.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

CAPTURE_REASONS: Final = ("schedule", "file", "anomaly", "signal")
DEFAULT_CAPTURE: Final = frozenset(("schedule", "file", "anomaly"))


@dataclass(frozen=True, kw_only=True)
class CaptureSettings:
    """When profiler windows are taken.

    Attributes:
        reasons: Which of `CAPTURE_REASONS` may start a window.
        ranks: Ranks that take windows; a window asked for by file is taken by these as well.
        num_steps: Steps of a window.
        budget_ratio: Time that windows may cost / time of training.
        with_stack: Record Python stacks.
        record_shapes: Record shapes of operators (needed for FLOPs and the roofline).
        signal: Number of the signal that asks for a window; used only where the program has no handler for it.
    """

    reasons: frozenset[str] = DEFAULT_CAPTURE
    ranks: tuple[int, ...] = (0,)
    num_steps: int = 2
    budget_ratio: float = 0.005
    with_stack: bool = False
    record_shapes: bool = True
    signal: int | None = None


def read_capture(environment: Mapping[str, str]) -> CaptureSettings:
    """Return the capture settings that `SCOPE_CAPTURE...` variables ask for.

    Raises:
        UsageError: A variable makes no sense.
    """
    reasons = environment.get("SCOPE_CAPTURE")
    ranks = environment.get("SCOPE_CAPTURE_RANKS", "0")
    wanted = DEFAULT_CAPTURE if reasons is None else frozenset(filter(None, reasons.split(","))) - {"off"}
    if not wanted <= set(CAPTURE_REASONS):
        message = f"SCOPE_CAPTURE={reasons!r}: name one or more of {', '.join(CAPTURE_REASONS)}, or off"
        raise UsageError(message)
    try:
        return CaptureSettings(
            reasons=wanted,
            ranks=tuple(int(rank) for rank in ranks.split(",") if rank),
            num_steps=max(1, int(environment.get("SCOPE_CAPTURE_STEPS", "2"))),
            budget_ratio=float(environment.get("SCOPE_CAPTURE_BUDGET", "0.005")),
            with_stack=environment.get("SCOPE_CAPTURE_STACK") == "1",
            record_shapes=environment.get("SCOPE_CAPTURE_SHAPES", "1") == "1",
            signal=int(environment["SCOPE_CAPTURE_SIGNAL"]) if environment.get("SCOPE_CAPTURE_SIGNAL") else None,
        )
    except ValueError as error:
        message = f"SCOPE_CAPTURE_RANKS, _STEPS, _BUDGET and _SIGNAL must be numbers ({error})"
        raise UsageError(message) from error
