"""What all ranks together tell: against brute force, and on black boxes made by hand."""

from __future__ import annotations

import random
import statistics
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scope.analysis.recorded import (
    ImposedWait,
    ProcessTable,
    Watched,
    assess_run,
    compute_imposed_wait,
    find_verdicts,
    is_explained,
    is_mended,
)
from scope.frames import columns
from scope.frames.schema import RankSteps
from scope.run.blackbox import BlackBoxIdentity, BlackBoxState, GroupState
from scope.run.schema import GroupInfo, RankInfo, StepRecord, Verdict

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

S = 1_000_000_000
NOW_S = 1_000


def table(waits: Mapping[int, Sequence[int | None]], *, length_ns: int = 100) -> pl.LazyFrame:
    """Return steps of equal length in which each rank waited so long."""
    rows = [
        row
        for rank, of_rank in waits.items()
        for row in columns.step_rows(
            [
                StepRecord(
                    step=step,
                    start_ns=step * length_ns,
                    end_ns=(step + 1) * length_ns,
                    phases={"forward": length_ns},
                    communication_wait_ns=wait,
                )
                for step, wait in enumerate(of_rank)
            ],
            attempt=0,
            rank=rank,
        )
    ]
    return pl.DataFrame(rows, schema=RankSteps.schema(), orient="row").lazy()


def count_by_hand(waits: dict[int, list[int]]) -> dict[int, tuple[int, int]]:
    """Return (steps in which it came last, wait that it imposed) by rank, of the newest 50 steps."""
    found: dict[int, tuple[int, int]] = {}
    num_steps = min(len(of_rank) for of_rank in waits.values())
    for step in range(max(0, num_steps - 50), num_steps):
        ordered = sorted((of_rank[step], rank) for rank, of_rank in waits.items())
        last, imposed = found.get(ordered[0][1], (0, 0))
        found[ordered[0][1]] = last + 1, imposed + ordered[1][0] - ordered[0][0]
    return found


def usual_by_hand(waits: dict[int, list[int]]) -> dict[int, int]:
    """Return the median of what a rank imposed by rank, over the newest 50 steps, of ranks that ever came last."""
    num_steps = min(len(of_rank) for of_rank in waits.values())
    newest = range(max(0, num_steps - 50), num_steps)
    last: dict[int, dict[int, int]] = {}
    for step in newest:
        ordered = sorted((of_rank[step], rank) for rank, of_rank in waits.items())
        last.setdefault(ordered[0][1], {})[step] = ordered[1][0] - ordered[0][0]
    return {rank: statistics.median_low([of_rank.get(step, 0) for step in newest]) for rank, of_rank in last.items()}


@given(num_ranks=st.integers(2, 5), num_steps=st.integers(1, 70), seed=st.integers(0, 2**32))
def test_imposed_wait_is_what_the_second_to_last_still_waits(num_ranks: int, num_steps: int, seed: int) -> None:
    """Against a plain loop, ranks of which one is some steps behind; sums are exact."""
    dice = random.Random(seed)
    waits = {
        rank: [dice.randrange(10) for _ in range(max(1, num_steps - (rank == 1) * dice.randrange(3)))]
        for rank in range(num_ranks)
    }
    found = compute_imposed_wait(table(waits))
    assert {
        row[ImposedWait.rank]: (row[ImposedWait.num_last], row[ImposedWait.imposed_ns])
        for row in found.iter_rows(named=True)
    } == count_by_hand(waits)
    common = min(50, *(len(of_rank) for of_rank in waits.values()))
    assert set(found[ImposedWait.num_steps]) == {common}
    assert set(found[ImposedWait.duration_ns]) == {100 * common}
    assert set(found[ImposedWait.usual_duration_ns]) == {100}
    assert dict(found.select(ImposedWait.rank, ImposedWait.usual_imposed_ns).iter_rows()) == usual_by_hand(waits)


def test_a_wait_that_is_unknown_is_no_wait_of_nothing() -> None:
    """Steps whose wait one rank does not know are left out; a rank alone imposes nothing."""
    found = compute_imposed_wait(table({0: [None, 40, 30], 1: [10, 10, 10]}))
    assert found.row(0) == (1, 2, 2, 50, 200, 20, 100)
    assert compute_imposed_wait(table({0: [5, 5]})).is_empty()
    assert compute_imposed_wait(table({0: [None], 1: [None]})).is_empty()


def rank_info(rank: int, **changes: Any) -> RankInfo:
    """Return a rank of a world of three."""
    info = RankInfo(
        schema="1.0", run_id="r", attempt=2, rank=rank, started_ns=0, host="h", pid=rank,
        groups=(GroupInfo(group=0, name="world", ranks=(0, 1, 2)),),
    )  # fmt: skip
    return msgspec.structs.replace(info, **changes)


def box(rank: int, *, enqueued: int = 9, rolling: int = 1, beat_s: int = NOW_S - 1, **changes: Any) -> BlackBoxState:
    """Return a black box of a rank that has issued so many calls."""
    group = GroupState(
        group=0, enqueued=enqueued, completed=enqueued - 1, enqueued_ns=0, completed_ns=0, hash_low=rolling,
        operation="all_reduce", dtype="float32",
    )  # fmt: skip
    identity = BlackBoxIdentity(rank=rank, attempt=2, world_size=3, pid=rank, process_start_ticks=1, wall_offset_ns=0)
    made = BlackBoxState(
        identity=identity, step=1, num_steps=1, step_start_ns=0, phase="backward", phase_start_ns=0,
        beat_ns=beat_s * S, pulse_ns=beat_s * S, last_step_duration_ns=1, num_dropped=0, closed=False, exception=False,
        groups=(group,),
    )  # fmt: skip
    return replace(made, **changes)


def judge(
    boxes: list[BlackBoxState],
    *,
    last_step_s: int = NOW_S - 1,
    waits: Mapping[int, Sequence[int | None]] | None = None,
    gone: tuple[int, ...] = (),
    infos: list[RankInfo] | None = None,
) -> list[Verdict]:
    """Return what is found of three ranks."""
    ranks = infos or [rank_info(rank) for rank in range(3)]
    states = {each.identity.rank: each for each in boxes}

    def fate(info: RankInfo) -> bool:
        return info.rank not in gone

    processes = ProcessTable(fate=fate)
    state = assess_run(
        ranks, states, last_step_ns=last_step_s * S, usual_ns=S // 10, now_ns=NOW_S * S, processes=processes
    )
    steps = table(waits or {rank: [10] * 20 for rank in range(3)})
    watched = Watched(state=state, infos=ranks, boxes=states, steps=steps, now_ns=NOW_S * S)
    return find_verdicts(watched, fate=fate)


def test_all_is_well() -> None:
    """A run that makes steps, even one whose ranks are a call apart, gives nothing to say."""
    assert judge([box(0), box(1, enqueued=8), box(2)]) == []
    assert judge([box(rank) for rank in range(3)], waits={0: [10, 2] * 10, 1: [2, 10] * 10, 2: [9] * 20}) == []


def test_a_hang_names_who_has_not_arrived() -> None:
    """No step for 60 s, and rank 1 is a call behind in the world group."""
    (found,) = judge([box(0), box(1, enqueued=8), box(2)], last_step_s=940)
    assert (found.kind, found.severity, found.ranks, found.group, found.attempt) == (
        "hang",
        "critical",
        (1,),
        "world",
        2,
    )
    assert found.summary == "rank 1 has not arrived at all_reduce 9 of group world"
    assert found.evidence == {"operation": "all_reduce", "call": 9}
    assert (found.time_ns, found.step) == (NOW_S * S, 20)


def test_a_stale_copy_is_no_hang() -> None:
    """Nothing has come for 15 s, and the last step ended a second before: the ranks may train on, and none is named."""
    stale = [box(rank, enqueued=9 - (rank == 1), beat_s=NOW_S - 15) for rank in range(3)]
    (found,) = judge(stale, last_step_s=NOW_S - 16)
    assert (found.kind, found.severity, found.ranks, found.group) == ("silence", "warning", (), None)
    assert judge([replace(each, pulse_ns=(NOW_S - 10) * S) for each in stale], last_step_s=NOW_S - 16) == []


def test_a_hang_that_was_seen_stays_one_when_nothing_comes_any_more() -> None:
    """The last step ended 25 s before the last sign of life: rank 1 is named, and that nothing comes is said beside."""
    stale = [box(rank, enqueued=9 - (rank == 1), beat_s=NOW_S - 15) for rank in range(3)]
    assert [(each.kind, each.ranks) for each in judge(stale, last_step_s=NOW_S - 40)] == [
        ("hang", (1,)),
        ("silence", ()),
    ]


def test_a_node_that_died_is_named_by_those_that_live() -> None:
    """Ranks 0 and 2 give signs and wait; rank 1 has given none since the last step: it is missed, and that is said."""
    (found,) = judge([box(0), box(1, enqueued=8, beat_s=NOW_S - 20), box(2)], last_step_s=NOW_S - 20)
    assert (found.kind, found.ranks) == ("hang", (1,))
    assert found.action is not None
    assert found.action.endswith(" Rank 1 gives no sign of life: its node may be gone.")


@pytest.mark.parametrize(("silent_s", "ranks"), [(10, []), (11, [(1,)])])
def test_a_rank_that_is_silent_while_others_are_not_is_told(silent_s: int, ranks: list[tuple[int, ...]]) -> None:
    """It is stopped while no step is awaited yet, in its init say; more than ten seconds are too long."""
    found = judge([box(0), box(1, beat_s=NOW_S - silent_s), box(2)])
    assert [each.ranks for each in found] == ranks
    for each in found:
        assert (each.kind, each.severity) == ("silence", "warning")
        assert each.summary.startswith("rank 1 gives no sign of life while others do: ")
        assert each.action is not None
        assert "rank 1: pid " in each.action


def test_different_calls_are_a_mismatch() -> None:
    """As many calls, but not the same ones."""
    (found,) = judge([box(0), box(1), box(2, rolling=7)], last_step_s=940)
    assert (found.kind, found.severity, found.group) == ("mismatch", "critical", "world")


def test_no_step_and_nobody_behind_is_no_accusation() -> None:
    """A long evaluation or a stuck device: a warning that names nobody."""
    (found,) = judge([box(rank) for rank in range(3)], last_step_s=940)
    assert (found.kind, found.severity, found.ranks) == ("stall", "warning", ())


@pytest.mark.parametrize(("silent_s", "kinds"), [(5, []), (6, ["crash"])])
def test_a_rank_whose_process_is_gone_has_died(silent_s: int, kinds: list[str]) -> None:
    """After more than five seconds of silence, while the others run on."""
    found = judge([box(0), box(1, beat_s=NOW_S - silent_s), box(2)], gone=(1,))
    assert [each.kind for each in found] == kinds
    assert all(each.ranks == (1,) and each.severity == "critical" for each in found)


def test_nobody_has_died_by_what_is_old() -> None:
    """Rank 1 is gone, but nothing has come from the others for 12 s either: it may have ended in order since."""
    stale = [box(rank, beat_s=NOW_S - 12) for rank in range(3)]
    assert [each.kind for each in judge(stale, last_step_s=NOW_S - 12, gone=(1,))] == ["silence"]


def test_a_rank_that_raised_while_others_run() -> None:
    """Its black box was closed with the exception's mark, or its rank.json says so; an orderly end is no fault."""
    raised = box(1, closed=True, exception=True)
    assert [(each.kind, each.ranks) for each in judge([box(0), raised, box(2)])] == [("exception", (1,))]
    told = [rank_info(0), rank_info(1, ended_ns=990 * S, exit_reason="exception"), rank_info(2)]
    assert [each.ranks for each in judge([box(0), box(2)], infos=told)] == [(1,)]
    ended = [rank_info(0), rank_info(1, ended_ns=990 * S, exit_reason="finished"), rank_info(2)]
    assert judge([box(0), box(2)], infos=ended) == []


def test_a_run_that_fell_silent_has_crashed() -> None:
    """All processes gone without a goodbye."""
    (found,) = judge([box(rank, beat_s=900) for rank in range(3)], last_step_s=900, gone=(0, 1, 2))
    assert (found.kind, found.ranks) == ("crash", (0, 1, 2))
    assert found.summary == "ranks 0-2 ended without a goodbye; which died first their black boxes do not tell"


@pytest.mark.parametrize(
    ("waits", "ratio"),
    [
        pytest.param({0: [10] * 20, 1: [2] * 20, 2: [30] * 20}, 0.08, id="8 of 100 each step"),
        pytest.param({0: [10] * 20, 1: [6] * 20, 2: [30] * 20}, None, id="4 of 100"),
        pytest.param({0: [10] * 9, 1: [2] * 9, 2: [30] * 9}, None, id="too few steps"),
        pytest.param({0: [30, 30] * 10, 1: [0, 31] * 10, 2: [30, 30] * 10}, None, id="only every second step"),
    ],
)
def test_a_straggler_is_who_comes_last_in_most_steps(waits: dict[int, list[int]], ratio: float | None) -> None:
    """By hand: rank 1 waits 2, the next one 10, of a step of 100."""
    found = judge([box(rank) for rank in range(3)], waits=waits)
    if ratio is None:
        assert found == []
        return
    (straggler,) = found
    assert (straggler.kind, straggler.severity, straggler.ranks) == ("straggler", "warning", (1,))
    assert straggler.evidence == {"imposed_wait_ns": 8, "imposed_wait_ratio": ratio, "num_steps": 20}


def steps_with_a_hang(*, imposed_ms: int, phase: str = "forward") -> pl.LazyFrame:
    """Return 50 steps of two ranks, 100 ms each: rank 1 imposes so much in each and held one step up for 20 s."""
    ms = S // 1_000
    lines: dict[int, list[StepRecord]] = {0: [], 1: []}
    start = 0
    for step in range(50):
        hang = 20 * S if step == 30 else 0
        length = 100 * ms + hang
        for rank, wait in ((0, 10 * ms + imposed_ms * ms + hang), (1, 10 * ms)):
            spent = {"backward": 50 * ms + wait, phase: length - 50 * ms - wait}
            record = StepRecord(
                step=step,
                start_ns=start,
                end_ns=start + length,
                phases=spent,
                communication_wait_ns=wait,
                communication_wait_phases={"backward": wait},
            )
            lines[rank].append(record)
        start += length
    rows = [row for rank, own in lines.items() for row in columns.step_rows(own, attempt=2, rank=rank)]
    return pl.DataFrame(rows, schema=RankSteps.schema(), orient="row").lazy()


@pytest.mark.parametrize(("imposed_ms", "named"), [(1, False), (5, False), (6, True), (30, True)])
def test_a_step_that_held_a_hang_names_no_straggler(imposed_ms: int, named: bool) -> None:
    """On average 400 ms a step even where each other step costs 1 ms; what is usual counts, above 5 % of a step."""
    steps = steps_with_a_hang(imposed_ms=imposed_ms)
    row = compute_imposed_wait(steps).row(0, named=True)
    assert row[ImposedWait.imposed_ns] == 50 * imposed_ms * 10**6 + 20 * S
    assert row[ImposedWait.imposed_ns] / row[ImposedWait.num_steps] > 400 * 10**6
    found = judge_steps(steps)
    assert bool(found) == named
    for verdict in found:
        assert verdict.summary == f"rank 1 makes its peers wait {imposed_ms} ms a step, mostly in forward"
        assert verdict.evidence == {
            "imposed_wait_ns": imposed_ms * 10**6, "imposed_wait_ratio": imposed_ms / 100, "num_steps": 50,
        }  # fmt: skip


@pytest.mark.parametrize(
    ("phase", "words", "action"),
    [
        ("other", "mostly outside of all phases", "Look for what its program does between the phases"),
        ("rollout", "mostly in the program's own phases", "Compare its phases"),
        ("input", "mostly in input", "Compare its data loader"),
    ],
)
def test_the_phase_of_a_straggler_is_said_in_words(phase: str, words: str, action: str) -> None:
    """What is in no phase, or in one of the program's own, is not called by the name of a column."""
    (verdict,) = judge_steps(steps_with_a_hang(imposed_ms=10, phase=phase))
    assert verdict.summary == f"rank 1 makes its peers wait 10 ms a step, {words}"
    assert verdict.action is not None
    assert verdict.action.startswith(action)


def two_ranks(busy_ms: Mapping[int, Sequence[int]]) -> pl.LazyFrame:
    """Return synchronous steps of two ranks that work so long in each: the faster one waits for the other."""
    ms, start = S // 1_000, 0
    lines: dict[int, list[StepRecord]] = {0: [], 1: []}
    for step, own in enumerate(zip(busy_ms[0], busy_ms[1], strict=True)):
        length = max(own) * ms
        for rank in range(2):
            wait = length - own[rank] * ms
            spent = {"forward": length - wait, "backward": wait}
            record = StepRecord(
                step=step, start_ns=start, end_ns=start + length, phases=spent, communication_wait_ns=wait,
                communication_wait_phases={"backward": wait},
            )  # fmt: skip
            lines[rank].append(record)
        start += length
    rows = [row for rank, own in lines.items() for row in columns.step_rows(own, attempt=2, rank=rank)]
    return pl.DataFrame(rows, schema=RankSteps.schema(), orient="row").lazy()


@pytest.mark.parametrize(
    ("busy_ms", "named"),
    [
        pytest.param({0: [100] * 20, 1: [110] * 20}, [1], id="10 ms in each of 20 steps"),
        pytest.param({0: [110] * 11 + [100] * 9, 1: [100] * 20}, [], id="more than half, yet not both halves"),
        # Rank 1 is last in 7 of 10 steps, usually by 8 ms, and half of all steps are 8 ms or more off that.
        pytest.param({0: [100] * 20, 1: ([90] * 3 + [108] * 4 + [130] * 3) * 2}, [], id="within what varies by itself"),
        pytest.param({0: [100] * 20, 1: ([90] * 3 + [108] * 5 + [130] * 2) * 2}, [1], id="above what varies by itself"),
        # The last 50 alone are late; the last 10 s, which hold all, are not.
        pytest.param({0: [10] * 150, 1: [10] * 100 + [14] * 50}, [], id="the last 0.7 s of 1.7"),
        pytest.param({0: [1_000] * 60, 1: [1_000] * 10 + [1_100] * 50}, [1], id="the last 50 s of 65"),
    ],
)
def test_chance_makes_no_straggler(busy_ms: Mapping[int, Sequence[int]], named: list[int]) -> None:
    """It makes its peers wait in both halves of what is recent, and is notable as `scope show` has it."""
    assert [rank for verdict in judge_steps(two_ranks(busy_ms)) for rank in verdict.ranks] == named


def watch_two(steps: pl.LazyFrame, *, last_step_s: int = NOW_S - 1, beat_s: int = NOW_S - 1) -> Watched:
    """Return two ranks as they are seen, of which rank 1 has made the last call."""
    ranks = [rank_info(rank) for rank in range(2)]
    states = {rank: box(rank, beat_s=beat_s) for rank in range(2)}
    living = ProcessTable(fate=lambda _: True)
    state = assess_run(
        ranks, states, last_step_ns=last_step_s * S, usual_ns=S // 10, now_ns=NOW_S * S, processes=living
    )
    return Watched(state=state, infos=ranks, boxes=states, steps=steps, now_ns=NOW_S * S)


@pytest.mark.parametrize(
    ("busy_ms", "mended"),
    [
        pytest.param({0: [100] * 20, 1: [104] * 20}, False, id="3.8 % of a step: not named anew, and not mended"),
        pytest.param({0: [100] * 20, 1: [102] * 20}, True, id="2 %"),
        pytest.param({0: [100] * 20, 1: [110] * 11 + [100] * 9}, False, id="in one half alone"),
        pytest.param({0: [100] * 20, 1: ([90] * 3 + [108] * 4 + [130] * 3) * 2}, False, id="within what varies"),
        pytest.param({0: [110] * 20, 1: [100] * 20}, True, id="never last"),
        pytest.param({0: [100] * 9, 1: [100] * 9}, False, id="too few steps tell"),
    ],
)
def test_a_straggler_is_mended_when_that_is_clear(busy_ms: Mapping[int, Sequence[int]], mended: bool) -> None:
    """Rank 1 was named: half of the 5 % that name a rank keep it named."""
    watched = watch_two(two_ranks(busy_ms))
    assert is_mended(watched, 1) == mended
    if not mended:
        assert find_verdicts(watched, fate=lambda _: True) == []


def test_who_makes_no_steps_is_not_mended() -> None:
    """While a run hangs, its steps of before say nothing new; once it has ended, all is over."""
    fast = two_ranks({0: [100] * 20, 1: [100] * 20})
    assert is_mended(watch_two(fast), 1)
    assert not is_mended(watch_two(fast, last_step_s=NOW_S - 60), 1)
    watched = watch_two(fast)
    assert is_mended(replace(watched, state=replace(watched.state, standing="finished")), 1)


@pytest.mark.parametrize(
    ("ends", "explained"),
    [
        pytest.param((None, None), False, id="no end on record"),
        pytest.param(("terminated by signal 15", None), False, id="that of one alone"),
        pytest.param(("terminated by signal 15", "terminated by signal 15"), True, id="the job was ended"),
        pytest.param(("finished", "finished"), True, id="in order, published late"),
        pytest.param(("finished", "exited with code 3"), False, id="a crash all the same"),
        pytest.param(("terminated by signal 15", "exception"), False, id="one raised"),
    ],
)
def test_a_crash_is_explained_by_ends_that_come_later(ends: tuple[str | None, str | None], explained: bool) -> None:
    """Each of its ranks says that it ended in order, or by a signal to the job; a hang is never explained so."""
    infos = [
        rank_info(rank, exit_reason=end, ended_ns=None if end is None else 990 * S) for rank, end in enumerate(ends)
    ]
    watched = replace(watch_two(table({})), infos=infos)
    crash = Verdict(time_ns=0, kind="crash", severity="critical", summary="x", ranks=(0, 1))
    assert is_explained(watched, crash) == explained
    assert not is_explained(watched, msgspec.structs.replace(crash, kind="hang"))
    assert not is_explained(watched, msgspec.structs.replace(crash, ranks=()))


@pytest.mark.parametrize(("silent_s", "kinds"), [(1, []), (5, []), (6, ["crash"])])
def test_a_run_whose_processes_have_just_gone_is_no_finding_yet(silent_s: int, kinds: list[str]) -> None:
    """Ranks that a signal to the job ended look alike until whoever publishes them has written that down."""
    ranks = [rank_info(rank) for rank in range(2)]
    states = {rank: box(rank, beat_s=NOW_S - silent_s) for rank in range(2)}
    gone = ProcessTable(fate=lambda _: False, is_gone=lambda _: True)
    state = assess_run(ranks, states, last_step_ns=None, usual_ns=None, now_ns=NOW_S * S, processes=gone)
    assert state.standing == "ended without a goodbye"
    watched = Watched(state=state, infos=ranks, boxes=states, steps=table({}), now_ns=NOW_S * S)
    assert [each.kind for each in find_verdicts(watched, fate=lambda _: False)] == kinds


def test_a_hang_hides_stragglers() -> None:
    """Rank 1 is 10 ms late in each step, and rank 0 has not arrived since: who is missed is told alone."""
    ranks = [rank_info(rank) for rank in range(2)]
    states = {0: box(0, enqueued=8), 1: box(1)}
    living = ProcessTable(fate=lambda _: True)
    state = assess_run(ranks, states, last_step_ns=940 * S, usual_ns=S // 10, now_ns=NOW_S * S, processes=living)
    steps = two_ranks({0: [100] * 20, 1: [110] * 20})
    watched = Watched(state=state, infos=ranks, boxes=states, steps=steps, now_ns=NOW_S * S)
    assert [(each.kind, each.ranks) for each in find_verdicts(watched, fate=lambda _: True)] == [("hang", (0,))]


def judge_steps(steps: pl.LazyFrame) -> list[Verdict]:
    """Return what is found of two ranks that run."""
    ranks = [rank_info(rank) for rank in range(2)]
    states = {rank: box(rank) for rank in range(2)}
    state = assess_run(ranks, states, last_step_ns=(NOW_S - 1) * S, usual_ns=S // 10, now_ns=NOW_S * S)
    watched = Watched(state=state, infos=ranks, boxes=states, steps=steps, now_ns=NOW_S * S)
    return find_verdicts(watched, fate=lambda _: True)
