"""Which findings of a run its node hands on, though whoever found them may have gone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from scope.run.verdicts import KINDS, find_holding, is_outrun, read_look
from scope.units import NS_PER_S

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from scope.run.schema import Verdict

UNWATCHED_NS: Final = 15 * 60 * NS_PER_S
"""How long a finding of a run that goes on is handed on while nobody looks."""


def find_told(
    verdicts: Iterable[Verdict], *, attempt: int, last_step: int | None, live_run: Path | None, now_ns: int
) -> list[Verdict]:
    """Return the findings that hold now, as far as this node can tell, in the order of their first line.

    What stood still may have made steps since. What has become of the other findings of `scope watch` nobody knows
    while nobody looks and the run goes on; what a run ended with stays.

    Args:
        verdicts: All verdicts, oldest first.
        attempt: The attempt that runs now.
        last_step: Number of the last step that a rank of this node ended in it; None before the first.
        live_run: The folder that the verdicts are of, while a rank of this node runs; None when all have ended.
        now_ns: The moment, since the epoch.
    """
    held = [
        verdict for verdict in find_holding(verdicts, attempt=attempt) if not is_outrun(verdict, last_step=last_step)
    ]
    looked_ns = read_look(live_run) if held and live_run is not None else None
    if looked_ns is None or now_ns - looked_ns <= UNWATCHED_NS:
        return held
    return [verdict for verdict in held if verdict.kind not in KINDS]
