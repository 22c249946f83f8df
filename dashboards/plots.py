"""How figures stand on a page: they keep zoom and selection, tell what is clicked, and have their values below."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import streamlit as st

from dashboards.shell import shown_source_id
from dashboards.tables import fold, show_table

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import polars as pl
    from plotly.graph_objects import Figure

_PLOT_CONFIG: Final = {"displaylogo": False, "responsive": True}


def show_figure(figure: Figure, table: pl.DataFrame | None, *, key: str) -> None:
    """Show a figure and, folded below it, the table of its values to read and download.

    Args:
        figure: A figure of `scope.report.figures`, whose names are inert already.
        table: The values; its text is made inert here. None where the table stands elsewhere on the page.
        key: Name of the plot on the page and of the download; keeps zoom and selection while the page is refreshed.
    """
    st.plotly_chart(_with_memory(figure, key), width="stretch", key=key, config=_PLOT_CONFIG)
    if table is not None:
        _fold(table, key)


def choose_points(figure: Figure, table: pl.DataFrame | None, *, key: str) -> list[Mapping[str, Any]]:
    """Show a figure whose marks can be clicked, and return those that are chosen now, as plotly describes them.

    Args:
        figure: As in `show_figure`.
        table: As in `show_figure`.
        key: As in `show_figure`.
    """
    chosen: Any = st.plotly_chart(
        _with_memory(figure, key),
        width="stretch",
        key=key,
        config=_PLOT_CONFIG,
        on_select="rerun",
        selection_mode="points",
    )
    if table is not None:
        _fold(table, key)
    return list(chosen["selection"]["points"]) if chosen else []


def is_new_choice(name: str, value: int | None) -> bool:
    """Return whether something was clicked since the last drawing; a click that merely stays chosen is not new."""
    before = st.session_state.get(f"scope choice: {name}")
    st.session_state[f"scope choice: {name}"] = value
    return value is not None and value != before


def choose_span(figure: Figure, *, key: str, on_box: Callable[[float, float], None]) -> None:
    """Show a figure in which a box can be drawn.

    Args:
        figure: The figure.
        key: Name on the page.
        on_box: Called with the extent of a box along the x axis, before the page is drawn again.
    """
    figure.update_layout(dragmode="select", selectdirection="h")

    def tell() -> None:
        boxes = st.session_state[key]["selection"]["box"]
        if boxes:
            edges = [float(each) for each in boxes[0]["x"]]
            on_box(min(edges), max(edges))

    st.plotly_chart(
        _with_memory(figure, key),
        width="stretch",
        key=key,
        config=_PLOT_CONFIG,
        on_select=tell,
        selection_mode="box",
    )


def _with_memory(figure: Figure, key: str) -> Figure:
    """Let the browser keep zoom and hidden lines while the same source is drawn again."""
    return figure.update_layout(uirevision=f"{shown_source_id()} {key}")


def _fold(table: pl.DataFrame, key: str) -> None:
    fold("Table", lambda: show_table(table, key=key), key=key)
