"""Records of a rank become rows and frames; one function a frame."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec
import polars as pl

from scope.frames.schema import GROUP_NUMBER, CollectiveTotals, NumberedTotals, PhaseMemory, Ranks, Traces
from scope.run.schema import PHASES, StepRecord

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from scope.run.calls import CallRecord
    from scope.run.reader import Trace
    from scope.run.schema import CollectiveTotal, EventRecord, RankInfo, StepLine, StepSummary
    from scope.trace.columns import Table

_PHASES: Final = frozenset(PHASES)


def rank_frame(infos: Iterable[RankInfo]) -> pl.DataFrame:
    """Return the table `Ranks`."""
    return _frame(Ranks, [_rank_row(info) for info in infos]).sort(Ranks.attempt, Ranks.rank)


def step_rows(lines: Iterable[StepLine], *, attempt: int, rank: int) -> list[dict[str, Any]]:
    """Return the rows of the table `RankSteps` of one rank, in the order given."""
    return [_step_row(line, attempt, rank) for line in lines]


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


def total_rows(lines: Iterable[StepLine], *, attempt: int, rank: int) -> list[dict[str, Any]]:
    """Return the rows of the table `NumberedTotals` of one rank."""
    return [
        _total_row(total) | {"attempt": attempt, "rank": rank, "step": _number_of(line)}
        for line in lines
        for total in line.collectives
    ]


def name_groups(numbered: pl.DataFrame, infos: Iterable[RankInfo], *, table: type[Table]) -> pl.DataFrame:
    """Return the rows of a table with the numbers of groups replaced by what `rank.json` says of them.

    Args:
        numbered: Table `NumberedTotals` or `NumberedCalls`.
        infos: The files that name the groups; one that none knows yet keeps its number for a name.
        table: What to return: `CollectiveTotals` or `Calls`.
    """
    named = {
        (info.attempt, info.rank, group.group): (group.name, list(group.ranks), group.mesh_axis)
        for info in infos
        for group in info.groups
    }
    keys = (Ranks.attempt, Ranks.rank, GROUP_NUMBER)
    names = (CollectiveTotals.group, CollectiveTotals.group_ranks, CollectiveTotals.mesh_axis)
    schema = {str(column): column.dtype for column in (*keys, *names)}
    groups = pl.DataFrame([(*key, *said) for key, said in named.items()], schema=schema, orient="row")
    number = pl.format("#{}", GROUP_NUMBER).cast(pl.Categorical)
    joined = numbered.join(groups, on=keys, how="left", maintain_order="left")
    return table.check(joined.with_columns(pl.col(CollectiveTotals.group).fill_null(number)).select(*table.columns()))


def sum_totals(totals: pl.DataFrame) -> pl.DataFrame:
    """Return the table `NumberedTotals` with the steps of each rank added up; `step` is the first of them."""
    keys = (
        CollectiveTotals.attempt,
        CollectiveTotals.rank,
        GROUP_NUMBER,
        CollectiveTotals.operation,
        CollectiveTotals.variant,
        CollectiveTotals.control,
    )
    counts = (
        CollectiveTotals.num_calls,
        CollectiveTotals.in_bytes,
        CollectiveTotals.out_bytes,
        CollectiveTotals.num_timed,
    )
    lengths = (CollectiveTotals.duration_ns, CollectiveTotals.blocked_ns)
    summed = totals.group_by(keys, maintain_order=True).agg(
        pl.col(CollectiveTotals.step).min(),
        pl.col(counts).sum(),
        # A sum over nulls alone is 0 in polars; here it is unknown.
        *(pl.when(pl.col(each).is_not_null().any()).then(pl.col(each).sum()).alias(each) for each in lengths),
    )
    return NumberedTotals.check(summed.select(*NumberedTotals.columns()))


def call_rows(records: Iterable[CallRecord], *, attempt: int, rank: int) -> list[dict[str, Any]]:
    """Return the rows of the table `NumberedCalls` of one rank, from the records of closed segments."""
    return [
        {
            "attempt": attempt,
            "rank": rank,
            "step": record.step,
            "group_number": record.group,
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


def event_rows(records: Iterable[EventRecord], *, attempt: int, rank: int) -> list[dict[str, Any]]:
    """Return the rows of the table `Events` of one rank."""
    return [
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
        "uncounted_flop_reason": flops and flops.absent.get("uncounted_flop"),
        "collectives_route": info.collectives_route,
        "started_ns": info.started_ns,
        "ended_ns": info.ended_ns,
        "exit_reason": info.exit_reason,
        "command_returncode": info.command_returncode,
    }


def _why_no_mfu(info: RankInfo) -> str | None:
    if info.flops is None:
        return info.absent.get("flops")
    reasons = info.flops.absent
    return reasons.get("mfu") or reasons.get("peak_flop_per_s") or reasons.get("model_flop")


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
        # As it is, for speed: the frame takes the phases that it knows, and null for those that are not there.
        "communication_wait_by_phase": line.communication_wait_phases,
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
        "recorder_ns": line.recorder_ns,
        "num_dropped": line.num_dropped,
    }


def _total_row(total: CollectiveTotal) -> dict[str, Any]:
    return {
        "group_number": total.group,
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
