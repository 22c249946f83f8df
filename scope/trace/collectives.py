"""The table of collective calls: on devices from their kernels, on a host timeline from the ranges of the library."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import polars as pl

from scope.trace.devicecollectives import DeviceCalls, device_calls
from scope.trace.eager import taken
from scope.trace.hostcollectives import host_calls
from scope.trace.schema import CollectiveCalls, DeviceEvents

if TYPE_CHECKING:
    from scope.trace.calldescriptions import CallSources, Fields

_OF_FIRST_EVENT: Final = {
    CollectiveCalls.device: DeviceEvents.device,
    CollectiveCalls.stream: DeviceEvents.stream,
    CollectiveCalls.start_ns: DeviceEvents.start_ns,
    CollectiveCalls.op_id: DeviceEvents.op_id,
    CollectiveCalls.step_id: DeviceEvents.step_id,
}


def collective_calls(sources: CallSources) -> tuple[pl.DataFrame, pl.Series]:
    """Return the calls, and for each device event the call it is part of."""
    events = sources.devices.frame
    if events.height == 0:
        return _host_table(host_calls(sources), sources), pl.Series(DeviceEvents.call_id, [], dtype=pl.UInt32)
    found = device_calls(sources)
    call_ids = pl.Series(DeviceEvents.call_id, [None], dtype=pl.UInt32).new_from_index(0, events.height)
    if found.events:
        call_ids = call_ids.scatter(found.events, pl.Series(found.call_ids, dtype=pl.UInt32))
    return _device_table(found, events), call_ids


def _host_table(rows: list[Fields], sources: CallSources) -> pl.DataFrame:
    if not rows:
        return CollectiveCalls.empty()
    for call_id, row in enumerate(rows):
        row[CollectiveCalls.call_id] = call_id
    columns = CollectiveCalls.schema().items()
    frame = pl.DataFrame([_column(name, [row[name] for row in rows], dtype) for name, dtype in columns])
    steps = sources.steps_of(frame[CollectiveCalls.start_ns])
    return CollectiveCalls.check(frame.with_columns(steps.alias(CollectiveCalls.step_id)))


def _device_table(found: DeviceCalls, events: pl.DataFrame) -> pl.DataFrame:
    """Return the table; events stand in the order of their starts, and so do the calls that they begin."""
    if not found.codes:
        return CollectiveCalls.empty()
    first = pl.Series(found.first_events, dtype=pl.UInt32)
    codes = pl.Series(found.codes, dtype=pl.UInt32)
    own = {
        CollectiveCalls.call_id: range(len(found.codes)),
        CollectiveCalls.sequence: found.sequences,
        CollectiveCalls.end_ns: found.ends,
    }
    columns: list[pl.Series] = []
    for column in CollectiveCalls.columns():
        if column in own:
            columns.append(pl.Series(column, own[column], dtype=column.dtype))
        elif column in _OF_FIRST_EVENT:
            columns.append(taken(events[_OF_FIRST_EVENT[column]], first).alias(column))
        else:
            told = [description[column] for description in found.descriptions]
            columns.append(taken(pl.Series(column, told, dtype=column.dtype), codes))
    return CollectiveCalls.check(pl.DataFrame(columns))


def _column(name: str, values: list[Any], dtype: Any) -> pl.Series:
    if not isinstance(dtype, pl.List):
        return pl.Series(name, values, dtype=dtype)
    # Each list would become a series of its own; calls that were described together share theirs.
    distinct = {id(value): value for value in values}
    places = {key: place for place, key in enumerate(distinct)}
    codes = pl.Series([places[id(value)] for value in values], dtype=pl.UInt32)
    return taken(pl.Series(name, list(distinct.values()), dtype=dtype), codes)
