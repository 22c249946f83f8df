"""Records of the network, storage and host as series: one function a kind of record."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from exporters import metrics as m
from scope.units import NS_PER_S

if TYPE_CHECKING:
    from exporters.series import SeriesSet
    from scope.probe.records import Affinity, HostReading, NetDevice, NfsMount, RdmaPort

_RDMA_OWN: Final = {
    "port_xmit_data_bytes": m.RDMA_TRANSMIT,
    "port_rcv_data_bytes": m.RDMA_RECEIVE,
    "port_xmit_packets": m.RDMA_TRANSMIT_PACKETS,
    "port_rcv_packets": m.RDMA_RECEIVE_PACKETS,
    "port_xmit_wait": m.RDMA_WAIT,
}
_NET_OWN: Final = {
    "rx_bytes": m.NET_RECEIVE,
    "tx_bytes": m.NET_TRANSMIT,
    "rx_packets": m.NET_PACKETS_RECEIVE,
    "tx_packets": m.NET_PACKETS_TRANSMIT,
}


def add_rdma(series: SeriesSet, ports: list[RdmaPort]) -> None:
    """Add the series of RDMA ports."""
    for port in ports:
        labels = (port.device, str(port.port))
        node = "" if port.numa_node is None else str(port.numa_node)
        series.add(m.RDMA_INFO, (*labels, port.netdev, port.pci_bus_id, node, port.link_layer), 1)
        series.add(m.RDMA_STATE, labels, port.state)
        series.add(m.RDMA_PHYSICAL_STATE, labels, port.physical_state)
        series.add(m.RDMA_RATE, labels, port.rate_bytes_per_s)
        for name, value in port.counters.items():
            metric = _RDMA_OWN.get(name)
            if metric is not None:
                series.add(metric, labels, value)
            else:
                series.add(m.RDMA_COUNTER, (*labels, name), value)
        for name, value in port.hw_counters.items():
            series.add(m.RDMA_HARDWARE, (*labels, name), value)


def add_affinities(series: SeriesSet, pairs: list[Affinity]) -> None:
    """Add the matrix of GPUs and NICs."""
    for pair in pairs:
        series.add(m.GPU_NIC_INFO, (pair.gpu_uuid, pair.device, pair.distance), 1)


def add_nets(series: SeriesSet, devices: list[NetDevice]) -> None:
    """Add the series of network interfaces."""
    for device in devices:
        labels = (device.name,)
        series.add(m.NET_UP, labels, int(device.up))
        series.add(m.NET_SPEED, labels, device.speed_bytes_per_s)
        series.add(m.NET_CARRIER_DOWNS, labels, device.carrier_downs)
        for name, value in device.statistics.items():
            metric = _NET_OWN.get(name)
            if metric is not None:
                series.add(metric, labels, value)
            else:
                series.add(m.NET_ERRORS, (*labels, name), value)
        for key, value in device.pause_frames.items():
            series.add(m.PFC_FRAMES, (*labels, *key.split("/")), value)
        for key, value in device.pause_ns.items():
            series.add(m.PFC_SECONDS, (*labels, *key.split("/")), value / NS_PER_S)
        for name, value in device.driver_counters.items():
            series.add(m.NET_DRIVER, (*labels, name), value)


def add_nfs(series: SeriesSet, mounts: list[NfsMount]) -> None:
    """Add the series of NFS mounts."""
    for mount in mounts:
        labels = (mount.mount,)
        series.add(m.NFS_INFO, (mount.mount, mount.export), 1)
        series.add(m.NFS_READ, labels, mount.read_bytes)
        series.add(m.NFS_WRITE, labels, mount.write_bytes)
        if mount.transports:
            series.add(m.NFS_TRANSPORTS, labels, mount.transports)
            series.add(m.NFS_SENT, labels, mount.requests_sent)
            series.add(m.NFS_BAD_XIDS, labels, mount.bad_xids)
            series.add(m.NFS_BACKLOG, labels, mount.backlog_cumulative)
            series.add(m.NFS_MAX_SLOTS, labels, mount.max_slots)
        for operation in mount.operations:
            key = (mount.mount, operation.name)
            series.add(m.NFS_REQUESTS, key, operation.requests)
            series.add(m.NFS_RETRANSMITS, key, max(0, operation.transmissions - operation.requests))
            series.add(m.NFS_TIMEOUTS, key, operation.major_timeouts)
            series.add(m.NFS_QUEUE, key, operation.queue_ns / NS_PER_S)
            series.add(m.NFS_RESPONSE, key, operation.response_ns / NS_PER_S)
            series.add(m.NFS_TOTAL, key, operation.total_ns / NS_PER_S)
            series.add(m.NFS_OPERATION_ERRORS, key, operation.errors)


def add_host(series: SeriesSet, host: HostReading) -> None:
    """Add the series of the node itself."""
    for mode, spent_ns in host.cpu_ns.items():
        series.add(m.CPU_SECONDS, (mode,), spent_ns / NS_PER_S)
    series.add(m.CPU_COUNT, (), host.num_cpus or None)
    series.add(m.LOAD1, (), host.load1_ratio)
    for name, size in host.memory_bytes.items():
        series.add(m.MEMORY, (name,), size)
    series.add(m.OOM_KILLS, (), host.oom_kills)
    for pressure in host.pressure:
        series.add(m.PRESSURE, (pressure.resource, "some"), pressure.some_ns / NS_PER_S)
        if pressure.full_ns is not None:
            series.add(m.PRESSURE, (pressure.resource, "full"), pressure.full_ns / NS_PER_S)
    if host.boot_time_ns is not None:
        series.add(m.BOOT_TIME, (), host.boot_time_ns / NS_PER_S)
