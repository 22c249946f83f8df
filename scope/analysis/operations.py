"""Which collective operations wait for whom."""

from __future__ import annotations

from typing import Final

SYMMETRIC: Final = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier")
"""Operations that no rank ends before every rank has arrived."""

PAIRS: Final = ("send", "recv")

FROM_ROOT: Final = ("broadcast", "scatter")
"""Operations in which the others wait for the root."""

TO_ROOT: Final = ("reduce", "gather")
"""Operations in which the root waits for the others."""

IS_SYMMETRIC: Final = "is_symmetric"
"""Column of frames of calls: whether the operation is in `SYMMETRIC`."""
