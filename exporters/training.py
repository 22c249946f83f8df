"""The training collector: run directories of this node's ranks, read a little at a time on a thread of its own."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable
from glob import iglob
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from exporters.findings import find_told
from exporters.rank_totals import RankTotals
from exporters.series import SeriesSet
from exporters.training_series import RankView, add_rank, add_verdicts
from scope.errors import RunError
from scope.run import paths
from scope.run.alive import find_signs, has_ended, read_start_ticks
from scope.run.naming import label_run, short_hash
from scope.run.reader import RankReader, RunReader
from scope.run.schema import StepSummary
from scope.units import NS_PER_S

if TYPE_CHECKING:
    from scope.run.blackbox import BlackBoxState
    from scope.run.schema import RankInfo, RunInfo, StepLine, Verdict

log = logging.getLogger("scope.exporter")

LINGER_NS: Final = 15 * 60 * NS_PER_S
MAX_RANKS: Final = 256
MAX_RUNS: Final = 64
_READ_BYTES: Final = 128 << 10
_RESCAN_NS: Final = 5 * NS_PER_S
_NEW_RANKS: Final = 1_024
_SILENT_NS: Final = 300 * NS_PER_S

Report = Callable[[str, str], None]
"""Called with (error, where)."""


class ThisNode(NamedTuple):
    """What tells this node's ranks from others.

    Attributes:
        host: Name of the node.
        boot_id: Its boot id; None when the kernel does not tell.
        start_ticks: Returns when a process began (field 22 of its stat), None when there is none.
    """

    host: str
    boot_id: str | None
    start_ticks: Callable[[int], int | None]


def report_bad_lines(reader: RankReader | RunReader, error: str, report: Report) -> None:
    """Report what was wrong with a run's files since the last time: once a line, and once for what is no line."""
    problems = reader.take_problems()
    for problem in problems:
        report(error, problem)
    for _ in range(reader.take_num_unnamed()):
        # A sentence names several lines.
        report(error, problems[0])


def _report_lasting(error: RunError | OSError, kind: str, report: Report) -> None:
    """Report what cannot be read, but not what a rank that began a moment ago is about to write."""
    if not (isinstance(error, RunError) and error.is_passing):
        report(kind, str(error))


class _Rank:
    """One rank of one attempt, read incrementally."""

    def __init__(self, reader: RankReader, start_ticks: Callable[[int], int | None]) -> None:
        self.reader = reader
        self._start_ticks = start_ticks
        self.totals = RankTotals()
        self.info: RankInfo | None = None
        self.state: BlackBoxState | None = None
        self._restarts: int = 0
        # Steps at the beginning of the file that are in the sums already.
        self._counted = 0
        self._was_alive = False

    def read_info(self, report: Report) -> RankInfo | None:
        """Read who the rank is; None when that cannot be told."""
        try:
            self.info = self.reader.info()
        except (RunError, OSError) as error:
            _report_lasting(error, "rank", report)
        return self.info

    def move(self, folder: Path) -> None:
        """Go on in another folder that holds the same rank; steps that were counted are not counted again."""
        self.reader = RankReader(folder)
        self._restarts = self.reader.restarts
        self._counted = self.totals.num_steps

    def read(self, report: Report) -> None:
        """Take in what is new; a file that cannot be read costs itself alone."""
        self.read_info(report)
        try:
            # Small pieces: the memory of a large one would never be given back.
            while lines := self.reader.new_steps(max_bytes=_READ_BYTES):
                self._add(lines, report)
        except (RunError, OSError) as error:
            _report_lasting(error, "steps", report)
        report_bad_lines(self.reader, "steps", report)
        try:
            self.state = self.reader.state(with_ring=False)
        except (RunError, OSError) as error:
            _report_lasting(error, "black_box", report)

    def _add(self, lines: list[StepLine], report: Report) -> None:
        """Add lines to the sums but those that were counted before old steps were folded: no sum may fall."""
        if self.reader.restarts != self._restarts:
            self._restarts = self.reader.restarts
            self._counted = self.totals.num_steps
        fresh: list[StepLine] = []
        for line in lines:
            num_steps = line.num_steps if isinstance(line, StepSummary) else 1
            if self._counted >= num_steps:
                self._counted -= num_steps
                continue
            if self._counted:
                # Steps that were not yet read were folded with others: all is added anew.
                self._counted = 0
                self.totals.clear()
                report_bad_lines(self.reader, "steps", report)
                self.reader = RankReader(self.reader.folder)
                self._restarts = self.reader.restarts
                return
            fresh.append(line)
        if refused := self.totals.add(fresh):
            report("implausible", f"{self.reader.folder}: {refused} steps hold numbers that cannot be")

    def ended_ns(self, now_ns: int) -> int | None:
        """Return when the rank ended; its last sign of life once its process is gone.

        A process that was never seen (it is of another process namespace, or went before this one came) is taken for
        gone when it has been silent for five minutes.
        """
        if self.info is None:
            return None
        if self.info.ended_ns is not None:
            return self.info.ended_ns
        last_ns = max([*find_signs(self.info, self.state), self.totals.last_end_ns or 0])
        if has_ended(self.info, self.state):
            return last_ns
        # A hang keeps the recorder's heartbeat alive, and a stopped process its entry in proc; one that was killed has
        # neither.
        if self._is_alive(self.info):
            self._was_alive = True
            return None
        return last_ns if self._was_alive or now_ns - last_ns > _SILENT_NS else None

    def _is_alive(self, info: RankInfo) -> bool:
        return self._start_ticks(info.pid) == info.process_start_ticks is not None


class _Run:
    """One run directory."""

    def __init__(self, folder: Path, start_ticks: Callable[[int], int | None]) -> None:
        self.folder = folder
        self._start_ticks = start_ticks
        self.reader = RunReader(folder)
        self.info: RunInfo | None = None
        self.attempt = -1
        self.ranks: dict[int, _Rank] = {}
        self.verdicts: list[Verdict] = []
        self.earlier: dict[int, RankTotals] = {}
        self._attempts_before: list[int] = []
        # Ranks whose rank.json is still to be read; those of other nodes are looked at once an attempt.
        self._unseen: list[int] = []
        self._listed: set[int] = set()
        self._listed_ns = -1

    def label(self, info: RankInfo) -> str:
        """Return the label of the run, of which `info` is a rank."""
        return label_run(self.info) if self.info is not None else short_hash(info.run_id)

    def read(self, report: Report, is_here: Callable[[RankInfo], bool]) -> None:
        """Take in what is new in the run and in its last attempt's ranks."""
        try:
            self.info = self.reader.info()
            self.verdicts = [*self.verdicts, *self.reader.new_verdicts()][-1_000:]
        except (RunError, OSError) as error:
            report("run", str(error))
        report_bad_lines(self.reader, "run", report)
        attempts = self.reader.attempts()
        if attempts and attempts[-1] != self.attempt:
            self._begin_attempt(attempts)
        if self.attempt >= 0:
            self._find_ranks(report, is_here)
        for rank in self.ranks.values():
            rank.read(report)

    def ended_ns(self, now_ns: int) -> int:
        """Return when the last of its ranks ended; now where one is not known to have."""
        ends = [rank.ended_ns(now_ns) for rank in self.ranks.values()]
        return max((now_ns if end is None else end for end in ends), default=0)

    def find_told(self, now_ns: int) -> list[Verdict]:
        """Return the findings that hold now, as far as this node can tell."""
        ranks = [rank for rank in self.ranks.values() if rank.info is not None]
        steps = [rank.totals.last_step for rank in ranks if rank.totals.last_step is not None]
        is_live = any(rank.ended_ns(now_ns) is None for rank in ranks)
        return find_told(
            self.verdicts,
            attempt=self.attempt,
            last_step=max(steps, default=None),
            live_run=self.folder if is_live else None,
            now_ns=now_ns,
        )

    def move(self, folder: Path) -> None:
        """Go on in the run directory that the spool was published to."""
        self.folder = folder
        self.reader = RunReader(folder)
        self.verdicts = []
        self._listed_ns = -1
        for number, rank in self.ranks.items():
            rank.move(paths.rank_folder(folder, self.attempt, number))

    def _find_ranks(self, report: Report, is_here: Callable[[RankInfo], bool]) -> None:
        """Take in this node's new ranks, a bounded number of folders at a time: a shared run may hold ten thousand."""
        folder = paths.attempt_folder(self.folder, self.attempt) / "ranks"
        changed_ns = _changed_ns(folder)
        if changed_ns != self._listed_ns:
            self._listed_ns = changed_ns
            found = paths.list_ranks(self.folder, self.attempt)
            self._unseen += [rank for rank in found if rank not in self._listed]
            self._listed.update(found)
        now, self._unseen = self._unseen[:_NEW_RANKS], self._unseen[_NEW_RANKS:]
        for number in now:
            rank = _Rank(RankReader(paths.rank_folder(self.folder, self.attempt, number)), self._start_ticks)
            info = rank.read_info(report)
            if info is None:
                # Not yet written, or torn: once more, after the others.
                self._unseen.append(number)
            elif is_here(info):
                if len(self.ranks) < MAX_RANKS:
                    self.ranks[number] = rank
                    self.earlier[number] = self._read_earlier(number, report)
                else:
                    report("too_many_ranks", f"{folder}: rank {number} is beyond the {MAX_RANKS} that are shown")

    def _begin_attempt(self, attempts: list[int]) -> None:
        """Start anew; goodput counts what earlier attempts kept."""
        self.attempt = attempts[-1]
        self._attempts_before = attempts[:-1]
        self.ranks = {}
        self.earlier = {}
        self._unseen = []
        self._listed = set()
        self._listed_ns = -1

    def _read_earlier(self, number: int, report: Report) -> RankTotals:
        """Return the steps of earlier attempts.

        All ranks make the same steps: where this one ran elsewhere then, those of another rank of this node count.
        """
        totals = RankTotals()
        for attempt in self._attempts_before:
            folder = paths.rank_folder(self.folder, attempt, number)
            if not folder.is_dir() and (others := paths.list_ranks(self.folder, attempt)):
                folder = paths.rank_folder(self.folder, attempt, others[0])
            try:
                # A reader of its own: the one that followed the attempt while it ran has given its steps already.
                reader = RankReader(folder)
                while lines := reader.new_steps(max_bytes=_READ_BYTES):
                    totals.add(lines, attempt=attempt)
                report_bad_lines(reader, "steps", report)
            except (RunError, OSError) as error:
                report("steps", str(error))
        return totals


class TrainingCollector:
    """Reads all runs of this node over and over, and shows them as series.

    Args:
        globs: Run directories besides the registered ones.
        registry: Folder of the registry; None for the user's own.
        report: Told of (collector, error, where) for everything that cannot be read.
        now_ns: The wall clock, which ranks write their times by and which may be set.
        node: This node; ranks of others in a shared run directory are left to their own exporters.
        clock_ns: A monotonic clock.
    """

    def __init__(
        self,
        globs: tuple[str, ...],
        report: Callable[[str, str, str], None],
        *,
        registry: Path | None = None,
        now_ns: Callable[[], int] = time.time_ns,
        node: ThisNode | None = None,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._globs = globs
        self._report = report
        self._registry = registry
        self._interval_s = 2.0
        self._now_ns = now_ns
        self._clock_ns = clock_ns
        self._node = node or ThisNode(socket.gethostname(), _read_boot_id(), read_start_ticks)
        self._lock = threading.Lock()
        self._runs: dict[Path, _Run] = {}
        self._targets: dict[Path, Path] = {}
        # Run directories of spools that were published and emptied, and until when they are read.
        self._over: dict[Path, int] = {}
        self._next_scan_ns = 0
        self._version = 0
        self._series = SeriesSet()
        self._read_ns = 0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="training", daemon=True)

    def start(self, *, interval_s: float = 2) -> None:
        """Begin to read, so many seconds after each reading."""
        self._interval_s = interval_s
        self._thread.start()

    def stop(self) -> None:
        """Stop reading; a read that hangs is left behind."""
        self._stopping.set()
        self._thread.join(1)

    def version(self) -> int:
        """Return the number of the last reading."""
        return self._version

    def series(self) -> SeriesSet:
        """Return the series of the last reading."""
        with self._lock:
            return self._series

    @property
    def age_ns(self) -> int | None:
        """How old the last reading is; None before the first."""
        return self._clock_ns() - self._read_ns if self._read_ns else None

    def find_ranks(self) -> list[tuple[str, RankInfo]]:
        """Return (run label, rank) of every rank that runs here now."""
        now_ns = self._now_ns()
        return [
            (run.label(rank.info), rank.info)
            for run in list(self._runs.values())
            for rank in list(run.ranks.values())
            if rank.info is not None and rank.ended_ns(now_ns) is None
        ]

    def read(self) -> None:
        """Read all runs once."""
        now_ns, began_ns = self._now_ns(), self._clock_ns()
        if began_ns >= self._next_scan_ns:
            self._next_scan_ns = began_ns + _RESCAN_NS
            self._scan()
        series = SeriesSet()
        seen: dict[tuple[str, int], RankInfo] = {}
        for folder, run in list(self._runs.items()):
            try:
                if not self._is_emptied(folder):
                    run.read(self._note, self._is_here)
                self._add_run(series, run, now_ns, seen)
            except Exception as error:  # noqa: BLE001 - a run that its readers did not foresee costs itself alone
                self._note("invalid", f"{run.folder}: {error!r}")
        with self._lock:
            self._series = series
            self._version += 1
            self._read_ns = began_ns

    def _loop(self) -> None:
        while True:
            try:
                self.read()
            except Exception as error:  # noqa: BLE001 - the age of the last reading tells that this one failed
                self._note("failed", repr(error))
            if self._stopping.wait(self._interval_s):
                return

    def _note(self, error: str, where: str) -> None:
        log.debug("training: %s", where)
        self._report("training", error, where)

    def _scan(self) -> None:
        entries, problems = paths.read_registry(self._registry)
        for problem in problems:
            self._note("registry", problem)
        found = [Path(entry.spool) for entry in entries]
        for pattern in self._globs:
            matches = sorted(iglob(pattern))  # noqa: PTH207 - the pattern may be absolute
            found += [Path(path) for path in matches if self._is_run(path)]
        if len(found) > MAX_RUNS:
            found.sort(key=_changed_ns, reverse=True)
            self._note("too_many_runs", f"{len(found)} run directories; the {MAX_RUNS} newest are read")
        for folder in found[:MAX_RUNS]:
            if folder not in self._runs:
                self._runs[folder] = _Run(folder, self._node.start_ticks)
        for folder in self._runs.keys() - set(found[:MAX_RUNS]):
            if self._clock_ns() > self._over.get(folder, -1):
                self._over.pop(folder, None)
                self._follow_home(folder, self._runs.pop(folder))
        self._targets |= {Path(entry.spool): Path(entry.run_dir) for entry in entries if entry.run_dir is not None}
        self._leave_oldest()

    def _leave_oldest(self) -> None:
        """Keep the published runs within their cap; those that ended last are kept."""
        num_left = len(self._over) - MAX_RUNS
        if num_left <= 0:
            return
        now_ns = self._now_ns()
        oldest = sorted(self._over, key=lambda folder: self._runs[folder].ended_ns(now_ns))[:num_left]
        for folder in oldest:
            del self._over[folder], self._runs[folder]
        names = ", ".join(str(folder) for folder in oldest)
        log.warning("no longer shown, since of ended runs the %d newest are: %s", MAX_RUNS, names)
        self._note("too_many_ended_runs", f"{names}: newer runs have ended")

    def _follow_home(self, spool: Path, run: _Run) -> None:
        """Show a run whose spool was published and emptied from its run directory, until its ranks leave.

        A run directory on a network file system is never asked: it might hang.
        """
        target = self._targets.pop(spool, None)
        if os.path.isdir(spool) or target is None or target in self._runs:  # noqa: PTH112
            return
        if paths.is_network_path(target) or not self._is_run(str(target)):
            return
        run.move(target)
        self._runs[target] = run
        self._over[target] = self._clock_ns() + LINGER_NS

    def _is_emptied(self, folder: Path) -> bool:
        """Return whether a spool is gone whose run is looked for elsewhere at the next scan."""
        return folder in self._targets and not os.path.isdir(folder)  # noqa: PTH112

    def _is_run(self, path: str) -> bool:
        try:
            return is_run(path)
        except OSError as error:
            self._note("unreadable", f"{path}: cannot be looked into ({error.strerror})")
            return False

    def _is_here(self, info: RankInfo) -> bool:
        if info.boot_id is not None and self._node.boot_id is not None:
            return info.boot_id == self._node.boot_id
        return info.host == self._node.host

    def _add_run(self, series: SeriesSet, run: _Run, now_ns: int, seen: dict[tuple[str, int], RankInfo]) -> None:
        alive = False
        label = ""
        for number, rank in sorted(run.ranks.items()):
            if rank.info is None:
                continue
            label = run.label(rank.info)
            ended_ns = rank.ended_ns(now_ns)
            if ended_ns is not None and now_ns - ended_ns > LINGER_NS:
                continue
            # A spool and the run directory that it is published to tell of the same rank.
            shown = seen.setdefault((label, number), rank.info)
            if shown is not rank.info:
                if shown.attempt == rank.info.attempt and shown.started_ns != rank.info.started_ns:
                    self._note("same_run", f"{run.folder}: a run is shown that has its id, {rank.info.run_id}, as well")
                else:
                    # Verdicts are written to the run directory, of which the ranks were shown from their spool.
                    alive = alive or shown.attempt == rank.info.attempt
                continue
            alive = True
            view = RankView(label, rank.info, rank.totals, rank.state, ended_ns, now_ns)
            add_rank(series, view, began_ns=run.info.started_ns if run.info else None, earlier=run.earlier.get(number))
        if alive:
            add_verdicts(series, label, run.find_told(now_ns))


def _changed_ns(folder: Path) -> int:
    try:
        return folder.stat().st_mtime_ns
    except OSError:
        return 0


def is_run(path: str) -> bool:
    """Return whether a folder is a run directory."""
    return (Path(path) / paths.RUN_FILE).is_file()


def _read_boot_id() -> str | None:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return None
