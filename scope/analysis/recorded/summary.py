"""The run as a whole: how fast it is against what it could be, and what is wasted on what."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple, cast

import msgspec
import polars as pl

from scope.analysis.doctor.diagnosis import describe_ranks
from scope.analysis.recorded.goodput import IMPOSSIBLE, compute_goodput, compute_kept, count_lost_steps
from scope.analysis.recorded.stepless import find_stepless
from scope.analysis.recorded.steps import StepSummary, compute_phase_totals, summarize_steps
from scope.analysis.result import Distribution, Result
from scope.definitions import model_flops_utilization
from scope.frames.schema import Events, Ranks, RankSteps
from scope.run.goodbyes import EXITED, OTHER_THREAD
from scope.run.schema import MOST_UTILIZATION
from scope.units import NS_PER_S

if TYPE_CHECKING:
    from collections.abc import Mapping

    from scope.run.blackbox import BlackBoxState
    from scope.trace.columns import Column

RECENT_STEPS: Final = 50
_SHOWN_MISSING: Final = 1_024
_NO_RECORDS: Final = "none of the steps that ended has a record"
_MOST_STEPS: Final = 2**31
"""A file that tells of more is foreign: black boxes have no room for them."""


class RunSpeed(Result, frozen=True, kw_only=True):
    """How fast the run is, from the last 50 undisturbed steps of its last attempt."""

    num_steps: int
    num_mfu_steps: int
    """Those whose model FLOPs every rank knows, which alone MFU is of."""
    step_time: Distribution | None
    """Length of the slowest rank's step."""
    steps_per_s: float | None
    tokens_per_s: float | None
    mfu_ratio: float | None
    """Model FLOPs of all ranks / (slowest rank's step time x sum of the ranks' peaks)."""
    hfu_ratio: float | None
    """The same with recompute."""
    stepless_ranks: tuple[int, ...] = ()
    """Ranks that make no steps while the others do, whose speed this is."""


class RunSummary(Result, frozen=True, kw_only=True):
    """A run at a glance."""

    attempt: int
    """The last attempt."""
    num_ranks: int
    """Ranks of the last attempt that have recorded anything."""
    world_size: int | None
    num_missing_ranks: int
    """Ranks of the last attempt that have recorded nothing."""
    missing_ranks: tuple[int, ...]
    """The first 1,024 of them: a run may claim a million ranks that never were."""
    last_step: int | None
    """Of the last attempt that has steps."""
    last_step_attempt: int | None
    """That attempt."""
    first_step: int | None
    """Number of its first step."""
    num_lost_steps: int
    """Steps of earlier attempts that a later one makes again: goodput counts them as lost."""
    num_steps: int
    """Steps of all attempts; one that was repeated after a restart counts again."""
    speed: RunSpeed
    goodput_ratio: float | None
    """Time in steps that were kept / wall time since the first attempt began."""
    phases_ns: Mapping[str, int]
    """Host time of all ranks by phase over the whole run; sums to the length of all steps of all ranks."""
    communication_wait_ns: int | None
    """Overlay on the phases: host time of all ranks blocked in communication, where it was seen."""
    gc_ns: int
    """Overlay: garbage collection of all ranks."""
    recorder_ns: int
    """What recording itself took on the training threads of all ranks."""
    num_dropped: int
    """Records that were dropped: of each rank as its black box counted them, where that is more than its steps tell."""
    num_unwritten_steps: int = 0
    """Steps that black boxes or ends of recordings counted and no record tells of; in a live run the last second's."""
    unwritten_ranks: tuple[int, ...] = ()
    """Ranks of the last attempt that have such steps."""
    other_thread_ranks: tuple[int, ...] = ()
    """Ranks, of any attempt, that have also trained in a thread which is not measured: figures of steps lack that."""


def summarize_run(
    ranks: pl.DataFrame,
    steps: pl.LazyFrame,
    *,
    now_ns: int | None = None,
    began_ns: int | None = None,
    boxes: Mapping[tuple[int, int], BlackBoxState] | None = None,
    events: pl.DataFrame | None = None,
) -> RunSummary:
    """Return the run at a glance.

    Args:
        ranks: Table `Ranks`, at least one row.
        steps: Table `RankSteps`.
        now_ns: Instant to which the wall time of a rank that has not ended is counted; None for the end of the last
            step.
        began_ns: When the run began, as `run.json` says; None for the start of its first rank.
        boxes: Black boxes by attempt and rank, which know of steps and records that could not be written.
        events: Table `Events`, in which the ends of recordings know of such steps as well.
    """
    by_step = summarize_steps(steps)
    attempt = _integer(ranks[Ranks.attempt].max())
    current = ranks.filter(pl.col(Ranks.attempt) == attempt)
    world_size = _integer_or_none(current[Ranks.world_size].max())
    overlays = _overlays(steps)
    ended_ns = _integer_or_none(by_step[StepSummary.end_ns].max()) if now_ns is None else now_ns
    kept = compute_kept(steps)
    goodput = compute_goodput(kept, ranks, now_ns=ended_ns or 0, began_ns=began_ns)
    latest = by_step.filter(pl.col(StepSummary.attempt) == pl.col(StepSummary.attempt).max())
    no_step = "no step has ended yet"
    unwritten = _find_unwritten(steps, boxes or {}, {} if events is None else _count_ended(events))
    no_goodput = _NO_RECORDS if any(each.num_steps for each in unwritten.values()) else no_step
    counted_none = {rank for of, rank in boxes or {} if of == attempt and not unwritten[of, rank].num_steps}
    stepless = find_stepless(steps, attempt=attempt, counted_none=counted_none - _find_failed(current))
    num_missing, missing = _find_missing(world_size or 0, set(current[Ranks.rank].to_list()))
    known = {
        "world_size": (world_size, "no rank has said it yet"),
        "last_step": (_integer_or_none((latest[StepSummary.step] + latest[StepSummary.num_steps] - 1).last()), no_step),
        "last_step_attempt": (_integer_or_none(latest[StepSummary.attempt].last()), no_step),
        "first_step": (_integer_or_none(latest[StepSummary.step].first()), no_step),
        "goodput_ratio": (goodput, IMPOSSIBLE if kept else no_goodput),
        "communication_wait_ns": (overlays[RankSteps.communication_wait_ns], "no wait site was seen"),
    }
    return RunSummary(
        absent={name: reason for name, (value, reason) in known.items() if value is None},
        attempt=attempt,
        num_ranks=current.height,
        world_size=world_size,
        num_missing_ranks=num_missing,
        missing_ranks=missing,
        last_step=cast("int | None", known["last_step"][0]),
        last_step_attempt=cast("int | None", known["last_step_attempt"][0]),
        first_step=cast("int | None", known["first_step"][0]),
        num_lost_steps=count_lost_steps(steps),
        num_steps=_integer(by_step[StepSummary.num_steps].sum()),
        speed=compute_speed(current, by_step, steps, stepless=stepless),
        goodput_ratio=cast("float | None", known["goodput_ratio"][0]),
        phases_ns=compute_phase_totals(steps),
        communication_wait_ns=overlays[RankSteps.communication_wait_ns],
        gc_ns=overlays[RankSteps.gc_ns] or 0,
        recorder_ns=overlays[RankSteps.recorder_ns] or 0,
        num_dropped=(overlays[RankSteps.num_dropped] or 0) + sum(each.num_dropped for each in unwritten.values()),
        num_unwritten_steps=sum(each.num_steps for each in unwritten.values()),
        unwritten_ranks=tuple(
            sorted(rank for (of, rank), each in unwritten.items() if of == attempt and each.num_steps)
        ),
        other_thread_ranks=() if events is None else _find_other_threads(events),
    )


def with_goodput(summary: RunSummary, goodput: float | None) -> RunSummary:
    """Return a summary with the goodput of another instant, or with the reason why it has none then."""
    absent = {name: reason for name, reason in summary.absent.items() if name != "goodput_ratio"}
    if goodput is None:
        absent["goodput_ratio"] = summary.absent.get("goodput_ratio", IMPOSSIBLE)
    return msgspec.structs.replace(summary, goodput_ratio=goodput, absent=absent)


def find_unwritten_reason(summary: RunSummary, *, is_live: bool) -> str | None:
    """Return why figures of time in steps, such as goodput, are lower bounds; None where they are not.

    Args:
        summary: The run at a glance.
        is_live: Its ranks make steps: those of the last second are yet to be written, unless records were dropped.
    """
    if not summary.num_unwritten_steps or (is_live and summary.num_steps and not summary.num_dropped):
        if not summary.other_thread_ranks:
            return None
        return f"{describe_ranks(list(summary.other_thread_ranks))} also trained in a thread that is not measured"
    if summary.num_unwritten_steps == 1:
        return "1 step that a rank counted has no record"
    return f"{summary.num_unwritten_steps:,} steps that ranks counted have no record"


def _find_other_threads(events: pl.DataFrame) -> tuple[int, ...]:
    says_so = pl.col(Events.detail).str.contains(f'"{OTHER_THREAD}"', literal=True)
    told = events.filter(pl.col(Events.kind) == "warning", says_so)
    return tuple(told[Events.rank].unique().sort())


class _Unwritten(NamedTuple):
    """What a rank counted beyond the records of its steps."""

    num_steps: int
    num_dropped: int


def _find_unwritten(
    steps: pl.LazyFrame, boxes: Mapping[tuple[int, int], BlackBoxState], ended: Mapping[tuple[int, int], int]
) -> dict[tuple[int, int], _Unwritten]:
    """Return, by attempt and rank, what its black box, or the end of its recording, counted and no step tells of."""
    columns = (RankSteps.num_steps, RankSteps.num_dropped)
    told = steps.group_by(RankSteps.attempt, RankSteps.rank).agg(pl.col(column).sum() for column in columns)
    written = (
        {(attempt, rank): counts for attempt, rank, *counts in told.collect().iter_rows()} if boxes or ended else {}
    )
    found: dict[tuple[int, int], _Unwritten] = {}
    for key in boxes.keys() | ended.keys():
        num_steps, num_dropped = written.get(key, (0, 0))
        box = boxes.get(key)
        counted = max(0 if box is None else box.num_steps, ended.get(key, 0))
        num_lost = 0 if box is None else max(0, box.num_dropped - num_dropped)
        found[key] = _Unwritten(max(0, counted - num_steps), num_lost)
    return found


def _count_ended(events: pl.DataFrame) -> dict[tuple[int, int], int]:
    """Return, by attempt and rank, how many steps were finished when the recording ended, where its end tells."""
    ends = events.filter(pl.col(Events.kind) == "attempt_end").select(Events.attempt, Events.rank, Events.detail)
    found: dict[tuple[int, int], int] = {}
    for attempt, rank, detail in ends.iter_rows():
        num_steps = msgspec.json.decode(detail, type=dict[str, object]).get("num_steps")
        if isinstance(num_steps, int) and not isinstance(num_steps, bool) and 0 <= num_steps <= _MOST_STEPS:
            found[attempt, rank] = num_steps
    return found


def _find_failed(ranks: pl.DataFrame) -> set[int]:
    """Return the ranks that an exception or exit code ended: they may have been about to make their first step.

    Those that were asked to end are none: what they did until then is known as well as before.
    """
    reason = pl.col(Ranks.exit_reason)
    return set(ranks.filter((reason == "exception") | reason.str.starts_with(EXITED))[Ranks.rank])


def _find_missing(world_size: int, present: set[int]) -> tuple[int, tuple[int, ...]]:
    """Return how many ranks of a world are not there, and the first of them."""
    absent = (rank for rank in range(world_size) if rank not in present)
    first = tuple(islice(absent, _SHOWN_MISSING))
    return world_size - sum(rank < world_size for rank in present), first


WASTE_PHASES: Final = ("startup", "init", "input", "host_to_device", "checkpoint")
"""Phases in which the host trains nothing."""


def compute_waste(summary: RunSummary) -> dict[str, int]:
    """Return host nanoseconds that trained nothing, by cause, the largest first; causes of 0 are left out.

    The phases of `WASTE_PHASES` and the wait in communication do not overlap each other. Garbage collection and
    recording are overlays and may lie inside any of them, so the causes must not be added up.
    """
    causes = {phase: summary.phases_ns.get(phase, 0) for phase in WASTE_PHASES}
    causes |= {
        "communication_wait": summary.communication_wait_ns or 0,
        "gc": summary.gc_ns,
        "recorder": summary.recorder_ns,
    }
    return {cause: length for cause, length in sorted(causes.items(), key=lambda item: -item[1]) if length > 0}


def compute_speed(
    ranks: pl.DataFrame, by_step: pl.DataFrame, steps: pl.LazyFrame, *, stepless: tuple[int, ...] = ()
) -> RunSpeed:
    """Return how fast the last steps of an attempt were.

    Args:
        ranks: Table `Ranks` of the attempt.
        by_step: Table `StepSummary`; other attempts' steps are left out.
        steps: Table `RankSteps`, which says which steps were disturbed.
        stepless: Ranks of the attempt that make no steps: the speed is that of the others, and there is no MFU, since
            it is a share of what all devices of the run could do.
    """
    ranks = ranks.filter(~pl.col(Ranks.rank).is_in(stepless))
    recent = _recent_steps(ranks, by_step, steps)
    total_ns = _integer(recent[StepSummary.duration_ns].sum())
    if not total_ns:
        reason = _NO_LENGTH if recent.height else _find_no_speed_reason(ranks, by_step, steps)
        unknown = ("step_time", "steps_per_s", "tokens_per_s", "mfu_ratio", "hfu_ratio")
        return RunSpeed(absent=dict.fromkeys(unknown, reason), num_steps=0, num_mfu_steps=0, **dict.fromkeys(unknown))
    peak, why_no_mfu = _peak_flop_per_s(ranks)
    if stepless:
        who = describe_ranks(list(stepless))
        peak, why_no_mfu = None, f"{who} {'makes' if len(stepless) == 1 else 'make'} no steps, and MFU is of all ranks"
    tokens = recent[StepSummary.tokens]
    figures: dict[str, tuple[float | None, str]] = {
        "tokens_per_s": (
            None if tokens.null_count() else _integer(tokens.sum()) / total_ns * NS_PER_S,
            "not every rank knows its tokens a step",
        ),
        "mfu_ratio": _utilization(recent, StepSummary.model_flop, peak, why_no_mfu),
        "hfu_ratio": _utilization(recent, StepSummary.hardware_flop, peak, why_no_mfu),
    }
    return RunSpeed(
        absent={name: reason for name, (value, reason) in figures.items() if value is None},
        num_steps=recent.height,
        num_mfu_steps=recent.height - recent[StepSummary.model_flop].null_count(),
        step_time=Distribution.of(recent[StepSummary.duration_ns]),
        steps_per_s=recent.height / total_ns * NS_PER_S,
        **{name: value for name, (value, _) in figures.items()},
        stepless_ranks=stepless,
    )


_NO_LENGTH: Final = "the newest steps have a length of 0, as where the program has stopped its clock"


def _find_no_speed_reason(ranks: pl.DataFrame, by_step: pl.DataFrame, steps: pl.LazyFrame) -> str:
    """Return why no step of an attempt tells how fast it is."""
    own = by_step.filter(pl.col(StepSummary.attempt) == ranks[Ranks.attempt].first())
    if own.is_empty():
        return "no step of which there is a record has ended yet"
    if own.filter(pl.col(StepSummary.num_ranks) == ranks.height).is_empty():
        # The records of some may be lost, or cannot be read; or they are about to end their first step.
        own_steps = steps.filter(pl.col(RankSteps.attempt) == ranks[Ranks.attempt].first())
        with_steps = own_steps.select(pl.col(RankSteps.rank).unique()).collect().to_series()
        without = sorted(set(ranks[Ranks.rank].to_list()) - set(with_steps.to_list()))
        who = f": {describe_ranks(without)} {'has' if len(without) == 1 else 'have'} none" if without else ""
        return f"no step has records of all {ranks.height:,} ranks{who}"
    return "no undisturbed step has ended yet"


def _recent_steps(ranks: pl.DataFrame, by_step: pl.DataFrame, steps: pl.LazyFrame) -> pl.DataFrame:
    attempt = ranks[Ranks.attempt].first()
    disturbed = (
        steps.filter(pl.col(RankSteps.attempt) == attempt, pl.col(RankSteps.disturbed).is_not_null())
        .select(RankSteps.step)
        .unique()
        .collect()
    )
    # A step that some rank has not finished yet would look shorter than it is.
    whole = (
        (pl.col(StepSummary.attempt) == attempt)
        & (pl.col(StepSummary.num_steps) == 1)
        & (pl.col(StepSummary.num_ranks) == ranks.height)
    )
    return by_step.filter(whole).join(disturbed, on=StepSummary.step, how="anti").tail(RECENT_STEPS)


def _peak_flop_per_s(ranks: pl.DataFrame) -> tuple[float | None, str]:
    """Return the sum of all peaks, and what a rank says of why it has no MFU, or none in some of its steps."""
    peaks = ranks[Ranks.peak_flop_per_s]
    if not peaks.null_count():
        reasons = ranks[Ranks.mfu_absent_reason].drop_nulls()
        return float(peaks.sum()), str(reasons.first()) if len(reasons) else ""
    reasons = ranks.filter(peaks.is_null())[Ranks.mfu_absent_reason].drop_nulls()
    return None, str(reasons.first()) if len(reasons) else "the peak of the device is not known"


def _utilization(recent: pl.DataFrame, flop: Column, peak: float | None, reason: str) -> tuple[float | None, str]:
    """Return FLOPs of the steps in which every rank knows them over the time of those, or why there is none."""
    known = recent.filter(pl.col(flop).is_not_null())
    if known.is_empty():
        return None, reason or "the FLOPs of none of the last steps are known on every rank"
    if peak is None:
        return None, reason
    total_ns = _integer(known[StepSummary.duration_ns].sum())
    ratio = model_flops_utilization(float(known[flop].sum()), step_ns=total_ns, peak_flop_per_s=peak)
    if ratio is not None and ratio > MOST_UTILIZATION:
        return None, f"the FLOPs on record are more than {MOST_UTILIZATION:.0f} times what the peaks on record allow"
    return ratio, reason


def _overlays(steps: pl.LazyFrame) -> dict[str, int | None]:
    columns = (RankSteps.communication_wait_ns, RankSteps.gc_ns, RankSteps.recorder_ns, RankSteps.num_dropped)
    known = (pl.when(pl.col(column).is_not_null().any()).then(pl.col(column).sum()).alias(column) for column in columns)
    return cast("dict[str, int | None]", steps.select(*known).collect().row(0, named=True))


def _integer(value: object) -> int:
    assert isinstance(value, int)
    return value


def _integer_or_none(value: object) -> int | None:
    return None if value is None else _integer(value)
