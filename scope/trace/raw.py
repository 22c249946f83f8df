"""Private tables between decoding and linking: one row a record, in file order, texts as codes."""

from __future__ import annotations

from typing import Final

import polars as pl

from scope.trace.columns import Column, Table

FILE_ROW: Final = Column("raw_file_row", pl.UInt32, "row in file order")


class RawSpans(Table):
    """What every record with a span has."""

    name = Column("raw_name", pl.UInt32, "code of the name")
    start_ns = Column("raw_start_ns", pl.Int64, "start, base not yet added")
    duration_ns = Column("raw_duration_ns", pl.Int64, "length; may be negative")
    thread = Column("raw_thread", pl.Int64, "tid, as a number")


class RawDevice(Table):
    """Kernels, copies and sets."""

    kind = Column("raw_kind", pl.UInt8, "index into DEVICE_EVENT_KINDS")
    device = Column("raw_device", pl.Int64, "args.device, else pid", nullable=True)
    stream = Column("raw_stream", pl.Int64, "args.stream, else tid", nullable=True)
    correlation = Column("raw_correlation", pl.Int64, "correlation", nullable=True)
    external_id = Column("raw_external_id", pl.Int64, "External id", nullable=True)
    grid = Column("raw_grid", pl.UInt32, "code of the grid's text")
    block = Column("raw_block", pl.UInt32, "code of the block's text")
    registers = Column("raw_registers", pl.Int64, "registers per thread", nullable=True)
    shared_memory = Column("raw_shared_memory", pl.Int64, "shared memory", nullable=True)
    occupancy = Column("raw_occupancy", pl.Float64, "percent", nullable=True)
    bytes = Column("raw_bytes", pl.Int64, "bytes", nullable=True)
    copy_kind = Column("raw_copy_kind", pl.UInt32, "code of args.kind")
    graph_id = Column("raw_graph_id", pl.Int64, "graph id", nullable=True)
    is_collective = Column("raw_is_collective", pl.Boolean, "says that it is part of a collective")


class RawOps(Table):
    """Operators."""

    external_id = Column("raw_external_id", pl.Int64, "External id", nullable=True)
    sequence_number = Column("raw_sequence_number", pl.Int64, "Sequence number", nullable=True)
    forward_thread = Column("raw_forward_thread", pl.Int64, "Fwd thread id", nullable=True)
    input_dims = Column("raw_input_dims", pl.UInt32, "code of the text")
    input_types = Column("raw_input_types", pl.UInt32, "code of the text")
    input_strides = Column("raw_input_strides", pl.UInt32, "code of the text")
    concrete_inputs = Column("raw_concrete_inputs", pl.UInt32, "code of the text")
    kernel_file = Column("raw_kernel_file", pl.UInt32, "code of the text")


class RawLaunches(Table):
    """Runtime and driver calls."""

    correlation = Column("raw_correlation", pl.Int64, "correlation", nullable=True)
    external_id = Column("raw_external_id", pl.Int64, "External id", nullable=True)


class RawAnnotations(Table):
    """Ranges that are no operator and no device work."""

    category = Column("raw_category", pl.UInt32, "code of the category")
    external_id = Column("raw_external_id", pl.Int64, "External id", nullable=True)
    input_dims = Column("raw_input_dims", pl.UInt32, "code of the text")
    input_types = Column("raw_input_types", pl.UInt32, "code of the text")


class RawMemory(Table):
    """Allocations and releases."""

    time_ns = Column("raw_time_ns", pl.Int64, "instant, base not yet added")
    thread = Column("raw_thread", pl.Int64, "tid, as a number")
    device_type = Column("raw_device_type", pl.Int64, "Device Type", nullable=True)
    device = Column("raw_device", pl.Int64, "Device Id", nullable=True)
    address = Column("raw_address", pl.UInt64, "Addr", nullable=True)
    size_bytes = Column("raw_size_bytes", pl.Int64, "Bytes", nullable=True)
    allocated_bytes = Column("raw_allocated_bytes", pl.Int64, "Total Allocated", nullable=True)
    reserved_bytes = Column("raw_reserved_bytes", pl.Int64, "Total Reserved", nullable=True)


class RawSyncs(Table):
    """Waits of streams and of the host."""

    kind = Column("raw_sync_kind", pl.UInt32, "code of cuda_sync_kind, else of the name")
    device = Column("raw_device", pl.Int64, "device", nullable=True)
    stream = Column("raw_stream", pl.Int64, "stream", nullable=True)
    waited_stream = Column("raw_waited_stream", pl.Int64, "wait_on_stream", nullable=True)
    waited_correlation = Column("raw_waited_correlation", pl.Int64, "wait_on_cuda_event_record_corr_id", nullable=True)
    correlation = Column("raw_correlation", pl.Int64, "correlation", nullable=True)


class RawPython(Table):
    """Python frames."""

    python_id = Column("raw_python_id", pl.Int64, "Python id", nullable=True)
    parent_id = Column("raw_parent_id", pl.Int64, "Python parent id", nullable=True)
    module_id = Column("raw_module_id", pl.Int64, "Python module id", nullable=True)


class RawFlows(Table):
    """Ends of arrows."""

    is_start = Column("raw_is_start", pl.Boolean, "ph is s")
    is_backward = Column("raw_is_backward", pl.Boolean, "forward to backward, else launch to device")
    id = Column("raw_id", pl.Int64, "id", nullable=True)
    time_ns = Column("raw_time_ns", pl.Int64, "instant, base not yet added")
    thread = Column("raw_thread", pl.Int64, "tid, as a number")
    process = Column("raw_process", pl.Int64, "pid, as a number", nullable=True)
