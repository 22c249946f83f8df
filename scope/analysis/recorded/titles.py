"""What people call a process group of a rank."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scope.analysis.doctor.diagnosis import describe_ranks
from scope.analysis.group_names import name_group

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scope.run.schema import GroupInfo


def title_of(group: GroupInfo) -> str:
    """Return what people call a group of `rank.json`; its ranks beside a title that is a number, which says nothing."""
    title = name_group(group.name, description=group.description, mesh_axis=group.mesh_axis)
    return title_with_ranks(title, group.ranks)


def title_with_ranks(title: str, ranks: Sequence[int] | None) -> str:
    """Return the title of a group, its ranks beside one that is no more than a number.

    Examples:
        >>> title_with_ranks("5", [0, 1, 4]), title_with_ranks("tp", [0, 1]), title_with_ranks("5", None)
        ('5 (ranks 0-1, 4)', 'tp', '5')
    """
    return f"{title} ({describe_ranks(list(ranks))})" if ranks and title.isdecimal() else title
