"""What the run directory lacks is told while a spool of this node holds it, and how to publish it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from scope.run import paths
from scope.run.unpublished import find_unpublished, publishing_command

STEPS = b'{"a":1}\n'
HOUR_S = 3600


class Node:
    """A spool of two ranks, registered as that of a run directory."""

    def __init__(self, folder: Path) -> None:
        self.spool, self.run, self.registry = folder / "spool", folder / "run of mine", folder / "registry"
        self.run.mkdir(parents=True)
        for rank in range(2):
            self.write(self.spool, rank, paths.RANK_FILE, b"{}")
            self.write(self.spool, rank, paths.STEPS_FILE, STEPS * 10)
        self.register(self.run)

    def write(self, root: Path, rank: int, name: str, content: bytes, *, age_s: float = HOUR_S) -> None:
        """Write a file of a rank that is so old."""
        path = paths.rank_folder(root, 0, rank) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        changed = time.time() - age_s
        os.utime(path, (changed, changed))

    def register(self, run: Path) -> None:
        """Note the spool as that of a run directory."""
        entry = paths.Registration(run_id="mine", spool=str(self.spool), run_dir=str(run))
        self.registry.mkdir(exist_ok=True)
        (self.registry / "mine.json").write_bytes(msgspec.json.encode(entry))

    def find(self) -> list[str]:
        """Return what is told."""
        return find_unpublished(self.run, registry=self.registry)

    def publish(self, *, without: tuple[int, str] | None = None) -> None:
        """Copy everything but one file."""
        for rank in range(2):
            for path in paths.rank_folder(self.spool, 0, rank).glob("*.json*"):
                if (rank, path.name) != without:
                    self.write(self.run, rank, path.name, path.read_bytes())


@pytest.fixture
def node(tmp_path: Path) -> Node:
    """A node none of whose files is published."""
    return Node(tmp_path)


def test_what_is_not_there_at_all_is_told_with_its_bytes_and_ranks(node: Node) -> None:
    """Two ranks of 2 + 80 bytes; the command names both folders so that a shell takes them."""
    (told,) = node.find()
    assert f"{node.run} lacks 164 bytes of 2 ranks" in told
    assert f"--spool {node.spool} --run-dir '{node.run}'" in told


def test_what_is_published_is_not_told(node: Node) -> None:
    """Nor where the copy is longer: the rank has folded old steps since."""
    node.publish()
    assert node.find() == []
    node.write(node.run, 1, paths.STEPS_FILE, STEPS * 11)
    assert node.find() == []


def test_what_one_file_lacks_is_told(node: Node) -> None:
    """Three of ten lines did not arrive."""
    node.publish()
    node.write(node.run, 1, paths.STEPS_FILE, STEPS * 7)
    (told,) = node.find()
    assert f"lacks {3 * len(STEPS)} bytes of 1 rank," in told


def test_what_is_on_its_way_is_not_told(node: Node) -> None:
    """A rank that has written a second ago, of which a second ago something was published."""
    node.publish()
    node.write(node.spool, 0, paths.STEPS_FILE, STEPS * 20, age_s=1)
    node.write(node.run, 0, paths.STEPS_FILE, STEPS * 10, age_s=2)
    assert node.find() == []


@pytest.mark.parametrize("without", [(0, paths.RANK_FILE), None])
def test_a_publisher_that_hangs_is_told_while_ranks_write(node: Node, without: tuple[int, str] | None) -> None:
    """Where nothing of a rank has come, or nothing for long, all that it lacks counts, the newest with it."""
    node.publish(without=without)
    node.write(node.spool, 0, paths.STEPS_FILE, STEPS * 20, age_s=1)
    (told,) = node.find()
    assert f"lacks {10 * len(STEPS) + (2 if without else 0)} bytes of 1 rank," in told


def test_calls_and_windows_that_should_have_been_moved_are_told(node: Node) -> None:
    """Closed segments and windows with their description leave the spool when they are published; open ones stay."""
    node.publish()
    node.write(node.spool, 0, "calls/000001-0.bin", bytes(100))
    node.write(node.spool, 0, "calls/000002-0.part", bytes(1000))
    node.write(node.spool, 0, "traces/w.json", bytes(10))
    assert "lacks 100 bytes of 1 rank," in node.find()[0]
    node.write(node.spool, 0, "traces/w.capture.json", bytes(1))
    assert "lacks 110 bytes of 1 rank," in node.find()[0]


def test_a_spool_of_another_run_is_none_of_this_one(node: Node, tmp_path: Path) -> None:
    """However alike its ranks."""
    node.register(tmp_path / "another")
    assert node.find() == []


def test_the_command_publishes_it(node: Node) -> None:
    """As a shell runs it, with what it needs of the environment; nothing is told afterwards."""
    command = publishing_command(node.spool, node.run)
    search = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    variables = {**os.environ, "PATH": search, "SCOPE_REGISTRY": str(node.registry)}
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, env=variables, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    steps = [paths.rank_folder(node.run, 0, rank) / paths.STEPS_FILE for rank in range(2)]
    assert [path.read_bytes() for path in steps] == [STEPS * 10] * 2
    assert node.find() == []
