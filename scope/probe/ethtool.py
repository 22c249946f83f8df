"""Counters of a network driver by ioctl, as `ethtool -S` shows them; no privilege is needed."""

from __future__ import annotations

import array
import fcntl
import socket
import struct
from typing import Final

_SIOCETHTOOL: Final = 0x8946
_GSTRINGS: Final = 0x1B
_GSTATS: Final = 0x1D
_GSSET_INFO: Final = 0x37
_STATS_SET: Final = 1
_STRING_BYTES: Final = 32
_NAME_BYTES: Final = 16
MAX_COUNTERS: Final = 16_384


class Ethtool:
    """Reads driver counters; the names are asked for once a device.

    Only devices of this process's network namespace can be seen.
    """

    def __init__(self) -> None:
        self._socket: socket.socket | None = None
        self._names: dict[str, list[str]] = {}

    def read(self, device: str) -> dict[str, int]:
        """Return all counters of one device; nothing for a driver that has none.

        Raises:
            OSError: The device is gone or its driver refuses.
        """
        names = self._names.get(device)
        if names is None:
            names = self._names[device] = self._read_names(device)
        if not names:
            return {}
        buffer = bytearray(struct.pack("=II", _GSTATS, len(names)) + bytes(8 * len(names)))
        self._ask(device, buffer)
        if struct.unpack_from("=I", buffer, 4)[0] != len(names):
            # The driver changed its set (a channel more, say); its names must be read again.
            del self._names[device]
            return {}
        return dict(zip(names, struct.unpack_from(f"={len(names)}Q", buffer, 8), strict=True))

    def forget(self, alive: set[str]) -> None:
        """Drop what is known of devices that are gone."""
        for device in self._names.keys() - alive:
            del self._names[device]

    def close(self) -> None:
        """Close the socket."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _read_names(self, device: str) -> list[str]:
        request = bytearray(struct.pack("=IIQI", _GSSET_INFO, 0, 1 << _STATS_SET, 0))
        self._ask(device, request)
        _, _, mask, count = struct.unpack_from("=IIQI", request)
        if not mask or not count:
            return []
        count = min(count, MAX_COUNTERS)
        buffer = bytearray(struct.pack("=III", _GSTRINGS, _STATS_SET, count) + bytes(_STRING_BYTES * count))
        self._ask(device, buffer)
        places = range(12, 12 + _STRING_BYTES * count, _STRING_BYTES)
        raw = (bytes(buffer[place : place + _STRING_BYTES]) for place in places)
        return [name.partition(b"\0")[0].decode("ascii", "replace").strip() for name in raw]

    def _ask(self, device: str, data: bytearray) -> None:
        memory = array.array("B", data)
        address, _ = memory.buffer_info()
        request = struct.pack(f"={_NAME_BYTES}sQ16x", device.encode()[: _NAME_BYTES - 1], address)
        if self._socket is None:
            self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        fcntl.ioctl(self._socket.fileno(), _SIOCETHTOOL, request)
        data[:] = memory.tobytes()
