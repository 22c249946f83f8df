"""node_exporter's names of ports, driver counters and NFS, for dashboards that exist (`--compat node-exporter`).

Off by default: a Prometheus that also scrapes node_exporter would see everything twice. Debian's node_exporter 1.5 has
the port counters alone; the hardware counters came with 1.11. Of driver counters and NFS, what Scope reads is given:
pauses and faults, and the operations that matter; label `mountaddr` is not, and connections of a mount are added up.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from exporters.series import Kind, Metric
from scope.units import NS_PER_S, NS_PER_US

if TYPE_CHECKING:
    from exporters.series import SeriesSet
    from scope.probe.records import NetDevice, NfsMount, RdmaPort

_COUNTERS: Final = {
    "port_xmit_data_bytes": "port_data_transmitted_bytes_total",
    "port_rcv_data_bytes": "port_data_received_bytes_total",
    "port_xmit_packets": "port_packets_transmitted_total",
    "port_rcv_packets": "port_packets_received_total",
    "port_xmit_wait": "port_transmit_wait_total",
    "port_xmit_discards": "port_discards_transmitted_total",
    "port_rcv_errors": "port_errors_received_total",
    "port_rcv_discards": "port_discards_received_total",
    "port_rcv_constraint_errors": "port_constraint_errors_received_total",
    "port_xmit_constraint_errors": "port_constraint_errors_transmitted_total",
    "port_rcv_remote_physical_errors": "port_receive_remote_physical_errors_total",
    "port_rcv_switch_relay_errors": "port_receive_switch_relay_errors_total",
    "unicast_rcv_packets": "unicast_packets_received_total",
    "unicast_xmit_packets": "unicast_packets_transmitted_total",
    "multicast_rcv_packets": "multicast_packets_received_total",
    "multicast_xmit_packets": "multicast_packets_transmitted_total",
    "symbol_error": "symbol_error_total",
    "link_downed": "link_downed_total",
    "link_error_recovery": "link_error_recovery_total",
    "local_link_integrity_errors": "local_link_integrity_errors_total",
    "excessive_buffer_overrun_errors": "excessive_buffer_overrun_errors_total",
    "VL15_dropped": "vl15_dropped_total",
}
_HARDWARE: Final = {
    "duplicate_request": "duplicate_requests_packets_total",
    "implied_nak_seq_err": "implied_nak_seq_errors_total",
    "local_ack_timeout_err": "local_ack_timeout_errors_total",
    "np_cnp_sent": "np_cnp_packets_sent_total",
    "np_ecn_marked_roce_packets": "np_ecn_marked_roce_packets_received_total",
    "out_of_buffer": "out_of_buffer_drops_total",
    "out_of_sequence": "out_of_sequence_packets_received_total",
    "packet_seq_err": "packet_sequence_errors_total",
    "req_cqe_error": "req_cqes_errors_total",
    "req_cqe_flush_error": "req_cqes_flush_errors_total",
    "req_remote_access_errors": "req_remote_access_errors_total",
    "req_remote_invalid_request": "req_remote_invalid_request_errors_total",
    "resp_cqe_error": "resp_cqes_errors_total",
    "resp_cqe_flush_error": "resp_cqes_flush_errors_total",
    "resp_local_length_error": "resp_local_length_errors_total",
    "resp_remote_access_errors": "resp_remote_access_errors_total",
    "rnr_nak_retry_err": "rnr_nak_retry_packets_received_total",
    "roce_adp_retrans": "roce_adp_retransmits_total",
    "roce_adp_retrans_to": "roce_adp_retransmits_timeout_total",
    "roce_slow_restart": "roce_slow_restart_used_total",
    "roce_slow_restart_cnps": "roce_slow_restart_cnps_total",
    "roce_slow_restart_trans": "roce_slow_restart_total",
    "rp_cnp_handled": "rp_cnp_packets_handled_total",
    "rp_cnp_ignored": "rp_cnp_ignored_packets_received_total",
    "rx_atomic_requests": "rx_atomic_requests_total",
    "rx_dct_connect": "rx_dct_connect_requests_total",
    "rx_read_requests": "rx_read_requests_total",
    "rx_write_requests": "rx_write_requests_total",
    "rx_icrc_encapsulated": "rx_icrc_encapsulated_errors_total",
}
_LABELS: Final = ("device", "port")


def _metric(name: str, kind: Kind, text: str) -> Metric:
    return Metric(f"node_infiniband_{name}", kind, text, _LABELS)


_METRICS: Final = {
    own: _metric(name, "counter", f"The kernel's counter {own.removesuffix('_bytes')}.")
    for own, name in {**_COUNTERS, **_HARDWARE}.items()
}
_STATE: Final = _metric("state_id", "gauge", "State of the port (4: active).")
_PHYSICAL_STATE: Final = _metric("physical_state_id", "gauge", "Physical state of the port (5: link up).")
_RATE: Final = _metric("rate_bytes_per_second", "gauge", "Rate of the port.")
_INFO: Final = Metric(
    "node_infiniband_info", "info", "What a device is.", ("device", "board_id", "firmware_version", "hca_type")
)
_MOUNT_LABELS: Final = ("export", "protocol")


def _nfs(name: str, text: str, *labels: str, kind: Kind = "counter") -> Metric:
    return Metric(f"node_mountstats_nfs_{name}", kind, text, (*_MOUNT_LABELS, *labels))


_AGE: Final = _nfs("age_seconds_total", "Time since the mount.")
_READ: Final = _nfs("total_read_bytes_total", "Bytes read from the server.")
_WRITTEN: Final = _nfs("total_write_bytes_total", "Bytes written to the server.")
_SENDS: Final = _nfs("transport_sends_total", "RPC requests sent, all connections.")
_BAD_XIDS: Final = _nfs("transport_bad_transaction_ids_total", "Replies that fitted no request, all connections.")
_BACKLOG: Final = _nfs("transport_backlog_queue_total", "Length of the backlog queue, added up at each request.")
_SLOTS: Final = _nfs("transport_maximum_rpc_slots", "Largest number of slots used, all connections.", kind="gauge")
_OPERATIONS: Final = {
    name: _nfs(f"operations_{name}_total", text, "operation")
    for name, text in (
        ("requests", "Operations completed."),
        ("transmissions", "Requests sent, again included."),
        ("major_timeouts", "Requests that timed out for good."),
        ("sent_bytes", "Bytes sent."),
        ("received_bytes", "Bytes received."),
        ("queue_time_seconds", "Time in the queue."),
        ("response_time_seconds", "Time from sending to the reply."),
        ("request_time_seconds", "Time from queueing to completion."),
    )
}
_DIRECTIONS: Final = (
    (re.compile(r"(^|_)rx(_|$)"), r"\1received\2"),
    (re.compile(r"(^|_)tx(_|$)"), r"\1transmitted\2"),
)


def add_infiniband_names(series: SeriesSet, ports: list[RdmaPort]) -> None:
    """Add RDMA ports under node_exporter's names."""
    described: set[str] = set()
    for port in ports:
        labels = (port.device, str(port.port))
        about = (port.board_id, port.firmware, port.hca_type)
        if any(about) and port.device not in described:
            described.add(port.device)
            series.add(_INFO, (port.device, *about), 1)
        series.add(_STATE, labels, port.state)
        series.add(_PHYSICAL_STATE, labels, port.physical_state)
        series.add(_RATE, labels, port.rate_bytes_per_s)
        for name, value in (*port.counters.items(), *port.hw_counters.items()):
            metric = _METRICS.get(name)
            if metric is not None:
                series.add(metric, labels, value)


def name_ethtool(counter: str) -> str:
    """Return node_exporter's name of a driver's counter.

    Examples:
        >>> name_ethtool("rx_prio3_pause_duration"), name_ethtool("outbound_pci_stalled_rd")
        ('node_ethtool_received_prio3_pause_duration', 'node_ethtool_outbound_pci_stalled_rd')
    """
    name = counter.lower()
    for direction, word in _DIRECTIONS:
        name = direction.sub(word, name)
    return f"node_ethtool_{name}"


def add_ethtool_names(series: SeriesSet, devices: list[NetDevice]) -> None:
    """Add the driver counters that Scope reads under node_exporter's names and in the driver's units."""
    for device in devices:
        counters = dict(device.driver_counters)
        for suffix, values, unit in (("", device.pause_frames, 1), ("_duration", device.pause_ns, NS_PER_US)):
            for key, value in values.items():
                priority, direction = key.split("/")
                counters[f"{direction}_prio{priority}_pause{suffix}"] = value // unit
        for name, value in counters.items():
            metric = Metric(name_ethtool(name), "unknown", f"The driver's counter {name}.", ("device",))
            series.add(metric, (device.name,), value)


def add_mountstats_names(series: SeriesSet, mounts: list[NfsMount]) -> None:
    """Add NFS mounts under node_exporter's names; an export that is mounted twice stands once, as there."""
    seen: set[tuple[str, str]] = set()
    for mount in mounts:
        labels = (mount.export, mount.protocol)
        if labels in seen:
            continue
        seen.add(labels)
        series.add(_AGE, labels, mount.age_s)
        series.add(_READ, labels, mount.read_bytes)
        series.add(_WRITTEN, labels, mount.write_bytes)
        if mount.transports:
            series.add(_SENDS, labels, mount.requests_sent)
            series.add(_BAD_XIDS, labels, mount.bad_xids)
            series.add(_BACKLOG, labels, mount.backlog_cumulative)
            series.add(_SLOTS, labels, mount.max_slots)
        for operation in mount.operations:
            key = (*labels, operation.name)
            for name, value in (
                ("requests", operation.requests),
                ("transmissions", operation.transmissions),
                ("major_timeouts", operation.major_timeouts),
                ("sent_bytes", operation.sent_bytes),
                ("received_bytes", operation.received_bytes),
                ("queue_time_seconds", operation.queue_ns / NS_PER_S),
                ("response_time_seconds", operation.response_ns / NS_PER_S),
                ("request_time_seconds", operation.total_ns / NS_PER_S),
            ):
                series.add(_OPERATIONS[name], key, value)
