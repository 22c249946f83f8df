"""Telling a program that only spawned its ranks (`torch.multiprocessing.spawn`) from an attempt of its own.

Such a program imports torch, so its recording begins, and takes an attempt, before anybody can know that it trains
nothing; its ranks take the next one.
"""

from __future__ import annotations

from pathlib import PurePath
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from scope.run.blackbox import BlackBoxState
    from scope.run.schema import RankInfo

_LEVELS_IN_SPOOL: Final = 3
"""`attempt-000/ranks/00000` stand between a spool and what a rank writes."""


def has_spawned(parent: RankInfo, box: BlackBoxState | None, child: RankInfo) -> bool:
    """Return whether a process without a step merely started the ranks of the next attempt.

    They began while it lived, on its host, under the same launch. A launcher that restarts its ranks begins the next
    attempt after the one before; two launches of one run directory write to two spools.

    Args:
        parent: The one rank of an attempt, which has recorded no step.
        box: Its black box; None where it has none.
        child: A rank of the next attempt.
    """
    if parent.world_size not in (None, 1) or (box is not None and (box.num_steps or box.groups)):
        return False
    if parent.boot_id != child.boot_id or parent.host != child.host or parent.pid == child.pid:
        return False
    spool = _spool_of(parent)
    if spool is None or spool != _spool_of(child):
        return False
    signs = [parent.ended_ns] if box is None else [parent.ended_ns, box.beat_ns, box.pulse_ns]
    last_ns = max((sign for sign in signs if sign is not None), default=parent.started_ns)
    return parent.started_ns < child.started_ns < last_ns


def _spool_of(info: RankInfo) -> PurePath | None:
    if info.spool is None:
        return None
    folders = PurePath(info.spool).parents
    return folders[_LEVELS_IN_SPOOL - 1] if len(folders) >= _LEVELS_IN_SPOOL else None
