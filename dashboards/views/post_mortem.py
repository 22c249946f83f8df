"""Post-mortem: what every rank did last, from the black boxes that survive the death of their process."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TypeAlias

import polars as pl

from dashboards import say
from dashboards.findings import draw_ends, draw_verdicts
from dashboards.shell import load_run, on_each_refresh, open_page, say_age
from dashboards.tables import fold, show_report_table, show_table
from dashboards.words import say_problems
from scope.analysis.recorded import GroupProgress, compute_group_progress, find_missed_calls, title_of
from scope.frames.schema import Events
from scope.report.standing import missed_words
from scope.report.table import Absent, ReportColumn, ReportTable
from scope.run.alive import find_signs
from scope.run.goodbyes import FINISHED
from scope.units import NS_PER_S

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dashboards.sources.runs import LiveRun
    from scope.analysis.recorded import RunState, Watched
    from scope.run.blackbox import BlackBoxState, RingCall
    from scope.run.schema import RankInfo

SHOWN_CALLS = 64
GroupTitles: TypeAlias = "Mapping[int, Mapping[int, str]]"
"""What people call each group, by rank and the group's number within it."""


def last_states(watched: Watched, boxes: Mapping[int, BlackBoxState], titles: GroupTitles) -> pl.DataFrame:
    """Return what each rank did last, the rank whose program did nothing new for longest on top."""
    infos = {info.rank: info for info in watched.infos}
    groups = {call.group for box in boxes.values() for call in box.calls}
    rows = [
        {
            "rank": rank,
            "step": box.step,
            "phase": box.phase,
            # Among the first: a phone shows no more than four columns.
            "last collective": _last_call(box, titles.get(rank, {}) if len(groups) > 1 else None),
            "not seen to end": sum(not _was_seen_to_end(call, box) for call in box.calls),
            "ended": _end(watched.state, infos.get(rank), box),
            "last call or phase": _clock(box.beat_ns),
            "last sign of life": _clock(max(_signs(infos.get(rank), box), default=None)),
            "beat_ns": box.beat_ns,
        }
        for rank, box in sorted(boxes.items())
    ]
    return pl.DataFrame(rows, infer_schema_length=None).sort("beat_ns", nulls_last=True).drop("beat_ns")


def _end(state: RunState, info: RankInfo | None, box: BlackBoxState) -> str:
    reason = None if info is None else info.exit_reason
    if reason not in (None, FINISHED):
        return reason
    if box.exception:
        return "exception"
    if reason == FINISHED or box.closed:
        return "in order"
    return "no" if state.is_live and box.identity.rank not in state.gone_ranks else "without a goodbye"


def _signs(info: RankInfo | None, box: BlackBoxState) -> list[int]:
    if info is not None:
        return find_signs(info, box)
    return [sign for sign in (box.beat_ns, box.pulse_ns) if sign is not None]


PROGRESS_COLUMNS = (
    ReportColumn(key="group", heading="group", unit="text", meaning="Name of the process group."),
    ReportColumn(key="members", heading="ranks of the group", unit="text", meaning="Global ranks of the group."),
    ReportColumn(key="axis", heading="mesh axis", unit="text", meaning="Axis of the device mesh that it lies along."),
    ReportColumn(key="rank", heading="rank", unit="id", meaning="Global rank."),
    ReportColumn(key="issued", heading="issued", unit="count", meaning="Number of the last call that it issued."),
    ReportColumn(
        key="completed", heading="completed", unit="count", meaning="Largest number whose completion it has seen."
    ),
    ReportColumn(
        key="behind", heading="behind", unit="count", meaning="Calls that another rank has issued and this one has not."
    ),
    ReportColumn(key="operation", heading="last operation", unit="text", meaning="Operation of its last call."),
    ReportColumn(
        key="differs",
        heading="issued other calls than its peers",
        unit="flag",
        meaning="Has come to a call under whose number ranks of the group issued different ones.",
    ),
)


def progress_table(progress: pl.DataFrame) -> ReportTable:
    """Return how far each rank got, for people.

    Args:
        progress: Table `GroupProgress`.
    """
    unknown = Absent("rank.json does not know the group")
    rows = tuple(
        (
            row[GroupProgress.group_title],
            unknown if row[GroupProgress.group_ranks] is None else ", ".join(map(str, row[GroupProgress.group_ranks])),
            row[GroupProgress.mesh_axis] or Absent("the group belongs to no device mesh"),
            row[GroupProgress.rank],
            row[GroupProgress.enqueued],
            row[GroupProgress.completed],
            row[GroupProgress.behind],
            row[GroupProgress.operation],
            row[GroupProgress.is_mismatched],
        )
        for row in progress.iter_rows(named=True)
    )
    title = "How far each rank got in each process group"
    return ReportTable(name="progress", title=title, columns=PROGRESS_COLUMNS, rows=rows, num_rows=len(rows))


def draw_progress(run: LiveRun, boxes: dict[int, BlackBoxState]) -> None:
    """Draw how far each rank got in each process group; who did not arrive stands on top, where the run stands still.

    While steps end, some ranks are always ahead of others in the instant that is looked at: nobody is accused.
    """
    infos = [info for info in run.run.rank_infos if info.attempt == run.attempt]
    progress = compute_group_progress(infos, boxes)
    if progress.is_empty():
        return
    say.subheader("How far each rank got in each process group")
    state = run.state()
    standing = state.standing
    was_cut_off = standing == "ended without a goodbye" or bool(state.exit_reasons)
    if standing == "running":
        makes = "makes steps" if state.silent_ns is None else "made steps when it was last seen"
        say.caption(f"The run {makes}: ranks that are behind here were merely looked at a moment earlier.")
    elif was_cut_off and (missed := find_missed_calls(progress)):
        say.info(f"At its end: {missed_words(missed)}.", icon=":material/person_off:")
    show_report_table(progress_table(progress), key="progress by group")


def draw(run: LiveRun) -> None:
    """Draw verdicts, last states and the last calls."""
    say_age(run)
    draw_verdicts(run.verdicts(), said=draw_ends(run))
    boxes = run.black_boxes()
    if not boxes:
        say.info("No rank has a black box: the run was synthetic, or its memory was not to be had.")
        say_problems(run)
        return
    if run.ranks.is_empty():
        say.info("No rank has a rank.json that can be read: what stands here is of the black boxes alone.")
    say.subheader("What each rank did last")
    titles = {
        info.rank: {group.group: title_of(group) for group in info.groups}
        for info in run.run.rank_infos
        if info.attempt == run.attempt
    }
    show_table(last_states(run.watched(), boxes, titles), key="last states")
    say.caption(
        "A black box learns that a collective has ended with the next call of its group, or within a second: "
        "one that was not seen to end may have ended in the rank's last second."
    )
    draw_progress(run, boxes)
    rank = say.selectbox("Last calls of rank", sorted(boxes))
    if boxes[rank].calls:
        show_table(_calls(boxes[rank], titles.get(rank, {})), key="last calls")
    else:
        say.caption("Its black box holds no single calls.")
    if not run.events().is_empty():
        fold("Events", lambda: show_table(run.events().sort(Events.time_ns), key="events"), key="events")
    say_problems(run)


def _calls(box: BlackBoxState, titles: Mapping[int, str]) -> pl.DataFrame:
    rows = [
        {
            "group": titles.get(call.group, f"#{call.group}"),
            "sequence": call.sequence,
            "operation": call.operation,
            "step": call.step,
            "in_bytes": call.in_bytes,
            "out_bytes": call.out_bytes,
            "issued": _clock(call.issued_ns),
            "completed": _clock(call.completed_ns),
        }
        for call in reversed(box.calls[-SHOWN_CALLS:])
    ]
    return pl.DataFrame(rows, infer_schema_length=None)


def _last_call(box: BlackBoxState, titles: Mapping[int, str] | None) -> str | None:
    """Return the last call of a rank; its group is named where titles are given."""
    if not box.calls:
        return None
    call = box.calls[-1]
    state = "completed" if _was_seen_to_end(call, box) else "not seen to end"
    group = "" if titles is None else f" of group {titles.get(call.group, f'#{call.group}')}"
    return f"{call.operation} {call.sequence}{group}, {state}"


def _was_seen_to_end(call: RingCall, box: BlackBoxState) -> bool:
    """Return whether a call has completed, by its own record or by how far its group had come."""
    if call.completed_ns is not None:
        return True
    # Send and recv are counted apart from what the group's numbers tell.
    return call.operation not in {"send", "recv"} and any(
        group.group == call.group and group.completed >= call.sequence for group in box.groups
    )


def _clock(instant_ns: int | None) -> str | None:
    if instant_ns is None:
        return None
    whole, rest = divmod(instant_ns, NS_PER_S)
    return time.strftime("%H:%M:%S", time.gmtime(whole)) + f".{rest // 1_000_000:03d} UTC"


def main() -> None:
    """Draw the page."""
    question = "What did every rank do last, and which one did not arrive?"
    source, _ = open_page("Post-mortem", question, ("run",))
    run = load_run(source)
    on_each_refresh(run, lambda: draw(run))


main()
