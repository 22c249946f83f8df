"""`scope doctor` of a run that hung and was ended from outside: rank folders and black boxes made by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from click.testing import CliRunner
from made_boxes import state

from scope.cli.doctor import doctor
from scope.report import watching
from scope.run import paths
from scope.run.schema import SCHEMA_VERSION, GroupInfo, RankInfo, RunInfo, Verdict

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from scope.analysis.recorded import RunState

S = 1_000_000_000
BEGAN = 1_700_000_000 * S
"""Some instant of the year 2023, as all that a run directory holds is since the epoch."""


def write_run(folder: Path) -> Path:
    """Write a run of two ranks that SIGTERM ended in its second 900."""
    folder.mkdir()
    run = RunInfo(schema=SCHEMA_VERSION, run_id="r", started_ns=BEGAN, world_size=2)
    (folder / paths.RUN_FILE).write_bytes(msgspec.json.encode(run))
    for rank in range(2):
        own = paths.rank_folder(folder, 0, rank)
        own.mkdir(parents=True)
        known = RankInfo(
            schema=SCHEMA_VERSION, run_id="r", attempt=0, rank=rank, started_ns=BEGAN, host="h", pid=rank + 1,
            ended_ns=BEGAN + 900 * S, exit_reason="terminated by signal 15",
            groups=(GroupInfo(group=0, name="world", ranks=(0, 1)),),
        )  # fmt: skip
        (own / paths.RANK_FILE).write_bytes(msgspec.json.encode(known))
    return folder


def be_still_from(second: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the last step end in a second; usual ones take 1 s, and rank 1 is a call behind."""
    boxes = {rank: replace(state(rank, {0: (7 - rank, rank)}), closed=True) for rank in range(2)}
    assess = watching.assess_run

    def with_boxes(infos: Sequence[RankInfo], _: object, **known: Any) -> RunState:
        return assess(infos, boxes, **{**known, "last_step_ns": BEGAN + second * S, "usual_ns": S})

    monkeypatch.setattr(watching, "assess_run", with_boxes)


HANG = "CRITICAL killed when no step had ended for 50 s: rank 1 had not arrived at all_reduce 7 of group world"


@pytest.mark.parametrize(("last_step_s", "is_told"), [(850, True), (899, False)])
def test_who_had_not_arrived_when_a_run_was_ended_is_critical(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, last_step_s: int, is_told: bool
) -> None:
    """The last step ended in second 850, usual ones take 1 s: 50 s of a hang, by rank 1, which is a call behind."""
    run = write_run(tmp_path / "a")
    be_still_from(last_step_s, monkeypatch)
    done = CliRunner().invoke(doctor, [str(run)])
    assert (HANG in done.output) == is_told
    assert ("Nothing is wrong" in done.output) != is_told
    assert done.exit_code == is_told


@pytest.mark.parametrize(("kind", "is_told"), [("straggler", True), ("hang", False)])
def test_another_finding_hides_no_hang(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, is_told: bool
) -> None:
    """A straggler that was on record before stands beside the hang; a hang that was found then is told once."""
    run = write_run(tmp_path / "a")
    be_still_from(850, monkeypatch)
    found = Verdict(time_ns=BEGAN + 800 * S, kind=kind, severity="warning", summary="SEEN", attempt=0)
    monkeypatch.setattr(watching, "find_findings", lambda *_: [found])
    output = CliRunner().invoke(doctor, [str(run)]).output
    assert "SEEN" in output
    assert (HANG in output) == is_told


def test_nothing_of_a_run_turns_the_terminal_by_json(tmp_path: Path) -> None:
    """Its id stands there in escapes, which a program reads as what it is."""
    run = write_run(tmp_path / "a")
    name = "r\x9b31m\u202e"
    info = RunInfo(schema=SCHEMA_VERSION, run_id=name, started_ns=BEGAN, world_size=2)
    (run / paths.RUN_FILE).write_bytes(msgspec.json.encode(info))
    output = CliRunner().invoke(doctor, [str(run), "--json"]).output
    assert output.isascii()
    assert json.loads(output)["checked"].startswith(f"run {name}: ")
