"""Calls that a hook describes by name, tensors and root, instead of by an operator's arguments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from scope.record.collectives.operations import (
    COALESCED,
    OPERATION_CODES,
    PLAIN,
    Measured,
    OperationSpec,
    common_dtype,
    size_bytes,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

_IN_PLACE: Final = frozenset({"all_reduce", "broadcast", "reduce"})
_ROOT_GIVES: Final = frozenset({"broadcast", "scatter"})
_ROOT_GETS: Final = frozenset({"reduce", "gather"})
_ALL_AGREE: Final = frozenset({"all_reduce", "broadcast", "reduce", "all_gather", "reduce_scatter", "gather"})


def _nothing(args: Sequence[Any], rank: int) -> Measured:
    return Measured(0, 0, None, ())


def _spec(operation: str, variant: int) -> OperationSpec:
    return OperationSpec(
        name=operation,
        operation=OPERATION_CODES[operation],
        measure=_nothing,
        signature=lambda group, args: None,
        variant=variant,
        point_to_point=operation in {"send", "recv"},
    )


_SPECS: Final = {
    (operation, variant): _spec(operation, variant) for operation in OPERATION_CODES for variant in (PLAIN, COALESCED)
}


def described_spec(operation: str, *, coalesced: bool) -> OperationSpec:
    """Return the spec of a canonical operation."""
    return _SPECS[operation, COALESCED if coalesced else PLAIN]


def sign_described(operation: int | str, inputs: Sequence[Any], outputs: Sequence[Any], *, root: int = -1) -> Any:
    """Return what tells calls on one group apart; None for those to be measured each time (several or sparse tensors).

    Args:
        operation: Any name or number of the operation.
        inputs: As `measure_described`.
        outputs: As `measure_described`.
        root: As `measure_described`.
    """
    if len(inputs) != 1 or len(outputs) > 1:
        return None
    source = inputs[0]
    try:
        return operation, source.nbytes, source.dtype, outputs[0].nbytes if outputs else -1, root
    except RuntimeError:
        # A sparse tensor: how many elements it has is not among its sizes.
        return None


def measure_described(
    operation: str, inputs: Sequence[Any], outputs: Sequence[Any], *, root: int = -1, rank: int = 0, tag: int = -1
) -> Measured:
    """Return what a call does to this rank's bytes.

    Args:
        operation: Canonical operation.
        inputs: Tensors that it reads (all of them, where it works in place).
        outputs: Tensors that it writes; empty where it works in place.
        root: Root or other side, as rank of the group; -1 none.
        rank: This rank in the group.
        tag: Tag of a send or recv.
    """
    in_place = operation in _IN_PLACE
    written = inputs if in_place else outputs
    given, got = size_bytes(inputs), size_bytes(written)
    if operation in _ROOT_GIVES:
        given = given if rank == root else 0
        got = 0 if in_place and rank == root else got
    elif operation in _ROOT_GETS:
        got = got if rank == root else 0
    parts = outputs if operation == "all_gather" else (*inputs, *outputs) if operation == "all_to_all" else ()
    uneven = len({tensor.numel() for tensor in parts}) > 1
    known = inputs or written
    elements = 0
    if operation in _ALL_AGREE and not uneven and not any(tensor.is_sparse for tensor in inputs):
        elements = sum(tensor.numel() for tensor in inputs)
    return Measured(
        given, got, common_dtype(list(known)), written or inputs, elements=elements, peer=root, tag=tag, uneven=uneven
    )
