"""Ranks of a process group that issued different calls under one number: which, and what each of them called."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from scope.analysis.doctor.diagnosis import describe_ranks
from scope.analysis.recorded.titles import title_of
from scope.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from scope.run.blackbox import BlackBoxState, GroupState, RingCall
    from scope.run.schema import GroupInfo, RankInfo

_POINT_TO_POINT: Final = ("send", "recv")
"""They are counted apart, and rightly differ between ranks."""
_SHOWN_CALLS: Final = 4
_NO_PHASE: Final = "other"


@dataclass(frozen=True, kw_only=True, slots=True)
class IssuedCall:
    """What some ranks of a group issued under the number at which its ranks differ.

    Attributes:
        ranks: Global ranks, sorted.
        operation: Operation.
        dtype: Element type.
        num_bytes: The most that one of these ranks gave or got; None where no ring holds the call.
        root: Global rank of the root; None without one, or where it is not known.
        step: First step in which one of them issued it; None before the first, or where it is not known.
        phase: Phase in which that rank did; None where it is not known.
    """

    ranks: tuple[int, ...]
    operation: str
    dtype: str
    num_bytes: int | None = None
    root: int | None = None
    step: int | None = None
    phase: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Mismatch:
    """The first call known at which ranks of a group differ.

    Attributes:
        group: Torch's name of the group.
        group_title: What people call it.
        group_ranks: Its global ranks, sorted; None where `rank.json` does not know the group.
        number: Number of the call, from 1.
        is_first: Its ranks agree up to the call before; else they may have differed earlier than black boxes reach.
        is_pending: One of these ranks had not seen the call complete: it may hold the program up.
        calls: What was issued, one entry for ranks that agree, by their first rank.
    """

    group: str
    group_title: str
    group_ranks: tuple[int, ...] | None
    number: int
    is_first: bool
    is_pending: bool
    calls: tuple[IssuedCall, ...]

    @property
    def ranks(self) -> tuple[int, ...]:
        """All ranks that issued the call, sorted."""
        return tuple(sorted(rank for call in self.calls for rank in call.ranks))

    @property
    def odd_ranks(self) -> tuple[int, ...]:
        """The ranks that differ from more than half of them; all where no such majority is."""
        largest = max(self.calls, key=lambda call: len(call.ranks)).ranks
        ranks = self.ranks
        return tuple(rank for rank in ranks if rank not in largest) if 2 * len(largest) > len(ranks) else ranks


@dataclass(frozen=True, kw_only=True, slots=True)
class _Member:
    """What the black box of one rank tells of one group; `hashes` are by the number of the call."""

    rank: int
    state: GroupState
    info: GroupInfo | None
    hashes: Mapping[int, int]
    calls: Mapping[int, RingCall]


def find_mismatches(infos: Iterable[RankInfo], boxes: Mapping[int, BlackBoxState]) -> tuple[Mismatch, ...]:
    """Return the groups whose ranks issued different calls, each with the first number known at which they differ.

    Compared is the hash that runs over operation, element type, root and, where ranks must agree on it, the number of
    elements: what rightly differs between ranks, such as parts of different size, is no mismatch.

    Args:
        infos: `rank.json` of one attempt.
        boxes: Their black boxes, by rank, with their rings; a rank without one is left out.
    """
    groups: dict[object, list[_Member]] = {}
    for info in infos:
        if info.rank in boxes:
            for member in _members(info, boxes[info.rank]):
                key = (member.info.name, tuple(sorted(member.info.ranks))) if member.info else member.state.group
                groups.setdefault(key, []).append(member)
    found = (_compare(members) for members in groups.values())
    return tuple(mismatch for mismatch in found if mismatch is not None)


def describe_mismatch(mismatch: Mismatch) -> str:
    """Return at which call ranks of a group differ and what each of them called, without a full stop."""
    since = "" if mismatch.is_first else " or before"
    calls = [_describe_call(call) for call in mismatch.calls[:_SHOWN_CALLS]]
    more = len(mismatch.calls) - _SHOWN_CALLS
    calls += [f"{more:,} more kinds of calls"] if more > 0 else []
    where = f"in call {mismatch.number} of group {mismatch.group_title}{since}"
    return f"{describe_ranks(list(mismatch.ranks))} issued different collectives {where}: {', '.join(calls)}"


def _describe_call(call: IssuedCall) -> str:
    size = "" if call.num_bytes is None or not call.num_bytes else f" of {format_bytes(call.num_bytes)}"
    facts = [] if call.dtype == "unknown" else [call.dtype]
    facts += [] if call.root is None else [f"root {call.root}"]
    aside = f" ({', '.join(facts)})" if facts else ""
    words = f"{describe_ranks(list(call.ranks))} {call.operation}{size}{aside}"
    if call.step is None:
        return words
    phase = f" ({call.phase})" if call.phase not in (None, _NO_PHASE) else ""
    return f"{words} in step {call.step}{phase}"


def _members(info: RankInfo, box: BlackBoxState) -> list[_Member]:
    known = {group.group: group for group in info.groups}
    calls: dict[int, dict[int, RingCall]] = {}
    for call in box.calls:
        if call.operation not in _POINT_TO_POINT:
            calls.setdefault(call.group, {})[call.sequence] = call
    return [
        _Member(
            rank=info.rank,
            state=state,
            info=known.get(state.group),
            hashes=_hashes(own) if own else {state.enqueued: state.hash_low},
            calls=own,
        )
        for state in box.groups
        if state.enqueued
        for own in [calls.get(state.group, {})]
    ]


def _hashes(calls: Mapping[int, RingCall]) -> dict[int, int]:
    """Return the hash after each call; a recorder that costs too much keeps it no longer, and no call changes it."""
    hashes: dict[int, int] = {}
    last: int | None = None
    for number in sorted(calls):
        rolling = calls[number].hash_low
        if rolling != last:
            hashes[number] = rolling
        last = rolling
    was_kept = len(hashes) > 1 or len(calls) == 1
    return hashes if was_kept else {}


def _compare(members: Sequence[_Member]) -> Mismatch | None:
    seen: dict[int, int] = {}
    differing = {
        number
        for member in members
        for number, rolling in member.hashes.items()
        if seen.setdefault(number, rolling) != rolling
    }
    if not differing:
        return None
    number = min(differing)
    kinds: dict[int, list[_Member]] = {}
    for member in members:
        if number in member.hashes:
            kinds.setdefault(member.hashes[number], []).append(member)
    holders = [member for kind in kinds.values() for member in kind]
    state, info = members[0].state, members[0].info
    return Mismatch(
        group=info.name if info else f"#{state.group}",
        group_title=title_of(info) if info else f"#{state.group}",
        group_ranks=tuple(sorted(info.ranks)) if info else None,
        number=number,
        is_first=number == 1 or all(number - 1 in member.hashes for member in holders),
        is_pending=any(member.state.completed < number for member in holders),
        calls=tuple(sorted((_issued(number, kind) for kind in kinds.values()), key=lambda call: call.ranks)),
    )


def _issued(number: int, kind: Sequence[_Member]) -> IssuedCall:
    """Return what ranks that agree issued; the header of a black box tells no more than operation and type of it."""
    ranks = tuple(sorted(member.rank for member in kind))
    calls = [member.calls[number] for member in kind if number in member.calls]
    if not calls:
        return IssuedCall(ranks=ranks, operation=kind[0].state.operation, dtype=kind[0].state.dtype)
    first = min(calls, key=lambda call: -1 if call.step is None else call.step)
    members = kind[0].info.ranks if kind[0].info else ()
    return IssuedCall(
        ranks=ranks,
        operation=first.operation,
        dtype=first.dtype,
        num_bytes=max(max(call.in_bytes, call.out_bytes) for call in calls),
        root=members[first.peer] if first.peer is not None and first.peer < len(members) else None,
        step=first.step,
        phase=first.phase,
    )
