"""Many files at once: this process reads some, and each of several other processes reads some.

The others are plain interpreters that run `serve`: they take the path of a file a line, lay its tables in memory that
both share, answer with a line, and go on with the next file while this process unpacks. A pipe would hold them up: this
process reads a file as well, and comes to empty a pipe only now and then. So no program that calls `load` must guard
its `__main__`, as `multiprocessing` asks, and nothing is pickled. Answers have a pipe of their own, since what a site
runs at the start of every interpreter may print.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
from collections import deque
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, BinaryIO, Final

import msgspec
from polars.exceptions import PolarsError

from scope import errors
from scope.errors import ScopeError, TraceError
from scope.trace.classes import Pattern
from scope.trace.narrowing import TABLE_NAMES
from scope.trace.reader import NotATraceError
from scope.trace.sources import Limits
from scope.trace.store import pack_rank, unpack_rank
from scope.units import signal_name

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence

    from scope.trace.loading import ReadOptions
    from scope.trace.model import RankTrace

_ERRORS: Final[dict[str, type[ScopeError]]] = {
    "NotATraceError": NotATraceError,
    **{name: kind for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, ScopeError)},
}


_ROOT: Final = str(Path(__file__).parent.parent.parent)
_MOST_WORDS: Final = 200
"""Of the last words of a process that ended."""
_LONGEST_END_S: Final = 5
"""Between the end of the answers of a process and its own."""


class _Task(msgspec.Struct):
    path: bytes
    """As the file system has it: names of files need not be text."""
    python_calls: bool
    tables: list[str] | None
    patterns: list[tuple[str, str]]
    max_bytes: int
    max_ratio: int


class _Answer(msgspec.Struct):
    error: str | None = None
    message: bytes = b""
    """With what of a name of a file is no text."""
    sizes: dict[str, int] = {}
    """Names of the pieces in the shared memory, and the bytes of each."""
    is_unwritten: bool = False
    """There was no room for them in the shared memory, or they hold a name that is no text."""


class _Worker:
    """One interpreter, and two places in memory where it lays in turn what it has read."""

    def __init__(self) -> None:
        self._num_read = 0
        # One thread each: the files already keep all cores busy.
        environment = {**os.environ, "POLARS_MAX_THREADS": "1"}
        with contextlib.ExitStack() as opened, contextlib.ExitStack() as lent:
            self._places = [opened.enter_context(_shared_memory()) for _ in range(2)]
            self._words = opened.enter_context(_shared_memory())
            its_end, our_end = os.pipe()
            opened.callback(os.close, our_end)
            lent.callback(os.close, its_end)
            here, there = os.pipe()
            lent.callback(os.close, there)
            self._answers = opened.enter_context(os.fdopen(here, "rb"))
            descriptors = [place.fileno() for place in self._places]
            # Nothing is imported from the folder that the user stands in, which may hold anything; where this package
            # runs from a source tree, it is found there.
            program = (
                f"import sys; sys.path.append({_ROOT!r}); from scope.trace.workers import serve; "
                f"serve({descriptors}, answers={there}, parent={its_end})"
            )
            with _interrupts_held():
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-c", program],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    stderr=self._words,
                    env=environment,
                    pass_fds=[*descriptors, there, its_end],
                )
            self._files = opened.pop_all()

    def ask(self, task: _Task) -> None:
        """Have the next file read; that the process has ended shows in the answer."""
        stdin = self._process.stdin
        assert stdin is not None
        with contextlib.suppress(OSError):
            stdin.write(msgspec.json.encode(task) + b"\n")
            stdin.flush()

    def answer(self) -> _Answer | None:
        """Wait until the file is read; None where the process has ended, or says what nobody understands."""
        try:
            return msgspec.json.decode(self._answers.readline() or b"null", type=_Answer | None)
        except (OSError, msgspec.MsgspecError):
            return None

    def take(self, path: Path, answer: _Answer | None) -> RankTrace | None:
        """Return the tables that an answer tells of, before the next but one file is asked for.

        None where there was no room for them.

        Raises:
            ScopeError: What reading the file raised, or the process ended.
        """
        place = self._places[self._num_read % len(self._places)]
        self._num_read += 1
        if answer is None:
            message = (
                f"{path}: the process that read it {self._describe_end()}; read fewer files at a time (--processes 1)"
            )
            raise TraceError(message)
        if answer.error is not None:
            raise _ERRORS.get(answer.error, TraceError)(answer.message.decode(errors="surrogatepass"))
        return None if answer.is_unwritten else unpack_rank(place, answer.sizes)

    def _describe_end(self) -> str:
        """Return how the process ended, and its words about it: those of memory, else the last."""
        try:
            how = _how_ended(self._process.wait(timeout=_LONGEST_END_S))
        except subprocess.TimeoutExpired:
            self.end()
            how = "gave no answer and was ended"
        self._words.seek(0)
        lines = [line.strip() for line in self._words.read().decode(errors="replace").splitlines() if line.strip()]
        words = next((line for line in lines if line.startswith("memory")), lines[-1] if lines else "out of memory?")
        return f"{how} ({words[:_MOST_WORDS]})"

    def end(self) -> None:
        """End the process, also in the middle of a file."""
        self._process.kill()

    def close(self) -> None:
        """Wait for the end of the process, and close its pipes and places; more than once is no more."""
        stdin = self._process.stdin
        assert stdin is not None
        with contextlib.suppress(OSError):
            stdin.close()
        self._process.wait()
        self._files.close()


def _how_ended(code: int) -> str:
    """Return in words what a return code of `subprocess.Popen` tells."""
    if code >= 0:
        return f"ended with code {code}"
    return f"ended by {signal_name(-code) or f'signal {-code}'}"


@contextlib.contextmanager
def _interrupts_held() -> Generator[None]:
    """Inside the `with` this thread takes no Ctrl-C, nor does a process that begins there, ever: its parent ends it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _shared_memory() -> BinaryIO:
    """Return a file without a name, in memory where the system has such files."""
    if hasattr(os, "memfd_create"):
        return _opened(os.memfd_create("scope-read"))
    with tempfile.TemporaryFile() as file:
        return _opened(os.dup(file.fileno()))


def _opened(place: int) -> BinaryIO:
    """Return the file of a descriptor; a buffer would hide what the other process writes."""
    return open(place, "r+b", buffering=0)


def read_side_by_side(
    paths: Sequence[Path], options: ReadOptions, *, processes: int
) -> Iterator[tuple[Path, RankTrace | ScopeError]]:
    """Read files in several processes, the largest first; yield each when it is done, in any order.

    Args:
        paths: The files.
        options: How to read them.
        processes: How many processes, this one among them.

    Raises:
        UsageError: A limit that the environment sets is no size or number.
    """
    from scope.trace.loading import read_file

    limits = options.limits or Limits.from_environment()
    # A large file that is begun last would keep one process busy while the others have nothing left.
    waiting = deque(sorted(paths, key=_size, reverse=True))
    ready: SimpleQueue[tuple[Path, RankTrace | Exception | None]] = SimpleQueue()
    workers = _begin(min(processes, len(paths)) - 1)

    def run(worker: _Worker) -> None:
        path = _next(waiting)
        if path is not None:
            worker.ask(_task(path, options, limits))
        while path is not None:
            answer = worker.answer()
            # Whoever has ended reads nothing more: the others, and this process, read the rest.
            following = None if answer is None else _next(waiting)
            if following is not None:
                worker.ask(_task(following, options, limits))
            ready.put((path, _result(lambda path=path, answer=answer: worker.take(path, answer))))
            path = following

    threads = [Thread(target=run, args=(worker,), name="scope-read", daemon=True) for worker in workers]
    try:
        for worker in workers[_start(threads) :]:
            worker.end()
            worker.close()  # until it is waited for, it counts against the limit
        for _ in paths:
            path = _next(waiting) if ready.empty() else None
            path, found = ready.get() if path is None else (path, None)
            if found is None:
                found = _result(lambda path=path: read_file(path, options))
            assert found is not None
            if isinstance(found, Exception) and not isinstance(found, ScopeError):
                raise found
            yield path, found
    finally:
        waiting.clear()
        for worker in workers:
            worker.end()
        for thread in filter(Thread.is_alive, threads):
            thread.join()
        for worker in workers:
            worker.close()


def _begin(num_workers: int) -> list[_Worker]:
    """Return as many workers as there are, or fewer where the system allows no more processes or open files."""
    workers: list[_Worker] = []
    with contextlib.suppress(OSError):
        for _ in range(num_workers):
            workers.append(_Worker())  # noqa: PERF401 - those before stay where one cannot begin
    return workers


def _start(threads: Sequence[Thread]) -> int:
    """Start as many threads as the system allows, which counts them as it counts processes; return how many."""
    for number, thread in enumerate(threads):
        try:
            thread.start()
        except RuntimeError:
            return number
    return len(threads)


def _size(path: Path) -> int:
    """Return the size of a file; 0 for one that is gone, which reading it tells."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _next(waiting: deque[Path]) -> Path | None:
    try:
        return waiting.popleft()
    except IndexError:
        return None


def _result(read: Callable[[], RankTrace | None]) -> RankTrace | Exception | None:
    try:
        return read()
    except Exception as error:  # noqa: BLE001 - handed to the consumer, which raises it
        return error


def _task(path: Path, options: ReadOptions, limits: Limits) -> _Task:
    chosen = options.tables
    return _Task(
        path=os.fsencode(path),
        python_calls=options.python_calls,
        tables=None if chosen is None else [name for name, table in TABLE_NAMES.items() if table in chosen],
        patterns=[(pattern.expression.pattern, pattern.kernel_class) for pattern in options.patterns],
        max_bytes=limits.max_bytes,
        max_ratio=limits.max_ratio,
    )


def serve(places: Sequence[int], *, answers: int, parent: int) -> None:
    """Answer tasks on standard input until it ends, or until nobody is there to hear the answer.

    Args:
        places: Descriptors of the files that the tables are laid in, in turn.
        answers: Descriptor of the pipe that takes a line for each file.
        parent: Descriptor of a pipe that nothing is written to: once its other end is closed, as the end of its parent
            closes it, this process ends, in the middle of a file as well.
    """
    signal.signal(signal.SIGIO, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGIO})  # a parent that blocks it hands that down
    fcntl.fcntl(parent, fcntl.F_SETOWN, os.getpid())
    # The kernel then ends this process by SIGIO; a thread would wait until what reads lets it run.
    fcntl.fcntl(parent, fcntl.F_SETFL, os.O_ASYNC)
    if _is_closed(parent):
        return  # the parent ended before the kernel was asked to tell
    decoder = msgspec.json.Decoder(_Task)
    files = [_opened(place) for place in places]
    # Not buffered: what a buffer still holds is written, and fails, once more when the interpreter ends.
    with open(answers, "wb", buffering=0) as pipe, contextlib.suppress(BrokenPipeError):
        for number, line in enumerate(sys.stdin.buffer):
            answer = _answer_to(decoder.decode(line), files[number % len(files)])
            pipe.write(msgspec.json.encode(answer) + b"\n")


def _is_closed(pipe: int) -> bool:
    """Say whether the other end of a pipe, which nothing is written to, is closed."""
    poll = select.poll()
    poll.register(pipe, select.POLLHUP)
    return bool(poll.poll(0))


def _answer_to(task: _Task, place: BinaryIO) -> _Answer:
    """Read a file and lay its tables down; they are forgotten here before the next file is read."""
    from scope.trace.loading import ReadOptions, read_file

    options = ReadOptions(
        python_calls=task.python_calls,
        tables=None if task.tables is None else tuple(TABLE_NAMES[name] for name in task.tables),
        patterns=tuple(Pattern(re.compile(expression), kind) for expression, kind in task.patterns),
        limits=Limits(max_bytes=task.max_bytes, max_ratio=task.max_ratio),
    )
    try:
        trace = read_file(Path(os.fsdecode(task.path)), options)
    except ScopeError as error:
        return _Answer(error=type(error).__name__, message=str(error).encode(errors="surrogatepass"))
    try:
        return _Answer(sizes=pack_rank(trace, place))
    except (OSError, MemoryError, PolarsError, UnicodeEncodeError):
        return _Answer(is_unwritten=True)  # a limit on file sizes holds for memory that is shared as well
