"""Inside the training process: hooks, phases, device timing, captures."""

from __future__ import annotations

from scope.record.recorder import Phase, Recorder
from scope.record.settings import CaptureSettings

__all__ = ["CaptureSettings", "Phase", "Recorder"]
