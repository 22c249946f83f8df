"""The first and the last line of a report: whose traces these are, how long a step is, and how far to trust it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scope.analysis.job import summed_ranks
from scope.analysis.step_time import compute_median_step
from scope.report.sections.breakdown import is_host_alone
from scope.report.sections.quality import format_ranks
from scope.units import format_duration, format_ratio

if TYPE_CHECKING:
    from scope.analysis.job import Analysis


def headline(analysis: Analysis) -> str:
    """Return whose traces these are, which ranks are missing, and how long the median step is."""
    known = tuple(rank.rank for rank in analysis.ranks if rank.rank is not None)
    names = [f"rank{'s' if len(known) > 1 else ''} {format_ranks(known)}"] if known else []
    names += [f"{rank.label} (rank unknown)" for rank in analysis.ranks if rank.rank is None]
    world = f" of {analysis.world_size}" if analysis.world_size is not None else ""
    num_missing = len(analysis.missing_ranks)
    missing = f", {num_missing:,} rank{'s' * (num_missing > 1)} missing" if num_missing else ""
    return f"{', '.join(names)}{world}{missing}; {_steps_text(analysis)}"


def _steps_text(analysis: Analysis) -> str:
    """Return which steps there are and how long the median one is, which is also what `scope compare` compares."""
    whole = [step for step in analysis.steps if not step.is_cut]
    shown = whole or list(analysis.steps)
    devices = (device.windows for rank in summed_ranks(analysis.ranks) for device in rank.devices)
    median_ns = compute_median_step(devices, cut=not whole)
    if median_ns is None:
        return "no steps in the trace"
    where = "on the host" if is_host_alone(analysis) else "on the device"
    median = f"{format_duration(median_ns)} {where}{'' if whole else ' (cut by the recording)'}"
    if len(shown) == 1:
        return f"step {shown[0].number}: {median}"
    return f"steps {shown[0].number} to {shown[-1].number}: median {median}"


def trust_line(analysis: Analysis) -> str:
    """Return how many records were read, lost and repaired, and of how much device time the operator is known."""
    qualities = [rank.quality for rank in analysis.ranks]
    lost, repaired = sum(each.events_lost for each in qualities), sum(each.events_repaired for each in qualities)
    read = sum(each.events_read for each in qualities)
    unlinked = sum(each.device_events_without_launch for each in qualities)
    parts = [f"{read:,} records read", f"{lost:,} lost"]
    if repaired:
        parts.append(f"{repaired:,} repaired")
    cut = sum(each.truncated for each in qualities)
    if cut:
        parts.append(f"{cut} of {len(qualities)} files cut short")
    if unlinked:
        parts.append(f"{unlinked:,} device events without launch")
    ratios = [each.attributed_ratio for each in qualities if each.attributed_ratio is not None]
    if ratios:
        least = "at least " if len(ratios) > 1 and min(ratios) < max(ratios) else ""
        parts.append(f"operator known for {least}{format_ratio(min(ratios))} of device time")
    return f"Trust: {', '.join(parts)}"
