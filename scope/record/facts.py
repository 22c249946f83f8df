"""Facts of a training process that never change: host, device, interfaces, allowed environment, versions.

No NVML, no subprocess and no network: torch, /proc and /sys alone.
"""

# torch annotates only a part of itself.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

import os
import platform
import re
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import scope
from scope.run.schema import DeviceInfo, ModelInfo, NicInfo

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_ALLOWED: Final = re.compile(r"(NCCL|RCCL|TORCH|PYTORCH|CUDA|GLOO|OMP|MKL|KMP|FI|UCX)_[A-Z0-9_]+")
_SECRET: Final = re.compile(r"KEY|TOKEN|SECRET|PASS|CREDENTIAL|AUTH", re.IGNORECASE)
_MAX_VALUE: Final = 1024
_MAX_NICS: Final = 64


def read_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that may be recorded: those of the communication and math libraries, without secrets.

    Values longer than 1,024 characters are cut.
    """
    return {
        name: value[:_MAX_VALUE]
        for name, value in sorted(environment.items())
        if _ALLOWED.fullmatch(name) and not _SECRET.search(name)
    }


def read_own_start_ticks(*, proc: Path = Path("/proc")) -> int | None:
    """Return field 22 of /proc/PID/stat, the start of this process in clock ticks since boot, to be told from others.

    None where /proc is that of another namespace of process ids (a new one for which none was mounted): by its id there
    this process would be taken for another one.
    """
    try:
        number = str((proc / "self").readlink())
    except OSError:
        return None
    return _read_ticks(proc / number) if number == str(os.getpid()) else None


def _read_ticks(process: Path) -> int | None:
    try:
        text = (process / "stat").read_text()
        # The name of the program stands in parentheses and may itself hold spaces and parentheses.
        return int(text.rpartition(")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return None


def read_pid_namespace(*, proc: Path = Path("/proc")) -> int | None:
    """Return the number of the namespace that ids of processes count in, as `pid:[4026531836]` tells it."""
    try:
        return int(str((proc / "self" / "ns" / "pid").readlink()).removeprefix("pid:[").removesuffix("]"))
    except (OSError, ValueError):
        return None


def read_boot_id(*, proc: Path = Path("/proc")) -> str | None:
    """Return the id of this boot of the host."""
    return _read(proc / "sys/kernel/random/boot_id")


def process_age_ns(*, proc: Path = Path("/proc")) -> int | None:
    """Return how long ago this process began, to a clock tick (10 ms)."""
    ticks = _read_ticks(proc / "self")
    uptime = _read(proc / "uptime")
    if ticks is None or uptime is None:
        return None
    return max(0, int(float(uptime.split()[0]) * 1e9) - ticks * 1_000_000_000 // os.sysconf("SC_CLK_TCK"))


def read_nics(*, sys_class: Path = Path("/sys/class")) -> tuple[NicInfo, ...]:
    """Return the network interfaces of the host, InfiniBand devices first; loopback is left out."""
    found = [_rdma(path) for path in _entries(sys_class / "infiniband")] + [
        _ethernet(path) for path in _entries(sys_class / "net") if path.name != "lo"
    ]
    return tuple(found[:_MAX_NICS])


def read_device(index: int | None = None) -> DeviceInfo:
    """Return the device that torch computes on: the current CUDA device once CUDA is in use, else the CPU."""
    import torch

    if not (torch.cuda.is_available() and torch.cuda.is_initialized()):
        return DeviceInfo(
            kind="cpu", name=_cpu_name(), memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        )
    place = torch.cuda.current_device() if index is None else index
    properties = torch.cuda.get_device_properties(place)
    domain, bus, slot = (getattr(properties, f"pci_{part}_id", None) for part in ("domain", "bus", "device"))
    address = f"{domain:04x}:{bus:02x}:{slot:02x}.0" if None not in (domain, bus, slot) else None
    uuid = getattr(properties, "uuid", None)
    return DeviceInfo(
        kind="cuda",
        name=properties.name,
        index=place,
        uuid=f"GPU-{uuid}" if uuid else None,
        pci_bus_id=address,
        memory_bytes=properties.total_memory,
        numa_node=_number(Path("/sys/bus/pci/devices") / address / "numa_node") if address else None,
        num_multiprocessors=properties.multi_processor_count,
    )


def read_versions() -> dict[str, str]:
    """Return the versions of Scope, Python, torch, and what torch was built with."""
    import torch

    versions = {"scope": scope.__version__, "python": platform.python_version(), "torch": str(torch.__version__)}
    if torch.version.cuda:
        versions["cuda"] = str(torch.version.cuda)
    driver = _read(Path("/sys/module/nvidia/version"))
    if driver:
        versions["driver"] = driver
    if torch.cuda.is_available() and torch.distributed.is_available() and torch.distributed.is_nccl_available():
        from torch.cuda import nccl

        versions["nccl"] = ".".join(map(str, nccl.version()))
    return versions


def describe_model(models: Sequence[Any]) -> ModelInfo | None:
    """Return what is known of the model, from the outermost modules that are trained; `None` while there are none.

    Parameters are those of whole tensors where they are sharded as DTensors; a flattened shard of FSDP1 tells no more
    than its own size, so that their number is absent there.
    """
    import torch

    if not models:
        return None
    outermost = [getattr(model, "module", None) or getattr(model, "_orig_mod", None) or model for model in models]
    parameters = {id(each): each for model in models for each in model.parameters()}.values()
    sizes: Counter[str] = Counter()
    with torch._C.DisableTorchFunction():  # pyright: ignore[reportPrivateUsage] - modes of the program see none of it
        for each in parameters:
            sizes[str(each.dtype).removeprefix("torch.")] += each.numel()
    flattened = any(type(each).__name__ == "FlatParameter" or hasattr(each, "_is_flat_param") for each in parameters)
    return ModelInfo(
        name=" + ".join(type(model).__name__ for model in outermost),
        num_parameters=None if flattened else sizes.total(),
        dtype=sizes.most_common(1)[0][0] if sizes else None,
    )


def read_script() -> str | None:
    """Return the name of the program, without its arguments, which may hold secrets."""
    name = sys.argv[0] if sys.argv else ""
    return Path(name).name or None


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _rdma(path: Path) -> NicInfo:
    port = path / "ports" / "1"
    rate = re.match(r"([\d.]+) Gb/sec", _read(port / "rate") or "")
    state = _read(port / "state")
    return NicInfo(
        name=path.name,
        kind="infiniband",
        up="ACTIVE" in state if state else None,
        rate_bits_per_s=int(float(rate[1]) * 1e9) if rate else None,
        numa_node=_number(path / "device" / "numa_node"),
        pci_bus_id=_pci_address(path),
    )


def _ethernet(path: Path) -> NicInfo:
    rate = _number(path / "speed")
    state = _read(path / "operstate")
    return NicInfo(
        name=path.name,
        kind="ethernet" if (path / "device").exists() else "virtual",
        up=state == "up" if state and state != "unknown" else None,
        rate_bits_per_s=rate * 1_000_000 if rate and rate > 0 else None,
        numa_node=_number(path / "device" / "numa_node"),
        pci_bus_id=_pci_address(path),
    )


def _pci_address(path: Path) -> str | None:
    try:
        name = (path / "device").readlink().name
    except OSError:
        return None
    return name if re.fullmatch(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9]", name) else None


def _cpu_name() -> str | None:
    found = re.search(r"^model name\s*:\s*(.+)$", _read(Path("/proc/cpuinfo")) or "", re.MULTILINE)
    return found[1] if found else platform.machine() or None


def _number(path: Path) -> int | None:
    try:
        value = int(path.read_text())
    except (OSError, ValueError):
        return None
    return value if value >= 0 else None


def _read(path: Path) -> str | None:
    try:
        return path.read_text(errors="replace").strip() or None
    except OSError:
        return None
