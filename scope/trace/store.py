"""One rank's tables as a folder of Parquet files, with what stands beside the tables in one JSON file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec
import polars as pl

from scope.trace.model import DeviceProperties, ProcessGroup, RankTrace, TraceQuality
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

if TYPE_CHECKING:
    from pathlib import Path

    from scope.trace.columns import Table

_BESIDE: Final = "trace.json"
_TABLES: Final[dict[str, type[Table]]] = {
    "device_events": DeviceEvents,
    "ops": Ops,
    "launches": Launches,
    "collective_calls": CollectiveCalls,
    "annotations": Annotations,
    "steps": Steps,
    "memory": Memory,
    "syncs": Syncs,
    "python_calls": PythonCalls,
}


class Beside(msgspec.Struct, kw_only=True):
    """Everything of a `RankTrace` but its tables."""

    label: str
    rank: int | None
    path: str
    world_size: int | None
    backend: str | None
    host: str | None
    num_processes: int
    is_host_timeline: bool
    process_groups: tuple[ProcessGroup, ...]
    devices: tuple[DeviceProperties, ...]
    threads: dict[int, str]
    quality: TraceQuality


def write_rank(trace: RankTrace, folder: Path) -> None:
    """Write one rank into an existing, empty folder.

    Raises:
        OSError: The disk is full or the folder cannot be written.
    """
    for name, table in _TABLES.items():
        frame: pl.DataFrame = getattr(trace, name)
        if frame.height:
            categories = [
                pl.col(column).cast(pl.String) for column in table.columns() if column.dtype == pl.Categorical
            ]
            frame.with_columns(categories).write_parquet(
                folder / f"{name}.parquet", compression="lz4", statistics=False
            )
    beside = Beside(**{name: getattr(trace, name) for name in Beside.__struct_fields__})
    (folder / _BESIDE).write_bytes(msgspec.json.encode(beside))


def read_rank(folder: Path) -> RankTrace:
    """Read what `write_rank` wrote.

    Raises:
        OSError, ValueError, msgspec.MsgspecError, polars.exceptions.PolarsError: The folder is torn or foreign.
    """
    beside = msgspec.json.decode((folder / _BESIDE).read_bytes(), type=Beside)
    tables: dict[str, Any] = {}
    for name, table in _TABLES.items():
        path = folder / f"{name}.parquet"
        tables[name] = _conformed(pl.read_parquet(path), table) if path.exists() else table.empty()
    _check_ids(tables)
    fields: dict[str, Any] = {name: getattr(beside, name) for name in Beside.__struct_fields__}
    return RankTrace(**fields, **tables)


def _check_ids(tables: dict[str, pl.DataFrame]) -> None:
    """Raise `ValueError` where a row points beyond the table that it points into, as no written file does."""
    targets = {
        "launch_id": "launches",
        "op_id": "ops",
        "parent_id": "ops",
        "forward_op_id": "ops",
        "call_id": "collective_calls",
        "step_id": "steps",
    }
    for name, frame in tables.items():
        for column in _TABLES[name].columns():
            target = targets.get(column) if column.dtype == pl.UInt32 else None
            if target is None or frame[column].null_count() == frame.height:
                continue
            largest: Any = frame[column].max()
            if largest >= tables[target].height:
                message = f"{name}.{column} points beyond {target}"
                raise ValueError(message)


def _conformed(frame: pl.DataFrame, table: type[Table]) -> pl.DataFrame:
    schema = table.schema()
    if frame.columns != schema.names():
        message = f"columns {frame.columns} are not those of {table.__name__}"
        raise ValueError(message)
    return frame.select(pl.col(name).cast(kind) for name, kind in schema.items())
