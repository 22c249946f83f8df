"""How much work a call does, counted in instructions, which unlike time are the same at every run."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType, ModuleType
    from typing import Any


def count_instructions(ask: Callable[[], object], *modules: ModuleType) -> int:
    """Return how many instructions of Python code in some modules a call runs."""
    files = {module.__file__ for module in modules}
    num_instructions = 0

    def trace(frame: FrameType, event: str, _: object) -> Callable[..., Any] | None:
        nonlocal num_instructions
        if frame.f_code.co_filename not in files:
            return None
        frame.f_trace_opcodes = True
        num_instructions += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        ask()
    finally:
        sys.settrace(before)
    return num_instructions
