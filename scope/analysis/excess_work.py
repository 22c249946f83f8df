"""Where a rank's own work exceeds that of its peers, told by the instants of the program that all of them share.

How far a rank had come is known at every event from one pass over its events, so that a collective costs what lies
between the instant since which work counts and itself, of the one rank that is asked about, and no more than its last
part where that holds all of the excess.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate
from statistics import median_low
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from scope.analysis.replay import Place, Replay

Mark = tuple[int | None, int | None]
"""An instant of the program that peers share: the turn of the call that a rank is ready for, or that and one's end."""


class ExcessWork:
    """The own work of the ranks of a replay, to be compared."""

    def __init__(self, replay: Replay) -> None:
        """Keep the replay; how far a rank had come is worked out when it is first asked for."""
        self.replay = replay
        self._progress: dict[int, _Progress] = {}

    def excess_ns(self, rank: int, arrivals: Mapping[int, int], since_ns: Mapping[int, int | None]) -> dict[Place, int]:
        """Return where a rank's own work before a collective exceeds the median of its peers', and by how much.

        Args:
            rank: The rank.
            arrivals: By rank of the collective, its call.
            since_ns: By rank, the instant after which own work counts; None for the begin of its recording.

        Returns:
            Parts of its work that together are the excess of all of it. What lies between two instants of the program
            that the ranks have in common is spread over the work between them.
        """
        stretches = {each: self._progress_of(each).until(call, since_ns[each]) for each, call in arrivals.items()}
        mine, peers = stretches.pop(rank), list(stretches.values())
        left = mine.done_ns(mine.stop) - median_low(each.done_ns(each.stop) for each in peers)
        found: dict[Place, int] = {}
        stop, place = mine.stop, mine.num_marked
        # Backwards, since what the rank makes up for later is no excess: it lies where the distance rose to stay.
        while left > 0 and stop > mine.first:
            place, before = _mark_before(place, mine, peers)
            taken = min(left - min(left, max(0, before)), mine.done_ns(stop) - mine.done_ns(place))
            if taken:
                stretch = {(rank, each): self.replay.events[rank][each].own_ns for each in range(place, stop)}
                found |= _spread(taken, stretch)
            left, stop, place = left - taken, place, place - 1
        return found

    def _progress_of(self, rank: int) -> _Progress:
        if rank not in self._progress:
            self._progress[rank] = _Progress(self.replay, rank)
        return self._progress[rank]


class _Progress:
    """How far one rank had come at each of its events, and where the calls of its program are among them."""

    def __init__(self, replay: Replay, rank: int) -> None:
        events = replay.events[rank]
        self.calls = replay.calls
        self.at_ns = [event.at_ns for event in events]
        self.done_ns = [0, *accumulate(event.own_ns for event in events)]
        """By number of events, the own work before and between them."""
        self.turns = [None if event.kind == "begin" else replay.calls[event.call].turn for event in events]
        self.ends = [event.is_end for event in events]
        readies = (place if event.kind == "ready" else -1 for place, event in enumerate(events))
        self.behind = list(accumulate(readies, max))
        """By event, the last one at or before it at which the rank got ready for a call; -1 for none."""
        self.ready = {event.call: place for place, event in enumerate(events) if event.kind == "ready"}
        self.places = {(turn, end): place for place, (turn, end) in enumerate(zip(self.turns, self.ends, strict=True))}
        """By turn of a call, and whether it ends, the event."""

    def until(self, call: int, since_ns: int | None) -> _Stretch:
        """Return the events since an instant until the rank is ready for a call."""
        first = 0 if since_ns is None else bisect_right(self.at_ns, since_ns)
        stop = bisect_right(self.at_ns, self.calls[call].ready_ns, lo=first)
        ready = self.ready.get(call, -1)
        if first <= ready < stop:
            return _Stretch(self, first, ready + 1, num_marked=ready)
        return _Stretch(self, first, stop, num_marked=stop)


class _Stretch:
    """Some events of a rank in a row."""

    def __init__(self, progress: _Progress, first: int, stop: int, *, num_marked: int) -> None:
        self.progress = progress
        self.first = first
        self.stop = stop
        self.num_marked = num_marked
        """The number of the first event that peers are not asked about: the end of the stretch is shared anyway."""

    def done_ns(self, stop: int) -> int:
        """Return the own work from the begin of the stretch until before an event."""
        return self.progress.done_ns[stop] - self.progress.done_ns[self.first]

    def mark(self, place: int) -> Mark:
        """Return what an event is to peers.

        Ends are marks only behind the same call: whether a rank stands still at one, chance tells.
        """
        turn = self.progress.turns[place]
        if not self.progress.ends[place]:
            return turn, None
        behind = self.progress.behind[place]
        return (self.progress.turns[behind] if behind >= self.first else None), turn

    def place_of(self, key: tuple[int | None, bool], mark: Mark) -> int | None:
        """Return the event that is a mark, of a turn and whether it is an end; None where it is none of these."""
        place = self.progress.places.get(key)
        if place is None or not self.first <= place < self.num_marked or self.mark(place) != mark:
            return None
        return place


def _mark_before(stop: int, mine: _Stretch, peers: list[_Stretch]) -> tuple[int, int]:
    """Return the last instant before an event that all ranks share, as the number of events until then.

    With it comes how far the rank was behind the median of its peers there. The begin is shared.
    """
    progress, known = mine.progress, peers[0].progress.places
    for place in range(stop - 1, mine.first - 1, -1):
        key = (progress.turns[place], progress.ends[place])
        if key[0] is None or key not in known:
            continue
        mark = mine.mark(place)
        done: list[int] = []
        for peer in peers:
            there = peer.place_of(key, mark)
            if there is None:
                break
            done.append(peer.done_ns(there + 1))
        else:
            return place + 1, mine.done_ns(place + 1) - median_low(done)
    return mine.first, 0


def _spread(taken_ns: int, stretch: Mapping[Place, int]) -> dict[Place, int]:
    """Return the parts of a time by the share of each event in the work of a stretch; they sum to it."""
    found: dict[Place, int] = {}
    work_ns = sum(stretch.values())
    for place, own_ns in stretch.items():
        if not taken_ns:
            break
        found[place] = taken_ns * own_ns // work_ns
        taken_ns, work_ns = taken_ns - found[place], work_ns - own_ns
    return found
