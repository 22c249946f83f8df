"""Who works longer than its peers by the records of a run, which hold every step where a profiler window holds few."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import polars as pl

from scope.errors import RunError
from scope.units import format_duration

if TYPE_CHECKING:
    from collections.abc import Iterator

    from scope.analysis.stragglers import Stragglers
    from scope.trace.model import Job

WAITING_IS_NO_BUCKET: Final = "waiting for it is exposed communication of the others, which larger buckets do not mend"
"""What a reader of findings on communication must know who is told of a slow rank beside them."""


_TRACES_FOLDER: Final = "traces"
"""Where the traces of a recorded run lie; what reads runs is imported only for those."""


class Recorded(NamedTuple):
    """What the records of one attempt say."""

    num_ranks: int
    slowest: str | None
    """Which rank works notably longer than its peers, as the beginning of a sentence; None where none does."""


def read_slowest(run: Path, attempt: int) -> Recorded | None:
    """Return what the records of an attempt say of who is slow; None where this is no run that can be read."""
    from scope.run.paths import RUN_FILE

    if not (run / RUN_FILE).is_file():
        return None
    from scope.analysis.recorded import compute_rank_excess, describe_slowest, peer_sets
    from scope.frames import open_run
    from scope.frames.schema import RankSteps

    try:
        opened = open_run(run)
    except RunError:
        return None  # its traces can be read all the same
    infos = [info for info in opened.rank_infos if info.attempt == attempt]
    steps = opened.steps().lazy().filter(pl.col(RankSteps.attempt) == attempt)
    return Recorded(len(infos), describe_slowest(compute_rank_excess(steps, peers=peer_sets(infos))))


def say_slowest(job: Job, stragglers: Stragglers | None) -> Iterator[str]:
    """Yield who is slow by the records of the run that the traces are a window of, where the window names nobody.

    Where the window lacks ranks, that is said when it is chosen (`scope.report.windows`).
    """
    if stragglers is not None and (stragglers.stragglers or stragglers.together is not None):
        return
    place = _place_of(job)
    if place is None:
        return
    recorded = read_slowest(*place)
    if recorded is None or recorded.slowest is None or recorded.num_ranks > len(job.ranks):
        return
    yield (
        f"this window names no straggler, but by the records of all steps {recorded.slowest}: look at that first "
        f"(scope show RUN); {WAITING_IS_NO_BUCKET}"
    )


def compare_recorded(before: Job, after: Job) -> Iterator[str]:
    """Yield what the records of all steps say where two windows of recorded runs are compared.

    How long a step of each run usually takes, where both tell it, and which ranks work longer than their peers.
    """
    sides = {name: _place_of(job) for name, job in (("before", before), ("after", after))}
    medians = [None if place is None else _median_step(*place) for place in sides.values()]
    if None not in medians:
        first, second = (format_duration(each) for each in medians if each is not None)
        yield (
            f"by the records of all steps, of which these windows are a few, the median step is {first} before and "
            f"{second} after (scope show RUN says of which steps)"
        )
    for name, place in sides.items():
        recorded = None if place is None else read_slowest(*place)
        if recorded is not None and recorded.slowest is not None:
            yield f"{name}: by the records of all steps {recorded.slowest} (scope show RUN)"


def _median_step(run: Path, attempt: int) -> int | None:
    """Return the median step of an attempt as `scope show` says it; None where no records tell."""
    from scope.analysis.recorded.steps import summarize_steps
    from scope.analysis.recorded.summary import compute_speed
    from scope.frames import open_run
    from scope.frames.schema import Ranks, RankSteps

    try:
        opened = open_run(run)
    except RunError:
        return None  # its traces can be read all the same
    ranks = opened.ranks.filter(pl.col(Ranks.attempt) == attempt)
    steps = opened.steps().lazy().filter(pl.col(RankSteps.attempt) == attempt)
    if ranks.is_empty():
        return None
    speed = compute_speed(ranks, summarize_steps(steps), steps)
    return None if speed.step_time is None else speed.step_time.median_ns


def _place_of(job: Job) -> tuple[Path, int] | None:
    """Return the run and the attempt that all traces of a job lie in; None where there is none or more than one."""
    places = {_place(Path(trace.path)) for trace in job.ranks}
    return places.pop() if len(places) == 1 else None


def _place(trace: Path) -> tuple[Path, int] | None:
    """Return the run and the attempt that a captured trace lies in; None for any other."""
    if trace.parent.name != _TRACES_FOLDER:
        return None
    from scope.run.paths import read_place

    folder = trace.parent.parent
    place = read_place(folder)
    return None if place is None else (folder.parent.parent.parent, place[0])
