"""Variables of several ranks compared byte for byte."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

PER_RANK: Final = frozenset({"NCCL_DEBUG_FILE", "NCCL_TOPO_DUMP_FILE", "NCCL_GRAPH_DUMP_FILE"})
"""Variables that rightly differ between ranks."""
_MOST: Final = 8


def compare_variables(variables: Mapping[int, Mapping[str, str]]) -> list[str]:
    """Return one sentence a variable that is not the same on all ranks.

    Args:
        variables: Variables by rank; one that is not set differs from one that is empty.

    Examples:
        >>> compare_variables({0: {"NCCL_ALGO": "Ring"}, 1: {"NCCL_ALGO": "Ring"}, 2: {}})
        ["NCCL_ALGO is 'Ring' on ranks 0, 1 and not set on ranks 2"]
    """
    found: list[str] = []
    for name in sorted({name for own in variables.values() for name in own} - PER_RANK):
        owners: dict[str | None, list[int]] = {}
        for rank in sorted(variables):
            owners.setdefault(variables[rank].get(name), []).append(rank)
        if len(owners) > 1:
            shown = {"not set" if value is None else repr(value): own for value, own in owners.items()}
            parts = [f"{value} on ranks {_name(own)}" for value, own in shown.items()]
            found.append(f"{name} is {' and '.join(parts)}")
    return found


def _name(ranks: list[int]) -> str:
    shown = ", ".join(str(rank) for rank in ranks[:_MOST])
    return shown if len(ranks) <= _MOST else f"{shown} and {len(ranks) - _MOST} more"
