"""Decoded records -> columns: each chunk becomes small frames at once, so that no record outlives its chunk."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, field
from itertools import compress
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
from scope.trace.pending import ENOUGH_ROWS, Pending, Values, int_series, thread_number
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
from scope.trace.schema import (
    Annotations,
    CollectiveCalls,
    DeviceEvents,
    Launches,
    Memory,
    Ops,
    PythonCalls,
    Syncs,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from scope.trace.columns import Column, Table
    from scope.trace.narrowing import Tables


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
_RAW_OF: Final[dict[type[Table], type[Table]]] = {
    RawDevice: DeviceEvents,
    RawOps: Ops,
    RawLaunches: Launches,
    RawAnnotations: Annotations,
    RawSyncs: Syncs,
    RawPython: PythonCalls,
    RawMemory: Memory,
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


def _nothing_pending() -> dict[type[Table], Pending]:
    return defaultdict(Pending)


@dataclass
class Collected:
    """Everything that was read from one file, before linking."""

    names: Coder = field(default_factory=lambda: Coder(""))
    texts: Coder = field(default_factory=lambda: Coder(b""))
    frames: dict[type[Table], list[pl.DataFrame]] = field(default_factory=_no_frames)
    pending: dict[type[Table], Pending] = field(default_factory=_nothing_pending)
    collective_args: list[tuple[bool, int, CollectiveArgs]] = field(
        default_factory=list[tuple[bool, int, CollectiveArgs]]
    )
    """Whether it stands on a device event (else an operator), its row in file order, and what it says."""
    threads: dict[int, str] = field(default_factory=dict[int, str])
    processes: dict[int, set[object]] = field(default_factory=lambda: {OP: set[object](), LAUNCH: set[object]()})
    """Ids of the processes whose operators, and whose calls, stand in the file."""
    arrow_categories: set[str] = field(default_factory=set[str])
    last_ns: int | None = None
    num_device_events: int = 0
    events_read: int = 0
    events_lost: int = 0
    events_repaired: int = 0

    def keep(self, table: type[Table], rows: int, values: Mapping[Column, Values]) -> None:
        """Take rows of a table."""
        pending = self.pending[table]
        pending.add(rows, values)
        if pending.rows >= ENOUGH_ROWS:
            self._settle(table)

    def frame(self, *tables: type[Table]) -> pl.DataFrame:
        """Return all rows of the table whose columns these declare, and forget the pieces."""
        self._settle(tables[-1])
        pieces = self.frames.pop(tables[-1], None)
        if pieces:
            return pl.concat(pieces, rechunk=False)
        return pl.DataFrame(schema={str(column): column.dtype for table in tables for column in table.columns()})

    def height(self, table: type[Table]) -> int:
        """Return the number of rows so far."""
        return sum(piece.height for piece in self.frames.get(table, ())) + self.pending[table].rows

    def num_nulls(self, table: type[Table], column: str) -> int:
        """Return how many values of a column are absent."""
        self._settle(table)
        return sum(piece[column].null_count() for piece in self.frames.get(table, ()))

    def _settle(self, table: type[Table]) -> None:
        if self.pending[table].rows:
            self.frames.setdefault(table, []).append(self.pending[table].take())


class Collector:
    """Takes the records of one file chunk by chunk.

    Records of tables that are not `loaded` are counted, but their arguments neither decoded nor kept; operators keep
    their bare spans where device events are loaded, since a kernel's category may hang on the operator around it.
    """

    def __init__(self, *, loaded: Tables, arrows: bool) -> None:
        self.collected = Collected()
        self._python_calls = PythonCalls in loaded
        self._arrows = arrows
        self._collectives = CollectiveCalls in loaded
        self._tables = {raw for raw, table in _RAW_OF.items() if table in loaded}
        self._bare_ops = DeviceEvents in loaded and Ops not in loaded

    def add(self, events: Sequence[Any], *, exact: bool) -> None:
        """Take a chunk; with `exact`, records are those whose instants are texts.

        Raises:
            InexactError: The chunk needs instants as texts; nothing of it was taken.
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
        groups = list(by_category.values())
        spans = _Instants.of([event for members in groups for event in members], exact=exact)
        memory = by_type[ExactInstant if exact else Instant] if RawMemory in self._tables else []
        memory = [event for event in memory if event.name == _MEMORY_NAME]
        memory_instants = _instants([event.ts for event in memory], exact=exact)
        # Nothing was kept so far, so a chunk that must be read again as text leaves no trace.
        self.collected.events_read += len(events)
        if spans.are_sound:
            self._note_last(spans)
        first = 0
        for category, members in by_category.items():
            size = len(members)
            self._spans(category, members, spans.piece(first, size))
            first += size
        if memory:
            self._memory(memory, memory_instants)
        if by_type[Metadata]:
            self._metadata(by_type[Metadata])
        for kind, members in by_type.items():
            if issubclass(kind, _ARROWS):
                self._flows(members, is_start=issubclass(kind, ArrowStart | FullArrowStart))

    def _note_last(self, spans: _Instants) -> None:
        last: Any = (spans.starts + spans.durations).max()
        if last is not None:
            self.collected.last_ns = last if self.collected.last_ns is None else max(self.collected.last_ns, last)

    def _spans(self, category: str, members: list[Any], spans: _Instants) -> None:
        if not spans.are_sound:
            good = spans.which_are_sound()
            members = [event for event, is_good in zip(members, good, strict=True) if is_good]
            num_lost = len(good) - len(members)
            spans = _Instants(spans.starts.filter(good), spans.durations.filter(good), are_sound=True)
            self.collected.events_lost += num_lost
            self.collected.events_read -= num_lost
            self._note_last(spans)
        if not members:
            return
        kind = _kind(category)
        instants = (spans.starts, spans.durations)
        if category == "Operator":
            # Old traces file the user's ranges under operators; only their names tell them apart.
            marks = [_OLD_ANNOTATION.match(event.name) is not None for event in members]
            self._split(members, instants, marks, ((ANNOTATION, "user_annotation"), (OP, "cpu_op")))
        elif kind is None:
            marks = [_ran_on_device(args) for args in self._args(AnnotationArgs, members)]
            self._split(members, instants, marks, ((KERNEL, category), (ANNOTATION, category)))
        else:
            self._one_kind(kind, category, members, instants)

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
        if kind in (OP, LAUNCH):
            self.collected.processes[kind].update({event.pid for event in members})
        if table is RawDevice:
            self.collected.num_device_events += len(members)
        if table not in self._tables and not (kind == OP and self._bare_ops):
            return
        columns: dict[Column, Values] = {
            RawSpans.name: [names[event.name] for event in members],
            RawSpans.start_ns: instants[0],
            RawSpans.duration_ns: instants[1],
            RawSpans.thread: [event.tid for event in members],
        }
        if table not in self._tables:
            self.collected.keep(table, len(members), columns)
            return
        args = self._args(args_type, members)
        if kind <= MEMSET:
            self._note_collectives(RawDevice, members, args)
            columns |= self._device_columns(kind, members, args)
            columns[RawDevice.is_collective] = _collective_marks(category, args)
        elif kind == OP:
            self._note_collectives(RawOps, members, args)
            columns |= self._op_columns(args)
        elif kind == LAUNCH:
            columns[RawLaunches.correlation] = [arg.correlation for arg in args]
            columns[RawLaunches.external_id] = _external_ids(args)
        elif kind == SYNC:
            columns |= self._sync_columns(members, args)
        elif kind == PYTHON:
            columns |= _python_columns(args)
        else:
            columns |= self._annotation_columns(category, args)
        self.collected.keep(table, len(members), columns)

    def _args(self, kind: type[Any], members: list[Any]) -> list[Any]:
        """Decode the arguments of all records together; where one has a wrong type, each for itself."""
        if not members:
            return []
        raws: list[Any] = [event.args or b"{}" for event in members]
        # The brackets go into the join, since putting them around its result would copy it twice.
        raws[0] = b"[" + bytes(raws[0])
        raws[-1] = bytes(raws[-1]) + b"]"
        try:
            decoded = _ARGS_DECODERS[kind].decode(b",".join(raws))
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

    def _device_columns(self, kind: int, members: list[Any], args: list[DeviceArgs]) -> dict[Column, Values]:
        devices = [arg.device for arg in args]
        if None in devices:
            devices = [event.pid if known is None else known for known, event in zip(devices, members, strict=True)]
        streams = [arg.stream for arg in args]
        if None in streams:
            streams = [event.tid if known is None else known for known, event in zip(streams, members, strict=True)]
        texts = self.collected.texts
        copy_kinds = [0 if arg.kind is None else texts[str(arg.kind).encode()] for arg in args]
        return {
            RawDevice.kind: [kind] * len(args),
            RawDevice.device: devices,
            RawDevice.stream: streams,
            RawDevice.correlation: [arg.correlation for arg in args],
            RawDevice.external_id: _external_ids(args),
            RawDevice.grid: self._codes([arg.grid for arg in args]),
            RawDevice.block: self._codes([arg.block for arg in args]),
            RawDevice.registers: [arg.registers for arg in args],
            RawDevice.shared_memory: [arg.shared_memory for arg in args],
            RawDevice.occupancy: [arg.occupancy for arg in args],
            RawDevice.bytes: [arg.bytes for arg in args],
            RawDevice.copy_kind: copy_kinds,
            RawDevice.graph_id: [arg.graph_id for arg in args],
        }

    def _op_columns(self, args: list[OpArgs]) -> dict[Column, Values]:
        texts = self.collected.texts
        dims = [arg.old_input_dims if arg.input_dims is NO_TEXT else arg.input_dims for arg in args]
        files = [0 if arg.kernel_file is None else texts[arg.kernel_file.encode(errors="replace")] for arg in args]
        return {
            RawOps.external_id: _external_ids(args),
            RawOps.sequence_number: [arg.sequence_number for arg in args],
            RawOps.forward_thread: [arg.forward_thread for arg in args],
            RawOps.input_dims: self._codes(dims),
            RawOps.input_types: self._codes([arg.input_types for arg in args]),
            RawOps.input_strides: self._codes([arg.input_strides for arg in args]),
            RawOps.concrete_inputs: self._codes([arg.concrete_inputs for arg in args]),
            RawOps.kernel_file: files,
        }

    def _annotation_columns(self, category: str, args: list[AnnotationArgs]) -> dict[Column, Values]:
        on_device = category.lower().endswith("_user_annotation") and category != "user_annotation"
        code = self.collected.names["gpu_user_annotation" if on_device else category]
        return {
            RawAnnotations.category: [code] * len(args),
            RawAnnotations.external_id: _external_ids(args),
            RawAnnotations.input_dims: self._codes([arg.input_dims for arg in args]),
            RawAnnotations.input_types: self._codes([arg.input_types for arg in args]),
        }

    def _sync_columns(self, members: list[Any], args: list[SyncArgs]) -> dict[Column, Values]:
        names = self.collected.names
        kinds = [names[arg.sync_kind or event.name] for arg, event in zip(args, members, strict=True)]
        return {
            RawSyncs.kind: kinds,
            RawSyncs.device: [arg.device for arg in args],
            RawSyncs.stream: [arg.stream for arg in args],
            RawSyncs.waited_stream: [arg.waited_stream for arg in args],
            RawSyncs.waited_correlation: [arg.waited_correlation for arg in args],
            RawSyncs.correlation: [arg.correlation for arg in args],
        }

    def _codes(self, raws: list[msgspec.Raw]) -> list[int]:
        texts = self.collected.texts
        nothing = [NO_TEXT] * len(raws)
        return [0] * len(raws) if raws == nothing else [0 if raw is NO_TEXT else texts[bytes(raw)] for raw in raws]

    def _memory(self, members: list[Any], instants: pl.Series) -> None:
        args: list[MemoryArgs] = self._args(MemoryArgs, members)
        addresses = _addresses([arg.address for arg in args])
        sizes = int_series(RawMemory.size_bytes, [arg.size for arg in args])
        good = instants.is_not_null() & sizes.is_not_null()
        columns = {
            RawMemory.time_ns: instants,
            RawMemory.thread: [event.tid for event in members],
            RawMemory.device_type: [arg.device_type for arg in args],
            RawMemory.device: [arg.device_id for arg in args],
            RawMemory.address: addresses,
            RawMemory.size_bytes: sizes,
            RawMemory.allocated_bytes: [arg.total_allocated for arg in args],
            RawMemory.reserved_bytes: [arg.total_reserved for arg in args],
        }
        num_lost = len(members) - int(good.sum())
        if num_lost:
            columns = {column: _chosen(values, good) for column, values in columns.items()}
            self.collected.events_lost += num_lost
            self.collected.events_read -= num_lost
        self.collected.keep(RawMemory, len(members) - num_lost, columns)

    def _flows(self, members: list[Any], *, is_start: bool) -> None:
        self.collected.arrow_categories.update({event.cat for event in members})
        if not self._arrows:
            return
        ids = int_series(RawFlows.id, [event.id for event in members])
        instants = _instants([event.ts for event in members], exact=True)
        good = ids.is_not_null() & instants.is_not_null()
        columns: dict[Column, Values] = {
            RawFlows.is_start: [is_start] * len(members),
            RawFlows.is_backward: [event.cat in BACKWARD_ARROWS for event in members],
            RawFlows.id: ids,
            RawFlows.time_ns: instants,
            RawFlows.thread: [event.tid for event in members],
            RawFlows.process: [event.pid for event in members],
        }
        if not good.all():
            columns = {column: _chosen(values, good) for column, values in columns.items()}
        self.collected.keep(RawFlows, int(good.sum()), columns)

    def _note_collectives(self, table: type[Table], members: list[Any], args: list[Any]) -> None:
        if not self._collectives:
            return
        names = [arg.collective for arg in args]
        if names.count(None) == len(names):
            return
        marked = [row for row, name in enumerate(names) if name is not None]
        base = self.collected.height(table)
        found: list[CollectiveArgs] = self._args(CollectiveArgs, [members[row] for row in marked])
        self.collected.collective_args += [
            (table is RawDevice, base + row, arg) for row, arg in zip(marked, found, strict=True)
        ]

    def _metadata(self, members: list[Any]) -> None:
        chosen = [event for event in members if event.name == "thread_name"]
        for event, args in zip(chosen, self._args(MetadataArgs, chosen), strict=True):
            if args.label is not None:
                self.collected.threads.setdefault(thread_number(event.tid), str(args.label).strip())


def _kind(category: str) -> int | None:
    """Return what the records of a category are; None for an unknown one, of which each record tells."""
    kind = _CATEGORY_KINDS.get(category)
    if kind is not None or category in _NAMED_RANGES:
        return ANNOTATION if kind is None else kind
    return next((kind for ending, kind in _ENDINGS if category.lower().endswith(ending)), None)


def _ran_on_device(args: AnnotationArgs) -> bool:
    return isinstance(args.device, int) and isinstance(args.stream, int) and args.stream >= 0


def _addresses(values: list[int | None]) -> pl.Series:
    """Return addresses, null where one does not fit 64 bits."""
    try:
        return pl.Series(RawMemory.address, values, dtype=pl.UInt64)
    except (TypeError, OverflowError):
        known = [value if value is not None and value in _UINT64 else None for value in values]
        return pl.Series(RawMemory.address, known, dtype=pl.UInt64)


def _chosen(values: Values, wanted: pl.Series) -> Values:
    """Return the values that are wanted, in the same form."""
    return values.filter(wanted) if isinstance(values, pl.Series) else list(compress(values, wanted))


def _collective_marks(category: str, args: list[DeviceArgs]) -> list[bool]:
    is_whole = category == _COLLECTIVE_CATEGORY
    return [is_whole or arg.collective is not None for arg in args]


def _python_columns(args: list[PythonArgs]) -> dict[Column, Values]:
    return {
        RawPython.python_id: [arg.python_id for arg in args],
        RawPython.parent_id: [arg.parent_id for arg in args],
        RawPython.module_id: [arg.module_id for arg in args],
    }


def _external_ids(args: Sequence[Any]) -> list[int | None]:
    ids = [arg.external_id for arg in args]
    if None in ids:
        ids = [arg.old_external_id if known is None else known for known, arg in zip(ids, args, strict=True)]
    return ids


@dataclass(frozen=True, slots=True)
class _Instants:
    """Starts and lengths of some records."""

    starts: pl.Series
    durations: pl.Series
    are_sound: bool
    """None is absent, and none is 0 and of length 0."""

    @classmethod
    def of(cls, events: list[Any], *, exact: bool) -> _Instants:
        """Return those of decoded records.

        Raises:
            InexactError: They must be read as texts.
        """
        starts, durations = [event.ts for event in events], [event.dur for event in events]
        size = len(events)
        if size and starts[0].__class__ is float is durations[0].__class__:
            # What arithmetic of series costs is their number, not their length.
            both = _instants(starts + durations, exact=exact)
            known = both.slice(0, size), both.slice(size)
        else:
            known = _instants(starts, exact=exact), _instants(durations, exact=exact)
        num_nulls = known[0].null_count() + known[1].null_count()
        earliest: Any = known[0].min()
        return cls(*known, are_sound=not num_nulls and (earliest is None or earliest > 0))

    def piece(self, first: int, size: int) -> _Instants:
        """Return those of a run of the records."""
        return _Instants(self.starts.slice(first, size), self.durations.slice(first, size), self.are_sound)

    def which_are_sound(self) -> pl.Series:
        """Return which records have both, and are not all zero."""
        is_bad = self.starts.is_null() | self.durations.is_null() | ((self.starts == 0) & (self.durations == 0))
        return ~is_bad.fill_null(value=True)


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
