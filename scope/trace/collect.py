"""Decoded records -> columns: each chunk becomes small frames at once, so that no record outlives its chunk."""

from __future__ import annotations

import re
import zlib
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from scope.trace.events import EventArgs
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
    from collections.abc import Iterable, Sequence

    from polars._typing import PolarsDataType

    from scope.trace.events import AnyEvent

KERNEL, MEMCPY, MEMSET, OP, LAUNCH, ANNOTATION, SYNC, PYTHON = range(8)

_CATEGORY_KINDS: Final = {
    "kernel": KERNEL,
    "Kernel": KERNEL,
    "concurrent_kernel": KERNEL,
    "mtia_ccp_events": KERNEL,
    "collective_comm": KERNEL,
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
    "python_function": PYTHON,
}
_MEMORY_NAME: Final = "[memory]"
_BACKWARD_FLOWS: Final = frozenset({"fwdbwd", "forward_backward"})
_NUMBER_IN_TEXT: Final = re.compile(r"-?\d+")
_INT64: Final = range(-(2**63), 2**63)
_NO_ARGS: Final = EventArgs()
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


@dataclass(kw_only=True)
class CollectiveArgs:
    """The collective's metadata on one record."""

    is_device: bool
    row: int
    args: EventArgs


@dataclass
class Collected:
    """Everything that was read from one file, before linking."""

    names: Coder = field(default_factory=lambda: Coder(""))
    texts: Coder = field(default_factory=lambda: Coder(b""))
    frames: dict[type, list[pl.DataFrame]] = field(default_factory=lambda: defaultdict[type, list[pl.DataFrame]](list))
    heights: dict[type, int] = field(default_factory=lambda: defaultdict[type, int](int))
    collective_args: list[tuple[bool, int, dict[str, Any]]] = field(
        default_factory=list[tuple[bool, int, dict[str, Any]]]
    )
    threads: dict[int, str] = field(default_factory=dict[int, str])
    first_ns: int | None = None
    last_ns: int | None = None
    events_read: int = 0
    events_lost: int = 0

    def frame(self, *tables: type) -> pl.DataFrame:
        """Return all rows of the table that these parts make up."""
        key = tables[-1]
        if not self.frames[key]:
            schema: dict[str, PolarsDataType] = {}
            for table in tables:
                schema.update(table.schema())
            return pl.DataFrame(schema=schema)
        return pl.concat(self.frames[key], rechunk=True)


class Collector:
    """Takes the records of one file chunk by chunk."""

    def __init__(self, *, python_calls: bool) -> None:
        self.collected = Collected()
        self._python_calls = python_calls

    def add(self, events: Sequence[AnyEvent], *, exact: bool) -> None:
        """Take a chunk; with `exact`, instants are texts.

        Raises:
            InexactError: An instant is a float that is too large; nothing was taken.
        """
        groups: dict[tuple[str, str], list[AnyEvent]] = defaultdict(list)
        for event in events:
            groups[event.ph, event.cat].append(event)
        spans: list[tuple[str, list[AnyEvent], pl.Series, pl.Series]] = []
        for (phase, category), members in groups.items():
            if phase == "X" and (self._python_calls or category != "python_function"):
                starts = _instants([event.ts for event in members], exact=exact)
                spans.append((category, members, starts, _instants([event.dur for event in members], exact=exact)))
        flows = [self._flows(cat, members, exact=exact) for (ph, cat), members in groups.items() if ph in ("s", "f")]
        memory = [
            self._memory([event for event in members if event.name == _MEMORY_NAME], exact=exact)
            for (phase, _), members in groups.items()
            if phase in ("i", "I")
        ]
        # Nothing was kept so far, so a chunk that must be read again as text leaves no trace.
        self.collected.events_read += len(events)
        for category, members, starts, durations in spans:
            self._spans(category, members, starts, durations)
        for frame in flows:
            self._keep(RawFlows, frame.drop_nulls(RawFlows.time_ns))
        for frame in memory:
            self._keep(RawMemory, frame.drop_nulls([RawMemory.time_ns, RawMemory.size_bytes]))
        for (phase, _), members in groups.items():
            if phase == "M":
                self._metadata(members)

    def _spans(self, category: str, members: list[AnyEvent], starts: pl.Series, durations: pl.Series) -> None:
        bad = starts.is_null() | durations.is_null() | ((starts == 0) & (durations == 0))
        num_bad = int(bad.fill_null(value=True).sum())
        if num_bad:
            good = ~bad.fill_null(value=True)
            members = [event for event, is_good in zip(members, good, strict=True) if is_good]
            starts, durations = starts.filter(good), durations.filter(good)
            self.collected.events_lost += num_bad
            self.collected.events_read -= num_bad
        if not members:
            return
        self._extend_window(starts, starts + durations)
        kind = _CATEGORY_KINDS.get(category, ANNOTATION)
        if kind == ANNOTATION and _ran_on_device(members[0]) and category not in ("gpu_user_annotation", "cuda_event"):
            kind = KERNEL
        if category == "Operator":
            self._old_operators(members, starts, durations)
            return
        self._one_kind(kind, category, members, (starts, durations))

    def _old_operators(self, members: list[AnyEvent], starts: pl.Series, durations: pl.Series) -> None:
        """Old traces file the user's ranges under operators; only their names tell them apart."""
        marks = pl.Series([_OLD_ANNOTATION.match(event.name) is not None for event in members], dtype=pl.Boolean)
        for kind, category, wanted in ((OP, "cpu_op", ~marks), (ANNOTATION, "user_annotation", marks)):
            chosen = [event for event, is_wanted in zip(members, wanted, strict=True) if is_wanted]
            if chosen:
                self._one_kind(kind, category, chosen, (starts.filter(wanted), durations.filter(wanted)))

    def _one_kind(
        self, kind: int, category: str, members: list[AnyEvent], instants: tuple[pl.Series, pl.Series]
    ) -> None:
        names = self.collected.names
        args = [event.args or _NO_ARGS for event in members]
        columns = [
            pl.Series(RawSpans.name, [names[event.name] for event in members], dtype=pl.UInt32),
            instants[0].alias(RawSpans.start_ns),
            instants[1].alias(RawSpans.duration_ns),
            _thread_series(RawSpans.thread, [event.tid for event in members]),
            _int_series(RawSpans.process, [event.pid for event in members]),
        ]
        if kind <= MEMSET:
            self._note_collectives(members, is_device=True)
            self._keep(RawDevice, pl.DataFrame(columns + self._device_columns(kind, members, args)))
        elif kind == OP:
            self._note_collectives(members, is_device=False)
            self._keep(RawOps, pl.DataFrame(columns + self._op_columns(args)))
        elif kind == LAUNCH:
            self._keep(RawLaunches, pl.DataFrame(columns + _launch_columns(args)))
        elif kind == SYNC:
            self._keep(RawSyncs, pl.DataFrame(columns + self._sync_columns(members, args)))
        elif kind == PYTHON:
            self._keep(RawPython, pl.DataFrame(columns + _python_columns(args)))
        else:
            self._keep(RawAnnotations, pl.DataFrame(columns + self._annotation_columns(category, args)))

    def _device_columns(self, kind: int, members: list[AnyEvent], args: list[EventArgs]) -> list[pl.Series]:
        texts = self.collected.texts
        devices = [
            arg.device if arg.device is not None else event.pid for arg, event in zip(args, members, strict=True)
        ]
        streams = [
            arg.stream if arg.stream is not None else event.tid for arg, event in zip(args, members, strict=True)
        ]
        return [
            pl.repeat(kind, len(args), dtype=pl.UInt8, eager=True).alias(RawDevice.kind),
            _int_series(RawDevice.device, devices),
            _int_series(RawDevice.stream, streams),
            _int_series(RawDevice.correlation, [arg.correlation for arg in args]),
            _external_ids(args),
            pl.Series(RawDevice.grid, [texts[bytes(arg.grid)] for arg in args], dtype=pl.UInt32),
            pl.Series(RawDevice.block, [texts[bytes(arg.block)] for arg in args], dtype=pl.UInt32),
            _int_series(RawDevice.registers, [arg.registers for arg in args]),
            _int_series(RawDevice.shared_memory, [arg.shared_memory for arg in args]),
            pl.Series(RawDevice.occupancy, [arg.occupancy for arg in args], dtype=pl.Float64, strict=False),
            _int_series(RawDevice.bytes, [arg.bytes for arg in args]),
            pl.Series(RawDevice.copy_kind, [texts[str(arg.kind or "").encode()] for arg in args], dtype=pl.UInt32),
            _int_series(RawDevice.graph_id, [arg.graph_id for arg in args]),
        ]

    def _op_columns(self, args: list[EventArgs]) -> list[pl.Series]:
        texts = self.collected.texts
        dims = [texts[bytes(arg.input_dims) or bytes(arg.old_input_dims)] for arg in args]
        files = [texts[arg.kernel_file.encode(errors="replace")] if arg.kernel_file else 0 for arg in args]
        return [
            _external_ids(args),
            _int_series(RawOps.sequence_number, [arg.sequence_number for arg in args]),
            _int_series(RawOps.forward_thread, [arg.forward_thread for arg in args]),
            pl.Series(RawOps.input_dims, dims, dtype=pl.UInt32),
            pl.Series(RawOps.input_types, [texts[bytes(arg.input_types)] for arg in args], dtype=pl.UInt32),
            pl.Series(RawOps.input_strides, [texts[bytes(arg.input_strides)] for arg in args], dtype=pl.UInt32),
            pl.Series(RawOps.concrete_inputs, [texts[bytes(arg.concrete_inputs)] for arg in args], dtype=pl.UInt32),
            pl.Series(RawOps.kernel_file, files, dtype=pl.UInt32),
        ]

    def _annotation_columns(self, category: str, args: list[EventArgs]) -> list[pl.Series]:
        texts = self.collected.texts
        code = self.collected.names[category]
        return [
            pl.repeat(code, len(args), dtype=pl.UInt32, eager=True).alias(RawAnnotations.category),
            _external_ids(args),
            pl.Series(RawAnnotations.input_dims, [texts[bytes(arg.input_dims)] for arg in args], dtype=pl.UInt32),
            pl.Series(RawAnnotations.input_types, [texts[bytes(arg.input_types)] for arg in args], dtype=pl.UInt32),
        ]

    def _sync_columns(self, members: list[AnyEvent], args: list[EventArgs]) -> list[pl.Series]:
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

    def _memory(self, members: list[AnyEvent], *, exact: bool) -> pl.DataFrame:
        args = [event.args or _NO_ARGS for event in members]
        return pl.DataFrame(
            [
                _instants([event.ts for event in members], exact=exact).alias(RawMemory.time_ns),
                _thread_series(RawMemory.thread, [event.tid for event in members]),
                _int_series(RawMemory.device_type, [arg.device_type for arg in args]),
                _int_series(RawMemory.device, [arg.device_id for arg in args]),
                _unsigned_series(RawMemory.address, [arg.address for arg in args]),
                _int_series(RawMemory.size_bytes, [arg.memory_bytes for arg in args]),
                _int_series(RawMemory.allocated_bytes, [arg.total_allocated for arg in args]),
                _int_series(RawMemory.reserved_bytes, [arg.total_reserved for arg in args]),
            ]
        )

    def _flows(self, category: str, members: list[AnyEvent], *, exact: bool) -> pl.DataFrame:
        size = len(members)
        is_start = members[0].ph == "s"
        is_backward = category in _BACKWARD_FLOWS
        return pl.DataFrame(
            [
                pl.repeat(is_start, size, dtype=pl.Boolean, eager=True).alias(RawFlows.is_start),
                pl.repeat(is_backward, size, dtype=pl.Boolean, eager=True).alias(RawFlows.is_backward),
                _int_series(RawFlows.id, [event.id for event in members]),
                _instants([event.ts for event in members], exact=exact).alias(RawFlows.time_ns),
                _thread_series(RawFlows.thread, [event.tid for event in members]),
                _int_series(RawFlows.process, [event.pid for event in members]),
            ]
        )

    def _note_collectives(self, members: list[AnyEvent], *, is_device: bool) -> None:
        base = self.collected.heights[RawDevice if is_device else RawOps]
        for row, event in enumerate(members):
            args = event.args
            if args is not None and args.collective is not None:
                self.collected.collective_args.append((is_device, base + row, _collective_fields(args)))

    def _metadata(self, members: list[AnyEvent]) -> None:
        for event in members:
            if event.name == "thread_name" and event.args is not None and event.args.label is not None:
                number = _thread_number(event.tid)
                self.collected.threads.setdefault(number, str(event.args.label).strip())

    def _extend_window(self, starts: pl.Series, ends: pl.Series) -> None:
        first, last = int(starts.min()), int(ends.max())  # pyright: ignore[reportArgumentType]
        known = self.collected
        known.first_ns = first if known.first_ns is None else min(known.first_ns, first)
        known.last_ns = last if known.last_ns is None else max(known.last_ns, last)

    def _keep(self, table: type, frame: pl.DataFrame) -> None:
        if frame.height:
            self.collected.frames[table].append(frame)
            self.collected.heights[table] += frame.height


def _ran_on_device(event: AnyEvent) -> bool:
    args = event.args
    return args is not None and isinstance(args.device, int) and isinstance(args.stream, int) and args.stream >= 0


def _collective_fields(args: EventArgs) -> dict[str, Any]:
    return {
        "collective": args.collective,
        "in_elements": args.in_elements,
        "out_elements": args.out_elements,
        "dtype": args.dtype,
        "group_size": args.group_size,
        "group_name": None if args.group_name is None else str(args.group_name),
        "group_description": None if args.group_description is None else str(args.group_description),
        "group_ranks": bytes(args.group_ranks),
        "first_rank": args.first_rank,
        "rank_stride": args.rank_stride,
        "in_split": bytes(args.in_split),
        "out_split": bytes(args.out_split),
        "sequence": args.sequence,
        "source_rank": _number(args.source_rank),
        "destination_rank": _number(args.destination_rank),
        "asynchronous": args.asynchronous,
    }


def _launch_columns(args: list[EventArgs]) -> list[pl.Series]:
    return [_int_series(RawLaunches.correlation, [arg.correlation for arg in args]), _external_ids(args)]


def _python_columns(args: list[EventArgs]) -> list[pl.Series]:
    return [
        _int_series(RawPython.python_id, [arg.python_id for arg in args]),
        _int_series(RawPython.parent_id, [arg.python_parent_id for arg in args]),
        _int_series(RawPython.module_id, [arg.python_module_id for arg in args]),
    ]


def _external_ids(args: list[EventArgs]) -> pl.Series:
    ids = [arg.external_id if arg.external_id is not None else arg.queued_external_id for arg in args]
    return _int_series(RawOps.external_id, ids)


def _instants(values: Sequence[Any], *, exact: bool) -> pl.Series:
    if exact:
        return pl.Series([ns_from_text(bytes(value)) for value in values], dtype=pl.Int64)
    return ns_series("", values)


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


def _unsigned_series(name: str, values: Iterable[int | None]) -> pl.Series:
    return pl.Series(name, [v if v is not None and 0 <= v < 2**64 else None for v in values], dtype=pl.UInt64)


def _thread_number(tid: object) -> int:
    number = _number(tid)
    # A name without a number still tells threads apart.
    return number if number is not None else -2 - zlib.crc32(str(tid).encode())


def _thread_series(name: str, values: Sequence[object]) -> pl.Series:
    try:
        series = pl.Series(name, values, dtype=pl.Int64)
        if series.null_count() == 0:
            return series
    except (TypeError, OverflowError):
        pass
    return pl.Series(name, [_thread_number(value) for value in values], dtype=pl.Int64)
