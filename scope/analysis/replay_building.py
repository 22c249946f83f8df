"""Builds a replay: from the calls of a job, the activity of its ranks, and when they were ready for their calls."""

from __future__ import annotations

from bisect import bisect_right, insort
from functools import cached_property
from typing import TYPE_CHECKING, Final, Literal

import polars as pl

from scope.analysis.collective_tables import CollectiveRows, GroupRows, MatchedCalls
from scope.analysis.excess_work import ExcessWork
from scope.analysis.operations import PAIRS, SYMMETRIC
from scope.analysis.rank_activity import ACTIVITIES, PIECE_LENGTH, PIECE_START
from scope.analysis.readiness import QUEUED_NS, READY
from scope.analysis.replay import Call, Event, Replay
from scope.analysis.replay_awaited import Stay, find_unawaited

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from scope.analysis.collectives import Collectives
    from scope.analysis.replay import Shifts

_RUN_START: Final = "run_start_ns"
_RUN_END: Final = "run_end_ns"
_TURN: Final = "turn"
_BEFORE: Final = "num_before"
_PARTNER: Final = "partner"
_SENDS: Final = "sends"
_SHAPE: Final = "shape"
_ALL_WAIT: Final = frozenset((*SYMMETRIC, *PAIRS))
_WAIT_FOR_ROOT: Final = frozenset({"broadcast", "scatter"})
_ROOT_WAITS: Final = frozenset({"reduce", "gather"})

_KINDS: Final[tuple[Literal["end"], Literal["ready"], Literal["begin"]]] = ("end", "ready", "begin")
# At one instant ends come first, since the next call was queued behind them, and begins last.
_END, _READY, _BEGIN = range(3)
_Instant = tuple[int, int, int, int]
"""When, index in `_KINDS`, call, and since when the rank stood still."""


class LazyReplay:
    """A replay that is built when it is first asked for: most jobs have nobody and nothing to play it without."""

    def __init__(self, collectives: Collectives, activity: pl.DataFrame, ready: pl.DataFrame) -> None:
        """Keep what the replay is built from; the arguments are those of `build_replay`."""
        self._collectives = collectives
        self._activity = activity
        self._ready = ready
        self._without: dict[tuple[tuple[int, float], ...], Shifts] = {}

    @cached_property
    def replay(self) -> Replay:
        """The replay."""
        return build_replay(self._collectives, self._activity, self._ready)

    @cached_property
    def work(self) -> ExcessWork:
        """The own work of the ranks in the replay."""
        return ExcessWork(self.replay)

    def without_slow_link(self, ratios: Mapping[int, float]) -> Shifts:
        """Return what changes when collectives take a share of their transfer; the answer is kept.

        Args:
            ratios: By collective, the share.
        """
        key = tuple(sorted(ratios.items()))
        if key not in self._without:
            calls = self.replay.calls
            tails = {
                call: round(calls[call].tail_ns * ratio)
                for collective, ratio in ratios.items()
                for call in self.replay.members[collective]
            }
            self._without[key] = self.replay.play(tails_ns=tails)
        return self._without[key]


def build_replay(collectives: Collectives, activity: pl.DataFrame, ready: pl.DataFrame) -> Replay:
    """Return the calls of a job with what its ranks did between them.

    Args:
        collectives: What `compute_collectives` returned.
        activity: What `scope.analysis.rank_activity.build_activity` returned for the same job.
        ready: What `scope.analysis.readiness.compute_ready` returned for it.
    """
    frame = _ordered(collectives, activity, ready)
    windows = activity.group_by(MatchedCalls.rank).agg(
        pl.col(PIECE_START).min(), (pl.col(PIECE_START) + pl.col(PIECE_LENGTH)).max().alias(_RUN_END)
    )
    start = dict(windows.select(MatchedCalls.rank, PIECE_START).iter_rows())
    members: dict[int, list[int]] = {}
    for call, collective in enumerate(frame[MatchedCalls.collective_id].to_list()):
        if collective is not None:
            members.setdefault(collective, []).append(call)
    columns = (MatchedCalls.rank, READY, MatchedCalls.arrival_ns, MatchedCalls.end_ns, _RUN_START)
    unawaited = find_unawaited(_stays(frame))
    instants: dict[int, list[_Instant]] = {}
    for call, (rank, is_ready, arrival, end, run_start) in enumerate(frame.select(*columns).iter_rows()):
        found = instants.setdefault(rank, [])
        found.append((is_ready, _READY, call, is_ready))
        if is_ready < arrival:
            found.append((arrival, _BEGIN, call, arrival))
        if run_start is not None and end > arrival and call not in unawaited:
            found.append((end, _END, call, run_start))
    events = {rank: _events(sorted(found), start[rank]) for rank, found in instants.items()}
    places = [(rank, place) for rank, found in events.items() for place in range(len(found))]
    return Replay(
        calls=_calls(frame, members),
        events=events,
        order=sorted(places, key=lambda each: _instant(events[each[0]][each[1]])),
        members=members,
        start_ns=start,
        end_ns=dict(windows.select(MatchedCalls.rank, _RUN_END).iter_rows()),
        components={rank: number for number, ranks in enumerate(collectives.clock.components) for rank in ranks},
    )


def _ordered(collectives: Collectives, activity: pl.DataFrame, ready: pl.DataFrame) -> pl.DataFrame:
    """Return the calls in the order of time, each with the begin of the exposed stretch in which it ends, if any.

    Where it is not known when the rank was ready for a call, it was at the begin of the call.
    """
    is_exposed = (pl.col(ACTIVITIES[1]) > 0) | (pl.col(ACTIVITIES[2]) > 0)
    until = (pl.col(PIECE_START) + pl.col(PIECE_LENGTH)).alias(_RUN_END)
    pieces = activity.filter(is_exposed, pl.col(PIECE_LENGTH) > 0).select(MatchedCalls.rank, PIECE_START, until)
    pieces = pieces.sort(MatchedCalls.rank, PIECE_START)
    begins = (pl.col(PIECE_START) != pl.col(_RUN_END).shift()).fill_null(value=True).over(MatchedCalls.rank)
    runs = (
        pieces.with_columns(begins.cum_sum().over(MatchedCalls.rank).alias("run"))
        .group_by(MatchedCalls.rank, "run")
        .agg(pl.col(PIECE_START).min().alias(_RUN_START), pl.col(_RUN_END).max())
        .sort(_RUN_START)
    )
    joined = collectives.calls.sort(MatchedCalls.end_ns).join_asof(
        runs,
        left_on=MatchedCalls.end_ns,
        right_on=_RUN_START,
        by=MatchedCalls.rank,
        allow_exact_matches=False,
        check_sortedness=False,
    )
    inside = pl.col(_RUN_END) >= pl.col(MatchedCalls.end_ns)
    rows = collectives.collectives.select(
        CollectiveRows.collective_id, CollectiveRows.group_id, CollectiveRows.operation
    )
    ordered = (
        joined.with_columns(pl.when(inside).then(_RUN_START).alias(_RUN_START))
        .join(ready, on=(MatchedCalls.rank, MatchedCalls.call_id), how="left")
        .with_columns(pl.coalesce(READY, MatchedCalls.arrival_ns).alias(READY))
        .join(rows, on=CollectiveRows.collective_id, how="left")
        .sort(MatchedCalls.arrival_ns, MatchedCalls.end_ns, MatchedCalls.rank, MatchedCalls.call_id)
    )
    return _with_turns(ordered, collectives.groups)


def _with_turns(ordered: pl.DataFrame, groups: pl.DataFrame) -> pl.DataFrame:
    """Add the place of each call in the program: how many of its step ran before it in its group, by the group's shape.

    Groups of one axis have one description, and ranks as far apart; of what a rank sends, and of what it gets, its
    partners tell, in their order. Calls of one group run in one order on all ranks; that of several, chance may change.
    """
    ranks = pl.col(GroupRows.ranks)
    is_pair = pl.col(GroupRows.is_pair)
    shapes = groups.select(
        GroupRows.group_id,
        GroupRows.description,
        GroupRows.is_pair,
        pl.when(is_pair).then(ranks.list.sum()).alias(_PARTNER),
        pl.when(~is_pair).then(ranks.list.diff().cast(pl.List(pl.String)).list.join(",")).alias(_SHAPE),
    )
    placed = ordered.join(shapes, on=GroupRows.group_id, how="left", maintain_order="left")
    sends = pl.when(is_pair).then(MatchedCalls.is_root).alias(_SENDS)
    partner = (pl.col(_PARTNER) - pl.col(MatchedCalls.rank)).rank("dense")
    program = (MatchedCalls.step_number, GroupRows.description, CollectiveRows.operation, _SENDS, _SHAPE)
    turns = (
        placed.with_columns(sends)
        .with_columns(partner.over(MatchedCalls.rank, GroupRows.description, _SENDS).alias(_PARTNER))
        .with_columns(pl.int_range(pl.len()).over(MatchedCalls.rank, *program, _PARTNER).alias(_BEFORE))
        .select(pl.struct(*program, _PARTNER, _BEFORE).rank("dense").alias(_TURN))
    )
    return ordered.with_columns(turns[_TURN])


def _stays(frame: pl.DataFrame) -> list[Stay]:
    is_send = pl.col(MatchedCalls.is_root) & pl.col(CollectiveRows.operation).is_in(PAIRS)
    columns = (
        MatchedCalls.rank,
        GroupRows.group_id,
        MatchedCalls.collective_id,
        _TURN,
        is_send.fill_null(value=False).alias(_SENDS),
        READY,
        MatchedCalls.end_ns,
        _RUN_START,
        _RUN_END,
    )
    return [Stay(*row) for row in frame.select(*columns).iter_rows()]


def _calls(frame: pl.DataFrame, members: Mapping[int, Sequence[int]]) -> list[Call]:
    arrivals, ends = frame[MatchedCalls.arrival_ns].to_list(), frame[MatchedCalls.end_ns].to_list()
    is_root = frame[MatchedCalls.is_root].to_list()
    last_arrivals = {each: max(arrivals[call] for call in calls) for each, calls in members.items()}
    roots = {each: next((call for call in calls if is_root[call]), None) for each, calls in members.items()}
    last: dict[tuple[int, int], int] = {}
    ended: dict[int, list[tuple[int, int]]] = {}
    found: list[Call] = []
    columns = (
        MatchedCalls.rank,
        MatchedCalls.step_number,
        MatchedCalls.collective_id,
        GroupRows.group_id,
        CollectiveRows.operation,
        READY,
        _TURN,
    )
    for call, (rank, step, collective, group, operation, is_ready, turn) in enumerate(
        frame.select(*columns).iter_rows()
    ):
        mine, root = bool(is_root[call]), None if collective is None else roots[collective]
        waits_for_all = operation in _ALL_WAIT or (operation in _ROOT_WAITS and mine)
        root = root if operation in _WAIT_FOR_ROOT and not mine else None
        begun = arrivals[call]
        if waits_for_all and collective is not None:
            begun = last_arrivals[collective]
        elif root is not None:
            begun = max(begun, arrivals[root])
        if begun >= ends[call]:
            # It did not end behind those: a small message that was sent ahead, or a clock that is a little off.
            waits_for_all, root, begun = False, None, arrivals[call]
        previous = None if group is None else last.get((rank, group))
        if previous is not None and ends[previous] > arrivals[call]:
            previous = None
        begins_later = is_ready < arrivals[call]
        is_pair = operation is None or operation in PAIRS
        others = () if is_pair or arrivals[call] - is_ready <= QUEUED_NS else ended.get(rank, ())
        behind = _behind(previous, arrivals[call], ends, others)
        found.append(
            Call(
                rank=rank,
                step_number=step,
                collective_id=collective,
                waits_for_all=waits_for_all,
                root=root,
                tail_ns=ends[call] - begun,
                end_ns=ends[call],
                previous=previous,
                behind=behind,
                queued_ns=0 if behind is None else arrivals[call] - ends[behind],
                ready_ns=is_ready,
                begins_later=begins_later,
                turn=turn,
            )
        )
        if group is not None:
            last[rank, group] = call
        if not is_pair:
            insort(ended.setdefault(rank, []), (ends[call], call))
    return found


def _behind(previous: int | None, arrival: int, ends: Sequence[int], ended: Sequence[tuple[int, int]]) -> int | None:
    """Return the call that one was queued behind, if any.

    Args:
        previous: The last call of its group.
        arrival: When it began.
        ends: By call, its end.
        ended: Ends of other calls of its rank, sorted, where it may have been queued behind one of any group.
    """
    place = bisect_right(ended, arrival, key=lambda each: each[0])
    # Of two that ended at once, that of its own group.
    latest = ended[place - 1][1] if place else previous
    if latest is None or (previous is not None and ends[previous] >= ends[latest]):
        latest = previous
    return latest if latest is not None and arrival - ends[latest] <= QUEUED_NS else None


def _instant(event: Event) -> tuple[int, int]:
    return event.at_ns, _KINDS.index(event.kind)


def _events(instants: Sequence[_Instant], start_ns: int) -> list[Event]:
    """Return the events of one rank; what comes before an end, back to the begin of its stretch, is standing still."""
    found: list[Event] = []
    last = start_ns
    for at, kind, call, run_start in instants:
        if kind == _BEGIN:
            found.append(Event(call=call, kind="begin", at_ns=at, own_ns=0, blocked_ns=0))
            continue
        blocked = at - max(run_start, last) if kind == _END else 0
        found.append(Event(call=call, kind=_KINDS[kind], at_ns=at, own_ns=at - last - blocked, blocked_ns=blocked))
        last = at
    return found
