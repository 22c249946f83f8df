"""node_exporter's names of InfiniBand and RoCE ports, for dashboards that exist (`--compat node-exporter`).

Off by default: a Prometheus that also scrapes node_exporter would see everything twice. Debian's node_exporter 1.5 has
the port counters alone; the hardware counters came with 1.11.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from exporters.series import Kind, Metric

if TYPE_CHECKING:
    from exporters.series import SeriesSet
    from scope.probe.records import RdmaPort

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


def add_node_exporter_names(series: SeriesSet, ports: list[RdmaPort]) -> None:
    """Add RDMA ports under node_exporter's names."""
    for port in ports:
        labels = (port.device, str(port.port))
        series.add(_STATE, labels, port.state)
        series.add(_PHYSICAL_STATE, labels, port.physical_state)
        series.add(_RATE, labels, port.rate_bytes_per_s)
        for name, value in (*port.counters.items(), *port.hw_counters.items()):
            metric = _METRICS.get(name)
            if metric is not None:
                series.add(metric, labels, value)
