"""GPU records as series."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from exporters import metrics as m
from scope.probe.nvml.tables import RECOVERY_ACTIONS, THROTTLE_REASONS
from scope.probe.xid import ANNOUNCED_XIDS, XID_ACTIONS
from scope.units import NS_PER_S

if TYPE_CHECKING:
    from exporters.counters import Unwrapper, XidCounts
    from exporters.series import SeriesSet
    from scope.probe.records import (
        C2cReading,
        FabricReading,
        GpuIdentity,
        GpuReading,
        MigReading,
        NvlinkReading,
    )

_PER_MILLI: Final = 1_000
_UP_STATES: Final = frozenset({1, 2})

Labels = tuple[str, str]


class GpuSeries:
    """Turns GPU readings into series, with what must be remembered between samples.

    Args:
        unwrapper: For the PCIe counters, which wrap.
        xids: Events so far.
    """

    def __init__(self, unwrapper: Unwrapper, xids: XidCounts) -> None:
        self._unwrapper = unwrapper
        self._xids = xids
        self._identities: dict[int, GpuIdentity] = {}
        self._faulty_links: set[tuple[str, int, str]] = set()
        # Bin 0 stands for what needed no repair and is told for the whole GPU only.
        self._repairing_links: set[tuple[str, int, int]] = set()

    def observe(self, readings: list[GpuReading]) -> None:
        """Take in a sample: remember names, unwrap counters, note links that had errors.

        Each sample must pass here, also those that no scrape will show: a counter may wrap between two scrapes.
        """
        for reading in readings:
            identity = reading.identity
            if identity.uuid:
                self._identities[identity.index] = identity
            for attribute in ("pcie_transmit_bytes", "pcie_receive_bytes"):
                raw = getattr(reading, attribute)
                if raw is not None:
                    setattr(reading, attribute, self._unwrapper.update((identity.uuid, attribute), raw))
            for link in reading.nvlinks:
                for kind, count in link.errors.items():
                    if count:
                        self._faulty_links.add((identity.uuid, link.link, kind))
                for number, count in link.fec.items():
                    if count and number:
                        self._repairing_links.add((identity.uuid, link.link, number))

    def identity(self, reading: GpuReading) -> GpuIdentity:
        """Return the GPU's full identity, from an earlier sample where this one could not ask for it."""
        known = self._identities.get(reading.identity.index)
        return known if known is not None and not reading.identity.uuid else reading.identity

    def add(self, series: SeriesSet, readings: list[GpuReading]) -> None:
        """Add the series of all GPUs."""
        for reading in readings:
            identity = self.identity(reading)
            labels = (str(identity.index), identity.uuid)
            self._add_identity(series, identity, labels)
            series.add(m.GPU_UP, labels, int(reading.state == "ok"))
            self._add_xids(series, identity, labels)
            if reading.state != "ok":
                continue
            add_basics(series, reading, labels)
            add_health(series, reading, labels)
            add_pcie(series, reading, labels)
            for name, ratio in reading.activity_ratio.items():
                series.add(m.GPU_ACTIVITY[name], (*labels, ""), ratio)
            for instance in reading.mig:
                add_mig(series, instance, labels)
            for link in reading.nvlinks:
                self._add_link(series, link, labels)
            add_link_totals(series, reading.nvlinks, labels)
            for c2c in reading.c2c:
                add_c2c(series, c2c, labels)

    def _add_identity(self, series: SeriesSet, identity: GpuIdentity, labels: Labels) -> None:
        node = "" if identity.numa_node is None else str(identity.numa_node)
        described = (identity.name, identity.pci_bus_id, node, identity.driver, identity.serial or "")
        series.add(m.GPU_INFO, (*labels, *described), 1)

    def _add_xids(self, series: SeriesSet, identity: GpuIdentity, labels: Labels) -> None:
        seen = self._xids.of(identity.pci_bus_id)
        for xid in ANNOUNCED_XIDS:
            if xid not in seen:
                series.add(m.GPU_XID_EVENTS, (*labels, str(xid), XID_ACTIONS[xid]), 0)
        for xid, (count, last_ns, action) in seen.items():
            series.add(m.GPU_XID_EVENTS, (*labels, str(xid), action), count)
            series.add(m.GPU_XID_LAST, (*labels, str(xid), action), last_ns / NS_PER_S)

    def _add_link(self, series: SeriesSet, link: NvlinkReading, labels: Labels) -> None:
        key = (*labels, str(link.link))
        series.add(m.NVLINK_TRANSMIT, (*key, "data"), link.data_transmit_bytes)
        series.add(m.NVLINK_TRANSMIT, (*key, "raw"), link.raw_transmit_bytes)
        series.add(m.NVLINK_RECEIVE, (*key, "data"), link.data_receive_bytes)
        series.add(m.NVLINK_RECEIVE, (*key, "raw"), link.raw_receive_bytes)
        if link.state is not None:
            # A sleeping link is a healthy one on an idle Hopper.
            series.add(m.NVLINK_UP, key, int(link.state in _UP_STATES))
        series.add(m.NVLINK_SPEED, key, link.speed_bytes_per_s)
        series.add(m.NVLINK_SYMBOL_ERRORS, key, link.symbol_error_ratio)
        if link.version or link.remote_pci:
            described = (link.version or "", link.remote_pci or "", link.remote_type or "")
            series.add(m.NVLINK_INFO, (*key, *described), 1)
        for kind, count in link.errors.items():
            if (labels[1], link.link, kind) in self._faulty_links:
                series.add(m.NVLINK_ERRORS, (*key, kind), count)
        for number, count in link.fec.items():
            if (labels[1], link.link, number) in self._repairing_links:
                series.add(m.NVLINK_FEC, (*key, str(number)), count)


def add_basics(series: SeriesSet, reading: GpuReading, labels: Labels) -> None:
    """Add utilization, memory, power, clocks and temperatures."""
    series.add(m.GPU_UTILIZATION, labels, reading.utilization_ratio)
    for attribute, metric in (m.GPU_VIDEO | m.GPU_MEMORY).items():
        series.add(metric, labels, getattr(reading, attribute))
    for metric, milli in (
        (m.GPU_POWER, reading.power_mw),
        (m.GPU_POWER_LIMIT, reading.power_limit_mw),
        (m.GPU_ENERGY, reading.energy_mj),
    ):
        series.add(metric, labels, None if milli is None else milli / _PER_MILLI)
    series.add(m.GPU_CLOCK, (*labels, "sm"), reading.sm_clock_hz)
    series.add(m.GPU_CLOCK, (*labels, "memory"), reading.memory_clock_hz)
    for sensor, celsius in reading.temperature_celsius.items():
        series.add(m.GPU_TEMPERATURE, (*labels, sensor), celsius)


def add_health(series: SeriesSet, reading: GpuReading, labels: Labels) -> None:
    """Add throttling, ECC, row remaps, the recovery that the driver asks for, and MIG mode."""
    if reading.throttle_mask is not None:
        for bit, reason in THROTTLE_REASONS.items():
            series.add(m.GPU_THROTTLE, (*labels, reason), int(bool(reading.throttle_mask & bit)))
    for reason, spent_ns in reading.throttle_ns.items():
        series.add(m.GPU_THROTTLE_SECONDS, (*labels, reason), spent_ns / NS_PER_S)
    for ecc in reading.ecc:
        series.add(m.GPU_ECC, (*labels, ecc.type, ecc.scope, ecc.location), ecc.count)
    for cause, rows in reading.remapped_rows.items():
        series.add(m.GPU_REMAPPED_ROWS, (*labels, cause), rows)
    series.add(m.GPU_REMAP_PENDING, labels, reading.row_remap_pending)
    series.add(m.GPU_REMAP_FAILURE, labels, reading.row_remap_failure)
    if reading.recovery_action is not None:
        for number, action in enumerate(RECOVERY_ACTIONS):
            series.add(m.GPU_RECOVERY, (*labels, action), int(number == reading.recovery_action))
        if reading.recovery_action >= len(RECOVERY_ACTIONS):
            series.add(m.GPU_RECOVERY, (*labels, "other"), 1)
    if reading.mig_enabled is not None:
        series.add(m.GPU_MIG_ENABLED, labels, int(reading.mig_enabled))
    if reading.fabric is not None:
        add_fabric(series, reading.fabric, labels)


def add_fabric(series: SeriesSet, fabric: FabricReading, labels: Labels) -> None:
    """Add the GPU's place in the NVLink fabric, and what is wrong with it."""
    series.add(m.GPU_FABRIC_INFO, (*labels, fabric.cluster, str(fabric.clique), fabric.configuration), 1)
    series.add(m.GPU_FABRIC_STATE, labels, fabric.state)
    for fault, there in fabric.faults.items():
        series.add(m.GPU_FABRIC_FAULT, (*labels, fault), there)


def add_link_totals(series: SeriesSet, links: list[NvlinkReading], labels: Labels) -> None:
    """Add what all links of a GPU have together: errors by type, repairs by bin."""
    errors: dict[str, int] = {}
    repairs: dict[int, int] = {}
    for link in links:
        for kind, count in link.errors.items():
            errors[kind] = errors.get(kind, 0) + count
        for number, count in link.fec.items():
            repairs[number] = repairs.get(number, 0) + count
    for kind, count in errors.items():
        series.add(m.NVLINK_GPU_ERRORS, (*labels, kind), count)
    for number, count in repairs.items():
        series.add(m.NVLINK_GPU_FEC, (*labels, str(number)), count)


def add_c2c(series: SeriesSet, link: C2cReading, labels: Labels) -> None:
    """Add one link between GPU and CPU."""
    key = (*labels, str(link.link))
    series.add(m.C2C_UP, key, link.up)
    series.add(m.C2C_SPEED, key, link.speed_bytes_per_s)
    series.add(m.C2C_LOW_POWER, key, link.low_power)
    for kind, count in link.errors.items():
        series.add(m.C2C_ERRORS, (*key, kind), count)


def add_pcie(series: SeriesSet, reading: GpuReading, labels: Labels) -> None:
    """Add PCIe traffic, errors and the link's state."""
    series.add(m.PCIE_TRANSMIT, labels, reading.pcie_transmit_bytes)
    series.add(m.PCIE_RECEIVE, labels, reading.pcie_receive_bytes)
    series.add(m.PCIE_REPLAYS, labels, reading.pcie_replays)
    for kind, count in reading.pcie_errors.items():
        series.add(m.PCIE_ERRORS, (*labels, kind), count)
    for attribute, metric in m.PCIE_LINK.items():
        series.add(metric, labels, getattr(reading, attribute))


def add_mig(series: SeriesSet, instance: MigReading, labels: Labels) -> None:
    """Add one MIG instance; what belongs to its parent is not repeated."""
    mig = f"{instance.gpu_instance}/{instance.compute_instance}"
    slices = "" if instance.num_slices is None else str(instance.num_slices)
    series.add(m.MIG_INFO, (*labels, mig, instance.uuid, instance.profile, slices), 1)
    series.add(m.MIG_MEMORY_TOTAL, (*labels, mig), instance.memory_total_bytes)
    series.add(m.MIG_MEMORY_USED, (*labels, mig), instance.memory_used_bytes)
    for name, ratio in instance.activity_ratio.items():
        series.add(m.GPU_ACTIVITY[name], (*labels, mig), ratio)
