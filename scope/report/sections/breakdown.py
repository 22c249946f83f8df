"""Where the time went: by rank and device, and by step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from scope.analysis.job import summed_ranks
from scope.analysis.windows import HOST
from scope.report.sections.base import column, figures, whole_table
from scope.report.table import Filler

if TYPE_CHECKING:
    from collections.abc import Iterator

    from scope.analysis.breakdown import Breakdown
    from scope.analysis.job import Analysis, DeviceAnalysis, PartAnalysis, RankAnalysis
    from scope.report.table import Cell, ReportColumn, ReportTable

BREAKDOWN_COLUMNS: Final[tuple[ReportColumn, ...]] = (
    column("window_ns", "window", "Length of the window: first device event to largest end, half-open."),
    column("compute_ns", "compute", "Union of compute."),
    column("exposed_communication_ns", "exposed comm", "Union of communication minus compute."),
    column(
        "exposed_memory_ns",
        "exposed copies",
        "Union of copies and sets minus compute and communication; on a host timeline, where copies are no part of the "
        "window and those of a device are not known, 0 so that the parts sum.",
    ),
    column("idle_ns", "idle", "The rest of the window: nothing ran. The four parts sum to the window exactly."),
    column("communication_ns", "communication", "Union of communication, exposed or not."),
    column("overlap_ns", "overlap", "Communication intersected with compute."),
    column("overlap_ratio", "overlapped", "overlap_ns / communication_ns."),
    column("memory_ns", "copies", "Union of copies and sets, exposed or not; 0 on a host timeline."),
    column("peer_copy_ns", "peer copies", "Union of copies between devices (P2P), part of memory_ns."),
)
_BREAKDOWN_KEYS: Final = tuple(each.key for each in BREAKDOWN_COLUMNS)
_STEP_WINDOW: Final = column(
    "window_ns",
    "window",
    "Length of the window: of a step from its first compute kernel on the device to that of the next step, of the last "
    "step to its last event; on a host timeline from the step's start to that of the next.",
)

_RANK: Final = (
    column("label", "rank", "`rank 3`, or `file 2` where no rank is known."),
    column("device", "device", "Device index in the trace; `all` for the sum, `host` for a host timeline."),
)
RANK_STEP_COLUMNS: Final[tuple[ReportColumn, ...]] = (
    *_RANK,
    column("step", "step", "n of `ProfilerStep#n`, or `before`, `after`, `whole`.", unit="text"),
    column("is_cut", "cut", "The recording began or ended inside the step."),
    _STEP_WINDOW,
    *BREAKDOWN_COLUMNS[1:],
)
STEP_COLUMNS: Final[tuple[ReportColumn, ...]] = (
    column("number", "step", "n of `ProfilerStep#n`.", unit="id"),
    column("median_window_ns", "median", "Median length of the step's window on its devices, the lower of two."),
    _STEP_WINDOW,
    *BREAKDOWN_COLUMNS[1:],
    column("max_window_ns", "longest", "Longest window of the step on any device."),
    column("slowest", "slowest", "Rank with the longest window."),
    column("is_cut", "cut", "Some rank holds only a part of the step."),
    column("num_devices", "devices", "Devices on which the step has a window."),
    column("min_window_ns", "shortest", "Shortest window of the step on any device."),
)
_OF_DEVICES: Final = frozenset({"exposed_memory_ns", "memory_ns", "peer_copy_ns"})
_NO_COPIES: Final = (
    "on a host timeline what a device copied is not known, and compute, exposed communication and idle sum without it"
)
_NO_EVENTS: Final = "the trace holds no device event and no host range that counts"
_MOST_NAMED: Final = 4
_NO_WINDOW: Final = "the step has no window on this device"


def device_name(device: int) -> str:
    """Return how a device is called in reports."""
    return "host" if device == HOST else str(device)


def summed_over(analysis: Analysis) -> str:
    """Return what the figures of all ranks are sums over, such as `4 ranks` or `8 devices`; empty for one device."""
    ranks = summed_ranks(analysis.ranks)
    num_devices = sum(len(rank.devices) for rank in ranks)
    if num_devices <= 1:
        return ""
    # One device a rank, as almost always: the reader thinks of ranks.
    return f"{num_devices:,} {'ranks' if num_devices == len(ranks) else 'devices'}"


def breakdown_table(analysis: Analysis) -> ReportTable:
    """Return the breakdown of every rank; of every device too where a rank has several."""
    rows = [row for rank in analysis.ranks for row in _rank_rows(rank)]
    num_single = len(rows)
    if len(analysis.ranks) > 1 and analysis.breakdown is not None:
        host = analysis.host_breakdown
        name = "all ranks" if host is None else "all on devices"
        on_host = is_host_alone(analysis)
        rows.append((name, "all", *_figures(analysis.breakdown, on_host=on_host, reason=_NO_EVENTS)))
        if host is not None:
            rows.append(("all on hosts", "host", *_figures(host, on_host=True, reason=_NO_EVENTS)))
    title = "Where the time went, by rank"
    columns, notes = (*_RANK, *BREAKDOWN_COLUMNS), breakdown_notes(analysis)
    return whole_table("breakdown", title, columns, rows, notes=notes, num_totals=len(rows) - num_single)


def rank_steps_table(analysis: Analysis, number: int | None = None) -> ReportTable:
    """Return the breakdown of every step of every rank and device, with what lies before and after the steps.

    Args:
        analysis: The results of a job.
        number: The one step that is wanted; None for all.
    """
    places = [(rank, device, part) for rank in analysis.ranks for device in rank.devices for part in _parts(device)]
    rows = [
        _part_row(rank, device, part)
        for rank, device, part in places
        if number is None or (part.step is not None and part.step.number == number)
    ]
    return whole_table("steps", "Steps of each rank", RANK_STEP_COLUMNS, rows)


def steps_table(analysis: Analysis) -> ReportTable:
    """Return each step over all ranks: times are sums over the devices, lengths are those of single devices."""
    rows = [
        (
            step.number,
            step.median_window_ns,
            *_figures(step.breakdown, on_host=is_host_alone(analysis), reason=_NO_WINDOW),
            step.max_window_ns,
            step.slowest,
            step.is_cut,
            step.num_devices,
            step.min_window_ns,
        )
        for step in analysis.steps
    ]
    return whole_table("steps", "Steps", STEP_COLUMNS, rows, notes=_steps_notes(analysis))


def _steps_notes(analysis: Analysis) -> Iterator[str]:
    summed = summed_over(analysis)
    if not analysis.steps:
        yield "No step: the trace holds no ProfilerStep (call profiler.step() after each step)."
    elif summed:
        yield (
            f"Window, its parts, communication and copies are sums over {summed}; median, longest and shortest are "
            "lengths of single ones (scope steps --by-rank shows each)."
        )


def _rank_rows(rank: RankAnalysis) -> Iterator[tuple[Cell, ...]]:
    if len(rank.devices) != 1:
        reason = rank.absent.get("breakdown", _NO_EVENTS)
        yield (rank.label, "all", *_figures(rank.breakdown, on_host=rank.is_host_timeline, reason=reason))
    for device in rank.devices:
        reason = device.whole.absent.get("breakdown", _NO_EVENTS)
        cells = _figures(device.whole.breakdown, on_host=device.device == HOST, reason=reason)
        yield (rank.label, device_name(device.device), *cells)


def _figures(breakdown: Breakdown | None, *, on_host: bool, reason: str) -> tuple[Cell, ...]:
    """Return the cells of a breakdown; all are absent with `reason` where there is none.

    Copies are no part of the time of a host timeline, and nobody has seen those of a device.
    """
    cells = figures(breakdown, _BREAKDOWN_KEYS, reason=reason)
    if breakdown is None or not on_host:
        return cells
    pairs = zip(_BREAKDOWN_KEYS, cells, strict=True)
    return tuple(Filler(getattr(breakdown, key), _NO_COPIES) if key in _OF_DEVICES else cell for key, cell in pairs)


def is_host_alone(analysis: Analysis) -> bool:
    """Return whether every rank is a host timeline, so that no figure is of a device."""
    return bool(analysis.ranks) and all(rank.is_host_timeline for rank in analysis.ranks)


def breakdown_notes(analysis: Analysis) -> Iterator[str]:
    """Yield what a reader of the breakdown must know: that it is the host's, or that events overrun."""
    on_host = [rank.label for rank in analysis.ranks if rank.is_host_timeline]
    if on_host:
        some = "" if is_host_alone(analysis) else f" of {', '.join(on_host[:_MOST_NAMED])}"
        more = f" and {len(on_host) - _MOST_NAMED} more" if some and len(on_host) > _MOST_NAMED else ""
        yield (
            f"host: no device events in the trace{some}{more}; compute and communication are ranges on the host, and "
            "what a GPU did or copied, if there was one, is not known: these parts sum to the window without copies."
        )
    if analysis.host_breakdown is not None:
        yield "Totals, steps and shares are those of devices: host timelines are added up in a row of their own."
    for rank in analysis.ranks:
        if 2 * rank.quality.asynchronous > rank.quality.events_read:
            yield (
                f"{rank.label}: {rank.quality.asynchronous:,} of {rank.quality.events_read:,} records are asynchronous "
                "(phases b, n, e), which stand in no table: they belong to no thread or stream, and no profiler of "
                "torch writes them. Export the trace with torch.profiler."
            )
    overrun = [rank for rank in analysis.ranks if any(device.clipped is not None for device in rank.devices)]
    if overrun:
        yield (
            f"{len(overrun)} of {len(analysis.ranks)} ranks hold events that run into the next event of their stream; "
            "raw spans count here, the clipped figures stand in --json."
        )


def _parts(device: DeviceAnalysis) -> Iterator[PartAnalysis]:
    if device.before is not None:
        yield device.before
    yield from device.steps
    if device.after is not None:
        yield device.after
    if not device.steps:
        yield device.whole


def _part_row(rank: RankAnalysis, device: DeviceAnalysis, part: PartAnalysis) -> tuple[Cell, ...]:
    step, is_cut = (part.place, False) if part.step is None else (str(part.step.number), part.step.is_cut)
    reason = part.absent.get("breakdown", _NO_WINDOW)
    cells = _figures(part.breakdown, on_host=device.device == HOST, reason=reason)
    return (rank.label, device_name(device.device), step, is_cut, *cells)
