"""Calls of collectives: from metadata, from the ranges around them, and from kernel names."""

from __future__ import annotations

import json
import math
import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from scope.trace.ranks import MOST_RANKS
from scope.trace.untyped import as_list

if TYPE_CHECKING:
    from collections.abc import Mapping

    from scope.trace.events import CollectiveArgs
    from scope.trace.model import ProcessGroup

ELEMENT_BYTES: Final = {
    "float": 4,
    "float32": 4,
    "int": 4,
    "int32": 4,
    "uint32": 4,
    "double": 8,
    "float64": 8,
    "long": 8,
    "longint": 8,
    "int64": 8,
    "uint64": 8,
    "half": 2,
    "float16": 2,
    "c10::half": 2,
    "bfloat16": 2,
    "c10::bfloat16": 2,
    "short": 2,
    "int16": 2,
    "uint16": 2,
    "shortint": 2,
    "byte": 1,
    "char": 1,
    "bool": 1,
    "unsignedchar": 1,
    "signedchar": 1,
    "uint8": 1,
    "int8": 1,
    "complexfloat": 8,
    "complexdouble": 16,
    "complexhalf": 4,
    "c10::complex<float>": 8,
    "c10::complex<double>": 16,
}
_FLOAT8: Final = re.compile(r"(?:c10::)?float8_\w+|fp8\w*|float4\w*|float8\w*")
_OPERATION_NAMES: Final = (
    ("all_reduce", re.compile(r"allreduce|crossdevicereduce|localdeviceload|rdxnonstream")),
    ("reduce_scatter", re.compile(r"reducescatter")),
    ("all_gather", re.compile(r"allgather|gatherintotensor|gathersingle|fcollect")),
    ("all_to_all", re.compile(r"alltoall|sendrecv|dispatch|combine|cachednotify|moecomm")),
    ("broadcast", re.compile(r"broadcast|bcast")),
    ("barrier", re.compile(r"barrier")),
    ("gather", re.compile(r"gather")),
    ("scatter", re.compile(r"scatter")),
    ("reduce", re.compile(r"reduce(?!op)")),
    ("send", re.compile(r"send")),
    ("recv", re.compile(r"recv")),
)
_INT64_END: Final = 2**63
_RANKS_END: Final = 2**31
_SPLIT_ELEMENTS_MAX: Final = 1 << 20


@lru_cache(maxsize=4096)
def operation(name: str) -> str:
    """Return the one name of an operation for what libraries call it, or `unknown`.

    Examples:
        >>> (
        ...     operation("_allgather_base"),
        ...     operation("ncclDevKernel_ReduceScatter_Sum_f32_RING_LL"),
        ...     operation("all_to_allv"),
        ... )
        ('all_gather', 'reduce_scatter', 'all_to_all')
        >>> operation("ncclDevKernel_Generic")
        'unknown'
    """
    squeezed = name.lower().replace("_", "")
    return next((label for label, pattern in _OPERATION_NAMES if pattern.search(squeezed)), "unknown")


def variant(name: str, in_split: list[int] | None, out_split: list[int] | None) -> str:
    """Return how a call was made, as far as its name and its splits tell."""
    lowered = name.lower()
    if "coalesced" in lowered:
        return "coalesced"
    if lowered.endswith(("alltoallv", "all_to_allv")) or in_split or out_split:
        return "uneven"
    if lowered.startswith("_c10d_functional"):
        return "functional"
    return "plain"


def element_bytes(dtype: str | None) -> int | None:
    """Return the bytes of one element of a dtype as traces write it, or None when it is not known."""
    if dtype is None:
        return None
    squeezed = dtype.lower().replace(" ", "").replace("_", "") if "::" not in dtype else dtype.lower()
    known = ELEMENT_BYTES.get(squeezed)
    return known if known is not None else 1 if _FLOAT8.fullmatch(squeezed) else None


def int_list(text: bytes) -> list[int] | None:
    """Read a list of integers that stands in a trace as a list or as a string; None when it is elided or absent.

    Examples:
        >>> int_list(b'"[0, 1]"'), int_list(b"[3,4]"), int_list(b'"[0, 1, ..., 63]"'), int_list(b'"[]"')
        ([0, 1], [3, 4], None, [])
    """
    stripped = text.strip(b'" ')
    if not stripped.startswith(b"[") or len(stripped) > _SPLIT_ELEMENTS_MAX:
        return None
    try:
        values = as_list(json.loads(stripped))
    except (ValueError, RecursionError):
        return None
    return values if all(type(value) is int and abs(value) < _INT64_END for value in values) else None


def group_ranks(fields: CollectiveArgs, groups: Mapping[str, ProcessGroup]) -> list[int] | None:
    """Return the sorted global ranks of a call's group; None when the trace does not say.

    Of ranks that contradict the size those of the call itself decide, unless the group of its name fits the size.
    """
    said = sorted(int_list(bytes(fields.group_ranks)) or ())
    listed = said if said and said[0] >= 0 and said[-1] < _RANKS_END else None
    size = usable_group_size(fields.group_size)
    if listed and (size is None or len(listed) == size):
        return listed
    group = groups.get("" if fields.group_name is None else str(fields.group_name))
    if group is not None and group.ranks and (size is None or len(group.ranks) == size):
        return list(group.ranks)
    if listed and len(set(listed)) == len(listed):
        return listed
    return _strided(fields.first_rank, fields.rank_stride, size)


def usable_group_size(size: int | None) -> int | None:
    """Return the size of a group as a trace says it, None where no group is of such a size."""
    return size if size is not None and 0 < size < MOST_RANKS else None


def _strided(first: int | None, stride: int | None, size: int | None) -> list[int] | None:
    if first is None or stride is None or not size:
        return None
    if not (0 <= first < _RANKS_END and 0 < stride < _RANKS_END and 0 < size < MOST_RANKS):
        return None
    ranks = [first + stride * index for index in range(size)]
    return ranks if ranks[-1] < _RANKS_END else None


@lru_cache(maxsize=4096)
def shape_elements(dims: str | None) -> tuple[int, ...]:
    """Return the number of elements of each tensor in an `Input Dims` text; tensors in lists are flattened."""
    if not dims:
        return ()
    try:
        shapes: Any = json.loads(dims)
    except (ValueError, RecursionError):
        return ()
    sizes: list[int] = []

    def walk(shape: list[Any]) -> None:
        if shape and all(type(extent) is int for extent in shape):
            sizes.append(math.prod(shape))
            return
        for inner in shape:
            walk(as_list(inner))

    walk(as_list(shapes))
    return tuple(sizes)


@lru_cache(maxsize=4096)
def first_text(types: str | None) -> str | None:
    """Return the first entry of an `Input type` text."""
    return next((entry for entry in json_list(types) if isinstance(entry, str) and entry), None)


def json_list(text: str | None) -> list[Any]:
    """Return the list that a text holds; an empty one when it holds none."""
    try:
        return as_list(json.loads(text)) if text else []
    except (ValueError, RecursionError):
        return []
