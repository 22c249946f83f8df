"""First on the path under `scope run`: runs the user's own `sitecustomize`, then waits for the first import of torch.

It acts only in ranks, or in the direct child of `scope run` (shells and launchers between left out); launchers, compile
workers and loader workers pass through. Whatever goes wrong here, the program runs as it would without Scope.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from types import ModuleType

_HERE = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - start-up must stay free of imports
_OWN = os.path.join(os.path.dirname(os.path.dirname(_HERE)), "__init__.py")  # noqa: PTH118, PTH120
_PATH = [entry for entry in sys.path if os.path.abspath(entry or ".") != _HERE]  # noqa: PTH100
"""Where modules are found before Python puts the folder of the script first."""
_LAUNCHERS = ("torchrun", "accelerate", "deepspeed", "lightning", "fabric", "mpirun", "ray")
_LAUNCHER_MODULES = ("torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch", "deepspeed")
_BETWEEN = frozenset(
    (
        *_LAUNCHERS,
        *("sh", "bash", "dash", "zsh", "ksh", "fish", "busybox", "env", "nice", "time", "timeout", "numactl", "make"),
        *("just", "ninja", "xargs", "flock", "setsid", "script", "unshare", "bwrap", "sudo", "su", "runuser", "uv"),
        *("srun", "slurmstepd", "mpiexec", "mpiexec.hydra", "mpirun.openmpi", "orterun", "orted", "prte", "prterun"),
        *("prted", "hydra_pmi_proxy", "hydra_bstrap_pr"),
        *("conda", "mamba", "micromamba", "pixi", "strace", "perf", "nsys", "ncu"),
        *("init", "systemd", "tini", "dumb-init", "docker-init", "catatonit"),
    )
)
"""Programs that start others for whoever calls them, and those that a process is left to whose parent has ended.

The kernel keeps 15 characters of a name.
"""
_PYTHONS = ("python", "pypy")
_RANKS = ("OMPI_COMM_WORLD_RANK", "PMI_RANK")
_MAX_BETWEEN = 16
_FORK_SERVER = "from multiprocessing.forkserver import"


def _run_users_own() -> None:
    """Run the `sitecustomize` that Python would have run without us."""
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", _PATH)
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


def is_direct(pid: int, launcher: str, proc: str = "/proc") -> bool:
    """Whether a process stands below `scope run` with nothing between that is more than a way to start it.

    Shells and the like are, and so are launchers in Python: one that trains itself is recorded, which its children are
    told. What cannot be seen is no hindrance: a namespace of process ids without a /proc of its own, ancestors outside
    of it, and those of a process that was left in the background.

    Args:
        pid: The parent of the process.
        launcher: The process id of `scope run`.
        proc: The table of processes.
    """
    try:
        if os.readlink(f"{proc}/self") != str(os.getpid()):  # noqa: PTH115
            return True
    except OSError:
        return True
    for _ in range(_MAX_BETWEEN):
        if pid <= 1 or str(pid) == launcher:
            return True
        try:
            with open(f"{proc}/{pid}/stat", "rb") as file:  # noqa: PTH123
                name, _, rest = file.read().partition(b" (")[2].rpartition(b")")
        except OSError:
            return False
        if not _only_starts(name.decode("ascii", "replace")) and not _only_starts(_find_interpreter(f"{proc}/{pid}")):
            return False
        pid = int(rest.split()[1])
    return False


def _only_starts(program: str) -> bool:
    return program in _BETWEEN or program.startswith(_PYTHONS)


def _find_interpreter(process: str) -> str:
    """Return the program that a process runs: a script has a name of its own."""
    try:
        return os.path.basename(os.readlink(f"{process}/exe"))  # noqa: PTH115, PTH119
    except OSError:
        return ""


def is_recorded(environment: Any, arguments: Sequence[str], *, pid: int, direct: Callable[[], bool]) -> bool:
    """Whether a process is one to record.

    Args:
        environment: Its environment.
        arguments: Its whole command line, the interpreter first (`sys.orig_argv`).
        pid: Its process id.
        direct: Tells whether it is a child of `scope run`, leaving out what merely started it.
    """
    if not environment.get("SCOPE_RUN_ID"):
        return False
    if _is_of_multiprocessing(arguments):
        return False
    is_rank = "RANK" in environment and "WORLD_SIZE" in environment
    recorded_by = environment.get("SCOPE_RECORDING_PID")
    if recorded_by and recorded_by != str(pid):
        # A child of a rank: a loader's or compiler's worker. Or a rank that a program which has no rank itself started.
        is_started = is_rank and environment["WORLD_SIZE"] != "1" and bool(environment.get("SCOPE_SPAWN_ATTEMPT"))
        return is_started and not any("compile_worker" in argument for argument in arguments)
    if is_rank:
        return True
    names = [os.path.basename(argument) for argument in arguments[:4]]  # noqa: PTH119
    return not any(name in _LAUNCHERS or name in _LAUNCHER_MODULES for name in names) and direct()


def is_spawned(environment: Any, arguments: Sequence[str]) -> bool:
    """Whether a process was spawned by a recorded one that is no rank of a launcher: `torch.multiprocessing.spawn`.

    A server that forks the processes of the method `forkserver` passes what waits in it on to them.
    """
    if not environment.get("SCOPE_SPAWN_ATTEMPT"):
        return False
    is_worker = any("compile_worker" in argument for argument in arguments)
    return _is_of_multiprocessing(arguments) or (joins_later(environment) and not is_worker)


def joins_later(environment: Any) -> bool:
    """Whether a process has a number on its node and learns its rank from the process group that it joins.

    Lightning starts those of a node so, by itself; its first process on each further node knows the node's number.
    """
    if "RANK" in environment:
        return False
    # One of Slurm or MPI has its rank already.
    is_ranked = environment.get("SLURM_STEP_NUM_TASKS", "1") != "1" or any(name in environment for name in _RANKS)
    if is_ranked and "SCOPE_RECORDING_PID" not in environment:
        return False
    is_numbered = environment.get("LOCAL_RANK", "").isdecimal() and environment.get("WORLD_SIZE", "1") != "1"
    return is_numbered or environment.get("NODE_RANK", "0") not in ("", "0")


def _is_of_multiprocessing(arguments: Sequence[str]) -> bool:
    return "--multiprocessing-fork" in arguments or any(word.startswith(_FORK_SERVER) for word in arguments)


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
        if _start(self._start):
            raise KeyboardInterrupt

    # Python leaves the frames of its own import system out of a traceback, up to one of this name; one of another file
    # among them would stop it, and the traceback of an import of torch that fails would show all of them.
    exec_module.__code__ = exec_module.__code__.replace(
        co_filename="<frozen importlib._bootstrap>", co_name="_call_with_frames_removed"
    )


class OwnImports:
    """Inside the `with`, imports find Scope and what it needs, and nothing that lies beside the user's script.

    A script, or a file beside it, may be called `scope.py`, `msgspec.py` or `resource.py`: it is not run for us, and
    later imports of the program find it under that name as they would without us. It may be entered again.

    Args:
        path: `sys.path` before the script's folder was put on it.
    """

    def __init__(self, path: Sequence[str]) -> None:
        self._path = list(path)
        self._hidden: dict[str, ModuleType] = {}
        self._users: dict[str, ModuleType] = {}
        self._before: frozenset[str] = frozenset()
        self._full: list[str] = []
        self._beside: list[str] = []

    def __enter__(self) -> None:
        """Take the user's folders off the path, and the user's modules out of the way of ours."""
        self._full = list(sys.path)
        folders = {os.path.abspath(entry or ".") for entry in [*self._full[:1], "."]}  # noqa: PTH100
        trusted = [entry for entry in self._path if _is_library(entry) or os.path.abspath(entry) not in folders]  # noqa: PTH100
        self._beside = [entry for entry in self._full if entry not in trusted]
        names = {name for name in _top_level(sys.modules) if self._is_users(name, trusted)}
        self._users = _take(names)
        self._before = frozenset(sys.modules)
        sys.path[:] = trusted
        sys.modules.update(self._hidden)
        if "scope" not in sys.modules:
            _load_scope()

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        """Put the path back, and hide those of our modules whose names are the user's."""
        sys.path[:] = self._full
        fresh = _top_level(set(sys.modules) - self._before)
        if kind is not None:
            _take({"scope"} & fresh)
        for name in fresh:
            found = importlib.machinery.PathFinder.find_spec(name, self._beside)
            # A folder without an __init__ is found last of all, so ours would be found before it.
            if found is None or found.origin is None or _is_same(found.origin, sys.modules.get(name)):
                continue
            # The parts of ours stay where lazy imports look for them, unless the user's own has parts as well.
            whole = found.submodule_search_locations is not None
            self._hidden.update(_take({name}) if whole else {name: sys.modules.pop(name)})
        sys.modules.update(self._users)

    def _is_users(self, name: str, trusted: list[str]) -> bool:
        """Whether a loaded module lies beside the script and has the name of one that we might import."""
        origin = getattr(sys.modules[name], "__file__", None)
        if name == "__main__" or not isinstance(origin, str) or (name == "scope" and _is_same(_OWN, sys.modules[name])):
            return False
        folder, file = os.path.split(os.path.abspath(origin))  # noqa: PTH100
        folder = os.path.dirname(folder) if file == "__init__.py" else folder  # noqa: PTH120
        if folder not in {os.path.abspath(entry or ".") for entry in self._beside}:  # noqa: PTH100
            return False
        return name == "scope" or importlib.machinery.PathFinder.find_spec(name, trusted) is not None


def _is_library(entry: str) -> bool:
    return os.path.basename(entry.rstrip(os.sep)) in ("site-packages", "dist-packages")  # noqa: PTH119


def _is_same(origin: str, module: ModuleType | None) -> bool:
    return os.path.abspath(getattr(module, "__file__", None) or "") == os.path.abspath(origin)  # noqa: PTH100


def _top_level(names: Iterable[str]) -> set[str]:
    """Return the modules among the names that are parts of no other and are loaded."""
    return {name for name in names if "." not in name and sys.modules.get(name) is not None}


def _take(names: set[str]) -> dict[str, ModuleType]:
    """Take modules and their parts out of the table of loaded ones, and return them."""
    taken = [name for name in sys.modules if name.partition(".")[0] in names]
    return {name: sys.modules.pop(name) for name in taken}


def _load_scope() -> None:
    """Load the `scope` that this file is a part of, wherever the path leads."""
    spec = importlib.util.spec_from_file_location(
        "scope",
        _OWN,
        submodule_search_locations=[os.path.dirname(_OWN)],  # noqa: PTH120
    )
    if spec is None or spec.loader is None:
        message = f"{_OWN} is gone"
        raise ImportError(message)
    module = importlib.util.module_from_spec(spec)
    sys.modules["scope"] = module
    spec.loader.exec_module(module)


def _start(name: str) -> bool:
    """Begin; return whether Ctrl-C came meanwhile, which is raised where no frame of this is in its traceback."""
    try:
        own = OwnImports(_PATH)
        with own:
            from scope.record import autostart

        getattr(autostart, name)(importing=own)
    except KeyboardInterrupt:
        return True
    except BaseException as error:  # noqa: BLE001 - training must start whatever happens here
        if sys.stderr is not None:
            problem = f"{type(error).__name__}: {error}"
            sys.stderr.write(f"scope: {sys.executable} cannot load scope, the run goes on unrecorded: {problem}\n")
    return False


_run_users_own()
if is_recorded(
    os.environ,
    sys.orig_argv,
    pid=os.getpid(),
    direct=lambda: is_direct(os.getppid(), os.environ.get("SCOPE_PARENT_PID", "")),
):
    sys.meta_path.insert(0, _AfterTorch("start_with_group" if joins_later(os.environ) else "start"))
elif is_spawned(os.environ, sys.orig_argv):
    sys.meta_path.insert(0, _AfterTorch("start_with_group"))
