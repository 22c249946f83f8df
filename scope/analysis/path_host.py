"""The host's side of the critical path: what each thread was doing, and what it had to wait for."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import polars as pl

from scope.trace.schema import Launches, Ops, Syncs

if TYPE_CHECKING:
    from scope.analysis.windows import StepWindow, Timeline

HostKind = Literal["operator", "runtime_call", "host_gap"]

HostItem = tuple[int, int, HostKind, int]
"""Start, end, kind and row of an operator or call."""


@dataclass(frozen=True, slots=True)
class HostPiece:
    """A stretch of a thread and the innermost operator or call that filled it; none for a gap."""

    start_ns: int
    end_ns: int
    kind: HostKind
    row: int | None
    """Row of `ops` or `launches`."""


@dataclass(frozen=True, slots=True)
class BlockingCall:
    """A call that made its thread wait for the device."""

    start_ns: int
    end_ns: int
    launch_id: int
    stream: int | None
    """The stream that it waited for; None for any."""
    is_copy: bool
    """It waited for the copy that it launched itself."""


@dataclass(frozen=True, slots=True)
class HandOver:
    """A thread that begins after another of the step's threads fell silent: control passed from that one."""

    start_ns: int
    thread: int
    """The thread that had control before."""
    silent_ns: int
    """When it fell silent."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HostSide:
    """The threads of one step."""

    start_ns: int
    items: dict[int, list[HostItem]]
    """By thread: operators and calls, sorted by start, outer ones first."""
    blocking: dict[int, list[BlockingCall]]
    """By thread, sorted by end."""
    hand_overs: dict[int, list[HandOver]]
    """By thread, sorted by start."""

    def last_blocking(self, thread: int, before_ns: int) -> BlockingCall | None:
        """Return the last blocking call of a thread that ended by an instant."""
        calls = self.blocking.get(thread, [])
        position = bisect_right(calls, before_ns, key=lambda call: call.end_ns)
        return calls[position - 1] if position else None

    def last_hand_over(self, thread: int, before_ns: int) -> HandOver | None:
        """Return the last time that control came to a thread, up to an instant."""
        found = self.hand_overs.get(thread, [])
        position = bisect_right(found, before_ns, key=lambda each: each.start_ns)
        return found[position - 1] if position else None

    def pieces(self, thread: int, start_ns: int, end_ns: int) -> list[HostPiece]:
        """Return what filled [start_ns, end_ns) of a thread, innermost items first, in the order of time."""
        found: list[HostPiece] = []
        open_items: list[tuple[int, HostKind, int | None]] = [(end_ns, "host_gap", None)]
        now = start_ns

        def advance(until: int) -> None:
            nonlocal now
            while now < until:
                while len(open_items) > 1 and open_items[-1][0] <= now:
                    open_items.pop()
                item_end, kind, row = open_items[-1]
                stop = min(item_end, until)
                found.append(HostPiece(now, stop, kind, row))
                now = stop

        for item_start, item_end, kind, row in self.items.get(thread, []):
            if item_start >= end_ns:
                break
            if item_end <= start_ns or item_end <= item_start:
                continue
            advance(max(item_start, start_ns))
            open_items.append((min(item_end, end_ns), kind, row))
        advance(end_ns)
        return found


def build_host_side(timeline: Timeline, step: StepWindow) -> HostSide:
    """Return the threads that launch work in a step, and the thread of the step itself."""
    trace = timeline.trace
    window = step.host
    during = (pl.col(Ops.start_ns) < window.end_ns) & (pl.col(Ops.end_ns) > window.start_ns)
    launches = trace.launches.filter(during)
    launching = launches.filter(pl.col(Launches.num_device_events) > 0)[Launches.thread]
    own = trace.steps.filter(pl.col("step_id") == step.step_id)["thread"]
    threads = pl.concat([launching, own]).unique().implode()
    ops = trace.ops.filter(during, pl.col(Ops.thread).is_in(threads))
    launches = launches.filter(pl.col(Launches.thread).is_in(threads))
    both = pl.concat(
        [
            ops.select(
                Ops.thread, Ops.start_ns, Ops.end_ns, pl.lit("operator").alias("kind"), pl.col(Ops.op_id).alias("row")
            ),
            launches.select(
                Launches.thread,
                Launches.start_ns,
                Launches.end_ns,
                pl.lit("runtime_call").alias("kind"),
                pl.col(Launches.launch_id).alias("row"),
            ),
        ]
    ).sort("thread", "start_ns", -pl.col("end_ns"), "kind")
    items: dict[int, list[HostItem]] = {}
    for thread, *item in both.iter_rows():
        items.setdefault(thread, []).append((item[0], item[1], item[2], item[3]))
    return HostSide(
        start_ns=window.start_ns,
        items=items,
        blocking=_blocking(timeline, launches),
        hand_overs=_hand_overs(both),
    )


def _blocking(timeline: Timeline, launches: pl.DataFrame) -> dict[int, list[BlockingCall]]:
    """Return the blocking calls among some calls, with the stream that each waited for."""
    syncs = timeline.trace.syncs.select(
        Syncs.correlation,
        pl.when(pl.col(Syncs.kind) == "event")
        .then(pl.col(Syncs.waited_stream))
        .when(pl.col(Syncs.kind) == "stream")
        .then(pl.col(Syncs.stream))
        .alias(Syncs.stream),
    ).unique(Syncs.correlation)
    calls = (
        timeline.blocking.join(launches.select(Launches.launch_id), on=Launches.launch_id, how="semi")
        .join(syncs, on=Syncs.correlation, how="left")
        .sort(Launches.end_ns, Launches.start_ns)
        .select(
            Launches.thread,
            Launches.start_ns,
            Launches.end_ns,
            Launches.launch_id,
            pl.when(pl.col(Syncs.stream) >= 0).then(pl.col(Syncs.stream)).alias(Syncs.stream),
            (pl.col(Launches.kind) != "sync").alias("is_copy"),
        )
    )
    found: dict[int, list[BlockingCall]] = {}
    for thread, *call in calls.iter_rows():
        found.setdefault(thread, []).append(BlockingCall(*call))
    return found


def _hand_overs(items: pl.DataFrame) -> dict[int, list[HandOver]]:
    """Return where control passes between threads.

    A thread's outermost item begins while the thread was silent. If another thread fell silent later than this one
    did, and before the item begins, then control came from there: backward runs on a thread of its own while the
    caller waits for it, and nothing else in the trace ties the two together.
    """
    reach = pl.col("end_ns").cum_max().shift(1).over("thread")
    outermost = (
        items.with_columns(reach.alias("own_silent_ns"))
        .filter((pl.col("start_ns") >= pl.col("own_silent_ns")).fill_null(value=True))
        .sort("start_ns", "end_ns")
    )
    silences = outermost.select("thread", "end_ns").sort("end_ns")
    found: dict[int, list[HandOver]] = {}
    for thread in outermost["thread"].unique().sort():
        others = silences.filter(pl.col("thread") != thread).select(
            pl.col("end_ns").alias("start_ns"), pl.col("thread").alias("from"), pl.col("end_ns").alias("silent_ns")
        )
        mine = outermost.filter(pl.col("thread") == thread).select("start_ns", "own_silent_ns")
        passed = mine.join_asof(others, on="start_ns").filter(
            (pl.col("silent_ns") > pl.col("own_silent_ns")) | pl.col("own_silent_ns").is_null(),
            pl.col("silent_ns").is_not_null(),
        )
        rows = passed.select("start_ns", "from", "silent_ns").iter_rows()
        found[thread] = [HandOver(*row) for row in rows]
    return found
