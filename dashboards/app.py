"""The Streamlit app: signs in if need be, then lays out the page that the address names."""

from __future__ import annotations

from pathlib import Path

import streamlit as st

from dashboards.shell import is_signed_in, require_sign_in, say_error
from scope.errors import ScopeError

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


def main() -> None:
    """Draw one page."""
    st.set_page_config(page_title="Scope", page_icon=str(ICON), layout="wide")
    pages = {
        section: [
            st.Page(
                PAGES_FOLDER / f"{name}.py",
                title=title,
                icon=icon,
                url_path=name if name != FIRST else "start",
                default=name == FIRST,
            )
            for name, title, icon in entries
        ]
        for section, entries in SECTIONS.items()
    }
    # The first page lies at `/`; links to it by its name, like those to all others, are as good.
    pages["Run"].append(st.Page(PAGES_FOLDER / f"{FIRST}.py", title="Overview", url_path=FIRST, visibility="hidden"))
    # Before the question for the password, so that the page that the address names is shown after it.
    chosen = st.navigation(pages, position="sidebar" if is_signed_in() else "hidden")
    require_sign_in()
    try:
        chosen.run()
    except ScopeError as error:
        # A run or trace that was deleted or broke while it is shown; the list in the sidebar leads on.
        say_error(error)


main()
