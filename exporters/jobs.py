"""Which job uses a GPU: from the training runs, and from the control groups of the processes on it.

A process's control group names its Slurm job or Kubernetes pod and is readable by everybody; its environment is not
read.
"""

from __future__ import annotations

import pwd
import re
import threading
import time
from typing import TYPE_CHECKING, Final, NamedTuple

from exporters import metrics as m
from exporters.series import SeriesSet
from scope.units import NS_PER_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from scope.probe.records import GpuReading
    from scope.probe.tree import Tree
    from scope.run.schema import RankInfo

_SLURM: Final = re.compile(r"/(?:uid_(\d+)/)?job_(\d+)(?:/|$)")
_POD: Final = re.compile(r"pod([0-9a-f]{8}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{12})")
_MAX_PIDS: Final = 32
_LOOK_S: Final = 10
_FIRST_LOOK_S: Final = 1
_OVERDUE_NS: Final = 60 * NS_PER_S


class Job(NamedTuple):
    """A job on a GPU.

    Attributes:
        scheduler: `slurm`, `kubernetes` or empty.
        job_id: Slurm's job or the pod's uid.
        user: Owner of the process; empty in a pod.
    """

    scheduler: str
    job_id: str
    user: str


def parse_cgroup(text: str, user: str = "") -> Job | None:
    """Return the job that a control group belongs to.

    Args:
        text: Content of `/proc/PID/cgroup`.
        user: Owner of the process.

    Examples:
        >>> parse_cgroup("0::/system.slice/slurmstepd.scope/job_4711/step_0/user/task_0", "ada")
        Job(scheduler='slurm', job_id='4711', user='ada')
    """
    slurm = _SLURM.search(text)
    if slurm is not None:
        return Job("slurm", slurm[2], user)
    pod = _POD.search(text)
    if pod is not None:
        return Job("kubernetes", pod[1].replace("_", "-"), "")
    return None


def read_job(tree: Tree, pid: int) -> Job | None:
    """Return the job of a process; None when it has none or is gone."""
    try:
        text = tree.read(f"/proc/{pid}/cgroup")
        status = tree.read(f"/proc/{pid}/status")
    except OSError:
        return None
    return parse_cgroup(text, _owner(status))


def _owner(status: str) -> str:
    match = re.search(r"^Uid:\s+(\d+)", status, re.MULTILINE)
    if match is None:
        return ""
    try:
        return pwd.getpwuid(int(match[1])).pw_name
    except (KeyError, OverflowError):
        return match[1]


def add_jobs(series: SeriesSet, gpus: Iterable[GpuReading], ranks: Iterable[tuple[str, RankInfo]], tree: Tree) -> None:
    """Add one info series a GPU and job.

    Args:
        series: Where to.
        gpus: Readings with the processes on each GPU.
        ranks: (run label, rank) of the training ranks on this node.
        tree: Where proc lies.
    """
    by_uuid = {info.device.uuid: (run, str(info.rank)) for run, info in ranks if info.device and info.device.uuid}
    for gpu in gpus:
        identity = gpu.identity
        jobs = {job for pid in gpu.pids[:_MAX_PIDS] if (job := read_job(tree, pid)) is not None}
        run, rank = by_uuid.get(identity.uuid, ("", ""))
        if run and not jobs:
            jobs = {Job("", "", "")}
        for job in sorted(jobs):
            labels = (str(identity.index), identity.uuid, job.scheduler, job.job_id, job.user, run, rank)
            series.add(m.GPU_JOB_INFO, labels, 1)


class JobSource:
    """Shows which job uses which GPU; looked up every ten seconds on a thread of its own.

    Names of users may come over the network, and a name service that hangs must hold up no scrape.

    Args:
        gpus: Returns the last readings.
        ranks: Returns the training ranks of this node.
        tree: Where proc lies.
        report: Told of (collector, error, where) when a look fails.
        clock_ns: A monotonic clock.
    """

    def __init__(
        self,
        gpus: Callable[[], list[GpuReading]],
        ranks: Callable[[], list[tuple[str, RankInfo]]],
        tree: Tree,
        *,
        report: Callable[[str, str, str], None],
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._gpus = gpus
        self._ranks = ranks
        self._tree = tree
        self._report = report
        self._clock_ns = clock_ns
        self._series = SeriesSet()
        self._version = 0
        self._looked_ns = clock_ns()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="jobs", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._looked_ns = self._clock_ns()
        self._thread.start()

    def stop(self) -> None:
        """Stop looking; a look that hangs is left behind."""
        self._stopping.set()
        self._thread.join(1)

    def look(self) -> None:
        """Look up the jobs once."""
        series = SeriesSet()
        add_jobs(series, self._gpus(), self._ranks(), self._tree)
        self._series = series
        self._version += 1
        self._looked_ns = self._clock_ns()

    def is_fresh(self) -> bool:
        """Return whether the last look came to its end lately."""
        return self._clock_ns() - self._looked_ns <= _OVERDUE_NS

    def version(self) -> int:
        """Return the number of the last look."""
        return self._version

    def series(self) -> SeriesSet:
        """Return the series of the last look."""
        return self._series

    def _loop(self) -> None:
        while True:
            try:
                self.look()
            except Exception as error:  # noqa: BLE001 - the age of the last look tells that this one failed
                self._report("jobs", "failed", repr(error))
            # The first sample of the hardware is a moment away.
            if self._stopping.wait(_LOOK_S if self._gpus() else _FIRST_LOOK_S):
                return
