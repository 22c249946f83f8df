"""What a recording is asked to do; comes from `Recorder`'s arguments or from the environment that `scope run` sets."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from scope.run.identity import FLOPS, MAX_RUN_BYTES
from scope.run.windows import CaptureSettings, read_capture
from scope.run.writer import WriterBudget
from scope.units import parse_size, parse_switch, parse_variable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Settings:
    """One rank's recording.

    Attributes:
        folder: The rank's folder in the spool.
        budget: What it may write.
        capture: When profiler windows are taken.
        count_flops: Count the FLOPs of a step of each kind, from `flops_step` on.
        flops_step: Place in the attempt of the step that is counted first; step 0 is slower than others in any case.
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


def read_settings(environment: Mapping[str, str], folder: Path) -> Settings:
    """Return the settings that `scope run` put into the environment.

    Raises:
        UsageError: A variable makes no sense.
    """
    size = environment.get(MAX_RUN_BYTES)
    budget = WriterBudget(max_bytes=parse_variable(MAX_RUN_BYTES, size, parse_size)) if size else WriterBudget()
    return Settings(
        folder=folder,
        budget=budget,
        capture=read_capture(environment),
        count_flops=parse_variable(FLOPS, environment.get(FLOPS) or "on", parse_switch),
    )
