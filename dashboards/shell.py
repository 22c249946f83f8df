"""What every page has in common: who may see it, which source it shows, and how old that is."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import streamlit as st

from dashboards import say
from dashboards.settings import Settings, read_environment
from dashboards.sources.catalogue import Source, SourceKind, SourceList, by_id
from dashboards.sources.choice import choose_like, choose_source
from dashboards.sources.runs import open_live
from dashboards.state import SOURCE, PageState, read_state, spell_state
from dashboards.users import Gate
from scope.errors import ScopeError
from scope.report.standing import count, standing_words

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dashboards.sources.runs import LiveRun
    from dashboards.sources.traces import TraceJob

_PATIENCE_S: Final = 0.2
_SHOWN_LABELS: Final = 8
_SHORTEST_SCRAPE_S: Final = 5.0
"""Looking at a server more often than it looks at its exporters shows nothing new."""
_KIND_WORDS: Final[dict[SourceKind, str]] = {
    "run": "recorded run",
    "trace": "profiler traces",
    "prometheus": "Prometheus server",
}
_A_KIND: Final[dict[SourceKind, str]] = {
    "run": "a recorded run",
    "trace": "profiler traces",
    "prometheus": "a Prometheus server",
}
_STATE: Final = "scope_state"
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
    remember(state)
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
        instead = f"This page cannot show {_A_KIND[known.kind]}: it shows {shown.label} ({_KIND_WORDS[shown.kind]})"
        if _belong_together(known, shown):
            say.caption(f"{instead}.")
        else:
            say.warning(f"{instead}, which may be another job; choose under Source.", icon=":material/swap_horiz:")


def _belong_together(one: Source, other: Source) -> bool:
    """Return whether two sources are a run and its window; a server is beside all of them."""
    is_server = "prometheus" in (one.kind, other.kind)
    return is_server or one.run_id == other.source_id or other.run_id == one.source_id


def keep_state(state: PageState) -> None:
    """Write the state into the address and remember it for the page that is opened next."""
    remember(state)
    write_address()


def write_address() -> None:
    """Make the address spell what was remembered, all at once: each change is one more step back in the browser."""
    parameters = st.query_params.to_dict()
    spelled = spell_state(parameters, remembered_state())
    if spelled != parameters:
        st.query_params.from_dict(spelled)


def remember(state: PageState) -> None:
    """Keep the state; the address spells it once the page is drawn. Unlike writing that, this cannot be broken off."""
    st.session_state[_STATE] = state


def remembered_state() -> PageState:
    """Return the state that was remembered last."""
    remembered = st.session_state.get(_STATE)
    return remembered if isinstance(remembered, PageState) else PageState()


def _current_state() -> PageState:
    from_address = read_state(st.query_params.to_dict())
    return remembered_state() if from_address == PageState() else from_address


def shown_source_id() -> str | None:
    """Return which source the page shows."""
    return st.session_state.get(_SHOWN)


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
    remember(state)
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
        is_seen = state.standing == "running" and state.silent_ns is None
        icon = say.words(":material/sensors: live," if is_seen else ":material/history:")
        say.caption(say.words("{} {}", icon, words))


def say_traces(traces: TraceJob, *, most: int = 2) -> None:
    """Say how old traces are, whether they are made up, and what of them is not shown or not whole.

    Args:
        traces: The traces.
        most: How many of the job's warnings are shown; the page Data quality shows all.
    """
    if traces.synthetic:
        say_synthetic()
    say.caption(say.words(":material/history: profiler traces, written at {}", utc(traces.modified_ns)))
    warnings = traces.job.warnings
    for warning in warnings[:most]:
        say.warning(warning, icon=":material/warning:")
    if len(warnings) > most:
        say.caption(say.words("{} more: see Data quality.", count(len(warnings) - most, "warning")))
    say_cut_off(traces)


def say_cut_off(traces: TraceJob, *, whose: str = "") -> None:
    """Say which traces break off, so that nobody takes what is shown of them for all.

    Args:
        traces: The traces.
        whose: What to say behind each rank, where a page shows the traces of two jobs.
    """
    labels = [f"{rank.label}{whose}" for rank in traces.job.ranks if rank.quality.truncated]
    if not labels:
        return
    more = f" and {len(labels) - _SHOWN_LABELS} more" if len(labels) > _SHOWN_LABELS else ""
    say.warning(
        say.words(
            "**Not whole**: the trace of {}{} breaks off. It is still being written, or was cut off. All figures here "
            "are of what stands before; load the page again once it is written, or record it again.",
            ", ".join(labels[:_SHOWN_LABELS]),
            more,
        ),
        icon=":material/content_cut:",
    )


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
