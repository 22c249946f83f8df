"""One recording of one rank: the writer, the clock of phases, the hooks, and what ties them into step records.

There is at most one session a process (`current`). `Recorder` opens or joins it; `scope run` opens it on the first
import of torch.
"""

# torch annotates only a part of itself.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

import functools
import os
import sys
from time import monotonic_ns
from typing import TYPE_CHECKING, Any, Final

import torch

from scope.record import facts, memory
from scope.record.captures import Captures
from scope.record.checkpoints import CheckpointHooks
from scope.record.collectives.guard import HookGuard
from scope.record.collectives.recorder import CollectiveRecorder
from scope.record.cost_limit import CostLimit
from scope.record.flops import FlopMeter
from scope.record.hooks import TrainingHooks
from scope.record.identities import Identities
from scope.record.late_facts import LateFacts
from scope.record.notices import Notices
from scope.record.patches import PatchTable
from scope.record.pauses import Pauses
from scope.record.phases import PhaseClock
from scope.record.pipelines import PipelineHooks
from scope.record.preflight import attach_preflight
from scope.record.program_values import MAX_NAME, ProgramValues, describe_exception
from scope.record.stacks import StackDumps
from scope.record.step_batches import StepBatches
from scope.record.steps import StepBoundary
from scope.record.unended_evaluations import UnendedEvaluation
from scope.record.utilization import work_of
from scope.run.goodbyes import AFTER_UPDATE, EXIT_CODE, EXITED, RAISED_EXIT, SAID
from scope.run.layout import GROUP
from scope.run.schema import StepRecord
from scope.run.writer import RankWriter, StepDraft

if TYPE_CHECKING:
    from collections.abc import Callable

    from scope.record.forward_inputs import Forward
    from scope.record.settings import Settings
    from scope.run.schema import DeviceInfo, FlopsInfo, MemoryRecord, RankInfo

_MANY_BACKWARDS: Final = 128
"""Backward passes in the first step after which it is said that no optimizer has stepped."""

current: Session | None = None
"""The session of this process; `None` while nothing is recorded, and in forked children."""


class Session:
    """A recording in progress. Every method but `open` and `close` is meant for hooks: short and guarded.

    Attributes:
        settings: What the user asked for.
        guard: Which hooks still work.
        writer: Writes the rank's folder.
        clock: Phases of the training thread.
        boundary: Says when a step ends.
        values: Takes what the program hands over.
        unended: Tells training in evaluation mode from evaluations.
        batches: What the step in progress has used.
        notices: Tells of what is odd about a recording as a whole.
        late_facts: Notes what is known only once it trains.
        flops: Counts FLOPs once.
        own_ns: What rare work of the recorder took on the training thread so far: looking for models, the peak.
        on_displaced: Called instead of the next step where a rank that this process spawned has taken its place.
    """

    def __init__(self, settings: Settings, info: RankInfo) -> None:
        self.settings = settings
        self.guard = HookGuard(self._hook_disabled)
        self.writer = RankWriter(settings.folder, info, budget=settings.budget)
        age = facts.process_age_ns() or 0
        self.clock = PhaseClock(self.writer.black_box, self.writer.calls, start_ns=monotonic_ns() - age)
        self.boundary = StepBoundary()
        self.unended = UnendedEvaluation(self.clock)
        self.values = ProgramValues(self._warn)
        self.batches = StepBatches(self.clock, self.values, count_tokens=settings.count_tokens)
        self.notices = Notices(self)
        self.late_facts = LateFacts(self, on_device=self._measure_device)
        self._optimizers = Identities(self.boundary.forget)
        self.patches = PatchTable()
        self.hooks = TrainingHooks(self)
        self.checkpoints = CheckpointHooks(self)
        self.pipelines = PipelineHooks(self)
        self.flops = FlopMeter(self)
        self.captures = Captures(self)
        self.collectives = CollectiveRecorder(
            self.writer.calls,
            group_added=self.writer.put_group,
            hook_disabled=self._hook_disabled,
            wall_offset_ns=self.writer.wall_offset_ns,
        )
        self.own_ns = 0
        self.on_displaced: Callable[[], None] | None = None
        self._pauses = Pauses()
        self._meter: memory.MemoryMeter | None = None
        self._dropped = 0
        self._cost = 0
        self._cost_limit = CostLimit(self)
        self._first_step = 0
        self._num_modules = 0
        self._trained_in_evaluation = False

    @property
    def step(self) -> int | None:
        """Number of the step in progress, `None` before the first."""
        return self.clock.step if self.clock.step >= 0 else None

    @property
    def is_after_update(self) -> bool:
        """Whether the step in progress has had its update, and no work tells yet that the next one has begun."""
        return self.boundary.updated and self.clock.phase == "other"

    def open(self) -> None:
        """Attach every hook and start the writer."""
        self.writer.start()
        self.clock.set_base("init")
        for name, attach in (
            ("collectives", self.collectives.attach),
            ("training", self.hooks.attach),
            ("checkpoints", self.checkpoints.attach),
            ("pipelines", self.pipelines.look),
            ("captures", self.captures.attach),
            ("memory", self._attach_memory),
            ("preflight", lambda: attach_preflight(self.patches, os.environ)),
        ):
            # A torch that is not as expected is trained unrecorded.
            self.guard.call(name, attach)
        self.guard.call("garbage collection", self._pauses.attach)
        self.writer.calls.cost_factor = self.collectives.cost_factor
        absent = {**self.writer.info.absent}
        if self.collectives.route is None:
            absent["collectives_route"] = self.guard.reasons.get("collectives", "nothing is attached")
        self.writer.update_info(collectives_route=self.collectives.route, absent=absent)
        self.writer.pollers += [
            self._guarded("flight recorder", self._poll_collectives),
            self._guarded("stacks", StackDumps(self).poll),
            self._guarded("other threads", self.notices.look_at_other_threads),
            self._guarded("garbage collection", lambda: self._pauses.shorten(self.clock.last_seen_ns)),
        ]

    def close(self, exit_reason: str) -> None:
        """Take every hook away, write what is left; a second call does nothing."""
        global current
        if current is self:
            current = None
        for name, detach in (
            ("garbage collection", self._pauses.detach),
            ("model", self.late_facts.learn_model),
            ("captures", self.captures.close),
            ("flops", self.flops.close),
            ("checkpoints", self.checkpoints.close),
            ("pipelines", self.pipelines.close),
            ("training", self.hooks.close),
            ("collectives", self.collectives.close),
        ):
            self.guard.call(f"{name} (detach)", detach)
        self.clock.on_change = None
        self.guard.call("patches (detach)", self.patches.restore)
        if self.writer.enabled:
            self.guard.call("coverage", self.notices.tell_coverage)
            self.guard.call("ending", self._tell_ending, exit_reason)
        if self._meter is not None:
            self.guard.call("memory (detach)", self._meter.close)
        self.writer.close(exit_reason, exception=exit_reason == "exception")

    def disown(self) -> None:
        """Measure nothing any more: in a forked child."""
        self.clock.disown()
        self._pauses.detach()

    def _tell_ending(self, exit_reason: str) -> None:
        num_steps = self.clock.num_steps + self.boundary.updated
        after: dict[str, Any] = {AFTER_UPDATE: True} if exit_reason.startswith(EXITED) and self.is_after_update else {}
        if self.boundary.updated:
            # No work for a next step tells where this one ended: what the program does after its loop is in none.
            end_ns = max(self.clock.find_end(), min(self._last_call_ns(), monotonic_ns()))
            self._finish_step(self.clock.step + 1, end_ns=end_ns)
        elif self.clock.step < 0:
            self.notices.tell_start(recorder_ns=self._cost)
            if self.clock.saw_other_thread:
                self.notices.tell_other_thread()
        elif self.boundary.num_microbatches:
            self.notices.tell_no_boundary()
        self.notices.look_at_other_threads()
        self.writer.add_loose_calls(self.writer.calls.next_step(self.clock.step + 1))
        # On a full disk an event may be all that has room, and tells how many steps have no record.
        self.writer.add_event("attempt_end", f"{SAID}{exit_reason}", step=self.step, num_steps=num_steps, **after)

    def _last_call_ns(self) -> int:
        """Return the last instant at which a call is known to have been issued, waited for or completed; 0 without."""
        log = self.writer.calls
        # Many calls of a long step are written before its end; of these the groups know the last.
        of_groups = (instant for group in log.pack_groups() for instant in GROUP.unpack(group)[3:5])
        seen = tuple(log.in_progress.seen)
        of_calls = (max(call.issued_ns + max(call.blocked_ns, 0), call.completed_ns) for call in seen)
        return max((*of_groups, *of_calls), default=0)

    def _guarded(self, hook: str, poll: Callable[[], None]) -> Callable[[], None]:
        """Return a poller that is switched off when it raises, instead of ending the 1 Hz thread."""
        return functools.partial(self.guard.call, hook, poll)

    def _poll_collectives(self) -> None:
        if self.collectives.flight_recorder is not None:
            self.collectives.flight_recorder.poll(self.writer.calls)

    # What hooks call; `guard` is around them.

    def begin_input(self) -> bool:
        """A batch is asked of a loader; return whether `end_phase` has to follow."""
        clock, boundary = self.clock, self.boundary
        self.look_at_mode()
        if clock.is_training():
            self.unended.saw_input = False
            if boundary.on_input() or clock.step < 0:
                self.next_step()
        elif clock.is_own_thread():
            self.unended.on_input()
        boundary.on_work()
        return clock.push("input")

    def look_at_mode(self) -> None:
        """End the evaluation in progress where its model is in training mode again."""
        if self.unended.is_over() and self.clock.is_own_thread():
            self.end_mode()

    def end_mode(self) -> None:
        """A model is in training mode again: the evaluation that its `eval()` has begun is over."""
        self.clock.pop("evaluation")
        self.unended.end()

    def note_exception(self, error: BaseException) -> None:
        """The program ends because of an exception."""
        out_of_memory = isinstance(error, torch.OutOfMemoryError)
        after = {AFTER_UPDATE: True} if self.is_after_update else {}
        kind = "out_of_memory" if out_of_memory else "exception"
        self.writer.add_event(kind, describe_exception(error), step=self.step, phase=self.clock.phase, **after)

    def note_unknown_exit(self) -> None:
        """The program ends, and nothing tells with which exit code."""
        self.writer.update_info(absent={**self.writer.info.absent, EXIT_CODE: RAISED_EXIT})

    def begin_forward(self, inputs: Any, *, training: bool) -> bool:
        """A model is called; return whether `end_phase` has to follow.

        Args:
            inputs: What it gets.
            training: In training mode, with gradients: the call is work for an update.
        """
        # Inside a backward pass it runs again.
        if training and self._begin_compute() and self.clock.phase != "backward":
            self.batches.take(inputs)
        return self.clock.push("forward")

    def begin_schedule(self) -> None:
        """A schedule of a pipeline begins the passes of an update, the first of which may wait for a recv."""
        self._begin_compute()

    def begin_backward(self) -> bool:
        """A backward pass begins; return whether `end_backward` has to follow."""
        if not self._begin_compute() and self.clock.is_own_thread():
            self.unended.on_backward()
        return self.clock.push("backward")

    def end_backward(self) -> None:
        """A backward pass has ended."""
        self.boundary.on_backward()
        self.clock.pop("backward")
        if self.boundary.num_microbatches == _MANY_BACKWARDS:
            self.notices.tell_no_boundary()

    def expect_optimizer(self, optimizer: Any) -> None:
        """Name an optimizer of the loop before it has stepped."""
        self.boundary.expect(self._optimizers.number_of(optimizer))

    def end_evaluation(self) -> None:
        """An update shows that the evaluation in progress is over, though no `train()` was called.

        Its passes are part of its step by their number; their time is told apart from the evaluation's, but not by
        phase, and where they should have begun a step that begins only now. So these steps are marked.
        """
        clock, boundary, unended = self.clock, self.boundary, self.unended
        if not clock.end_evaluation(clock.last_seen_ns if unended.end_ns is None else unended.end_ns):
            return
        self._trained_in_evaluation = True
        if boundary.updated and boundary.on_compute(is_fetched=unended.saw_input):
            self.next_step()
            self._trained_in_evaluation = True
        if unended.saw_input:
            self.batches.take_evaluated()
        boundary.num_microbatches += unended.num_backwards
        unended.clear()

    def on_optimizer(self, optimizer: Any, *, skipped: bool = False) -> None:
        """An optimizer has stepped, or was skipped by a GradScaler."""
        clock = self.clock
        if clock.is_training():
            if clock.step < 0:
                self.next_step()
            self.boundary.on_optimizer(self._optimizers.number_of(optimizer), skipped=skipped)

    def begin_own_phase(self, name: str) -> str | None:
        """A phase of the user's own begins; return the name by which `end_phase` has to end it, if it has to."""
        if not (type(name) is str and name.isascii() and 0 < len(name) <= MAX_NAME):
            name = self.values.as_name(name)
        clock = self.clock
        if not clock.is_own_thread():
            return None
        if not clock.is_absorbing() and (self.boundary.on_own_phase(name) or clock.step < 0):
            self.next_step()
            self.boundary.on_own_phase(name)
        return name if clock.push(name, automatic=False) else None

    def end_phase(self, name: str) -> None:
        """End a phase that a hook or the user began."""
        self.clock.pop(name)

    def end_optimizer(self, optimizer: Any) -> None:
        """An optimizer's step has ended."""
        self.clock.pop("optimizer")
        self.on_optimizer(optimizer)

    def start_at(self, step: Any) -> None:
        """The next step to be made is number `step` of the whole training: earlier attempts have made those before.

        After the first step has ended, steps are counted on and another number is told as a warning: within an attempt
        numbers neither fall nor leave any out.
        """
        number = self.values.as_step(step)
        if number is None or not self.clock.is_own_thread():
            return
        clock, calls = self.clock, self.writer.calls
        if clock.step < 0:
            self._first_step = number
        elif not (clock.num_steps or self.boundary.updated):
            # A validation before training has begun the first step.
            clock.step = calls.in_progress.step = number
            for call in calls.in_progress.seen:
                call.step = number
        elif number != (following := clock.step + self.boundary.updated):
            self.values.warn_once(f"steps are counted on from {following}: start={number} came when some had ended")

    def next_step(self) -> None:
        """End the step in progress and begin the next."""
        if self.writer.is_displaced and self.on_displaced is not None:
            self.on_displaced()
            return
        searched = self.hooks.look_again()
        if self.clock.step < 0:
            self._cost = self.estimate_cost()
            self.notices.tell_start(recorder_ns=self._cost)
            self.clock.set_base("other")
            _, begin, _ = self.clock.cut()
            self._pauses.take(begin)
            self.writer.add_loose_calls(self.writer.calls.next_step(self._first_step))
            if self._meter is not None:
                self._meter.end_step()
            self.batches.begin_step()
            self.clock.begin_step(self._first_step)
        else:
            self._finish_step(self.clock.step + 1, searched=searched)
            self.clock.begin_step(self.clock.step + 1)
            if self.notices.told_no_boundary:
                self.notices.take_back_no_boundary()
        num_gone = self.boundary.next_step()
        if num_gone and not self.notices.told_gone:
            self.notices.tell_gone(num_gone)
        self.hooks.on_step()
        self.flops.on_step(self.clock.num_steps)
        num_modules = len(sys.modules)
        if num_modules != self._num_modules:
            self._num_modules = num_modules if self._look_at_imports() else -1
        if not self.late_facts.are_known:
            start = monotonic_ns()
            self.late_facts.learn()
            self.own_ns += monotonic_ns() - start

    def _look_at_imports(self) -> bool:
        """Hook what the program has imported since the last look; return whether none of it is half imported."""
        is_whole = self.checkpoints.look()
        if self.guard.call("pipelines", self.pipelines.look):
            self.flops.skip_step()  # a schedule may be exchanging its shapes at this moment
        return is_whole and not self.pipelines.is_half_imported

    def _begin_compute(self) -> bool:
        """Begin a step where work for an update begins one; return whether it is work of the step in progress."""
        clock, boundary = self.clock, self.boundary
        counts = clock.is_training()
        if counts:
            unended = self.unended
            if boundary.on_compute(is_fetched=unended.saw_input) or clock.step < 0:
                self.next_step()
            if unended.saw_input:
                # Some loops call train() once they have the batch.
                unended.saw_input = False
                self.batches.fetch_evaluated()
        boundary.on_work()
        return counts

    def estimate_cost(self) -> int:
        """Return what recording took on the training thread so far, in ns."""
        return self.writer.calls.estimate_cost() + self.clock.estimate_cost() + self.own_ns

    def _finish_step(self, following: int, *, searched: bool = False, end_ns: int | None = None) -> None:
        """Record the step in progress.

        Args:
            following: Number of the next one.
            searched: Models were looked for in it.
            end_ns: Where it ended; now when absent.
        """
        batches = self.batches
        batches.end_step()
        tokens = batches.tokens if batches.tokens_per_step is None or batches.user_tokens else batches.tokens_per_step
        own_ns = self.own_ns
        self.guard.call("flops", self.flops.end_step, tokens)
        if end_ns is not None:
            self.own_ns = own_ns  # behind the step
        clock, writer, boundary = self.clock, self.writer, self.boundary
        step = clock.step
        start, end, spent = clock.cut(end_ns=end_ns)
        gc_ns, num_gc = self._pauses.take(end)
        calls = writer.calls.next_step(following)
        self.collectives.tracker.release()
        meter = self._meter
        if meter is not None and clock.on_change is None and end_ns is None:
            self.guard.call("memory", meter.end_phase, "step", end)
        offset = writer.wall_offset_ns
        cost = self.estimate_cost()
        disturbed = "models_searched" if searched else None
        if boundary.is_merged:
            disturbed = "updates_merged"
        if self._trained_in_evaluation:
            self._trained_in_evaluation = False
            disturbed = "trained_in_evaluation"
        if step == self.flops.counted_step:
            disturbed = "flops_counted"
        if end_ns is not None:
            disturbed = disturbed or "end_unknown"  # what stands between the steps of a loop is missing from it
        if self.captures.is_attached:
            disturbed = self.captures.on_step(step, end - start) or disturbed
        record = StepRecord(
            step=step,
            start_ns=start + offset,
            end_ns=end + offset,
            phases=spent,
            gc_ns=gc_ns,
            num_gc=num_gc,
            tokens=tokens,
            samples=batches.samples,
            input_bytes=batches.num_bytes,
            num_microbatches=boundary.num_microbatches or None,
            num_optimizer_steps=boundary.num_optimizer_steps,
            num_skipped_optimizer_steps=boundary.num_skipped,
            recorder_ns=max(0, cost - self._cost),
            num_dropped=writer.num_dropped - self._dropped,
            disturbed=disturbed,
        )
        self._cost_limit.keep(cost - self._cost, end - start)
        # An estimate that falls (its median is a lower one now) takes nothing back; the next steps make up for it.
        self._cost = max(self._cost, cost)
        self._dropped = writer.num_dropped
        self.batches.begin_step()
        peaks = self.guard.call("memory", meter.end_step) if meter is not None else None
        complete = functools.partial(_complete, self.flops.info, self.flops.forwards, peaks)
        writer.add_step(StepDraft(record, calls, self.hooks.device_times(), complete))

    def _attach_memory(self) -> None:
        self._meter = memory.choose_meter()
        self.clock.failed = functools.partial(self.guard.disable, "memory")
        self.clock.on_change = self._meter.end_phase

    def _measure_device(self, device: DeviceInfo) -> None:
        """Measure the memory of the device from when it is first used."""
        if device.kind == "cuda" and isinstance(self._meter, memory.ResidentMemory):
            self.guard.call("memory", self._change_meter)

    def _change_meter(self) -> None:
        old, self._meter = self._meter, memory.choose_meter()
        if self.clock.on_change is not None:
            self.clock.on_change = self._meter.end_phase
        if old is not None:
            old.close()

    def _warn(self, message: str) -> None:
        self.writer.add_event("warning", message, step=self.step)

    def _hook_disabled(self, hook: str, reason: str) -> None:
        if hook == "memory":
            self.clock.on_change = None
        if hook == "flops":
            self.flops.close()
        self.writer.add_event(
            "hook_disabled", f"{hook} raised and was switched off: {reason}", step=self.step, hook=hook
        )


def _complete(
    info: FlopsInfo, forwards: dict[Forward, int], peaks: Callable[[], MemoryRecord | None] | None, record: StepRecord
) -> dict[str, Any]:
    """Return the fields of a step's record that the thread that writes works out."""
    return {**work_of(info, record, forwards), "memory": peaks() if peaks is not None else None}


def open_session(settings: Settings, info: RankInfo) -> Session:
    """Open the session of this process.

    Raises:
        RuntimeError: There is one already.
    """
    global current
    if current is not None:
        message = "this process is being recorded already"
        raise RuntimeError(message)
    session = Session(settings, info)
    current = session
    session.open()
    return session


def _after_fork() -> None:
    """Forget the session in a forked child: hooks that are still in place find none and pass through."""
    global current
    if current is not None:
        current.disown()
        current = None


os.register_at_fork(after_in_child=_after_fork)
