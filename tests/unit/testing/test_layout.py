"""Parallel layouts: every rank is in exactly one group of each axis, and groups are those of the usual numbering."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scope.errors import UsageError
from scope.testing.layout import Axis, Layout

SIZES = st.sampled_from([1, 2, 3, 4])
AXES: tuple[Axis, ...] = ("dp", "tp", "pp", "cp", "ep")


@given(SIZES, SIZES, SIZES, SIZES, st.data())
def test_groups_of_each_axis_partition_the_world(dp: int, tp: int, pp: int, cp: int, data: st.DataObject) -> None:
    """The groups of an axis hold each rank once and have the size of the axis."""
    ep = data.draw(st.sampled_from([size for size in range(1, dp * cp + 1) if dp * cp % size == 0]))
    layout = Layout(dp=dp, tp=tp, pp=pp, cp=cp, ep=ep)
    for axis in AXES:
        size = getattr(layout, axis)
        groups = {layout.group(axis, rank) for rank in range(layout.world_size)}
        if size == 1:
            assert groups == {None}
            continue
        ranks = [rank for group in groups if group is not None for rank in group.ranks]
        assert sorted(ranks) == list(range(layout.world_size))
        assert {len(group.ranks) for group in groups if group is not None} == {size}


def test_usual_numbering() -> None:
    """Tensor parallel ranks are neighbours, pipeline stages are furthest apart."""
    layout = Layout(dp=2, tp=2, pp=2)
    found = {group.description: [] for group in layout.groups}
    for group in layout.groups:
        found[group.description].append(group.ranks)
    assert found == {
        "default_pg": [(0, 1, 2, 3, 4, 5, 6, 7)],
        "mesh_tp": [(0, 1), (2, 3), (4, 5), (6, 7)],
        "mesh_dp": [(0, 2), (1, 3), (4, 6), (5, 7)],
        "mesh_pp": [(0, 4), (1, 5), (2, 6), (3, 7)],
    }
    assert layout.stage_peer(1, stage=1) == 5
    assert layout.place(6) == {"tp": 0, "cp": 0, "dp": 1, "pp": 1, "ep": 0}


@pytest.mark.parametrize("sizes", [{"dp": 0}, {"dp": 2_000}, {"dp": 4, "ep": 3}, {"dp": 2, "ranks_per_node": 0}])
def test_impossible_layouts_are_refused(sizes: dict[str, int]) -> None:
    """Sizes below 1, more than 1,024 ranks and experts that don't divide are errors."""
    with pytest.raises(UsageError):
        Layout(**sizes)
