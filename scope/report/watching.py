"""Looking at a run over and over: what holds now, what is new, and what is over."""

from __future__ import annotations

import contextlib
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
import polars as pl

from scope.analysis.medians import lower_median_ns
from scope.analysis.recorded import (
    ProcessTable,
    Watched,
    assess_run,
    find_failures,
    find_verdicts,
    is_refuted,
)
from scope.frames.schema import RankSteps
from scope.run import paths
from scope.run.files import AppendFile
from scope.run.verdicts import KINDS, find_holding, identify, note_look, read_look
from scope.units import NS_PER_S, format_duration

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from scope.frames import Run
    from scope.run.blackbox import BlackBoxState
    from scope.run.schema import Verdict

_CAUSES: Final = ("crash", "exception", "hang", "mismatch")
_RECENT_STEPS: Final = 50
_UNWATCHED_NS: Final = 60 * NS_PER_S
"""From how long after the last look on it is told that nobody watches a run."""


def look_at_run(run: Run, *, now_ns: int | None = None) -> Watched:
    """Return the last attempt of a run as it is at one instant.

    Args:
        run: The run.
        now_ns: Nanoseconds since the epoch; now when absent.
    """
    now = time.time_ns() if now_ns is None else now_ns
    attempt = max((info.attempt for info in run.rank_infos), default=0)
    infos = [info for info in run.rank_infos if info.attempt == attempt]
    boxes = run.black_boxes()
    all_steps = run.steps().lazy()
    steps = all_steps.filter(pl.col(RankSteps.attempt) == attempt)
    earlier = all_steps.filter(pl.col(RankSteps.attempt) < attempt).select(pl.col(RankSteps.end_ns).max())
    last_ns, usual_ns = (
        steps.filter(pl.col(RankSteps.num_steps) == 1)
        .tail(_RECENT_STEPS * max(1, len(boxes)))
        .select(pl.col(RankSteps.end_ns).max(), lower_median_ns(RankSteps.duration_ns))
        .collect()
        .row(0)
    )
    # Black boxes know of steps that are yet to be written, or never will be, on a full disk.
    ends = (box.step_start_ns for box in boxes.values() if box.num_steps and box.step_start_ns)
    last_ns = max((end for end in (last_ns, *ends) if end is not None and end <= now), default=last_ns)
    near = ProcessTable.of_run(run.path)
    state = assess_run(infos, boxes, last_step_ns=last_ns, usual_ns=usual_ns, now_ns=now, processes=near)
    state = replace(state, earlier_step_ns=earlier.collect().item() if attempt else None)
    failures = find_failures(run.events(), attempt=attempt, infos=infos, boxes=boxes)
    return Watched(state=state, infos=infos, boxes=boxes, steps=steps, now_ns=now, failures=failures)


def add_earlier_boxes(
    run: Run, last: Mapping[int, BlackBoxState], *, attempt: int
) -> dict[tuple[int, int], BlackBoxState]:
    """Return the black boxes of all attempts, by attempt and rank.

    Args:
        run: The run.
        last: Those of the last attempt, by rank, which are read already.
        attempt: The last attempt.
    """
    earlier = sorted({info.attempt for info in run.rank_infos} - {attempt})
    boxes = {(number, rank): box for number in earlier for rank, box in run.black_boxes(attempt=number).items()}
    return boxes | {(attempt, rank): box for rank, box in last.items()}


def find_findings(run: Run, watched: Watched) -> list[Verdict]:
    """Return what holds of a run: what is found now, and what its `verdicts.jsonl` tells besides."""
    found = find_verdicts(watched)
    known = {identify(verdict) for verdict in found}
    return [*found, *(verdict for verdict in find_kept(run, watched) if identify(verdict) not in known)]


def find_kept(run: Run, watched: Watched) -> list[Verdict]:
    """Return what the `verdicts.jsonl` of a run tells of its last attempt, as `keep_verdicts` does."""
    held = find_holding(run.verdicts(), attempt=watched.infos[0].attempt) if watched.infos else []
    return keep_verdicts(held, watched, looked_ns=read_look(run.path))


def keep_verdicts(held: Sequence[Verdict], watched: Watched, *, looked_ns: int | None) -> list[Verdict]:
    """Return findings on record without what is refuted by now.

    Of a live run that nobody watches any more, those that are not found anew say how old they are.

    Args:
        held: The findings, which nobody has ended.
        watched: What is seen of the run.
        looked_ns: When somebody looked last.
    """
    kept = [verdict for verdict in held if not is_refuted(watched, verdict)]
    unwatched_ns = 0 if looked_ns is None else watched.now_ns - looked_ns
    if not kept or not watched.state.is_live or unwatched_ns <= _UNWATCHED_NS:
        return kept
    found = {identify(verdict) for verdict in find_verdicts(watched)}
    return [verdict if identify(verdict) in found else _with_age(verdict, watched, unwatched_ns) for verdict in kept]


def _with_age(verdict: Verdict, watched: Watched, unwatched_ns: int) -> Verdict:
    age = f"found {format_duration(watched.now_ns - verdict.time_ns)} ago"
    summary = f"{verdict.summary} ({age}; nobody has watched the run for {format_duration(unwatched_ns)})"
    return msgspec.structs.replace(verdict, summary=summary)


class Change(NamedTuple):
    """What one look has brought.

    Attributes:
        watched: The run.
        begun: Findings that were not known before.
        over: Findings that hold no more, with the instant.
    """

    watched: Watched
    begun: Sequence[Verdict]
    over: Sequence[Verdict]


class Watcher:
    """Follows a run and writes its findings to `verdicts.jsonl`, where exporter and dashboard read them.

    Args:
        run: The run; what its file holds already, from a watcher before, is gone on with.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._file = AppendFile(run.path / paths.VERDICTS_FILE)
        self._unwritten: list[Verdict] = []

    def look(self, *, now_ns: int | None = None) -> Change:
        """Look once, and write down what is new or over; what could not be written is tried again.

        Args:
            now_ns: Nanoseconds since the epoch; now when absent.
        """
        watched = look_at_run(self._run, now_ns=now_ns)
        if not watched.infos:
            return Change(watched, (), ())
        attempt = watched.infos[0].attempt
        # What could not be written is known all the same, and is not told anew at every look.
        verdicts = [*self._run.verdicts(), *self._unwritten]
        held = {identify(verdict): verdict for verdict in find_holding(verdicts, attempt=attempt)}
        found = {identify(verdict): verdict for verdict in find_verdicts(watched)}
        begun = [verdict for key, verdict in found.items() if key not in held]
        over = [
            msgspec.structs.replace(verdict, resolved_ns=watched.now_ns)
            for key, verdict in held.items()
            if key not in found and verdict.kind in KINDS and not _holds_on(watched, verdict)
        ]
        self._unwritten += [*begun, *over]
        while self._unwritten and self._file.append(msgspec.json.encode(self._unwritten[0]) + b"\n"):
            del self._unwritten[0]
        with contextlib.suppress(OSError):
            note_look(self._run.path, now_ns=watched.now_ns)
        return Change(watched, begun, over)

    @property
    def write_error(self) -> str | None:
        """Why findings could not be written; None when all were."""
        return self._file.last_error if self._unwritten else None

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _holds_on(watched: Watched, verdict: Verdict) -> bool:
    """Return whether a finding stays though it is not made anew.

    What a run ended with is not mended by its end; who was named as a straggler, and is at the border of it, stays one.
    """
    cut_off = watched.state.standing == "ended without a goodbye" or bool(watched.state.exit_reasons)
    may_stay = verdict.kind == "straggler" or (cut_off and verdict.kind in _CAUSES)
    return may_stay and not is_refuted(watched, verdict)
