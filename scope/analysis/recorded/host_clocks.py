"""Clocks of hosts, as far as black boxes relate them: instants of two hosts mean nothing side by side without that.

Ranks of one host share its clock. All ranks leave a collective that ends together at about the same time, so where two
of them have last seen the same call of their group complete, the difference of these instants is that of their clocks.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from scope.run.blackbox import BlackBoxState
    from scope.run.schema import RankInfo

_END_TOGETHER: Final = frozenset({"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier"})


class HostClock(NamedTuple):
    """The clock of a rank's host.

    Attributes:
        component: Instants of ranks with the same number can be compared.
        shift_ns: What to add to an instant of the rank to compare it.
    """

    component: int
    shift_ns: int


def relate_clocks(infos: Sequence[RankInfo], boxes: Mapping[int, BlackBoxState]) -> dict[int, HostClock]:
    """Return the clock of each rank's host.

    A shift between hosts is as exact as completions are seen, to a second on GPUs, whose calls are polled once a
    second. What is compared are the last calls of each group that both ranks have seen complete, and no other.

    Args:
        infos: `rank.json` of the ranks.
        boxes: Black boxes by rank; ranks without one are related by their host alone.
    """
    neighbours: dict[str, list[tuple[str, int]]] = defaultdict(list)
    for (first, second), differences in _measure(infos, boxes).items():
        difference = round(statistics.median(differences))
        neighbours[first].append((second, difference))
        neighbours[second].append((first, -difference))
    clocks: dict[str, HostClock] = {}
    for host in sorted({_host_of(info) for info in infos}):
        if host in clocks:
            continue
        component = len(clocks)
        clocks[host] = HostClock(component, 0)
        reached = [host]
        for known in reached:
            for other, difference in neighbours[known]:
                if other not in clocks:
                    clocks[other] = HostClock(component, clocks[known].shift_ns - difference)
                    reached.append(other)
    return {info.rank: clocks[_host_of(info)] for info in infos}


def are_comparable(clocks: Mapping[int, HostClock]) -> bool:
    """Return whether the instants of all these ranks can be compared."""
    return len({clock.component for clock in clocks.values()}) <= 1


def are_of_one_host(infos: Sequence[RankInfo]) -> bool:
    """Return whether these ranks share a clock."""
    return len({_host_of(info) for info in infos}) <= 1


def _host_of(info: RankInfo) -> str:
    return info.boot_id or info.host


def _measure(infos: Sequence[RankInfo], boxes: Mapping[int, BlackBoxState]) -> dict[tuple[str, str], list[int]]:
    """Return, by pair of hosts, what the second one's clock showed more than the first one's, a call each."""
    seen: dict[tuple[object, ...], dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for info in infos:
        for call, completed_ns in _list_completions(info, boxes.get(info.rank)):
            seen[call][_host_of(info)].append(completed_ns)
    found: dict[tuple[str, str], list[int]] = defaultdict(list)
    for by_host in seen.values():
        (first, own), *others = sorted(by_host.items())
        for other, instants in others:
            found[first, other].append(round(statistics.median(instants) - statistics.median(own)))
    return found


def _list_completions(info: RankInfo, box: BlackBoxState | None) -> Iterator[tuple[tuple[object, ...], int]]:
    groups = {group.group: group for group in info.groups}
    for state in () if box is None else box.groups:
        known = groups.get(state.group)
        if known is not None and state.completed and state.completed_ns and state.operation in _END_TOGETHER:
            yield (known.name, known.ranks, state.completed), state.completed_ns
