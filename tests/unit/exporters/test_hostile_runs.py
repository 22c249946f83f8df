"""Run directories that somebody spoilt, by accident or on purpose: counted, bounded, and nobody else's loss."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from exporters import training_series as t
from exporters.render import TEXT, Renderer
from exporters.training import ThisNode, TrainingCollector
from scope.run import paths
from scope.run.naming import short_hash
from scope.run.reader import RankReader
from scope.run.schema import SCHEMA_VERSION

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from exporters.series import SeriesSet
    from scope.run.schema import RankInfo

S = 1_000_000_000
NOW = 1_700_000_000 * S


class Spoilt:
    """A run with one good rank, 0, and whatever a test puts beside it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "runs" / "job"
        self.problems: list[tuple[str, str]] = []
        self.folder.mkdir(parents=True)
        run = {"schema": SCHEMA_VERSION, "run_id": "job", "started_ns": NOW - 100 * S, "world_size": 2}
        (self.folder / paths.RUN_FILE).write_text(json.dumps(run))
        self.collector = TrainingCollector(
            (str(folder / "runs" / "*"),),
            lambda _collector, error, where: self.problems.append((error, where)),
            registry=folder / "registry",
            now_ns=lambda: NOW,
            node=ThisNode("node1", None, lambda _pid: 1),
        )
        self.rank(0)

    def rank(self, rank: int, lines: str = "", /, **changes: Any) -> Path:
        """Write a rank whose steps are two good ones and these lines."""
        folder = paths.rank_folder(self.folder, 0, rank)
        folder.mkdir(parents=True)
        info = {
            "schema": SCHEMA_VERSION, "run_id": "job", "attempt": 0, "rank": rank, "started_ns": NOW - 90 * S,
            "host": "node1", "pid": 1, "process_start_ticks": 1, "world_size": 2, **changes,
        }  # fmt: skip
        (folder / paths.RANK_FILE).write_text(json.dumps(info))
        (folder / paths.STEPS_FILE).write_text(step(0) + lines + step(2))
        return folder

    def read(self) -> SeriesSet:
        """Read once; what comes out can be parsed, no counter is negative, and the good rank is whole."""
        self.collector.read()
        series = self.collector.series()
        text = Renderer(TEXT).render(series)
        for family in text_string_to_metric_families(text):
            assert all(sample.value >= 0 for sample in family.samples if family.type == "counter"), family
        assert series.get(t.STEPS, (short_hash("job"), "0")) == 2
        return series


_HUGE = "9" * 4_000


@pytest.mark.parametrize(
    "changes",
    [
        {"rank": 0}, {"rank": -5}, {"rank": 10**400}, {"rank": 2**20}, {"attempt": 1}, {"attempt": 10**400},
        {"world_size": 2 * 10**9}, {"world_size": 2**40}, {"world_size": int(_HUGE)}, {"ended_ns": -(2**70)},
        {"ended_ns": 2**70}, {"schema": "1." + "9" * 5_000}, {"local_rank": int(_HUGE)},
    ],
    ids=lambda changes: str(list(changes)),
)  # fmt: skip
def test_who_a_rank_cannot_be_is_counted_and_no_label(spoilt: Spoilt, changes: dict[str, Any]) -> None:
    """A rank of another number than its folder's, or beyond any job, takes no other rank's place and shows nothing."""
    folder = spoilt.rank(1, **changes)
    series = spoilt.read()
    assert count_of(1, series) == 0
    assert max(len(value) for _, samples in series for labels in samples for value in labels) < 100
    assert {error for error, _ in spoilt.problems} == {"rank"}
    assert all(str(folder) in where for _, where in spoilt.problems)


def test_a_torn_line_costs_no_other_step(spoilt: Spoilt) -> None:
    """The steps before and behind torn lines count, and so does each torn line, once."""
    folder = spoilt.rank(1, "{torn\n" * 3)
    series = spoilt.read()
    assert series.get(t.STEPS, (short_hash("job"), "1")) == 2
    assert [error for error, _ in spoilt.problems] == ["steps"] * 3
    spoilt.read()
    assert len(spoilt.problems) == 3
    with (folder / paths.STEPS_FILE).open("a") as stream:
        stream.write("[]\n" * 400)
    spoilt.read()
    assert [error for error, _ in spoilt.problems] == ["steps"] * 403


def test_a_run_that_may_not_be_looked_into_ends_no_other(spoilt: Spoilt, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder whose owner has closed it is counted; the others are read."""
    closed = spoilt.folder.parent / "closed"
    closed.mkdir()

    def refuse(path: str) -> bool:
        if path == str(closed):
            raise PermissionError(13, "Permission denied", path)
        return True

    monkeypatch.setattr("exporters.training.is_run", refuse)
    spoilt.read()
    ((error, where),) = spoilt.problems
    assert error == "unreadable"
    assert str(closed) in where


def test_ranks_behind_a_link_are_not_read(spoilt: Spoilt, tmp_path: Path) -> None:
    """A link where a folder of ranks should be is counted once and not followed."""
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(spoilt.folder / "attempt-000" / "ranks", elsewhere)
    other = spoilt.folder.parent / "other"
    (other / "attempt-000").mkdir(parents=True)
    shutil.copy(spoilt.folder / paths.RUN_FILE, other)
    (other / "attempt-000" / "ranks").symlink_to(elsewhere)
    spoilt.read()
    spoilt.read()
    ((error, where),) = spoilt.problems
    assert error == "run"
    assert where == f"{other}/attempt-000/ranks: is a link, which is not followed"


def step(number: int, **changes: Any) -> str:
    """Return the line of a step of one second."""
    start = NOW - 80 * S + number * S
    line = {"kind": "step", "step": number, "start_ns": start, "end_ns": start + S, "phases": {"forward": S}}
    return json.dumps({**line, **changes}) + "\n"


@pytest.fixture
def spoilt(tmp_path: Path) -> Spoilt:
    """A run with one good rank."""
    return Spoilt(tmp_path)


def count_of(rank: int, series: SeriesSet) -> int:
    """Return how many series carry a rank."""
    return sum(
        1 for metric, samples in series for labels in samples if metric.labels[1] == "rank" and labels[1] == str(rank)
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"phases": {"forward": -5}},
        {"phases": {"forward": 2**63}},
        {"tokens": -5},
        {"tokens": 2**63},
        {"tokens": 10**400},
        {"step": -5},
        {"step": 2**70},
        {"end_ns": 2**70},
        {"mfu_ratio": -5},
        {"mfu_ratio": 1e300},
        {"memory": {"peak": {"resident_bytes": -7}}},
        {"memory": {"peak": {"resident_bytes": 10**400}}},
        {"phases": {str(number): 2**58 for number in range(40)}},
        {"input_bytes": 2**64},
        {"end_ns": 5},
        {"communication_wait_ns": -1},
        {"model_flop": 1e308},
        {"collectives": [{"group": 0, "operation": "all_reduce", "num_calls": -3, "in_bytes": 1, "out_bytes": 1}]},
        {"collectives": [{"group": 0, "operation": "all_reduce", "num_calls": 3, "in_bytes": 2**70, "out_bytes": 1}]},
    ],
    ids=lambda changes: str(list(changes)),
)
def test_a_step_that_cannot_be_is_refused_and_counted(spoilt: Spoilt, changes: dict[str, Any]) -> None:
    """A number below zero or beyond 64 bits costs its step; the rank's other two stay exact."""
    spoilt.rank(1, step(1, **changes))
    series = spoilt.read()
    assert series.get(t.STEPS, (short_hash("job"), "1")) == 2
    assert series.get(t.PHASE_SECONDS, (short_hash("job"), "1", "forward")) == 2
    ((error, where),) = spoilt.problems
    assert error == "steps"
    assert "line 2" in where


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity"])
def test_no_json_is_no_step(spoilt: Spoilt, value: str) -> None:
    """A figure that JSON does not have is a torn line, named with its number."""
    spoilt.rank(1, step(1).replace('"phases"', f'"mfu_ratio": {value}, "phases"'))
    spoilt.read()
    assert spoilt.problems[0][0] == "steps"
    assert "line 2" in spoilt.problems[0][1]


def test_labels_are_bounded(spoilt: Spoilt) -> None:
    """Hundreds of phases, operations, groups and axes make a few dozen series, and a page as a name is cut."""
    page = 'a"b\n\\é\t' * 500
    groups = [
        {"group": number, "name": str(number), "ranks": [1], "mesh_axis": f"{number}{page}"} for number in range(400)
    ]
    calls = [
        {"group": number, "operation": "all_reduce" if number % 2 else f"op{number}", "num_calls": 1, "in_bytes": 1,
         "out_bytes": 2}
        for number in range(400)
    ]  # fmt: skip
    phases = {f"{number}{page}": S // 400 for number in range(400)}
    spoilt.rank(1, step(1, collectives=calls, phases=phases), groups=groups, run_id=page)
    series = spoilt.read()
    assert 30 < count_of(1, series) < 200
    calls_seen = [value for metric, samples in series if metric == t.COLLECTIVE_CALLS for value in samples.values()]
    assert sum(calls_seen) == 400
    longest = max(len(value) for _, samples in series for labels in samples for value in labels)
    assert longest == t.MAX_LABEL


@pytest.mark.parametrize("name", [paths.STEPS_FILE, paths.BLACK_BOX_FILE, paths.RANK_FILE])
@pytest.mark.parametrize("kind", ["fifo", "link", "device", "folder", "noise", "deep"])
def test_what_is_no_file_of_ours_is_counted(spoilt: Spoilt, name: str, kind: str) -> None:
    """A FIFO does not block, a link is not followed, an endless device is not read, deep JSON breaks nothing."""
    path = spoilt.rank(1) / name
    path.unlink(missing_ok=True)
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "link":
        path.symlink_to("/etc/passwd")
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "folder":
        path.mkdir()
    elif kind == "noise":
        path.write_bytes(bytes(range(256)) * 40)
    else:
        path.write_text('{"a":' * 100_000 + "\n")
    spoilt.read()
    assert spoilt.problems
    assert str(path) in spoilt.problems[0][1]


def test_a_huge_sparse_file_costs_no_memory(spoilt: Spoilt) -> None:
    """Ten gigabytes of zeros are passed over a little at each reading, and counted once."""
    path = spoilt.rank(1) / paths.STEPS_FILE
    with path.open("wb") as stream:
        stream.truncate(10 << 30)
    for _ in range(3):
        spoilt.read()
    (problem,) = spoilt.problems
    assert "longer than" in problem[1]


def test_evidence_that_is_no_amount(spoilt: Spoilt) -> None:
    """A verdict with a negative wait is shown, its wait is not; one with an absurd number is counted."""
    with (spoilt.folder / paths.VERDICTS_FILE).open("w") as stream:
        for rank, wait in ((0, 10**400), (1, -5)):
            verdict = {
                "time_ns": NOW, "kind": "straggler" * 100, "severity": "warning", "ranks": [rank], "summary": "s",
                "evidence": {"imposed_wait_ns": wait},
            }  # fmt: skip
            stream.write(json.dumps(verdict) + "\n")
    series = spoilt.read()
    shown = [labels for metric, samples in series if metric == t.VERDICT for labels in samples]
    assert [labels[1] for labels in shown] == ["1"]
    assert [error for error, _ in spoilt.problems] == ["run"]
    for rank in ("0", "1"):
        assert series.get(t.IMPOSED_WAIT, (short_hash("job"), rank)) is None


@pytest.mark.parametrize("error", [ValueError, TypeError, RecursionError, MemoryError])
def test_a_run_that_breaks_its_reader_costs_itself_alone(
    spoilt: Spoilt, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    """An error that nobody foresaw is counted, and the thread goes on."""

    def fail(*_arguments: object, **_options: object) -> None:
        raise error

    monkeypatch.setattr("exporters.training.add_verdicts", fail)
    spoilt.collector.read()
    assert [kind for kind, _ in spoilt.problems] == ["invalid"]
    assert spoilt.collector.version() == 1


def test_the_thread_outlives_a_search_that_fails(spoilt: Spoilt, monkeypatch: pytest.MonkeyPatch) -> None:
    """A look for runs that fails as a whole is counted, no reading counts as fresh for it, and the next one comes."""
    fail = [True]
    search = spoilt.collector._scan

    def scan() -> None:
        if fail[0]:
            raise TypeError
        search()

    monkeypatch.setattr(spoilt.collector, "_scan", scan)
    monkeypatch.setattr("exporters.training._RESCAN_NS", 0)
    spoilt.collector.start(interval_s=0.001)
    until(lambda: len(spoilt.problems) > 2)
    assert {kind for kind, _ in spoilt.problems} == {"failed"}
    assert spoilt.collector.age_ns is None
    fail[0] = False
    until(lambda: spoilt.collector.age_ns is not None)
    spoilt.collector.stop()


def until(ready: Callable[[], bool]) -> None:
    """Wait for a condition; fail when it does not come true."""
    deadline = time.monotonic() + 60
    while not ready():
        assert time.monotonic() < deadline
        time.sleep(0.002)


@pytest.fixture
def in_memory(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory where there is one: thirty thousand files on a busy disk take a minute."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else tmp_path) as name:
        yield Path(name)


def test_ten_thousand_ranks_of_other_nodes(in_memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shared run directory of a large job costs a bounded look each time, and this node's ranks are all found."""
    looked: Counter[str] = Counter()
    read_info = RankReader.info

    def counted(reader: RankReader) -> RankInfo:
        looked[reader.folder.name] += 1
        return read_info(reader)

    monkeypatch.setattr(RankReader, "info", counted)
    spoilt = Spoilt(in_memory)
    ranks = spoilt.folder / "attempt-000" / "ranks"
    info = (ranks / "00000" / paths.RANK_FILE).read_text()
    for rank in range(1, 10_000):
        host = "node1" if rank in {4_999, 9_999} else f"other{rank // 8}"
        folder = ranks / f"{rank:05d}"
        folder.mkdir()
        changed = info.replace('"rank": 0', f'"rank": {rank}').replace('"node1"', f'"{host}"')
        (folder / paths.RANK_FILE).write_text(changed)
        (folder / paths.STEPS_FILE).symlink_to(ranks / "00000" / paths.STEPS_FILE)
    for rank in (4_999, 9_999):
        (ranks / f"{rank:05d}" / paths.STEPS_FILE).unlink()
        (ranks / f"{rank:05d}" / paths.STEPS_FILE).write_text(step(0))
    each: list[int] = []
    for _ in range(10):
        before = len(looked)
        spoilt.read()
        each.append(len(looked) - before)
    # Which ranks are this node's is looked for a thousand at a time, and once; its own are read on.
    assert max(each) <= 1_024
    assert len(looked) == 10_000
    series = spoilt.read()
    own = {"00000", "04999", "09999"}
    assert {name for name, times in looked.items() if times > 1} == own
    assert {number: series.get(t.STEPS, (short_hash("job"), str(number))) for number in (1, 4_999, 9_999)} == {
        1: None, 4_999: 1, 9_999: 1
    }  # fmt: skip
    # The steps of other nodes' ranks, which are links here, were not even looked at.
    assert spoilt.problems == []
    assert len(series) < 200


def test_more_ranks_of_this_node_than_are_shown(spoilt: Spoilt) -> None:
    """Beyond the cap each is counted, and those that are shown stay."""
    for rank in range(1, 300):
        folder = paths.rank_folder(spoilt.folder, 0, rank)
        folder.mkdir(parents=True)
        (folder / paths.RANK_FILE).write_text(
            (paths.rank_folder(spoilt.folder, 0, 0) / paths.RANK_FILE)
            .read_text()
            .replace('"rank": 0', f'"rank": {rank}')
        )
    spoilt.read()
    series = spoilt.read()
    assert count_of(255, series) > 0
    assert count_of(256, series) == 0
    assert [error for error, _ in spoilt.problems] == ["too_many_ranks"] * 44


@pytest.mark.parametrize("jump_s", [-86_400, -60, 60, 86_400], ids=str)
def test_a_clock_that_is_set(spoilt: Spoilt, monkeypatch: pytest.MonkeyPatch, jump_s: int) -> None:
    """Forwards or backwards: counters stay, ages are never negative, new runs are found, the collector stays up."""
    now = [NOW]
    clock = [10**12]
    monkeypatch.setattr(spoilt.collector, "_now_ns", lambda: now[0])
    monkeypatch.setattr(spoilt.collector, "_clock_ns", lambda: clock[0])
    before = spoilt.read()
    now[0] += jump_s * S
    clock[0] += 6 * S
    other = spoilt.folder.parent / "other"
    shutil.copytree(spoilt.folder, other)
    for path in (other / paths.RUN_FILE, paths.rank_folder(other, 0, 0) / paths.RANK_FILE):
        path.write_text(path.read_text().replace('"job"', '"other"'))
    after = spoilt.read()
    assert after.get(t.STEPS, (short_hash("other"), "0")) == 2
    for metric, samples in before:
        for labels, value in samples.items():
            if metric.kind == "counter":
                assert after.get(metric, labels) == value
    for metric, samples in after:
        if metric.name.endswith(("_age_seconds", "_phase_seconds", "_ratio")):
            assert all(value >= 0 for value in samples.values()), metric.name
    assert spoilt.collector.age_ns == 0
