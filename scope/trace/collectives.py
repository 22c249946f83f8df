"""The table of collective calls: on devices from their kernels, on a host timeline from the ranges of the library."""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec
import polars as pl

from scope.trace import calls
from scope.trace.classes import communication_library
from scope.trace.eager import taken
from scope.trace.events import NO_TEXT, CollectiveArgs
from scope.trace.raw import FILE_ROW
from scope.trace.schema import Annotations, CollectiveCalls, DeviceEvents, Launches, Ops

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from scope.trace.deviceevents import Devices
    from scope.trace.model import ProcessGroup

_HOST_RANGE: Final = re.compile(r"(gloo|mpi|ucc):(\w+)")
_DEVICE_RANGE: Final = re.compile(r"(?:nccl|rccl|hccl|xccl):(\w+)")
_RECORD: Final = "record_param_comms"
_C10D: Final = ("c10d::", "c10d_functional::", "_c10d_functional::")
_MOST_RANKS: Final = 1 << 20
_LAUNCHED: Final = "launched"
_UNKNOWN: Final = "unknown"
_SEQUENCE_PLACE: Final = CollectiveArgs.__struct_fields__.index("sequence")
_GLOO_STANDS_FOR: Final = {"all_reduce": {"all_reduce", "reduce_scatter"}}
"""Gloo builds reduce_scatter on its all_reduce, so its label tells only the algorithm."""

_EVENT_COLUMNS: Final = (
    DeviceEvents.event_id,
    DeviceEvents.name,
    DeviceEvents.device,
    DeviceEvents.stream,
    DeviceEvents.start_ns,
    DeviceEvents.end_ns,
    DeviceEvents.launch_id,
    DeviceEvents.op_id,
    DeviceEvents.step_id,
    DeviceEvents.in_graph,
)

Fields = dict[str, Any]
_ROLE_PLACES: Final = {"broadcast": 2, "reduce": 3, "gather": 3, "scatter": 3, "send": 2, "recv": 2}
"""Where the operators of c10d take their root or peer."""
_EMPTY_ROW: Final[Fields] = dict.fromkeys(CollectiveCalls.columns())


@dataclass(frozen=True, kw_only=True)
class CallSources:
    """What the calls of one rank are found in."""

    devices: Devices
    ops: pl.DataFrame
    launches: pl.DataFrame
    op_file_rows: pl.Series
    """Row of each operator in file order."""
    host_ranges: pl.DataFrame
    steps_of: Callable[[pl.Series], pl.Series]
    groups: dict[str, ProcessGroup]
    collective_args: list[tuple[bool, int, CollectiveArgs]]


def collective_calls(sources: CallSources) -> tuple[pl.DataFrame, pl.Series]:
    """Return the calls, and for each device event the call it is part of."""
    events = sources.devices.frame
    if events.height == 0:
        rows = _host_calls(sources)
        return _table(rows, sources), pl.Series(DeviceEvents.call_id, [], dtype=pl.UInt32)
    rows, members = _device_calls(sources)
    order = sorted(range(len(rows)), key=lambda row: (rows[row][CollectiveCalls.start_ns], row))
    call_of_event: list[int | None] = [None] * events.height
    for call_id, row in enumerate(order):
        for event in members[row]:
            call_of_event[event] = call_id
    table = _table([rows[row] for row in order], sources)
    return table, pl.Series(DeviceEvents.call_id, call_of_event, dtype=pl.UInt32)


def _table(rows: list[Fields], sources: CallSources) -> pl.DataFrame:
    for call_id, row in enumerate(rows):
        row[CollectiveCalls.call_id] = call_id
    schema = CollectiveCalls.schema()
    frame = pl.DataFrame([_column(name, [row[name] for row in rows], dtype) for name, dtype in schema.items()])
    if sources.devices.frame.height == 0 and rows:
        frame = frame.with_columns(sources.steps_of(frame[CollectiveCalls.start_ns]).alias(CollectiveCalls.step_id))
    return CollectiveCalls.check(frame)


def _column(name: str, values: list[Any], dtype: Any) -> pl.Series:
    if not isinstance(dtype, pl.List):
        return pl.Series(name, values, dtype=dtype)
    # Each list would become a series of its own; calls that were described together share theirs.
    distinct = {id(value): value for value in values}
    places = {key: place for place, key in enumerate(distinct)}
    codes = pl.Series([places[id(value)] for value in values], dtype=pl.UInt32)
    return taken(pl.Series(name, list(distinct.values()), dtype=dtype), codes)


class _Context:
    """What stands around an operator or call: metadata, ranges of the library, operators of c10d."""

    def __init__(self, sources: CallSources) -> None:
        self.by_device_row = {row: fields for is_device, row, fields in sources.collective_args if is_device}
        self.by_op: dict[int, CollectiveArgs] = {}
        if len(self.by_device_row) < len(sources.collective_args):
            op_of_row = {row: op for op, row in enumerate(sources.op_file_rows.to_list())}
            self.by_op = {op_of_row[row]: fields for is_device, row, fields in sources.collective_args if not is_device}
        self._sources = sources
        names = sources.ops[Ops.name]
        # Strings of each row would cost more than all that is asked of them.
        distinct = names.unique()
        self._names: dict[int, str] = dict(zip(distinct.to_physical(), distinct.to_list(), strict=True))
        self._name_codes: list[int] = names.to_physical().to_list()
        self._parents: list[int | None] = sources.ops[Ops.parent_id].to_list()
        self.ranges = _ranges_by_thread(sources.host_ranges)
        self._chains: dict[int, list[tuple[int, str]]] = {}
        self._known: dict[tuple[Any, ...], Fields] = {}

    def ancestors(self, op: int | None) -> list[tuple[int, str]]:
        """Return an operator and those around it, with their names, innermost first."""
        if op is None:
            return []
        chain = self._chains.get(op)
        if chain is None:
            # No recursion: a hostile file nests operators deeper than Python's stack.
            chain = self._chains[op] = []
            place: int | None = op
            while place is not None:
                chain.append((place, self._names[self._name_codes[place]]))
                place = self._parents[place]
        return chain

    def described(self, fields: CollectiveArgs | None, labels: tuple[str, ...]) -> Fields:
        """Return a new row with what metadata and names tell; see `_described`.

        Calls of one place in the training loop differ in their sequence number alone, so each is described once.
        """
        key = (labels, None) if fields is None else (labels, *_all_but_sequence(fields))
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = _described(fields, labels, self._sources)
        row = dict(known)
        if fields is not None:
            row[CollectiveCalls.sequence] = _int64(fields.sequence)
        return row

    def range_around(self, thread: int | None, instant: int | None) -> Fields | None:
        """Return the range of the library that a thread was in at an instant."""
        if instant is None:
            return None
        starts, found = self.ranges.get(thread, ([], []))
        place = bisect_right(starts, instant) - 1
        if place >= 0 and found[place][Annotations.end_ns] > instant:
            return found[place]
        return None


def _ranges_by_thread(host_ranges: pl.DataFrame) -> dict[int | None, tuple[list[int], list[Fields]]]:
    names = host_ranges[Annotations.name].cast(pl.String)
    chosen = host_ranges.filter(names.str.contains(r"^(?:nccl|rccl|hccl|xccl):\w+"))
    by_thread: dict[int | None, tuple[list[int], list[Fields]]] = {}
    for row in chosen.sort(Annotations.start_ns).iter_rows(named=True):
        starts, rows = by_thread.setdefault(row[Annotations.thread], ([], []))
        starts.append(row[Annotations.start_ns])
        rows.append(row)
    return by_thread


def _device_calls(sources: CallSources) -> tuple[list[Fields], list[list[int]]]:
    events = sources.devices.frame.with_columns(sources.devices.raw_rows.alias(FILE_ROW))
    chosen = events.filter(pl.col(DeviceEvents.category) == "communication")
    launch_ids = chosen[DeviceEvents.launch_id]
    chosen = chosen.select(*_EVENT_COLUMNS, FILE_ROW).with_columns(
        taken(sources.launches[Launches.thread], launch_ids),
        taken(sources.launches[Launches.start_ns], launch_ids).alias(_LAUNCHED),
    )
    context = _Context(sources)
    is_hip = bool(sources.launches[Launches.name].unique().cast(pl.String).str.starts_with("hip").any())
    rows: list[Fields] = []
    members: list[list[int]] = []
    known: dict[tuple[Any, ...], int] = {}
    for event in chosen.iter_rows(named=True):
        fields, issuer = _metadata_of(event, context)
        key = None
        if issuer is not None and not event[DeviceEvents.in_graph]:
            key = (issuer, fields.sequence if fields else None, event[DeviceEvents.device])
        if key is not None and key in known:
            row = rows[known[key]]
            row[CollectiveCalls.end_ns] = max(row[CollectiveCalls.end_ns], event[DeviceEvents.end_ns])
            members[known[key]].append(event[DeviceEvents.event_id])
            continue
        if key is not None:
            known[key] = len(rows)
        rows.append(_device_row(event, fields, context, sources, is_hip=is_hip))
        members.append([event[DeviceEvents.event_id]])
    return rows, members


def _metadata_of(event: Fields, context: _Context) -> tuple[CollectiveArgs | None, int | None]:
    """Return the metadata of an event's call and the operator that issued it."""
    chain = context.ancestors(event[DeviceEvents.op_id])
    issuer = next((op for op, name in chain if name == _RECORD or op in context.by_op), None)
    if issuer is None:
        issuer = next((op for op, name in chain if name.startswith(_C10D)), None)
    fields = context.by_device_row.get(event[FILE_ROW])
    if fields is None and issuer is not None:
        fields = context.by_op.get(issuer)
    elif fields is not None and issuer in context.by_op:
        # The kernel's own words win; the operator fills in what they leave out.
        around = context.by_op[issuer]
        fields = _filled(fields, around)
    return fields, issuer


def _filled(fields: CollectiveArgs, around: CollectiveArgs) -> CollectiveArgs:
    absent = [name for name in CollectiveArgs.__struct_fields__ if getattr(fields, name) in (None, NO_TEXT)]
    return msgspec.structs.replace(fields, **{name: getattr(around, name) for name in absent}) if absent else fields


def _device_row(
    event: Fields, fields: CollectiveArgs | None, context: _Context, sources: CallSources, *, is_hip: bool
) -> Fields:
    name = str(event[DeviceEvents.name])
    library = communication_library(name) or "custom"
    around = context.range_around(event[Launches.thread], event[_LAUNCHED])
    labels = [fields.collective if fields else None]
    labels.append(around[Annotations.name].partition(":")[2] if around else None)
    labels += [op_name for _, op_name in context.ancestors(event[DeviceEvents.op_id]) if op_name.startswith(_C10D)]
    labels.append(name)
    row = context.described(fields, tuple(label for label in labels if label))
    if row[CollectiveCalls.operation] in _ROLE_PLACES:
        known = _roles(row[CollectiveCalls.operation], _arguments(event[DeviceEvents.op_id], context, sources))
        row.update({column: value for column, value in known.items() if row[column] is None})
    if fields is None and around is not None:
        _sizes_of_range(row, around)
    row.update(
        {
            CollectiveCalls.library: "rccl" if library == "nccl" and is_hip else library,
            CollectiveCalls.device: event[DeviceEvents.device],
            CollectiveCalls.stream: event[DeviceEvents.stream],
            CollectiveCalls.start_ns: event[DeviceEvents.start_ns],
            CollectiveCalls.end_ns: event[DeviceEvents.end_ns],
            CollectiveCalls.op_id: event[DeviceEvents.op_id],
            CollectiveCalls.step_id: event[DeviceEvents.step_id],
        }
    )
    return row


def _arguments(op: int | None, context: _Context, sources: CallSources) -> list[str]:
    """Return the arguments of the c10d operator around an operator, none where they were not recorded."""
    c10d = next((each for each, name in context.ancestors(op) if name.startswith(_C10D)), None)
    return [] if c10d is None else _concrete({Ops.concrete_inputs: sources.ops[Ops.concrete_inputs][c10d]})


def _all_but_sequence(fields: CollectiveArgs) -> tuple[Any, ...]:
    values = msgspec.structs.astuple(fields)
    others = values[:_SEQUENCE_PLACE] + values[_SEQUENCE_PLACE + 1 :]
    return tuple([bytes(value) if type(value) is msgspec.Raw else value for value in others])


def _described(fields: CollectiveArgs | None, labels: Sequence[str], sources: CallSources) -> Fields:
    """Return the columns that metadata fills; `labels` name the operation, best first."""
    operations = (calls.operation(label) for label in labels)
    row: Fields = dict(_EMPTY_ROW)
    row[CollectiveCalls.operation] = next((found for found in operations if found != _UNKNOWN), _UNKNOWN)
    row[CollectiveCalls.variant] = calls.variant(labels[0], None, None) if labels else "plain"
    row[CollectiveCalls.has_metadata] = False
    if fields is None:
        return row
    name = None if fields.group_name is None else str(fields.group_name)
    description = None if fields.group_description is None else str(fields.group_description)
    in_split, out_split = calls.int_list(bytes(fields.in_split)), calls.int_list(bytes(fields.out_split))
    ranks = calls.group_ranks(fields, sources.groups)
    size = fields.group_size if fields.group_size is not None else len(ranks) if ranks else None
    group = sources.groups.get(name or "")
    width = calls.element_bytes(fields.dtype)
    row.update(
        {
            CollectiveCalls.variant: calls.variant(labels[0], in_split, out_split),
            CollectiveCalls.group_name: name,
            CollectiveCalls.group_description: description or (group.description if group else None),
            CollectiveCalls.group_ranks: ranks,
            CollectiveCalls.group_size: size if size is None or 0 < size < _MOST_RANKS else None,
            CollectiveCalls.sequence: _int64(fields.sequence),
            CollectiveCalls.source_rank: _rank(fields.source_rank),
            CollectiveCalls.destination_rank: _rank(fields.destination_rank),
            CollectiveCalls.dtype: fields.dtype,
            CollectiveCalls.in_elements: _int64(fields.in_elements),
            CollectiveCalls.out_elements: _int64(fields.out_elements),
            CollectiveCalls.in_bytes: _bytes(fields.in_elements, width),
            CollectiveCalls.out_bytes: _bytes(fields.out_elements, width),
            CollectiveCalls.in_split: in_split or None,
            CollectiveCalls.out_split: out_split or None,
            CollectiveCalls.asynchronous: _truth(fields.asynchronous),
        }
    )
    row[CollectiveCalls.has_metadata] = all(
        row[column] is not None
        for column in (CollectiveCalls.group_size, CollectiveCalls.dtype, CollectiveCalls.in_elements)
    )
    return row


def _sizes_of_range(row: Fields, around: Fields) -> None:
    """Fill in what the library's range says of its input."""
    sizes = calls.shape_elements(around[Ops.input_dims])
    dtype = calls.first_text(around[Ops.input_types])
    if not sizes or dtype is None:
        return
    width = calls.element_bytes(dtype)
    row[CollectiveCalls.dtype] = dtype
    row[CollectiveCalls.in_elements] = _int64(sum(sizes))
    row[CollectiveCalls.in_bytes] = _bytes(sum(sizes), width)
    if row[CollectiveCalls.operation] in ("all_reduce", "broadcast"):
        row[CollectiveCalls.out_elements] = row[CollectiveCalls.in_elements]
        row[CollectiveCalls.out_bytes] = row[CollectiveCalls.in_bytes]


def _int64(value: Any) -> int | None:
    return value if isinstance(value, int) and abs(value) < 2**63 else None


def _bytes(elements: Any, width: int | None) -> int | None:
    return None if elements is None or width is None else _int64(elements * width)


def _rank(value: Any) -> int | None:
    if isinstance(value, str) and value.isdigit() and len(value) < 8:
        value = int(value)
    return value if isinstance(value, int) and 0 <= value < _MOST_RANKS else None


def _truth(value: Any) -> bool | None:
    if isinstance(value, str):
        return {"true": True, "1": True, "false": False, "0": False}.get(value.lower())
    return None if value is None else bool(value)


def _host_calls(sources: CallSources) -> list[Fields]:
    """Return the ranges of the library, each named after the c10d operator that asked for it.

    The ranges stand on the library's threads, the operators on the caller's. A range belongs to the earliest operator
    that began before it, is not yet matched, and could have made it (operation and number of elements).
    """
    names = sources.host_ranges[Annotations.name].cast(pl.String)
    ranges = sources.host_ranges.filter(names.str.contains(r"^(?:gloo|mpi|ucc):\w+")).sort(Annotations.start_ns)
    waiting = _outer_c10d(sources.ops)
    rows: list[Fields] = []
    for around in ranges.iter_rows(named=True):
        match = _HOST_RANGE.match(around[Annotations.name])
        assert match is not None
        label = calls.operation(match[2])
        sizes = calls.shape_elements(around[Ops.input_dims])
        op = next((op for op in waiting if _could_make(op, label, sizes, around[Annotations.start_ns])), None)
        if op is not None:
            waiting.remove(op)
        rows.append(_host_row(around, match, op, sources))
    return rows


def _outer_c10d(ops: pl.DataFrame) -> list[Fields]:
    names: list[str] = ops[Ops.name].to_list()
    chosen = [row for row, name in enumerate(names) if name.startswith(_C10D)]
    columns = (Ops.op_id, Ops.parent_id, Ops.name, Ops.start_ns, Ops.input_dims, Ops.concrete_inputs)
    found: list[Fields] = []
    for op in ops.select(*columns)[chosen].iter_rows(named=True):
        parent: int | None = op[Ops.parent_id]
        if parent is not None and names[parent].startswith(_C10D):
            continue
        sizes = calls.shape_elements(op[Ops.input_dims])
        op["operation"] = calls.operation(str(op[Ops.name]).rpartition("::")[2])
        op["sizes"] = {*sizes, sum(sizes)}
        found.append(op)
    return found


def _could_make(op: Fields, label: str, sizes: tuple[int, ...], start_ns: int) -> bool:
    if op[Ops.start_ns] > start_ns or op["operation"] not in _GLOO_STANDS_FOR.get(label, {label}):
        return False
    return not sizes or sum(sizes) in op["sizes"]


def _host_row(around: Fields, match: re.Match[str], op: Fields | None, sources: CallSources) -> Fields:
    labels = [str(op[Ops.name]).rpartition("::")[2]] if op is not None else []
    row = _described(None, [*labels, match[2]], sources)
    _sizes_of_range(row, around)
    groups = list(sources.groups.values())
    group = groups[0] if len(groups) == 1 else None
    size = group.size if group is not None else None
    operation = row[CollectiveCalls.operation]
    elements = row[CollectiveCalls.in_elements]
    out_elements = _host_out_elements(operation, elements, size)
    width = calls.element_bytes(row[CollectiveCalls.dtype])
    concrete = _concrete(op)
    row.update(
        {
            CollectiveCalls.library: match[1],
            CollectiveCalls.group_name: group.name if group else None,
            CollectiveCalls.group_description: group.description if group else None,
            CollectiveCalls.group_ranks: list(group.ranks) if group and group.ranks else None,
            CollectiveCalls.group_size: size,
            CollectiveCalls.out_elements: out_elements,
            CollectiveCalls.out_bytes: _bytes(out_elements, width),
            **_roles(operation, concrete),
            CollectiveCalls.asynchronous: _truth(concrete[-2])
            if operation not in ("send", "recv") and len(concrete) > 2
            else None,
            CollectiveCalls.start_ns: around[Annotations.start_ns],
            CollectiveCalls.end_ns: around[Annotations.end_ns],
            CollectiveCalls.op_id: op[Ops.op_id] if op is not None else None,
            CollectiveCalls.has_metadata: op is not None and group is not None and elements is not None,
        }
    )
    return row


def _host_out_elements(operation: str, elements: int | None, size: int | None) -> int | None:
    if elements is None:
        return None
    if operation in ("all_reduce", "broadcast", "all_to_all"):
        return elements
    if operation == "all_gather":
        return elements * size if size else None
    if operation == "reduce_scatter":
        return elements // size if size and elements % size == 0 else None
    return None


def _concrete(op: Fields | None) -> list[str]:
    return [str(value) for value in calls.json_list(op[Ops.concrete_inputs])] if op is not None else []


def _roles(operation: str, concrete: list[str]) -> Fields:
    """Return root or peer, and tag, which c10d takes as arguments at places of their own, in the group's numbering."""
    place = _ROLE_PLACES.get(operation)
    peer = _argument(concrete, place)
    return {
        CollectiveCalls.source_rank: None if operation == "send" else _rank(peer),
        CollectiveCalls.destination_rank: _rank(peer) if operation == "send" else None,
        CollectiveCalls.tag: _argument(concrete, 3) if operation in ("send", "recv") else None,
    }


def _argument(concrete: list[str], place: int | None) -> int | None:
    """Return a whole number among an operator's arguments."""
    if place is None or place >= len(concrete):
        return None
    text = concrete[place]
    return int(text) if text.isdecimal() and len(text) < 19 else None
