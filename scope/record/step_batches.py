"""What the step in progress has used: samples, bytes and tokens of its batches, or tokens as the user counts them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import torch

from scope.record.batch_storages import BatchStorages
from scope.record.batches import BatchSize, first_rows, measure_batch

if TYPE_CHECKING:
    from collections.abc import Callable

    from scope.record.phases import PhaseClock
    from scope.record.program_values import ProgramValues

_MAX_WAITING: Final = 256
_NOT_TAKEN: Final = -1


@dataclass(slots=True, eq=False)
class Fetched:
    """A batch that a loader has given.

    Attributes:
        size: What it holds.
        number: Which one of all it is.
        loader: Identity of the iterator that gave it.
        is_first: It is the first one of that iterator.
        evaluated: A call that no gradients flow through got it, one of a validation, a teacher's or an encoder's; or
            gradients were off when it was asked for.
        taken_in: Number of the step that has used it.
        is_guess: That step got something made of it, and no part of itself.
    """

    size: BatchSize
    number: int
    loader: int
    is_first: bool
    evaluated: bool = False
    taken_in: int = _NOT_TAKEN
    is_guess: bool = False

    @property
    def is_taken(self) -> bool:
        """Whether a step has used it."""
        return self.taken_in != _NOT_TAKEN


class StepBatches:
    """Adds up what a step uses. A batch counts when a call of training gets it: loops may fetch the next one before.

    Which one a call gets is known by its tensors' storages. Of what was made of a batch (padded, joined, encoded)
    nothing tells; such a call is taken to be for the oldest that waits, or for several that together have its rows, and
    there are no more such calls than batches came before them: a siamese model gets one batch in several forms.

    Attributes:
        num_batches: Batches noted so far.
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
        self.storages = BatchStorages()
        self.num_batches = 0
        self._waiting: list[Fetched] = []
        self._evaluated: Fetched | None = None
        self._running: set[int] = set()
        self._trained_on: set[int] = set()
        self._run: list[Fetched] = []
        self._num_guesses_left = 0
        self._was_called = False
        self._last_loader = 0
        self._last_taken_loader = self._newest_taken = 0
        self._ended: Fetched | None = None
        self._num_steps = 0
        self.user_tokens = False
        self.tokens_per_step: int | None = None
        self.begin_step()

    def begin_step(self) -> None:
        """Begin a step, which has used nothing."""
        self._num_steps += 1
        self._saw_call = False
        self.samples: int | None = None
        self.num_bytes: int | None = None
        self.tokens: int | None = None

    def note(self, batch: Any, iterator: object) -> None:
        """A batch has come from an iterator."""
        clock = self._clock
        is_training = clock.is_training()
        if not (is_training or (clock.is_own_thread() and clock.phase == "evaluation")):
            return
        size = measure_batch(batch)
        if self._count_tokens is not None:
            size = replace(size, tokens=self._count_tokens(batch))
        self.num_batches += is_training
        loader = id(iterator)
        is_first = loader not in self._running
        fetched = Fetched(size, self.num_batches, loader, is_first, evaluated=not torch.is_grad_enabled())
        if fetched.is_first:
            # It may have the identity of one that is gone.
            self._running.add(loader)
            self._trained_on.discard(loader)
        self.storages.add(batch, fetched)
        self._evaluated = None if is_training else fetched
        if is_training:
            self._wait(fetched)

    def end_loader(self, iterator: object) -> None:
        """An iterator has no more batches; what it left is used by the next calls, or never."""
        self._running.discard(id(iterator))
        if self._clock.is_training():
            self._begin_run()
            self._num_guesses_left = max(self._num_guesses_left, 1)
            left = [each for each in self._waiting if each.loader == id(iterator)]
            self._ended = left[-1] if left else self._ended

    def fetch_evaluated(self) -> None:
        """The last batch that was asked for in an evaluation proves to be one of training."""
        if self._evaluated is not None:
            self.num_batches += 1
            self._evaluated.number = self.num_batches
            self._wait(self._evaluated)
            self._evaluated = None

    def take_evaluated(self) -> None:
        """It was trained on before that was known."""
        fetched = self._evaluated
        self.fetch_evaluated()
        if fetched is not None:
            self._take(fetched)

    def take(self, inputs: Any) -> None:
        """A call of training gets its arguments: count the batches that are new in them."""
        self._saw_call = self._was_called = True
        found = self.storages.find(inputs)
        if found:
            self._num_guesses_left = max(0, self._num_guesses_left - 1)
            for each in found:
                # What was a guess in an earlier step was wrong there.
                if not each.is_taken or (each.is_guess and each.taken_in != self._num_steps):
                    self._take(each)
                    self._pass_over(each.loader, each.number)
        elif self._waiting and self._num_guesses_left:
            guess = self._guess(inputs)
            self._num_guesses_left = max(0, self._num_guesses_left - len(guess))
            for each in guess:
                self._take(each, is_guess=True)

    def evaluate(self, inputs: Any) -> None:
        """A call that no gradients flow through gets its arguments; training may go on with the same batch or not."""
        if self._waiting and self._clock.is_training():
            for each in self.storages.find(inputs) or self._waiting[-1:]:
                each.evaluated = True

    def end_step(self) -> None:
        """The step is over: where no call of a model was seen to use any batch, it has used all that were fetched."""
        if not self._saw_call:
            for each in [each for each in self._waiting if not each.evaluated]:
                self._take(each)
        if self._waiting:
            newest = self._newest_taken
            self._waiting = [each for each in self._waiting if not each.evaluated or each.number > newest]

    def _wait(self, fetched: Fetched) -> None:
        self._begin_run()
        self._run.append(fetched)
        # Loops that fetch ahead begin with two of one loader, of which they use one.
        starts = any(each.is_first for each in self._run)
        self._num_guesses_left = len({each.loader for each in self._run}) if starts else len(self._run)
        self._last_loader = fetched.loader
        del self._waiting[: 1 - _MAX_WAITING]
        self._waiting.append(fetched)

    def _begin_run(self) -> None:
        """Batches come after calls of training."""
        if self._was_called:
            self._was_called = False
            self._run = []
            ended, self._ended = self._ended, None
            if ended is not None:
                self._pass_over(ended.loader, ended.number + 1)

    def _pass_over(self, loader: int, number: int) -> None:
        """Wait no more for what a loader gave before a batch: the loop has left it out."""
        self._waiting = [each for each in self._waiting if each.loader != loader or each.number >= number]

    def _guess(self, inputs: Any) -> list[Fetched]:
        """Return the batches that a call may be for which gets nothing of any as it is."""
        waiting = self._waiting
        oldest_of_each = list({each.loader: each for each in reversed(waiting)}.values())
        of_run = [] if any(each.is_first for each in self._run) else [each for each in self._run if not each.is_taken]
        rows = first_rows(inputs)
        for joined in (oldest_of_each, [each for each in waiting if each.evaluated], of_run):
            if len(joined) > 1 and sum(each.size.samples or 0 for each in joined) == rows:
                return joined
        of_training = [each for each in waiting if not (each.evaluated and self._is_validation(each.loader))]
        of_same_loader = [each for each in of_training if each.loader == self._last_taken_loader]
        return (of_same_loader or of_training)[:1]

    def _is_validation(self, loader: int) -> bool:
        """Whether nothing that was evaluated of a loader is trained on: another came, or it ended, before any was."""
        return loader != self._last_loader or not (loader in self._running or loader in self._trained_on)

    def _take(self, fetched: Fetched, *, is_guess: bool = False) -> None:
        """Count a batch for the step in progress."""
        if not fetched.is_taken and fetched in self._waiting:
            self._waiting.remove(fetched)
        fetched.taken_in, fetched.is_guess = self._num_steps, is_guess
        self._last_taken_loader = fetched.loader
        self._trained_on.add(fetched.loader)
        self._newest_taken = max(self._newest_taken, fetched.number)
        size = fetched.size
        if size.num_bytes is not None:
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
