"""Copies of what ranks write, while files are folded, cut and replaced between two publishings."""

from __future__ import annotations

import contextlib
import os
import random
from pathlib import Path

import pytest

from scope.errors import RunError
from scope.run import paths
from scope.run.calls import CallShape
from scope.run.copies import GrowingCopy, are_equal
from scope.run.folding import fold_file
from scope.run.publish import Publisher
from scope.run.reader import RankReader
from scope.run.schema import OPERATIONS, RankInfo, StepRecord
from scope.run.writer import RankWriter, StepDraft, WriterBudget


def replace_file(path: Path, content: bytes) -> None:
    """Put another file in the place of one."""
    fresh = path.with_name("fresh")
    fresh.write_bytes(content)
    fresh.replace(path)


@pytest.mark.parametrize("seed", range(6))
def test_a_copy_equals_its_file_however_that_was_changed(tmp_path: Path, seed: int) -> None:
    """Appends, cuts, and one, two or three replacements in a row between two looks: the copy is the file each time."""
    numbers = random.Random(seed)
    source, target = tmp_path / "s", tmp_path / "t"
    source.write_bytes(b"")
    copy = GrowingCopy(source, target)
    for _ in range(200):
        for _ in range(numbers.choice([0, 1, 1, 2, 3])):
            content = source.read_bytes()
            action = numbers.choice(["append", "append", "replace", "shrink", "cut"])
            if action == "append":
                with source.open("ab") as file:
                    file.write(numbers.randbytes(numbers.randrange(6000)))
            elif action == "replace":
                replace_file(source, numbers.randbytes(len(content)) if numbers.random() < 0.5 else content + b"x")
            elif action == "shrink":
                replace_file(source, content[len(content) // 2 :])
            else:
                os.truncate(source, len(content) // 2)
        if numbers.random() < 0.1:
            copy.let_go()
        copy.update()
        assert target.read_bytes() == source.read_bytes()
    copy.let_go()


def test_a_file_that_got_the_number_of_its_predecessor_is_not_taken_for_it(tmp_path: Path) -> None:
    """Two folds in a row give back the first one's inode on many file systems: the one that is read is kept from it."""
    source, target = tmp_path / "s", tmp_path / "t"
    source.write_bytes(b"a" * 10_000)
    copy = GrowingCopy(source, target)
    copy.update()
    seen = source.stat().st_ino
    for _ in range(20):
        replace_file(source, b"a" * 10_001)
        assert source.stat().st_ino != seen
    replace_file(source, b"b" + b"a" * 10_000)  # the same bytes stand where reading stopped
    copy.update()
    assert target.read_bytes() == source.read_bytes()
    copy.let_go()


def test_a_reader_never_sees_part_of_a_replaced_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy that fails half-way leaves the old one whole; the next time all is there."""
    source, target = tmp_path / "s", tmp_path / "t"
    source.write_bytes(b"old\n")
    copy = GrowingCopy(source, target)
    copy.update()
    replace_file(source, b"new " * 1000)
    real = os.write

    def write_little(descriptor: int, content: memoryview) -> int:
        if len(content) < 4000:
            raise OSError(28, "No space left on device")
        return real(descriptor, content[:100])

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", write_little)
        with pytest.raises(OSError, match="No space"):
            copy.update()
    assert target.read_bytes() == b"old\n"
    copy.update()
    assert are_equal(source, target)
    copy.let_go()


def test_what_is_found_to_differ_at_the_end_is_copied_anew(tmp_path: Path) -> None:
    """A byte that somebody changed in the copy, its length kept, is set right; a copy that cannot be right is told."""
    source, target = tmp_path / "s", tmp_path / "t"
    source.write_bytes(b"line\n" * 5000)
    copy = GrowingCopy(source, target)
    copy.update()
    with target.open("r+b") as file:
        file.write(b"X")
    copy.make_equal()
    assert target.read_bytes() == source.read_bytes()
    copy.let_go()


def test_a_copy_that_does_not_become_equal_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system that gives back other bytes than it took is named, and the spool is kept."""
    source, target = tmp_path / "s", tmp_path / "t"
    source.write_bytes(b"1" * 100)
    monkeypatch.setattr("scope.run.copies.are_equal", lambda one, other: False)
    copy = GrowingCopy(source, target)
    with pytest.raises(RunError, match="does not hold what"):
        copy.make_equal()
    copy.let_go()


def make_writer(spool: Path, attempt: int = 0) -> RankWriter:
    """A rank that is not started."""
    info = RankInfo(schema="1.0", run_id="r", attempt=attempt, rank=0, started_ns=1, host="h", pid=1)
    return RankWriter(paths.rank_folder(spool, attempt, 0), info, budget=WriterBudget(max_calls_per_s=10**12))


def count_open(path: Path) -> int:
    """How many descriptors of this process stand for a file."""
    found = 0
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            found += descriptor.samefile(path)
    return found


def add_steps(writer: RankWriter, first: int, last: int) -> None:
    """Steps of 10 ns with one call each."""
    for step in range(first, last):
        shape = CallShape(0, OPERATIONS.index("all_reduce"), 0, 1, 64, 64, word=16)
        writer.calls.complete(writer.calls.issue(shape, 0, 1000 * step + 1), 1000 * step + 5)
        record = StepRecord(step=step, start_ns=10 * step, end_ns=10 * step + 10, phases={"other": 10})
        writer.add_step(StepDraft(record=record, calls=writer.calls.next_step(step + 1)))
    writer.flush()


@pytest.mark.parametrize("num_folds", [1, 2, 3, 4])
def test_every_step_is_published_however_often_the_file_was_folded(tmp_path: Path, num_folds: int) -> None:
    """Several folds between two publishings, each followed by new steps, leave the published file as the rank's."""
    spool, run = tmp_path / "spool", tmp_path / "run"
    writer, publisher = make_writer(spool), Publisher(spool, run)
    source = writer.folder / paths.STEPS_FILE
    step = 0
    for _ in range(12):
        for _ in range(num_folds):
            add_steps(writer, step, step + 130)
            step += 130
            writer._steps_file.close()
            fold_file(source, max_bytes=source.stat().st_size // 2)
        add_steps(writer, step, step + 5)
        step += 5
        assert publisher.publish()
        target = paths.rank_folder(run, 0, 0) / paths.STEPS_FILE
        assert target.read_bytes() == source.read_bytes()
    writer.close("finished")
    assert publisher.publish_last()
    lines = RankReader(paths.rank_folder(run, 0, 0)).new_steps()
    assert sum(1 if isinstance(line, StepRecord) else line.num_steps for line in lines) == step
    publisher.remove_spool()
    assert not spool.exists()


def test_the_spool_stays_while_a_copy_is_not_whole(tmp_path: Path) -> None:
    """What cannot be compared at the end is named, and publishing does not count as complete."""
    spool, run = tmp_path / "spool", tmp_path / "run"
    writer, publisher = make_writer(spool), Publisher(spool, run)
    add_steps(writer, 0, 3)
    assert publisher.publish()
    writer.close("finished")
    target = paths.rank_folder(run, 0, 0) / paths.STEPS_FILE
    target.unlink()
    target.mkdir()
    assert not publisher.publish_last()
    assert [Path(name).name for name in publisher.problems] == [paths.STEPS_FILE]
    target.rmdir()
    assert publisher.publish_last()
    assert are_equal(writer.folder / paths.STEPS_FILE, target)
    publisher.remove_spool()


def test_a_document_that_changed_unseen_is_copied_at_the_end(tmp_path: Path) -> None:
    """A black box written within the clock tick of its last copy looks unchanged; its bytes are compared."""
    spool, run = tmp_path / "spool", tmp_path / "run"
    writer, publisher = make_writer(spool), Publisher(spool, run)
    add_steps(writer, 0, 3)
    writer.close("finished")
    assert publisher.publish()
    box = writer.folder / paths.BLACK_BOX_FILE
    status = box.stat()
    with box.open("r+b") as file:
        file.seek(300)
        file.write(b"later")
    os.utime(box, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert publisher.publish()
    target = paths.rank_folder(run, 0, 0) / paths.BLACK_BOX_FILE
    assert target.read_bytes() != box.read_bytes()
    assert publisher.publish_last()
    assert target.read_bytes() == box.read_bytes()
    publisher.remove_spool()


def test_the_open_segment_of_a_killed_rank_is_published(tmp_path: Path) -> None:
    """Its last calls stand in a segment that nobody closed; half a record at its end costs itself alone."""
    spool, run = tmp_path / "spool", tmp_path / "run"
    writer, publisher = make_writer(spool), Publisher(spool, run)
    writer.calls.next_step(0)
    add_steps(writer, 0, 3)
    (open_segment,) = (writer.folder / paths.CALLS_FOLDER).iterdir()
    assert open_segment.suffix == paths.OPEN_SEGMENT_SUFFIX
    with open_segment.open("ab") as file:
        file.write(b"half")
    assert publisher.publish()
    assert RankReader(paths.rank_folder(run, 0, 0)).new_calls() == []
    assert publisher.publish_last()
    reader = RankReader(paths.rank_folder(run, 0, 0))
    assert [call.step for call in reader.new_calls()] == [0, 1, 2]
    assert reader.take_problems() == []
    writer.enabled = False
    publisher.remove_spool()
    assert not spool.exists()


def test_files_of_earlier_attempts_are_not_kept_open(tmp_path: Path) -> None:
    """A job that restarts often keeps the files of its last attempt open alone, and misses no late word."""
    spool, run = tmp_path / "spool", tmp_path / "run"
    writers = [make_writer(spool, attempt) for attempt in range(3)]
    publisher = Publisher(spool, run)
    for writer in writers:
        add_steps(writer, 0, 2)
        writer.add_event("warning", "first")
        writer.flush()
    assert publisher.publish()
    # The writers have theirs open as well.
    assert [count_open(writer.folder / paths.STEPS_FILE) for writer in writers] == [1, 1, 2]
    writers[0].add_event("warning", "late")
    writers[0].flush()
    assert publisher.publish()
    events = RankReader(paths.rank_folder(run, 0, 0)).new_events()
    assert [event.message for event in events] == ["first", "late"]
    for writer in writers:
        writer.close("finished")
    publisher.remove_spool()
