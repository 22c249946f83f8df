"""Exposed communication follows what the user says counts as compute."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from scope.analysis.exposure import ExposedCollectives, compute_exposed_collectives
from scope.analysis.options import Options

if TYPE_CHECKING:
    from collections.abc import Callable

    from scope.trace.model import RankTrace


def _event(start: int, end: int, category: str, kind: str = "kernel") -> dict[str, Any]:
    return {"device": 0, "stream": 7, "kind": kind, "category": category, "start_ns": start, "end_ns": end}


@pytest.mark.parametrize(
    ("options", "exposed"),
    [
        (Options(), 70),
        (Options(memory_as_compute=True), 40),
        (Options(sets_as_compute=True), 60),
        (Options(linked_only=True), 0),
    ],
)
def test_exposed_communication_follows_what_counts_as_compute(
    make_trace: Callable[..., RankTrace], options: Options, exposed: int
) -> None:
    """100 ns of communication beside 30 ns of compute, 20 of a copy and 10 of a set, none of which was launched."""
    events = [
        _event(0, 100, "communication"),
        _event(0, 30, "compute"),
        _event(40, 60, "memory", "memcpy"),
        _event(70, 80, "memory", "memset"),
    ]
    table = compute_exposed_collectives(make_trace(rank=0, label="rank 0", device_events=events), options=options)
    assert table[ExposedCollectives.exposed_ns].sum() == exposed
