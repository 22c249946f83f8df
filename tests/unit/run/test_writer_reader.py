"""A rank's folder, written and read: round trips, budget, full disk, fork, live reading, hostile files."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import msgspec
import pytest
from work import count_instructions

from scope.errors import RunError, UsageError
from scope.run import layout, paths
from scope.run import reader as run_reader
from scope.run.blackbox import read_black_box
from scope.run.calls import CallShape
from scope.run.files import AppendFile
from scope.run.folding import fold_file, summarize_steps
from scope.run.reader import RankReader, RunReader, check_version, read_rank_info, read_run_info
from scope.run.schema import OPERATIONS, CollectiveTotal, GroupInfo, RankInfo, RunInfo, StepRecord, StepSummary
from scope.run.writer import RankWriter, StepDraft, WriterBudget

if TYPE_CHECKING:
    from pathlib import Path

ALL_REDUCE = OPERATIONS.index("all_reduce")


def make_writer(folder: Path, budget: WriterBudget | None = None) -> RankWriter:
    """A writer of rank 2 that is not started: the test calls `flush`."""
    info = RankInfo(schema="1.0", run_id="r", attempt=0, rank=2, started_ns=1, host="h", pid=os.getpid())
    return RankWriter(folder, info, budget=budget)


def make_step(number: int, *, length: int = 100, **more: object) -> StepRecord:
    """A step that is forward for most of its length."""
    return msgspec.structs.replace(
        StepRecord(
            step=number,
            start_ns=number * length,
            end_ns=(number + 1) * length,
            phases={"forward": length - 7, "other": 7},
            collectives=(CollectiveTotal(group=0, operation="all_reduce", num_calls=2, in_bytes=8, out_bytes=8),),
        ),
        **more,
    )


def write_step(writer: RankWriter, number: int, num_calls: int = 1) -> None:
    """Issue and complete calls and end the step."""
    for at in range(num_calls):
        shape = CallShape(0, ALL_REDUCE, 0, 1, 64, 64, word=16)
        call = writer.calls.issue(shape, 0, 1000 * number + at + 1)
        writer.calls.complete(call, 1000 * number + at + 5)
    writer.add_step(StepDraft(record=make_step(number), calls=writer.calls.next_step(number + 1)))


def test_what_a_writer_wrote_a_reader_returns(tmp_path: Path) -> None:
    """Facts, steps with their collective totals, events and call records come back as they were given."""
    writer = make_writer(tmp_path, WriterBudget(max_calls_per_s=10**12))
    writer.put_group(GroupInfo(group=0, name="0", ranks=(0, 1, 2, 3)))
    writer.put_group(GroupInfo(group=1, name="1", ranks=(2, 3)))
    writer.put_group(GroupInfo(group=0, name="0", ranks=(0, 1, 2, 3), mesh_axis="dp"))
    writer.calls.next_step(0)
    for number in range(3):
        write_step(writer, number, num_calls=2)
    writer.add_event("warning", "odd", step=1, detail_bytes=5)
    writer.close("finished")
    reader = RankReader(tmp_path)
    info = reader.info()
    assert [(g.name, g.ranks, g.mesh_axis) for g in info.groups] == [("0", (0, 1, 2, 3), "dp"), ("1", (2, 3), None)]
    assert info.exit_reason == "finished"
    steps = reader.new_steps()
    assert [step.step for step in steps if isinstance(step, StepRecord)] == [0, 1, 2]
    (total,) = steps[2].collectives
    assert (total.num_calls, total.in_bytes, total.num_timed, total.duration_ns) == (2, 128, 2, 8)
    (event,) = reader.new_events()
    assert (event.kind, event.step, event.detail) == ("warning", 1, {"detail_bytes": 5})
    calls = reader.new_calls()
    assert [(c.step, c.sequence) for c in calls] == [(0, 1), (0, 2), (1, 3), (1, 4), (2, 5), (2, 6)]
    state = reader.state()
    assert state is not None
    assert state.closed
    assert reader.new_steps() == []


def test_a_live_file_is_read_incrementally_and_its_half_line_left(tmp_path: Path) -> None:
    """New lines only come once; a line without its newline waits for the rest."""
    path = tmp_path / paths.STEPS_FILE
    lines = [msgspec.json.encode(make_step(number)) + b"\n" for number in range(3)]
    path.write_bytes(lines[0] + lines[1][:20])
    reader = RankReader(tmp_path)
    assert [s.step for s in reader.new_steps() if isinstance(s, StepRecord)] == [0]
    with path.open("ab") as file:
        file.write(lines[1][20:] + lines[2])
    assert [s.step for s in reader.new_steps() if isinstance(s, StepRecord)] == [1, 2]


def test_a_torn_line_costs_itself_alone_and_is_named(tmp_path: Path) -> None:
    """The steps around a damaged line are read, in small pieces too, and a sentence names file and line, once."""
    path = tmp_path / paths.STEPS_FILE
    good = [msgspec.json.encode(make_step(number)) + b"\n" for number in range(2)]
    path.write_bytes(good[0] + b'{"kind":"step","st\n' + good[1])
    for max_bytes in (None, 1):
        reader = RankReader(tmp_path)
        read = [line for _ in range(3) for line in reader.new_steps(max_bytes=max_bytes)]
        assert read == [make_step(0), make_step(1)]
        (problem,) = reader.take_problems()
        assert "steps.jsonl: is torn or foreign: line 2:" in problem
        assert reader.take_problems() == []


@pytest.mark.parametrize("content", [b"", b"[]", b"\xff\xfe", b'{"schema": "1.0"}', b'{"schema": 3}'])
def test_hostile_documents_are_errors_that_name_the_file(tmp_path: Path, content: bytes) -> None:
    """Empty, foreign and incomplete documents raise a RunError with the path, never anything else."""
    (tmp_path / "rank.json").write_bytes(content)
    (tmp_path / "run.json").write_bytes(content)
    with pytest.raises(RunError, match=r"rank\.json"):
        read_rank_info(tmp_path)
    with pytest.raises(RunError, match=r"run\.json"):
        read_run_info(tmp_path)


def test_versions(tmp_path: Path) -> None:
    """A newer minor version is read with a note, another major version is an error, nonsense too."""
    assert check_version("1.0", tmp_path) is None
    assert "newer" in (check_version("1.9", tmp_path) or "")
    for bad in ("2.0", "x", "1.-1", ""):
        with pytest.raises(RunError):
            check_version(bad, tmp_path)
    (tmp_path / "rank.json").write_bytes(
        b'{"schema":"1.7","run_id":"r","attempt":0,"rank":0,"started_ns":1,"host":"h","pid":1,"novel":{"a":1}}'
    )
    reader = RankReader(tmp_path)
    assert reader.info().rank == 0
    assert len(reader.notes) == 1


def test_summary_adds_up(tmp_path: Path) -> None:
    """A summary's lengths, phases and totals are the sums of its steps, its extremes theirs."""
    steps = [make_step(0, length=100, tokens=5), make_step(1, length=300, tokens=6), make_step(2, length=200)]
    summary = summarize_steps(steps)
    assert (summary.num_steps, summary.duration_ns) == (3, 600)
    assert (summary.min_duration_ns, summary.max_duration_ns) == (100, 300)
    assert summary.phases == {"forward": 579, "other": 21}
    assert summary.collectives[0].num_calls == 6
    assert summary.tokens is None
    assert summary.duration_ns == sum(summary.phases.values())


def test_a_torn_line_does_not_keep_a_file_from_being_folded(tmp_path: Path) -> None:
    """The steps around it are folded, the line stays for readers to name."""
    path = tmp_path / paths.STEPS_FILE
    lines = [msgspec.json.encode(make_step(number)) + b"\n" for number in range(1000)]
    path.write_bytes(b"".join([*lines[:50], b"{torn\n", *lines[50:]]))
    size = path.stat().st_size
    assert fold_file(path, max_bytes=size // 2)
    assert path.stat().st_size < size
    reader = RankReader(tmp_path)
    read = reader.new_steps()
    assert sum(line.num_steps if isinstance(line, StepSummary) else 1 for line in read) == 1000
    assert len(reader.take_problems()) == 1


def test_folding_keeps_every_step_in_the_sums(tmp_path: Path) -> None:
    """Folding halves a file, the newest steps stay whole, and no step's time is lost."""
    path = tmp_path / paths.STEPS_FILE
    path.write_bytes(b"".join(msgspec.json.encode(make_step(number)) + b"\n" for number in range(1000)))
    size = path.stat().st_size
    assert fold_file(path, max_bytes=size // 2)
    lines = RankReader(tmp_path).new_steps()
    assert path.stat().st_size <= size // 2 * 3 // 4
    assert isinstance(lines[0], StepSummary)
    assert lines[-1] == make_step(999)
    total = sum(sum(line.phases.values()) for line in lines)
    assert total == 1000 * 100


def test_writer_folds_and_a_live_reader_starts_anew(tmp_path: Path) -> None:
    """A rank beyond its budget folds its own file; a reader that follows it notices and reads all again."""
    writer = make_writer(tmp_path, WriterBudget(max_bytes=80_000))
    reader = RankReader(tmp_path)
    writer.calls.next_step(0)
    for number in range(200):
        write_step(writer, number, num_calls=0)
        if number % 40 == 0:
            writer.flush()
            reader.new_steps()
    writer.close("finished")
    reader.new_steps()
    assert reader.restarts >= 1
    lines = RankReader(tmp_path).new_steps()
    assert sum(line.num_steps if isinstance(line, StepSummary) else 1 for line in lines) == 200
    assert (tmp_path / paths.STEPS_FILE).stat().st_size <= 20_000


def test_segments_stay_in_budget(tmp_path: Path) -> None:
    """Old closed segments are deleted beyond three quarters of the budget, the newest stay."""
    writer = make_writer(tmp_path, WriterBudget(max_bytes=40_000, segment_bytes=5_000, max_calls_per_s=10**12))
    writer.calls.next_step(0)
    for number in range(100):
        write_step(writer, number, num_calls=10)
        writer.flush()
    writer.close("finished")
    kept = sum(path.stat().st_size for path in (tmp_path / "calls").iterdir())
    assert kept <= 30_000
    assert max(call.step or 0 for call in RankReader(tmp_path).new_calls()) == 99


def test_calls_are_sampled_by_power_of_two_but_totals_complete(tmp_path: Path) -> None:
    """Above the rate one step in 2^k has its calls recorded; every step has all its totals."""
    writer = make_writer(tmp_path, WriterBudget(max_calls_per_s=10**7))
    writer.calls.next_step(0)
    for number in range(16):
        write_step(writer, number, num_calls=4)  # 4 calls in 100 ns: 4e7 a second, so one step in four
    writer.close("finished")
    reader = RankReader(tmp_path)
    assert sorted({call.step or 0 for call in reader.new_calls()}) == [0, 4, 8, 12]
    steps = [step for step in reader.new_steps() if isinstance(step, StepRecord)]
    assert [step.calls_recorded for step in steps[:5]] == [True, False, False, False, True]
    assert {step.collectives[0].num_calls for step in steps} == {4}


def test_a_full_disk_drops_and_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the disk is full half-way through a write, nothing of it stays and it is counted."""
    file = AppendFile(tmp_path / "f")
    assert file.append(b"whole\n")
    real = os.write
    room = [3]

    def write(descriptor: int, content: memoryview) -> int:
        if not room[0]:
            raise OSError(28, "No space left on device")
        done = real(descriptor, content[: room[0]])
        room[0] -= done
        return done

    monkeypatch.setattr(os, "write", write)
    assert not file.append(b"torn off\n")
    monkeypatch.undo()
    assert file.append(b"again\n")
    file.close()
    assert (tmp_path / "f").read_bytes() == b"whole\nagain\n"
    assert (file.num_dropped, file.last_error) == (1, "No space left on device")


def test_deleted_folder_is_made_again(tmp_path: Path) -> None:
    """A spool that somebody deletes is made anew; what is written afterwards is readable."""
    import shutil

    folder = tmp_path / "rank"
    writer = make_writer(folder)
    writer.calls.next_step(0)
    write_step(writer, 0)
    writer.flush()
    shutil.rmtree(folder)
    write_step(writer, 1)
    writer.close("finished")
    assert [s.step for s in RankReader(folder).new_steps() if isinstance(s, StepRecord)] == [1]


def test_a_forked_child_writes_nothing(tmp_path: Path) -> None:
    """After os.fork the child's writer is silent and its exit leaves the parent's files as they were."""
    writer = make_writer(tmp_path)
    writer.calls.next_step(0)
    write_step(writer, 0)
    child = os.fork()
    if child == 0:
        write_step(writer, 1)
        writer.close("finished")
        os._exit(0 if not writer.enabled else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert not (tmp_path / paths.STEPS_FILE).exists()
    writer.close("finished")
    assert [s.step for s in RankReader(tmp_path).new_steps() if isinstance(s, StepRecord)] == [0]


def test_run_reader_finds_attempts_and_ranks(tmp_path: Path) -> None:
    """Attempts and ranks are found by number, links and foreign names are not."""
    run = RunInfo(schema="1.0", run_id="r", started_ns=1)
    (tmp_path / "run.json").write_bytes(msgspec.json.encode(run))
    for attempt, rank in ((0, 0), (1, 0), (1, 10)):
        paths.rank_folder(tmp_path, attempt, rank).mkdir(parents=True)
    (tmp_path / "attempt-001" / "ranks" / "x").mkdir()
    (tmp_path / "attempt-002").symlink_to(tmp_path / "attempt-001")
    reader = RunReader(tmp_path)
    assert reader.info() == run
    assert reader.attempts() == [0, 1]
    assert [rank.folder.name for rank in reader.ranks()] == ["00000", "00010"]


def test_ranks_of_an_attempt_cost_nothing_for_those_of_others(tmp_path: Path) -> None:
    """Whoever asks for the ranks of each attempt looks at each of them once, however many attempts there are."""
    num_attempts = 20
    for attempt in range(num_attempts):
        for rank in (1, 0):
            paths.rank_folder(tmp_path, attempt, rank).mkdir(parents=True)
    reader = RunReader(tmp_path)
    work = [count_instructions(lambda of=attempt: reader.ranks(of), run_reader) for attempt in range(num_attempts)]
    assert len(set(work)) == 1
    assert [rank.folder.name for rank in reader.ranks(7)] == ["00000", "00001"]


def test_missing_run_says_what_to_do(tmp_path: Path) -> None:
    """A folder that is not there and one that is no run each say so."""
    with pytest.raises(RunError, match="no such folder"):
        read_run_info(tmp_path / "x")
    with pytest.raises(RunError, match="not a run directory"):
        read_run_info(tmp_path)


@pytest.mark.parametrize("run_id", ["", "../x", "a/b", ".hidden", "a" * 129, "a\nb"])
def test_run_ids_that_are_no_folder_names_are_refused(run_id: str) -> None:
    """A run id cannot leave its folder."""
    with pytest.raises(UsageError):
        paths.check_run_id(run_id)


def test_network_mounts_are_recognised_without_touching_them(tmp_path: Path) -> None:
    """The longest mount point above a path decides."""
    mounts = tmp_path / "mounts"
    mounts.write_text("dev / ext4 rw 0 0\nsrv:/x /data nfs4 rw 0 0\ntmp /data/local tmpfs rw 0 0\n")
    from pathlib import Path as AnyPath

    assert paths.is_network_path(AnyPath("/data/runs"), mounts=mounts)
    assert not paths.is_network_path(AnyPath("/data/local/runs"), mounts=mounts)
    assert not paths.is_network_path(AnyPath("/database"), mounts=mounts)


def test_registry_round_trip(tmp_path: Path) -> None:
    """A registered spool is found while it exists, a broken entry is named."""
    spool = tmp_path / "spool"
    spool.mkdir()
    entry = paths.Registration(run_id="r", spool=str(spool), run_dir="/data/r")
    folder = tmp_path / "registry"
    paths.register_spool(entry, folder=folder)
    (folder / "bad.json").write_text("{")
    found, problems = paths.read_registry(folder)
    assert found == [entry]
    assert len(problems) == 1
    spool.rmdir()
    assert paths.read_registry(folder)[0] == []


def test_calls_outside_finished_steps_are_written_too(tmp_path: Path) -> None:
    """Calls before the first step, many of them while none has begun, and those of a step that is cut off are read."""
    writer = make_writer(tmp_path)
    shape = CallShape(group=0, operation=1, variant=0, dtype=1, in_bytes=4, out_bytes=4)
    for number in range(5_000):
        writer.calls.issue(shape, 0, number + 1)
    assert RankReader(tmp_path).new_calls() == []
    writer.flush()
    reader = RankReader(tmp_path)
    assert writer.calls.in_progress.seen == []
    writer.calls.issue(shape, 0, 6_000)
    writer.add_loose_calls(writer.calls.next_step(0))
    writer.calls.issue(shape, 0, 7_000)
    writer.add_loose_calls(writer.calls.next_step(1))
    writer.close("exception", exception=True)
    assert [call.step for call in reader.new_calls()] == [None] * 5_001 + [0]
    assert [call.sequence for call in RankReader(tmp_path).new_calls()] == list(range(1, 5_003))
    assert RankReader(tmp_path).new_steps() == []


def test_a_step_that_never_ends_holds_few_calls(tmp_path: Path) -> None:
    """Calls of a step in progress are written once they are settled; in the end its line holds the totals of all."""
    writer = make_writer(tmp_path)
    writer.calls.next_step(0)
    shape = CallShape(group=0, operation=1, variant=0, dtype=1, in_bytes=4, out_bytes=2)
    long_ago = time.monotonic_ns() - 10**10
    for number in range(5_000):
        call = writer.calls.issue(shape, 0, long_ago + number)
        writer.calls.end_wait(call, long_ago + number, long_ago + number + 3)
    for _ in range(7):
        writer.calls.issue(shape, 0, time.monotonic_ns())
    held = writer.calls.in_progress
    writer.flush()
    assert len(held.seen) == 7
    (segment,) = (tmp_path / paths.CALLS_FOLDER).iterdir()
    assert segment.stat().st_size == layout.SEGMENT_HEADER_BYTES + 5_000 * layout.CALL_BYTES
    writer.add_step(StepDraft(record=make_step(0, length=10**10), calls=writer.calls.next_step(1)))
    writer.close("finished")
    reader = RankReader(tmp_path)
    assert [call.sequence for call in reader.new_calls()] == list(range(1, 5_008))
    (step,) = [step for step in reader.new_steps() if isinstance(step, StepRecord)]
    (total,) = step.collectives
    assert (total.num_calls, total.in_bytes, total.out_bytes) == (5_007, 4 * 5_007, 2 * 5_007)
    assert (total.num_timed, total.duration_ns, total.num_blocked_known, total.blocked_ns) == (5_000, 15_000) * 2
    assert step.communication_wait_ns == 15_000
    assert step.communication_wait_coverage_ratio == pytest.approx(5_000 / 5_007)
    assert step.calls_recorded


def test_above_the_rate_some_calls_of_an_endless_step_are_left_out(tmp_path: Path) -> None:
    """At twice the rate every other piece is written, totals are complete, and the step says that calls are missing."""
    writer = make_writer(tmp_path, WriterBudget(max_calls_per_s=2_500))
    writer.calls.next_step(0)
    shape = CallShape(group=0, operation=1, variant=0, dtype=1, in_bytes=4, out_bytes=4)
    for _ in range(4):
        for number in range(5_000):
            writer.calls.issue(shape, 0, number + 1)
        writer.flush()
    writer.add_step(StepDraft(record=make_step(0), calls=writer.calls.next_step(1)))
    writer.close("finished")
    reader = RankReader(tmp_path)
    assert len(reader.new_calls()) == 10_000
    (step,) = [step for step in reader.new_steps() if isinstance(step, StepRecord)]
    assert step.collectives[0].num_calls == 20_000
    assert not step.calls_recorded


def test_what_is_left_to_the_writer_completes_the_record(tmp_path: Path) -> None:
    """Fields that are worked out later stand in the record; where that fails the rest of it does, and it is told."""
    writer = make_writer(tmp_path)

    def double_tokens(step: StepRecord) -> dict[str, float]:
        return {"model_flop": 2.0 * (step.tokens or 0)}

    def fail(step: StepRecord) -> dict[str, float]:
        raise ZeroDivisionError

    for number, complete in enumerate((double_tokens, fail, None)):
        record = msgspec.structs.replace(make_step(number), tokens=21)
        writer.add_step(StepDraft(record=record, calls=writer.calls.next_step(number + 1), complete=complete))
    writer.close("finished")
    reader = RankReader(tmp_path)
    steps = [step for step in reader.new_steps() if isinstance(step, StepRecord)]
    assert [step.model_flop for step in steps] == [42.0, None, None]
    assert [step.tokens for step in steps] == [21] * 3
    assert [event.message for event in reader.new_events()] == [
        "a part of the recording could not be written: ZeroDivisionError"
    ]
    assert writer.num_dropped == 1


def test_nothing_that_a_part_raises_leaves_the_writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever fails, of any kind, `flush` and `close` return, the other parts are written, and it is told once."""

    def fail(*_: object, **__: object) -> None:
        raise ValueError(0)

    writer = make_writer(tmp_path)
    writer.pollers.append(fail)
    monkeypatch.setattr(writer.calls, "pack_groups", fail)
    writer.calls.next_step(0)
    write_step(writer, 0)
    writer.flush()
    pulse_ns = read_black_box(tmp_path / paths.BLACK_BOX_FILE).pulse_ns
    assert pulse_ns is not None
    write_step(writer, 1)
    monkeypatch.setattr(writer, "_write_info", fail)
    writer.close("finished")
    assert writer.num_dropped >= 4
    assert not writer.enabled
    state = read_black_box(tmp_path / paths.BLACK_BOX_FILE)
    assert state.closed
    assert state.num_dropped == writer.num_dropped
    reader = RankReader(tmp_path)
    assert [step.step for step in reader.new_steps() if isinstance(step, StepRecord)] == [0, 1]
    assert [event.message for event in reader.new_events()] == [
        "a part of the recording could not be written: ValueError"
    ]


def test_the_calls_of_many_short_steps_are_written_in_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two hundred steps of three calls take few writes, lose no call, and each knows that its calls are recorded."""
    appended: list[int] = []
    append = AppendFile.append

    def count(file: AppendFile, content: bytes) -> bool:
        appended.append(len(content))
        return append(file, content)

    monkeypatch.setattr(AppendFile, "append", count)
    writer = make_writer(tmp_path, WriterBudget(max_calls_per_s=10**12))
    writer.calls.next_step(0)
    for number in range(200):
        write_step(writer, number, num_calls=3)
    writer.close("finished")
    assert len(appended) < 50
    reader = RankReader(tmp_path)
    steps = [step for step in reader.new_steps() if isinstance(step, StepRecord)]
    assert [step.step for step in steps] == list(range(200))
    assert all(step.calls_recorded for step in steps)
    calls = [(call.step, call.sequence) for call in reader.new_calls()]
    assert calls == [(number // 3, number + 1) for number in range(600)]
