"""The records of a Chrome trace as Kineto writes them: only the fields that become columns are decoded.

`Event` is the fast form. `ExactEvent` keeps `ts` and `dur` as text, for files whose instants do not fit a 64-bit
float; `LooseEvent` takes any JSON type anywhere and is turned into an `ExactEvent` by `scope.trace.salvage`.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

_RAW_NOTHING: Final = msgspec.Raw()

Text = str | int | None
"""What Kineto writes as a number in one version and as a string in another."""


class EventArgs(msgspec.Struct, gc=False, rename=None):
    """The arguments that become columns; everything else in `args` is skipped without being built."""

    external_id: int | None = msgspec.field(default=None, name="External id")
    queued_external_id: int | None = msgspec.field(default=None, name="external id")
    device: Text = None
    stream: Text = None
    correlation: int | None = None
    registers: int | None = msgspec.field(default=None, name="registers per thread")
    shared_memory: int | None = msgspec.field(default=None, name="shared memory")
    grid: msgspec.Raw = _RAW_NOTHING
    block: msgspec.Raw = _RAW_NOTHING
    occupancy: float | None = msgspec.field(default=None, name="est. achieved occupancy %")
    bytes: Text = None
    size: Text = None
    kind: Text = None
    graph_id: int | None = msgspec.field(default=None, name="graph id")
    sequence_number: int | None = msgspec.field(default=None, name="Sequence number")
    forward_thread: int | None = msgspec.field(default=None, name="Fwd thread id")
    concrete_inputs: msgspec.Raw = msgspec.field(default=_RAW_NOTHING, name="Concrete Inputs")
    input_types: msgspec.Raw = msgspec.field(default=_RAW_NOTHING, name="Input type")
    input_strides: msgspec.Raw = msgspec.field(default=_RAW_NOTHING, name="Input Strides")
    input_dims: msgspec.Raw = msgspec.field(default=_RAW_NOTHING, name="Input Dims")
    old_input_dims: msgspec.Raw = msgspec.field(default=_RAW_NOTHING, name="Input dims")
    kernel_file: str | None = None
    device_type: int | None = msgspec.field(default=None, name="Device Type")
    device_id: int | None = msgspec.field(default=None, name="Device Id")
    address: int | None = msgspec.field(default=None, name="Addr")
    memory_bytes: int | None = msgspec.field(default=None, name="Bytes")
    total_allocated: int | None = msgspec.field(default=None, name="Total Allocated")
    total_reserved: int | None = msgspec.field(default=None, name="Total Reserved")
    python_id: int | None = msgspec.field(default=None, name="Python id")
    python_parent_id: int | None = msgspec.field(default=None, name="Python parent id")
    python_module_id: int | None = msgspec.field(default=None, name="Python module id")
    sync_kind: str | None = msgspec.field(default=None, name="cuda_sync_kind")
    waited_stream: int | None = msgspec.field(default=None, name="wait_on_stream")
    waited_correlation: int | None = msgspec.field(default=None, name="wait_on_cuda_event_record_corr_id")
    collective: str | None = msgspec.field(default=None, name="Collective name")
    in_elements: int | None = msgspec.field(default=None, name="In msg nelems")
    out_elements: int | None = msgspec.field(default=None, name="Out msg nelems")
    dtype: str | None = None
    group_size: int | None = msgspec.field(default=None, name="Group size")
    group_name: Text = msgspec.field(default=None, name="Process Group Name")
    group_description: Text = msgspec.field(default=None, name="Process Group Description")
    group_ranks: msgspec.Raw = msgspec.field(default=_RAW_NOTHING, name="Process Group Ranks")
    first_rank: int | None = msgspec.field(default=None, name="Global rank start")
    rank_stride: int | None = msgspec.field(default=None, name="Global rank stride")
    in_split: msgspec.Raw = msgspec.field(default=_RAW_NOTHING, name="In split size")
    out_split: msgspec.Raw = msgspec.field(default=_RAW_NOTHING, name="Out split size")
    sequence: int | None = msgspec.field(default=None, name="Seq")
    source_rank: Text = msgspec.field(default=None, name="Src Rank")
    destination_rank: Text = msgspec.field(default=None, name="Dst Rank")
    asynchronous: bool | Text = msgspec.field(default=None, name="Is asynchronized op")
    label: Text = msgspec.field(default=None, name="name")
    """Name of a process or thread, in metadata records."""


class Event(msgspec.Struct, gc=False):
    """One record, with `ts` and `dur` as JSON numbers."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: Text = 0
    tid: Text = 0
    ts: int | float | None = None
    dur: int | float | None = None
    id: Text = None
    args: EventArgs | None = None


class ExactEvent(msgspec.Struct, gc=False):
    """One record, with `ts` and `dur` as the text that stands in the file."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: Text = 0
    tid: Text = 0
    ts: msgspec.Raw = _RAW_NOTHING
    dur: msgspec.Raw = _RAW_NOTHING
    id: Text = None
    args: EventArgs | None = None


class LooseEvent(msgspec.Struct, gc=False):
    """One record of which any field may have any type."""

    ph: Any = ""
    cat: Any = ""
    name: Any = ""
    pid: Any = 0
    tid: Any = 0
    ts: msgspec.Raw = _RAW_NOTHING
    dur: msgspec.Raw = _RAW_NOTHING
    id: Any = None
    args: Any = None


class GroupConfig(msgspec.Struct):
    """One entry of `distributedInfo.pg_config`."""

    pg_name: Text = ""
    pg_desc: str | None = None
    backend_config: str | None = None
    pg_size: int | None = None
    ranks: list[int] | None = None


AnyEvent = Event | ExactEvent

FAST_DECODER: Final = msgspec.json.Decoder(list[Event])
EXACT_DECODER: Final = msgspec.json.Decoder(list[ExactEvent])
LOOSE_DECODER: Final = msgspec.json.Decoder(list[LooseEvent])
