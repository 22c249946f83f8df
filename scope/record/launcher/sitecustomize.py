"""First on the path under `scope run`: runs the user's own `sitecustomize`, then waits for the first import of torch.

It acts only in ranks, or in the direct child of `scope run`; launchers, compile workers and loader workers pass
through. Whatever goes wrong here, the program runs as it would without Scope.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

_HERE = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - start-up must stay free of imports
_LAUNCHERS = ("torchrun", "accelerate", "deepspeed", "lightning", "fabric", "mpirun", "ray")
_LAUNCHER_MODULES = ("torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch", "deepspeed")
_SHELLS = ("sh", "bash", "dash", "zsh", "ksh", "fish", "busybox", "env", "nice", "time", "timeout", "numactl", "make")
_MAX_SHELLS = 8


def _run_users_own() -> None:
    """Run the `sitecustomize` that Python would have run without us."""
    rest = [entry for entry in sys.path if os.path.abspath(entry or ".") != _HERE]  # noqa: PTH100
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", rest)
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


def find_parent(pid: int, proc: str = "/proc") -> int:
    """Return the nearest ancestor that is no shell or the like: `scope run -- sh train.sh` starts a direct child."""
    for _ in range(_MAX_SHELLS):
        try:
            with open(f"{proc}/{pid}/stat", "rb") as file:  # noqa: PTH123
                name, _, rest = file.read().partition(b" (")[2].rpartition(b")")
        except OSError:
            return pid
        if name.decode("ascii", "replace") not in _SHELLS:
            return pid
        pid = int(rest.split()[1])
    return pid


def is_recorded(environment: Any, arguments: Sequence[str], *, pid: int, parent: int) -> bool:
    """Whether a process is one to record.

    Args:
        environment: Its environment.
        arguments: Its whole command line, the interpreter first (`sys.orig_argv`).
        pid: Its process id.
        parent: Its parent's process id, shells between them left out.
    """
    if not environment.get("SCOPE_RUN_ID"):
        return False
    recorded_by = environment.get("SCOPE_RECORDING_PID")
    if recorded_by and recorded_by != str(pid):
        return False  # a child of a rank: a loader's or compiler's worker
    if any(argument in ("--multiprocessing-fork", "forkserver") for argument in arguments):
        return False
    if "RANK" in environment and "WORLD_SIZE" in environment:
        return True
    if environment.get("SCOPE_PARENT_PID") != str(parent):
        return False
    names = [os.path.basename(argument) for argument in arguments[:4]]  # noqa: PTH119
    return not any(name in _LAUNCHERS or name in _LAUNCHER_MODULES for name in names)


def is_spawned(environment: Any, arguments: Sequence[str]) -> bool:
    """Whether a process was spawned by a recorded one that is no rank of a launcher: `torch.multiprocessing.spawn`."""
    return bool(environment.get("SCOPE_SPAWN_ATTEMPT")) and "--multiprocessing-fork" in arguments


class _AfterTorch(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds torch as everybody else would, and starts recording when its import is done."""

    def __init__(self, start: str) -> None:
        self._start = start
        self._loader: Any = None

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Wrap the loader of torch; leave every other module alone."""
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec("torch")
        if spec is None or spec.loader is None:
            return None
        self._loader = spec.loader
        spec.loader = self
        return spec

    def create_module(self, spec: Any) -> ModuleType | None:
        """Let torch's own loader make the module."""
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Run torch's own loader, put it back where tools look for it, and start."""
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        self._loader.exec_module(module)
        _start(self._start)


def _start(name: str) -> None:
    try:
        from scope.record import autostart
    except ImportError as error:
        sys.stderr.write(f"scope: {sys.executable} cannot import scope, the run goes on unrecorded: {error}\n")
        return
    getattr(autostart, name)()


_run_users_own()
if is_recorded(os.environ, sys.orig_argv, pid=os.getpid(), parent=find_parent(os.getppid())):
    sys.meta_path.insert(0, _AfterTorch("start"))
elif is_spawned(os.environ, sys.orig_argv):
    sys.meta_path.insert(0, _AfterTorch("start_with_group"))
