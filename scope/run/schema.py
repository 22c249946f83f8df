"""Every record of a run directory, declared once; the binary files are declared in `scope.run.layout`.

```
RUN/run.json                               RunInfo
RUN/verdicts.jsonl                         Verdict, one a line
RUN/attempt-000/ranks/00042/rank.json      RankInfo (rewritten whole when something becomes known)
RUN/attempt-000/ranks/00042/steps.jsonl    StepRecord, one a line; old ones folded into StepSummary lines
RUN/attempt-000/ranks/00042/events.jsonl   EventRecord, one a line
RUN/attempt-000/ranks/00042/blackbox.bin   scope.run.layout: header page and ring
RUN/attempt-000/ranks/00042/calls/*.bin    scope.run.layout: call records in closed segments
RUN/attempt-000/ranks/00042/traces/        profiler windows (`*.json`) and beside each `*.capture.json` (CaptureInfo)
```

Rules that hold for all of them:

- Instants are integer nanoseconds since the epoch (`..._ns` without a word of length): the monotonic clock of the rank
  plus the offset of its first clock anchor, so they never run backwards within a rank. Lengths are integer
  nanoseconds, sizes integer bytes. Spans are half-open.
- Unknown is absent (`None`, and left out of the JSON), never 0; `absent` maps the name of a field to the reason.
- Every number has a range (`Count`, `Length`, `Instant`, ...): a record with one outside it is no record. Figures of
  files that anybody may have written so fit 64-bit columns, and none of them asks for memory or time beyond reason.
- A reader accepts a newer minor version, skips the fields that it does not know, and says so; another major version is
  an error.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec

SCHEMA_MAJOR: Final = 1
SCHEMA_MINOR: Final = 0
SCHEMA_VERSION: Final = f"{SCHEMA_MAJOR}.{SCHEMA_MINOR}"

PHASES: Final = (
    "startup",
    "init",
    "input",
    "host_to_device",
    "forward",
    "backward",
    "optimizer",
    "evaluation",
    "checkpoint",
    "other",
)
"""The built-in phases; whatever else stands in `StepRecord.phases` is the user's own.

Beside what stands between `eval()` and `train()`, `evaluation` is every call of an outermost model that no gradients
flow through: a validation, a rollout, the answer of a teacher, of a reference model or of a frozen encoder. Nothing
that stands in it is part of a step's FLOPs.
"""

OPERATIONS: Final = (
    "unknown",
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "send",
    "recv",
    "barrier",
)
"""One name an operation, whatever the API or backend. The place in the tuple is the code in binary records."""

VARIANTS: Final = ("plain", "coalesced", "uneven", "object", "functional")
"""How an operation was called; the place in the tuple is the code in binary records: append only."""

DTYPES: Final = (
    "unknown",
    "float32",
    "float16",
    "bfloat16",
    "float64",
    "int8",
    "uint8",
    "int16",
    "int32",
    "int64",
    "bool",
    "float8_e4m3fn",
    "float8_e5m2",
    "complex64",
    "complex128",
    "mixed",
)
"""Element types by torch's names; the place in the tuple is the code in binary records: append only."""

EventKind = Literal[
    "attempt_start",
    "attempt_end",
    "capture",
    "checkpoint",
    "checkpoint_failed",
    "coverage",
    "exception",
    "flops",
    "gc",
    "hook_disabled",
    "out_of_memory",
    "stack_dump",
    "warning",
]

MOST_RANKS: Final = 2**20
"""Ranks of a run are numbered below this; no job comes near, and a file that says otherwise is foreign."""
_LARGEST: Final = 2**63 - 1

Instant = Annotated[int, msgspec.Meta(ge=0, le=_LARGEST)]
"""Nanoseconds since the epoch."""
Length = Annotated[int, msgspec.Meta(ge=0, le=2**58)]
"""Nanoseconds, nine years at most, so that some of them add up in 64 bits."""
Correction = Annotated[int, msgspec.Meta(ge=-(2**58), le=2**58)]
"""Nanoseconds that may be taken back."""
Count = Annotated[int, msgspec.Meta(ge=0, le=2**60)]
"""How many, or bytes: an exbibyte at most."""
RankNumber = Annotated[int, msgspec.Meta(ge=0, lt=MOST_RANKS)]
"""A rank, or its place within its host or group."""
NumRanks = Annotated[int, msgspec.Meta(ge=0, le=MOST_RANKS)]
"""A number of ranks."""
Attempt = Annotated[int, msgspec.Meta(ge=0, lt=10**9)]
"""A restart count."""
Number = Annotated[int, msgspec.Meta(ge=-(2**31), lt=2**31)]
"""A number of something (a group, a device, a NUMA node); -1 stands for none in some of the system's own files."""
ReturnCode = Annotated[int, msgspec.Meta(ge=-128, le=2**32)]
"""How a process ended, as `subprocess.Popen.returncode` has it."""
Flop = Annotated[float, msgspec.Meta(ge=0, le=1e30)]
"""FLOPs, or FLOPs per second or token."""
Ratio = Annotated[float, msgspec.Meta(ge=0, le=1e9)]
"""A share; above 1 where what it is counted against was said too small."""
MOST_UTILIZATION: Final = 16.0
"""MFU and HFU beyond this are no figures: a peak that was measured on a busy machine is too small by a few times."""
Evidence = Annotated[int, msgspec.Meta(ge=-(2**63), le=_LARGEST)]
"""A whole number of `Detail`."""


class _Record(msgspec.Struct, kw_only=True, omit_defaults=True, frozen=True):
    """Base of all records: fields by name, defaults left out of the JSON, unknown fields skipped."""


class RunInfo(_Record, frozen=True):
    """`run.json`: the run as a whole, written by whoever starts it first and never changed by ranks.

    Attributes:
        schema: `MAJOR.MINOR` of this module when the file was written.
        run_id: `--run-id`, else `TORCHELASTIC_RUN_ID`, `SLURM_JOB_ID`, else host and time.
        run_id_source: Which of them it was: `option`, `torchelastic`, `slurm` or `host`.
        world_size: Number of ranks; absent in the file of a recorded run, as the next three: `RunReader.info` takes
            them from the first rank of the last attempt.
        started_ns: When the first attempt began.
        versions: Name to version: `scope`, `python`, `torch`.
        model: What is known of the model.
        parallel: Size of each axis by its name (`dp_replicate`, `dp_shard`, `cp`, `ep`, `tp`, `pp`).
        tags: The user's own labels.
        run_dir: The run directory, as the node that wrote the file names it; tells runs with the same id apart.
        synthetic: Made by `scope.testing`, not recorded.
        unrecorded: Why there is no rank, where a command under `scope run` has ended without one; of a run that has
            ranks it says nothing.
    """

    schema: str
    run_id: str
    started_ns: Instant
    run_id_source: str | None = None
    world_size: NumRanks | None = None
    versions: dict[str, str] = {}
    model: ModelInfo | None = None
    parallel: dict[str, NumRanks] = {}
    tags: dict[str, str] = {}
    run_dir: str | None = None
    synthetic: bool = False
    unrecorded: str | None = None


class ModelInfo(_Record, frozen=True):
    """What is known of the model.

    Attributes:
        name: Class name of the outermost module.
        num_parameters: Parameters of the whole model, shards added up.
        num_active_parameters: Parameters that one token meets; less than all in a mixture of experts.
        num_layers: Transformer blocks.
        dtype: Type of most parameters.
    """

    name: str | None = None
    num_parameters: Count | None = None
    num_active_parameters: Count | None = None
    num_layers: Count | None = None
    dtype: str | None = None


class DeviceInfo(_Record, frozen=True):
    """The device that a rank computes on.

    Attributes:
        kind: `cuda` or `cpu`.
        name: As the driver or /proc/cpuinfo says.
        index: CUDA ordinal inside the process.
        uuid: `GPU-...` or `MIG-...`.
        pci_bus_id: `0000:1b:00.0`.
        memory_bytes: Memory of the device.
        numa_node: Node of the host's memory nearest to it.
        num_multiprocessors: SMs that the process sees.
    """

    kind: Literal["cuda", "cpu"]
    name: str | None = None
    index: Number | None = None
    uuid: str | None = None
    pci_bus_id: str | None = None
    memory_bytes: Count | None = None
    numa_node: Number | None = None
    num_multiprocessors: Count | None = None


class NicInfo(_Record, frozen=True):
    """One network interface of the rank's host, from /sys/class/net and /sys/class/infiniband.

    Attributes:
        name: `eth0` or `mlx5_0`.
        kind: `ethernet`, `infiniband` or `virtual`.
        up: Whether it carries traffic.
        rate_bits_per_s: Rate of the port.
        numa_node: Where it is attached.
        pci_bus_id: `0000:1b:00.0`.
    """

    name: str
    kind: str
    up: bool | None = None
    rate_bits_per_s: Count | None = None
    numa_node: Number | None = None
    pci_bus_id: str | None = None


class GroupInfo(_Record, frozen=True):
    """A process group that this rank belongs to.

    Attributes:
        group: Number of the group within this rank, in order of appearance; binary records hold it.
        name: The name that torch gave it. Equal on all ranks; with `ranks` the key of the group across ranks.
        ranks: Global ranks, in the order of the group's own ranks.
        backend: `nccl`, `gloo`, ...
        mesh_axis: Axis of the device mesh that it spans, such as `tp`, or `dp_shard+cp` for a flattened one.
        description: What torch was told the group is for.
        destroyed_ns: When it was destroyed.
    """

    group: Number
    name: str
    ranks: tuple[RankNumber, ...]
    backend: str | None = None
    mesh_axis: str | None = None
    description: str | None = None
    destroyed_ns: Instant | None = None


class ClockAnchor(_Record, frozen=True):
    """The wall clock and the monotonic clock read together.

    Attributes:
        wall_ns: The wall clock (CLOCK_REALTIME).
        monotonic_ns: The monotonic clock (CLOCK_MONOTONIC), halfway between a reading before and one after.
        error_ns: Half the distance of these two readings.
    """

    wall_ns: Instant
    monotonic_ns: Instant
    error_ns: Length


class StepInputs(_Record, frozen=True):
    """What the forwards of a step got, by the shapes of their tensors.

    Attributes:
        pattern: Modules and shapes, with B for the first dimension (rows) and L for the second (a length); of forwards
            of several patterns, the share of each with its lengths.
        num_forwards: Calls of outermost modules.
        rows: Sum of B, those of its first tensor, over the forwards; of several patterns their common divisor.
        positions: Sum of B x L; 0 of several patterns.
        position_pairs: Sum of B x L x L; 0 of several patterns.
    """

    pattern: str
    num_forwards: Count
    rows: Count
    positions: Count = 0
    position_pairs: Count = 0


class CountedStep(_Record, frozen=True):
    """A step whose FLOPs were counted, and what tells by how much others differ from it.

    Attributes:
        step: Its number.
        model_flop: FLOPs of this rank's share of the model, recompute excluded.
        hardware_flop: The same with recompute.
        num_optimizer_steps: As in its `StepRecord`, and so are the following.
        num_microbatches: Backward passes.
        tokens: Absent where they are not known.
        samples: Absent where they are not known.
        inputs: What its forwards got; absent where they got no tensor.
    """

    step: Count
    model_flop: Flop
    hardware_flop: Flop
    num_optimizer_steps: Count | None = None
    num_microbatches: Count | None = None
    tokens: Count | None = None
    samples: Count | None = None
    inputs: StepInputs | None = None


class FlopsInfo(_Record, frozen=True):
    """What MFU and HFU of this rank are counted with.

    Attributes:
        source: `counter` (real steps under the FLOP counter), `formula` (closed formula) or `user`.
        convention: `full` (attention counted whole) or `causal_halved`.
        model_flop_per_token: FLOPs that training one token needs, recompute excluded, for the share of this rank.
        hardware_flop_per_token: The same with recompute.
        model_flop_per_step: Set instead where no tokens are known: FLOPs of the counted step, the first where several
            kinds of steps were counted.
        hardware_flop_per_step: The same with recompute.
        num_parameters: N of the formula: active parameters that take part in matrix products.
        peak_flop_per_s: Dense peak of the device in `peak_dtype`.
        peak_dtype: The type of the matrix products.
        peak_source: Where the peak is from: a data sheet, `measured matrix product`, or `user`.
        counter_coverage_ratio: Operators with a formula / those with one and those that need one: of packages, and of
            torch where their name says that they hold a product.
        formula_difference_ratio: (counter - formula) / formula, where both exist.
        step: The step that was counted first.
        counted: All that were counted, one of each kind of step.
        absent: Name of a figure to the reason why it is absent (`mfu`, `peak_flop_per_s`, ...; `model_flop` where it is
            of some steps only, `uncounted_flop` where operators that it names have no formula).
    """

    source: Literal["counter", "formula", "user"] | None = None
    convention: Literal["full", "causal_halved"] | None = None
    model_flop_per_token: Flop | None = None
    hardware_flop_per_token: Flop | None = None
    model_flop_per_step: Flop | None = None
    hardware_flop_per_step: Flop | None = None
    num_parameters: Count | None = None
    peak_flop_per_s: Flop | None = None
    peak_dtype: str | None = None
    peak_source: str | None = None
    counter_coverage_ratio: Ratio | None = None
    formula_difference_ratio: float | None = None
    step: Count | None = None
    counted: tuple[CountedStep, ...] = ()
    absent: dict[str, str] = {}


class RankInfo(_Record, frozen=True):
    """`rank.json`: one process of one attempt. Rewritten whole (new file, then renamed) when something becomes known.

    Attributes:
        schema: `MAJOR.MINOR` of this module when the file was written.
        run_id: The run that it belongs to.
        attempt: Restart count of the elastic launcher, 0 without.
        rank: Global rank; 0 in a run of one process.
        started_ns: When recording began.
        host: Name of the host.
        pid: Process id, in the process's own pid namespace.
        process_start_ticks: Field 22 of /proc/PID/stat; with `pid` it tells a reused id apart.
        boot_id: /proc/sys/kernel/random/boot_id; with the former it tells one host's process from another's.
        pid_namespace: Number of the namespace that `pid` counts in, of /proc/self/ns/pid.
        world_size: Number of ranks of the attempt.
        local_rank: Rank within the host.
        device: What the rank computes on.
        nics: Interfaces of the host.
        groups: Process groups of this rank.
        environment: Allow-listed variables only (NCCL_*, TORCH_*, CUDA_*, GLOO_*, OMP_* without secrets).
        anchors: Clock readings; the first one gives the offset of every instant of this rank.
        versions: Name to version (`python`, `torch`, `nccl`, `cuda`, `driver`).
        model: The outermost module that this rank trains; in a pipeline that is its own stages.
        flops: How MFU is counted.
        collectives_route: What sees collectives: `hooks`, `dispatcher`, `methods`, or absent when nothing does.
        spool: Folder that the process writes to, on its own host.
        script: Name of the program, without arguments.
        ended_ns: When recording was closed; absent while the process lives or when it was killed.
        exit_reason: `finished`, `exception`, `interrupted`, `exited with code N` for another exit code than 0, or
            `terminated by signal N` where `scope run` was asked to end the job and wrote it for a rank that could not.
        command_returncode: How the command ended that `scope run` had started on this host, once it has: its exit code,
            or the number of the signal that ended it, below 0. Absent where nobody saw that, and of earlier attempts.
        written_bytes: Name of each of its files of lines to its size when recording was closed.
        num_call_records: Records in `calls/*.bin` when recording was closed; absent where more were written than there
            is room for, so that the oldest were deleted.
        absent: Name of a field to the reason why it is absent.
    """

    schema: str
    run_id: str
    attempt: Attempt
    rank: RankNumber
    started_ns: Instant
    host: str
    pid: Count
    process_start_ticks: Count | None = None
    boot_id: str | None = None
    pid_namespace: Count | None = None
    world_size: NumRanks | None = None
    local_rank: RankNumber | None = None
    device: DeviceInfo | None = None
    nics: tuple[NicInfo, ...] = ()
    groups: tuple[GroupInfo, ...] = ()
    environment: dict[str, str] = {}
    anchors: tuple[ClockAnchor, ...] = ()
    versions: dict[str, str] = {}
    model: ModelInfo | None = None
    flops: FlopsInfo | None = None
    collectives_route: str | None = None
    spool: str | None = None
    script: str | None = None
    ended_ns: Instant | None = None
    exit_reason: str | None = None
    command_returncode: ReturnCode | None = None
    written_bytes: dict[str, Count] = {}
    num_call_records: Count | None = None
    absent: dict[str, str] = {}


class CollectiveTotal(_Record, frozen=True):
    """All calls of one operation on one group in one step; complete even where call records are sampled.

    Attributes:
        group: Number of the group in `RankInfo.groups`.
        operation: One of `OPERATIONS`.
        variant: One of `VARIANTS`.
        num_calls: Calls issued.
        in_bytes: Bytes that this rank gave, all calls added.
        out_bytes: Bytes that this rank got, all calls added.
        num_timed: Calls whose completion was seen.
        duration_ns: Issued to completed, added over these; calls may overlap. Absent if there are none.
        num_blocked_known: Calls whose wait site was seen.
        blocked_ns: Host time blocked in them; absent if there are none.
        control: Control traffic (sizes and payloads of object collectives, barriers of a checkpoint).
    """

    group: Number
    operation: str
    num_calls: Count
    in_bytes: Count
    out_bytes: Count
    variant: str = "plain"
    num_timed: Count = 0
    duration_ns: Length | None = None
    num_blocked_known: Count = 0
    blocked_ns: Length | None = None
    control: bool = False


class MemoryPeak(_Record, frozen=True):
    """Largest memory in a step or phase.

    Attributes:
        allocated_bytes: Peak of live tensors in torch's CUDA allocator.
        reserved_bytes: Peak that the allocator held.
        resident_bytes: Resident set of the process (CPU), the largest reading.
    """

    allocated_bytes: Count | None = None
    reserved_bytes: Count | None = None
    resident_bytes: Count | None = None


class MemoryRecord(_Record, frozen=True):
    """Memory of one step.

    Attributes:
        peak: Over the whole step.
        phases: By phase.
        fragmentation_ratio: Inactive split bytes / reserved bytes at the end of the step.
        num_alloc_retries: Times that the allocator had to flush its cache in this step.
        other_bytes: Used memory of the device that is not the allocator's (contexts, NCCL, other processes).
        free_bytes: Free memory of the device at the end of the step.
        sampled: The peak is the largest of readings, not a counter's: a short peak may be higher.
    """

    peak: MemoryPeak
    phases: dict[str, MemoryPeak] = {}
    fragmentation_ratio: Ratio | None = None
    num_alloc_retries: Count | None = None
    other_bytes: Count | None = None
    free_bytes: Count | None = None
    sampled: bool = False


class StepRecord(_Record, frozen=True, tag="step", tag_field="kind"):
    """One line of `steps.jsonl`: one optimizer update, `[start_ns, end_ns)`.

    Attributes:
        step: Number of the step, from 0 in each attempt unless the user says otherwise.
        start_ns: First instant of the step; the end of the one before, unless time lies between them.
        end_ns: First instant after it.
        phases: Exclusive host time by phase (innermost wins). They sum to `end_ns - start_ns` exactly.
        communication_wait_ns: Overlay: host time that the training thread was blocked at wait sites that were seen.
        communication_wait_coverage_ratio: Calls whose wait site was seen / calls; below 1 the wait is "at least". Calls
            that only threads beside training have made and wait for are left out.
        communication_wait_phases: That wait by the phase it was in, as far as that is known, `custom` for the user's
            own; absent where there is none. Waits of a device's stream are in no phase of the host.
        gc_ns: Overlay: garbage collection pauses.
        num_gc: Collections of the garbage collector.
        device_ns: Overlay: GPU time by phase from pooled events; absent without a GPU.
        collectives: Totals by group, operation and variant.
        memory: Peaks.
        tokens: Tokens that this rank trained on.
        samples: Samples that this rank trained on, those of the batches that its models got (`scope.record`'s
            step_batches.py says which these are).
        input_bytes: Bytes of the batches that this rank got from its loaders.
        num_microbatches: Forward and backward passes that the update is made of.
        num_optimizer_steps: Optimizer calls; several optimizers give several.
        num_skipped_optimizer_steps: Those that a GradScaler skipped.
        model_flop: FLOPs of this rank's share of the model, recompute excluded.
        hardware_flop: The same with recompute.
        mfu_ratio: model_flop / (length x peak of this rank's device), at most `MOST_UTILIZATION`.
        hfu_ratio: hardware_flop / (length x peak of this rank's device), likewise.
        recorder_ns: What recording itself took on the training thread: of calls and phases estimated from every 256th,
            of rare work (looking for models, measuring the peak) measured.
        num_dropped: Records that were dropped in this step (full disk, full queue, budget).
        calls_recorded: Whether `calls/*.bin` holds this step's calls.
        disturbed: Why the step is not like others: `flops_counted`, `capture`, `models_searched`, `updates_merged`
            (several updates, since an optimizer was waited for that is gone, or a batch by a loop that turned out to
            make several of each), `trained_in_evaluation` (passes came in
            an evaluation that no `train()` had ended: their time is in no phase of their own, or in the step before),
            `end_unknown` (the last one, of a loop without a loader or left by `break`: it ends with the last that was
            seen of training), or absent.
    """

    step: Count
    start_ns: Instant
    end_ns: Instant
    phases: dict[str, Length]
    communication_wait_ns: Length | None = None
    communication_wait_coverage_ratio: Ratio | None = None
    communication_wait_phases: dict[str, Length] | None = None
    gc_ns: Length = 0
    num_gc: Count = 0
    device_ns: dict[str, Length] | None = None
    collectives: tuple[CollectiveTotal, ...] = ()
    memory: MemoryRecord | None = None
    tokens: Count | None = None
    samples: Count | None = None
    input_bytes: Count | None = None
    num_microbatches: Count | None = None
    num_optimizer_steps: Count | None = None
    num_skipped_optimizer_steps: Count = 0
    model_flop: Flop | None = None
    hardware_flop: Flop | None = None
    mfu_ratio: Ratio | None = None
    hfu_ratio: Ratio | None = None
    recorder_ns: Correction = 0
    num_dropped: Count = 0
    calls_recorded: bool = False
    disturbed: str | None = None


class StepSummary(_Record, frozen=True, tag="summary", tag_field="kind"):
    """Old steps folded into one line when a rank's files outgrow their budget.

    Attributes:
        first_step: Number of the first step in it.
        last_step: Number of the last step in it, inclusive.
        num_steps: Steps in it.
        start_ns: Start of the first.
        end_ns: End of the last.
        duration_ns: Lengths of the steps added; `end_ns - start_ns` less the time between steps.
        min_duration_ns: Shortest step.
        max_duration_ns: Longest step.
        phases: Exclusive host time by phase, added; sums to `duration_ns` exactly.
        communication_wait_ns: Added over the steps that know it.
        communication_wait_phases: That wait by phase, added as far as it is known; absent where there is none, and in
            summaries of versions that did not keep it, whose steps then count for none.
        gc_ns: Added.
        collectives: Added by group, operation and variant.
        peak: Largest memory of any of the steps.
        tokens: Added; absent unless every step knows it.
        model_flop: Added; absent unless every step knows it.
        hardware_flop: Added; absent unless every step knows it.
        input_bytes: Added; absent unless every step knows it.
        recorder_ns: Added.
        num_dropped: Added.
    """

    first_step: Count
    last_step: Count
    num_steps: Count
    start_ns: Instant
    end_ns: Instant
    duration_ns: Length
    min_duration_ns: Length
    max_duration_ns: Length
    phases: dict[str, Length]
    communication_wait_ns: Length | None = None
    communication_wait_phases: dict[str, Length] | None = None
    gc_ns: Length = 0
    collectives: tuple[CollectiveTotal, ...] = ()
    peak: MemoryPeak | None = None
    tokens: Count | None = None
    model_flop: Flop | None = None
    hardware_flop: Flop | None = None
    input_bytes: Count | None = None
    recorder_ns: Correction = 0
    num_dropped: Count = 0


StepLine = StepRecord | StepSummary
"""What a line of `steps.jsonl` may hold."""

Detail = str | Evidence | float | bool | list[str | Evidence] | None
"""A value of `EventRecord.detail` or `Verdict.evidence`; names carry their unit (`bytes`, `duration_ns`)."""


class EventRecord(_Record, frozen=True):
    """One line of `events.jsonl`: what is rare.

    Attributes:
        time_ns: When it happened, or began if it has a length.
        kind: What it is.
        message: One sentence for people.
        step: The step in which it happened.
        phase: The phase in which it happened.
        duration_ns: Its length.
        detail: Figures by name. A checkpoint has `path`, `bytes`, `asynchronous`, `blocked_ns`; a capture `trace`,
            `first_step`, `num_steps`, `reason`; a coverage `group`, `operation`, `seen`, `flight_recorder`; a stack
            dump `reason` and `stacks`; the end of an attempt `num_steps`, the steps finished in it.
    """

    time_ns: Instant
    kind: EventKind
    message: str
    step: Count | None = None
    phase: str | None = None
    duration_ns: Length | None = None
    detail: dict[str, Detail] = {}


class CaptureInfo(_Record, frozen=True):
    """`traces/NAME.capture.json`: a profiler window, beside its trace `NAME.json`.

    Attributes:
        trace: File name of the trace in the same folder.
        rank: Rank that was profiled.
        first_step: First step of the window.
        num_steps: Steps in the window.
        start_ns: When the profiler started.
        end_ns: When it stopped; writing the file comes after.
        reason: `schedule`, `trigger_file`, `signal`, `anomaly` or `user`.
        cost_ns: Host time that start, stop and export took on the training thread.
        with_stack: Python stacks were recorded.
        record_shapes: Shapes of operators were recorded.
        trace_bytes: Size of the trace file.
    """

    trace: str
    rank: RankNumber
    first_step: Count
    num_steps: Count
    start_ns: Instant
    end_ns: Instant
    reason: str
    cost_ns: Length
    with_stack: bool = False
    record_shapes: bool = False
    trace_bytes: Count | None = None


class Verdict(_Record, frozen=True):
    """One line of `verdicts.jsonl`: what diagnosis over all ranks found.

    Attributes:
        time_ns: When it was found.
        kind: `hang`, `mismatch`, `straggler`, `crash`, `slow_input`, ...: the rule that fired.
        severity: `info`, `warning` or `critical`.
        summary: One sentence for people.
        attempt: The attempt that it speaks of.
        ranks: Ranks to blame.
        group: Name of the process group, where one is meant.
        step: First step that it speaks of.
        action: What to do.
        evidence: Figures by name; `imposed_wait_ns` is that of one step, on average.
        resolved_ns: When it no longer held.
    """

    time_ns: Instant
    kind: str
    severity: Literal["info", "warning", "critical"]
    summary: str
    attempt: Attempt = 0
    ranks: tuple[RankNumber, ...] = ()
    group: str | None = None
    step: Count | None = None
    action: str | None = None
    evidence: dict[str, Detail] = {}
    resolved_ns: Instant | None = None
