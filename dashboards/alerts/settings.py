"""The thresholds that a site may change, each with its default and the reason for it."""

from __future__ import annotations

from typing import Final

from dashboards.alerts.model import Setting

SETTINGS: Final = (
    Setting(
        "remember", 604_800, "seconds", "How long it is known what a node had: GPUs, NVLinks, active ports, Scope."
    ),
    Setting(
        "remember_target", 86_400, "seconds", "How long an exporter is missed that service discovery no longer names."
    ),
    Setting("xid_window", 600, "seconds", "How long after a critical XID the alert fires."),
    Setting("stale_after", 60, "seconds", "Age of the last sample from which a node counts as blind."),
    Setting(
        "slow_sample", 5, "seconds", "How long one sample may take; a healthy node needs milliseconds.", (0.001, 86_400)
    ),
    Setting("remapped_rows", 512, "rows", "Uncorrectable remaps from which NVIDIA replaces a board (DCGM's limit)."),
    Setting("nvlink_crc_rate", 100, "errors/s", "CRC errors a second that a link may have (DCGM's limit)."),
    Setting("nvlink_asymmetry", 0.5, "ratio", "Slowest link's traffic over the GPU's mean, below which it is suspect."),
    Setting("nvlink4_speed", 2.6562e10, "bytes/s", "Raw speed of an NVLink 4 link (H100: 18 x 26562 MB/s)."),
    Setting("nvlink5_speed", 5.3125e10, "bytes/s", "Raw speed of an NVLink 5 link (GB200: 18 x 53125 MB/s)."),
    Setting("nvlink_busy", 1e9, "bytes/s", "Mean traffic of a GPU's links from which they are compared."),
    Setting("pcie_busy", 0.3, "ratio", "Utilization from which a lowered PCIe generation is a fault, not idling."),
    Setting(
        "pcie_replays_lane", 0.06, "replays/min", "Times 2^generation and lanes: what a bit error rate of 1e-12 gives."
    ),
    Setting("throttle", 0.05, "ratio", "Share of time that hardware may throttle."),
    Setting("margin_celsius", 3, "celsius", "Distance to the slowdown temperature that is too small."),
    Setting("core_warning", 85, "celsius", "Core temperature of GPUs that tell no margin, warning."),
    Setting("core_critical", 95, "celsius", "The same, critical."),
    Setting("memory_celsius", 95, "celsius", "Memory temperature."),
    Setting("link_flaps", 3, "times", "Times that a port may go down in three hours."),
    Setting("link_recoveries", 3, "times", "Link error recoveries in ten minutes."),
    Setting("symbol_errors", 10, "times", "Symbol errors in ten minutes."),
    Setting("ecn_ratio", 0.01, "ratio", "Share of packets that arrive marked for congestion."),
    Setting("pfc_paused", 0.1, "ratio", "Share of time that a priority may be paused."),
    Setting("nic_bytes_per_second", 5e10, "bytes/s", "Rate that every RDMA port should have; 5e10 is 400 Gb/s."),
    Setting("socket_bytes", 1e8, "bytes/s", "Ethernet traffic of a training node beside idle RDMA that means sockets."),
    Setting("nfs_queue", 0.1, "s/operation", "Queueing time of an NFS operation that is too long."),
    Setting("nfs_backlog", 1, "requests", "Mean backlog of an NFS mount that is too long."),
    Setting("stall_factor", 10, "steps", "Median steps without a step that mean a stall."),
    Setting("stall_seconds", 300, "seconds", "The least time without a step that means a stall."),
    Setting(
        "startup_seconds", 1_800, "seconds", "How long the main thread may stand still before the first step has ended."
    ),
    Setting("regression", 1.2, "ratio", "Step time over that of the run's fastest hour.", (1, 100)),
    Setting("regression_window", 86_400, "seconds", "Within how long a time the fastest hour is looked for."),
    Setting("straggler", 1.15, "ratio", "A rank's own time over the median of its peers.", (1, 100)),
    Setting("still_seconds", 60, "seconds", "The least time without a step in which nobody is called a straggler."),
    Setting("imposed_wait", 0.05, "ratio", "Share of the step that one rank makes all others wait."),
    Setting("wait_power", 0.4, "ratio", "Power over its limit below which a busy GPU only waits."),
    Setting("idle_sm", 0.05, "ratio", "Multiprocessor activity below which an allocated GPU is idle."),
    Setting("input_share", 0.1, "ratio", "Share of the step that waiting for data may cost."),
    Setting("goodput", 0.9, "ratio", "Goodput below which restarts and stalls cost too much."),
    Setting("heartbeat", 60, "seconds", "Age of a rank's heartbeat that means it is stuck or stopped."),
    Setting("lost_after", 60, "seconds", "How long a rank may be gone without an end while others of its attempt run."),
    Setting("memory_pressure", 0.1, "ratio", "Share of time that tasks may stall on memory."),
)
