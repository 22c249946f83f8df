"""`scope show` and `scope runs`: text and documents, mistakes, hostile names, torn files."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from scope.run import paths
from scope.run.alive import read_start_ticks, sees_all_processes
from scope.run.clock import read_anchor
from scope.run.endings import forget_nothing, record_nothing
from scope.run.identity import write_run_info
from scope.run.reader import read_run_info
from scope.run.schema import SCHEMA_VERSION, RankInfo, StepRecord
from scope.run.writer import RankWriter, StepDraft

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import Done

HOSTILE = "\x1b[31m[red]evil[/red]\u202e"


def write_run(run: Path, *, tags: dict[str, str] | None = None, closed: bool = True) -> Path:
    """Record three steps of 10 ms on one rank: 6 ms of forward, 4 ms of a phase with a nasty name."""
    write_run_info(run, run_id="first", source="option", tags=tags)
    folder = paths.rank_folder(run, 0, 0)
    info = RankInfo(
        schema=SCHEMA_VERSION,
        run_id="first",
        attempt=0,
        rank=0,
        started_ns=1_800_000_000_000_000_000,
        host="h",
        pid=1,
        process_start_ticks=1,
        world_size=1,
        anchors=(read_anchor(),),
    )
    writer = RankWriter(folder, info)
    for step in range(3):
        record = StepRecord(
            step=step,
            start_ns=10**18 + step * 10_000_000,
            end_ns=10**18 + (step + 1) * 10_000_000,
            phases={"forward": 6_000_000, HOSTILE: 4_000_000},
        )
        writer.add_step(StepDraft(record=record, calls=writer.calls.next_step(step + 1)))
    if closed:
        writer.close("finished")
    else:
        writer.flush()
    return run


def test_show_says_steps_and_phases(tmp_path: Path, scope: Callable[..., Done]) -> None:
    """Three steps of 10 ms, 18 ms of forward in all; no control character of a phase's name reaches the terminal."""
    run = write_run(tmp_path / "first")
    done = scope("show", run)
    assert (done.code, done.err) == (0, "")
    assert "1 of 1 rank, last step 2, 3 steps" in done.out
    assert "forward" in done.out
    assert "18 ms" in done.out
    assert not any(character in done.out for character in "\x1b\u202e")
    state = json.loads(scope("show", run, "--json").out)
    assert state["run_id"] == "first"
    assert state["summary"]["phases_ns"]["forward"] == 18_000_000
    assert sum(state["summary"]["phases_ns"].values()) == 30_000_000
    assert state["checkpoints"] == state["verdicts"] == []


def test_show_says_what_share_of_the_steps_recording_took(scope: Callable[..., Done]) -> None:
    """All recorder times over the lengths of all steps of all ranks, from their lines."""
    run = Path(__file__).parents[3] / "sample_traces" / "gloo-4-ranks-straggler"
    files = run.glob("attempt-000/ranks/*/steps.jsonl")
    steps = [json.loads(line) for path in files for line in path.read_text().splitlines()]
    share = sum(step["recorder_ns"] for step in steps) / sum(step["end_ns"] - step["start_ns"] for step in steps)
    (line,) = (line for line in scope("show", run).out.splitlines() if "recording itself took" in line)
    assert line.endswith(f" ms, {share * 100:.1f} % of it")


@pytest.mark.parametrize("run_dir", [None, "/data/job"])
def test_a_run_is_listed_with_the_label_that_alerts_call_it_by(
    tmp_path: Path, scope: Callable[..., Done], run_dir: str | None
) -> None:
    """The first eight digits of the SHA-256 of its id, and of the directory where it tells one."""
    document: dict[str, object] = {"schema": SCHEMA_VERSION, "run_id": "job", "started_ns": 1}
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / paths.RUN_FILE).write_text(json.dumps(document | ({"run_dir": run_dir} if run_dir else {})))
    label = hashlib.sha256(b"job\0/data/job" if run_dir else b"job").hexdigest()[:8]
    (record,) = json.loads(scope("runs", "list", tmp_path, "--json").out)
    assert record["label"] == label
    heading, row = scope("runs", "list", tmp_path).out.splitlines()
    assert row[heading.index("label") :].startswith(f"{label} ")


@pytest.mark.parametrize("command", [("show",), ("runs", "tag"), ("runs", "delete")])
def test_what_is_no_run_is_said(tmp_path: Path, scope: Callable[..., Done], command: tuple[str, ...]) -> None:
    """A folder that is missing, is no run, or has a torn `run.json` is one line that names it, and changes nothing."""
    torn = tmp_path / "torn"
    torn.mkdir()
    (torn / "run.json").write_text('{"schema": ')
    (tmp_path / "empty").mkdir()
    for name in ("missing", "empty", "torn"):
        done = scope(*command, tmp_path / name, *(["a=b"] if command[-1] == "tag" else []))
        assert done.code == 3
        assert done.out == ""
        assert str(tmp_path / name) in done.err
        assert "Traceback" not in done.err
    assert torn.is_dir()


def test_show_of_a_torn_rank_keeps_the_rest(tmp_path: Path, scope: Callable[..., Done]) -> None:
    """A torn last line is one being written; a black box of rubbish is told on standard error, the steps are shown."""
    run = write_run(tmp_path / "first")
    folder = paths.rank_folder(run, 0, 0)
    with (folder / paths.STEPS_FILE).open("ab") as file:
        file.write(b'{"step": 3, "sta')
    (folder / paths.BLACK_BOX_FILE).write_bytes(b"rubbish")
    done = scope("show", run)
    assert done.code == 0
    assert "3 steps" in done.out
    assert paths.BLACK_BOX_FILE in done.err


def test_runs_are_listed_labelled_and_deleted(tmp_path: Path, scope: Callable[..., Done]) -> None:
    """A run is listed with step and state, labelled, and deleted; one that has not ended only with --force."""
    run = write_run(tmp_path / "runs" / "first", tags={"note": HOSTILE})
    alive = write_run(tmp_path / "runs" / "alive", closed=False)
    listed = scope("runs", "list", tmp_path / "runs")
    assert listed.code == 0
    # The three steps that ended are 0 to 2, as `scope show` says; tag and delete take the folder.
    heading, *rows = listed.out.splitlines()
    assert heading.split("  ")[0] == "run"
    for name, cell in (("ranks", "1 rank"), ("last step", "2"), ("state", "")):
        assert all(row[heading.index(name) - 2 :].startswith(f"  {cell}") for row in rows), listed.out
        assert all(row[heading.index(name)] != " " for row in rows), listed.out
    assert all(f"  {folder}" in listed.out for folder in (run, alive))
    assert [row.split()[0] for row in rows] == ["first", "first"]
    # It has just written its black box, and its last step is of 2001: as `scope show` says, it makes none.
    assert {"finished", "no step"} == {
        state for state in ("finished", "running", "no step") if f"  {state}  " in listed.out
    }
    assert scope("show", alive).out.splitlines()[0].startswith("run first: NO STEP for ")
    assert not any(character in listed.out for character in "\x1b\u202e")
    records = json.loads(scope("runs", "list", tmp_path / "runs", "--json").out)
    assert {record["path"]: (record["ranks"], record["ended"]) for record in records} == {
        str(run): (1, True),
        str(alive): (1, False),
    }
    assert not any(character in scope("runs", "tag", run, "model=7b").out for character in "\x1b\u202e")
    tagged = scope("runs", "tag", run, "model=7b", "note=")
    assert (tagged.code, tagged.out) == (0, "model=7b\n")
    assert read_run_info(run).tags == {"model": "7b"}
    assert scope("runs", "tag", run, "nothing").code == 2
    refused = scope("runs", "delete", alive)
    assert refused.code == 2
    assert "--force" in refused.err
    assert alive.is_dir()
    assert scope("runs", "delete", run).code == 0
    assert scope("runs", "delete", alive, "--force").code == 0
    assert list((tmp_path / "runs").iterdir()) == []


def test_a_run_that_was_killed_on_this_host_is_deleted(tmp_path: Path, scope: Callable[..., Done]) -> None:
    """Without --force where its processes are gone and silent; else the words say why, of which rank."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    here = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    own: dict[str, object] = {"pid": os.getpid(), "process_start_ticks": read_start_ticks(os.getpid())}
    cases: dict[str, tuple[dict[str, object], str | None]] = {
        "gone": ({"pid": ended.pid, "boot_id": here}, None),
        "lives": (own | {"boot_id": here}, "rank 0 has not ended; stop the run"),
        "elsewhere": ({"boot_id": "another"}, "rank 0 has not ended on record, and only its host h knows if it lives"),
        "silent for a second": (
            {"pid": ended.pid, "boot_id": here, "started_ns": time.time_ns()},
            "rank 0 has not ended: its last sign of life is a few seconds old",
        ),
    }
    for name, (changes, why) in cases.items():
        run = write_run(tmp_path / name, closed=False)
        folder = paths.rank_folder(run, 0, 0)
        (folder / paths.BLACK_BOX_FILE).unlink(missing_ok=True)
        info = msgspec.json.decode((folder / paths.RANK_FILE).read_bytes())
        (folder / paths.RANK_FILE).write_bytes(msgspec.json.encode(info | {"started_ns": 10**18} | changes))
        done = scope("runs", "delete", run)
        assert (done.code, run.exists()) == ((0, False) if why is None else (2, True)), (name, done.err)
        assert why is None or why in done.err, (name, done.err)


def test_a_link_is_not_deleted(tmp_path: Path, scope: Callable[..., Done]) -> None:
    """A link to a run is refused, and what it leads to stands."""
    run = write_run(tmp_path / "first")
    (tmp_path / "link").symlink_to(run)
    assert scope("runs", "delete", tmp_path / "link").code == 3
    assert msgspec.json.decode((run / paths.RUN_FILE).read_bytes())["run_id"] == "first"


def test_show_names_custom_phases_and_says_how_the_run_ended(tmp_path: Path, scope: Callable[..., Done]) -> None:
    """Three steps with 4 ms in a phase of the user's own: 12 ms under its name, none under `custom`."""
    run = write_run(tmp_path / "first")
    done = scope("show", run)
    (custom,) = [line.split() for line in done.out.splitlines() if "evil" in line]
    assert custom[-2:] == ["12", "ms"]
    assert "custom" not in done.out
    assert "1 of 1 rank," in done.out
    assert done.out.splitlines()[0].startswith("run first: finished at ")
    assert json.loads(scope("show", run, "--json").out)["state"]["standing"] == "finished"


def test_show_says_calmly_that_a_run_fell_silent(tmp_path: Path, scope: Callable[..., Done]) -> None:
    """A rank of an unknown process that never closed and whose last step is of 2001 ended without a goodbye."""
    run = write_run(tmp_path / "alive", closed=False)
    file = paths.rank_folder(run, 0, 0) / paths.RANK_FILE
    info = msgspec.json.decode(file.read_bytes())
    file.write_bytes(msgspec.json.encode(info | {"started_ns": 10**18}))
    (paths.rank_folder(run, 0, 0) / paths.BLACK_BOX_FILE).unlink(missing_ok=True)
    first = scope("show", run).out.splitlines()[0]
    assert "ended without a goodbye at 2001-09-09 01:46:40 UTC" in first


def test_show_of_a_run_without_ranks_is_one_line(tmp_path: Path, scope: Callable[..., Done]) -> None:
    """A run whose script has not begun to record is told in a sentence."""
    run = tmp_path / "early"
    write_run_info(run, run_id="early", source="option", tags=None)
    done = scope("show", run)
    assert done.code == 3
    assert "no rank has begun to record yet" in done.err
    assert "warning  no rank has begun to record yet" in scope("doctor", run).out


def test_what_this_node_holds_of_a_run_and_could_not_publish_is_told(
    tmp_path: Path, scope: Callable[..., Done], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a rank that closed its recording long ago the run directory has nothing: no face says that all is well."""
    run = tmp_path / "run"
    write_run_info(run, run_id="run", source="option", tags=None)
    spool = write_run(tmp_path / "spool")
    for path in spool.rglob("*"):
        os.utime(path, (0, 0))
    registry = tmp_path / "registry"
    monkeypatch.setenv("SCOPE_REGISTRY", str(registry))
    paths.register_spool(paths.Registration(run_id="run", spool=str(spool), run_dir=str(run)))
    told = f"bytes of 1 rank, which lie in {spool}"
    assert told in scope("show", run).err
    assert told in scope("doctor", run).out
    shutil.copytree(spool, run, dirs_exist_ok=True)
    assert told not in scope("show", run).err
    assert told not in scope("doctor", run).out


def test_a_run_whose_command_recorded_nothing_says_why(tmp_path: Path, scope: Callable[..., Done]) -> None:
    """It stays in the list, with the reason in place of ranks and step; `show` and `watch` say it and end."""
    run = tmp_path / "nothing"
    write_run_info(run, run_id="nothing", source="option", tags=None)
    assert " 0 ranks no step not begun " in " ".join(scope("runs", "list", tmp_path).out.split())
    assert record_nothing(run, 3, host="node7")
    why = "the command on node7 ended with exit code 3 before any process of it had imported torch"
    assert f"nothing recorded: {why}" in scope("runs", "list", tmp_path).out
    (listed,) = json.loads(scope("runs", "list", tmp_path, "--json").out)
    assert listed["standing"] == "nothing recorded"
    assert listed["unrecorded"].startswith(why)
    done = scope("show", run)
    assert (done.code, f"nothing was recorded: {why}" in done.err) == (3, True)
    done = scope("watch", run)
    assert (done.code, f"nothing was recorded: {why}" in done.err) == (0, True)
    assert f"warning  nothing was recorded: {why}" in scope("doctor", run).out
    forget_nothing(run)
    assert "no rank has begun to record yet" in scope("show", run).err


def test_the_end_of_a_run_ends_what_was_found_of_it(tmp_path: Path, scope: Callable[..., Done]) -> None:
    """Whoever was a straggler is none when the run has ended, which is said in place of cause and advice."""
    run = write_run(tmp_path / "ended")
    finding = {"time_ns": 1, "kind": "straggler", "severity": "warning", "ranks": [0], "group": None, "attempt": 0}
    finding |= {"summary": "rank 0 makes its peers wait 9 ms a step, mostly in input", "action": "Compare its loader."}
    (run / paths.VERDICTS_FILE).write_text(json.dumps(finding) + "\n")
    lines = scope("watch", run).out.splitlines()
    assert "over: warning straggler of rank 0: the run has ended" in lines
    assert not any("Compare its loader" in line for line in lines)


@pytest.mark.parametrize("options", [(), ("--once",)])
def test_a_second_watch_begins_with_what_holds(tmp_path: Path, scope: Callable[..., Done], options: tuple[str]) -> None:
    """A rank without an end whose process is gone: the second to look says so as the first did, each as JSON too."""
    run = write_run(tmp_path / "gone", closed=False)
    own = paths.rank_folder(run, 0, 0)
    file = own / paths.RANK_FILE
    file.write_bytes(msgspec.json.encode(msgspec.json.decode(file.read_bytes()) | {"started_ns": 10**18}))
    (own / paths.BLACK_BOX_FILE).unlink(missing_ok=True)
    told = [scope("watch", run, *options) for _ in range(2)]
    assert told[0].out.count("critical crash: rank 0 ended without a goodbye. Look for its end") == 1
    assert told[0].out.count("\n") == 2
    assert [each.out.splitlines()[0] for each in told] == [told[0].out.splitlines()[0]] * 2
    assert [each.code for each in told] == [int(bool(options))] * 2
    (line,) = scope("watch", run, "--json", *options).out.splitlines()
    assert (json.loads(line)["kind"], json.loads(line)["ranks"]) == ("crash", [0])
    # Somebody else's finding, which this watch does not make, holds as well.
    with (run / paths.VERDICTS_FILE).open("a") as verdicts:
        verdicts.write('{"time_ns": 1, "kind": "slow_input", "severity": "info", "summary": "x"}\n')
    kinds = [json.loads(line)["kind"] for line in scope("watch", run, "--json", *options).out.splitlines()]
    assert kinds == ["crash", "slow_input"]


def test_ranks_make_what_was_said_of_none_void(tmp_path: Path, scope: Callable[..., Done]) -> None:
    """A command on another node recorded a rank: that one's state is told, and nothing is noted any more."""
    run = write_run(tmp_path / "alive", closed=True)
    assert not record_nothing(run, -9, host="node7")
    info = msgspec.json.decode((run / paths.RUN_FILE).read_bytes()) | {"unrecorded": "noted before there was a rank"}
    (run / paths.RUN_FILE).write_bytes(msgspec.json.encode(info))
    (listed,) = json.loads(scope("runs", "list", tmp_path, "--json").out)
    assert (listed["standing"], listed["unrecorded"], listed["ranks"]) == ("finished", None, 1)
    assert scope("show", run).code == 0


def test_show_lists_no_fast_rank_as_slow_and_no_bandwidth_of_tiny_messages(
    tmp_path: Path, scope: Callable[..., Done]
) -> None:
    """Of two ranks of a run whose calls carry 8 bytes, the slow one is named alone, and latency is no bandwidth."""
    total = {"group": 0, "operation": "all_reduce", "num_calls": 2, "in_bytes": 16, "out_bytes": 16, "num_timed": 2}
    (tmp_path / "r").mkdir()
    run = {"schema": SCHEMA_VERSION, "run_id": "r", "started_ns": 10**18}
    (tmp_path / "r" / paths.RUN_FILE).write_text(json.dumps(run))
    for rank in range(3):
        folder = paths.rank_folder(tmp_path / "r", 0, rank)
        folder.mkdir(parents=True)
        info = {"schema": SCHEMA_VERSION, "run_id": "r", "attempt": 0, "rank": rank, "started_ns": 10**18, "host": "h"}
        info |= {"pid": 1, "world_size": 3, "ended_ns": 2 * 10**18}
        info |= {"groups": [{"group": 0, "name": "w", "ranks": [0, 1, 2]}]}
        (folder / paths.RANK_FILE).write_text(json.dumps(info))
        wait = (30, 20, 0)[rank] * 10**6
        step = {"kind": "step", "step": 0, "start_ns": 10**18, "end_ns": 10**18 + 10**8, "phases": {"forward": 10**8}}
        step |= {"communication_wait_ns": wait, "collectives": [total | {"duration_ns": 10**6, "blocked_ns": wait}]}
        (folder / paths.STEPS_FILE).write_text(json.dumps(step) + "\n")
    out = scope("show", tmp_path / "r").out
    # Busy 70, 80 and 100 ms: only rank 2 is above the median.
    assert [line.split(":")[0] for line in out.splitlines() if "more than its peers" in line] == ["  rank 2"]
    assert "busbw at least" not in out
    assert "no busbw: messages below 65.54 kB show latency and no bandwidth" in out


def test_groups_of_commands_show_an_example(scope: Callable[..., Done]) -> None:
    """The help of `scope runs` and of each of its commands, and of the exporter's target file, holds one."""
    for command in (("runs",), ("runs", "list"), ("runs", "tag"), ("runs", "delete")):
        assert f"Example: scope {' '.join(command)} " in " ".join(scope(*command, "--help").out.split())


def test_a_run_without_heartbeat_is_not_listed_as_running(
    tmp_path: Path, scope: Callable[..., Done], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two minutes after its last sign of life, a run that never closed has ended without a goodbye."""
    write_run(tmp_path / "runs" / "alive", closed=False)
    later = time.time_ns() + 200_000_000_000
    rank_file = paths.rank_folder(tmp_path / "runs" / "alive", 0, 0) / paths.RANK_FILE
    info = msgspec.json.decode(rank_file.read_bytes())
    rank_file.write_bytes(msgspec.json.encode(info | {"started_ns": later - 190_000_000_000}))
    monkeypatch.setattr(time, "time_ns", lambda: later)
    assert "  ended without a goodbye  " in scope("runs", "list", tmp_path / "runs").out


def test_a_run_without_black_boxes_is_told_by_its_last_step(
    tmp_path: Path, scope: Callable[..., Done], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its step took 400 s: 300 s after it the run is taken to make the next one, 4,001 s after it for gone."""
    run = write_run(tmp_path / "runs" / "alive", closed=False)
    rank = paths.rank_folder(run, 0, 0)
    (rank / paths.BLACK_BOX_FILE).unlink()
    end_ns = 10**18 + 400 * 10**9
    step = {"kind": "step", "step": 3, "start_ns": 10**18, "end_ns": end_ns, "phases": {"other": 400 * 10**9}}
    (rank / paths.STEPS_FILE).write_text(json.dumps(step) + "\n")
    info = msgspec.json.decode((rank / paths.RANK_FILE).read_bytes())
    (rank / paths.RANK_FILE).write_bytes(msgspec.json.encode(info | {"started_ns": 10**18}))
    for later_s, standing in ((300, "running"), (4_001, "ended without a goodbye")):
        now_ns = end_ns + later_s * 10**9
        monkeypatch.setattr(time, "time_ns", lambda now_ns=now_ns: now_ns)
        assert f"  {standing}  " in scope("runs", "list", tmp_path / "runs").out
        (listed,) = json.loads(scope("runs", "list", tmp_path / "runs", "--json").out)
        assert (listed["standing"], listed["ended"]) == (standing, False)


TRAINING = """
import sys, time
import scope
with scope.Recorder(run_dir=sys.argv[1], run_id=sys.argv[2]) as recorder:
    for batch in recorder.steps(range(10**6)):
        time.sleep(0.01)
"""


def test_ranks_without_a_launcher_that_a_signal_ended(
    tmp_path: Path, scope: Callable[..., Done], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Recorded by the API alone, ended by SIGTERM or SIGKILL: list and show say within seconds how they ended."""
    script = tmp_path / "train.py"
    script.write_text(TRAINING)
    ranks = {
        number: subprocess.Popen([sys.executable, script, tmp_path / "runs" / number.name, number.name])
        for number in (signal.SIGTERM, signal.SIGKILL)
    }
    try:
        deadline = time.monotonic() + 120
        while scope("runs", "list", tmp_path / "runs").out.count("  running  ") < len(ranks):
            assert time.monotonic() < deadline
            time.sleep(0.1)
    finally:
        for number, rank in ranks.items():
            rank.send_signal(number)
            rank.wait(120)
    if sees_all_processes():
        # No limit of time where the table of processes tells.
        for number in ranks:
            said = scope("show", tmp_path / "runs" / number.name).out.splitlines()[0]
            assert said.startswith(f"run {number.name}: ended without a goodbye at ")
    later = time.time_ns() + 7 * 10**9
    monkeypatch.setattr(time, "time_ns", lambda: later)
    assert scope("runs", "list", tmp_path / "runs").out.count("  ended without a goodbye  ") == len(ranks)
    for number in ranks:
        said = scope("show", tmp_path / "runs" / number.name).out.splitlines()[0]
        assert said.startswith(f"run {number.name}: ended without a goodbye at ")


def test_a_world_of_a_million_ranks_is_a_short_answer(tmp_path: Path, scope: Callable[..., Done]) -> None:
    """Whatever a run claims: missing ranks are counted, the first thousand listed, and told as ranges."""
    run = write_run(tmp_path / "run")
    rank_file = paths.rank_folder(run, 0, 0) / paths.RANK_FILE
    info = msgspec.json.decode(rank_file.read_bytes())
    rank_file.write_bytes(msgspec.json.encode(info | {"world_size": 2**20}))
    told = scope("show", run, "--json").out
    assert len(told) < 100_000
    summary = json.loads(told)["summary"]
    assert summary["num_missing_ranks"] == 2**20 - 1
    assert summary["missing_ranks"] == list(range(1, 1_025))
    assert "ranks that have recorded nothing: 1-1024 and 1,047,551 more\n" in scope("show", run).out
    (found,) = (
        one for one in json.loads(scope("doctor", run, "--json").out)["findings"] if one["check"] == "missing_ranks"
    )
    assert found["where"] == "ranks 1-1048575"
