"""`scope analyze`: where the time of a job went, who is to blame, and what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from scope.cli.options import FILE, JobOptions, takes_job

if TYPE_CHECKING:
    from pathlib import Path


@click.command()
@takes_job
@click.option("--json", is_flag=True, help="Print everything as one JSON document.")
@click.option("--html", type=FILE, metavar="FILE", help="Write one self-contained page with the plots.")
@click.option("--force", is_flag=True, help="Replace FILE if it is there.")
def analyze(job: JobOptions, *, json: bool, html: Path | None, force: bool) -> None:
    """Say where the time went, and what to do.

    Which ranks, collectives and kernels are to blame, how close each comes to its limit, and how far to trust it.

    Example: scope analyze traces/ --html report.html
    """
    from scope.cli.job import load_results, require
    from scope.cli.tables import check_writable, write, write_file
    from scope.report.results import ALL_PARTS, SUMMARY_PARTS

    if html is not None:
        require("plotly", extra="html")
        check_writable(html, force=force)
    results = load_results(job, parts=SUMMARY_PARTS if html is None and not json else ALL_PARTS)
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
