"""Small traces made by hand: rows as dicts, the columns that a test does not name get a neutral value."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl
import pytest

from scope.trace import schema
from scope.trace.model import RankTrace, TraceQuality

if TYPE_CHECKING:
    from collections.abc import Callable

    from scope.trace.columns import Table

Row = dict[str, Any]

_DEFAULTS: dict[type[Table], Row] = {
    schema.DeviceEvents: {
        "device": 0,
        "stream": 7,
        "kind": "kernel",
        "category": "compute",
        "kernel_class": "other",
        "name": "kernel",
        "in_graph": False,
    },
    schema.Ops: {"thread": 1, "name": "op", "depth": 0, "is_leaf": True},
    schema.Launches: {"thread": 1, "name": "cudaLaunchKernel", "kind": "kernel", "num_device_events": 0},
    schema.CollectiveCalls: {
        "operation": "all_reduce",
        "variant": "plain",
        "library": "gloo",
        "is_group_inferred": False,
        "has_metadata": True,
    },
    schema.Annotations: {"category": "user_annotation", "name": "range", "thread": 1, "on_device": False},
    schema.Steps: {"thread": 1, "is_cut": False},
    schema.Memory: {"device_type": 1, "device": 0, "thread": 1},
    schema.Syncs: {"kind": "stream_wait_event", "device": 0},
    schema.PythonCalls: {"thread": 1},
}
_IDS = {
    schema.DeviceEvents: "event_id",
    schema.Ops: "op_id",
    schema.Launches: "launch_id",
    schema.CollectiveCalls: "call_id",
    schema.Annotations: "annotation_id",
    schema.Steps: "step_id",
    schema.Syncs: "sync_id",
    schema.PythonCalls: "python_id",
}


def _table(table: type[Table], rows: list[Row] | None) -> pl.DataFrame:
    filled: list[Row] = []
    for index, row in enumerate(rows or []):
        full = {**_DEFAULTS[table], **({_IDS[table]: index} if table in _IDS else {}), **row}
        if table is schema.DeviceEvents:
            full.setdefault("clipped_end_ns", full["end_ns"])
            if "copy_kind" in full:
                full.update(kind="memset" if full["copy_kind"] == "set" else "memcpy", category="memory")
            if full["category"] != "compute":
                full["kernel_class"] = full["category"]
        if table is schema.Steps:
            full.setdefault("number", index)
        filled.append({str(column): full.pop(column, None) for column in table.columns()})
        assert not full, f"{table.__name__} has no {sorted(full)}"
    return table.check(pl.DataFrame(filled, schema=table.schema(), orient="row"))


def build_trace(**tables: Any) -> RankTrace:
    """Return a trace of the tables given as lists of rows; anything else is a field of `RankTrace`."""
    names = {
        "device_events": schema.DeviceEvents,
        "ops": schema.Ops,
        "launches": schema.Launches,
        "collective_calls": schema.CollectiveCalls,
        "annotations": schema.Annotations,
        "steps": schema.Steps,
        "memory": schema.Memory,
        "syncs": schema.Syncs,
        "python_calls": schema.PythonCalls,
    }
    frames = {name: _table(table, tables.pop(name, None)) for name, table in names.items()}
    fields: Row = {"label": "rank 0", "rank": 0, "path": "made.json", "quality": TraceQuality(), **tables}
    return RankTrace(**frames, **fields)


@pytest.fixture(scope="session")
def make_trace() -> Callable[..., RankTrace]:
    """Function that makes a `RankTrace` from rows."""
    return build_trace
