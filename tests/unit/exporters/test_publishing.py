"""Spools that nobody publishes: taken on, left alone or refused, and copied whole by a real process."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import msgspec
import pytest

from exporters import publishing
from exporters.publishing import SpoolKeeper
from scope.run import paths
from scope.run.alive import read_start_ticks
from scope.run.publish import EXIT_BUSY, main
from scope.run.schema import SCHEMA_VERSION, RankInfo, RunInfo

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

S = 1_000_000_000


class FakeCopier:
    """A process whose end the test decides."""

    def __init__(self, spool: Path, run_dir: Path, max_run_bytes: int | None) -> None:
        self.places = (spool, run_dir)
        self.max_run_bytes = max_run_bytes
        self.status: int | None = None
        self.num_finishes = 0
        self.said: str | None = None

    def finish(self) -> None:
        """Count how often the last round was asked for."""
        self.num_finishes += 1

    def poll(self) -> int | None:
        """Return the status once it has one."""
        return self.status

    def trouble(self) -> str | None:
        """Return what the test lets it say."""
        return self.said


class World:
    """A registry with one spool, and a keeper whose clock and processes the test controls."""

    def __init__(self, folder: Path) -> None:
        self.registry = folder / "registry"
        self.spool = folder / "spool"
        self.run = folder / "run"
        self.now_ns = 10**12
        self.problems: list[str] = []
        self.copiers: list[FakeCopier] = []
        self.keeper = SpoolKeeper(
            lambda _collector, error, _where: self.problems.append(error),
            registry=self.registry,
            launch=self.launch,
            clock_ns=lambda: self.now_ns,
        )
        self.rank(os.getpid())
        self.register()

    def launch(self, spool: Path, run_dir: Path, max_run_bytes: int | None) -> FakeCopier:
        """Start a fake process."""
        self.copiers.append(FakeCopier(spool, run_dir, max_run_bytes))
        return self.copiers[-1]

    def rank(self, pid: int) -> Path:
        """Write rank 0, which is the process with this id, and one line of its steps."""
        folder = paths.rank_folder(self.spool, 0, 0)
        folder.mkdir(parents=True, exist_ok=True)
        run = RunInfo(schema=SCHEMA_VERSION, run_id="job", started_ns=1)
        (self.spool / paths.RUN_FILE).write_bytes(msgspec.json.encode(run))
        info = RankInfo(
            schema=SCHEMA_VERSION, run_id="job", attempt=0, rank=0, started_ns=1, host="h", pid=pid,
            process_start_ticks=read_start_ticks(pid),
        )  # fmt: skip
        (folder / paths.RANK_FILE).write_bytes(msgspec.json.encode(info))
        if not (folder / paths.STEPS_FILE).exists():
            (folder / paths.STEPS_FILE).write_bytes(b"one\n")
        return folder

    def age(self, seconds: float) -> None:
        """Let the rank's files be so old."""
        then = time.time() - seconds
        os.utime(paths.rank_folder(self.spool, 0, 0) / paths.STEPS_FILE, (then, then))

    def register(self, **changes: object) -> None:
        """Note the spool in the registry."""
        entry = paths.Registration(run_id="job", spool=str(self.spool), run_dir=str(self.run))
        paths.register_spool(msgspec.structs.replace(entry, **changes), folder=self.registry)

    def look(self, seconds: float = 0) -> None:
        """Let time pass, and the keeper look."""
        self.now_ns += int(seconds * S)
        self.keeper.look()


@pytest.fixture
def world(tmp_path: Path) -> World:
    """A spool whose rank is this process, recorded by the API: no `scope run` looks after it."""
    return World(tmp_path)


def test_a_spool_of_the_api_gets_one_publisher(world: World) -> None:
    """It is started once, and asked to end when no rank has lived for a minute: another attempt may follow."""
    for _ in range(5):
        world.look(5)
    assert [copier.places for copier in world.copiers] == [(world.spool, world.run)]
    assert world.keeper.num_spools == 1
    world.rank(2**22 + 1)
    world.look(59)
    assert world.copiers[0].num_finishes == 0
    world.look(2)
    assert world.copiers[0].num_finishes == 1
    world.copiers[0].status = 0
    world.look(1)
    assert (world.keeper.num_spools, world.problems) == (0, [])


@pytest.mark.parametrize("what", ["foreign", "of another run", "relative", "a link"])
def test_a_folder_that_is_not_the_spool_is_left_alone(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """An entry of the registry may name any folder of this user; what is published is deleted there."""
    foreign = tmp_path / "foreign"
    if what == "foreign":
        foreign.mkdir()
        (foreign / "thesis").write_text("years of work")
    elif what == "a link":
        foreign.symlink_to(world.spool)
    for entry in world.registry.glob("*.json"):
        entry.unlink()
    monkeypatch.chdir(tmp_path)
    changes = {"of another run": {"run_id": "other"}, "relative": {"spool": "spool"}}
    world.register(**changes.get(what, {"spool": str(foreign)}))
    world.look()
    assert (world.copiers, world.problems) == ([], ["not_ours" if what == "a link" else "no_spool"])


def test_a_living_scope_run_publishes_by_itself(world: World) -> None:
    """Only when it is gone, or its process id is another's now, is its spool taken on."""
    own = read_start_ticks(os.getpid())
    assert own is not None
    world.register(launcher_pid=os.getpid(), launcher_start_ticks=own)
    world.look(5)
    assert world.copiers == []
    world.register(launcher_pid=os.getpid(), launcher_start_ticks=own + 1)
    world.look(5)
    assert len(world.copiers) == 1


@pytest.mark.parametrize("changes", [{"run_dir": None}, {"run_dir": "SPOOL"}])
def test_a_spool_that_is_the_run_directory(world: World, changes: dict[str, str | None]) -> None:
    """There is nothing to copy."""
    world.register(**{key: str(world.spool) if value else None for key, value in changes.items()})
    world.look(5)
    assert world.copiers == []


@pytest.mark.parametrize("which", ["registry", "spool"])
@pytest.mark.parametrize("kind", ["writable", "foreign"])
def test_nothing_is_taken_from_others(world: World, monkeypatch: pytest.MonkeyPatch, which: str, kind: str) -> None:
    """Who could write the registry or the spool would choose what is copied where: refused and counted."""
    folder: Path = getattr(world, which)
    if kind == "writable":
        folder.chmod(0o777)
    else:
        own = os.geteuid()
        target = {world.registry: world.registry, world.spool: world.spool}[folder]
        real = os.lstat

        def lstat(path: Path) -> os.stat_result:
            status = real(path)
            fields = list(status)
            fields[4] = own + 1
            return os.stat_result(fields) if path == target else status

        monkeypatch.setattr(publishing.os, "lstat", lstat)
    world.look(5)
    assert (world.copiers, world.problems) == ([], ["not_ours"])


def test_ranks_that_cannot_be_seen_are_left_alone(world: World) -> None:
    """A spool that is written by no process of this namespace has ranks whose end nobody here could tell."""
    world.rank(2**22 + 1)
    world.look(5)
    assert (world.copiers, world.problems) == ([], ["unseen_ranks"])
    world.age(120)
    world.look(30)
    assert world.copiers == []
    world.look(31)
    assert len(world.copiers) == 1


def test_what_could_not_be_published_is_counted_and_tried_again(world: World) -> None:
    """A minute later, not at once; a spool that another process publishes is no fault."""
    world.look(5)
    world.copiers[0].status = 1
    world.look(1)
    world.look(58)
    assert (len(world.copiers), world.problems) == (1, ["incomplete"])
    world.look(3)
    assert len(world.copiers) == 2
    world.copiers[1].status = EXIT_BUSY
    world.look(1)
    assert world.problems == ["incomplete"]


def test_a_process_that_cannot_be_started_is_counted(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """No process is left just now: the exporter lives and tries again."""

    def refuse(*_arguments: object) -> FakeCopier:
        raise OSError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(world.keeper, "_launch", refuse)
    world.look(5)
    world.look(5)
    assert world.problems == ["not_started"]


def test_an_entry_that_no_process_can_be_given_costs_itself_alone(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A run directory with a null byte is counted and named; the spool beside it is published."""

    def launch(spool: Path, run_dir: Path, budget: int | None) -> object:
        # The real process is what refuses such a path.
        refused = "\0" in str(run_dir)
        return publishing._Process(spool, run_dir, budget) if refused else world.launch(spool, run_dir, budget)

    monkeypatch.setattr(world.keeper, "_launch", launch)
    world.register(run_dir="a\0b")
    other = World(tmp_path / "other")
    other.registry = world.registry
    other.register()
    world.look(5)
    assert [copier.places for copier in world.copiers] == [(other.spool, other.run)]
    assert world.problems == ["failed"]
    assert f"'{world.spool}': ValueError('embedded null byte')" in caplog.text


def test_the_thread_outlives_whatever_goes_wrong(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A look that fails as a whole is counted, the next one comes, and nobody is told that all is well meanwhile."""
    looks: list[int] = []

    def fail() -> None:
        looks.append(1)
        raise RuntimeError

    monkeypatch.setattr(publishing, "_PERIOD_S", 0.001)
    monkeypatch.setattr(world.keeper, "look", fail)
    world.keeper.start()
    wait_until(lambda: len(looks) > 2)
    assert set(world.problems) == {"failed"}
    assert world.keeper.is_well()
    world.now_ns += 61 * S
    assert not world.keeper.is_well()
    monkeypatch.setattr(world.keeper, "look", lambda: None)
    wait_until(world.keeper.is_well)
    world.keeper.stop()


def test_a_process_that_fails_to_tell_its_status_costs_itself_alone(world: World, tmp_path: Path) -> None:
    """Following one spool never keeps another one from being taken on."""
    world.look(5)

    def fail() -> int:
        raise RuntimeError

    world.copiers[0].poll = fail
    other = World(tmp_path / "other")
    other.registry = world.registry
    other.register()
    world.look(5)
    assert [copier.places for copier in world.copiers[1:]] == [(other.spool, other.run)]
    assert world.problems == ["failed"]


def test_the_end_of_the_exporter_ends_no_copying(world: World) -> None:
    """Each process is asked for its last round, which begins when the ranks have ended."""
    world.look(5)
    world.keeper.start()
    world.keeper.stop()
    assert world.copiers[0].num_finishes == 1


def test_a_run_directory_that_takes_nothing_is_told_of(world: World) -> None:
    """It is counted at each look and all is not well, until what is new can be copied again."""
    world.look()
    assert world.keeper.is_well()
    world.copiers[0].said = "/shared/run: No space left on device"
    for _ in range(3):
        world.look(5)
    world.keeper.start()
    assert (world.problems, world.keeper.is_well()) == (["behind"] * 3, False)
    world.copiers[0].said = None
    world.look(5)
    assert (world.problems, world.keeper.is_well()) == (["behind"] * 3, True)
    world.keeper.stop()


def wait_until(ready: Callable[[], bool]) -> None:
    """Wait for a condition; fail when it does not come true."""
    deadline = time.monotonic() + 60
    while not ready():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_real_process_copies_the_spool_and_takes_it_away(tmp_path: Path) -> None:
    """What ranks wrote stands in the run directory, byte for byte, its calls as far as the run's own budget goes.

    Two publishers never share a spool.
    """
    world = World(tmp_path)
    world.register(max_run_bytes=400)
    calls = paths.rank_folder(world.spool, 0, 0) / paths.CALLS_FOLDER
    calls.mkdir()
    for number in range(6):
        (calls / f"{number:06d}-0.bin").write_bytes(b"x" * 100)
    keeper = SpoolKeeper(
        lambda _collector, error, _where: world.problems.append(error),
        registry=world.registry,
        clock_ns=lambda: world.now_ns,
    )
    keeper.look()
    steps = paths.rank_folder(world.run, 0, 0) / paths.STEPS_FILE
    wait_until(steps.exists)
    assert main(["--spool", str(world.spool), "--run-dir", str(tmp_path / "other")]) == EXIT_BUSY
    assert not (tmp_path / "other").exists()
    with (paths.rank_folder(world.spool, 0, 0) / paths.STEPS_FILE).open("ab") as stream:
        stream.write(b"two\n")
    world.rank(2**22 + 1)
    keeper.look()
    world.now_ns += 61 * S
    keeper.look()
    wait_until(lambda: not world.spool.exists())
    assert steps.read_bytes() == b"one\ntwo\n"
    kept = sorted(path.name for path in (steps.parent / paths.CALLS_FOLDER).iterdir())
    assert kept == ["000003-0.bin", "000004-0.bin", "000005-0.bin"]
    wait_until(lambda: (keeper.look(), keeper.num_spools == 0)[1])
    assert world.problems == []


def test_a_real_process_tells_what_it_cannot_copy(tmp_path: Path) -> None:
    """A file where the run directory's folder should be: told with its reason while it is there, and not after."""
    world = World(tmp_path)
    (world.run / "attempt-000").parent.mkdir()
    (world.run / "attempt-000").write_text("in the way")
    told: list[str] = []
    keeper = SpoolKeeper(
        lambda _collector, _error, where: told.append(where), registry=world.registry, clock_ns=lambda: world.now_ns
    )
    wait_until(lambda: (keeper.look(), bool(told))[1])
    assert told[0].startswith(f"{world.spool}: {world.spool}/attempt-000/ranks/00000/")
    (world.run / "attempt-000").unlink()
    keeper.start()
    wait_until(lambda: (keeper.look(), keeper.is_well())[1])
    keeper.stop()
    world.rank(2**22 + 1)
    wait_until(lambda: (keeper.look(), keeper.num_spools == 0)[1])
    assert not world.spool.exists()


def test_a_spool_that_can_never_be_published_is_given_up(world: World) -> None:
    """Each wait is twice the one before; after six failures it is left alone, until it is another one's."""
    world.rank(2**22 + 1)
    world.age(120)
    for number, wait in enumerate((60, 120, 240, 480, 960, 1_920), start=1):
        world.look(5)
        assert len(world.copiers) == number
        world.copiers[-1].status = 1
        world.look(1)
        assert len(world.problems) == number
        world.look(wait - 1)
        assert len(world.copiers) == number
        world.look(1)
    world.look(10**6)
    assert (len(world.copiers), world.keeper.num_spools, len(world.problems)) == (6, 0, 6)
    # Somebody has deleted its entry, and another job takes the place.
    (entry,) = world.registry.iterdir()
    entry.unlink()
    world.look(5)
    world.register()
    world.look(5)
    assert len(world.copiers) == 7
