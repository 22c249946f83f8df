"""Checkpoints, windows, re-made process groups and spawned ranks of real jobs, and what `scope show` says of them."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("torch")

from scope.run import paths
from scope.run.reader import RankReader, RunReader, read_steps

if TYPE_CHECKING:
    from conftest import Recording

JOBS = Path(__file__).parent / "training_jobs.py"
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


def show(run: Path, *options: str) -> str:
    """Return what `scope show` prints."""
    command = [sys.executable, "-m", "scope", "show", str(run), *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout


@pytest.fixture(scope="module")
def state(saved: Recording) -> dict[str, Any]:
    """The document of `scope show --json`."""
    return json.loads(show(saved.run, "--json"))


def shard_bytes(folder: Path, rank: int | None = None) -> int:
    """Bytes of the shards of a distributed checkpoint, all of them or one rank's."""
    return sum(file.stat().st_size for file in folder.glob(f"__{'*' if rank is None else rank}_*.distcp"))


def test_every_checkpoint_is_told_with_its_bytes(saved: Recording) -> None:
    """Blocking, asynchronous and plain checkpoints of each rank say step, bytes and the bandwidth that follows."""
    for rank in (0, 1):
        events = [event for event in RankReader(saved.rank(rank)).new_events() if event.kind == "checkpoint"]
        assert [(event.step, event.detail["asynchronous"]) for event in events] == [(2, False), (4, True), (6, False)]
        written = [
            shard_bytes(saved.folder / "blocking", rank),
            shard_bytes(saved.folder / "asynchronous", rank),
            (saved.folder / f"plain-{rank}.pt").stat().st_size,
        ]
        assert [event.detail["bytes"] for event in events] == written
        assert min(written) >= 1_000_000
        for event, size in zip(events, written, strict=True):
            assert event.duration_ns is not None
            assert event.detail["bytes_per_s"] == pytest.approx(size * 1e9 / event.duration_ns)
            blocked = event.detail["blocked_ns"]
            assert isinstance(blocked, int)
            assert 0 < blocked <= event.duration_ns
        phases = {step.step: step.phases.get("checkpoint", 0) for step in read_steps(saved.rank(rank))}
        # The phase and the event are of the same two instants.
        assert {step: length for step, length in phases.items() if length} == {
            event.step: event.detail["blocked_ns"] for event in events
        }


def test_checkpoints_of_groups_and_failed_ones(recording: Recording) -> None:
    """Each rank is told the bytes of its own files, which torch names by its place in the group; a failure is apart."""
    recording.finish(*TORCHRUN, str(JOBS), "group_checkpoints")
    for rank in (0, 1):
        events = [event for event in RankReader(recording.rank(rank)).new_events() if "checkpoint" in event.kind]
        sizes = [shard_bytes(recording.folder / f"{name}-{rank}") for name in ("group", "alone")]
        assert min(sizes) > 4_000 * (1 + rank)
        assert [(event.step, event.kind, event.detail.get("bytes")) for event in events] == [
            (0, "checkpoint", sizes[0]),
            (1, "checkpoint", sizes[1]),
            (2, "checkpoint_failed", None),
        ]
        assert str(events[2].detail["error"]).startswith("CheckpointException (")
    text = show(recording.run)
    assert "2 checkpoints; the last in step 1: " in text
    assert "1 checkpoint failed; the last in step 2: CheckpointException (" in text
    assert " on ranks 0-1" in text


def test_show_names_the_slowest_rank_of_a_checkpoint(saved: Recording, state: dict[str, Any]) -> None:
    """Bytes add up over ranks, the bandwidth is theirs over the longest, and the rank whose file is slow is named."""
    blocking, asynchronous, plain = state["checkpoints"]
    assert blocking["bytes"] == shard_bytes(saved.folder / "blocking")
    assert asynchronous["bytes"] == shard_bytes(saved.folder / "asynchronous")
    assert plain["bytes"] == sum((saved.folder / f"plain-{rank}.pt").stat().st_size for rank in (0, 1))
    assert [each["num_ranks"] for each in state["checkpoints"]] == [2, 2, 2]
    assert plain["slowest_rank"] == 1
    assert plain["longest_ns"] >= 300_000_000
    assert plain["bytes_per_s"] == pytest.approx(plain["bytes"] * 1e9 / plain["longest_ns"])
    lengths = [
        next(event.duration_ns or 0 for event in RankReader(saved.rank(rank)).new_events() if event.step == 6)
        for rank in (0, 1)
    ]
    assert plain["spread_ns"] == max(lengths) - min(lengths)
    assert "3 checkpoints; the last in step 6: " in show(saved.run)


def test_micro_batches_and_a_new_process_group(saved: Recording) -> None:
    """Two backwards make one step; after `destroy_process_group` the next group's calls are recorded as well."""
    for rank in (0, 1):
        steps = read_steps(saved.rank(rank))
        assert [step.step for step in steps] == list(range(47))
        assert [step.num_microbatches for step in steps] == [2] * 44 + [1] * 3
        for number in (20, 45):
            reduced = [total for total in steps[number].collectives if total.operation == "all_reduce"]
            # Both layers are one bucket, reduced once a step whatever the number of micro-batches.
            assert sum(total.num_calls for total in reduced) == 1
            assert sum(total.in_bytes or 0 for total in reduced) == 4 * 2 * (64 * 64 + 64)
        first, second = ({total.group for total in steps[number].collectives} for number in (20, 45))
        groups = {group.group: group.ranks for group in RankReader(saved.rank(rank)).info().groups}
        assert all(groups[group] == (0, 1) for group in first | second)
        assert RankReader(saved.rank(rank)).info().exit_reason == "finished"


def test_only_the_chosen_rank_takes_a_window_at_the_anomaly(saved: Recording) -> None:
    """Rank 1 profiles the step after the long one, with stacks and without shapes, and its summary lies beside it.

    That is the first of more than twice the median of 32: step 40, where the machine makes none before it as long.
    """
    assert RankReader(saved.rank(0)).traces() == []
    lengths = [step.end_ns - step.start_ns for step in read_steps(saved.rank(1))]
    long = next(step for step in range(32, 41) if lengths[step] > 2 * statistics.median_low(lengths[step - 32 : step]))
    first = long + 1
    traces = {trace.info.first_step: trace for trace in RankReader(saved.rank(1)).traces()}
    window = traces[first]
    assert (window.info.reason, window.info.num_steps) == ("anomaly", 1)
    assert (window.info.with_stack, window.info.record_shapes) == (True, False)
    text = window.path.read_text()
    assert '"python_function"' in text
    assert '"Input Dims"' not in text
    disturbed = {step.step for step in read_steps(saved.rank(1)) if step.disturbed == "capture"}
    assert first in disturbed
    report = json.loads(window.path.with_name(f"rank1-step{first}.summary.json").read_bytes())
    assert report["schema"] == "scope.report/1"


def test_show_and_json_agree(saved: Recording, state: dict[str, Any]) -> None:
    """The text says the same step, ranks and collectives as the document, which is of the run's own records."""
    text = show(saved.run)
    assert state["summary"]["last_step"] == 46
    assert "2 of 2 ranks, last step 46" in text
    phases = {"checkpoint": 0, "forward": 0}
    for rank in (0, 1):
        for step in read_steps(saved.rank(rank)):
            for name in phases:
                phases[name] += step.phases.get(name, 0)
    for name, length in phases.items():
        assert state["summary"]["phases_ns"][name] == length
        assert f"\n  {name}" in text
    assert any(row["operation"] == "all_reduce" for row in state["collectives"])
    assert "all_reduce" in text


def test_ranks_that_a_script_spawns_under_a_shell(recording: Recording) -> None:
    """`torch.multiprocessing.spawn` in a script that a shell starts: its ranks alone are the first attempt."""
    recording.finish("sh", "-c", f"{sys.executable} {JOBS} spawns; exit $?")
    reader = RunReader(recording.run)
    assert paths.list_attempts(recording.run) == reader.attempts() == [0]
    assert [rank.info().world_size for rank in reader.ranks()] == [2, 2]
    for rank in (0, 1):
        steps = read_steps(recording.rank(rank))
        assert len(steps) == 5
        # The first two hold what DDP broadcasts: its parameters when it is made, then the order of its buckets.
        assert {total.operation for step in steps[2:] for total in step.collectives} == {"all_reduce"}


def test_a_program_that_spawns_ranks_twice_and_then_trains(recording: Recording) -> None:
    """Each is an attempt; how spawned ranks ended is known, and what a fork server made is recorded as well."""
    recording.finish(sys.executable, str(JOBS), "spawns_again")
    ranks = {
        (attempt, rank): RankReader(recording.rank(rank, attempt))
        for attempt in paths.list_attempts(recording.run)
        for rank in paths.list_ranks(recording.run, attempt)
    }
    assert {place: reader.info().world_size for place, reader in ranks.items()} == {
        (0, 0): 2, (0, 1): 2, (1, 0): 2, (1, 1): 2, (2, 0): 1,
    }  # fmt: skip
    assert [len(read_steps(ranks[place].folder)) for place in sorted(ranks)] == [5, 5, 0, 0, 30]
    reasons = {place: reader.info().exit_reason for place, reader in ranks.items()}
    # Rank 0 of the second attempt may have been ended by torch before it had reached its own end.
    assert {place: reasons[place] for place in sorted(reasons) if place != (1, 0)} == {
        (0, 0): "finished", (0, 1): "finished", (1, 1): "exception", (2, 0): "finished",
    }  # fmt: skip
    told = [event.message for event in ranks[1, 1].new_events() if event.kind == "exception"]
    assert told == ["ValueError: planted"]
