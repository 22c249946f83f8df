"""Records of a rank become columns; one function a frame."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec
import polars as pl

from scope.frames.schema import Calls, CollectiveTotals, Events, PhaseMemory, Ranks, RankSteps, Traces
from scope.run.schema import PHASES, StepRecord

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from scope.run.calls import CallRecord
    from scope.run.reader import Trace
    from scope.run.schema import CollectiveTotal, EventRecord, GroupInfo, RankInfo, StepLine, StepSummary
    from scope.trace.columns import Table

_PHASES: Final = frozenset(PHASES)


def rank_frame(infos: Iterable[RankInfo]) -> pl.DataFrame:
    """Return the table `Ranks`."""
    return _frame(Ranks, [_rank_row(info) for info in infos]).sort(Ranks.attempt, Ranks.rank)


def step_frame(lines: Iterable[StepLine], *, attempt: int, rank: int) -> pl.DataFrame:
    """Return the table `RankSteps` of one rank, in the order given."""
    return _frame(RankSteps, [_step_row(line, attempt, rank) for line in lines])


def phase_memory_frame(steps: Iterable[StepRecord]) -> pl.DataFrame:
    """Return the table `PhaseMemory` of the steps of one rank."""
    rows = [
        {
            "phase": phase,
            "num_steps": 1,
            "allocated_peak_bytes": peak.allocated_bytes,
            "reserved_peak_bytes": peak.reserved_bytes,
            "resident_peak_bytes": peak.resident_bytes,
        }
        for step in steps
        if step.memory is not None
        for phase, peak in step.memory.phases.items()
    ]
    peaks = (PhaseMemory.allocated_peak_bytes, PhaseMemory.reserved_peak_bytes, PhaseMemory.resident_peak_bytes)
    grouped = _frame(PhaseMemory, rows).group_by(PhaseMemory.phase)
    return grouped.agg(pl.col(PhaseMemory.num_steps).sum(), pl.col(peaks).max()).sort(PhaseMemory.phase)


def total_frame(lines: Iterable[StepLine], info: RankInfo) -> pl.DataFrame:
    """Return the table `CollectiveTotals` of one rank.

    Args:
        lines: Steps and summaries.
        info: The rank's file, which names the groups.
    """
    groups = {group.group: group for group in info.groups}
    rows = [
        _total_row(total, groups.get(total.group))
        | {"attempt": info.attempt, "rank": info.rank, "step": _number_of(line)}
        for line in lines
        for total in line.collectives
    ]
    return _frame(CollectiveTotals, rows)


def call_frame(records: Iterable[CallRecord], info: RankInfo) -> pl.DataFrame:
    """Return the table `Calls` of one rank.

    Args:
        records: Records of closed segments.
        info: The rank's file, which names the groups.
    """
    groups = {group.group: group for group in info.groups}
    rows = [
        _group_columns(groups.get(record.group), record.group)
        | {
            "attempt": info.attempt,
            "rank": info.rank,
            "step": record.step,
            "sequence": record.sequence,
            "operation": record.operation,
            "variant": record.variant,
            "control": record.control,
            "peer": record.peer,
            "in_bytes": record.in_bytes,
            "out_bytes": record.out_bytes,
            "dtype": record.dtype,
            "asynchronous": record.asynchronous,
            "issued_ns": record.issued_ns,
            "arrived_ns": record.arrived_ns,
            "completed_ns": record.completed_ns,
            "blocked_ns": record.blocked_ns,
        }
        for record in records
    ]
    return _frame(Calls, rows)


def event_frame(records: Iterable[EventRecord], *, attempt: int, rank: int) -> pl.DataFrame:
    """Return the table `Events` of one rank."""
    rows = [
        {
            "attempt": attempt,
            "rank": rank,
            "time_ns": record.time_ns,
            "kind": record.kind,
            "message": record.message,
            "step": record.step,
            "phase": record.phase,
            "duration_ns": record.duration_ns,
            "detail": msgspec.json.encode(record.detail).decode(),
        }
        for record in records
    ]
    return _frame(Events, rows)


def trace_frame(traces: Iterable[Trace], *, attempt: int) -> pl.DataFrame:
    """Return the table `Traces` of one rank."""
    rows = [
        {
            "attempt": attempt,
            "rank": trace.info.rank,
            "path": str(trace.path),
            "first_step": trace.info.first_step,
            "num_steps": trace.info.num_steps,
            "start_ns": trace.info.start_ns,
            "end_ns": trace.info.end_ns,
            "reason": trace.info.reason,
            "trace_bytes": trace.path.stat().st_size,
        }
        for trace in traces
    ]
    return _frame(Traces, rows)


def _frame(table: type[Table], rows: Sequence[dict[str, Any]]) -> pl.DataFrame:
    return table.check(pl.DataFrame(rows, schema=table.schema(), orient="row"))


def _rank_row(info: RankInfo) -> dict[str, Any]:
    device, flops = info.device, info.flops
    return {
        "attempt": info.attempt,
        "rank": info.rank,
        "world_size": info.world_size,
        "local_rank": info.local_rank,
        "host": info.host,
        "pid": info.pid,
        "device_kind": device and device.kind,
        "device_name": device and device.name,
        "device_uuid": device and device.uuid,
        "device_memory_bytes": device and device.memory_bytes,
        "peak_flop_per_s": flops and flops.peak_flop_per_s,
        "peak_dtype": flops and flops.peak_dtype,
        "peak_source": flops and flops.peak_source,
        "flop_convention": flops and flops.convention,
        "mfu_absent_reason": _why_no_mfu(info),
        "collectives_route": info.collectives_route,
        "started_ns": info.started_ns,
        "ended_ns": info.ended_ns,
        "exit_reason": info.exit_reason,
    }


def _why_no_mfu(info: RankInfo) -> str | None:
    if info.flops is None:
        return info.absent.get("flops")
    reasons = info.flops.absent
    return reasons.get("mfu") or reasons.get("peak_flop_per_s")


def _number_of(line: StepLine) -> int:
    return line.step if isinstance(line, StepRecord) else line.first_step


def _step_row(line: StepLine, attempt: int, rank: int) -> dict[str, Any]:
    row: dict[str, Any] = {f"{phase}_ns": line.phases.get(phase, 0) for phase in PHASES}
    own = {name: length for name, length in line.phases.items() if name not in _PHASES}
    row |= {
        "attempt": attempt,
        "rank": rank,
        "start_ns": line.start_ns,
        "end_ns": line.end_ns,
        "custom_ns": sum(own.values()),
        "custom_phases": [{"phase": name, "host_ns": length} for name, length in own.items()] or None,
        "communication_wait_ns": line.communication_wait_ns,
        "gc_ns": line.gc_ns,
        "tokens": line.tokens,
        "input_bytes": line.input_bytes,
        "model_flop": line.model_flop,
        "hardware_flop": line.hardware_flop,
    }
    return row | (_single_columns(line) if isinstance(line, StepRecord) else _folded_columns(line))


def _single_columns(line: StepRecord) -> dict[str, Any]:
    memory = line.memory
    peak = memory and memory.peak
    return {
        "step": line.step,
        "num_steps": 1,
        "duration_ns": line.end_ns - line.start_ns,
        "device_ns": None if line.device_ns is None else sum(line.device_ns.values()),
        "communication_wait_coverage_ratio": line.communication_wait_coverage_ratio,
        "allocated_peak_bytes": peak and peak.allocated_bytes,
        "reserved_peak_bytes": peak and peak.reserved_bytes,
        "resident_peak_bytes": peak and peak.resident_bytes,
        "fragmentation_ratio": memory and memory.fragmentation_ratio,
        "num_alloc_retries": memory and memory.num_alloc_retries,
        "other_memory_bytes": memory and memory.other_bytes,
        "free_memory_bytes": memory and memory.free_bytes,
        "samples": line.samples,
        "num_microbatches": line.num_microbatches,
        "recorder_ns": line.recorder_ns,
        "num_dropped": line.num_dropped,
        "disturbed": line.disturbed,
    }


def _folded_columns(line: StepSummary) -> dict[str, Any]:
    peak = line.peak
    return {
        "step": line.first_step,
        "num_steps": line.num_steps,
        "duration_ns": line.duration_ns,
        "allocated_peak_bytes": peak and peak.allocated_bytes,
        "reserved_peak_bytes": peak and peak.reserved_bytes,
        "resident_peak_bytes": peak and peak.resident_bytes,
        "recorder_ns": 0,
        "num_dropped": 0,
    }


def _total_row(total: CollectiveTotal, group: GroupInfo | None) -> dict[str, Any]:
    return _group_columns(group, total.group) | {
        "operation": total.operation,
        "variant": total.variant,
        "control": total.control,
        "num_calls": total.num_calls,
        "in_bytes": total.in_bytes,
        "out_bytes": total.out_bytes,
        "num_timed": total.num_timed,
        "duration_ns": total.duration_ns,
        "blocked_ns": total.blocked_ns,
    }


def _group_columns(group: GroupInfo | None, number: int) -> dict[str, Any]:
    """Return the columns of a group; one that `rank.json` does not know yet keeps its number for a name."""
    if group is None:
        return {"group": f"#{number}", "group_ranks": None, "mesh_axis": None}
    return {"group": group.name, "group_ranks": list(group.ranks), "mesh_axis": group.mesh_axis}
