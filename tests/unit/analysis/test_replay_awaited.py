"""Which calls hold a rank that stands still at their end, of calls made by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from scope.analysis import replay_building
from scope.analysis.collectives import compute_collectives
from scope.analysis.rank_activity import build_activity
from scope.analysis.readiness import compute_ready
from scope.analysis.replay_awaited import Stay, find_unawaited
from scope.testing import scenarios
from scope.testing.program import Exchange
from scope.trace import ReadOptions, load

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

SEND: Final = 1
RECEIVE: Final = 2


def _stay(rank: int, turn: int, span: tuple[int, int], run: tuple[int | None, int | None]) -> Stay:
    ready, end = span
    start, stop = run
    return Stay(
        rank=rank,
        group_id=10 * rank + turn,
        collective_id=10 * rank + turn,
        turn=turn,
        is_send=turn == SEND,
        ready_ns=ready,
        end_ns=end,
        run_start_ns=start,
        run_end_ns=stop,
    )


COMPUTES: Final = (None, None)


@pytest.mark.parametrize(
    ("of_peer", "unawaited"),
    [
        # The peer got its message at 30_000 and computed on while its own was still in flight.
        pytest.param([((0, 50_000), COMPUTES), ((0, 30_000), (20_000, 30_000))], {0}, id="a peer goes on"),
        pytest.param([((0, 50_000), (20_000, 50_000)), ((0, 30_000), (20_000, 50_000))], set(), id="a peer waits"),
        pytest.param([((0, 50_000), COMPUTES), ((0, 60_000), (55_000, 60_000))], set(), id="nothing let it go before"),
    ],
)
@pytest.mark.parametrize("sooner_ns", [0, 1_000])
@pytest.mark.parametrize("is_swapped", [False, True])
def test_what_is_sent_holds_nobody_where_a_peer_goes_on_under_it(
    of_peer: list[tuple[tuple[int, int], tuple[int | None, int | None]]],
    unawaited: set[int],
    *,
    sooner_ns: int,
    is_swapped: bool,
) -> None:
    """A send and a receive of rank 0 end almost at once: the send is not waited for if a rank at its place is not."""
    run = (60_000, 100_000)
    mine = [_stay(0, SEND, (0, 100_000), run), _stay(0, RECEIVE, (0, 100_000 - sooner_ns), run)]
    peer = [_stay(1, turn, span, of_run) for turn, (span, of_run) in zip((SEND, RECEIVE), of_peer, strict=True)]
    stays = [*reversed(mine), *peer] if is_swapped else [*mine, *peer]
    assert {stays[number] for number in find_unawaited(stays)} == {mine[number] for number in unawaited}


@pytest.mark.parametrize("later_ns", [6_000, 20_000])
def test_what_is_sent_holds_a_rank_that_stands_still_until_its_end(later_ns: int) -> None:
    """It had what it gets long before the send ended, and went on behind the send alone, whatever its peer did."""
    run = (60_000, 100_000)
    mine = [_stay(0, SEND, (0, 100_000), run), _stay(0, RECEIVE, (0, 100_000 - later_ns), run)]
    peer = [_stay(1, SEND, (0, 50_000), COMPUTES), _stay(1, RECEIVE, (0, 30_000), (20_000, 30_000))]
    assert SEND not in {[*mine, *peer][number].turn for number in find_unawaited([*mine, *peer])}


def test_what_a_rank_sends_is_told_from_what_it_gets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the calls that a replay asks about those are sends that the program of each rank says, in its order."""
    scenario = scenarios.send_and_receive()
    scenario.write(tmp_path)
    told: dict[int, list[bool]] = {}

    def noted(stays: Sequence[Stay]) -> set[int]:
        for stay in stays:
            told.setdefault(stay.rank, []).append(stay.is_send)
        return find_unawaited(stays)

    monkeypatch.setattr(replay_building, "find_unawaited", noted)
    job = load([str(tmp_path)], options=ReadOptions(use_cache=False), processes=1)
    found = compute_collectives(job)
    replay_building.build_replay(found, build_activity(job, found), compute_ready(job, found))
    said = [(rank, each.instruction) for rank, issued in scenario.simulation.issued.items() for each in issued]
    assert told == {
        of: [each.is_send for rank, each in said if rank == of and isinstance(each, Exchange)] for of in (0, 1)
    }
