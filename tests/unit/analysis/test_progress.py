"""Who did not arrive, and how a run stands, from black boxes made by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, cast

import msgspec
import pytest
from made_boxes import state

from scope.analysis.recorded import GroupProgress, ProcessTable, assess_run, compute_group_progress, find_missed_calls
from scope.report.standing import age, standing_words
from scope.run.blackbox import RingCall
from scope.run.schema import GroupInfo, RankInfo

if TYPE_CHECKING:
    from scope.analysis.recorded import RunState


def info(rank: int, groups: dict[int, tuple[str, tuple[int, ...]]]) -> RankInfo:
    """Return a rank whose groups have these numbers, names and members."""
    return RankInfo(
        schema="1.0",
        run_id="r",
        attempt=0,
        rank=rank,
        started_ns=0,
        host="h",
        pid=rank,
        groups=tuple(GroupInfo(group=number, name=name, ranks=ranks) for number, (name, ranks) in groups.items()),
    )


def test_the_rank_behind_its_group_is_named_whatever_its_number_for_it() -> None:
    """Rank 1 numbers the groups the other way round; it is one call behind in the world group only."""
    infos = [info(0, {0: ("world", (0, 1)), 1: ("tp", (0, 1))}), info(1, {1: ("world", (0, 1)), 0: ("tp", (0, 1))})]
    states = {0: state(0, {0: (7, 5), 1: (3, 9)}), 1: state(1, {1: (6, 4), 0: (3, 9)})}
    progress = compute_group_progress(infos, states)
    behind = progress.select(GroupProgress.group, GroupProgress.rank, GroupProgress.behind).rows()
    assert sorted(behind) == [("tp", 0, 0), ("tp", 1, 0), ("world", 0, 0), ("world", 1, 1)]
    assert behind[0] == ("world", 1, 1)
    assert [(each.rank, each.operation, each.number, each.group) for each in find_missed_calls(progress)] == [
        (1, "all_reduce", 7, "world")
    ]
    assert not progress[GroupProgress.is_mismatched].any()


def test_the_same_number_of_different_calls_is_a_mismatch() -> None:
    """Two ranks issued three calls each, with different hashes: nobody is behind, and the program disagrees."""
    world = {0: ("world", (0, 1))}
    progress = compute_group_progress(
        [info(0, world), info(1, world)], {0: state(0, {0: (3, 1)}), 1: state(1, {0: (3, 2)})}
    )
    assert find_missed_calls(progress) == []
    assert progress[GroupProgress.is_mismatched].to_list() == [True, True]


def test_groups_of_one_name_and_other_members_are_apart() -> None:
    """A group of the same name on other ranks is another group."""
    infos = [info(0, {0: ("tp", (0,))}), info(1, {0: ("tp", (1,))})]
    progress = compute_group_progress(infos, {0: state(0, {0: (9, 1)}), 1: state(1, {0: (2, 1)})})
    assert find_missed_calls(progress) == []


def test_no_black_box_no_rows() -> None:
    """Without black boxes nothing is claimed."""
    assert compute_group_progress([info(0, {})], {}).is_empty()


def test_a_rank_that_merely_waits_is_not_accused() -> None:
    """Rank 2 is late in `dp` because it waits in `tp` for rank 3, which did not arrive: rank 3 alone is named."""
    tp, dp = {1: ("tp", (2, 3))}, {0: ("dp", (0, 2))}
    infos = [info(0, dp), info(2, {**dp, **tp}), info(3, tp)]
    states = {0: state(0, {0: (9, 1)}), 2: state(2, {0: (8, 2), 1: (5, 3)}), 3: state(3, {1: (4, 4)})}
    (missed,) = find_missed_calls(compute_group_progress(infos, states))
    assert (missed.rank, missed.group, missed.number) == (3, "tp", 5)


def ring_call(sequence: int, operation: str, *, group: int = 0) -> RingCall:
    """Return a call of a ring."""
    return RingCall(
        place=sequence, group=group, sequence=sequence, step=1, phase="backward", operation=operation, variant="plain",
        dtype="float32", flags=0, peer=None, hash_low=0, in_bytes=4, out_bytes=4, issued_ns=0, completed_ns=None,
    )  # fmt: skip


@pytest.mark.parametrize(("first_known", "operation"), [(120, "all_gather"), (124, "call")])
def test_the_first_call_missed_is_named_not_the_newest(first_known: int, operation: str) -> None:
    """Rank 1 issued 122 calls, rank 0 has issued 123 (all_gather) to 126 since: both wait for 123.

    Calls of another group under the same numbers are no answer, and where the ring holds 124 on, nobody knows.
    """
    ring = [
        *(ring_call(number, "all_gather" if number == 123 else "all_reduce") for number in range(first_known, 127)),
        ring_call(123, "broadcast", group=7),
    ]
    states = {0: replace(state(0, {0: (126, 5)}), calls=tuple(ring)), 1: state(1, {0: (122, 4)})}
    (missed,) = find_missed_calls(compute_group_progress([info(0, WORLD), info(1, WORLD)], states))
    assert (missed.rank, missed.operation, missed.number, missed.group) == (1, operation, 123, "world")
    living = ProcessTable(fate=lambda _: True)
    states = {rank: replace(box, pulse_ns=29 * S) for rank, box in states.items()}
    found = assess_run(
        [info(0, WORLD), info(1, WORLD)], states, last_step_ns=0, usual_ns=S, now_ns=30 * S, processes=living
    )
    assert standing_words(found, now_ns=30 * S).endswith(f"rank 1 has not arrived at {operation} 123 of group world")


S = 1_000_000_000
WORLD = {0: ("world", (0, 1))}


def assess(*, step_s: int, beat_s: int, now_s: int = 1_000, **options: object) -> RunState:
    """Return how two ranks stand whose last step and last heartbeat were at these seconds; rank 1 is a call behind."""
    infos = [info(rank, WORLD) for rank in range(2)]
    boxes = {
        rank: replace(state(rank, {0: (7 - rank, rank)}), beat_ns=beat_s * S, pulse_ns=beat_s * S) for rank in range(2)
    }
    if options.get("closed"):
        boxes = {rank: replace(box, closed=True) for rank, box in boxes.items()}
    found = {rank: options.get(f"fate{rank}", options.get("fate")) for rank in range(2)}
    return assess_run(
        infos,
        boxes if options.get("boxes", True) else {},
        last_step_ns=step_s * S,
        usual_ns=S // 10,
        now_ns=now_s * S,
        processes=ProcessTable(
            fate=lambda each: cast("bool | None", found[each.rank]),
            is_gone=lambda each: each.rank in cast("tuple[int, ...]", options.get("gone", ())),
            has_left_end=lambda each: each.rank in cast("tuple[int, ...]", options.get("left", ())),
        ),
    )


@pytest.mark.parametrize(
    ("step_s", "beat_s", "standing"),
    [
        (999, 999, "running"),
        (991, 999, "running"),
        (949, 999, "no step"),
        (930, 941, "no step"),
        (930, 939, "ended without a goodbye"),
    ],
)
def test_a_run_hangs_while_its_heart_beats_and_is_over_when_it_stops(step_s: int, beat_s: int, standing: str) -> None:
    """Ten seconds without a step are a hang, a minute without a heartbeat is the end."""
    found = assess(step_s=step_s, beat_s=beat_s)
    assert found.standing == standing
    assert [each.rank for each in found.missed] == ([1] if standing == "no step" else [])


@pytest.mark.parametrize(
    ("left", "beat_s", "standing"),
    [((), 994, "ended without a goodbye"), ((1,), 994, "running"), ((1,), 941, "running"), ((1,), 939, None)],
)
def test_an_end_that_is_yet_to_be_published_is_waited_for(
    left: tuple[int, ...], beat_s: int, standing: str | None
) -> None:
    """All processes are gone, and rank 1 left an end where it wrote: 5 s of silence tell nothing, a minute does."""
    found = assess(step_s=beat_s, beat_s=beat_s, fate=False, left=left)
    assert found.standing == (standing or "ended without a goodbye")


def test_a_stopped_process_is_not_gone() -> None:
    """No heartbeat for long, but the processes live (SIGSTOP, or nothing publishes them): no hang, and no end."""
    found = assess(step_s=10, beat_s=10, fate=True)
    assert (found.standing, found.outcome, found.is_live, found.silent_ns) == (
        "running", "no sign of life", True, 990 * S,
    )  # fmt: skip
    assert found.missed == ()
    assert standing_words(found, now_ns=1_000 * S) == (
        "no sign of life of any rank since 1970-01-01 00:00:10 UTC (16 min): its publisher, file system or processes "
        "stand still, or its node is gone; the last step ended 16 min ago, as far as is known"
    )


@pytest.mark.parametrize(
    ("step_s", "beat_s", "boxes", "standing", "silent_s"),
    [
        pytest.param(989, 990, True, "running", None, id="10 s of silence is none yet"),
        pytest.param(980, 989, True, "running", 11, id="9 s from the last step to the last sign"),
        pytest.param(978, 989, True, "no step", 11, id="11 s: it hung when it was seen"),
        pytest.param(978, 978, False, "no step", None, id="without hearts the steps alone tell"),
    ],
)
def test_silence_is_told_from_a_hang(
    step_s: int, beat_s: int, boxes: bool, standing: str, silent_s: int | None
) -> None:
    """What counts is how long the ranks gave signs of life after the last step, not how old what is seen has become."""
    found = assess(step_s=step_s, beat_s=beat_s, boxes=boxes)
    assert found.standing == standing
    assert found.silent_ns == (None if silent_s is None else silent_s * S)
    said = standing_words(found, now_ns=1_000 * S)
    assert ("rank 1 has not arrived at " in said) == (boxes and standing == "no step")
    assert ("no sign of life of any rank since " in said) == (silent_s is not None)
    assert said.count("since") == (silent_s is not None)


@pytest.mark.parametrize(
    ("beat_s", "options", "standing"),
    [
        pytest.param(994, {"fate": False}, "ended without a goodbye", id="all gone and silent for 6 s"),
        pytest.param(995, {"fate": False}, "running", id="5 s of silence may be a container's"),
        pytest.param(994, {"fate": None}, "running", id="of another host: a minute"),
        pytest.param(994, {"fate0": False, "fate1": True}, "running", id="one of two is gone"),
        pytest.param(994, {"fate0": False, "fate1": None}, "running", id="one is gone, of the other nobody knows"),
        pytest.param(939, {"fate0": False, "fate1": None}, "ended without a goodbye", id="and after a minute"),
        pytest.param(994, {"fate": False, "boxes": False}, "running", id="without a heart a step may be long"),
    ],
)
def test_a_run_whose_processes_are_gone_is_over(beat_s: int, options: dict[str, object], standing: str) -> None:
    """The table of processes tells within seconds what silence alone tells after a minute."""
    assert assess(step_s=beat_s - 1, beat_s=beat_s, now_s=1_000, **options).standing == standing


def test_processes_that_are_gone_for_certain_are_told_at_once() -> None:
    """No limit of time: the run is over when all are gone; until then it runs or hangs, and says who is gone."""
    over = assess(step_s=999, beat_s=1_000, gone=(0, 1))
    assert (over.standing, over.gone_ranks) == ("ended without a goodbye", (0, 1))
    some = assess(step_s=999, beat_s=1_000, gone=(1,))
    assert (some.standing, some.gone_ranks) == ("running", (1,))
    assert standing_words(some, now_ns=1_000 * S) == (
        "running, the process of rank 1 is gone; the last step ended 1 s ago"
    )
    hang = assess(step_s=980, beat_s=1_000, gone=(1,))
    assert standing_words(hang, now_ns=1_000 * S) == (
        "NO STEP for 20 s, the process of rank 1 is gone: rank 1 has not arrived at all_reduce 7 of group world"
    )
    assert assess(step_s=999, beat_s=1_000, gone=(0, 1), closed=True).standing == "finished"


def test_ranks_that_closed_their_recording_have_finished() -> None:
    """Closed black boxes are a goodbye, whatever their age."""
    found = assess(step_s=10, beat_s=12, closed=True)
    assert (found.standing, found.last_sign_ns) == ("finished", 12 * S)


def test_the_sentence_says_state_and_age_of_the_last_step() -> None:
    """By hand: 1,000 - 949 is 51 s; the newest call of the group is the seventh; 939 s are 15 min 39 s."""
    words = standing_words(assess(step_s=949, beat_s=999), now_ns=1_000 * S)
    assert words == "NO STEP for 51 s: rank 1 has not arrived at all_reduce 7 of group world"
    words = standing_words(assess(step_s=930, beat_s=939), now_ns=1_000 * S)
    assert words.startswith("ended without a goodbye at 1970-01-01 00:15:39 UTC (last sign of life); the last step")
    assert standing_words(assess(step_s=998, beat_s=999), now_ns=1_000 * S) == "running; the last step ended 2 s ago"


def test_a_hang_in_which_nobody_is_behind_says_so_in_plain_words() -> None:
    """Both ranks have issued the same seven calls; the last step ended 50 s before the last sign of life."""
    boxes = {rank: replace(state(rank, {0: (7, 1)}), beat_ns=999 * S, pulse_ns=999 * S) for rank in range(2)}
    for processes, told in (
        (ProcessTable(fate=lambda _: True), "by the black boxes no rank is behind its peers in any collective"),
        (ProcessTable(is_gone=lambda _: True), "by the black boxes no rank was behind its peers in any collective"),
    ):
        infos = [info(rank, WORLD) for rank in range(2)]
        found = assess_run(infos, boxes, last_step_ns=949 * S, usual_ns=S, now_ns=1_000 * S, processes=processes)
        assert f": {told}" in standing_words(found, now_ns=1_000 * S)


def test_a_run_that_was_ended_from_outside_has_not_finished() -> None:
    """Ranks that were asked to end say so, and when."""
    ended = [replace_info(rank, ended_ns=900 * S, exit_reason="terminated by signal 15") for rank in range(2)]
    found = assess_run(ended, {}, last_step_ns=890 * S, usual_ns=S, now_ns=1_000 * S)
    words = standing_words(found, now_ns=1_000 * S)
    assert words.startswith("killed (terminated by signal 15) at 1970-01-01 00:15:00 UTC; the last step ended ")


@pytest.mark.parametrize(
    ("reason", "usual_s", "words"),
    [
        ("interrupted", 1, "interrupted at 1970-01-01 00:15:00 UTC, when no step had ended for 50 s: "),
        ("exception", 1, "crashed (exception) at 1970-01-01 00:15:00 UTC, when no step had ended for 50 s: "),
        ("interrupted", 5, "interrupted at 1970-01-01 00:15:00 UTC; the last step ended "),
        ("finished", 1, "finished at 1970-01-01 00:15:00 UTC; the last step ended "),
    ],
)
def test_a_run_that_was_ended_while_it_hung_says_both(reason: str, usual_s: int, words: str) -> None:
    """Ctrl-C at second 900, the last step at 850: a hang where steps take 1 s, and none where they take 5 s."""
    ended = [replace_info(rank, ended_ns=900 * S, exit_reason=reason) for rank in range(2)]
    boxes = {rank: replace(state(rank, {0: (7 - rank, rank)}), closed=True) for rank in range(2)}
    found = assess_run(ended, boxes, last_step_ns=850 * S, usual_ns=usual_s * S, now_ns=1_000 * S)
    said = standing_words(found, now_ns=1_000 * S)
    assert said.startswith(words)
    missed = "rank 1 had not arrived at all_reduce 7 of group world"
    assert (missed in said) == words.endswith(": ") == bool(found.missed)


def test_a_hang_that_was_killed_says_who_had_not_arrived() -> None:
    """By hand: the last step at 880, the last sign of life at 930: 50 s; the processes are gone."""
    said = standing_words(assess(step_s=880, beat_s=930, gone=(0, 1)), now_ns=1_000 * S)
    assert said.startswith(
        "ended without a goodbye at 1970-01-01 00:15:30 UTC (last sign of life), when no step had ended for 50 s: "
        "rank 1 had not arrived at all_reduce 7 of group world; "
    )


def replace_info(rank: int, **changes: object) -> RankInfo:
    """Return a rank of the world with something changed."""
    return msgspec.structs.replace(info(rank, WORLD), **changes)


@pytest.mark.parametrize(
    ("length_s", "words"), [(0, "0 s"), (119, "119 s"), (120, "2 min"), (7_200, "2 h"), (172_800, "2 days")]
)
def test_ages_are_told_in_the_unit_that_suits_them(length_s: int, words: str) -> None:
    """A minute has 60 s, an hour 60 minutes, a day 24 hours."""
    assert age(length_s * S) == words
