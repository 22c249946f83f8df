"""What the user may choose about the analyses, mostly to state a figure the way another tool does."""

from __future__ import annotations

import msgspec


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """Choices that change what figures mean; the defaults are Scope's own definitions."""

    memory_as_compute: bool = False
    """Copies and sets count as compute, as in tools that know kernels of two kinds only; exposed memory is then 0."""
    sets_as_compute: bool = False
    """Sets (memset), but not copies, count as compute."""
    linked_only: bool = False
    """Only device events whose launch is in the trace count; the device window shrinks to them."""
    critical_path: bool = True
    """Compute the critical path of the median step of each device."""
