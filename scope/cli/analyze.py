"""`scope analyze`: where the time of a job went, who is to blame, and what to do."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from scope.cli.options import JobOptions, takes_options


@takes_options
def analyze(
    job: JobOptions,
    json: Annotated[bool, typer.Option("--json", help="Print everything as one JSON document.")] = False,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write one self-contained page with the plots.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace FILE if it is there.")] = False,
) -> None:
    """Say where the time went, and what to do.

    Which ranks, collectives and kernels are to blame, how close each comes to its limit, and how far to trust it.

    Example: scope analyze traces/ --html report.html
    """
    from scope.cli.job import load_results, require
    from scope.cli.tables import check_writable, write, write_file

    if html is not None:
        require("plotly", extra="html")
        check_writable(html, force=force)
    results = load_results(job)
    from scope.report.findings import find_all

    findings = find_all(results)
    if html is not None:
        from scope.report.page import render_page

        write_file(html, render_page(results, findings), force=force)
    if json:
        from scope.report.document import to_document
        from scope.report.encoding import encode_json

        write(encode_json(to_document(results, findings)))
        return
    from scope.report.summary import print_summary
    from scope.report.text import make_console

    print_summary(results, findings, make_console())
