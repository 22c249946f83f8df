"""`scope show`, `scope watch --once` and the dashboard name the same slowest rank."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from dashboards.sources.runs import LiveRun
from exporters import training_series as t
from exporters.training import ThisNode, TrainingCollector
from scope.cli.watch import watch
from scope.frames import open_run
from scope.report.run_state import describe_run, render_run
from scope.testing.layout import Layout
from scope.testing.runs import SyntheticRun

if TYPE_CHECKING:
    from pathlib import Path

MS = 1_000_000
START_NS = 1_790_000_000 * 1_000_000_000
STEP_NS = 100 * MS
BUSY_NS = {0: 60 * MS, 1: 70 * MS, 2: 90 * MS, 3: 90 * MS}
"""Of a pipeline of two stages: ranks 0 and 1 are one, 2 and 3 the other, which has more to do."""


def write_pipeline(folder: Path, *, attempts: int = 2) -> Path:
    """Write a run of two stages with two replicas each; in its first attempt rank 0 was the slow one of its stage."""
    folder.mkdir()
    run = {"schema": "1.0", "run_id": folder.name, "started_ns": START_NS, "world_size": 4}
    (folder / "run.json").write_text(json.dumps(run))
    for attempt in range(attempts):
        for rank in BUSY_NS:
            place = folder / f"attempt-{attempt:03d}" / "ranks" / f"{rank:05d}"
            place.mkdir(parents=True)
            (place / "rank.json").write_text(json.dumps(_info(folder.name, attempt, rank)))
            swapped = {0: 1, 1: 0}.get(rank, rank) if attempt == 0 else rank
            lines = [json.dumps(_step(attempt, step, BUSY_NS[swapped])) + "\n" for step in range(10)]
            (place / "steps.jsonl").write_text("".join(lines))
    return folder


def _info(run_id: str, attempt: int, rank: int) -> dict[str, Any]:
    stage = [0, 1] if rank < 2 else [2, 3]
    begin = START_NS + attempt * 3_600_000_000_000
    return {
        "schema": "1.0",
        "run_id": run_id,
        "attempt": attempt,
        "rank": rank,
        "started_ns": begin,
        "host": "a",
        "pid": 100 + rank,
        "world_size": 4,
        "ended_ns": begin + 10 * STEP_NS,
        "groups": [
            {"group": 0, "name": "default_pg", "ranks": [0, 1, 2, 3], "backend": "gloo"},
            {"group": 1, "name": "dp", "ranks": stage, "backend": "gloo", "mesh_axis": "dp_replicate"},
        ],
    }


def _step(attempt: int, step: int, busy_ns: int) -> dict[str, Any]:
    start = START_NS + attempt * 3_600_000_000_000 + step * STEP_NS
    return {
        "kind": "step",
        "step": step,
        "start_ns": start,
        "end_ns": start + STEP_NS,
        "phases": {"forward": busy_ns - 30 * MS, "backward": STEP_NS - busy_ns + 30 * MS},
        "communication_wait_ns": STEP_NS - busy_ns,
        "communication_wait_coverage_ratio": 1.0,
    }


def test_a_pipeline_blames_the_slow_replica_and_not_the_long_stage(tmp_path: Path) -> None:
    """Rank 1 works 10 ms longer than rank 0, its only peer; stage 1 works longer by design and in both is not blamed.

    The first attempt, in which rank 0 was slow, is past.
    """
    folder = write_pipeline(tmp_path / "pipeline")
    state = describe_run(open_run(folder), now_ns=START_NS)
    live = LiveRun(run=open_run(folder), refresh_s=1.0)
    live.refresh()
    assert state["slowest_ranks"] == live.excess().to_dicts()
    worst = state["slowest_ranks"][0]
    assert (worst["rank"], worst["busy_ns"], worst["excess_ns"]) == (1, 70 * MS, 10 * MS)
    assert {row["rank"]: row["excess_ns"] for row in state["slowest_ranks"]} == {0: 0, 1: 10 * MS, 2: 0, 3: 0}
    named = "slowest ranks, waiting not counted\n  rank 1: 70 ms a step, 10 ms more than its peers, "
    assert named in render_run(state)
    assert named in CliRunner().invoke(watch, ["--once", str(folder)]).output


@pytest.mark.parametrize("replicas", [2, 1])
def test_every_face_compares_the_same_ranks(tmp_path: Path, replicas: int) -> None:
    """A synthetic pipeline of two stages: `scope show`, its JSON, the dashboard and the metric's label agree on peers.

    Ranks of a stage are numbered together; of stages without replicas nobody is compared, which is said.
    """
    folder = tmp_path / "pipeline"
    SyntheticRun(layout=Layout(dp=replicas, pp=2), num_steps=20).write(folder)
    truth = {rank: rank // replicas * replicas for rank in range(2 * replicas)}
    opened = open_run(folder)
    last_ns = opened.steps()["end_ns"].max()
    assert isinstance(last_ns, int)
    state = describe_run(opened, now_ns=last_ns)
    assert state["peers"] == truth
    assert ("ranks are not compared" in render_run(state)) == (replicas == 1)
    # A heading without rows would read as if somebody was slow.
    assert ("slowest ranks" in render_run(state)) == any(row["is_notable"] for row in state["slowest_ranks"])
    live = LiveRun(run=open_run(folder), refresh_s=1.0)
    live.refresh()
    assert live.peers() == truth
    busy = {row["rank"]: row["peers_busy_ns"] for row in state["slowest_ranks"]}
    for rank, lowest in truth.items():
        assert busy[rank] == busy[lowest]
    # The ranks of the synthetic run are on other hosts than this one.
    host = opened.rank_infos[0].host
    collector = TrainingCollector(
        (str(folder),),
        lambda *_: None,
        registry=tmp_path / "registry",
        now_ns=lambda: last_ns,
        node=ThisNode(host, None, lambda _: None),
    )
    collector.read()
    samples = next(values for metric, values in collector.series() if metric == t.INFO)
    labels = {int(each[t.INFO.labels.index("rank")]): each[t.INFO.labels.index("peers")] for each in samples}
    by_label = {rank: min(other for other, name in labels.items() if name == labels[rank]) for rank in labels}
    assert by_label == truth
