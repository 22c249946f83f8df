"""One rank that makes others wait: what is told of it, and which activity of its own is the reason."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median_low
from typing import TYPE_CHECKING, Final, Literal

import polars as pl

from scope.analysis.collective_tables import CollectiveRows, GroupRows, MatchedCalls
from scope.analysis.own_time import PREVIOUS
from scope.analysis.own_time_noise import FLOOR, NOISE_FLOOR_NS
from scope.analysis.readiness import READY
from scope.analysis.result import Result
from scope.analysis.savings import MOST_REPLAYED
from scope.analysis.straggler_charges import CHARGE
from scope.trace.columns import Column, Table

if TYPE_CHECKING:
    from collections.abc import Mapping

    from scope.analysis.replay import Shifts

_EXPLAINS: Final = 0.5
"""An activity is the reason when its excess is at least this share of the imposed wait."""

_TOO_MANY: Final = f"worked out for the {MOST_REPLAYED} ranks that impose most"
_HIDDEN: Final = "ranks are missing, and others may wait for these behind it"
UNTOLD_WAITS: Final = "collectives overlap compute, and no launches in the traces tell which compute they waited for"
"""Why neither savings nor excesses are told."""

StragglerReason = Literal["compute", "input", "memory", "host"]
REASONS: Final[tuple[StragglerReason, ...]] = ("compute", "input", "memory", "host")


class StragglerSteps(Table):
    """What each rank imposed in each step, sorted by rank and step."""

    rank = Column("rank", pl.Int32, "global rank")
    step_number = Column("step_number", pl.Int64, "n of `ProfilerStep#n`", nullable=True)
    group_id = Column("group_id", pl.UInt32, "the group in which it imposed most; row of `GroupRows`")
    imposed_wait_ns = Column("imposed_wait_ns", pl.Int64, "own lateness that the last but one did not share")
    num_collectives = Column("num_collectives", pl.Int64, "collectives at which it did")


class Excess(Result, frozen=True, kw_only=True):
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


class Straggler(Result, frozen=True, kw_only=True):
    """One rank that makes others wait."""

    rank: int
    imposed_wait_ns: int
    """How much sooner its groups' collectives would have begun without its lateness: its own time between collectives
    (exposed communication taken off) beyond every peer's, at most last less second-last arrival, or less the last one
    outside its ring where ranks of a ring of context parallelism come late behind it; of several nested groups that
    feel one delay the largest counts. At most that long where `excess` is absent: some lateness may count
    twice where no launches tell which compute calls waited for."""
    saving_ns: int | None
    """How much sooner the recorded part of the job would have ended, had the rank worked as fast as its peers.
    What it does behind its last collective there, the last optimizer step say, is not compared and saves nothing."""
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
    """Absent where no launches tell which compute calls waited for."""
    noise_floor_ns: int
    """Below the error of the clocks plus this, lateness is not held against anybody."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Told:
    """What all ranks that make others wait are described by."""

    groups: pl.DataFrame
    """The table `GroupRows`."""
    per_step: pl.DataFrame
    """The table `StragglerSteps`."""
    charges: pl.DataFrame
    """What `straggler_charges.charge` returned."""
    own: pl.DataFrame
    """The judged calls with own times and noise."""
    shifts: Mapping[int, Shifts]
    """By rank whose repair was played, what changes with it."""
    is_untold: bool
    """No launches tell which compute some collectives waited for."""
    has_missing_ranks: bool
    """Ranks are missing, so that a saving is told as far as the others tell."""


def describe_straggler(rank: int, told: Told) -> Straggler:
    """Return what is told of a rank that is charged.

    Args:
        rank: The rank.
        told: What it is described by.
    """
    charges, own = told.charges, told.own
    steps = told.per_step.filter(pl.col(StragglerSteps.rank) == rank)
    imposed = int(steps[StragglerSteps.imposed_wait_ns].sum())
    worst = steps.sort(StragglerSteps.imposed_wait_ns, descending=True).row(0, named=True)
    by_group = steps.group_by(StragglerSteps.group_id).agg(pl.col(StragglerSteps.imposed_wait_ns).sum())
    group = by_group.sort(StragglerSteps.imposed_wait_ns, StragglerSteps.group_id, descending=[True, False])[
        StragglerSteps.group_id
    ].item(0)
    ranks = told.groups.filter(pl.col(GroupRows.group_id) == group)[GroupRows.ranks].item().to_list()
    mine = charges.filter((pl.col(CollectiveRows.last_rank) == rank) & (pl.col(CollectiveRows.group_id) == group))
    excess = _excess(
        rank, own.filter(pl.col(MatchedCalls.collective_id).is_in(mine[MatchedCalls.collective_id].implode()))
    )
    charged = int(mine[CHARGE].sum())
    reason = _reason(excess, charged)
    absent = {} if reason else {"reason": "no activity of its own explains half of what it imposed"}
    if worst[StragglerSteps.step_number] is None:
        absent["worst_step_number"] = "the trace has no steps around it"
    shift = told.shifts.get(rank)
    if shift is None:
        absent["saving_ns"] = UNTOLD_WAITS if told.is_untold else _TOO_MANY
    elif told.has_missing_ranks and shift.job_ns <= NOISE_FLOOR_NS:
        shift, absent["saving_ns"] = None, _HIDDEN
    if told.is_untold:
        absent["excess"] = UNTOLD_WAITS
    return Straggler(
        rank=rank,
        imposed_wait_ns=imposed,
        saving_ns=None if shift is None else shift.job_ns,
        worst_step_number=worst[StragglerSteps.step_number],
        worst_step_imposed_wait_ns=worst[StragglerSteps.imposed_wait_ns],
        num_steps=steps.height,
        num_collectives=int(steps[StragglerSteps.num_collectives].sum()),
        group_id=group,
        peers=tuple(each for each in ranks if each != rank),
        reason=reason,
        excess=None if told.is_untold else excess,
        noise_floor_ns=int(mine[FLOOR].item(0)),
        absent=absent,
    )


def _excess(rank: int, own: pl.DataFrame) -> Excess:
    """Return how much longer than its peers' median the rank spent on each activity, summed over the collectives.

    Of several since the same one, as rooted ones may be, the last holds what the rank did before the others too.
    """
    totals = dict.fromkeys(REASONS, 0)
    mine = own.filter(pl.col(MatchedCalls.rank) == rank).sort(READY).unique(PREVIOUS, keep="last")
    last = own.filter(pl.col(MatchedCalls.collective_id).is_in(mine[MatchedCalls.collective_id].implode()))
    for part in last.partition_by(MatchedCalls.collective_id):
        is_mine = part[MatchedCalls.rank] == rank
        for reason in REASONS:
            spent = part[f"{reason}_ns"]
            totals[reason] += int(spent.filter(is_mine).item()) - median_low(spent.filter(~is_mine).to_list())
    return Excess(
        compute_ns=totals["compute"], input_ns=totals["input"], memory_ns=totals["memory"], host_ns=totals["host"]
    )


def _reason(excess: Excess, charged_ns: int) -> StragglerReason | None:
    largest = max(REASONS, key=lambda reason: getattr(excess, f"{reason}_ns"))
    return largest if getattr(excess, f"{largest}_ns") >= _EXPLAINS * charged_ns else None
