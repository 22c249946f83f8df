"""The state of a recorded run in words and as a document: step, rate, phases, collectives, memory, slowest ranks."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

import msgspec
import polars as pl

from scope.analysis.doctor.diagnosis import describe_ranks
from scope.analysis.group_names import name_group
from scope.analysis.recorded import (
    describe_ends,
    describe_mismatch,
    describe_stepless,
    find_unwritten_reason,
    is_count_of_lost_at_least,
    summarize_collectives,
    summarize_run,
    title_with_ranks,
)
from scope.errors import RunError
from scope.frames.schema import RankSteps
from scope.report.inert import readable
from scope.report.run_state_checkpoints import (
    checkpoint_lines,
    summarize_checkpoints,
    summarize_failed_checkpoints,
)
from scope.report.run_state_costs import cost_lines, find_costs
from scope.report.run_state_outside import find_outside, outside_lines
from scope.report.run_state_peaks import describe_mfu, find_peaks
from scope.report.run_state_ranks import describe_stops, stop_lines
from scope.report.run_state_slowest import find_notable, find_slowest, slowest_lines
from scope.report.run_state_still import still_line
from scope.report.run_state_windows import window_lines
from scope.report.sections.quality import format_ranks
from scope.report.standing import count, standing_words
from scope.report.switched_off import find_switched_off, switched_off_lines
from scope.report.watching import add_earlier_boxes, find_kept, look_at_run
from scope.units import format_bandwidth, format_bytes, format_duration, format_ratio

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from scope.frames import Run
    from scope.run.blackbox import BlackBoxState
    from scope.run.schema import RankInfo

_NUM_SLOWEST: Final = 5
_STALE_NS: Final = 10_000_000_000
_NUM_COLLECTIVES: Final = 12
_NO_WAIT_SITE: Final = "unknown (no wait site was seen)"
_NO_RECORD: Final = "of which no record can be read"


def describe_run(run: Run, *, now_ns: int | None = None) -> dict[str, Any]:
    """Return the state of a run as a document of plain values; what is unknown is null, its reason under `absent`.

    Args:
        run: The run.
        now_ns: Nanoseconds since the epoch that ages are counted from; now when absent.
    """
    now = time.time_ns() if now_ns is None else now_ns
    ranks, steps = run.ranks, run.steps().lazy()
    info, boxes = run.info(), run.black_boxes()
    if ranks.is_empty():
        message = f"{run.path}: no rank has begun to record yet; look again once the training script has started"
        if info.unrecorded is not None:
            message = f"{run.path}: nothing was recorded: {info.unrecorded}"
        if run.problems:
            message = f"{run.path}: no rank can be read: {'; '.join(run.problems[:_NUM_SLOWEST])}"
        raise RunError(message)
    watched = look_at_run(run, now_ns=now)
    state, ends = watched.state, describe_ends(watched)
    # The time of a run that fell silent ends there, as that of one that finished ends with it.
    summary = summarize_run(
        ranks,
        steps,
        now_ns=now if state.is_live else state.last_sign_ns,
        began_ns=info.started_ns,
        boxes=add_earlier_boxes(run, boxes, attempt=state.attempt),
        events=run.events(),
    )
    slowest, peers = find_slowest(watched)
    return {
        "run_id": info.run_id,
        "path": str(run.path),
        "synthetic": info.synthetic,
        "tags": info.tags,
        "state": asdict(state),
        "state_in_words": standing_words(state, now_ns=now),
        "mismatches_in_words": [describe_mismatch(each) for each in state.mismatches],
        "crash_in_words": ends.crash,
        "failure_in_words": ends.failure,
        "summary": msgspec.to_builtins(summary),
        "lost_steps_are_at_least": bool(summary.num_lost_steps) and is_count_of_lost_at_least(steps, _broken_off(run)),
        "goodput_at_least_reason": find_unwritten_reason(summary, is_live=state.standing == "running"),
        "steps_absent": _find_no_steps_reason(run.rank_infos, stepless=summary.speed.stepless_ranks),
        "custom_phases_ns": compute_custom_phases(steps),
        "now_ns": now,
        "ranks": [_rank(box, now) for _, box in sorted(boxes.items())],
        "stopped_ranks": describe_stops(watched),
        "mfu_against": find_peaks(ranks, attempt=summary.attempt),
        "costs": find_costs(watched),
        "collectives": summarize_collectives(run.collective_totals().lazy(), calls=run.collectives).to_dicts(),
        "collectives_outside_steps": find_outside(run),
        "memory": _memory(steps),
        "peers": peers,
        "slowest_ranks": slowest,
        "checkpoints": summarize_checkpoints(run.events()).to_dicts(),
        "failed_checkpoints": summarize_failed_checkpoints(run.events()).to_dicts(),
        "windows": run.traces().to_dicts(),
        "verdicts": [verdict.summary for verdict in find_kept(run, watched)],
        "switched_off": find_switched_off(run.events(), attempt=state.attempt),
        "problems": list(run.problems),
    }


def _find_no_steps_reason(infos: Sequence[RankInfo], *, stepless: Sequence[int]) -> str | None:
    """Return why ranks make no steps: what one of them says of itself, else which they are and what makes steps."""
    told = next((info.absent["steps"] for info in infos if "steps" in info.absent), None)
    return told or (describe_stepless(stepless) if stepless else None)


def _broken_off(run: Run) -> dict[int, int]:
    """Return, by attempt, the last step that a rank was in which did not end in order."""
    ended = {(info.attempt, info.rank) for info in run.rank_infos if info.exit_reason == "finished"}
    found: dict[int, int] = {}
    for attempt in {info.attempt for info in run.rank_infos}:
        for rank, box in run.black_boxes(attempt=attempt).items():
            if (attempt, rank) not in ended and box.step is not None:
                found[attempt] = max(box.step, found.get(attempt, 0))
    return found


def compute_custom_phases(steps: pl.LazyFrame) -> dict[str, int]:
    """Return host nanoseconds of all ranks in each of the user's own phases; they sum to the phase `custom`.

    Args:
        steps: Table `RankSteps`.
    """
    totals = (
        steps.select(pl.col(RankSteps.custom_phases).explode())
        .drop_nulls()
        .unnest(RankSteps.custom_phases)
        .group_by("phase")
        .agg(pl.col("host_ns").sum())
        .sort("host_ns", "phase", descending=[True, False])
    )
    return dict(totals.collect().iter_rows())


def spell_out_phases(
    phases_ns: Mapping[str, int], custom_ns: Mapping[str, int], *, most: int | None = None
) -> dict[str, int]:
    """Return nanoseconds by phase with the user's own phases, by their names, in the place of `custom`.

    Args:
        phases_ns: By phase, as `RunSummary.phases_ns`.
        custom_ns: What `compute_custom_phases` returns.
        most: How many of the user's own are named, the longest first; the rest stays `custom`. None: all.
    """
    named = dict(list(custom_ns.items())[:most])
    rest = phases_ns.get("custom", 0) - sum(named.values())
    return {**phases_ns, "custom": rest, **named}


def render_run(state: Mapping[str, Any]) -> str:
    """Return the document of `describe_run` for people."""
    # Here and nowhere else names lose their power: every line holds some.
    return "".join(f"{readable(line)}\n" for line in _lines(state))


def _lines(state: Mapping[str, Any]) -> Iterator[str]:
    summary = state["summary"]
    synthetic = " (synthetic)" if state["synthetic"] else ""
    yield f"run {state['run_id']}{synthetic}: {state['state_in_words']}"
    ends = [words for words in (state["crash_in_words"], state["failure_in_words"]) if words]
    # The cause first, where the head does not tell it.
    causes = [words for words in state["mismatches_in_words"] if readable(words) not in state["state_in_words"]]
    yield from (f"  {words}" for words in (*causes, *ends))
    yield f"  {_progress(summary, is_at_least=state['goodput_at_least_reason'] is not None)}"
    unwritten = unwritten_words(
        summary["num_unwritten_steps"],
        ranks=summary["unwritten_ranks"],
        is_recording=bool(summary["num_steps"]) and state["state"]["standing"] == "running",
    )
    if unwritten is not None:
        yield f"  {unwritten}"
    if summary["other_thread_ranks"]:
        yield f"  {_not_measured(summary['other_thread_ranks'])}"
    yield f"  {_speed(summary['speed'])}"
    against = describe_mfu(summary["speed"], state["mfu_against"])
    if against is not None:
        yield f"  {against}"
    if state["steps_absent"]:
        yield f"  no steps: {state['steps_absent']}"
    if summary["num_lost_steps"]:
        yield f"  {'at least ' if state['lost_steps_are_at_least'] else ''}{_lost(summary)}"
    if summary["missing_ranks"]:
        shown = tuple(summary["missing_ranks"])
        more = summary["num_missing_ranks"] - len(shown)
        rest = f" and {more:,} more" if more else ""
        yield f"  ranks that have recorded nothing: {format_ranks(shown)}{rest}"
    yield from stop_lines(state["stopped_ranks"], now_ns=state["now_ns"])
    yield from _phases(summary, state["custom_phases_ns"])
    still = still_line(state)
    slow_ranks = [] if still is not None else find_notable(state["slowest_ranks"], state["peers"])
    yield from cost_lines(state["costs"], slow_ranks=slow_ranks, has_window=bool(state["windows"]))
    yield from _collectives(state["collectives"], state["collectives_outside_steps"])
    yield from _memory_lines(state["memory"])
    if still is not None:
        # Who works longest in steps that end is not what holds this one up.
        yield still
    else:
        stepless = summary["speed"]["stepless_ranks"]
        yield from slowest_lines(state["slowest_ranks"], state["peers"], stepless=stepless)
    yield from checkpoint_lines(state["checkpoints"], state["failed_checkpoints"])
    yield from window_lines(state["windows"])
    if state["state"]["standing"] == "running" and not state["stopped_ranks"]:
        yield from _now(state["ranks"])
    for verdict in state["verdicts"]:
        if verdict not in (*state["mismatches_in_words"], *ends):
            yield f"verdict: {verdict}"
    yield from switched_off_lines(state["switched_off"])
    if summary["num_dropped"]:
        dropped = count(summary["num_dropped"], "record")
        yield f"{dropped} dropped (full disk or queue): the figures above are of the rest"


def _progress(summary: Mapping[str, Any], *, is_at_least: bool) -> str:
    last = "no step yet" if summary["last_step"] is None else f"last step {summary['last_step']}"
    if summary["last_step_attempt"] not in (None, summary["attempt"]):
        last += f" (of attempt {summary['last_step_attempt']})"
    world = summary["world_size"] if summary["world_size"] is not None else "an unknown number"
    ranks = "rank" if world == 1 else "ranks"
    goodput = summary["goodput_ratio"]
    least = "at least " if is_at_least else ""
    if goodput is not None:
        kept = f"goodput {least}{format_ratio(goodput)} (time in kept steps / time since the start, start-up counted)"
    else:
        is_known_why = is_at_least or summary["num_steps"]
        kept = f"no goodput: {summary['absent']['goodput_ratio']}" if is_known_why else "no goodput yet"
    steps = count(summary["num_steps"], "step")
    return f"attempt {summary['attempt']}, {summary['num_ranks']} of {world} {ranks}, {last}, {steps}, {kept}"


def unwritten_words(num_steps: int, *, ranks: Sequence[int], is_recording: bool) -> str | None:
    """Return how many steps only counts of ranks know of, without a full stop; None where that is nothing to tell.

    Args:
        num_steps: `RunSummary.num_unwritten_steps`.
        ranks: Ranks of the last attempt that have such steps.
        is_recording: Steps of the run are being recorded: those of the last second are yet to be written.
    """
    if not num_steps or is_recording:
        return None
    whose = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {format_ranks(tuple(ranks))} (summed over them)"
    whose = whose if ranks else "earlier attempts"
    # Other ranks may have recorded the same steps: they are no more steps of the run.
    return f"{count(num_steps, 'step')} of {whose}, by {'its' if len(ranks) == 1 else 'their'} own count, {_NO_RECORD}"


def _not_measured(ranks: Sequence[int]) -> str:
    who = describe_ranks(list(ranks))
    return f"{who} also trained in another thread than the one that imported torch: that is in no step and no figure"


def _lost(summary: Mapping[str, Any]) -> str:
    first, attempt = summary["first_step"], summary["last_step_attempt"]
    lost = count(summary["num_lost_steps"], "step")
    words = f"{lost} of earlier attempts lost: attempt {attempt} began at step {first}"
    if first == 0:
        words += "; a program that resumes says where with recorder.steps(loader, start=STEP)"
    return words


def _speed(speed: Mapping[str, Any]) -> str:
    length = speed["step_time"]
    if length is None:
        return f"speed unknown: {speed['absent'].get('step_time', '')}"
    stepless = describe_ranks(list(speed["stepless_ranks"])) if speed["stepless_ranks"] else ""
    others = f"; {stepless} make{'s' if len(speed['stepless_ranks']) == 1 else ''} no steps" if stepless else ""
    parts = [f"step {format_duration(length['median_ns'])} ({_steps_of_median(speed['num_steps'])}{others})"]
    if speed["tokens_per_s"] is not None:
        parts.append(f"{speed['tokens_per_s']:,.0f} tokens/s on average")
    few = f" (of {speed['num_mfu_steps']})" if speed["num_mfu_steps"] < speed["num_steps"] else ""
    for name, title in (("mfu_ratio", "MFU"), ("hfu_ratio", "HFU")):
        value = speed[name]
        parts.append(
            f"{title} {format_ratio(value)}{few}" if value is not None else f"no {title}: {speed['absent'][name]}"
        )
    return ", ".join(parts)


def _steps_of_median(number: int) -> str:
    return "of its one undisturbed step" if number == 1 else f"median of the newest {number} undisturbed steps"


def _phases(summary: Mapping[str, Any], custom_ns: Mapping[str, int]) -> Iterator[str]:
    total = sum(summary["phases_ns"].values())
    if not total:
        return
    yield "host time of all ranks by phase"
    phases_ns = spell_out_phases(summary["phases_ns"], custom_ns)
    for name, length in sorted(phases_ns.items(), key=lambda item: -item[1]):
        if length:
            yield f"  {name:<16} {format_ratio(length / total):>7}  {format_duration(length)}"
    wait = summary["communication_wait_ns"]
    waited = format_duration(wait) if wait is not None else "unknown"
    yield f"  of it waiting for communication: {waited}; garbage collection: {format_duration(summary['gc_ns'])}"
    recorded_ns = summary["recorder_ns"]
    yield f"  recording itself took {format_duration(recorded_ns)}, {format_ratio(recorded_ns / total)} of it"


def _collectives(rows: Sequence[Mapping[str, Any]], outside: Mapping[str, Any]) -> Iterator[str]:
    if not rows and outside["num_calls"] == 0:
        return
    yield "collectives of ended steps" if rows else "collectives of ended steps: none"
    for row in rows[:_NUM_COLLECTIVES]:
        group = name_groups(row)
        calls = "call" if row["num_calls"] == 1 else "calls"
        message = format_bytes(row["message_bytes"]) if row["message_bytes"] is not None else "size unknown"
        mean = " on average" if row["message_bytes"] is not None and row["num_calls"] > 1 else ""
        blocked = format_duration(row["blocked_ns"]) if row["blocked_ns"] is not None else _NO_WAIT_SITE
        busbw = row["busbw_at_least_bytes_per_s"]
        speed = f", busbw at least {format_bandwidth(busbw)}{_of_large(row)}" if busbw is not None else ""
        if row["busbw_absent_reason"]:
            speed = f", no busbw: {row['busbw_absent_reason']}"
        name = f"{row['operation']} ({row['variant']})" if row["variant"] != "plain" else row["operation"]
        yield f"  {name:<26} {group:<10} {row['num_calls']:>9,} {calls} of {message}{mean}, blocked {blocked}{speed}"
    if len(rows) > _NUM_COLLECTIVES:
        yield f"  and {len(rows) - _NUM_COLLECTIVES} more kinds (--json has all)"
    yield from outside_lines(outside)


def _of_large(row: Mapping[str, Any]) -> str:
    """Return which calls a bandwidth is of, where it is not of all."""
    if row["num_large_calls"] is None:
        return ""
    return f" in {count(row['num_large_calls'], 'recorded call')} of {format_bytes(row['large_message_bytes'])}"


def name_groups(row: Mapping[str, Any]) -> str:
    """Return what people call the group or groups of a row of the table `CollectiveSummary`."""
    if row["mesh_axis"] is None and row["group"] is None:
        return count(row["num_groups"], "group")
    return title_with_ranks(name_group(row["group"], mesh_axis=row["mesh_axis"]), row["group_ranks"])


def _memory(steps: pl.LazyFrame) -> dict[str, int | None]:
    columns = (RankSteps.allocated_peak_bytes, RankSteps.reserved_peak_bytes, RankSteps.resident_peak_bytes)
    return steps.select(pl.col(column).max() for column in columns).collect().row(0, named=True)


def _memory_lines(memory: Mapping[str, int | None]) -> Iterator[str]:
    known = [f"{name.split('_')[0]} {format_bytes(value)}" for name, value in memory.items() if value is not None]
    if known:
        yield f"largest memory of a rank: {', '.join(known)}"


def _now(ranks: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for rank in ranks:
        if rank["closed"] or rank["age_ns"] is None or rank["age_ns"] < _STALE_NS:
            continue
        step = "no step yet" if rank["step"] is None else f"step {rank['step']}"
        where = f"{step}, {rank['phase'] or 'no phase'}"
        yield f"rank {rank['rank']} gave no sign of life for {format_duration(rank['age_ns'])}; it was in {where}"


def _rank(state: BlackBoxState, now: int) -> dict[str, Any]:
    beats = [beat for beat in (state.beat_ns, state.pulse_ns) if beat is not None]
    return {
        "rank": state.identity.rank,
        "step": state.step,
        "phase": state.phase,
        "in_phase_ns": now - state.phase_start_ns if state.phase_start_ns is not None and not state.closed else None,
        "age_ns": max(0, now - max(beats)) if beats else None,
        "closed": state.closed,
        "groups": [
            {"group": group.group, "operation": group.operation, "issued": group.enqueued, "completed": group.completed}
            for group in state.groups
        ],
    }
