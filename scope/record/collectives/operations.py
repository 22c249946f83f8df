"""The operators of c10d: which canonical operation each is, and how its bytes are read off its arguments.

Bytes are those of this rank: `in_bytes` what it gives, `out_bytes` what it gets. The root of a broadcast or scatter
gives, the others get; of a reduce or gather the root alone gets. Nothing here imports torch: tensors are only asked for
their sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from scope.run.schema import OPERATIONS, VARIANTS

if TYPE_CHECKING:
    from collections.abc import Iterable

OPERATION_CODES: Final = {name: code for code, name in enumerate(OPERATIONS)}
VARIANT_CODES: Final = {name: code for code, name in enumerate(VARIANTS)}

PLAIN: Final = VARIANT_CODES["plain"]
COALESCED: Final = VARIANT_CODES["coalesced"]
UNEVEN: Final = VARIANT_CODES["uneven"]
OBJECT: Final = VARIANT_CODES["object"]
FUNCTIONAL: Final = VARIANT_CODES["functional"]

_MIXED: Final = "mixed"


class Measured(NamedTuple):
    """What the arguments of one call say.

    Attributes:
        in_bytes: Bytes that this rank gives.
        out_bytes: Bytes that this rank gets.
        dtype: torch's dtype, `mixed`, or None without tensors.
        tensors: What the call is known by to functional waits: the tensors that it writes, or else reads.
        elements: Elements where all ranks must agree on them, else 0.
        peer: Root or other side, as rank of the group; -1 none.
        tag: Tag of a send or recv; -1 none.
        uneven: Ranks hold parts of different size.
    """

    in_bytes: int
    out_bytes: int
    dtype: Any
    tensors: Sequence[Any]
    elements: int = 0
    peer: int = -1
    tag: int = -1
    uneven: bool = False


Signature = Callable[[int, Sequence[Any]], Any]
"""Gives, of a group's id and the arguments, what tells calls apart; None for those to be measured each time."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OperationSpec:
    """One operator of c10d.

    Attributes:
        name: Its name in the `c10d` namespace.
        operation: Code of the canonical operation.
        measure: Reads the arguments; its second argument is the caller's rank in the group.
        signature: Tells quickly whether an equal call was measured before.
        group_index: Place of the process group among the arguments.
        variant: Code of the variant that the operator itself implies.
        point_to_point: Send or recv.
        blocking: The operator returns when the operation is over.
    """

    name: str
    operation: int
    measure: Callable[[Sequence[Any], int], Measured]
    signature: Signature
    group_index: int = 1
    variant: int = PLAIN
    point_to_point: bool = False
    blocking: bool = False


def size_bytes(tensors: Iterable[Any]) -> int:
    """Return the bytes that the elements of some tensors take (of a sparse one: its values and indices)."""
    return sum(_nbytes(tensor) for tensor in tensors)


def common_dtype(tensors: Sequence[Any]) -> Any:
    """Return the dtype of all tensors, `mixed` if they differ, None if there are none."""
    if not tensors:
        return None
    first = tensors[0].dtype
    return first if all(tensor.dtype is first for tensor in tensors) else _MIXED


def _nbytes(tensor: Any) -> int:
    if tensor.is_sparse:
        return tensor._values().nbytes + tensor._indices().nbytes
    return tensor.nbytes


def _numel(tensors: Iterable[Any]) -> int:
    return sum(tensor.numel() for tensor in tensors)


def _flatten(lists: Iterable[Sequence[Any]]) -> list[Any]:
    return [tensor for each in lists for tensor in each]


def _sizes_differ(tensors: Sequence[Any]) -> bool:
    return len({tensor.numel() for tensor in tensors}) > 1


def sign_in_place(group: int, args: Sequence[Any]) -> Any:
    """Of operators that write their first argument, a list of one tensor."""
    tensors = args[0]
    if len(tensors) > 1:
        return None
    tensor = tensors[0]
    try:
        return group, tensor.nbytes, tensor.dtype
    except RuntimeError:
        # A sparse tensor: how many elements it has is not among its sizes.
        return None


def _sign_with_peer(group: int, args: Sequence[Any]) -> Any:
    """Of operators with such a list and a root or peer."""
    tensors = args[0]
    return (group, tensors[0].nbytes, tensors[0].dtype, args[2], args[3]) if len(tensors) == 1 else None


def _sign_pair(group: int, args: Sequence[Any]) -> Any:
    """Of operators with an output and an input."""
    source = args[1]
    return group, args[0].nbytes, source.nbytes, source.dtype


def _sign_never(group: int, args: Sequence[Any]) -> Any:
    return None


def _all_reduce(args: Sequence[Any], rank: int) -> Measured:
    tensors = args[0]
    if len(tensors) == 1 and not tensors[0].is_sparse:
        tensor = tensors[0]
        size = tensor.nbytes
        return Measured(size, size, tensor.dtype, tensors, tensor.numel())
    size = size_bytes(tensors)
    return Measured(size, size, common_dtype(tensors), tensors, 0 if tensors[0].is_sparse else _numel(tensors))


def _broadcast(args: Sequence[Any], rank: int) -> Measured:
    tensors, root = args[0], args[2]
    size = size_bytes(tensors)
    sent, got = (size, 0) if rank == root else (0, size)
    return Measured(sent, got, common_dtype(tensors), tensors, _numel(tensors), root)


def _reduce(args: Sequence[Any], rank: int) -> Measured:
    tensors, root = args[0], args[3]
    size = size_bytes(tensors)
    return Measured(size, size if rank == root else 0, common_dtype(tensors), tensors, _numel(tensors), root)


def _all_gather_lists(args: Sequence[Any], rank: int) -> Measured:
    outputs, inputs = _flatten(args[0]), args[1]
    uneven = _sizes_differ(outputs)
    elements = 0 if uneven else _numel(inputs)
    return Measured(
        size_bytes(inputs), size_bytes(outputs), common_dtype(inputs), outputs or inputs, elements, uneven=uneven
    )


def _all_gather_coalesced_lists(args: Sequence[Any], rank: int) -> Measured:
    outputs, inputs = _flatten(args[0]), args[1]
    return Measured(size_bytes(inputs), size_bytes(outputs), common_dtype(inputs), outputs, _numel(inputs))


def _single(args: Sequence[Any], rank: int) -> Measured:
    output, source = args[0], args[1]
    return Measured(source.nbytes, output.nbytes, source.dtype, (output,), source.numel())


def _list_pair(args: Sequence[Any], rank: int) -> Measured:
    outputs, inputs = args[0], args[1]
    return Measured(size_bytes(inputs), size_bytes(outputs), common_dtype(inputs), outputs, _numel(inputs))


def _reduce_scatter_lists(args: Sequence[Any], rank: int) -> Measured:
    outputs, inputs = args[0], _flatten(args[1])
    uneven = _sizes_differ(inputs)
    return Measured(
        size_bytes(inputs), size_bytes(outputs), common_dtype(inputs), outputs, _numel(inputs), uneven=uneven
    )


def _all_to_all_lists(args: Sequence[Any], rank: int) -> Measured:
    outputs, inputs = args[0], args[1]
    uneven = _sizes_differ(inputs) or _sizes_differ(outputs)
    # No number of elements: a rank whose parts happen to be even may have peers whose parts are not.
    return Measured(size_bytes(inputs), size_bytes(outputs), common_dtype(inputs), outputs, uneven=uneven)


def _all_to_all_single(args: Sequence[Any], rank: int) -> Measured:
    output, source = args[0], args[1]
    uneven = len(set(args[3])) > 1 or len(set(args[4])) > 1 or output.numel() != source.numel()
    return Measured(source.nbytes, output.nbytes, source.dtype, (output,), uneven=uneven)


def _gather(args: Sequence[Any], rank: int) -> Measured:
    outputs, inputs, root = _flatten(args[0]), args[1], args[3]
    got = size_bytes(outputs) if rank == root else 0
    return Measured(size_bytes(inputs), got, common_dtype(inputs), outputs or inputs, _numel(inputs), root)


def _scatter(args: Sequence[Any], rank: int) -> Measured:
    outputs, inputs, root = args[0], _flatten(args[1]), args[3]
    sent = size_bytes(inputs) if rank == root else 0
    return Measured(sent, size_bytes(outputs), common_dtype(outputs), outputs, _numel(outputs), root)


def _send(args: Sequence[Any], rank: int) -> Measured:
    tensors = args[0]
    return Measured(size_bytes(tensors), 0, common_dtype(tensors), tensors, 0, args[2], args[3])


def _recv(args: Sequence[Any], rank: int) -> Measured:
    tensors = args[0]
    return Measured(0, size_bytes(tensors), common_dtype(tensors), tensors, 0, args[2], args[3])


def _recv_any(args: Sequence[Any], rank: int) -> Measured:
    tensors = args[0]
    return Measured(0, size_bytes(tensors), common_dtype(tensors), tensors, 0, -1, args[2])


def _barrier(args: Sequence[Any], rank: int) -> Measured:
    # Its tensor carries the device alone.
    return Measured(0, 0, None, (args[0],))


def _spec(name: str, operation: str, measure: Any, *, sign: Signature = _sign_never, **more: Any) -> OperationSpec:
    return OperationSpec(name=name, operation=OPERATION_CODES[operation], measure=measure, signature=sign, **more)


SPECS: Final[tuple[OperationSpec, ...]] = (
    _spec("allreduce_", "all_reduce", _all_reduce, sign=sign_in_place),
    _spec("allreduce_coalesced_", "all_reduce", _all_reduce, variant=COALESCED),
    _spec("allgather_", "all_gather", _all_gather_lists, group_index=2),
    _spec("_allgather_base_", "all_gather", _single, group_index=2, sign=_sign_pair),
    _spec("allgather_coalesced_", "all_gather", _all_gather_coalesced_lists, group_index=2, variant=COALESCED),
    _spec("allgather_into_tensor_coalesced_", "all_gather", _list_pair, group_index=2, variant=COALESCED),
    _spec("reduce_scatter_", "reduce_scatter", _reduce_scatter_lists, group_index=2),
    _spec("_reduce_scatter_base_", "reduce_scatter", _single, group_index=2, sign=_sign_pair),
    _spec("reduce_scatter_tensor_coalesced_", "reduce_scatter", _list_pair, group_index=2, variant=COALESCED),
    _spec("alltoall_", "all_to_all", _all_to_all_lists, group_index=2),
    _spec("alltoall_base_", "all_to_all", _all_to_all_single, group_index=2),
    _spec("broadcast_", "broadcast", _broadcast, sign=_sign_with_peer),
    _spec("reduce_", "reduce", _reduce),
    _spec("gather_", "gather", _gather, group_index=2),
    _spec("scatter_", "scatter", _scatter, group_index=2),
    _spec("send", "send", _send, point_to_point=True, sign=_sign_with_peer),
    _spec("recv_", "recv", _recv, point_to_point=True, sign=_sign_with_peer),
    _spec("recv_any_source_", "recv", _recv_any, point_to_point=True),
    _spec("barrier", "barrier", _barrier),
    _spec("monitored_barrier_", "barrier", _barrier, blocking=True),
)
"""Every operator of c10d that communicates, in torch 2.6 to 2.14."""
