"""Which ranks are compared with which: by the places of a synthetic layout, which are known without any rank file."""

from __future__ import annotations

import msgspec
import pytest

from scope.analysis.recorded import is_nobody_compared, peer_sets
from scope.run.peers import is_data_parallel, name_place
from scope.run.schema import GroupInfo, RankInfo
from scope.testing.layout import Layout

AXES = ("tp", "cp", "dp", "ep", "pp")


def infos_of(layout: Layout, *, dp_name: str = "dp_replicate") -> list[RankInfo]:
    """Return the rank files of a layout: the world, and a group for each axis of more than one rank."""
    return [
        RankInfo(
            schema="1.0", run_id="r", attempt=0, rank=rank, started_ns=1, host="a", pid=1,
            world_size=layout.world_size,
            groups=(
                GroupInfo(group=0, name="world", ranks=tuple(range(layout.world_size))),
                *(
                    GroupInfo(group=1, name=axis, ranks=group.ranks, mesh_axis=dp_name if axis == "dp" else axis)
                    for axis in AXES
                    if (group := layout.group(axis, rank)) is not None
                ),
            ),
        )
        for rank in range(layout.world_size)
    ]  # fmt: skip


def partition(names: dict[int, object]) -> set[frozenset[int]]:
    """Return the sets of ranks that have the same name."""
    return {frozenset(rank for rank, each in names.items() if each == name) for name in names.values()}


@pytest.mark.parametrize("dp_name", ["dp_replicate", "dp_shard", "fsdp", "DDP"])
@pytest.mark.parametrize(
    "layout",
    [
        Layout(dp=4, pp=2),
        Layout(dp=2, tp=2, pp=2),
        Layout(dp=2, cp=2, tp=2),
        Layout(dp=4, ep=2),
        Layout(dp=2, cp=2, ep=4, pp=2),
    ],
)
def test_peers_are_equal_on_every_axis_but_data_parallel(layout: Layout, dp_name: str) -> None:
    """Equal tensor, context and pipeline places, whatever the data parallel axis is called; experts lie within."""
    infos = infos_of(layout, dp_name=dp_name)
    truth = {rank: tuple(layout.place(rank)[axis] for axis in ("tp", "cp", "pp")) for rank in range(layout.world_size)}
    assert partition(dict(peer_sets(infos))) == partition(dict(truth))
    assert partition({info.rank: name_place(info) for info in infos}) == partition(dict(truth))
    assert not is_nobody_compared(peer_sets(infos))


@pytest.mark.parametrize("layout", [Layout(dp=2, pp=3), Layout(dp=2, tp=2, pp=2), Layout(dp=3, cp=2, pp=2)])
def test_a_pipeline_whose_axis_was_never_used_is_told_by_its_replicas(layout: Layout) -> None:
    """Stages that send over the world group name no axis; where each stage's replicas begin tells them apart."""
    infos = [
        msgspec.structs.replace(info, groups=tuple(group for group in info.groups if group.mesh_axis != "pp"))
        for info in infos_of(layout)
    ]
    truth = {rank: tuple(layout.place(rank)[axis] for axis in ("tp", "cp", "pp")) for rank in range(layout.world_size)}
    assert partition(dict(peer_sets(infos))) == partition(dict(truth))
    assert all(" from" in f" {name_place(info)}" for info in infos)


def test_replicas_of_shards_are_one_set_in_each_stage() -> None:
    """Two stages of two replicas of two shards, the stage unnamed: ranks 0-3 and 4-7, by their bits."""
    infos = [
        RankInfo(
            schema="1.0", run_id="r", attempt=0, rank=rank, started_ns=1, host="a", pid=1, world_size=8,
            groups=(
                GroupInfo(group=0, name="0", ranks=(rank & ~2, rank | 2), mesh_axis="dp_replicate"),
                GroupInfo(group=1, name="1", ranks=(rank & ~1, rank | 1), mesh_axis="dp_shard"),
            ),
        )
        for rank in range(8)
    ]  # fmt: skip
    assert peer_sets(infos) == {rank: rank & 4 for rank in range(8)}


def test_stages_without_replicas_are_compared_with_nobody() -> None:
    """A pipeline of four ranks, and no other axis: each stage has work of its own."""
    infos = infos_of(Layout(pp=4))
    assert peer_sets(infos) == {0: 0, 1: 1, 2: 2, 3: 3}
    assert [name_place(info) for info in infos] == ["pp0", "pp1", "pp2", "pp3"]
    assert is_nobody_compared(peer_sets(infos))


def test_shards_of_one_model_are_peers_where_nothing_is_replicated() -> None:
    """Tensor parallel ranks of one stage hold equal shares of its work."""
    infos = infos_of(Layout(tp=2, pp=2))
    assert peer_sets(infos) == {0: 0, 1: 0, 2: 2, 3: 2}
    assert [name_place(info) for info in infos] == ["pp0", "pp0", "pp1", "pp1"]
    assert peer_sets(infos_of(Layout(tp=4))) == dict.fromkeys(range(4), 0)


def test_without_named_axes_nothing_tells_ranks_apart() -> None:
    """Groups that no mesh has made bear no name; a single rank has nobody beside it."""
    infos = [
        msgspec.structs.replace(info, groups=tuple(msgspec.structs.replace(g, mesh_axis=None) for g in info.groups))
        for info in infos_of(Layout(dp=2, pp=2))
    ]
    assert peer_sets(infos) == {}
    assert {name_place(info) for info in infos} == {""}
    assert not is_nobody_compared({})
    assert not is_nobody_compared({0: 0})


def test_flattened_axes_tell_nothing() -> None:
    """What lies along several axes at once is data parallel only where all of them are, and gives no place."""
    assert is_data_parallel("dp_shard+dp_replicate")
    assert not is_data_parallel("dp_shard+cp")
    groups = (
        GroupInfo(group=0, name="0", ranks=(4, 5), mesh_axis="tp"),
        GroupInfo(group=1, name="1", ranks=(5, 7), mesh_axis="dp_shard"),
        GroupInfo(group=2, name="2", ranks=(5, 7), mesh_axis="dp_shard+cp"),
        GroupInfo(group=3, name="3", ranks=(1, 2), mesh_axis="pp"),
    )
    info = RankInfo(schema="1.0", run_id="r", attempt=0, rank=5, started_ns=1, host="a", pid=1, groups=groups)
    assert name_place(info) == "tp1 from5"
    assert name_place(msgspec.structs.replace(info, world_size=4)) == "tp1"
