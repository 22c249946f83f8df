"""The shape of a call, worked out once for each kind of caller and then found by a signature."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar

import torch

from scope.record.collectives.operations import COALESCED, FUNCTIONAL, OBJECT, PLAIN, UNEVEN
from scope.run.calls import CallShape
from scope.run.layout import hash_word
from scope.run.schema import DTYPES

if TYPE_CHECKING:
    from scope.record.collectives.groups import Group
    from scope.record.collectives.operations import Measured, OperationSpec

# torch annotates only a part of itself.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

_MAX_SIGNATURES: Final = 4096
_Kept = TypeVar("_Kept")
_CONTROL_DTYPES: Final = frozenset({torch.uint8, torch.int8, torch.int64})


class Shapes:
    """The shape of one call by the kind of its caller.

    Attributes:
        on_device: As the group's.
        dtype: torch's dtype of its tensors, `mixed`, or None without any.
        group: Its group, which keeps the process group itself where it may.
        reference: To the process group: an id may come back after its group was destroyed.
        plain: Called by the Python API or DDP's reducer.
        functional: Called by an operator or a compiled graph.
        objects: Called by an object collective.
        may_be_control: The element type is one that object collectives send.
        is_settled: On the host, and who of torch's API calls changes nothing.
    """

    __slots__ = (
        *("dtype", "functional", "group", "is_settled", "may_be_control", "objects", "on_device"),
        *("plain", "reference"),
    )

    def __init__(self, plain: CallShape, group: Group, *, dtype: Any) -> None:
        """Take what the arguments of a call on a group say."""
        may_be_control = dtype in _CONTROL_DTYPES
        self.dtype = dtype
        self.group = group
        self.reference = group.reference
        self.on_device = group.on_device
        self.plain = plain
        self.functional = plain.with_variant(FUNCTIONAL) if plain.variant == PLAIN else plain
        self.objects = plain.with_variant(OBJECT)
        self.may_be_control = may_be_control
        self.is_settled = group.on_device is False and not may_be_control


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
    return Shapes(plain, group, dtype=measured.dtype)


def remember(known: dict[Any, _Kept], signature: Any, kept: _Kept) -> None:
    """Remember something by what tells calls apart; nothing where nothing does."""
    if signature is None:
        return
    if len(known) >= _MAX_SIGNATURES:
        # Sizes that never come back (packed batches) must not fill the memory.
        known.clear()
    known[signature] = kept
