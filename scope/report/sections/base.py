"""What the sections of a report share: columns whose unit follows from their key, cells that keep their reason."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from scope.report.table import Absent, Cell, ReportColumn, ReportTable, Unit

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import polars as pl

    from scope.analysis.job import Analysis
    from scope.analysis.result import Result
    from scope.trace.columns import Column

_UNITS_BY_ENDING: Final[tuple[tuple[str, Unit], ...]] = (
    ("_bytes_per_s", "bytes_per_s"),
    ("_flop_per_byte", "flop_per_byte"),
    ("_flop_per_s", "flop_per_s"),
    ("_flops", "flop"),
    ("_ns", "ns"),
    ("_bytes", "bytes"),
    ("_ratio", "ratio"),
)


def column(key: str, heading: str, meaning: str, *, unit: Unit | None = None) -> ReportColumn:
    """Return a column; its unit is told by its key, which bears one, unless it is said."""
    return ReportColumn(key=key, heading=heading, unit=unit or unit_of(key), meaning=meaning)


def frame_column(source: Column, heading: str, *, key: str | None = None, unit: Unit | None = None) -> ReportColumn:
    """Return the column that shows a declared column of a table: its name and meaning are those of the table."""
    return column(key or str(source), heading, f"{source.meaning[0].upper()}{source.meaning[1:]}.", unit=unit)


def unit_of(key: str) -> Unit:
    """Return the unit that a key bears.

    Examples:
        >>> unit_of("busbw_bytes_per_s"), unit_of("num_calls"), unit_of("operation")
        ('bytes_per_s', 'count', 'text')
    """
    if key.startswith("num_"):
        return "count"
    if key.startswith(("is_", "has_")):
        return "flag"
    for ending, unit in _UNITS_BY_ENDING:
        if key.endswith(ending):
            return unit
    return "text"


def figure(result: Result, name: str) -> Cell:
    """Return a figure of a result; one that is None becomes absent with the result's own reason."""
    value: Any = getattr(result, name)
    return Absent(result.absent.get(name, "not known")) if value is None else value


def figures(result: Result | None, names: Sequence[str], *, reason: str) -> tuple[Cell, ...]:
    """Return several figures of a result; all are absent with `reason` when there is no result."""
    if result is None:
        return (Absent(reason),) * len(names)
    return tuple(figure(result, name) for name in names)


def frame_rows(
    frame: pl.DataFrame, sources: Sequence[Column], *, reasons: Mapping[Column, str] | None = None
) -> Iterable[tuple[Cell, ...]]:
    """Yield the rows of a frame; a null becomes absent with the reason of its column."""
    why = reasons or {}
    absences = [Absent(why.get(name, "not known")) for name in sources]
    for row in frame.select(*(str(name) for name in sources)).iter_rows():
        yield tuple(absence if value is None else value for value, absence in zip(row, absences, strict=True))


def whole_table(
    name: str,
    title: str,
    columns: Sequence[ReportColumn],
    rows: Iterable[Sequence[Cell]],
    notes: Iterable[str] = (),
    num_totals: int = 0,
) -> ReportTable:
    """Return a table that holds all its rows, the last `num_totals` of which sum up the others."""
    cells = tuple(tuple(row) for row in rows)
    return ReportTable(
        name=name,
        title=title,
        columns=tuple(columns),
        rows=cells,
        num_rows=len(cells),
        notes=tuple(notes),
        num_totals=num_totals,
    )


def no_device_note(analysis: Analysis, *, what: str, kind: str) -> tuple[str, ...]:
    """Return why a table of what devices ran, or the host for them, is empty, for its notes.

    Args:
        analysis: The results of a job.
        what: What the table would hold.
        kind: Events that `what` are, where there are device events.
    """
    if all(rank.is_host_timeline or not rank.devices for rank in analysis.ranks):
        return (
            f"{what}: no device events in these traces; they were recorded on CPUs, or without the GPU's activity.",
        )
    return (f"{what}: the traces hold device events, but no {kind}.",)
