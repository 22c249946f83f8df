"""A job of many process groups costs what its calls cost, not what its groups times its groups would."""

from __future__ import annotations

import json
from itertools import combinations, islice, repeat
from typing import TYPE_CHECKING, Any, Final

import polars as pl
import pytest

from scope.analysis.collectives import compute_collectives
from scope.analysis.own_time import covering_groups
from scope.analysis.stragglers import compute_stragglers
from scope.trace import ReadOptions, load

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

RANKS: Final = 12
SIZE: Final = 4
FEW: Final = 60


def _write(groups: Sequence[tuple[int, ...]], folder: Path) -> None:
    """Write the traces of ranks that compute and then meet in each of the groups once, its last rank 500 us late."""
    now = [1000] * RANKS
    events: list[list[dict[str, Any]]] = [[] for _ in range(RANKS)]
    for number, ranks in enumerate(groups):
        arrival = {rank: now[rank] + (510 if rank == ranks[-1] else 10) for rank in ranks}
        end = max(arrival.values()) + 50
        for rank in ranks:
            ids = (2 * number + 1, 2 * number + 2)
            for launch in ids:
                events[rank].append(_event("cudaLaunchKernel", "cuda_runtime", (now[rank], now[rank] + 1), launch, {}))
            events[rank].append(_event("gemm", "kernel", (now[rank] + 2, arrival[rank] - 2), ids[0], {"stream": 7}))
            said = {
                "stream": 20,
                "Collective name": "allreduce",
                "In msg nelems": 1024,
                "Out msg nelems": 1024,
                "dtype": "Float",
                "Group size": len(ranks),
                "Process Group Name": str(number),
                "Process Group Description": f"group_{number}",
                "Process Group Ranks": str(list(ranks)),
                "Seq": 1,
            }
            name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
            events[rank].append(_event(name, "kernel", (arrival[rank], end), ids[1], said))
            now[rank] = end + 10
    folder.mkdir()
    for rank, found in enumerate(events):
        trace = {
            "schemaVersion": 1,
            "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": RANKS},
            "deviceProperties": [],
            "traceEvents": found,
            "baseTimeNanoseconds": 0,
        }
        (folder / f"rank{rank}.json").write_text(json.dumps(trace))


def _event(name: str, category: str, span: tuple[int, int], launch: int, said: dict[str, Any]) -> dict[str, Any]:
    start, end = span
    where = {"pid": 0, "tid": said["stream"]} if said else {"pid": 1, "tid": 1}
    args = {"correlation": launch, **({"device": 0} if said else {}), **said}
    return {"ph": "X", "name": name, "cat": category, "ts": start, "dur": end - start, **where, "args": args}


def _largest_join(groups: Iterable[tuple[int, ...]], folder: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """Return the most rows that any join gave while the stragglers of a job of such groups were sought."""
    _write(list(groups), folder)
    job = load([str(folder)], options=ReadOptions(use_cache=False), processes=1)
    collectives = compute_collectives(job)
    heights: list[int] = []
    with monkeypatch.context() as patched:
        for name in ("join", "join_asof"):
            patched.setattr(pl.DataFrame, name, _measured(getattr(pl.DataFrame, name), heights))
        found = compute_stragglers(job, collectives)
    assert found.num_collectives_judged > 0
    return max(heights)


def _measured(original: Any, heights: list[int]) -> Any:
    def joined(*args: Any, **options: Any) -> pl.DataFrame:
        found: pl.DataFrame = original(*args, **options)
        heights.append(found.height)
        return found

    return joined


@pytest.mark.parametrize("kind", ["distinct", "alike"])
def test_rows_grow_with_the_calls(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice as many groups, each with one call, make at most twice as many rows of any table, not four times."""
    whole = tuple(range(SIZE))
    few, many = (
        _largest_join(
            islice(combinations(range(RANKS), SIZE), number) if kind == "distinct" else repeat(whole, number),
            tmp_path / str(number),
            monkeypatch,
        )
        for number in (FEW, 2 * FEW)
    )
    assert many <= 2.2 * few


def test_groups_that_cover_a_group_hold_all_its_ranks() -> None:
    """The groups found for each are those of which it is a subset, tried one by one."""
    shapes = [ranks for size in (1, 2, 4, 6) for ranks in combinations(range(6), size)]
    members = {number: frozenset(ranks) for number, ranks in enumerate(shapes)}
    found = covering_groups(members, members)
    assert found == {
        group: {wider for wider, ranks in members.items() if ranks >= mine} for group, mine in members.items()
    }
