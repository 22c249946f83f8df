"""What operators of `torch.distributed` say of a call by their own arguments, against sizes worked out by hand."""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING, Any

import pytest

from scope.trace.callgroups import fit_group
from scope.trace.callsizes import CallSizes, sizes_of_operator, with_group_size
from scope.trace.loading import load
from scope.trace.model import ProcessGroup

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import polars as pl

Row = tuple[str, list[Any], list[Any], list[str] | None, tuple[Any, ...]]
LISTS = "TensorList"
OPERATORS: list[Row] = [
    ("c10d::allreduce_", [[[10]], [], []], [LISTS, "", ""], None, (10, 10, None, None)),
    ("c10d::allreduce_", [[[]], [], []], [LISTS, "", ""], None, (1, 1, None, None)),
    ("c10d::allreduce_", [[], [], []], [LISTS, "", ""], None, (None, None, None, None)),
    ("c10d::allreduce_coalesced_", [[[4], [5, 2]], [], []], [LISTS, "", ""], None, (14, 14, None, None)),
    ("c10d::allgather_", [[], [[7]], []], ["", LISTS, ""], None, (7, None, None, None)),
    ("c10d::_allgather_base_", [[24], [8], []], ["float", "float", ""], None, (8, 24, "float", 3)),
    ("c10d::_allgather_base_", [[25], [8], []], ["float", "float", ""], None, (8, 25, "float", None)),
    ("c10d::_allgather_base_", [[6, 4], [2, 4], []], ["int", "int", ""], None, (8, 24, "int", 3)),
    ("c10d::allgather_into_tensor_coalesced_", [[[6], [9]], [[2], [3]]], [LISTS, LISTS], None, (5, 15, None, 3)),
    ("c10d::reduce_scatter_", [[[6]], [], []], [LISTS, "", ""], None, (None, 6, None, None)),
    ("c10d::_reduce_scatter_base_", [[9], [27], []], ["float", "float", ""], None, (27, 9, "float", 3)),
    ("c10d::reduce_scatter_tensor_coalesced_", [[[2], [3]], [[4], [6]]], [LISTS, LISTS], None, (10, 5, None, 2)),
    ("c10d::alltoall_", [[[5], [5]], [[5], [5]]], [LISTS, LISTS], None, (10, 10, None, 2)),
    ("c10d::alltoall_base_", [[12], [12], [], [], []], ["float", "float"], None, (12, 12, "float", None)),
    ("c10d::broadcast_", [[[11]], []], [LISTS, ""], None, (11, 11, None, None)),
    ("c10d::reduce_", [[[12]], []], [LISTS, ""], None, (12, None, None, None)),
    ("c10d::gather_", [[], [[13]]], ["", LISTS], None, (13, None, None, None)),
    ("c10d::scatter_", [[[14]], []], [LISTS, ""], None, (None, 14, None, None)),
    ("c10d::send", [[[15]], []], [LISTS, ""], None, (15, None, None, None)),
    ("c10d::recv_", [[[15]], []], [LISTS, ""], None, (None, 15, None, None)),
    ("c10d::recv_any_source_", [[[16]], []], [LISTS, ""], None, (None, 16, None, None)),
    ("c10d::barrier", [[1], []], ["unsigned char", ""], None, (None, None, None, None)),
    ("_c10d_functional::all_reduce", [[20], [], []], ["float", "", ""], None, (20, 20, "float", None)),
    ("_c10d_functional::all_gather_into_tensor", [[21], [], []], ["int", "", ""], ["", "3"], (21, 63, "int", 3)),
    ("_c10d_functional::reduce_scatter_tensor", [[66]], ["int"], ["", "", "3", ""], (66, 22, "int", 3)),
    ("c10d_functional::all_gather_into_tensor", [[4]], ["int"], ["", "", "[1, 5]", "2"], (4, 8, "int", 2)),
    ("c10d_functional::reduce_scatter_tensor", [[4]], ["int"], ["", "", "", "[1, 5]", "2"], (4, 2, "int", 2)),
    ("aten::mm", [[2, 2], [2, 2]], ["float", "float"], None, (None, None, None, None)),
]


@pytest.mark.parametrize(("name", "dims", "types", "concrete", "expected"), OPERATORS)
def test_each_operator_says_its_sizes(
    name: str, dims: list[Any], types: list[Any], concrete: list[str] | None, expected: tuple[Any, ...]
) -> None:
    """Input and output stand at the places of the operator's schema; what is not recorded stays unknown."""
    told = sizes_of_operator(
        name, json.dumps(dims), json.dumps(types), None if concrete is None else json.dumps(concrete)
    )
    assert (told.in_elements, told.out_elements, told.dtype, told.group_size) == expected


def test_splits_show_an_uneven_exchange() -> None:
    """Splits of different size, or an output of another size than the input, make an all_to_all uneven."""
    types = '["float", "float", "", "ScalarList", "ScalarList"]'
    even = sizes_of_operator("c10d::alltoall_base_", "[[9], [9]]", types, '["", "", "", "[3, 3, 3]", "[3, 3, 3]"]')
    assert (even.is_uneven, even.group_size, even.in_split) == (False, 3, (3, 3, 3))
    split = sizes_of_operator("c10d::alltoall_base_", "[[9], [9]]", types, '["", "", "", "[3, 3, 3]", "[2, 3, 4]"]')
    assert (split.is_uneven, split.in_split, split.out_split) == (True, (2, 3, 4), (3, 3, 3))
    assert sizes_of_operator("c10d::alltoall_base_", "[[7], [9]]", types, '["", "", "", "[]", "[]"]').is_uneven
    functional = '["", "[1, 1]", "[2, 4]", ""]'
    got = sizes_of_operator("_c10d_functional::all_to_all_single", "[[12]]", '["float"]', functional)
    assert (got.in_elements, got.out_elements, got.is_uneven) == (12, 4, True)


def test_a_known_group_completes_the_sizes() -> None:
    """All ranks' data are as many parts as the group has ranks; a part that does not divide stays unknown."""
    for operation, told, whole in (
        ("all_gather", CallSizes(in_elements=7), (7, 21)),
        ("gather", CallSizes(in_elements=7), (7, 21)),
        ("scatter", CallSizes(out_elements=7), (21, 7)),
        ("reduce_scatter", CallSizes(out_elements=7), (21, 7)),
        ("reduce_scatter", CallSizes(in_elements=21), (21, 7)),
        ("reduce_scatter", CallSizes(in_elements=22), (22, None)),
        ("all_reduce", CallSizes(in_elements=7, out_elements=7), (7, 7)),
    ):
        found = with_group_size(operation, told, 3)
        assert (found.in_elements, found.out_elements) == whole
    assert with_group_size("all_gather", CallSizes(in_elements=7), None) == CallSizes(in_elements=7)


@pytest.mark.parametrize("text", ["broken", "{}", "[1, 2]", "[[true]]", '[["x"]]', "[[-1]]", "null", "[null]"])
def test_nonsense_says_nothing(text: str) -> None:
    """Shapes that are none leave the sizes unknown."""
    told = sizes_of_operator("c10d::send", text, '["float", "float"]', text)
    assert (told.in_elements, told.group_size) == (None, None)


def _group(name: str, *ranks: int, size: int | None = None) -> ProcessGroup:
    return ProcessGroup(name=name, description=f"about {name}", backend="gloo", ranks=ranks, size=size or len(ranks))


def test_the_only_group_that_fits_is_the_calls() -> None:
    """The size that a call tells and the rank that made it leave one of the listed groups, or nothing is chosen."""
    groups = [_group("0", 0, 1, 2, 3), _group("1", 0, 2), _group("3", 1, 3)]
    chosen = fit_group(groups, size=2, rank=0)
    assert (chosen.name, chosen.description, chosen.ranks, chosen.size) == ("1", "about 1", [0, 2], 2)
    assert not chosen.is_only
    assert fit_group(groups, size=4, rank=0).name == "0"
    several = fit_group([*groups, _group("5", 0, 1)], size=2, rank=0)
    assert (several.name, several.ranks, several.size) == (None, None, 2)
    assert fit_group(groups, size=None, rank=0).size is None
    none = fit_group(groups, size=3, rank=0)
    assert (none.name, none.ranks, none.size) == (None, None, 3)


def test_groups_of_the_same_ranks_leave_only_the_name_open() -> None:
    """Two listed groups of the same ranks tell who took part, and the only ranks listed need no choice."""
    both = [_group("0", 0, 1), _group("7", 0, 1)]
    found = fit_group(both, size=None, rank=1)
    assert (found.name, found.ranks, found.size, found.is_only) == (None, [0, 1], 2, True)
    assert fit_group([_group("0", 0, 1)], size=None, rank=1).is_only


def _events(path: Path) -> list[dict[str, Any]]:
    return json.loads(gzip.decompress(path.read_bytes()), strict=False)["traceEvents"]


def test_the_gathered_size_is_the_operators_output(shared_traces: Path, sizes_by_range: Callable[..., Any]) -> None:
    """Of calls without metadata, input and output are those of the operator around the launch, read here from JSON."""
    path = shared_traces / "hta" / "sampled_rank-0.json.gz"
    calls: pl.DataFrame = load(str(path)).ranks[0].collective_calls
    columns = ("operation", "in_elements", "out_elements", "in_bytes", "out_bytes", "group_size")
    gathered = calls.filter(calls["operation"] == "all_gather").select(columns).rows()
    assert gathered == [("all_gather", 16_777_216, 1_073_741_824, 16_777_216, 1_073_741_824, 64)] * 2
    assert sorted(calls.filter(calls["operation"] == "all_to_all").select("in_elements", "out_elements").rows()) == (
        sorted(sizes_by_range(_events(path), "c10d::alltoall_base_"))
    )


@pytest.fixture
def sizes_by_range() -> Callable[..., list[tuple[int, int]]]:
    """Function that returns input and output of each operator of a name, from raw records."""

    def read(events: list[dict[str, Any]], name: str) -> list[tuple[int, int]]:
        shapes = [event["args"]["Input Dims"] for event in events if event.get("name") == name]
        return [(shape[1][0], shape[0][0]) for shape in shapes]

    return read


def _host_trace(tmp_path: Path, calls: list[tuple[str, list[Any], list[Any], list[tuple[str, list[Any]]]]]) -> str:
    """Write a host timeline of two ranks: of each call the operator, its shapes and types, and the library's ranges."""
    events: list[dict[str, Any]] = []
    now = 0.0
    for name, dims, types, ranges in calls:
        args: dict[str, Any] = {"Input Dims": dims, "Input type": types, "Concrete Inputs": [""] * len(dims)}
        span = {"ph": "X", "pid": 1, "ts": now, "dur": 10.0}
        events.append({**span, "cat": "cpu_op", "name": name, "tid": 1, "args": args})
        for label, shape in ranges:
            now += 20
            args = {"Input Dims": [shape], "Input type": ["float"], "Concrete Inputs": [""]}
            span = {"ph": "X", "pid": 1, "ts": now, "dur": 5.0}
            events.append({**span, "cat": "user_annotation", "name": label, "tid": 2, "args": args})
        now += 20
    group = {"pg_name": "0", "pg_desc": "default_pg", "pg_size": 2, "ranks": [0, 1]}
    info = {"backend": "gloo", "rank": 0, "world_size": 2, "pg_config": [group]}
    path = tmp_path / "host.json"
    path.write_text(json.dumps({"distributedInfo": info, "traceEvents": events}))
    return str(path)


def test_sizes_on_a_host_timeline_are_those_of_the_operators(tmp_path: Path) -> None:
    """Gloo's ranges hold inputs or parts of them; input and output are those of the call, worked out by hand."""
    calls = [
        ("c10d::_allgather_base_", [[16], [8], []], ["float", "float", ""], [("gloo:all_gather", [8])]),
        ("c10d::allgather_", [[], [[7]], []], ["", LISTS, ""], [("gloo:all_gather", [7])]),
        ("c10d::reduce_scatter_", [[[6]], [], []], [LISTS, "", ""], [("gloo:all_reduce", [6])] * 2),
        ("c10d::allreduce_", [[[9]], []], [LISTS, ""], [("gloo:all_reduce", [9])]),
    ]
    found = load(_host_trace(tmp_path, calls)).ranks[0].collective_calls
    assert found.select("operation", "in_bytes", "out_bytes", "group_size").rows() == [
        ("all_gather", 32, 64, 2),
        ("all_gather", 28, 56, 2),
        ("reduce_scatter", 48, 24, 2),
        ("all_reduce", 36, 36, 2),
    ]
    assert not found["is_group_inferred"].any()
    # The two parts of the reduce_scatter are one call, from the start of the first to the end of the second.
    assert (found["end_ns"] - found["start_ns"]).to_list() == [5_000, 5_000, 25_000, 5_000]


def _device_trace(tmp_path: Path, **said: Any) -> pl.DataFrame:
    """Return the one call of a trace whose kernel says some things of an all_reduce of 1,024 floats among two ranks."""
    args = {"correlation": 1, "device": 0, "stream": 7, "Collective name": "allreduce", "dtype": "Float"}
    args |= {"In msg nelems": 1024, "Out msg nelems": 1024, "Group size": 2, "Process Group Name": "0"}
    args |= {"Process Group Ranks": "[0, 1]", "Seq": 3, **said}
    name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
    kernel = {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 7, "ts": 10.0, "dur": 5.0, "args": args}
    path = tmp_path / "device.json"
    path.write_text(json.dumps({"distributedInfo": {"rank": 0, "world_size": 2}, "traceEvents": [kernel]}))
    return load(str(path)).ranks[0].collective_calls


@pytest.mark.parametrize("elements", [-5, -1, -(2**62)])
def test_a_negative_number_of_elements_is_no_size(tmp_path: Path, elements: int) -> None:
    """No message has fewer than no elements: its size is unknown, not negative, and the rest is kept."""
    found = _device_trace(tmp_path, **{"In msg nelems": elements, "Out msg nelems": elements})
    sizes = ("in_elements", "out_elements", "in_bytes", "out_bytes")
    assert found.select(*sizes, "dtype", "group_ranks").rows() == [(None, None, None, None, "Float", [0, 1])]


def test_no_elements_are_a_size(tmp_path: Path) -> None:
    """A call of no elements moves 0 bytes, which is known."""
    assert _device_trace(tmp_path, **{"In msg nelems": 0, "Out msg nelems": 0})["in_bytes"].to_list() == [0]


@pytest.mark.parametrize("size", [0, -3, 7, 2**62])
def test_the_ranks_of_a_group_decide_where_its_size_is_nonsense(tmp_path: Path, size: int) -> None:
    """A group of which the ranks are said is of those, though its size is said to be another, or that of no group."""
    found = _device_trace(tmp_path, **{"Group size": size})
    assert found.select("group_ranks", "group_size", "in_bytes").rows() == [([0, 1], 2, 4096)]
