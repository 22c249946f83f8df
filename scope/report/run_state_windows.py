"""The state of a recorded run: which profiler windows it has, and which of them is read."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from scope.report.sections.quality import format_ranks
from scope.report.standing import count
from scope.run.captured import choose_newest, first_step_of, group_windows
from scope.run.reader import Trace
from scope.run.schema import CaptureInfo

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_SHOWN_OTHERS: Final = 16


def window_lines(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield a line about the window that commands on traces read, and one about the others; none where there is none.

    Args:
        rows: Rows of the table `Traces`.
    """
    if not rows:
        return
    windows = [
        window
        for attempt in sorted({row["attempt"] for row in rows})
        for window in group_windows(_as_trace(row) for row in rows if row["attempt"] == attempt)
    ]
    place = choose_newest(windows)
    chosen = windows[place]
    which = "the newest window" if place == len(windows) - 1 else "the newest window that most ranks share"
    first, latest = first_step_of(chosen), max(trace.info.first_step for trace in chosen)
    apart = f", the last rank from step {latest}" if latest > first else ""
    yield (
        f"{count(len(rows), 'trace')} of profiler windows; {which}: {_name_ranks(chosen)}, from step {first}{apart}"
        f"{_say_reasons(chosen)}: scope analyze reads it"
    )
    others = [window for window in windows if window is not chosen]
    if others:
        more = f"; and {len(others) - _SHOWN_OTHERS:,} earlier ones" if len(others) > _SHOWN_OTHERS else ""
        shown = "; ".join(
            f"{first_step_of(each)}{_say_reasons(each)}, {_name_ranks(each)}" for each in others[-_SHOWN_OTHERS:]
        )
        yield f"  --window STEP reads another, from step {shown}{more}"


def _name_ranks(window: Sequence[Trace]) -> str:
    return f"rank{'s' * (len(window) > 1)} {format_ranks(tuple(trace.info.rank for trace in window))}"


def _say_reasons(window: Sequence[Trace]) -> str:
    reasons = ", ".join(dict.fromkeys(trace.info.reason for trace in window if trace.info.reason))
    return f" ({reasons})" if reasons else ""


def _as_trace(row: Mapping[str, Any]) -> Trace:
    """Return a row as the reader of the run gave it, but for its cost, which nobody asks for here."""
    names = ("rank", "first_step", "num_steps", "start_ns", "end_ns", "reason")
    path = Path(row["path"])
    return Trace(path=path, info=CaptureInfo(trace=path.name, cost_ns=0, **{name: row[name] for name in names}))
