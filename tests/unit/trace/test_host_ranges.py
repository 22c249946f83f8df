"""Ranges of a library on a host timeline find the operators that asked for them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from hypothesis import given
from hypothesis import strategies as st
from work import count_instructions

from scope.trace import ReadOptions, hostcollectives, load

if TYPE_CHECKING:
    from pathlib import Path

    import polars as pl

_LABELS = {"all_reduce": "c10d::allreduce_", "broadcast": "c10d::broadcast_"}
_Call = tuple[str, int, int]
"""Operation, elements and start."""


def _event(category: str, name: str, thread: int, start: int, elements: int) -> dict[str, Any]:
    said = {"Input Dims": [[[elements]]], "Input type": ["TensorList"]}
    if category == "user_annotation":
        said = {"Input Dims": [[elements]], "Input type": ["float"]}
    span = {"pid": 1, "tid": thread, "ts": start, "dur": 0.5}
    return {"ph": "X", "cat": category, "name": name, "args": said, **span}


def _read(folder: Path, ops: list[_Call], ranges: list[_Call]) -> pl.DataFrame:
    """Return the collective calls of a trace whose operators are not nested."""
    events = [_event("cpu_op", _LABELS[label], 1, start, elements) for label, elements, start in ops]
    events += [_event("user_annotation", f"gloo:{label}", 9, start, size) for label, size, start in ranges]
    info = {"backend": "gloo", "rank": 0, "world_size": 2}
    path = folder / "host.json"
    path.write_text(json.dumps({"distributedInfo": info, "traceEvents": events}))
    return load(str(path), options=ReadOptions(use_cache=False)).ranks[0].collective_calls


def _calls(*starts: int) -> st.SearchStrategy[list[_Call]]:
    return st.lists(
        st.tuples(st.sampled_from(sorted(_LABELS)), st.integers(1, 2), st.sampled_from(starts)),
        max_size=6,
        unique_by=lambda call: call[2],
    ).map(lambda calls: sorted(calls, key=lambda call: call[2]))


@given(_calls(*range(0, 20, 2)), _calls(*range(1, 20, 2)))
def test_a_range_is_of_the_earliest_operator_that_could_have_made_it(
    tmp_path_factory: Any, ops: list[_Call], ranges: list[_Call]
) -> None:
    """Each operator makes one range of its operation and size, after it began; the first that can does."""
    waiting = list(enumerate(ops))
    expected: list[int | None] = []
    for label, elements, start in ranges:
        able = [(number, op) for number, op in waiting if op[:2] == (label, elements) and op[2] <= start]
        expected.append(able[0][0] if able else None)
        waiting = [each for each in waiting if each[0] != expected[-1]]
    found = _read(tmp_path_factory.mktemp("trace"), ops, ranges)
    assert found["op_id"].to_list() == expected


def test_work_grows_with_the_ranges_not_with_the_operators_before_them(tmp_path: Path) -> None:
    """Operators that no range is of stay behind; twice as many calls take about twice the work, not four times."""

    def work(num: int) -> int:
        ops = [("broadcast", 1, turn) for turn in range(num)]
        ops += [("all_reduce", 2, num + 2 * turn) for turn in range(num)]
        ranges = [("all_reduce", 2, num + 2 * turn + 1) for turn in range(num)]
        return count_instructions(lambda: _read(tmp_path, ops, ranges), hostcollectives)

    assert work(80) < 2.5 * work(40)
