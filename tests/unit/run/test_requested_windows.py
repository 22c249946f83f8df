"""A request for a window names the step at which all ranks begin it."""

from __future__ import annotations

import os
import random
from typing import TYPE_CHECKING

import msgspec
import pytest

from scope.run import layout, paths
from scope.run.removal import remove_run_files
from scope.run.requests import AGREED, Requests, find_step_ahead, read_step
from scope.run.schema import RankInfo, RunInfo, StepRecord
from scope.run.writer import RankWriter

if TYPE_CHECKING:
    from pathlib import Path

MS = 1_000_000


def make_rank(  # noqa: PLR0913 - what a test says of a rank, most of it by default
    spool: Path,
    rank: int,
    *,
    step: int,
    lengths_ms: list[int],
    world_size: int = 2,
    last_ms: int | None = None,
    attempt: int = 0,
) -> Path:
    """The folder of a rank that is in a step, after others of these lengths."""
    info = RankInfo(
        schema="1.0", run_id="r", attempt=attempt, rank=rank, world_size=world_size, started_ns=1, host="h", pid=1
    )
    writer = RankWriter(paths.rank_folder(spool, attempt, rank), info)
    last = last_ms if last_ms is not None else (lengths_ms or [0])[-1]
    writer.black_box.write_state(layout.STATE.pack(step, max(step, 0), 100, 150, 160, last * MS, 1, b"forward"))
    records = [
        StepRecord(step=at, start_ns=0, end_ns=length * MS, phases={"other": length * MS})
        for at, length in enumerate(lengths_ms)
    ]
    (writer.folder / paths.STEPS_FILE).write_bytes(b"".join(msgspec.json.encode(each) + b"\n" for each in records))
    writer.black_box.close()
    writer.enabled = False
    return writer.folder


def ask(run: Path, content: str = "") -> None:
    """Leave a request in the run directory."""
    run.mkdir(exist_ok=True)
    (run / paths.REQUEST_FILE).write_text(content)


def test_the_step_is_as_far_ahead_as_training_gets_meanwhile(tmp_path: Path) -> None:
    """Rank 1 is in step 12, steps take 100 ms: after 2 s it is in step 32 at the latest, so 33 is the first to come.

    One long step among the last twenty says nothing of those to come.
    """
    folders = [
        make_rank(tmp_path, 0, step=10, lengths_ms=[100] * 10),
        make_rank(tmp_path, 1, step=12, lengths_ms=[100] * 11 + [9000]),
    ]
    assert find_step_ahead(folders, spread_ns=2000 * MS) == 33
    assert find_step_ahead(folders[:1], spread_ns=2000 * MS) == 31


def test_long_steps_begin_at_the_step_after_the_next(tmp_path: Path) -> None:
    """In a step of 30 s that may end at once, the next begins too early to be sure of all ranks; one more is."""
    folder = make_rank(tmp_path, 0, step=5, lengths_ms=[30_000] * 5)
    assert find_step_ahead([folder], spread_ns=2000 * MS) == 7


def test_the_first_step_alone_is_not_taken_for_the_usual_one(tmp_path: Path) -> None:
    """Step 0 took 5 s and is the only one on record; the last one took 100 ms: in 2 s there are 20 of these."""
    folder = make_rank(tmp_path, 0, step=4, lengths_ms=[5000], last_ms=100)
    assert find_step_ahead([folder], spread_ns=2000 * MS) == 25


def test_without_records_the_last_step_of_the_black_box_counts(tmp_path: Path) -> None:
    """The records lag behind; nothing is known before a step has ended, or without a black box."""
    assert find_step_ahead([make_rank(tmp_path / "a", 0, step=1, lengths_ms=[], last_ms=500)], spread_ns=10**9) == 4
    assert find_step_ahead([make_rank(tmp_path / "b", 0, step=0, lengths_ms=[])], spread_ns=10**9) is None
    assert find_step_ahead([make_rank(tmp_path / "c", 0, step=-1, lengths_ms=[])], spread_ns=10**9) is None
    assert find_step_ahead([tmp_path / "nothing"], spread_ns=10**9) is None


@pytest.mark.parametrize("seed", range(20))
def test_no_rank_has_begun_the_step_when_the_request_has_spread(tmp_path: Path, seed: int) -> None:
    """Ranks that train on at the usual pace see the request within its time before the step begins, whenever they are.

    The oracle plays the steps of each rank one by one, from an instant at random in the one it is in.
    """
    numbers = random.Random(seed)
    length_ms = numbers.randrange(1, 5000)
    steps = [numbers.randrange(3, 6) for _ in range(3)]
    folders = [
        make_rank(tmp_path, rank, step=step, lengths_ms=[length_ms] * 3, world_size=3)
        for rank, step in enumerate(steps)
    ]
    begin = find_step_ahead(folders, spread_ns=2000 * MS)
    assert begin is not None
    for step in steps:
        elapses_ms, current = length_ms - numbers.uniform(0, length_ms), step + 1
        while current < begin:
            current += 1
            elapses_ms += length_ms
        assert elapses_ms >= 2000
    assert begin <= max(steps) + 2 + 2000 // length_ms


def test_all_ranks_of_a_node_are_told_the_same_step(tmp_path: Path) -> None:
    """The number stands in the file of each rank, and nothing beside the request is left in the run directory."""
    spool, run = tmp_path / "spool", tmp_path / "run"
    folders = [make_rank(spool, rank, step=7 + rank, lengths_ms=[100] * 7) for rank in range(2)]
    requests = Requests(spool, run)
    ask(run)
    requests.poll()
    assert [read_step((folder / paths.REQUEST_FILE).read_bytes()) for folder in folders] == [29, 29]
    assert list(run.iterdir()) == []


@pytest.mark.parametrize(("text", "expected"), [("500\n", b"500\n"), ("0", b"0\n"), ("soon", b"28\n"), ("-1", b"28\n")])
def test_a_number_in_the_request_is_the_step(tmp_path: Path, text: str, expected: bytes) -> None:
    """Who writes a step into the request gets that one; what is no step counts as an empty file."""
    spool, run = tmp_path / "spool", tmp_path / "run"
    folder = make_rank(spool, 0, step=7, lengths_ms=[100] * 7, world_size=1)
    requests = Requests(spool, run)
    ask(run, text)
    requests.poll()
    assert (folder / paths.REQUEST_FILE).read_bytes() == expected


def test_a_request_before_the_first_step_is_for_the_next_one(tmp_path: Path) -> None:
    """No pace is known yet: an empty file asks each rank for its next step."""
    spool, run = tmp_path / "spool", tmp_path / "run"
    folder = make_rank(spool, 0, step=0, lengths_ms=[], world_size=1)
    requests = Requests(spool, run)
    ask(run)
    requests.poll()
    assert (folder / paths.REQUEST_FILE).read_bytes() == b""


def test_two_nodes_agree_on_the_step_of_the_first_that_looks(tmp_path: Path) -> None:
    """Six seconds ahead of the first node's ranks, wherever the second one's are; a new request, a new step."""
    run = tmp_path / "run"
    clock = [100.0]
    nodes: list[Requests] = []
    folders: list[Path] = []
    for node, step in enumerate((10, 14)):
        spool = tmp_path / f"spool{node}"
        folders.append(make_rank(spool, node, step=step, lengths_ms=[100] * 10))
        nodes.append(Requests(spool, run, now=lambda: clock[0]))
    ask(run)
    for turn, expected in enumerate((10 + 1 + 60, 14 + 1 + 60)):
        for requests in nodes if not turn else reversed(nodes):
            requests.poll()
        assert [read_step((folder / paths.REQUEST_FILE).read_bytes()) for folder in folders] == [expected] * 2
        os.utime(run / paths.REQUEST_FILE, ns=(turn + 1, turn + 1))  # touched again
    assert len(list(run.glob(f"{AGREED}*"))) == 2
    nodes[0].poll()
    clock[0] += 61
    nodes[0].poll()
    assert list(run.iterdir()) == []


def test_ranks_that_are_yet_to_begin_are_waited_for(tmp_path: Path) -> None:
    """Rank 1 alone would begin at once: it is told when rank 0 is there too, and the file is gone then."""
    spool, run = tmp_path / "spool", tmp_path / "run"
    made = paths.rank_folder(spool, 0, 1)
    made.mkdir(parents=True)  # nothing in it tells of more ranks yet
    requests = Requests(spool, run)
    ask(run)
    requests.poll()
    assert [*made.iterdir()] == []
    first = make_rank(spool, 1, step=-1, lengths_ms=[])
    requests.poll()
    assert not (first / paths.REQUEST_FILE).exists()
    late = make_rank(spool, 0, step=-1, lengths_ms=[])
    requests.poll()
    assert [(folder / paths.REQUEST_FILE).read_bytes() for folder in (first, late)] == [b"", b""]
    assert list(run.iterdir()) == []


@pytest.mark.parametrize("name", [paths.REQUEST_FILE, paths.STACKS_REQUEST_FILE])
def test_a_rank_that_begins_later_is_told_once_as_well(tmp_path: Path, name: str) -> None:
    """Rank 0 begins two minutes after rank 1 was told, under another publisher; it alone is told, and the same."""
    spool, run, clock = tmp_path / "spool", tmp_path / "run", [0.0]
    first = make_rank(spool, 1, step=3, lengths_ms=[100] * 3)
    requests = Requests(spool, run, now=lambda: clock[0])
    run.mkdir()
    (run / name).write_text("40\n")
    requests.poll()
    told = (first / name).read_bytes()
    (first / name).unlink()
    clock[0] = 120.0
    requests.poll()
    assert list(run.iterdir()) == []
    late = make_rank(spool, 0, step=-1, lengths_ms=[])
    requests = Requests(spool, run, now=lambda: clock[0])
    requests.poll()
    assert (late / name).read_bytes() == told == (b"40\n" if name == paths.REQUEST_FILE else b"")
    (late / name).unlink()
    requests.poll()
    assert not (first / name).exists()
    assert not (late / name).exists()


@pytest.mark.parametrize("name", [paths.REQUEST_FILE, paths.STACKS_REQUEST_FILE])
@pytest.mark.parametrize(("later_s", "is_told"), [(299.0, True), (301.0, False), (3600.0, False), (-5.0, False)])
def test_a_rank_that_begins_long_after_the_others_is_not_told(
    tmp_path: Path, name: str, later_s: float, *, is_told: bool
) -> None:
    """After five minutes it would profile alone; so it would on a host that was started anew meanwhile."""
    spool, run, clock = tmp_path / "spool", tmp_path / "run", [1000.0]
    make_rank(spool, 1, step=3, lengths_ms=[100] * 3)
    run.mkdir()
    (run / name).write_text("40\n")
    Requests(spool, run, now=lambda: clock[0]).poll()
    clock[0] += later_s
    late = make_rank(spool, 0, step=-1, lengths_ms=[])
    Requests(spool, run, now=lambda: clock[0]).poll()
    assert (late / name).exists() == is_told


@pytest.mark.parametrize("is_new_publisher", [True, False])
@pytest.mark.parametrize("name", [paths.REQUEST_FILE, paths.STACKS_REQUEST_FILE])
def test_a_request_that_was_withdrawn_reaches_no_other_rank(
    tmp_path: Path, name: str, *, is_new_publisher: bool
) -> None:
    """Who takes the file away ends the request: ranks of this and of the next attempt are not told; another one is."""
    spool, run = tmp_path / "spool", tmp_path / "run"
    make_rank(spool, 1, step=3, lengths_ms=[100] * 3)
    requests = Requests(spool, run)
    run.mkdir()
    (run / name).write_text("40\n")
    requests.poll()
    (run / name).unlink()
    requests.poll()
    if is_new_publisher:
        requests = Requests(spool, run)
    late = make_rank(spool, 0, step=-1, lengths_ms=[])
    requests.poll()
    assert not (late / name).exists()
    (run / name).write_text("50\n")
    requests.poll()
    assert (late / name).exists()
    (run / name).unlink(missing_ok=True)


def test_a_request_that_another_node_took_away_in_time_is_not_withdrawn(tmp_path: Path) -> None:
    """Made longer ago than nodes leave it, it was seen by all: a rank of this one that begins later is told."""
    spool, run = tmp_path / "spool", tmp_path / "run"
    make_rank(spool, 1, step=3, lengths_ms=[100] * 3)
    ask(run, "40")
    os.utime(run / paths.REQUEST_FILE, ns=(1, 1))
    requests = Requests(spool, run)
    requests.poll()
    (run / paths.REQUEST_FILE).unlink()
    late = make_rank(spool, 0, step=-1, lengths_ms=[])
    requests.poll()
    assert (late / paths.REQUEST_FILE).read_bytes() == b"40\n"


@pytest.mark.parametrize("has_read", [True, False])
@pytest.mark.parametrize(("text", "expected"), [("120", [b"120\n"] * 2), ("", [b"24\n"] * 2)])
def test_a_restart_does_not_lose_a_request(tmp_path: Path, text: str, expected: list[bytes], *, has_read: bool) -> None:
    """No rank had begun its window when the attempt ended, whether they had read of it or not: the next one is told.

    A step that the user named stands; one that was chosen is chosen anew, since the new attempt is in step 2.
    """
    spool, run = tmp_path / "spool", tmp_path / "run"
    old = [make_rank(spool, rank, step=80, lengths_ms=[100] * 80) for rank in range(2)]
    requests = Requests(spool, run)
    ask(run, text)
    requests.poll()
    if has_read:
        for folder in old:
            (folder / paths.REQUEST_FILE).rename(folder / paths.TAKEN_REQUEST_FILE)
    new = [make_rank(spool, rank, step=3, lengths_ms=[100] * 3, attempt=1) for rank in range(2)]
    Requests(spool, run).poll()
    assert [(folder / paths.REQUEST_FILE).read_bytes() for folder in new] == expected


def test_a_request_that_was_met_or_is_for_stacks_ends_with_its_attempt(tmp_path: Path) -> None:
    """One rank has begun its window, so the request was met; stacks were asked for as they were then."""
    spool, run = tmp_path / "spool", tmp_path / "run"
    old = [make_rank(spool, rank, step=80, lengths_ms=[100] * 80) for rank in range(2)]
    requests = Requests(spool, run)
    ask(run)
    (run / paths.STACKS_REQUEST_FILE).touch()
    requests.poll()
    (old[0] / paths.REQUEST_FILE).unlink()
    new = [make_rank(spool, rank, step=3, lengths_ms=[100] * 3, attempt=1) for rank in range(2)]
    requests.poll()
    assert not any(
        (folder / name).exists() for folder in new for name in (paths.REQUEST_FILE, paths.STACKS_REQUEST_FILE)
    )


def test_a_note_that_cannot_be_read_is_none(tmp_path: Path) -> None:
    """A torn note of what was passed on, or one of another version, hinders no request."""
    spool, run = tmp_path / "spool", tmp_path / "run"
    folder = make_rank(spool, 0, step=7, lengths_ms=[100] * 7, world_size=1)
    for note in (b"", b"12 34\n", b'{"stamp":3}', b"\xff"):
        (spool / paths.note_of_passed(paths.REQUEST_FILE)).write_bytes(note)
        ask(run, "9")
        Requests(spool, run).poll()
        assert (folder / paths.REQUEST_FILE).read_bytes() == b"9\n"
        (folder / paths.REQUEST_FILE).unlink()


def test_what_nodes_agreed_on_goes_with_the_run(tmp_path: Path) -> None:
    """A run whose job was killed while a request was out is deleted whole."""
    run = tmp_path / "run"
    ask(run)
    (run / f"{AGREED}12345").write_text("7\n")
    (run / paths.RUN_FILE).write_bytes(msgspec.json.encode(RunInfo(schema="1.0", run_id="r", started_ns=1)))
    assert remove_run_files(run) == []
    assert not run.exists()


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", None),
        (b"7", 7),
        (b" 12\n", 12),
        (b"1" * 19, None),
        (b"-3", None),
        (b"\xff", None),
        ("\u0663".encode(), None),
    ],
)
def test_what_a_request_says(content: bytes, expected: int | None) -> None:
    """A step is up to 18 digits."""
    assert read_step(content) == expected
