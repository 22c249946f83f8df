"""How near each NIC stands to each GPU, from the chain of PCIe bridges that sysfs shows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from scope.probe.rdma import BASE
from scope.probe.records import Affinity, GpuIdentity

if TYPE_CHECKING:
    from scope.probe.tree import Tree

_PCI: Final = "/sys/bus/pci/devices"


def read_affinities(tree: Tree, gpus: list[GpuIdentity]) -> list[Affinity]:
    """Return the distance of every pair of GPU and RDMA device.

    Args:
        tree: Where sysfs lies.
        gpus: The GPUs; one without an address is left out.
    """
    devices = [(name, tree.resolve(f"{BASE}/{name}/device")) for name in tree.list(BASE)]
    found: list[Affinity] = []
    for gpu in gpus:
        if not gpu.pci_bus_id or not gpu.uuid:
            continue
        path = tree.resolve(f"{_PCI}/{gpu.pci_bus_id}")
        for name, device in devices:
            distance = classify(path, device, _node(tree, path), _node(tree, device))
            found.append(Affinity(gpu.uuid, name, distance))
    return found


def classify(gpu_path: str, nic_path: str, gpu_node: int, nic_node: int) -> str:
    """Return the class of a pair, in the words of `nvidia-smi topo`.

    Args:
        gpu_path: Real sysfs path of the GPU, with all bridges above it.
        nic_path: The same of the NIC.
        gpu_node: NUMA node, -1 when it has none.
        nic_node: The same of the NIC.

    Returns:
        `PIX` at most one bridge each way below the common one, `PXB` more of them, `PHB` the same host bridge, `NODE`
        the same NUMA node, `SYS` another node, `unknown` when sysfs does not tell.

    Examples:
        >>> root = "/sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0"
        >>> classify(f"{root}/0000:02:00.0/0000:03:00.0", f"{root}/0000:02:01.0/0000:04:00.0", 0, 0)
        'PIX'
        >>> classify(
        ...     "/sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0", "/sys/devices/pci0000:80/0000:80:01.0/x:", 0, 1
        ... )
        'SYS'
    """
    gpu, nic = _bridges(gpu_path), _bridges(nic_path)
    if not gpu or not nic:
        return "unknown"
    common = 0
    for left, right in zip(gpu, nic, strict=False):
        if left != right:
            break
        common += 1
    # Element 0 is the host bridge; a common element below it is a PCIe switch or root port.
    if common > 1:
        between = max(len(gpu), len(nic)) - common - 1
        return "PIX" if between <= 1 else "PXB"
    if common == 1:
        return "PHB"
    if gpu_node < 0 or nic_node < 0:
        return "unknown"
    return "NODE" if gpu_node == nic_node else "SYS"


def _bridges(path: str) -> list[str]:
    parts = path.split("/")
    for place, part in enumerate(parts):
        if part.startswith("pci") and ":" in part:
            return [name for name in parts[place:] if ":" in name]
    return []


def _node(tree: Tree, path: str) -> int:
    try:
        return int(tree.read(f"{path}/numa_node"))
    except (OSError, ValueError):
        return -1
