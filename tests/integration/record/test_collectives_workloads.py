"""What the recorder sees of real workloads on four gloo ranks, against lists worked out by hand."""

from __future__ import annotations

import json
import os
import pickle  # noqa: TID251 - the sizes of what torch pickles, nothing is read
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

pytest.importorskip("torch")

SCRIPT = Path(__file__).parent / "collective_workloads.py"
WORLD = 4
ALL = tuple(range(WORLD))
LIMIT_S = 240
FLOAT_BYTES = 4
HAS_COMPILER = shutil.which("g++") is not None


class Seen(NamedTuple):
    """One call: what has to be exactly as expected."""

    operation: str
    in_bytes: int
    out_bytes: int
    dtype: str = "float32"
    variant: str = "plain"
    ranks: tuple[int, ...] = ALL
    asynchronous: bool = False
    control: bool = False


def run_world(folder: Path, names: list[str]) -> list[list[dict[str, Any]]]:
    """Run workloads on four ranks and return what each rank saw by the best route, and by patched methods."""
    environment = os.environ | {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29500",
        "SCOPE_TEST_STORE": str(folder / "store"),
        "SCOPE_TEST_CHECKPOINT": str(folder / "checkpoint"),
        "WORLD_SIZE": str(WORLD),
        "OMP_NUM_THREADS": "1",
    }
    processes = [
        subprocess.Popen(
            [sys.executable, str(SCRIPT), str(folder / f"{rank}.json"), *names],
            env=environment | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in ALL
    ]
    try:
        outputs = [process.communicate(timeout=LIMIT_S)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    for process, output in zip(processes, outputs, strict=True):
        assert process.returncode == 0, output
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in ALL]


def alike(call: Seen) -> Callable[[int], list[Seen]]:
    """Expect one call, equal on all ranks."""
    return lambda rank: [call]


def axis_ranks(rank: int, axis: str) -> tuple[int, ...]:
    """Return the ranks of a 2 x 2 mesh that share this rank's group: `tp` is the inner axis."""
    return (rank // 2 * 2, rank // 2 * 2 + 1) if axis == "tp" else (rank % 2, rank % 2 + 2)


def blocking(rank: int) -> list[Seen]:
    """Six floats are 24 bytes, four times that 96; roots give, others get, or the other way round."""
    return [
        Seen("all_reduce", 24, 24),
        Seen("broadcast", 24, 0) if rank == 1 else Seen("broadcast", 0, 24),
        Seen("reduce", 24, 24 if rank == 2 else 0),
        Seen("all_gather", 24, 96),
        Seen("all_gather", 24, 96),
        Seen("reduce_scatter", 96, 24),
        Seen("reduce_scatter", 96, 24),
        Seen("all_to_all", 64, 64, "float64"),
        Seen("gather", 24, 96 if rank == 0 else 0),
        Seen("scatter", 96 if rank == 3 else 0, 24),
        Seen("barrier", 0, 0, "unknown"),
    ]


def asynchronous(rank: int) -> list[Seen]:
    """Eight floats; four floats from each of four ranks; two floats."""
    return [
        Seen("all_reduce", 32, 32, asynchronous=True),
        Seen("all_gather", 16, 64, asynchronous=True),
        Seen("all_reduce", 8, 8, asynchronous=True),
    ]


def point_to_point(rank: int) -> list[Seen]:
    """Even ranks send five floats twice, odd ones receive them; then both send and receive three."""
    operation, sizes = ("send", (20, 0)) if rank % 2 == 0 else ("recv", (0, 20))
    return [
        Seen(operation, *sizes),
        Seen(operation, *sizes, asynchronous=True),
        Seen("send", 12, 0, asynchronous=True),
        Seen("recv", 0, 12, asynchronous=True),
    ]


def objects(rank: int) -> list[Seen]:
    """A size of eight bytes, then the pickle; an all-gather pads it to the longest, that of rank 3."""
    longest = len(pickle.dumps("x" * 3))
    sent = len(pickle.dumps("y"))
    root = rank == 0
    return [
        Seen("all_gather", 8, 32, "int64", "object", control=True),
        Seen("all_gather", longest, 4 * longest, "uint8", "object", control=True),
        Seen("broadcast", 8 if root else 0, 0 if root else 8, "int64", "object", control=True),
        Seen("broadcast", sent if root else 0, 0 if root else sent, "uint8", "object", control=True),
    ]


def subgroup(rank: int) -> list[Seen]:
    """Two calls on the pair (1, 3), then one on each axis of the mesh."""
    calls = [
        Seen("all_reduce", 40, 40, ranks=axis_ranks(rank, "tp")),
        Seen("all_reduce", 44, 44, ranks=axis_ranks(rank, "dp")),
    ]
    if rank in (1, 3):
        sizes = (16, 0) if rank == 3 else (0, 16)
        return [Seen("all_reduce", 16, 16, ranks=(1, 3)), Seen("broadcast", *sizes, ranks=(1, 3)), *calls]
    return calls


def own_group(rank: int) -> list[Seen]:
    """Six floats; three floats from each; five floats from rank 1 to rank 3; and a barrier."""
    sent = {1: [Seen("send", 20, 0)], 3: [Seen("recv", 0, 20)]}.get(rank, [])
    calls = [Seen("all_reduce", 24, 24), Seen("all_gather", 12, 48), *sent, Seen("barrier", 0, 0, "unknown")]
    return [call._replace(asynchronous=True) for call in calls]


BUCKET = Seen("all_reduce", 100 * 100 * FLOAT_BYTES, 100 * 100 * FLOAT_BYTES, asynchronous=True)
HALVED = BUCKET._replace(in_bytes=20_000, out_bytes=20_000, dtype="float16")
FUNCTIONAL = {"variant": "functional", "asynchronous": True}


def sequence_parallel(rank: int) -> list[Seen]:
    """Four rows of eight floats a rank: gathered over two ranks, and the partial sums of eight rows scattered."""
    ranks = axis_ranks(rank, "tp")
    return [
        Seen("all_gather", 128, 256, ranks=ranks, **FUNCTIONAL),
        Seen("reduce_scatter", 256, 128, ranks=ranks, **FUNCTIONAL),
    ]


def zero_redundancy(rank: int) -> list[Seen]:
    """Four parameters of 40, 30, 20 and 10 floats, the n-th owned and broadcast by rank n."""
    sizes = (160, 120, 80, 40)
    return [
        Seen("broadcast", size if rank == root else 0, 0 if rank == root else size, asynchronous=True)
        for root, size in enumerate(sizes)
    ]


def pipeline(rank: int, num_stages: int = WORLD) -> list[Seen]:
    """Four micro-batches of two rows of eight floats go down the stages, and their gradients back up."""
    calls: list[Seen] = []
    for stage in range(rank, num_stages, WORLD):
        neighbours = (stage > 0) + (stage < num_stages - 1)
        # One side is received from and the other sent to, in forward and the other way round in backward.
        calls += [Seen("send", 64, 0, asynchronous=True), Seen("recv", 0, 64, asynchronous=True)] * 4 * neighbours
    return calls


def expert_parallel(rank: int) -> list[Seen]:
    """Rank r sends (r + o) mod 3 + 1 tokens of 16 floats to rank o, and as many come back."""
    tokens = sum((rank + other) % 3 + 1 for other in ALL)
    size = tokens * 16 * FLOAT_BYTES
    routed = Seen("all_to_all", size, size, variant="uneven")
    return [Seen("all_to_all", 32, 32, "int64"), routed, routed]


def context_parallel(rank: int) -> list[Seen]:
    """Three turns of the ring with 16 floats, and one all-reduce."""
    turn = [Seen("send", 64, 0, asynchronous=True), Seen("recv", 0, 64, asynchronous=True)]
    return [*turn * 3, Seen("all_reduce", 64, 64)]


EXPECTED: dict[str, Callable[[int], list[Seen]]] = {
    "blocking": blocking,
    "new_names": lambda rank: [Seen("all_gather", 6, 24, "bfloat16"), Seen("reduce_scatter", 48, 12)],
    "asynchronous": asynchronous,
    # 2 + 3 + 4 floats in one call.
    "coalesced": alike(Seen("all_reduce", 36, 36, variant="coalesced")),
    "point_to_point": point_to_point,
    "objects": objects,
    "subgroup": subgroup,
    "own_group": own_group,
    # Two updates of two buckets, each one weight of 100 x 100.
    "ddp": lambda rank: [BUCKET] * 4,
    "ddp_accumulation": lambda rank: [BUCKET] * 2,
    "ddp_own_hook": lambda rank: [HALVED] * 2,
    # 16 x 16 floats, gathered for forward and kept for backward.
    "fsdp1": lambda rank: [Seen("all_gather", 256, 1024), Seen("reduce_scatter", 1024, 256)],
    # Two weights of 16 x 32, each gathered for forward and again for backward, where the second is prefetched.
    "fsdp2": lambda rank: [Seen("all_gather", 512, 2048)] * 4 + [Seen("reduce_scatter", 2048, 512)] * 2,
    # Two rows of eight floats: the output of the second layer, and the gradient of the input of the first.
    "tensor_parallel": lambda rank: [Seen("all_reduce", 64, 64, **FUNCTIONAL)] * 2,
    "sequence_parallel": sequence_parallel,
    "functional": lambda rank: [
        Seen("all_reduce", 16, 16, **FUNCTIONAL),
        Seen("all_gather", 16, 64, **FUNCTIONAL),
        Seen("reduce_scatter", 32, 8, **FUNCTIONAL),
    ],
    "functional_backward": lambda rank: [
        Seen("all_gather", 16, 64, **FUNCTIONAL),
        Seen("reduce_scatter", 64, 16, **FUNCTIONAL),
    ],
    "compiled": alike(Seen("all_reduce", 16, 16, **FUNCTIONAL)),
    "zero_redundancy": zero_redundancy,
    "sharded_optimizer": lambda rank: [
        Seen("reduce_scatter", 400, 100),
        Seen("all_gather", 100, 400, asynchronous=True),
    ],
    "pipeline_gpipe": pipeline,
    "pipeline_1f1b": pipeline,
    "pipeline_interleaved": lambda rank: pipeline(rank, 2 * WORLD),
    "expert_parallel": expert_parallel,
    "context_parallel_stand_in": context_parallel,
    "reinitialised": alike(Seen("all_reduce", 16, 16)),
}
UNORDERED = {"pipeline_gpipe", "pipeline_1f1b", "pipeline_interleaved"}
OTHERS = [
    "own_groups_come_and_go",
    "checkpoint",
    "late_rank",
    "late_rank_asynchronous",
    "late_rank_functional",
    "late_rank_ddp",
]


@pytest.fixture(scope="module")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> list[list[dict[str, Any]]]:
    """What four ranks saw of all workloads, run one after the other in the same processes; the last by methods."""
    compiled = ["compiled_inductor"] if HAS_COMPILER else []
    names = [name for name in EXPECTED if name != "reinitialised"] + OTHERS + compiled
    return run_world(
        tmp_path_factory.mktemp("collectives"), [*names, "reinitialised", "methods", "asynchronous", "ddp"]
    )


@pytest.fixture
def ranks(worlds: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """What each rank saw by the best route."""
    return [best for best, _ in worlds]


def calls_of(rank: dict[str, Any], name: str) -> list[dict[str, Any]]:
    """Return the calls that a rank saw of a workload."""
    seen = rank["seen"][name]
    assert isinstance(seen, list), seen
    return seen


def facts_of(call: dict[str, Any]) -> Seen:
    """Return what is compared of a call."""
    return Seen(**{field: call[field] for field in Seen._fields if field != "ranks"}, ranks=tuple(call["ranks"]))


def skip_where_own_groups_are_not_seen(ranks: list[dict[str, Any]]) -> None:
    """Skip a test of groups that torch.distributed does not know, where the route says that it does not see them."""
    if ranks[0]["attached"] == "hooks":
        pytest.skip("the hooks of torch 2.14 are attached to the groups of torch.distributed, which is told")


@pytest.mark.parametrize("name", EXPECTED)
def test_calls_are_exactly_those_of_the_workload(ranks: list[dict[str, Any]], name: str) -> None:
    """Every rank saw exactly the calls of the workload: operation, variant, bytes, dtype, ranks, and their number."""
    if name == "own_group":
        skip_where_own_groups_are_not_seen(ranks)
    for number, rank in enumerate(ranks):
        seen = [facts_of(call) for call in calls_of(rank, name)]
        expected = EXPECTED[name](number)
        if name in UNORDERED:
            assert Counter(seen) == Counter(expected)
        else:
            assert seen == expected


@pytest.mark.parametrize("name", EXPECTED)
def test_completions_and_wait_sites_are_seen(ranks: list[dict[str, Any]], name: str) -> None:
    """Every call is seen to complete and somebody to wait for it, but for the Work that the workload drops."""
    for rank in ranks:
        calls = calls_of(rank, name)
        waited = calls[:-1] if name == "asynchronous" else calls
        assert all(call["completed"] and call["duration_ns"] > 0 for call in calls)
        assert all(call["wait_seen"] and call["blocked_ns"] >= 0 for call in waited)
    if name == "asynchronous":
        assert not any(calls_of(rank, name)[-1]["wait_seen"] for rank in ranks)


def test_no_hook_failed(ranks: list[dict[str, Any]]) -> None:
    """No workload made a hook raise, and the recorder said which route it took and that it let go of it."""
    for rank in ranks:
        assert rank["disabled"] == []
        assert rank["attached"] in {"hooks", "dispatcher"}
        assert rank["left"] == []


def test_groups_bear_their_mesh_axis(ranks: list[dict[str, Any]]) -> None:
    """A group of a mesh bears the axis' name, one of equal ranks that was made by hand does not."""
    for number, rank in enumerate(ranks):
        axes = [call["axis"] for call in calls_of(rank, "subgroup")]
        assert axes == ([None, None, "tp", "dp"] if number in (1, 3) else ["tp", "dp"])
        assert {call["axis"] for call in calls_of(rank, "tensor_parallel")} == {"tp"}


def test_compiled_calls_are_marked(ranks: list[dict[str, Any]]) -> None:
    """Only calls from a compiled graph bear the mark."""
    for rank in ranks:
        assert [call["compiled"] for call in calls_of(rank, "compiled")] == [True]
        assert not any(call["compiled"] for call in calls_of(rank, "functional"))


def test_peers_and_tags_are_kept(ranks: list[dict[str, Any]]) -> None:
    """Sends and recvs name the other side by its global rank, and their tag; rooted calls the root."""
    for number, rank in enumerate(ranks):
        calls = calls_of(rank, "point_to_point")
        assert {call["peer"] for call in calls} == {number ^ 1}
        assert [call["tag"] for call in calls] == [7, 0, 0, 0]
        assert [call["peer"] for call in calls_of(rank, "zero_redundancy")] == [0, 1, 2, 3]


def test_checkpoint_plans_are_control_traffic(ranks: list[dict[str, Any]]) -> None:
    """A distributed checkpoint gathers plans, scatters them back, gathers results and tells the end, all as objects."""
    gather = ["all_gather", "gather"]
    expected = [*gather, "broadcast", "scatter", "scatter", *gather, "broadcast", "broadcast"]
    for rank in ranks:
        calls = calls_of(rank, "checkpoint")
        assert [call["operation"] for call in calls] == expected
        assert all(call["control"] and call["variant"] == "object" for call in calls)


@pytest.mark.parametrize(
    ("name", "late_ms"),
    [("late_rank", 300), ("late_rank_asynchronous", 200), ("late_rank_functional", 300), ("late_rank_ddp", 300)],
)
def test_a_late_rank_blocks_the_others(ranks: list[dict[str, Any]], name: str, late_ms: int) -> None:
    """The ranks that wait for rank 2 are blocked for as long as it is late, and it is not."""
    blocked = [sum(call["blocked_ns"] for call in calls_of(rank, name)) for rank in ranks]
    late_ns, on_time = blocked.pop(2), blocked
    assert min(on_time) > 0.6e6 * late_ms
    assert late_ns < min(on_time)


def test_the_wait_lies_in_the_bucket_after_the_sleep(ranks: list[dict[str, Any]]) -> None:
    """Of DDP's two buckets only the second, which rank 2 sent late, blocks the others for long."""
    for number, rank in enumerate(ranks):
        first, second = calls_of(rank, "late_rank_ddp")
        if number != 2:
            assert second["blocked_ns"] > max(200e6, first["blocked_ns"])


def test_a_new_default_group_is_another_group(ranks: list[dict[str, Any]]) -> None:
    """After destroy and re-init the default group has a number of its own and counts from 1."""
    for rank in ranks:
        (after,) = calls_of(rank, "reinitialised")
        assert after["group"] != calls_of(rank, "blocking")[0]["group"]
        assert after["sequence"] == 1


def test_groups_of_the_programs_own_go_without_a_hang(ranks: list[dict[str, Any]]) -> None:
    """Two buckets were reduced on each of ten groups that torch does not know, and all of them were let go."""
    skip_where_own_groups_are_not_seen(ranks)
    for rank in ranks:
        calls = [call for call in calls_of(rank, "own_groups_come_and_go") if call["in_bytes"] == 300 * 300 * 4]
        reduced = [call for call in calls if call["operation"] == "all_reduce"]
        assert Counter(call["group"] for call in reduced) == dict.fromkeys({call["group"] for call in reduced}, 2)
        assert len(reduced) == 20
        assert all(call["ranks"] == list(ALL) and call["completed"] for call in reduced)


def test_coverage_is_whole_where_the_flight_recorder_counts(ranks: list[dict[str, Any]]) -> None:
    """Every call was seen; gloo counts the one reduce-scatter of a list as four all-reduces, three too many."""
    for rank in ranks:
        first, *others = [item for item in rank["coverage"] if item["flight_recorder"]]
        assert first["group"] == 0
        assert first["flight_recorder"] - first["seen"] == WORLD - 1
        assert len(others) >= 3
        assert {item["flight_recorder"] - item["seen"] for item in others} == {0}
        assert {(item["kind"], item["at_least"]) for item in rank["coverage"]} == {("all", True)}


def test_coverage_shows_what_patched_methods_miss(worlds: list[list[dict[str, Any]]]) -> None:
    """Patched methods see calls of the Python API alone, and the coverage tells that eight buckets are missing."""
    for _, rank in worlds:
        assert rank["attached"] == "methods"
        assert calls_of(rank, "ddp") == []
        (item,) = rank["coverage"]
        assert item["flight_recorder"] - item["seen"] >= 8
        assert item["ratio"] < 0.5


@pytest.mark.skipif(not HAS_COMPILER, reason="needs a C++ compiler")
def test_code_made_by_inductor_is_seen(ranks: list[dict[str, Any]]) -> None:
    """A collective in a graph that inductor compiled is seen like any other."""
    for rank in ranks:
        (call,) = calls_of(rank, "compiled_inductor")
        assert facts_of(call) == Seen("all_reduce", 16, 16, **FUNCTIONAL)
        assert call["compiled"]
        assert call["wait_seen"]
