"""Exceptions and exit codes that ended ranks, by the instant of each: the first is the cause, others follow it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec
import polars as pl

from scope.analysis.recorded.host_clocks import HostClock, relate_clocks
from scope.frames.schema import Events
from scope.run.goodbyes import AFTER_UPDATE, EXITED, FINISHED
from scope.units import NS_PER_S

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from scope.run.blackbox import BlackBoxState
    from scope.run.schema import RankInfo

_KINDS: Final = ("exception", "out_of_memory")
_ASKED_FOR: Final = ("KeyboardInterrupt", "SystemExit")
"""What a person or the program asked for is no failure."""
_SHOWN_CHARACTERS: Final = 200
_SHOWN_RANKS: Final = 8
_NO_HOST: Final = HostClock(0, 0)
"""Of a rank whose `rank.json` cannot be read; it is taken for one of the first host."""


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
        is_after_update: It came after an update of the step, maybe at the start of the next one.
        clock: That of its host, which tells whether and how `time_ns` compares with those of others.
    """

    rank: int
    time_ns: int
    message: str
    step: int | None
    phase: str | None
    is_exit: bool = False
    is_after_update: bool = False
    clock: HostClock = _NO_HOST

    @property
    def shifted_ns(self) -> int:
        """The instant by the clock that hosts of the same component have in common."""
        return self.time_ns + self.clock.shift_ns


def find_failures(
    events: pl.DataFrame,
    *,
    attempt: int,
    infos: Sequence[RankInfo] = (),
    boxes: Mapping[int, BlackBoxState] | None = None,
) -> Sequence[Failure]:
    """Return the first exception of each rank that ended by one, else its exit code, the earliest first.

    When one rank raises, its peers soon do as well, since their collectives break: the earliest is the cause. Of hosts
    whose clocks nothing relates, those of the host with the earliest instant come first, which may be chance.

    Args:
        events: Table `Events`.
        attempt: The attempt.
        infos: `rank.json` of its ranks, which know what they exited with, and their hosts.
        boxes: Black boxes by rank, which relate the clocks of hosts.
    """
    clocks = relate_clocks(infos, boxes or {})
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
            is_after_update=_tells_after_update(row[Events.detail]),
            clock=clocks.get(row[Events.rank], _NO_HOST),
        )
        for row in first.iter_rows(named=True)
    ]
    known = {failure.rank for failure in failures}
    ends = events.filter(pl.col(Events.attempt) == attempt, pl.col(Events.kind) == "attempt_end")
    told = {row[Events.rank]: row for row in ends.iter_rows(named=True)}
    failures += [
        Failure(
            rank=info.rank,
            time_ns=info.ended_ns,
            message=info.exit_reason,
            step=told[info.rank][Events.step] if info.rank in told else None,
            phase=None,
            is_exit=True,
            is_after_update=info.rank in told and _tells_after_update(told[info.rank][Events.detail]),
            clock=clocks[info.rank],
        )
        for info in infos
        if info.rank not in known and info.ended_ns is not None and info.exit_reason is not None
        if info.exit_reason.startswith(EXITED)
    ]
    earliest: dict[int, int] = {}
    for failure in failures:
        component = failure.clock.component
        earliest[component] = min(failure.time_ns, earliest.get(component, failure.time_ns))
    return tuple(sorted(failures, key=lambda each: (earliest[each.clock.component], each.shifted_ns, each.rank)))


def describe_failures(
    failures: Sequence[Failure],
    *,
    infos: Sequence[RankInfo] = (),
    boxes: Mapping[int, BlackBoxState] | None = None,
) -> str | None:
    """Return which rank raised, or exited, first, what, and who followed, without a full stop; None when none did.

    The message is cut, but holds what others wrote: whoever shows the sentence escapes it.

    Args:
        failures: What `find_failures` returns.
        infos: `rank.json` of the ranks: one that ended in order before the first exception may have left its peers.
        boxes: Black boxes by rank, which relate the clocks of hosts.
    """
    if not failures:
        return None
    first, *others = failures
    message = first.message
    if len(message) > _SHOWN_CHARACTERS:
        message = f"{message[: _SHOWN_CHARACTERS - 1]}…"
    where = "after the update of" if first.is_after_update else "in"
    step = "" if first.step is None else f" {where} step {first.step}"
    how = message if first.is_exit else f"raised {message or 'an exception'}"
    sentence = f"rank {first.rank} {how}{step}"
    sentence += _describe_early(first, infos, boxes or {})
    followers = [each for each in others if each.clock.component == first.clock.component]
    unordered = [each for each in others if each.clock.component != first.clock.component]
    if followers:
        later = (followers[0].shifted_ns - first.shifted_ns) / NS_PER_S
        since = " from" if len(followers) > 1 else ""
        sentence += f"; {_name_ranks(followers)} followed{since} {later:,.1f} s later"
    if unordered:
        did = "exited" if all(each.is_exit for each in unordered) else "raised"
        sentence += f"; {_name_ranks(unordered)} {did} before or after (nothing relates the clocks of their hosts)"
    return sentence


def _tells_after_update(detail: str) -> bool:
    return msgspec.json.decode(detail, type=dict[str, object]).get(AFTER_UPDATE) is True


def _describe_early(first: Failure, infos: Sequence[RankInfo], boxes: Mapping[int, BlackBoxState]) -> str:
    """Return which ranks had ended in order before the first exception, such as one whose data was at its end."""
    clocks = relate_clocks(infos, boxes)
    early = {
        info.rank: first.shifted_ns - info.ended_ns - clocks[info.rank].shift_ns
        for info in infos
        if info.exit_reason == FINISHED and info.ended_ns is not None
        if clocks[info.rank].component == first.clock.component
    }
    early = {rank: before_ns for rank, before_ns in early.items() if before_ns > 0}
    if not early:
        return ""
    until = "" if len(early) == 1 else "up to "
    return f" ({_name(sorted(early))} had ended in order {until}{max(early.values()) / NS_PER_S:,.1f} s before)"


def _name_ranks(failures: Sequence[Failure]) -> str:
    return _name([each.rank for each in failures])


def _name(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:_SHOWN_RANKS]))
    more = f" and {len(ranks) - _SHOWN_RANKS:,} more" if len(ranks) > _SHOWN_RANKS else ""
    return f"rank{'s' if len(ranks) > 1 else ''} {shown}{more}"
