"""Exposed collectives equal a brute force count over every nanosecond."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scope.analysis.exposure import ExposedCollectives, compute_exposed_collectives
from scope.analysis.group_names import name_group
from scope.trace import load

if TYPE_CHECKING:
    from pathlib import Path

SPAN = st.tuples(st.integers(0, 60), st.integers(0, 20))
CALL = st.tuples(SPAN, st.sampled_from([8, 16]))


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    compute=st.lists(SPAN, max_size=6),
    calls=st.lists(st.tuples(SPAN, st.sampled_from([8, 16])), min_size=1, max_size=6),
)
def test_exposed_time_equals_brute_force(
    tmp_path: Path, builder: Any, compute: list[tuple[int, int]], calls: list[tuple[tuple[int, int], int]]
) -> None:
    """For each size, the sum over its calls of the microseconds in which no kernel computes."""
    made = type(builder)()
    for start, length in compute:
        made.launch("gemm_kernel", 0, 100 + start, length)
    for (start, length), elements in calls:
        made.launch(
            "ncclDevKernel_AllReduce_Sum", 1, 100 + start, length, stream=20,
            **{"Collective name": "allreduce", "In msg nelems": elements, "Out msg nelems": elements, "dtype": "Float",
               "Group size": 2, "Process Group Name": "0"},
        )  # fmt: skip
    busy = {at for start, length in compute for at in range(start, start + length)}
    expected: dict[int, list[int]] = {}
    for (start, length), elements in calls:
        exposed = sum(at not in busy for at in range(start, start + length))
        row = expected.setdefault(elements * 4, [0, 0, 0])
        row[0] += 1
        row[1] += length * 1000
        row[2] += exposed * 1000
    (rank,) = load([str(made.write(tmp_path))]).ranks
    columns = (
        ExposedCollectives.message_bytes,
        ExposedCollectives.num_calls,
        ExposedCollectives.total_ns,
        ExposedCollectives.exposed_ns,
    )
    found = {size: list(rest) for size, *rest in compute_exposed_collectives(rank).select(columns).iter_rows()}
    assert found == expected


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    compute=st.lists(SPAN, max_size=4),
    calls=st.lists(SPAN, min_size=1, max_size=5),
    judged=st.tuples(st.integers(0, 60), st.integers(1, 40)),
)
def test_exposed_step_time_equals_brute_force(
    tmp_path: Path, builder: Any, compute: list[tuple[int, int]], calls: list[tuple[int, int]], judged: tuple[int, int]
) -> None:
    """Of the exposed microseconds those in step time count, and of the calls those that start in it."""
    made = type(builder)()
    for start, length in compute:
        made.launch("gemm_kernel", 0, 100 + start, length)
    for start, length in calls:
        made.launch("ncclDevKernel_AllReduce_Sum", 1, 100 + start, length, stream=20)
    (rank,) = load([str(made.write(tmp_path))]).ranks
    begin_us, length_us = judged
    first = rank.device_events["start_ns"].to_list()[0]
    origin = first - 1000 * min(start for start, _ in [*compute, *calls])
    inside = range(begin_us, begin_us + length_us)
    step_time = pl.DataFrame(
        [(0, origin + 1000 * begin_us, origin + 1000 * (begin_us + length_us))],
        schema={"device": pl.Int32, "start_ns": pl.Int64, "end_ns": pl.Int64},
        orient="row",
    )
    busy = {at for start, length in compute for at in range(start, start + length)}
    exposed = sum(at in inside and at not in busy for start, length in calls for at in range(start, start + length))
    (row,) = compute_exposed_collectives(rank, step_time=step_time).iter_rows(named=True)
    assert row["step_exposed_ns"] == 1000 * exposed
    assert row["num_step_calls"] == sum(start in inside for start, _ in calls)


def test_a_trace_without_communication_has_no_rows(tmp_path: Path, builder: Any) -> None:
    """Kernels alone expose nothing."""
    builder.launch("gemm_kernel", 0, 100, 10)
    (rank,) = load([str(builder.write(tmp_path))]).ranks
    assert compute_exposed_collectives(rank).is_empty()


def test_groups_are_called_as_in_recorded_runs(tmp_path: Path, builder: Any) -> None:
    """An axis of the mesh by its name, without what torch puts before it; one without a name as torch describes it."""
    names = {"mesh_tp": "tp", "mesh_dim_0": "mesh_dim_0", "mesh_": "mesh_", "undefined": "5", "experts": "experts"}
    for place, description in enumerate(names):
        builder.launch(
            "ncclDevKernel_AllReduce_Sum", 1, 100 + 10 * place, 5, stream=20,
            **{"Collective name": "allreduce", "In msg nelems": 8, "Out msg nelems": 8, "dtype": "Float",
               "Group size": 2, "Process Group Name": "5", "Process Group Description": description},
        )  # fmt: skip
    (rank,) = load([str(builder.write(tmp_path))]).ranks
    groups = compute_exposed_collectives(rank)[ExposedCollectives.group].to_list()
    assert sorted(groups) == sorted(names.values())
    assert [name_group("5", description=description) for description in names] == list(names.values())
