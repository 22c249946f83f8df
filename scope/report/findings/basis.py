"""What shares of findings are shares of: the whole steps of all devices, or their windows where there are no steps."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from scope.analysis.idle import IDLE_CAUSES
from scope.analysis.job import summed_ranks
from scope.analysis.step_time import judged_steps
from scope.report.findings.time_awaited import NOTHING, Awaited
from scope.structs import Record
from scope.units import format_duration, format_ratio

if TYPE_CHECKING:
    from scope.analysis.job import Analysis, DeviceAnalysis, PartAnalysis, RankAnalysis


class Basis(Record, frozen=True, kw_only=True):
    """Sums over the parts of all devices that findings are judged on.

    Attributes:
        is_steps: Steps count; else the windows, warm-up and all.
        num_devices: Devices that have such a part.
        num_parts: Steps times devices, or windows.
        window_ns: Length of the parts.
        compute_ns: Union of compute.
        communication_ns: Union of communication.
        overlap_ns: What compute hides of it.
        exposed_communication_ns: Communication that compute does not hide.
        idle_ns: Nothing ran.
        idle_by_cause_ns: Idle time by cause.
        host_bound_ns: The queue was empty and the launching thread busy.
        num_launches: Launches whose events start in the parts.
        num_devices_by_step: By number of a step, the devices of whose basis it is a part.
        num_devices_without: Devices whose basis is their whole window.
        awaited: Launches that waited for something in a blocking call, where launches take long; else nothing.
    """

    is_steps: bool
    num_devices: int
    num_parts: int
    window_ns: int
    compute_ns: int
    communication_ns: int
    overlap_ns: int
    exposed_communication_ns: int
    idle_ns: int
    idle_by_cause_ns: dict[str, int]
    host_bound_ns: int
    num_launches: int
    num_devices_by_step: dict[int, int]
    num_devices_without: int
    awaited: Awaited = NOTHING

    def share(self, part_ns: int) -> float:
        """Return a sum over devices as a share of the basis; 0 for a basis of no length."""
        return part_ns / self.window_ns if self.window_ns else 0.0

    def within(self, part_ns: int) -> int:
        """Return a sum over devices, or all of the basis where that is less: nothing costs more time than there is.

        Kernels run beside each other and go on behind the steps, and broken records tell of more than there was.
        """
        return min(part_ns, self.window_ns)

    @property
    def noun(self) -> str:
        """What a share is a share of, in words."""
        if self.is_steps:
            return "step time"
        return "step time or window" if self.num_devices_by_step else "the window"

    @property
    def whole(self) -> str:
        """What `window_ns` is, in words."""
        return f"{self.noun} of all devices"

    def text(self, part_ns: int) -> str:
        """Return a sum over devices as `12.0 % of step time (3.4 ms)`."""
        return f"{format_ratio(self.share(part_ns))} of {self.noun} ({format_duration(part_ns)})"

    def num_devices_of(self, step_number: int | None) -> int:
        """Return of how many devices' basis a step is a part; None: what ran outside steps, or where there are none."""
        by_step = 0 if step_number is None else self.num_devices_by_step.get(step_number, 0)
        return by_step + self.num_devices_without


def make_basis(analysis: Analysis) -> Basis:
    """Return the sums over the step time of every device (`scope.analysis.step_time`).

    That is its whole steps; the steps that the recording cut where none is whole; its window where it has none.
    Host timelines count only where there is no device.
    """
    devices = [device for rank in summed_ranks(analysis.ranks) for device in rank.devices]
    chosen = [_parts(device) for device in devices]
    parts = [part for group in chosen for part in group]
    breakdowns = [part.breakdown for part in parts if part.breakdown is not None]
    idles = [part.idle for part in parts if part.idle is not None]
    queues = [part.queue for part in parts if part.queue is not None]
    numbers = Counter(part.step.number for part in parts if part.step is not None)
    return Basis(
        is_steps=bool(parts) and all(part.place == "step" for part in parts),
        num_devices=sum(1 for group in chosen if group),
        num_parts=len(parts),
        window_ns=sum(each.window_ns for each in breakdowns),
        compute_ns=sum(each.compute_ns for each in breakdowns),
        communication_ns=sum(each.communication_ns for each in breakdowns),
        overlap_ns=sum(each.overlap_ns for each in breakdowns),
        exposed_communication_ns=sum(each.exposed_communication_ns for each in breakdowns),
        idle_ns=sum(each.idle_ns for each in breakdowns),
        idle_by_cause_ns={cause: sum(getattr(each, f"{cause}_ns") for each in idles) for cause in IDLE_CAUSES},
        host_bound_ns=sum(each.host_bound_ns for each in queues),
        num_launches=sum(each.num_launches for each in queues),
        num_devices_by_step=dict(numbers),
        num_devices_without=sum(1 for part in parts if part.place == "whole"),
    )


def beside_missing_ranks(analysis: Analysis, action: str) -> str:
    """Return what to do about communication: where ranks are missing, to look for a late one among those first.

    Collectives of which a rank was not seen show its lateness as if they were slow themselves.

    Args:
        analysis: Its ranks, and those that no trace is of.
        action: What to do where no rank is missing.
    """
    num_missing = len(analysis.missing_ranks)
    if not num_missing:
        return action
    of_all = "" if analysis.world_size is None else f" of {analysis.world_size:,}"
    return (
        f"The traces lack {num_missing:,}{of_all} ranks, and all of this may be the wait for one of those: give their "
        f"traces too, or see whom the run knows as slow (scope show RUN). Only then: {action}"
    )


def left_out_ranks(analysis: Analysis) -> frozenset[int]:
    """Return the ranks whose time is no part of the basis: host timelines beside devices."""
    summed = {rank.rank for rank in summed_ranks(analysis.ranks)}
    return frozenset(rank.rank for rank in analysis.ranks if rank.rank is not None and rank.rank not in summed)


def idle_share(rank: RankAnalysis, cause: str) -> float:
    """Return the share of one rank's basis that its devices stood idle for a cause."""
    parts = [part for device in rank.devices for part in _parts(device)]
    window = sum(part.breakdown.window_ns for part in parts if part.breakdown is not None)
    idle = sum(getattr(part.idle, f"{cause}_ns") for part in parts if part.idle is not None)
    return idle / window if window else 0.0


def ranks_with(analysis: Analysis, cause: str, *, at_least: float) -> tuple[int, ...]:
    """Return the ranks of which at least this share is idle for a cause."""
    return tuple(rank.rank for rank in analysis.ranks if rank.rank is not None and idle_share(rank, cause) >= at_least)


def judged_numbers(rank: RankAnalysis) -> frozenset[int] | None:
    """Return the numbers of the steps that make up a rank's basis; None where it is the window of its devices."""
    parts = [part for device in rank.devices for part in _parts(device)]
    numbers = frozenset(part.step.number for part in parts if part.step is not None)
    return numbers or None


def judged_lengths(rank: RankAnalysis) -> dict[int | None, int]:
    """Return the length of each step that makes up a rank's basis, by number, summed over its devices.

    Under None that of the windows of its devices, where those are its basis.
    """
    lengths: dict[int | None, int] = {}
    for part in (part for device in rank.devices for part in _parts(device)):
        number = None if part.step is None else part.step.number
        lengths[number] = lengths.get(number, 0) + (0 if part.breakdown is None else part.breakdown.window_ns)
    if len(lengths) > 1:
        lengths.pop(None, None)
    return lengths


def _parts(device: DeviceAnalysis) -> list[PartAnalysis]:
    judged = {step.step_id for step in judged_steps(device.windows)}
    if judged:
        return [part for part in device.steps if part.step is not None and part.step.step_id in judged]
    return [] if device.whole.breakdown is None else [device.whole]
