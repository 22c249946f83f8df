"""Keeps torch's compiler out of code that stands in the way of collectives.

Where a graph breaks, torch compiles the frames below the break as well: a kernel of ours among them, of which it makes
graphs that say nothing, warnings, and tensors without data that no hook can describe.
"""

from __future__ import annotations

from typing import Any, TypeVar

import torch

# torch annotates only a part of itself, and how frames are marked is private.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportAttributeAccessIssue=false
# pyright: reportPrivateUsage=false, reportUnknownArgumentType=false

_Function = TypeVar("_Function")


def keep_uncompiled(function: _Function) -> _Function:
    """Mark a function to be run as it stands; a call of it costs nothing more.

    So is what it calls, where torch can mark that too (`set_code_exec_strategy`); `skip_code` of torch 2.6 marks the
    frames of this one function.

    The code is marked in the interpreter's hook itself: `torch.compiler.disable` would import the compiler and wrap the
    function.
    """
    frames: Any = torch._C._dynamo.eval_frame
    marked: Any = function
    if hasattr(frames, "set_code_exec_strategy"):
        skip = frames._FrameAction.SKIP
        frames.set_code_exec_strategy(marked.__code__, frames._FrameExecStrategy(skip, skip))
    elif hasattr(frames, "skip_code"):
        frames.skip_code(marked.__code__)
    # Where a frame of the program is compiled that calls it, its graph breaks there, as it does for a function of C.
    marked._torchdynamo_disable = True
    return function
