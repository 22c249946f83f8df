"""Where a step ends: one step is one optimizer update, whatever the loop around it looks like.

A step that has had its update ends when the work for the next one begins: at the next batch asked of a loader where
the loop has one, else at the next forward, backward or call of a pipeline's schedule once every optimizer of the loop
has stepped, or at a phase of the user's own that leads every step. Where no work follows, it ends with the last that
was seen of training (`Session`).
"""

from __future__ import annotations


class StepBoundary:
    """Says when a step ends; no clock and no torch, so that every order of events can be tried.

    Attributes:
        num_optimizer_steps: Optimizer calls in the step in progress, skipped ones included.
        num_skipped: Those that a GradScaler skipped.
        num_microbatches: Backward passes in the step in progress.
        ever_updated: Whether an optimizer has stepped since the start.
    """

    def __init__(self) -> None:
        self.ever_updated = False
        self.num_optimizer_steps = 0
        self.num_skipped = 0
        self.num_microbatches = 0
        self._loop_has_input = False
        self._input_since_update = False
        self._began_work = False
        self._leading: set[str] = set()
        self._stepped: set[int] = set()
        self._known: set[int] = set()

    def expect(self, optimizer: int) -> None:
        """Name an optimizer of the loop before it has stepped."""
        self._known.add(optimizer)

    @property
    def updated(self) -> bool:
        """Whether the step in progress has had an update."""
        return self.num_optimizer_steps > 0

    def on_input(self) -> bool:
        """A batch is asked of a loader; return whether that begins a new step."""
        begins = self.updated
        self._loop_has_input = self._input_since_update = True
        return begins

    def on_compute(self) -> bool:
        """A forward or backward of training begins; return whether that begins a new step."""
        return self.updated and not self._loop_has_input and self._stepped >= self._known

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
        if optimizer in self._stepped and not self._input_since_update:
            # It has stepped twice on what was loaded before: batches are not asked for one by one.
            self._loop_has_input = False
        self._input_since_update = False
        self.ever_updated = True
        self.num_optimizer_steps += 1
        self.num_skipped += skipped
        self._stepped.add(optimizer)

    def next_step(self) -> None:
        """Begin a step."""
        if self._stepped:
            self._known = self._stepped
        self._stepped = set()
        self._began_work = False
        self.num_optimizer_steps = self.num_skipped = self.num_microbatches = 0
