"""What is told of one collective call by metadata, by ranges around it and by names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from scope.structs import Record
from scope.trace import calls
from scope.trace.callgroups import fit_group
from scope.trace.callsizes import group_size_of, with_group_size
from scope.trace.ranks import MOST_RANKS
from scope.trace.schema import CollectiveCalls

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import polars as pl

    from scope.trace.callsizes import CallSizes
    from scope.trace.collected import Collected
    from scope.trace.deviceevents import Devices
    from scope.trace.events import CollectiveArgs
    from scope.trace.model import ProcessGroup

C10D: Final = ("c10d::", "c10d_functional::", "_c10d_functional::")
"""What the names of the operators of `torch.distributed` begin with."""
ROLE_PLACES: Final = {"broadcast": 2, "reduce": 3, "gather": 3, "scatter": 3, "send": 2, "recv": 2}
"""Where the operators of c10d take their root or peer."""
_SAME_OUT: Final = ("all_reduce", "broadcast", "all_to_all")
"""What the range of a call says of its input holds for its output too, as far as the trace tells."""
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
    rank: int | None = None
    """Global rank of the file, as far as it is known."""

    @property
    def is_host_timeline(self) -> bool:
        """Return whether the calls stand on the host alone."""
        return self.devices.frame.height == 0


def described(fields: CollectiveArgs | None, labels: Sequence[str], sources: CallSources) -> Fields:
    """Return the columns that metadata fills; `labels` name the operation, best first."""
    operations = (calls.operation(label) for label in labels)
    row: Fields = dict(_EMPTY_ROW)
    row[CollectiveCalls.operation] = next((found for found in operations if found != _UNKNOWN), _UNKNOWN)
    row[CollectiveCalls.variant] = calls.variant(labels[0], None, None) if labels else "plain"
    row[CollectiveCalls.has_metadata] = False
    row[CollectiveCalls.is_group_inferred] = False
    if fields is None:
        return row
    name = None if fields.group_name is None else str(fields.group_name)
    description = None if fields.group_description is None else str(fields.group_description)
    in_split, out_split = calls.int_list(bytes(fields.in_split)), calls.int_list(bytes(fields.out_split))
    ranks = calls.group_ranks(fields, sources.groups)
    size = len(ranks) if ranks else calls.usable_group_size(fields.group_size)
    group = sources.groups.get(name or "")
    width = calls.element_bytes(fields.dtype)
    in_elements, out_elements = _count(fields.in_elements), _count(fields.out_elements)
    row.update(_told_roles(row[CollectiveCalls.operation], fields, ranks))
    row.update(
        {
            CollectiveCalls.variant: calls.variant(labels[0], in_split, out_split),
            CollectiveCalls.group_name: name,
            CollectiveCalls.group_description: description or (group.description if group else None),
            CollectiveCalls.group_ranks: ranks,
            CollectiveCalls.group_size: size,
            CollectiveCalls.dtype: fields.dtype,
            CollectiveCalls.in_elements: in_elements,
            CollectiveCalls.out_elements: out_elements,
            CollectiveCalls.in_bytes: num_bytes(in_elements, width),
            CollectiveCalls.out_bytes: num_bytes(out_elements, width),
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


def fill_sizes(row: Fields, sizes: CallSizes, dims: str | None, types: str | None, *, sources: CallSources) -> None:
    """Fill in sizes and group that metadata leave out.

    Args:
        row: The columns of a call; those of its sizes are empty.
        sizes: What the operator that asked for the call says.
        dims: Shapes of the library's range around it, which are those of its input.
        types: Their types.
        sources: The groups that the trace lists.
    """
    operation = row[CollectiveCalls.operation]
    sizes = _with_range(operation, sizes, calls.shape_elements(dims))
    dtype = sizes.dtype or calls.first_text(types) or row[CollectiveCalls.dtype]
    evident = sizes.group_size or group_size_of(operation, sizes.in_elements, sizes.out_elements)
    if row[CollectiveCalls.group_name] is None and row[CollectiveCalls.group_ranks] is None:
        _fill_group(row, evident, sources)
    sizes = with_group_size(operation, sizes, row[CollectiveCalls.group_size] or evident)
    width = calls.element_bytes(dtype)
    in_elements, out_elements = int64(sizes.in_elements), int64(sizes.out_elements)
    row.update(
        {
            CollectiveCalls.dtype: dtype,
            CollectiveCalls.in_elements: in_elements,
            CollectiveCalls.out_elements: out_elements,
            CollectiveCalls.in_bytes: num_bytes(in_elements, width),
            CollectiveCalls.out_bytes: num_bytes(out_elements, width),
        }
    )
    if operation == "all_to_all":
        row[CollectiveCalls.in_split] = _as_list(sizes.in_split)
        row[CollectiveCalls.out_split] = _as_list(sizes.out_split)
        if sizes.is_uneven:
            row[CollectiveCalls.variant] = "uneven"


def _with_range(operation: str, sizes: CallSizes, parts: Sequence[int]) -> CallSizes:
    """Return sizes with what the library's range says of the input, where the operator does not say it."""
    given, got = sizes.in_elements, sizes.out_elements
    if not parts or given is not None:
        return sizes
    if operation == "recv":
        return sizes._replace(out_elements=sum(parts) if got is None else got)
    if got is None:
        got = sum(parts) if operation in _SAME_OUT else None
        return sizes._replace(in_elements=sum(parts), out_elements=got)
    # Gloo reduces the parts of a list one by one, so that the range of each holds a part of the input.
    return sizes._replace(in_elements=sum(parts)) if sum(parts) > got else sizes


def _fill_group(row: Fields, evident: int | None, sources: CallSources) -> None:
    """Fill in the group that a call fits of those that the trace lists."""
    size = row[CollectiveCalls.group_size] or evident
    fit = fit_group(sources.groups.values(), size=size, rank=sources.rank)
    # That a device ran nothing outside the only group listed is no more than an assumption.
    if fit.is_only and size is None and not sources.is_host_timeline:
        return
    row[CollectiveCalls.group_name] = fit.name
    row[CollectiveCalls.group_description] = fit.description
    row[CollectiveCalls.group_ranks] = fit.ranks
    row[CollectiveCalls.group_size] = fit.size if fit.size is None or 0 < fit.size < MOST_RANKS else None
    row[CollectiveCalls.is_group_inferred] = fit.ranks is not None and not fit.is_only


def _as_list(split: tuple[int, ...] | None) -> list[int] | None:
    """Return a split that its column can hold."""
    return list(split) if split and all(int64(part) is not None for part in split) else None


def int64(value: Any) -> int | None:
    """Return a whole number that fits 64 bits, None for anything else."""
    return value if isinstance(value, int) and abs(value) < 2**63 else None


def _count(value: int | None) -> int | None:
    """Return a number of elements, None where a trace says one that no message has."""
    return None if value is None or value < 0 else int64(value)


def num_bytes(elements: Any, width: int | None) -> int | None:
    """Return the bytes of elements of a width; None where one of them is unknown."""
    return None if elements is None or width is None else int64(elements * width)


def _rank(value: Any) -> int | None:
    if isinstance(value, str) and value.isdigit() and len(value) < 8:
        value = int(value)
    return value if isinstance(value, int) and 0 <= value < MOST_RANKS else None


def truth(value: Any) -> bool | None:
    """Return what a JSON value, or Python's text of one, says of yes and no."""
    if isinstance(value, str):
        return {"true": True, "1": True, "false": False, "0": False}.get(value.lower())
    return None if value is None else bool(value)


def concrete_inputs(text: str | None) -> list[str]:
    """Return the arguments of an operator from their text, none where they were not recorded."""
    return [str(value) for value in calls.json_list(text)]


def _told_roles(operation: str, fields: CollectiveArgs, ranks: list[int] | None) -> Fields:
    """Return root or peer in the group's numbering, out of metadata, which name a peer by its global rank too."""
    if operation not in ROLE_PLACES:
        return {}
    if operation == "send":
        return {CollectiveCalls.destination_rank: _place(fields.destination_rank, _rank(fields.role_rank), ranks)}
    return {CollectiveCalls.source_rank: _place(fields.source_rank, _rank(fields.role_rank), ranks)}


def _place(named: Any, role: int | None, ranks: list[int] | None) -> int | None:
    """Return the place in a group of the rank that is named, and has a role, by a call.

    Args:
        named: Its global rank, where metadata say it.
        role: Its place, where they say that.
        ranks: Global ranks of the group.
    """
    rank = _rank(named)
    if rank is None or rank == role or not ranks or rank not in ranks:
        return role
    return ranks.index(rank)


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
