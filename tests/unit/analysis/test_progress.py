"""Who did not arrive, from black boxes made by hand."""

from __future__ import annotations

from scope.analysis.recorded import GroupProgress, compute_group_progress, find_absentees
from scope.run.blackbox import BlackBoxIdentity, BlackBoxState, GroupState
from scope.run.schema import GroupInfo, RankInfo


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


def state(rank: int, groups: dict[int, tuple[int, int]]) -> BlackBoxState:
    """Return a black box with (enqueued, hash) of each group by number."""
    identity = BlackBoxIdentity(
        rank=rank, attempt=0, world_size=None, pid=rank, process_start_ticks=None, wall_offset_ns=0
    )
    return BlackBoxState(
        identity=identity,
        step=1,
        num_steps=1,
        step_start_ns=0,
        phase="backward",
        phase_start_ns=0,
        beat_ns=0,
        pulse_ns=0,
        last_step_duration_ns=1,
        num_dropped=0,
        closed=False,
        exception=False,
        groups=tuple(
            GroupState(
                group=number,
                enqueued=enqueued,
                completed=enqueued - 1,
                enqueued_ns=0,
                completed_ns=0,
                hash_low=rolling,
                operation="all_reduce",
                dtype="float32",
            )
            for number, (enqueued, rolling) in groups.items()
        ),
    )


def test_the_rank_behind_its_group_is_named_whatever_its_number_for_it() -> None:
    """Rank 1 numbers the groups the other way round; it is one call behind in the world group only."""
    infos = [info(0, {0: ("world", (0, 1)), 1: ("tp", (0, 1))}), info(1, {1: ("world", (0, 1)), 0: ("tp", (0, 1))})]
    states = {0: state(0, {0: (7, 5), 1: (3, 9)}), 1: state(1, {1: (6, 4), 0: (3, 9)})}
    progress = compute_group_progress(infos, states)
    behind = progress.select(GroupProgress.group, GroupProgress.rank, GroupProgress.behind).rows()
    assert sorted(behind) == [("tp", 0, 0), ("tp", 1, 0), ("world", 0, 0), ("world", 1, 1)]
    assert behind[0] == ("world", 1, 1)
    assert find_absentees(progress) == [1]
    assert not progress[GroupProgress.is_mismatched].any()


def test_the_same_number_of_different_calls_is_a_mismatch() -> None:
    """Two ranks issued three calls each, with different hashes: nobody is behind, and the program disagrees."""
    world = {0: ("world", (0, 1))}
    progress = compute_group_progress(
        [info(0, world), info(1, world)], {0: state(0, {0: (3, 1)}), 1: state(1, {0: (3, 2)})}
    )
    assert find_absentees(progress) == []
    assert progress[GroupProgress.is_mismatched].to_list() == [True, True]


def test_groups_of_one_name_and_other_members_are_apart() -> None:
    """A group of the same name on other ranks is another group."""
    infos = [info(0, {0: ("tp", (0,))}), info(1, {0: ("tp", (1,))})]
    progress = compute_group_progress(infos, {0: state(0, {0: (9, 1)}), 1: state(1, {0: (2, 1)})})
    assert find_absentees(progress) == []


def test_no_black_box_no_rows() -> None:
    """Without black boxes nothing is claimed."""
    assert compute_group_progress([info(0, {})], {}).is_empty()
