"""A process group has one name for people wherever it is told of, and torch's own in what programs read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import polars as pl
import pytest

from scope.analysis.recorded import find_verdicts
from scope.frames import open_run
from scope.report.run_state import describe_run, render_run
from scope.report.watching import look_at_run
from scope.run import layout, paths
from scope.run.blackbox import BlackBox, BlackBoxIdentity
from scope.run.schema import SCHEMA_VERSION, CollectiveTotal, GroupInfo, RankInfo, RunInfo, StepRecord

if TYPE_CHECKING:
    from pathlib import Path

S = 1_000_000_000
BEGAN = 1_700_000_000 * S
NOW = BEGAN + 60 * S


def write_hang(folder: Path, groups: tuple[GroupInfo, ...]) -> None:
    """Write two ranks that used each group in one step; rank 1 then missed a call of the first."""
    folder.mkdir()
    info = RunInfo(schema=SCHEMA_VERSION, run_id="r", started_ns=BEGAN, world_size=2)
    (folder / paths.RUN_FILE).write_bytes(msgspec.json.encode(info))
    totals = tuple(
        CollectiveTotal(group=group.group, operation="all_reduce", num_calls=1, in_bytes=8, out_bytes=8)
        for group in groups
    )
    for rank in range(2):
        own = paths.rank_folder(folder, 0, rank)
        own.mkdir(parents=True)
        known = RankInfo(
            schema=SCHEMA_VERSION, run_id="r", attempt=0, rank=rank, started_ns=BEGAN, host="h", pid=1, world_size=2,
            groups=groups,
        )  # fmt: skip
        (own / paths.RANK_FILE).write_bytes(msgspec.json.encode(known))
        step = StepRecord(step=0, start_ns=BEGAN, end_ns=BEGAN + S, phases={"other": S}, collectives=totals)
        (own / paths.STEPS_FILE).write_bytes(msgspec.json.encode(step) + b"\n")
        identity = BlackBoxIdentity(
            rank=rank, attempt=0, world_size=2, pid=1, process_start_ticks=None, wall_offset_ns=0
        )
        box = BlackBox(own / paths.BLACK_BOX_FILE, identity)
        box.write_state(layout.STATE.pack(1, 0, BEGAN + S, BEGAN + S, NOW, 0, 0, b"backward"))
        box.write_pulse(layout.PULSE.pack(NOW, 1, 0, 0, 0, -1))
        box.write_groups([layout.GROUP.pack(groups[0].group, 5 - rank, 4, NOW, NOW, 7, 0, 0, 0, 0, 0, 0)])
        box.close()


@pytest.mark.parametrize(
    ("facts", "title"),
    [
        ({"name": "0", "description": "default_pg"}, "default_pg"),
        ({"name": "7", "description": "mesh_tp", "mesh_axis": "tp"}, "tp"),
        ({"name": "5", "description": "experts"}, "experts"),
        ({"name": "5", "description": "undefined"}, "5 (ranks 0-1)"),
    ],
    ids=["default", "axis", "described", "undescribed"],
)
def test_a_hang_names_its_group_as_people_do(tmp_path: Path, facts: dict[str, Any], title: str) -> None:
    """State and finding say its title, ranks beside a mere number; `missed` and `group` hold what torch calls it."""
    write_hang(tmp_path / "run", (GroupInfo(group=0, ranks=(0, 1), **facts),))
    run = open_run(tmp_path / "run")
    state = describe_run(run, now_ns=NOW)
    assert state["state_in_words"].endswith(f"rank 1 has not arrived at unknown 5 of group {title}")
    assert [(each["group"], each["group_title"]) for each in state["state"]["missed"]] == [(facts["name"], title)]
    (found,) = find_verdicts(look_at_run(run, now_ns=NOW))
    assert found.summary == f"rank 1 has not arrived at unknown 5 of group {title}"
    assert found.group == facts["name"]


def test_collectives_of_a_run_name_their_groups(tmp_path: Path) -> None:
    """One row of the default group and one of an axis; two groups of one size without an axis are counted.

    One whose name is a number and that alone has its size is told by its ranks.
    """
    groups = [("0", None), ("7", "tp"), ("8", None), ("9", None), ("11", None)]
    members = {"8": (0, 1, 2), "9": (0, 1, 2), "11": (0, 1, 2, 5)}
    write_hang(
        tmp_path / "run",
        tuple(
            GroupInfo(group=place, name=name, ranks=members.get(name, (0, 1)), mesh_axis=axis)
            for place, (name, axis) in enumerate(groups)
        ),
    )
    state = describe_run(open_run(tmp_path / "run"), now_ns=NOW)
    rows = pl.DataFrame(state["collectives"]).select("mesh_axis", "group", "num_groups").sort("group", nulls_last=True)
    assert rows.rows() == [(None, "0", 1), (None, "11", 1), ("tp", "7", 1), (None, None, 2)]
    lines = [line.split() for line in render_run(state).splitlines() if line.startswith("  all_reduce")]
    assert sorted(line[1:3] for line in lines) == [
        ["11", "(ranks"], ["2", "groups"], ["default_pg", "2"], ["tp", "2"],
    ]  # fmt: skip
    assert any(line[1:5] == ["11", "(ranks", "0-2,", "5)"] for line in lines)
