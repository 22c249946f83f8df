"""What a recording is asked to do; comes from `Recorder`'s arguments or from the environment that `scope run` sets."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from scope.errors import UsageError
from scope.run.writer import WriterBudget
from scope.units import parse_size

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

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


@dataclass(frozen=True, kw_only=True)
class Settings:
    """One rank's recording.

    Attributes:
        folder: The rank's folder in the spool.
        budget: What it may write.
        capture: When profiler windows are taken.
        count_flops: Count the FLOPs of one step (`flops_step`).
        flops_step: The step that is counted; the first one is slower than others in any case.
        model_flop_per_token: The user's own figure, instead of counting.
        peak_flop_per_s: The user's own peak, instead of the catalogue's.
        count_tokens: Gives the tokens of a batch, instead of what its shapes look like.
    """

    folder: Path
    budget: WriterBudget = field(default_factory=WriterBudget)
    capture: CaptureSettings = field(default_factory=CaptureSettings)
    count_flops: bool = True
    flops_step: int = 0
    model_flop_per_token: float | None = None
    peak_flop_per_s: float | None = None
    count_tokens: Callable[[Any], int] | None = None


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


def read_settings(environment: Mapping[str, str], folder: Path) -> Settings:
    """Return the settings that `scope run` put into the environment.

    Raises:
        UsageError: A variable makes no sense.
    """
    max_bytes = environment.get("SCOPE_MAX_RUN_BYTES", "")
    return Settings(
        folder=folder,
        budget=WriterBudget(max_bytes=parse_size(max_bytes)) if max_bytes else WriterBudget(),
        capture=read_capture(environment),
        count_flops=environment.get("SCOPE_FLOPS", "on") != "off",
    )
