"""Facts of a node for `scope doctor`: hardware, limits, files, clock, versions, and the variables that steer NCCL."""

from __future__ import annotations

import ctypes
import os
import platform
import re
import resource
import socket
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from scope.errors import ScopeError
from scope.probe.affinity import read_affinities
from scope.probe.net import NetProbe
from scope.probe.nvml.library import NvmlFailure, NvmlLibrary
from scope.probe.nvml.probe import NvmlProbe
from scope.probe.rdma import RdmaProbe
from scope.probe.records import Affinity, GpuReading, NetDevice, Problem, RdmaPort
from scope.probe.tree import Problems, Tree

if TYPE_CHECKING:
    from collections.abc import Mapping
from contextlib import closing

FACTS_VERSION: Final = 1
_VARIABLES: Final = re.compile(r"(NCCL|RCCL|GLOO|CUDA|TORCH|PYTORCH|OMP|UCX|FI)_[A-Z0-9_]+")
_SECRET: Final = re.compile(r"TOKEN|SECRET|PASSWORD|CREDENTIAL|API_KEY")
_PROBE_WRITES: Final = 5
_PROBE_BYTES: Final = 64 << 10
_STA_UNSYNC: Final = 0x0040
_TIME_ERROR: Final = 5
_NETWORK_TYPES: Final = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "lustre", "ceph", "gpfs", "beegfs", "glusterfs", "9p", "afs", "wekafs", "pvfs2"}
)


class FolderFacts(msgspec.Struct):
    """A folder that the job depends on.

    Attributes:
        path: The folder.
        filesystem: Type of its file system; None when unknown.
        is_network: It lies on a network file system.
        free_bytes: Room left; None for network file systems that were not written to.
        total_bytes: Size of the file system.
        write_ns: Median time of writing 64 KiB durably; None when it was not tried or failed.
        error: Why it cannot be written to; empty when it can.
    """

    path: str
    filesystem: str | None = None
    is_network: bool = False
    free_bytes: int | None = None
    total_bytes: int | None = None
    write_ns: int | None = None
    error: str = ""


class NodeFacts(msgspec.Struct):
    """What `scope doctor` knows of one node.

    Attributes:
        version: Of this record.
        host: Name of the node.
        time_ns: When it was read, since the epoch.
        gpus: GPUs; empty without a driver.
        gpu_error: Why GPUs could not be read; empty when they could.
        rdma: RDMA ports.
        nets: Network interfaces.
        affinities: GPU-NIC pairs.
        modules: Kernel modules that matter.
        environment: Variables of the allow-list, without secrets.
        versions: Versions by name (`python`, `torch`, `kernel`, `driver`).
        python: Folder of the Python environment.
        run_folder: Where runs are written to; None when it was not named.
        clock_synchronised: The kernel's clock is steered; None when it does not tell.
        memlock_bytes: How much memory may be pinned; None for no limit.
        shm_bytes: Size of /dev/shm.
        problems: What could not be read.
    """

    version: int
    host: str
    time_ns: int
    gpus: list[GpuReading] = []
    gpu_error: str = ""
    rdma: list[RdmaPort] = []
    nets: list[NetDevice] = []
    affinities: list[Affinity] = []
    modules: list[str] = []
    environment: dict[str, str] = {}
    versions: dict[str, str] = {}
    python: FolderFacts | None = None
    run_folder: FolderFacts | None = None
    clock_synchronised: bool | None = None
    memlock_bytes: int | None = None
    shm_bytes: int | None = None
    problems: list[Problem] = []


def read_node_facts(
    *, tree: Tree | None = None, run_folder: Path | None = None, nvml_library: str | None = None
) -> NodeFacts:
    """Read this node.

    Args:
        tree: Where sysfs and proc lie.
        run_folder: Where runs will be written; a few small files are written there and removed.
        nvml_library: NVML library to load instead of the system's.
    """
    tree = tree or Tree()
    problems = Problems("doctor")
    facts = NodeFacts(FACTS_VERSION, socket.gethostname(), time.time_ns())
    facts.gpus, facts.gpu_error = _read_gpus(tree, problems, nvml_library)
    with closing(RdmaProbe(tree)) as rdma, closing(NetProbe(tree)) as nets:
        facts.rdma = rdma.read(problems)
        facts.nets = nets.read(problems)
    facts.affinities = read_affinities(tree, [gpu.identity for gpu in facts.gpus])
    facts.modules = _read_modules(tree)
    facts.environment = select_environment(os.environ)
    facts.versions = _read_versions(facts.gpus)
    facts.python = read_folder(Path(sys.prefix), tree, write=False)
    facts.run_folder = None if run_folder is None else read_folder(run_folder, tree, write=True)
    facts.clock_synchronised = _read_clock()
    soft = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    facts.memlock_bytes = None if soft == resource.RLIM_INFINITY else soft
    facts.shm_bytes = _size_of("/dev/shm")
    facts.problems = problems.found
    return facts


def select_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that steer collectives and devices, without those that look like secrets."""
    return {
        name: value
        for name, value in sorted(environment.items())
        if _VARIABLES.fullmatch(name) and not _SECRET.search(name)
    }


def read_folder(folder: Path, tree: Tree, *, write: bool) -> FolderFacts:
    """Return what is known of a folder.

    Args:
        folder: The folder; it need not exist yet.
        tree: Where proc lies, for the table of mounts.
        write: Write to it and measure.
    """
    facts = FolderFacts(str(folder))
    facts.filesystem = _filesystem_of(folder, tree)
    kind = facts.filesystem or ""
    facts.is_network = kind in _NETWORK_TYPES or kind.startswith("fuse")
    if facts.is_network and not write:
        # Asking a network file system for its size hangs when it does.
        return facts
    try:
        if write:
            folder.mkdir(parents=True, exist_ok=True)
            facts.write_ns = _time_writes(folder)
        status = os.statvfs(folder)
    except OSError as error:
        facts.error = str(error)
        return facts
    facts.free_bytes = status.f_bavail * status.f_frsize
    facts.total_bytes = status.f_blocks * status.f_frsize
    return facts


def _time_writes(folder: Path) -> int:
    times: list[int] = []
    path = folder / f".scope-doctor-{os.getpid()}"
    try:
        for _ in range(_PROBE_WRITES):
            started = time.monotonic_ns()
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
            try:
                os.write(descriptor, bytes(_PROBE_BYTES))
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            times.append(time.monotonic_ns() - started)
    finally:
        path.unlink(missing_ok=True)
    return sorted(times)[len(times) // 2]


def _filesystem_of(folder: Path, tree: Tree) -> str | None:
    wanted = os.path.abspath(folder)  # noqa: PTH100 - resolve() would ask the file system, which may hang
    best, kind = "", None
    try:
        lines = tree.read("/proc/self/mounts", limit=1 << 20).splitlines()
    except OSError:
        return None
    for line in lines:
        words = line.split()
        if len(words) < 3:
            continue
        place = words[1].replace("\\040", " ")
        inside = wanted == place or wanted.startswith(place.rstrip("/") + "/")
        if inside and len(place) >= len(best):
            best, kind = place, words[2]
    return kind


def _read_gpus(tree: Tree, problems: Problems, library: str | None) -> tuple[list[GpuReading], str]:
    probe = NvmlProbe(NvmlLibrary(library_path=library), tree, with_gpm=False)
    try:
        probe.open()
        readings = probe.read(problems)
    except (NvmlFailure, ScopeError) as error:
        return [], str(error)
    probe.close()
    return readings, ""


def _read_modules(tree: Tree) -> list[str]:
    try:
        lines = tree.read("/proc/modules", limit=1 << 20).splitlines()
    except OSError:
        return []
    wanted = {"nvidia_peermem", "nv_peer_mem", "nvidia", "gdrdrv", "mlx5_ib", "ib_uverbs"}
    return sorted({line.split()[0] for line in lines if line} & wanted)


def _read_versions(gpus: list[GpuReading]) -> dict[str, str]:
    versions = {"python": platform.python_version(), "kernel": platform.release()}
    for name, package in (("torch", "torch"), ("nccl", "nvidia-nccl-cu12"), ("scope", "stepscope")):
        try:
            versions[name] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    if gpus:
        versions["driver"] = gpus[0].identity.driver
    return versions


def _read_clock() -> bool | None:
    """Return whether the kernel's clock is steered (adjtimex), None where the call is refused."""
    libc = ctypes.CDLL(None, use_errno=True)
    buffer = ctypes.create_string_buffer(256)
    state = int(libc.adjtimex(buffer))
    if state < 0:
        return None
    status = ctypes.c_int.from_buffer(buffer, 40).value
    return state != _TIME_ERROR and not status & _STA_UNSYNC


def _size_of(path: str) -> int | None:
    try:
        status = os.statvfs(path)
    except OSError:
        return None
    return status.f_blocks * status.f_frsize
