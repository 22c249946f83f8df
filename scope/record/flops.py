"""Counts FLOPs on a step of each kind, and says with what MFU and HFU are worked out, or why they are unknown."""

# torch annotates only a part of itself.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import msgspec

from scope.record.awaited_steps import AwaitedSteps
from scope.record.counted_steps import Kind, is_proven, kind_of, scale_work
from scope.record.device_peak import find_peak
from scope.record.fitted_steps import Work
from scope.record.flop_counter import FlopCounter, can_count
from scope.record.flop_formula import flop_by_formula
from scope.record.forward_inputs import UNTOLD, Forward, ModuleNames, describe_inputs, pattern_of, rows_of, shapes_of
from scope.run.schema import CountedStep, FlopsInfo

if TYPE_CHECKING:
    from torch import nn

    from scope.record.session import Session

_MAX_TRIES: Final = 3
_MAX_COUNTED_AGAIN: Final = 32
"""Steps that are counted, and slower, after the first one because others are unlike it."""
_NUM_TRUSTED: Final = 4
"""Of these, how many may be counted before any step was told by those counted."""
_TOLD_FOR_ONE: Final = 4
"""Steps told by counted ones, for which one more may be: shapes that never come again slow few steps down."""
_MAX_JUDGED: Final = 1024
_MAX_NAMED: Final = 16
_EIGHT_BIT: Final = frozenset(("float8_e4m3fn", "float8_e5m2", "int8"))


class FlopMeter:
    """Counts a step, by which others are scaled; then those that begin with what no counted one tells of.

    Of steps that turn out only later to be unlike (in passes, optimizers or what later forwards get), one more of each
    kind that comes again.

    Attributes:
        info: What MFU is counted with, once known.
        is_counting: Whether the step in progress is one that is counted; in all others there is nothing to call.
        counted_step: The step that was counted last and is slower than others for that; absent before.
        forwards: What the forwards of the step in progress got, and how many got the same. A dict of its own for each
            step, since that of one that has ended is read by the thread that writes.
        notes_forwards: Whether `note_forward` is to be called.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._settings = session.settings
        self._regions: list[FlopCounter] = []
        self.is_counting = False
        self._open = False
        self.counted_step: int | None = None
        self._awaits_step = session.settings.count_flops and session.settings.model_flop_per_token is None
        self._first = session.settings.flops_step
        self._known: set[Kind] = set()
        self._alike: tuple[Any, ...] | None = None
        self.forwards: dict[Forward, int] = {}
        self.notes_forwards = self._awaits_step
        self._names = ModuleNames()
        self._rows: dict[str, set[int]] = {}
        self._judged: set[Forward] = set()
        self._begins_with: Forward | None = None
        self._awaited = AwaitedSteps()
        self._was_called = False
        self._proven: set[Kind] = set()
        self._proven_patterns: set[str] = set()
        self._num_left = _NUM_TRUSTED
        self._num_not_earned = _MAX_COUNTED_AGAIN - _NUM_TRUSTED
        self._num_told = 0
        self._uncounted: set[str] = set()
        self.info = self._from_user()
        self._session.writer.update_info(flops=self.info)

    def on_step(self, num_ended: int) -> None:
        """A step begins, after so many of this attempt: start counting at the chosen one."""
        self.forwards = {}
        self._was_called = False
        self._begins_with = None
        if self._awaits_step:
            self.is_counting = self._first <= num_ended < self._first + _MAX_TRIES
        else:
            self.is_counting = self._awaited.take_due(self._session.clock.step) and self._num_left > 0

    def skip_step(self) -> None:
        """Count no sooner than in the next step: the one that has just begun does more than others."""
        self._first = max(self._first, self._session.clock.num_steps + 1)
        self.is_counting = False

    def note_forward(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        """A model is called: note what it gets, and count the step from here if nothing tells of its like.

        Only from the first call of the step on: what is counted of a part of it says nothing of the whole.
        """
        session = self._session
        if not session.clock.is_training():
            return
        start = time.monotonic_ns()
        is_first, self._was_called = not self._was_called, True
        shapes = shapes_of(args, kwargs)
        if shapes is None:
            self.forwards[UNTOLD] = 1
        elif shapes:
            forward = (self._names.name(module), *shapes)
            if is_first:
                self._begins_with = forward
                if self._num_left > 0 and self.info.source == "counter":
                    self._judge(forward)
            self.forwards[forward] = self.forwards.get(forward, 0) + 1
        session.own_ns += time.monotonic_ns() - start

    def _judge(self, forward: Forward) -> None:
        """Count the step that begins with a forward of which counted steps do not tell, or as one that is awaited."""
        if self._awaited.begins_as(forward):
            self.is_counting = True
        if forward in self._judged:
            return
        what, rows = rows_of(forward)
        known_rows = self._rows.get(what, ())
        # Two sizes of a batch show whether FLOPs are in proportion to it.
        if rows in known_rows or len(known_rows) > 1 or self._is_told(forward):
            if len(self._judged) >= _MAX_JUDGED:
                self._judged.clear()
            self._judged.add(forward)
        else:
            self.is_counting = True

    def _is_told(self, forward: Forward) -> bool:
        """Whether counted steps tell of one more that gets nothing else, whatever its rows and length are."""
        if pattern_of(forward) in self._proven_patterns:
            return True
        inputs = describe_inputs({forward: 1})
        for each in self.info.counted:
            if each.inputs and inputs and each.inputs.pattern == inputs.pattern:
                alike = msgspec.structs.replace(inputs, num_forwards=each.inputs.num_forwards)
                if not is_proven(self.info.counted, msgspec.structs.replace(each, inputs=alike)):
                    return False
                self._proven_patterns.add(inputs.pattern)
                return True
        return False

    def begin_region(self, backward: bool, makes_graph: bool = False) -> FlopCounter | None:
        """Enter the counter around a forward or backward of the counted step; `None` elsewhere and in evaluations."""
        clock = self._session.clock
        if not self.is_counting or self._open or not clock.is_own_thread() or clock.is_absorbing():
            return None
        compiled = self._session.hooks.is_compiled()
        if compiled or not can_count():
            # Under a dispatch mode torch would compile once more, or not at all.
            self.is_counting = False
            if not self._awaits_step:
                self._num_left = 0  # what was counted before still holds
                return None
            why = "the model is compiled" if compiled else "this torch cannot compile while it counts"
            self.notes_forwards = False
            self.info = FlopsInfo(absent={"mfu": f"the operators of a step cannot be counted: {why}"})
            self._session.writer.update_info(flops=self.info)
            return None
        counter = FlopCounter(backward=backward, makes_graph=makes_graph)
        counter.__enter__()
        self._open = True
        return counter

    def end_region(self, counter: FlopCounter) -> None:
        """Leave the counter."""
        self._open = False
        counter.__exit__(None, None, None)
        self._regions.append(counter)

    def end_step(self, tokens: int | None) -> None:
        """A step is about to end: learn from it if it was counted, and count one like it later if nothing tells of it.

        Args:
            tokens: Those of the step, as its record will have them.
        """
        start = time.monotonic_ns()
        was_counting = self.is_counting
        if was_counting and self._awaits_step:
            self._learn(tokens)
        elif was_counting:
            self._learn_more(tokens)
        if self.info.source == "counter":
            # What makes the kind of a step; nearly all are of the kind of the one before, with nothing to look for.
            boundary = self._session.boundary
            known = bool(tokens), bool(self._session.batches.samples)
            alike = boundary.num_optimizer_steps, boundary.num_microbatches, known, self.forwards
            if alike == self._alike or self._look_for_unlike(self._describe_step(tokens, Work(0, 0))):
                self._alike = alike
                if not was_counting:
                    self._earn()
        self._session.own_ns += time.monotonic_ns() - start  # the step is still running, so this is part of it

    def _earn(self) -> None:
        """A step was told by others: after some of these one more may be counted."""
        self._num_told += 1
        if self._num_told >= _TOLD_FOR_ONE and self._num_not_earned > 0:
            self._num_told = 0
            self._num_not_earned -= 1
            self._num_left += 1

    def _learn(self, tokens: int | None) -> None:
        """Make out of the first counted step what MFU is counted with."""
        if not self._saw_whole_step():
            return
        self.is_counting = self._awaits_step = False
        self.counted_step = self._session.clock.step
        self.info = self._from_counts(tokens)
        self._known.update(map(kind_of, self.info.counted))
        self._note_rows()
        self.notes_forwards = self.info.source == "counter"
        self._tell_uncounted()
        self._regions.clear()
        self._session.writer.update_info(flops=self.info)

    def _learn_more(self, tokens: int | None) -> None:
        """Add a counted step to those that are known, unless there is one that is its like in all."""
        self._num_left -= 1
        self.counted_step = self._session.clock.step
        kinds = {region.backward for region in self._regions}
        step = self._describe_step(tokens, self._work_of_regions())
        if self._tell_uncounted():
            self._session.writer.update_info(flops=self.info)
        self._regions.clear()
        self._note_rows()
        if kinds == {True, False} and step.model_flop and self._is_new(step):
            self._known.add(kind_of(step))
            self.info = msgspec.structs.replace(self.info, counted=(*self.info.counted, step))
            self._proven.clear()
            self._proven_patterns.clear()
            self._awaited.drop_told(self.info.counted)
            self._session.writer.update_info(flops=self.info)

    def _tell_uncounted(self) -> bool:
        """Name the operators whose FLOPs are missing in what was counted just now; return whether any is new."""
        new = set[str]().union(*(region.uncounted for region in self._regions)) - self._uncounted
        if not new:
            return False
        self._uncounted |= new
        names = sorted(self._uncounted)[:_MAX_NAMED]
        why = (
            f"there is no formula for {', '.join(names)}{' and others' if len(self._uncounted) > len(names) else ''}: "
            "what these compute is in no figure, and FLOPs, MFU and HFU are at least what they say"
        )
        self.info = msgspec.structs.replace(self.info, absent={**self.info.absent, "uncounted_flop": why})
        self._session.writer.add_event("coverage", f"FLOPs are missing: {why}", operators=", ".join(names))
        return True

    def _note_rows(self) -> None:
        """Note that the step in progress, with what its forwards got, was counted, so that its like is not again."""
        self._awaited.note_counted(self._begins_with)
        for forward in self.forwards.keys() - {UNTOLD}:
            what, rows = rows_of(forward)
            self._rows.setdefault(what, set()).add(rows)

    def _is_new(self, step: CountedStep) -> bool:
        if step.inputs is None:
            return scale_work(self.info.counted, step) is None
        return all(each.inputs != step.inputs or kind_of(each) != kind_of(step) for each in self.info.counted)

    def _look_for_unlike(self, step: CountedStep) -> bool:
        """Wait for one more step like this one, if nothing tells of its FLOPs and it has its like.

        Returns:
            Whether a step of its kind was counted, so that nothing has to be looked for in others of this kind.
        """
        kind = kind_of(step)
        if kind in self._proven or (step.inputs is None and kind in self._known):
            return True
        if scale_work(self.info.counted, step) is not None:
            if is_proven(self.info.counted, step):
                self._proven.add(kind)
            return step.inputs is not None
        if "model_flop" not in self.info.absent:
            why = (
                "the FLOPs of steps that are unlike those counted, in optimizer steps, backward passes, in the shapes "
                "that models get or, where these do not tell, in what is known of tokens and samples, cannot be worked "
                "out"
            )
            self.info = msgspec.structs.replace(self.info, absent={**self.info.absent, "model_flop": why})
            self._session.writer.update_info(flops=self.info)
        self._awaited.note_unlike(step, self._begins_with)
        return False

    def _describe_step(self, tokens: int | None, work: Work) -> CountedStep:
        session = self._session
        return CountedStep(
            step=session.clock.step,
            model_flop=work.model_flop,
            hardware_flop=work.hardware_flop,
            num_optimizer_steps=session.boundary.num_optimizer_steps,
            num_microbatches=session.boundary.num_microbatches or None,
            tokens=tokens,
            samples=session.batches.samples,
            inputs=describe_inputs(self.forwards),
        )

    def _work_of_regions(self) -> Work:
        return Work(
            sum(region.model_flop for region in self._regions), sum(region.hardware_flop for region in self._regions)
        )

    def _saw_whole_step(self) -> bool:
        """Whether a forward and a backward were counted; the model may be known only after its first forward."""
        if {region.backward for region in self._regions} == {True, False}:
            return True
        last = self._session.clock.num_steps >= self._first + _MAX_TRIES - 1
        self._regions.clear()
        return last

    def close(self) -> None:
        """Count nothing any more."""
        self.is_counting = self.notes_forwards = False

    def _from_user(self) -> FlopsInfo:
        settings = self._settings
        if settings.model_flop_per_token is None:
            why = "no step has been counted yet" if settings.count_flops else "counting FLOPs is switched off"
            return FlopsInfo(absent={"mfu": why})
        peak, source, why = find_peak("bfloat16", of_user=settings.peak_flop_per_s)
        return FlopsInfo(
            source="user",
            model_flop_per_token=settings.model_flop_per_token,
            peak_flop_per_s=peak,
            peak_dtype="bfloat16",
            peak_source=source,
            absent={} if peak else {"mfu": why},
        )

    def _from_counts(self, tokens: int | None) -> FlopsInfo:
        model, hardware = work = self._work_of_regions()
        if not model:
            return FlopsInfo(absent={"mfu": self._why_nothing()})
        counted = sum(region.num_counted for region in self._regions)
        uncounted = sum(region.num_uncounted for region in self._regions)
        dtypes: Counter[Any] = sum((region.by_dtype for region in self._regions), Counter())
        dtype = str(dtypes.most_common(1)[0][0]).removeprefix("torch.")
        peak_dtype = "bfloat16" if dtype in _EIGHT_BIT else dtype
        peak, source, why = find_peak(peak_dtype, of_user=self._settings.peak_flop_per_s)
        formula = flop_by_formula(self._session.hooks.models(), tokens=tokens, samples=self._session.batches.samples)
        return FlopsInfo(
            source="counter",
            convention="full",
            model_flop_per_token=model / tokens if tokens else None,
            hardware_flop_per_token=hardware / tokens if tokens else None,
            model_flop_per_step=None if tokens else model,
            hardware_flop_per_step=None if tokens else hardware,
            peak_flop_per_s=peak,
            peak_dtype=peak_dtype,
            peak_source=source,
            num_parameters=formula[0] if formula else None,
            formula_difference_ratio=model / formula[1] - 1 if formula else None,
            counter_coverage_ratio=counted / (counted + uncounted),
            step=self._session.clock.step,
            counted=(self._describe_step(tokens, work),),
            absent={} if peak else {"mfu": why},
        )

    def _why_nothing(self) -> str:
        if not self._regions:
            return "no forward or backward was seen in the counted step (a compiled training step is not counted)"
        return "no operator of the counted step has a FLOP formula (a compiled model runs kernels of its own)"
