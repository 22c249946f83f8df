"""Operators of backward find their forward operators where threads number theirs alike."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest

from scope.trace import ReadOptions, load_rank
from scope.trace.schema import Ops

if TYPE_CHECKING:
    from pathlib import Path

NODE = "autograd::engine::evaluate_function: MmBackward0"


def forward(thread: int, start_us: int, number: int) -> dict[str, Any]:
    """Return the record of an operator that autograd numbered on its thread."""
    args = {"Sequence number": number, "Fwd thread id": 0}
    return {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": thread, "ts": start_us, "dur": 10} | {
        "args": args
    }


def backward(thread: int, start_us: int, number: int, forward_thread: int) -> dict[str, Any]:
    """Return the record of an operator of backward, with autograd's own number of the thread of its forward."""
    args = {"Sequence number": number, "Fwd thread id": forward_thread}
    return forward(thread, start_us, number) | {"name": NODE, "args": args}


def arrow(number: int, *ends: tuple[int, int]) -> list[dict[str, Any]]:
    """Return the ends (thread, start) of an arrow from forward to backward."""
    record = {"cat": "fwdbwd", "name": "fwdbwd", "id": number, "pid": 1}
    return [
        record | {"ph": letter, "tid": thread, "ts": start_us}
        for letter, (thread, start_us) in zip("sf", ends, strict=True)
    ]


def pairs(folder: Path, records: list[dict[str, Any]], *, python_calls: bool = True) -> dict[float, float | None]:
    """Return for the start of each operator of backward that of its forward operator, in microseconds."""
    path = folder / "trace.json"
    path.write_text(json.dumps({"traceEvents": records}))
    ops = load_rank(path, options=ReadOptions(python_calls=python_calls)).ops
    found = ops.filter(pl.col(Ops.name).cast(pl.String) == NODE)
    starts = ops[Ops.start_ns].gather(found[Ops.forward_op_id]) / 1000
    return dict(zip((found[Ops.start_ns] / 1000).to_list(), starts.to_list(), strict=True))


@pytest.mark.parametrize("python_calls", [True, False])
def test_arrows_decide_where_numbers_do_not(tmp_path: Path, python_calls: bool) -> None:
    """Two threads of DataParallel number alike: arrows tell them apart, which are read for modules alone."""
    records = [forward(11, 20, 0), forward(12, 21, 0), backward(21, 300, 0, 1), backward(22, 301, 0, 2)]
    records += [*arrow(1, (11, 20), (21, 300)), *arrow(2, (12, 21), (22, 301))]
    expected = {300: 20, 301: 21} if python_calls else {300: None, 301: None}
    assert pairs(tmp_path, records, python_calls=python_calls) == expected


def test_numbers_alone_name_no_thread_of_several(tmp_path: Path) -> None:
    """Without arrows, operators of two threads that number alike have no known forward operator."""
    records = [forward(11, 20, 0), forward(12, 21, 0), backward(21, 300, 0, 1), backward(22, 301, 0, 2)]
    assert pairs(tmp_path, records) == {300: None, 301: None}


def test_a_forward_computed_again_is_not_the_one_of_backward(tmp_path: Path) -> None:
    """What checkpointing computes on the thread of backward bears numbers of forward, but fewer nodes follow it."""
    records = [forward(1, 20, 90), forward(1, 70, 91), backward(2, 300, 91, 1)]
    records += [forward(2, 320, 90), forward(2, 350, 91), backward(2, 520, 90, 1)]
    assert pairs(tmp_path, records) == {300: 70, 520: 20}


def test_backward_of_another_thread_finds_no_forward(tmp_path: Path) -> None:
    """A node whose forward ran on another thread, before the recording, does not take one of the same number."""
    records = [forward(11, 20, 7), forward(11, 40, 8)]
    records += [backward(21, 300, 8, 1), backward(21, 320, 7, 1), backward(21, 400, 7, 2)]
    assert pairs(tmp_path, records) == {300: 40, 320: 20, 400: None}


def test_each_thread_has_its_own_numbers(tmp_path: Path) -> None:
    """Threads are told apart by the numbers that one of them alone has, and so are those that they share."""
    records = [forward(11, 20, 0), forward(11, 40, 1), forward(12, 21, 0), forward(12, 41, 1), forward(12, 61, 2)]
    records += [backward(21, 300, 1, 5), backward(21, 320, 0, 5)]
    records += [backward(22, 301, 2, 6), backward(22, 321, 1, 6), backward(22, 341, 0, 6)]
    assert pairs(tmp_path, records) == {300: 40, 320: 20, 301: 61, 321: 41, 341: 21}


def test_a_number_of_very_many_threads_says_nothing(tmp_path: Path) -> None:
    """A file in which thousands of threads bear one number is read in the time of any other."""
    records = [forward(100 + index, index, 3) for index in range(5000)]
    records += [backward(99, 10_000 + index, 3, 1 + index) for index in range(5000)]
    assert set(pairs(tmp_path, records).values()) == {None}
