"""Phases of the training thread: exclusive host time that sums to the step, whatever is nested in what."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Final

from scope.run.layout import MARK_BITS, MARKED_STATE, OWN_PHASE, STATE_OFFSET
from scope.run.schema import PHASES

if TYPE_CHECKING:
    from collections.abc import Callable

    from scope.run.blackbox import BlackBox
    from scope.run.calls import CallLog

ABSORBING: Final = frozenset({"evaluation", "checkpoint"})
"""Automatic phases inside these are not told apart: an evaluation's forward is evaluation."""

_TIMED_EVERY: Final = 64
"""Changes from one that is timed to the next, after the first ones."""

_pack_state = MARKED_STATE.pack
_pwrite = os.pwrite
_thread_of_caller = threading.get_ident

CODES: Final = {name: code for code, name in enumerate(PHASES)}

_MAX_NAMES: Final = 1_000
"""Names of phases whose form in the black box is kept."""


class PhaseClock:
    """Cuts the time of one thread into phases; the innermost open phase owns the time.

    Attributes:
        thread: Identity of the thread that is measured; phases of other threads are ignored.
        step: Number of the step in progress, -1 before the first.
        num_steps: Steps that were cut.
        num_changes: Phase changes so far.
        saw_other_thread: Whether an optimizer has stepped in a thread that is not measured, and not as a part of a
            backward pass of the one that is.
        on_change: Told the phase that ends and the instant at each change (memory peaks by phase); no more once it has
            raised.
        failed: Told what `on_change` raised.
    """

    def __init__(
        self, black_box: BlackBox, calls: CallLog, *, now: Callable[[], int] = time.monotonic_ns, start_ns: int
    ) -> None:
        self.thread = threading.get_ident()
        self.step = -1
        self.num_steps = 0
        self.num_changes = 0
        self.saw_other_thread = False
        self._costs: deque[int] = deque(maxlen=15)
        self._typical_ns = 0
        self._timed_at = 0
        self._cost_ns = 0
        self._num_counted = 0
        self.on_change: Callable[[str, int], None] | None = None
        self.failed: Callable[[Exception], None] | None = None
        self._black_box = black_box
        self._calls = calls
        self._now = now
        self._stack: list[tuple[str, bool]] = [("startup", False)]
        self._spent: dict[str, int] = {}
        self._cut_ns = start_ns
        self._changed_ns = start_ns
        self._noticed_ns = 0
        self._last_length_ns = 0
        self._written: dict[str, tuple[int, bytes]] = {}

    @property
    def phase(self) -> str:
        """The innermost open phase."""
        return self._stack[-1][0]

    @property
    def step_start_ns(self) -> int:
        """Monotonic instant at which the step in progress began."""
        return self._cut_ns

    @property
    def last_seen_ns(self) -> int:
        """Monotonic instant at which a phase began or ended last, or was noticed inside an evaluation."""
        return max(self._changed_ns, self._noticed_ns)

    def set_base(self, name: str) -> None:
        """Change the phase that owns the time in which no other is open (`startup`, `init`, then `other`)."""
        now = self._now()
        self._spend(now)
        self._stack[0] = (name, False)
        self._tell(now)

    def push(self, name: str, *, automatic: bool = True) -> bool:
        """Begin a phase; return whether `pop` has to end it.

        Args:
            name: The phase.
            automatic: Found by a hook, so that it is ignored inside an evaluation or checkpoint, and inside itself, but
                not inside a phase of the user's own with its name: the hook has its passes to count. A checkpoint that
                is written in an evaluation, as trainers do before they go on, is told apart from it.
        """
        if _thread_of_caller() != self.thread:
            # In a backward pass it is a thread of autograd's own, which steps optimizers by hooks of gradients.
            self.saw_other_thread = self.saw_other_thread or (name == "optimizer" and self.phase != "backward")
            return False
        now = self._now()
        stack = self._stack
        if automatic and len(stack) > 1 and (stack[-1] == (name, True) or self._absorbs(name)):
            self._noticed_ns = now
            return False
        self._spend(now)
        stack.append((name, automatic))
        self._tell(now)
        if self.num_changes > self._timed_at:
            self._take_time(self._now() - now)
        return True

    def pop(self, name: str) -> None:
        """End a phase, and with it whatever was left open inside it."""
        stack = self._stack
        depth = len(stack) - 1
        while depth > 0:
            if stack[depth][0] == name:
                now = self._now()
                self._spend(now)
                del stack[depth:]
                self._tell(now)
                return
            depth -= 1

    def notice(self) -> None:
        """Note that something ended which is no phase of its own: a model's call inside an evaluation."""
        if _thread_of_caller() == self.thread and self.is_absorbing():
            self._noticed_ns = self._now()

    def end_evaluation(self, end_ns: int) -> bool:
        """End an evaluation that a hook began, whatever is open inside it; return whether that alone was absorbing.

        Args:
            end_ns: Where it ended; the time since is of no phase, unless of one of the user's own.
        """
        stack, automatic = self._stack, ("evaluation", True)
        if [phase for phase in stack if phase[0] in ABSORBING] != [automatic]:
            return False
        if stack[-1] == automatic:
            self._spend(max(end_ns, self._changed_ns))
        stack.remove(automatic)
        self._tell(self._changed_ns)
        return True

    def find_end(self) -> int:
        """Return up to when phases were seen: now inside one, else where the last one ended.

        `eval()` begins an evaluation that only `train()` ends: one that is left open lasts until the last batch or call
        of a model in it.
        """
        if any(name != "evaluation" for name, _ in self._stack[1:]):
            return self._now()
        return self.last_seen_ns

    def is_own_thread(self) -> bool:
        """Whether the caller is the thread that is measured."""
        return _thread_of_caller() == self.thread

    def is_training(self) -> bool:
        """Whether what the caller does counts: it is the thread that is measured, outside of evaluations and such."""
        return _thread_of_caller() == self.thread and (len(self._stack) == 1 or not self.is_absorbing())

    def disown(self) -> None:
        """Measure no thread any more: in a forked child the black box is the parent's."""
        self.thread = -1

    def spent_so_far(self) -> dict[str, int]:
        """Return the exclusive times since the last cut."""
        self._spend(self._now())
        return dict(self._spent)

    def estimate_cost(self) -> int:
        """Return what all changes so far took, in ns: each at the median, when asked, of those that were timed."""
        if self._typical_ns:
            self._cost_ns += (self.num_changes - self._num_counted) * self._typical_ns
            self._num_counted = self.num_changes
        return self._cost_ns

    def is_absorbing(self) -> bool:
        """Whether a phase is open inside which automatic phases are not told apart."""
        # Outside of all phases, where most hooks come in, there is nothing to look for.
        return len(self._stack) > 1 and not ABSORBING.isdisjoint(name for name, _ in self._stack)

    def _absorbs(self, name: str) -> bool:
        """Whether a phase that a hook finds is a part of one that is open."""
        if name == "checkpoint":
            return any(opened == name for opened, _ in self._stack)
        return self.is_absorbing()

    def cut(self, *, end_ns: int | None = None) -> tuple[int, int, dict[str, int]]:
        """End the step; return its start, its end and its exclusive times, which sum to the difference exactly.

        Args:
            end_ns: Where it ended, now when absent; not before `last_seen_ns`.
        """
        now = self._now() if end_ns is None else end_ns
        self._spend(now)
        start, spent = self._cut_ns, self._spent
        assert sum(spent.values()) == now - start
        self._last_length_ns = now - start
        self._cut_ns = now
        self._spent = {}
        return start, now, spent

    def begin_step(self, step: int) -> None:
        """Say which step the time after the last cut belongs to."""
        self.num_steps += self.step >= 0
        self.step = step
        self._tell(self._changed_ns)

    def _take_time(self, took_ns: int) -> None:
        """Take what one change took."""
        costs = self._costs
        costs.append(took_ns)
        self._typical_ns = sorted(costs)[(len(costs) - 1) // 2]
        # All at first: runs of a few steps know their cost too, and the slow first ones weigh little.
        self._timed_at = self.num_changes + (_TIMED_EVERY if len(costs) == costs.maxlen else 0)

    def _spend(self, now: int) -> None:
        """Give the time up to now to the phase in progress, which goes on."""
        name = self._stack[-1][0]
        on_change = self.on_change
        if on_change is not None:
            try:
                on_change(name, now)
            except Exception as error:  # noqa: BLE001 - the one guard around hooks
                self.on_change = None
                if self.failed is not None:
                    self.failed(error)
        length = now - self._changed_ns
        if length > 0:
            spent = self._spent
            spent[name] = spent.get(name, 0) + length
        self._changed_ns = now
        self.num_changes += 1

    def _tell(self, now: int) -> None:
        """Write the phase in progress into the black box."""
        stack = self._stack
        name = stack[-1][0]
        written = self._written.get(name)
        if written is None:
            written = self._remember(name)
        self._calls.phase, text = written
        box = self._black_box
        if box.descriptor < 0:
            return
        mark = now & MARK_BITS
        state = _pack_state(
            mark,
            self.step,
            self.num_steps,
            self._cut_ns,
            self._changed_ns,
            now,
            self._last_length_ns,
            len(stack) - 1,
            text,
            mark,
        )
        try:
            _pwrite(box.descriptor, state, STATE_OFFSET)
        except OSError:
            box.num_failed += 1

    def _remember(self, name: str) -> tuple[int, bytes]:
        """Return a phase's code and its name as the black box has it."""
        if len(self._written) >= _MAX_NAMES:
            self._written.clear()
        written = self._written[name] = CODES.get(name, OWN_PHASE), name.encode()[:24]
        return written
