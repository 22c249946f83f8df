"""Which parts of a recording were switched off since they raised, and so tell of nothing from then on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl

from scope.analysis.doctor.diagnosis import describe_ranks
from scope.frames.schema import Events

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


def find_switched_off(events: pl.DataFrame, *, attempt: int) -> list[dict[str, Any]]:
    """Return what hooks of an attempt said when they were switched off, each once, with the ranks and the first step.

    Args:
        events: Table `Events`.
        attempt: The attempt.
    """
    told = events.filter(pl.col(Events.kind) == "hook_disabled", pl.col(Events.attempt) == attempt)
    found = told.group_by(Events.message, maintain_order=True).agg(
        pl.col(Events.rank).unique().sort().alias("ranks"), pl.col(Events.step).min()
    )
    return found.rename({Events.message: "what"}).to_dicts()


def switched_off_lines(found: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Return a line for each, with what follows from it for the figures."""
    for each in found:
        since = "" if each["step"] is None else f" from step {each['step']} on"
        whose = describe_ranks(each["ranks"])
        yield f"not recorded{since}: {each['what']} ({whose}); figures are of what was seen before"
