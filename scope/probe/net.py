"""Network interfaces: kernel statistics, and from the driver the pause frames of priority flow control.

RDMA traffic does not pass here; `scope.probe.rdma` has it.
"""

from __future__ import annotations

import re
import socket
from typing import TYPE_CHECKING, Final

from scope.probe.ethtool import Ethtool
from scope.probe.plausible import is_plausible
from scope.probe.records import NetDevice
from scope.probe.tree import CounterFiles, Problems, Tree, error_kind
from scope.units import BITS_PER_BYTE, NS_PER_US

if TYPE_CHECKING:
    from collections.abc import Callable

_BASE: Final = "/sys/class/net"
MAX_DEVICES: Final = 64
STATISTICS: Final = (
    "rx_bytes",
    "tx_bytes",
    "rx_packets",
    "tx_packets",
    "rx_errors",
    "tx_errors",
    "rx_dropped",
    "tx_dropped",
)
DRIVER_COUNTERS: Final = frozenset(
    {
        "rx_discards_phy",
        "tx_pause_storm_warning_events",
        "tx_pause_storm_error_events",
        "link_down_events_phy",
        "rx_symbol_err_phy",
        "rx_crc_errors_phy",
        "rx_pcs_symbol_err_phy",
        "rx_corrected_bits_phy",
        "outbound_pci_stalled_rd",
        "outbound_pci_stalled_wr",
        "rx_out_of_buffer",
    }
)
"""Counters of drivers that tell of faults; a port has about a thousand, which nobody could pay for."""

_PAUSE: Final = re.compile(r"(rx|tx)_prio([0-7])_pause(_duration)?")
_MAX_DIGITS: Final = 20  # of 64 bits
_VIRTUAL: Final = "/devices/virtual/"


class NetProbe:
    """Reads all interfaces of this network namespace but the loopback.

    Args:
        tree: Where sysfs lies. Drivers are asked too, about the interfaces that this network namespace has under the
            same name and number: a tree of the host's, seen from a container, may be another's.
    """

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._files = CounterFiles(tree)
        self._ethtool = Ethtool()
        self._without_counters: set[str] = set()
        self._known: set[str] = set()

    def read(self, problems: Problems, may_touch: Callable[[str], bool] = lambda _device: True) -> list[NetDevice]:
        """Return one record an interface.

        Args:
            problems: Told of every file and driver that failed.
            may_touch: Asked before a device is read; one that may not be touched is left out.
        """
        names = [
            name for name in self._tree.list(_BASE) if name != "lo" and self._tree.exists(f"{_BASE}/{name}/statistics")
        ]
        if len(names) > MAX_DEVICES:
            problems.add("too_many", where=_BASE, message=f"{len(names)} interfaces; the first {MAX_DEVICES} are kept")
        names = names[:MAX_DEVICES]
        self._forget(set(names))
        return [self._read_device(name, problems) for name in names if may_touch(name)]

    def close(self) -> None:
        """Close all files and the socket."""
        self._files.close()
        self._ethtool.close()

    def _forget(self, alive: set[str]) -> None:
        for gone in self._known - alive:
            self._files.forget(f"{_BASE}/{gone}/")
        self._known = alive
        self._without_counters &= alive
        self._ethtool.forget(alive)

    def _read_device(self, name: str, problems: Problems) -> NetDevice:
        folder = f"{_BASE}/{name}"
        virtual = _VIRTUAL in self._tree.resolve(folder) + "/"
        reading = NetDevice(name, up=self._text(f"{folder}/operstate", problems) == "up", virtual=virtual)
        for counter in STATISTICS:
            value = self._number(f"{folder}/statistics/{counter}", problems)
            if value is not None:
                reading.statistics[counter] = value
        reading.carrier_downs = self._number(f"{folder}/carrier_down_count", problems)
        if reading.up and not virtual:
            reading.speed_bytes_per_s = self._speed(folder)
        if not virtual and self._is_here(name):
            self._read_driver(reading, problems)
        return reading

    def _is_here(self, name: str) -> bool:
        try:
            return int(self._tree.read(f"{_BASE}/{name}/ifindex")) == socket.if_nametoindex(name)
        except (OSError, ValueError):
            return False

    def _speed(self, folder: str) -> int | None:
        """Return the speed; the kernel refuses to tell it of an interface that is down, and gives -1 for unknown."""
        try:
            megabits = int(self._tree.read(f"{folder}/speed"))
        except (OSError, ValueError):
            return None
        return megabits * 1_000_000 // BITS_PER_BYTE if megabits > 0 else None

    def _read_driver(self, reading: NetDevice, problems: Problems) -> None:
        if reading.name in self._without_counters:
            return
        try:
            counters = self._ethtool.read(reading.name)
        except OSError as error:
            if error_kind(error) == "not_supported":
                # This driver has no counters, and never will have; any other may be in a reset just now.
                self._without_counters.add(reading.name)
            elif error_kind(error) != "no_device":
                problems.add_os_error(error, where=f"ethtool {reading.name}")
            return
        take_driver_counters(reading, counters, problems)

    def _number(self, path: str, problems: Problems) -> int | None:
        text = self._text(path, problems)
        if text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS:
            if is_plausible(int(text), "counter"):
                return int(text)
            problems.add("implausible", where=path, message=f"{text} is not possible")
        elif text:
            problems.add("invalid", where=path, message=f"no number: {text[:40]!r}")
        return None

    def _text(self, path: str, problems: Problems) -> str:
        try:
            return self._files.read(path).decode("utf-8", "replace").strip()
        except OSError as error:
            problems.add(error_kind(error), where=path, message=str(error))
            return ""


def take_driver_counters(reading: NetDevice, counters: dict[str, int], problems: Problems) -> None:
    """Keep of a driver's counters the pause frames and those that tell of faults.

    Args:
        reading: Where they are put; pause durations, microseconds in mlx5, become nanoseconds.
        counters: All counters by the driver's names.
        problems: Told of those that cannot be.
    """
    for name, value in counters.items():
        match = None if name in DRIVER_COUNTERS else _PAUSE.fullmatch(name)
        if name not in DRIVER_COUNTERS and match is None:
            continue
        size = value * NS_PER_US if match is not None and match[3] else value
        if not (is_plausible(value, "counter32") and is_plausible(size, "counter")):
            problems.add("implausible", where=f"ethtool {reading.name} {name}", message=f"{value} is not possible")
        elif match is None:
            reading.driver_counters[name] = size
        else:
            (reading.pause_ns if match[3] else reading.pause_frames)[f"{match[2]}/{match[1]}"] = size
