"""Where a rank's own work exceeds that of its peers, told by the instants of the program that all of them share.

How far a rank had come is known at every event from one pass over its events, and which of them its peers share from
one pass for each set of peers, so that a collective costs the shared instants between the one since which work counts
and itself, and no more than its last part where that holds all of the excess. What lies before an instant at which the
same excess was left is known from the collective that was asked about before.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import accumulate
from statistics import median_low
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from scope.analysis.replay import Place, Replay

Mark = tuple[int | None, int | None]
"""An instant of the program that peers share: the turn of the call that a rank is ready for, or that and one's end."""
_Key = tuple[int | None, bool]
"""Turn of the call of an event, and whether it ends."""


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """Work of a rank between two instants that its peers share, and by how much it exceeds theirs."""

    first: int
    """Number of its first event."""
    stop: int
    """Number of the first event behind it."""
    excess_ns: int
    before: Part | None
    """The part before it; None where the rest of the work is no longer than that of the peers."""


class ExcessWork:
    """The own work of the ranks of a replay, to be compared."""

    def __init__(self, replay: Replay) -> None:
        """Keep the replay; how far a rank had come is worked out when it is first asked for."""
        self.replay = replay
        self._progress: dict[int, _Progress] = {}
        self._marks: dict[tuple[int, ...], _Marks] = {}
        self._known: dict[tuple[tuple[int, int], ...], dict[tuple[int, int], Part | None]] = {}

    def excess_ns(self, rank: int, arrivals: Mapping[int, int], since_ns: Mapping[int, int | None]) -> dict[Place, int]:
        """Return where a rank's own work before a collective exceeds the median of its peers', and by how much.

        Returns:
            Parts of its work that together are the excess of all of it; arguments are those of `last_part`.
        """
        return self.spread(rank, [self.last_part(rank, arrivals, since_ns)])

    def last_part(self, rank: int, arrivals: Mapping[int, int], since_ns: Mapping[int, int | None]) -> Part | None:
        """Return the last part of a rank's work before a collective that exceeds the median of its peers'.

        Args:
            rank: The rank.
            arrivals: By rank of the collective, its call.
            since_ns: By rank, the instant after which own work counts; None for the begin of its recording.
        """
        stretches = {each: self._progress_of(each).until(call, since_ns[each]) for each, call in arrivals.items()}
        known = self._known.setdefault(tuple((each, found.first) for each, found in stretches.items()), {})
        mine, peers = stretches.pop(rank), list(stretches.values())
        marks = self._marks_of(rank, tuple(stretches))
        left = mine.done_ns(mine.stop) - median_low(each.done_ns(each.stop) for each in peers)
        stop, place = mine.stop, mine.num_marked
        walked: list[tuple[bool, tuple[int, int], int, int]] = []
        part: Part | None = None
        # Backwards, since what the rank makes up for later is no excess: it lies where the distance rose to stay.
        while left > 0 and stop > mine.first:
            is_behind_mark = place == stop - 1
            if is_behind_mark and (stop, left) in known:
                part = known[stop, left]
                break
            place, before = marks.last_before(place, mine, peers)
            taken = min(left - min(left, max(0, before)), mine.done_ns(stop) - mine.done_ns(place))
            walked.append((is_behind_mark, (stop, left), place, taken))
            left, stop, place = left - taken, place, place - 1
        for is_behind_mark, (stop, left), first, taken in reversed(walked):
            part = Part(first, stop, taken, part) if taken else part
            if is_behind_mark:
                known[stop, left] = part
        return part

    def spread(self, rank: int, last_parts: Iterable[Part | None]) -> dict[Place, int]:
        """Return by how much each event of a rank exceeds what its peers do, by the parts of several collectives.

        What lies between two instants of the program that the ranks have in common is spread over the work between
        them; where parts of several collectives overlap, that counts which says most.
        """
        parts: set[Part] = set()
        for part in last_parts:
            each = part
            while each is not None and each not in parts:
                parts.add(each)
                each = each.before
        done = self._progress_of(rank).done_ns
        waiting = sorted(parts, key=lambda each: (each.first, each.stop), reverse=True)
        open_parts: list[tuple[float, int, Part]] = []
        found: dict[Place, int] = {}
        place = 0
        while waiting or open_parts:
            if not open_parts:
                place = max(place, waiting[-1].first)
            while waiting and waiting[-1].first <= place:
                each = waiting.pop()
                density = each.excess_ns / (done[each.stop] - done[each.first])
                heappush(open_parts, (-density, len(waiting), each))
            each = open_parts[0][-1]
            if each.stop <= place:
                heappop(open_parts)
                continue
            if excess := _share(each, done, place + 1) - _share(each, done, place):
                found[rank, place] = excess
            place += 1
        return found

    def _progress_of(self, rank: int) -> _Progress:
        if rank not in self._progress:
            self._progress[rank] = _Progress(self.replay, rank)
        return self._progress[rank]

    def _marks_of(self, rank: int, peers: tuple[int, ...]) -> _Marks:
        if (rank, *peers) not in self._marks:
            others = [self._progress_of(each) for each in peers]
            self._marks[rank, *peers] = _Marks(self._progress_of(rank), others)
        return self._marks[rank, *peers]


def _share(part: Part, done_ns: Sequence[int], stop: int) -> int:
    """Return how much of the excess of a part lies before an event, by the work until then."""
    begun = done_ns[part.first]
    return part.excess_ns * (done_ns[stop] - begun) // (done_ns[part.stop] - begun)


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
        self.ready_places = list(self.ready.values())
        self.places: dict[_Key, int] = {
            (turn, end): place
            for place, (turn, end) in enumerate(zip(self.turns, self.ends, strict=True))
            if turn is not None
        }
        """By turn of a call, and whether it ends, the event."""

    def until(self, call: int, since_ns: int | None) -> _Stretch:
        """Return the events since an instant until the rank is ready for a call."""
        first = 0 if since_ns is None else bisect_right(self.at_ns, since_ns)
        stop = bisect_right(self.at_ns, self.calls[call].ready_ns, lo=first)
        ready = self.ready.get(call, -1)
        if first <= ready < stop:
            return _Stretch(self, first, ready + 1, num_marked=ready)
        return _Stretch(self, first, stop, num_marked=stop)

    def mark(self, place: int, first: int = 0) -> Mark:
        """Return what an event is to peers, of the events since the first.

        Ends are marks only behind the same call: whether a rank stands still at one, chance tells.
        """
        turn = self.turns[place]
        if not self.ends[place]:
            return turn, None
        behind = self.behind[place]
        return (self.turns[behind] if behind >= first else None), turn


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

    def place_of(self, key: _Key, mark: Mark) -> int | None:
        """Return the event that is a mark, of a turn and whether it is an end; None where it is none of these."""
        place = self.progress.places.get(key)
        if place is None or not self.first <= place < self.num_marked:
            return None
        return place if self.progress.mark(place, self.first) == mark else None


class _Marks:
    """The instants of the program that one rank shares with all of some peers."""

    def __init__(self, mine: _Progress, peers: Sequence[_Progress]) -> None:
        shared = set(mine.places)
        for peer in peers:
            shared &= peer.places.keys()
        self.progress = mine
        marks = ((mine.places[key], mine.mark(mine.places[key]), key) for key in shared)
        self.places = sorted(
            place for place, mark, key in marks if all(peer.mark(peer.places[key]) == mark for peer in peers)
        )
        """Events of the rank that are the same mark to all, as long as what they are behind is not cut off."""

    def last_before(self, stop: int, mine: _Stretch, peers: Sequence[_Stretch]) -> tuple[int, int]:
        """Return the last instant before an event that all ranks share, as the number of events until then.

        With it comes how far the rank was behind the median of its peers there. The begin is shared.
        """
        for place in self._candidates(stop, mine.first):
            key = (self.progress.turns[place], self.progress.ends[place])
            mark = self.progress.mark(place, mine.first)
            done: list[int] = []
            for peer in peers:
                there = peer.place_of(key, mark)
                if there is None:
                    break
                done.append(peer.done_ns(there + 1))
            else:
                return place + 1, mine.done_ns(place + 1) - median_low(done)
        return mine.first, 0

    def _candidates(self, stop: int, first: int) -> Iterable[int]:
        """Yield the events that may be shared, backwards from before one to the first."""
        index = bisect_left(self.progress.ready_places, first)
        readies = self.progress.ready_places
        # Before the first call that the rank gets ready for, nothing tells ends apart but their own calls.
        told = readies[index] if index < len(readies) else len(self.progress.turns)
        index = bisect_left(self.places, stop)
        while index and self.places[index - 1] >= told:
            index -= 1
            yield self.places[index]
        yield from (
            place for place in range(min(stop, told) - 1, first - 1, -1) if self.progress.turns[place] is not None
        )
