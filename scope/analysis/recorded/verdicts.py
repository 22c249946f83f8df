"""What all ranks of a live run together tell: who hangs, who died, who makes the others wait."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scope.analysis.recorded.crashes import find_crashes, is_explained
from scope.analysis.recorded.hangs import find_hangs, find_silence
from scope.analysis.recorded.stragglers import find_stragglers
from scope.run.alive import find_fate
from scope.run.verdicts import identify

if TYPE_CHECKING:
    from collections.abc import Callable

    from scope.analysis.recorded.watched import Watched
    from scope.run.schema import RankInfo, Verdict


def find_verdicts(watched: Watched, *, fate: Callable[[RankInfo], bool | None] = find_fate) -> list[Verdict]:
    """Return what holds now: crashes, hangs, mismatches of collectives and stragglers, the worst first.

    Args:
        watched: What is seen of the run.
        fate: Returns whether a rank's process lives, None where nobody can tell; by default this host is asked.
    """
    if not watched.infos:
        return []
    crashes = find_crashes(watched, fate)
    dead = {rank for verdict in crashes for rank in verdict.ranks}
    found = [*crashes, *find_hangs(watched), *find_silence(watched, dead=dead)]
    return found or find_stragglers(watched)


def is_refuted(watched: Watched, verdict: Verdict) -> bool:
    """Return whether what is seen now refutes a finding on record, whose watcher may have gone before it was over.

    Args:
        watched: What is seen of the run.
        verdict: The finding: a crash that was explained since, or a silence that is none any more; no other is refuted.
    """
    if verdict.kind == "silence":
        return identify(verdict) not in map(identify, find_silence(watched))
    return is_explained(watched, verdict)
