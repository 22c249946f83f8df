"""The report as one page: it holds its plots and their library, asks nothing of any server, and works offline.

A content security policy in the page forbids every request, so that not even a defect could send what a trace holds.
"""

from __future__ import annotations

import html
import json
from typing import TYPE_CHECKING, Any, Final, cast

from plotly.offline import get_plotlyjs  # pyright: ignore[reportMissingTypeStubs, reportUnknownVariableType]

import scope
from scope.report.headline import headline, trust_line
from scope.report.inert import html_text, kernel_title
from scope.report.page_figures import make_figures
from scope.report.sections import (
    breakdown,
    collectives,
    host,
    idle,
    kernels,
    memory,
    path,
    quality,
    roofline,
    stragglers,
)
from scope.report.table import ABSENT_MARK, format_cell
from scope.units import format_duration, format_ratio

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from scope.analysis.job import Analysis
    from scope.report.figures.style import Figure
    from scope.report.findings import Finding
    from scope.report.results import Results
    from scope.report.table import Cell, ReportColumn, ReportTable, Unit

_COPIES: Final = "exposed copies"
_MOST_ROWS: Final = 200
_POLICY: Final = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:; "
    "base-uri 'none'; form-action 'none'"
)
_STYLE: Final = """
:root { color-scheme: light dark; --ink: #1a1a1a; --dim: #595959; --paper: #ffffff; --line: #d9d9d9; --box: #f6f6f6; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #ededed; --dim: #adadad; --paper: #161616; --line: #3d3d3d; --box: #212121; }
}
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1rem 1.25rem 4rem; max-width: 1180px; background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.4rem; margin: 0.5rem 0; overflow-wrap: anywhere; } h2 { font-size: 1.15rem; margin: 2rem 0 0.5rem; }
p { margin: 0.3rem 0; overflow-wrap: anywhere; } .dim { color: var(--dim); font-size: 0.9rem; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 0.75rem; margin: 1rem 0; }
.tile { background: var(--box); border: 1px solid var(--line); border-radius: 8px; padding: 0.6rem 0.8rem; }
.tile b { display: block; font-size: 1.35rem; }
.finding { background: var(--box); border: 1px solid var(--line); border-left: 4px solid #D55E00; border-radius: 6px;
  padding: 0.6rem 0.9rem; margin: 0.6rem 0; overflow-wrap: anywhere; }
.table { overflow-x: auto; border: 1px solid var(--line); border-radius: 6px; max-height: 30rem; overflow-y: auto; }
table { border-collapse: collapse; width: 100%; font-size: 0.85rem; }
th, td { padding: 0.25rem 0.6rem; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap; }
th { position: sticky; top: 0; background: var(--box); } .text { text-align: left; max-width: 36rem;
  overflow: hidden; text-overflow: ellipsis; }
details { margin: 0.5rem 0; } summary { cursor: pointer; font-weight: 600; padding: 0.3rem 0; }
.plot { width: 100%; min-height: 300px; }
"""
_SCRIPT: Final = """
const dark = window.matchMedia("(prefers-color-scheme: dark)");
const look = () => {
  const [ink, box] = dark.matches ? ["#ededed", "#212121"] : ["#1a1a1a", "#ffffff"];
  return {"font.color": ink, "hoverlabel.bgcolor": box, "hoverlabel.font.color": ink};
};
for (const place of document.querySelectorAll("[data-figure]")) {
  const figure = JSON.parse(document.getElementById(place.dataset.figure).textContent);
  Plotly.newPlot(place, figure.data, figure.layout, {responsive: true, displaylogo: false})
    .then(() => Plotly.relayout(place, look()));
}
dark.addEventListener("change", () => {
  for (const place of document.querySelectorAll("[data-figure]")) Plotly.relayout(place, look());
});
"""


def render_page(results: Results, findings: Sequence[Finding]) -> str:
    """Return the whole page as HTML."""
    figures = make_figures(results)
    body = "\n".join([*_head(results), *_findings(findings), *_figures(figures), *_tables(results)])
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{html.escape(_POLICY)}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>Scope report</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n{body}\n"
        f"<script>{get_plotlyjs()}</script>\n<script>{_SCRIPT}</script>\n</body>\n</html>\n"
    )


def _head(results: Results) -> Iterator[str]:
    analysis = results.analysis
    yield f"<h1>Where the time went: {html_text(headline(analysis))}</h1>"
    yield f'<p class="dim">Scope {html_text(scope.__version__)}, from {html_text(_files(analysis))}.</p>'
    yield f'<p class="dim">{html_text(trust_line(analysis))}.</p>'
    for warning in analysis.warnings:
        yield f"<p>⚠ {html_text(warning)}</p>"
    breakdown_ = analysis.breakdown
    if breakdown_ is None:
        yield f"<p>No breakdown: {html_text(analysis.absent.get('breakdown', 'nothing ran'))}.</p>"
        return
    summed = breakdown.summed_over(analysis)
    over = f", summed over {summed}" if summed else ""
    where = " on the host" if breakdown.is_host_alone(analysis) else ""
    yield f'<p class="dim">Whole window{where} of {format_duration(breakdown_.window_ns)}{over}.</p>'
    for note in breakdown.breakdown_notes(analysis):
        yield f'<p class="dim">{html_text(note)}</p>'
    yield '<div class="tiles">'
    parts = (
        ("compute", breakdown_.compute_ns),
        ("exposed communication", breakdown_.exposed_communication_ns),
        (_COPIES, breakdown_.exposed_memory_ns),
        ("idle", breakdown_.idle_ns),
    )
    for name, length in parts:
        if name == _COPIES and breakdown.is_host_alone(analysis):
            yield f'<div class="tile">{name}<b>{ABSENT_MARK}</b><span class="dim">not known</span></div>'
            continue
        share = format_ratio(length / breakdown_.window_ns) if breakdown_.window_ns else "–"
        yield f'<div class="tile">{name}<b>{share}</b><span class="dim">{format_duration(length)}</span></div>'
    yield "</div>"


def _files(analysis: Analysis) -> str:
    """Return which profiler traces a report was made from."""
    first, *others = [rank.path for rank in analysis.ranks] or ["no trace"]
    return f"the profiler traces {first} and {len(others):,} more" if others else f"the profiler trace {first}"


def _findings(findings: Sequence[Finding]) -> Iterator[str]:
    yield "<h2>Findings</h2>"
    if not findings:
        yield "<p>Nothing stands out.</p>"
    for number, finding in enumerate(findings, start=1):
        evidence = ", ".join(each.text() for each in finding.evidence)
        where = finding.where.text()
        yield '<div class="finding">'
        yield f"<p><b>{number}. {html_text(finding.title)}</b></p>"
        yield f'<p class="dim">{html_text(evidence)}{html_text(f" ({where})" if where else "")}</p>'
        yield f"<p>{html_text(finding.action)}</p></div>"


def _figures(figures: dict[str, Figure]) -> Iterator[str]:
    yield "<h2>Plots</h2>"
    for name, figure in figures.items():
        yield f'<div class="plot" data-figure="figure-{name}"></div>'
        yield f'<script type="application/json" id="figure-{name}">{_figure_json(figure)}</script>'


def _figure_json(figure: Figure) -> str:
    document: Any = json.loads(cast("str", figure.to_json()))  # pyright: ignore[reportUnknownMemberType]
    document["layout"].pop("template", None)
    # Inside a script element nothing but this sequence ends the text.
    return json.dumps(document).replace("<", "\\u003c")


def _tables(results: Results) -> Iterator[str]:
    yield "<h2>Tables</h2>"
    yield '<p class="dim">Open a table; a heading shows its definition when pointed at.</p>'
    for table in _sections(results):
        if table.rows or table.notes:
            yield _table(table)


def _sections(results: Results) -> Iterator[ReportTable]:
    analysis = results.analysis
    yield breakdown.breakdown_table(analysis)
    yield breakdown.steps_table(analysis)
    yield idle.idle_table(analysis)
    yield kernels.kernels_table(analysis)
    yield kernels.kernels_table(analysis, by="operator")
    yield roofline.roofline_table(results.rooflines)
    if results.collectives is not None:
        yield collectives.collectives_table(results.collectives)
    yield collectives.exposed_table(results.exposed)
    if results.stragglers is not None:
        yield stragglers.stragglers_table(results.stragglers)
    yield host.launches_table(analysis)
    yield host.syncs_table(analysis)
    yield host.copies_table(analysis)
    yield memory.memory_table(analysis)
    yield path.critical_path_table(analysis)
    yield quality.quality_table(analysis)


def _table(table: ReportTable) -> str:
    shown = table.limited(_MOST_ROWS)
    left_out = shown.say_left_out()
    more = [f"{left_out}."] if left_out is not None else []
    notes = "".join(f'<p class="dim">{html_text(note)}</p>' for note in (*more, *table.reasons(), *table.notes))
    body = ""
    if shown.rows:
        rows = "\n".join(_row(row, table.columns) for row in shown.rows)
        heads = "".join(_head_cell(column) for column in table.columns)
        body = f'<div class="table"><table><thead><tr>{heads}</tr></thead><tbody>\n{rows}\n</tbody></table></div>'
    return f"<details><summary>{html_text(table.title)}</summary>{body}{notes}</details>"


def _head_cell(column: ReportColumn) -> str:
    meaning, heading = html_text(column.meaning), html_text(column.heading)
    return f'<th{_text_class(column.unit)} title="{meaning}" scope="col">{heading}</th>'


def _row(row: Sequence[Cell], columns: Sequence[ReportColumn]) -> str:
    cells = "".join(_cell(cell, column.unit) for cell, column in zip(row, columns, strict=True))
    return f"<tr>{cells}</tr>"


def _cell(cell: Cell, unit: Unit) -> str:
    text = kernel_title(cell) if isinstance(cell, str) else format_cell(cell, unit)
    title = f' title="{html_text(cell)}"' if isinstance(cell, str) else ""
    return f"<td{_text_class(unit)}{title}>{html_text(text)}</td>"


def _text_class(unit: str) -> str:
    return ' class="text"' if unit == "text" else ""
