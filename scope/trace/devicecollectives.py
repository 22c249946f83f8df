"""Collective calls on devices: kernels of communication, put together where one call launched several.

A job of many small collectives has tens of thousands of calls, so what a call says is described once for all calls
that say the same, and all else is taken column by column.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Any, Final, NamedTuple

import msgspec
import polars as pl

from scope.structs import Record
from scope.trace.calldescriptions import (
    C10D,
    ROLE_PLACES,
    CallSources,
    Fields,
    concrete_inputs,
    described,
    fill_sizes,
    int64,
    roles,
)
from scope.trace.callsizes import NO_SIZES, sizes_of_operator
from scope.trace.classes import communication_library
from scope.trace.eager import taken
from scope.trace.schema import Annotations, CollectiveCalls, DeviceEvents, Launches, Ops

_RECORD: Final = "record_param_comms"
_FEW: Final = 1024
"""Rows of which a query would take longer than a loop."""
_SIZELESS: Final = ("barrier", "unknown")
_RANGE: Final = r"^(?:nccl|rccl|hccl|xccl):\w+"


class DeviceCalls(Record, frozen=True):
    """The calls in the order of their starts, column by column.

    Attributes:
        descriptions: What calls say that is the same for many of them; see `described`.
        codes: Description of each call.
        sequences: `Seq` of each call.
        first_events: Event with which each call begins.
        ends: End of the last event of each call.
        events: Every event of communication.
        call_ids: Call of each of these events.
    """

    descriptions: list[Fields] = msgspec.field(default_factory=list[Fields])
    codes: list[int] = msgspec.field(default_factory=list[int])
    sequences: list[int | None] = msgspec.field(default_factory=list["int | None"])
    first_events: list[int] = msgspec.field(default_factory=list[int])
    ends: list[int] = msgspec.field(default_factory=list[int])
    events: list[int] = msgspec.field(default_factory=list[int])
    call_ids: list[int] = msgspec.field(default_factory=list[int])


class _Around(NamedTuple):
    """What the operators around an event say."""

    recorded: int | None
    """The innermost operator that torch recorded the call with, or that bears its metadata."""
    c10d: int | None
    """The innermost operator of c10d."""
    names: int | None
    """Number of the names of all operators of c10d, see `_Chains`; None where there is none."""

    @property
    def issuer(self) -> int | None:
        """Return the operator that issued the call."""
        return self.c10d if self.recorded is None else self.recorded


_NOTHING_AROUND: Final = _Around(None, None, None)


class _Chains:
    """Names of nested operators, innermost first: each is a number, and what is around it is told by another."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[str, int | None], int] = {}
        self._links: list[tuple[str, int | None]] = []

    def number(self, name: str, around: int | None) -> int:
        """Return the number of a name inside others; the same names in the same order have the same."""
        link = (name, around)
        number = self._numbers.setdefault(link, len(self._links))
        if number == len(self._links):
            self._links.append(link)
        return number

    def innermost(self, number: int | None) -> str | None:
        """Return the first of the names."""
        return None if number is None else self._links[number][0]

    def names(self, number: int | None) -> list[str]:
        """Return the names, innermost first."""
        found: list[str] = []
        while number is not None:
            name, number = self._links[number]
            found.append(name)
        return found


def device_calls(sources: CallSources) -> DeviceCalls:
    """Return the calls that the kernels of communication were part of."""
    frame, file_rows = sources.devices.frame, sources.devices.raw_rows
    is_chosen = frame[DeviceEvents.category] == "communication"
    if not is_chosen.any():
        return DeviceCalls()
    chosen = frame.filter(is_chosen)
    names = _TextColumn(chosen[DeviceEvents.name])
    launch_ids = chosen[DeviceEvents.launch_id]
    threads = taken(sources.launches[Launches.thread], launch_ids).to_list()
    instants = taken(sources.launches[Launches.start_ns], launch_ids).to_list()
    columns = (
        chosen[DeviceEvents.event_id].to_list(),
        chosen[DeviceEvents.device].to_list(),
        chosen[DeviceEvents.op_id].to_list(),
        chosen[DeviceEvents.in_graph].to_list(),
        chosen[DeviceEvents.end_ns].to_list(),
        file_rows.filter(is_chosen).to_list(),
    )
    context, found = _Context(sources), DeviceCalls()
    open_calls: dict[tuple[int, int | None, int], int] = {}
    for row, (event, device, op, in_graph, end, file_row) in enumerate(zip(*columns, strict=True)):
        around = context.around(op)
        issuer = around.issuer
        said, sequence = context.metadata(file_row, issuer)
        call_id = len(found.codes)
        if issuer is not None and not in_graph:
            key = (issuer, sequence, device)
            call_id = open_calls.setdefault(key, call_id)
        found.events.append(event)
        found.call_ids.append(call_id)
        if call_id < len(found.codes):
            found.ends[call_id] = max(found.ends[call_id], end)
            continue
        sizes = context.range_around(threads[row], instants[row])
        found.codes.append(context.describe(said, around, sizes, names[row]))
        found.sequences.append(int64(sequence))
        found.first_events.append(event)
        found.ends.append(end)
    found.descriptions.extend(context.descriptions)
    return found


class _TextColumn:
    """The texts of a categorical column, of which each distinct one is made once."""

    def __init__(self, column: pl.Series) -> None:
        if len(column) < _FEW:
            texts: list[str | None] = column.to_list()
            codes = {text: code for code, text in enumerate(dict.fromkeys(texts))}
            self.by_code: dict[int | None, str | None] = {code: text for text, code in codes.items()}
            self.codes: list[int | None] = [codes[text] for text in texts]
            return
        distinct = column.unique()
        self.by_code = dict(zip(distinct.to_physical().to_list(), distinct.cast(pl.String).to_list(), strict=True))
        self.codes = column.to_physical().to_list()

    def __getitem__(self, row: int) -> str | None:
        return self.by_code[self.codes[row]]


class _Range(NamedTuple):
    """A range that the library put around the launch of a call."""

    end_ns: int
    label: str
    dims: str | None
    types: str | None


class _Asked(NamedTuple):
    """What a description depends on beside metadata and names; None where it is not asked for."""

    dims: str | None
    types: str | None
    arguments: tuple[str | None, str | None, str | None] | None
    inputs: str | None


class _Context:
    """What stands around an operator or call: metadata, ranges of the library, operators of c10d."""

    def __init__(self, sources: CallSources) -> None:
        self.descriptions: list[Fields] = []
        self._sources = sources
        self._coder = sources.collected.collectives
        self._of_events = sources.collected.collectives_of_events
        self._by_op = _metadata_of_ops(sources)
        self._ranges = _ranges_by_thread(sources.host_ranges)
        names = _TextColumn(sources.ops[Ops.name])
        self._op_names = names.codes
        self._records = {code for code, name in names.by_code.items() if name == _RECORD}
        self._c10d = {code: name for code, name in names.by_code.items() if name is not None and name.startswith(C10D)}
        self._parents: list[int | None] = sources.ops[Ops.parent_id].to_list()
        self._known_around: dict[int | None, _Around] = {None: _NOTHING_AROUND}
        self._chains = _Chains()
        self._codes: dict[tuple[Any, ...], int] = {}
        self._described: dict[tuple[Any, ...], Fields] = {}
        self._texts: dict[str, _TextColumn | None] = {}
        calls = _TextColumn(sources.launches[Launches.name])
        self._is_hip = any(name is not None and name.startswith("hip") for name in calls.by_code.values())

    def around(self, op: int | None) -> _Around:
        """Return what an operator and those around it say."""
        path: list[int] = []
        place = op
        while place not in self._known_around:
            assert place is not None
            path.append(place)
            place = self._parents[place]
        found = self._known_around[place]
        for inner in reversed(path):
            found = self._known_around[inner] = self._with_operator(inner, found)
        return found

    def _with_operator(self, op: int, around: _Around) -> _Around:
        name = self._op_names[op]
        recorded = op if name in self._records or op in self._by_op else around.recorded
        label = self._c10d.get(name)
        if label is not None:
            return _Around(recorded, op, self._chains.number(label, around.names))
        return around if recorded == around.recorded else around._replace(recorded=recorded)

    def metadata(self, file_row: int, issuer: int | None) -> tuple[int | None, int | None]:
        """Return the code of what an event and the operator that issued it say of their call, and the sequence."""
        own = self._of_events.get(file_row)
        of_op = self._by_op.get(issuer) if issuer is not None else None
        if own is None or of_op is None:
            return own or of_op or (None, None)
        # The kernel's own words win; the operator fills in what they leave out.
        return self._coder.filled(own[0], of_op[0]), of_op[1] if own[1] is None else own[1]

    def range_around(self, thread: int | None, instant: int | None) -> _Range | None:
        """Return the range of the library that a thread was in at an instant."""
        if instant is None:
            return None
        starts, found = self._ranges.get(thread, ([], []))
        place = bisect_right(starts, instant) - 1
        return found[place] if place >= 0 and found[place].end_ns > instant else None

    def describe(self, said: int | None, around: _Around, sizes: _Range | None, name: str | None) -> int:
        """Return the number of the description of a call: calls of one place in the training loop share theirs."""
        name = name or ""
        label = None if sizes is None else sizes.label
        key = (said, label, around.names, name)
        row = self._described.get(key)
        if row is None:
            fields = None if said is None else self._coder.args(said)
            labels = (None if fields is None else fields.collective, label, *self._chains.names(around.names), name)
            row = self._described[key] = described(fields, [each for each in labels if each], self._sources)
        has_role = row[CollectiveCalls.operation] in ROLE_PLACES
        # What metadata say of sizes is not asked for again.
        is_sized = row[CollectiveCalls.in_elements] is not None or row[CollectiveCalls.out_elements] is not None
        asks = _Asked(
            dims=None if sizes is None or is_sized else sizes.dims,
            types=None if sizes is None or is_sized else sizes.types,
            arguments=None if around.c10d is None or is_sized else self._arguments_of(around.c10d),
            inputs=self._inputs_of(around.c10d) if has_role else None,
        )
        code = self._codes.setdefault((key, asks), len(self.descriptions))
        if code == len(self.descriptions):
            self.descriptions.append(self._completed(row, asks, around, is_sized=is_sized, name=name))
        return code

    def _completed(self, row: Fields, asked: _Asked, around: _Around, *, is_sized: bool, name: str) -> Fields:
        """Return a description with what ranges, arguments and the kernel's name add."""
        row = dict(row)
        operation, inputs = row[CollectiveCalls.operation], asked.inputs
        if operation in ROLE_PLACES:
            told = roles(operation, concrete_inputs(inputs))
            row.update({column: value for column, value in told.items() if row[column] is None})
        if not is_sized and operation not in _SIZELESS:
            arguments, operator = asked.arguments, self._chains.innermost(around.names)
            own = NO_SIZES if arguments is None or operator is None else sizes_of_operator(operator, *arguments)
            fill_sizes(row, own, asked.dims, asked.types, sources=self._sources)
        library = communication_library(name) or "custom"
        row[CollectiveCalls.library] = "rccl" if library == "nccl" and self._is_hip else library
        return row

    def _inputs_of(self, c10d: int | None) -> str | None:
        """Return the text of the arguments of an operator."""
        return None if c10d is None else self._text_of(Ops.concrete_inputs, c10d)

    def _arguments_of(self, c10d: int) -> tuple[str | None, str | None, str | None]:
        """Return the texts that tell the sizes of a call: shapes, types and other arguments of its operator."""
        dims, types = self._text_of(Ops.input_dims, c10d), self._text_of(Ops.input_types, c10d)
        return dims, types, self._text_of(Ops.concrete_inputs, c10d)

    def _text_of(self, column: str, op: int) -> str | None:
        if column not in self._texts:
            whole = self._sources.ops[column]
            # Traces without shapes are many, and large.
            self._texts[column] = None if whole.null_count() == len(whole) else _TextColumn(whole)
        texts = self._texts[column]
        return None if texts is None else texts[op]


def _metadata_of_ops(sources: CallSources) -> dict[int, tuple[int, int | None]]:
    """Return by operator what stands by its row in file order."""
    told = sources.collected.collectives_of_ops
    if not told:
        return {}
    op_of_row = sources.op_file_rows.arg_sort()
    ops = taken(op_of_row, pl.Series(list(told), dtype=pl.UInt32)).to_list()
    return dict(zip(ops, told.values(), strict=True))


def _ranges_by_thread(host_ranges: pl.DataFrame) -> dict[int | None, tuple[list[int], list[_Range]]]:
    names = host_ranges[Annotations.name].cast(pl.String)
    is_chosen = names.str.contains(_RANGE)
    if not is_chosen.any():
        return {}
    chosen = host_ranges.filter(is_chosen).sort(Annotations.start_ns)
    columns = (
        chosen[Annotations.thread].to_list(),
        chosen[Annotations.start_ns].to_list(),
        chosen[Annotations.end_ns].to_list(),
        chosen[Annotations.name].cast(pl.String).to_list(),
        chosen[Ops.input_dims].cast(pl.String).to_list(),
        chosen[Ops.input_types].cast(pl.String).to_list(),
    )
    by_thread: dict[int | None, tuple[list[int], list[_Range]]] = {}
    for thread, start, end, name, dims, types in zip(*columns, strict=True):
        starts, ranges = by_thread.setdefault(thread, ([], []))
        starts.append(start)
        ranges.append(_Range(end, name.partition(":")[2], dims, types))
    return by_thread
