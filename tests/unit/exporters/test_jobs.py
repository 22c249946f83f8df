"""Which job uses a GPU: from control groups and training ranks, looked up where no scrape waits for it."""

from __future__ import annotations

import pwd
import threading
import time
from typing import TYPE_CHECKING

import pytest

from exporters import metrics as m
from exporters.jobs import JobSource
from exporters.render import TEXT
from exporters.scrape import Scraper
from scope.probe.records import GpuIdentity, GpuReading
from scope.probe.tree import Tree
from scope.run.schema import SCHEMA_VERSION, DeviceInfo, RankInfo

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

POD = "kubepods-burstable-pod0123abcd_0000_1111_2222_333344445555.slice"


class Node:
    """Two GPUs with processes of a tree of proc, and what is shown of them."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.now_ns = 10**12
        self.problems: list[tuple[str, str, str]] = []
        self.ranks: list[tuple[str, RankInfo]] = []
        self.source = JobSource(
            lambda: [GpuReading(GpuIdentity(gpu, f"GPU-{gpu}"), pids=[10 * gpu + 1, 10 * gpu + 2]) for gpu in (0, 1)],
            lambda: self.ranks,
            Tree(root),
            report=lambda *problem: self.problems.append(problem),
            clock_ns=lambda: self.now_ns,
        )

    def process(self, pid: int, group: str, uid: int) -> None:
        """Write a process."""
        folder = self._root / "proc" / str(pid)
        folder.mkdir(parents=True)
        (folder / "cgroup").write_text(f"0::/{group}\n")
        (folder / "status").write_text(f"Name:\tpython\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\n")

    def shown(self) -> set[tuple[str, ...]]:
        """Return the labels of what is shown: GPU, UUID, scheduler, job, user, run, rank."""
        return {labels for metric, samples in self.source.series() if metric is m.GPU_JOB_INFO for labels in samples}


@pytest.fixture
def node(tmp_path: Path) -> Node:
    """A node whose GPU 0 belongs to a Slurm job, and GPU 1 to a pod."""
    made = Node(tmp_path)
    made.process(1, "system.slice/slurmstepd.scope/job_4711/step_0/user/task_0", 2**31 - 5)
    made.process(2, "system.slice/slurmstepd.scope/job_4711/step_0/user/task_1", 2**31 - 5)
    made.process(11, POD, 0)
    return made


def test_jobs_by_control_group_and_rank(node: Node) -> None:
    """Two processes of one job are one job; a user without a name is a number; a process that is gone is none."""
    rank = RankInfo(
        schema=SCHEMA_VERSION, run_id="r", attempt=0, rank=7, started_ns=1, host="h", pid=11, process_start_ticks=1,
        device=DeviceInfo(kind="cuda", uuid="GPU-1"),
    )  # fmt: skip
    node.ranks = [("label", rank)]
    assert node.shown() == set()
    node.source.look()
    assert node.shown() == {
        ("0", "GPU-0", "slurm", "4711", str(2**31 - 5), "", ""),
        ("1", "GPU-1", "kubernetes", "0123abcd-0000-1111-2222-333344445555", "", "label", "7"),
    }


def wait_for(ready: Callable[[], bool]) -> None:
    """Wait for a condition; fail when it does not come true."""
    deadline = time.monotonic() + 30
    while not ready():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_a_name_service_that_hangs_holds_up_no_scrape(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer comes without jobs, and a minute later the collector is down; it is up again with the names."""
    asked, answered = threading.Event(), threading.Event()
    known = pwd.getpwuid(0)

    def hang(_uid: int) -> pwd.struct_passwd:
        asked.set()
        assert answered.wait(60)
        return known

    monkeypatch.setattr(pwd, "getpwuid", hang)
    node.source.start()
    try:
        assert asked.wait(30)
        assert "scope_gpu_job_info" not in Scraper([node.source], lambda _series: None).text(TEXT)
        assert node.source.is_fresh()
        node.now_ns += 61 * 10**9
        assert not node.source.is_fresh()
        answered.set()
        wait_for(node.source.is_fresh)
        assert ("0", "GPU-0", "slurm", "4711", known.pw_name, "", "") in node.shown()
    finally:
        answered.set()
        node.source.stop()


def test_a_look_that_fails_is_counted(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error that nobody foresaw costs its look, and the thread goes on."""

    def fail(_uid: int) -> pwd.struct_passwd:
        message = "no such service"
        raise RuntimeError(message)

    monkeypatch.setattr(pwd, "getpwuid", fail)
    node.source.start()
    wait_for(lambda: bool(node.problems))
    node.source.stop()
    assert node.problems[0][:2] == ("jobs", "failed")
