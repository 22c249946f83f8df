"""Run directories of somebody who means harm: numbers beyond reason, links that lead out, ranks that are others."""

from __future__ import annotations

import json
import os
import re
import shutil
import tracemalloc
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zlib import crc32

import msgspec
import pytest

from scope.errors import InputError, RunError
from scope.frames import open_run
from scope.frames.schema import Calls, Ranks, RankSteps
from scope.report.windows import choose_traces
from scope.run import layout, lines, paths, schema
from scope.run.calls import CallLog, CallShape, pack_segment_header
from scope.run.lines import MAX_LINE_BYTES
from scope.run.listing import list_runs
from scope.run.reader import CAPTURE_SUFFIX, RankReader, RunReader, check_version, read_run_info
from scope.run.schema import StepRecord

if TYPE_CHECKING:
    from collections.abc import Iterator

RECORDS = (
    schema.RunInfo, schema.RankInfo, schema.StepRecord, schema.StepSummary, schema.EventRecord, schema.CaptureInfo,
    schema.Verdict,
)  # fmt: skip


def whole_numbers(kind: msgspec.inspect.Type, where: str) -> Iterator[tuple[str, msgspec.inspect.IntType]]:
    """Yield every whole number that a type is made of."""
    if isinstance(kind, msgspec.inspect.IntType):
        yield where, kind
    elif isinstance(kind, msgspec.inspect.StructType):
        for field in kind.fields:
            yield from whole_numbers(field.type, f"{where}.{field.name}")
    elif isinstance(kind, msgspec.inspect.UnionType):
        for each in kind.types:
            yield from whole_numbers(each, where)
    elif isinstance(kind, msgspec.inspect.DictType):
        yield from whole_numbers(kind.value_type, f"{where}[]")
    elif isinstance(kind, msgspec.inspect.ListType | msgspec.inspect.VarTupleType):
        yield from whole_numbers(kind.item_type, f"{where}[]")


def make_run(folder: Path, *, ranks: int = 1, **changes: Any) -> Path:
    """Write a run of ranks with two steps each."""
    folder.mkdir(parents=True)
    (folder / paths.RUN_FILE).write_text(json.dumps({"schema": "1.0", "run_id": "r", "started_ns": 1}))
    for rank in range(ranks):
        place = paths.rank_folder(folder, 0, rank)
        place.mkdir(parents=True)
        info = {"schema": "1.0", "run_id": "r", "attempt": 0, "rank": rank, "started_ns": 1, "host": "h", "pid": 1}
        (place / paths.RANK_FILE).write_text(json.dumps(info | changes))
        (place / paths.STEPS_FILE).write_text(make_line(0) + make_line(1))
    return folder


def make_line(step: int, /, **changes: Any) -> str:
    """Return the line of a step of a hundred nanoseconds."""
    line = {"kind": "step", "step": step, "start_ns": step * 100, "end_ns": step * 100 + 100, "phases": {"other": 100}}
    return json.dumps(line | changes) + "\n"


def test_every_whole_number_of_a_record_has_a_range_of_64_bits() -> None:
    """No field was forgotten: each says its least and its largest value, which a 64-bit column holds."""
    seen = 0
    for record in RECORDS:
        for where, number in whole_numbers(msgspec.inspect.type_info(record), record.__name__):
            least = number.ge if number.ge is not None else number.gt
            largest = number.le if number.le is not None else number.lt
            assert least is not None, where
            assert largest is not None, where
            assert -(2**63) <= least <= largest < 2**63, where
            seen += 1
    assert seen > 100


@pytest.mark.parametrize(
    "changes",
    [
        {"end_ns": -(2**70)}, {"end_ns": 2**70}, {"end_ns": 5}, {"step": 2**70}, {"step": -1}, {"mfu_ratio": -5},
        {"memory": {"peak": {"resident_bytes": 10**400}}}, {"memory": {"peak": {"resident_bytes": -7}}},
        {"phases": {str(number): 2**58 for number in range(40)}},
        {"device_ns": dict.fromkeys("abcdefghijklmnopq", 2**58)},
    ],
    ids=lambda changes: str(list(changes)),
)  # fmt: skip
def test_a_step_that_cannot_be_costs_itself_alone(tmp_path: Path, changes: dict[str, Any]) -> None:
    """The steps beside it are in the frame, and its line is named."""
    run = make_run(tmp_path / "run")
    with (paths.rank_folder(run, 0, 0) / paths.STEPS_FILE).open("a") as stream:
        stream.write(make_line(2, **{"start_ns": 10, **changes}) + make_line(3))
    opened = open_run(run)
    assert opened.steps()[RankSteps.step].to_list() == [0, 1, 3]
    (problem,) = opened.problems
    assert "steps.jsonl: is torn or foreign: line 3:" in problem


def test_a_bad_verdict_hides_no_other(tmp_path: Path) -> None:
    """Torn lines and ranks of four thousand digits are named; the verdict behind them is given."""
    run = make_run(tmp_path / "run")
    good = {"time_ns": 1, "kind": "hang", "severity": "critical", "summary": "it hangs", "ranks": [0]}
    bad = json.dumps(good).replace("[0]", "[" + "9" * 4_000 + "]")
    (run / paths.VERDICTS_FILE).write_text("{torn\n" + bad + "\n" + json.dumps(good) + "\n")
    opened = open_run(run)
    assert [verdict.summary for verdict in opened.verdicts()] == ["it hangs"]
    (problem,) = opened.problems
    assert "line 1:" in problem
    assert "line 2:" in problem
    assert len(problem) < 1_000


@pytest.mark.parametrize("version", ["1." + "9" * 5_000, "9" * 5_000 + ".0", "1.0.0", "1.٣"])
def test_a_version_beyond_reason_is_a_short_error(tmp_path: Path, version: str) -> None:
    """No conversion fails, and the message does not repeat it whole."""
    with pytest.raises(RunError) as caught:
        check_version(version, tmp_path)
    assert len(str(caught.value)) < 300


def test_a_run_of_no_version_hides_no_other(tmp_path: Path) -> None:
    """The list has the good run, and says what is wrong with the other."""
    make_run(tmp_path / "good")
    bad = make_run(tmp_path / "bad")
    (bad / paths.RUN_FILE).write_text(json.dumps({"schema": "1." + "9" * 5_000, "run_id": "r", "started_ns": 1}))
    entries, problems = list_runs(tmp_path)
    assert [entry.path.name for entry in entries] == ["good"]
    assert [str(bad) in problem for problem in problems] == [True]


def test_a_folder_that_is_closed_to_us_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without access to it, whether it is a run cannot be told; the others are listed."""
    make_run(tmp_path / "good")
    (tmp_path / "closed").mkdir()
    monkeypatch.setattr(os, "access", lambda path, _mode: not str(path).endswith("closed"))
    entries, problems = list_runs(tmp_path)
    assert [entry.path.name for entry in entries] == ["good"]
    assert ["closed/run.json: cannot be opened" in problem for problem in problems] == [True]


@pytest.mark.parametrize("changes", [{"rank": 0}, {"attempt": 3, "rank": 1}])
def test_a_rank_in_the_folder_of_another_replaces_nobody(tmp_path: Path, changes: dict[str, int]) -> None:
    """`rank.json` that tells of another rank than its folder is refused and named; the real one keeps its figures."""
    run = make_run(tmp_path / "run", ranks=2)
    path = paths.rank_folder(run, 0, 1) / paths.RANK_FILE
    path.write_text(json.dumps(json.loads(path.read_text()) | changes | {"host": "liar"}))
    opened = open_run(run)
    assert opened.ranks.select(Ranks.rank, Ranks.host).rows() == [(0, "h")]
    assert opened.steps().height == 2
    assert [str(path) in problem for problem in opened.problems] == [True]


def test_no_link_inside_a_run_is_followed(tmp_path: Path) -> None:
    """Folders of ranks, of one rank, of calls and of traces and a trace itself that are links are refused and named."""
    good = make_run(tmp_path / "good", ranks=2)
    run = make_run(tmp_path / "run")
    outside = good / "attempt-000"
    (run / "attempt-001").mkdir()
    (run / "attempt-001" / "ranks").symlink_to(outside / "ranks")
    (run / "attempt-002").symlink_to(outside)
    (run / "attempt-000" / "ranks" / "00001").symlink_to(outside / "ranks" / "00001")
    reader = RunReader(run)
    assert [[rank.folder.name for rank in reader.ranks(attempt)] for attempt in (0, 1, 2)] == [["00000"], [], []]
    assert [problem.removeprefix(f"{run}/") for problem in reader.take_problems()] == [
        f"{where}: is a link, which is not followed"
        for where in ("attempt-000/ranks/00001", "attempt-001/ranks", "attempt-002")
    ]
    assert reader.take_problems() == []


@pytest.mark.parametrize("linked", ["traces", "calls", "trace"])
def test_no_link_inside_a_rank_is_followed(tmp_path: Path, linked: str) -> None:
    """Where traces or calls lie elsewhere, they are refused."""
    run = make_run(tmp_path / "run")
    folder = paths.rank_folder(run, 0, 0)
    outside = tmp_path / "outside"
    outside.mkdir()
    capture = {"trace": "x.json", "rank": 0, "first_step": 3, "num_steps": 2, "start_ns": 1, "end_ns": 2,
               "reason": "user", "cost_ns": 4}  # fmt: skip
    (outside / "x.capture.json").write_text(json.dumps(capture))
    (outside / "x.json").write_text("{}")
    if linked == "trace":
        shutil.copytree(outside, folder / "traces")
        (folder / "traces" / "x.json").unlink()
        (folder / "traces" / "x.json").symlink_to(outside / "x.json")
    else:
        (folder / linked).symlink_to(outside)
    reader = RankReader(folder)
    if linked == "trace":
        assert reader.traces() == []
        (problem,) = reader.take_problems()
        assert "is a link" in problem
        return
    with pytest.raises(RunError, match="is a link"):
        _ = reader.new_calls() if linked == "calls" else reader.traces()


def test_a_world_beyond_reason_is_no_world(tmp_path: Path) -> None:
    """A run of a million million ranks is an error before anything is counted up to it."""
    run = make_run(tmp_path / "run", world_size=2**40)
    assert open_run(run).ranks.is_empty()
    (run / paths.RUN_FILE).write_text(
        '{"schema": "1.0", "run_id": "r", "started_ns": 1, "world_size": ' + "9" * 4_000 + "}"
    )
    with pytest.raises(RunError, match=r"run\.json: is torn or foreign"):
        read_run_info(run)


def test_what_a_recorder_writes_is_within_the_ranges() -> None:
    """The largest figures of a long run of a large job are read back: nine years, an exbibyte, a million ranks."""
    step = StepRecord(step=2**40, start_ns=1, end_ns=2**62, phases={"other": 2**57}, recorder_ns=-5, input_bytes=2**60)
    assert msgspec.json.decode(msgspec.json.encode(step), type=StepRecord) == step


def test_a_call_that_cannot_be_costs_its_segment_alone(tmp_path: Path) -> None:
    """A forged record of 2**64 - 1 bytes is named; the calls of the segment behind it are read."""
    run = make_run(tmp_path / "run")
    folder = paths.rank_folder(run, 0, 0) / paths.CALLS_FOLDER
    folder.mkdir()
    header = pack_segment_header(rank=0, attempt=0, wall_offset_ns=0, first_step=0)
    for name, in_bytes in (("000001-0.bin", 2**64 - 1), ("000002-0.bin", 64)):
        call = CallLog(None).issue(CallShape(0, 1, 0, 1, in_bytes, 64), 0, 500)
        call.sequence = 7
        (folder / name).write_bytes(header + call.pack())
    opened = open_run(run)
    assert opened.collectives().select(Calls.sequence, Calls.in_bytes).rows() == [(7, 64)]
    (problem,) = opened.problems
    assert problem.endswith("000001-0.bin: the record at byte 64 holds numbers that cannot be")


@pytest.mark.parametrize(("rank", "beat_ns", "world"), [(5, 1, 2), (0, 2**63 - 1, 2), (0, 1, 2**31)])
def test_a_black_box_that_cannot_be_is_named(tmp_path: Path, rank: int, beat_ns: int, world: int) -> None:
    """A forged black box, of another rank, of the year 2500 or of a world beyond reason, is left out."""
    run = make_run(tmp_path / "run")
    content = bytearray(layout.BLACK_BOX_BYTES)
    identity = layout.IDENTITY.pack(
        layout.BLACK_BOX_MAGIC, 1, 0, rank, 0, world, 1, 0, 10**18, layout.NUM_RING_RECORDS, layout.RING_RECORD_BYTES
    )
    state = layout.STATE.pack(1, 1, 1, 1, beat_ns, 1, 0, b"forward")
    content[: len(identity)] = identity
    layout.CRC.pack_into(content, len(identity), crc32(identity))
    layout.CRC.pack_into(content, layout.STATE_OFFSET, crc32(state))
    content[layout.STATE_OFFSET + layout.CRC.size : layout.STATE_OFFSET + layout.CRC.size + len(state)] = state
    path = paths.rank_folder(run, 0, 0) / paths.BLACK_BOX_FILE
    path.write_bytes(content)
    opened = open_run(run)
    assert opened.black_boxes() == {}
    assert [problem.startswith(f"{path}: ") and "torn" not in problem for problem in opened.problems] == [True]


@pytest.mark.parametrize("piece", [None, 64 << 10])
def test_a_line_beyond_reason_costs_itself_alone(tmp_path: Path, piece: int | None) -> None:
    """Steps before and after it are read, it is named once, its end may come later, and nobody holds it in memory."""
    rank = paths.rank_folder(make_run(tmp_path / "r"), 0, 0)
    reader = RankReader(rank)

    def read() -> list[int]:
        steps: list[int] = []
        while lines := reader.new_steps(max_bytes=piece):
            steps += [line.step for line in lines if isinstance(line, StepRecord)]
        return steps

    assert read() == [0, 1]
    tracemalloc.start()
    with (rank / paths.STEPS_FILE).open("ab") as stream:
        for _ in range(3):
            stream.write(b"x" * MAX_LINE_BYTES)
        stream.flush()
        assert read() == []
        stream.write(b"}\n" + make_line(2).encode())
        stream.flush()
        assert read() == [2]
        stream.write(make_line(3).encode())
    largest = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert read() == [3]
    assert largest < 3 * MAX_LINE_BYTES
    (problem,) = reader.take_problems()
    assert f"{paths.STEPS_FILE}: is torn or foreign: line 3: is longer than {MAX_LINE_BYTES} bytes" in problem
    again = RankReader(rank)
    assert again.resume_steps(reader.steps_place)
    assert again.new_steps() == []


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return how many bytes each reading of a file has given, as they come."""
    sizes: list[int] = []
    pread = os.pread

    def counted(descriptor: int, size: int, offset: int) -> bytes:
        content = pread(descriptor, size, offset)
        sizes.append(len(content))
        return content

    monkeypatch.setattr(os, "pread", counted)
    return sizes


def test_a_line_without_an_end_is_passed_over_in_bounded_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, taken: list[int]
) -> None:
    """Each look passes over 20 MiB at most, beside the 20 in which the line is seen to be too long, and says so once.

    What stands behind it comes at a later look.
    """
    monkeypatch.setattr(lines, "_MOST_SKIPPED_BYTES", 20 * 2**20)
    rank = paths.rank_folder(make_run(tmp_path / "r"), 0, 0)
    reader = RankReader(rank)
    with (rank / paths.STEPS_FILE).open("ab") as stream:
        stream.write(b"x" * (70 * 2**20) + b"\n" + make_line(2).encode())
    looks: list[list[int]] = []
    for _ in range(3):
        taken.clear()
        looks.append([line.step for line in reader.new_steps() if isinstance(line, StepRecord)])
        assert sum(taken) < 45 * 2**20
    assert looks == [[0, 1], [], [2]]
    (problem,) = reader.take_problems()
    assert re.search(r"line 3: is longer than \d+ bytes; the lines behind it are left for a later look$", problem)


def test_a_hole_is_passed_over_unread(tmp_path: Path, taken: list[int]) -> None:
    """One look at a file with a hole of 600 MiB finds the steps on both sides of it, and another what comes later."""
    rank = paths.rank_folder(make_run(tmp_path / "r"), 0, 0)
    reader = RankReader(rank)
    place = rank / paths.STEPS_FILE
    for step in (2, 3):
        os.truncate(place, place.stat().st_size + 600 * 2**20)
        if step == 3:
            assert [line.step for line in reader.new_steps() if isinstance(line, StepRecord)] == [0, 1, 2]
        with place.open("ab") as stream:
            stream.write(b"\n" + make_line(step).encode())
    assert [line.step for line in reader.new_steps() if isinstance(line, StepRecord)] == [3]
    assert sum(taken) < 100 * 2**20
    said = [problem.partition("foreign: ")[2] for problem in reader.take_problems()]
    assert said == [
        f"line {number}: is longer than {MAX_LINE_BYTES} bytes; the other lines are read" for number in (3, 5)
    ]


def test_a_file_cut_within_a_line_beyond_reason_is_read_on(tmp_path: Path) -> None:
    """What was passed over is no more; what stands there now is."""
    rank = paths.rank_folder(make_run(tmp_path / "r"), 0, 0)
    reader = RankReader(rank)
    place = rank / paths.STEPS_FILE
    size = place.stat().st_size
    with place.open("ab") as stream:
        stream.write(b"x" * (MAX_LINE_BYTES + 5))
    assert len(reader.new_steps()) == 2
    assert reader.new_steps() == []
    os.truncate(place, size)
    with place.open("ab") as stream:
        stream.write(make_line(2).encode())
    assert [line.step for line in reader.new_steps() if isinstance(line, StepRecord)] == [2]
    assert len(reader.take_problems()) == 1


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"{", "is torn or foreign"),
        (b"\xff\xfe", "is torn or foreign"),
        (json.dumps({"trace": "../steps.jsonl"}).encode(), "names a trace outside its folder"),
        (json.dumps({"trace": "link.json"}).encode(), "is a link, which is not followed"),
    ],
)
def test_a_torn_window_hides_no_other(tmp_path: Path, content: bytes, said: str) -> None:
    """Of three windows of a rank the one that cannot be read is named, the others are there, before it and after."""
    run = make_run(tmp_path / "r")
    folder = paths.rank_folder(run, 0, 0) / paths.TRACES_FOLDER
    folder.mkdir()
    (folder / "link.json").symlink_to("/etc/hostname")
    capture = {
        "reason": "trigger_file", "rank": 0, "first_step": 1, "num_steps": 2, "start_ns": 1, "end_ns": 2, "cost_ns": 3,
    }  # fmt: skip
    for name in ("a", "b", "c"):
        (folder / f"{name}.json").write_text("{}")
        described = json.dumps(capture | {"trace": f"{name}.json"}).encode()
        if name == "b":
            described = json.dumps(capture | json.loads(content)).encode() if content[-1:] == b"}" else content
        (folder / f"{name}{CAPTURE_SUFFIX}").write_bytes(described)
    reader = RankReader(paths.rank_folder(run, 0, 0))
    assert [trace.path.name for trace in reader.traces()] == ["a.json", "c.json"]
    (problem,) = reader.take_problems()
    assert said in problem
    opened = open_run(run)
    assert opened.traces().height == 2
    assert any(said in problem for problem in opened.problems)
    chosen, sentences = choose_traces([str(run)])
    assert [Path(each).name for each in chosen] == ["c.json"]
    assert any(said in sentence and sentence.endswith("the other windows are read") for sentence in sentences)
    (folder / f"a{CAPTURE_SUFFIX}").unlink()
    (folder / f"c{CAPTURE_SUFFIX}").unlink()
    with pytest.raises(InputError, match="none of its profiler windows can be read"):
        choose_traces([str(run)])
