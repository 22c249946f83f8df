"""One GPU: everything that NVML tells of it, each figure by itself, so that one refusal costs one figure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from scope.probe.nvml.c2c import C2cReader
from scope.probe.nvml.fabric import FabricReader
from scope.probe.nvml.fields import FieldReader, Key
from scope.probe.nvml.gpm import GpmReader
from scope.probe.nvml.library import (
    GPU_NOT_FOUND,
    INVALID_ARGUMENT,
    GpuHandle,
    NvmlFailure,
    NvmlLibrary,
    sysfs_address,
    text,
)
from scope.probe.nvml.mig import MigReader
from scope.probe.nvml.nvlink import NvlinkReader
from scope.probe.nvml.tables import ECC_LOCATIONS, ECC_TOTALS, PCIE_ERRORS, THROTTLE_TIMES
from scope.probe.plausible import is_plausible
from scope.probe.records import EccCount, GpuIdentity, GpuReading

if TYPE_CHECKING:
    from collections.abc import Callable

    from scope.probe.tree import Problems

_HZ_PER_MHZ: Final = 1_000_000
_MEMORY_INFO_V2: Final = 0x02000028
_FAST_FIELDS: Final = (
    "POWER_AVERAGE",
    "TOTAL_ENERGY_CONSUMPTION",
    "ENERGY",
    "MEMORY_TEMP",
    "PCIE_COUNT_TX_BYTES",
    "PCIE_COUNT_RX_BYTES",
    *THROTTLE_TIMES,
)
_SLOW_FIELDS: Final = (
    "REMAPPED_COR",
    "REMAPPED_UNC",
    "REMAPPED_PENDING",
    "REMAPPED_FAILURE",
    "GET_GPU_RECOVERY_ACTION",
    "PCIE_REPLAY_COUNTER",
    *PCIE_ERRORS,
    *ECC_TOTALS,
)
_PLAIN_FIELDS: Final = {
    "POWER_AVERAGE": ("power_mw", "power_mw"),
    "TOTAL_ENERGY_CONSUMPTION": ("energy_mj", "counter"),
    "ENERGY": ("energy_mj", "counter"),
    "PCIE_COUNT_TX_BYTES": ("pcie_transmit_bytes", "counter32"),
    "PCIE_COUNT_RX_BYTES": ("pcie_receive_bytes", "counter32"),
    "REMAPPED_PENDING": ("row_remap_pending", "flag"),
    "REMAPPED_FAILURE": ("row_remap_failure", "flag"),
    "GET_GPU_RECOVERY_ACTION": ("recovery_action", "recovery_action"),
    "PCIE_REPLAY_COUNTER": ("pcie_replays", "counter32"),
}
_GROUPED_FIELDS: Final = {
    "MEMORY_TEMP": ("temperature_celsius", "memory", "temperature_celsius"),
    "REMAPPED_COR": ("remapped_rows", "corrected", "rows"),
    "REMAPPED_UNC": ("remapped_rows", "uncorrected", "rows"),
    **{name: ("throttle_ns", reason, "counter") for name, reason in THROTTLE_TIMES.items()},
    **{name: ("pcie_errors", kind, "counter32") for name, kind in PCIE_ERRORS.items()},
}

_VIDEO_CALLS: Final = {
    "encoder_ratio": "nvmlDeviceGetEncoderUtilization",
    "decoder_ratio": "nvmlDeviceGetDecoderUtilization",
}


class GpuReader:
    """Reads one GPU again and again.

    A figure that the GPU does not have is asked for once; `probe_again` forgets that.

    Args:
        library: The opened NVML.
        identity: Which GPU.
        handle: Its handle.
        with_gpm: Read GPM activity.
        with_nvlink: Read NVLink.
    """

    def __init__(
        self,
        library: NvmlLibrary,
        identity: GpuIdentity,
        handle: Any,
        *,
        with_gpm: bool = True,
        with_nvlink: bool = True,
    ) -> None:
        self.identity = identity
        # The index is what calls are announced under: it is known before any call of the GPU itself.
        self._gpu = GpuHandle(library, str(identity.index), handle)
        self._with_gpm = with_gpm
        self._with_nvlink = with_nvlink
        self._absent: set[str] = set()
        self._gpm: GpmReader | None = None
        self._slow = GpuReading(identity)
        self._fast_fields = self._fields(_FAST_FIELDS)
        self._slow_fields = self._fields(_SLOW_FIELDS)
        self._nvlink = NvlinkReader(self._gpu)
        self._c2c = C2cReader(self._gpu)
        self._fabric = FabricReader(self._gpu)
        self._mig = MigReader(self._gpu)

    def read(self, problems: Problems, now_ns: int, *, slow: bool) -> GpuReading:
        """Return all that this GPU tells.

        Args:
            problems: Told of every figure that failed.
            now_ns: A monotonic clock.
            slow: Also ask for what changes rarely; otherwise the last answers stand.

        Raises:
            NvmlFailure: The GPU is lost, or the driver is gone; other failures cost one figure each.
        """
        if slow:
            self._read_slow(problems)
        reading = msgspec.structs.replace(self._slow, temperature_celsius={}, throttle_ns={})
        self._read_fields(reading, self._fast_fields, problems)
        self._read_fast_calls(reading, problems)
        if self._with_gpm and not reading.mig_enabled:
            reading.activity_ratio = self._read_gpm(problems, now_ns)
        if self._with_nvlink:
            links = self._guarded("nvlink", lambda: self._nvlink.read(self._reporter(problems), slow=slow), problems)
            reading.nvlinks = links or []
        if reading.mig_enabled:
            report = self._reporter(problems)
            mig = self._guarded("mig", lambda: self._mig.read(now_ns, report, with_gpm=self._with_gpm), problems)
            reading.mig = mig or []
        return reading

    def probe_again(self) -> None:
        """Ask once more for everything that was absent."""
        self._absent.clear()
        self._fast_fields.probe_again()
        self._slow_fields.probe_again()
        self._nvlink.probe_again()
        self._c2c.probe_again()

    def _read_slow(self, problems: Problems) -> None:
        before = self._slow.mig_enabled
        self._slow = GpuReading(self.identity)
        self._read_fields(self._slow, self._slow_fields, problems)
        self._read_slow_calls(self._slow, problems)
        if self._with_nvlink:
            report = self._reporter(problems)
            self._slow.c2c = self._guarded("c2c", lambda: self._c2c.read(report), problems) or []
            if "fabric" not in self._absent:
                self._slow.fabric = self._guarded("fabric", self._fabric.read, problems)
        if before is not None and before != self._slow.mig_enabled:
            # What a GPU has depends on whether it is split: row remaps and NVLink come and go with the mode.
            self.probe_again()

    def _fields(self, names: tuple[str, ...]) -> FieldReader:
        keys: list[Key] = [(name, 0) for name in names]
        return FieldReader(self._gpu, keys)

    def _reporter(self, problems: Problems) -> Callable[[str, str], None]:
        def report(error: str, where: str) -> None:
            problems.add(error, where=f"gpu {self.identity.index} {where}")

        return report

    def _read_fields(self, reading: GpuReading, fields: FieldReader, problems: Problems) -> None:
        report = self._reporter(problems)
        values: dict[Key, float] = self._guarded("fields", lambda: fields.read(report), problems) or {}
        for (name, _), value in values.items():
            if name in ECC_TOTALS:
                self._keep_ecc(reading, name, value, report)
                continue
            plain = _PLAIN_FIELDS.get(name)
            kind = plain[1] if plain else _GROUPED_FIELDS[name][2]
            if not is_plausible(value, kind):
                report("implausible", name)
            elif plain:
                setattr(reading, plain[0], int(value))
            else:
                group, key, _ = _GROUPED_FIELDS[name]
                getattr(reading, group)[key] = int(value)

    def _keep_ecc(self, reading: GpuReading, name: str, value: float, report: Callable[[str, str], None]) -> None:
        if is_plausible(value, "counter32"):
            kind, scope = ECC_TOTALS[name]
            reading.ecc.append(EccCount(kind, scope, "all", int(value)))
        else:
            report("implausible", name)

    def _read_fast_calls(self, reading: GpuReading, problems: Problems) -> None:
        used = self._ask("nvmlDeviceGetUtilizationRates", problems)
        if used is not None and self._sane(used.gpu, "utilization_percent", "utilization", problems):
            reading.utilization_ratio = used.gpu / 100
        if used is not None and self._sane(used.memory, "utilization_percent", "memory utilization", problems):
            reading.memory_utilization_ratio = used.memory / 100
        for attribute, call in _VIDEO_CALLS.items():
            # Percent, and the length of its window.
            busy = self._ask(call, problems)
            if busy is not None and self._sane(busy[0], "utilization_percent", call, problems):
                setattr(reading, attribute, busy[0] / 100)
        self._read_memory(reading, problems)
        if reading.power_mw is None:
            reading.power_mw = self._number("nvmlDeviceGetPowerUsage", "power_mw", problems)
        for attribute, clock in (("sm_clock_hz", 1), ("memory_clock_hz", 2)):
            mhz = self._number("nvmlDeviceGetClockInfo", "clock_mhz", problems, clock)
            setattr(reading, attribute, None if mhz is None else mhz * _HZ_PER_MHZ)
        core = self._number("nvmlDeviceGetTemperature", "temperature_celsius", problems, 0)
        if core is not None:
            reading.temperature_celsius["core"] = core
        margin = self._number("nvmlDeviceGetMarginTemperature", "margin_celsius", problems)
        if margin is not None:
            reading.temperature_celsius["margin"] = margin
        reading.throttle_mask = self._number("nvmlDeviceGetCurrentClocksEventReasons", "bits", problems)

    def _read_memory(self, reading: GpuReading, problems: Problems) -> None:
        """Read memory in the newer form, whose `used` leaves out what the driver keeps, else in the older."""
        memory = self._ask("nvmlDeviceGetMemoryInfo", problems, _MEMORY_INFO_V2, tag="_v2")
        names = ("total", "used", "free", "reserved")
        if memory is None:
            memory = self._ask("nvmlDeviceGetMemoryInfo", problems)
            names = names[:3]
        if memory is None:
            return
        for name in names:
            value = int(getattr(memory, name))
            if self._sane(value, "memory_bytes", f"memory {name}", problems):
                setattr(reading, f"memory_{name}_bytes", value)

    def _read_slow_calls(self, reading: GpuReading, problems: Problems) -> None:
        reading.power_limit_mw = self._number("nvmlDeviceGetEnforcedPowerLimit", "power_mw", problems)
        for attribute, call, kind in (
            ("pcie_generation", "nvmlDeviceGetCurrPcieLinkGeneration", "pcie_generation"),
            ("pcie_generation_max", "nvmlDeviceGetMaxPcieLinkGeneration", "pcie_generation"),
            ("pcie_width", "nvmlDeviceGetCurrPcieLinkWidth", "pcie_width"),
            ("pcie_width_max", "nvmlDeviceGetMaxPcieLinkWidth", "pcie_width"),
        ):
            setattr(reading, attribute, self._number(call, kind, problems))
        mode = self._ask("nvmlDeviceGetMigMode", problems)
        reading.mig_enabled = None if mode is None else bool(mode[0])
        self._read_ecc_locations(reading, problems)
        running: list[Any] = self._ask("nvmlDeviceGetComputeRunningProcesses", problems) or []
        # Inside a container, NVML gives 0 for a process of another one.
        reading.pids = sorted({int(process.pid) for process in running if process.pid})

    def _read_ecc_locations(self, reading: GpuReading, problems: Problems) -> None:
        call = "nvmlDeviceGetMemoryErrorCounter"
        for kind_number, kind in enumerate(("corrected", "uncorrected")):
            for scope_number, scope in enumerate(("volatile", "aggregate")):
                for place, location in ECC_LOCATIONS.items():
                    tag = f"[{kind},{scope},{location}]"
                    arguments = (kind_number, scope_number, place)
                    count = self._ask(call, problems, *arguments, tag=tag)
                    if count is not None and self._sane(count, "counter32", call + tag, problems):
                        reading.ecc.append(EccCount(kind, scope, location, int(count)))

    def _read_gpm(self, problems: Problems, now_ns: int) -> dict[str, float]:
        if "gpm" in self._absent:
            return {}
        if self._gpm is None:
            gpm = GpmReader(self._gpu)
            supported = self._guarded("nvmlGpmQueryDeviceSupport", gpm.is_supported, problems)
            if not supported:
                self._absent.add("gpm")
                return {}
            self._gpm = gpm
        reader = self._gpm
        return self._guarded("gpm", lambda: reader.read(now_ns, self._reporter(problems)), problems) or {}

    def _number(self, call: str, kind: str, problems: Problems, *arguments: Any) -> int | None:
        value = self._ask(call, problems, *arguments, tag=f"[{arguments[0]}]" if arguments else "")
        return int(value) if value is not None and self._sane(value, kind, call, problems) else None

    def _sane(self, value: float, kind: str, where: str, problems: Problems) -> bool:
        if is_plausible(value, kind):
            return True
        problems.add("implausible", where=f"gpu {self.identity.index} {where}", message=f"{value} is not possible")
        return False

    def _ask(self, call: str, problems: Problems, *arguments: Any, tag: str = "") -> Any:
        key = call + tag
        if key in self._absent:
            return None
        return self._guarded(key, lambda: self._gpu.ask(call, *arguments), problems)

    def _guarded(self, key: str, read: Callable[[], Any], problems: Problems) -> Any:
        """Return what `read` gives; None when it failed in a way that concerns this figure alone."""
        try:
            return read()
        except NvmlFailure as failure:
            if failure.lost or failure.driver_gone:
                raise
            if failure.code == INVALID_ARGUMENT:
                self._check_handle()
            if failure.absent:
                self._absent.add(key)
            else:
                problems.add(failure.name, where=f"gpu {self.identity.index} {key}", message=str(failure))
            return None

    def _check_handle(self) -> None:
        """Tell an argument that the driver does not know from a handle that is none any more, after a reset, say.

        Raises:
            NvmlFailure: The GPU cannot even name itself.
        """
        try:
            self._gpu.ask("nvmlDeviceGetUUID")
        except NvmlFailure as failure:
            raise failure if failure.driver_gone else NvmlFailure(GPU_NOT_FOUND) from None


def read_identity(library: NvmlLibrary, index: int) -> tuple[GpuIdentity, Any]:
    """Return what names the GPU with this index, and its handle.

    Raises:
        NvmlFailure: The GPU gives no handle or no UUID.
    """
    gpu = str(index)
    handle = library.call(gpu, "nvmlDeviceGetHandleByIndex", index)
    identity = GpuIdentity(index, text(library.call(gpu, "nvmlDeviceGetUUID", handle)))

    def ask(name: str) -> Any:
        try:
            return library.call(gpu, name, handle)
        except NvmlFailure as failure:
            if failure.lost:
                raise
            return None

    identity.name = text(ask("nvmlDeviceGetName") or "")
    pci = ask("nvmlDeviceGetPciInfo")
    identity.pci_bus_id = "" if pci is None else sysfs_address(text(pci.busId))
    serial = ask("nvmlDeviceGetSerial")
    identity.serial = None if serial is None else text(serial)
    return identity, handle
