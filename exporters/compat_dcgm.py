"""The names, units and labels of dcgm-exporter, for dashboards that exist (`--compat dcgm`).

Values are in DCGM's units: percent, MiB, MHz, millijoules. `DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL` is left out on purpose:
it is called a counter and is a rate in an unnamed unit. The traffic gauges here are true rates in bytes a second.
Of a MIG GPU, each GPU instance has its own PROF_* series with GPU_I_PROFILE and GPU_I_ID (empty for a GPU that is not
split, which is no label at all); what belongs to the whole GPU stands once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from exporters.series import Kind, Metric, Value
from scope.units import NS_PER_S

if TYPE_CHECKING:
    from exporters.counters import XidCounts
    from exporters.series import SeriesSet
    from scope.probe.records import GpuReading

LABELS: Final = ("gpu", "UUID", "pci_bus_id", "device", "modelName", "Hostname", "DCGM_FI_DRIVER_VERSION")
INSTANCE_LABELS: Final = ("GPU_I_PROFILE", "GPU_I_ID")
_MIB: Final = 1 << 20
_MHZ: Final = 1_000_000
_PERCENT: Final = 100
_MILLI: Final = 1_000
_MIN_WINDOW_NS: Final = NS_PER_S // 2

Take = Callable[["GpuReading"], Value | None]


def _metric(name: str, kind: Kind, text: str) -> Metric:
    return Metric(f"DCGM_FI_{name}", kind, text, LABELS)


def _scaled(attribute: str, divisor: int) -> Take:
    def take(reading: GpuReading) -> Value | None:
        value: int | None = getattr(reading, attribute)
        return None if value is None else value // divisor if divisor > 1 else value

    return take


def _ecc(kind: str, scope: str) -> Take:
    def take(reading: GpuReading) -> Value | None:
        return next((e.count for e in reading.ecc if (e.type, e.scope, e.location) == (kind, scope, "all")), None)

    return take


def _watts(attribute: str) -> Take:
    def take(reading: GpuReading) -> Value | None:
        value: int | None = getattr(reading, attribute)
        return None if value is None else value / _MILLI

    return take


def _percent(attribute: str) -> Take:
    def take(reading: GpuReading) -> Value | None:
        ratio: float | None = getattr(reading, attribute)
        return None if ratio is None else round(ratio * _PERCENT)

    return take


def _activity_metric(name: str, text: str) -> Metric:
    return Metric(f"DCGM_FI_PROF_{name}", "gauge", text, (*LABELS, *INSTANCE_LABELS))


_TABLE: Final[tuple[tuple[Metric, Take], ...]] = (
    (_metric("DEV_GPU_UTIL", "gauge", "GPU utilization (in %)."), _percent("utilization_ratio")),
    (
        _metric("DEV_MEM_COPY_UTIL", "gauge", "Memory utilization (in %)."),
        _percent("memory_utilization_ratio"),
    ),
    (_metric("DEV_ENC_UTIL", "gauge", "Encoder utilization (in %)."), _percent("encoder_ratio")),
    (_metric("DEV_DEC_UTIL", "gauge", "Decoder utilization (in %)."), _percent("decoder_ratio")),
    (_metric("DEV_SM_CLOCK", "gauge", "SM clock frequency (in MHz)."), _scaled("sm_clock_hz", _MHZ)),
    (_metric("DEV_MEM_CLOCK", "gauge", "Memory clock frequency (in MHz)."), _scaled("memory_clock_hz", _MHZ)),
    (_metric("DEV_GPU_TEMP", "gauge", "GPU temperature (in C)."), lambda r: r.temperature_celsius.get("core")),
    (_metric("DEV_MEMORY_TEMP", "gauge", "Memory temperature (in C)."), lambda r: r.temperature_celsius.get("memory")),
    (_metric("DEV_POWER_USAGE", "gauge", "Power draw (in W)."), _watts("power_mw")),
    (_metric("DEV_POWER_MGMT_LIMIT", "gauge", "Power limit (in W)."), _watts("power_limit_mw")),
    (_metric("DEV_TOTAL_ENERGY_CONSUMPTION", "counter", "Energy since boot (in mJ)."), _scaled("energy_mj", 1)),
    (_metric("DEV_FB_TOTAL", "gauge", "Framebuffer memory (in MiB)."), _scaled("memory_total_bytes", _MIB)),
    (_metric("DEV_FB_USED", "gauge", "Framebuffer memory used (in MiB)."), _scaled("memory_used_bytes", _MIB)),
    (_metric("DEV_FB_FREE", "gauge", "Framebuffer memory free (in MiB)."), _scaled("memory_free_bytes", _MIB)),
    (
        _metric("DEV_FB_RESERVED", "gauge", "Framebuffer memory reserved (in MiB)."),
        _scaled("memory_reserved_bytes", _MIB),
    ),
    (_metric("DEV_PCIE_REPLAY_COUNTER", "counter", "PCIe retries."), _scaled("pcie_replays", 1)),
    (_metric("DEV_CLOCK_THROTTLE_REASONS", "gauge", "Bits of throttle reasons."), _scaled("throttle_mask", 1)),
    (_metric("DEV_ECC_SBE_VOL_TOTAL", "counter", "Single-bit volatile ECC errors."), _ecc("corrected", "volatile")),
    (_metric("DEV_ECC_DBE_VOL_TOTAL", "counter", "Double-bit volatile ECC errors."), _ecc("uncorrected", "volatile")),
    (_metric("DEV_ECC_SBE_AGG_TOTAL", "counter", "Single-bit aggregate ECC errors."), _ecc("corrected", "aggregate")),
    (_metric("DEV_ECC_DBE_AGG_TOTAL", "counter", "Double-bit aggregate ECC errors."), _ecc("uncorrected", "aggregate")),
    (
        _metric("DEV_UNCORRECTABLE_REMAPPED_ROWS", "counter", "Rows remapped for uncorrectable errors."),
        lambda r: r.remapped_rows.get("uncorrected"),
    ),
    (
        _metric("DEV_CORRECTABLE_REMAPPED_ROWS", "counter", "Rows remapped for correctable errors."),
        lambda r: r.remapped_rows.get("corrected"),
    ),
    (
        _metric("DEV_ROW_REMAP_FAILURE", "gauge", "Whether remapping of rows has failed."),
        _scaled("row_remap_failure", 1),
    ),
    (_metric("DEV_ROW_REMAP_PENDING", "gauge", "Whether a remap is pending."), _scaled("row_remap_pending", 1)),
)
_ACTIVITIES: Final[tuple[tuple[Metric, str], ...]] = (
    (_activity_metric("GR_ENGINE_ACTIVE", "Ratio of time the graphics engine is active."), "graphics"),
    (_activity_metric("SM_ACTIVE", "Ratio of SMs that are busy."), "sm"),
    (_activity_metric("SM_UTIL_RATIO", "Ratio of SMs that are busy."), "sm"),
    (_activity_metric("SM_OCCUPANCY", "Ratio of resident warps."), "sm_occupancy"),
    (_activity_metric("PIPE_TENSOR_ACTIVE", "Ratio of cycles tensor pipes are active."), "tensor"),
    (_activity_metric("TENSOR_UTIL_RATIO", "Ratio of cycles tensor pipes are active."), "tensor"),
    (_activity_metric("DRAM_ACTIVE", "Ratio of cycles memory is active."), "dram"),
    (_activity_metric("DRAM_UTIL_RATIO", "Ratio of cycles memory is active."), "dram"),
    (_activity_metric("PIPE_FP64_ACTIVE", "Ratio of cycles FP64 pipes are active."), "fp64"),
    (_activity_metric("PIPE_FP32_ACTIVE", "Ratio of cycles FP32 pipes are active."), "fp32"),
    (_activity_metric("PIPE_FP16_ACTIVE", "Ratio of cycles FP16 pipes are active."), "fp16"),
)
_XID: Final = _metric("DEV_XID_ERRORS", "gauge", "Last XID; 0 before the first.")
_RATES: Final = {
    "nvlink_transmit": _metric("PROF_NVLINK_TX_BYTES", "gauge", "Bytes a second sent over NVLink."),
    "nvlink_receive": _metric("PROF_NVLINK_RX_BYTES", "gauge", "Bytes a second received over NVLink."),
    "pcie_transmit": _metric("PROF_PCIE_TX_BYTES", "gauge", "Bytes a second sent over PCIe."),
    "pcie_receive": _metric("PROF_PCIE_RX_BYTES", "gauge", "Bytes a second received over PCIe."),
}


class DcgmNames:
    """Shows GPUs under dcgm-exporter's names, with rates from one sample to the next.

    Args:
        hostname: Value of the label Hostname.
    """

    def __init__(self, hostname: str) -> None:
        self._hostname = hostname
        self._last: dict[str, tuple[int, dict[str, int]]] = {}
        self._rates: dict[str, dict[str, float]] = {}

    def observe(self, readings: list[GpuReading]) -> None:
        """Take in a sample whose counters are unwrapped already."""
        for reading in readings:
            uuid = reading.identity.uuid
            if reading.state != "ok":
                self._last.pop(uuid, None)
                self._rates.pop(uuid, None)
                continue
            totals = _totals(reading)
            last = self._last.get(uuid)
            if last is not None:
                window_ns = reading.read_ns - last[0]
                if window_ns < _MIN_WINDOW_NS:
                    continue
                self._rates[uuid] = {
                    name: (total - last[1][name]) * NS_PER_S / window_ns
                    for name, total in totals.items()
                    if name in last[1] and total >= last[1][name]
                }
            self._last[uuid] = (reading.read_ns, totals)

    def add(self, series: SeriesSet, readings: list[GpuReading], xids: XidCounts) -> None:
        """Add the series of all GPUs that answer."""
        for reading in readings:
            if reading.state != "ok":
                continue
            labels = self._labels(reading)
            for metric, take in _TABLE:
                series.add(metric, labels, take(reading))
            seen = xids.of(reading.identity.pci_bus_id)
            last = max(seen, key=lambda xid: seen[xid][1], default=0)
            series.add(_XID, labels, last)
            self._add_activities(series, reading, labels)
            for name, rate in self._rates.get(reading.identity.uuid, {}).items():
                series.add(_RATES[name], labels, rate)

    def _add_activities(self, series: SeriesSet, reading: GpuReading, labels: tuple[str, ...]) -> None:
        """Add what GPM tells, of the GPU or, when it is split, of each GPU instance."""
        parts = [("", "", reading.activity_ratio)]
        parts += [(part.profile, str(part.gpu_instance), part.activity_ratio) for part in reading.mig]
        for profile, instance, ratios in parts:
            for metric, name in _ACTIVITIES:
                # Further compute instances of a GPU instance tell none.
                series.add(metric, (*labels, profile, instance), ratios.get(name))

    def _labels(self, reading: GpuReading) -> tuple[str, ...]:
        identity = reading.identity
        domain, _, rest = identity.pci_bus_id.upper().partition(":")
        index = str(identity.index)
        address = f"{domain:0>8}:{rest}"
        return (index, identity.uuid, address, f"nvidia{index}", identity.name, self._hostname, identity.driver)


def _totals(reading: GpuReading) -> dict[str, int]:
    totals: dict[str, int] = {}
    for name, attribute in (("pcie_transmit", "pcie_transmit_bytes"), ("pcie_receive", "pcie_receive_bytes")):
        value = getattr(reading, attribute)
        if value is not None:
            totals[name] = value
    for name, attribute in (("nvlink_transmit", "data_transmit_bytes"), ("nvlink_receive", "data_receive_bytes")):
        values = [getattr(link, attribute) for link in reading.nvlinks]
        if values and all(value is not None for value in values):
            totals[name] = sum(values)
    return totals
