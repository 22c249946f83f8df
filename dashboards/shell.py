"""What every page has in common: who may see it, which source it shows, how old that is, and how plots are shown."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import streamlit as st

from dashboards import say
from dashboards.numbers import number_columns, readable_columns
from dashboards.settings import Settings, read_environment
from dashboards.sources.catalogue import Source, SourceKind, SourceList, by_id
from dashboards.sources.choice import choose_like, choose_source
from dashboards.sources.runs import open_live
from dashboards.state import SOURCE, PageState, read_state, write_state
from dashboards.users import Gate
from scope.errors import ScopeError
from scope.report.inert import csv_text
from scope.report.rows import to_csv
from scope.report.standing import standing_words
from scope.report.table import Absent, format_cell

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import polars as pl
    from plotly.graph_objects import Figure

    from dashboards.sources.runs import LiveRun
    from dashboards.sources.traces import TraceJob
    from scope.report.table import ReportColumn, ReportTable

_MAX_TABLE_ROWS: Final = 5_000
_MOST_SHOWN: Final = 500
_MOST_BYTES: Final = 4 * _MOST_SHOWN
_MANY_COLUMNS: Final = 6
_FEW_COLUMNS: Final = 3
_LONG_NAME: Final = 30
_NAME_WIDTH: Final = 230
_PATIENCE_S: Final = 0.2
_SHORTEST_SCRAPE_S: Final = 5.0
"""Looking at a server more often than it looks at its exporters shows nothing new."""
_KIND_WORDS: Final[dict[SourceKind, str]] = {
    "run": "recorded run",
    "trace": "profiler traces",
    "prometheus": "Prometheus server",
}
_STATE: Final = "scope_state"
_PLOT_CONFIG: Final = {"displaylogo": False, "responsive": True}
_SIGNED_IN: Final = "scope_signed_in"
_SHOWN: Final = "scope_shown_source"
_STYLE: Final = """<style>
.stMainBlockContainer { padding-top: 2.75rem; }
@media (min-width: 640px) { .stMainBlockContainer { padding-left: 2rem; padding-right: 2rem; } }
h1 { font-size: 1.9rem !important; padding-bottom: 0 !important; }
h3 { font-size: 1.15rem !important; }
[data-testid="stMetricValue"] { font-size: 1.6rem; }
</style>"""
"""Fixed text: nothing that comes from a source may ever stand here."""


@st.cache_resource
def settings() -> Settings:
    """Return what the dashboard was started with."""
    return read_environment()


@st.cache_resource
def _gate() -> Gate:
    return Gate(settings().users)


@st.cache_resource
def source_list() -> SourceList:
    """Return the list that all visitors share."""
    return SourceList(settings().places)


def sources() -> tuple[Source, ...]:
    """Return everything that this server may show, as it was on the disk a few seconds ago.

    Raises:
        ScopeError: As for `find_sources`.
    """
    return source_list().now()


def is_signed_in() -> bool:
    """Return whether the visitor may see the pages: nobody needs to sign in, or this visitor has."""
    return not settings().users or bool(st.session_state.get(_SIGNED_IN))


def require_sign_in() -> None:
    """Stop drawing until the visitor has signed in, where users are declared."""
    if is_signed_in():
        return
    gate = _gate()
    say.title("Scope")
    with st.form("sign_in"):
        name = say.text_input("User")
        password = say.text_input("Password", type="password")
        if say.form_submit_button("Sign in"):
            client = st.context.ip_address
            wait_s = gate.wait_s(client)
            if gate.admits(name, password, client=client):
                st.session_state[_SIGNED_IN] = True
                st.rerun()
            say.error(f"Try again in {wait_s:.0f} s." if wait_s else "User or password is wrong.")
    st.stop()


def open_page(title: str, question: str, kinds: Sequence[SourceKind]) -> tuple[Source, PageState]:
    """Draw the head of a page and return the source that it shows.

    The choice is taken from the address, else from the page seen before, else it is a run that lives or the latest one;
    a page without a source that fits says what to do and stops.

    Args:
        title: Name of the page.
        question: What the page answers.
        kinds: Kinds of sources that the page can show.
    """
    st.html(_STYLE)
    say.title(title)
    say.caption(question)
    state = _current_state()
    try:
        fitting = [source for source in sources() if source.kind in kinds]
    except ScopeError as error:
        say.error(str(error))
        st.stop()
    if not fitting:
        _say_empty(kinds)
        st.stop()
    chosen = by_id(fitting, state.source_id) or _related(fitting, state.source_id)
    names = {each.source_id: f"{each.label} · {_KIND_WORDS[each.kind]}" for each in fitting}
    # By their ids: the place of a source in the list changes when another one comes or goes.
    with st.sidebar:
        source_id = say.selectbox(
            "Source",
            list(names),
            index=fitting.index(chosen),
            format_func=lambda each: names.get(each, "gone"),
            key=f"source of {title}",
        )
    source = by_id(fitting, source_id) or chosen
    _say_what_is_shown_instead(source, kinds)
    if source.source_id != state.source_id and state.source_id is not None:
        # Ranks, steps and windows of another source mean nothing here.
        state = PageState(source_id=source.source_id)
    state = replace(state, source_id=source.source_id)
    keep_state(state)
    st.session_state[_SHOWN] = source.source_id
    return source, state


def _related(fitting: Sequence[Source], source_id: str | None) -> Source:
    """Return what comes nearest a source that the page cannot show: a window of the run, the run of the window."""
    wanted = by_id(sources(), source_id)
    if wanted is not None:
        for each in reversed(fitting):
            if each.run_id == wanted.source_id or each.source_id == wanted.run_id:
                return each
    return choose_source(fitting)


def _say_what_is_shown_instead(shown: Source, kinds: Sequence[SourceKind]) -> None:
    """Say when the address, or the page before, names a source that this page cannot show."""
    asked = st.query_params.get(SOURCE) or remembered_state().source_id
    if asked is None or asked == shown.source_id:
        return
    known = by_id(sources(), asked)
    if known is None:
        say.warning(
            say.words(
                "The link or the page before names a source that this server does not have, or no longer: **{}** is "
                "shown instead. Choose another under Source, or ask for a new link.",
                shown.label,
            ),
            icon=":material/link_off:",
        )
    elif known.kind not in kinds:
        say.caption(
            f"This page cannot show a {_KIND_WORDS[known.kind]}: it shows {shown.label} ({_KIND_WORDS[shown.kind]})."
        )


def keep_state(state: PageState) -> None:
    """Write the state into the address and remember it for the page that is opened next."""
    remember(state)
    write_state(st.query_params, state)


def remember(state: PageState) -> None:
    """Keep the state for the next drawing; unlike writing the address, this cannot be broken off."""
    st.session_state[_STATE] = state


def remembered_state() -> PageState:
    """Return the state that was remembered last."""
    remembered = st.session_state.get(_STATE)
    return remembered if isinstance(remembered, PageState) else PageState()


def _current_state() -> PageState:
    from_address = read_state(st.query_params.to_dict())
    return remembered_state() if from_address == PageState() else from_address


def choose_other(source: Source, state: PageState, label: str) -> tuple[Source | None, PageState]:
    """Let the visitor choose a second source of the same kind, and return it."""
    # The list may be some seconds old, and one that was deleted since is nothing to begin a comparison with.
    others = [each for each in sources() if each.kind == source.kind and each != source and Path(each.place).exists()]
    if not others:
        return None, state
    chosen = by_id(others, state.other_id) or choose_like(source, others)
    with st.sidebar:
        index = say.selectbox(
            label, range(len(others)), index=others.index(chosen), format_func=lambda place: others[place].label
        )
    state = replace(state, other_id=others[index].source_id)
    keep_state(state)
    return others[index], state


def say_synthetic() -> None:
    """Say that what the page shows is made up."""
    text = say.words("**Synthetic**: made by `scope.testing`, not recorded on hardware.")
    say.warning(text, icon=":material/science:")


def say_age(run: LiveRun) -> None:
    """Say how a run stands, how old the data is, and whether it is made up."""
    if run.info.synthetic:
        say_synthetic()
    state = run.state()
    words = standing_words(state, now_ns=time.time_ns())
    if state.standing == "no step":
        say.error(f"{words}.", icon=":material/person_off:")
    elif state.standing != "not begun":
        icon = say.words(":material/sensors: live," if state.standing == "running" else ":material/history:")
        say.caption(say.words("{} {}", icon, words))


def say_traces(traces: TraceJob) -> None:
    """Say how old traces are, and whether they are made up."""
    if traces.synthetic:
        say_synthetic()
    say.caption(say.words(":material/history: profiler traces, written at {}", utc(traces.modified_ns)))


def utc(instant_ns: int) -> str:
    """Return an instant for people, to the second."""
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(instant_ns / 1e9))


def on_each_refresh(run: LiveRun, draw: Callable[[], None], *, slowest_s: float = 0.0) -> None:
    """Draw now and, while the run goes on, again at each refresh, without redrawing the rest of the page.

    A run whose folder was deleted while it is shown, or whose files break, says so where its figures stood.

    Args:
        run: The run.
        draw: Draws it.
        slowest_s: What changes slowly and costs much is drawn again after this time at the earliest.
    """

    def draw_or_say() -> None:
        try:
            run.refresh()
            draw()
        except ScopeError as error:
            say_error(error)

    # Before the first step nobody can tell that a run is live.
    goes_on = run.is_live or run.last_ns is None
    st.fragment(draw_or_say, run_every=max(settings().refresh_s, slowest_s) if goes_on else None)()


def on_each_answer(source: Source, draw: Callable[[], None]) -> None:
    """Draw what a Prometheus server says now, and again and again; until it has answered say that it is asked.

    Args:
        source: The server.
        draw: Asks and draws.
    """

    def draw_or_say() -> None:
        try:
            draw()
        except ScopeError as error:
            say_error(error)

    place = st.empty()
    with place:
        say.caption(say.words(":material/hourglass_empty: Asking {} …", source.label))
    st.fragment(draw_or_say, run_every=max(_SHORTEST_SCRAPE_S, settings().refresh_s))()
    place.empty()


def load_run(source: Source) -> LiveRun:
    """Return a run with all that has been written so far; say how far reading has come when it takes long.

    Raises:
        RunError: The folder is no run directory any more.
    """
    run = open_live(source.place, refresh_s=settings().refresh_s)
    if not run.was_read:
        reading = run.read_aside()
        reading.join(_PATIENCE_S)
        if reading.is_alive():
            place = st.empty()
            while reading.is_alive():
                with place:
                    say.progress(run.run.read_ratio, f"Reading the run: {run.run.read_ratio:.0%}")
                reading.join(_PATIENCE_S)
            place.empty()
    run.refresh()
    return run


def say_error(error: ScopeError) -> None:
    """Show what is wrong in one sentence; its text may hold names from files."""
    say.error(str(error), icon=":material/broken_image:")


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
    return figure.update_layout(uirevision=f"{st.session_state.get(_SHOWN)} {key}")


def _fold(table: pl.DataFrame, key: str) -> None:
    fold("Table", lambda: show_table(table, key=key), key=key)


def fold(label: str, draw: Callable[[], None], *, key: str) -> None:
    """Offer something to unfold; it is drawn, and sent to the browser, only while it is open.

    Args:
        label: Fixed words.
        draw: Draws what is inside.
        key: Name on the page; keeps it open while the page is refreshed.
    """
    place = say.expander(label, key=f"{key} fold", on_change="rerun")
    if place.open:
        with place:
            draw()


def show_table(table: pl.DataFrame, *, key: str) -> None:
    """Show the first rows of a table in readable units, and offer all of them, in the units of their names, as CSV."""
    readable = readable_columns(_inert(table.head(_MAX_TABLE_ROWS)))
    columns = {
        name: say.number_column(column.label, format=column.format) if column.format else say.column(column.label)
        for name, column in readable.columns.items()
    }
    _draw_cells(readable.cells, columns, key=key)
    if readable.unknown:
        say.caption(f"Not known here: {', '.join(readable.unknown)}.")
    if table.height > _MAX_TABLE_ROWS:
        say.caption(f"The first {_MAX_TABLE_ROWS:,} of {table.height:,} rows; the download has all.")
    say.download_button(
        "Download CSV",
        lambda: csv_of(table),
        file_name=f"{key}.csv".replace(" ", "-"),
        key=f"{key} download",
        mime="text/csv",
    )


def show_report_table(table: ReportTable, *, key: str) -> None:
    """Show a table of a report: the meaning of each column is its help, notes and reasons stand below."""
    if not table.rows:
        say.info("Nothing of this kind is in the trace.", icon=":material/inbox:")
    elif len(table.rows) == 1 and len(table.columns) > _MANY_COLUMNS:
        _draw_cells(upright(table), {}, key=key)
    else:
        _draw_report(table, key=key)
    for note in (*table.notes, *table.reasons()):
        say.caption(note)
    if table.rows:
        say.download_button(
            "Download CSV", lambda: to_csv(table), file_name=f"{table.name}.csv", key=f"{key} download", mime="text/csv"
        )


def upright(table: ReportTable) -> pl.DataFrame:
    """Return the one row of a table that is wider than a screen as a column, with what each figure means."""
    import polars as pl

    (row,) = table.rows
    return pl.DataFrame(
        {
            "figure": [csv_text(column.heading) for column in table.columns],
            "value": [csv_text(format_cell(cell, each.unit)) for cell, each in zip(row, table.columns, strict=True)],
            "meaning": [csv_text(column.meaning) for column in table.columns],
        }
    )


def _draw_report(table: ReportTable, *, key: str) -> None:
    cells, numbers = number_columns(table.limited(_MAX_TABLE_ROWS))
    same = same_columns(table)
    cells = cells.drop(column.key for column in same)
    columns: dict[str, Any] = {}
    for column in table.columns:
        number = numbers.get(column.key)
        columns[column.key] = (
            say.text_column(column.heading, help=column.meaning, width=_width(cells, column.key))
            if number is None
            else say.number_column(number.label, help=column.meaning, format=number.format)
        )
    _draw_cells(cells, columns, key=key)
    if same:
        first = table.rows[0]
        texts = [f"{each.heading} {format_cell(first[table.columns.index(each)], each.unit)}" for each in same]
        say.caption(f"The same in every row: {', '.join(texts)}.")


def _draw_cells(cells: pl.DataFrame, columns: dict[str, Any], *, key: str) -> None:
    """Draw a table; a cell that is not known is a dash, and no name is longer than anybody reads on a screen."""
    import polars as pl

    text = pl.selectors.string()
    cut = pl.when(text.str.len_bytes() > _MOST_BYTES).then(text.str.slice(0, _MOST_SHOWN) + "…").otherwise(text)
    st.dataframe(
        cells.with_columns(cut.name.keep()),
        width="stretch",
        hide_index=True,
        column_config=columns,
        key=f"{key} table",
        placeholder="–",
    )


def same_columns(table: ReportTable) -> list[ReportColumn]:
    """Return the columns that a wide table says in a sentence, since all its rows hold one value there.

    The first column and those of cells that are not known stay, as do all columns of a table that a screen can show.
    """
    if len(table.columns) <= _MANY_COLUMNS or len(table.rows) < 2:
        return []
    return [
        column
        for place, column in enumerate(table.columns)
        if place and len({row[place] for row in table.rows}) == 1 and not isinstance(table.rows[0][place], Absent)
    ]


def _width(cells: pl.DataFrame, key: str) -> int | None:
    """Return the pixels that a column of long names may take beside several others; None for what it needs."""
    if key not in cells.columns or cells.width <= _FEW_COLUMNS:
        return None
    longest = cells[key].str.len_chars().max()
    return _NAME_WIDTH if isinstance(longest, int) and longest > _LONG_NAME else None


def csv_of(table: pl.DataFrame) -> str:
    """Return a table as CSV in which no cell and no heading, which a server's label may be, begins a formula."""
    return _inert(table).rename(csv_text).write_csv()


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
    say.info(f"No {wanted} here yet.", icon=":material/inbox:")
    hints = {
        "run": say.words("Record a run: `scope run --run-dir runs/first -- torchrun --nproc-per-node 4 train.py`"),
        "trace": say.words(
            "Put profiler traces (`*.json`, `*.json.gz`) into a folder and start `scope dashboard FOLDER`"
        ),
        "prometheus": say.words("Name a server: `scope dashboard http://localhost:9090`"),
    }
    say.markdown(say.lines([*(hints[kind] for kind in kinds), say.words("Or see it all at once: `scope demo`")]))
