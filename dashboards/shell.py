"""What every page has in common: who may see it, which source it shows, how old that is, and how plots are shown."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import streamlit as st

from dashboards.settings import Settings, read_environment
from dashboards.sources.catalogue import Source, SourceKind, by_id, find_sources
from dashboards.state import PageState, read_state, write_state
from dashboards.users import Gate
from scope.errors import ScopeError
from scope.report.inert import csv_text, markdown_text, visible
from scope.report.rows import to_csv
from scope.report.table import format_cell

if TYPE_CHECKING:
    from collections.abc import Sequence

    import polars as pl
    from plotly.graph_objects import Figure

    from scope.report.table import ReportTable

_LIST_TTL_S: Final = 5.0
_MAX_TABLE_ROWS: Final = 5_000
_KIND_WORDS: Final[dict[SourceKind, str]] = {
    "run": "recorded run",
    "trace": "profiler traces",
    "prometheus": "Prometheus server",
}
_STATE: Final = "scope_state"
_SIGNED_IN: Final = "scope_signed_in"


@st.cache_resource
def settings() -> Settings:
    """Return what the dashboard was started with."""
    return read_environment()


@st.cache_resource
def _gate() -> Gate:
    return Gate(settings().users)


@st.cache_resource(ttl=_LIST_TTL_S, max_entries=1)
def sources() -> tuple[Source, ...]:
    """Return everything that this server may show, as it is now on the disk."""
    return find_sources(settings().places)


def require_sign_in() -> None:
    """Stop drawing until the visitor has signed in, where users are declared."""
    if not settings().users or st.session_state.get(_SIGNED_IN):
        return
    gate = _gate()
    st.title("Scope")
    with st.form("sign_in"):
        name = st.text_input("User")
        password = st.text_input("Password", type="password")
        if st.form_submit_button("Sign in"):
            wait_s = gate.wait_s
            if gate.admits(name, password):
                st.session_state[_SIGNED_IN] = True
                st.rerun()
            st.error(f"Try again in {wait_s:.0f} s." if wait_s else "User or password is wrong.")
    st.stop()


def open_page(title: str, question: str, kinds: Sequence[SourceKind]) -> tuple[Source, PageState]:
    """Draw the head of a page and return the source that it shows.

    The choice is taken from the address, else from the page seen before, else it is the first source that fits; a page
    without a source that fits says what to do and stops.

    Args:
        title: Name of the page.
        question: What the page answers.
        kinds: Kinds of sources that the page can show.
    """
    st.title(title)
    st.caption(question)
    state = _current_state()
    try:
        fitting = [source for source in sources() if source.kind in kinds]
    except ScopeError as error:
        st.error(markdown_text(str(error)))
        st.stop()
    if not fitting:
        _say_empty(kinds)
        st.stop()
    chosen = by_id(fitting, state.source_id) or fitting[0]
    index = st.sidebar.selectbox(
        "Source",
        range(len(fitting)),
        index=fitting.index(chosen),
        format_func=lambda place: f"{visible(fitting[place].label)} · {_KIND_WORDS[fitting[place].kind]}",
        key=f"source of {title}",
    )
    source = fitting[index]
    state = replace(state, source_id=source.source_id)
    keep_state(state)
    return source, state


def keep_state(state: PageState) -> None:
    """Write the state into the address and remember it for the page that is opened next."""
    st.session_state[_STATE] = state
    write_state(st.query_params, state)


def _current_state() -> PageState:
    from_address = read_state(st.query_params.to_dict())
    remembered = st.session_state.get(_STATE)
    if from_address == PageState() and isinstance(remembered, PageState):
        return remembered
    return from_address


def choose_other(source: Source, state: PageState, label: str) -> tuple[Source | None, PageState]:
    """Let the visitor choose a second source of the same kind, and return it."""
    others = [each for each in sources() if each.kind == source.kind and each != source]
    if not others:
        return None, state
    chosen = by_id(others, state.other_id) or others[0]
    index = st.sidebar.selectbox(
        label, range(len(others)), index=others.index(chosen), format_func=lambda place: visible(others[place].label)
    )
    state = replace(state, other_id=others[index].source_id)
    keep_state(state)
    return others[index], state


def say_age(last_ns: int | None, *, live: bool, synthetic: bool) -> None:
    """Say how old the data is, whether it still grows, and whether it is made up."""
    if synthetic:
        st.warning("**Synthetic**: made by `scope.testing`, not recorded on hardware.", icon=":material/science:")
    if last_ns is None:
        return
    age_s = max(0.0, time.time() - last_ns / 1e9)
    if live:
        st.caption(f":material/sensors: live, last step {age_s:.0f} s ago")
    else:
        ended = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(last_ns / 1e9))
        st.caption(f":material/history: not running; last step at {ended}")


def show_figure(figure: Figure, table: pl.DataFrame | None, *, key: str) -> None:
    """Show a figure and, folded below it, the table of its values to read and download.

    Args:
        figure: A figure of `scope.report.figures`, whose names are inert already.
        table: The values; its text is made inert here. None where the figure is empty.
        key: Name of the plot on the page and of the download; keeps zoom and selection while the page is refreshed.
    """
    st.plotly_chart(figure, width="stretch", key=key, config={"displaylogo": False})
    if table is not None:
        with st.expander("Table"):
            show_table(table, key=key)


def show_table(table: pl.DataFrame, *, key: str) -> None:
    """Show the first rows of a table, and offer all of them as CSV."""
    shown = _inert(table)
    st.dataframe(shown.head(_MAX_TABLE_ROWS), width="stretch", hide_index=True, key=f"{key} table")
    if shown.height > _MAX_TABLE_ROWS:
        st.caption(f"The first {_MAX_TABLE_ROWS:,} of {shown.height:,} rows; the download has all.")
    st.download_button(
        "Download CSV",
        shown.write_csv,
        file_name=f"{key}.csv".replace(" ", "-"),
        key=f"{key} download",
        mime="text/csv",
    )


def show_report_table(table: ReportTable, *, key: str) -> None:
    """Show a table of a report: numbers sort as numbers, the meaning of each column is its help, notes stand below."""
    columns = {
        column.heading: st.column_config.Column(column.heading, help=markdown_text(column.meaning))
        for column in table.columns
    }
    rows = [
        {
            column.heading: csv_text(format_cell(cell, column.unit))
            for column, cell in zip(table.columns, row, strict=True)
        }
        for row in table.limited(_MAX_TABLE_ROWS).rows
    ]
    if rows:
        st.dataframe(rows, width="stretch", hide_index=True, column_config=columns, key=f"{key} table")
    else:
        st.info("Nothing of this kind is in the trace.", icon=":material/inbox:")
    for note in (*table.notes, *table.reasons()):
        st.caption(markdown_text(note))
    st.download_button(
        "Download CSV", lambda: to_csv(table), file_name=f"{table.name}.csv", key=f"{key} download", mime="text/csv"
    )


def _inert(table: pl.DataFrame) -> pl.DataFrame:
    import polars as pl

    texts = pl.selectors.string() | pl.selectors.categorical() | pl.selectors.enum()
    lists = pl.selectors.list()
    return table.with_columns(
        texts.cast(pl.String).map_elements(csv_text, return_dtype=pl.String),
        lists.map_elements(lambda values: str(values.to_list()), return_dtype=pl.String),
    )


def _say_empty(kinds: Sequence[SourceKind]) -> None:
    wanted = " or ".join(_KIND_WORDS[kind] for kind in kinds)
    st.info(f"No {wanted} here yet.", icon=":material/inbox:")
    hints = {
        "run": "Record a run: `scope run --run-dir runs/first -- torchrun --nproc-per-node 4 train.py`",
        "trace": "Put profiler traces (`*.json`, `*.json.gz`) into a folder and start `scope dashboard FOLDER`",
        "prometheus": "Name a server: `scope dashboard http://localhost:9090`",
    }
    st.markdown("\n".join(f"- {hints[kind]}" for kind in kinds))
    st.markdown("- Or see it all at once: `scope demo`")
