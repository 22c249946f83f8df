"""Collective calls on a host timeline: the ranges of the library, each named after the operator that asked for it."""

from __future__ import annotations

import re
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
    num_bytes,
    roles,
    truth,
)
from scope.trace.schema import Annotations, CollectiveCalls, Ops

_HOST_RANGE: Final = re.compile(r"(gloo|mpi|ucc):(\w+)")
_GLOO_STANDS_FOR: Final = {"all_reduce": {"all_reduce", "reduce_scatter"}}
"""Gloo builds reduce_scatter on its all_reduce, so its label tells only the algorithm."""


def host_calls(sources: CallSources) -> list[Fields]:
    """Return the ranges of the library, each named after the c10d operator that asked for it.

    The ranges stand on the library's threads, the operators on the caller's. A range belongs to the earliest operator
    that began before it, is not yet matched, and could have made it (operation and number of elements).
    """
    names = sources.host_ranges[Annotations.name].cast(pl.String)
    ranges = sources.host_ranges.filter(names.str.contains(r"^(?:gloo|mpi|ucc):\w+")).sort(Annotations.start_ns)
    waiting = _outer_c10d(sources.ops)
    rows: list[Fields] = []
    for around in ranges.iter_rows(named=True):
        match = _HOST_RANGE.match(around[Annotations.name])
        assert match is not None
        label = calls.operation(match[2])
        sizes = calls.shape_elements(around[Ops.input_dims])
        op = next((op for op in waiting if _could_make(op, label, sizes, around[Annotations.start_ns])), None)
        if op is not None:
            waiting.remove(op)
        rows.append(_host_row(around, match, op, sources))
    return rows


def _outer_c10d(ops: pl.DataFrame) -> list[Fields]:
    names: list[str] = ops[Ops.name].to_list()
    chosen = [row for row, name in enumerate(names) if name.startswith(C10D)]
    columns = (Ops.op_id, Ops.parent_id, Ops.name, Ops.start_ns, Ops.input_dims, Ops.concrete_inputs)
    found: list[Fields] = []
    for op in ops.select(*columns)[chosen].iter_rows(named=True):
        parent: int | None = op[Ops.parent_id]
        if parent is not None and names[parent].startswith(C10D):
            continue
        sizes = calls.shape_elements(op[Ops.input_dims])
        op["operation"] = calls.operation(str(op[Ops.name]).rpartition("::")[2])
        op["sizes"] = {*sizes, sum(sizes)}
        found.append(op)
    return found


def _could_make(op: Fields, label: str, sizes: tuple[int, ...], start_ns: int) -> bool:
    if op[Ops.start_ns] > start_ns or op["operation"] not in _GLOO_STANDS_FOR.get(label, {label}):
        return False
    return not sizes or sum(sizes) in op["sizes"]


def _host_row(around: Fields, match: re.Match[str], op: Fields | None, sources: CallSources) -> Fields:
    labels = [str(op[Ops.name]).rpartition("::")[2]] if op is not None else []
    row = described(None, [*labels, match[2]], sources)
    fill_sizes(row, around[Ops.input_dims], around[Ops.input_types])
    groups = list(sources.groups.values())
    group = groups[0] if len(groups) == 1 else None
    size = group.size if group is not None else None
    operation = row[CollectiveCalls.operation]
    elements = row[CollectiveCalls.in_elements]
    out_elements = _host_out_elements(operation, elements, size)
    width = calls.element_bytes(row[CollectiveCalls.dtype])
    concrete = concrete_inputs(None if op is None else op[Ops.concrete_inputs])
    row.update(
        {
            CollectiveCalls.library: match[1],
            CollectiveCalls.group_name: group.name if group else None,
            CollectiveCalls.group_description: group.description if group else None,
            CollectiveCalls.group_ranks: list(group.ranks) if group and group.ranks else None,
            CollectiveCalls.group_size: size,
            CollectiveCalls.out_elements: out_elements,
            CollectiveCalls.out_bytes: num_bytes(out_elements, width),
            **roles(operation, concrete),
            CollectiveCalls.asynchronous: truth(concrete[-2])
            if operation not in ("send", "recv") and len(concrete) > 2
            else None,
            CollectiveCalls.start_ns: around[Annotations.start_ns],
            CollectiveCalls.end_ns: around[Annotations.end_ns],
            CollectiveCalls.op_id: op[Ops.op_id] if op is not None else None,
            CollectiveCalls.has_metadata: op is not None and group is not None and elements is not None,
        }
    )
    return row


def _host_out_elements(operation: str, elements: int | None, size: int | None) -> int | None:
    if elements is None:
        return None
    if operation in ("all_reduce", "broadcast", "all_to_all"):
        return elements
    if operation == "all_gather":
        return elements * size if size else None
    if operation == "reduce_scatter":
        return elements // size if size and elements % size == 0 else None
    return None
