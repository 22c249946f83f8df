"""Collective calls on a host timeline: the ranges of the library, each named after the operator that asked for it."""

from __future__ import annotations

import re
from collections import deque
from typing import Final

import polars as pl

from scope.trace import calls
from scope.trace.calldescriptions import (
    C10D,
    CallSources,
    Fields,
    concrete_inputs,
    described,
    fill_sizes,
    roles,
    truth,
)
from scope.trace.callsizes import NO_SIZES, sizes_of_operator
from scope.trace.schema import Annotations, CollectiveCalls, Ops

_HOST_RANGE: Final = re.compile(r"(gloo|mpi|ucc):(\w+)")
_GLOO_STANDS_FOR: Final = {"all_reduce": {"all_reduce", "reduce_scatter"}}
"""Gloo builds reduce_scatter on its all_reduce, so its label tells only the algorithm."""
_PARTED: Final = "reduce_scatter"
"""Of a list of tensors, each is a range of its own."""


def host_calls(sources: CallSources) -> list[Fields]:
    """Return the ranges of the library, each named after the c10d operator that asked for it.

    The ranges stand on the library's threads, the operators on the caller's. A range belongs to the earliest operator
    that began before it, is not yet matched, and could have made it (operation and number of elements). A range that
    none could have made is a further part of the last reduce_scatter, if its size is that of one.
    """
    names = sources.host_ranges[Annotations.name].cast(pl.String)
    ranges = sources.host_ranges.filter(names.str.contains(r"^(?:gloo|mpi|ucc):\w+")).sort(Annotations.start_ns)
    waiting = _Waiting(_outer_c10d(sources.ops))
    rows: list[Fields] = []
    parted: tuple[Fields, Fields] | None = None
    for around in ranges.iter_rows(named=True):
        match = _HOST_RANGE.match(around[Annotations.name])
        assert match is not None
        label = calls.operation(match[2])
        sizes = calls.shape_elements(around[Ops.input_dims])
        op = waiting.take(label, sizes, around[Annotations.start_ns])
        if op is None and parted is not None and _could_make(parted[0], label, sizes, around[Annotations.start_ns]):
            row = parted[1]
            row[CollectiveCalls.end_ns] = max(row[CollectiveCalls.end_ns], around[Annotations.end_ns])
            continue
        rows.append(_host_row(around, match, op, sources))
        if op is not None and op["operation"] == _PARTED:
            parted = op, rows[-1]
    return rows


def _outer_c10d(ops: pl.DataFrame) -> list[Fields]:
    names: list[str] = ops[Ops.name].to_list()
    chosen = [row for row, name in enumerate(names) if name.startswith(C10D)]
    columns = (
        Ops.op_id,
        Ops.parent_id,
        Ops.name,
        Ops.start_ns,
        Ops.input_dims,
        Ops.input_types,
        Ops.concrete_inputs,
    )
    found: list[Fields] = []
    for op in ops.select(*columns)[chosen].iter_rows(named=True):
        parent: int | None = op[Ops.parent_id]
        if parent is not None and names[parent].startswith(C10D):
            continue
        shapes = calls.shape_elements(op[Ops.input_dims])
        op["operation"] = calls.operation(str(op[Ops.name]).rpartition("::")[2])
        arguments = (op[Ops.input_dims], op[Ops.input_types], op[Ops.concrete_inputs])
        own = op["arguments"] = sizes_of_operator(str(op[Ops.name]), *arguments)
        op["sizes"] = {*shapes, sum(shapes), own.in_elements, own.out_elements}
        found.append(op)
    return found


class _Waiting:
    """Operators that no range belongs to yet, by what a range of theirs would say."""

    def __init__(self, ops: list[Fields]) -> None:
        self._ops = ops
        self._is_taken = [False] * len(ops)
        self._by_said: dict[tuple[str, int | None], deque[int]] = {}
        for place, op in enumerate(ops):
            for size in (None, *(op["sizes"] - {None})):
                self._by_said.setdefault((op["operation"], size), deque()).append(place)

    def take(self, label: str, sizes: tuple[int, ...], start_ns: int) -> Fields | None:
        """Return the earliest operator that could have made a range, once; None where there is none."""
        heads = [
            self._head((operation, size), start_ns) for operation in _operations(label) for size in _told(label, sizes)
        ]
        place = min((head for head in heads if head is not None), default=None)
        if place is None:
            return None
        self._is_taken[place] = True
        return self._ops[place]

    def _head(self, said: tuple[str, int | None], start_ns: int) -> int | None:
        places = self._by_said.get(said, deque())
        while places and self._is_taken[places[0]]:
            places.popleft()
        return places[0] if places and self._ops[places[0]][Ops.start_ns] <= start_ns else None


def _could_make(op: Fields, label: str, sizes: tuple[int, ...], start_ns: int) -> bool:
    if op[Ops.start_ns] > start_ns or op["operation"] not in _operations(label):
        return False
    return any(size is None or size in op["sizes"] for size in _told(label, sizes))


def _operations(label: str) -> set[str]:
    return _GLOO_STANDS_FOR.get(label, {label})


def _told(label: str, sizes: tuple[int, ...]) -> tuple[int | None, ...]:
    """Return which numbers of elements an operator may have whose range has these; None for any."""
    if not sizes:
        return (None,)
    # The range of the root of a scatter holds the parts of all ranks, its operator the root's own.
    return (sum(sizes), sizes[0]) if label == "scatter" else (sum(sizes),)


def _host_row(around: Fields, match: re.Match[str], op: Fields | None, sources: CallSources) -> Fields:
    labels = [str(op[Ops.name]).rpartition("::")[2]] if op is not None else []
    row = described(None, [*labels, match[2]], sources)
    sizes = NO_SIZES if op is None else op["arguments"]
    fill_sizes(row, sizes, around[Ops.input_dims], around[Ops.input_types], sources=sources)
    operation = row[CollectiveCalls.operation]
    concrete = concrete_inputs(None if op is None else op[Ops.concrete_inputs])
    is_sized = row[CollectiveCalls.in_elements] is not None or row[CollectiveCalls.out_elements] is not None
    row.update(
        {
            CollectiveCalls.library: match[1],
            **roles(operation, concrete),
            CollectiveCalls.asynchronous: truth(concrete[-2])
            if operation not in ("send", "recv") and len(concrete) > 2
            else None,
            CollectiveCalls.start_ns: around[Annotations.start_ns],
            CollectiveCalls.end_ns: around[Annotations.end_ns],
            CollectiveCalls.op_id: op[Ops.op_id] if op is not None else None,
            CollectiveCalls.has_metadata: op is not None
            and row[CollectiveCalls.group_size] is not None
            and not row[CollectiveCalls.is_group_inferred]
            and is_sized,
        }
    )
    return row
