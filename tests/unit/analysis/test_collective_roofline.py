"""Bus bandwidth against the ceiling of the links, worked out by hand."""

from __future__ import annotations

from statistics import median_high
from typing import TYPE_CHECKING

import pytest

from scope.analysis.collective_roofline import LinkRates, compute_collective_roofline
from scope.analysis.collectives import Collectives, compute_collectives, with_tiers
from scope.report.rows import to_records
from scope.report.sections.collectives import collective_roofline_table
from scope.testing import scenarios
from scope.testing.jobs import TrainingJob
from scope.testing.layout import Layout
from scope.testing.scenarios import Scenario
from scope.trace import ReadOptions, load

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Collectives:
    """Collectives of a job on two nodes, one of whose links across is slow."""
    folder = tmp_path_factory.mktemp("nodes")
    scenarios.several_nodes().write(folder)
    return compute_collectives(load([str(folder)], options=ReadOptions(use_cache=False), processes=1))


def test_ceiling_is_that_of_the_tier(nodes: Collectives) -> None:
    """Inside a node NVLink is the ceiling; across, the NICs of the one rank that a group has on each node."""
    result = compute_collective_roofline(nodes, links=LinkRates(node_bytes_per_s=450e9, nic_bytes_per_s=50e9)).check()
    inside = result.points.filter(result.points["tier"] == "node").row(0, named=True)
    across = result.points.filter(result.points["tier"] == "network").row(0, named=True)
    # Of each of 2 groups 4 steps x (2 forward + 2 backward) all_reduce of 8,388,608 BF16 elements.
    assert (inside["num_collectives"], inside["message_bytes"], inside["num_ranks"]) == (16, 16_777_216, 4)
    assert inside["ceiling_bytes_per_s"] == 450e9
    assert inside["attained_ratio"] == pytest.approx(400 / 450, rel=1e-3)
    assert across["num_ranks_on_narrowest_node"] == 1
    assert across["ceiling_bytes_per_s"] == 50e9
    # The largest total of the network is that of the slow link, which keeps a quarter of 40 GB/s.
    assert across["median_busbw_bytes_per_s"] == pytest.approx(10e9, rel=1e-3)
    assert not result.points["is_above_ceiling"].any()
    assert (result.num_collectives, result.num_without_bandwidth) == (48, 0)


def test_above_the_ceiling_is_flagged(nodes: Collectives) -> None:
    """A bandwidth above what the links allow is marked, not clipped."""
    result = compute_collective_roofline(nodes, links=LinkRates(node_bytes_per_s=300e9, nic_bytes_per_s=50e9))
    inside = result.points.filter(result.points["tier"] == "node").row(0, named=True)
    assert inside["is_above_ceiling"]
    assert inside["attained_ratio"] == pytest.approx(400 / 300, rel=1e-3)


def test_unknown_links_say_so(nodes: Collectives) -> None:
    """Without the rate of a link or a tier there is no ceiling, and the reason stands with the point."""
    result = compute_collective_roofline(nodes, links=LinkRates())
    for name in ("ceiling_bytes_per_s", "attained_ratio", "is_above_ceiling"):
        assert result.points[name].null_count() == result.points.height == 6
    assert set(result.points["reason"].to_list()) == {
        "the link inside the node is unknown: give --gpu",
        "the rate of the network is unknown",
    }
    for row in to_records(collective_roofline_table(result)):
        assert row["is_above_ceiling"] is None
        assert "unknown" in row["absent"]["is_above_ceiling"]


def test_each_group_is_held_against_its_sisters(nodes: Collectives) -> None:
    """A slow link shows in its own group alone, without any ceiling: its sisters reach four times as much."""
    points = compute_collective_roofline(nodes, links=LinkRates()).points
    ranks = dict(nodes.groups.select("group_id", "ranks").iter_rows())
    found = {tuple(ranks[row["group_id"]]): row for row in points.iter_rows(named=True)}
    assert {each: row["num_sisters"] for each, row in found.items()} == {
        (0, 1, 2, 3): 1, (4, 5, 6, 7): 1, (0, 4): 3, (1, 5): 3, (2, 6): 3, (3, 7): 3,
    }  # fmt: skip
    for group, row in found.items():
        assert row["sister_ratio"] == pytest.approx(0.25 if group == (1, 5) else 1, rel=1e-3)
        assert row["sister_busbw_bytes_per_s"] == pytest.approx(400e9 if len(group) == 4 else 40e9, rel=1e-3)


def test_a_group_alone_has_no_sisters(tmp_path: Path) -> None:
    """Of an axis with one group nothing is said of sisters, and the table says why."""
    job = TrainingJob(layout=Layout(dp=4), num_steps=2)
    Scenario(layout=job.layout, simulation=job.run()).write(tmp_path)
    collectives = compute_collectives(load([str(tmp_path)], options=ReadOptions(use_cache=False), processes=1))
    result = compute_collective_roofline(collectives, links=LinkRates())
    assert result.points["num_sisters"].to_list() == [0]
    assert result.points["sister_busbw_bytes_per_s"].to_list() == [None]
    (row,) = to_records(collective_roofline_table(result))
    assert row["group"] == "dp [0-3]"
    assert "no other group of its axis" in row["absent"]["sister_ratio"]


def test_tiers_of_groups(nodes: Collectives) -> None:
    """A group with a rank of unknown node has no tier; the narrowest node is that with fewest of its ranks."""
    uneven = {rank: "a" if rank < 3 else "b" for rank in range(8)}
    tiers = {
        tuple(row["ranks"]): (row["tier"], row["num_ranks_on_narrowest_node"])
        for row in with_tiers(nodes.groups, nodes=uneven).iter_rows(named=True)
    }
    assert tiers[0, 1, 2, 3] == ("network", 1)
    assert tiers[4, 5, 6, 7] == ("node", 4)
    del uneven[7]
    unknown = with_tiers(nodes.groups, nodes=uneven)
    assert unknown["tier"].null_count() == 2


def test_both_directions_of_a_pair_are_one_link(tmp_path: Path) -> None:
    """Of eight pipeline links one is slow: each direction has the seven others as sisters, and never its own other."""
    job = TrainingJob(layout=Layout(dp=4, tp=2, pp=2, ranks_per_node=4), num_steps=2, slow_groups={"mesh_pp:1": 0.3})
    Scenario(layout=job.layout, simulation=job.run()).write(tmp_path)
    collectives = compute_collectives(load([str(tmp_path)], options=ReadOptions(use_cache=False), processes=1))
    points = compute_collective_roofline(collectives, links=LinkRates()).points
    pairs = dict(collectives.groups.filter("is_pair").select("group_id", "ranks").iter_rows())
    rows = [row for row in points.iter_rows(named=True) if row["group_id"] in pairs]
    ends = [frozenset(pairs[row["group_id"]]) for row in rows]
    assert (len(rows), len(set(ends))) == (16, 8)
    for row, own in zip(rows, ends, strict=True):
        others = [each["median_busbw_bytes_per_s"] for each, link in zip(rows, ends, strict=True) if link != own]
        assert row["num_sisters"] == 7
        assert row["sister_busbw_bytes_per_s"] == median_high(others)
        assert row["sister_ratio"] == pytest.approx(0.3 if own == {1, 9} else 1, rel=1e-3)
