"""The Streamlit app: signs in if need be, then lays out the page that the address names."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import streamlit as st

from dashboards.shell import is_signed_in, require_sign_in, say_error, write_address
from scope.errors import ScopeError

if TYPE_CHECKING:
    from streamlit.navigation.page import StreamlitPage

# Not "pages": Streamlit would serve the files of such a folder by itself, past the sign-in.
PAGES_FOLDER = Path(__file__).parent / "views"
# A named icon would be fetched from another server for the browser's tab.
ICON = Path(__file__).parent / "icon.svg"

FIRST = "overview"
SECTIONS = {
    "Run": (
        ("overview", "Overview", ":material/speed:"),
        ("steps", "Steps", ":material/stacked_bar_chart:"),
        ("ranks", "Ranks", ":material/grid_on:"),
        ("memory", "Memory", ":material/memory:"),
        ("post_mortem", "Post-mortem", ":material/emergency:"),
    ),
    "Communication": (
        ("collectives", "Collectives", ":material/hub:"),
        ("links", "Links", ":material/cable:"),
    ),
    "Kernels": (
        ("kernels", "Kernels", ":material/scatter_plot:"),
        ("timeline", "Timeline", ":material/view_timeline:"),
    ),
    "More": (
        ("compare", "Compare", ":material/compare_arrows:"),
        ("quality", "Data quality", ":material/rule:"),
    ),
}


def _pages_of(name: str, title: str, icon: str) -> list[StreamlitPage]:
    """Return the page of a name; the first one twice, since it lies at `/` and, like all others, under its name.

    The one that the address names is the one that the sidebar lists and marks.
    """
    file = PAGES_FOLDER / f"{name}.py"
    if name != FIRST:
        return [st.Page(file, title=title, icon=icon, url_path=name)]
    is_named = (st.context.url or "").rstrip("/").endswith(f"/{name}")
    at_root, by_name = ("hidden", "visible") if is_named else ("visible", "hidden")
    return [
        st.Page(file, title=title, icon=icon, url_path="start", default=True, visibility=at_root),
        st.Page(file, title=title, icon=icon, url_path=name, visibility=by_name),
    ]


def main() -> None:
    """Draw one page."""
    st.set_page_config(page_title="Scope", page_icon=str(ICON), layout="wide")
    pages = {
        section: [page for name, title, icon in entries for page in _pages_of(name, title, icon)]
        for section, entries in SECTIONS.items()
    }
    # Before the question for the password, so that the page that the address names is shown after it.
    chosen = st.navigation(pages, position="sidebar" if is_signed_in() else "hidden")
    require_sign_in()
    try:
        chosen.run()
    except ScopeError as error:
        # A run or trace that was deleted or broke while it is shown; the list in the sidebar leads on.
        say_error(error)
    write_address()


main()
