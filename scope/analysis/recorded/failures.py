"""Exceptions that ended ranks, by the instant at which each was raised: the first is the cause, others follow it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import polars as pl

from scope.frames.schema import Events
from scope.units import NS_PER_S

if TYPE_CHECKING:
    from collections.abc import Sequence

_KINDS: Final = ("exception", "out_of_memory")
_ASKED_FOR: Final = ("KeyboardInterrupt", "SystemExit")
"""What a person or the program asked for is no failure."""
_SHOWN_CHARACTERS: Final = 200
_SHOWN_RANKS: Final = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class Failure:
    """An exception that ended a rank.

    Attributes:
        rank: Global rank.
        time_ns: When it was noted, since the epoch.
        message: Type and text as the program raised them: `ValueError: bad sample`. Data of others, not escaped.
        step: Step in which it was raised, where known.
        phase: Phase in which it was raised, where known.
    """

    rank: int
    time_ns: int
    message: str
    step: int | None
    phase: str | None


def find_failures(events: pl.DataFrame, *, attempt: int) -> Sequence[Failure]:
    """Return the first exception of each rank that ended by one, the earliest first.

    When one rank raises, its peers soon do as well, since their collectives break: the earliest is the cause. Instants
    of several hosts are as far apart as their clocks.

    Args:
        events: Table `Events`.
        attempt: The attempt.
    """
    raised = events.filter(
        pl.col(Events.attempt) == attempt,
        pl.col(Events.kind).is_in(_KINDS),
        ~pl.col(Events.message).str.extract(r"^([A-Za-z_0-9.]+)").fill_null("").is_in(_ASKED_FOR),
    )
    first = raised.sort(Events.time_ns, Events.rank, maintain_order=True).unique(Events.rank, keep="first")
    return tuple(
        Failure(
            rank=row[Events.rank],
            time_ns=row[Events.time_ns],
            message=row[Events.message],
            step=row[Events.step],
            phase=row[Events.phase],
        )
        for row in first.sort(Events.time_ns, Events.rank).iter_rows(named=True)
    )


def describe_failures(failures: Sequence[Failure]) -> str | None:
    """Return which rank raised first, what, and who followed, without a full stop; None when none raised.

    The message is cut, but holds what others wrote: whoever shows the sentence escapes it.

    Args:
        failures: What `find_failures` returns.
    """
    if not failures:
        return None
    first, *others = failures
    message = first.message
    if len(message) > _SHOWN_CHARACTERS:
        message = f"{message[: _SHOWN_CHARACTERS - 1]}…"
    step = "" if first.step is None else f" in step {first.step}"
    sentence = f"rank {first.rank} raised {message or 'an exception'}{step}"
    if not others:
        return sentence
    ranks = ", ".join(str(each.rank) for each in others[:_SHOWN_RANKS])
    more = f" and {len(others) - _SHOWN_RANKS:,} more" if len(others) > _SHOWN_RANKS else ""
    later = (others[0].time_ns - first.time_ns) / NS_PER_S
    many = len(others) > 1
    return f"{sentence}; rank{'s' if many else ''} {ranks}{more} followed{' from' if many else ''} {later:,.1f} s later"
