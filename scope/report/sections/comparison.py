"""What changed between two runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

import polars as pl

from scope.analysis.comparison import NO_PHASE, UNKNOWN_OPERATOR, Changes, ChangeSet
from scope.report.inert import kernel_title, shortened, visible
from scope.report.sections.base import column, figure, frame_column, frame_rows, whole_table
from scope.units import format_duration, format_ratio

if TYPE_CHECKING:
    from collections.abc import Iterator

    from scope.analysis.comparison import Comparison
    from scope.report.table import ReportColumn, ReportTable

ChangeKind = Literal["kernels", "classes", "operators", "phases"]
CHANGE_KINDS: Final[tuple[ChangeKind, ...]] = ("kernels", "classes", "operators", "phases")

_SHOWN: Final = (
    Changes.name,
    Changes.change,
    Changes.delta_ns,
    Changes.before_ns,
    Changes.after_ns,
    Changes.ratio,
    Changes.before_count,
    Changes.after_count,
)
_HEADINGS: Final = (
    "name",
    "change",
    "difference",
    "before",
    "after",
    "after/before",
    "count/step before",
    "count/step after",
)
_LONGEST_NAME: Final = 60
_NUMBERS: Final = frozenset({Changes.ratio, Changes.before_count, Changes.after_count})
CHANGE_COLUMNS: Final[tuple[ReportColumn, ...]] = tuple(
    frame_column(source, heading, unit="number" if source in _NUMBERS else None)
    for source, heading in zip(_SHOWN, _HEADINGS, strict=True)
)
_TITLES: Final[dict[ChangeKind, str]] = {
    "kernels": "Kernels",
    "classes": "Classes of kernels",
    "operators": "Operators",
    "phases": "Phases",
}
_TIMES: Final[dict[ChangeKind, str]] = {"phases": "host time without that of phases inside them,"}

STEP_COLUMNS: Final[tuple[ReportColumn, ...]] = (
    column(
        "before_step_ns",
        "step before",
        "Median step of the first run as `scope analyze` says it: the median over whole steps of the median length of "
        "the step's window on its devices (of a host timeline, on the host).",
    ),
    column("after_step_ns", "step after", "The same of the second run."),
    column(
        "before_num_steps",
        "rank steps before",
        "Whole steps of all ranks of the first run: a step counts once a rank.",
        unit="count",
    ),
    column("after_num_steps", "rank steps after", "The same of the second run.", unit="count"),
    *(
        column(f"{kind}_match_ratio", f"{kind} match", f"Share of the time of both runs in {kind} that both have.")
        for kind in CHANGE_KINDS
    ),
    column(
        "before_host_step_ns",
        "host step before",
        "Median length of `ProfilerStep` on the host in the first run, over ranks and whole steps.",
    ),
    column("after_host_step_ns", "host step after", "The same of the second run."),
)


def comparison_table(comparison: Comparison) -> ReportTable:
    """Return the median steps of both runs side by side."""
    rates = {f"{kind}_match_ratio": figure(change_set(comparison, kind), "match_rate_ratio") for kind in CHANGE_KINDS}
    row = [rates[each.key] if each.key in rates else figure(comparison, each.key) for each in STEP_COLUMNS]
    return whole_table(
        "step", "Two runs", STEP_COLUMNS, [row], notes=(*describe_change(comparison), *comparison.warnings)
    )


def describe_change(comparison: Comparison) -> Iterator[str]:
    """Say in a sentence how much longer or shorter a step is and where it is measured, and in one what changed most."""
    lies_on = comparison.steps_lie_on
    windows = (comparison.before_step_ns, comparison.after_step_ns)
    # Between a device and a host only what both have on the host compares.
    is_known = lies_on is not None and None not in windows
    before, after = windows if is_known else (comparison.before_host_step_ns, comparison.after_host_step_ns)
    where = "on the device" if is_known and lies_on == "device" else "on the host"
    if before and after is not None:
        lengths = f"{format_duration(before)} before, {format_duration(after)} after"
        change = _how_much(after - before, format_ratio(abs(after - before) / before))
        yield f"The median step {where}: {lengths}, {change}."
    kernels = comparison.kernels.changes
    if lies_on is None or kernels.is_empty():
        return
    changed = kernels.filter(pl.col(Changes.change) != "same")
    if changed.is_empty():
        yield f"No kernel changed by more than {format_ratio(comparison.noise_ratio)} of its time (--noise)."
        return
    largest = changed.row(0, named=True)
    change = _how_much(largest[Changes.delta_ns], format_duration(abs(round(largest[Changes.delta_ns]))))
    name = shortened(kernel_title(visible(largest[Changes.name])), length=_LONGEST_NAME)
    yield f"Changed most: {name}, {change} per {comparison.unit}."


def _how_much(difference: float, size: str) -> str:
    return "as long" if not difference else f"{size} {'longer' if difference > 0 else 'shorter'}"


def changes_table(comparison: Comparison, kind: ChangeKind) -> ReportTable:
    """Return what changed among kernels, classes, operators or phases, the largest change first."""
    changes = change_set(comparison, kind)
    no_count = "time outside of phases is no phase that occurs"
    reasons = {
        Changes.ratio: "only one of the runs has it",
        Changes.before_count: no_count,
        Changes.after_count: no_count,
    }
    # Means per rank and step are fractions; a length of time in a report is whole nanoseconds.
    means = [pl.col(name).round().cast(pl.Int64) for name in (Changes.before_ns, Changes.after_ns, Changes.delta_ns)]
    frame = changes.changes.with_columns(means)
    return whole_table(
        kind,
        f"{_TITLES[kind]}: {_TIMES.get(kind, 'time')} per {comparison.unit}",
        CHANGE_COLUMNS,
        frame_rows(frame, _SHOWN, reasons=reasons),
        notes=_notes(changes, _TITLES[kind]),
    )


def change_set(comparison: Comparison, kind: ChangeKind) -> ChangeSet:
    """Return one kind of changes."""
    return {
        "kernels": comparison.kernels,
        "classes": comparison.classes,
        "operators": comparison.operators,
        "phases": comparison.phases,
    }[kind]


def _notes(changes: ChangeSet, title: str) -> Iterator[str]:
    if changes.changes.is_empty():
        yield f"{title}: none in either run."
        return
    before, after = (format_duration(round(each)) for each in (changes.before_ns, changes.after_ns))
    yield f"{title}: {before} before, {after} after."
    if changes.match_rate_ratio is None:
        yield f"No match rate: {changes.absent.get('match_rate_ratio', 'nothing to match')}."
    else:
        yield f"{format_ratio(changes.match_rate_ratio)} of the time of both runs lies in names that both have."
        if UNKNOWN_OPERATOR in changes.changes[Changes.name]:
            yield f"{UNKNOWN_OPERATOR} is no name: its time matches nothing."
    if NO_PHASE in changes.changes[Changes.name]:
        yield (
            f"Phases sum to the step on the host, with {NO_PHASE}: of threads in phases at once, that which runs the "
            "steps counts, else the phase that began last."
        )
