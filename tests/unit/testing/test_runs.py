"""Synthetic run directories are read like recorded ones, and hold what was planted."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import polars as pl
import pytest

from scope.errors import UsageError
from scope.frames.run import open_run
from scope.run.reader import RunReader
from scope.testing.layout import Layout
from scope.testing.runs import SyntheticRun
from scope.units import NS_PER_MS

if TYPE_CHECKING:
    from pathlib import Path

RUN = SyntheticRun(
    layout=Layout(dp=2, tp=2, ranks_per_node=2),
    num_steps=350,
    num_whole_steps=120,
    straggler=3,
    slow_steps=range(150, 350),
    slow_input_rank=0,
    slow_input_steps=range(300, 350),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run directory."""
    path = tmp_path_factory.mktemp("runs") / "synthetic-run"
    RUN.write(path)
    return path


def test_every_step_is_there_and_adds_up(folder: Path) -> None:
    """Folded and whole steps cover the run without a gap, and the phases sum to the length exactly."""
    run = open_run(folder)
    steps = run.steps()
    assert run.problems == []
    assert run.info().synthetic
    for rank in range(4):
        mine = steps.filter(pl.col("rank") == rank).sort("step")
        assert mine["num_steps"].sum() == 350
        assert mine["end_ns"].to_list()[:-1] == mine["start_ns"].to_list()[1:]
        assert mine["duration_ns"].sum() == sum(RUN.length_ns(step) for step in range(350))
        phases = mine.select(pl.sum_horizontal(pl.col("^(input|host_to_device|forward|backward|optimizer|other)_ns$")))
        assert phases.to_series().to_list() == mine["duration_ns"].to_list()


def test_planted_ranks_wait_less(folder: Path) -> None:
    """Who is late waits less than the others by just its lateness, and steps are longer by what the latest imposes."""
    steps = open_run(folder).steps().filter(pl.col("num_steps") == 1, pl.col("step") >= 300)
    waits = {rank: set(steps.filter(pl.col("rank") == rank)["communication_wait_ns"].to_list()) for rank in range(4)}
    assert waits == {0: {20 * NS_PER_MS}, 1: {45 * NS_PER_MS}, 2: {45 * NS_PER_MS}, 3: {5 * NS_PER_MS}}
    inputs = steps.filter(pl.col("rank") == 0)["input_ns"].unique().to_list()
    assert inputs == [27 * NS_PER_MS]
    assert RUN.imposed_ns(300) == 40 * NS_PER_MS
    assert RUN.imposed_ns(100) == 0


def test_calls_and_black_box(folder: Path) -> None:
    """The newest steps hold call records whose ranks end together, and every black box is whole."""
    run = open_run(folder)
    calls = run.collectives().filter(pl.col("step") == 349)
    assert calls.height == 4
    assert calls["completed_ns"].n_unique() == 1
    assert calls.filter(pl.col("rank") == 3)["blocked_ns"].item() == 5 * NS_PER_MS
    assert set(calls["mesh_axis"].cast(pl.String).to_list()) == {"dp_replicate"}
    for reader in RunReader(folder).ranks():
        state = reader.state()
        assert state is not None
        assert (state.step, state.num_steps, state.closed) == (349, 350, False)
        assert {group.completed for group in state.groups} == {350 * 128, 350 * 8}
    (verdict,) = run.verdicts()
    assert verdict.ranks == (3,)
    assert verdict.evidence["imposed_wait_ns"] == 40 * NS_PER_MS


def test_mfu_is_that_of_the_formula(folder: Path) -> None:
    """Model FLOPs of a step are 6 N per token over the ranks that share the model."""
    step = open_run(folder).steps().filter(pl.col("num_steps") == 1).row(0, named=True)
    assert step["model_flop"] == 6 * 7e9 * 8_192 / 2


def test_planted_rank_must_exist() -> None:
    """A straggler outside the layout is refused."""
    with pytest.raises(UsageError, match="rank"):
        SyntheticRun(layout=Layout(dp=2), straggler=2)


def test_no_collective_is_faster_than_the_links(tmp_path: Path) -> None:
    """On one node nothing beats the 450 GB/s that the NVLinks of an H100 carry one way; the calls fit into the step."""
    run = SyntheticRun(layout=Layout(dp=4, tp=2), num_steps=10, num_whole_steps=10, num_parameters=150_000_000)
    run.write(tmp_path / "run")
    line = json.loads((tmp_path / "run/attempt-000/ranks/00000/steps.jsonl").read_text().splitlines()[0])
    for each in line["collectives"]:
        ranks = {1: 2, 2: 4}[each["group"]]
        moved = each["in_bytes"] * 2 * (ranks - 1) / ranks
        assert 1e9 < moved / (each["duration_ns"] / 1e9) < 450e9
    assert sum(each["duration_ns"] for each in line["collectives"]) < line["end_ns"] - line["start_ns"]
