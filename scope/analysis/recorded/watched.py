"""What is seen of a live run at one instant, and what all findings about it share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from scope.analysis.recorded.first_end import place_of
from scope.frames.schema import RankSteps
from scope.run.schema import Verdict

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from scope.analysis.recorded.failures import Failure
    from scope.analysis.recorded.standing import RunState
    from scope.run.blackbox import BlackBoxState
    from scope.run.schema import RankInfo

_SHOWN_PLACES: Final = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Watched:
    """All that is seen of one attempt at one instant.

    Attributes:
        state: How the run stands.
        infos: `rank.json` of its ranks.
        boxes: Their black boxes, by rank.
        steps: Table `RankSteps` of the attempt.
        now_ns: The instant, since the epoch.
        failures: Exceptions and exit codes that ended ranks, the earliest first.
    """

    state: RunState
    infos: Sequence[RankInfo]
    boxes: Mapping[int, BlackBoxState]
    steps: pl.LazyFrame
    now_ns: int
    failures: Sequence[Failure] = ()


def find_last_step(watched: Watched) -> int | None:
    """Return the number of the last step that ended on any rank, as far as it was written; None before the first."""
    last = pl.col(RankSteps.step) + pl.col(RankSteps.num_steps) - 1
    return watched.steps.select(last.max()).collect().item()


def judge(watched: Watched, kind: str, summary: str, **more: Any) -> Verdict:
    """Return a finding of this instant, critical unless `more`, fields of `Verdict`, says otherwise."""
    fields: dict[str, Any] = {"severity": "critical", **more}
    return Verdict(time_ns=watched.now_ns, attempt=watched.infos[0].attempt, kind=kind, summary=summary, **fields)


def describe_places(watched: Watched, ranks: Sequence[int]) -> str:
    """Return host, process, step and phase of the first of these ranks."""
    infos = {info.rank: info for info in watched.infos}
    shown = "; ".join(place_of(infos[rank], watched.boxes.get(rank)) for rank in ranks[:_SHOWN_PLACES])
    more = len(ranks) - _SHOWN_PLACES
    return f"{shown}; and {more:,} more" if more > 0 else shown
