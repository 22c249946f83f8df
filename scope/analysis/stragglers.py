"""Ranks that make others wait, why, and what fixing each alone would save.

A rank's own time between two collectives of its group runs from when it was ready for the one to when it was ready for
the other (`scope.analysis.readiness`), less what it waited, exposed, for other ranks, and less exposed communication.
Where it waited for the root of a rooted collective of its own group it was brought no further than the root, so that is
not taken off; nor are transfers of its own group that held all ranks up, which last as long for all.
The last rank to arrive is charged with what its own time exceeds every other rank's by, at most with what it made them
wait. So a rank that is late only because somebody kept it waiting (a pipeline, a slow tensor-parallel peer) or because
a link of its other groups is slow is not charged, and lateness that was charged once is not charged again, also where
peers computed on under their waits. Groups of peers alone are judged: no two ranks of one pipeline, whose stages work
in turn. Who waits for whom is the operation's rule: nobody for a late receiver of a broadcast.

What a rank imposes on its group and what fixing it saves are two things: ranks of the group may be waited for by others
who are late too. `scope.analysis.replay` tells the second.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Final

import polars as pl

from scope.analysis.collective_tables import CollectiveRows, GroupRows, MatchedCalls
from scope.analysis.late_together import LateTogether, compute_late_together
from scope.analysis.operations import FROM_ROOT, TO_ROOT
from scope.analysis.own_time import OWN, compute_own_times
from scope.analysis.own_time_noise import FLOOR, MARGIN, NOISE_FLOOR_NS, with_floors
from scope.analysis.rank_activity import build_activity
from scope.analysis.readiness import UNTOLD, compute_ready
from scope.analysis.replay_building import LazyReplay
from scope.analysis.result import Result
from scope.analysis.savings import MOST_REPLAYED, Mending, savings_rows, savings_table, work_counts_since
from scope.analysis.straggler_charges import CHARGE, charge, joined_by_pairs, weigh
from scope.analysis.straggler_facts import UNTOLD_WAITS, Straggler, StragglerSteps, Told, describe_straggler
from scope.analysis.straggler_verdict import of_unknown_root, straggler_verdict
from scope.analysis.straggler_waits import StragglerWaits, compute_straggler_waits

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from scope.analysis.collectives import Collectives
    from scope.analysis.replay import Shifts
    from scope.trace.model import Job

_NOT_TOGETHER: Final = "mending no several ranks together saves more than mending one of them alone"


class Stragglers(Result, frozen=True, kw_only=True):
    """The stragglers of a job, most imposed wait first."""

    stragglers: tuple[Straggler, ...]
    per_step: pl.DataFrame
    """The table `StragglerSteps`: imposed wait by rank and step."""
    waits: pl.DataFrame
    """The table `StragglerWaits`: what each rank waited, exposed, for each straggler in each step."""
    savings: pl.DataFrame
    """The table `StragglerSavings`: what each rank would gain by the repair of each straggler alone."""
    together: LateTogether | None
    """Ranks that are late at once, of which mending all saves more than mending any of them alone."""
    lazy: LazyReplay | None
    """The job, to play it again without something else; None where of no collective all ranks were seen."""
    has_missing_ranks: bool
    """Ranks are missing, so that savings are told as far as the others tell: more is saved where others wait behind
    those, and less where they are late themselves, or hand on what others are late by."""
    num_collectives_judged: int
    """Complete, uncut collectives among peers, in which a straggler could show."""
    num_collectives_skipped: int
    """The rest: incomplete, cut, pairs, of an unknown root, among stages of one pipeline, begun while compute launched
    before them still ran, or the first of recordings that begin at different steps."""
    num_of_unknown_root: int
    """Of these, complete and uncut ones whose root the traces do not tell: who waits for whom is unknown."""
    verdict: str
    """One sentence for people, also when nobody is named."""


def compute_stragglers(job: Job, collectives: Collectives) -> Stragglers:
    """Name the ranks that make their peers wait.

    Args:
        job: The ranks of the job.
        collectives: What `compute_collectives` returned for it.
    """
    judged = _judged(collectives)
    are_together = _are_together(collectives)
    activity = build_activity(job, collectives) if are_together else pl.DataFrame()
    ready = compute_ready(job, collectives) if are_together else pl.DataFrame()
    own = (
        judged
        if judged.is_empty()
        else compute_own_times(judged, collectives, activity, ready).filter(pl.col(OWN).is_not_null())
    )
    num_judged = own[MatchedCalls.collective_id].n_unique()
    skipped = collectives.collectives.height - num_judged
    lazy = LazyReplay(collectives, activity, ready) if are_together else None
    own = with_floors(own, collectives.groups) if num_judged else own
    weighed = weigh(own, collectives) if num_judged else None
    charges = None if weighed is None else charge(weighed)
    is_untold = are_together and bool(ready[UNTOLD].any())
    per_step = StragglerSteps.empty() if charges is None else _per_step(charges)
    ranked = _ranked(per_step)
    late_for = _late_for(ranked, own)
    shifts: dict[int, Shifts] = {}
    together = None
    if weighed is not None and lazy is not None and not is_untold:
        shifts, together = _mended(own, weighed, late_for, lazy)
    rootless = _num_of_unknown_root(collectives)
    absent = {} if lazy is not None else {"lazy": "no collective of which all ranks were seen"}
    has_missing = _has_missing(collectives)
    found: list[Straggler] = []
    if charges is not None:
        told = Told(
            groups=collectives.groups,
            per_step=per_step,
            charges=charges,
            own=own,
            shifts=shifts,
            is_untold=is_untold,
            has_missing_ranks=has_missing,
        )
        found = [describe_straggler(rank, told) for rank in ranked]
    said = straggler_verdict(
        found,
        together,
        num_judged,
        job,
        num_of_unknown_group=collectives.num_of_unknown_group,
        has_missing_ranks=has_missing,
    )
    return Stragglers(
        stragglers=tuple(found),
        per_step=StragglerSteps.check(per_step),
        waits=StragglerWaits.empty() if charges is None else compute_straggler_waits(own, charges, activity),
        savings=savings_table(row for rank, each in shifts.items() for row in savings_rows(rank, each)),
        lazy=lazy,
        has_missing_ranks=has_missing,
        num_collectives_judged=num_judged,
        num_collectives_skipped=skipped,
        num_of_unknown_root=rootless,
        together=together,
        verdict=f"{said}{of_unknown_root(rootless)}",
        absent=absent if together is not None else absent | {"together": UNTOLD_WAITS if is_untold else _NOT_TOGETHER},
    )


def _mended(
    own: pl.DataFrame, weighed: pl.DataFrame, late_for: Mapping[int, Sequence[int]], lazy: LazyReplay
) -> tuple[dict[int, Shifts], LateTogether | None]:
    """Return what changes when each rank is mended alone, by rank, and when all are where that saves more.

    Args:
        own: The judged calls with own times.
        weighed: What `weigh` returned.
        late_for: By rank that is named, the collectives that it is late for; who imposes most comes first.
        lazy: The job.
    """
    # Built when it is first asked for: most jobs have nobody to mend.
    mending = cache(lambda: Mending(lazy.work, work_counts_since(own)))
    shifts = {rank: mending().without(rank, late_for[rank]) for rank in list(late_for)[:MOST_REPLAYED]}
    together = compute_late_together(own, weighed, late_for, mending)
    alone_ns = max((each.job_ns for each in shifts.values()), default=0)
    is_more = together is not None and together.saving_ns > NOISE_FLOOR_NS + alone_ns
    return shifts, together if is_more else None


def _late_for(ranks: Sequence[int], own: pl.DataFrame) -> dict[int, list[int]]:
    """Return, by rank, the collectives that it is late for by its own time, also where others arrive as late.

    Ranks of one ring wait for each other before they meet all others: then they are late alike, and one is to blame.
    """
    if not ranks:
        return {}
    late = own.filter(pl.col(MatchedCalls.rank).is_in(ranks), pl.col(MARGIN) > pl.col(FLOOR))
    by_rank = late.group_by(MatchedCalls.rank).agg(pl.col(MatchedCalls.collective_id).sort())
    found = dict(by_rank.iter_rows())
    return {rank: found.get(rank, []) for rank in ranks}


def _has_missing(collectives: Collectives) -> bool:
    """Return whether a rank of some group is in none of the traces."""
    ranks = collectives.groups[GroupRows.ranks].explode().drop_nulls()
    return not ranks.is_in(collectives.calls[MatchedCalls.rank].implode()).all()


def _are_together(collectives: Collectives) -> bool:
    rows = collectives.collectives
    return not rows.filter(CollectiveRows.is_complete, pl.col(CollectiveRows.num_ranks_seen) > 1).is_empty()


def _judged(collectives: Collectives) -> pl.DataFrame:
    """Return the calls of complete, uncut collectives among peers of which it is known who waits for whom."""
    groups = collectives.groups
    pipelines = joined_by_pairs(groups, of_context=False)
    peers = [
        group
        for group, ranks, is_pair in groups.select(GroupRows.group_id, GroupRows.ranks, GroupRows.is_pair).iter_rows()
        if ranks is not None and not is_pair and _are_peers(ranks, pipelines)
    ]
    rows = collectives.collectives.filter(
        CollectiveRows.is_complete,
        ~pl.col(CollectiveRows.is_cut),
        pl.col(CollectiveRows.imposed_wait_ns).is_not_null(),
        pl.col(CollectiveRows.num_ranks_seen) > 1,
        pl.col(CollectiveRows.clock_error_ns).is_not_null(),
        pl.col(CollectiveRows.group_id).is_in(peers),
    ).select(CollectiveRows.collective_id, CollectiveRows.group_id)
    return collectives.calls.join(rows, on=MatchedCalls.collective_id)


def _num_of_unknown_root(collectives: Collectives) -> int:
    return collectives.collectives.filter(
        CollectiveRows.is_complete,
        ~pl.col(CollectiveRows.is_cut),
        pl.col(CollectiveRows.num_ranks_seen) > 1,
        pl.col(CollectiveRows.operation).is_in((*FROM_ROOT, *TO_ROOT)),
        pl.col(CollectiveRows.imposed_wait_ns).is_null(),
    ).height


def _are_peers(ranks: Iterable[int], pipelines: Mapping[int, int]) -> bool:
    staged = [pipelines[rank] for rank in ranks if rank in pipelines]
    return len(staged) == len(set(staged))


def _per_step(charges: pl.DataFrame) -> pl.DataFrame:
    """Return the table `StragglerSteps`: of the groups that feel one delay, that in which it is largest."""
    keys = (StragglerSteps.rank, StragglerSteps.step_number)
    return (
        charges.rename({CollectiveRows.last_rank: StragglerSteps.rank})
        .group_by(*keys, StragglerSteps.group_id)
        .agg(
            pl.col(CHARGE).sum().alias(StragglerSteps.imposed_wait_ns),
            pl.len().cast(pl.Int64).alias(StragglerSteps.num_collectives),
        )
        .sort(*keys, StragglerSteps.imposed_wait_ns, StragglerSteps.group_id, descending=[False, False, True, False])
        .unique(keys, keep="first", maintain_order=True)
        .select(StragglerSteps.schema().names())
    )


def _ranked(per_step: pl.DataFrame) -> list[int]:
    totals = per_step.group_by(StragglerSteps.rank).agg(pl.col(StragglerSteps.imposed_wait_ns).sum())
    return totals.sort(StragglerSteps.imposed_wait_ns, StragglerSteps.rank, descending=[True, False])[
        StragglerSteps.rank
    ].to_list()
