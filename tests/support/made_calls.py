"""Collectives of simulated programs, of which a test says what it is about."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from scope.testing.program import Call
from scope.units import NS_PER_US

if TYPE_CHECKING:
    from scope.testing.layout import Group

_NUM_ELEMENTS: Final = 1 << 22


def make_call(
    group: Group | None,
    operation: str,
    transfer_us: int,
    *,
    hides: bool = False,
    follows: Group | None = None,
    root: int | None = None,
) -> Call:
    """Return a collective of 4 Mi elements.

    Args:
        group: Whose it is.
        operation: What it does.
        transfer_us: How long its data moves.
        hides: Compute runs beside it.
        follows: A group whose last call of this rank it waits for too.
        root: The rank that gives or takes the data.
    """
    assert group is not None
    part = _NUM_ELEMENTS // len(group.ranks)
    return Call(
        group=group,
        operation=operation,
        in_elements=part if operation == "all_gather" else _NUM_ELEMENTS,
        out_elements=part if operation == "reduce_scatter" else _NUM_ELEMENTS,
        transfer_ns=transfer_us * NS_PER_US,
        is_blocking=not hides,
        follows=follows,
        root=root,
    )
