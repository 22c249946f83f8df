"""What the sampling process and the serving process say to each other.

Samples go one way through a pipe, each with its length before it. What the sampler is about to do stands in a page of
memory that both map: a process that hangs cannot be asked.
"""

from __future__ import annotations

import mmap
import os
import struct
import time
from typing import Final, NamedTuple

import msgspec

from scope.probe.records import (
    Affinity,
    GpuReading,
    HostReading,
    NetDevice,
    NfsMount,
    Problem,
    RdmaPort,
    XidEvent,
)

COLLECTORS: Final = ("gpu", "gpm", "nvlink", "xid", "rdma", "affinity", "net", "nfs", "host")
"""Collectors of the sampling process; `training` runs in the serving process."""

LENGTH: Final = struct.Struct("=I")
MAX_SAMPLE_BYTES: Final = 16 << 20
EXIT_DRIVER_GONE: Final = 3
IDLE: Final = "idle"
_PAGE_BYTES: Final = 4_096
_PAGE: Final = struct.Struct("=QQ64s64sQ")


class SamplerSettings(msgspec.Struct, kw_only=True):
    """What the sampling process is told at its start.

    Attributes:
        collectors: Names out of `COLLECTORS`.
        interval_ns: From the start of one sample to the start of the next.
        slow_interval_ns: How often what changes rarely is read.
        root: What the paths of /sys, /proc and /dev are taken from.
        nvml_library: A library to load instead of the system's.
        avoid: Until when (CLOCK_MONOTONIC, ns) a GPU or collector must not be touched, by its name.
        page: Descriptor of the shared page.
        parent: Process id of the server; the sampling process does not outlive it. 0 for none.
    """

    collectors: list[str]
    interval_ns: int
    slow_interval_ns: int
    root: str = "/"
    nvml_library: str | None = None
    avoid: dict[str, int] = {}
    page: int = -1
    parent: int = 0


class Sample(msgspec.Struct, array_like=True):
    """One reading of everything.

    Attributes:
        sequence: Counts from 1 in each sampling process.
        time_ns: When it began, since the epoch.
        monotonic_ns: When it began, on the node's monotonic clock.
        durations_ns: Time taken by collector.
        unavailable: Reason by collector that could not be read at all.
        gpus: One reading a GPU.
        xids: Events since the sample before.
        rdma: RDMA ports.
        affinities: GPU-NIC pairs.
        nets: Network interfaces.
        nfs: NFS mounts.
        host: The node.
        problems: What could not be read.
        absent: Reason by collector that has nothing to read on this node, which is no fault.
    """

    sequence: int
    time_ns: int
    monotonic_ns: int
    durations_ns: dict[str, int] = {}
    unavailable: dict[str, str] = {}
    gpus: list[GpuReading] = []
    xids: list[XidEvent] = []
    rdma: list[RdmaPort] = []
    affinities: list[Affinity] = []
    nets: list[NetDevice] = []
    nfs: list[NfsMount] = []
    host: HostReading | None = None
    problems: list[Problem] = []
    absent: dict[str, str] = {}


class Announcement(NamedTuple):
    """What the sampler said that it would do next.

    Attributes:
        subject: Index or UUID of a GPU, or the name of a collector; empty between samples.
        call: The call, or `idle`.
        since_ns: When it said so, on the node's monotonic clock; 0 before the first time.
    """

    subject: str
    call: str
    since_ns: int


def _page_text(text: str) -> bytes:
    """Return a name as the page holds it; names of interfaces may be no UTF-8."""
    return text.encode("utf-8", "replace")[:64]


class SharedPage:
    """One page that the sampler writes and the server reads.

    Args:
        descriptor: Of a memory file; None makes a new one.
    """

    def __init__(self, descriptor: int | None = None) -> None:
        if descriptor is None:
            descriptor = os.memfd_create("scope-exporter")
            os.ftruncate(descriptor, _PAGE_BYTES)
        self.descriptor = descriptor
        self._memory = mmap.mmap(descriptor, _PAGE_BYTES)
        self._writes = 0

    def announce(self, subject: str, call: str) -> None:
        """Say what comes next."""
        self._writes += 1
        _PAGE.pack_into(
            self._memory, 0, self._writes, time.monotonic_ns(), _page_text(subject), _page_text(call), self._writes
        )

    def read(self) -> Announcement | None:
        """Return the last announcement, or None when it was being written just now."""
        first, since_ns, subject, call, last = _PAGE.unpack_from(self._memory, 0)
        if first != last:
            return None
        # A name that was cut may end within a character.
        names = [text.rstrip(b"\0").decode("utf-8", "replace") for text in (subject, call)]
        return Announcement(names[0], names[1], since_ns)

    def clear(self) -> None:
        """Forget what a process that is gone announced."""
        _PAGE.pack_into(self._memory, 0, 0, 0, b"", b"", 0)

    def close(self) -> None:
        """Unmap and close the page."""
        self._memory.close()
        os.close(self.descriptor)
