"""The allocator's memory over time, and which operators hold it at the peak."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

import polars as pl

from scope.analysis.result import Result
from scope.trace.columns import Column, Table
from scope.trace.schema import Memory, Ops, Steps

if TYPE_CHECKING:
    from scope.trace.model import RankTrace

NOTHING_RESERVES: Final = "on the host no allocator holds memory back"
COUNTED_FROM_RECORDING: Final = "of the host torch counts only what is allocated while a profiler records"
_HOST: Final = 0
_STEP_END: Final = "step_end_ns"


class MemoryHolders(Table):
    """What was in use at the peak, by operator; sorted by bytes descending, then by operator."""

    operator = Column("operator", pl.String, "innermost operator that allocated it; null where unknown", nullable=True)
    num_blocks = Column("num_blocks", pl.UInt32, "blocks in use")
    held_bytes = Column("held_bytes", pl.Int64, "bytes in use")


class StepMemory(Table):
    """The largest use of each device's memory in each step, by the step's time on the host."""

    number = Column("number", pl.Int64, "n of `ProfilerStep#n`")
    device_type = Column("device_type", pl.Int32, "torch's DeviceType: 0 is the host, 1 is CUDA or HIP")
    device = Column("device", pl.Int32, "device index; -1 for the host", nullable=True)
    num_events = Column("num_events", pl.UInt32, "allocations and releases in the step")
    peak_allocated_bytes = Column(
        "peak_allocated_bytes", pl.Int64, "largest `Total Allocated` in it; null of the host", nullable=True
    )
    peak_reserved_bytes = Column("peak_reserved_bytes", pl.Int64, "largest `Total Reserved` in it", nullable=True)
    growth_bytes = Column("growth_bytes", pl.Int64, "allocated minus released in it")


class MemoryPeak(Result, frozen=True, kw_only=True):
    """The largest use of one device's memory while it was recorded.

    Where the trace has no `Total Allocated`, the use is known from the recording's start on only, and the peak is that
    of what was allocated since. So it is on the host: the allocator of a device counts all that is in use, but torch's
    total of the host begins with the first recording of the process (`ProfiledCPUMemoryReporter`), and a block that is
    older is released with 0 bytes.
    """

    device_type: int
    """torch's DeviceType: 0 is the host, 1 is CUDA or HIP."""
    device: int | None
    """Device index; -1 for the host."""
    num_events: int
    peak_ns: int
    """The first instant at which the peak is reached."""
    peak_allocated_bytes: int | None
    """Largest `Total Allocated`."""
    peak_reserved_bytes: int | None
    """Largest `Total Reserved`."""
    start_allocated_bytes: int | None
    """In use before the first recorded event."""
    end_allocated_bytes: int | None
    """In use after the last recorded event."""
    growth_bytes: int
    """Bytes allocated minus bytes released."""
    holders: pl.DataFrame
    """The table `MemoryHolders`: blocks that were allocated in the recording and in use at the peak."""
    seen_bytes: int
    """In use at the peak and allocated in the recording: the sum of `holders`."""
    unseen_bytes: int | None
    """In use at the peak, but allocated before the recording began: the peak minus `seen_bytes`."""

    def _check_sums(self) -> None:
        assert self.seen_bytes == int(self.holders[MemoryHolders.held_bytes].sum())
        if self.peak_allocated_bytes is not None and self.unseen_bytes is not None:
            assert self.seen_bytes + self.unseen_bytes == self.peak_allocated_bytes


def compute_memory_peaks(trace: RankTrace) -> tuple[MemoryPeak, ...]:
    """Return the peak of every device whose memory was recorded, sorted by type and device."""
    keys = trace.memory.select(Memory.device_type, Memory.device).unique().sort(Memory.device_type, Memory.device)
    return tuple(
        _peak(_of_device(trace.memory, device_type, device), trace.ops) for device_type, device in keys.iter_rows()
    )


def compute_step_memory(trace: RankTrace) -> pl.DataFrame:
    """Return the table `StepMemory`; a step with no memory events is not in it."""
    steps = trace.steps.select(Steps.number, Steps.start_ns, pl.col(Steps.end_ns).alias(_STEP_END))
    owned = (
        trace.memory.sort(Memory.time_ns)
        .join_asof(steps.sort(Steps.start_ns), left_on=Memory.time_ns, right_on=Steps.start_ns)
        .filter(pl.col(Memory.time_ns) < pl.col(_STEP_END))
    )
    keys = (Steps.number, Memory.device_type, Memory.device)
    table = owned.group_by(keys).agg(
        pl.len().cast(pl.UInt32).alias(StepMemory.num_events),
        *(
            pl.col(total).filter(pl.col(Memory.device_type) != _HOST).max().alias(peak)
            for total, peak in (
                (Memory.allocated_bytes, StepMemory.peak_allocated_bytes),
                (Memory.reserved_bytes, StepMemory.peak_reserved_bytes),
            )
        ),
        pl.col(Memory.size_bytes).sum().alias(StepMemory.growth_bytes),
    )
    return StepMemory.check(table.sort(keys).select(StepMemory.columns()))


def _of_device(memory: pl.DataFrame, device_type: int, device: int | None) -> pl.DataFrame:
    owned = pl.col(Memory.device).eq_missing(pl.lit(device, dtype=pl.Int32))
    return memory.filter(pl.col(Memory.device_type) == device_type, owned)


def _peak(rows: pl.DataFrame, ops: pl.DataFrame) -> MemoryPeak:
    """Return the peak of one device's rows, which are in the order of time."""
    allocated = rows[Memory.allocated_bytes]
    is_host = rows[Memory.device_type][0] == _HOST
    is_absolute = not is_host and allocated.null_count() == 0
    use = allocated if is_absolute else rows[Memory.size_bytes].cum_sum()
    top = int(use.arg_max() or 0)
    holders = _holders(rows.head(top + 1), ops)
    seen = int(holders[MemoryHolders.held_bytes].sum())
    peak = int(use[top]) if is_absolute else None
    no_total = COUNTED_FROM_RECORDING if is_host else "the trace does not say the total in use"
    absent: dict[str, str] = {} if is_absolute else dict.fromkeys(_TOTALS, no_total)
    # Of the host torch writes 0, whatever is in use: nothing reserves there.
    reserved = None if is_host else rows[Memory.reserved_bytes].max()
    if reserved is None:
        unsaid = "the trace does not say what the allocator holds"
        absent["peak_reserved_bytes"] = NOTHING_RESERVES if is_host else unsaid
    if rows[Memory.device][0] is None:
        absent["device"] = "the trace does not say which device"
    return MemoryPeak(
        device_type=int(rows[Memory.device_type][0]),
        device=rows[Memory.device][0],
        num_events=rows.height,
        peak_ns=int(rows[Memory.time_ns][top]),
        peak_allocated_bytes=peak,
        peak_reserved_bytes=None if reserved is None else int(cast("int", reserved)),
        start_allocated_bytes=int(allocated[0]) - int(rows[Memory.size_bytes][0]) if is_absolute else None,
        end_allocated_bytes=int(allocated[-1]) if is_absolute else None,
        growth_bytes=int(rows[Memory.size_bytes].sum()),
        holders=holders,
        seen_bytes=seen,
        unseen_bytes=None if peak is None else peak - seen,
        absent=absent,
    )


_TOTALS: Final[tuple[str, ...]] = (
    "peak_allocated_bytes",
    "start_allocated_bytes",
    "end_allocated_bytes",
    "unseen_bytes",
)


def _holders(rows: pl.DataFrame, ops: pl.DataFrame) -> pl.DataFrame:
    """Return what is in use after the last of these rows: blocks whose last event is their allocation."""
    blocks = (
        rows.filter(pl.col(Memory.address).is_not_null())
        .group_by(Memory.address)
        .agg(pl.col(Memory.size_bytes, Memory.op_id).last())
        .filter(pl.col(Memory.size_bytes) > 0)
    )
    table = (
        blocks.with_columns(
            ops[Ops.name].gather(blocks[Memory.op_id]).cast(pl.String).alias(MemoryHolders.operator),
        )
        .group_by(MemoryHolders.operator)
        .agg(
            pl.len().cast(pl.UInt32).alias(MemoryHolders.num_blocks),
            pl.col(Memory.size_bytes).sum().alias(MemoryHolders.held_bytes),
        )
        .sort(-pl.col(MemoryHolders.held_bytes), pl.col(MemoryHolders.operator))
    )
    return MemoryHolders.check(table)
