"""Which ranks of a spool still live, from made-up and real /proc entries."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from scope.record import facts
from scope.run import layout, paths
from scope.run.alive import find_fate, has_living_rank, is_gone, left_an_end, read_start_ticks
from scope.run.blackbox import BlackBox, BlackBoxIdentity
from scope.run.reader import read_rank_info
from scope.run.schema import SCHEMA_VERSION, RankInfo

if TYPE_CHECKING:
    from pathlib import Path


def write_rank(spool: Path, *, attempt: int = 0, rank: int = 0, **facts: Any) -> None:
    """Write the `rank.json` of a rank."""
    known = {"schema": SCHEMA_VERSION, "run_id": "r", "attempt": attempt, "rank": rank, "started_ns": 1, "host": "h"}
    folder = paths.rank_folder(spool, attempt, rank)
    folder.mkdir(parents=True)
    known["spool"] = str(folder)
    info = msgspec.convert({**known, "pid": 40, "process_start_ticks": 77, "anchors": [], **facts}, RankInfo)
    (folder / paths.RANK_FILE).write_bytes(msgspec.json.encode(info))


def write_self(proc: Path, *, pid: int | None = None) -> Path:
    """Say under which number a table of processes has this one; return what stands there of it."""
    own = proc / str(os.getpid() if pid is None else pid)
    own.mkdir(parents=True, exist_ok=True)
    if not (proc / "self").is_symlink():
        (proc / "self").symlink_to(own.name)
    return own


def write_process(proc: Path, *, state: str = "S", ticks: int = 77) -> None:
    """Write the `stat` of process 40, whose name is as nasty as names may be."""
    (proc / "40").mkdir(parents=True)
    write_self(proc)
    fields = [state, "1", *["0"] * 17, str(ticks), "0"]
    (proc / "40" / "stat").write_text(f"40 (a ) b (c) {' '.join(fields)}\n")


@pytest.mark.parametrize(
    ("state", "ticks", "facts", "lives"),
    [
        pytest.param("S", 77, {}, True, id="running"),
        pytest.param("Z", 77, {}, False, id="dead-but-not-reaped"),
        pytest.param("S", 78, {}, False, id="another-process-with-its-pid"),
        pytest.param("S", 77, {"ended_ns": 5}, False, id="closed-in-order"),
        pytest.param("S", 77, {"process_start_ticks": None}, False, id="start-unknown"),
    ],
)
def test_a_rank_lives(tmp_path: Path, state: str, ticks: int, facts: dict[str, Any], lives: bool) -> None:
    """A rank lives while the process with its pid and start is there and has not closed its recording."""
    write_process(tmp_path / "proc", state=state, ticks=ticks)
    write_rank(tmp_path / "spool", **facts)
    assert has_living_rank(tmp_path / "spool", proc=tmp_path / "proc") is lives


def test_only_the_last_attempt_counts_and_torn_files_do_not(tmp_path: Path) -> None:
    """Ranks of earlier attempts are not asked, nor is a rank whose file is torn or missing."""
    write_process(tmp_path / "proc")
    write_rank(tmp_path / "spool", attempt=0)
    assert has_living_rank(tmp_path / "spool", proc=tmp_path / "proc")
    write_rank(tmp_path / "spool", attempt=1, pid=41)
    (paths.rank_folder(tmp_path / "spool", 1, 1)).mkdir()
    torn = paths.rank_folder(tmp_path / "spool", 1, 2)
    torn.mkdir()
    (torn / paths.RANK_FILE).write_text("{")
    assert not has_living_rank(tmp_path / "spool", proc=tmp_path / "proc")
    assert not has_living_rank(tmp_path / "nothing", proc=tmp_path / "proc")


def test_start_of_real_processes() -> None:
    """This process has a start; one that has ended and was not reaped has none."""
    assert read_start_ticks(os.getpid())
    child = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert read_start_ticks(child.pid) is None
    child.wait()


HOST = "pid:[4026531836]"
CONTAINER = "pid:[4026532201]"


def make_world(folder: Path, *, namespace: str = HOST, first: bool = True) -> tuple[RankInfo, Path, Path]:
    """Make a spool with rank 0, process 40 of this boot, and a table of processes without it."""
    proc, boot = folder / "proc", folder / "boot_id"
    boot.write_text("this-boot\n")
    own_names = write_self(proc) / "ns"
    own_names.mkdir()
    (own_names / "pid").symlink_to(namespace)
    if first:
        (proc / "1").mkdir()
        (proc / "1" / "stat").write_text(f"1 (init) S 0 {' '.join(['0'] * 17)} 3 0\n")
    own = paths.rank_folder(folder / "spool", 0, 0)
    write_rank(folder / "spool", boot_id="this-boot")
    return read_rank_info(own), proc, boot


def test_a_rank_is_gone_for_certain_where_all_processes_of_its_host_are_seen(tmp_path: Path) -> None:
    """Its number is free, or another's: at once, without a limit of time."""
    info, proc, boot = make_world(tmp_path)
    assert is_gone(info, proc=proc, boot_id=boot)
    write_process(proc, ticks=78)
    assert is_gone(info, proc=proc, boot_id=boot)
    assert not is_gone(msgspec.structs.replace(info, boot_id="before"), proc=proc, boot_id=boot)
    assert not is_gone(msgspec.structs.replace(info, process_start_ticks=None), proc=proc, boot_id=boot)


@pytest.mark.parametrize("state", ["S", "Z"])
def test_a_rank_that_is_there_is_not_gone_until_it_is_dead(tmp_path: Path, state: str) -> None:
    """One that is dead and was not reaped yet is gone as well."""
    info, proc, boot = make_world(tmp_path)
    write_process(proc, state=state)
    assert is_gone(info, proc=proc, boot_id=boot) is (state == "Z")


@pytest.mark.parametrize(
    ("namespace", "first"), [(CONTAINER, True), (HOST, False)], ids=["another-container", "others-are-hidden"]
)
def test_nobody_is_gone_for_certain_where_processes_are_hidden(tmp_path: Path, namespace: str, *, first: bool) -> None:
    """Whoever looks from a container, or at a table that shows him his own alone, knows nothing of the rest."""
    info, proc, boot = make_world(tmp_path, namespace=namespace, first=first)
    assert not is_gone(info, proc=proc, boot_id=boot)


def test_a_rank_in_a_container_lives_under_another_number(tmp_path: Path) -> None:
    """The host calls it 4711; within its own namespace it is 40, with the start that it told."""
    info, proc, boot = make_world(tmp_path)
    write_process(proc)
    (proc / "40").rename(proc / "4711")
    for numbers, gone in (("4711\t40", False), ("4711\t41", True), ("4711", True)):
        (proc / "4711" / "status").write_text(f"Name:\tpython\nNSpid:\t{numbers}\nThreads:\t3\n")
        assert is_gone(info, proc=proc, boot_id=boot) is gone


def test_a_rank_that_told_its_end_where_it_wrote_is_not_gone_without_a_goodbye(tmp_path: Path) -> None:
    """What is published may lag behind the spool; once that is deleted, the end is published."""
    info, proc, boot = make_world(tmp_path)
    own = paths.rank_folder(tmp_path / "spool", 0, 0)
    assert not left_an_end(info)
    ended = msgspec.structs.replace(info, ended_ns=5, exit_reason="finished")
    (own / paths.RANK_FILE).write_bytes(msgspec.json.encode(ended))
    assert not is_gone(info, proc=proc, boot_id=boot)
    assert left_an_end(info)
    assert not left_an_end(msgspec.structs.replace(info, pid=41))
    assert not left_an_end(msgspec.structs.replace(info, spool=None))
    (own / paths.RANK_FILE).unlink()
    assert not is_gone(info, proc=proc, boot_id=boot)
    assert not left_an_end(info)
    assert not is_gone(msgspec.structs.replace(info, spool=None), proc=proc, boot_id=boot)


def test_a_table_of_processes_that_counts_otherwise_tells_nothing(tmp_path: Path) -> None:
    """In a new namespace without a /proc of its own, the process with a rank's number is another one."""
    info, proc, boot = make_world(tmp_path)
    info = msgspec.structs.replace(info, pid_namespace=int(HOST[5:-1]))
    write_process(proc)
    own = proc / str(os.getpid())
    (own / "stat").write_text((proc / "40" / "stat").read_text())
    (proc / "uptime").write_text("7.77 1.0\n")
    assert (find_fate(info, proc=proc, boot_id=boot), has_living_rank(tmp_path / "spool", proc=proc)) == (True, True)
    assert facts.read_own_start_ticks(proc=proc) == 77
    (proc / "self").unlink()
    own.rename(proc / "4711")
    (proc / "self").symlink_to("4711")
    assert find_fate(info, proc=proc, boot_id=boot) is None
    assert not has_living_rank(tmp_path / "spool", proc=proc)
    assert read_start_ticks(40, proc=proc) is None
    assert facts.read_own_start_ticks(proc=proc) is None
    assert facts.process_age_ns(proc=proc) == 7_770_000_000 - 77 * 10**9 // os.sysconf("SC_CLK_TCK")  # it is our own
    (proc / "40" / "stat").unlink()
    assert not is_gone(info, proc=proc, boot_id=boot)


@pytest.mark.parametrize("place", ["rank.json-end", "box-closed", "none", "copy-missing", "of-another"])
def test_once_its_spool_is_deleted_the_run_directory_tells_of_an_end(tmp_path: Path, place: str) -> None:
    """The copy counts as it is now: what was read of it before may be older than the last that was published."""
    info, proc, boot = make_world(tmp_path)
    info = msgspec.structs.replace(info, pid_namespace=int(HOST[5:-1]))
    run = tmp_path / "run"
    copy = paths.rank_folder(run, 0, 0)
    if place != "copy-missing":
        facts: dict[str, Any] = {"rank.json-end": {"ended_ns": 5}, "of-another": {"pid": 41}}.get(place, {})
        write_rank(run, **facts)
    if place == "box-closed":
        who = BlackBoxIdentity(rank=0, attempt=0, world_size=1, pid=40, process_start_ticks=77, wall_offset_ns=0)
        box = BlackBox(copy / paths.BLACK_BOX_FILE, who)
        box.write_state(layout.STATE.pack(1, 1, 1, 1, 1, 1, 0, b"forward"))
        box.write_pulse(layout.PULSE.pack(1, 1, 0, layout.PULSE_CLOSED, 0, 0))
        box.close()
    assert is_gone(info, run=run, proc=proc, boot_id=boot)  # its own folder tells of no end
    shutil.rmtree(tmp_path / "spool")
    assert is_gone(info, run=run, proc=proc, boot_id=boot) is (place == "none")
    assert not is_gone(info, proc=proc, boot_id=boot)
    # Of a rank in another namespace nobody can tell that its spool is deleted, and not merely out of sight.
    assert not is_gone(msgspec.structs.replace(info, pid_namespace=7), run=run, proc=proc, boot_id=boot)


def test_a_rank_of_the_same_container_is_gone_for_certain(tmp_path: Path) -> None:
    """Both count processes alike; where the numbers of their namespaces differ, or were not told, nobody knows."""
    info, proc, boot = make_world(tmp_path, namespace=CONTAINER)
    for namespace, gone in ((4026532201, True), (4026532202, False), (None, False)):
        told = msgspec.structs.replace(info, pid_namespace=namespace)
        assert is_gone(told, proc=proc, boot_id=boot) is gone
