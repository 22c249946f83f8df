"""Which rank a file is of: what the trace says, else what its name says, else unknown; never a guess."""

from __future__ import annotations

import re
from pathlib import PurePath
from typing import Any, Final

from scope.trace.untyped import as_mapping

_NAME_PATTERNS: Final = (
    re.compile(r"(?<![a-z])(?:global[_-]?)?rank[_-]?(\d{1,7})(?!\d)", re.IGNORECASE),
    re.compile(r"(?<![a-z])worker[_-]?(\d{1,7})(?!\d)", re.IGNORECASE),
)
MOST_RANKS: Final = 1 << 20


def rank_of_metadata(metadata: dict[str, Any]) -> int | None:
    """Return `distributedInfo.rank`, or None when the trace does not say."""
    rank: Any = as_mapping(metadata.get("distributedInfo")).get("rank")
    if isinstance(rank, str) and rank.isdigit() and len(rank) < 8:
        rank = int(rank)
    return rank if type(rank) is int and 0 <= rank < MOST_RANKS else None


def rank_of_name(path: str) -> int | None:
    """Return the rank that a file's name states, or None when it states none or several that differ.

    Examples:
        >>> rank_of_name("sampled_rank-1.json.gz"), rank_of_name("job_rank3of8.json"), rank_of_name("local_rank0.json")
        (1, 3, None)
        >>> rank_of_name("worker0_step_12.1694128201545.pt.trace.json.gz"), rank_of_name("trace-0.json")
        (0, None)
    """
    name = PurePath(path).name
    name = re.sub(r"local[_-]?rank[_-]?\d+", "", name, flags=re.IGNORECASE)
    for pattern in _NAME_PATTERNS:
        found = {int(number) for number in pattern.findall(name)}
        if len(found) == 1:
            return found.pop()
        if found:
            return None
    return None
