"""Which calls hold a rank that stands still at their end, of calls made by hand."""

from __future__ import annotations

from typing import Final

import pytest

from scope.analysis.replay_awaited import Stay, find_unawaited

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
