"""What people call a process group: one name on every page, whatever torch, a trace or a black box calls it."""

from __future__ import annotations

from typing import Final

from scope.definitions import find_mesh_axis

_DEFAULT: Final = "default_pg"
"""Torch's description of the group of all ranks, the first of every process, whose name is a bare number."""
_FIRST: Final = "0"
UNDESCRIBED: Final = "undefined"
"""Torch's description of a group of which nobody has said what it is for."""


def name_group(name: str | None, *, description: str | None = None, mesh_axis: str | None = None) -> str:
    """Return a group's name for people: its axis of the device mesh, else torch's description, else torch's name.

    JSON and tables for programs hold the name as torch gave it. Other groups of the axis bear the same name: what tells
    them apart is their ranks.

    Args:
        name: Torch's name, a number or digest; None where it is not known.
        description: Torch's description; None where it is not known.
        mesh_axis: Axis of the device mesh; None for none.

    Examples:
        >>> name_group("0"), name_group("0", description="default_pg"), name_group("5", mesh_axis="tp")
        ('default_pg', 'default_pg', 'tp')
        >>> name_group("5", description="mesh_tp"), name_group("5", description="mesh_dim_0")
        ('tp', 'mesh_dim_0')
        >>> name_group("5", description="undefined"), name_group(None)
        ('5', 'unnamed')
    """
    if mesh_axis:
        return mesh_axis
    if description and description != UNDESCRIBED:
        return find_mesh_axis(description) or description
    return _DEFAULT if name == _FIRST else name or "unnamed"
