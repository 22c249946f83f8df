"""Spools that nobody publishes: copied to their shared run directories, each by a process of its own.

`scope run` publishes what its ranks write. Ranks that record by the API beside a network file system, and spools whose
`scope run` was killed, have only the node's exporter. A file system that hangs holds the copying process alone.
"""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from scope.errors import RunError
from scope.folders import is_private
from scope.run import paths
from scope.run.alive import has_living_rank, read_start_ticks
from scope.run.publish import EXIT_BUSY
from scope.run.reader import read_run_info
from scope.units import NS_PER_S

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

log = logging.getLogger("scope.exporter")

MAX_SPOOLS: Final = 64
_PERIOD_S: Final = 5
_IDLE_NS: Final = 60 * NS_PER_S
_OVERDUE_NS: Final = 60 * NS_PER_S
_RETRY_NS: Final = 60 * NS_PER_S
MAX_TRIES: Final = 6
"""Failures in a row after which a spool is left alone; each wait is twice the one before, half an hour in all."""
_MAX_SAID: Final = 8_192


class Copier(Protocol):
    """A process that copies one spool, as this module needs it."""

    def finish(self) -> None:
        """Ask for a last round once no rank of the spool lives."""

    def poll(self) -> int | None:
        """Return the exit status once it has ended, else None."""

    def trouble(self) -> str | None:
        """Return what cannot be copied now and why; None while all can be."""


class _Work(NamedTuple):
    """One spool under way.

    Attributes:
        copier: Its process.
        alive_ns: When a rank of it was last seen alive, or it was taken on.
        trouble: What could not be copied when it was last looked at; None for nothing.
    """

    copier: Copier
    alive_ns: int
    trouble: str | None = None


class SpoolKeeper:
    """Looks for spools without a publisher and gives each one.

    Only spools of this user are touched, out of a registry that nobody else can write: who could plant an entry would
    choose what is copied where.

    Args:
        report: Told of (collector, error, where) for what cannot be published.
        registry: Folder of the registry; None for the user's own.
        launch: Starts the process that copies a spool (first argument) to a run directory (second), with the bytes that
            a rank may have (third) where its run says so.
        clock_ns: A monotonic clock.
    """

    def __init__(
        self,
        report: Callable[[str, str, str], None],
        *,
        registry: Path | None = None,
        launch: Callable[[Path, Path, int | None], Copier] | None = None,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._report = report
        self._registry = registry
        self._launch = launch or _Process
        self._clock_ns = clock_ns
        self._work: dict[Path, _Work] = {}
        self._not_before_ns: dict[Path, int] = {}
        self._num_failures: dict[Path, int] = {}
        self._looked_ns = clock_ns()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="publishing", daemon=True)

    @property
    def num_spools(self) -> int:
        """Spools that are being copied now."""
        return len(self._work)

    def start(self) -> None:
        """Begin to look, every five seconds."""
        self._looked_ns = self._clock_ns()
        self._thread.start()

    def stop(self) -> None:
        """Stop looking; copying goes on without us for as long as a rank lives."""
        self._stopping.set()
        self._thread.join(1)
        for work in self._work.values():
            work.copier.finish()

    def look(self) -> None:
        """Look once at the registry and at the processes."""
        now_ns = self._clock_ns()
        for spool, work in list(self._work.items()):
            with self._costs_itself_alone(spool):
                self._follow(spool, work, now_ns)
        folder = self._registry or paths.registry_folder()
        wanted = [entry for entry in paths.read_registry(folder)[0] if self._is_wanted(entry)]
        if wanted and not is_private(folder):
            self._note("not_ours", f"{folder}: belongs to or can be written by others; its spools are not published")
            return
        for spool in self._num_failures.keys() - {Path(entry.spool) for entry in wanted} - self._work.keys():
            del self._num_failures[spool]
        for entry in wanted:
            with self._costs_itself_alone(entry.spool):
                self._take_on(entry, now_ns)

    def is_well(self) -> bool:
        """Return whether the last look came to its end lately, and every spool can be copied now.

        A thread that died or hangs looks no more; a run directory on a full disk takes nothing until it has room.
        """
        is_looking = self._clock_ns() - self._looked_ns <= _OVERDUE_NS
        return is_looking and all(work.trouble is None for work in list(self._work.values()))

    def _is_wanted(self, entry: paths.Registration) -> bool:
        with self._costs_itself_alone(entry.spool):
            return _is_abandoned(entry)
        return False

    @contextlib.contextmanager
    def _costs_itself_alone(self, spool: Path | str) -> Generator[None]:
        """Count and name whatever goes wrong with one spool, so that the others are published."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - no list would be whole of what a registry by anybody can cause
            self._note("failed", f"{str(spool)!r}: {error!r}")

    def _take_on(self, entry: paths.Registration, now_ns: int) -> None:
        spool, run_dir = Path(entry.spool), Path(entry.run_dir or "")
        if self._num_failures.get(spool, 0) >= MAX_TRIES:
            return
        if spool in self._work or now_ns < self._not_before_ns.get(spool, now_ns) or len(self._work) >= MAX_SPOOLS:
            return
        # Whatever comes of it, the next try is not at once.
        self._not_before_ns[spool] = now_ns + _RETRY_NS
        if not is_private(spool):
            self._note("not_ours", f"{spool}: belongs to or can be written by others; it is not published")
            return
        if not _is_spool(spool, entry.run_id):
            self._note("no_spool", f"{spool}: is no spool of run {entry.run_id}; it is not published")
            return
        if not has_living_rank(spool) and _is_written(spool):
            # Ranks of another process namespace, perhaps: nobody could tell when they end.
            self._note("unseen_ranks", f"{spool}: is written by processes that cannot be seen from here")
            return
        try:
            copier = self._launch(spool, run_dir, entry.max_run_bytes)
        except OSError as error:
            self._note("not_started", f"{spool}: {error}")
            return
        log.info("publishing %s to %s", spool, run_dir)
        self._work[spool] = _Work(copier, now_ns)

    def _follow(self, spool: Path, work: _Work, now_ns: int) -> None:
        status = work.copier.poll()
        if status is not None:
            del self._work[spool]
            self._not_before_ns[spool] = now_ns + _RETRY_NS
            if status in {0, EXIT_BUSY}:
                self._num_failures.pop(spool, None)
            else:
                self._failed(spool, status, now_ns)
            return
        work = self._hear(spool, work)
        if has_living_rank(spool):
            self._work[spool] = work._replace(alive_ns=now_ns)
        elif now_ns - work.alive_ns > _IDLE_NS:
            # Not at once: a launcher may be about to start the next attempt.
            work.copier.finish()

    def _hear(self, spool: Path, work: _Work) -> _Work:
        """Count what cannot be copied now, at each look, and say it when it begins and when it is over."""
        trouble = work.copier.trouble()
        if trouble is not None:
            self._report("publish", "behind", f"{spool}: {trouble}")
        if (trouble is None) != (work.trouble is None):
            log.warning("publishing: %s: %s", spool, trouble or "all can be copied again")
        self._work[spool] = work = work._replace(trouble=trouble)
        return work

    def _failed(self, spool: Path, status: int, now_ns: int) -> None:
        """Wait longer each time, and give up a spool that cannot be published."""
        failures = self._num_failures[spool] = self._num_failures.get(spool, 0) + 1
        wait_ns = _RETRY_NS << (failures - 1)
        self._not_before_ns[spool] = now_ns + wait_ns
        then = f"tried again in {wait_ns // NS_PER_S} s"
        if failures >= MAX_TRIES:
            then = f"given up after {failures} tries; mend the run directory and start the exporter again, or delete it"
        self._note("incomplete", f"{spool}: not all of it could be published (status {status}); {then}")

    def _note(self, error: str, where: str) -> None:
        log.warning("publishing: %s", where)
        self._report("publish", error, where)

    def _loop(self) -> None:
        while not self._stopping.wait(_PERIOD_S):
            with self._costs_itself_alone("the registry"):
                self.look()
                self._looked_ns = self._clock_ns()


class _Process:
    """`python -m scope.run.publish`; its standard input ends when it shall come to an end."""

    def __init__(self, spool: Path, run_dir: Path, max_run_bytes: int | None) -> None:
        command = [sys.executable, "-P", "-m", "scope.run.publish", "--spool", str(spool), "--run-dir", str(run_dir)]
        if max_run_bytes is not None:
            command += ["--max-run-bytes", str(max_run_bytes)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
        assert self._process.stdout is not None
        self._said = self._process.stdout
        os.set_blocking(self._said.fileno(), False)
        self._heard = b"\n"

    def finish(self) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()

    def poll(self) -> int | None:
        status = self._process.poll()
        if status is not None:
            self._said.close()
        return status

    def trouble(self) -> str | None:
        # A line when copying begins to fail, and an empty one when it works again; the last one counts.
        with contextlib.suppress(BlockingIOError):
            self._heard = (self._heard + os.read(self._said.fileno(), 1 << 16))[-_MAX_SAID:]
        line = self._heard.rpartition(b"\n")[0].rpartition(b"\n")[2]
        return line.decode("utf-8", "replace") or None


def _is_spool(spool: Path, run_id: str) -> bool:
    """Return whether a folder is what a registration says; what is published is deleted there."""
    try:
        return spool.is_absolute() and not spool.is_symlink() and read_run_info(spool).run_id == run_id
    except (RunError, OSError):
        return False


def _is_abandoned(entry: paths.Registration) -> bool:
    """Return whether a spool has a run directory elsewhere, and no `scope run` that lives and publishes it there."""
    if entry.run_dir is None or entry.run_dir == entry.spool:
        return False
    pid = entry.launcher_pid
    return pid is None or read_start_ticks(pid) is None or read_start_ticks(pid) != entry.launcher_start_ticks


def _is_written(spool: Path) -> bool:
    """Return whether a rank of the last attempt wrote something within the last minute."""
    now_ns = time.time_ns()
    return any(
        abs(now_ns - _changed_ns(paths.rank_folder(spool, attempt, rank) / name)) < _IDLE_NS
        for attempt in paths.list_attempts(spool)[-1:]
        for rank in paths.list_ranks(spool, attempt)
        for name in (paths.BLACK_BOX_FILE, paths.STEPS_FILE)
    )


def _changed_ns(path: Path) -> int:
    try:
        return path.lstat().st_mtime_ns
    except OSError:
        return 0
