"""Copies what ranks wrote into their node-local spool to the shared run directory, so that ranks never touch it.

`scope run` starts it as a process of its own (`python -m scope.run.publish`): a file system that hangs then hangs this
process alone. The node's exporter starts the same process for spools that no `scope run` looks after. A spool has one
publisher at a time: the process holds a lock on it.

Closed segments of call records stay as they are written (`.bin`): Parquet would need polars on every training node, the
readers of `scope.run` and the exporter have none, and records of one size are read as fast. Their bytes are bounded by
the budget in any case, and `scope.open_run(RUN).collectives().write_parquet(FILE)` makes Parquet where it is wanted.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
import resource
import select
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from scope.errors import RunError
from scope.run import paths
from scope.run.alive import has_living_rank, read_signs
from scope.run.copies import GrowingCopy, append_span, are_equal, check_equal, replace_by_copy
from scope.run.endings import (
    CommandEnd,
    forget_nothing,
    has_ranks,
    record_endings,
    record_exits,
    record_left_alone,
    record_nothing,
)
from scope.run.files import (
    FILE_MODE,
    FOLDER_MODE,
    identify_folder,
    is_made_anew,
    is_replaced,
    make_folders,
    open_folder,
    open_regular,
    read_span,
    replace_document,
)
from scope.run.identity import SPOOL_RUN
from scope.run.layout import SEGMENT_HEADER_BYTES
from scope.run.removal import LOCK_FILE, remove_run_files
from scope.run.requests import Requests
from scope.run.summaries import Summaries

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

_GROWING: Final = (paths.STEPS_FILE, paths.EVENTS_FILE)
_WHOLE: Final = (paths.RANK_FILE, paths.BLACK_BOX_FILE)
_MAX_WHOLE_BYTES: Final = 64 * 2**20
_MANY_FILES: Final = 2**16
_PERIOD_S: Final = 1.0
_LAST_SUMMARIES_S: Final = 15.0
_MAX_SILENCE_S: Final = 600.0
_REPLACED: Final = "another folder, or a link, stands in its place; it is left as it is"
EXIT_BUSY: Final = 75
"""Exit status of a process that found another one publishing the spool."""
EXIT_LEFT: Final = 76
"""Exit status of a process that left the spool to a successor: ranks of the command are yet to begin."""


@dataclass
class Publisher:
    """Mirrors one spool into one run directory.

    Attributes:
        spool: Folder with the layout of a run directory that ranks write to.
        run: The run directory.
        max_run_bytes: Budget of a rank: closed segments beyond three quarters of it are deleted, the oldest first
            (steps are kept in budget by the rank itself).
        problems: What could not be copied the last time, by file; tried again the next time.
        captured: Told each trace of a captured window once it is in the run directory.
        requests: What somebody asks of the ranks by a file in the run directory.
        identity: Device and inode of the spool from when it was made; those of now where they are not given. What
            somebody else may have put in its place, a link above all, is neither published nor emptied.
    """

    spool: Path
    run: Path
    max_run_bytes: int = 256 * 2**20
    problems: dict[str, str] = field(default_factory=dict[str, str])
    captured: Callable[[Path], None] | None = None
    requests: Requests = field(init=False)
    identity: tuple[int, int] | None = None
    _copied: dict[Path, tuple[int, ...]] = field(default_factory=dict[Path, tuple[int, ...]])
    _growing: dict[Path, GrowingCopy] = field(default_factory=dict[Path, GrowingCopy])

    def __post_init__(self) -> None:
        """Learn which requests were passed on already."""
        self.requests = Requests(self.spool, self.run)
        self.identity = self.identity or identify_folder(self.spool)

    def is_in_place(self) -> bool:
        """Return whether the spool is the folder that it was, is gone, or was made anew; else that is a problem."""
        if is_replaced(self.spool, self.identity):
            if not is_made_anew(self.spool):
                self.problems[str(self.spool)] = _REPLACED
                return False
            self.identity = identify_folder(self.spool) or self.identity
        return True

    def publish(self) -> bool:
        """Copy what is new; return whether all of it could be copied."""
        self.problems.clear()
        if not self.is_in_place():
            return False
        self._try(self.run / paths.VERDICTS_FILE, self._fetch_verdicts)
        self._publish_ranks()
        return not self.problems

    def _publish_ranks(self) -> None:
        self._try(self.spool / paths.RUN_FILE, self._copy_once)
        attempts = paths.list_attempts(self.spool)
        for attempt in attempts:
            for rank in paths.list_ranks(self.spool, attempt):
                self._publish_rank(paths.rank_folder(self.spool, attempt, rank), is_newest=attempt == attempts[-1])
        self.requests.poll()

    def publish_last(self) -> bool:
        """Publish what is left once every rank has ended, and compare what was copied; return whether all is there.

        A rank that was killed has left a segment of calls open: it is closed as it stands. Findings are brought to the
        spool no more: a full one would stay for that, and it is about to go.
        """
        self.problems.clear()
        if not self.is_in_place():
            return False
        for folder in self._rank_folders():
            for path in sorted((folder / paths.CALLS_FOLDER).glob(f"*{paths.OPEN_SEGMENT_SUFFIX}")):
                self._try(path, _close_segment)
        self._publish_ranks()
        if self.problems:
            return False
        for folder in self._rank_folders():
            for name in _GROWING:
                self._try(folder / name, self._make_equal)
            for name in _WHOLE:
                self._try(folder / name, self._make_whole_equal)
        return not self.problems

    def remove_spool(self) -> None:
        """Delete what ranks wrote into the spool; call it only after all was published and every rank has ended.

        Its entry in the registry goes with it: an exporter that shows the run goes on from the run directory.
        """
        for copy in self._growing.values():
            copy.let_go()
        with contextlib.suppress(OSError):
            remove_run_files(self.spool, identity=self.identity)
        if not paths.list_attempts(self.spool):
            paths.unregister_spool(self.spool)

    def _rank_folders(self) -> list[Path]:
        return [
            paths.rank_folder(self.spool, attempt, rank)
            for attempt in paths.list_attempts(self.spool)
            for rank in paths.list_ranks(self.spool, attempt)
        ]

    def _publish_rank(self, folder: Path, *, is_newest: bool) -> None:
        for name in _GROWING:
            self._try(folder / name, self._append_new)
            if not is_newest and (folder / name) in self._growing:
                self._growing[folder / name].let_go()
        for name in _WHOLE:
            self._try(folder / name, self._copy_whole)
        calls = sorted((folder / paths.CALLS_FOLDER).glob(f"*{paths.SEGMENT_SUFFIX}"))
        for path in calls:
            self._try(path, self._move)
        if calls:
            self._try(folder / paths.CALLS_FOLDER, self._keep_budget)
        traces = folder / paths.TRACES_FOLDER
        for description in sorted(traces.glob("*.capture.json")):
            # The trace first: a reader lists a capture when its description is there.
            found = sorted(traces.glob(description.name.removesuffix(".capture.json") + ".json*"))
            for path in (*found, description):
                self._try(path, self._move)
            if self.captured is not None and not description.exists():
                for path in found:
                    self.captured(self._target(path))

    def _try(self, path: Path, action: Callable[[Path], None]) -> None:
        if not os.path.lexists(path):
            return  # a rank that has not got so far, or never had one
        try:
            action(path)
        except (OSError, RunError) as error:
            self.problems[str(path)] = str(error)

    def _target(self, path: Path) -> Path:
        target = self.run / path.relative_to(self.spool)
        self.run.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
        make_folders(target.parent)
        return target

    def _copy_once(self, path: Path) -> None:
        target = self._target(path)
        if not target.exists():
            replace_document(target, read_span(path, max_bytes=_MAX_WHOLE_BYTES))

    def _copy_whole(self, path: Path) -> None:
        status = path.stat()
        stamp = (status.st_ino, status.st_size, status.st_mtime_ns)
        target = self._target(path)
        if self._copied.get(path) != stamp or not target.exists():
            replace_document(target, read_span(path, max_bytes=_MAX_WHOLE_BYTES))
            self._copied[path] = stamp

    def _make_whole_equal(self, path: Path) -> None:
        """Copy a document anew where it changed within the clock tick in which it was copied."""
        target = self._target(path)
        if not are_equal(path, target):
            replace_document(target, read_span(path, max_bytes=_MAX_WHOLE_BYTES))
            check_equal(path, target)

    def _append_new(self, path: Path) -> None:
        """Append what was appended; a file that was replaced (old steps folded) is copied whole."""
        self._growing_copy(path).update()

    def _make_equal(self, path: Path) -> None:
        self._growing_copy(path).make_equal()

    def _growing_copy(self, path: Path) -> GrowingCopy:
        target = self._target(path)
        return self._growing.setdefault(path, GrowingCopy(path, target))

    def _fetch_verdicts(self, path: Path) -> None:
        """Bring what `scope watch` found to the spool, where the node's exporter reads it: it asks no shared folder."""
        target = self.spool / paths.VERDICTS_FILE
        source = open_regular(path)
        try:
            status = os.fstat(source)
            size = status.st_size
            have = target.lstat().st_size if os.path.lexists(target) else 0
            if size < have:
                replace_document(target, b"")
                have = 0
            if have < size <= _MAX_WHOLE_BYTES:
                append_span(source, target, have)
            if os.path.lexists(target):
                # By its time readers know when somebody looked last.
                os.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns), follow_symlinks=False)
        finally:
            os.close(source)

    def _move(self, path: Path) -> None:
        target = self._target(path)
        source = open_regular(path)
        try:
            size = replace_by_copy(source, target)
            if target.stat().st_size != size or os.fstat(source).st_size != size:
                message = f"{target}: is not as long as {path}, though it was just copied; that one is kept"
                raise RunError(message)
        finally:
            os.close(source)
        spool = open_folder(self.spool, self.identity)
        try:
            os.unlink(path.relative_to(self.spool), dir_fd=spool)
        finally:
            os.close(spool)

    def _keep_budget(self, folder: Path) -> None:
        segments = sorted(self._target(folder).glob(f"*{paths.SEGMENT_SUFFIX}"))
        surplus = sum(path.stat().st_size for path in segments) - self.max_run_bytes * 3 // 4
        for path in segments:
            if surplus <= 0:
                return
            surplus -= path.stat().st_size
            path.unlink()


def _close_segment(path: Path) -> None:
    """Give an open segment the name of a closed one, unless it holds no call."""
    if path.lstat().st_size > SEGMENT_HEADER_BYTES:
        path.rename(path.with_suffix(paths.SEGMENT_SUFFIX))


def _allow_many_files() -> None:
    """Let this process keep the files of many ranks open at once, as far as the host allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MANY_FILES if hard == resource.RLIM_INFINITY else min(_MANY_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


class OrphanedCommand:
    """The processes of a command whose launcher was killed, by the spool that their environment names.

    Ranks of it may be yet to begin, or to begin anew.

    Args:
        spool: The spool of the command.
        proc: The table of processes.
    """

    def __init__(self, spool: Path, *, proc: Path = Path("/proc")) -> None:
        self._variable = f"{SPOOL_RUN}={spool}".encode("utf-8", "surrogateescape")
        self._proc = proc
        self._known: Path | None = None

    def is_living(self) -> bool:
        """Return whether one of them lives, of those that this user may look at."""
        if self._known is None or not self._belongs(self._known):
            others = (path for path in self._proc.iterdir() if path.name.isdigit())
            self._known = next(filter(self._belongs, others), None)
        return self._known is not None

    def _belongs(self, process: Path) -> bool:
        try:
            return self._variable in (process / "environ").read_bytes().split(b"\0")
        except OSError:
            return False


class Silence:
    """How long the ranks of a spool have given no sign of life, by what changes and not by what clocks say.

    Args:
        spool: The spool.
        max_s: How long is too long.
        clock: Seconds, monotonic.
    """

    def __init__(self, spool: Path, *, max_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._spool = spool
        self._max_s = max_s
        self._clock = clock
        self._signs = read_signs(spool)
        self._since = clock()

    def is_too_long(self) -> bool:
        """Return whether no rank has begun, beaten, written or ended for too long."""
        signs = read_signs(self._spool)
        if signs != self._signs:
            self._signs, self._since = signs, self._clock()
        return self._clock() - self._since > self._max_s


@contextlib.contextmanager
def _own(spool: Path) -> Generator[bool]:
    """Take the spool for this process and give whether nobody else has it.

    A spool that cannot be written, or is gone, has no lock and needs none.
    """
    descriptor = -1
    try:
        descriptor = os.open(spool / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, FILE_MODE)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        yield False
    except OSError:
        yield True
    else:
        yield True
    finally:
        if descriptor >= 0:
            os.close(descriptor)


def main(arguments: list[str] | None = None) -> int:
    """Publish every second until the launcher and every rank have ended, then once more; exit 1 if something is left.

    The launcher's end is that of standard input; before it stand four lines: the number of the signal that the job was
    ended by, if there was one, how the command ended, its process id, and when by the monotonic clock that signal was
    sent. A launcher that was killed leaves them out.
    Ranks may outlive it (it was killed, or the command left them in the background): their spool is not taken away
    under them, nor under a command whose ranks are yet to begin. Where none of them gives a sign of life for long, this
    process ends all the same: it notes that in the events of each rank that lives, and leaves the spool to whoever
    publishes it next.

    A command that has ended before any rank of it began, and left processes in the background, is left to a successor
    of this process at once.
    """
    parser = argparse.ArgumentParser(prog="python -m scope.run.publish", description=__doc__)
    parser.add_argument("--spool", type=Path, required=True)
    parser.add_argument("--run-dir", type=Path, required=True)
    parser.add_argument("--max-run-bytes", type=int, default=256 * 2**20)
    parser.add_argument(
        "--identity",
        type=int,
        nargs=2,
        help="device and inode of the spool, in whose place nobody else's folder may stand",
    )
    parser.add_argument("--launched", action="store_true", help="started by scope run, which tells how it ended")
    parser.add_argument(
        "--max-silence-s",
        type=float,
        default=_MAX_SILENCE_S,
        help="seconds without a sign of life after which processes that outlive the launcher are waited for no more",
    )
    options = parser.parse_args(arguments)
    if not options.spool.is_absolute() or _is_same(options.spool, options.run_dir):
        # Never a folder that depends on where this process runs, and never the run directory itself: it is emptied.
        parser.error("--spool: name it by its absolute path; it is emptied into another folder, the run directory")
    options.identity = tuple(options.identity) if options.identity else identify_folder(options.spool)
    if is_replaced(options.spool, options.identity) and not is_made_anew(options.spool):
        sys.stderr.write(f"not published: {options.spool}: {_REPLACED}\n")
        return 1
    with _own(options.spool) as is_ours:
        status = _publish_all(options) if is_ours else EXIT_BUSY
    if status == EXIT_LEFT:
        command = [sys.executable, "-P", "-m", "scope.run.publish", *(sys.argv[1:] if arguments is None else arguments)]
        subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    if is_ours:
        return status
    sys.stderr.write(f"{options.spool}: another process publishes it\n")
    return EXIT_BUSY


def _is_same(spool: Path, run_dir: Path) -> bool:
    try:
        return spool.samefile(run_dir)
    except OSError:
        return False


def _publish_all(options: argparse.Namespace) -> int:
    spool, run_dir = options.spool, options.run_dir
    _allow_many_files()
    summaries = Summaries()
    publisher = Publisher(spool, run_dir, options.max_run_bytes, captured=summaries.add, identity=options.identity)
    forget_nothing(run_dir)
    was_whole = True
    while not select.select([sys.stdin], [], [], _PERIOD_S)[0]:
        was_whole = _tell(was_whole, publisher.publish(), publisher.problems)
        summaries.poll()
    told, returncode, pid, sent_ns = (sys.stdin.readline().strip() for _ in range(4))
    if options.launched and returncode and not has_ranks(spool) and OrphanedCommand(spool).is_living():
        return EXIT_LEFT  # it put itself into the background, and its launcher shall not wait
    orphans = OrphanedCommand(spool) if options.launched and not returncode else None
    silence = Silence(spool, max_s=options.max_silence_s)
    is_left = False
    while has_living_rank(spool) or (orphans is not None and orphans.is_living()):
        if silence.is_too_long():
            is_left = True
            record_left_alone(spool, run_dir, silence_s=options.max_silence_s)
            break
        was_whole = _tell(was_whole, publisher.publish(), publisher.problems)
        summaries.poll()
        time.sleep(_PERIOD_S)
    command = CommandEnd(int(returncode), int(pid) if pid.isdecimal() else None) if returncode else None
    is_in_place = publisher.is_in_place()
    if is_in_place and told.isdecimal():
        record_endings(spool, int(told), sent_ns=int(sent_ns) if sent_ns.isdecimal() else None, command=command)
    if is_in_place:
        record_exits(spool, command)
    complete = publisher.publish() if is_left else publisher.publish_last()
    if returncode:
        record_nothing(run_dir, int(returncode), host=socket.gethostname())
    publisher.requests.close()
    summaries.close(wait_s=_LAST_SUMMARIES_S)
    if not is_left and (complete or (options.launched and not has_ranks(spool))):
        publisher.remove_spool()  # what holds no rank is not kept for a run directory that cannot be written
    if complete:
        return 0
    with contextlib.suppress(OSError):  # of a launcher that was killed nobody reads it
        for path, problem in list(publisher.problems.items())[:5]:
            sys.stderr.write(f"not published: {path}: {problem}\n")
    return 1


def _tell(was_whole: bool, is_whole: bool, problems: dict[str, str]) -> bool:
    """Write a line to the standard output when copying begins to fail, with a reason, and an empty one when it works.

    Whoever started this process may read it; nobody has to.
    """
    if was_whole != is_whole:
        path, reason = next(iter(problems.items()), ("", ""))
        line = "" if is_whole else f"{path}: {reason}".replace("\n", " ")
        with contextlib.suppress(OSError):
            os.write(1, f"{line}\n".encode("utf-8", "replace"))
    return is_whole


if __name__ == "__main__":
    sys.exit(main())
