"""All GPUs of a node: one reading each, however the others fare, and the XIDs that NVML reported meanwhile."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from scope.probe.nvml.gpu import GpuReader, read_identity
from scope.probe.nvml.library import UNINITIALIZED, NvmlFailure, NvmlLibrary, text
from scope.probe.plausible import is_plausible
from scope.probe.records import GpuIdentity, GpuReading, XidEvent
from scope.units import NS_PER_S

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from scope.probe.tree import Problems, Tree

_XID_EVENT: Final = 0x8
_MAX_EVENTS: Final = 256
_REPROBE_NS: Final = 600 * NS_PER_S


class NvmlProbe:
    """Reads every GPU of this node.

    Args:
        library: NVML, not yet opened.
        tree: Where sysfs lies, for NUMA nodes.
        slow_every_ns: How often what changes rarely is asked for.
        with_gpm: Read GPM activity.
        with_nvlink: Read NVLink.
        clock_ns: A monotonic clock.
    """

    def __init__(
        self,
        library: NvmlLibrary,
        tree: Tree,
        *,
        slow_every_ns: int = 10 * NS_PER_S,
        with_gpm: bool = True,
        with_nvlink: bool = True,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._library = library
        self._tree = tree
        self._slow_every_ns = slow_every_ns
        self._with_gpm = with_gpm
        self._with_nvlink = with_nvlink
        self._clock_ns = clock_ns
        self._readers: dict[int, GpuReader] = {}
        self._known: dict[int, GpuIdentity] = {}
        self._event_set: Any = None
        self._next_slow_ns = 0
        self._next_reprobe_ns = 0

    def open(self, avoid: Collection[str] = ()) -> None:
        """Open NVML and find the GPUs.

        Args:
            avoid: Index or UUID of GPUs that must not be touched.

        Raises:
            NvmlFailure: NVML cannot be initialised.
            InputError: The library that was named cannot be loaded.
        """
        self._library.open()
        count = int(self._library.call("", "nvmlDeviceGetCount"))
        for index in range(count):
            self._known[index] = GpuIdentity(index, "")
            if str(index) not in avoid:
                self._find(index)
        self._listen()

    def read(self, problems: Problems, avoid: Collection[str] = ()) -> list[GpuReading]:
        """Return one reading a GPU; one that is lost or avoided has its identity and state alone.

        Args:
            problems: Told of everything that failed.
            avoid: Index or UUID of GPUs that must not be touched.

        Raises:
            NvmlFailure: The driver is gone; open a new library.
        """
        now_ns = self._clock_ns()
        slow = now_ns >= self._next_slow_ns
        if slow:
            self._next_slow_ns = now_ns + self._slow_every_ns
        if now_ns >= self._next_reprobe_ns:
            self._next_reprobe_ns = now_ns + _REPROBE_NS
            self._count_again()
            for reader in self._readers.values():
                reader.probe_again()
        readings: list[GpuReading] = []
        for index, identity in self._known.items():
            if str(index) in avoid or (identity.uuid and identity.uuid in avoid):
                readings.append(GpuReading(identity, state="quarantined"))
            else:
                readings.append(self._read_one(index, problems, slow=slow))
        return readings

    def read_events(self, problems: Problems, now_ns: int) -> list[XidEvent]:
        """Return the XIDs reported since the last call, without waiting.

        Args:
            problems: Told when events cannot be read.
            now_ns: Time since the epoch that the events are given.
        """
        events: list[XidEvent] = []
        # Also those that are none of ours count: a driver that tells of events without end is left for the next sample.
        for _ in range(_MAX_EVENTS if self._event_set is not None else 0):
            try:
                data = self._library.call("", "nvmlEventSetWait_v2", self._event_set, 0)
            except NvmlFailure as failure:
                if failure.name != "timeout":
                    problems.add(failure.name, where="nvmlEventSetWait_v2", message=str(failure))
                break
            if int(data.eventType) != _XID_EVENT:
                continue
            xid = int(data.eventData)
            if not is_plausible(xid, "xid"):
                problems.add("implausible", where="nvmlEventSetWait_v2", message=f"there is no XID {xid}")
                continue
            uuid, address = self._whose(data.device)
            events.append(XidEvent("nvml", address, uuid, xid, now_ns))
        return events

    def close(self) -> None:
        """Shut NVML down."""
        self._library.close()

    @property
    def identities(self) -> list[GpuIdentity]:
        """The GPUs that were found, those that could not be asked with an empty UUID."""
        return list(self._known.values())

    def _count_again(self) -> None:
        """Notice GPUs that came or went: NVML finds them when it is initialised, so it must be opened anew."""
        try:
            count = int(self._library.call("", "nvmlDeviceGetCount"))
        except NvmlFailure as failure:
            if failure.driver_gone:
                raise
            return
        if count != len(self._known):
            raise NvmlFailure(UNINITIALIZED)

    def _find(self, index: int) -> GpuReader | None:
        try:
            identity, handle = read_identity(self._library, index)
        except NvmlFailure as failure:
            if failure.driver_gone:
                raise
            return None
        identity.numa_node = self._numa_node(identity.pci_bus_id)
        identity.driver = self._driver()
        self._known[index] = identity
        reader = GpuReader(self._library, identity, handle, with_gpm=self._with_gpm, with_nvlink=self._with_nvlink)
        self._readers[index] = reader
        # A reader that is new has no older answers to fall back on.
        self._next_slow_ns = 0
        return reader

    def _read_one(self, index: int, problems: Problems, *, slow: bool) -> GpuReading:
        started_ns = self._clock_ns()
        reader = self._readers.get(index) or self._find(index)
        if reader is None:
            problems.add("gpu_is_lost", where=f"gpu {index}", message="the GPU gives no handle")
            return GpuReading(self._known[index], state="lost")
        try:
            reading = reader.read(problems, started_ns, slow=slow)
        except NvmlFailure as failure:
            if failure.driver_gone:
                raise
            problems.add(failure.name, where=f"gpu {index}", message=str(failure))
            # The handle may be stale after a reset, so the next sample looks the GPU up again.
            self._readers.pop(index, None)
            return GpuReading(self._known[index], state="lost")
        reading.read_ns = started_ns
        return reading

    def _numa_node(self, address: str) -> int | None:
        try:
            node = int(self._tree.read(f"/sys/bus/pci/devices/{address}/numa_node")) if address else -1
        except (OSError, ValueError):
            return None
        return node if node >= 0 else None

    def _driver(self) -> str:
        try:
            return text(self._library.call("", "nvmlSystemGetDriverVersion"))
        except NvmlFailure:
            return ""

    def _listen(self) -> None:
        """Ask for XID events where the GPUs have them; without, the kernel's log is what is left."""
        try:
            event_set = self._library.call("", "nvmlEventSetCreate")
        except NvmlFailure:
            return
        registered = 0
        for index in self._readers:
            try:
                handle = self._library.call(str(index), "nvmlDeviceGetHandleByIndex", index)
                self._library.call(str(index), "nvmlDeviceRegisterEvents", handle, _XID_EVENT, event_set)
                registered += 1
            except NvmlFailure:
                continue
        self._event_set = event_set if registered else None

    def _whose(self, handle: Any) -> tuple[str, str]:
        try:
            uuid = text(self._library.call("", "nvmlDeviceGetUUID", handle))
        except NvmlFailure:
            return "", ""
        for identity in self._known.values():
            if identity.uuid == uuid:
                return uuid, identity.pci_bus_id
        return uuid, ""
