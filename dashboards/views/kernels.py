"""Kernels: which took the time, and how near each is to what the device can do."""

from __future__ import annotations

from typing import Final

import streamlit as st

from dashboards.shell import open_page, show_figure, show_report_table
from dashboards.sources.traces import load_traces
from scope.analysis.kernels import KernelKey, KernelStats
from scope.report.figures import kernels_by_time
from scope.report.sections.kernels import kernels_table

SHOWN_BARS = 20
GROUPINGS: Final[dict[KernelKey, str]] = {
    "name": "Kernel",
    "kernel_class": "Class",
    "operator": "Operator",
    "module": "Module",
}


def main() -> None:
    """Draw the page."""
    source, _ = open_page("Kernels", "Which kernels took the time, and which are worth changing?", ("trace",))
    analysis = load_traces(source.place).results.analysis
    names = analysis.kernels.by_name.head(SHOWN_BARS)
    if names.is_empty():
        st.info(
            "The traces hold no kernels: record on a GPU, or look at the timeline of the host.", icon=":material/inbox:"
        )
        return
    figure = kernels_by_time(
        [str(name) for name in names[KernelStats.key]],
        names[KernelStats.total_ns].to_list(),
        [str(each) for each in names[KernelStats.kernel_class]],
    )
    show_figure(figure, None, key="kernels by time")
    keys = tuple(GROUPINGS)
    place = st.radio("Grouped by", range(len(keys)), format_func=lambda each: GROUPINGS[keys[each]], horizontal=True)
    by = keys[place or 0]
    show_report_table(kernels_table(analysis, by=by), key=f"kernels by {by}")


main()
