"""`scope dashboard`: start the Streamlit app as a process of its own."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec

import click

from scope.errors import MissingExtraError


@click.command(add_help_option=False, context_settings={"ignore_unknown_options": True})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def dashboard(arguments: tuple[str, ...]) -> None:
    """Show runs, traces and Prometheus servers in the browser.

    Example: scope dashboard runs/ traces/ http://localhost:9090
    """
    if find_spec("streamlit") is None:
        message = "the dashboard is not installed: pip install 'stepscope[dashboard]'"
        raise MissingExtraError(message)
    os.execv(sys.executable, [sys.executable, "-P", "-m", "dashboards", *arguments])
