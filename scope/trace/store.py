"""One rank's tables on their way: a folder of Parquet files with one JSON file beside them, or pieces of bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, BinaryIO, Final

import msgspec
import polars as pl

from scope.trace.model import DeviceProperties, ProcessGroup, RankTrace, TraceQuality
from scope.trace.narrowing import TABLE_NAMES, known_columns, not_loaded

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from scope.trace.columns import Column

_BESIDE: Final = "trace.json"


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
    not_loaded: tuple[str, ...] = ()


def write_rank(trace: RankTrace, folder: Path) -> None:
    """Write one rank into an existing, empty folder.

    Raises:
        OSError: The disk is full or the folder cannot be written.
    """
    for name in TABLE_NAMES:
        if name in trace.not_loaded:
            continue
        frame: pl.DataFrame = getattr(trace, name)
        if frame.height:
            texts = [pl.col(column).cast(pl.String) for column, kind in frame.schema.items() if kind == pl.Categorical]
            frame.with_columns(texts).write_parquet(folder / f"{name}.parquet", compression="lz4", statistics=False)
    (folder / _BESIDE).write_bytes(_encoded_beside(trace))


def read_rank(folder: Path) -> RankTrace:
    """Read what `write_rank` wrote.

    Raises:
        OSError, ValueError, msgspec.MsgspecError, polars.exceptions.PolarsError: The folder is torn or foreign.
    """
    beside = msgspec.json.decode((folder / _BESIDE).read_bytes(), type=Beside)
    loaded = frozenset(table for name, table in TABLE_NAMES.items() if name not in beside.not_loaded)
    tables: dict[str, pl.DataFrame] = {}
    for name, table in TABLE_NAMES.items():
        if table in loaded:
            path = folder / f"{name}.parquet"
            columns = known_columns(table, loaded)
            tables[name] = (
                _conformed(pl.read_parquet(path), columns) if path.exists() else table.empty().select(columns)
            )
    _check_ids(tables)
    return _trace(beside, tables)


def pack_rank(trace: RankTrace, file: BinaryIO) -> dict[str, int]:
    """Write one rank into a file that another process of this machine reads; quicker than a folder, and larger.

    Args:
        trace: The rank.
        file: Not buffered, since both processes move to and fro in it; written from its beginning on.

    Returns:
        Names of the pieces in the order in which they stand in the file, and the bytes of each.

    Raises:
        OSError: There is no room in the file.
    """
    file.seek(0)
    beside = _encoded_beside(trace)
    sizes = {_BESIDE: file.write(beside)}
    if sizes[_BESIDE] != len(beside):
        message = "there is no room for all of it"
        raise OSError(message)
    end = file.tell()
    for name in TABLE_NAMES:
        if name not in trace.not_loaded:
            frame: pl.DataFrame = getattr(trace, name)
            if frame.height:
                frame.write_ipc_stream(file)
                end, start = file.tell(), end
                sizes[name] = end - start
    return sizes


def unpack_rank(file: BinaryIO, sizes: Mapping[str, int]) -> RankTrace:
    """Return what `pack_rank` packed."""
    frames: dict[str, pl.DataFrame] = {}
    file.seek(0)
    beside = msgspec.json.decode(file.read(sizes[_BESIDE]), type=Beside)
    offset = 0
    for name, size in sizes.items():
        if name != _BESIDE:
            file.seek(offset)
            frames[name] = pl.read_ipc_stream(file)
        offset += size
    loaded = frozenset(table for name, table in TABLE_NAMES.items() if name not in beside.not_loaded)
    tables: dict[str, pl.DataFrame] = {}
    for name, table in TABLE_NAMES.items():
        if table in loaded:
            columns = known_columns(table, loaded)
            frame = frames.get(name)
            tables[name] = table.empty().select(columns) if frame is None else _conformed(frame, columns)
    return _trace(beside, tables)


def _encoded_beside(trace: RankTrace) -> bytes:
    return msgspec.json.encode(Beside(**{name: getattr(trace, name) for name in Beside.__struct_fields__}))


def _trace(beside: Beside, tables: dict[str, pl.DataFrame]) -> RankTrace:
    fields: dict[str, Any] = {name: getattr(beside, name) for name in Beside.__struct_fields__}
    absent = {name: not_loaded(name) for name in beside.not_loaded}
    return RankTrace(**fields, **tables, **absent)


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
        for column, kind in frame.schema.items():
            target = targets.get(column) if kind == pl.UInt32 else None
            if target is None or target not in tables or frame[column].null_count() == frame.height:
                continue
            largest: Any = frame[column].max()
            if largest >= tables[target].height:
                message = f"{name}.{column} points beyond {target}"
                raise ValueError(message)


def _conformed(frame: pl.DataFrame, columns: list[Column]) -> pl.DataFrame:
    if frame.columns != columns:
        message = f"columns {frame.columns} are not {columns}"
        raise ValueError(message)
    return frame.select(pl.col(column).cast(column.dtype) for column in columns)
