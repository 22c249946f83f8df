"""Exceptions and exit codes that ended ranks, by the instant of each: the first is the cause, others follow it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import polars as pl

from scope.frames.schema import Events
from scope.run.goodbyes import EXITED
from scope.units import NS_PER_S

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scope.run.schema import RankInfo

_KINDS: Final = ("exception", "out_of_memory")
_ASKED_FOR: Final = ("KeyboardInterrupt", "SystemExit")
"""What a person or the program asked for is no failure."""
_SHOWN_CHARACTERS: Final = 200
_SHOWN_RANKS: Final = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class Failure:
    """An exception, or an exit code other than 0, that ended a rank.

    Attributes:
        rank: Global rank.
        time_ns: When it was noted, since the epoch.
        message: Type and text as the program raised them: `ValueError: bad sample`, data of others, not escaped; or
            `exited with code 3`.
        step: Step in which that was, where known.
        phase: Phase in which it was raised, where known.
        is_exit: It is an exit code, and no exception.
    """

    rank: int
    time_ns: int
    message: str
    step: int | None
    phase: str | None
    is_exit: bool = False


def find_failures(events: pl.DataFrame, *, attempt: int, infos: Sequence[RankInfo] = ()) -> Sequence[Failure]:
    """Return the first exception of each rank that ended by one, else its exit code, the earliest first.

    When one rank raises, its peers soon do as well, since their collectives break: the earliest is the cause. Instants
    of several hosts are as far apart as their clocks.

    Args:
        events: Table `Events`.
        attempt: The attempt.
        infos: `rank.json` of its ranks, which know what they exited with.
    """
    raised = events.filter(
        pl.col(Events.attempt) == attempt,
        pl.col(Events.kind).is_in(_KINDS),
        ~pl.col(Events.message).str.extract(r"^([A-Za-z_0-9.]+)").fill_null("").is_in(_ASKED_FOR),
    )
    first = raised.sort(Events.time_ns, Events.rank, maintain_order=True).unique(Events.rank, keep="first")
    failures = [
        Failure(
            rank=row[Events.rank],
            time_ns=row[Events.time_ns],
            message=row[Events.message],
            step=row[Events.step],
            phase=row[Events.phase],
        )
        for row in first.iter_rows(named=True)
    ]
    known = {failure.rank for failure in failures}
    ends = events.filter(pl.col(Events.attempt) == attempt, pl.col(Events.kind) == "attempt_end")
    steps = dict(ends.select(Events.rank, Events.step).iter_rows())
    failures += [
        Failure(
            rank=info.rank,
            time_ns=info.ended_ns,
            message=info.exit_reason,
            step=steps.get(info.rank),
            phase=None,
            is_exit=True,
        )
        for info in infos
        if info.rank not in known and info.ended_ns is not None and info.exit_reason is not None
        if info.exit_reason.startswith(EXITED)
    ]
    return tuple(sorted(failures, key=lambda failure: (failure.time_ns, failure.rank)))


def describe_failures(failures: Sequence[Failure]) -> str | None:
    """Return which rank raised, or exited, first, what, and who followed, without a full stop; None when none did.

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
    how = message if first.is_exit else f"raised {message or 'an exception'}"
    sentence = f"rank {first.rank} {how}{step}"
    if not others:
        return sentence
    ranks = ", ".join(str(each.rank) for each in others[:_SHOWN_RANKS])
    more = f" and {len(others) - _SHOWN_RANKS:,} more" if len(others) > _SHOWN_RANKS else ""
    later = (others[0].time_ns - first.time_ns) / NS_PER_S
    many = len(others) > 1
    return f"{sentence}; rank{'s' if many else ''} {ranks}{more} followed{' from' if many else ''} {later:,.1f} s later"
