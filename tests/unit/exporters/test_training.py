"""Run directories as series: sums, goodput, restarts, ends, hostile files."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import polars as pl
import pytest

from exporters import training_series as t
from exporters.jobs import Job, parse_cgroup
from exporters.rank_totals import MAX_OWN_PHASES, RankTotals
from exporters.training import LINGER_NS, ThisNode, TrainingCollector
from scope.analysis.recorded import compute_kept
from scope.frames import columns
from scope.frames.schema import RankSteps
from scope.run import layout, paths
from scope.run.blackbox import BlackBox, BlackBoxIdentity
from scope.run.folding import summarize_steps
from scope.run.naming import short_hash
from scope.run.schema import (
    SCHEMA_VERSION,
    CollectiveTotal,
    GroupInfo,
    MemoryPeak,
    MemoryRecord,
    RankInfo,
    RunInfo,
    StepRecord,
    StepSummary,
    Verdict,
)

if TYPE_CHECKING:
    from exporters.series import SeriesSet
    from scope.run.schema import StepLine

S = 1_000_000_000
BEGAN = 1_700_000_000 * S
HOST = "node1"
RUN = short_hash("job")


class World:
    """A run directory below a folder, and a collector with a clock that the test moves."""

    def __init__(self, folder: Path) -> None:
        self.run = folder / "runs" / "job"
        self.now_ns = BEGAN + 100 * S
        self.problems: list[tuple[str, str]] = []
        self.processes: dict[int, int] = {}
        self.run.mkdir(parents=True)
        info = RunInfo(schema=SCHEMA_VERSION, run_id="job", started_ns=BEGAN, world_size=2)
        (self.run / paths.RUN_FILE).write_bytes(msgspec.json.encode(info))
        self.collector = self.new_collector()

    def new_collector(self) -> TrainingCollector:
        """A collector as an exporter that starts now has it."""
        return TrainingCollector(
            (str(self.run.parent / "*"),),
            lambda _collector, error, where: self.problems.append((error, where)),
            registry=self.run.parents[1] / "registry",
            now_ns=lambda: self.now_ns,
            node=ThisNode(HOST, None, lambda pid: self.processes.get(pid)),
        )

    def rank(self, rank: int, attempt: int = 0, **changes: object) -> Path:
        """Write a rank's info and return its folder."""
        folder = paths.rank_folder(self.run, attempt, rank)
        folder.mkdir(parents=True, exist_ok=True)
        groups = (
            GroupInfo(group=0, name="0", ranks=(0, 1)),
            GroupInfo(group=1, name="1", ranks=(0,), mesh_axis="tp"),
            GroupInfo(group=2, name="2", ranks=(0,)),
        )
        info = RankInfo(
            schema=SCHEMA_VERSION, run_id="job", attempt=attempt, rank=rank, started_ns=BEGAN, host=HOST, pid=1,
            world_size=2, groups=groups,
        )  # fmt: skip
        (folder / paths.RANK_FILE).write_bytes(msgspec.json.encode(msgspec.structs.replace(info, **changes)))
        return folder

    def read(self) -> SeriesSet:
        """Read once and return the series."""
        self.collector.read()
        return self.collector.series()


def step(number: int, *, length_s: int = 2, **changes: object) -> StepRecord:
    """Return a step; its number tells when it was."""
    start = BEGAN + 10 * S + number * 2 * S
    record = StepRecord(
        step=number,
        start_ns=start,
        end_ns=start + length_s * S,
        phases={"forward": S // 2, "backward": length_s * S - S // 2},
        communication_wait_ns=S // 4,
        tokens=1_000,
        collectives=(
            CollectiveTotal(
                group=0, operation="all_reduce", num_calls=3, in_bytes=300, out_bytes=300, num_timed=3, duration_ns=S
            ),
            CollectiveTotal(group=1, operation="all_gather", num_calls=1, in_bytes=10, out_bytes=20),
        ),
        memory=MemoryRecord(peak=MemoryPeak(allocated_bytes=100 + number)),
        mfu_ratio=0.4,
    )
    return msgspec.structs.replace(record, **changes)


def append(folder: Path, *lines: object) -> None:
    """Append records to a rank's steps."""
    with (folder / paths.STEPS_FILE).open("ab") as stream:
        for line in lines:
            stream.write(msgspec.json.encode(line) + b"\n")


@pytest.fixture
def world(tmp_path: Path) -> World:
    """A run of one rank without steps."""
    return World(tmp_path)


def test_sums_of_steps(world: World) -> None:
    """Counters are the sums of the steps, and phases sum to the steps exactly."""
    append(world.rank(0), step(0), step(1, length_s=4))
    series = world.read()
    labels = (RUN, "0")
    assert series.get(t.STEPS, labels) == 2
    assert series.get(t.STEP_SECONDS, labels) == 6.0
    assert series.get(t.PHASE_SECONDS, (*labels, "forward")) == 1.0
    assert series.get(t.PHASE_SECONDS, (*labels, "backward")) == 5.0
    assert series.get(t.WAIT_SECONDS, labels) == 0.5
    assert series.get(t.TOKENS, labels) == 2_000
    assert series.get(t.STEP_MEDIAN, labels) == 2.0  # of two in the middle the lower
    assert series.get(t.MFU, labels) == 0.4
    assert series.get(t.MEMORY_PEAK, (*labels, "allocated")) == 101
    assert series.get(t.LAST_STEP, labels) == (BEGAN + 16 * S) / S
    assert series.get(t.COLLECTIVE_BYTES, (*labels, "all_reduce", "world")) == 600
    assert series.get(t.COLLECTIVE_SECONDS, (*labels, "all_reduce", "world")) == 2.0
    assert series.get(t.COLLECTIVE_OUT, (*labels, "all_gather", "tp")) == 40
    assert series.get(t.COLLECTIVE_SECONDS, (*labels, "all_gather", "tp")) is None
    assert series.get(t.COLLECTIVE_BLOCKED, (*labels, "all_reduce", "world")) is None


def test_control_traffic_is_counted_apart(world: World) -> None:
    """All-gathers of 1 MB and of an object's 70 bytes are told apart in steps and in what they are folded into."""
    data = CollectiveTotal(group=0, operation="all_gather", num_calls=2, in_bytes=1_000_000, out_bytes=2_000_000)
    control = CollectiveTotal(
        group=0, operation="all_gather", num_calls=3, in_bytes=70, out_bytes=140, num_blocked_known=3,
        blocked_ns=S // 2, control=True,
    )  # fmt: skip
    folder = world.rank(0)
    steps = [step(number, collectives=(data, control)) for number in range(4)]
    append(folder, *steps)
    labels = (RUN, "0", "all_gather", "world")
    for _ in range(2):
        series = world.read()
        assert series.get(t.COLLECTIVE_CALLS, labels) == 8
        assert series.get(t.COLLECTIVE_BYTES, labels) == 4_000_000
        assert series.get(t.COLLECTIVE_OUT, labels) == 8_000_000
        assert series.get(t.COLLECTIVE_BLOCKED, labels) is None
        assert series.get(t.CONTROL_CALLS, labels) == 12
        assert series.get(t.CONTROL_BYTES, labels) == 280
        assert series.get(t.CONTROL_BLOCKED, labels) == 2.0
        fold(folder, steps, 3)


def test_new_lines_are_added_and_a_half_one_waits(world: World) -> None:
    """A line that is being written counts once it is whole."""
    folder = world.rank(0)
    append(folder, step(0))
    world.read()
    whole = msgspec.json.encode(step(1)) + b"\n"
    with (folder / paths.STEPS_FILE).open("ab") as stream:
        stream.write(whole[:20])
    assert world.read().get(t.STEPS, (RUN, "0")) == 1
    with (folder / paths.STEPS_FILE).open("ab") as stream:
        stream.write(whole[20:])
    assert world.read().get(t.STEPS, (RUN, "0")) == 2
    assert world.problems == []


@pytest.mark.parametrize("starts_again", [False, True])
def test_folded_steps_keep_every_counter(world: World, starts_again: bool) -> None:
    """When old steps are folded into a summary, no counter moves, even if the exporter starts again after that."""
    folder = world.rank(0)
    known = {"model_flop": 2.0, "input_bytes": 8, "gc_ns": S // 4, "recorder_ns": S // 8, "num_dropped": 1}
    waits = [{"backward": S // 8, "mine": S // 16}, {"backward": S // 4}, None]
    steps = [step(number, communication_wait_phases=waits[number % 3], **known) for number in range(6)]
    append(folder, *steps)
    before = dict(list(world.read()))
    assert before[t.PHASE_WAIT_SECONDS] == {(RUN, "0", "backward"): 0.75, (RUN, "0", "custom"): 0.125}
    fold(folder, steps, 4)
    if starts_again:
        world.collector = world.new_collector()
    after = dict(list(world.read()))
    for metric in before:
        if metric.kind == "counter":
            assert after[metric] == before[metric], metric.name


def fold(folder: Path, steps: list[StepRecord], num_folded: int) -> None:
    """Replace a rank's steps by a summary of the first ones and the others."""
    fresh = folder / "fresh"
    lines = [msgspec.json.encode(line) for line in (summarize_steps(steps[:num_folded]), *steps[num_folded:])]
    fresh.write_bytes(b"\n".join(lines) + b"\n")
    fresh.replace(folder / paths.STEPS_FILE)


def test_no_counter_falls_when_steps_are_folded_again_and_again(world: World) -> None:
    """Not even one that a summary cannot tell, because some of its steps did not know it (tokens, by hand)."""
    folder = world.rank(0)
    steps = [
        step(number, tokens=None if number == 1 else 1_000, num_dropped=number, recorder_ns=S // 100, gc_ns=S // 50)
        for number in range(12)
    ]
    last: dict[tuple[str, tuple[str, ...]], float] = {}

    def check() -> None:
        now = {
            (metric.name, labels): value
            for metric, samples in world.read()
            for labels, value in samples.items()
            if metric.kind == "counter"
        }
        assert {key: (last[key], now.get(key)) for key in last if now.get(key, -1) < last[key]} == {}
        last.update(now)

    for known in range(0, 10, 2):
        append(folder, *steps[known : known + 2])
        check()
        fold(folder, steps[: known + 2], known + 1)
        check()
    series = world.read()
    assert series.get(t.STEPS, (RUN, "0")) == 10
    assert series.get(t.TOKENS, (RUN, "0")) == 9_000
    assert series.get(t.DROPPED, (RUN, "0")) == sum(range(10))
    assert series.get(t.RECORDER_SECONDS, (RUN, "0")) == 0.1
    assert world.problems == []


def test_steps_that_are_folded_before_they_are_read(world: World) -> None:
    """A summary of steps some of which are new cannot be split: all is added anew, and exact."""
    folder = world.rank(0)
    steps = [step(number) for number in range(8)]
    append(folder, *steps[:2])
    assert world.read().get(t.STEPS, (RUN, "0")) == 2
    fold(folder, steps, 5)
    series = world.read()
    assert series.get(t.STEPS, (RUN, "0")) == 8
    assert series.get(t.STEP_SECONDS, (RUN, "0")) == 16
    assert series.get(t.TOKENS, (RUN, "0")) == 8_000


def test_series_leave_fifteen_minutes_after_the_end(world: World) -> None:
    """Until then they stay, marked as not active."""
    folder = world.rank(0, ended_ns=BEGAN + 50 * S, exit_reason="finished")
    append(folder, step(0))
    assert world.read().get(t.ACTIVE, (RUN, "0")) == 0
    world.now_ns = BEGAN + 50 * S + LINGER_NS
    assert world.read().get(t.ACTIVE, (RUN, "0")) == 0
    world.now_ns += 1
    assert len(world.read()) == 0


def test_a_rank_that_was_killed_ends_with_its_last_sign_of_life(world: World) -> None:
    """Silent for five minutes: ended if its process is gone, or its id reused; running if it is only stopped."""
    append(world.rank(0, pid=7, process_start_ticks=99), step(0))
    world.now_ns = BEGAN + 12 * S + 299 * S
    assert world.read().get(t.ACTIVE, (RUN, "0")) == 1
    world.now_ns += 2 * S
    world.processes = {7: 99}
    assert world.read().get(t.ACTIVE, (RUN, "0")) == 1
    world.processes = {7: 100}
    assert world.read().get(t.ACTIVE, (RUN, "0")) == 0
    world.now_ns = BEGAN + 12 * S + LINGER_NS + 1
    assert len(world.read()) == 0


def test_a_new_attempt_begins_anew(world: World) -> None:
    """Counters restart with the attempt; goodput counts what the earlier one kept."""
    append(world.rank(0), step(0), step(1), step(2))
    world.read()
    append(world.rank(0, attempt=1), step(2, start_ns=BEGAN + 60 * S, end_ns=BEGAN + 62 * S))
    series = world.read()
    assert series.get(t.STEPS, (RUN, "0")) == 1
    # Steps 0 and 1 were kept and step 2 was done again: (2 + 2 + 2) s of 100 s.
    assert series.get(t.GOODPUT, (RUN, "0")) == pytest.approx(0.06)


def test_goodput_of_a_rank_that_ran_elsewhere_before(world: World) -> None:
    """All ranks make the same steps, so those of another rank of this node's earlier attempt count (by hand)."""
    append(world.rank(3), step(0), step(1))
    append(world.rank(700, attempt=1), step(2, start_ns=BEGAN + 60 * S, end_ns=BEGAN + 62 * S))
    assert world.read().get(t.GOODPUT, (RUN, "700")) == pytest.approx(0.06)


def test_ranks_of_other_nodes_are_left_to_their_exporters(world: World) -> None:
    """In a shared run directory, each node shows its own ranks."""
    append(world.rank(0), step(0))
    append(world.rank(1, host="node2"), step(0))
    for _ in range(2):
        series = world.read()
        assert series.get(t.STEPS, (RUN, "0")) == 1
        assert series.get(t.STEPS, (RUN, "1")) is None


@pytest.mark.parametrize(
    ("name", "content", "error"),
    [
        (paths.STEPS_FILE, b"not json\n", "steps"),
        (paths.STEPS_FILE, b'{"kind":"step"}\n', "steps"),
        (paths.RANK_FILE, b'{"schema":"9.0"}', "rank"),
        (paths.RANK_FILE, b"\x00\xff", "rank"),
        (paths.BLACK_BOX_FILE, b"SCOPEBBX" + b"\x07" * 100, "black_box"),
        (paths.BLACK_BOX_FILE, b"", "black_box"),
    ],
)
def test_a_torn_file_costs_itself_and_is_counted(world: World, name: str, content: bytes, error: str) -> None:
    """The other rank's series stay, and the kind of error is counted."""
    append(world.rank(0), step(0))
    bad = world.rank(1)
    append(bad, step(0))
    (bad / name).write_bytes(content)
    os.utime(bad / name, (1, 1))  # an empty file of a moment ago is about to be written
    series = world.read()
    assert series.get(t.STEPS, (RUN, "0")) == 1
    assert error in {kind for kind, _ in world.problems}


def test_files_that_are_no_files_are_refused(world: World) -> None:
    """A link in place of a file is not followed, and a run folder without run.json is none."""
    folder = world.rank(0)
    (folder / paths.STEPS_FILE).symlink_to("/etc/passwd")
    (world.run.parent / "other").mkdir()
    world.read()
    assert {error for error, _ in world.problems} == {"steps"}


def test_verdicts_are_relayed(world: World) -> None:
    """A finding that holds is 1 for each rank to blame; one that was resolved is gone."""
    append(world.rank(0), step(0))
    with (world.run / paths.VERDICTS_FILE).open("wb") as stream:
        for verdict in (
            Verdict(time_ns=1, kind="hang", severity="critical", summary="x", ranks=(0,)),
            Verdict(time_ns=2, kind="hang", severity="critical", summary="x", ranks=(0,), resolved_ns=3),
            Verdict(
                time_ns=4, kind="straggler", severity="warning", summary="x", ranks=(1,),
                evidence={"imposed_wait_ns": S // 2, "imposed_wait_ratio": 0.25},
            ),
        ):  # fmt: skip
            stream.write(msgspec.json.encode(verdict) + b"\n")
    series = world.read()
    assert series.get(t.VERDICT, (RUN, "1", "straggler", "warning")) == 1
    assert series.get(t.VERDICT, (RUN, "0", "hang", "critical")) is None
    assert series.get(t.IMPOSED_WAIT, (RUN, "1")) == 0.5
    assert series.get(t.IMPOSED_WAIT_RATIO, (RUN, "1")) == 0.25


def write_verdicts(world: World, *verdicts: Verdict, looked_ns: int) -> None:
    """Write findings, for which somebody looked last at an instant."""
    path = world.run / paths.VERDICTS_FILE
    path.write_bytes(b"".join(msgspec.json.encode(verdict) + b"\n" for verdict in verdicts))
    os.utime(path, ns=(looked_ns, looked_ns))


HANG = Verdict(time_ns=BEGAN + 90 * S, kind="hang", severity="critical", summary="x", ranks=(1,), step=5)


def test_a_hang_is_handed_on_until_its_step_has_ended(world: World) -> None:
    """Whoever found it in step 5 has gone; that rank 0, of the two, has ended step 5 refutes it on this node."""
    folder = world.rank(0)
    write_verdicts(world, HANG, looked_ns=world.now_ns)
    append(folder, *(step(number) for number in range(5)))
    assert world.read().get(t.VERDICT, (RUN, "1", "hang", "critical")) == 1
    append(folder, step(5))
    assert world.read().get(t.VERDICT, (RUN, "1", "hang", "critical")) is None


def test_findings_that_nobody_looks_after_are_handed_on_for_fifteen_minutes(world: World) -> None:
    """Then a straggler is told no more while its run goes on; what another program found it has to end itself."""
    append(world.rank(0, process_start_ticks=7), step(0))
    world.processes[1] = 7
    straggler = Verdict(
        time_ns=1, kind="straggler", severity="warning", summary="x", ranks=(0,), evidence={"imposed_wait_ratio": 0.25}
    )
    foreign = Verdict(time_ns=1, kind="slow_input", severity="info", summary="x")
    looked_ns = world.now_ns
    write_verdicts(world, straggler, foreign, looked_ns=looked_ns)
    for since_s, is_told in ((0, True), (900, True), (901, False)):
        world.now_ns = looked_ns + since_s * S
        series = world.read()
        assert series.get(t.ACTIVE, (RUN, "0")) == 1
        assert (series.get(t.VERDICT, (RUN, "0", "straggler", "warning")) == 1) == is_told
        assert (series.get(t.IMPOSED_WAIT_RATIO, (RUN, "0")) == 0.25) == is_told
        assert series.get(t.VERDICT, (RUN, "", "slow_input", "info")) == 1
    os.utime(world.run / paths.VERDICTS_FILE, ns=(world.now_ns, world.now_ns))
    assert world.read().get(t.VERDICT, (RUN, "0", "straggler", "warning")) == 1


def test_what_a_run_ended_with_stays_while_it_is_shown(world: World) -> None:
    """It hung, nobody looked for longer than that, and its ranks ended in the hang: told for as long as they are."""
    looked_ns = world.now_ns
    append(world.rank(0), *(step(number) for number in range(5)))
    write_verdicts(world, HANG, looked_ns=looked_ns)
    world.now_ns = looked_ns + 1_000 * S
    world.rank(0, ended_ns=world.now_ns, exit_reason="terminated by signal 9")
    assert world.read().get(t.VERDICT, (RUN, "1", "hang", "critical")) == 1


def test_own_phases_are_bounded_still_sum_and_never_fall() -> None:
    """However many phases a user names, the first sixteen stay and the rest is one; no name's sum ever falls."""
    totals = RankTotals()
    before: dict[str, int] = {}
    for number in range(100):
        name = f"own{number:03}"
        totals.add([step(number, phases={"forward": 5, name: S + number})])
        assert all(totals.phases[known] >= spent for known, spent in before.items())
        before = dict(totals.phases)
    assert len(totals.phases) == 1 + MAX_OWN_PHASES + 1
    assert sum(totals.phases.values()) == 100 * (5 + S) + 4_950


def test_lost_steps_of_several_attempts() -> None:
    """What a later attempt did again, every earlier one did in vain (by hand: 0,1 | 2 kept; 3,4 and 2,3 lost)."""
    totals = RankTotals()
    totals.add([step(number, length_s=1) for number in range(5)], attempt=0)
    totals.add([step(number, length_s=1) for number in (2, 3)], attempt=1)
    assert totals.kept_before(3) == 3 * S
    assert totals.kept_before(0) == 0


@pytest.mark.parametrize("seed", range(6))
def test_lost_steps_with_folded_lines_as_the_run_state_has_them(seed: int) -> None:
    """Attempts that begin anywhere, old steps folded by three: a summary is lost with its last step, at both faces."""
    numbers = random.Random(seed)
    firsts = [0, *(numbers.randrange(20) for _ in range(3))]
    earlier, current = RankTotals(), RankTotals()
    lines: dict[int, list[StepLine]] = {}
    for attempt, first in enumerate(firsts):
        made = [step(number, length_s=1 + numbers.randrange(5)) for number in range(first, first + 12)]
        lines[attempt] = [*(summarize_steps(made[place : place + 3]) for place in (0, 3)), *made[6:]]
        (current if attempt == 3 else earlier).add(lines[attempt], attempt=attempt)
    spans = [
        (attempt, line.last_step, line.duration_ns)
        if isinstance(line, StepSummary)
        else (attempt, line.step, line.end_ns - line.start_ns)
        for attempt, own in lines.items()
        for line in own
    ]
    kept = sum(ns for attempt, last, ns in spans if all(last < first for first in firsts[attempt + 1 :]))
    assert earlier.kept_before(current.first_step) + current.duration_ns == kept
    rows = [row for attempt, own in lines.items() for row in columns.step_rows(own, attempt=attempt, rank=0)]
    assert compute_kept(pl.DataFrame(rows, schema=RankSteps.schema(), orient="row").lazy()) == {0: kept}


@pytest.mark.parametrize(
    ("text", "job"),
    [
        ("12:memory:/slurm/uid_1000/job_55/step_0/task_0", Job("slurm", "55", "ada")),
        (
            "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod12345678_1234_1234_1234_123456789abc.slice"
            "/cri-containerd-0f.scope",
            Job("kubernetes", "12345678-1234-1234-1234-123456789abc", ""),
        ),
        ("0::/user.slice/user-1000.slice", None),
    ],
)
def test_jobs_from_control_groups(text: str, job: Job | None) -> None:
    """Slurm's job and Kubernetes' pod stand in the path of a process's control group."""
    assert parse_cgroup(text, "ada") == job


def test_what_recording_took_never_falls() -> None:
    """The recorder may correct its estimate downwards; the counter waits until the sum has passed it (by hand)."""
    totals = RankTotals()
    shown: list[int] = []
    for number, taken_ns in enumerate([500, -300, 100, 400]):
        assert totals.add([step(number, recorder_ns=taken_ns)]) == 0
        shown.append(totals.recorder_ns)
    assert shown == [500, 500, 500, 700]


def test_a_rank_whose_process_was_seen_ends_when_it_is_gone(world: World) -> None:
    """It is not active at the next reading, however young its last sign of life is."""
    append(world.rank(0, pid=7, process_start_ticks=99), step(0))
    world.now_ns = BEGAN + 13 * S
    world.processes = {7: 99}
    assert world.read().get(t.ACTIVE, (RUN, "0")) == 1
    world.processes = {}
    world.now_ns += 2 * S
    assert world.read().get(t.ACTIVE, (RUN, "0")) == 0


def test_a_rank_that_was_killed_is_lost(world: World) -> None:
    """The age of its last sign of life, 12 s after the beginning, from the reading that finds its process gone."""
    append(world.rank(0, pid=7, process_start_ticks=99), step(0))
    append(world.rank(1, pid=8, process_start_ticks=99), step(0))
    world.now_ns = BEGAN + 13 * S
    world.processes = {7: 99, 8: 99}
    assert world.read().get(t.LOST, (RUN, "0")) is None
    world.processes = {8: 99}
    world.now_ns = BEGAN + 42 * S
    series = world.read()
    assert series.get(t.LOST, (RUN, "0")) == 30
    assert series.get(t.LOST, (RUN, "1")) is None
    assert series.get(t.ACTIVE, (RUN, "1")) == 1
    # It is started anew.
    append(world.rank(0, attempt=1, pid=9, process_start_ticks=1), step(0))
    world.processes = {8: 99, 9: 1}
    assert world.read().get(t.LOST, (RUN, "0")) is None


@pytest.mark.parametrize("closed", [False, True])
def test_a_rank_that_told_of_its_end_is_not_lost(world: World, closed: bool) -> None:
    """An end in `rank.json`, or a black box that was closed (the disk was full), is a goodbye."""
    end = None if closed else BEGAN + 14 * S
    folder = world.rank(0, pid=7, process_start_ticks=99, ended_ns=end)
    append(folder, step(0))
    if closed:
        identity = BlackBoxIdentity(rank=0, attempt=0, world_size=2, pid=7, process_start_ticks=99, wall_offset_ns=0)
        box = BlackBox(folder / paths.BLACK_BOX_FILE, identity)
        box.write_state(layout.STATE.pack(0, 0, BEGAN, BEGAN, BEGAN, 0, 0, b"forward"))
        box.write_pulse(layout.PULSE.pack(0, 1, 0, layout.PULSE_CLOSED, 0, -1))
        box.close()
    world.now_ns = BEGAN + 20 * S
    series = world.read()
    assert series.get(t.ACTIVE, (RUN, "0")) == 0
    assert series.get(t.LOST, (RUN, "0")) is None


def write_run(folder: Path, *, started_ns: int, run_dir: str | None) -> None:
    """Write a run `demo` of one rank and one step."""
    rank = paths.rank_folder(folder, 0, 0)
    rank.mkdir(parents=True)
    info = RunInfo(schema=SCHEMA_VERSION, run_id="demo", started_ns=started_ns, run_dir=run_dir)
    (folder / paths.RUN_FILE).write_bytes(msgspec.json.encode(info))
    described = RankInfo(
        schema=SCHEMA_VERSION, run_id="demo", attempt=0, rank=0, started_ns=started_ns, host=HOST, pid=1
    )
    (rank / paths.RANK_FILE).write_bytes(msgspec.json.encode(described))
    append(rank, step(0))


def test_runs_of_one_id_in_two_folders_are_two(world: World) -> None:
    """Each has a label of its own; a spool has the label of the run directory that it is published to."""
    folder = world.run.parent
    write_run(folder / "a", started_ns=BEGAN, run_dir="/data/a")
    write_run(folder / "b", started_ns=BEGAN + 1, run_dir="/data/b")
    write_run(folder / "spool of a", started_ns=BEGAN, run_dir="/data/a")
    series = world.read()
    # `printf 'demo\0/data/a' | sha256sum` and the same of b.
    for label in ("fc9ac4d6", "0e120ce7"):
        assert series.get(t.STEPS, (label, "0")) == 1
    assert world.problems == []


def test_runs_that_cannot_be_told_apart_are_an_error(world: World) -> None:
    """Of two recordings of an earlier version with one id, the first is shown and the other one is counted."""
    for number, name in enumerate(("a", "b")):
        write_run(world.run.parent / name, started_ns=BEGAN + number, run_dir=None)
    series = world.read()
    assert series.get(t.STEPS, (short_hash("demo"), "0")) == 1
    assert [(error, Path(where.partition(":")[0]).name) for error, where in world.problems] == [("same_run", "b")]
