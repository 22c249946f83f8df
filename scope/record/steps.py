"""Where a step ends: one step is one optimizer update, whatever the loop around it looks like.

A step that has had its update ends when the work for the next one begins: at the next batch asked of a loader where
the loop has one, else at the next forward, backward or call of a pipeline's schedule once every optimizer of the loop
has stepped, or at a phase of the user's own that leads every step. Where no work follows, it ends with the last that
was seen of training (`Session`).

An optimizer that a loop no longer has is not waited for. One that was collected is gone for certain. Of others it shows
in rounds that the rest make without them: one round more is enough where one of them is new after steps that were
alike; without such a change the missing one may merely be slow, as a generator that steps once for many steps of its
critic, and the steps before tell how slow.

An optimizer is known once it has stepped or was named. That it exists says nothing: it may be the inner one of another
(ZeRO, SAM) or one of a later part of the program, and waiting for it would join up to a thousand updates.
"""

from __future__ import annotations

_ROUNDS_OF_A_HABIT = 1
"""Rounds without the missing ones after which they are gone, where two steps or more were alike before the change."""

_ROUNDS_OF_A_START = 10
"""The same where no two steps before were alike, or one came back that was held to be gone: the newcomer may as well be
a critic, whose steps are about five."""

_ROUNDS_UNCHANGED = 1_000
"""The same where no optimizer has come: more than any known loop does between two steps of its slowest optimizer."""

_STEPS_OF_A_PACE = 3
"""Steps in a row of the same optimizers after which the rounds of these tell what the slowest of them needs."""

_ROUNDS_BEYOND_PACE = 5
"""Rounds more than four times as many as any of these took, after which what is missing is gone."""


class StepBoundary:
    """Says when a step ends; no clock and no torch, so that every order of events can be tried.

    Attributes:
        num_optimizer_steps: Optimizer calls in the step in progress, skipped ones included.
        num_skipped: Those that a GradScaler skipped.
        num_microbatches: Backward passes in the step in progress.
        ever_updated: Whether an optimizer has stepped since the start.
        is_merged: The step in progress ends late, with updates of several: an optimizer that is gone was waited for,
            known where the next one begins, or a batch was, and the loop makes several updates of each.
    """

    def __init__(self) -> None:
        self.ever_updated = False
        self.is_merged = False
        self.num_optimizer_steps = 0
        self.num_skipped = 0
        self.num_microbatches = 0
        self._loop_has_input = False
        self._input_since_update = False
        self._repeats_batches = False  # several updates of the only optimizer on one batch: each is a step
        self._began_work = False
        self._leading: set[str] = set()
        self._stepped: set[int] = set()
        self._known: set[int] = set()
        self._previous: set[int] = set()  # what has made the step before, without those that are merely named
        self._settled: set[int] = set()  # those of them that had made the one before that too
        self._num_alike = 0  # steps in a row that `_previous` has made
        self._most_rounds = 0  # of any of these
        self._collected: set[int] = set()
        self._round: set[int] = set()  # stepped since one of them last stepped again
        self._last_round: set[int] = set()
        self._num_rounds = 0
        self._gone: set[int] = set()
        self._has_returned = False

    def expect(self, optimizer: int) -> None:
        """Name an optimizer of the loop before it has stepped."""
        self._known.add(optimizer)

    def forget(self, optimizer: int) -> None:
        """Wait no more for an optimizer that does not exist any more; safe at any instant and on any thread."""
        self._collected.add(optimizer)

    @property
    def updated(self) -> bool:
        """Whether the step in progress has had an update."""
        return self.num_optimizer_steps > 0

    def on_input(self) -> bool:
        """A batch is asked of a loader; return whether that begins a new step."""
        begins = self.updated
        self._loop_has_input = not self._repeats_batches
        self._input_since_update = True
        return begins

    def on_compute(self, *, is_fetched: bool = False) -> bool:
        """A forward or backward of training begins; return whether that begins a new step.

        Args:
            is_fetched: The batch for it was asked for in an evaluation, where that began none.
        """
        if not self.num_optimizer_steps or (self._loop_has_input and not is_fetched):
            return False
        if self._stepped >= self._known or (self._collected and self._have_all_left_stepped()):
            return True
        self.is_merged = self._others_are_gone()
        return self.is_merged

    def on_own_phase(self, name: str) -> bool:
        """A phase of the user's own begins; return whether that begins a new step.

        It does after the update when the same phase has come before all other work of an earlier step, such as the
        rollout of reinforcement learning.
        """
        if self.num_optimizer_steps:
            return name in self._leading
        if not self._began_work:
            self._leading.add(name)
        return False

    def on_work(self) -> None:
        """An input, forward or backward of the step in progress has begun."""
        self._began_work = True

    def on_backward(self) -> None:
        """A backward pass has ended."""
        self.num_microbatches += 1

    def on_optimizer(self, optimizer: int, *, skipped: bool = False) -> None:
        """An optimizer has stepped, or a GradScaler has skipped it.

        Args:
            optimizer: Identity of the optimizer.
            skipped: The scaler found infinities.
        """
        is_only = self._known | self._stepped <= {optimizer}
        if optimizer in self._stepped and not self._input_since_update:
            # It has stepped twice on what was loaded before: batches are not asked for one by one.
            self.is_merged = self.is_merged or (is_only and self._loop_has_input)
            self._repeats_batches = True
            self._loop_has_input = False
        # Beside others it may be a critic, whose updates are one step with that of its generator.
        self._repeats_batches = self._repeats_batches and is_only
        self._input_since_update = False
        self.ever_updated = True
        self.num_optimizer_steps += 1
        self.num_skipped += skipped
        self._stepped.add(optimizer)
        if optimizer in self._round:
            self._last_round, self._round = self._round, set()
            self._num_rounds += 1
        self._round.add(optimizer)
        self._has_returned = self._has_returned or optimizer in self._gone

    def next_step(self) -> int:
        """Begin a step; return how many optimizers are waited for no more, without which the one before has ended."""
        num_gone = 0
        if self._stepped:
            gone = not self._stepped >= self._known and self._others_are_gone()
            made_by = self._last_round | self._round if gone else self._stepped
            if gone:
                missing = self._known - made_by
                num_gone = len(missing)
                self._gone |= missing
            is_alike = made_by == self._previous
            self._num_alike = self._num_alike + 1 if is_alike else 1
            self._most_rounds = max(self._num_rounds, self._most_rounds if is_alike else 0)
            self._settled = made_by & self._previous if self._previous else made_by
            self._previous = made_by
            self._known = set(made_by)
            self._gone -= self._collected
            self._collected &= made_by
        self._stepped, self._round, self._last_round = set(), set(), set()
        self._num_rounds = 0
        self._began_work = self.is_merged = False
        self.num_optimizer_steps = self.num_skipped = self.num_microbatches = 0
        return num_gone

    def _have_all_left_stepped(self) -> bool:
        """Whether those that still exist have stepped, and as many new ones, where there are any, as were collected."""
        collected = self._known & self._collected
        left = self._known - collected
        if not self._stepped >= left:
            return False
        newcomers = self._stepped - self._known
        return bool(left and not newcomers) or len(newcomers) >= len(collected - self._stepped)

    def _others_are_gone(self) -> bool:
        """Whether those that have not stepped are known to be gone, and the others are at the end of a round."""
        if not self._num_rounds:
            return False
        patience = _ROUNDS_UNCHANGED
        if self._num_alike >= _STEPS_OF_A_PACE:
            patience = min(patience, 4 * self._most_rounds + _ROUNDS_BEYOND_PACE)
        if self._num_alike and not self._stepped <= self._settled:
            is_habit = self._num_alike > 1 and not self._has_returned
            patience = _ROUNDS_OF_A_HABIT if is_habit else _ROUNDS_OF_A_START
        return self._num_rounds > patience or (self._num_rounds == patience and self._round >= self._last_round)
