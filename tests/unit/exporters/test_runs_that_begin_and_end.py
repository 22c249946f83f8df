"""Ranks that begin and runs that end: no error is counted for what mends itself, and series leave in their time."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import msgspec
import pytest

from exporters import training_series as t
from exporters.training import LINGER_NS, ThisNode, TrainingCollector
from scope.run import paths
from scope.run.naming import short_hash
from scope.run.publish import Publisher
from scope.run.schema import SCHEMA_VERSION, RankInfo, RunInfo, StepRecord

S = 1_000_000_000
BEGAN = 1_700_000_000 * S
HOST = "node1"
LABELS = (short_hash("job\0/data/job"), "0")


class Node:
    """A spool with one rank, its registry, and a collector whose clock the test moves."""

    def __init__(self, folder: Path) -> None:
        self.spool = folder / "spool"
        self.run = folder / "run"
        self.registry = folder / "registry"
        self.now_ns = BEGAN + 100 * S
        self.problems: list[tuple[str, str]] = []
        self.rank = paths.rank_folder(self.spool, 0, 0)
        self.rank.mkdir(parents=True)
        info = RunInfo(schema=SCHEMA_VERSION, run_id="job", started_ns=BEGAN, world_size=1, run_dir="/data/job")
        (self.spool / paths.RUN_FILE).write_bytes(msgspec.json.encode(info))
        entry = paths.Registration(run_id="job", spool=str(self.spool), run_dir=str(self.run))
        paths.register_spool(entry, folder=self.registry)
        self.collector = TrainingCollector(
            (),
            lambda _collector, error, where: self.problems.append((error, where)),
            registry=self.registry,
            now_ns=lambda: self.now_ns,
            clock_ns=lambda: self.now_ns,
            node=ThisNode(HOST, None, lambda _: None),
        )

    def write_rank(self, *, ended_ns: int | None = None) -> None:
        """Write the rank's `rank.json`."""
        info = RankInfo(
            schema=SCHEMA_VERSION, run_id="job", attempt=0, rank=0, started_ns=BEGAN, host=HOST, pid=1,
            ended_ns=ended_ns, exit_reason="finished" if ended_ns else None,
        )  # fmt: skip
        (self.rank / paths.RANK_FILE).write_bytes(msgspec.json.encode(info))

    def step(self, number: int, *, mfu_ratio: float = 0.4, disturbed: str | None = None) -> None:
        """Append a step of a second."""
        start = BEGAN + number * S
        record = StepRecord(
            step=number, start_ns=start, end_ns=start + S, phases={"other": S}, mfu_ratio=mfu_ratio, disturbed=disturbed
        )
        with (self.rank / paths.STEPS_FILE).open("ab") as stream:
            stream.write(msgspec.json.encode(record) + b"\n")

    def show(self, name: object, *, after_s: int = 6) -> float | None:
        """Return a series so many seconds later."""
        self.now_ns += after_s * S
        self.collector.read()
        return self.collector.series().get(name, LABELS)  # pyright: ignore[reportArgumentType]


@pytest.fixture
def node(tmp_path: Path) -> Node:
    """A node with a rank that has written nothing."""
    return Node(tmp_path)


def test_a_rank_that_has_just_begun_is_no_error_and_one_that_never_wrote_is(node: Node) -> None:
    """Its folder is a moment old: nothing is counted; once it is old, that its `rank.json` is missing is."""
    assert node.show(t.STEPS) is None
    assert node.problems == []
    os.utime(node.rank, (1, 1))
    node.show(t.STEPS)
    assert [error for error, _ in node.problems] == ["rank"]


def test_utilisation_is_of_the_last_step_that_is_like_others(node: Node) -> None:
    """A captured step of 0.01 changes no gauge of utilisation; it counts as a step."""
    node.write_rank()
    node.step(0, mfu_ratio=0.4)
    node.step(1, mfu_ratio=0.01, disturbed="capture")
    assert node.show(t.MFU) == 0.4
    assert node.show(t.STEPS) == 2
    node.step(2, mfu_ratio=0.5)
    assert node.show(t.MFU) == 0.5


def test_a_run_whose_spool_was_published_is_shown_from_its_run_directory(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its last step and its end came after the last look: both are told, no step twice, for 15 minutes."""
    monkeypatch.setenv("SCOPE_REGISTRY", str(node.registry))
    node.write_rank()
    node.step(0)
    assert (node.show(t.STEPS), node.show(t.ACTIVE)) == (1, 1)
    node.step(1)
    node.write_rank(ended_ns=node.now_ns)
    publisher = Publisher(node.spool, node.run)
    assert publisher.publish()
    publisher.remove_spool()
    assert (node.spool.exists(), list(node.registry.iterdir())) == (False, [])
    assert (node.show(t.STEPS), node.show(t.ACTIVE), node.show(t.LOST)) == (2, 0, None)
    assert node.show(t.STEPS, after_s=LINGER_NS // S - 100) == 2
    assert node.show(t.STEPS, after_s=200) is None
    assert node.problems == []
    node.show(t.STEPS)
    assert node.collector.find_ranks() == []


def test_of_many_ended_runs_the_newest_are_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four of which two fit are published one after the other: the last two are shown, and who left is counted."""
    monkeypatch.setattr("exporters.training.MAX_RUNS", 2)
    monkeypatch.setenv("SCOPE_REGISTRY", str(tmp_path / "0" / "registry"))
    first, *others = (Node(tmp_path / str(number)) for number in range(4))
    for number, node in enumerate((first, *others)):
        node.now_ns = first.now_ns
        info = RunInfo(schema=SCHEMA_VERSION, run_id="job", started_ns=BEGAN, world_size=1, run_dir=f"/data/{number}")
        (node.spool / paths.RUN_FILE).write_bytes(msgspec.json.encode(info))
        entry = paths.Registration(run_id="job", spool=str(node.spool), run_dir=str(node.run))
        paths.unregister_spool(node.spool, folder=node.registry)
        paths.register_spool(entry, folder=first.registry)
        node.write_rank()
        node.step(0)
        first.show(t.STEPS)
        node.write_rank(ended_ns=first.now_ns)
        publisher = Publisher(node.spool, node.run)
        assert publisher.publish()
        publisher.remove_spool()
        first.show(t.STEPS)
    series = first.collector.series()
    shown = [series.get(t.ACTIVE, (short_hash(f"job\0/data/{number}"), "0")) for number in range(4)]
    assert shown == [None, None, 0, 0]
    told = [where for error, where in first.problems if error == "too_many_ended_runs"]
    assert [where.partition(":")[0] for where in told] == [str(tmp_path / "0" / "run"), str(tmp_path / "1" / "run")]


def test_a_spool_that_was_deleted_with_nothing_published_is_forgotten(node: Node) -> None:
    """Without a run directory there is nothing to show, and no error either."""
    node.write_rank()
    node.step(0)
    assert node.show(t.STEPS) == 1
    shutil.rmtree(node.spool)
    assert node.show(t.STEPS) is None
    assert node.problems == []


def test_a_spool_that_could_not_be_published_keeps_its_entry(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """An exporter finds it there; entries of other spools stay in any case."""
    monkeypatch.setenv("SCOPE_REGISTRY", str(node.registry))
    other = paths.Registration(run_id="job", spool=f"{node.spool}-other")
    paths.register_spool(other, folder=node.registry)
    before = sorted(node.registry.iterdir())
    paths.unregister_spool(Path(f"{node.spool}-third"))
    assert sorted(node.registry.iterdir()) == before
    paths.unregister_spool(node.spool)
    (left,) = node.registry.iterdir()
    assert msgspec.json.decode(left.read_bytes(), type=paths.Registration) == other
