"""When ranks were ready for calls that stand in a queue, of calls made by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl
import pytest

from scope.analysis.collectives import compute_collectives
from scope.analysis.readiness import READY, compute_ready
from scope.trace.model import Job

if TYPE_CHECKING:
    from collections.abc import Callable

    from scope.trace.model import RankTrace


@pytest.mark.parametrize("number", [3, 30])
def test_a_queue_through_many_groups_is_gone_through_once(
    number: int, make_trace: Callable[..., RankTrace], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All calls of a queue are ready when the first is, each in a group of its own; more of them take no more joins."""
    ready, length = 100_000, 20_000
    starts = [ready + place * length for place in range(number)]
    # The first was launched behind the compute that it waited for, the others before that by another thread.
    launched = [70, *range(10, 9 + number)]
    launches = [{"launch_id": place, "start_ns": at, "end_ns": at + 1} for place, at in enumerate([*launched, 60])]
    compute = {"start_ns": 90, "end_ns": ready, "launch_id": number}
    kernels = [
        {
            "start_ns": at,
            "end_ns": at + length,
            "launch_id": place,
            "call_id": place,
            "stream": 20,
            "category": "communication",
        }
        for place, at in enumerate(starts)
    ]
    calls = [
        {
            "start_ns": at, "end_ns": at + length, "library": "nccl", "device": 0, "group_name": str(place),
            "group_ranks": [0, 1], "group_size": 2, "in_bytes": 64, "out_bytes": 64, "sequence": 0,
        }
        for place, at in enumerate(starts)
    ]  # fmt: skip
    tables = {"launches": launches, "device_events": [compute, *kernels], "collective_calls": calls}
    job = Job(ranks=tuple(make_trace(rank=rank, label=f"rank {rank}", **tables) for rank in range(2)), world_size=2)
    collectives = compute_collectives(job)
    joins: list[int] = []
    join = pl.DataFrame.join
    monkeypatch.setattr(pl.DataFrame, "join", lambda *args, **options: joins.append(1) or join(*args, **options))
    found = compute_ready(job, collectives)
    assert found[READY].to_list() == [ready] * 2 * number
    assert len(joins) <= 10
