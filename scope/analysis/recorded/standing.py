"""How a run stands: it runs, it hangs, it has finished, or it fell silent without a goodbye."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from scope.analysis.recorded.progress import compute_group_progress, find_missed_calls
from scope.run.alive import read_start_ticks
from scope.units import NS_PER_S

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from scope.analysis.recorded.progress import MissedCall
    from scope.run.blackbox import BlackBoxState
    from scope.run.schema import RankInfo

RunStanding: TypeAlias = Literal["not begun", "running", "no step", "finished", "ended without a goodbye"]

_SILENT_NS: Final = 60 * NS_PER_S
_STILL_NS: Final = 10 * NS_PER_S
_STILL_STEPS: Final = 10
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, kw_only=True, slots=True)
class RunState:
    """How a run stands.

    Attributes:
        standing: In a word. `no step`: its ranks live, and none has finished a step for long.
        last_step_ns: End of the last step of any rank; None before the first.
        last_sign_ns: Last sign of life of the ranks that have not ended, of all when all have.
        missed: Ranks that the others wait for while no step ends; empty when the black boxes show none.
        open_ranks: Ranks of the last attempt without an end on record.
        exit_reasons: Why ranks ended before they had finished, each once.
    """

    standing: RunStanding
    last_step_ns: int | None
    last_sign_ns: int | None
    missed: tuple[MissedCall, ...] = ()
    open_ranks: tuple[int, ...] = ()
    exit_reasons: tuple[str, ...] = ()

    @property
    def is_live(self) -> bool:
        """Whether its processes live, whether they make steps or not."""
        return self.standing in ("running", "no step")


def assess_run(
    infos: Sequence[RankInfo],
    states: Mapping[int, BlackBoxState],
    *,
    last_step_ns: int | None,
    usual_ns: int | None,
    now_ns: int,
    lives: Callable[[RankInfo], bool] | None = None,
) -> RunState:
    """Return how a run stands.

    A run falls silent when its ranks that have not ended gave no sign of life for 60 s (ten usual steps, where they
    have no black box to give one) and none of their processes is known to live. No step: none has ended for ten usual
    steps and 10 s.

    Args:
        infos: `rank.json` of the ranks of the last attempt.
        states: Their black boxes, by rank.
        last_step_ns: End of the last step of any rank.
        usual_ns: Usual length of a step; None before it is known.
        now_ns: Now, since the epoch.
        lives: Returns whether a rank's process is known to live; those of this host are looked up by default.
    """
    if not infos:
        return RunState(standing="not begun", last_step_ns=last_step_ns, last_sign_ns=last_step_ns)
    still_open = [info for info in infos if not _has_ended(info, states.get(info.rank))]
    signs = [sign for info in still_open or infos for sign in _signs(info, states.get(info.rank))]
    # The last step may be one of a rank that has ended: it is no sign of the others.
    if last_step_ns is not None and len(still_open) in (0, len(infos)):
        signs.append(last_step_ns)
    last_sign_ns = max(signs)
    ranks = tuple(info.rank for info in still_open)
    if not still_open:
        reasons = {_exit_reason(info, states.get(info.rank)) for info in infos} - {"finished"}
        return RunState(
            standing="finished",
            last_step_ns=last_step_ns,
            last_sign_ns=last_sign_ns,
            exit_reasons=tuple(sorted(reasons)),
        )
    usual = _STILL_STEPS * (usual_ns or 0)
    limit_ns = _SILENT_NS if any(rank in states for rank in ranks) else max(_SILENT_NS, usual)
    standing: RunStanding = "running"
    missed: tuple[MissedCall, ...] = ()
    if now_ns - last_sign_ns > limit_ns and not any((lives or _lives_here)(info) for info in still_open):
        standing = "ended without a goodbye"
    elif last_step_ns is not None and now_ns - last_step_ns > max(_STILL_NS, usual):
        standing = "no step"
        missed = tuple(find_missed_calls(compute_group_progress(infos, states)))
    return RunState(
        standing=standing, last_step_ns=last_step_ns, last_sign_ns=last_sign_ns, missed=missed, open_ranks=ranks
    )


def _has_ended(info: RankInfo, state: BlackBoxState | None) -> bool:
    return info.ended_ns is not None or (state is not None and state.closed)


def _exit_reason(info: RankInfo, state: BlackBoxState | None) -> str:
    if info.exit_reason is not None:
        return info.exit_reason
    return "exception" if state is not None and state.exception else "finished"


def _signs(info: RankInfo, state: BlackBoxState | None) -> list[int]:
    signs = [info.started_ns, info.ended_ns]
    if state is not None:
        signs += [state.beat_ns, state.pulse_ns]
    return [sign for sign in signs if sign is not None]


def _lives_here(info: RankInfo) -> bool:
    """Return whether a rank of this host still has its process: one that was stopped gives no sign of life."""
    if info.boot_id is None or info.process_start_ticks is None:
        return False
    try:
        boot_id = _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return False
    return info.boot_id == boot_id and read_start_ticks(info.pid) == info.process_start_ticks
