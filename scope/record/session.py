"""One recording of one rank: the writer, the clock of phases, the hooks, and what ties them into step records.

There is at most one session a process (`current`). `Recorder` opens or joins it; `scope run` opens it on the first
import of torch.
"""

# torch annotates only a part of itself.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

import functools
import operator
import os
import sys
import time
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import torch

from scope.record import facts, memory
from scope.record.batches import BatchSize, measure_batch
from scope.record.captures import Captures
from scope.record.checkpoints import CheckpointHooks
from scope.record.collectives.guard import HookGuard
from scope.record.collectives.recorder import CollectiveRecorder
from scope.record.flops import FlopMeter
from scope.record.hooks import TrainingHooks
from scope.record.identities import Identities
from scope.record.patches import PatchTable
from scope.record.pauses import Pauses
from scope.record.phases import PhaseClock
from scope.record.pipelines import PipelineHooks
from scope.record.preflight import attach_preflight
from scope.record.stacks import StackDumps
from scope.record.steps import StepBoundary
from scope.record.utilization import work_of
from scope.run.goodbyes import AFTER_UPDATE, EXIT_CODE, EXITED, OTHER_THREAD, RAISED_EXIT, SAID
from scope.run.layout import GROUP
from scope.run.schema import StepRecord
from scope.run.writer import RankWriter, StepDraft

if TYPE_CHECKING:
    from collections.abc import Callable

    from scope.record.forward_inputs import Forward
    from scope.record.settings import Settings
    from scope.run.schema import DeviceInfo, FlopsInfo, MemoryRecord, RankInfo

_MAX_FETCHED: Final = 256
_MAX_NAME: Final = 200
"""Characters of the name of a user's phase."""
_MAX_START: Final = 2**31 - 2**24
"""The black box has 31 bits for the number of a step, of which these leave room to count on."""
_MAX_COST_RATIO: Final = 0.005
_MANY_BACKWARDS: Final = 128
"""Backward passes in the first step after which it is said that no optimizer has stepped."""
_MAX_STEPS_OVER: Final = 50
"""Steps in a row that may cost more than their share before something is given up."""

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
        flops: Counts FLOPs once.
        tokens_per_step: The user's own number for every step.
        num_batches: Batches noted so far.
        own_ns: What rare work of the recorder took on the training thread so far: looking for models, the peak.
        on_displaced: Called instead of the next step where a rank that this process spawned has taken its place.
    """

    def __init__(self, settings: Settings, info: RankInfo) -> None:
        self.settings = settings
        self.guard = HookGuard(self._hook_disabled)
        self.writer = RankWriter(settings.folder, info, budget=settings.budget)
        age = facts.process_age_ns() or 0
        self.clock = PhaseClock(self.writer.black_box, self.writer.calls, start_ns=time.monotonic_ns() - age)
        self.boundary = StepBoundary()
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
        self.user_tokens = False
        self.tokens_per_step: int | None = None
        self.num_batches = 0
        self.own_ns = 0
        self.on_displaced: Callable[[], None] | None = None
        self._fetched: deque[BatchSize] = deque(maxlen=_MAX_FETCHED)
        self._num_taken = 0
        self._tokens: int | None = None
        self._samples: int | None = None
        self._input_bytes: int | None = None
        self._pauses = Pauses()
        self._meter: memory.MemoryMeter | None = None
        self._dropped = 0
        self._cost = 0
        self._num_over = 0
        self._warned: set[str] = set()
        self._world_known = self._model_known = self._told_no_boundary = self._told_gone = False
        self._told_other_thread = False
        self._first_step = 0
        self._num_modules = 0

    @property
    def step(self) -> int | None:
        """Number of the step in progress, `None` before the first."""
        return self.clock.step if self.clock.step >= 0 else None

    @property
    def is_after_update(self) -> bool:
        """Whether the step in progress has had its update, and no work tells yet that the next one has begun."""
        return self.boundary.updated and self.clock.phase == "other"

    @property
    def samples(self) -> int | None:
        """Samples of the step in progress so far."""
        return self._samples

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
            self._guarded("other threads", self._look_at_other_threads),
            self._guarded("garbage collection", lambda: self._pauses.shorten(self.clock.last_seen_ns)),
        ]

    def close(self, exit_reason: str) -> None:
        """Take every hook away, write what is left; a second call does nothing."""
        global current
        if current is self:
            current = None
        self._pauses.detach()
        self._learn_model()
        for name, detach in (
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
            self.guard.call("coverage", self._tell_coverage)
            self.guard.call("ending", self._tell_ending, exit_reason)
        if self._meter is not None:
            self.guard.call("memory (detach)", self._meter.close)
        self.writer.close(exit_reason, exception=exit_reason == "exception")

    def disown(self) -> None:
        """Measure nothing any more: in a forked child."""
        self.clock.disown()
        self._pauses.detach()

    def _tell_no_boundary(self) -> None:
        """Say, once, that where steps end cannot be told: the program's optimizer is none that torch knows of."""
        if self.boundary.ever_updated or self.clock.num_steps or self._told_no_boundary:
            return
        self._told_no_boundary = True
        reason = (
            f"{self.boundary.num_microbatches} backward passes and no step of a torch.optim.Optimizer: where steps end "
            "cannot be told; call recorder.end_step() of a scope.Recorder() at the end of each, under scope run too"
        )
        self.writer.add_event("warning", reason, step=self.step)
        self.writer.update_info(absent={**self.writer.info.absent, "steps": reason})

    def _look_at_other_threads(self) -> None:
        """Say, once, that a thread has trained which nothing is measured of, where the measured one has trained too."""
        if self.clock.step < 0 or not self.clock.saw_other_thread or self._told_other_thread:
            return
        self._told_other_thread = True
        message = (
            "an optimizer stepped in another thread than the one that imported torch, which alone is recorded: those "
            "updates are in no step and no figure; train in that thread"
        )
        detail: dict[str, Any] = {OTHER_THREAD: True}
        self.writer.add_event("warning", message, step=self.step, **detail)

    def _tell_other_thread(self) -> None:
        """Say that a thread has trained which nothing is measured of, and no other has."""
        reason = (
            "training ran in another thread than the one that imported torch, which alone is recorded: train in that "
            "one, or import torch first in the thread that trains"
        )
        self.writer.add_event("warning", reason)
        self.writer.update_info(absent={**self.writer.info.absent, "steps": reason})

    def _tell_gone(self, num_gone: int) -> None:
        """Say, the first time, that a step has ended without optimizers which had made those before."""
        self._told_gone = True
        whose = "an optimizer that steps had" if num_gone == 1 else f"{num_gone} optimizers that steps had"
        message = (
            f"step {self.clock.step - 1} ended without {whose} before, since others have gone on without; it may hold "
            "several updates, and is marked where it does; steps do not "
            "wait for what is taken for gone (replaced, or done): if it merely steps seldom, say where steps end with "
            "recorder.end_step() of a scope.Recorder()"
        )
        self.writer.add_event("warning", message, step=self.step, num_optimizers=num_gone)

    def _tell_ending(self, exit_reason: str) -> None:
        num_steps = self.clock.num_steps + self.boundary.updated
        after: dict[str, Any] = {AFTER_UPDATE: True} if exit_reason.startswith(EXITED) and self.is_after_update else {}
        if self.boundary.updated:
            # No work for a next step tells where this one ended: what the program does after its loop is in none.
            end_ns = max(self.clock.find_end(), min(self._last_call_ns(), time.monotonic_ns()))
            self._finish_step(self.clock.step + 1, end_ns=end_ns)
        elif self.clock.step < 0:
            self._tell_start()
            if self.clock.saw_other_thread:
                self._tell_other_thread()
        elif self.boundary.num_microbatches:
            self._tell_no_boundary()
        self._look_at_other_threads()
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

    def _tell_coverage(self) -> None:
        """Say which share of the calls that torch's Flight Recorder counted was seen, and what the route cannot see."""
        if self.collectives.flight_recorder is None:
            return
        for part in self.collectives.blind_to:
            self.writer.add_event("coverage", f"not seen by the hooks: {part}", part=part)
        for item in self.collectives.flight_recorder.coverage(self.writer.calls):
            if item.ratio is None:
                message = f"group {item.group}, {item.kind}: {item.seen} calls seen, coverage unknown: {item.reason}"
                self.writer.add_event(
                    "coverage", message, group=item.group, operation=item.kind, seen=item.seen, reason=item.reason
                )
                continue
            least = "at least " if item.at_least else ""
            message = (
                f"group {item.group}, {item.kind}: {item.seen} calls seen, the Flight Recorder counted "
                f"{item.flight_recorder} ({least}{item.ratio:.1%})"
            )
            self.writer.add_event(
                "coverage",
                message,
                group=item.group,
                operation=item.kind,
                seen=item.seen,
                flight_recorder=item.flight_recorder,
                at_least=item.at_least,
            )

    # What hooks call; `guard` is around them.

    def begin_input(self) -> bool:
        """A batch is asked of a loader; return whether `end_phase` has to follow."""
        clock, boundary = self.clock, self.boundary
        if clock.is_training() and (boundary.on_input() or clock.step < 0):
            self.next_step()
        boundary.on_work()
        return clock.push("input")

    def note_batch(self, batch: Any) -> None:
        """A batch has come."""
        if not self.clock.is_training():
            return
        self.num_batches += 1
        size = measure_batch(batch)
        if self.settings.count_tokens is not None:
            size = replace(size, tokens=self.settings.count_tokens(batch))
        self._fetched.append(size)

    def _take_batch(self) -> None:
        """Count the oldest batch that was fetched: some loops fetch the next one before they use the last."""
        size = self._fetched.popleft()
        self._num_taken += 1
        self._input_bytes = (self._input_bytes or 0) + size.num_bytes
        if size.samples is not None:
            self._samples = (self._samples or 0) + size.samples
        if size.tokens is not None and not self.user_tokens:
            self._tokens = (self._tokens or 0) + size.tokens

    def note_exception(self, error: BaseException) -> None:
        """The program ends because of an exception."""
        out_of_memory = isinstance(error, torch.OutOfMemoryError)
        after = {AFTER_UPDATE: True} if self.is_after_update else {}
        kind = "out_of_memory" if out_of_memory else "exception"
        self.writer.add_event(kind, _describe(error), step=self.step, phase=self.clock.phase, **after)

    def note_unknown_exit(self) -> None:
        """The program ends, and nothing tells with which exit code."""
        self.writer.update_info(absent={**self.writer.info.absent, EXIT_CODE: RAISED_EXIT})

    def add_tokens(self, tokens: int) -> None:
        """Tokens as the user counts them, instead of what batches look like."""
        number = self._as_number(tokens)
        if number is None:
            return
        if not self.user_tokens:
            self.user_tokens = True
            self._tokens = None
        self._tokens = (self._tokens or 0) + number

    def _as_number(self, tokens: Any) -> int | None:
        """Return a number of tokens; `None`, said once, for what is none or would have to be waited for on a device."""
        try:
            if isinstance(tokens, torch.Tensor) and tokens.device.type != "cpu":
                self._warn_once("tokens are a tensor on a device, which is not waited for: give add_tokens an int")
                return None
            number = int(tokens)
        except Exception as error:  # noqa: BLE001 - of any type
            self._warn_once(f"tokens are no whole number and were left out: {type(error).__name__}")
            return None
        if not 0 <= number < 2**62:
            self._warn_once("tokens are negative or beyond any step, and were left out")
            return None
        return number

    def _as_step(self, step: Any) -> int | None:
        """Return the number of a step; `None`, said once, for what is none."""
        if isinstance(step, torch.Tensor) and step.device.type != "cpu":
            self._warn_once("the start is a tensor on a device, which is not waited for: give an int")
            return None
        try:
            number = operator.index(step)
        except Exception as error:  # noqa: BLE001 - of any type
            self._warn_once(f"the start is no whole number, and steps are counted from 0: {type(error).__name__}")
            return None
        if not 0 <= number <= _MAX_START:
            self._warn_once(f"the start is not between 0 and {_MAX_START:,}, and steps are counted from 0")
            return None
        return number

    def _as_name(self, name: Any) -> str:
        """Return a phase's name as text of at most 200 characters that can be written; a change is said once."""
        try:
            text = str(name)[:_MAX_NAME].encode("utf-8", "replace").decode() or "(empty)"
        except Exception:  # noqa: BLE001 - of any type
            text = "(unnamed)"
        if text != name:
            self._warn_once(f"a phase's name is no text of 1 to {_MAX_NAME} characters, and was recorded as {text!r}")
        return text

    def _warn_once(self, message: str) -> None:
        """Tell of values that the program gave; one of a kind is enough."""
        kind = message[:20]
        if kind not in self._warned:
            self._warned.add(kind)
            self.writer.add_event("warning", message, step=self.step)

    def begin_forward(self, *, training: bool) -> bool:
        """A model is called; return whether `end_phase` has to follow.

        Args:
            training: In training mode, with gradients: the call is work for an update.
        """
        if training and self._begin_compute() and self._fetched:
            self._take_batch()
        return self.clock.push("forward")

    def begin_schedule(self) -> None:
        """A schedule of a pipeline begins the passes of an update, the first of which may wait for a recv."""
        self._begin_compute()

    def begin_backward(self) -> bool:
        """A backward pass begins; return whether `end_backward` has to follow."""
        self._begin_compute()
        return self.clock.push("backward")

    def end_backward(self) -> None:
        """A backward pass has ended."""
        self.boundary.on_backward()
        self.clock.pop("backward")
        if self.boundary.num_microbatches == _MANY_BACKWARDS:
            self._tell_no_boundary()

    def expect_optimizer(self, optimizer: Any) -> None:
        """Name an optimizer of the loop before it has stepped."""
        self.boundary.expect(self._optimizers.number_of(optimizer))

    def on_optimizer(self, optimizer: Any, *, skipped: bool = False) -> None:
        """An optimizer has stepped, or was skipped by a GradScaler."""
        clock = self.clock
        if clock.is_training():
            if clock.step < 0:
                self.next_step()
            self.boundary.on_optimizer(self._optimizers.number_of(optimizer), skipped=skipped)

    def begin_own_phase(self, name: str) -> str | None:
        """A phase of the user's own begins; return the name by which `end_phase` has to end it, if it has to."""
        if not (type(name) is str and name.isascii() and 0 < len(name) <= _MAX_NAME):
            name = self._as_name(name)
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
        number = self._as_step(step)
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
            self._warn_once(f"steps are counted on from {following}: start={number} came when some had ended")

    def next_step(self) -> None:
        """End the step in progress and begin the next."""
        if self.writer.is_displaced and self.on_displaced is not None:
            self.on_displaced()
            return
        searched = self.hooks.look_again()
        if self.clock.step < 0:
            self._cost = self.estimate_cost()
            self._tell_start()
            self.clock.set_base("other")
            _, begin, _ = self.clock.cut()
            self._pauses.take(begin)
            self.writer.add_loose_calls(self.writer.calls.next_step(self._first_step))
            if self._meter is not None:
                self._meter.end_step()
            self._reset_counters()
            self.clock.begin_step(self._first_step)
        else:
            self._finish_step(self.clock.step + 1, searched=searched)
            self.clock.begin_step(self.clock.step + 1)
            if self._told_no_boundary:
                self._told_no_boundary = False
                absent = {name: why for name, why in self.writer.info.absent.items() if name != "steps"}
                self.writer.update_info(absent=absent)
        num_gone = self.boundary.next_step()
        if num_gone and not self._told_gone:
            self._tell_gone(num_gone)
        self.hooks.on_step()
        self.flops.on_step(self.clock.num_steps)
        num_modules = len(sys.modules)
        if num_modules != self._num_modules:
            self._num_modules = num_modules if self._look_at_imports() else -1
        if not (self._world_known and self._model_known):
            start = time.monotonic_ns()
            self._learn_world()
            self.own_ns += time.monotonic_ns() - start

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
        if counts and (boundary.on_compute() or clock.step < 0):
            self.next_step()
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
        if self._fetched and not self._num_taken:
            # No call of a model was seen to use them.
            for _ in range(len(self._fetched)):
                self._take_batch()
        tokens = self._tokens if self.tokens_per_step is None or self.user_tokens else self.tokens_per_step
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
            samples=self._samples,
            input_bytes=self._input_bytes,
            num_microbatches=boundary.num_microbatches or None,
            num_optimizer_steps=boundary.num_optimizer_steps,
            num_skipped_optimizer_steps=boundary.num_skipped,
            recorder_ns=max(0, cost - self._cost),
            num_dropped=writer.num_dropped - self._dropped,
            disturbed=disturbed,
        )
        self._keep_budget(cost - self._cost, end - start)
        # An estimate that falls (its median is a lower one now) takes nothing back; the next steps make up for it.
        self._cost = max(self._cost, cost)
        self._dropped = writer.num_dropped
        self._reset_counters()
        peaks = self.guard.call("memory", meter.end_step) if meter is not None else None
        complete = functools.partial(_complete, self.flops.info, self.flops.forwards, peaks)
        writer.add_step(StepDraft(record, calls, self.hooks.device_times(), complete))

    def _keep_budget(self, cost_ns: int, length_ns: int) -> None:
        """Give up memory by phase, then hashes, when recording costs too much for long; never collectives or phases."""
        self._num_over = self._num_over + 1 if cost_ns > _MAX_COST_RATIO * length_ns else 0
        if self._num_over < _MAX_STEPS_OVER or not (self.clock.on_change or self.writer.calls.hashing):
            return
        self._num_over = 0
        given_up = "memory by phase" if self.clock.on_change else "hashes of collectives"
        if self.clock.on_change:
            self.clock.on_change = None
        else:
            self.writer.calls.hashing = False
        share = 100 * cost_ns / max(length_ns, 1)
        message = f"recording takes {share:.1f} % of a step of {length_ns / 1e6:.1f} ms: {given_up} given up"
        self.writer.add_event("warning", message, step=self.step)

    def _reset_counters(self) -> None:
        self._tokens = self._samples = self._input_bytes = None
        self._num_taken = 0

    def _tell_start(self) -> None:
        """Tell how long start-up took: startup until torch was imported, init until the first step."""
        spent = self.clock.spent_so_far()
        self.writer.add_event(
            "attempt_start",
            "training began" if self.clock.step < 0 else "recording began",
            startup_ns=spent.get("startup", 0),
            init_ns=sum(spent.values()) - spent.get("startup", 0),
            recorder_ns=self._cost,
        )

    def _attach_memory(self) -> None:
        self._meter = memory.choose_meter()
        self.clock.failed = functools.partial(self.guard.disable, "memory")
        self.clock.on_change = self._meter.end_phase

    def _change_meter(self) -> None:
        old, self._meter = self._meter, memory.choose_meter()
        if self.clock.on_change is not None:
            self.clock.on_change = self._meter.end_phase
        if old is not None:
            old.close()

    def _learn_world(self) -> None:
        """Note what is known only after `init_process_group`, the first use of the device and the first calls."""
        if self.clock.num_steps > 1:
            self._learn_model()
        if self._world_known:
            return
        self._world_known = True
        absent = {name: why for name, why in self.writer.info.absent.items() if name != "device"}
        changes: dict[str, Any] = {"absent": absent}
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            changes["world_size"] = torch.distributed.get_world_size()
        device: DeviceInfo = facts.read_device()
        changes["device"] = device
        self.writer.update_info(**changes)
        if device.kind == "cuda" and isinstance(self._meter, memory.ResidentMemory):
            self.guard.call("memory", self._change_meter)

    def _learn_model(self) -> None:
        """Note what is trained, once; by the third step every model has been called."""
        if self._model_known:
            return
        self._model_known = True
        # A model may be of any kind.
        self.guard.call("model", lambda: self.writer.update_info(model=facts.describe_model(self.hooks.models())))

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


def _describe(error: BaseException) -> str:
    """Return kind and words of an exception, which may have a `__str__` that raises or what cannot be encoded."""
    try:
        words = str(error)[:2000].encode("utf-8", "replace").decode()
    except Exception as problem:  # noqa: BLE001 - the program's own code
        words = f"(its words cannot be had: {type(problem).__name__})"
    return f"{type(error).__name__}: {words}"[:2000]


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
