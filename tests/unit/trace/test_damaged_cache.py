"""An entry of the cache whose rows point nowhere is as good as none."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import polars as pl
import pytest

from scope.trace import load_rank
from scope.trace.schema import DeviceEvents, Launches
from scope.trace.store import read_rank, write_rank

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("table", "column"),
    [("device_events", DeviceEvents.launch_id), ("device_events", DeviceEvents.step_id), ("launches", Launches.op_id)],
)
def test_rows_that_point_beyond_their_table(tmp_path: Path, table: str, column: str) -> None:
    """Every table is well formed, but one id is that of no row: reading says so instead of failing in an analysis."""
    link = {"correlation": 1}
    host = {"ph": "X", "pid": 1, "tid": 1, "ts": 1}
    path = tmp_path / "rank0.json"
    records = [
        host | {"cat": "user_annotation", "name": "ProfilerStep#1", "dur": 90},
        host | {"cat": "cpu_op", "name": "aten::mm", "dur": 9},
        host | {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "dur": 2, "args": link},
        host | {"cat": "kernel", "name": "k", "ts": 20, "dur": 5, "args": {"device": 0, "stream": 7, **link}},
    ]
    path.write_text(json.dumps({"traceEvents": records}))
    folder = tmp_path / "entry"
    folder.mkdir()
    write_rank(load_rank(path), folder)
    assert getattr(read_rank(folder), table)[column].to_list() == [0]
    file = folder / f"{table}.parquet"
    pl.read_parquet(file).with_columns(pl.lit(1, dtype=pl.UInt32).alias(column)).write_parquet(file)
    with pytest.raises(ValueError, match=f"{table}.{column} points beyond"):
        read_rank(folder)
