"""What the steps of one rank add up to."""

from __future__ import annotations

import statistics
from collections import deque
from typing import TYPE_CHECKING, Final

from scope.run.schema import OPERATIONS, PHASES, CollectiveTotal, MemoryPeak, StepLine, StepRecord, StepSummary

if TYPE_CHECKING:
    from collections.abc import Iterable

_RECENT_STEPS: Final = 100
_TOO_LARGE: Final = 2**63
_TOO_MANY_FLOP: Final = 1e30
_MAX_COLLECTIVES: Final = 4_096
MAX_OWN_PHASES: Final = 16
OTHER_PHASE: Final = "own_other"
OWN_PHASES: Final = "custom"
OTHER_GROUP: Final = -1


class CollectiveSum:
    """All calls of one operation on one group."""

    __slots__ = ("blocked_ns", "duration_ns", "in_bytes", "num_blocked", "num_calls", "num_timed", "out_bytes")

    def __init__(self) -> None:
        self.num_calls = self.in_bytes = self.out_bytes = 0
        self.num_timed = self.duration_ns = self.num_blocked = self.blocked_ns = 0

    def add(self, total: CollectiveTotal) -> None:
        """Add one step's calls."""
        self.num_calls += total.num_calls
        self.in_bytes += total.in_bytes
        self.out_bytes += total.out_bytes
        self.num_timed += total.num_timed
        self.duration_ns += total.duration_ns or 0
        self.num_blocked += total.num_blocked_known
        self.blocked_ns += total.blocked_ns or 0


class RankTotals:
    """Sums over the steps of one rank, in integer nanoseconds and bytes.

    Attributes:
        num_steps: Steps finished.
        duration_ns: Their lengths added.
        phases: Exclusive host time by phase.
        wait_ns: Time blocked in communication; None while no step knew it.
        phase_waits: The part of it that is known to lie in a phase, by phase; none of summaries of older versions.
        gc_ns: Garbage collection.
        tokens: Tokens; None while no step knew them.
        model_flop: FLOPs; None while no step knew them.
        input_bytes: Bytes of batches; None while no step knew them.
        num_dropped: Records that the recorder dropped.
        recorder_ns: Time that recording took.
        collectives: Calls by (group, operation), control traffic left out.
        control: Control traffic by the same.
        recent_ns: Lengths of the last hundred steps.
        last: The last step; None before the first, and while there are summaries alone.
        last_undisturbed: The last step that is like others, which alone utilisation is of.
        last_end_ns: End of the last step.
        last_step: Its number.
        peak: Largest memory of any step.
        steps: (attempt, first step, last step, length) of each line, for goodput; first and last differ in a summary.
    """

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Begin anew."""
        self.num_steps = 0
        self.duration_ns = 0
        self.phases: dict[str, int] = {}
        self.wait_ns: int | None = None
        self.phase_waits: dict[str, int] = {}
        self.gc_ns = 0
        self.tokens: int | None = None
        self.model_flop: float | None = None
        self.input_bytes: int | None = None
        self.num_dropped = 0
        self.recorder_ns = 0
        self._recorder_sum_ns = 0
        self.collectives: dict[tuple[int, str], CollectiveSum] = {}
        self.control: dict[tuple[int, str], CollectiveSum] = {}
        self.recent_ns: deque[int] = deque(maxlen=_RECENT_STEPS)
        self.last: StepRecord | None = None
        self.last_undisturbed: StepRecord | None = None
        self.last_end_ns: int | None = None
        self.last_step: int | None = None
        self.first_step: int | None = None
        self.peak: dict[str, int] = {}
        self.steps: list[tuple[int, int, int, int]] = []

    def add(self, lines: Iterable[StepLine], *, attempt: int | None = None) -> int:
        """Add steps, oldest first.

        Args:
            lines: What is new.
            attempt: Keep each step's length under this attempt, for goodput; None keeps none.

        Returns:
            Steps that were refused because they hold a number below zero or beyond 64 bits.
        """
        num_refused = 0
        for line in lines:
            if not is_sound(line):
                num_refused += 1
                continue
            if isinstance(line, StepSummary):
                self._add_summary(line)
                length_ns, first, last = line.duration_ns, line.first_step, line.last_step
            else:
                self._add_step(line)
                length_ns, first, last = line.end_ns - line.start_ns, line.step, line.step
            self.duration_ns += length_ns
            self.last_end_ns, self.last_step = line.end_ns, last
            if self.first_step is None:
                self.first_step = first
            if attempt is not None:
                self.steps.append((attempt, first, last, length_ns))
            self._add_common(line)
        return num_refused

    def median_ns(self) -> int | None:
        """Return the median length of the last hundred steps; None before the first."""
        return statistics.median_low(self.recent_ns) if self.recent_ns else None

    def kept_before(self, first_step: int | None) -> int:
        """Return the time in steps of earlier attempts that were not done again.

        A step is lost when a later attempt begins at it or before it. Of a summary, whose steps cannot be told apart,
        all count as lost when its last one is.

        Args:
            first_step: First step of the attempt that runs now; None before it.
        """
        attempts = sorted({attempt for attempt, *_ in self.steps})
        limit = first_step
        kept_ns = 0
        for attempt in reversed(attempts):
            own = [(first, last, length_ns) for of, first, last, length_ns in self.steps if of == attempt]
            kept_ns += sum(length_ns for _, last, length_ns in own if limit is None or last < limit)
            first = min(first for first, _, _ in own)
            limit = first if limit is None else min(limit, first)
        return kept_ns

    def _add_step(self, step: StepRecord) -> None:
        self.num_steps += 1
        self.last = step
        if step.disturbed is None:
            self.last_undisturbed = step
        self.recent_ns.append(step.end_ns - step.start_ns)
        if step.memory is not None:
            self._add_peak(step.memory.peak)

    def _add_summary(self, summary: StepSummary) -> None:
        self.num_steps += summary.num_steps
        if summary.peak is not None:
            self._add_peak(summary.peak)

    def _add_peak(self, peak: MemoryPeak) -> None:
        for kind, size in (
            ("allocated", peak.allocated_bytes),
            ("reserved", peak.reserved_bytes),
            ("resident", peak.resident_bytes),
        ):
            if size is not None:
                self.peak[kind] = max(size, self.peak.get(kind, 0))

    def _add_common(self, line: StepLine) -> None:
        for name, spent_ns in line.phases.items():
            phase = self._phase(name)
            self.phases[phase] = self.phases.get(phase, 0) + spent_ns
        if line.communication_wait_ns is not None:
            self.wait_ns = (self.wait_ns or 0) + line.communication_wait_ns
        for name, waited_ns in (line.communication_wait_phases or {}).items():
            phase = name if name in PHASES else OWN_PHASES
            self.phase_waits[phase] = self.phase_waits.get(phase, 0) + waited_ns
        if line.tokens is not None:
            self.tokens = (self.tokens or 0) + line.tokens
        if line.model_flop is not None:
            self.model_flop = (self.model_flop or 0) + line.model_flop
        if line.input_bytes is not None:
            self.input_bytes = (self.input_bytes or 0) + line.input_bytes
        self.gc_ns += line.gc_ns
        self.num_dropped += line.num_dropped
        # An estimate, which a step may correct downwards: the sum is exact, what is shown never falls.
        self._recorder_sum_ns += line.recorder_ns
        self.recorder_ns = max(self.recorder_ns, self._recorder_sum_ns)
        for total in line.collectives:
            operation = total.operation if total.operation in OPERATIONS else "unknown"
            key = (total.group, operation)
            sums = self.control if total.control else self.collectives
            if key not in sums and len(sums) >= _MAX_COLLECTIVES:
                key = (OTHER_GROUP, operation)
            sums.setdefault(key, CollectiveSum()).add(total)

    def _phase(self, name: str) -> str:
        """Return the name that a phase's time is kept under: the user's first sixteen, all others as `own_other`.

        The first and not the largest: a sum that only grows may not lose a phase to another name.
        """
        if name in PHASES or name in self.phases:
            return name
        own = sum(known not in PHASES and known != OTHER_PHASE for known in self.phases)
        return name if own < MAX_OWN_PHASES else OTHER_PHASE


def is_sound(line: StepLine) -> bool:
    """Return whether all that a step adds up can be true: no length, size or count below zero or beyond 64 bits."""
    numbers = [line.end_ns, line.end_ns - line.start_ns, line.gc_ns, *line.phases.values()]
    numbers += [line.communication_wait_ns or 0, line.tokens or 0, line.input_bytes or 0]
    for total in line.collectives:
        numbers += [total.num_calls, total.in_bytes, total.out_bytes, total.num_timed, total.num_blocked_known]
        numbers += [total.duration_ns or 0, total.blocked_ns or 0]
    numbers += [line.num_dropped, abs(line.recorder_ns), *(line.communication_wait_phases or {}).values()]
    if isinstance(line, StepSummary):
        numbers += [line.num_steps, line.duration_ns]
    return all(0 <= number < _TOO_LARGE for number in numbers) and 0 <= (line.model_flop or 0) < _TOO_MANY_FLOP
