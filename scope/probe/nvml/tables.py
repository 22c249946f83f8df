"""NVML's numbers as data: which field, call or bit gives which figure, in which unit."""

from __future__ import annotations

from typing import Final

RECOVERY_ACTIONS: Final = (
    "none",
    "reset_gpu",
    "reboot_node",
    "drain_p2p",
    "drain_and_reset",
    "imex_domain",
    "bus_reset",
    "system_reboot",
)
"""Meaning of `NVML_FI_DEV_GET_GPU_RECOVERY_ACTION`, by its value."""

THROTTLE_REASONS: Final = {
    0x1: "gpu_idle",
    0x2: "application_clocks",
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal",
    0x40: "hw_thermal",
    0x80: "hw_power_brake",
    0x100: "display_clock",
}
"""Bits of `nvmlDeviceGetCurrentClocksEventReasons`."""

THROTTLE_TIMES: Final = {
    "PERF_POLICY_POWER": "sw_power_cap",
    "PERF_POLICY_SYNC_BOOST": "sync_boost",
    "CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN": "sw_thermal",
    "CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN": "hw_thermal",
    "CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN": "hw_power_brake",
    "PERF_POLICY_THERMAL": "thermal",
    "PERF_POLICY_BOARD_LIMIT": "board_limit",
    "PERF_POLICY_RELIABILITY": "reliability",
}
"""Fields that hold nanoseconds of throttling, and the reason that each stands for."""

NVLINK_VERSIONS: Final = {1: "1.0", 2: "2.0", 3: "2.2", 4: "3.0", 5: "3.1", 6: "4.0", 7: "5.0", 8: "6.0"}
"""Meaning of `NVML_FI_DEV_NVLINK_GET_VERSION`, an enumeration and not the version itself."""

NVLINK_SCOPED_ERRORS: Final = {
    "NVLINK_ERROR_DL_REPLAY": "replay",
    "NVLINK_ERROR_DL_RECOVERY": "recovery",
    "NVLINK_ERROR_DL_CRC": "crc_flit",
    "NVLINK_COUNT_MALFORMED_PACKET_ERRORS": "malformed_packet",
    "NVLINK_COUNT_BUFFER_OVERRUN_ERRORS": "buffer_overrun",
    "NVLINK_COUNT_RCV_ERRORS": "receive",
    "NVLINK_COUNT_RCV_REMOTE_ERRORS": "receive_remote",
    "NVLINK_COUNT_RCV_GENERAL_ERRORS": "receive_general",
    "NVLINK_COUNT_LOCAL_LINK_INTEGRITY_ERRORS": "link_integrity",
    "NVLINK_COUNT_XMIT_DISCARDS": "transmit_discard",
    "NVLINK_COUNT_LINK_RECOVERY_SUCCESSFUL_EVENTS": "recovery_successful",
    "NVLINK_COUNT_LINK_RECOVERY_FAILED_EVENTS": "recovery_failed",
    "NVLINK_COUNT_SYMBOL_ERRORS": "symbol",
}
"""Error counters that take the link as their scope: the first three up to Hopper, the others from NVLink 5."""

NVLINK_CALL_ERRORS: Final = {0: "replay", 1: "recovery", 2: "crc_flit", 3: "crc_data", 4: "ecc_data"}
"""Counters of `nvmlDeviceGetNvLinkErrorCounter`, for links and drivers without the fields above."""

NVLINK_BYTES: Final = {
    "NVLINK_THROUGHPUT_DATA_TX": ("data_transmit_bytes", 1024),
    "NVLINK_THROUGHPUT_DATA_RX": ("data_receive_bytes", 1024),
    "NVLINK_THROUGHPUT_RAW_TX": ("raw_transmit_bytes", 1024),
    "NVLINK_THROUGHPUT_RAW_RX": ("raw_receive_bytes", 1024),
    "NVLINK_COUNT_XMIT_BYTES": ("data_transmit_bytes", 1),
    "NVLINK_COUNT_RCV_BYTES": ("data_receive_bytes", 1),
}
"""Cumulative traffic: KiB in the fields of Volta to Hopper, bytes in those of NVLink 5, which win where both answer."""

NVLINK_REMOTE_TYPES: Final = {0: "gpu", 1: "npu", 2: "nvswitch"}

PCIE_ERRORS: Final = {
    "PCIE_REPLAY_ROLLOVER_COUNTER": "replay_rollover",
    "PCIE_L0_TO_RECOVERY_COUNTER": "l0_to_recovery",
    "PCIE_COUNT_CORRECTABLE_ERRORS": "correctable",
    "PCIE_COUNT_NAKS_RECEIVED": "nak_received",
    "PCIE_COUNT_NAKS_SENT": "nak_sent",
    "PCIE_COUNT_RECEIVER_ERROR": "receiver",
    "PCIE_COUNT_BAD_TLP": "bad_tlp",
    "PCIE_COUNT_BAD_DLLP": "bad_dllp",
    "PCIE_COUNT_NON_FATAL_ERROR": "non_fatal",
    "PCIE_COUNT_FATAL_ERROR": "fatal",
    "PCIE_COUNT_UNSUPPORTED_REQ": "unsupported_request",
    "PCIE_COUNT_LCRC_ERROR": "lcrc",
    "PCIE_COUNT_LANE_ERROR": "lane",
}
"""PCIe error counters by field."""

ECC_TOTALS: Final = {
    "ECC_SBE_VOL_TOTAL": ("corrected", "volatile"),
    "ECC_DBE_VOL_TOTAL": ("uncorrected", "volatile"),
    "ECC_SBE_AGG_TOTAL": ("corrected", "aggregate"),
    "ECC_DBE_AGG_TOTAL": ("uncorrected", "aggregate"),
}
"""ECC counters over all memories of a GPU."""

ECC_LOCATIONS: Final = {2: "dram", 7: "sram"}
"""Memories that are counted apart where the driver tells them: `nvmlDeviceGetMemoryErrorCounter`."""

GPM_ACTIVITIES: Final = {
    1: "graphics",
    2: "sm",
    3: "sm_occupancy",
    5: "tensor",
    10: "dram",
    11: "fp64",
    12: "fp32",
    13: "fp16",
}
"""GPM metrics in percent (Hopper and later), by their number."""

NVLINK_FEC_BINS: Final = {f"NVLINK_COUNT_FEC_HISTORY_{number}": number for number in range(16)}
"""Histogram of what a link's forward error correction repaired (NVLink 5), by its bin."""

C2C_ERRORS: Final = {
    "C2C_LINK_ERROR_INTR": "interrupt",
    "C2C_LINK_ERROR_REPLAY": "replay",
    "C2C_LINK_ERROR_REPLAY_B2B": "replay_back_to_back",
}
"""Error counters of a C2C link, which is their scope as it is that of its status and speed."""

FABRIC_FAULTS: Final = {
    "degraded_bandwidth": (0, 1),
    "route_recovery": (2, 1),
    "route_unhealthy": (4, 1),
    "access_timeout_recovery": (6, 1),
    "no_partition": (12, 2),
    "manager_disconnected": (14, 2),
}
"""Faults in the mask of `nvmlDeviceGetGpuFabricInfoV`: place of its two bits, and their value when it is there.

The first four ask whether something bad is true (1), the last two whether something good is not (2).
"""

FABRIC_CONFIGURATIONS: Final = {
    0: "",
    1: "",
    2: "incorrect_system_guid",
    3: "incorrect_chassis_serial",
    4: "no_partition",
    5: "insufficient_nvlinks",
    6: "incompatible_firmware",
    7: "invalid_location",
    8: "invalid_gpu_state",
}
"""What the fabric's configuration lacks, by the four bits of the same mask; 0 untold, 1 nothing."""
