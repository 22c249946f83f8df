"""Decoded records -> columns: each chunk becomes small frames at once, so that no record outlives its chunk."""

from __future__ import annotations

import re
import zlib
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import msgspec
import polars as pl

from scope.trace.events import (
    NO_TEXT,
    AnnotationArgs,
    ArrowEnd,
    ArrowStart,
    CollectiveArgs,
    DeviceArgs,
    ExactInstant,
    ExactSpan,
    FullArrowEnd,
    FullArrowStart,
    Instant,
    LaunchArgs,
    MemoryArgs,
    Metadata,
    MetadataArgs,
    OpArgs,
    PythonArgs,
    Span,
    SyncArgs,
    list_of,
)
from scope.trace.instants import ns_from_text, ns_series
from scope.trace.raw import (
    RawAnnotations,
    RawDevice,
    RawFlows,
    RawLaunches,
    RawMemory,
    RawOps,
    RawPython,
    RawSpans,
    RawSyncs,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scope.trace.columns import Table


KERNEL, MEMCPY, MEMSET, OP, LAUNCH, ANNOTATION, SYNC, PYTHON = range(8)

_CATEGORY_KINDS: Final = {
    "kernel": KERNEL,
    "Kernel": KERNEL,
    "concurrent_kernel": KERNEL,
    "mtia_ccp_events": KERNEL,
    "gpu_memcpy": MEMCPY,
    "Memcpy": MEMCPY,
    "gpu_memset": MEMSET,
    "Memset": MEMSET,
    "cpu_op": OP,
    "Operator": OP,
    "Runtime": LAUNCH,
    "runtime": LAUNCH,
    "driver": LAUNCH,
    "cuda_runtime": LAUNCH,
    "cuda_driver": LAUNCH,
    "hip_runtime": LAUNCH,
    "xpu_runtime": LAUNCH,
    "xpu_driver": LAUNCH,
    "mtia_runtime": LAUNCH,
    "glow_runtime": LAUNCH,
    "hpu_op": LAUNCH,
    "privateuse1_runtime": LAUNCH,
    "privateuse1_driver": LAUNCH,
    "cuda_sync": SYNC,
    "xpu_sync": SYNC,
    "python_function": PYTHON,
}
_MEMORY_NAME: Final = "[memory]"
BACKWARD_ARROWS: Final = frozenset({"fwdbwd", "forward_backward"})
_NUMBER_IN_TEXT: Final = re.compile(r"-?\d+")
_INT64: Final = range(-(2**63), 2**63)
_UINT64: Final = range(2**64)
_ARROWS: Final = (ArrowStart, ArrowEnd, FullArrowStart, FullArrowEnd)
_NAMED_RANGES: Final = frozenset(
    {
        "user_annotation",
        "cuda_event",
        "cuda_profiler_range",
        "xpu_scope_profiler",
        "mtia_insight",
        "mtia_counters",
        "external_correlation",
        "overhead",
        "Trace",
    }
)
_COLLECTIVE_CATEGORY: Final = "collective_comm"
"""Ranges of the host that a library reports (XPU), or of a device; the arguments tell."""
_ENDINGS: Final = (
    ("_runtime", LAUNCH),
    ("_driver", LAUNCH),
    ("_memcpy", MEMCPY),
    ("_memset", MEMSET),
    ("_sync", SYNC),
    ("_user_annotation", ANNOTATION),
)
"""What makers of other accelerators call their categories, as in GCU_MEMCPY; in lower case."""
DECODE_ERRORS: Final = (msgspec.MsgspecError, ValueError, RecursionError, OverflowError)
"""What decoding hostile bytes may raise: bad JSON or types, digits without end, brackets without end."""


_TABLES: Final[dict[int, tuple[type[Table], type[Any]]]] = {
    KERNEL: (RawDevice, DeviceArgs),
    MEMCPY: (RawDevice, DeviceArgs),
    MEMSET: (RawDevice, DeviceArgs),
    OP: (RawOps, OpArgs),
    LAUNCH: (RawLaunches, LaunchArgs),
    ANNOTATION: (RawAnnotations, AnnotationArgs),
    SYNC: (RawSyncs, SyncArgs),
    PYTHON: (RawPython, PythonArgs),
}
_ARGS_DECODERS: Final[dict[type[Any], msgspec.json.Decoder[list[Any]]]] = {
    kind: msgspec.json.Decoder(type=list_of(kind))
    for kind in (*(kind for _, kind in _TABLES.values()), CollectiveArgs, MemoryArgs, MetadataArgs)
}
_OLD_ANNOTATION: Final = re.compile(r"ProfilerStep#\d+$|enumerate\(DataLoader\)#|Optimizer\.\w+#|## ")


class Coder(dict[Any, int]):
    """Gives each distinct text the number of its first appearance; 0 is the empty text, which stands for none."""

    def __init__(self, nothing: str | bytes) -> None:
        super().__init__()
        self[nothing] = 0

    def __missing__(self, text: Any) -> int:
        """Number a new text."""
        code = self[text] = len(self)
        return code

    def texts(self) -> list[str | None]:
        """Return the texts by their numbers; the first is None."""
        known = [key.decode(errors="replace") if isinstance(key, bytes) else key for key in self]
        return [None, *known[1:]]


def _no_frames() -> dict[type[Table], list[pl.DataFrame]]:
    return {}


@dataclass
class Collected:
    """Everything that was read from one file, before linking."""

    names: Coder = field(default_factory=lambda: Coder(""))
    texts: Coder = field(default_factory=lambda: Coder(b""))
    frames: dict[type[Table], list[pl.DataFrame]] = field(default_factory=_no_frames)
    collective_args: list[tuple[bool, int, CollectiveArgs]] = field(
        default_factory=list[tuple[bool, int, CollectiveArgs]]
    )
    """Whether it stands on a device event (else an operator), its row in file order, and what it says."""
    threads: dict[int, str] = field(default_factory=dict[int, str])
    processes: dict[int, set[object]] = field(default_factory=lambda: {OP: set[object](), LAUNCH: set[object]()})
    """Ids of the processes whose operators, and whose calls, stand in the file."""
    arrow_categories: set[str] = field(default_factory=set[str])
    last_ns: int | None = None
    events_read: int = 0
    events_lost: int = 0
    events_repaired: int = 0

    def frame(self, *tables: type[Table]) -> pl.DataFrame:
        """Return all rows of the table whose columns these declare, and forget the pieces."""
        pieces = self.frames.pop(tables[-1], None)
        if pieces:
            return pl.concat(pieces, rechunk=False)
        return pl.DataFrame(schema={str(column): column.dtype for table in tables for column in table.columns()})

    def height(self, table: type[Table]) -> int:
        """Return the number of rows so far."""
        return sum(piece.height for piece in self.frames.get(table, ()))

    def num_nulls(self, table: type[Table], column: str) -> int:
        """Return how many values of a column are absent."""
        return sum(piece[column].null_count() for piece in self.frames.get(table, ()))


class Collector:
    """Takes the records of one file chunk by chunk."""

    def __init__(self, *, python_calls: bool, arrows: bool) -> None:
        self.collected = Collected()
        self._python_calls = python_calls
        self._arrows = arrows

    def add(self, events: Sequence[Any], *, exact: bool) -> None:
        """Take a chunk; with `exact`, records are those whose instants are texts.

        Raises:
            InexactError: An instant is a float that is too large; nothing was taken.
        """
        span_type = ExactSpan if exact else Span
        by_category: dict[str, list[Any]] = defaultdict(list)
        by_type: dict[type, list[Any]] = defaultdict(list)
        for event in events:
            if event.__class__ is span_type:
                by_category[event.cat].append(event)
            else:
                by_type[event.__class__].append(event)
        if not self._python_calls:
            by_category.pop("python_function", None)
        spans = [
            (
                category,
                members,
                _instants([e.ts for e in members], exact=exact),
                _instants([e.dur for e in members], exact=exact),
            )
            for category, members in by_category.items()
        ]
        memory = [event for event in by_type[ExactInstant if exact else Instant] if event.name == _MEMORY_NAME]
        memory_instants = _instants([event.ts for event in memory], exact=exact)
        # Nothing was kept so far, so a chunk that must be read again as text leaves no trace.
        self.collected.events_read += len(events)
        for category, members, starts, durations in spans:
            self._spans(category, members, starts, durations)
        if memory:
            self._memory(memory, memory_instants)
        if by_type[Metadata]:
            self._metadata(by_type[Metadata])
        for kind, members in by_type.items():
            if issubclass(kind, _ARROWS):
                self._flows(members, is_start=issubclass(kind, ArrowStart | FullArrowStart))

    def _spans(self, category: str, members: list[Any], starts: pl.Series, durations: pl.Series) -> None:
        if starts.null_count() or durations.null_count() or starts.min() == 0:
            is_bad = starts.is_null() | durations.is_null() | ((starts == 0) & (durations == 0))
            good = ~is_bad.fill_null(value=True)
            members = [event for event, is_good in zip(members, good, strict=True) if is_good]
            num_lost = len(starts) - len(members)
            starts, durations = starts.filter(good), durations.filter(good)
            self.collected.events_lost += num_lost
            self.collected.events_read -= num_lost
        if not members:
            return
        last: Any = (starts + durations).max()
        self.collected.last_ns = last if self.collected.last_ns is None else max(self.collected.last_ns, last)
        kind = _kind(category)
        if category == "Operator":
            # Old traces file the user's ranges under operators; only their names tell them apart.
            marks = [_OLD_ANNOTATION.match(event.name) is not None for event in members]
            self._split(members, (starts, durations), marks, ((ANNOTATION, "user_annotation"), (OP, "cpu_op")))
        elif kind is None:
            marks = [_ran_on_device(args) for args in self._args(AnnotationArgs, members)]
            self._split(members, (starts, durations), marks, ((KERNEL, category), (ANNOTATION, category)))
        else:
            self._one_kind(kind, category, members, (starts, durations))

    def _split(
        self,
        members: list[Any],
        instants: tuple[pl.Series, pl.Series],
        marks: list[bool],
        kinds: tuple[tuple[int, str], tuple[int, str]],
    ) -> None:
        """Take records of one category that are of two kinds, those that are marked of the first."""
        marked = pl.Series(marks, dtype=pl.Boolean)
        for (kind, category), wanted in zip(kinds, (marked, ~marked), strict=True):
            chosen = [event for event, is_wanted in zip(members, wanted, strict=True) if is_wanted]
            if chosen:
                self._one_kind(kind, category, chosen, (instants[0].filter(wanted), instants[1].filter(wanted)))

    def _one_kind(self, kind: int, category: str, members: list[Any], instants: tuple[pl.Series, pl.Series]) -> None:
        names = self.collected.names
        table, args_type = _TABLES[kind]
        columns = [
            pl.Series(RawSpans.name, [names[event.name] for event in members], dtype=pl.UInt32),
            instants[0].alias(RawSpans.start_ns),
            instants[1].alias(RawSpans.duration_ns),
            _thread_series(RawSpans.thread, [event.tid for event in members]),
        ]
        args = self._args(args_type, members)
        if kind <= MEMSET:
            self._note_collectives(RawDevice, members, args)
            columns += self._device_columns(kind, members, args)
            columns.append(_collective_marks(category, args))
        elif kind == OP:
            self.collected.processes[OP].update({event.pid for event in members})
            self._note_collectives(RawOps, members, args)
            columns += self._op_columns(args)
        elif kind == LAUNCH:
            self.collected.processes[LAUNCH].update({event.pid for event in members})
            columns += [_int_series(RawLaunches.correlation, [arg.correlation for arg in args]), _external_ids(args)]
        elif kind == SYNC:
            columns += self._sync_columns(members, args)
        elif kind == PYTHON:
            columns += _python_columns(args)
        else:
            columns += self._annotation_columns(category, args)
        self._keep(table, columns)

    def _args(self, kind: type[Any], members: list[Any]) -> list[Any]:
        """Decode the arguments of all records together; where one has a wrong type, each for itself."""
        text = b"[" + b",".join([event.args or b"{}" for event in members]) + b"]"
        try:
            decoded = _ARGS_DECODERS[kind].decode(text)
            if len(decoded) == len(members):
                return decoded
        except DECODE_ERRORS:
            pass
        found: list[Any] = []
        for event in members:
            args, is_whole = lenient_args(kind, bytes(event.args))
            found.append(args)
            self.collected.events_repaired += not is_whole
        return found

    def _device_columns(self, kind: int, members: list[Any], args: list[DeviceArgs]) -> list[pl.Series]:
        devices = [event.pid if arg.device is None else arg.device for arg, event in zip(args, members, strict=True)]
        streams = [event.tid if arg.stream is None else arg.stream for arg, event in zip(args, members, strict=True)]
        texts = self.collected.texts
        copy_kinds = [0 if arg.kind is None else texts[str(arg.kind).encode()] for arg in args]
        return [
            pl.Series(RawDevice.kind, [kind] * len(args), dtype=pl.UInt8),
            _int_series(RawDevice.device, devices),
            _int_series(RawDevice.stream, streams),
            _int_series(RawDevice.correlation, [arg.correlation for arg in args]),
            _external_ids(args),
            self._text_series(RawDevice.grid, [arg.grid for arg in args]),
            self._text_series(RawDevice.block, [arg.block for arg in args]),
            _int_series(RawDevice.registers, [arg.registers for arg in args]),
            _int_series(RawDevice.shared_memory, [arg.shared_memory for arg in args]),
            pl.Series(RawDevice.occupancy, [arg.occupancy for arg in args], dtype=pl.Float64),
            _int_series(RawDevice.bytes, [arg.bytes for arg in args]),
            pl.Series(RawDevice.copy_kind, copy_kinds, dtype=pl.UInt32),
            _int_series(RawDevice.graph_id, [arg.graph_id for arg in args]),
        ]

    def _op_columns(self, args: list[OpArgs]) -> list[pl.Series]:
        texts = self.collected.texts
        dims = [arg.old_input_dims if arg.input_dims is NO_TEXT else arg.input_dims for arg in args]
        files = [0 if arg.kernel_file is None else texts[arg.kernel_file.encode(errors="replace")] for arg in args]
        return [
            _external_ids(args),
            _int_series(RawOps.sequence_number, [arg.sequence_number for arg in args]),
            _int_series(RawOps.forward_thread, [arg.forward_thread for arg in args]),
            self._text_series(RawOps.input_dims, dims),
            self._text_series(RawOps.input_types, [arg.input_types for arg in args]),
            self._text_series(RawOps.input_strides, [arg.input_strides for arg in args]),
            self._text_series(RawOps.concrete_inputs, [arg.concrete_inputs for arg in args]),
            pl.Series(RawOps.kernel_file, files, dtype=pl.UInt32),
        ]

    def _annotation_columns(self, category: str, args: list[AnnotationArgs]) -> list[pl.Series]:
        on_device = category.lower().endswith("_user_annotation") and category != "user_annotation"
        code = self.collected.names["gpu_user_annotation" if on_device else category]
        return [
            pl.Series(RawAnnotations.category, [code] * len(args), dtype=pl.UInt32),
            _external_ids(args),
            self._text_series(RawAnnotations.input_dims, [arg.input_dims for arg in args]),
            self._text_series(RawAnnotations.input_types, [arg.input_types for arg in args]),
        ]

    def _sync_columns(self, members: list[Any], args: list[SyncArgs]) -> list[pl.Series]:
        names = self.collected.names
        kinds = [names[arg.sync_kind or event.name] for arg, event in zip(args, members, strict=True)]
        return [
            pl.Series(RawSyncs.kind, kinds, dtype=pl.UInt32),
            _int_series(RawSyncs.device, [arg.device for arg in args]),
            _int_series(RawSyncs.stream, [arg.stream for arg in args]),
            _int_series(RawSyncs.waited_stream, [arg.waited_stream for arg in args]),
            _int_series(RawSyncs.waited_correlation, [arg.waited_correlation for arg in args]),
            _int_series(RawSyncs.correlation, [arg.correlation for arg in args]),
        ]

    def _text_series(self, name: str, raws: list[msgspec.Raw]) -> pl.Series:
        texts = self.collected.texts
        if raws.count(NO_TEXT) == len(raws):
            return pl.zeros(len(raws), dtype=pl.UInt32, eager=True).alias(name)
        return pl.Series(name, [0 if raw is NO_TEXT else texts[bytes(raw)] for raw in raws], dtype=pl.UInt32)

    def _memory(self, members: list[Any], instants: pl.Series) -> None:
        args: list[MemoryArgs] = self._args(MemoryArgs, members)
        addresses = [a.address if a.address is not None and a.address in _UINT64 else None for a in args]
        columns = [
            instants.alias(RawMemory.time_ns),
            _thread_series(RawMemory.thread, [event.tid for event in members]),
            _int_series(RawMemory.device_type, [arg.device_type for arg in args]),
            _int_series(RawMemory.device, [arg.device_id for arg in args]),
            pl.Series(RawMemory.address, addresses, dtype=pl.UInt64),
            _int_series(RawMemory.size_bytes, [arg.size for arg in args]),
            _int_series(RawMemory.allocated_bytes, [arg.total_allocated for arg in args]),
            _int_series(RawMemory.reserved_bytes, [arg.total_reserved for arg in args]),
        ]
        num_lost = len(members)
        if columns[0].null_count() or columns[5].null_count():
            columns = pl.DataFrame(columns).drop_nulls([RawMemory.time_ns, RawMemory.size_bytes]).get_columns()
        num_lost -= len(columns[0])
        self.collected.events_lost += num_lost
        self.collected.events_read -= num_lost
        self._keep(RawMemory, columns)

    def _flows(self, members: list[Any], *, is_start: bool) -> None:
        self.collected.arrow_categories.update({event.cat for event in members})
        if not self._arrows:
            return
        columns = [
            pl.Series(RawFlows.is_start, [is_start] * len(members), dtype=pl.Boolean),
            pl.Series(RawFlows.is_backward, [event.cat in BACKWARD_ARROWS for event in members], dtype=pl.Boolean),
            _int_series(RawFlows.id, [event.id for event in members]),
            _instants([event.ts for event in members], exact=True).alias(RawFlows.time_ns),
            _thread_series(RawFlows.thread, [event.tid for event in members]),
            _int_series(RawFlows.process, [event.pid for event in members]),
        ]
        self._keep(RawFlows, pl.DataFrame(columns).drop_nulls([RawFlows.time_ns, RawFlows.id]).get_columns())

    def _note_collectives(self, table: type[Table], members: list[Any], args: list[Any]) -> None:
        marked = [row for row, arg in enumerate(args) if arg.collective is not None]
        if not marked:
            return
        base = self.collected.height(table)
        found: list[CollectiveArgs] = self._args(CollectiveArgs, [members[row] for row in marked])
        self.collected.collective_args += [
            (table is RawDevice, base + row, arg) for row, arg in zip(marked, found, strict=True)
        ]

    def _metadata(self, members: list[Any]) -> None:
        chosen = [event for event in members if event.name == "thread_name"]
        for event, args in zip(chosen, self._args(MetadataArgs, chosen), strict=True):
            if args.label is not None:
                self.collected.threads.setdefault(_thread_number(event.tid), str(args.label).strip())

    def _keep(self, table: type[Table], columns: list[pl.Series]) -> None:
        if len(columns[0]):
            self.collected.frames.setdefault(table, []).append(pl.DataFrame(columns))


def _kind(category: str) -> int | None:
    """Return what the records of a category are; None for an unknown one, of which each record tells."""
    kind = _CATEGORY_KINDS.get(category)
    if kind is not None or category in _NAMED_RANGES:
        return ANNOTATION if kind is None else kind
    return next((kind for ending, kind in _ENDINGS if category.lower().endswith(ending)), None)


def _ran_on_device(args: AnnotationArgs) -> bool:
    return isinstance(args.device, int) and isinstance(args.stream, int) and args.stream >= 0


def _collective_marks(category: str, args: list[DeviceArgs]) -> pl.Series:
    is_whole = category == _COLLECTIVE_CATEGORY
    return pl.Series(
        RawDevice.is_collective, [is_whole or arg.collective is not None for arg in args], dtype=pl.Boolean
    )


def _python_columns(args: list[PythonArgs]) -> list[pl.Series]:
    return [
        _int_series(RawPython.python_id, [arg.python_id for arg in args]),
        _int_series(RawPython.parent_id, [arg.parent_id for arg in args]),
        _int_series(RawPython.module_id, [arg.module_id for arg in args]),
    ]


def _external_ids(args: Sequence[Any]) -> pl.Series:
    ids = [arg.old_external_id if arg.external_id is None else arg.external_id for arg in args]
    return _int_series(RawOps.external_id, ids)


def _instants(values: Sequence[Any], *, exact: bool) -> pl.Series:
    if exact:
        return pl.Series([ns_from_text(bytes(value)) for value in values], dtype=pl.Int64)
    return ns_series(values)


def lenient_args(kind: type[Any], text: bytes) -> tuple[Any, bool]:
    """Decode arguments of which some may have wrong types; say whether all could be used."""
    try:
        return msgspec.json.decode(text or b"{}", type=kind, strict=False), True
    except DECODE_ERRORS:
        pass
    good: dict[str, msgspec.Raw] = {}
    try:
        fields = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    except DECODE_ERRORS:
        return kind(), False
    for key, value in fields.items():
        try:
            msgspec.json.decode(msgspec.json.encode({key: value}), type=kind, strict=False)
        except DECODE_ERRORS:
            continue
        good[key] = value
    return msgspec.json.decode(msgspec.json.encode(good), type=kind, strict=False), False


def _number(value: object) -> int | None:
    """Return the whole number that a JSON value stands for, or None."""
    if isinstance(value, str):
        try:
            number = int(value, 0)
        except ValueError:
            match = _NUMBER_IN_TEXT.search(value[:64])
            number = int(match[0]) if match and len(match[0]) < 20 else None
    else:
        number = value if isinstance(value, int) else None
    return number if number is not None and number in _INT64 else None


def _int_series(name: str, values: Sequence[object]) -> pl.Series:
    try:
        return pl.Series(name, values, dtype=pl.Int64)
    except (TypeError, OverflowError):
        return pl.Series(name, [_number(value) for value in values], dtype=pl.Int64)


def _thread_number(tid: object) -> int:
    number = _number(tid)
    # A name without a number still tells threads apart.
    return number if number is not None else -2 - zlib.crc32(str(tid).encode(errors="replace"))


def _thread_series(name: str, values: Sequence[object]) -> pl.Series:
    try:
        series = pl.Series(name, values, dtype=pl.Int64)
        if series.null_count() == 0:
            return series
    except (TypeError, OverflowError):
        pass
    return pl.Series(name, [_thread_number(value) for value in values], dtype=pl.Int64)
