"""What the step in progress has used: samples, bytes and tokens of its batches, or tokens as the user counts them."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from scope.record.batches import BatchSize, measure_batch

if TYPE_CHECKING:
    from collections.abc import Callable

    from scope.record.phases import PhaseClock
    from scope.record.program_values import ProgramValues

_MAX_FETCHED: Final = 256


class StepBatches:
    """Adds up what a step uses. A batch counts when a model gets it: loops may fetch the next one before.

    Attributes:
        num_batches: Batches noted so far.
        fetched: Batches that no model has got yet, the oldest first.
        evaluated: The last batch that was asked for in an evaluation.
        num_taken: Batches that the step has used.
        samples: Those of the step; None before any is known.
        num_bytes: Bytes of the tensors of its batches; None before the first.
        tokens: Those of the step as its batches, or the user, tell them; None before any is known.
        user_tokens: Whether the user counts them.
        tokens_per_step: The user's own number for every step.
    """

    def __init__(self, clock: PhaseClock, values: ProgramValues, *, count_tokens: Callable[[Any], int] | None) -> None:
        """Start with no batch.

        Args:
            clock: Tells whether a batch is one of training.
            values: Takes what the user counts.
            count_tokens: Gives the tokens of a batch, instead of what its shapes look like.
        """
        self._clock = clock
        self._values = values
        self._count_tokens = count_tokens
        self.num_batches = 0
        self.fetched: deque[BatchSize] = deque(maxlen=_MAX_FETCHED)
        self.evaluated: BatchSize | None = None
        self.user_tokens = False
        self.tokens_per_step: int | None = None
        self.begin_step()

    def begin_step(self) -> None:
        """Begin a step, which has used nothing."""
        self.num_taken = 0
        self.samples: int | None = None
        self.num_bytes: int | None = None
        self.tokens: int | None = None

    def note(self, batch: Any) -> None:
        """A batch has come."""
        clock = self._clock
        is_training = clock.is_training()
        if not (is_training or (clock.is_own_thread() and clock.phase == "evaluation")):
            return
        size = measure_batch(batch)
        if self._count_tokens is not None:
            size = replace(size, tokens=self._count_tokens(batch))
        if is_training:
            self.num_batches += 1
            self.fetched.append(size)
            self.evaluated = None
        else:
            self.evaluated = size

    def fetch_evaluated(self) -> None:
        """The last batch that was asked for in an evaluation proves to be one of training."""
        if self.evaluated is not None:
            self.num_batches += 1
            self.fetched.append(self.evaluated)
            self.evaluated = None

    def take_evaluated(self) -> None:
        """It was trained on before that was known."""
        self.fetch_evaluated()
        if self.fetched:
            self.take()

    def take(self) -> None:
        """Count the oldest batch that was fetched: some loops fetch the next one before they use the last."""
        size = self.fetched.popleft()
        self.num_taken += 1
        self.num_bytes = (self.num_bytes or 0) + size.num_bytes
        if size.samples is not None:
            self.samples = (self.samples or 0) + size.samples
        if size.tokens is not None and not self.user_tokens:
            self.tokens = (self.tokens or 0) + size.tokens

    def add_tokens(self, tokens: int) -> None:
        """Tokens as the user counts them, instead of what batches look like."""
        number = self._values.as_tokens(tokens)
        if number is None:
            return
        if not self.user_tokens:
            self.user_tokens = True
            self.tokens = None
        self.tokens = (self.tokens or 0) + number
