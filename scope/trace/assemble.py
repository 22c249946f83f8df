"""Linking: raw columns of one file -> the tables of `scope.trace.schema` and how far to trust them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from scope.structs import Record
from scope.trace.calldescriptions import CallSources
from scope.trace.collectives import collective_calls
from scope.trace.deviceevents import HostSide, device_events
from scope.trace.hostcalls import linked_launches, linked_ops, with_counts
from scope.trace.hosttables import (
    annotations_table,
    memory_table,
    python_calls_table,
    steps_table,
    syncs_table,
)
from scope.trace.launches import LAUNCHING_KINDS
from scope.trace.metadata import base_nanoseconds, device_properties, optional_text, process_groups, world_size
from scope.trace.model import RankTrace, TraceQuality
from scope.trace.narrowing import WHOLE, Tables, checked, names_of_absent
from scope.trace.raw import RawAnnotations, RawFlows, RawPython, RawSpans, RawSyncs
from scope.trace.rawspans import step_of
from scope.trace.schema import (
    Annotations,
    CollectiveCalls,
    DeviceEvents,
    Launches,
    Memory,
    Ops,
    PythonCalls,
    Steps,
    Syncs,
)
from scope.trace.texts import Texts
from scope.trace.untyped import as_mapping

if TYPE_CHECKING:
    from scope.trace.classes import Pattern
    from scope.trace.hostcalls import LinkedOps
    from scope.trace.reader import ReadTrace


class Identity(Record, frozen=True, kw_only=True):
    """Which rank a file is of."""

    label: str
    rank: int | None
    path: str


def assemble(
    read: ReadTrace, identity: Identity, *, patterns: tuple[Pattern, ...] = (), loaded: Tables = WHOLE
) -> RankTrace:
    """Link the records of one file, and make the tables that are `loaded` of them.

    Raises:
        OperatorsNeededError: The operators are not among the tables, but the category of a device event hangs on them.
    """
    texts = Texts(read)
    base_ns = base_nanoseconds(read.metadata)
    groups = process_groups(read.metadata)
    flows = read.collected.frame(RawFlows)
    annotations, host_ranges = annotations_table(read.collected.frame(RawSpans, RawAnnotations), texts, base_ns)
    steps = steps_table(host_ranges, read, base_ns)
    # Each of these drops its raw rows before the next takes its own, which keeps the peak of memory low.
    ops = linked_ops(read, texts, base_ns, steps, flows) if Ops in loaded else None
    launches = linked_launches(read, texts, base_ns, steps, ops)
    memory = memory_table(read, ops, base_ns)
    host = HostSide(launches=launches, ops=None if ops is None else ops.table, flows=flows)
    devices = device_events(read, host, texts=texts, base_ns=base_ns, patterns=patterns)
    events, calls = devices.frame, CollectiveCalls.empty()
    if ops is not None and CollectiveCalls in loaded:
        calls, call_ids = collective_calls(
            CallSources(
                devices=devices,
                ops=ops.table,
                launches=launches,
                op_file_rows=ops.file_rows,
                host_ranges=host_ranges,
                steps_of=lambda starts: step_of(starts, steps),
                groups=groups,
                collected=read.collected,
                rank=identity.rank,
            )
        )
        events = events.hstack([call_ids])
    launches = with_counts(launches, events)
    info = as_mapping(read.metadata.get("distributedInfo"))
    return RankTrace(
        label=identity.label,
        rank=identity.rank,
        path=identity.path,
        world_size=world_size(info),
        backend=optional_text(info.get("backend")),
        host=optional_text(read.metadata.get("host_name")),
        num_processes=max(1, *(len(ids) for ids in read.collected.processes.values())),
        is_host_timeline=read.collected.num_device_events == 0 and not _launches_kernels(launches),
        device_events=checked(events, DeviceEvents, loaded),
        ops=checked(Ops.empty() if ops is None else ops.table, Ops, loaded),
        launches=checked(launches, Launches, loaded),
        collective_calls=checked(calls, CollectiveCalls, loaded),
        annotations=checked(annotations, Annotations, loaded),
        steps=checked(steps, Steps, loaded),
        memory=checked(memory, Memory, loaded),
        syncs=checked(syncs_table(read.collected.frame(RawSpans, RawSyncs), texts, base_ns), Syncs, loaded),
        python_calls=checked(
            python_calls_table(read.collected.frame(RawSpans, RawPython), texts, base_ns), PythonCalls, loaded
        ),
        not_loaded=names_of_absent(loaded),
        process_groups=tuple(groups.values()),
        devices=device_properties(read.metadata),
        threads=dict(read.collected.threads),
        quality=_quality(read, events, launches, (steps.height, devices.negative_length, ops)),
    )


def _launches_kernels(launches: pl.DataFrame) -> bool:
    """Whether the process put kernels on a device: where none of them is in the file, the host tells nothing of it."""
    return bool(launches[Launches.kind].is_in(["kernel", "graph"]).any())


def _quality(
    read: ReadTrace, events: pl.DataFrame, launches: pl.DataFrame, seen: tuple[int, int, LinkedOps | None]
) -> TraceQuality:
    """Count what was seen; `seen` are the steps, the events of negative length and the operators."""
    num_steps, negative, ops = seen
    lengths = events[DeviceEvents.end_ns] - events[DeviceEvents.start_ns]
    total = int(lengths.sum())
    attributed_ratio = None
    if ops is not None and total:
        attributed_ratio = int(lengths.filter(events[DeviceEvents.op_id].is_not_null()).sum()) / total
    idle_launches = launches.filter(
        pl.col(Launches.kind).is_in(LAUNCHING_KINDS) & (pl.col(Launches.num_device_events) == 0)
    )
    return TraceQuality(
        events_read=read.collected.events_read,
        events_lost=read.collected.events_lost,
        events_repaired=read.collected.events_repaired,
        asynchronous=read.collected.num_asynchronous,
        truncated=read.is_truncated,
        zero_length=int((lengths == 0).sum()) - negative,
        negative_length=negative,
        device_events_without_launch=events[DeviceEvents.launch_id].null_count(),
        launches_without_device_event=idle_launches.height,
        slices_overrun=int((events[DeviceEvents.clipped_end_ns] < events[DeviceEvents.end_ns]).sum()),
        steps_found=num_steps,
        host_overlaps=None if ops is None else ops.overlaps,
        attributed_ratio=attributed_ratio,
    )
