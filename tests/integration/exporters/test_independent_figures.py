"""Every figure of a whole node against a second reading of its planted answers, by the units of NVML's and the kernel's
documentation and by nothing of the exporter's own.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

from scope.testing.fake_nvml.nodes import make_node

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.system("gcc")
NUM_GPUS, NUM_LINKS, NUM_NICS = 8, 18, 8
Key = tuple[str, tuple[tuple[str, str], ...]]
CHECKED = ("scope_gpu_", "scope_nvlink_", "scope_pcie_", "scope_rdma_", "scope_net_", "scope_nfs_")
RDMA_EVENTS = {"symbol_error": 3, "link_downed": 5, "link_error_recovery": 7, "VL15_dropped": 11}
HARDWARE_EVENTS = {"np_cnp_sent": 13, "out_of_sequence": 17, "rp_cnp_handled": 19, "local_ack_timeout_err": 23}
NET = {"rx_errors": 29, "tx_errors": 31, "rx_dropped": 37, "tx_dropped": 41}


def key(name: str, **labels: object) -> Key:
    """Return how the exporter's samples are looked up."""
    return name, tuple(sorted((label, str(value)) for label, value in labels.items()))


def expect_gpu(gpu: int) -> dict[Key, float]:
    """Return one GPU's figures, worked out from the answers that `make_node` documents.

    Watts are mW / 1000, joules mJ / 1000, hertz MHz x 1e6, ratios percent / 100, seconds ns / 1e9, memory bytes.
    """
    own: dict[str, object] = {"gpu": gpu, "uuid": f"GPU-00000000-0000-0000-0000-{gpu:012d}"}
    gib = 1024**3
    used, reserved, total = (gpu + 1) * gib, 600 * 1024**2, 80 * gib
    found = {
        key("scope_gpu_up", **own): 1,
        key("scope_gpu_utilization_ratio", **own): (90 + gpu) / 100,
        key("scope_gpu_memory_total_bytes", **own): total,
        key("scope_gpu_memory_used_bytes", **own): used,
        key("scope_gpu_memory_reserved_bytes", **own): reserved,
        key("scope_gpu_memory_free_bytes", **own): total - used - reserved,
        key("scope_gpu_power_watts", **own): (350_000 + gpu) / 1e3,
        key("scope_gpu_power_limit_watts", **own): 700,
        key("scope_gpu_energy_joules_total", **own): (7_000_000 + gpu) / 1e3,
        key("scope_gpu_clock_hertz", **own, domain="sm"): 1.98e9,
        key("scope_gpu_clock_hertz", **own, domain="memory"): 2.619e9,
        key("scope_gpu_temperature_celsius", **own, sensor="core"): 50 + gpu,
        key("scope_gpu_temperature_celsius", **own, sensor="memory"): 60 + gpu,
        key("scope_gpu_temperature_celsius", **own, sensor="margin"): 35,
        key("scope_gpu_row_remap_pending", **own): 0,
        key("scope_gpu_row_remap_failure", **own): 0,
        key("scope_gpu_mig_enabled", **own): 0,
        key("scope_pcie_transmit_bytes_total", **own): 3_000_000_000 + gpu,
        key("scope_pcie_receive_bytes_total", **own): 2_000_000_000 + gpu,
        key("scope_pcie_replays_total", **own): 2,
        key("scope_pcie_link_generation", **own): 5,
        key("scope_pcie_link_generation_max", **own): 5,
        key("scope_pcie_link_width", **own): 16,
        key("scope_pcie_link_width_max", **own): 16,
    }
    percents = {
        "graphics_active": 1, "sm_active": 2, "sm_occupancy": 3, "tensor_active": 5, "dram_active": 10,
        "fp64_active": 11, "fp32_active": 12, "fp16_active": 13,
    }  # fmt: skip
    for name, metric in percents.items():
        found[key(f"scope_gpu_{name}_ratio", **own, mig="")] = (10 + metric + gpu / 10) / 100
    # 74 and 76 are times of policies, power and sync boost; 269 to 271 those of software heat, hardware heat and brake.
    for reason, number in {
        "sw_power_cap": 74, "sync_boost": 76, "sw_thermal": 269, "hw_thermal": 270, "hw_power_brake": 271
    }.items():  # fmt: skip
        found[key("scope_gpu_throttle_seconds_total", **own, reason=reason)] = number
    for reason in (
        "gpu_idle", "application_clocks", "sw_power_cap", "hw_slowdown", "sync_boost", "sw_thermal", "hw_thermal",
        "hw_power_brake", "display_clock",
    ):  # fmt: skip
        # The planted mask is 4, which is the software's power cap.
        found[key("scope_gpu_throttle_active", **own, reason=reason)] = int(reason == "sw_power_cap")
    for kind in ("corrected", "uncorrected"):
        found[key("scope_gpu_remapped_rows_total", **own, cause=kind)] = 0
        for scope in ("volatile", "aggregate"):
            found[key("scope_gpu_ecc_errors_total", **own, type=kind, scope=scope, location="all")] = 0
    for action in (
        "none", "reset_gpu", "reboot_node", "drain_p2p", "drain_and_reset", "imex_domain", "bus_reset", "system_reboot"
    ):  # fmt: skip
        found[key("scope_gpu_recovery_action", **own, action=action)] = int(action == "none")
    for kind in ("replay", "recovery", "crc_flit", "crc_data", "ecc_data"):
        found[key("scope_nvlink_gpu_errors_total", **own, type=kind)] = 0
    for link in range(NUM_LINKS):
        found |= expect_link(gpu, link, own)
    return found


def expect_link(gpu: int, link: int, own: dict[str, object]) -> dict[Key, float]:
    """Return one link's figures: fields 138 to 141 are KiB (data out, data in, raw out, raw in), the speed is MB/s."""
    base = 1_000_000 * (gpu + 1) + 1_000 * link
    labels = {**own, "link": link}
    return {
        key("scope_nvlink_transmit_bytes_total", **labels, layer="data"): (base + 138) * 1024,
        key("scope_nvlink_receive_bytes_total", **labels, layer="data"): (base + 139) * 1024,
        key("scope_nvlink_transmit_bytes_total", **labels, layer="raw"): (base + 140) * 1024,
        key("scope_nvlink_receive_bytes_total", **labels, layer="raw"): (base + 141) * 1024,
        key("scope_nvlink_up", **labels): 1,
        key("scope_nvlink_speed_bytes_per_second", **labels): 26_562e6,
        key(
            "scope_nvlink_info", **labels, version="4.0", remote_pci=f"0000:c{link % 4}:00.0", remote_type="nvswitch"
        ): 1,
    }


def plant_nic(root: Path, nic: int) -> dict[Key, float]:
    """Write one NIC's files and return what they say: words of four bytes, Gb/s, Mb/s."""
    port, net = root / f"sys/class/infiniband/mlx5_{nic}/ports/1", root / f"sys/class/net/eth{nic}"
    words = 1_000_003 * (nic + 1)
    files = {
        port / "state": "4: ACTIVE", port / "phys_state": "5: LinkUp", port / "rate": "400 Gb/sec (4X NDR)",
        port / "link_layer": "Ethernet",
        port / "counters/port_xmit_data": words, port / "counters/port_rcv_data": words + 1,
        port / "counters/port_xmit_packets": words + 2, port / "counters/port_rcv_packets": words + 3,
        port / "counters/port_xmit_wait": words + 4,
        net / "operstate": "up", net / "speed": 100_000, net / "carrier_down_count": nic,
        net / "statistics/rx_bytes": words + 5, net / "statistics/tx_bytes": words + 6,
        net / "statistics/rx_packets": words + 7, net / "statistics/tx_packets": words + 8,
    }  # fmt: skip
    own: dict[str, object] = {"device": f"mlx5_{nic}", "port": 1}
    eth = {"device": f"eth{nic}"}
    found = {
        key("scope_rdma_port_state", **own): 4,
        key("scope_rdma_port_physical_state", **own): 5,
        key("scope_rdma_port_rate_bytes_per_second", **own): 400e9 / 8,
        key("scope_rdma_transmit_bytes_total", **own): words * 4,
        key("scope_rdma_receive_bytes_total", **own): (words + 1) * 4,
        key("scope_rdma_transmit_packets_total", **own): words + 2,
        key("scope_rdma_receive_packets_total", **own): words + 3,
        key("scope_rdma_transmit_wait_ticks_total", **own): words + 4,
        key("scope_net_up", **eth): 1,
        key("scope_net_speed_bytes_per_second", **eth): 100e9 / 8,
        key("scope_net_carrier_downs_total", **eth): nic,
        key("scope_net_receive_bytes_total", **eth): words + 5,
        key("scope_net_transmit_bytes_total", **eth): words + 6,
        key("scope_net_receive_packets_total", **eth): words + 7,
        key("scope_net_transmit_packets_total", **eth): words + 8,
    }
    for name, value in RDMA_EVENTS.items():
        files[port / "counters" / name] = value + nic
        found[key("scope_rdma_port_events_total", **own, counter=name)] = value + nic
    for name, value in HARDWARE_EVENTS.items():
        files[port / "hw_counters" / name] = value + nic
        found[key("scope_rdma_hardware_events_total", **own, counter=name)] = value + nic
    for name, value in NET.items():
        files[net / "statistics" / name] = value + nic
        found[key("scope_net_errors_total", **eth, type=name)] = value + nic
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    return found


def plant_nfs(root: Path) -> dict[Key, float]:
    """Write a mount of two connections and return what it says: milliseconds; bytes 5 and 6 go over the wire."""
    path = root / "proc/self/mountstats"
    path.parent.mkdir(parents=True)
    path.write_text(
        "device srv:/x mounted on /data with fstype nfs4 statvers=1.1\n\tage:\t9\n"
        "\tbytes:\t1 2 3 4 5000 6000 7 8\n"
        "\txprt:\ttcp 0 0 1 0 0 100 99 2 300 40 8 0 0\n\txprt:\ttcp 0 0 1 0 0 200 199 3 300 50 9 0 0\n"
        "\tper-op statistics\n\t READ: 10 12 1 700 800 1500 2500 4500 3\n"
    )
    mount: dict[str, object] = {"mount": "/data"}
    read = {**mount, "operation": "READ"}
    return {
        key("scope_nfs_mount_info", **mount, export="srv:/x"): 1,
        key("scope_nfs_read_bytes_total", **mount): 5_000,
        key("scope_nfs_write_bytes_total", **mount): 6_000,
        key("scope_nfs_connections", **mount): 2,
        key("scope_nfs_rpc_requests_total", **mount): 300,
        key("scope_nfs_bad_replies_total", **mount): 5,
        key("scope_nfs_backlog_requests_total", **mount): 90,
        key("scope_nfs_max_slots", **mount): 17,
        key("scope_nfs_operations_total", **read): 10,
        key("scope_nfs_retransmissions_total", **read): 2,
        key("scope_nfs_major_timeouts_total", **read): 1,
        key("scope_nfs_queue_seconds_total", **read): 1.5,
        key("scope_nfs_response_seconds_total", **read): 2.5,
        key("scope_nfs_request_seconds_total", **read): 4.5,
        key("scope_nfs_operation_errors_total", **read): 3,
    }


def test_every_series_of_a_node(start_exporter: Callable[..., Any], tmp_path: Path) -> None:
    """The two readings have the same series, no more on either side, and the same values."""
    root = tmp_path / "root"
    expected = plant_nfs(root)
    for nic in range(NUM_NICS):
        expected |= plant_nic(root, nic)
    for gpu in range(NUM_GPUS):
        expected |= expect_gpu(gpu)
    script = make_node(tmp_path / "nvml.txt", num_gpus=NUM_GPUS)
    options = ("--interval", "300ms", "--slow-interval", "300ms", "--root", str(root), "--disable", "jobs,training")
    exporter = start_exporter(script, *options)
    # GPM needs two samples.
    while exporter.value("scope_exporter_samples_total") < 3:
        time.sleep(0.05)
    samples = exporter.samples()
    # What names things, and XIDs that have not happened, are other tests' business.
    others = ("scope_gpu_info", "scope_gpu_xid_", "scope_gpu_nic_", "scope_rdma_link_info")
    checked = {k: v for k, v in samples.items() if k[0].startswith(CHECKED) and not k[0].startswith(others)}
    assert len(checked) > 1_700
    assert checked.keys() == expected.keys()
    wrong = {k: (checked[k], value) for k, value in expected.items() if checked[k] != pytest.approx(value, rel=1e-12)}
    assert wrong == {}
    xids = [value for (name, _), value in samples.items() if name == "scope_gpu_xid_events_total"]
    # 15 that ask for a reset, 2 for a reboot and 8 for a look at NVLink, of each GPU, before any has happened.
    assert (len(xids), sum(xids)) == (25 * NUM_GPUS, 0)
