"""`python -m dashboards.server`: Streamlit's server, which reads what is shown first before anybody looks."""

from __future__ import annotations

import sys
import threading
from contextlib import suppress

from streamlit.web import cli

from dashboards.settings import read_environment
from scope.errors import ScopeError


def warm_up() -> None:
    """Do what the first visitor would wait for; what fails here fails again, and is said, when a page is drawn."""
    from dashboards import findings
    from dashboards.sources.catalogue import find_sources
    from dashboards.sources.choice import choose_source
    from dashboards.sources.runs import open_live
    from dashboards.sources.traces import start_reading
    from scope.report import figures, page_figures

    del findings, figures, page_figures
    settings = read_environment()
    with suppress(ScopeError):
        found = find_sources(settings.places)
        first = choose_source(found) if found else None
        if first is not None and first.kind == "run":
            open_live(first.place, refresh_s=settings.refresh_s).refresh()
        elif first is not None and first.kind == "trace":
            start_reading(first)


def main() -> None:
    """Serve until the process is ended; the arguments are those of `streamlit`."""
    threading.Thread(target=warm_up, name="scope-warm-up", daemon=True).start()
    sys.exit(cli.main())


if __name__ == "__main__":
    main()
