"""Several profiler windows of the same ranks in one folder: one is read, and which is said."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from scope.errors import TraceError, UsageError
from scope.trace import ReadOptions, load
from scope.trace.schema import DeviceEvents, Steps

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

NO_CACHE = ReadOptions(use_cache=False)


def write(path: Path, *, first: int | None, rank: int | None = None, late_us: int = 0) -> Path:
    """Write a window of two steps of 100 us from step `first` on, or a trace without steps; a kernel lies in each."""
    records: list[dict[str, Any]] = []
    for step in (0, 0) if first is None else (first, first + 1):
        start = step * 1000 + late_us
        kernel = {"pid": 0, "tid": 7, "ts": start + 5, "args": {"device": 0, "stream": 7, "correlation": step}}
        records.append({"ph": "X", "cat": "kernel", "name": f"kernel_{first}", "dur": 9, **kernel})
        if first is not None:
            span = {"pid": 1, "tid": 1, "ts": start, "dur": 100}
            records.append({"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{step}", **span})
    document: dict[str, Any] = {"traceEvents": records}
    if rank is not None:
        document["distributedInfo"] = {"rank": rank, "world_size": 2}
    path.write_text(json.dumps(document))
    return path


def kernels(folder: Path | Sequence[Path], **more: Any) -> tuple[list[tuple[int | None, str]], tuple[str, ...]]:
    """Return rank and kernel of every trace that was read, and the warnings."""
    job = load(folder, options=NO_CACHE, **more)
    return [(trace.rank, trace.device_events[DeviceEvents.name][0]) for trace in job.ranks], job.warnings


def test_the_newest_window_that_most_ranks_share(tmp_path: Path) -> None:
    """Rank 1 ended before the third window, so the second of both is read, and the others are named."""
    for rank, windows in ((0, (2, 6, 10)), (1, (2, 6))):
        for first in windows:
            write(tmp_path / f"host_{rank}.{1_700_000_000_000_000_000 + first}.pt.trace.json", first=first, rank=rank)
    found, warnings = kernels(tmp_path)
    assert found == [(0, "kernel_6"), (1, "kernel_6")]
    assert warnings == (
        "of 5 traces those of the window of step 6 (2 files) are read; "
        "2 others: step 2 (2 files); step 10 (1 file); --window STEP reads another",
    )
    assert kernels(tmp_path, window=10)[0] == [(0, "kernel_10")]
    with pytest.raises(UsageError, match=r"--window 3: no trace begins.*step 2 \(2 files\); step 6.*step 10 \(1 file"):
        kernels(tmp_path, window=3)


def test_windows_of_one_process_without_a_rank(tmp_path: Path) -> None:
    """What torch's handler names after one process are windows of it; under other names they are files side by side."""
    for first in (2, 6):
        write(tmp_path / f"host_77.{1_700_000_000_000 + first}.pt.trace.json", first=first)
    found, warnings = kernels(tmp_path)
    assert (found, len(warnings)) == ([(None, "kernel_6")], 1)
    others = [write(tmp_path / name, first=first) for name, first in (("a.json", 2), ("b.json", 6))]
    assert len(kernels(others)[0]) == 2


def test_one_window_of_each_rank_is_left_alone(tmp_path: Path) -> None:
    """Ranks whose windows begin at other steps are ranks side by side; a window is chosen among them only if asked."""
    for rank, first in ((0, 2), (1, 3)):
        write(tmp_path / f"{rank}.json", first=first, rank=rank)
    assert kernels(tmp_path) == ([(0, "kernel_2"), (1, "kernel_3")], ())
    assert kernels(tmp_path, window=3)[0] == [(1, "kernel_3")]


@pytest.mark.parametrize(
    ("first", "late_us"),
    [(2, 0), (3, 0), (1, 90_000), (2, 90_000), (None, 0)],
    ids=["same window", "at the same time", "later time, earlier step", "later time, same step", "no steps"],
)
def test_what_are_no_windows_of_one_rank_clash(tmp_path: Path, first: int | None, late_us: int) -> None:
    """Files of one rank that overlap, or tell of the same steps, are a mistake that the user must mend."""
    write(tmp_path / "a.json", first=2, rank=0)
    write(tmp_path / "b.json", first=first, rank=0, late_us=late_us)
    with pytest.raises(TraceError, match="both claim rank 0"):
        kernels(tmp_path)


def test_a_trace_without_steps_is_named_where_it_is_left_out(tmp_path: Path) -> None:
    """Beside windows of steps, a trace without any belongs to none of them."""
    for first in (2, 6):
        write(tmp_path / f"{first}.json", first=first, rank=0)
    write(tmp_path / "odd.json", first=None, rank=1)
    found, warnings = kernels(tmp_path)
    assert found == [(0, "kernel_6")]
    assert any("left out" in warning and "odd.json" in warning for warning in warnings)


def test_steps_of_the_window_keep_their_numbers(tmp_path: Path) -> None:
    """The chosen window's steps are those of its file."""
    for first in (2, 6):
        write(tmp_path / f"{first}.json", first=first, rank=0)
    (trace,) = load(tmp_path, options=NO_CACHE).ranks
    assert trace.steps[Steps.number].to_list() == [6, 7]
