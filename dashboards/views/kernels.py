"""Kernels: which took the time, and how near each is to what the device can do."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import polars as pl
import streamlit as st

from dashboards import say
from dashboards.plots import choose_points, show_figure
from dashboards.shell import open_page, remember, say_traces
from dashboards.sources.traces import load_traces
from dashboards.tables import fold, show_report_table, show_table
from scope.analysis.roofline import RooflinePoints
from scope.report.inert import shortened
from scope.report.page_figures import kernels_figure, roofline_figure, roofline_points
from scope.report.sections.kernels import kernels_table
from scope.report.sections.roofline import coverage_table, roofline_table
from scope.units import format_bytes, format_duration, format_flop_rate, format_ratio

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from dashboards.state import PageState
    from scope.analysis.kernels import KernelKey
    from scope.report.results import Results

LONGEST_NAME: Final = 2_000
GROUPINGS: Final[dict[KernelKey, str]] = {
    "name": "Kernel",
    "kernel_class": "Class",
    "operator": "Operator",
    "module": "Module",
}


def draw_roofline(results: Results, state: PageState) -> None:
    """Draw the roofline, and what is known of the kernel that is clicked."""
    say.subheader("How near each kernel is to what the GPU can do")
    points = choose_points(roofline_figure(results), None, key="roofline")
    placed = roofline_points(results)
    place = clicked(points)
    place = state.selection if place is None else place
    if place is not None and place < placed.height:
        remember(replace(state, selection=place))
        draw_point(placed.row(place, named=True))
    elif not placed.is_empty():
        say.caption(
            "The area of a bubble is the time of its kernels. Click one to see its operator, shapes and saving."
        )
    table, coverage = roofline_table(results.rooflines), coverage_table(results.rooflines)
    fold("Table", lambda: show_report_table(table, key="roofline points"), key="roofline points")
    title = "What is covered, and against which GPU"
    fold(title, lambda: show_report_table(coverage, key="roofline coverage"), key="roofline coverage")


def clicked(points: list[Mapping[str, Any]]) -> int | None:
    """Return the row of the bubble that was clicked: the last entry of its custom data."""
    data = points[0].get("customdata") if points else None
    last = data[-1] if isinstance(data, list) and data else None
    return last if isinstance(last, int) and last >= 0 else None


def draw_point(row: Mapping[str, Any]) -> None:
    """Draw what is known of one kernel with its shapes."""
    with st.container(border=True):
        say.code(shortened(str(row[RooflinePoints.kernel]), length=LONGEST_NAME), language=None, wrap_lines=True)
        row_of_figures = st.container(horizontal=True, gap="medium")
        saving = row[RooflinePoints.saving_ns]
        figures = {
            "Time": format_duration(row[RooflinePoints.duration_ns]),
            "Executions": f"{row[RooflinePoints.num_kernels]:,}",
            "Of its ceiling": format_ratio(row[RooflinePoints.attained_ratio]),
            "Achieved": format_flop_rate(row[RooflinePoints.achieved_flop_per_s]),
            "Least bytes": format_bytes(row[RooflinePoints.num_bytes]),
            "At most saved": "–" if saving is None else format_duration(saving),
        }
        with row_of_figures:
            for name, text in figures.items():
                say.metric(name, text, width="content")
        facts = {
            "operator": row[RooflinePoints.operator],
            "shapes": row[RooflinePoints.shapes],
            "path": row[RooflinePoints.path],
            "bound by": row[RooflinePoints.bound],
            "class": row[RooflinePoints.kernel_class],
        }
        show_table(pl.DataFrame({name: [str(value)] for name, value in facts.items()}), key="the chosen kernel")


def main() -> None:
    """Draw the page."""
    source, state = open_page("Kernels", "Which kernels took the time, and which are worth changing?", ("trace",))
    report = load_traces(source)
    say_traces(report)
    analysis = report.results.analysis
    if analysis.kernels.by_name.is_empty():
        say.info(
            "The traces hold no kernels: record on a GPU, or look at the timeline of the host.", icon=":material/inbox:"
        )
        return
    if all(rank.is_host_timeline for rank in analysis.ranks):
        say.info(
            "These traces hold no GPU events: what follows are operators on the host, for which there is no roofline.",
            icon=":material/developer_board:",
        )
    if report.results.rooflines:
        draw_roofline(report.results, state)
    show_figure(kernels_figure(analysis), None, key="kernels by time")
    keys = tuple(GROUPINGS)
    place = say.radio("Grouped by", range(len(keys)), format_func=lambda each: GROUPINGS[keys[each]], horizontal=True)
    by = keys[place or 0]
    if by == "module" and analysis.kernels.by_module is None:
        reason = analysis.kernels.absent.get("by_module", "record with Python stacks to see modules")
        say.info(f"No modules: {reason}.", icon=":material/inbox:")
        return
    show_report_table(kernels_table(analysis, by=by), key=f"kernels by {by}")


main()
