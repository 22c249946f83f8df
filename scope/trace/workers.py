"""Many files at once, each in a process of its own.

The processes are plain interpreters that run `serve`: they take the path of a file a line, and answer with a line
when its tables stand in a folder. So no program that calls `load` must guard its `__main__`, as `multiprocessing`
asks, and nothing is pickled.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Final

import msgspec

from scope import errors
from scope.errors import ScopeError, TraceError
from scope.trace.classes import Pattern
from scope.trace.narrowing import TABLE_NAMES
from scope.trace.reader import NotATraceError
from scope.trace.sources import Limits
from scope.trace.store import read_rank, write_rank

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from scope.trace.loading import ReadOptions
    from scope.trace.model import RankTrace

_ERRORS: Final[dict[str, type[ScopeError]]] = {
    "NotATraceError": NotATraceError,
    **{name: kind for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, ScopeError)},
}


class _Task(msgspec.Struct):
    path: str
    folder: str
    python_calls: bool
    tables: list[str] | None
    patterns: list[tuple[str, str]]
    max_bytes: int
    max_ratio: int


class _Answer(msgspec.Struct):
    error: str | None = None
    message: str = ""


class _Worker:
    """One interpreter; started when it is first asked."""

    def __init__(self) -> None:
        # One thread each: the files already keep all cores busy.
        environment = {**os.environ, "POLARS_MAX_THREADS": "1"}
        self._process = subprocess.Popen(
            [sys.executable, "-c", "from scope.trace.workers import serve; serve()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
        )

    def read(self, task: _Task) -> RankTrace:
        """Return the tables of one file.

        Raises:
            ScopeError: What reading it raised, or the process ended.
        """
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        try:
            stdin.write(msgspec.json.encode(task) + b"\n")
            stdin.flush()
            line = stdout.readline()
        except OSError:
            line = b""
        if not line:
            message = f"{task.path}: the process that read it ended (out of memory?); read fewer files at a time"
            raise TraceError(message)
        answer = msgspec.json.decode(line, type=_Answer)
        if answer.error is not None:
            raise _ERRORS.get(answer.error, TraceError)(answer.message)
        return read_rank(Path(task.folder))

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()


def read_side_by_side(
    paths: Sequence[Path], options: ReadOptions, *, processes: int
) -> Iterator[tuple[Path, RankTrace | ScopeError]]:
    """Read files in several processes; yield each when it is done, in any order.

    Args:
        paths: The files.
        options: How to read them.
        processes: How many processes.
    """
    idle: SimpleQueue[_Worker] = SimpleQueue()
    workers = [_Worker() for _ in range(min(processes, len(paths)))]
    for worker in workers:
        idle.put(worker)

    def read(task: _Task) -> RankTrace | ScopeError:
        worker = idle.get()
        try:
            return worker.read(task)
        except ScopeError as error:
            return error
        finally:
            idle.put(worker)

    pool = ThreadPoolExecutor(max_workers=len(workers))
    with tempfile.TemporaryDirectory(prefix="scope-read-") as place:
        try:
            tasks = _tasks(paths, options, Path(place))
            running = {pool.submit(read, task): path for path, task in zip(paths, tasks, strict=True)}
            for future in as_completed(running):
                yield running[future], future.result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
            for worker in workers:
                worker.close()


def _tasks(paths: Sequence[Path], options: ReadOptions, place: Path) -> list[_Task]:
    limits = options.limits or Limits.from_environment()
    patterns = [(pattern.expression.pattern, pattern.kernel_class) for pattern in options.patterns]
    chosen = options.tables
    tables = None if chosen is None else [name for name, table in TABLE_NAMES.items() if table in chosen]
    tasks: list[_Task] = []
    for number, path in enumerate(paths):
        folder = place / str(number)
        folder.mkdir()
        tasks.append(
            _Task(
                path=str(path),
                folder=str(folder),
                python_calls=options.python_calls,
                tables=tables,
                patterns=patterns,
                max_bytes=limits.max_bytes,
                max_ratio=limits.max_ratio,
            )
        )
    return tasks


def serve() -> None:
    """Answer tasks on standard input until it ends."""
    from scope.trace.loading import ReadOptions, read_file

    decoder = msgspec.json.Decoder(_Task)
    for line in sys.stdin.buffer:
        task = decoder.decode(line)
        options = ReadOptions(
            python_calls=task.python_calls,
            tables=None if task.tables is None else tuple(TABLE_NAMES[name] for name in task.tables),
            patterns=tuple(Pattern(re.compile(expression), kind) for expression, kind in task.patterns),
            limits=Limits(max_bytes=task.max_bytes, max_ratio=task.max_ratio),
        )
        try:
            write_rank(read_file(Path(task.path), options), Path(task.folder))
            answer = _Answer()
        except ScopeError as error:
            answer = _Answer(error=type(error).__name__, message=str(error))
        except OSError as error:
            answer = _Answer(error="TraceError", message=f"{task.path}: its tables cannot be written: {error}")
        sys.stdout.buffer.write(msgspec.json.encode(answer) + b"\n")
        sys.stdout.buffer.flush()
