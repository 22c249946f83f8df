"""What the operators of `torch.distributed` say of a call by their own arguments: sizes, splits, size of the group.

The library's range around a call (`nccl:all_gather`) says the input alone. The operator that asked for it takes output
and input as arguments, each at a place of its own (the schemas of torch's `c10d` and `_c10d_functional` operators), and
functional operators take the size of their group. Traces hold the shapes of tensors and, of newer torch, of lists of
tensors, but of lists of lists nothing.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, Final, NamedTuple

from scope.trace import calls
from scope.trace.ranks import MOST_RANKS
from scope.trace.untyped import as_list

_TENSORS: Final = "TensorList"
_NO_TENSOR: Final = frozenset({"", "Scalar", "ScalarList", "GenericList", "None"})


class _Places(NamedTuple):
    """Where an operator takes what tells the size of its call; None where it takes no such thing."""

    given: int | None = None
    got: int | None = None
    group_size: int | None = None
    given_split: int | None = None
    got_split: int | None = None


_IN_PLACE: Final = _Places(given=0, got=0)
_PAIR: Final = _Places(given=1, got=0)
_FUNCTIONAL_GATHER: Final = _Places(given=0, group_size=1)
_FUNCTIONAL_SCATTER: Final = _Places(given=0, group_size=2)
_FUNCTIONAL_EXCHANGE: Final = _Places(given=0, given_split=2, got_split=1)
_C10D: Final = {
    **dict.fromkeys(("allreduce_", "allreduce_coalesced_", "broadcast_"), _IN_PLACE),
    **dict.fromkeys(
        (
            "allgather_",
            "_allgather_base_",
            "allgather_coalesced_",
            "allgather_into_tensor_coalesced_",
            "reduce_scatter_",
            "_reduce_scatter_base_",
            "reduce_scatter_tensor_coalesced_",
            "alltoall_",
            "gather_",
            "scatter_",
        ),
        _PAIR,
    ),
    "alltoall_base_": _Places(given=1, got=0, given_split=4, got_split=3),
    **dict.fromkeys(("reduce_", "send"), _Places(given=0)),
    **dict.fromkeys(("recv_", "recv_any_source_"), _Places(got=0)),
}
_FUNCTIONAL: Final = {
    **dict.fromkeys(
        ("all_reduce", "all_reduce_", "all_reduce_coalesced", "all_reduce_coalesced_", "broadcast", "broadcast_"),
        _IN_PLACE,
    ),
    **dict.fromkeys(
        ("all_gather_into_tensor", "all_gather_into_tensor_out", "all_gather_into_tensor_coalesced"),
        _FUNCTIONAL_GATHER,
    ),
    **dict.fromkeys(
        ("reduce_scatter_tensor", "reduce_scatter_tensor_out", "reduce_scatter_tensor_coalesced"),
        _FUNCTIONAL_SCATTER,
    ),
    "all_to_all_single": _FUNCTIONAL_EXCHANGE,
    "isend": _Places(given=0),
    "irecv": _Places(got=0),
}
_OPERATORS: Final = {
    "c10d": _C10D,
    "_c10d_functional": _FUNCTIONAL,
    "_c10d_functional_autograd": _FUNCTIONAL,
    # The size of the group comes last here, behind the ranks.
    "c10d_functional": {
        name: places if places.group_size is None else places._replace(group_size=places.group_size + 2)
        for name, places in _FUNCTIONAL.items()
    },
}


class CallSizes(NamedTuple):
    """What the arguments of an operator say; None where they do not say it.

    Attributes:
        in_elements: Elements that this rank gives.
        out_elements: Elements that it gets.
        dtype: Type of the elements as the trace has it.
        group_size: Ranks of the group.
        in_split: Elements to each rank.
        out_split: Elements from each rank.
    """

    in_elements: int | None = None
    out_elements: int | None = None
    dtype: str | None = None
    group_size: int | None = None
    in_split: tuple[int, ...] | None = None
    out_split: tuple[int, ...] | None = None

    @property
    def is_uneven(self) -> bool:
        """Return whether an all_to_all of these sizes gives ranks parts of different size."""
        splits = (self.in_split or (), self.out_split or ())
        differ = None not in (self.in_elements, self.out_elements) and self.in_elements != self.out_elements
        return differ or any(len(set(split)) > 1 for split in splits)


NO_SIZES: Final = CallSizes()


@lru_cache(maxsize=4096)
def sizes_of_operator(name: str, dims: str | None, types: str | None, concrete: str | None) -> CallSizes:
    """Return what an operator says of its call.

    Args:
        name: The operator's name with its namespace.
        dims: Its `Input Dims`, a JSON text.
        types: Its `Input type`, likewise.
        concrete: Its `Concrete Inputs`, likewise.

    Examples:
        >>> sizes_of_operator("c10d::_allgather_base_", "[[8], [2], []]", '["float", "float", ""]', None)
        CallSizes(in_elements=2, out_elements=8, dtype='float', group_size=4, in_split=None, out_split=None)
    """
    namespace, _, bare = name.partition("::")
    places = _OPERATORS.get(namespace, {}).get(bare)
    if places is None:
        return NO_SIZES
    shapes, kinds, values = calls.json_list(dims), calls.json_list(types), calls.json_list(concrete)
    given, got = (_elements(_at(shapes, place), _at(kinds, place)) for place in (places.given, places.got))
    in_split, out_split = (_split(_at(values, place)) for place in (places.given_split, places.got_split))
    in_elements, out_elements = (None if parts is None else sum(parts) for parts in (given, got))
    if places.given_split is not None and out_elements is None and in_elements is not None:
        out_elements = _received(in_elements, in_split, out_split)
    operation = calls.operation(bare)
    size = _group_size(_at(values, places.group_size))
    if size is None:
        size = group_size_of(operation, in_elements, out_elements)
    if size is None and in_split:
        size = len(in_split)
    if size is None and bare == "alltoall_" and given:
        size = len(given)
    told = [_at(kinds, place) for place in (places.given, places.got)]
    dtype = next((kind for kind in told if isinstance(kind, str) and kind not in _NO_TENSOR | {_TENSORS}), None)
    found = CallSizes(in_elements, out_elements, dtype, size, in_split, out_split)
    if bare == "alltoall_":
        found = found._replace(in_split=given, out_split=got)
    return with_group_size(operation, found, found.group_size)


def with_group_size(operation: str, sizes: CallSizes, group_size: int | None) -> CallSizes:
    """Return sizes with what a group of so many ranks adds: the data of all ranks, or one rank's part of it.

    Of gather and scatter the data of all ranks stand with every rank, as NCCL's metadata have it.
    """
    given, got = sizes.in_elements, sizes.out_elements
    if group_size is None:
        return sizes
    if operation in ("all_gather", "gather"):
        got = given * group_size if got is None and given is not None else got
    elif operation == "scatter":
        given = got * group_size if given is None and got is not None else given
    elif operation == "reduce_scatter":
        given = got * group_size if given is None and got is not None else given
        if got is None and given is not None and given % group_size == 0:
            got = given // group_size
    return sizes._replace(in_elements=given, out_elements=got)


def group_size_of(operation: str, given: int | None, got: int | None) -> int | None:
    """Return the ranks that sizes tell: got / given of all_gather, given / got of reduce_scatter, else None."""
    if not given or not got:
        return None
    whole, part = (got, given) if operation == "all_gather" else (given, got)
    return whole // part if operation in ("all_gather", "reduce_scatter") and whole % part == 0 else None


def _received(given: int, in_split: tuple[int, ...] | None, out_split: tuple[int, ...] | None) -> int | None:
    """Return the elements that an exchange gets, whose splits count rows of equal size."""
    if not in_split or not out_split:
        return given
    rows = sum(in_split)
    return given * sum(out_split) // rows if rows else None


def _at(values: list[Any], place: int | None) -> Any:
    return values[place] if place is not None and place < len(values) else None


def _elements(shape: Any, kind: Any) -> tuple[int, ...] | None:
    """Return the elements of a tensor, or of each tensor of a list; None where the trace does not hold the shape."""
    if not isinstance(kind, str) or kind in _NO_TENSOR:
        return None
    # Older traces leave the shapes of lists empty, and a call of no tensors moves nothing.
    shapes = as_list(shape) if kind == _TENSORS else [shape]
    found = [_product(each) for each in shapes]
    return tuple(each for each in found if each is not None) if found and None not in found else None


def _product(shape: Any) -> int | None:
    """Return the elements of a tensor of a shape; a shape without extents is that of one number."""
    extents: list[Any] = as_list(shape)
    if not isinstance(shape, list) or not all(type(extent) is int and extent >= 0 for extent in extents):
        return None
    return math.prod(extents)


def _group_size(value: Any) -> int | None:
    text = str(value)
    return int(text) if text.isdecimal() and len(text) < 8 and 0 < int(text) < MOST_RANKS else None


def _split(value: Any) -> tuple[int, ...] | None:
    """Return the parts of a split; None for an empty one, which stands for equal parts."""
    found = calls.int_list(value.encode()) if isinstance(value, str) else None
    return tuple(found) if found and all(part >= 0 for part in found) else None
