"""Files that are read side by side are each read once, whole, and none is mistaken for another."""

from __future__ import annotations

import json
import os
import signal
from typing import TYPE_CHECKING

import pytest

from scope.errors import ScopeError, TraceError
from scope.trace import ReadOptions, load_rank, workers
from scope.trace.schema import DeviceEvents
from scope.trace.store import pack_rank, unpack_rank
from scope.trace.workers import read_side_by_side

if TYPE_CHECKING:
    from pathlib import Path

    from scope.trace.model import RankTrace

OPTIONS = ReadOptions(use_cache=False)


def write(folder: Path, number: int, num_kernels: int) -> Path:
    """Write a trace whose kernels are named after it."""
    args = {"device": 0, "stream": 7}
    records = [
        {"ph": "X", "cat": "kernel", "name": f"k{number}", "pid": 0, "tid": 7, "ts": 10 * at, "dur": 5, "args": args}
        for at in range(1, num_kernels + 1)
    ]
    path = folder / f"{number}.json"
    path.write_text(json.dumps({"traceEvents": records}))
    return path


def told(found: RankTrace | ScopeError) -> tuple[str, int] | str:
    """Return the name and number of the kernels of a trace, or the message of an error."""
    if isinstance(found, ScopeError):
        return str(found)
    events = found.device_events
    return str(events[DeviceEvents.name].item(0)), events.height


@pytest.mark.parametrize("processes", [2, 4])
def test_each_file_gives_its_own_tables(tmp_path: Path, processes: int) -> None:
    """Of nine files, small and large in turn and one broken, each gives what it holds, whoever reads it."""
    sizes = {number: 1 + 997 * (number % 3) for number in range(9)}
    paths = {write(tmp_path, number, size): number for number, size in sizes.items()}
    broken = tmp_path / "broken.json"
    broken.write_text("no trace")
    found = {path: told(each) for path, each in read_side_by_side([*paths, broken], OPTIONS, processes=processes)}
    assert "is not JSON" in str(found.pop(broken))
    assert found == {path: (f"k{number}", sizes[number]) for path, number in paths.items()}


def test_the_largest_files_are_read_first(tmp_path: Path) -> None:
    """In one process files come in the order of their sizes, so that no large one is left for the end."""
    sizes = {0: 5, 1: 500, 2: 50, 3: 300}
    paths = [write(tmp_path, number, size) for number, size in sizes.items()]
    order = [told(found) for _, found in read_side_by_side(paths, OPTIONS, processes=1)]
    assert order == [("k1", 500), ("k3", 300), ("k2", 50), ("k0", 5)]


def test_a_file_that_is_gone_is_an_error_of_its_own(tmp_path: Path) -> None:
    """A file that was there when the folder was listed, and is no more, costs itself alone."""
    paths = [write(tmp_path, number, 3) for number in range(3)]
    gone = tmp_path / "gone.json"
    found = {path: told(each) for path, each in read_side_by_side([*paths, gone], OPTIONS, processes=2)}
    assert "gone.json" in found[gone]
    assert [found[path] for path in paths] == [(f"k{number}", 3) for number in range(3)]


def test_a_process_that_ends_says_which_file_it_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the other process is killed, its files are errors that name them, and nothing hangs."""

    class Killed(workers._Worker):
        def __init__(self) -> None:
            super().__init__()
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()

    monkeypatch.setattr(workers, "_Worker", Killed)
    paths = [write(tmp_path, number, 3) for number in range(6)]
    found = dict(read_side_by_side(paths, OPTIONS, processes=2))
    assert set(found) == set(paths)
    lost = {path: each for path, each in found.items() if isinstance(each, ScopeError)}
    assert lost
    for path, error in lost.items():
        assert isinstance(error, TraceError)
        assert str(path) in str(error)
        assert "the process that read it ended" in str(error)


def test_memory_that_is_shared_holds_what_was_written_last(tmp_path: Path) -> None:
    """Ranks come back as they were written, also where they replace larger ones, and by a file of its own."""
    with workers._shared_memory() as place:
        for number, num_kernels in enumerate((5000, 3, 700)):
            trace = load_rank(write(tmp_path, number, num_kernels))
            sizes = pack_rank(trace, place)
            with workers._opened(os.dup(place.fileno())) as other:
                found = unpack_rank(other, sizes)
            assert told(found) == (f"k{number}", num_kernels)
            assert found.device_events.equals(trace.device_events)
            assert found.quality == trace.quality
