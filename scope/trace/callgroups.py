"""Which process group a call ran in, where the trace lists the groups of the rank but does not say the call's own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scope.structs import Record

if TYPE_CHECKING:
    from collections.abc import Iterable

    from scope.trace.model import ProcessGroup


class GroupFit(Record, frozen=True, kw_only=True):
    """What is known of a call's group.

    Attributes:
        name: Its name; None where it is not known.
        description: Its description, likewise.
        ranks: Its global ranks, sorted; None where they are not known.
        size: Number of its ranks, likewise.
        is_only: No group of other ranks is listed, so that nothing had to be chosen.
    """

    name: str | None = None
    description: str | None = None
    ranks: list[int] | None = None
    size: int | None = None
    is_only: bool = False


def fit_group(groups: Iterable[ProcessGroup], *, size: int | None, rank: int | None) -> GroupFit:
    """Return the group among those listed that a call fits, or what can be said where none or several do.

    Groups of the same ranks leave only the name open. Where several fit, that the group has so many ranks is all that
    is known.

    Args:
        groups: The groups that the trace lists.
        size: Number of ranks, as far as the sizes of the call tell it.
        rank: The global rank that made the call; None where it is not known.
    """
    listed = list(groups)
    fitting = [
        group
        for group in listed
        if (rank is None or not group.ranks or rank in group.ranks)
        and (size is None or _num_ranks(group) in (size, None))
    ]
    if not fitting:
        return GroupFit(size=size)
    first = fitting[0]
    is_only = all(group.ranks == first.ranks and _num_ranks(group) == _num_ranks(first) for group in listed)
    if len(fitting) == 1:
        return GroupFit(
            name=first.name,
            description=first.description,
            ranks=list(first.ranks) or None,
            size=_num_ranks(first) or size,
            is_only=is_only,
        )
    if first.ranks and all(group.ranks == first.ranks for group in fitting):
        return GroupFit(ranks=list(first.ranks), size=len(first.ranks), is_only=is_only)
    sizes = {_num_ranks(group) for group in fitting}
    return GroupFit(size=sizes.pop() if len(sizes) == 1 else size)


def _num_ranks(group: ProcessGroup) -> int | None:
    return len(group.ranks) or group.size
