"""The frames that a run directory is read into, declared once; see `scope.run.schema` for the records behind them.

Every instant is integer nanoseconds since the epoch, every span half-open. A null means unknown, never 0. All frames
are sorted by attempt, rank and then time (steps by number).
"""

from __future__ import annotations

from typing import Final

import polars as pl

from scope.run.schema import DTYPES, OPERATIONS, PHASES, VARIANTS
from scope.trace.columns import Column, Table

_NAME: Final = pl.Categorical()
_RANKS: Final = pl.List(pl.Int32)


class Ranks(Table):
    """One process of one attempt a row."""

    attempt = Column("attempt", pl.Int32, "restart count")
    rank = Column("rank", pl.Int32, "global rank")
    world_size = Column("world_size", pl.Int32, "ranks of the attempt", nullable=True)
    local_rank = Column("local_rank", pl.Int32, "rank within the host", nullable=True)
    host = Column("host", pl.String, "name of the host")
    pid = Column("pid", pl.Int64, "process id")
    device_kind = Column("device_kind", pl.String, "cuda or cpu", nullable=True)
    device_name = Column("device_name", pl.String, "as the driver says", nullable=True)
    device_uuid = Column("device_uuid", pl.String, "UUID of the device", nullable=True)
    device_memory_bytes = Column("device_memory_bytes", pl.Int64, "memory of the device", nullable=True)
    peak_flop_per_s = Column("peak_flop_per_s", pl.Float64, "dense peak that MFU is counted against", nullable=True)
    peak_dtype = Column("peak_dtype", pl.String, "type of the matrix products of that peak", nullable=True)
    peak_source = Column("peak_source", pl.String, "where the peak is from", nullable=True)
    flop_convention = Column("flop_convention", pl.String, "full or causal_halved attention", nullable=True)
    mfu_absent_reason = Column("mfu_absent_reason", pl.String, "why there is no MFU", nullable=True)
    uncounted_flop_reason = Column("uncounted_flop_reason", pl.String, "whose FLOPs are in no figure", nullable=True)
    collectives_route = Column("collectives_route", pl.String, "what sees collectives", nullable=True)
    started_ns = Column("started_ns", pl.Int64, "when recording began")
    ended_ns = Column("ended_ns", pl.Int64, "when recording was closed; null while it runs or if killed", nullable=True)
    exit_reason = Column("exit_reason", pl.String, "finished, exception, interrupted, or in more words", nullable=True)
    command_returncode = Column(
        "command_returncode",
        pl.Int64,
        "exit code of its host's command, or minus its signal",
        nullable=True,
    )


class RankSteps(Table):
    """One step of one rank a row; a summary of folded steps is one row with `num_steps` above 1."""

    attempt = Column("attempt", pl.Int32, "restart count")
    rank = Column("rank", pl.Int32, "global rank")
    step = Column("step", pl.Int64, "number of the step, the first one of a summary")
    num_steps = Column("num_steps", pl.Int64, "1, or the number of folded steps")
    start_ns = Column("start_ns", pl.Int64, "first instant")
    end_ns = Column("end_ns", pl.Int64, "first instant after it")
    duration_ns = Column("duration_ns", pl.Int64, "length, added over the folded steps")
    startup_ns = Column("startup_ns", pl.Int64, "exclusive host time in the phase")
    init_ns = Column("init_ns", pl.Int64, "exclusive host time in the phase")
    input_ns = Column("input_ns", pl.Int64, "exclusive host time in the phase")
    host_to_device_ns = Column("host_to_device_ns", pl.Int64, "exclusive host time in the phase")
    forward_ns = Column("forward_ns", pl.Int64, "exclusive host time in the phase")
    backward_ns = Column("backward_ns", pl.Int64, "exclusive host time in the phase")
    optimizer_ns = Column("optimizer_ns", pl.Int64, "exclusive host time in the phase")
    evaluation_ns = Column("evaluation_ns", pl.Int64, "exclusive host time in the phase")
    checkpoint_ns = Column("checkpoint_ns", pl.Int64, "exclusive host time in the phase")
    other_ns = Column("other_ns", pl.Int64, "exclusive host time in none of the phases")
    custom_ns = Column("custom_ns", pl.Int64, "exclusive host time in the user's own phases, added")
    custom_phases = Column(
        "custom_phases",
        pl.List(pl.Struct({"phase": pl.String, "host_ns": pl.Int64})),
        "the user's own phases one by one",
        nullable=True,
    )
    device_ns = Column("device_ns", pl.Int64, "GPU time of all phases, an overlay", nullable=True)
    communication_wait_ns = Column("communication_wait_ns", pl.Int64, "host blocked in communication", nullable=True)
    communication_wait_coverage_ratio = Column(
        "communication_wait_coverage_ratio", pl.Float64, "calls whose wait site was seen / calls", nullable=True
    )
    communication_wait_by_phase = Column(
        "communication_wait_by_phase",
        pl.Struct(dict.fromkeys((*PHASES, "custom"), pl.Int64)),
        "that wait by the phase it was in, as far as that is known",
        nullable=True,
    )
    gc_ns = Column("gc_ns", pl.Int64, "garbage collection pauses, an overlay")
    allocated_peak_bytes = Column("allocated_peak_bytes", pl.Int64, "peak of live tensors", nullable=True)
    reserved_peak_bytes = Column("reserved_peak_bytes", pl.Int64, "peak of the allocator", nullable=True)
    resident_peak_bytes = Column("resident_peak_bytes", pl.Int64, "peak resident set of the process", nullable=True)
    fragmentation_ratio = Column("fragmentation_ratio", pl.Float64, "inactive split / reserved bytes", nullable=True)
    num_alloc_retries = Column("num_alloc_retries", pl.Int64, "cache flushes of the allocator", nullable=True)
    other_memory_bytes = Column("other_memory_bytes", pl.Int64, "device memory that is not torch's", nullable=True)
    free_memory_bytes = Column("free_memory_bytes", pl.Int64, "free memory of the device", nullable=True)
    tokens = Column("tokens", pl.Int64, "tokens that the rank trained on", nullable=True)
    samples = Column("samples", pl.Int64, "samples that the rank trained on", nullable=True)
    input_bytes = Column("input_bytes", pl.Int64, "bytes of the batches", nullable=True)
    num_microbatches = Column("num_microbatches", pl.Int64, "passes that the update is made of", nullable=True)
    model_flop = Column("model_flop", pl.Float64, "FLOPs without recompute", nullable=True)
    hardware_flop = Column("hardware_flop", pl.Float64, "FLOPs with recompute", nullable=True)
    recorder_ns = Column("recorder_ns", pl.Int64, "what recording took on the training thread")
    num_dropped = Column("num_dropped", pl.Int64, "records that were dropped")
    disturbed = Column("disturbed", pl.String, "why the step is not like others", nullable=True)


class PhaseMemory(Table):
    """Largest memory of one rank in each phase, sorted by name of the phase."""

    phase = Column("phase", pl.String, "phase, the user's own among them")
    num_steps = Column("num_steps", pl.Int64, "steps that know it")
    allocated_peak_bytes = Column("allocated_peak_bytes", pl.Int64, "peak of live tensors", nullable=True)
    reserved_peak_bytes = Column("reserved_peak_bytes", pl.Int64, "peak of the allocator", nullable=True)
    resident_peak_bytes = Column("resident_peak_bytes", pl.Int64, "peak resident set of the process", nullable=True)


class CollectiveTotals(Table):
    """All calls of one operation on one group in one step of one rank a row; complete even where calls are sampled."""

    attempt = Column("attempt", pl.Int32, "restart count")
    rank = Column("rank", pl.Int32, "global rank")
    step = Column("step", pl.Int64, "number of the step, the first one of a summary")
    group = Column("group", _NAME, "name of the process group")
    group_ranks = Column("group_ranks", _RANKS, "global ranks", nullable=True)
    mesh_axis = Column("mesh_axis", _NAME, "axis of the device mesh", nullable=True)
    operation = Column("operation", pl.Enum(OPERATIONS), "one name whatever the library")
    variant = Column("variant", pl.Enum(VARIANTS), "how it was called")
    control = Column("control", pl.Boolean, "control traffic of object collectives")
    num_calls = Column("num_calls", pl.Int64, "calls issued")
    in_bytes = Column("in_bytes", pl.Int64, "bytes that the rank gave")
    out_bytes = Column("out_bytes", pl.Int64, "bytes that the rank got")
    num_timed = Column("num_timed", pl.Int64, "calls whose completion was seen")
    duration_ns = Column("duration_ns", pl.Int64, "issued to completed, added over these", nullable=True)
    blocked_ns = Column("blocked_ns", pl.Int64, "host time blocked in them", nullable=True)


class Calls(Table):
    """One recorded collective call of one rank a row; which steps are recorded in full depends on the byte budget."""

    attempt = Column("attempt", pl.Int32, "restart count")
    rank = Column("rank", pl.Int32, "global rank")
    step = Column("step", pl.Int64, "number of the step", nullable=True)
    group = Column("group", _NAME, "name of the process group")
    group_ranks = Column("group_ranks", _RANKS, "global ranks", nullable=True)
    mesh_axis = Column("mesh_axis", _NAME, "axis of the device mesh", nullable=True)
    sequence = Column("sequence", pl.Int64, "number of the call within the group, from 1")
    operation = Column("operation", pl.Enum(OPERATIONS), "one name whatever the library")
    variant = Column("variant", pl.Enum(VARIANTS), "how it was called")
    control = Column("control", pl.Boolean, "control traffic of object collectives")
    peer = Column("peer", pl.Int32, "root, source or destination, in the group's numbering", nullable=True)
    in_bytes = Column("in_bytes", pl.Int64, "bytes that the rank gave")
    out_bytes = Column("out_bytes", pl.Int64, "bytes that the rank got")
    dtype = Column("dtype", pl.Enum(DTYPES), "element type")
    asynchronous = Column("asynchronous", pl.Boolean, "called with async_op")
    issued_ns = Column("issued_ns", pl.Int64, "when it was called")
    arrived_ns = Column("arrived_ns", pl.Int64, "when the caller's stream reached it", nullable=True)
    completed_ns = Column("completed_ns", pl.Int64, "when it was done", nullable=True)
    blocked_ns = Column("blocked_ns", pl.Int64, "host time blocked in it", nullable=True)


class Events(Table):
    """What is rare: captures, checkpoints, exceptions, warnings."""

    attempt = Column("attempt", pl.Int32, "restart count")
    rank = Column("rank", pl.Int32, "global rank")
    time_ns = Column("time_ns", pl.Int64, "when it happened or began")
    kind = Column("kind", pl.String, "kind of the record")
    message = Column("message", pl.String, "one sentence")
    step = Column("step", pl.Int64, "step in which it happened", nullable=True)
    phase = Column("phase", pl.String, "phase in which it happened", nullable=True)
    duration_ns = Column("duration_ns", pl.Int64, "its length", nullable=True)
    detail = Column("detail", pl.String, "figures by name, as a JSON object")


class Traces(Table):
    """Captured profiler windows."""

    attempt = Column("attempt", pl.Int32, "restart count")
    rank = Column("rank", pl.Int32, "global rank")
    path = Column("path", pl.String, "the trace, ready for `scope analyze`")
    first_step = Column("first_step", pl.Int64, "first step of the window", nullable=True)
    num_steps = Column("num_steps", pl.Int64, "steps in the window", nullable=True)
    start_ns = Column("start_ns", pl.Int64, "when the profiler started", nullable=True)
    end_ns = Column("end_ns", pl.Int64, "when it stopped", nullable=True)
    reason = Column("reason", pl.String, "schedule, trigger_file, signal, anomaly or user", nullable=True)
    trace_bytes = Column("trace_bytes", pl.Int64, "size of the file")


PHASE_COLUMNS: Final = tuple(
    column for column in RankSteps.columns() if column.removesuffix("_ns") in (*PHASES, "custom")
)
"""The phases of a step; they sum to `duration_ns` exactly."""

GROUP_NUMBER: Final = Column("group_number", pl.Int64, "number of the group within the rank")


def _numbered(named: type[Table]) -> type[Table]:
    """Return what the table `named` is made of: the rank's own number of a group stands for its name and ranks."""
    names = (CollectiveTotals.group_ranks, CollectiveTotals.mesh_axis)
    kept = [column for column in named.columns() if column not in names]
    columns = [GROUP_NUMBER if column == CollectiveTotals.group else column for column in kept]
    return type(f"Numbered{named.__name__}", (Table,), {str(column): column for column in columns})


NumberedTotals: Final = _numbered(CollectiveTotals)
NumberedCalls: Final = _numbered(Calls)
