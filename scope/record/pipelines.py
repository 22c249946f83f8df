"""Pipelines of `torch.distributed.pipelining`: where an update begins, and what only finds out shapes.

A stage receives before it computes, so that the step of a loop without a loader ends when a schedule is called, not at
the first forward. A schedule's first call runs each stage once more, to learn and exchange shapes: that is neither a
micro-batch nor work of the model.
"""

# torch annotates only a part of itself.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any, Final

import torch

from scope.record.patches import PatchTable

if TYPE_CHECKING:
    from collections.abc import Callable

    from scope.record.session import Session

_SCHEDULES: Final = "torch.distributed.pipelining.schedules"
_STAGES: Final = "torch.distributed.pipelining.stage"
_PREPARATIONS: Final = ("_prepare_forward_infra", "_prepare_backward_infra")
_PASSES: Final = {"backward_one_chunk": 1, "backward_weight_one_chunk": 0}
"""What one backward of a micro-batch is made of, and how often each part counts: zero-bubble schedules do it in two or
three passes, that for the inputs and later that for the weights."""
_HOOK: Final = "pipelines"


class PipelineHooks:
    """Attaches to schedules and stages once the program has imported them, until `close`."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._patches = PatchTable()
        self._is_attached = False

    @property
    def is_half_imported(self) -> bool:
        """Whether the program has begun to import pipelines, and `look` could not attach yet."""
        return not self._is_attached and _SCHEDULES in sys.modules

    def look(self) -> bool:
        """Attach if the program has imported pipelines meanwhile; return whether that was done, at most once."""
        if self._is_attached or _SCHEDULES not in sys.modules:
            return False
        schedules, stages = sys.modules[_SCHEDULES], sys.modules.get(_STAGES)
        base, stage = getattr(schedules, "_PipelineSchedule", None), getattr(stages, "_PipelineStageBase", None)
        if base is None or stage is None:
            return False  # it is being imported, or another torch than we know
        self._is_attached = True
        for owner in _with_subclasses(base):
            if "step" in vars(owner) and "step" not in owner.__dict__.get("__abstractmethods__", ()):
                self._patches.replace(owner, "step", self._wrap_step)
        for owner in _with_subclasses(stage):
            for name in _PREPARATIONS:
                if name in vars(owner):
                    self._patches.replace(owner, name, self._wrap_preparation)
            for name, number in _PASSES.items():
                if name in vars(owner):
                    self._patches.replace(owner, name, functools.partial(self._wrap_pass, number=number))
        return True

    def close(self) -> None:
        """Take every hook away."""
        self._patches.restore()

    def _wrap_step(self, original: Callable[..., Any]) -> Callable[..., Any]:
        session = self._session

        @functools.wraps(original)
        def step(schedule: Any, *args: Any, **kwargs: Any) -> Any:
            # `eval()` of a schedule is its step without a backward.
            if getattr(schedule, "_has_backward", True) and torch.is_grad_enabled():
                session.guard.call(_HOOK, session.begin_schedule)
            return original(schedule, *args, **kwargs)

        return step

    def _wrap_preparation(self, original: Callable[..., Any]) -> Callable[..., Any]:
        session = self._session

        @functools.wraps(original)
        def prepare(*args: Any, **kwargs: Any) -> Any:
            if _HOOK in session.guard.reasons or not session.clock.is_own_thread():
                return original(*args, **kwargs)
            flops, boundary = session.flops, session.boundary
            was_counting, flops.is_counting = flops.is_counting, False
            was_noting, flops.notes_forwards = flops.notes_forwards, False
            num_microbatches = boundary.num_microbatches
            try:
                return original(*args, **kwargs)
            finally:
                flops.is_counting = was_counting
                flops.notes_forwards = was_noting
                boundary.num_microbatches = num_microbatches

        return prepare

    def _wrap_pass(self, original: Callable[..., Any], *, number: int) -> Callable[..., Any]:
        session = self._session

        @functools.wraps(original)
        def run_pass(stage: Any, *args: Any, **kwargs: Any) -> Any:
            if _HOOK in session.guard.reasons or not session.clock.is_own_thread():
                return original(stage, *args, **kwargs)
            boundary = session.boundary
            before = boundary.num_microbatches
            try:
                return original(stage, *args, **kwargs)
            finally:
                # `eval()` of a schedule calls it all the same.
                boundary.num_microbatches = before + (number if getattr(stage, "has_backward", True) else 0)

        return run_pass


def _with_subclasses(kind: type) -> set[type]:
    """Return a class and all that derive from it, each once."""
    return {kind}.union(*map(_with_subclasses, kind.__subclasses__()))
