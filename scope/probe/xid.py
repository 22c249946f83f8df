"""XIDs: what each number asks for, and a reader of the kernel's log, where they all appear.

The tiers follow NVIDIA's XID catalogue as of 2025-10.
"""

from __future__ import annotations

import errno
import os
import re
import time
from typing import TYPE_CHECKING, Final

from scope.probe.records import XidEvent

if TYPE_CHECKING:
    from scope.probe.tree import Problems, Tree

CATALOGUE_DATE: Final = "2025-10"

_TIERS: Final[dict[str, tuple[int, ...]]] = {
    "reset_gpu": (46, 48, 62, 64, 95, 109, 110, 119, 120, 136, 140, 143, 155, 156, 158),
    "reboot_node": (79, 151),
    "check_nvlink": (74, 144, 145, 146, 147, 148, 149, 150),
    "restart_application": (39, 40, 41, 68, 69, 94),
    "application_bug": (8, 11, 13, 25, 31, 32),
    "none": (43, 45, 63, 66, 92, 93, 121, 137, 154, 157),
}

XID_ACTIONS: Final[dict[int, str]] = {xid: action for action, xids in _TIERS.items() for xid in xids}
"""Action by XID."""

UNKNOWN_ACTION: Final = "unknown"
PAGING_ACTIONS: Final = ("reset_gpu", "reboot_node")
"""Actions that somebody must take now."""

ANNOUNCED_XIDS: Final = tuple(sorted(xid for action in (*PAGING_ACTIONS, "check_nvlink") for xid in _TIERS[action]))
"""XIDs whose counter exists at 0 before the first event, so that `increase()` sees the first one."""

_XID_LINE: Final = re.compile(rb"NVRM: Xid \(PCI:([0-9a-fA-F:.]+)\): (\d{1,3})(?!\d)")
"""NVIDIA's catalogue ends below 200; a number becomes a label, so that there must be an end to them."""
_SEQUENCE_FIELDS: Final = 3


def action_of(xid: int) -> str:
    """Return what an XID asks for; `unknown` for one that the catalogue does not have."""
    return XID_ACTIONS.get(xid, UNKNOWN_ACTION)


def parse_kernel_line(line: bytes, *, boot_time_ns: int) -> XidEvent | None:
    """Read one record of `/dev/kmsg`.

    Args:
        line: `priority,sequence,microseconds,flags;text`.
        boot_time_ns: Time of boot since the epoch, from which the record's clock counts.

    Returns:
        The event, or None when the line holds no XID.
    """
    match = _XID_LINE.search(line)
    if match is None:
        return None
    prefix = line.partition(b";")[0].split(b",")
    try:
        since_boot_us = int(prefix[2]) if len(prefix) >= _SEQUENCE_FIELDS else 0
    except ValueError:
        since_boot_us = 0
    return XidEvent("kmsg", _address(match[1].decode()), "", int(match[2]), boot_time_ns + since_boot_us * 1_000)


def _address(text: str) -> str:
    """Return the kernel's `0000:10:1c` or `0000:10:1c.0` in sysfs' form, function included."""
    text = text.lower()
    return text if "." in text else f"{text}.0"


class KernelLog:
    """Reads XIDs from `/dev/kmsg`, from the moment it is opened. It needs CAP_SYSLOG where dmesg is restricted.

    Args:
        tree: Where `/dev` lies; a plain file there is followed as it grows.
    """

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._descriptor: int | None = None
        self._pending = b""

    def open(self) -> None:
        """Begin at the end of the log.

        Raises:
            OSError: The log may not be read.
        """
        descriptor = os.open(self._tree.path("/dev/kmsg"), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        os.lseek(descriptor, 0, os.SEEK_END)
        self._descriptor = descriptor

    def read(self, problems: Problems) -> list[XidEvent]:
        """Return the XIDs logged since the last call, without waiting."""
        events: list[XidEvent] = []
        # Anew each time: the clock may have been set since the log was opened.
        boot_time_ns = time.time_ns() - time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        while self._descriptor is not None:
            try:
                record = os.read(self._descriptor, 8_192)
            except BlockingIOError:
                break
            except OSError as error:
                if error.errno == errno.EPIPE:
                    # The ring buffer went past our place; the next read goes on with the oldest record there is.
                    problems.add("lost_records", where="/dev/kmsg", message="the kernel's log ran over")
                    continue
                problems.add_os_error(error, where="/dev/kmsg")
                break
            if not record:
                break
            *lines, self._pending = (self._pending + record).split(b"\n")
            self._pending = self._pending[-4_096:]
            found = (parse_kernel_line(line, boot_time_ns=boot_time_ns) for line in lines)
            events.extend(event for event in found if event is not None)
        return events

    def close(self) -> None:
        """Stop reading."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
