"""Axes of a device mesh, as torch's descriptions of process groups tell them."""

from __future__ import annotations

from typing import Final

MESH: Final = "mesh_"
"""How torch's description of the group of a mesh axis begins; the name of the axis follows."""
UNNAMED_AXIS: Final = "mesh_dim_"
"""How it begins where the axis has no name, and its place in the mesh follows."""


def find_mesh_axis(description: str | None) -> str | None:
    """Return the name of the mesh axis that a process group spans; None where its description tells none.

    Args:
        description: Torch's description of the group; None where it is not known.

    Examples:
        >>> find_mesh_axis("mesh_tp"), find_mesh_axis("mesh_dp_shard_cp")
        ('tp', 'dp_shard_cp')
        >>> [find_mesh_axis(each) for each in (None, "default_pg", "mesh_", "mesh_dim_0")]
        [None, None, None, None]
    """
    if description is None or not description.startswith(MESH) or description.startswith(UNNAMED_AXIS):
        return None
    return description.removeprefix(MESH) or None
