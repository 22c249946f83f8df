"""The records of a Chrome trace as Kineto writes them: only what becomes columns is decoded.

A record is told apart by its phase (`ph`). Its arguments stay text until all records of a category are together, so
that a kernel's record never carries the fields of an operator's. `ExactSpan` and its like keep instants as text, for
files whose instants do not fit a 64-bit float; `LooseEvent` takes any JSON type anywhere.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

NO_TEXT: Final = msgspec.Raw()

Text = str | int | None
"""What Kineto writes as a number in one version and as a string in another."""


def _named(name: str) -> Any:
    return msgspec.field(default=None, name=name)


def _raw(name: str) -> Any:
    return msgspec.field(default=NO_TEXT, name=name)


class Span(msgspec.Struct, gc=False, tag_field="ph", tag="X"):
    """A record with a length."""

    cat: str = ""
    name: str = ""
    pid: Text = 0
    tid: Text = 0
    ts: int | float | None = None
    dur: int | float | None = None
    args: msgspec.Raw = NO_TEXT


class Instant(msgspec.Struct, gc=False, tag_field="ph", tag="i"):
    """A record without a length."""

    name: str = ""
    tid: Text = 0
    ts: int | float | None = None
    args: msgspec.Raw = NO_TEXT


class ExactSpan(msgspec.Struct, gc=False, tag_field="ph", tag="X"):
    """A record with a length; instants are the text that stands in the file."""

    cat: str = ""
    name: str = ""
    pid: Text = 0
    tid: Text = 0
    ts: msgspec.Raw = NO_TEXT
    dur: msgspec.Raw = NO_TEXT
    args: msgspec.Raw = NO_TEXT


class ExactInstant(msgspec.Struct, gc=False, tag_field="ph", tag="i"):
    """A record without a length; its instant is the text that stands in the file."""

    name: str = ""
    tid: Text = 0
    ts: msgspec.Raw = NO_TEXT
    args: msgspec.Raw = NO_TEXT


class Metadata(msgspec.Struct, gc=False, tag_field="ph", tag="M"):
    """A name or label of a process or thread."""

    name: str = ""
    tid: Text = 0
    args: msgspec.Raw = NO_TEXT


class ArrowStart(msgspec.Struct, gc=False, tag_field="ph", tag="s"):
    """Where an arrow from one record to another begins; what it joins is read on demand."""

    cat: str = ""


class ArrowEnd(msgspec.Struct, gc=False, tag_field="ph", tag="f"):
    """Where an arrow ends."""

    cat: str = ""


class FullArrowStart(msgspec.Struct, gc=False, tag_field="ph", tag="s"):
    """Where an arrow begins, with all that finds the record there."""

    cat: str = ""
    id: Text = None
    pid: Text = 0
    tid: Text = 0
    ts: msgspec.Raw = NO_TEXT


class FullArrowEnd(msgspec.Struct, gc=False, tag_field="ph", tag="f"):
    """Where an arrow ends, with all that finds the record there."""

    cat: str = ""
    id: Text = None
    pid: Text = 0
    tid: Text = 0
    ts: msgspec.Raw = NO_TEXT


class Begin(msgspec.Struct, gc=False, tag_field="ph", tag="B"):
    """Where a record begins whose end stands for itself."""

    cat: str = ""
    name: str = ""
    pid: Text = 0
    tid: Text = 0
    ts: msgspec.Raw = NO_TEXT
    args: msgspec.Raw = NO_TEXT


class End(msgspec.Struct, gc=False, tag_field="ph", tag="E"):
    """Where the last record that began on its thread, and is still open, ends."""

    pid: Text = 0
    tid: Text = 0
    ts: msgspec.Raw = NO_TEXT


class LooseEvent(msgspec.Struct, gc=False):
    """One record of which any field may have any type."""

    ph: Any = None
    cat: Any = ""
    name: Any = ""
    pid: Any = 0
    tid: Any = 0
    ts: msgspec.Raw = NO_TEXT
    dur: msgspec.Raw = NO_TEXT
    id: Any = None
    args: msgspec.Raw = NO_TEXT


OTHER_PHASES: Final = (*"IbenSTptFNODPCVvRc()",)
"""Phases of the format that Kineto does not use; they are read and stand in no table."""
ASYNCHRONOUS_PHASES: Final = (*"benSTFp",)
"""Those of them that hold work without a thread; `TraceQuality.asynchronous` counts them."""

OTHERS: Final[dict[str, type[msgspec.Struct]]] = {
    phase: msgspec.defstruct(f"Phase{ord(phase)}", [], gc=False, tag_field="ph", tag=phase) for phase in OTHER_PHASES
}


class DeviceArgs(msgspec.Struct, gc=False):
    """Arguments of kernels, copies and sets, and of the collectives among them."""

    external_id: int | None = _named("External id")
    old_external_id: int | None = _named("external id")
    device: Text = None
    stream: Text = None
    correlation: int | None = None
    registers: int | None = _named("registers per thread")
    shared_memory: int | None = _named("shared memory")
    grid: msgspec.Raw = NO_TEXT
    block: msgspec.Raw = NO_TEXT
    occupancy: float | None = _named("est. achieved occupancy %")
    bytes: Text = None
    kind: Text = None
    graph_id: int | None = _named("graph id")
    collective: str | None = _named("Collective name")
    """The other fields of a collective are decoded again from the same text, by `CollectiveArgs`."""


class OpArgs(msgspec.Struct, gc=False):
    """Arguments of operators."""

    external_id: int | None = _named("External id")
    old_external_id: int | None = _named("external id")
    concrete_inputs: msgspec.Raw = _raw("Concrete Inputs")
    input_types: msgspec.Raw = _raw("Input type")
    input_strides: msgspec.Raw = _raw("Input Strides")
    input_dims: msgspec.Raw = _raw("Input Dims")
    old_input_dims: msgspec.Raw = _raw("Input dims")
    forward_thread: int | None = _named("Fwd thread id")
    sequence_number: int | None = _named("Sequence number")
    kernel_file: str | None = None
    collective: str | None = _named("Collective name")


class CollectiveArgs(msgspec.Struct, gc=False):
    """What a record says of the collective it is part of; `CollectiveCoder` knows the places of the last four."""

    collective: str | None = _named("Collective name")
    in_elements: int | None = _named("In msg nelems")
    out_elements: int | None = _named("Out msg nelems")
    dtype: str | None = None
    group_size: int | None = _named("Group size")
    group_name: Text = _named("Process Group Name")
    group_description: Text = _named("Process Group Description")
    first_rank: int | None = _named("Global rank start")
    rank_stride: int | None = _named("Global rank stride")
    role_rank: Text = _named("Rank")
    """Root or peer of a call that has one, in the group's numbering; else the rank that calls."""
    source_rank: Text = _named("Src Rank")
    """Sender of a recv, a global rank like the following."""
    destination_rank: Text = _named("Dst Rank")
    asynchronous: bool | Text = _named("Is asynchronized op")
    group_ranks: msgspec.Raw = _raw("Process Group Ranks")
    in_split: msgspec.Raw = _raw("In split size")
    out_split: msgspec.Raw = _raw("Out split size")
    sequence: int | None = _named("Seq")


class LaunchArgs(msgspec.Struct, gc=False):
    """Arguments of calls of a runtime or driver."""

    external_id: int | None = _named("External id")
    old_external_id: int | None = _named("external id")
    correlation: int | None = None


class AnnotationArgs(msgspec.Struct, gc=False):
    """Arguments of named ranges."""

    external_id: int | None = _named("External id")
    old_external_id: int | None = _named("external id")
    input_types: msgspec.Raw = _raw("Input type")
    input_dims: msgspec.Raw = _raw("Input Dims")
    device: Text = None
    stream: Text = None


class SyncArgs(msgspec.Struct, gc=False):
    """Arguments of waits."""

    device: Text = None
    stream: Text = None
    correlation: int | None = None
    sync_kind: str | None = _named("cuda_sync_kind")
    waited_stream: int | None = _named("wait_on_stream")
    waited_correlation: int | None = _named("wait_on_cuda_event_record_corr_id")


class MemoryArgs(msgspec.Struct, gc=False):
    """Arguments of allocations and releases."""

    device_type: int | None = _named("Device Type")
    device_id: int | None = _named("Device Id")
    address: int | None = _named("Addr")
    size: int | None = _named("Bytes")
    total_allocated: int | None = _named("Total Allocated")
    total_reserved: int | None = _named("Total Reserved")


class PythonArgs(msgspec.Struct, gc=False):
    """Arguments of Python frames."""

    python_id: int | None = _named("Python id")
    parent_id: int | None = _named("Python parent id")
    module_id: int | None = _named("Python module id")


class MetadataArgs(msgspec.Struct, gc=False):
    """Arguments of names of threads."""

    label: Text = _named("name")


def _union(*members: type[msgspec.Struct]) -> Any:
    union: Any = members[0]
    for member in (*members[1:], Metadata, Begin, End, *OTHERS.values()):
        union = union | member
    return union


def list_of(kind: Any) -> Any:
    """Return the type of a list, for a type that is only known at run time."""
    return list[kind]


FAST_EVENT: Final = _union(Span, Instant, ArrowStart, ArrowEnd)
EXACT_EVENT: Final = _union(ExactSpan, ExactInstant, FullArrowStart, FullArrowEnd)
FAST_DECODER: Final[msgspec.json.Decoder[list[Any]]] = msgspec.json.Decoder(type=list_of(FAST_EVENT))
EXACT_DECODER: Final[msgspec.json.Decoder[list[Any]]] = msgspec.json.Decoder(type=list_of(EXACT_EVENT))
