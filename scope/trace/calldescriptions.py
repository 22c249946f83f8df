"""What is told of one collective call by metadata, by ranges around it and by names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from scope.structs import Record
from scope.trace import calls
from scope.trace.schema import CollectiveCalls

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import polars as pl

    from scope.trace.collected import Collected
    from scope.trace.deviceevents import Devices
    from scope.trace.events import CollectiveArgs
    from scope.trace.model import ProcessGroup

C10D: Final = ("c10d::", "c10d_functional::", "_c10d_functional::")
"""What the names of the operators of `torch.distributed` begin with."""
ROLE_PLACES: Final = {"broadcast": 2, "reduce": 3, "gather": 3, "scatter": 3, "send": 2, "recv": 2}
"""Where the operators of c10d take their root or peer."""
_MOST_RANKS: Final = 1 << 20
_UNKNOWN: Final = "unknown"
Fields = dict[str, Any]
_EMPTY_ROW: Final[Fields] = dict.fromkeys(CollectiveCalls.columns())


class CallSources(Record, frozen=True, kw_only=True):
    """What the calls of one rank are found in."""

    devices: Devices
    ops: pl.DataFrame
    launches: pl.DataFrame
    op_file_rows: pl.Series
    """Row of each operator in file order."""
    host_ranges: pl.DataFrame
    steps_of: Callable[[pl.Series], pl.Series]
    groups: dict[str, ProcessGroup]
    collected: Collected


def described(fields: CollectiveArgs | None, labels: Sequence[str], sources: CallSources) -> Fields:
    """Return the columns that metadata fills; `labels` name the operation, best first."""
    operations = (calls.operation(label) for label in labels)
    row: Fields = dict(_EMPTY_ROW)
    row[CollectiveCalls.operation] = next((found for found in operations if found != _UNKNOWN), _UNKNOWN)
    row[CollectiveCalls.variant] = calls.variant(labels[0], None, None) if labels else "plain"
    row[CollectiveCalls.has_metadata] = False
    if fields is None:
        return row
    name = None if fields.group_name is None else str(fields.group_name)
    description = None if fields.group_description is None else str(fields.group_description)
    in_split, out_split = calls.int_list(bytes(fields.in_split)), calls.int_list(bytes(fields.out_split))
    ranks = calls.group_ranks(fields, sources.groups)
    size = fields.group_size if fields.group_size is not None else len(ranks) if ranks else None
    group = sources.groups.get(name or "")
    width = calls.element_bytes(fields.dtype)
    row.update(
        {
            CollectiveCalls.variant: calls.variant(labels[0], in_split, out_split),
            CollectiveCalls.group_name: name,
            CollectiveCalls.group_description: description or (group.description if group else None),
            CollectiveCalls.group_ranks: ranks,
            CollectiveCalls.group_size: size if size is None or 0 < size < _MOST_RANKS else None,
            CollectiveCalls.source_rank: _rank(fields.source_rank),
            CollectiveCalls.destination_rank: _rank(fields.destination_rank),
            CollectiveCalls.dtype: fields.dtype,
            CollectiveCalls.in_elements: int64(fields.in_elements),
            CollectiveCalls.out_elements: int64(fields.out_elements),
            CollectiveCalls.in_bytes: num_bytes(fields.in_elements, width),
            CollectiveCalls.out_bytes: num_bytes(fields.out_elements, width),
            CollectiveCalls.in_split: in_split or None,
            CollectiveCalls.out_split: out_split or None,
            CollectiveCalls.asynchronous: truth(fields.asynchronous),
        }
    )
    row[CollectiveCalls.has_metadata] = all(
        row[column] is not None
        for column in (CollectiveCalls.group_size, CollectiveCalls.dtype, CollectiveCalls.in_elements)
    )
    return row


def fill_sizes(row: Fields, dims: str | None, types: str | None) -> None:
    """Fill in what the library's range says of its input."""
    sizes = calls.shape_elements(dims)
    dtype = calls.first_text(types)
    if not sizes or dtype is None:
        return
    width = calls.element_bytes(dtype)
    row[CollectiveCalls.dtype] = dtype
    row[CollectiveCalls.in_elements] = int64(sum(sizes))
    row[CollectiveCalls.in_bytes] = num_bytes(sum(sizes), width)
    if row[CollectiveCalls.operation] in ("all_reduce", "broadcast"):
        row[CollectiveCalls.out_elements] = row[CollectiveCalls.in_elements]
        row[CollectiveCalls.out_bytes] = row[CollectiveCalls.in_bytes]


def int64(value: Any) -> int | None:
    """Return a whole number that fits 64 bits, None for anything else."""
    return value if isinstance(value, int) and abs(value) < 2**63 else None


def num_bytes(elements: Any, width: int | None) -> int | None:
    """Return the bytes of elements of a width; None where one of them is unknown."""
    return None if elements is None or width is None else int64(elements * width)


def _rank(value: Any) -> int | None:
    if isinstance(value, str) and value.isdigit() and len(value) < 8:
        value = int(value)
    return value if isinstance(value, int) and 0 <= value < _MOST_RANKS else None


def truth(value: Any) -> bool | None:
    """Return what a JSON value, or Python's text of one, says of yes and no."""
    if isinstance(value, str):
        return {"true": True, "1": True, "false": False, "0": False}.get(value.lower())
    return None if value is None else bool(value)


def concrete_inputs(text: str | None) -> list[str]:
    """Return the arguments of an operator from their text, none where they were not recorded."""
    return [str(value) for value in calls.json_list(text)]


def roles(operation: str, concrete: list[str]) -> Fields:
    """Return root or peer, and tag, which c10d takes as arguments at places of their own, in the group's numbering."""
    place = ROLE_PLACES.get(operation)
    peer = _argument(concrete, place)
    return {
        CollectiveCalls.source_rank: None if operation == "send" else _rank(peer),
        CollectiveCalls.destination_rank: _rank(peer) if operation == "send" else None,
        CollectiveCalls.tag: _argument(concrete, 3) if operation in ("send", "recv") else None,
    }


def _argument(concrete: list[str], place: int | None) -> int | None:
    """Return a whole number among an operator's arguments."""
    if place is None or place >= len(concrete):
        return None
    text = concrete[place]
    return int(text) if text.isdecimal() and len(text) < 19 else None
