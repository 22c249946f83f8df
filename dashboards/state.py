"""The state of a page, kept in its address so that a link shares the view.

Everything in an address is untrusted: each parameter has a pattern or a range, and a value that does not fit is as good
as absent.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

_SOURCE_ID: Final = re.compile(r"[0-9a-f]{12}")
_NUMBER: Final = re.compile(r"[0-9]{1,15}")
_MAX_RANKS: Final = 64

SOURCE: Final = "source"
OTHER: Final = "other"
RANKS: Final = "ranks"
FIRST_STEP: Final = "from"
LAST_STEP: Final = "to"
STEP: Final = "step"
SELECTION: Final = "selection"
START_US: Final = "start"
END_US: Final = "end"


@dataclass(frozen=True, kw_only=True, slots=True)
class PageState:
    """What an address says.

    Attributes:
        source_id: Which source is shown.
        other_id: Which source it is compared with.
        ranks: Ranks that are shown; empty for all.
        first_step: First step of the range; None for the first of all.
        last_step: Last step of the range, inclusive; None for the last of all.
        step: The step that is looked at.
        selection: Number of the selected row or mark.
        start_us: Start of a window of time, from the first instant of the source.
        end_us: Its end.
    """

    source_id: str | None = None
    other_id: str | None = None
    ranks: tuple[int, ...] = ()
    first_step: int | None = None
    last_step: int | None = None
    step: int | None = None
    selection: int | None = None
    start_us: int | None = None
    end_us: int | None = None


def read_state(parameters: Mapping[str, str]) -> PageState:
    """Return the state that the parameters of an address spell; what is malformed is left out."""
    first, last = _number(parameters.get(FIRST_STEP)), _number(parameters.get(LAST_STEP))
    if first is not None and last is not None and first > last:
        first, last = last, first
    start, end = _number(parameters.get(START_US)), _number(parameters.get(END_US))
    if start is not None and end is not None and start > end:
        start, end = end, start
    return PageState(
        source_id=_source_id(parameters.get(SOURCE)),
        other_id=_source_id(parameters.get(OTHER)),
        ranks=_numbers(parameters.get(RANKS)),
        first_step=first,
        last_step=last,
        step=_number(parameters.get(STEP)),
        selection=_number(parameters.get(SELECTION)),
        start_us=start,
        end_us=end,
    )


def spell_state(parameters: Mapping[str, str], state: PageState) -> dict[str, str]:
    """Return parameters of an address that spell `state`, without its defaults, so that links stay short.

    Args:
        parameters: Those of the address now; what is no state stays.
        state: The state.
    """
    values = {
        SOURCE: state.source_id,
        OTHER: state.other_id,
        RANKS: ",".join(map(str, state.ranks)) or None,
        FIRST_STEP: state.first_step,
        LAST_STEP: state.last_step,
        STEP: state.step,
        SELECTION: state.selection,
        START_US: state.start_us,
        END_US: state.end_us,
    }
    others = {name: value for name, value in parameters.items() if name not in values}
    return others | {name: str(value) for name, value in values.items() if value is not None}


def _source_id(text: str | None) -> str | None:
    return text if text is not None and _SOURCE_ID.fullmatch(text) else None


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and _NUMBER.fullmatch(text) else None


def _numbers(text: str | None) -> tuple[int, ...]:
    parts = (text or "").split(",")[:_MAX_RANKS]
    return tuple(sorted({int(part) for part in parts if _NUMBER.fullmatch(part)}))
