"""Publishing a spool and keeping a folder of runs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from scope.errors import RunError, UsageError
from scope.run import identity, paths
from scope.run.listing import delete_run, list_runs, tag_run
from scope.run.publish import OrphanedCommand, Publisher, main
from scope.run.reader import RankReader, read_run_info, read_steps
from scope.run.removal import remove_run_files
from scope.run.requests import Requests
from scope.run.schema import RankInfo, RunInfo, StepRecord
from scope.run.writer import RankWriter, StepDraft

BEATING = """
import os, sys, time
from pathlib import Path
from scope.run.alive import read_start_ticks
from scope.run.schema import RankInfo
from scope.run.writer import RankWriter
facts = {"pid": os.getpid(), "process_start_ticks": read_start_ticks(os.getpid())}
info = RankInfo(schema="1.0", run_id="r", attempt=0, rank=0, started_ns=1, host="h", **facts)
writer = RankWriter(Path(sys.argv[1]), info)
writer.start()
writer.add_event("warning", "begun")
writer.flush()
print("begun", flush=True)
time.sleep(600)
"""
"""A rank without torch, which beats and makes no steps."""


def make_rank(run: Path, *, rank: int = 0, world_size: int | None = None) -> RankWriter:
    """A rank of a run that is not started: the test calls `flush`."""
    identity.write_run_info(run, run_id="r", source="option")
    info = RankInfo(
        schema="1.0", run_id="r", attempt=0, rank=rank, world_size=world_size, started_ns=1, host="h", pid=1
    )
    return RankWriter(paths.rank_folder(run, 0, rank), info)


def add_steps(writer: RankWriter, first: int, last: int) -> None:
    """Steps of 10 ns."""
    for step in range(first, last):
        record = StepRecord(step=step, start_ns=10 * step, end_ns=10 * step + 10, phases={"other": 10})
        writer.add_step(StepDraft(record=record, calls=writer.calls.next_step(step + 1)))
    writer.flush()


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_published_run_equals_its_spool(tmp_path: Path) -> None:
    """Growing files are appended, replaced ones copied whole, closed segments and traces moved."""
    spool, run = tmp_path / "spool", tmp_path / "run"
    writer = make_rank(spool)
    publisher = Publisher(spool, run)
    add_steps(writer, 0, 3)
    assert publisher.publish()
    add_steps(writer, 3, 5)
    traces = writer.folder / "traces"
    (traces / "w.json").write_text("{}")
    (traces / "w.capture.json").write_text("{}")
    (traces / "half.part").write_text("{")
    (writer.folder / "calls" / "000001-0.bin").write_bytes(b"closed")
    assert publisher.publish()
    target = paths.rank_folder(run, 0, 0)
    assert (target / "steps.jsonl").read_bytes() == (writer.folder / "steps.jsonl").read_bytes()
    assert (target / "calls" / "000001-0.bin").read_bytes() == b"closed"
    assert not (writer.folder / "calls" / "000001-0.bin").exists()
    assert sorted(path.name for path in (target / "traces").iterdir()) == ["w.capture.json", "w.json"]
    steps = writer.folder / "steps.jsonl"
    fresh = steps.with_name("fresh")
    fresh.write_bytes(b"folded\n")
    fresh.rename(steps)
    assert publisher.publish()
    assert (target / "steps.jsonl").read_bytes() == b"folded\n"
    (run / "capture.request").touch()
    writer.close("finished")
    assert publisher.publish()
    publisher.requests.close()
    publisher.remove_spool()
    assert not spool.exists()


def test_segments_beyond_the_budget_go_the_oldest_first(tmp_path: Path) -> None:
    """The run directory keeps the newest segments within three quarters of the budget."""
    spool, run = tmp_path / "spool", tmp_path / "run"
    writer = make_rank(spool)
    for number in range(6):
        (writer.folder / "calls" / f"{number:06d}-0.bin").write_bytes(b"x" * 100)
    publisher = Publisher(spool, run, max_run_bytes=400)
    assert publisher.publish()
    kept = sorted(path.name for path in (paths.rank_folder(run, 0, 0) / "calls").iterdir())
    assert kept == ["000003-0.bin", "000004-0.bin", "000005-0.bin"]


def test_what_cannot_be_published_is_named_and_tried_again(tmp_path: Path) -> None:
    """A file in the way of the run directory is a problem with its path; once it is gone, all is published."""
    spool, run = tmp_path / "spool", tmp_path / "run"
    writer = make_rank(spool)
    add_steps(writer, 0, 2)
    run.write_text("in the way")
    publisher = Publisher(spool, run)
    assert not publisher.publish()
    assert any("steps.jsonl" in path for path in publisher.problems)
    run.unlink()
    assert publisher.publish()
    assert len((paths.rank_folder(run, 0, 0) / "steps.jsonl").read_bytes().splitlines()) == 2


class Node:
    """A spool with two ranks, and the publisher that looks after it."""

    def __init__(self, folder: Path, run: Path, clock: list[float], *, first_rank: int) -> None:
        self.spool, self.run, self.clock = folder, run, clock
        self.ranks = [make_rank(folder, rank=rank, world_size=4).folder for rank in (first_rank, first_rank + 1)]
        self.start()

    def start(self) -> None:
        """Start a publisher, the first or one in place of another."""
        self.publisher = Publisher(self.spool, self.run)
        self.publisher.requests = Requests(self.spool, self.run, now=lambda: self.clock[0])

    def take(self, name: str) -> int:
        """Publish; take away, as ranks do, what was passed on to them; return to how many."""
        assert self.publisher.publish()
        asked = [folder / name for folder in self.ranks if (folder / name).exists()]
        for path in asked:
            path.unlink()
        return len(asked)


@pytest.mark.parametrize("name", [paths.REQUEST_FILE, paths.STACKS_REQUEST_FILE])
def test_each_node_takes_a_request_once(tmp_path: Path, name: str) -> None:
    """Of two nodes each passes a request on to its ranks once, though one dies between; a minute later it is gone."""
    run, clock = tmp_path / "run", [1000.0]
    nodes = [Node(tmp_path / f"spool-{number}", run, clock, first_rank=2 * number) for number in (0, 1)]
    assert [node.take(name) for node in nodes] == [0, 0]
    (run / name).write_text("7\n")
    assert nodes[0].take(name) == 2
    clock[0] += 40
    assert [node.take(name) for node in nodes] == [0, 2]
    nodes[0].start()
    assert [node.take(name) for node in nodes] == [0, 0]
    os.utime(run / name, ns=(1, 1))  # touched again
    assert [node.take(name) for node in nodes] == [2, 2]
    clock[0] += 60
    assert [node.take(name) for node in nodes] == [0, 0]
    assert (run / name).exists()
    clock[0] += 1
    assert nodes[1].take(name) == 0
    assert not (run / name).exists()
    (run / name).write_text("7\n")
    assert [node.take(name) for node in nodes] == [2, 2]
    nodes[0].publisher.requests.close()
    assert not (run / name).exists()


def test_a_request_that_the_only_node_has_taken_is_gone(tmp_path: Path) -> None:
    """Where a node has all ranks of the run, the file goes as they get it, and touching it again asks again."""
    run, spool = tmp_path / "run", tmp_path / "spool"
    run.mkdir()
    ranks = [make_rank(spool, rank=0, world_size=2).folder]
    publisher = Publisher(spool, run)
    (run / paths.REQUEST_FILE).touch()
    assert publisher.publish()
    assert (run / paths.REQUEST_FILE).exists()  # the other rank has not begun, or is elsewhere
    ranks.append(make_rank(spool, rank=1, world_size=2).folder)
    for _ in range(2):
        (run / paths.REQUEST_FILE).unlink(missing_ok=True)
        (run / paths.REQUEST_FILE).touch()
        assert publisher.publish()
        assert not (run / paths.REQUEST_FILE).exists()
        for folder in ranks:
            (folder / paths.REQUEST_FILE).unlink()
    assert publisher.publish()
    assert not any((folder / paths.REQUEST_FILE).exists() for folder in ranks)


def test_a_request_waits_for_the_first_rank(tmp_path: Path) -> None:
    """What is asked before any rank has begun is passed on once one has, and what nobody took stands at the end."""
    run, spool = tmp_path / "run", tmp_path / "spool"
    run.mkdir()
    (run / paths.REQUEST_FILE).touch()
    publisher = Publisher(spool, run)
    assert publisher.publish()
    publisher.requests.close()
    assert (run / paths.REQUEST_FILE).exists()
    writer = make_rank(spool)
    assert publisher.publish()
    assert (writer.folder / paths.REQUEST_FILE).exists()


def test_runs_are_listed_tagged_and_deleted(tmp_path: Path) -> None:
    """A run that goes on is not deleted without force; foreign folders and links are left alone."""
    run = tmp_path / "one"
    writer = make_rank(run)
    add_steps(writer, 0, 2)
    (tmp_path / "foreign").mkdir()
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn" / "run.json").write_text("{")
    entries, problems = list_runs(tmp_path)
    assert [(entry.info.run_id, entry.ranks, entry.ended) for entry in entries] == [("r", 1, False)]
    assert len(problems) == 1
    assert "torn" in problems[0]
    assert tag_run(run, {"model": "7b", "note": "x"}).tags == {"model": "7b", "note": "x"}
    assert tag_run(run, {"note": ""}).tags == {"model": "7b"}
    assert msgspec.json.decode((run / "run.json").read_bytes(), type=RunInfo).tags == {"model": "7b"}
    with pytest.raises(UsageError, match="not ended"):
        delete_run(run)
    (tmp_path / "link").symlink_to(run)
    with pytest.raises(RunError, match="link"):
        delete_run(tmp_path / "link")
    with pytest.raises(RunError, match="not a run directory"):
        delete_run(tmp_path / "foreign")
    writer.close("finished")
    num_bytes, left = delete_run(run)
    assert num_bytes > 0
    assert left == []
    assert not run.exists()


def test_what_watch_found_reaches_the_spool(tmp_path: Path) -> None:
    """The node's exporter reads spools alone: there come the findings of `scope watch`, and when it looked last."""
    spool, run = tmp_path / "spool", tmp_path / "run"
    make_rank(spool)
    publisher = Publisher(spool, run)
    assert publisher.publish()
    assert not (spool / "verdicts.jsonl").exists()
    for content in (b"one\n", b"one\ntwo\n", b"new\n"):
        (run / "verdicts.jsonl").write_bytes(content)
        assert publisher.publish()
        assert (spool / "verdicts.jsonl").read_bytes() == content
    # When somebody looked last, though nothing is new.
    os.utime(run / "verdicts.jsonl", ns=(7, 10**18 + 1))
    assert publisher.publish()
    assert (spool / "verdicts.jsonl").stat().st_mtime_ns == 10**18 + 1


def test_a_spool_without_room_for_findings_is_published_whole(tmp_path: Path) -> None:
    """A folder stands where they would go: told of while ranks live, no reason to keep the spool once they ended."""
    spool, run = tmp_path / "spool", tmp_path / "run"
    writer = make_rank(spool)
    add_steps(writer, 0, 2)
    writer.close("finished")
    run.mkdir()
    (run / "verdicts.jsonl").write_bytes(b"one\n")
    (spool / "verdicts.jsonl").mkdir()
    publisher = Publisher(spool, run)
    assert not publisher.publish()
    assert list(publisher.problems) == [str(run / "verdicts.jsonl")]
    assert publisher.publish_last()
    steps = paths.rank_folder(run, 0, 0) / paths.STEPS_FILE
    assert len(steps.read_bytes().splitlines()) == 2
    assert (run / "verdicts.jsonl").read_bytes() == b"one\n"


def test_only_what_was_recorded_is_deleted(tmp_path: Path) -> None:
    """A spool or run directory may be somebody's own folder: their files, links and what links point at stay."""
    for name in ("spool", "run"):
        folder = tmp_path / name
        make_rank(folder).close("finished")
        (folder / "thesis").mkdir()
        (folder / "thesis" / "chapter").write_text("years of work")
        (folder / "attempt-001").symlink_to(folder / "thesis")
        (folder / "verdicts.jsonl").mkdir()
    Publisher(tmp_path / "spool", tmp_path / "elsewhere").remove_spool()
    assert delete_run(tmp_path / "run")[1] == ["attempt-001", "thesis", "verdicts.jsonl"]
    for name in ("spool", "run"):
        assert sorted(path.name for path in (tmp_path / name).iterdir()) == ["attempt-001", "thesis", "verdicts.jsonl"]
        assert (tmp_path / name / "thesis" / "chapter").read_text() == "years of work"


@pytest.mark.parametrize("place", [".", "run", "../spool"])
def test_a_spool_that_depends_on_where_we_stand_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], place: str
) -> None:
    """The publisher empties its spool, so it takes an absolute path alone."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        main(["--spool", place, "--run-dir", str(tmp_path / "run")])
    assert "absolute path" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["--spool", str(tmp_path), "--run-dir", str(tmp_path)])


def test_a_command_outlives_its_launcher(tmp_path: Path) -> None:
    """A launcher that is killed says nothing: a rank that begins only then is published, and then the spool goes."""
    spool, run = tmp_path / "spool", tmp_path / "run"
    identity.write_run_info(spool, run_id="r", source="option", run_dir=run)
    command = ["sh", "-c", "read line"]
    environment = {**os.environ, identity.SPOOL_RUN: str(spool)}
    publish = [sys.executable, "-P", "-m", "scope.run.publish", "--launched"]
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE) as orphan:
        publisher = subprocess.Popen([*publish, "--spool", str(spool), "--run-dir", str(run)], stdin=subprocess.DEVNULL)
        with pytest.raises(subprocess.TimeoutExpired):
            publisher.wait(timeout=2)
        writer = make_rank(spool)
        add_steps(writer, 0, 3)
        writer.close("finished")
        orphan.communicate(b"\n")
    assert publisher.wait(timeout=60) == 0
    assert len(read_steps(paths.rank_folder(run, 0, 0))) == 3
    assert not spool.exists()


def test_silent_processes_that_outlive_their_launcher_are_not_waited_for_without_end(tmp_path: Path) -> None:
    """A rank that is stopped beats no more: its publisher ends after the limit, all published, and says why."""
    spool, run = tmp_path / "spool", tmp_path / "run"
    identity.write_run_info(spool, run_id="r", source="option", run_dir=run)
    folder = paths.rank_folder(spool, 0, 0)
    publish = [sys.executable, "-P", "-m", "scope.run.publish", "--launched", "--max-silence-s", "3"]
    with subprocess.Popen([sys.executable, "-c", BEATING, folder], stdout=subprocess.PIPE, text=True) as rank:
        try:
            assert rank.stdout is not None
            assert rank.stdout.readline() == "begun\n"
            publisher = subprocess.Popen(
                [*publish, "--spool", str(spool), "--run-dir", str(run)], stdin=subprocess.DEVNULL
            )
            with pytest.raises(subprocess.TimeoutExpired):
                publisher.wait(timeout=6)  # it beats
            rank.send_signal(signal.SIGSTOP)
            assert publisher.wait(timeout=60) == 0
        finally:
            rank.kill()
    published = paths.rank_folder(run, 0, 0)
    for name in (paths.RANK_FILE, paths.EVENTS_FILE, paths.BLACK_BOX_FILE):
        assert (published / name).read_bytes() == (folder / name).read_bytes()
    told = RankReader(published).new_events()
    assert [event.message for event in told] == [
        "begun",
        "publishing ended: the launcher is gone, and no rank gave a sign of life for 3 s; what this one writes from "
        f"now on stays in {spool}",
    ]


def test_a_command_without_ranks_that_outlives_its_launcher_is_not_waited_for_without_end(tmp_path: Path) -> None:
    """It may yet start ranks, so its spool stays; `run.json` says that nobody publishes them."""
    spool, run = tmp_path / "spool", tmp_path / "run"
    identity.write_run_info(spool, run_id="r", source="option", run_dir=run)
    publish = [sys.executable, "-P", "-m", "scope.run.publish", "--launched", "--max-silence-s", "0.5"]
    environment = {**os.environ, identity.SPOOL_RUN: str(spool)}
    with subprocess.Popen(["sh", "-c", "read line"], env=environment, stdin=subprocess.PIPE) as orphan:
        done = subprocess.run(
            [*publish, "--spool", str(spool), "--run-dir", str(run)], stdin=subprocess.DEVNULL, timeout=60, check=False
        )
        orphan.communicate(b"\n")
    assert done.returncode == 0
    assert spool.exists()
    assert read_run_info(run).unrecorded == (
        "the launcher is gone, and no rank gave a sign of life for 0.5 s; ranks that begin from now on are recorded in "
        f"{spool}"
    )


def test_the_processes_of_an_orphaned_command(tmp_path: Path) -> None:
    """Only a process whose environment names this very spool is of the command; each may take over from another."""
    proc = tmp_path / "proc"
    for pid, named in (("1", "/spool/a-10"), ("2", "/spool/a-1"), ("self", "/spool/a")):
        (proc / pid).mkdir(parents=True)
        (proc / pid / "environ").write_bytes(f"HOME=/\0SCOPE_SPOOL_RUN={named}\0".encode())
    (proc / "3").mkdir()
    orphans = OrphanedCommand(Path("/spool/a-1"), proc=proc)
    assert orphans.is_living()
    (proc / "2" / "environ").write_bytes(b"")
    assert not orphans.is_living()
    (proc / "1" / "environ").write_bytes(b"SCOPE_SPOOL_RUN=/spool/a-1\0")
    assert orphans.is_living()
    assert not OrphanedCommand(Path("/spool/a"), proc=proc).is_living()


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"TORCHELASTIC_RUN_ID": "job", "SLURM_JOB_ID": "7"}, ("job", "torchelastic")),
        ({"TORCHELASTIC_RUN_ID": "none", "SLURM_JOB_ID": "7"}, ("7", "slurm")),
    ],
)
def test_run_id_comes_from_the_launcher(environment: dict[str, str], expected: tuple[str, str]) -> None:
    """Torchelastic's id comes before Slurm's; `none` is no id."""
    assert identity.choose_run_id(environment) == expected
    assert identity.choose_run_id(environment, "mine") == ("mine", "option")
    assert identity.choose_run_id({})[1] == "host"


def test_a_rank_that_starts_again_takes_the_next_attempt(tmp_path: Path) -> None:
    """A folder that exists is never written into again."""
    taken = [identity.claim_folder(tmp_path, attempt=0, rank=0)[0] for _ in range(3)]
    assert taken == [0, 1, 2]
    assert identity.read_attempt({"SCOPE_FIRST_ATTEMPT": "4", "TORCHELASTIC_RESTART_COUNT": "2"}) == 6


SLURM = {"SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "8", "SLURM_LOCALID": "1", "SLURM_NTASKS": "8"}
OPEN_MPI = {"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "0"}


@pytest.mark.parametrize(
    ("environment", "place"),
    [
        pytest.param(SLURM, ("3", "8", "1"), id="a-task-of-srun"),
        pytest.param({"PMI_RANK": "5", "PMI_SIZE": "6"}, ("5", "6", None), id="mpich"),
        pytest.param({**SLURM, **OPEN_MPI}, ("2", "4", "0"), id="mpirun-in-a-job-of-slurm"),
        pytest.param({**SLURM, "RANK": "17", "WORLD_SIZE": "64"}, ("17", "64", None), id="torchrun-in-a-task-of-srun"),
        pytest.param({**SLURM, "LOCAL_RANK": "0"}, ("3", "8", "0"), id="the-user's-own-local-rank"),
        pytest.param({**SLURM, "SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"}, (None,) * 3, id="one-task"),
        pytest.param(
            {"SLURM_PROCID": "0", "SLURM_NTASKS": "8", "SLURM_LOCALID": "0"}, (None,) * 3, id="a-batch-script"
        ),
        pytest.param({**SLURM, "SLURM_PROCID": "8"}, (None,) * 3, id="a-rank-beyond-them-all"),
        pytest.param({**SLURM, "SLURM_PROCID": "x"}, (None,) * 3, id="no-number"),
    ],
)
def test_the_rank_by_other_launchers_than_torch_s(environment: dict[str, str], place: tuple[str | None, ...]) -> None:
    """As Slurm 22.05 and Open MPI 4.1 set them; a batch script has the number of tasks of the steps to come."""
    found = identity.with_place(environment)
    assert tuple(found.get(name) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK")) == place


def test_a_reserved_attempt(tmp_path: Path) -> None:
    """Launches take attempts one after the other, published ones left out; what is given back is taken again."""
    run = tmp_path / "run"
    assert [identity.reserve_attempt(run) for _ in range(3)] == [0, 1, 2]
    identity.release_attempt(run, 1)
    assert identity.reserve_attempt(run) == 1
    paths.attempt_folder(run, 3).mkdir()
    assert identity.reserve_attempt(run) == 4
    assert paths.list_attempts(run) == [3]
    assert remove_run_files(run) == []
    assert identity.reserve_attempt(Path("/proc/nowhere")) == 0


def test_tags_without_a_value_sign_are_refused() -> None:
    """A tag is name=value."""
    assert identity.read_tags("a=1,b=x=y") == {"a": "1", "b": "x=y"}
    with pytest.raises(UsageError, match="no tag"):
        identity.read_tags("a")


def test_a_tag_that_stands_alone_keeps_its_commas() -> None:
    """Each option is one tag, whatever its value holds but control characters; a name holds no comma."""
    assert identity.parse_tags(["note=fast, b=2", "k=x=y", "empty="]) == {"note": "fast, b=2", "k": "x=y", "empty": ""}
    for wrong in ("", "=1", "a,b=1", "note=two\nlines"):
        with pytest.raises(UsageError, match="is no tag"):
            identity.parse_tags([wrong])
