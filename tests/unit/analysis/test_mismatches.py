"""Ranks that issued different calls under one number, from black boxes made by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple
from zlib import crc32

import msgspec
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_boxes import state

from scope.analysis.recorded import (
    ProcessTable,
    Watched,
    assess_run,
    compute_group_progress,
    describe_mismatch,
    find_mismatches,
    find_missed_calls,
    find_verdicts,
    is_refuted,
)
from scope.frames.schema import RankSteps
from scope.report.standing import standing_words
from scope.run.blackbox import RingCall
from scope.run.schema import GroupInfo, RankInfo

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from scope.run.blackbox import BlackBoxState
    from scope.run.schema import Verdict

S = 1_000_000_000


class Call(NamedTuple):
    """One call of a rank: what ranks must agree on, and what they need not."""

    operation: str
    elements: int = 1
    root: int | None = None
    given: int | None = None
    step: int = 50


GRADIENTS = (Call("all_reduce", 300), Call("all_reduce", 100))
LOSS = Call("broadcast", 1, 1)
NEXT = [call._replace(step=51) for call in GRADIENTS]


def info(rank: int, ranks: Sequence[int] = (0, 1), **changes: object) -> RankInfo:
    """Return a rank of one group."""
    made = RankInfo(
        schema="1.0", run_id="r", attempt=0, rank=rank, started_ns=0, host="h", pid=rank,
        groups=(GroupInfo(group=0, name="world", ranks=tuple(ranks)),),
    )  # fmt: skip
    return msgspec.structs.replace(made, **changes)


def box(rank: int, calls: Sequence[Call], *, kept: int = 1024, hashed: int = 10**6, done: int = 0) -> BlackBoxState:
    """Return the black box of a rank that issued these calls, of which the ring holds so many.

    The hash is a CRC of all that ranks must agree on so far; only so many calls change it.
    """
    history = [
        f"{call.operation} {call.elements} {call.root};" for call in calls if call.operation not in ("send", "recv")
    ]
    ring: list[RingCall] = []
    number = 0
    for place, call in enumerate(calls):
        is_counted = call.operation not in ("send", "recv")
        number += is_counted
        size = 4 * call.elements if call.given is None else call.given
        ring.append(
            RingCall(
                place=place,
                group=0,
                sequence=number if is_counted else place,
                step=call.step,
                phase="backward",
                operation=call.operation,
                variant="plain",
                dtype="float32",
                flags=0,
                peer=call.root,
                hash_low=crc32("".join(history[: min(number, hashed)]).encode()),
                in_bytes=size,
                out_bytes=size,
                issued_ns=0,
                completed_ns=None,
            )
        )
    made = state(rank, {0: (number, crc32("".join(history[:hashed]).encode()))})
    groups = (replace(made.groups[0], completed=done),)
    return replace(made, calls=tuple(ring[-kept:]), groups=groups, beat_ns=29 * S, pulse_ns=29 * S)


def see(boxes: Mapping[int, BlackBoxState], infos: Sequence[RankInfo]) -> Watched:
    """Return a run whose last step ended at second 0, seen at second 40."""
    living = ProcessTable(fate=lambda _: True, is_gone=lambda each: each.pid < 0)
    found = assess_run(infos, boxes, last_step_ns=0, usual_ns=S, now_ns=30 * S, processes=living)
    steps = pl.LazyFrame(schema=RankSteps.schema())
    return Watched(state=found, infos=infos, boxes=boxes, steps=steps, now_ns=40 * S)


def judge(boxes: Mapping[int, BlackBoxState], infos: Sequence[RankInfo]) -> tuple[list[Verdict], str]:
    """Return what is found of such a run, and the head of what is said of it."""
    watched = see(boxes, infos)
    return find_verdicts(watched, fate=lambda _: True), standing_words(watched.state, now_ns=30 * S)


def test_a_rank_that_skipped_a_call_differs_at_it_and_nobody_is_late() -> None:
    """Call 5 is a broadcast on rank 0; rank 1 left it out, and its two buckets of the next step are calls 5 and 6."""
    before = [*GRADIENTS, *GRADIENTS]
    boxes = {0: box(0, [*before, LOSS], done=4), 1: box(1, [*before, *NEXT], done=4)}
    infos = [info(0), info(1)]
    (found,) = find_mismatches(infos, boxes)
    assert (found.number, found.ranks, found.odd_ranks, found.is_first, found.is_pending) == (
        5, (0, 1), (0, 1), True, True,
    )  # fmt: skip
    assert find_missed_calls(compute_group_progress(infos, boxes)) == []
    (verdict,), head = judge(boxes, infos)
    told = (
        "ranks 0-1 issued different collectives in call 5 of group world: rank 0 broadcast of 4 B (float32, "
        "root 1) in step 50 (backward), rank 1 all_reduce of 1.2 kB (float32) in step 51 (backward)"
    )
    assert (verdict.kind, verdict.summary, verdict.evidence) == ("mismatch", told, {"call": 5})
    assert head == f"NO STEP for 30 s: {verdict.summary}"
    assert verdict.action is not None
    assert "py-spy" in verdict.action


def test_what_calls_differ_in_by_right_is_no_mismatch() -> None:
    """Parts of other sizes, and send and recv between some ranks only, are no part of what ranks must agree on."""
    uneven = [Call("all_to_all", 0, given=size) for size in (8, 24)]
    boxes = {
        0: box(0, [Call("send", 7), *GRADIENTS, uneven[0], Call("send", 9), Call("scatter", 4, 0, given=0)]),
        1: box(1, [*GRADIENTS, Call("recv", 7), uneven[1], Call("scatter", 4, 0, given=16)]),
    }
    assert find_mismatches([info(0), info(1)], boxes) == ()


def test_a_hash_that_is_kept_no_longer_tells_nothing() -> None:
    """A recorder that costs too much drops the hash on its rank alone, before the ring begins or within it."""
    calls = [*GRADIENTS] * 10
    for hashed, kept in ((3, 10), (3, 20), (15, 10)):
        boxes = {0: box(0, calls), 1: box(1, calls, hashed=hashed, kept=kept)}
        assert find_mismatches([info(0), info(1)], boxes) == ()


def test_ranks_that_differ_since_before_the_ring_are_said_to() -> None:
    """Rank 1 left out call 1; by the ring they differ at call 3, the oldest that both hold."""
    calls = [LOSS, *GRADIENTS, *GRADIENTS]
    (found,) = find_mismatches([info(0), info(1)], {0: box(0, calls, kept=3), 1: box(1, calls[1:], kept=2)})
    assert (found.number, found.is_first) == (3, False)
    assert " in call 3 of group world or before: " in describe_mismatch(found)


def test_the_rank_that_differs_from_most_is_named_and_who_waits_for_it_is_not() -> None:
    """Of four ranks 2 alone issued another call; rank 1 waits there and is late in its other group for that."""
    boxes = {rank: box(rank, [*GRADIENTS, LOSS], done=2) for rank in (0, 1, 3)} | {
        2: box(2, [*GRADIENTS, *NEXT], done=2)
    }
    pair = GroupInfo(group=1, name="pair", ranks=(1, 3))
    infos = [info(rank, range(4)) for rank in range(4)]
    infos = [msgspec.structs.replace(each, groups=(*each.groups, pair)) for each in infos]
    for rank, issued in ((1, 7), (3, 8)):
        boxes[rank] = replace(
            boxes[rank], groups=(*boxes[rank].groups, replace(state(rank, {1: (issued, issued)}).groups[0]))
        )
    found, _ = judge(boxes, infos)
    assert [(each.kind, each.ranks) for each in found] == [("mismatch", (2,))]


@pytest.mark.parametrize(("done", "kinds"), [(4, ["mismatch", "crash"]), (5, ["crash"])])
def test_a_mismatch_stands_before_the_crash_that_it_led_to(done: int, kinds: list[str]) -> None:
    """Both processes are gone. A call that all have seen complete has held nobody up."""
    before = [*GRADIENTS, *GRADIENTS]
    boxes = {0: box(0, [*before, LOSS], done=done), 1: box(1, [*before, *NEXT], done=done)}
    found, head = judge(boxes, [info(0, pid=-1), info(1, pid=-1)])
    assert [each.kind for each in found] == kinds
    assert ("different collectives in call 5" in head) == (kinds[0] == "mismatch")


@pytest.mark.parametrize(
    ("number", "told_s", "outcome", "severity"),
    [
        pytest.param(2, 30, "interrupted", "warning", id="Ctrl-C"),
        pytest.param(15, 30, "killed", "warning", id="SIGTERM"),
        pytest.param(2, 35, "ended without a goodbye", "critical", id="rank 1 died 6 s before"),
    ],
)
def test_a_rank_without_an_end_was_ended_with_the_job(number: int, told_s: int, outcome: str, severity: str) -> None:
    """Rank 0 is said to have been ended by a signal to the job; rank 1 gave its last sign of life at second 29."""
    infos = [info(0, ended_ns=told_s * S, exit_reason=f"terminated by signal {number}"), info(1, pid=-1)]
    boxes = {rank: box(rank, GRADIENTS) for rank in range(2)}
    found, head = judge(boxes, infos)
    assert head.startswith(outcome)
    assert [(each.kind, each.severity) for each in found] == [("crash", severity)]
    assert ("asked to end by signal" in found[0].summary) == (severity == "warning")


@pytest.mark.parametrize(("told_s", "is_over"), [(30, True), (35, False)])
def test_a_crash_on_record_is_over_once_peers_tell_of_the_signal(told_s: int, is_over: bool) -> None:
    """A watcher saw rank 1 gone first; then it is told that the job was asked to end, where rank 1 lived until then."""
    gone, boxes = info(1, pid=-1), {rank: box(rank, GRADIENTS) for rank in range(2)}
    (crash,), _ = judge(boxes, [info(0, pid=-1), gone])
    on_record = msgspec.structs.replace(crash, ranks=(1,))
    told = see(boxes, [info(0, ended_ns=told_s * S, exit_reason="terminated by signal 2"), gone])
    assert is_refuted(told, on_record) == is_over


CALLS = st.lists(st.sampled_from([*GRADIENTS, LOSS]), max_size=6)


@given(common=CALLS, own=st.lists(CALLS, min_size=3, max_size=3))
def test_the_first_difference_is_the_one_that_a_comparison_of_all_calls_finds(
    common: list[Call], own: list[list[Call]]
) -> None:
    """By brute force: the first number under which two of three ranks have different calls."""
    issued = [[*common, *calls] for calls in own]
    boxes = {rank: box(rank, calls) for rank, calls in enumerate(issued) if calls}
    first = next(
        (number for number in range(1, 13) if len({calls[number - 1] for calls in issued if len(calls) >= number}) > 1),
        None,
    )
    found = find_mismatches([info(rank, range(3)) for rank in range(3)], boxes)
    assert [each.number for each in found] == ([] if first is None else [first])
