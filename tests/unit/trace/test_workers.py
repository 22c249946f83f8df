"""Files that are read side by side are each read once, whole, and none is mistaken for another."""

from __future__ import annotations

import contextlib
import json
import os
import re
import resource
import signal
import subprocess
import sys
from threading import Thread
from typing import IO, TYPE_CHECKING

import msgspec
import pytest

from scope.errors import ScopeError, TraceError, UsageError
from scope.trace import ReadOptions, load_rank, workers
from scope.trace.schema import DeviceEvents
from scope.trace.sources import Limits
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


@pytest.mark.parametrize(
    ("number", "words"), [(signal.SIGKILL, "ended by SIGKILL"), (signal.SIGRTMIN + 6, "ended by signal 40")]
)
def test_a_process_that_ends_costs_the_file_that_it_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, words: str
) -> None:
    """Where another process is ended by a signal, with a name or without, all files but the one it read are read."""

    class Killed(workers._Worker):
        def __init__(self) -> None:
            super().__init__()
            self._process.send_signal(number)
            self._process.wait()

    monkeypatch.setattr(workers, "_Worker", Killed)
    paths = [write(tmp_path, at, 3) for at in range(12)]
    found = dict(read_side_by_side(paths, OPTIONS, processes=3))
    assert set(found) == set(paths)
    lost = {path: each for path, each in found.items() if isinstance(each, ScopeError)}
    assert 1 <= len(lost) <= 2  # one each
    for path, error in lost.items():
        assert isinstance(error, TraceError)
        assert str(error).startswith(f"{path}: the process that read it {words} (")


def test_what_a_site_prints_at_the_start_is_no_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines that every interpreter prints when it begins cost no file, and nothing waits for ever."""
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text("print('null')\nprint('welcome', flush=True)\n")
    monkeypatch.setenv("PYTHONPATH", str(site))
    assert subprocess.check_output([sys.executable, "-P", "-c", ""]) == b"null\nwelcome\n"
    paths = [write(tmp_path, number, 300) for number in range(6)]
    found = {path: told(each) for path, each in read_side_by_side(paths, OPTIONS, processes=3)}
    assert found == {path: (f"k{number}", 300) for number, path in enumerate(paths)}


def test_names_that_are_no_text_are_read_and_told(tmp_path: Path) -> None:
    """Files whose names are bytes of another encoding are read by all processes, and named in errors."""
    paths = [write(tmp_path, number, 300).rename(tmp_path / f"{number}\udcff.json") for number in range(6)]
    broken = [tmp_path / f"broken{number}\udcff.json" for number in range(6)]
    for path in broken:
        path.write_text("no trace" + 10_000 * " ")
    found = {path: told(each) for path, each in read_side_by_side([*paths, *broken], OPTIONS, processes=3)}
    for path in broken:
        assert str(found.pop(path)).startswith(f"{path}: ")
    assert found == {path: (f"k{number}", 300) for number, path in enumerate(paths)}


def test_a_limit_that_is_no_size_is_told_before_files_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable that is set to nonsense is an error at once, of all files, and nothing waits for ever."""
    monkeypatch.setenv("SCOPE_MAX_TRACE_BYTES", "nonsense")
    with pytest.raises(UsageError, match=r"^SCOPE_MAX_TRACE_BYTES='nonsense' is not a size"):
        list(read_side_by_side([write(tmp_path, number, 3) for number in range(4)], OPTIONS, processes=2))


def test_a_process_that_lives_on_without_answers_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that answers nothing and stays is ended, and the error says so; nothing waits for ever."""
    monkeypatch.setattr(workers, "_LONGEST_END_S", 0.01)
    worker = workers._Worker()
    try:
        with pytest.raises(TraceError, match=r"0\.json: the process that read it gave no answer and was ended \("):
            worker.take(tmp_path / "0.json", None)
    finally:
        worker.close()
    assert worker._process.returncode == -signal.SIGKILL


@pytest.mark.parametrize("num_started", [0, 1])
def test_where_no_thread_can_begin_the_others_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_started: int
) -> None:
    """A system that allows no more threads costs nothing but time, and leaves no process behind."""
    begun: list[workers._Worker] = []
    started: list[Thread] = []

    class Counted(workers._Worker):
        def __init__(self) -> None:
            super().__init__()
            begun.append(self)

    class Scarce(Thread):
        def start(self) -> None:
            if len(started) == num_started:
                message = "can't start new thread"
                raise RuntimeError(message)
            started.append(self)
            super().start()

    monkeypatch.setattr(workers, "_Worker", Counted)
    monkeypatch.setattr(workers, "Thread", Scarce)
    paths = [write(tmp_path, number, 3) for number in range(6)]
    found: dict[Path, tuple[str, int] | str] = {}
    for path, each in read_side_by_side(paths, OPTIONS, processes=4):
        found[path] = told(each)
        # Those without a thread are waited for at once: until then they count against the limit.
        assert all(worker._process.returncode is not None for worker in begun[num_started:])
    assert found == {path: (f"k{number}", 3) for number, path in enumerate(paths)}
    assert len(begun) == 3
    assert [worker._process.returncode is None for worker in begun] == [False] * 3


@pytest.mark.parametrize("limit", [10, 3_000])
def test_what_memory_has_no_room_for_is_read_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    """Where a limit on file sizes holds for shared memory too, this process reads the files, and nobody complains."""

    class Small(workers._Worker):
        def __init__(self) -> None:
            super().__init__()
            resource.prlimit(self._process.pid, resource.RLIMIT_FSIZE, (limit, limit))

    monkeypatch.setattr(workers, "_Worker", Small)
    paths = [write(tmp_path, number, 300) for number in range(6)]
    found = {path: told(each) for path, each in read_side_by_side(paths, OPTIONS, processes=3)}
    assert found == {path: (f"k{number}", 300) for number, path in enumerate(paths)}


def test_a_process_without_memory_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a process that its limit on memory ends, the error says how it ended and what to do."""

    class Poor(workers._Worker):
        def __init__(self) -> None:
            super().__init__()
            limit = 40 * 2**20  # less than the interpreter needs once it has imported what reads
            resource.prlimit(self._process.pid, resource.RLIMIT_AS, (limit, limit))

    monkeypatch.setattr(workers, "_Worker", Poor)
    paths = [write(tmp_path, number, 3) for number in range(6)]
    found = dict(read_side_by_side(paths, OPTIONS, processes=2))
    (lost, *_) = [str(each) for each in found.values() if isinstance(each, ScopeError)]
    assert re.search(r"the process that read it ended (with code \d+|by SIG[A-Z]+) \(.+\); read fewer files", lost)
    assert "(--processes 1)" in lost


def test_where_no_process_can_begin_this_one_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A system that allows no more processes or open files costs nothing but time."""

    class Refused(workers._Worker):
        def __init__(self) -> None:
            raise BlockingIOError

    monkeypatch.setattr(workers, "_Worker", Refused)
    paths = [write(tmp_path, number, 3) for number in range(3)]
    found = {path: told(each) for path, each in read_side_by_side(paths, OPTIONS, processes=3)}
    assert found == {path: (f"k{number}", 3) for number, path in enumerate(paths)}


_SERVE = "from scope.trace.workers import serve; serve("
_STUCK = """
from scope.trace import workers
def hold_on(*_):
    print("begun", flush=True)
    sum(range(10**15))  # nothing else of the interpreter runs meanwhile
workers._answer_to = hold_on
workers.serve("""


def _begin_server(words: IO[bytes], begin: str = _SERVE, *, parent: int) -> subprocess.Popen[bytes]:
    """Begin a process that reads files, as one of several, with a place for one file, and answers on its output.

    It is the child of whoever holds the other end of the pipe `parent`.
    """
    place = workers._shared_memory()
    with workers._interrupts_held(), place, os.fdopen(parent, "rb"):
        at = place.fileno()
        program = f"import sys; sys.path.append({workers._ROOT!r})\n{begin}[{at}], answers=1, parent={parent})"
        return subprocess.Popen(
            [sys.executable, "-P", "-c", program],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=words, pass_fds=[at, parent],
        )  # fmt: skip


def test_an_interrupt_or_the_end_of_its_parent_leaves_a_reader_silent(tmp_path: Path) -> None:
    """Ctrl-C reaches all processes of a terminal, and a parent may be killed: neither is told as a traceback."""
    path = write(tmp_path, 0, 30)
    its_end, our_end = os.pipe()
    with (
        (tmp_path / "words").open("w+b") as words,
        _begin_server(words, parent=its_end) as process,
        os.fdopen(our_end, "wb"),
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        process.send_signal(signal.SIGINT)
        task = msgspec.json.encode(workers._task(path, OPTIONS, Limits())) + b"\n"
        process.stdin.write(task)
        process.stdin.flush()
        assert b'"sizes"' in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        process.stdout.close()
        process.stdin.write(task)
        process.stdin.close()
        assert process.wait(60) == 0
        words.seek(0)
        assert words.read() == b""


@pytest.mark.parametrize("blocked", [[], [signal.SIGIO]])
def test_a_reader_ends_with_its_parent_in_the_middle_of_a_file(tmp_path: Path, blocked: list[signal.Signals]) -> None:
    """A parent that a signal ended leaves no process behind that reads on for nobody; this one would for minutes.

    A process takes over which signals its parent blocks.
    """
    its_end, our_end = os.pipe()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, blocked)
    with (tmp_path / "words").open("w+b") as words, _begin_server(words, _STUCK, parent=its_end) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(msgspec.json.encode(workers._task(tmp_path, OPTIONS, Limits())) + b"\n")
            process.stdin.flush()
            assert process.stdout.readline() == b"begun\n"
            os.close(our_end)
            assert process.wait(60) == -signal.SIGIO
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            process.kill()
        words.seek(0)
        assert words.read() == b""


def test_a_reader_whose_parent_ended_before_it_had_begun_reads_nothing(tmp_path: Path) -> None:
    """The kernel tells nothing of a pipe that was closed before it was asked to: the reader looks for itself."""
    its_end, our_end = os.pipe()
    os.close(our_end)
    with (tmp_path / "words").open("w+b") as words, _begin_server(words, _STUCK, parent=its_end) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            with contextlib.suppress(BrokenPipeError):  # it may have ended already
                process.stdin.write(msgspec.json.encode(workers._task(tmp_path, OPTIONS, Limits())) + b"\n")
                process.stdin.flush()
            assert process.stdout.read(1) == b""
            assert process.wait(60) == 0
        finally:
            process.kill()
        words.seek(0)
        assert words.read() == b""


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
