"""How far the clocks of the ranks stand apart, from the collectives that they took part in together."""

from __future__ import annotations

from dataclasses import dataclass

from scope.analysis.result import Result


@dataclass(frozen=True, kw_only=True, slots=True)
class ClockOffset(Result):
    """One rank's clock against the reference rank of its component: rank's time = reference's time + offset."""

    rank: int
    reference_rank: int
    """The lowest rank of the component; its own offset is 0."""
    component: int
    """Index into `ClockAlignment.components`."""
    offset_ns: int
    """Estimate, at the middle of the calls in common: the median difference of their ends, held inside the interval."""
    low_ns: int | None
    """The offset is at least this, whatever the ranks waited; None without a collective that bounds it."""
    high_ns: int | None
    """The offset is at most this."""
    drift_ppb: float
    """How much faster than the reference the clock runs, nanoseconds a second; 0 where no drift stands out."""
    residual_ns: int | None
    """Median distance of the ends of common collectives after the estimate is taken off."""
    num_collectives: int
    """Collectives that the estimate rests on."""
    applied_offset_ns: int
    """What was taken off the rank's instants at the middle of the window: the estimate, or 0 where clocks agree."""

    @property
    def interval_ns(self) -> int | None:
        """Width of the interval that holds the true offset."""
        return None if self.low_ns is None or self.high_ns is None else self.high_ns - self.low_ns

    def _check_sums(self) -> None:
        if self.low_ns is not None and self.high_ns is not None:
            assert self.low_ns <= self.offset_ns <= self.high_ns, f"rank {self.rank}: estimate outside its interval"


@dataclass(frozen=True, kw_only=True, slots=True)
class ClockAlignment(Result):
    """The clocks of all ranks; between components nothing is known."""

    offsets: tuple[ClockOffset, ...]
    """By rank."""
    components: tuple[tuple[int, ...], ...]
    """Ranks that collectives join, each sorted; in the order of their lowest rank."""
    is_corrected: bool
    """Some rank's instants were moved; False where the clocks as recorded agree (one host, say)."""
    num_contradictions: int
    """Ranks whose calls no offset explains, even with drift: a clock that jumped, or calls matched wrongly."""
