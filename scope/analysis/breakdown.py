"""Where a device's time went: compute, exposed communication, exposed memory, idle; and what overlapped."""

from __future__ import annotations

from dataclasses import dataclass

from scope.analysis.result import Result


@dataclass(frozen=True, kw_only=True, slots=True)
class Breakdown(Result):
    """The time of one or several windows, by what ran; lengths are of unions, so nothing counts twice.

    `compute_ns + exposed_communication_ns + exposed_memory_ns + idle_ns == window_ns`, exactly.
    """

    window_ns: int
    """Length of the window, or the sum of the lengths of several."""
    compute_ns: int
    """Union of compute."""
    exposed_communication_ns: int
    """Union of communication, minus compute."""
    exposed_memory_ns: int
    """Union of copies and sets, minus compute and communication."""
    idle_ns: int
    """The rest: nothing ran."""
    communication_ns: int
    """Union of communication, whether exposed or not."""
    memory_ns: int
    """Union of copies and sets, whether exposed or not; 0 where an option counts them as compute."""
    overlap_ns: int
    """Union of communication intersected with the union of compute."""
    peer_copy_ns: int
    """Union of copies between devices (P2P): part of `memory_ns`, which move data as communication does."""
    overlap_ratio: float | None
    """`overlap_ns / communication_ns`."""

    @property
    def busy_ns(self) -> int:
        """Time in which anything ran."""
        return self.window_ns - self.idle_ns

    def _check_sums(self) -> None:
        parts = self.compute_ns + self.exposed_communication_ns + self.exposed_memory_ns + self.idle_ns
        assert parts == self.window_ns, f"parts sum to {parts} of {self.window_ns} ns"
        assert self.exposed_communication_ns + self.overlap_ns == self.communication_ns
        assert min(self.compute_ns, self.exposed_memory_ns, self.idle_ns, self.overlap_ns) >= 0
        assert self.peer_copy_ns <= self.memory_ns or self.memory_ns == 0
