"""Which of several ranks that ended without a goodbye died first: a launcher kills the others, who look alike."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Final

from scope.analysis.doctor.diagnosis import describe_ranks
from scope.analysis.recorded.host_clocks import are_comparable, are_of_one_host, relate_clocks
from scope.analysis.recorded.progress import compute_group_progress, find_missed_calls
from scope.run.alive import find_signs
from scope.units import NS_PER_S

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from scope.analysis.recorded.host_clocks import HostClock
    from scope.analysis.recorded.progress import MissedCall
    from scope.run.blackbox import BlackBoxState
    from scope.run.schema import RankInfo

_NOTABLE_SILENCE_NS: Final = 3 * NS_PER_S
"""Three beats of the heart: what may lie between the last signs of ranks that die together."""
_SHIFT_ERROR_NS: Final = NS_PER_S
"""How exactly the clocks of two hosts are related."""
_NOTABLE_LIFE_NS: Final = 2 * NS_PER_S
"""A rank that beats for so long while its peers wait for it did not die, it hung."""
_SHOWN_CALLS: Final = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class FirstEnd:
    """Ranks that may have died before the others.

    Attributes:
        ranks: Global ranks, sorted; at most half of those that ended.
        evidence: What tells it, without a full stop: `it was in step 15 (the others in step 16)`.
        is_silent: They fell silent before the others; else they stand behind alone, as ranks that end at once may too.
    """

    ranks: tuple[int, ...]
    evidence: str
    is_silent: bool = False


def find_first_end(infos: Sequence[RankInfo], boxes: Mapping[int, BlackBoxState]) -> FirstEnd | None:
    """Return which ranks may have died first; None where black boxes do not tell.

    Two things tell it. A rank fell silent: its last sign of life is 3 s older than those of the others, where a heart
    beats once a second. Or a rank stands behind: its peers have issued a call of a common group that it has not, and
    it gave no sign while they waited in it. That is no proof: ranks that die at one instant may be a call apart.
    Instants of two hosts are compared where their calls relate the clocks, and no further.

    Args:
        infos: `rank.json` of the ranks that ended without a goodbye.
        boxes: Black boxes by rank; those of other ranks are left out, and ranks without one.
    """
    known = [info for info in infos if info.rank in boxes]
    own = {info.rank: boxes[info.rank] for info in known}
    clocks = relate_clocks(known, own)
    signs = {info.rank: max(find_signs(info, own[info.rank])) + clocks[info.rank].shift_ns for info in known}
    if len(signs) < 2:
        return None
    notable_ns = _NOTABLE_SILENCE_NS + (0 if are_of_one_host(known) else _SHIFT_ERROR_NS)
    silent = _find_silent(signs, notable_ns) if are_comparable(clocks) else set[int]()
    behind = [each for each in _find_behind(known, own, signs, clocks) if not silent or each.rank in silent]
    ranks = tuple(sorted(silent or {each.rank for each in behind}))
    if not ranks or 2 * len(ranks) > len(signs):
        return None
    words = [_silence_words(ranks, signs)] if silent else []
    words += [_step_words(ranks, own), _call_words(behind)]
    told = [each for each in words if each is not None]
    evidence = f"{'it' if len(ranks) == 1 else 'they'} {' and '.join(told)}"
    return FirstEnd(ranks=ranks, evidence=evidence, is_silent=bool(silent))


def _find_silent(signs: Mapping[int, int], notable_ns: int) -> set[int]:
    """Return the ranks that fell silent together, notably before all others did."""
    instants = sorted(signs.values())
    gaps = [later - earlier for earlier, later in pairwise(instants)]
    first = next((place for place, gap in enumerate(gaps) if gap > notable_ns), None)
    return set() if first is None else {rank for rank, sign in signs.items() if sign <= instants[first]}


def _find_behind(
    infos: Sequence[RankInfo],
    boxes: Mapping[int, BlackBoxState],
    signs: Mapping[int, int],
    clocks: Mapping[int, HostClock],
) -> list[MissedCall]:
    """Return the calls that ranks had not issued whose peers waited for them, and who gave no sign of life then."""
    waits = _waits_by_member(infos, boxes, clocks)
    found: list[MissedCall] = []
    for missed in find_missed_calls(compute_group_progress(infos, boxes)):
        component = clocks[missed.rank].component
        since = [each.since_ns(missed.number, component) for each in waits.get((missed.group, missed.rank), ())]
        known = [instant for instant in since if instant is not None]
        if known and signs[missed.rank] <= min(known) + _NOTABLE_LIFE_NS:
            found.append(missed)
    return found


class _Waits:
    """When the ranks of one group issued the last call that each has issued, on clocks that can be compared."""

    def __init__(self) -> None:
        self._issued: dict[int, list[tuple[int, int]]] = defaultdict(list)
        self._first: dict[int, tuple[list[int], list[int]]] = {}

    def add(self, number: int, instant_ns: int, component: int) -> None:
        """Add a rank, whose last call has this number; all are added before the first question."""
        self._issued[component].append((number, instant_ns))

    def since_ns(self, number: int, component: int) -> int | None:
        """Return the first of the instants of ranks that have issued the call with this number; None if none has."""
        if component not in self._first:
            issued = sorted(self._issued[component], reverse=True)
            firsts = list(accumulate((instant for _, instant in issued), min))
            self._first[component] = [-each for each, _ in issued], firsts
        numbers, firsts = self._first[component]
        place = bisect_right(numbers, -number)
        return firsts[place - 1] if place else None


def _waits_by_member(
    infos: Sequence[RankInfo], boxes: Mapping[int, BlackBoxState], clocks: Mapping[int, HostClock]
) -> Mapping[tuple[str, int], Sequence[_Waits]]:
    """Return the groups by name and member; there are several where ranks do not agree on who is in a group."""
    groups: dict[tuple[str, tuple[int, ...]], _Waits] = defaultdict(_Waits)
    for info in infos:
        clock = clocks[info.rank]
        known = {group.group: group for group in info.groups}
        for state in boxes[info.rank].groups:
            group = known.get(state.group)
            if group is not None and state.enqueued_ns is not None:
                own = groups[group.name, group.ranks]
                own.add(state.enqueued, state.enqueued_ns + clock.shift_ns, clock.component)
    found: dict[tuple[str, int], list[_Waits]] = defaultdict(list)
    for (name, ranks), waits in groups.items():
        for member in dict.fromkeys(ranks):
            found[name, member].append(waits)
    return found


def _silence_words(ranks: Sequence[int], signs: Mapping[int, int]) -> str:
    own = max(signs[rank] for rank in ranks)
    others = min(signs[rank] for rank in signs.keys() - ranks)
    return f"fell silent {(others - own) / NS_PER_S:,.1f} s before the others"


def _step_words(ranks: Sequence[int], boxes: Mapping[int, BlackBoxState]) -> str | None:
    """Return in which steps they and the others were, where that tells them apart."""
    own = {boxes[rank].step for rank in ranks}
    others = {boxes[rank].step for rank in boxes.keys() - ranks}
    first, rest = _known(own), _known(others)
    if first is None or rest is None or max(first) >= min(rest):
        return None
    return f"{'was' if len(ranks) == 1 else 'were'} in {_steps(first)} (the others in {_steps(rest)})"


def _known(steps: set[int | None]) -> set[int] | None:
    known = {step for step in steps if step is not None}
    return known if known and len(known) == len(steps) else None


def _steps(steps: set[int]) -> str:
    low, high = min(steps), max(steps)
    return f"step {low}" if low == high else f"steps {low}-{high}"


def _call_words(behind: Sequence[MissedCall]) -> str | None:
    calls = list(dict.fromkeys(f"{each.operation} {each.number} of group {each.group_title}" for each in behind))
    if not calls:
        return None
    more = f" and {len(calls) - _SHOWN_CALLS} more calls" if len(calls) > _SHOWN_CALLS else ""
    return f"had not issued {', '.join(calls[:_SHOWN_CALLS])}{more}, as others had"


def place_of(info: RankInfo, box: BlackBoxState | None) -> str:
    """Return where to find a rank: `rank 1: pid 4711 on node7, in step 15, phase backward`.

    Args:
        info: Its `rank.json`.
        box: Its black box; None where it has none.
    """
    step = "" if box is None or box.step is None else f", in step {box.step}"
    phase = "" if box is None or box.phase is None else f", phase {box.phase}"
    return f"{describe_ranks([info.rank])}: pid {info.pid} on {info.host}{step}{phase}"
