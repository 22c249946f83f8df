"""The tables that every trace is read into, declared once.

Every instant is integer nanoseconds since the epoch (the trace's base added), every span is half-open
`[start_ns, end_ns)`. Ids are row numbers of the table that they point into, within one rank. A null means unknown or
not applicable, never 0. `device_events`, `ops` and `launches` are sorted by `start_ns`.
"""

from __future__ import annotations

from typing import Final

import polars as pl

from scope.trace.columns import Column, Table

SCHEMA_VERSION: Final = 6
"""Part of the key of the cache: raise it with every change below."""

DEVICE_EVENT_KINDS: Final = ("kernel", "memcpy", "memset")
CATEGORIES: Final = ("compute", "communication", "memory")
KERNEL_CLASSES: Final = (
    "gemm",
    "attention",
    "convolution",
    "normalisation",
    "elementwise",
    "reduction",
    "embedding",
    "optimizer",
    "fused",
    "other",
    "communication",
    "memory",
)
COPY_KINDS: Final = ("H2D", "D2H", "D2D", "P2P", "H2H", "set")
LAUNCH_KINDS: Final = ("kernel", "memcpy", "memset", "graph", "sync", "allocation", "event", "other")
OPERATIONS: Final = (
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
    "unknown",
)
VARIANTS: Final = ("plain", "coalesced", "uneven", "object", "functional")
SYNC_KINDS: Final = ("stream_wait_event", "event", "stream", "context", "other")

_NAME: Final = pl.Categorical()


class DeviceEvents(Table):
    """What ran on a device: kernels, copies and sets. Synchronisations and annotations never occupy a device."""

    event_id = Column("event_id", pl.UInt32, "row number")
    device = Column("device", pl.Int32, "device index in the trace; below -1 where the trace has no number of 32 bits")
    stream = Column("stream", pl.Int64, "stream, or hardware queue, in the device")
    kind = Column("kind", pl.Enum(DEVICE_EVENT_KINDS), "kind of activity")
    category = Column("category", pl.Enum(CATEGORIES), "which of the three that occupy a device")
    kernel_class = Column("kernel_class", pl.Enum(KERNEL_CLASSES), "class within the category")
    name = Column("name", _NAME, "name as the trace has it")
    start_ns = Column("start_ns", pl.Int64, "first nanosecond of the raw span")
    end_ns = Column("end_ns", pl.Int64, "end of the raw span, not part of it")
    clipped_end_ns = Column("clipped_end_ns", pl.Int64, "the end, cut at the next start on its stream")
    correlation = Column("correlation", pl.Int64, "correlation id of the launch", nullable=True)
    launch_id = Column("launch_id", pl.UInt32, "the runtime call that launched it", nullable=True)
    op_id = Column("op_id", pl.UInt32, "innermost operator around the launch", nullable=True)
    step_id = Column("step_id", pl.UInt32, "step in which it was launched", nullable=True)
    call_id = Column("call_id", pl.UInt32, "row of collective_calls, for communication", nullable=True)
    in_graph = Column("in_graph", pl.Boolean, "launched by the replay of a graph")
    copy_kind = Column("copy_kind", pl.Enum(COPY_KINDS), "direction of a copy or set", nullable=True)
    copy_bytes = Column("copy_bytes", pl.Int64, "bytes of a copy or set", nullable=True)
    num_blocks = Column("num_blocks", pl.Int64, "product of the grid", nullable=True)
    threads_per_block = Column("threads_per_block", pl.Int32, "product of the block", nullable=True)
    registers_per_thread = Column("registers_per_thread", pl.Int32, "registers", nullable=True)
    shared_memory_bytes = Column("shared_memory_bytes", pl.Int64, "static and dynamic, per block", nullable=True)
    occupancy_ratio = Column("occupancy_ratio", pl.Float32, "estimated achieved occupancy, 0 to 1", nullable=True)


class Ops(Table):
    """Operators on the host (`cpu_op`)."""

    op_id = Column("op_id", pl.UInt32, "row number")
    thread = Column("thread", pl.Int64, "thread id as in the trace; `threads` of the trace names it")
    name = Column("name", _NAME, "name as the trace has it")
    start_ns = Column("start_ns", pl.Int64, "first nanosecond")
    end_ns = Column("end_ns", pl.Int64, "end, not part of it")
    parent_id = Column("parent_id", pl.UInt32, "operator that contains it on its thread", nullable=True)
    depth = Column("depth", pl.UInt16, "0 for an operator with no parent")
    is_leaf = Column("is_leaf", pl.Boolean, "contains no other operator")
    external_id = Column("external_id", pl.Int64, "External id", nullable=True)
    sequence_number = Column("sequence_number", pl.Int64, "autograd sequence number", nullable=True)
    forward_op_id = Column("forward_op_id", pl.UInt32, "for a backward operator: its forward operator", nullable=True)
    step_id = Column("step_id", pl.UInt32, "step in which it started", nullable=True)
    input_dims = Column("input_dims", _NAME, "JSON list of shapes, as in the trace", nullable=True)
    input_types = Column("input_types", _NAME, "JSON list of dtypes, as in the trace", nullable=True)
    input_strides = Column("input_strides", _NAME, "JSON list of strides, as in the trace", nullable=True)
    concrete_inputs = Column("concrete_inputs", _NAME, "JSON list of scalar arguments, as in the trace", nullable=True)
    kernel_file = Column("kernel_file", _NAME, "source file of a compiled (Triton) kernel", nullable=True)


class Launches(Table):
    """Calls of the device runtime and driver (CUDA, HIP): launches, copies, synchronisations, allocations, events."""

    launch_id = Column("launch_id", pl.UInt32, "row number")
    thread = Column("thread", pl.Int64, "thread id as in the trace")
    name = Column("name", _NAME, "name as the trace has it")
    kind = Column("kind", pl.Enum(LAUNCH_KINDS), "what the call does")
    start_ns = Column("start_ns", pl.Int64, "first nanosecond")
    end_ns = Column("end_ns", pl.Int64, "end, not part of it")
    correlation = Column("correlation", pl.Int64, "correlation id", nullable=True)
    op_id = Column("op_id", pl.UInt32, "innermost operator around the call", nullable=True)
    step_id = Column("step_id", pl.UInt32, "step in which it started", nullable=True)
    num_device_events = Column("num_device_events", pl.UInt32, "device events that it launched")


class CollectiveCalls(Table):
    """One rank's part in each collective or point-to-point operation, in the order of `start_ns`."""

    call_id = Column("call_id", pl.UInt32, "row number")
    operation = Column("operation", pl.Enum(OPERATIONS), "one name whatever the library")
    variant = Column("variant", pl.Enum(VARIANTS), "how it was called")
    library = Column("library", _NAME, "nccl, rccl, gloo, deep_ep, nvshmem, symmetric_memory, custom")
    group_name = Column("group_name", _NAME, "process group name", nullable=True)
    group_description = Column("group_description", _NAME, "process group description, a mesh axis say", nullable=True)
    group_ranks = Column("group_ranks", pl.List(pl.Int32), "global ranks, sorted", nullable=True)
    group_size = Column("group_size", pl.Int32, "number of ranks", nullable=True)
    sequence = Column("sequence", pl.Int64, "`Seq` of the trace", nullable=True)
    source_rank = Column("source_rank", pl.Int32, "root or sender, in the group's numbering", nullable=True)
    destination_rank = Column("destination_rank", pl.Int32, "receiver, in the group's numbering", nullable=True)
    tag = Column("tag", pl.Int64, "tag of a send or recv, where the trace says it", nullable=True)
    dtype = Column("dtype", _NAME, "element type as the trace has it", nullable=True)
    in_elements = Column("in_elements", pl.Int64, "elements put in", nullable=True)
    out_elements = Column("out_elements", pl.Int64, "elements received", nullable=True)
    in_bytes = Column("in_bytes", pl.Int64, "bytes put in", nullable=True)
    out_bytes = Column("out_bytes", pl.Int64, "bytes received", nullable=True)
    in_split = Column("in_split", pl.List(pl.Int64), "elements to each rank, where the call says it", nullable=True)
    out_split = Column("out_split", pl.List(pl.Int64), "elements from each rank, where the call says it", nullable=True)
    asynchronous = Column("asynchronous", pl.Boolean, "called with async_op", nullable=True)
    device = Column("device", pl.Int32, "device that ran it; null on a host timeline", nullable=True)
    stream = Column("stream", pl.Int64, "stream that ran it", nullable=True)
    start_ns = Column("start_ns", pl.Int64, "start of its first kernel, or of the host range")
    end_ns = Column("end_ns", pl.Int64, "end of its last kernel, or of the host range")
    op_id = Column("op_id", pl.UInt32, "operator that issued it", nullable=True)
    step_id = Column("step_id", pl.UInt32, "step in which it was launched", nullable=True)
    is_group_inferred = Column(
        "is_group_inferred", pl.Boolean, "the group was chosen among those the trace lists, by the call's sizes"
    )
    has_metadata = Column("has_metadata", pl.Boolean, "the trace says group, sizes and dtype; else only a kernel name")


class Annotations(Table):
    """Named ranges of the user and of torch, runs of Python's garbage collector among them, Python frames apart."""

    annotation_id = Column("annotation_id", pl.UInt32, "row number")
    category = Column("category", _NAME, "category of the trace: user_annotation, gpu_user_annotation, overhead, Trace")
    name = Column("name", _NAME, "name as the trace has it")
    thread = Column("thread", pl.Int64, "thread id, or stream for a range on the device", nullable=True)
    on_device = Column("on_device", pl.Boolean, "a projection onto a stream, not host time")
    start_ns = Column("start_ns", pl.Int64, "first nanosecond")
    end_ns = Column("end_ns", pl.Int64, "end, not part of it")


class Steps(Table):
    """Profiler steps on the host."""

    step_id = Column("step_id", pl.UInt32, "row number")
    number = Column("number", pl.Int64, "n of `ProfilerStep#n`")
    thread = Column("thread", pl.Int64, "thread id")
    start_ns = Column("start_ns", pl.Int64, "first nanosecond on the host")
    end_ns = Column("end_ns", pl.Int64, "end on the host, not part of it")
    is_cut = Column("is_cut", pl.Boolean, "the recording began or ended inside it")


class Memory(Table):
    """Allocations and releases (`[memory]` instants), in the order of `time_ns`."""

    time_ns = Column("time_ns", pl.Int64, "instant")
    device_type = Column("device_type", pl.Int32, "torch's DeviceType: 0 is the host, 1 is CUDA or HIP")
    device = Column("device", pl.Int32, "device index; -1 for the host", nullable=True)
    thread = Column("thread", pl.Int64, "thread id")
    address = Column("address", pl.UInt64, "address", nullable=True)
    size_bytes = Column("size_bytes", pl.Int64, "positive for an allocation, negative for a release")
    allocated_bytes = Column("allocated_bytes", pl.Int64, "in use after it", nullable=True)
    reserved_bytes = Column("reserved_bytes", pl.Int64, "held by the allocator after it", nullable=True)
    op_id = Column("op_id", pl.UInt32, "innermost operator around it", nullable=True)


class Syncs(Table):
    """`cuda_sync` records: who waited for whom. They never occupy a device."""

    sync_id = Column("sync_id", pl.UInt32, "row number")
    kind = Column("kind", pl.Enum(SYNC_KINDS), "what was waited with")
    device = Column("device", pl.Int32, "device", nullable=True)
    stream = Column("stream", pl.Int64, "stream that waits; null for a wait of the host", nullable=True)
    waited_stream = Column("waited_stream", pl.Int64, "stream that recorded the event", nullable=True)
    waited_event_correlation = Column(
        "waited_event_correlation", pl.Int64, "correlation of the call that recorded the event", nullable=True
    )
    correlation = Column("correlation", pl.Int64, "correlation of the waiting call", nullable=True)
    start_ns = Column("start_ns", pl.Int64, "first nanosecond")
    end_ns = Column("end_ns", pl.Int64, "end, not part of it")


class PythonCalls(Table):
    """Python frames and modules (`python_function`), read on demand: they are most of a trace recorded with stacks."""

    python_id = Column("python_id", pl.Int64, "Python id of the trace")
    parent_id = Column("parent_id", pl.Int64, "Python parent id", nullable=True)
    module_id = Column("module_id", pl.Int64, "Python module id, for an `nn.Module`", nullable=True)
    name = Column("name", _NAME, "name as the trace has it")
    thread = Column("thread", pl.Int64, "thread id")
    start_ns = Column("start_ns", pl.Int64, "first nanosecond")
    end_ns = Column("end_ns", pl.Int64, "end, not part of it")


TABLES: Final[tuple[type[Table], ...]] = (
    DeviceEvents,
    Ops,
    Launches,
    CollectiveCalls,
    Annotations,
    Steps,
    Memory,
    Syncs,
    PythonCalls,
)
