"""What a job would have done had a rank worked faster or a link moved data faster: its collectives played again.

The model: a rank does its own work, gets ready for collectives, and stands still wherever one in flight keeps it from
computing, until that one ends. A collective ends as long after the arrivals that it waits for as it did (a call of
which that is not known, as long after its own arrival), and a group's calls run in their order: one that began right
behind another was queued there and follows it again, or begins when its rank is ready, where that is later
(`scope.analysis.readiness`). Own work is whatever lies between, and takes as long as it did.
Nothing is assumed about hosts that would run further ahead. Played unchanged, every instant is the recorded one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Place = tuple[int, int]
"""Rank, and number of one of its events."""


@dataclass(frozen=True, slots=True)
class Event:
    """A rank is ready for a call, or goes on behind the end of one, or a call begins that it was ready for before."""

    call: int
    kind: Literal["end", "ready", "begin"]
    at_ns: int
    own_ns: int
    """Own work since the event before; none before a begin."""
    blocked_ns: int
    """How long the rank stood still before the end."""

    @property
    def is_end(self) -> bool:
        """Whether the rank goes on behind the end of the call."""
        return self.kind == "end"


@dataclass(frozen=True, slots=True)
class Call:
    """One rank's part of a collective."""

    rank: int
    step_number: int | None
    collective_id: int | None
    waits_for_all: bool
    """Whether it waits for all ranks of the collective."""
    root: int | None
    """The call of the root, where it waits for that one."""
    tail_ns: int
    """From the last arrival that it waits for, its own at least, to its end."""
    end_ns: int
    previous: int | None
    """The call of its group on its rank that had ended before it began."""
    behind: int | None
    """The call that it was queued behind: that one, or one of another group whose result it takes up."""
    queued_ns: int
    """How long after the end of that one it began."""
    ready_ns: int
    """When the rank was ready for it: its begin, or before."""
    begins_later: bool
    """Whether it begins after its rank was ready for it."""
    turn: int
    """Its place in the program: the same number on all ranks whose calls in groups of one shape run in one order."""


@dataclass(frozen=True, slots=True)
class Shifts:
    """How much earlier things happen than they did."""

    by_step_ns: Mapping[tuple[int, int | None], int]
    """By rank and step: what the rank gains in the step, beyond what it had gained before; below 0, what it loses."""
    job_ns: int
    """How much sooner the last rank is done; where clocks leave apart who that is, of those that can be compared."""


@dataclass(frozen=True, slots=True)
class Replay:
    """All calls of a job and what each rank did between them."""

    calls: Sequence[Call]
    events: Mapping[int, Sequence[Event]]
    """By rank, in the order of time."""
    order: Sequence[Place]
    """All events in the order of time; of those at one instant the ends first and the begins last."""
    members: Mapping[int, Sequence[int]]
    """By collective, its calls."""
    start_ns: Mapping[int, int]
    """When the recording of each rank begins, on the reference clock."""
    end_ns: Mapping[int, int]
    components: Mapping[int, int]
    """By rank, the component of its clock: of two components nobody knows which ended first."""

    def play(
        self, *, removed_ns: Mapping[Place, int] | None = None, tails_ns: Mapping[int, int] | None = None
    ) -> Shifts:
        """Return how much earlier things happen with less own work, or with shorter transfers.

        Args:
            removed_ns: By event, what is taken off the own work before it.
            tails_ns: By call, what its tail is instead of what it was.
        """
        removed, tails = removed_ns or {}, tails_ns or {}
        now = dict(self.start_ns)
        ready: dict[int, int] = {}
        arrived: dict[int, int] = {}
        last: dict[int, int] = {}

        def end_of(number: int) -> int:
            # Whatever it waits for arrived before it ended, so that is played already.
            call = self.calls[number]
            begun = arrived[number]
            if call.root is not None:
                begun = max(begun, arrived[call.root])
            elif call.waits_for_all and call.collective_id is not None:
                begun = last[call.collective_id]
            return begun + tails.get(number, call.tail_ns)

        def arrive(number: int, arrival: int) -> None:
            call = self.calls[number]
            if call.behind is not None:
                queued = end_of(call.behind) + call.queued_ns
                arrival = max(arrival, queued) if call.begins_later else queued
            if call.previous is not None and call.previous != call.behind:
                arrival = max(arrival, end_of(call.previous))
            arrived[number] = arrival
            if call.collective_id is not None:
                last[call.collective_id] = max(arrival, last.get(call.collective_id, arrival))

        gained: dict[int, dict[int | None, int]] = {rank: {} for rank in self.events}
        for rank, place in self.order:
            event = self.events[rank][place]
            call = self.calls[event.call]
            if event.kind == "begin":
                arrive(event.call, ready[event.call])
                continue
            now[rank] += event.own_ns - removed.get((rank, place), 0)
            if event.is_end:
                now[rank] = max(now[rank], end_of(event.call))
            elif call.begins_later:
                ready[event.call] = now[rank]
            else:
                arrive(event.call, now[rank])
            gained[rank][call.step_number] = event.at_ns - now[rank]
        return self._shifts(gained)

    def _shifts(self, gained: Mapping[int, Mapping[int | None, int]]) -> Shifts:
        by_step: dict[tuple[int, int | None], int] = {}
        ended: dict[int, int] = {}
        ends: dict[int, int] = {}
        for rank, steps in gained.items():
            before = 0
            for step, shift in steps.items():
                by_step[rank, step] = shift - before
                before = shift
            component, end = self.components[rank], self.end_ns[rank]
            ended[component] = max(end, ended.get(component, end))
            ends[component] = max(end - before, ends.get(component, end - before))
        return Shifts(by_step_ns=by_step, job_ns=max(ended[each] - ends[each] for each in ends))
