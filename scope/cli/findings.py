"""`scope findings`: what costs time, and what to do about it."""

from __future__ import annotations

import click

from scope.cli.options import JobOptions, OutputOptions, takes_job, takes_output


@click.command()
@takes_job
@takes_output
def findings(job: JobOptions, output: OutputOptions) -> None:
    """What costs time, and what to do about it.

    Where it is, and how one can tell; the costliest first.

    Example: scope findings traces/ --csv
    """
    from scope.cli.job import load_results
    from scope.cli.tables import check_output, print_tables, say, write
    from scope.report.results import SUMMARY_PARTS

    check_output(output)
    results = load_results(job, parts=SUMMARY_PARTS)
    say(results.analysis.warnings)
    from scope.report.findings import find_all

    found = find_all(results)
    limit = output.limit or None
    if output.json:
        from scope.report.encoding import encode_json

        write(encode_json([finding.to_record() for finding in found[:limit]]))
    elif output.csv:
        from scope.report.sections.findings import findings_table

        print_tables([findings_table(found[:limit])], output)
    else:
        from scope.report.summary import print_findings
        from scope.report.text import make_console

        print_findings(found, results.analysis, make_console(), limit=limit)
