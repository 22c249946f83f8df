"""Sentences on what makes it doubtful which calls of different ranks are one collective."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from scope.analysis.collectives import Collectives


def say_doubtful_matches(collectives: Collectives) -> Iterator[str]:
    """Yield what must be known before figures across ranks are believed."""
    if collectives.num_by_recorded_clocks:
        yield (
            f"{collectives.num_by_recorded_clocks:,} of {collectives.num_calls:,} collective calls are matched as if "
            "the ranks' clocks agreed, since neither Seq nor the numbers of steps tell which calls are one, and "
            "nothing tells how the clocks stand: where they stand apart, figures across ranks may be wrong"
        )
    if collectives.clock.num_contradictions:
        yield (
            f"the calls of {collectives.clock.num_contradictions:,} ranks fit no offset of the clocks: a clock jumped, "
            "or calls are matched wrongly, and figures across ranks may be wrong"
        )
