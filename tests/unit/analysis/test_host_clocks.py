"""Instants of two hosts are compared where calls that ended together relate their clocks, and nowhere else."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import polars as pl
import pytest

from scope.analysis.recorded import ProcessTable, Watched, assess_run, find_verdicts
from scope.analysis.recorded.failures import Failure, describe_failures, find_failures
from scope.analysis.recorded.host_clocks import are_comparable, relate_clocks
from scope.frames.schema import Events, RankSteps
from scope.report.run_state_ranks import describe_stops, stop_lines
from scope.run.blackbox import BlackBoxIdentity, BlackBoxState, GroupState
from scope.run.schema import GroupInfo, RankInfo, Verdict

S = 1_000_000_000
DIED = 900 * S
AHEAD = 10 * S
"""What the clock of the second host shows more than that of the first."""
NO_CLOCK = "nothing relates the clocks of their hosts"


def rank_info(rank: int, host: str, *groups: tuple[str, tuple[int, ...]]) -> RankInfo:
    """Return a rank on a host, in the group of all four ranks unless others are named."""
    members = groups or (("0", (0, 1, 2, 3)),)
    return RankInfo(
        schema="1.0", run_id="r", attempt=0, rank=rank, started_ns=0, host=host, boot_id=f"boot-{host}", pid=100 + rank,
        groups=tuple(GroupInfo(group=number, name=name, ranks=ranks) for number, (name, ranks) in enumerate(members)),
    )  # fmt: skip


def box(
    rank: int,
    *,
    died: int = DIED,
    ahead: int = 0,
    issued: int = 38,
    completed: int | None = 36,
    operation: str = "all_reduce",
) -> BlackBoxState:
    """Return a black box by a clock that is ahead: call 36 ended, and the last was issued, 2 s before all died."""
    group = GroupState(
        group=0, enqueued=issued, completed=completed or 0, enqueued_ns=DIED - 2 * S + ahead,
        completed_ns=DIED - 2 * S + ahead if completed else None, hash_low=1, operation=operation, dtype="float32",
    )  # fmt: skip
    identity = BlackBoxIdentity(rank=rank, attempt=0, world_size=4, pid=rank, process_start_ticks=1, wall_offset_ns=0)
    return BlackBoxState(
        identity=identity, step=16, num_steps=16, step_start_ns=0, phase="backward", phase_start_ns=0,
        beat_ns=died + ahead, pulse_ns=died + ahead, last_step_duration_ns=1, num_dropped=0, closed=False,
        exception=False, groups=(group,),
    )  # fmt: skip


INFOS = [rank_info(rank, "a" if rank < 2 else "b") for rank in range(4)]
"""Ranks 0 and 1 on one host, 2 and 3 on another."""


def judge(boxes: list[BlackBoxState], failures: tuple[Failure, ...] = ()) -> list[Verdict]:
    """Return what is found of ranks whose processes are all gone, long after."""
    states = {each.identity.rank: each for each in boxes}
    nobody = ProcessTable(fate=lambda _: False, is_gone=lambda _: True)
    now_ns = DIED + 100 * S
    state = assess_run(INFOS, states, last_step_ns=DIED, usual_ns=S // 10, now_ns=now_ns, processes=nobody)
    steps = pl.DataFrame(schema=RankSteps.schema()).lazy()
    watched = Watched(state=state, infos=INFOS, boxes=states, steps=steps, now_ns=now_ns, failures=failures)
    return find_verdicts(watched, fate=lambda _: False)


def test_ranks_that_die_together_on_hosts_10_s_apart_are_all_told_of() -> None:
    """Their signs are 10 s apart, and so are the ends of their last call: nobody fell silent first."""
    (found,) = judge([box(0), box(1), box(2, ahead=AHEAD), box(3, ahead=AHEAD)])
    assert found.ranks == (0, 1, 2, 3)
    assert found.summary == "ranks 0-3 ended without a goodbye; which died first their black boxes do not tell"


def test_who_fell_silent_first_is_named_by_related_clocks() -> None:
    """By hand: rank 2 died 6 s before the others, though its clock showed 4 s more than theirs did when they died."""
    (found,) = judge([box(0), box(1), box(2, ahead=AHEAD, died=DIED - 6 * S), box(3, ahead=AHEAD)])
    assert found.ranks == (2,)
    assert "rank 2 may have died first: it fell silent 6.0 s before the others" in found.summary


@pytest.mark.parametrize(
    ("completed", "told"),
    [
        pytest.param(36, "rank 2 raised E: 2; ranks 3, 0 followed from 1.0 s later", id="related"),
        pytest.param(None, f"rank 0 raised E: 0; ranks 2, 3 raised before or after ({NO_CLOCK})", id="unrelated"),
    ],
)
def test_who_raised_first_is_told_by_related_clocks(completed: int | None, told: str) -> None:
    """Ranks 2, 3 and 0 raise in seconds 1, 2 and 4, and the clock of the first two shows 10 s more."""
    rows = [
        {"attempt": 0, "rank": rank, "time_ns": DIED + at, "kind": "exception", "message": f"E: {rank}", "detail": "{}"}
        for rank, at in ((2, S + AHEAD), (3, 2 * S + AHEAD), (0, 4 * S))
    ]
    boxes = {rank: box(rank, ahead=AHEAD if rank > 1 else 0, completed=completed) for rank in range(4)}
    events = pl.DataFrame(rows, schema=Events.schema())
    assert describe_failures(find_failures(events, attempt=0, infos=INFOS, boxes=boxes)) == told


def test_where_ranks_stand_is_in_no_order_of_instants_that_do_not_compare() -> None:
    """Rank 3 fell silent first, which its clock shows 10 s later; where nothing relates the clocks, that is said."""
    nobody = ProcessTable(fate=lambda _: False, is_gone=lambda _: True)
    for completed, order, words in ((36, [3, 0, 1, 2], ""), (None, [0, 1, 2, 3], f" ({NO_CLOCK})")):
        boxes = {
            rank: box(
                rank, ahead=AHEAD if rank > 1 else 0, completed=completed, died=DIED - (5 * S if rank == 3 else 0)
            )
            for rank in range(4)
        }
        now_ns = DIED + 100 * S
        state = assess_run(INFOS, boxes, last_step_ns=DIED, usual_ns=S, now_ns=now_ns, processes=nobody)
        steps = pl.DataFrame(schema=RankSteps.schema()).lazy()
        rows = describe_stops(Watched(state=state, infos=INFOS, boxes=boxes, steps=steps, now_ns=now_ns))
        assert [row["rank"] for row in rows] == order
        assert len({row["clock"] for row in rows}) == (1 if completed else 2)
        assert next(stop_lines(rows, now_ns=now_ns)) == f"where its ranks stand{words}"


def test_who_stands_behind_is_named_by_related_clocks() -> None:
    """Its last sign came as others began to wait, which its clock shows 10 s later: it did not hang, it died."""
    behind = box(2, ahead=AHEAD, died=DIED - 2 * S, issued=36)
    (found,) = judge([box(0), box(1), behind, box(3, ahead=AHEAD)])
    assert found.ranks == (2,)
    assert "had not issued call 37 of group default_pg" in found.summary


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"completed": None}, id="no call has ended"),
        pytest.param({"completed": 35}, id="another call ended last"),
        pytest.param({"operation": "broadcast"}, id="ranks do not leave it together"),
    ],
)
def test_nobody_is_named_where_nothing_relates_the_hosts(changes: dict[str, Any]) -> None:
    """The signs of two hosts are 10 s apart: it is said that they cannot be compared."""
    (found,) = judge([box(0), box(1), box(2, ahead=AHEAD, **changes), box(3, ahead=AHEAD, **changes)])
    assert found.ranks == (0, 1, 2, 3)
    assert found.summary.endswith(f"; which died first their black boxes do not tell ({NO_CLOCK})")


@pytest.mark.parametrize(
    ("completed", "summary"),
    [
        pytest.param(36, "rank 2 was killed or aborted before others raised an exception", id="related"),
        pytest.param(
            None,
            f"rank 2 was killed or aborted before or after others raised an exception ({NO_CLOCK})",
            id="unrelated",
        ),
    ],
)
def test_what_came_before_an_exception_on_another_host(completed: int | None, summary: str) -> None:
    """Rank 2 died 1 s before ranks of the other host raised, by a clock that shows 9 s more than theirs."""
    message = "RuntimeError: Connection closed"
    failures = tuple(Failure(rank=rank, time_ns=DIED, message=message, step=16, phase=None) for rank in (0, 1, 3))
    raised = [box(0), box(1), box(3, ahead=AHEAD, completed=completed)]
    boxes = [replace(each, closed=True, exception=True) for each in raised]
    found = judge([*boxes, box(2, ahead=AHEAD, died=DIED - S, completed=completed)], failures)
    assert [each.summary for each in found if each.kind == "crash"] == [summary]


def test_hosts_are_related_by_way_of_others() -> None:
    """By hand: b shows 10 s more than a, c 5 s less than b; d has no call in common with any."""
    groups = {0: ("x", (0, 1)), 1: ("x", (0, 1)), 2: ("y", (1, 2)), 3: ("z", (3,))}
    infos = [rank_info(rank, "abcd"[rank], group) for rank, group in groups.items()]
    infos[1] = rank_info(1, "b", groups[1], groups[2])
    boxes = {0: box(0), 1: box(1, ahead=AHEAD), 2: box(2, ahead=5 * S), 3: box(3, ahead=77 * S)}
    both = boxes[1].groups[0]
    boxes[1] = replace(boxes[1], groups=(both, replace(both, group=1)))
    clocks = relate_clocks(infos, boxes)
    assert [clocks[rank].shift_ns for rank in range(3)] == [0, -AHEAD, -5 * S]
    assert clocks[0].component == clocks[1].component == clocks[2].component != clocks[3].component
    assert not are_comparable(clocks)
    assert are_comparable({rank: clocks[rank] for rank in range(3)})


def test_ranks_of_one_host_need_no_call() -> None:
    """Nor a black box."""
    clocks = relate_clocks([rank_info(0, "a"), rank_info(1, "a")], {})
    assert set(clocks.values()) == {clocks[0]}
    assert clocks[0].shift_ns == 0
