"""Post-mortem: what every rank did last, from the black boxes that survive the death of their process."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import polars as pl
import streamlit as st

from dashboards.shell import (
    fold,
    load_run,
    on_each_refresh,
    open_page,
    say_age,
    show_table,
)
from dashboards.words import say_problems
from scope.analysis.recorded import GroupProgress, compute_group_progress, find_absentees
from scope.report.inert import markdown_text
from scope.units import NS_PER_S

if TYPE_CHECKING:
    from dashboards.sources.runs import LiveRun
    from scope.run.blackbox import BlackBoxState

SHOWN_CALLS = 64


def last_states(boxes: dict[int, BlackBoxState]) -> pl.DataFrame:
    """Return what each rank did last, the rank that fell silent first on top."""
    rows = [
        {
            "rank": rank,
            "step": box.step,
            "phase": box.phase,
            "last sign of life": _clock(box.beat_ns),
            "ended": "exception" if box.exception else "in order" if box.closed else "no",
            "last collective": _last_call(box),
            "open collectives": sum(call.completed_ns is None for call in box.calls),
            "beat_ns": box.beat_ns,
        }
        for rank, box in sorted(boxes.items())
    ]
    return pl.DataFrame(rows, infer_schema_length=None).sort("beat_ns", nulls_last=True).drop("beat_ns")


def draw_progress(run: LiveRun, boxes: dict[int, BlackBoxState]) -> None:
    """Say who did not arrive, and how far each rank got in each process group."""
    infos = [info for info in run.run.rank_infos if info.attempt == run.attempt]
    progress = compute_group_progress(infos, boxes)
    if progress.is_empty():
        return
    st.subheader("How far each rank got in each process group")
    absent = find_absentees(progress)
    if absent:
        st.error(f"Behind the others: rank {', '.join(map(str, absent))}.", icon=":material/person_off:")
    if progress[GroupProgress.is_mismatched].any():
        st.error("Ranks of a group have issued different collectives: see is_mismatched.", icon=":material/call_split:")
    show_table(progress, key="progress by group")


def draw(run: LiveRun) -> None:
    """Draw verdicts, last states and the last calls."""
    say_age(run.last_ns, live=run.is_live, synthetic=run.info.synthetic)
    for verdict in run.verdicts():
        action = f" {verdict.action}" if verdict.action else ""
        st.error(markdown_text(f"{verdict.kind}: {verdict.summary}{action}"), icon=":material/gavel:")
    boxes = run.black_boxes()
    if not boxes:
        st.info("No rank has a black box: the run was synthetic, or its memory was not to be had.")
        return
    st.subheader("What each rank did last")
    show_table(last_states(boxes), key="last states")
    draw_progress(run, boxes)
    rank = st.selectbox("Last calls of rank", sorted(boxes))
    show_table(_calls(boxes[rank]), key="last calls")
    if not run.events().is_empty():
        fold("Events", lambda: show_table(run.events(), key="events"), key="events")
    say_problems(run)


def _calls(box: BlackBoxState) -> pl.DataFrame:
    rows = [
        {
            "group": call.group,
            "sequence": call.sequence,
            "operation": call.operation,
            "step": call.step,
            "bytes in": call.in_bytes,
            "bytes out": call.out_bytes,
            "issued": _clock(call.issued_ns),
            "completed": _clock(call.completed_ns),
        }
        for call in reversed(box.calls[-SHOWN_CALLS:])
    ]
    return pl.DataFrame(rows, infer_schema_length=None)


def _last_call(box: BlackBoxState) -> str | None:
    if not box.calls:
        return None
    call = box.calls[-1]
    state = "open" if call.completed_ns is None else "completed"
    return f"{call.operation} {call.sequence} of group {call.group}, {state}"


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
