"""What the step in progress has used: samples, bytes and tokens of its batches, or tokens as the user counts them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from scope.record.batches import BatchSize, first_shape, measure_batch

if TYPE_CHECKING:
    from collections.abc import Callable

    from scope.record.phases import PhaseClock
    from scope.record.program_values import ProgramValues

_MAX_FETCHED: Final = 256


@dataclass(slots=True, eq=False)
class Fetched:
    """A batch that no call of training has got yet.

    Attributes:
        size: What it holds.
        number: Which one of all it is.
        loader: Identity of the iterator that gave it.
        evaluated: A call without gradients got it; it may be one of a validation, or a teacher's.
    """

    size: BatchSize
    number: int
    loader: int
    evaluated: bool = False


class StepBatches:
    """Adds up what a step uses. A batch counts when a model gets it: loops may fetch the next one before.

    Where several wait, shapes tell which one a call gets: the oldest whose first tensor is shaped like that of the
    call, else the oldest ones, each of another loader, that together have as many rows, else the oldest. Batches of one
    loader are never taken for joined ones: two views of one batch, while the next is there already, have as many rows.

    Attributes:
        num_batches: Batches noted so far.
        fetched: Batches that no call of training has got yet, the oldest first.
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
        self.fetched: list[Fetched] = []
        self.user_tokens = False
        self.tokens_per_step: int | None = None
        self.begin_step()

    def begin_step(self) -> None:
        """Begin a step, which has used nothing."""
        self.num_taken = 0
        self._newest_taken = 0
        self.samples: int | None = None
        self.num_bytes: int | None = None
        self.tokens: int | None = None

    def ask(self) -> None:
        """The next batch is asked for: what was evaluated and not trained on before is no batch of training."""
        if self.fetched:
            self.fetched = [each for each in self.fetched if not each.evaluated]

    def note(self, batch: Any, loader: Any) -> None:
        """A batch has come from an iterator."""
        if not self._clock.is_training():
            return
        self.num_batches += 1
        size = measure_batch(batch)
        if self._count_tokens is not None:
            size = replace(size, tokens=self._count_tokens(batch))
        del self.fetched[: 1 - _MAX_FETCHED]
        self.fetched.append(Fetched(size, self.num_batches, id(loader)))

    def take(self, inputs: Any) -> None:
        """Count what a call of training gets.

        Args:
            inputs: Its arguments.
        """
        for each in self._find(inputs) or self.fetched[:1]:
            self._count(each)

    def evaluate(self, inputs: Any) -> None:
        """A call without gradients gets a batch, which does not count for that; `inputs` are its arguments.

        It may also get what was made of a batch, as where a text goes on, or the same batch again.
        """
        if self._clock.is_training():
            for each in self._find(inputs):
                each.evaluated = True

    def settle(self) -> None:
        """The step ends: what was fetched before the last batch that it used was skipped by the loop.

        Where no call of a model was seen to use any, all are counted.
        """
        if self.num_taken:
            self.fetched = [each for each in self.fetched if each.number > self._newest_taken]
        else:
            for each in [each for each in self.fetched if not each.evaluated]:
                self._count(each)

    def _find(self, inputs: Any) -> list[Fetched]:
        """Return the batches that a call gets by its arguments; none where several wait and shapes do not tell."""
        waiting = self.fetched
        if len(waiting) < 2:
            return waiting[:]
        shape = first_shape(inputs)
        for each in waiting:
            if shape is not None and each.size.shape == shape:
                return [each]
        rows, loaders = 0, set[int]()
        for place, each in enumerate(waiting, start=1):
            rows += each.size.samples or 0
            loaders.add(each.loader)
            if shape and rows == shape[0] and len(loaders) == place > 1:
                return waiting[:place]
        return []

    def _count(self, each: Fetched) -> None:
        self.fetched.remove(each)
        self._newest_taken = max(self._newest_taken, each.number)
        size = each.size
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
