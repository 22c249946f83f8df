"""Black boxes made by hand."""

from __future__ import annotations

from scope.run.blackbox import BlackBoxIdentity, BlackBoxState, GroupState


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
