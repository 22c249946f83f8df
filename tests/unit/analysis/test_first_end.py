"""Of ranks that all ended without a goodbye the one that died first is named where black boxes tell it."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import hypothesis
import msgspec
import polars as pl
import pytest
from hypothesis import strategies as st
from work import count_instructions

from scope.analysis.recorded import ProcessTable, Watched, assess_run, find_verdicts, first_end
from scope.analysis.recorded.failures import Failure
from scope.frames.schema import RankSteps
from scope.run.blackbox import BlackBoxIdentity, BlackBoxState, GroupState
from scope.run.schema import GroupInfo, RankInfo, Verdict

S = 1_000_000_000
DIED_S = 900


def rank_info(rank: int, *, num_ranks: int = 3) -> RankInfo:
    """Return a rank of a world whose processes have the numbers 100 and on."""
    group = GroupInfo(group=0, name="0", description="default_pg", ranks=tuple(range(num_ranks)))
    return RankInfo(
        schema="1.0", run_id="r", attempt=0, rank=rank, started_ns=0, host="node7", pid=100 + rank, groups=(group,)
    )


def box(
    rank: int, *, step: int = 16, issued: int = 38, issued_s: float = DIED_S, sign_s: float = DIED_S
) -> BlackBoxState:
    """Return a black box whose last call was issued, and whose last sign of life was given, at such seconds."""
    group = GroupState(
        group=0, enqueued=issued, completed=36, enqueued_ns=round(issued_s * S), completed_ns=0, hash_low=1,
        operation="all_reduce", dtype="float32",
    )  # fmt: skip
    return BlackBoxState(
        identity=BlackBoxIdentity(
            rank=rank, attempt=0, world_size=3, pid=rank, process_start_ticks=1, wall_offset_ns=0
        ),
        step=step, num_steps=step, step_start_ns=0, phase="backward", phase_start_ns=0, beat_ns=round(sign_s * S),
        pulse_ns=round(sign_s * S), last_step_duration_ns=1, num_dropped=0, closed=False, exception=False,
        groups=(group,),
    )  # fmt: skip


def judge(boxes: list[BlackBoxState], *, codes: tuple[int | None, ...] = ()) -> Verdict:
    """Return the only finding of ranks whose processes are all gone, long after; commands ended with these codes."""
    (found,) = judge_all(boxes, codes=codes)
    return found


def judge_all(
    boxes: list[BlackBoxState], failures: tuple[Failure, ...] = (), *, codes: tuple[int | None, ...] = ()
) -> list[Verdict]:
    """Return what is found of ranks whose processes are all gone, long after."""
    infos = [rank_info(each.identity.rank, num_ranks=len(boxes)) for each in boxes]
    infos = [
        msgspec.structs.replace(info, command_returncode=codes[place % len(codes)]) if codes else info
        for place, info in enumerate(infos)
    ]
    states = {each.identity.rank: each for each in boxes}
    nobody = ProcessTable(fate=lambda _: False, is_gone=lambda _: True)
    now_ns = (DIED_S + 100) * S
    state = assess_run(infos, states, last_step_ns=DIED_S * S, usual_ns=S // 10, now_ns=now_ns, processes=nobody)
    steps = pl.DataFrame(schema=RankSteps.schema()).lazy()
    watched = Watched(state=state, infos=infos, boxes=states, steps=steps, now_ns=now_ns, failures=failures)
    return find_verdicts(watched, fate=lambda _: False)


def test_the_rank_that_is_behind_its_peers_is_named_with_what_tells_it() -> None:
    """Rank 1 was killed in step 15 after 36 calls; the launcher ended ranks 0 and 2, which waited in step 16."""
    found = judge([box(0), box(1, step=15, issued=36, sign_s=DIED_S - 0.3), box(2)])
    assert found.ranks == (1,)
    assert found.summary == (
        "ranks 0-2 ended without a goodbye; rank 1 may have died first: it was in step 15 (the others in step 16) "
        "and had not issued call 37 of group default_pg, as others had"
    )
    assert found.action is not None
    assert "(rank 1: pid 101 on node7, in step 15, phase backward)" in found.action


def test_the_rank_that_fell_silent_first_is_named() -> None:
    """By hand: its last sign came 12.5 s before the next rank's; nobody is behind."""
    found = judge([box(0, sign_s=DIED_S + 1), box(1, sign_s=DIED_S - 12.5), box(2)])
    assert found.ranks == (1,)
    assert "rank 1 may have died first: it fell silent 12.5 s before the others" in found.summary


@pytest.mark.parametrize(
    "boxes",
    [
        pytest.param([box(0), box(1), box(2)], id="alike"),
        pytest.param([box(0), box(1, sign_s=DIED_S - 2.9), box(2)], id="within three beats"),
        pytest.param([box(0), box(1, issued=37), box(2, issued=37)], id="most are behind"),
        pytest.param([box(0), box(1, issued=37, sign_s=DIED_S + 2.1), box(2)], id="it lived on while others waited"),
    ],
)
def test_nobody_is_named_where_nothing_tells(boxes: list[BlackBoxState]) -> None:
    """All are told of, and that their black boxes do not tell which died first."""
    found = judge(boxes)
    assert found.ranks == (0, 1, 2)
    assert found.summary == "ranks 0-2 ended without a goodbye; which died first their black boxes do not tell"


@pytest.mark.parametrize("codes", [(124,), (143,), (-15,), (-15, 124)])
def test_ranks_that_their_launcher_ended_because_it_was_asked_to_are_no_crash(codes: tuple[int, ...]) -> None:
    """`timeout` exits with 124 and a shell with 143; rank 1 is a call behind, as ranks that end at once may be."""
    found = judge([box(0), box(1, step=15, issued=36, sign_s=DIED_S - 0.3), box(2)], codes=codes)
    assert (found.kind, found.severity, found.ranks) == ("crash", "warning", ())
    assert found.summary.startswith("ranks 0-2 were ended from outside: the command ")
    assert ("exited with code 124, as timeout does" in found.summary) == (124 in codes)
    assert ("exited with code 143, as after SIGTERM" in found.summary) == (143 in codes)
    assert "memory" not in f"{found.summary}{found.action}"
    alone = judge([replace(box(0), groups=())], codes=codes)
    assert alone.summary.startswith("rank 0 was ended from outside: the command ")


@pytest.mark.parametrize("codes", [(1,), (-9,), (137,), (124, 1), (-15, None), (0, None), ()])
def test_other_ends_of_a_command_leave_the_cause_open(codes: tuple[int | None, ...]) -> None:
    """Torchrun exits with 1 when a rank dies; SIGKILL is the out-of-memory killer's; one host's end is not all.

    A host whose power was lost leaves no end of its command, and the others are ended because of it.
    """
    found = judge([box(0), box(1), box(2)], codes=codes)
    assert (found.severity, found.ranks) == ("critical", (0, 1, 2))
    assert "out of memory" in (found.action or "")


def test_a_rank_that_is_behind_on_a_host_without_an_end_is_named() -> None:
    """Its launcher's end is not on record while the others were asked to end: the rank behind may be the cause."""
    found = judge([box(0), box(1), box(2, step=15, issued=36, sign_s=DIED_S - 0.3)], codes=(-15, -15, None))
    assert (found.severity, found.ranks) == ("critical", (2,))
    assert "from outside" not in found.summary


def test_a_rank_that_fell_silent_long_before_the_limit_is_named() -> None:
    """Rank 1 died, the others hung until `timeout` ended them 12.5 s later: its end is the cause."""
    found = judge([box(0), box(1, sign_s=DIED_S - 12.5), box(2)], codes=(124,))
    assert (found.severity, found.ranks) == ("critical", (1,))


def test_of_two_ranks_the_one_behind_is_named_and_one_rank_alone_needs_no_word() -> None:
    """Half of them may be to blame; one alone died first and last."""
    assert judge([box(0), box(1, issued=37)]).ranks == (1,)
    alone = judge([replace(box(0), groups=())])
    assert (alone.ranks, alone.summary) == ((0,), "rank 0 ended without a goodbye")


def test_of_ranks_that_fell_silent_before_others_raised_the_one_behind_is_named() -> None:
    """Rank 0 was killed in step 15, rank 2 raised, and the launcher ended rank 1, whose heart had beaten before."""
    boxes = [
        box(0, step=15, issued=36, sign_s=DIED_S - 0.3),
        box(1, sign_s=DIED_S + 0.1),
        replace(box(2), closed=True, exception=True),
    ]
    raised = Failure(rank=2, time_ns=round((DIED_S + 0.3) * S), message="RuntimeError: reset", step=16, phase=None)
    found, exception = judge_all(boxes, failures=(raised,))
    assert (found.ranks, exception.kind) == ((0,), "exception")
    assert found.summary == (
        "rank 0 was killed or aborted before others raised an exception, rank 1 too or later; rank 0 may have died "
        "first: it was in step 15 (the others in step 16) and had not issued call 37 of group default_pg, as others had"
    )
    alike, _ = judge_all([box(0), *boxes[1:]], failures=(raised,))
    assert alike.summary == "ranks 0-1 were killed or aborted before others raised an exception"


class Place(NamedTuple):
    """Where a rank of one group stood; signs of life and the instant of its last call in tenths of a second."""

    host: str
    issued: int
    is_complete: bool
    issued_at: int
    sign: int


@hypothesis.given(
    st.lists(
        st.builds(
            Place,
            host=st.sampled_from("ab"),
            issued=st.integers(36, 39),
            is_complete=st.booleans(),
            issued_at=st.integers(0, 80),
            sign=st.integers(0, 29),
        ),
        min_size=2,
        max_size=7,
    )
)
def test_ranks_are_behind_where_a_peer_of_their_clock_waited_and_they_gave_no_sign(places: list[Place]) -> None:
    """Each rank against each other one: who issued the call that it missed, and when, on the same host."""
    most, fewest = max(place.issued for place in places), min(place.issued for place in places)
    missing = {rank for rank, place in enumerate(places) if place.issued < most}
    waiting = {rank for rank in missing if places[rank].issued > fewest and not places[rank].is_complete}
    expected: tuple[int, ...] = ()
    for rank in sorted(missing - waiting or missing):
        own = places[rank]
        waits = [other.issued_at for other in places if other.issued > own.issued and other.host == own.host]
        if waits and own.sign <= min(waits) + 20:
            expected += (rank,)
    infos = [
        msgspec.structs.replace(rank_info(rank, num_ranks=len(places)), host=place.host)
        for rank, place in enumerate(places)
    ]
    boxes = {rank: _box_at(rank, place) for rank, place in enumerate(places)}
    found = first_end.find_first_end(infos, boxes)
    assert (found.ranks if found is not None else ()) == (expected if 2 * len(expected) <= len(places) else ())


def _box_at(rank: int, place: Place) -> BlackBoxState:
    at = box(rank, issued=place.issued, issued_s=DIED_S + place.issued_at / 10, sign_s=DIED_S + place.sign / 10)
    return replace(
        at, groups=tuple(replace(each, completed=place.issued - (not place.is_complete)) for each in at.groups)
    )


def test_work_grows_with_the_ranks_not_with_their_pairs() -> None:
    """One rank in two is behind; twice as many ranks take about twice the work, not four times."""

    def work(num_ranks: int) -> int:
        infos = [rank_info(rank, num_ranks=num_ranks) for rank in range(num_ranks)]
        boxes = {rank: box(rank, issued=36 + rank % 2) for rank in range(num_ranks)}
        return count_instructions(lambda: first_end.find_first_end(infos, boxes), first_end)

    assert work(80) < 2.5 * work(40)
