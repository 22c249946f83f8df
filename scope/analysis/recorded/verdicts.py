"""What all ranks of a live run together tell: who hangs, who died, who makes the others wait."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scope.analysis.recorded.crashes import find_crashes, is_explained
from scope.analysis.recorded.hangs import find_hangs, find_mismatched, find_silence
from scope.analysis.recorded.stragglers import find_stragglers, is_mended
from scope.analysis.recorded.watched import find_last_step
from scope.run.alive import find_fate
from scope.run.verdicts import STANDSTILLS, identify, is_outrun

if TYPE_CHECKING:
    from collections.abc import Callable

    from scope.analysis.recorded.watched import Watched
    from scope.run.schema import RankInfo, Verdict


def find_verdicts(watched: Watched, *, fate: Callable[[RankInfo], bool | None] = find_fate) -> list[Verdict]:
    """Return what holds now: mismatches of collectives, crashes, hangs and stragglers, causes first.

    Args:
        watched: What is seen of the run.
        fate: Returns whether a rank's process lives, None where nobody can tell; by default this host is asked.
    """
    if not watched.infos:
        return []
    crashes = find_crashes(watched, fate)
    dead = {rank for verdict in crashes for rank in verdict.ranks}
    found = [*find_mismatched(watched), *crashes, *find_hangs(watched), *find_silence(watched, dead=dead)]
    return found or find_stragglers(watched)


def is_refuted(watched: Watched, verdict: Verdict) -> bool:
    """Return whether what is seen now refutes a finding on record, whose watcher may have gone before it was over.

    A crash is refuted by its explanation, a standstill by the end of its step or an end of the run in order, a silence
    by a sign of life, a straggler once it clearly is none; no other finding is.

    Args:
        watched: What is seen of the run.
        verdict: The finding.
    """
    if verdict.kind == "silence":
        return identify(verdict) not in map(identify, find_silence(watched))
    if verdict.kind == "straggler":
        return all(is_mended(watched, rank) for rank in verdict.ranks)
    if verdict.kind in STANDSTILLS:
        in_order = watched.state.standing == "finished" and not watched.state.exit_reasons
        return in_order or is_outrun(verdict, last_step=find_last_step(watched))
    return is_explained(watched, verdict)
