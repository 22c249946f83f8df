"""Findings that begin, end and are gone on with, as they are written to `verdicts.jsonl`."""

from __future__ import annotations

import errno
import os
import statistics
from typing import TYPE_CHECKING

import msgspec
import pytest

from scope.frames import open_run
from scope.report.run_state import describe_run, render_run
from scope.report.watching import Watcher, find_findings, look_at_run
from scope.run import files, layout, paths
from scope.run.blackbox import BlackBox, BlackBoxIdentity
from scope.run.reader import RunReader
from scope.run.schema import SCHEMA_VERSION, GroupInfo, RankInfo, RunInfo, StepRecord, Verdict
from scope.testing.layout import Layout
from scope.testing.runs import SyntheticRun

if TYPE_CHECKING:
    from pathlib import Path

S = 1_000_000_000
BEGAN = 1_800_000_000 * S


class World:
    """Two ranks of another host that beat at every look; rank 1 has issued `behind` calls less than rank 0.

    Args:
        folder: The run directory.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.num_steps = 0
        self.step_ns = S
        self.behind = 0
        self.write(folder / paths.RUN_FILE, RunInfo(schema=SCHEMA_VERSION, run_id="r", started_ns=BEGAN, world_size=2))
        self.boxes: list[BlackBox] = []
        for rank in range(2):
            own = paths.rank_folder(folder, 0, rank)
            own.mkdir(parents=True)
            info = RankInfo(
                schema=SCHEMA_VERSION, run_id="r", attempt=0, rank=rank, started_ns=BEGAN, host="h", pid=1,
                groups=(GroupInfo(group=0, name="world", ranks=(0, 1)),),
            )  # fmt: skip
            self.write(own / paths.RANK_FILE, info)
            identity = BlackBoxIdentity(
                rank=rank, attempt=0, world_size=2, pid=1, process_start_ticks=None, wall_offset_ns=0
            )
            self.boxes.append(BlackBox(own / paths.BLACK_BOX_FILE, identity))

    @staticmethod
    def write(path: Path, record: object) -> None:
        """Write a document."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(msgspec.json.encode(record))

    def at(self, second: int, *, steps_until: int) -> int:
        """Let ranks beat at a second and have made so many steps, of one second by default; return the instant."""
        now_ns = BEGAN + second * S
        while self.num_steps < steps_until:
            start_ns, length_ns = BEGAN + self.num_steps * self.step_ns, self.step_ns
            phases = {"other": length_ns}
            step = StepRecord(step=self.num_steps, start_ns=start_ns, end_ns=start_ns + length_ns, phases=phases)
            for rank in range(2):
                with (paths.rank_folder(self.folder, 0, rank) / paths.STEPS_FILE).open("ab") as stream:
                    stream.write(msgspec.json.encode(step) + b"\n")
            self.num_steps += 1
        begun_ns = BEGAN + self.num_steps * self.step_ns
        for rank, box in enumerate(self.boxes):
            issued = 100 - rank * self.behind
            box.write_state(layout.STATE.pack(0, 0, now_ns, now_ns, now_ns, 0, 0, b"backward"))
            box.write_pulse(layout.PULSE.pack(now_ns, 1, 0, 0, 0, -1))
            box.write_groups([layout.GROUP.pack(0, issued, issued - 1, begun_ns, begun_ns, 7, 0, 0, 0, 0, 0, 0)])
        return now_ns

    def lines(self) -> list[Verdict]:
        """Return what stands in the file."""
        return RunReader(self.folder).new_verdicts()


@pytest.fixture
def world(tmp_path: Path) -> World:
    """A run without steps."""
    return World(tmp_path / "run")


def test_a_finding_is_written_once_and_its_end_once(world: World) -> None:
    """Ten seconds and ten steps without a step: told at the first look, not at the second, over when steps go on."""
    watcher = Watcher(open_run(world.folder))
    assert watcher.look(now_ns=world.at(20, steps_until=20))[1:] == ([], [])
    world.behind = 1
    (begun,) = watcher.look(now_ns=world.at(60, steps_until=20)).begun
    assert (begun.kind, begun.ranks) == ("hang", (1,))
    assert watcher.look(now_ns=world.at(70, steps_until=20))[1:] == ([], [])
    assert world.lines() == [begun]
    world.behind = 0
    (over,) = watcher.look(now_ns=world.at(80, steps_until=80)).over
    assert over == msgspec.structs.replace(begun, resolved_ns=BEGAN + 80 * S)
    assert watcher.look(now_ns=world.at(81, steps_until=81))[1:] == ([], [])
    assert world.lines() == [begun, over]
    watcher.close()


def test_another_watcher_goes_on_with_the_file(world: World) -> None:
    """What one has found the next one tells not again but ends; a finding of somebody else it leaves alone."""
    foreign = Verdict(time_ns=BEGAN, kind="slow_input", severity="info", summary="x")
    (world.folder / paths.VERDICTS_FILE).write_bytes(msgspec.json.encode(foreign) + b"\n")
    world.behind = 1
    now_ns = world.at(60, steps_until=20)
    first = Watcher(open_run(world.folder))
    assert [each.kind for each in first.look(now_ns=now_ns).begun] == ["hang"]
    first.close()
    opened = open_run(world.folder)
    second = Watcher(opened)
    assert second.look(now_ns=world.at(61, steps_until=20))[1:] == ([], [])
    watched = look_at_run(opened, now_ns=BEGAN + 61 * S)
    assert sorted(each.kind for each in find_findings(opened, watched)) == ["hang", "slow_input"]
    world.behind = 0
    assert [each.kind for each in second.look(now_ns=world.at(90, steps_until=90)).over] == ["hang"]
    second.close()


def test_what_a_run_ended_with_is_not_over_with_it(world: World) -> None:
    """It hangs and is killed: the hang stays on record beside the crash, for whoever looks afterwards."""
    watcher = Watcher(open_run(world.folder))
    world.behind = 1
    watcher.look(now_ns=world.at(60, steps_until=20))
    (crash,) = watcher.look(now_ns=BEGAN + 60 * S + 61 * S).begun
    assert (crash.kind, crash.ranks) == ("crash", (0, 1))
    assert [each.resolved_ns for each in world.lines()] == [None, None]
    watcher.close()


def test_a_crash_is_over_when_its_ranks_say_how_they_ended(world: World) -> None:
    """Silent for a minute, then what publishes the ranks notes the signal that ended the job: nothing crashed."""
    watcher = Watcher(open_run(world.folder))
    world.at(20, steps_until=20)
    (crash,) = watcher.look(now_ns=BEGAN + 90 * S).begun
    assert (crash.kind, crash.ranks) == ("crash", (0, 1))
    for rank in range(2):
        path = paths.rank_folder(world.folder, 0, rank) / paths.RANK_FILE
        info = msgspec.json.decode(path.read_bytes(), type=RankInfo)
        world.write(path, msgspec.structs.replace(info, ended_ns=BEGAN + 21 * S, exit_reason="terminated by signal 15"))
    afterwards = open_run(world.folder)
    watched = look_at_run(afterwards, now_ns=BEGAN + 94 * S)
    assert watched.state.outcome == "killed"
    assert find_findings(afterwards, watched) == []
    assert describe_run(afterwards, now_ns=BEGAN + 94 * S)["verdicts"] == []
    (over,) = watcher.look(now_ns=BEGAN + 95 * S).over
    assert over == msgspec.structs.replace(crash, resolved_ns=BEGAN + 95 * S)
    watcher.close()


def test_silence_begins_and_is_over(world: World) -> None:
    """What publishes the ranks stands still for 15 s while rank 1 seems a call behind: no hang, and over afterwards."""
    watcher = Watcher(open_run(world.folder))
    world.behind = 1
    world.at(20, steps_until=20)
    (silence,) = watcher.look(now_ns=BEGAN + 35 * S).begun
    assert (silence.kind, silence.ranks, silence.severity) == ("silence", (), "warning")
    state = describe_run(open_run(world.folder), now_ns=BEGAN + 35 * S)
    assert [row["behind"] for row in state["stopped_ranks"]] == [0, 0]
    said = render_run(state)
    assert "no sign of life of any rank since 2027-01-15 08:00:20 UTC (15 s)" in said
    assert "behind" not in said
    assert "not arrived" not in said
    (over,) = watcher.look(now_ns=world.at(36, steps_until=36)).over
    assert over.kind == "silence"
    watcher.close()


@pytest.mark.parametrize(
    ("second", "said"),
    [
        pytest.param(12, "", id="may-be-yet-to-be-published"),
        pytest.param(
            18,
            "no step has ended since 2027-01-15 08:00:10 UTC (8 s, 80 usual steps): a checkpoint, an evaluation or a "
            "hang; if it lasts, scope doctor {} says who has not arrived where",
            id="before-it-counts-as-a-hang",
        ),
        pytest.param(
            21,
            "no step has ended since 2027-01-15 08:00:10 UTC: scope doctor {} says what to do about each rank",
            id="hang",
        ),
    ],
)
def test_who_is_slow_is_not_said_while_no_step_ends(world: World, second: int, said: str) -> None:
    """A hundred steps of 100 ms end at second 10, and none after: the run stands, and nobody's pace explains it."""
    world.step_ns, world.behind = S // 10, 1
    now_ns = world.at(second, steps_until=100)
    lines = render_run(describe_run(open_run(world.folder), now_ns=now_ns)).splitlines()
    found = [line for line in lines if line.startswith(("no step has", "no rank works"))]
    assert found == ([said.format(world.folder)] if said else [])


def test_steps_without_length_tell_nothing_of_a_run_that_stands(world: World) -> None:
    """A program has stopped its clock, so that most steps seem to take no time: nothing is counted in such steps."""
    world.step_ns = 0
    world.at(1, steps_until=60)
    world.step_ns = S // 10
    said = render_run(describe_run(open_run(world.folder), now_ns=world.at(15, steps_until=80)))
    assert "no step has ended" not in said


def test_a_rank_that_is_silent_before_its_first_step_is_told_everywhere(world: World) -> None:
    """Rank 1 beat last at second 2, rank 0 at 30: `scope show` says so, as do `scope doctor` and `scope watch`."""
    for box, second in zip(world.boxes, (30, 2), strict=True):
        box.write_state(layout.STATE.pack(-1, 0, 0, BEGAN, BEGAN, 0, 0, b"init"))
        box.write_pulse(layout.PULSE.pack(BEGAN + second * S, 1, 0, 0, 0, -1))
    run, now_ns = open_run(world.folder), BEGAN + 30 * S
    said = render_run(describe_run(run, now_ns=now_ns))
    assert "rank 1 gave no sign of life for 28 s; it was in no step yet, init" in said
    found = find_findings(run, look_at_run(run, now_ns=now_ns))
    assert [(each.kind, each.ranks) for each in found] == [("silence", (1,))]


def test_silence_is_not_told_after_its_watcher_has_gone(world: World) -> None:
    """Found by a single look, it stands in the file for good, and nowhere else once rank 1 beats again."""
    for box, second in zip(world.boxes, (30, 2), strict=True):
        box.write_state(layout.STATE.pack(-1, 0, 0, BEGAN, BEGAN, 0, 0, b"init"))
        box.write_pulse(layout.PULSE.pack(BEGAN + second * S, 1, 0, 0, 0, -1))
    watcher = Watcher(open_run(world.folder))
    (silence,) = watcher.look(now_ns=BEGAN + 30 * S).begun
    watcher.close()
    run = open_run(world.folder)
    assert describe_run(run, now_ns=BEGAN + 31 * S)["verdicts"] == [silence.summary]
    assert [each.kind for each in find_findings(run, look_at_run(run, now_ns=BEGAN + 31 * S))] == ["silence"]
    world.boxes[1].write_pulse(layout.PULSE.pack(BEGAN + 31 * S, 1, 0, 0, 0, -1))
    run = open_run(world.folder)
    assert describe_run(run, now_ns=BEGAN + 32 * S)["verdicts"] == []
    assert find_findings(run, look_at_run(run, now_ns=BEGAN + 32 * S)) == []


def test_a_hang_is_not_told_once_steps_go_on_though_its_watcher_has_gone(world: World) -> None:
    """Found by a single look in step 20; nothing tells of it once that step has ended, in the run's last state too."""
    world.behind = 1
    watcher = Watcher(open_run(world.folder))
    (hang,) = watcher.look(now_ns=world.at(60, steps_until=20)).begun
    watcher.close()
    assert (hang.kind, hang.step) == ("hang", 20)
    run = open_run(world.folder)
    assert describe_run(run, now_ns=BEGAN + 61 * S)["verdicts"] == [hang.summary]
    world.behind = 0
    for now_ns in (world.at(62, steps_until=21), BEGAN + 200 * S):
        run = open_run(world.folder)
        assert describe_run(run, now_ns=now_ns)["verdicts"] == []
        assert [each.kind for each in find_findings(run, look_at_run(run, now_ns=now_ns)) if each.kind == "hang"] == []


def test_a_finding_says_how_old_it_is_where_nobody_looks_any_more(world: World) -> None:
    """Somebody else's, found after ten seconds: told with its age from a minute on, and not while it is watched."""
    foreign = Verdict(time_ns=BEGAN + 10 * S, kind="slow_input", severity="info", summary="x")
    path = world.folder / paths.VERDICTS_FILE
    path.write_bytes(msgspec.json.encode(foreign) + b"\n")
    os.utime(path, ns=(BEGAN + 20 * S, BEGAN + 20 * S))

    def tell(now_ns: int) -> list[str]:
        run = open_run(world.folder)
        (finding,) = find_findings(run, look_at_run(run, now_ns=now_ns))
        assert describe_run(run, now_ns=now_ns)["verdicts"] == [finding.summary]
        return [finding.summary]

    assert tell(world.at(80, steps_until=80)) == ["x"]
    now_ns = world.at(81, steps_until=81)
    assert tell(now_ns) == ["x (found 1 min 11 s ago; nobody has watched the run for 1 min 1 s)"]
    watcher = Watcher(open_run(world.folder))
    watcher.look(now_ns=now_ns)
    watcher.close()
    assert tell(now_ns) == ["x"]


def test_a_file_that_cannot_be_written_is_said_and_nothing_told_twice(world: World) -> None:
    """A folder stands in its place: the finding is returned once, and why it was not written is known."""
    (world.folder / paths.VERDICTS_FILE).mkdir()
    opened = open_run(world.folder)
    opened.verdicts = list  # what cannot be read holds nothing
    watcher = Watcher(opened)
    world.behind = 1
    assert len(watcher.look(now_ns=world.at(60, steps_until=20)).begun) == 1
    assert watcher.write_error == "Is a directory"
    assert watcher.look(now_ns=world.at(61, steps_until=20))[1:] == ([], [])


def test_findings_are_written_once_there_is_room(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk is full while a hang begins and ends, and at a further look: each is told once, then written once."""
    watcher = Watcher(open_run(world.folder))
    with monkeypatch.context() as patch:
        patch.setattr(files, "_write_all", refuse)
        world.behind = 1
        (begun,) = watcher.look(now_ns=world.at(60, steps_until=20)).begun
        assert watcher.write_error == "No space left on device"
        world.behind = 0
        (over,) = watcher.look(now_ns=world.at(80, steps_until=80)).over
        assert watcher.look(now_ns=world.at(81, steps_until=81))[1:] == ([], [])
        assert world.lines() == []
    assert watcher.look(now_ns=world.at(82, steps_until=82))[1:] == ([], [])
    assert (world.lines(), watcher.write_error) == ([begun, over], None)
    assert watcher.look(now_ns=world.at(83, steps_until=83))[1:] == ([], [])
    assert world.lines() == [begun, over]
    watcher.close()


def refuse(*_: object) -> None:
    """Write nothing, as onto a full disk."""
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_run_without_ranks_has_nothing_to_say(tmp_path: Path) -> None:
    """Before any rank has begun, a look finds nothing."""
    World.write(tmp_path / paths.RUN_FILE, RunInfo(schema=SCHEMA_VERSION, run_id="r", started_ns=BEGAN))
    change = Watcher(open_run(tmp_path)).look(now_ns=BEGAN)
    assert (change.watched.state.standing, change.begun, change.over) == ("not begun", (), ())


def test_a_planted_straggler_is_found_with_what_it_imposes(tmp_path: Path) -> None:
    """Rank 3 of four data-parallel ranks in two stages computes 40 ms longer in each of the last 50 steps."""
    planted = SyntheticRun(
        layout=Layout(dp=4, pp=2), num_steps=120, straggler=3, slow_steps=range(70, 120), straggler_extra_ns=40_000_000
    )
    planted.write(tmp_path)
    (tmp_path / paths.VERDICTS_FILE).unlink()
    opened = open_run(tmp_path)
    last_ns = opened.steps()["end_ns"].max()
    assert isinstance(last_ns, int)
    watcher = Watcher(opened)
    (found,) = watcher.look(now_ns=last_ns + S).begun
    assert (found.kind, found.ranks, found.severity) == ("straggler", (3,), "warning")
    assert found.summary.startswith("rank 3 makes its peers wait 40 ms a step, mostly in ")
    assert found.evidence["imposed_wait_ns"] == 40_000_000
    usual_ns = statistics.median_low(planted.length_ns(step) for step in range(70, 120))
    assert found.evidence["imposed_wait_ratio"] == pytest.approx(40_000_000 / usual_ns, rel=1e-9)
    watcher.close()
