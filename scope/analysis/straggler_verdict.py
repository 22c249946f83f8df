"""One sentence on who makes a job wait, also when nobody is named."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from scope.analysis.own_time_noise import MIN_TIMES
from scope.units import format_duration

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scope.analysis.late_together import LateTogether
    from scope.analysis.straggler_facts import Straggler
    from scope.trace.model import Job

TELL_ROOT: Final = "record with record_shapes=True, which writes roots down"
AS_SEEN: Final = ", as far as the ranks at hand tell"
"""What stands behind a saving where ranks are missing."""
_ALL_RANKS: Final = "give the traces of all ranks (scope run --capture-ranks all takes them)"


def straggler_verdict(
    found: Sequence[Straggler],
    together: LateTogether | None,
    num_judged: int,
    job: Job,
    *,
    num_of_unknown_group: int,
    has_missing_ranks: bool,
) -> str:
    """Return the sentence.

    Args:
        found: The stragglers, most imposed wait first.
        together: Those that are late at once, if any.
        num_judged: Collectives in which a straggler could show.
        job: The ranks.
        num_of_unknown_group: Calls whose group the traces do not tell.
        has_missing_ranks: Whether ranks are missing.
    """
    if together is not None and not found:
        ranks = ", ".join(map(str, together.ranks))
        seen = AS_SEEN if has_missing_ranks else ""
        return (
            f"no rank stands out alone, but ranks {ranks} are late together: mending all of them would save "
            f"{format_duration(together.saving_ns)}, more than one of them alone{seen}"
        )
    if found:
        worst = found[0]
        why = f", mostly by {worst.reason}" if worst.reason else ""
        most = "at most " if worst.excess is None else ""
        return f"rank {worst.rank} makes its peers wait {most}{format_duration(worst.imposed_wait_ns)}{why}"
    if num_judged:
        are_few = any(0 < trace.steps.height < MIN_TIMES for trace in job.ranks)
        seldom = f"; in fewer than {MIN_TIMES} steps only lateness far beyond the noise does" if are_few else ""
        return f"no rank stands out in {num_judged} collectives{seldom}"
    if len(job.ranks) < 2:
        return f"one rank alone shows nobody waiting: {_ALL_RANKS}"
    if job.missing_ranks:
        missing = len(job.missing_ranks)
        are = "rank of the job is" if missing == 1 else "ranks of the job are"
        return f"{missing:,} {are} missing, so nobody can be named: {_ALL_RANKS}"
    if num_of_unknown_group:
        return (
            f"{num_of_unknown_group:,} collective calls ran in groups that the traces do not tell: nobody can be named"
        )
    return (
        "no collective of all ranks of a group of peers shows when they were ready for it: there is none, or each is "
        "cut, of an unknown root, or began while compute launched before it still ran"
    )


def of_unknown_root(number: int) -> str:
    """Return what to add to the sentence where traces do not tell the root of some collectives; nothing for 0."""
    if not number:
        return ""
    have = "1 collective has" if number == 1 else f"{number:,} collectives have"
    return (
        f"; {have} a root (broadcast, say) that the traces do not tell, so that who waits for whom there is unknown "
        f"and counts for nobody: {TELL_ROOT}"
    )
