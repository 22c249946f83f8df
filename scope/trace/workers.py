"""Many files at once: this process reads some, and each of several other processes reads some.

The others are plain interpreters that run `serve`: they take the path of a file a line, and answer with a line and the
tables behind it. So no program that calls `load` must guard its `__main__`, as `multiprocessing` asks, and nothing is
pickled.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from collections import deque
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, Final

import msgspec

from scope import errors
from scope.errors import ScopeError, TraceError
from scope.trace.classes import Pattern
from scope.trace.narrowing import TABLE_NAMES
from scope.trace.reader import NotATraceError
from scope.trace.sources import Limits
from scope.trace.store import pack_rank, unpack_rank

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from scope.trace.loading import ReadOptions
    from scope.trace.model import RankTrace

_ERRORS: Final[dict[str, type[ScopeError]]] = {
    "NotATraceError": NotATraceError,
    **{name: kind for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, ScopeError)},
}


_ROOT: Final = str(Path(__file__).parent.parent.parent)


class _Task(msgspec.Struct):
    path: str
    python_calls: bool
    tables: list[str] | None
    patterns: list[tuple[str, str]]
    max_bytes: int
    max_ratio: int


class _Answer(msgspec.Struct):
    error: str | None = None
    message: str = ""
    sizes: dict[str, int] = {}
    """Names of the pieces that follow the line, and the bytes of each."""


class _Worker:
    """One interpreter."""

    def __init__(self) -> None:
        # One thread each: the files already keep all cores busy.
        environment = {**os.environ, "POLARS_MAX_THREADS": "1"}
        # Nothing is imported from the folder that the user stands in, which may hold anything; where this package runs
        # from a source tree, it is found there.
        program = f"import sys; sys.path.append({_ROOT!r}); from scope.trace.workers import serve; serve()"
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", program],
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
            answer = msgspec.json.decode(stdout.readline() or b"null", type=_Answer | None)
            pieces = {} if answer is None else {name: stdout.read(size) for name, size in answer.sizes.items()}
        except OSError:
            answer, pieces = None, {}
        if answer is None or any(len(pieces[name]) < size for name, size in answer.sizes.items()):
            message = f"{task.path}: the process that read it ended (out of memory?); read fewer files at a time"
            raise TraceError(message)
        if answer.error is not None:
            raise _ERRORS.get(answer.error, TraceError)(answer.message)
        return unpack_rank(pieces)

    def end(self) -> None:
        """End the process, also in the middle of a file."""
        self._process.kill()

    def close(self) -> None:
        """Wait for the end of the process, and close its pipes."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        self._process.wait()


def read_side_by_side(
    paths: Sequence[Path], options: ReadOptions, *, processes: int
) -> Iterator[tuple[Path, RankTrace | ScopeError]]:
    """Read files in several processes; yield each when it is done, in any order.

    Args:
        paths: The files.
        options: How to read them.
        processes: How many processes, this one among them.
    """
    from scope.trace.loading import read_file

    waiting = deque(paths)
    ready: SimpleQueue[tuple[Path, RankTrace | Exception]] = SimpleQueue()
    workers = [_Worker() for _ in range(min(processes, len(paths)) - 1)]

    def run(worker: _Worker) -> None:
        while (path := _next(waiting)) is not None:
            ready.put((path, _result(lambda path=path: worker.read(_task(path, options)))))

    threads = [Thread(target=run, args=(worker,), name="scope-read", daemon=True) for worker in workers]
    for thread in threads:
        thread.start()
    try:
        for _ in paths:
            path = _next(waiting) if ready.empty() else None
            found = ready.get() if path is None else (path, _result(lambda path=path: read_file(path, options)))
            if isinstance(found[1], Exception) and not isinstance(found[1], ScopeError):
                raise found[1]
            yield found[0], found[1]
    finally:
        waiting.clear()
        for worker in workers:
            worker.end()
        for thread in threads:
            thread.join()
        for worker in workers:
            worker.close()


def _next(waiting: deque[Path]) -> Path | None:
    try:
        return waiting.popleft()
    except IndexError:
        return None


def _result(read: Callable[[], RankTrace]) -> RankTrace | Exception:
    try:
        return read()
    except Exception as error:  # noqa: BLE001 - handed to the consumer, which raises it
        return error


def _task(path: Path, options: ReadOptions) -> _Task:
    limits = options.limits or Limits.from_environment()
    chosen = options.tables
    return _Task(
        path=str(path),
        python_calls=options.python_calls,
        tables=None if chosen is None else [name for name, table in TABLE_NAMES.items() if table in chosen],
        patterns=[(pattern.expression.pattern, pattern.kernel_class) for pattern in options.patterns],
        max_bytes=limits.max_bytes,
        max_ratio=limits.max_ratio,
    )


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
        pieces: dict[str, bytes] = {}
        try:
            pieces = pack_rank(read_file(Path(task.path), options))
            answer = _Answer(sizes={name: len(piece) for name, piece in pieces.items()})
        except ScopeError as error:
            answer = _Answer(error=type(error).__name__, message=str(error))
        sys.stdout.buffer.write(msgspec.json.encode(answer) + b"\n")
        for piece in pieces.values():
            sys.stdout.buffer.write(piece)
        sys.stdout.buffer.flush()
