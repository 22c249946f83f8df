"""Who issued a call, told from the Python frames below the kernel and cached per code object.

The dispatcher shows what was called, not by which API. The caller's frame does: an object collective is the same
all-gather as the user's own, but `all_gather_object` stands below it; a bucket of DDP's reducer comes straight out of
the autograd engine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from types import CodeType, FrameType

USER: Final = 0
"""Code that calls the process group itself."""
API: Final = 1
"""`torch.distributed`'s own functions."""
API_OBJECT: Final = 2
"""Those that send pickled objects."""
API_BLOCKING_P2P: Final = 3
"""`send` and `recv`, which wait."""
WRAPPER: Final = 4
"""Decorators between two functions of the API."""
ENGINE: Final = 5
"""The autograd engine, without Python between it and the call."""
FUNCTIONAL: Final = 6
"""An operator of `torch.ops`."""
COMPILED: Final = 7
"""Code that torch.compile made."""
GRADIENT_HOOK: Final = -1
"""A communication hook of DDP: a function of a state and a `bucket`, as torch prescribes."""

_MAX_CODES: Final = 10_000
_MAX_FRAMES: Final = 12
_FUNCTIONAL_FILES: Final = (
    "torch/_ops.py",
    "torch/_library/autograd.py",
    "torch/distributed/_functional_collectives.py",
)
_MODE_WRAPPERS: Final = ("torch/_dynamo/eval_frame.py", "torch/_compile.py")
"""What torch puts around `__torch_dispatch__` of a mode."""
_COMPILED_PARTS: Final = ("torchinductor", "torch/_inductor/", "torch/_functorch/", "torch/_dynamo/", "torch/fx/")


class CallerTable:
    """Remembers the kind of every code object that was seen below a call.

    Attributes:
        kinds: What is known so far, by the id of the code object: its hash is worked out anew at each look.
    """

    def __init__(self) -> None:
        self.kinds: dict[int, int] = {}
        self._alive: list[CodeType] = []

    def kind(self, code: CodeType) -> int:
        """Return the kind of a code object."""
        found = self.kinds.get(id(code))
        if found is not None:
            return found
        if len(self.kinds) >= _MAX_CODES:
            # Every compiled graph makes code of its own; forgetting all costs one look at each again.
            self.kinds.clear()
            self._alive.clear()
        if code.co_argcount > 1 and code.co_varnames[1] == "bucket":
            kind = GRADIENT_HOOK
        else:
            kind = classify_code(code.co_filename, code.co_name)
        # Kept alive, so that no other code takes its id.
        self._alive.append(code)
        self.kinds[id(code)] = kind
        return kind

    def above_modes(self, frame: FrameType | None) -> tuple[FrameType | None, int]:
        """Return the frame and kind of who issued a call that seems to come from an operator of `torch.ops`.

        A dispatch mode (a FLOP counter, for one) calls the operator of c10d anew; who issued it stands above the mode.
        """
        while frame is not None and getattr(frame.f_locals.get("self"), "namespace", None) == "c10d":
            while frame is not None and frame.f_code.co_name != "__torch_dispatch__":
                frame = frame.f_back
            frame = None if frame is None else frame.f_back
            while frame is not None and frame.f_code.co_filename.endswith(_MODE_WRAPPERS):
                frame = frame.f_back
        return frame, ENGINE if frame is None else self.kind(frame.f_code)

    def is_gradient_hook(self, frame: FrameType | None) -> bool:
        """Return whether a communication hook of DDP stands above a frame."""
        for _ in range(_MAX_FRAMES):
            if frame is None:
                return False
            if self.kind(frame.f_code) == GRADIENT_HOOK:
                return True
            frame = frame.f_back
        return False

    def is_compiled(self, frame: FrameType | None) -> bool:
        """Return whether the operator that `frame` runs was called by compiled code."""
        for _ in range(_MAX_FRAMES):
            if frame is None:
                return False
            kind = self.kind(frame.f_code)
            if kind != FUNCTIONAL:
                return kind == COMPILED
            frame = frame.f_back
        return False

    def walk_api(self, frame: FrameType | None) -> int:
        """Return `API_OBJECT` or `API_BLOCKING_P2P` if such a function stands above the API's frames, else `API`."""
        result = API
        for _ in range(_MAX_FRAMES):
            if frame is None:
                break
            kind = self.kind(frame.f_code)
            if kind == API_OBJECT:
                return API_OBJECT
            if kind == API_BLOCKING_P2P:
                result = API_BLOCKING_P2P
            elif kind not in (API, WRAPPER):
                break
            frame = frame.f_back
        return result


def classify_code(filename: str, name: str) -> int:
    """Return the kind of a function by its file and name.

    Examples:
        >>> classify_code("/x/torch/distributed/distributed_c10d.py", "gather_object") == API_OBJECT
        True
        >>> classify_code("/home/me/train.py", "main") == USER
        True
    """
    path = filename.replace("\\", "/")
    if path.endswith("torch/distributed/distributed_c10d.py"):
        if name.endswith(("_object", "_object_list")):
            return API_OBJECT
        return API_BLOCKING_P2P if name in {"send", "recv"} else API
    if path.endswith("torch/distributed/c10d_logger.py"):
        return WRAPPER
    if name == "_engine_run_backward":
        return ENGINE
    if path.endswith(_FUNCTIONAL_FILES):
        return FUNCTIONAL
    if path.startswith("<eval_with_key>") or any(part in path for part in _COMPILED_PARTS):
        return COMPILED
    return USER
