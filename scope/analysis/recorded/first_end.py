"""Which of several ranks that ended without a goodbye died first: a launcher kills the others, who look alike."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import polars as pl

from scope.analysis.doctor.diagnosis import describe_ranks
from scope.analysis.recorded.host_clocks import are_comparable, are_of_one_host, relate_clocks
from scope.analysis.recorded.progress import GroupProgress, compute_group_progress, find_missed_calls
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
    progress = compute_group_progress(infos, boxes)
    numbers = {(info.rank, each.name): each.group for info in infos for each in info.groups}
    found: list[MissedCall] = []
    for missed in find_missed_calls(progress):
        ahead = progress.filter(
            pl.col(GroupProgress.group) == missed.group,
            pl.col(GroupProgress.group_ranks).list.contains(missed.rank),
            pl.col(GroupProgress.enqueued) >= missed.number,
        )
        waits = [
            group.enqueued_ns + clocks[rank].shift_ns
            for rank in ahead[GroupProgress.rank]
            if clocks[rank].component == clocks[missed.rank].component
            for group in boxes[rank].groups
            if group.group == numbers.get((rank, missed.group)) and group.enqueued_ns is not None
        ]
        if waits and signs[missed.rank] <= min(waits) + _NOTABLE_LIFE_NS:
            found.append(missed)
    return found


def _silence_words(ranks: Sequence[int], signs: Mapping[int, int]) -> str:
    own = max(signs[rank] for rank in ranks)
    others = min(sign for rank, sign in signs.items() if rank not in ranks)
    return f"fell silent {(others - own) / NS_PER_S:,.1f} s before the others"


def _step_words(ranks: Sequence[int], boxes: Mapping[int, BlackBoxState]) -> str | None:
    """Return in which steps they and the others were, where that tells them apart."""
    own = {boxes[rank].step for rank in ranks}
    others = {box.step for rank, box in boxes.items() if rank not in ranks}
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
