"""Waste, groups, traffic and changes of recorded runs, against figures worked out by hand."""

from __future__ import annotations

import polars as pl

from scope.analysis.recorded import (
    AxisTraffic,
    compare_phases,
    compute_waste,
    mesh_axes,
    summarize_excess_by_group,
    summarize_run,
    summarize_traffic,
)
from scope.analysis.recorded.ranks import RankExcess
from scope.frames.schema import CollectiveTotals, Ranks, RankSteps
from scope.run.schema import GroupInfo, RankInfo


def steps(rows: list[dict[str, object]]) -> pl.LazyFrame:
    """Return the table `RankSteps`; what is not named is 0, or unknown where that is allowed."""
    usual: dict[str, object] = {column: 0 for column in RankSteps.columns() if column.endswith("_ns")}
    usual |= {"attempt": 0, "rank": 0, "step": 0, "num_steps": 1, "num_dropped": 0}
    return pl.DataFrame([usual | row for row in rows], schema=RankSteps.schema(), orient="row").lazy()


def ranks(hosts: list[str]) -> pl.DataFrame:
    """Return the table `Ranks` with one rank on each of the hosts."""
    rows = [
        {"attempt": 0, "rank": rank, "host": host, "pid": rank, "started_ns": 0, "world_size": len(hosts)}
        for rank, host in enumerate(hosts)
    ]
    return pl.DataFrame(rows, schema=Ranks.schema(), orient="row")


def test_waste_is_what_trains_nothing_largest_first() -> None:
    """Input 30, checkpoint 50 and wait 40 ns are waste, forward is not; causes of 0 are left out."""
    frame = steps([{"duration_ns": 200, "input_ns": 30, "checkpoint_ns": 50, "forward_ns": 120, "end_ns": 200}])
    frame = frame.with_columns(pl.lit(40, pl.Int64).alias("communication_wait_ns"))
    summary = summarize_run(ranks(["a"]), frame)
    assert list(compute_waste(summary).items()) == [("checkpoint", 50), ("communication_wait", 40), ("input", 30)]


def info(rank: int, *groups: tuple[str | None, tuple[int, ...]]) -> RankInfo:
    """Return the `rank.json` of a rank with groups of an axis each."""
    return RankInfo(
        schema="1.0",
        run_id="r",
        attempt=0,
        rank=rank,
        started_ns=0,
        host="a",
        pid=1,
        groups=tuple(
            GroupInfo(group=number, name=f"g{number}", ranks=members, mesh_axis=axis)
            for number, (axis, members) in enumerate(groups)
        ),
    )


def test_axes_with_one_group_are_no_groups() -> None:
    """Of tp = {0,1}, {2,3} and dp = all, only tp divides the ranks; a group without an axis counts for nothing."""
    everyone = (0, 1, 2, 3)
    infos = [info(rank, ("tp", (rank & 2, rank | 1)), ("dp", everyone), (None, everyone)) for rank in everyone]
    axes = mesh_axes(infos)
    assert list(axes) == ["tp"]
    assert axes["tp"].rows() == [("0, 1", 0), ("0, 1", 1), ("2, 3", 2), ("2, 3", 3)]


def test_groups_are_compared_by_their_median() -> None:
    """{2, 3} works 40 (lower of 40 and 90) against 10 of {0, 1}; rank 3 is its slowest."""
    excess = pl.DataFrame(
        [
            {"rank": rank, "num_steps": 1, "busy_ns": busy, "peers_busy_ns": 10, "excess_ns": 0, "excess_ratio": 0.0}
            | {"phase": "forward", "phase_excess_ns": 0}
            for rank, busy in enumerate([10, 20, 40, 90])
        ],
        schema=RankExcess.schema(),
        orient="row",
    )
    axes = mesh_axes([info(rank, ("tp", (rank & 2, rank | 1))) for rank in range(4)])
    assert summarize_excess_by_group(excess, axes["tp"]).rows() == [("2, 3", 2, 40, 90, 3), ("0, 1", 2, 10, 20, 1)]


def total(rank: int, group: str, members: list[int] | None, size: int) -> dict[str, object]:
    """Return a row of `CollectiveTotals`: one call."""
    return {
        "attempt": 0,
        "rank": rank,
        "step": 0,
        "group": group,
        "group_ranks": members,
        "mesh_axis": group if members else None,
        "operation": "all_reduce",
        "variant": "plain",
        "control": False,
        "num_calls": 1,
        "in_bytes": size,
        "out_bytes": size,
        "num_timed": 1,
        "duration_ns": 7,
    }


def test_the_tier_of_an_axis_is_where_its_groups_lie() -> None:
    """Tp stays on one host each, dp spans two; a group whose ranks are unknown has no tier."""
    rows = [total(0, "tp", [0, 1], 100), total(1, "tp", [0, 1], 100), total(2, "tp", [2, 3], 100)]
    rows += [total(0, "dp", [0, 2], 1_000), total(0, "#3", None, 5)]
    frame = pl.DataFrame(rows, schema=CollectiveTotals.schema(), orient="row")
    table = summarize_traffic(frame, ranks(["a", "a", "b", "b"]))
    shown = table.select(
        AxisTraffic.mesh_axis,
        AxisTraffic.tier,
        AxisTraffic.num_groups,
        AxisTraffic.max_hosts,
        AxisTraffic.in_bytes,
        AxisTraffic.duration_ns,
    )
    assert shown.rows() == [
        ("dp", "network", 1, 2, 1_000, 7),
        ("tp", "node", 2, 1, 300, 21),
        (None, None, 1, None, 5, 7),
    ]


def test_phases_are_compared_by_their_mean_a_step() -> None:
    """Input grows from 10 to (30 + 20) / 2; folded steps count as many; disturbed ones are left out."""
    before = steps([{"input_ns": 10, "forward_ns": 5}, {"input_ns": 900, "disturbed": "capture"}])
    after = steps([{"input_ns": 30, "forward_ns": 5}, {"input_ns": 20, "forward_ns": 5}])
    assert compare_phases(before, after).rows() == [("input", 10, 25, 15), ("forward", 5, 5, 0)]
    folded = steps([{"input_ns": 100, "forward_ns": 50, "num_steps": 10}])
    assert compare_phases(before, folded).rows() == [("input", 10, 10, 0), ("forward", 5, 5, 0)]


def test_nothing_is_compared_with_nothing() -> None:
    """A side without an undisturbed step gives no rows, not zeros."""
    some = steps([{"input_ns": 10}])
    assert compare_phases(some, some.filter(pl.lit(value=False))).is_empty()
    assert compare_phases(some.filter(pl.lit(value=False)), some).is_empty()
