"""The shape of a call, worked out once for each kind of caller and then found by a signature."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch

from scope.record.collectives.operations import COALESCED, FUNCTIONAL, OBJECT, PLAIN, UNEVEN
from scope.run.calls import CallShape
from scope.run.layout import hash_word
from scope.run.schema import DTYPES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scope.record.collectives.groups import Group
    from scope.record.collectives.operations import Measured, OperationSpec

# torch annotates only a part of itself.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

_MAX_SIGNATURES: Final = 4096
_CONTROL_DTYPES: Final = frozenset({torch.uint8, torch.int8, torch.int64})


class Shapes(NamedTuple):
    """The shape of one call by the kind of its caller.

    Attributes:
        plain: Called by the Python API or DDP's reducer.
        functional: Called by an operator or a compiled graph.
        objects: Called by an object collective.
        may_be_control: The element type is one that object collectives send.
    """

    plain: CallShape
    functional: CallShape
    objects: CallShape
    may_be_control: bool


def dtype_codes() -> dict[Any, int]:
    """Return the code of every dtype that this torch has, of `mixed`, and of no tensor at all (0)."""
    codes: dict[Any, int] = {getattr(torch, name): code for code, name in enumerate(DTYPES) if hasattr(torch, name)}
    return codes | {"mixed": DTYPES.index("mixed"), None: 0}


_DTYPE_CODES: Final = dtype_codes()


def make_shapes(spec: OperationSpec, group: Group, measured: Measured) -> Shapes:
    """Return the shapes of a call."""
    variant = spec.variant
    if variant == COALESCED and len(measured.tensors) == 1:
        # Functional collectives hand a single tensor to the coalesced operator.
        variant = PLAIN
    if variant == PLAIN and measured.uneven:
        variant = UNEVEN
    peer = measured.peer
    if spec.point_to_point and 0 <= peer < len(group.ranks):
        peer = group.ranks[peer]
    dtype = _DTYPE_CODES.get(measured.dtype, 0)
    plain = CallShape(
        group.number,
        spec.operation,
        variant,
        dtype,
        measured.in_bytes,
        measured.out_bytes,
        peer,
        measured.tag,
        len(measured.tensors) if variant == COALESCED else 1,
        -1
        if spec.point_to_point
        else hash_word(operation=spec.operation, dtype=dtype, root=peer, count=measured.elements),
    )
    functional = plain._replace(variant=FUNCTIONAL) if variant == PLAIN else plain
    return Shapes(plain, functional, plain._replace(variant=OBJECT), measured.dtype in _CONTROL_DTYPES)


def find_shapes(spec: OperationSpec, group: Group, args: Sequence[Any], signature: Any) -> Shapes:
    """Return the shapes of a call whose signature is new to its group, and remember them by it."""
    shapes = make_shapes(spec, group, spec.measure(args, group.rank))
    if signature is not None:
        if len(group.shapes) >= _MAX_SIGNATURES:
            # Sizes that never come back (packed batches) must not fill the memory.
            group.shapes.clear()
        group.shapes[signature] = shapes
    return shapes
