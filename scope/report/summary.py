"""What `scope analyze` prints: where the time went, what to do about it, and how far to trust it, in a minute."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from scope.analysis.idle import IDLE_CAUSES
from scope.analysis.job import summed_ranks
from scope.report.findings import make_basis
from scope.report.headline import headline, trust_line
from scope.report.sections.breakdown import (
    breakdown_notes,
    breakdown_table,
    is_host_alone,
    steps_table,
    summed_over,
)
from scope.report.sections.collectives import collectives_table, cut_note, exposed_table, sum_notes
from scope.report.sections.kernels import kernels_table
from scope.report.table import ABSENT_MARK
from scope.report.text import print_table
from scope.units import format_duration, format_ratio

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from scope.analysis.breakdown import Breakdown
    from scope.analysis.idle import IdleCauses
    from scope.analysis.job import Analysis
    from scope.report.findings import Finding
    from scope.report.results import Results
    from scope.report.table import ReportTable
    from scope.report.text import Console

_BAR: Final = 30
_MOST_RANKS: Final = 8
_MOST_FINDINGS: Final = 6
_MOST_ROWS: Final = 5
_MOST_GPUS: Final = 2
_MOST_CAUSES: Final = 4
_COPIES: Final = "exposed_memory_ns"
_PARTS: Final = (
    ("compute", "compute_ns", "blue"),
    ("exposed communication", "exposed_communication_ns", "red"),
    ("exposed copies", _COPIES, "cyan"),
    ("idle", "idle_ns", "bright_black"),
)
_PART_KEYS: Final = frozenset(key for _, key, _ in _PARTS)
_RANK_KEYS: Final = _PART_KEYS | {"label", "device", "window_ns", "overlap_ratio"}
_STEP_KEYS: Final = _PART_KEYS | {"number", "median_window_ns", "max_window_ns", "slowest", "is_cut"}
_LENGTH: Final = "median_window_ns"
"""The one length that is shown of steps of a single device, whose median is the longest too."""


def print_summary(results: Results, findings: Sequence[Finding], console: Console) -> None:
    """Print the whole summary."""
    analysis = results.analysis
    console.print_wrapped(headline(analysis), style="bold")
    for warning in analysis.warnings:
        console.print_wrapped(f"! {warning}", style="yellow")
    console.print()
    _print_breakdown(analysis, console)
    _print_ranks(analysis, console)
    _print_steps(analysis, console)
    print_findings(findings, analysis, console, limit=_MOST_FINDINGS)
    console.print()
    _print_tables(results, console)
    _print_gpus(results, console)
    console.print_wrapped(f"{trust_line(analysis)} (scope quality says more)", style="dim")


def _print_breakdown(analysis: Analysis, console: Console) -> None:
    breakdown = analysis.breakdown
    if breakdown is None:
        console.print_wrapped(f"No breakdown: {analysis.absent.get('breakdown', 'nothing ran')}.", style="yellow")
        return
    summed = summed_over(analysis)
    over = f", summed over {summed}" if summed else ""
    where = " on the host" if is_host_alone(analysis) else ""
    console.print_wrapped(
        f"Where the time went{where} (shares of the whole window of {format_duration(breakdown.window_ns)}{over})",
        style="bold",
    )
    for name, key, color in _PARTS:
        if key == _COPIES and is_host_alone(analysis):
            console.print(f"  {name:<22}{ABSENT_MARK:>8}")
            continue
        console.print_parts(_bar_parts(name, getattr(breakdown, key), breakdown, color, console.width))
    for remark in (*_breakdown_remarks(breakdown, analysis.idle), *breakdown_notes(analysis)):
        console.print_wrapped(remark, indent=2, hanging=4, style="dim")
    console.print()


def _bar_parts(name: str, part_ns: int, breakdown: Breakdown, color: str, width: int) -> list[tuple[str, str]]:
    share = part_ns / breakdown.window_ns if breakdown.window_ns else 0.0
    parts = [(f"  {name:<22}{format_ratio(share):>8}  ", "")]
    if width >= 60:
        length = round(share * _BAR)
        parts += [("█" * length, color), (" " * (_BAR + 1 - length), "")]
    return [*parts, (format_duration(part_ns), "")]


def _breakdown_remarks(breakdown: Breakdown, idle: IdleCauses | None) -> Iterator[str]:
    if breakdown.overlap_ratio is None:
        yield f"overlap: {breakdown.absent['overlap_ratio']}"
    else:
        total = format_duration(breakdown.communication_ns)
        yield f"compute hides {format_ratio(breakdown.overlap_ratio)} of {total} of communication"
    if idle is not None and idle.idle_ns:
        causes = {name: getattr(idle, f"{name}_ns") for name in IDLE_CAUSES}
        ranked = sorted(causes.items(), key=lambda item: (-item[1], item[0]))
        parts = [(name.replace("_", " "), ns) for name, ns in ranked[:_MOST_CAUSES]]
        others = ("others (scope idle)", sum(ns for _, ns in ranked[_MOST_CAUSES:]))
        shares = [f"{name} {format_ratio(ns / breakdown.window_ns)}" for name, ns in (*parts, others) if ns]
        yield f"idle because of: {', '.join(shares)}"


def _print_ranks(analysis: Analysis, console: Console) -> None:
    # Its notes stand under the breakdown of all ranks already, where one rank has them too.
    table = msgspec.structs.replace(_only(breakdown_table(analysis), _RANK_KEYS), title="By rank", notes=())
    if len(table.rows) > 1:
        print_table(table.limited(_MOST_RANKS), console, shows_all=_command("breakdown"))
        console.print()


def _print_steps(analysis: Analysis, console: Console) -> None:
    table = _only(steps_table(analysis), _STEP_KEYS)
    if all(step.num_devices == 1 for step in analysis.steps):
        table = _with_one_length(table)
    if len(analysis.ranks) > 1:
        # The title says here what the notes say elsewhere.
        title = "By step: parts summed over ranks, lengths of single ranks"
        table = msgspec.structs.replace(table, title=title, notes=())
    if len(table.rows) > 1:
        print_table(table.limited(_MOST_ROWS), console, shows_all=_command("steps"))
        console.print()


def _with_one_length(table: ReportTable) -> ReportTable:
    """Return the table of steps with a single length of each."""
    kept = _only(table, _STEP_KEYS - {"max_window_ns", "slowest"})
    columns = (
        msgspec.structs.replace(each, heading="length") if each.key == _LENGTH else each for each in kept.columns
    )
    return msgspec.structs.replace(kept, columns=tuple(columns))


def print_findings(
    findings: Sequence[Finding], analysis: Analysis, console: Console, *, limit: int | None = None
) -> None:
    """Print findings as paragraphs: what, how one can tell and where, what to do.

    Args:
        findings: In their order.
        analysis: What they were found in.
        console: Where to.
        limit: How many at most; None for all.
    """
    console.print_wrapped(f"Findings{_shares_of(findings, analysis)}", style="bold")
    if not findings:
        console.print_wrapped("  Nothing stands out.")
    shown = findings[:limit]
    for number, finding in enumerate(shown, start=1):
        where = finding.where.text()
        evidence = ", ".join(each.text() for each in finding.evidence)
        style = "bold" if finding.share_ratio else ""
        console.print_wrapped(f"{number}. {finding.title}", indent=2, hanging=5, style=style)
        console.print_wrapped(f"{evidence} ({where})" if where else evidence, indent=5, hanging=7, style="dim")
        console.print_wrapped(f"→ {finding.action}", indent=5, hanging=7)
    if len(findings) > len(shown):
        console.print_wrapped(f"  {len(findings) - len(shown)} more: scope findings, --json, --html", style="dim")


def _shares_of(findings: Sequence[Finding], analysis: Analysis) -> str:
    """Return what the shares of findings are of, in brackets; empty where none has a share."""
    if not any(finding.share_ratio for finding in findings):
        return ""
    basis, summed = make_basis(analysis), summed_over(analysis)
    over = f", summed over {summed}" if summed else ""
    return f" (shares of {basis.noun}: {format_duration(basis.window_ns)}{over})"


def _print_tables(results: Results, console: Console) -> None:
    num_ranks = len(summed_ranks(results.analysis.ranks))
    over = f", summed over {num_ranks:,} ranks" if num_ranks > 1 else ""
    kernels = kernels_table(results.analysis)
    tables = [(msgspec.structs.replace(kernels, title=kernels.title + over), "kernels")]
    if results.stragglers is not None and results.collectives is not None:
        tables.append((collectives_table(results.collectives), "collectives"))
    else:
        exposed = exposed_table(results.exposed)
        tables.append((msgspec.structs.replace(exposed, title=exposed.title + over), "collectives --view exposed"))
    for table, command in tables:
        if table.rows:
            print_table(table.limited(_MOST_ROWS), console, notes=False, shows_all=_command(command))
            if results.collectives is not None and table.name == "collectives":
                for note in (*sum_notes(results.collectives), *cut_note(results.collectives)):
                    console.print_wrapped(note, style="dim")
            console.print()


def _print_gpus(results: Results, console: Console) -> None:
    """Print which GPUs the devices are, as the roofline takes them to be."""
    matches = [match for each in results.rooflines.values() for match in each.devices]
    reasons = list(dict.fromkeys(match.reason for match in matches))
    if reasons:
        more = f" and {len(reasons) - _MOST_GPUS} more (scope roofline PATH)" if len(reasons) > _MOST_GPUS else ""
        console.print_wrapped(f"GPU: {'; '.join(reasons[:_MOST_GPUS])}{more}", style="dim")


def _command(name: str) -> str:
    """Return the command that shows all of what the summary shows the first rows of."""
    subcommand, *options = name.split()
    return " ".join(["scope", subcommand, "PATH", *options, "--limit 0"])


def _only(table: ReportTable, keys: frozenset[str]) -> ReportTable:
    """Return the columns that fit a summary."""
    kept = [index for index, column in enumerate(table.columns) if column.key in keys]
    return msgspec.structs.replace(
        table,
        columns=tuple(table.columns[index] for index in kept),
        rows=tuple(tuple(row[index] for index in kept) for row in table.rows),
    )
