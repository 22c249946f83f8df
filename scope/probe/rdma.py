"""InfiniBand and RoCE ports: `/sys/class/infiniband/DEVICE/ports/N`.

Data counters are words of four bytes there and bytes here. Drivers differ in which counters they have, and a file may
vanish, fail or hold text such as `N/A (no PMA)`: each costs itself alone.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from scope.probe.plausible import is_plausible
from scope.probe.records import RdmaPort
from scope.probe.tree import CounterFiles, Problems, Tree, error_kind
from scope.units import BITS_PER_BYTE

if TYPE_CHECKING:
    from collections.abc import Callable

BASE: Final = "/sys/class/infiniband"
WORD_BYTES: Final = 4
_WORD_COUNTERS: Final = {"port_xmit_data": "port_xmit_data_bytes", "port_rcv_data": "port_rcv_data_bytes"}
_RATE: Final = re.compile(r"(\d+(?:\.\d+)?) *Gb/sec", re.ASCII)
_NUMBER: Final = re.compile(r"\d{1,3}(?!\d)", re.ASCII)
MAX_HW_COUNTERS: Final = 64
MAX_COUNTERS: Final = 64
MAX_DEVICES: Final = 64
MAX_PORTS: Final = 16
_RELIST_SAMPLES: Final = 60
_PORT: Final = re.compile(r"[0-9]{1,3}")


class RdmaProbe:
    """Reads all RDMA ports; counter files stay open between samples.

    Args:
        tree: Where sysfs lies.
    """

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._files = CounterFiles(tree)
        self._ports: list[tuple[RdmaPort, list[tuple[str, str]], list[tuple[str, str]]]] = []
        self._listed: list[str] = []
        self._reads = 0

    def read(self, problems: Problems, may_touch: Callable[[str], bool] = lambda _device: True) -> list[RdmaPort]:
        """Return one record a port.

        Args:
            problems: Told of every file that failed.
            may_touch: Asked before a device is read; one that may not be touched is left out.
        """
        if self._reads % _RELIST_SAMPLES == 0 or not self._is_current():
            self._list(problems, may_touch)
        self._reads += 1
        return [self._read_port(*port, problems) for port in self._ports if may_touch(port[0].device)]

    def close(self) -> None:
        """Close all files."""
        self._files.close()

    def _is_current(self) -> bool:
        return self._listed == self._tree.list(BASE)

    def _list(self, problems: Problems, may_touch: Callable[[str], bool]) -> None:
        self._files.close()
        self._ports = []
        self._listed = self._tree.list(BASE)
        for device in _first(self._listed, MAX_DEVICES, BASE, problems):
            if not may_touch(device):
                continue
            numbers = [name for name in self._tree.list(f"{BASE}/{device}/ports") if _PORT.fullmatch(name)]
            for port in _first(numbers, MAX_PORTS, f"{BASE}/{device}/ports", problems):
                folder = f"{BASE}/{device}/ports/{port}"
                found = self._describe(device, int(port), problems)
                counters = self._list_counters(f"{folder}/counters", MAX_COUNTERS, problems)
                hardware = self._list_counters(f"{folder}/hw_counters", MAX_HW_COUNTERS, problems)
                self._ports.append((found, counters, hardware))

    def _list_counters(self, folder: str, most: int, problems: Problems) -> list[tuple[str, str]]:
        names = [name for name in self._tree.list(folder) if name != "lifespan"]
        return [(name, f"{folder}/{name}") for name in _first(names, most, folder, problems)]

    def _describe(self, device: str, port: int, problems: Problems) -> RdmaPort:
        folder = f"{BASE}/{device}"
        link = self._text(f"{folder}/ports/{port}/link_layer", problems)
        netdev = self._optional(f"{folder}/ports/{port}/gid_attrs/ndevs/0")
        if not netdev:
            devices = self._tree.list(f"{folder}/device/net")
            netdev = devices[0] if devices else ""
        address = self._tree.resolve(f"{folder}/device").rpartition("/")[2]
        node = self._optional(f"{folder}/device/numa_node")
        return RdmaPort(
            device,
            port,
            link_layer=link,
            netdev=netdev,
            pci_bus_id=address if ":" in address else "",
            numa_node=int(node) if _PORT.fullmatch(node) else None,
            board_id=self._optional(f"{folder}/board_id"),
            firmware=self._optional(f"{folder}/fw_ver"),
            hca_type=self._optional(f"{folder}/hca_type"),
        )

    def _read_port(
        self, known: RdmaPort, counters: list[tuple[str, str]], hardware: list[tuple[str, str]], problems: Problems
    ) -> RdmaPort:
        folder = f"{BASE}/{known.device}/ports/{known.port}"
        reading = RdmaPort(
            known.device,
            known.port,
            state=self._leading_number(f"{folder}/state", problems),
            physical_state=self._leading_number(f"{folder}/phys_state", problems),
            rate_bytes_per_s=self._rate(f"{folder}/rate", problems),
            link_layer=known.link_layer,
            netdev=known.netdev,
            pci_bus_id=known.pci_bus_id,
            numa_node=known.numa_node,
            board_id=known.board_id,
            firmware=known.firmware,
            hca_type=known.hca_type,
        )
        for name, path in counters:
            own_name = _WORD_COUNTERS.get(name)
            value = self._counter(path, problems, unit=1 if own_name is None else WORD_BYTES)
            if value is not None:
                reading.counters[own_name or name] = value
        for name, path in hardware:
            value = self._counter(path, problems)
            if value is not None:
                reading.hw_counters[name] = value
        return reading

    def _counter(self, path: str, problems: Problems, *, unit: int = 1) -> int | None:
        """Return a counter times its unit."""
        try:
            content = self._files.read(path).strip()
        except OSError as error:
            problems.add(error_kind(error), where=path, message=str(error))
            return None
        if content.isdigit() and len(content) <= 20:
            count = int(content)
            if is_plausible(count, "counter32") and is_plausible(count * unit, "counter"):
                return count * unit
            problems.add("implausible", where=path, message=f"{count} is not possible")
            return None
        # "N/A (no PMA)" is how a driver says that it has none.
        if not content.startswith(b"N/A"):
            problems.add("invalid", where=path, message=f"no number: {content[:40]!r}")
        return None

    def _leading_number(self, path: str, problems: Problems) -> int | None:
        match = _NUMBER.match(self._text(path, problems))
        return int(match[0]) if match else None

    def _rate(self, path: str, problems: Problems) -> int | None:
        match = _RATE.match(self._text(path, problems))
        return round(float(match[1]) * 1e9) // BITS_PER_BYTE if match else None

    def _text(self, path: str, problems: Problems) -> str:
        try:
            return self._files.read(path).decode("utf-8", "replace").strip()
        except OSError as error:
            problems.add(error_kind(error), where=path, message=str(error))
            return ""

    def _optional(self, path: str) -> str:
        try:
            return self._tree.read(path)
        except OSError:
            return ""


def _first(names: list[str], most: int, where: str, problems: Problems) -> list[str]:
    """Return the first names, and say so when there are more: no tree makes the exporter grow without end."""
    if len(names) > most:
        problems.add("too_many", where=where, message=f"{len(names)} entries; the first {most} are kept")
    return names[:most]
