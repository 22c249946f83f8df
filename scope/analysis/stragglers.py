"""Ranks that make others wait, why, and what fixing each alone would save."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from scope.analysis.result import Result

if TYPE_CHECKING:
    import polars as pl

StragglerReason = Literal["compute", "input", "memory", "host"]
REASONS: Final[tuple[StragglerReason, ...]] = ("compute", "input", "memory", "host")


@dataclass(frozen=True, kw_only=True, slots=True)
class Excess(Result):
    """How much longer than its peers' median a rank spent on each thing before the collectives it was late for.

    Summed over those collectives; negative where the rank was faster than its peers.
    """

    compute_ns: int
    """Device time under compute."""
    input_ns: int
    """Device idle while the host fetched data."""
    memory_ns: int
    """Device time in copies and sets that compute and communication do not hide, and idle time in device allocation."""
    host_ns: int
    """Device idle otherwise."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Straggler(Result):
    """One rank that makes others wait."""

    rank: int
    imposed_wait_ns: int
    """What fixing this rank alone saves: last less second-last arrival, waits suffered elsewhere taken off; of several
    nested groups that feel one delay the largest counts."""
    worst_step_number: int | None
    """The step with most imposed wait."""
    worst_step_imposed_wait_ns: int
    num_steps: int
    """Steps in which it imposed wait (1 where steps are unknown)."""
    num_collectives: int
    """Collectives at which it did."""
    group_id: int
    """The group in which it imposed most; row of `GroupRows`."""
    peers: tuple[int, ...]
    """The other ranks of that group, whose median it is compared with."""
    reason: StragglerReason | None
    excess: Excess | None
    noise_floor_ns: int
    """Below the clock interval plus this, lateness is not held against anybody."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Stragglers(Result):
    """The stragglers of a job, most imposed wait first."""

    stragglers: tuple[Straggler, ...]
    per_step: pl.DataFrame
    """The table `StragglerSteps`: imposed wait by rank and step."""
    num_collectives_judged: int
    """Complete, uncut collectives among peers, in which a straggler could show."""
    num_collectives_skipped: int
    """The rest: incomplete, cut, pairs, rooted, or among stages of one pipeline."""
    verdict: str
    """One sentence for people, also when nobody is named."""
