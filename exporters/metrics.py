"""Every metric of the node exporter that does not come from a training run, in one table."""

from __future__ import annotations

from typing import Final

from exporters.series import Metric

GPU: Final = ("gpu", "uuid")
LINK: Final = ("gpu", "uuid", "link")
PORT: Final = ("device", "port")


def _gauge(name: str, text: str, *labels: str) -> Metric:
    return Metric(f"scope_{name}", "gauge", text, labels)


def _counter(name: str, text: str, *labels: str) -> Metric:
    return Metric(f"scope_{name}_total", "counter", text, labels)


def _info(name: str, text: str, *labels: str) -> Metric:
    return Metric(f"scope_{name}_info", "info", text, labels)


# The exporter itself
BUILD_INFO: Final = _info("exporter_build", "Version of the exporter.", "version")
COLLECTOR_UP: Final = _gauge(
    "collector_up",
    "1 when the collector's last sample is whole and fresh, 0 when it failed or hangs; none without its hardware.",
    "collector",
)
SAMPLE_TIMESTAMP: Final = _gauge(
    "exporter_sample_timestamp_seconds", "When the last sample of the hardware was taken, since the epoch."
)
SAMPLE_AGE: Final = _gauge("exporter_sample_age_seconds", "Age of the last sample of the hardware.")
SAMPLE_DURATION: Final = _gauge("exporter_sample_duration_seconds", "How long the last sample took.", "collector")
SAMPLES: Final = _counter("exporter_samples", "Samples taken.")
SAMPLE_ERRORS: Final = _counter(
    "exporter_sample_errors",
    "Figures that could not be read, or were refused, by collector and kind.",
    "collector",
    "error",
)
SAMPLER_RESTARTS: Final = _counter("exporter_sampler_restarts", "Restarts of the sampling process.", "reason")
SAMPLER_STUCK: Final = _gauge(
    "exporter_sampler_stuck", "1 while a sampling process was killed and does not die (a call of the kernel hangs)."
)
QUARANTINED: Final = _gauge(
    "exporter_quarantined",
    "1 while a GPU or collector is set aside after a call that hung or crashed.",
    "subject",
    "call",
)
PUBLISHED: Final = _gauge(
    "exporter_published_spools", "Spools of ranks that the exporter copies to their shared run directories now."
)
SERIES: Final = _gauge("exporter_series", "Series in this answer, without those about the exporter itself.")

# GPUs
GPU_INFO: Final = _info(
    "gpu", "What the GPU is; join on uuid.", *GPU, "model", "pci_bus_id", "numa_node", "driver", "serial"
)
GPU_UP: Final = _gauge("gpu_up", "1 when the GPU answers, 0 when it is lost or set aside.", *GPU)
GPU_UTILIZATION: Final = _gauge(
    "gpu_utilization_ratio", "Share of the last 1/6 to 1 s in which a kernel was resident (not how busy it was).", *GPU
)
GPU_VIDEO: Final = {
    f"{engine}_ratio": _gauge(
        f"gpu_{engine}_utilization_ratio", f"Share of its own window in which the video {engine} worked.", *GPU
    )
    for engine in ("encoder", "decoder")
}
GPU_ACTIVITY: Final = {
    name: _gauge(f"gpu_{metric}_ratio", text + " (GPM, Hopper and later).", *GPU, "mig")
    for name, metric, text in (
        ("graphics", "graphics_active", "Share of time in which a compute or graphics context was active"),
        ("sm", "sm_active", "Share of multiprocessors that were busy"),
        ("sm_occupancy", "sm_occupancy", "Resident warps over the most possible"),
        ("tensor", "tensor_active", "Share of time in which tensor cores worked"),
        ("dram", "dram_active", "Memory bandwidth used over the largest possible"),
        ("fp64", "fp64_active", "Share of time in which FP64 pipes worked"),
        ("fp32", "fp32_active", "Share of time in which FP32 pipes worked"),
        ("fp16", "fp16_active", "Share of time in which FP16 pipes worked"),
    )
}
GPU_MEMORY: Final = {
    "memory_total_bytes": _gauge("gpu_memory_total_bytes", "Device memory.", *GPU),
    "memory_used_bytes": _gauge("gpu_memory_used_bytes", "Allocated memory, without what the driver reserves.", *GPU),
    "memory_reserved_bytes": _gauge("gpu_memory_reserved_bytes", "Memory that driver and firmware keep.", *GPU),
    "memory_free_bytes": _gauge("gpu_memory_free_bytes", "Free memory.", *GPU),
}
GPU_POWER: Final = _gauge("gpu_power_watts", "Power draw, averaged over about 1 s where the GPU does so.", *GPU)
GPU_POWER_LIMIT: Final = _gauge("gpu_power_limit_watts", "Enforced power limit.", *GPU)
GPU_ENERGY: Final = _counter("gpu_energy_joules", "Energy since the driver was loaded.", *GPU)
GPU_CLOCK: Final = _gauge("gpu_clock_hertz", "Clock.", *GPU, "domain")
GPU_TEMPERATURE: Final = _gauge(
    "gpu_temperature_celsius", "Temperature; sensor margin is the distance to the slowdown threshold.", *GPU, "sensor"
)
GPU_THROTTLE: Final = _gauge("gpu_throttle_active", "1 while a reason lowers the clocks.", *GPU, "reason")
GPU_THROTTLE_SECONDS: Final = _counter(
    "gpu_throttle_seconds", "Time that a reason lowered the clocks since the driver was loaded.", *GPU, "reason"
)
GPU_ECC: Final = _counter("gpu_ecc_errors", "ECC errors.", *GPU, "type", "scope", "location")
GPU_REMAPPED_ROWS: Final = _counter("gpu_remapped_rows", "Memory rows that were remapped.", *GPU, "cause")
GPU_REMAP_PENDING: Final = _gauge("gpu_row_remap_pending", "1 while a row remap waits for a reset.", *GPU)
GPU_REMAP_FAILURE: Final = _gauge("gpu_row_remap_failure", "1 when a row could not be remapped.", *GPU)
GPU_XID_EVENTS: Final = _counter("gpu_xid_events", "XID events since the exporter began.", *GPU, "xid", "action")
GPU_XID_LAST: Final = _gauge(
    "gpu_xid_last_timestamp_seconds",
    "When an XID was last seen, since the epoch; absent before.",
    *GPU,
    "xid",
    "action",
)
GPU_RECOVERY: Final = _gauge(
    "gpu_recovery_action", "1 for the recovery that the driver asks for, 0 for the others.", *GPU, "action"
)
GPU_FABRIC_INFO: Final = _info(
    "gpu_fabric",
    "Where the GPU is in the NVLink fabric behind switches; configuration names what that lacks.",
    *GPU,
    "cluster",
    "clique",
    "configuration",
)
GPU_FABRIC_STATE: Final = _gauge(
    "gpu_fabric_state", "1 not started, 2 joining, 3 joined the NVLink fabric; absent where there is none.", *GPU
)
GPU_FABRIC_FAULT: Final = _gauge(
    "gpu_fabric_fault", "1 while this is wrong with the GPU's place in the NVLink fabric.", *GPU, "fault"
)
GPU_MIG_ENABLED: Final = _gauge("gpu_mig_enabled", "1 when the GPU is split into MIG instances.", *GPU)
MIG_INFO: Final = _info("mig", "A MIG instance; join on mig.", *GPU, "mig", "mig_uuid", "profile", "num_slices")
MIG_MEMORY_TOTAL: Final = _gauge("mig_memory_total_bytes", "Memory of a GPU instance.", *GPU, "mig")
MIG_MEMORY_USED: Final = _gauge("mig_memory_used_bytes", "Used memory of a GPU instance.", *GPU, "mig")
GPU_JOB_INFO: Final = _info(
    "gpu_job",
    "Which job uses the GPU; join on uuid.",
    *GPU,
    "scheduler",
    "job_id",
    "user",
    "run",
    "rank",
)

# NVLink and PCIe
NVLINK_TRANSMIT: Final = _counter(
    "nvlink_transmit_bytes", "Bytes sent over one NVLink: layer data is payload, raw includes overhead.", *LINK, "layer"
)
NVLINK_RECEIVE: Final = _counter(
    "nvlink_receive_bytes",
    "Bytes received over one NVLink: layer data is payload, raw includes overhead.",
    *LINK,
    "layer",
)
NVLINK_ERRORS: Final = _counter(
    "nvlink_errors", "Errors of one NVLink; a link's series begin with its first error.", *LINK, "type"
)
NVLINK_GPU_ERRORS: Final = _counter("nvlink_gpu_errors", "Errors of all NVLinks of a GPU.", *GPU, "type")
NVLINK_UP: Final = _gauge("nvlink_up", "1 when the link is active or sleeping.", *LINK)
NVLINK_SPEED: Final = _gauge("nvlink_speed_bytes_per_second", "Raw rate of one direction of a link.", *LINK)
NVLINK_SYMBOL_ERRORS: Final = _gauge("nvlink_symbol_error_ratio", "Symbol bit error ratio (NVLink 5).", *LINK)
NVLINK_INFO: Final = _info("nvlink", "What a link is.", *LINK, "version", "remote_pci", "remote_type")
NVLINK_FEC: Final = _counter(
    "nvlink_fec_events",
    "Repairs by a link's forward error correction, by bin of NVML's histogram; begins with the bin's first (NVLink 5).",
    *LINK,
    "bin",
)
NVLINK_GPU_FEC: Final = _counter(
    "nvlink_gpu_fec_events",
    "Forward error correction of all NVLinks of a GPU, by bin of NVML's histogram (NVLink 5).",
    *GPU,
    "bin",
)
C2C_UP: Final = _gauge("c2c_up", "1 when the link between GPU and CPU is active (Grace).", *LINK)
C2C_SPEED: Final = _gauge(
    "c2c_speed_bytes_per_second", "Largest rate of one direction of an active link between GPU and CPU.", *LINK
)
C2C_LOW_POWER: Final = _gauge("c2c_low_power", "1 while a link between GPU and CPU is in its low power state.", *LINK)
C2C_ERRORS: Final = _counter("c2c_errors", "Errors of a link between GPU and CPU.", *LINK, "type")
PCIE_TRANSMIT: Final = _counter("pcie_transmit_bytes", "Bytes that the GPU sent over PCIe.", *GPU)
PCIE_RECEIVE: Final = _counter("pcie_receive_bytes", "Bytes that the GPU received over PCIe.", *GPU)
PCIE_REPLAYS: Final = _counter("pcie_replays", "PCIe replays.", *GPU)
PCIE_ERRORS: Final = _counter("pcie_errors", "PCIe errors of other kinds.", *GPU, "type")
PCIE_LINK: Final = {
    "pcie_generation": _gauge("pcie_link_generation", "PCIe generation now; idle GPUs lower it.", *GPU),
    "pcie_generation_max": _gauge("pcie_link_generation_max", "Largest PCIe generation of card and slot.", *GPU),
    "pcie_width": _gauge("pcie_link_width", "PCIe lanes now.", *GPU),
    "pcie_width_max": _gauge("pcie_link_width_max", "Most PCIe lanes of card and slot.", *GPU),
}

# InfiniBand and RoCE
RDMA_INFO: Final = _info(
    "rdma_link",
    "What an RDMA port is; join on device and port.",
    *PORT,
    "netdev",
    "pci_bus_id",
    "numa_node",
    "link_layer",
)
RDMA_STATE: Final = _gauge("rdma_port_state", "1 down, 2 init, 3 armed, 4 active, 5 active deferred.", *PORT)
RDMA_PHYSICAL_STATE: Final = _gauge("rdma_port_physical_state", "2 polling, 3 disabled, 4 training, 5 link up.", *PORT)
RDMA_RATE: Final = _gauge("rdma_port_rate_bytes_per_second", "Rate of the port, one way.", *PORT)
RDMA_TRANSMIT: Final = _counter("rdma_transmit_bytes", "Bytes sent by the port.", *PORT)
RDMA_RECEIVE: Final = _counter("rdma_receive_bytes", "Bytes received by the port.", *PORT)
RDMA_TRANSMIT_PACKETS: Final = _counter("rdma_transmit_packets", "Packets sent by the port.", *PORT)
RDMA_RECEIVE_PACKETS: Final = _counter("rdma_receive_packets", "Packets received by the port.", *PORT)
RDMA_WAIT: Final = _counter(
    "rdma_transmit_wait_ticks", "Ticks with data to send and no credit; the tick's length is the device's own.", *PORT
)
RDMA_COUNTER: Final = _counter(
    "rdma_port_events", "Errors and rare events of the port, by the kernel's counter name.", *PORT, "counter"
)
RDMA_HARDWARE: Final = _counter(
    "rdma_hardware_events",
    "Hardware counters of the port (congestion, retries, timeouts), by the driver's name.",
    *PORT,
    "counter",
)
GPU_NIC_INFO: Final = _info(
    "gpu_nic_affinity",
    "How near GPU and NIC stand: PIX one switch, PXB several, PHB host bridge, NODE socket, SYS crosses sockets.",
    "uuid",
    "device",
    "distance",
)

# Ethernet
NET_RECEIVE: Final = _counter(
    "net_receive_bytes", "Bytes received by the interface (RDMA is not among them).", "device"
)
NET_TRANSMIT: Final = _counter("net_transmit_bytes", "Bytes sent by the interface (RDMA is not among them).", "device")
NET_PACKETS_RECEIVE: Final = _counter("net_receive_packets", "Packets received.", "device")
NET_PACKETS_TRANSMIT: Final = _counter("net_transmit_packets", "Packets sent.", "device")
NET_ERRORS: Final = _counter("net_errors", "Errors and drops of the interface, by the kernel's name.", "device", "type")
NET_UP: Final = _gauge("net_up", "1 when the interface is operational.", "device")
NET_SPEED: Final = _gauge("net_speed_bytes_per_second", "Speed of the link.", "device")
NET_CARRIER_DOWNS: Final = _counter("net_carrier_downs", "Times that the carrier was lost.", "device")
PFC_FRAMES: Final = _counter(
    "net_pfc_pause_frames", "Priority flow control pause frames.", "device", "priority", "direction"
)
PFC_SECONDS: Final = _counter(
    "net_pfc_pause_seconds", "Time paused by priority flow control.", "device", "priority", "direction"
)
NET_DRIVER: Final = _counter("net_driver_events", "Counters of the driver, by its own name.", "device", "counter")

# NFS
NFS_REQUESTS: Final = _counter("nfs_operations", "NFS operations completed.", "mount", "operation")
NFS_RETRANSMITS: Final = _counter("nfs_retransmissions", "Requests that were sent again.", "mount", "operation")
NFS_TIMEOUTS: Final = _counter("nfs_major_timeouts", "Requests that timed out for good.", "mount", "operation")
NFS_QUEUE: Final = _counter(
    "nfs_queue_seconds", "Time that requests waited for a slot before they were sent.", "mount", "operation"
)
NFS_RESPONSE: Final = _counter("nfs_response_seconds", "Time from sending to the reply.", "mount", "operation")
NFS_TOTAL: Final = _counter("nfs_request_seconds", "Time from queueing to completion.", "mount", "operation")
NFS_OPERATION_ERRORS: Final = _counter("nfs_operation_errors", "Operations that failed.", "mount", "operation")
NFS_READ: Final = _counter("nfs_read_bytes", "Bytes read from the server.", "mount")
NFS_WRITE: Final = _counter("nfs_write_bytes", "Bytes written to the server.", "mount")
NFS_BACKLOG: Final = _counter(
    "nfs_backlog_requests", "Length of the backlog queue, added up at each request, all connections.", "mount"
)
NFS_SENT: Final = _counter("nfs_rpc_requests", "RPC requests sent, all connections.", "mount")
NFS_BAD_XIDS: Final = _counter("nfs_bad_replies", "Replies that fitted no request.", "mount")
NFS_MAX_SLOTS: Final = _gauge(
    "nfs_max_slots", "Largest number of slots used at once, all connections; absent over RDMA.", "mount"
)
NFS_TRANSPORTS: Final = _gauge("nfs_connections", "Connections of the mount.", "mount")
NFS_INFO: Final = _info("nfs_mount", "What is mounted.", "mount", "export")

# Host
CPU_SECONDS: Final = _counter("cpu_seconds", "CPU time of the node by mode, all CPUs together.", "mode")
CPU_COUNT: Final = _gauge("cpus", "CPUs of the node.")
LOAD1: Final = _gauge("load1", "Load average over one minute.")
MEMORY: Final = _gauge("memory_bytes", "Memory of the node by the names of /proc/meminfo; huge pages in bytes.", "type")
OOM_KILLS: Final = _counter("oom_kills", "Processes that the kernel killed for lack of memory.")
PRESSURE: Final = _counter(
    "pressure_stalled_seconds", "Time that some tasks, or all (full), stalled on a resource.", "resource", "extent"
)
BOOT_TIME: Final = _gauge("boot_timestamp_seconds", "When the node was booted, since the epoch.")
