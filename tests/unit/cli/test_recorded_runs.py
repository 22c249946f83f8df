"""`scope show` and `scope runs`: text and documents, mistakes, hostile names, torn files."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import msgspec
import pytest

from scope.run import paths
from scope.run.clock import read_anchor
from scope.run.identity import write_run_info
from scope.run.reader import read_run_info
from scope.run.schema import SCHEMA_VERSION, RankInfo, StepRecord
from scope.run.writer import RankWriter, StepDraft

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

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
    assert sorted(line.split()[0] for line in listed.out.splitlines()) == ["first", "first"]
    assert {"ended", "running or killed"} == {
        state for state in ("ended", "running or killed") if f"  {state}  " in listed.out
    }
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


def test_a_link_is_not_deleted(tmp_path: Path, scope: Callable[..., Done]) -> None:
    """A link to a run is refused, and what it leads to stands."""
    run = write_run(tmp_path / "first")
    (tmp_path / "link").symlink_to(run)
    assert scope("runs", "delete", tmp_path / "link").code == 3
    assert msgspec.json.decode((run / paths.RUN_FILE).read_bytes())["run_id"] == "first"
