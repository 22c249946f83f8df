"""Where the work lies that a rank did beyond its peers, in programs made by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Literal, SupportsIndex

import pytest
from work import count_instructions

from scope.analysis import excess_work
from scope.analysis.excess_work import ExcessWork
from scope.analysis.replay import Call, Event, Replay

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

Kind = Literal["end", "ready"]
Happened = tuple[Kind, int, int]
"""What, turn of the call, and own work before it."""

LAST: Final = 9
"""Turn of the collective that all ranks meet at."""
PEER: Final[Sequence[Happened]] = (
    ("ready", 0, 10),
    ("ready", 1, 3000),
    ("end", 2, 0),
    ("ready", 3, 1000),
    ("ready", 4, 3000),
    ("ready", LAST, 500),
)


def _replay(programs: Sequence[Sequence[Happened]]) -> tuple[Replay, dict[int, int]]:
    """Return the ranks that did this, and the call of each at the last collective."""
    calls: list[Call] = []
    events: dict[int, list[Event]] = {}
    for rank, program in enumerate(programs):
        now = 0
        of_turn: dict[int, int] = {}
        for kind, turn, own_ns in program:
            now += own_ns
            number = of_turn.setdefault(turn, len(calls))
            if number == len(calls):
                calls.append(_call(rank, turn, now))
            event = Event(call=number, kind=kind, at_ns=now, own_ns=own_ns, blocked_ns=0)
            events.setdefault(rank, []).append(event)
    last = {call.rank: number for number, call in enumerate(calls) if call.turn == LAST}
    ranks = range(len(programs))
    replay = Replay(
        calls=calls,
        events=events,
        order=[],
        members={},
        start_ns=dict.fromkeys(ranks, 0),
        end_ns=dict.fromkeys(ranks, 0),
        components=dict.fromkeys(ranks, 0),
    )
    return replay, last


def _call(rank: int, turn: int, ready_ns: int) -> Call:
    return Call(
        rank=rank,
        step_number=None,
        collective_id=None,
        waits_for_all=False,
        root=None,
        tail_ns=0,
        end_ns=ready_ns,
        previous=None,
        behind=None,
        queued_ns=0,
        ready_ns=ready_ns,
        begins_later=False,
        turn=turn,
    )


def _excess(mine: Sequence[Happened], *peers: Sequence[Happened]) -> dict[int, int]:
    """Return the work beyond that of the peers, by the number of the event of the rank that it lies before."""
    replay, last = _replay((mine, *peers))
    return {place: ns for (_, place), ns in ExcessWork(replay).excess_ns(0, last, dict.fromkeys(last)).items() if ns}


LATE: Final[dict[str, tuple[Sequence[Happened], dict[int, int]]]] = {
    # As its peers, and 200 longer before it is ready for call 3.
    "alike": ([*PEER[:3], ("ready", 3, 1200), *PEER[4:]], {3: 200}),
    # It stood still at the end of call 0, as its peers did not: the work beside is parted there, and no longer.
    "an end that no peer has": (
        [PEER[0], ("end", 0, 5), ("ready", 1, 2995), ("end", 2, 0), ("ready", 3, 1200), *PEER[4:]],
        {4: 200},
    ),
    "no end that peers have": ([*PEER[:2], ("ready", 3, 1200), *PEER[4:]], {2: 200}),
    # It was ready for call 4 before call 3: nothing was done between.
    "in another order": ([*PEER[:3], ("ready", 4, 1200), ("ready", 3, 0), ("ready", LAST, 3500)], {3: 200}),
    # What it makes up for later is no excess.
    "faster behind": ([*PEER[:3], ("ready", 3, 1200), ("ready", 4, 2900), PEER[5]], {3: 100}),
    "faster before": ([PEER[0], ("ready", 1, 2900), PEER[2], ("ready", 3, 1300), *PEER[4:]], {3: 200}),
    "faster": ([PEER[0], ("ready", 1, 2900), *PEER[2:]], {}),
    # Of one stretch without an instant in common, each part of the work may be the longer one.
    "between": ([*PEER[:4], ("end", 4, 900), ("ready", 4, 2700), PEER[5]], {4: 150, 5: 450}),
}


@pytest.mark.parametrize("name", LATE)
def test_excess_lies_where_the_rank_fell_behind_its_peers(name: str) -> None:
    """What is paired is what all ranks did in one order; chance decides at which ends a rank stands still."""
    mine, expected = LATE[name]
    assert _excess(mine, PEER, PEER) == expected


class _Counted(list[Event]):
    """Events that count how often they are read."""

    num_read = 0

    def __getitem__(self, place: SupportsIndex | slice) -> Any:
        _Counted.num_read += 1
        return super().__getitem__(place)

    def __iter__(self) -> Iterator[Event]:
        _Counted.num_read += len(self)
        return super().__iter__()


def test_work_is_read_once_however_many_collectives_are_asked_about(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank that is late for each of 300 calls by one delay: events are not read again from the begin for each."""
    num_calls = 300
    usual: list[Happened] = [("ready", turn, 100) for turn in range(num_calls)]
    replay, _ = _replay([[usual[0], ("ready", 1, 150), *usual[2:]], usual, usual])
    counted = {rank: _Counted(found) for rank, found in replay.events.items()}
    monkeypatch.setattr(_Counted, "num_read", 0)
    work = ExcessWork(replace(replay, events=counted))
    for turn in range(1, num_calls):
        arrivals = {rank: rank * num_calls + turn for rank in range(3)}
        assert work.excess_ns(0, arrivals, dict.fromkeys(arrivals)) == {(0, 1): 50}
    assert _Counted.num_read <= 10 * 3 * num_calls


@pytest.mark.parametrize("shares", [False, True], ids=["no instant", "all instants"])
def test_work_grows_with_the_calls(shares: bool) -> None:
    """A rank that is slower at all of many calls, counted from the begin each: twice as many take twice the work."""

    def excess(num_calls: int) -> dict[int, int]:
        def program(rank: int, own_ns: int) -> list[Happened]:
            first = 0 if shares else rank * num_calls
            return [("ready", first + turn, own_ns) for turn in range(num_calls)]

        replay, _ = _replay([program(0, 110), program(1, 100), program(2, 100)])
        work = ExcessWork(replay)
        arrivals = [{rank: rank * num_calls + turn for rank in range(3)} for turn in range(num_calls)]
        parts = [work.last_part(0, each, dict.fromkeys(each)) for each in arrivals]
        return {place: ns for (_, place), ns in work.spread(0, parts).items()}

    assert excess(50) == dict.fromkeys(range(50), 10)
    few, many = (count_instructions(lambda number=number: excess(number), excess_work) for number in (100, 200))
    assert many <= 2.2 * few
