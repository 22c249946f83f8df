"""Decoded records -> columns: each chunk becomes small frames at once, so that no record outlives its chunk."""

from __future__ import annotations

import re
from collections import defaultdict
from itertools import compress
from typing import TYPE_CHECKING, Any, Final

import polars as pl
from msgspec.structs import replace

from scope.trace import rows
from scope.trace.arguments import ARGS_OF_KIND, args_of, collective_args_of
from scope.trace.categories import (
    ANNOTATION,
    BACKWARD_ARROWS,
    COLLECTION_NAME,
    KERNEL,
    LAUNCH,
    MEMCPY,
    MEMSET,
    OP,
    PYTHON,
    PYTHON_CATEGORY,
    SYNC,
    kind_of,
)
from scope.trace.classes import is_communication_operator
from scope.trace.collected import Collected
from scope.trace.events import (
    ASYNCHRONOUS_PHASES,
    OTHERS,
    AnnotationArgs,
    ArrowEnd,
    ArrowStart,
    Begin,
    End,
    ExactInstant,
    ExactSpan,
    FullArrowEnd,
    FullArrowStart,
    Instant,
    MemoryArgs,
    Metadata,
    MetadataArgs,
    Span,
)
from scope.trace.instants import InexactError, Instants, Microseconds, instants_of
from scope.trace.pairs import Halves
from scope.trace.pending import Repeated, Values, int_series, thread_number
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
from scope.trace.typed import TypedRecords, typed_records

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from scope.trace.columns import Column, Table
    from scope.trace.narrowing import Tables


_MEMORY_NAME: Final = "[memory]"
_MIXED_CATEGORY: Final = "Operator"
_ARROW_STARTS: Final = (ArrowStart, FullArrowStart)
_ASYNCHRONOUS: Final = frozenset(OTHERS[phase] for phase in ASYNCHRONOUS_PHASES)
_ARROWS: Final = (*_ARROW_STARTS, ArrowEnd, FullArrowEnd)
_RAW_TABLES: Final[dict[int, type[Table]]] = {
    KERNEL: RawDevice,
    MEMCPY: RawDevice,
    MEMSET: RawDevice,
    OP: RawOps,
    LAUNCH: RawLaunches,
    ANNOTATION: RawAnnotations,
    SYNC: RawSyncs,
    PYTHON: RawPython,
}
_TABLE_OF_RAW: Final[dict[type[Table], type[Table]]] = {
    RawDevice: DeviceEvents,
    RawOps: Ops,
    RawLaunches: Launches,
    RawAnnotations: Annotations,
    RawSyncs: Syncs,
    RawPython: PythonCalls,
    RawMemory: Memory,
}
_OLD_ANNOTATION: Final = re.compile(r"ProfilerStep#\d+$|enumerate\(DataLoader\)#|Optimizer\.\w+#|## ")


class Collector:
    """Takes the records of one file chunk by chunk.

    Records of tables that are not `loaded` are counted, but their arguments neither decoded nor kept; operators keep
    their bare spans where device events are loaded, since a kernel's category may hang on the operator around it.
    """

    def __init__(self, *, loaded: Tables, arrows: bool) -> None:
        self.collected = Collected()
        self._python_calls = PythonCalls in loaded
        self._arrows = arrows
        self._halves = Halves()
        self._collectives = CollectiveCalls in loaded
        self._tables = {raw for raw, table in _TABLE_OF_RAW.items() if table in loaded}
        self._bare_ops = DeviceEvents in loaded and Ops not in loaded
        kinds = frozenset(kind for kind, raw in _RAW_TABLES.items() if raw in self._tables)
        self._kinds = kinds
        self.typed: TypedRecords = self._typed(collectives=False, frames=False)
        """The records that `add_typed` takes."""

    def add_typed(self, events: Sequence[Any]) -> bool:
        """Take a chunk of the records of `typed`.

        Returns:
            False for the first chunk with a collective, or with a run of the garbage collector: nothing of it was
            taken, and `typed` has changed, so that it decodes all that this chunk, and those behind it, say of these.

        Raises:
            InexactError: The chunk needs instants as texts; nothing of it was taken.
        """
        typed = self.typed
        by_type: dict[type, list[Any]] = {kind: [] for kind in (typed.memory, *typed.spans, *typed.arrows)}
        # A bound method for each type spares what a look-up of the list would cost for each of the records.
        append = {kind: members.append for kind, members in by_type.items()}
        for event in events:
            append[type(event)](event)
        by_category = {category: by_type[kind] for kind, category in typed.spans.items() if by_type[kind]}
        if self._collectives and not typed.with_collectives and self._says_collective(by_category):
            self.typed = self._typed(collectives=True, frames=typed.with_frames)
            return False
        if not typed.with_frames:
            if COLLECTION_NAME in [event.name for event in by_category.pop(PYTHON_CATEGORY, ())]:
                self.typed = self._typed(collectives=typed.with_collectives, frames=True)
                return False
        elif PYTHON_CATEGORY in by_category:
            frames = self._wanted_frames(by_category[PYTHON_CATEGORY])
            by_category[PYTHON_CATEGORY] = [_as_span(each) if each.name == COLLECTION_NAME else each for each in frames]
        memory = by_type[typed.memory] if RawMemory in self._tables else []
        self._take(len(events), by_category, memory, exact=False)
        self.collected.arrow_categories.update([category for kind, category in typed.arrows.items() if by_type[kind]])
        return True

    def _wanted_frames(self, frames: list[Any]) -> list[Any]:
        """Return the Python frames that are kept: runs of the garbage collector always."""
        return frames if self._python_calls else [event for event in frames if event.name == COLLECTION_NAME]

    def _typed(self, *, collectives: bool, frames: bool) -> TypedRecords:
        has_memory = RawMemory in self._tables
        return typed_records(self._kinds, memory=has_memory, collectives=collectives, frames=frames)

    def _says_collective(self, by_category: dict[str, list[Any]]) -> bool:
        """Say whether any of these records, which `typed` decoded, is part of a collective."""
        for category, members in by_category.items():
            kind = kind_of(category)
            if kind is None or _RAW_TABLES[kind] not in (RawDevice, RawOps):
                continue
            names = [event.args.collective for event in members]
            if names.count(None) < len(names):
                return True
        return False

    def add(self, events: Sequence[Any], *, exact: bool) -> None:
        """Take a chunk of the records of `events`; with `exact`, of those whose instants are texts.

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
        num_lost = 0
        if by_type[Begin] or by_type[End]:
            if not exact:
                # The length of a record is the difference of two instants, which floats would blur.
                raise InexactError
            halves = [event for event in events if isinstance(event, Begin | End)]
            joined, num_lost = self._halves.join(halves)
            for event in joined:
                by_category[event.cat].append(event)
        if PYTHON_CATEGORY in by_category:
            by_category[PYTHON_CATEGORY] = self._wanted_frames(by_category[PYTHON_CATEGORY])
        memory = by_type[ExactInstant if exact else Instant] if RawMemory in self._tables else []
        self._take(len(events), by_category, memory, exact=exact)
        self._lose(num_lost)
        if by_type[Metadata]:
            self._metadata(by_type[Metadata])
        for kind, members in by_type.items():
            if kind in _ASYNCHRONOUS:
                self.collected.num_asynchronous += len(members)
            elif issubclass(kind, _ARROWS):
                self._flows(members, is_start=issubclass(kind, _ARROW_STARTS))

    def finish(self) -> None:
        """Count the records as lost that began, and whose end the file does not hold."""
        self._lose(self._halves.num_open)

    def _lose(self, number: int) -> None:
        self.collected.events_lost += number
        self.collected.events_read -= number

    def _take(self, size: int, by_category: dict[str, list[Any]], instants: list[Any], *, exact: bool) -> None:
        """Take the spans of a chunk of `size` records, and the allocations among its instants."""
        spans = Instants.of(by_category.values(), exact=exact)
        memory = [event for event in instants if event.name == _MEMORY_NAME]
        memory_instants = instants_of([event.ts for event in memory], exact=exact) if memory else None
        # Nothing was kept so far, so a chunk that must be read again as text leaves no trace.
        self.collected.events_read += size
        if spans.are_sound:
            self.collected.last_end.note(spans)
        # Once for all of them: a damaged chunk may hold hundreds of categories.
        good = None if spans.are_sound else spans.which_are_sound()
        first = 0
        for category, members in by_category.items():
            size = len(members)
            self._spans(category, members, spans.piece(first, size), None if good is None else good.slice(first, size))
            first += size
        if memory_instants is not None:
            self._memory(memory, memory_instants)

    def _spans(self, category: str, members: list[Any], spans: Instants, good: pl.Series | None) -> None:
        """Take records of one category, where some may not be sound those that are `good`."""
        if good is not None:
            if not good.all():
                members = list(compress(members, good))
                self._lose(len(good) - len(members))
                spans = spans.where(good)
            spans = replace(spans, are_sound=True)
            self.collected.last_end.note(spans)
        if not members:
            return
        kind = kind_of(category)
        if category == _MIXED_CATEGORY:
            # Old traces file the user's ranges under operators; only their names tell them apart.
            marks = [_OLD_ANNOTATION.match(event.name) is not None for event in members]
            self._split(members, spans, marks, ((ANNOTATION, "user_annotation"), (OP, "cpu_op")))
        elif category == PYTHON_CATEGORY and COLLECTION_NAME in [event.name for event in members]:
            marks = [event.name == COLLECTION_NAME for event in members]
            self._split(members, spans, marks, ((ANNOTATION, category), (PYTHON, category)))
        elif kind is None:
            marks = [_ran_on_device(args) for args in self._args(members, AnnotationArgs)]
            self._split(members, spans, marks, ((KERNEL, category), (ANNOTATION, category)))
        else:
            self._one_kind(kind, category, members, spans)

    def _split(
        self,
        members: list[Any],
        spans: Instants,
        marks: list[bool],
        kinds: tuple[tuple[int, str], tuple[int, str]],
    ) -> None:
        """Take records of one category that are of two kinds, those that are marked of the first."""
        marked = pl.Series(marks, dtype=pl.Boolean)
        for (kind, category), wanted in zip(kinds, (marked, ~marked), strict=True):
            chosen = [event for event, is_wanted in zip(members, wanted, strict=True) if is_wanted]
            if chosen:
                self._one_kind(kind, category, chosen, spans.where(wanted))

    def _one_kind(self, kind: int, category: str, members: list[Any], spans: Instants) -> None:
        table = _RAW_TABLES[kind]
        if kind in (OP, LAUNCH):
            self.collected.processes[kind].update(_distinct([event.pid for event in members]))
        if table is RawDevice:
            self.collected.num_device_events += len(members)
        if table not in self._tables and not (kind == OP and self._bare_ops):
            return
        starts, durations = spans.columns()
        columns: dict[Column, Values] = {
            RawSpans.name: self._names(members, is_bare=table not in self._tables),
            RawSpans.start_ns: starts,
            RawSpans.duration_ns: durations,
            RawSpans.thread: [event.tid for event in members],
        }
        if table in self._tables:
            args = self._args(members, ARGS_OF_KIND[kind])
            if table in (RawDevice, RawOps):
                self._note_collectives(table, members, args)
            columns |= self._columns(kind, category, members, args)
        self.collected.keep(table, len(members), columns)

    def _names(self, members: list[Any], *, is_bare: bool) -> Values:
        """Return codes of names; of a chunk of bare spans none where no name says what the spans are kept for."""
        names = [event.name for event in members]
        if is_bare and not any(map(is_communication_operator, set(names))):
            return Repeated(0, len(names))
        codes = self.collected.names
        return [codes[name] for name in names]

    def _columns(self, kind: int, category: str, members: list[Any], args: list[Any]) -> Mapping[Column, Values]:
        names, texts = self.collected.names, self.collected.texts
        if kind <= MEMSET:
            columns = rows.device_columns(members, args, category, texts)
            return {
                RawDevice.kind: Repeated(kind, len(args)),
                **self._operator_ids(RawDevice.external_id, args),
                **columns,
            }
        if kind == OP:
            return rows.op_columns(args, texts)
        if kind == LAUNCH:
            return {**rows.launch_columns(args), **self._operator_ids(RawLaunches.external_id, args)}
        if kind == SYNC:
            return rows.sync_columns(members, args, names)
        if kind == PYTHON:
            return rows.python_columns(args)
        return rows.annotation_columns(args, category, names, texts)

    def _operator_ids(self, column: Column, args: list[Any]) -> Mapping[Column, Values]:
        """Return the External ids of device events or calls where the operators that they lead to are read."""
        return {column: rows.external_ids(args)} if RawOps in self._tables else {}

    def _args(self, members: list[Any], kind: type[Any]) -> list[Any]:
        args, num_repaired = args_of(members, kind)
        self.collected.events_repaired += num_repaired
        return args

    def _memory(self, members: list[Any], instants: pl.Series) -> None:
        columns = rows.memory_columns(members, self._args(members, MemoryArgs))
        sizes = columns[RawMemory.size_bytes]
        assert isinstance(sizes, pl.Series)
        columns[RawMemory.time_ns] = instants
        num_lost = 0
        if instants.null_count() or sizes.null_count():
            good = instants.is_not_null() & sizes.is_not_null()
            num_lost = len(members) - int(good.sum())
            columns = {column: _chosen(values, good) for column, values in columns.items()}
            self.collected.events_lost += num_lost
            self.collected.events_read -= num_lost
        self.collected.keep(RawMemory, len(members) - num_lost, columns)

    def _flows(self, members: list[Any], *, is_start: bool) -> None:
        self.collected.arrow_categories.update({event.cat for event in members})
        if not self._arrows:
            return
        ids = int_series(RawFlows.id, [event.id for event in members])
        instants = instants_of([event.ts for event in members], exact=True)
        columns: dict[Column, Values] = {
            RawFlows.is_start: Repeated(is_start, len(members)),
            RawFlows.is_backward: [event.cat in BACKWARD_ARROWS for event in members],
            RawFlows.id: ids,
            RawFlows.time_ns: instants,
            RawFlows.thread: [event.tid for event in members],
            RawFlows.process: [event.pid for event in members],
        }
        num_good = len(members)
        if ids.null_count() or instants.null_count():
            good = ids.is_not_null() & instants.is_not_null()
            num_good = int(good.sum())
            columns = {column: _chosen(values, good) for column, values in columns.items()}
        self.collected.keep(RawFlows, num_good, columns)

    def _note_collectives(self, table: type[Table], members: list[Any], args: list[Any]) -> None:
        if not self._collectives:
            return
        names = [arg.collective for arg in args]
        if names.count(None) == len(names):
            return
        marked = [row for row, name in enumerate(names) if name is not None]
        base = self.collected.height(table)
        found, num_repaired = collective_args_of([members[row] for row in marked], [args[row] for row in marked])
        self.collected.events_repaired += num_repaired
        code = self.collected.collectives.code
        known = self.collected.collectives_of_events if table is RawDevice else self.collected.collectives_of_ops
        known.update({base + row: code(arg) for row, arg in zip(marked, found, strict=True)})

    def _metadata(self, members: list[Any]) -> None:
        chosen = [event for event in members if event.name == "thread_name"]
        for event, args in zip(chosen, self._args(chosen, MetadataArgs), strict=True):
            if args.label is not None:
                self.collected.threads.setdefault(thread_number(event.tid), str(args.label).strip())


def _as_span(event: Any) -> Span:
    """Return a record of `typed` as one of `events`, without arguments."""
    return Span(name=event.name, pid=event.pid, tid=event.tid, ts=event.ts, dur=event.dur)


def _ran_on_device(args: AnnotationArgs) -> bool:
    return isinstance(args.device, int) and isinstance(args.stream, int) and args.stream >= 0


def _distinct(values: list[Any]) -> set[Any]:
    """Return the distinct values of a list that is not empty; mostly it holds one, and counting beats hashing."""
    first = values[0]
    return {first} if values.count(first) == len(values) else set(values)


def _chosen(values: Values, wanted: pl.Series) -> Values:
    """Return the values that are wanted, in the same form."""
    if isinstance(values, Repeated):
        return Repeated(values.value, int(wanted.sum()))
    assert not isinstance(values, Microseconds)
    return values.filter(wanted) if isinstance(values, pl.Series) else list(compress(values, wanted))
