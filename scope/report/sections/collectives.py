"""Collectives across ranks: how long they moved data and waited, how fast, and on which clocks that rests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

from scope.analysis.collective_tables import (
    CollectiveRooflineRows,
    CollectiveRows,
    CollectiveSummaryRows,
    GroupRows,
    RankWaitRows,
)
from scope.analysis.contradictions import CONTRADICTIONS, TYPES_DIFFER
from scope.analysis.exposure import ExposedCollectives
from scope.analysis.group_names import name_group
from scope.report.sections.base import column, figure, frame_column, frame_rows, whole_table
from scope.report.sections.quality import format_ranks
from scope.report.table import Absent

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import polars as pl

    from scope.analysis.collective_roofline import CollectiveRoofline
    from scope.analysis.collectives import Collectives
    from scope.report.table import Cell, ReportColumn, ReportTable
    from scope.trace.columns import Column

_GROUP: Final = column("group", "group", "Description or name of the process group, and its ranks.")
_SUMMARY: Final = (
    CollectiveSummaryRows.operation,
    CollectiveSummaryRows.message_bytes,
    CollectiveSummaryRows.dtype,
    CollectiveSummaryRows.num_collectives,
    CollectiveSummaryRows.total_transfer_ns,
    CollectiveSummaryRows.total_wait_ns,
    CollectiveSummaryRows.median_transfer_ns,
    CollectiveSummaryRows.median_busbw_bytes_per_s,
    CollectiveSummaryRows.median_algbw_bytes_per_s,
    CollectiveSummaryRows.max_skew_ns,
    CollectiveSummaryRows.tier,
    CollectiveSummaryRows.num_measured,
    CollectiveSummaryRows.num_cut,
    CollectiveSummaryRows.max_busbw_bytes_per_s,
    CollectiveSummaryRows.variant,
    CollectiveSummaryRows.library,
)
_SUMMARY_HEADINGS: Final = (
    "operation", "message", "dtype", "count", "total transfer", "total wait", "median transfer", "median busbw",
    "median algbw", "largest skew", "tier", "measured", "cut", "best busbw", "variant", "library",
)  # fmt: skip
_CALLS: Final = (
    CollectiveRows.operation,
    CollectiveRows.message_bytes,
    CollectiveRows.step_number,
    CollectiveRows.sequence,
    CollectiveRows.transfer_ns,
    CollectiveRows.skew_ns,
    CollectiveRows.last_rank,
    CollectiveRows.imposed_wait_ns,
    CollectiveRows.total_wait_ns,
    CollectiveRows.busbw_bytes_per_s,
    CollectiveRows.algbw_bytes_per_s,
    CollectiveRows.num_ranks_seen,
    CollectiveRows.num_ranks,
    CollectiveRows.is_complete,
    CollectiveRows.is_cut,
    CollectiveRows.tier,
    CollectiveRows.dtype,
    CollectiveRows.clock_interval_ns,
    CollectiveRows.clock_error_ns,
    CollectiveRows.first_arrival_ns,
    CollectiveRows.end_ns,
)
_CALL_HEADINGS: Final = (
    "operation", "message", "step", "sequence", "transfer", "skew", "last rank", "imposed wait", "total wait",
    "busbw", "algbw", "ranks seen", "ranks", "complete", "cut", "tier", "dtype", "clock interval", "clock error",
    "first arrival", "end",
)  # fmt: skip
_POINTS: Final = (
    CollectiveRooflineRows.operation,
    CollectiveRooflineRows.message_bytes,
    CollectiveRooflineRows.num_ranks,
    CollectiveRooflineRows.tier,
    CollectiveRooflineRows.num_collectives,
    CollectiveRooflineRows.total_transfer_ns,
    CollectiveRooflineRows.median_busbw_bytes_per_s,
    CollectiveRooflineRows.ceiling_bytes_per_s,
    CollectiveRooflineRows.attained_ratio,
    CollectiveRooflineRows.sister_busbw_bytes_per_s,
    CollectiveRooflineRows.sister_ratio,
    CollectiveRooflineRows.num_sisters,
    CollectiveRooflineRows.max_busbw_bytes_per_s,
    CollectiveRooflineRows.is_above_ceiling,
    CollectiveRooflineRows.dtype,
    CollectiveRooflineRows.library,
)
_POINT_HEADINGS: Final = (
    "operation", "message", "ranks", "tier", "count", "total transfer", "median busbw", "ceiling", "of ceiling",
    "sisters' busbw", "of sisters", "sisters", "best busbw", "above", "dtype", "library",
)  # fmt: skip
_IDS: Final = frozenset({"step_number", "sequence", "last_rank", "first_arrival_ns", "end_ns"})


def _columns(sources: Sequence[Column], headings: Sequence[str]) -> tuple[ReportColumn, ...]:
    return tuple(
        frame_column(source, heading, unit="id" if str(source) in _IDS else None)
        for source, heading in zip(sources, headings, strict=True)
    )


SUMMARY_COLUMNS: Final = (_GROUP, *_columns(_SUMMARY, _SUMMARY_HEADINGS))
CALL_COLUMNS: Final = (
    column("collective_id", "id", "Number of the collective in this report.", unit="id"),
    _GROUP,
    *_columns(_CALLS, _CALL_HEADINGS),
    column("reason", "remark", "Why a figure of this row is absent or a bound."),
)
POINT_COLUMNS: Final = (
    _GROUP,
    *_columns(_POINTS, _POINT_HEADINGS),
    column("reason", "remark", "Why there is no ceiling."),
)
WAIT_COLUMNS: Final[tuple[ReportColumn, ...]] = (
    column("rank", "rank", "Global rank.", unit="id"),
    frame_column(RankWaitRows.wait_ns, "waited"),
    frame_column(RankWaitRows.num_last, "arrived last"),
    frame_column(RankWaitRows.num_collectives, "collectives"),
    frame_column(RankWaitRows.num_cut, "cut"),
    frame_column(RankWaitRows.cut_wait_ns, "waited in cut"),
)
CLOCK_COLUMNS: Final[tuple[ReportColumn, ...]] = (
    column("rank", "rank", "Global rank.", unit="id"),
    column("reference_rank", "reference", "Rank whose clock this one is compared with.", unit="id"),
    column(
        "offset_ns",
        "offset",
        "Estimate of the rank's time less the reference's: the median difference of the ends of common collectives.",
    ),
    column("low_ns", "at least", "The offset is at least this, whatever the ranks did."),
    column("high_ns", "at most", "The offset is at most this."),
    column("drift_ppb", "drift (ppb)", "How much faster the clock runs, nanoseconds a second.", unit="number"),
    column("residual_ns", "residual", "Median distance of the ends of common collectives after the estimate."),
    column("is_applied", "applied", "Offset and drift were taken off the rank's instants; else it stays as recorded."),
    column(
        "assumption",
        "assumes",
        "What the clock of figures rests on: `reference`; `one host` or `clocks agree` (within 10 us): left as "
        "recorded; `ends together`: ranks leave symmetric collectives together, and the estimate was taken off.",
    ),
    column("error_ns", "probable error", "How wrong that clock is if the assumption holds."),
    column("num_collectives", "collectives", "Collectives that the estimate rests on."),
)
EXPOSED_COLUMNS: Final[tuple[ReportColumn, ...]] = (
    frame_column(ExposedCollectives.operation, "operation"),
    frame_column(ExposedCollectives.message_bytes, "message"),
    frame_column(ExposedCollectives.group, "group"),
    frame_column(ExposedCollectives.exposed_ns, "exposed"),
    frame_column(ExposedCollectives.total_ns, "total"),
    frame_column(ExposedCollectives.num_calls, "calls"),
    frame_column(ExposedCollectives.num_ranks, "ranks"),
)
CollectivesView = Literal["summary", "each", "links", "waits", "clock"]
_VIEWS: Final[dict[CollectivesView, tuple[str, tuple[ReportColumn, ...]]]] = {
    "summary": ("Collectives", SUMMARY_COLUMNS),
    "each": ("Collectives one by one", CALL_COLUMNS),
    "links": ("Collectives and their links", POINT_COLUMNS),
    "waits": ("Waiting for other ranks", WAIT_COLUMNS),
    "clock": ("Clocks of the ranks", CLOCK_COLUMNS),
}
_OVERLAPPING_WAITS: Final = (
    "Waits of calls that are pending at once all count, under compute or not: a rank may wait longer than its window."
)
_UNKNOWN: Final = "the trace does not say it"
_NO_TYPE: Final = f"the trace says none that can be read, or {TYPES_DIFFER}"
_NO_SIZE: Final = "its operation has no message, or the trace says no usable size"
_NO_COMMON_SIZE: Final = ", or ".join((_NO_SIZE, *CONTRADICTIONS))
_NO_TOPOLOGY: Final = "unknown which ranks share a node (--ranks-per-node or --topology says it)"
_NO_SISTERS: Final = "no other group of its axis and shape was measured by as large messages of its operation"
_NO_REMARK: Final = "none; no time of these collectives is absent or a bound"
_NOT_MEASURED: Final = "no collective of this row is complete"
_NO_TRANSFER: Final = "no complete collective of this row has a transfer: they end at the last arrival"
_NO_BANDWIDTH: Final = (
    "no complete collective of this row has a size (of an uneven all_to_all: splits too), a transfer and clocks that "
    "agree well enough (--view each says what each lacks)"
)
_BANDWIDTHS: Final = (
    CollectiveSummaryRows.median_busbw_bytes_per_s,
    CollectiveSummaryRows.median_algbw_bytes_per_s,
    CollectiveSummaryRows.max_busbw_bytes_per_s,
)
_NO_WAIT: Final = "no collective of this row is complete and uncut"
_CALL_REASONS: Final = {
    CollectiveRows.message_bytes: _NO_COMMON_SIZE,
    CollectiveRows.step_number: "it was launched in no step",
    CollectiveRows.num_ranks: "the trace does not say its group",
    CollectiveRows.tier: _NO_TOPOLOGY,
    CollectiveRows.dtype: _NO_TYPE,
    CollectiveRows.clock_interval_ns: "its calls do not bound the clocks of its ranks from both sides",
    CollectiveRows.clock_error_ns: "its calls do not bound the clocks of its ranks from both sides",
}
"""Why a figure of a collective is null, where the remark of its row, which is about times, does not say it."""


def group_names(collectives: Collectives | CollectiveRoofline) -> dict[int, str]:
    """Return how each group is called in reports, by its id: description or name, and its ranks."""
    sources = (
        GroupRows.group_id,
        GroupRows.name,
        GroupRows.description,
        GroupRows.ranks,
        GroupRows.is_assumed,
        GroupRows.is_inferred,
    )
    names: dict[int, str] = {}
    for group_id, name, description, ranks, is_assumed, is_inferred in collectives.groups.select(*sources).iter_rows():
        called = "all (assumed)" if is_assumed else name_group(name, description=description)
        where = f" [{format_ranks(tuple(ranks))}]" if ranks else ""
        names[group_id] = f"{called}{where}{' (inferred)' if is_inferred else ''}"
    return names


def exposed_table(exposed: pl.DataFrame) -> ReportTable:
    """Return communication by operation, group and size with the part that no compute hid.

    Args:
        exposed: The table `ExposedCollectives`.
    """
    sources = (
        ExposedCollectives.operation,
        ExposedCollectives.message_bytes,
        ExposedCollectives.group,
        ExposedCollectives.exposed_ns,
        ExposedCollectives.total_ns,
        ExposedCollectives.num_calls,
        ExposedCollectives.num_ranks,
    )
    reasons = {source: _UNKNOWN for source in sources if source.nullable} | {ExposedCollectives.message_bytes: _NO_SIZE}
    return whole_table(
        "exposed",
        "Communication, and how much nothing hid",
        EXPOSED_COLUMNS,
        frame_rows(exposed, sources, reasons=reasons),
        notes=("No communication: the traces hold none.",) if exposed.is_empty() else (),
    )


def no_collectives_table(view: CollectivesView, reason: str) -> ReportTable:
    """Return the table of a view without a row, with the reason as its note.

    Args:
        view: Which of the tables.
        reason: Why there is nothing to show.
    """
    title, columns = _VIEWS[view]
    what = "No bandwidth" if view == "links" else "No collectives"
    return whole_table("clock" if view == "clock" else "collectives", title, columns, (), notes=(f"{what}: {reason}.",))


def collectives_table(collectives: Collectives) -> ReportTable:
    """Return collectives by group, operation and size, most transfer and wait first."""
    unmeasured: dict[Column, str] = {source: _NOT_MEASURED for source in _SUMMARY if source.nullable}
    unmeasured |= {
        CollectiveSummaryRows.message_bytes: _NO_COMMON_SIZE,
        CollectiveSummaryRows.dtype: _NO_TYPE,
        CollectiveSummaryRows.tier: _NO_TOPOLOGY,
        CollectiveSummaryRows.total_wait_ns: _NO_WAIT,
        CollectiveSummaryRows.max_skew_ns: _NO_WAIT,
    }
    measured = unmeasured | {
        CollectiveSummaryRows.total_transfer_ns: _NO_TRANSFER,
        CollectiveSummaryRows.median_transfer_ns: _NO_TRANSFER,
        **dict.fromkeys(_BANDWIDTHS, _NO_BANDWIDTH),
    }
    names = group_names(collectives)
    summary = collectives.summary
    keys = summary.select(CollectiveSummaryRows.group_id, CollectiveSummaryRows.num_measured).iter_rows()
    cells = [frame_rows(summary, _SUMMARY, reasons=reasons) for reasons in (measured, unmeasured)]
    rows = [
        (names[group_id], *(if_measured if num_measured else if_not))
        for (group_id, num_measured), if_measured, if_not in zip(keys, *cells, strict=True)
    ]
    return whole_table(
        "collectives",
        "Collectives",
        SUMMARY_COLUMNS,
        rows,
        notes=(*sum_notes(collectives), *_match_notes(collectives, each=False)),
    )


def collective_calls_table(collectives: Collectives) -> ReportTable:
    """Return every collective, in the order of its first arrival."""
    names = group_names(collectives)
    frame = collectives.collectives
    keys = frame.select(CollectiveRows.collective_id, CollectiveRows.group_id, CollectiveRows.reason)
    rows: list[tuple[Cell, ...]] = []
    absences = [Absent(_CALL_REASONS[name]) if name in _CALL_REASONS else None for name in _CALLS]
    for (collective_id, group_id, reason), row in zip(keys.iter_rows(), frame_rows(frame, _CALLS), strict=True):
        why = Absent(reason or _UNKNOWN)
        cells = tuple(
            (own or why) if isinstance(cell, Absent) else cell for cell, own in zip(row, absences, strict=True)
        )
        rows.append((collective_id, names[group_id], *cells, reason or Absent(_NO_REMARK)))
    return whole_table(
        "collectives", "Collectives one by one", CALL_COLUMNS, rows, notes=_match_notes(collectives, each=True)
    )


def collective_roofline_table(roofline: CollectiveRoofline) -> ReportTable:
    """Return each group's message sizes with their bus bandwidth, what links allow and what sister groups reach."""
    names = group_names(roofline)
    keys = roofline.points.select(CollectiveRooflineRows.group_id, CollectiveRooflineRows.reason)
    own = {
        CollectiveRooflineRows.dtype: Absent(_UNKNOWN),
        CollectiveRooflineRows.sister_busbw_bytes_per_s: Absent(_NO_SISTERS),
        CollectiveRooflineRows.sister_ratio: Absent(_NO_SISTERS),
    }
    rows: list[tuple[Cell, ...]] = []
    for (group_id, reason), row in zip(keys.iter_rows(), frame_rows(roofline.points, _POINTS), strict=True):
        why = Absent(reason or _UNKNOWN)
        cells = tuple(
            own.get(name, why) if isinstance(cell, Absent) else cell for cell, name in zip(row, _POINTS, strict=True)
        )
        rows.append((names[group_id], *cells, reason or Absent("none; the ceilings of these are known")))
    notes = [f"Links: {roofline.links.source}. Bandwidth is decimal and one way, as in nccl-tests."]
    if roofline.num_without_bandwidth:
        notes.append(
            f"{roofline.num_without_bandwidth:,} of {roofline.num_collectives + roofline.num_without_bandwidth:,} "
            "collectives have no bandwidth: incomplete, cut, of unknown size or without transfer."
        )
    return whole_table("collectives", "Collectives and their links", POINT_COLUMNS, rows, notes=notes)


def rank_waits_table(collectives: Collectives) -> ReportTable:
    """Return what each rank waited for others."""
    rows = frame_rows(
        collectives.rank_waits,
        (
            RankWaitRows.rank,
            RankWaitRows.wait_ns,
            RankWaitRows.num_last,
            RankWaitRows.num_collectives,
            RankWaitRows.num_cut,
            RankWaitRows.cut_wait_ns,
        ),
    )
    notes = (*([_OVERLAPPING_WAITS] if rows else ()), *cut_note(collectives))
    return whole_table("collectives", "Waiting for other ranks", WAIT_COLUMNS, rows, notes=notes)


def clock_table(collectives: Collectives) -> ReportTable:
    """Return how far each rank's clock stands from its reference, with the interval that holds the truth."""
    clock = collectives.clock
    keys = tuple(each.key for each in CLOCK_COLUMNS)
    rows = [tuple(figure(offset, key) for key in keys) for offset in clock.offsets]
    notes: list[str] = []
    if len(clock.components) > 1:
        notes.append(f"{len(clock.components)} sets of ranks share no collective: between them nothing is known.")
    if clock.num_contradictions:
        notes.append(f"{clock.num_contradictions} ranks' calls fit no offset: a clock jumped, or calls are mismatched.")
    return whole_table("clock", "Clocks of the ranks", CLOCK_COLUMNS, rows, notes=notes)


def _match_notes(collectives: Collectives, *, each: bool) -> Iterator[str]:
    """Yield how far the calls found their partners.

    Args:
        collectives: The collectives.
        each: The table shows those that miss ranks too; else it sums the complete ones.
    """
    counts = (
        (collectives.num_alone, "calls show on one rank only"),
        (collectives.num_ambiguous - collectives.num_of_unknown_group, "calls are ambiguous: several partners fit"),
        (
            collectives.num_of_unknown_group,
            "calls do not say their group, and the groups that the traces list, or the calls' sizes, show that it need "
            "not be all ranks; or they say one that does not hold their rank: they are left out (traces of NCCL on "
            "torch 2.2 and later say it)",
        ),
        (collectives.num_unmatchable, "calls cannot be matched: their peers or group are unknown"),
    )
    for count, words in counts:
        if count:
            yield f"{count:,} of {collectives.num_calls:,} {words}."
    if collectives.num_incomplete:
        meaning = (
            "of each, waits are at least and transfer at most what stands here"
            if each
            else "their transfers, waits and bandwidths count in no row (--view each shows what bounds there are)"
        )
        yield f"{collectives.num_incomplete:,} collectives miss ranks: {meaning}."
    reasons = collectives.collectives[CollectiveRows.reason]
    for contradiction in CONTRADICTIONS:
        num_contradictory = int(reasons.str.contains(contradiction, literal=True).sum())
        if num_contradictory:
            yield (
                f"{num_contradictory:,} of {collectives.collectives.height:,} collectives have no size and no "
                f"bandwidth: of each, {contradiction}."
            )
    yield from cut_note(collectives)
    if collectives.groups[GroupRows.is_inferred].any():
        yield "Groups marked as inferred are said by no call: they are the only ones listed that the calls' sizes fit."
    if collectives.is_group_assumed:
        yield "Some calls carry no group: they were matched by operation and order over all ranks."


def sum_notes(collectives: Collectives) -> Iterator[str]:
    """Yield what the figures of the summary are sums and medians of, where it has any."""
    if collectives.summary[CollectiveSummaryRows.num_measured].sum():
        yield (
            "Total transfer is summed over collectives, total wait over collectives and ranks; median busbw and algbw "
            "are those of the collective of median transfer."
        )


def cut_note(collectives: Collectives) -> Iterator[str]:
    """Yield what collectives at the edge of a window are left out of, where there are any."""
    if collectives.num_cut:
        yield (
            f"Left out of waits and skews: {collectives.num_cut:,} of {collectives.collectives.height:,} collectives, "
            "at the edge of a window; ranks were in them before another's recording began."
        )
