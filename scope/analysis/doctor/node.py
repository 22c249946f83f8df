"""What is wrong with one node."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from scope.analysis.doctor.diagnosis import Diagnosis, join_names, sort_diagnoses
from scope.probe.nvml.tables import RECOVERY_ACTIONS
from scope.units import BITS_PER_BYTE, NS_PER_MS, format_bandwidth, format_bytes, format_duration

if TYPE_CHECKING:
    from collections.abc import Iterable

    from scope.probe.facts import FolderFacts, NodeFacts
    from scope.probe.records import GpuReading, NetDevice

_ACTIVE: Final = 4
_NVLINK_SPEEDS: Final = {"3.0": 25_781_000_000, "4.0": 26_562_000_000, "5.0": 53_125_000_000}
_SPEED_TOLERANCE: Final = 0.02
_SLOW_WRITE_NS: Final = 100 * NS_PER_MS
_LITTLE_ROOM_BYTES: Final = 10 * 10**9
_LITTLE_ROOM_RATIO: Final = 0.02
_DMABUF_KERNEL: Final = (5, 12)
_MEMLOCK_BYTES: Final = 1 << 30
_SHM_PER_GPU_BYTES: Final = 1 << 30
_MAX_REMAPPED_ROWS: Final = 512


def check_node(facts: NodeFacts, *, num_gpus: int | None = None) -> list[Diagnosis]:
    """Return what is wrong with a node, worst first.

    Args:
        facts: The node.
        num_gpus: How many GPUs it should have; None accepts what there is.
    """
    found = [
        *_check_gpu_count(facts, num_gpus),
        *(diagnosis for gpu in facts.gpus for diagnosis in _check_gpu(facts.host, gpu)),
        *_check_power_limits(facts),
        *_check_rdma(facts),
        *_check_gpudirect(facts),
        *_check_affinity(facts),
        *_check_interfaces(facts),
        *_check_sockets(facts),
        *_check_folders(facts),
        *_check_limits(facts),
    ]
    return sort_diagnoses(found)


def _check_gpu_count(facts: NodeFacts, num_gpus: int | None) -> list[Diagnosis]:
    if facts.gpu_error and (num_gpus or "nvidia" in facts.modules):
        action = "reboot after a driver update" if "mismatch" in facts.gpu_error else "nvidia-smi; check the driver"
        return [
            Diagnosis(
                check="gpus", severity="critical", what=f"GPUs cannot be read: {facts.gpu_error}", where=facts.host,
                action=action,
            )
        ]  # fmt: skip
    if num_gpus is not None and len(facts.gpus) != num_gpus:
        what = f"{len(facts.gpus)} GPUs are visible, {num_gpus} are expected"
        return [
            Diagnosis(check="gpus", severity="critical", what=what, where=facts.host, action="nvidia-smi -L; reboot")
        ]
    return []


def _check_gpu(host: str, gpu: GpuReading) -> list[Diagnosis]:
    where = f"{host} GPU {gpu.identity.index}"
    if gpu.state != "ok":
        return [
            Diagnosis(
                check="gpu_lost", severity="critical", what="the GPU does not answer", where=where, action="reboot"
            )
        ]
    return [*_check_memory_health(gpu, where), *_check_pcie(gpu, where), *_check_nvlink(gpu, where)]


def _check_memory_health(gpu: GpuReading, where: str) -> Iterable[Diagnosis]:
    errors = sum(e.count for e in gpu.ecc if (e.type, e.scope, e.location) == ("uncorrected", "volatile", "all"))
    if errors:
        what = f"{errors} uncorrected ECC errors since the driver was loaded"
        yield Diagnosis(check="ecc", severity="critical", what=what, where=where, action="reset the GPU before the job")
    if gpu.row_remap_failure:
        what = "a memory row could not be remapped"
        yield Diagnosis(check="row_remap", severity="critical", what=what, where=where, action="return the board")
    if gpu.row_remap_pending:
        what = "a row remap waits for a reset"
        yield Diagnosis(check="row_remap", severity="warning", what=what, where=where, action="reset the GPU")
    if gpu.remapped_rows.get("uncorrected", 0) >= _MAX_REMAPPED_ROWS:
        what = f"{gpu.remapped_rows['uncorrected']} rows were remapped"
        yield Diagnosis(check="row_remap", severity="warning", what=what, where=where, action="plan a replacement")
    if gpu.recovery_action:
        known = gpu.recovery_action < len(RECOVERY_ACTIONS)
        action = RECOVERY_ACTIONS[gpu.recovery_action] if known else f"action {gpu.recovery_action}"
        what = f"the driver asks for {action}"
        yield Diagnosis(check="recovery", severity="critical", what=what, where=where, action=f"drain; {action}")


def _check_pcie(gpu: GpuReading, where: str) -> Iterable[Diagnosis]:
    if gpu.pcie_width is not None and gpu.pcie_width_max is not None and gpu.pcie_width < gpu.pcie_width_max:
        what = f"PCIe has {gpu.pcie_width} of {gpu.pcie_width_max} lanes"
        yield Diagnosis(check="pcie_width", severity="warning", what=what, where=where, action="reseat card or riser")
    generation, best = gpu.pcie_generation, gpu.pcie_generation_max
    busy = (gpu.utilization_ratio or 0) > 0
    # An idle GPU lowers the generation on purpose.
    if generation is not None and best is not None and generation < best and busy:
        what = f"PCIe runs at generation {generation} of {best} although the GPU works"
        yield Diagnosis(check="pcie_speed", severity="warning", what=what, where=where, action="reseat; check the BIOS")


def _check_nvlink(gpu: GpuReading, where: str) -> Iterable[Diagnosis]:
    down = [str(link.link) for link in gpu.nvlinks if link.state == 0]
    if down and len(down) < len(gpu.nvlinks):
        what = f"{len(down)} of {len(gpu.nvlinks)} NVLinks are down"
        yield Diagnosis(
            check="nvlink_down", severity="critical", what=what, where=f"{where} links {join_names(down)}",
            action="look for NVLink XIDs; reset the node's GPUs; reseat",
        )  # fmt: skip
    for link in gpu.nvlinks:
        expected = _NVLINK_SPEEDS.get(link.version or "")
        speed = link.speed_bytes_per_s
        if link.state and expected and speed and speed < expected * (1 - _SPEED_TOLERANCE):
            what = f"NVLink runs at {format_bandwidth(speed)}, NVLink {link.version} does {format_bandwidth(expected)}"
            yield Diagnosis(
                check="nvlink_speed", severity="warning", what=what, where=f"{where} link {link.link}",
                action="reset the GPU; reseat",
            )  # fmt: skip


def _check_power_limits(facts: NodeFacts) -> Iterable[Diagnosis]:
    limits = {str(gpu.identity.index): gpu.power_limit_mw for gpu in facts.gpus if gpu.power_limit_mw is not None}
    if len(set(limits.values())) > 1:
        yield Diagnosis(
            check="power_limit", severity="warning", what="GPUs have different power limits", where=facts.host,
            action="nvidia-smi -pl; the GPU with the lowest limit paces its job",
            values={f"GPU {index}": f"{limit // 1_000} W" for index, limit in limits.items()},
        )  # fmt: skip


def _check_rdma(facts: NodeFacts) -> Iterable[Diagnosis]:
    best = max((port.rate_bytes_per_s or 0 for port in facts.rdma), default=0)
    for port in facts.rdma:
        where = f"{facts.host} {port.device} port {port.port}"
        if port.state is not None and port.state != _ACTIVE:
            what = f"the RDMA port is not active (state {port.state})"
            yield Diagnosis(check="rdma_down", severity="warning", what=what, where=where, action="cable, switch port")
        elif port.rate_bytes_per_s is not None and port.rate_bytes_per_s < best:
            rates = (port.rate_bytes_per_s * BITS_PER_BYTE / 1e9, best * BITS_PER_BYTE / 1e9)
            what = f"the port runs at {rates[0]:g} Gb/s, others of the node at {rates[1]:g} Gb/s"
            yield Diagnosis(check="rdma_rate", severity="warning", what=what, where=where, action="cable, transceiver")


def _check_gpudirect(facts: NodeFacts) -> Iterable[Diagnosis]:
    if not facts.gpus or not facts.rdma:
        return
    kernel = tuple(int(part) for part in facts.versions.get("kernel", "0.0").split(".")[:2] if part.isdecimal())
    peermem = {"nvidia_peermem", "nv_peer_mem"} & set(facts.modules)
    if not peermem and kernel < _DMABUF_KERNEL:
        yield Diagnosis(
            check="gpudirect", severity="critical",
            what="GPUDirect RDMA is off: neither nvidia_peermem nor DMA-BUF in this kernel",
            where=facts.host, action="modprobe nvidia_peermem",
        )  # fmt: skip
    elif not peermem:
        yield Diagnosis(
            check="gpudirect", severity="info",
            what="nvidia_peermem is not loaded: GPUDirect RDMA needs DMA-BUF (open kernel modules, NCCL 2.13)",
            where=facts.host, action="NCCL_DEBUG=INFO must show GDRDMA; else modprobe nvidia_peermem",
        )  # fmt: skip
    level = facts.environment.get("NCCL_NET_GDR_LEVEL", "")
    if level in {"0", "LOC"}:
        what = f"NCCL_NET_GDR_LEVEL={level} switches GPUDirect RDMA off"
        yield Diagnosis(check="gpudirect", severity="warning", what=what, where=facts.host, action="unset it")


def _check_affinity(facts: NodeFacts) -> Iterable[Diagnosis]:
    order = ("PIX", "PXB", "PHB", "NODE", "SYS")
    for gpu in facts.gpus:
        distances = [a.distance for a in facts.affinities if a.gpu_uuid == gpu.identity.uuid and a.distance in order]
        if distances and min(order.index(distance) for distance in distances) == order.index("SYS"):
            yield Diagnosis(
                check="gpu_nic", severity="warning", what="every NIC is on another socket than the GPU",
                where=f"{facts.host} GPU {gpu.identity.index}",
                action="bind ranks to GPUs with a near NIC; check the slots",
            )  # fmt: skip


def _check_interfaces(facts: NodeFacts) -> Iterable[Diagnosis]:
    for name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"):
        value = facts.environment.get(name)
        if value is None:
            continue
        chosen = choose_interfaces(value, facts.nets)
        bad = [device.name for device in chosen if not device.up]
        if not chosen and not value.lstrip("=^").startswith("lo"):
            what = f"{name}={value} matches no interface of this node"
            yield Diagnosis(
                check="interface", severity="critical", what=what, where=facts.host,
                action=f"interfaces here: {join_names([device.name for device in facts.nets])}",
            )  # fmt: skip
        elif bad and len(bad) == len(chosen):
            what = f"{name}={value} chooses an interface that is down"
            yield Diagnosis(check="interface", severity="critical", what=what, where=f"{facts.host} {join_names(bad)}",
                            action="choose one that is up")  # fmt: skip
        virtual = [device.name for device in chosen if device.virtual]
        if virtual and len(virtual) == len(chosen):
            what = f"{name}={value} chooses a virtual interface"
            yield Diagnosis(
                check="interface", severity="warning", what=what, where=f"{facts.host} {join_names(virtual)}",
                action="choose the physical interface that reaches the other nodes",
            )  # fmt: skip


def choose_interfaces(value: str, devices: list[NetDevice]) -> list[NetDevice]:
    """Return the interfaces that NCCL takes for a value of NCCL_SOCKET_IFNAME.

    Prefixes, `=` for exact names, `^` for all but these, as NCCL's documentation has it.
    """
    exclude, exact = value.startswith("^"), "=" in value[:2]
    names = [name for name in value.lstrip("^=").split(",") if name]

    def matches(device: NetDevice) -> bool:
        return any(device.name == name if exact else device.name.startswith(name) for name in names)

    return [device for device in devices if matches(device) != exclude]


def _check_sockets(facts: NodeFacts) -> Iterable[Diagnosis]:
    active = [port for port in facts.rdma if port.state == _ACTIVE]
    if not active:
        return
    for name, off in (("NCCL_IB_DISABLE", {"1"}), ("NCCL_NET", {"Socket", "SOCKET", "socket"})):
        if facts.environment.get(name) in off:
            what = (
                f"{name}={facts.environment[name]} sends collectives over sockets; {len(active)} RDMA ports are active"
            )
            yield Diagnosis(
                check="nccl_sockets", severity="critical", what=what, where=facts.host, action=f"unset {name}"
            )


def _check_folders(facts: NodeFacts) -> Iterable[Diagnosis]:
    python = facts.python
    if python is not None and python.is_network:
        what = f"the Python environment lies on {python.filesystem}: every rank of every node imports through it"
        yield Diagnosis(
            check="python_on_network", severity="warning", what=what, where=f"{facts.host} {python.path}",
            action="copy it to the node's own disk, or use a container image",
        )  # fmt: skip
    if facts.run_folder is not None:
        yield from _check_run_folder(facts.host, facts.run_folder)


def _check_run_folder(host: str, folder: FolderFacts) -> Iterable[Diagnosis]:
    where = f"{host} {folder.path}"
    if folder.error:
        what = f"the run directory cannot be written to: {folder.error}"
        yield Diagnosis(check="run_folder", severity="critical", what=what, where=where, action="mount, rights, quota")
        return
    free, total = folder.free_bytes, folder.total_bytes
    if free is not None and total and free < min(_LITTLE_ROOM_BYTES, _LITTLE_ROOM_RATIO * total):
        what = f"the run directory has {format_bytes(free)} left"
        yield Diagnosis(check="run_folder", severity="warning", what=what, where=where, action="make room")
    if folder.write_ns is not None and folder.write_ns > _SLOW_WRITE_NS:
        what = f"a durable write of 64 KiB takes {format_duration(folder.write_ns)}"
        yield Diagnosis(
            check="run_folder", severity="warning", what=what, where=where,
            action="checkpoints to it will be slow; recording itself writes to the node's spool",
        )  # fmt: skip


def _check_limits(facts: NodeFacts) -> Iterable[Diagnosis]:
    if facts.clock_synchronised is False:
        yield Diagnosis(
            check="clock", severity="warning", what="the clock is not synchronised", where=facts.host,
            action="start chrony or ntpd; times of ranks cannot be compared otherwise",
        )  # fmt: skip
    if facts.rdma and facts.memlock_bytes is not None and facts.memlock_bytes < _MEMLOCK_BYTES:
        what = f"only {format_bytes(facts.memlock_bytes)} may be pinned, which RDMA needs"
        yield Diagnosis(check="memlock", severity="critical", what=what, where=facts.host, action="ulimit -l unlimited")
    wanted = len(facts.gpus) * _SHM_PER_GPU_BYTES
    if facts.gpus and facts.shm_bytes is not None and facts.shm_bytes < wanted:
        what = (
            f"/dev/shm has {format_bytes(facts.shm_bytes)}; NCCL and data loaders of {len(facts.gpus)} ranks share it"
        )
        yield Diagnosis(
            check="shm", severity="warning", what=what, where=facts.host, action="larger /dev/shm (--shm-size)"
        )
