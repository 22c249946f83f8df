"""Every figure of a whole node against a second reading of its planted answers, by the units of NVML's and the kernel's
documentation and by nothing of the exporter's own.
"""

from __future__ import annotations

import json
import socket
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from scope.testing.fake_nvml.nodes import make_node

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from scope.testing.fake_nvml.build import Script

pytestmark = pytest.mark.system("gcc")
NUM_NICS = 8
Key = tuple[str, tuple[tuple[str, str], ...]]
GIB = 1024**3
# What each GPU of the node is: eight of one kind, one of each other kind, and one that is split by MIG.
KINDS = ["hopper"] * 8 + ["volta", "ampere", "blackwell", "grace", "hopper"]
SPLIT = 12
RDMA_EVENTS = {"symbol_error": 3, "link_downed": 5, "link_error_recovery": 7, "VL15_dropped": 11}
HARDWARE_EVENTS = {"np_cnp_sent": 13, "out_of_sequence": 17, "rp_cnp_handled": 19, "local_ack_timeout_err": 23}
NET = {"rx_errors": 29, "tx_errors": 31, "rx_dropped": 37, "tx_dropped": 41}


class Kind(NamedTuple):
    """What a kind of GPU can tell, by the documentation of its generation and not by the exporter's tables."""

    memory: int
    links: int
    link_speed: float
    version: str
    pcie: int
    remaps: bool = False
    newest: bool = False
    mig: bool = False
    nvlink5: bool = False
    fabric: bool = False
    c2c: int = 0


HOPPER = Kind(80 * GIB, 18, 26_562e6, "4.0", 5, remaps=True, newest=True, mig=True, fabric=True)
BLACKWELL = HOPPER._replace(memory=180 * GIB, link_speed=53_125e6, version="5.0", nvlink5=True)
KNOWN = {
    "volta": Kind(32 * GIB, 6, 25_781e6, "2.0", 3),
    "ampere": Kind(80 * GIB, 12, 26_562e6, "3.0", 4, remaps=True, mig=True),
    "hopper": HOPPER,
    "blackwell": BLACKWELL,
    "grace": BLACKWELL._replace(memory=186 * GIB, c2c=2),
}


def key(name: str, **labels: object) -> Key:
    """Return how the exporter's samples are looked up."""
    return name, tuple(sorted((label, str(value)) for label, value in labels.items()))


def expect_gpu(gpu: int) -> dict[Key, float]:
    """Return one GPU's figures, worked out from the answers that `make_node` documents.

    Watts are mW / 1000, joules mJ / 1000, hertz MHz x 1e6, ratios percent / 100, seconds ns / 1e9, memory bytes.
    """
    kind = KNOWN[KINDS[gpu]]
    own: dict[str, object] = {"gpu": gpu, "uuid": f"GPU-00000000-0000-0000-0000-{gpu:012d}"}
    used, reserved, total = (gpu + 1) * GIB, 600 * 1024**2, kind.memory
    found = {
        key("scope_gpu_up", **own): 1,
        key("scope_gpu_utilization_ratio", **own): (90 + min(gpu, 9)) / 100,
        key("scope_gpu_decoder_utilization_ratio", **own): (20 + gpu) / 100,
        key("scope_gpu_memory_total_bytes", **own): total,
        key("scope_gpu_memory_used_bytes", **own): used,
        key("scope_gpu_memory_reserved_bytes", **own): reserved,
        key("scope_gpu_memory_free_bytes", **own): total - used - reserved,
        # Field 185 is the average over a second; older GPUs have the call alone.
        key("scope_gpu_power_watts", **own): ((350_000 if kind.newest else 400_000) + gpu) / 1e3,
        key("scope_gpu_power_limit_watts", **own): 700,
        key("scope_gpu_energy_joules_total", **own): (7_000_000 + gpu) / 1e3,
        key("scope_gpu_clock_hertz", **own, domain="sm"): 1.98e9,
        key("scope_gpu_clock_hertz", **own, domain="memory"): 2.619e9,
        key("scope_gpu_temperature_celsius", **own, sensor="core"): 50 + gpu,
        key("scope_pcie_replays_total", **own): 2,
        key("scope_pcie_link_generation", **own): kind.pcie,
        key("scope_pcie_link_generation_max", **own): kind.pcie,
        key("scope_pcie_link_width", **own): 16,
        key("scope_pcie_link_width_max", **own): 16,
    }
    # 74 and 76 are times of policies, power and sync boost; 269 to 271 those of software heat, hardware heat and brake.
    times = {"sw_power_cap": 74, "sync_boost": 76}
    if kind.newest:
        times |= {"sw_thermal": 269, "hw_thermal": 270, "hw_power_brake": 271}
        found[key("scope_gpu_temperature_celsius", **own, sensor="margin")] = 35
        found[key("scope_pcie_transmit_bytes_total", **own)] = 3_000_000_000 + gpu
        found[key("scope_pcie_receive_bytes_total", **own)] = 2_000_000_000 + gpu
        for action in (
            "none", "reset_gpu", "reboot_node", "drain_p2p", "drain_and_reset", "imex_domain", "bus_reset",
            "system_reboot",
        ):  # fmt: skip
            found[key("scope_gpu_recovery_action", **own, action=action)] = int(action == "none")
    if KINDS[gpu] == "volta":
        # The others are made for computing and have no encoder.
        found[key("scope_gpu_encoder_utilization_ratio", **own)] = (30 + gpu) / 100
    for reason, number in times.items():
        found[key("scope_gpu_throttle_seconds_total", **own, reason=reason)] = number
    for reason in (
        "gpu_idle", "application_clocks", "sw_power_cap", "hw_slowdown", "sync_boost", "sw_thermal", "hw_thermal",
        "hw_power_brake", "display_clock",
    ):  # fmt: skip
        # The planted mask is 4, which is the software's power cap.
        found[key("scope_gpu_throttle_active", **own, reason=reason)] = int(reason == "sw_power_cap")
    if kind.remaps:
        found[key("scope_gpu_temperature_celsius", **own, sensor="memory")] = 60 + gpu
        found[key("scope_gpu_row_remap_pending", **own)] = found[key("scope_gpu_row_remap_failure", **own)] = 0
    if kind.mig:
        found[key("scope_gpu_mig_enabled", **own)] = int(gpu == SPLIT)
    found |= expect_errors(gpu, kind, own)
    found |= expect_activity(gpu, own) if kind.newest else {}
    found |= expect_fabric(gpu, own) if kind.fabric else {}
    for link in range(kind.links):
        found |= expect_link(gpu, link, kind, own)
    for link in range(kind.c2c):
        found |= expect_c2c(gpu, link, own)
    return found


def expect_errors(gpu: int, kind: Kind, own: dict[str, object]) -> dict[Key, float]:
    """Return ECC, row remaps and the errors and repairs of all links together."""
    found: dict[Key, float] = {}
    for error in ("corrected", "uncorrected"):
        if kind.remaps:
            found[key("scope_gpu_remapped_rows_total", **own, cause=error)] = 0
        for scope in ("volatile", "aggregate"):
            found[key("scope_gpu_ecc_errors_total", **own, type=error, scope=scope, location="all")] = 0
    # Up to Hopper five counters by field or call; NVLink 5 has its own.
    errors = ["replay", "recovery", "crc_flit", "crc_data", "ecc_data"]
    if kind.nvlink5:
        errors = [
            "malformed_packet", "buffer_overrun", "receive", "receive_remote", "receive_general", "link_integrity",
            "transmit_discard", "recovery_successful", "recovery_failed", "symbol",
        ]  # fmt: skip
        each_link = [10_000 * (gpu + 1) + 100 * link for link in range(kind.links)]
        for number in range(16):
            found[key("scope_nvlink_gpu_fec_events_total", **own, bin=number)] = sum(each_link) if number < 3 else 0
    for error in errors:
        found[key("scope_nvlink_gpu_errors_total", **own, type=error)] = 0
    return found


def expect_c2c(gpu: int, link: int, own: dict[str, object]) -> dict[Key, float]:
    """Return one link to the CPU: 45,000 MB/s, active, at full power, each counter with a value of its own."""
    labels = {**own, "link": link}
    found: dict[Key, float] = {
        key("scope_c2c_up", **labels): 1,
        key("scope_c2c_speed_bytes_per_second", **labels): 45e9,
        key("scope_c2c_low_power", **labels): 0,
    }
    for place, error in enumerate(("interrupt", "replay", "replay_back_to_back")):
        found[key("scope_c2c_errors_total", **labels, type=error)] = 100 * gpu + 10 * link + place
    return found


def expect_activity(gpu: int, own: dict[str, object]) -> dict[Key, float]:
    """Return GPM's activities: percent of the whole GPU, or of each instance of one that is split."""
    percents = {
        "graphics_active": 1, "sm_active": 2, "sm_occupancy": 3, "tensor_active": 5, "dram_active": 10,
        "fp64_active": 11, "fp32_active": 12, "fp16_active": 13,
    }  # fmt: skip
    if gpu != SPLIT:
        return {
            key(f"scope_gpu_{name}_ratio", **own, mig=""): (10 + metric + gpu / 10) / 100
            for name, metric in percents.items()
        }
    found: dict[Key, float] = {}
    for slot, (instance, compute) in enumerate(INSTANCES):
        mig = {**own, "mig": f"{instance}/{compute}"}
        found[key("scope_mig_info", **mig, mig_uuid=f"MIG-{slot}", profile="3g.40gb", num_slices=3)] = 1
        if compute == 0:
            # Memory and activity are those of the GPU instance and stand once.
            found[key("scope_mig_memory_total_bytes", **mig)] = 40 * GIB
            found[key("scope_mig_memory_used_bytes", **mig)] = (slot + 1) * GIB
            found |= {
                key(f"scope_gpu_{name}_ratio", **mig): (instance + metric) / 100 for name, metric in percents.items()
            }
    return found


def expect_fabric(gpu: int, own: dict[str, object]) -> dict[Key, float]:
    """Return the place in the fabric: joined, cluster 7, two cliques, nothing wrong."""
    cluster = "00000000-0000-0000-0000-000000000007"
    found: dict[Key, float] = {
        key("scope_gpu_fabric_info", **own, cluster=cluster, clique=gpu % 2, configuration=""): 1,
        key("scope_gpu_fabric_state", **own): 3,
    }
    for fault in (
        "degraded_bandwidth", "route_recovery", "route_unhealthy", "access_timeout_recovery", "misconfigured",
        "registration_failed",
    ):  # fmt: skip
        found[key("scope_gpu_fabric_fault", **own, fault=fault)] = 0
    return found


def expect_link(gpu: int, link: int, kind: Kind, own: dict[str, object]) -> dict[Key, float]:
    """Return one link's figures: fields 138 to 141 are KiB (data out, data in, raw out, raw in), the speed is MB/s.

    NVLink 5 counts its data in bytes, in fields 202 and 204.
    """
    base = 1_000_000 * (gpu + 1) + 1_000 * link
    labels = {**own, "link": link}
    sent, got = (
        ((base * 1024 + 202), (base * 1024 + 204)) if kind.nvlink5 else ((base + 138) * 1024, (base + 139) * 1024)
    )
    remote = {"remote_pci": f"0000:c{link % 4}:00.0", "remote_type": "nvswitch"}
    found = {
        key("scope_nvlink_transmit_bytes_total", **labels, layer="data"): sent,
        key("scope_nvlink_receive_bytes_total", **labels, layer="data"): got,
        key("scope_nvlink_transmit_bytes_total", **labels, layer="raw"): (base + 140) * 1024,
        key("scope_nvlink_receive_bytes_total", **labels, layer="raw"): (base + 141) * 1024,
        key("scope_nvlink_up", **labels): 1,
        key("scope_nvlink_speed_bytes_per_second", **labels): kind.link_speed,
        key("scope_nvlink_info", **labels, version=kind.version, **remote): 1,
    }
    if kind.nvlink5:
        found[key("scope_nvlink_symbol_error_ratio", **labels)] = 15e-12
        # Bins that repaired something; bin 0 stands for what needed no repair.
        for number in (1, 2):
            found[key("scope_nvlink_fec_events_total", **labels, bin=number)] = 10_000 * (gpu + 1) + 100 * link
    return found


INSTANCES = [(1, 0), (1, 1), (5, 0)]


def split(script: Script) -> None:
    """Split one GPU into two GPU instances, the first of them with two compute instances."""
    own = f"g{SPLIT}"
    script.set(f"{own}.nvmlDeviceGetMigMode", 1)
    script.set(f"{own}.nvmlDeviceGetMaxMigDeviceCount", 7)
    for slot, (instance, compute) in enumerate(INSTANCES):
        script.set(f"{own}.m{slot}.nvmlDeviceGetUUID", f"MIG-{slot}")
        script.set(f"{own}.m{slot}.nvmlDeviceGetName", "NVIDIA H100 80GB HBM3 MIG 3g.40gb")
        script.set(f"{own}.m{slot}.nvmlDeviceGetGpuInstanceId", instance)
        script.set(f"{own}.m{slot}.nvmlDeviceGetComputeInstanceId", compute)
        script.set(f"{own}.m{slot}.nvmlDeviceGetAttributes_v2", 3, 1)
        script.set(f"{own}.m{slot}.nvmlDeviceGetMemoryInfo", 40 * GIB, (39 - slot) * GIB, (slot + 1) * GIB)
        for metric in (1, 2, 3, 5, 10, 11, 12, 13):
            script.set(f"{own}.gpm.{metric}.{instance}", instance + metric)


def plant_host(root: Path) -> dict[Key, float]:
    """Write the node's own files and return what they say: ticks of 10 ms, kB of 1024 bytes, microseconds of stall."""
    ticks = {
        "user": 101,
        "nice": 203,
        "system": 307,
        "idle": 409,
        "iowait": 503,
        "irq": 601,
        "softirq": 701,
        "steal": 809,
    }
    sizes = {
        "MemTotal": 1_001, "MemFree": 1_003, "MemAvailable": 1_009, "Buffers": 1_013, "Cached": 1_019,
        "SwapTotal": 1_021, "SwapFree": 1_031, "Shmem": 1_033, "Dirty": 1_039, "Writeback": 1_049, "Mlocked": 1_051,
        "Unevictable": 1_061,
    }  # fmt: skip
    stalls = {
        ("cpu", "some"): 11,
        ("memory", "some"): 13,
        ("memory", "full"): 17,
        ("io", "some"): 19,
        ("io", "full"): 23,
    }
    files = {
        "stat": f"cpu  {' '.join(map(str, ticks.values()))} 0 0\ncpu0 1 2\ncpu1 1 2\ncpu2 1 2\nbtime 1700000001\n",
        "meminfo": "".join(f"{name}:  {size} kB\n" for name, size in sizes.items()) + "HugePages_Total: 5\n",
        "loadavg": "2.75 1.5 1.25 1/99 1234\n",
        "vmstat": "nr_free_pages 5\noom_kill 29\npgfault 7\n",
        "pressure/cpu": "some avg10=0.00 avg60=0.00 avg300=0.00 total=11000000\n",
        "pressure/memory": "some avg10=1.00 avg60=0.00 avg300=0.00 total=13000000\nfull avg10=0.00 total=17000000\n",
        "pressure/io": "some avg10=0.00 avg60=0.00 avg300=0.00 total=19000000\nfull avg10=0.00 total=23000000\n",
    }
    for name, text in files.items():
        path = root / "proc" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    found = {
        key("scope_cpus"): 3,
        key("scope_load1"): 2.75,
        key("scope_oom_kills_total"): 29,
        key("scope_boot_timestamp_seconds"): 1_700_000_001,
    }
    found |= {key("scope_cpu_seconds_total", mode=mode): number / 100 for mode, number in ticks.items()}
    found |= {key("scope_memory_bytes", type=name): size * 1024 for name, size in sizes.items()}
    for (resource, extent), seconds in stalls.items():
        found[key("scope_pressure_stalled_seconds_total", resource=resource, extent=extent)] = seconds
    return found


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


STEPS = 7


def plant_training(folder: Path) -> dict[Key, float]:
    """Write a run of two ranks that ended and return what its steps add up to.

    Step k of rank r takes 100 + 10 r + k ms, of which 20 ms are input and the rest is forward; it trains on 1,000 + k
    tokens and so on: sums of k over seven steps are 21.
    """
    began = (int(time.time()) - 100) * 1_000_000_000
    folder.mkdir(parents=True)
    run = {"schema": "1.0", "run_id": "job", "started_ns": began, "world_size": 2}
    (folder / "run.json").write_text(json.dumps(run))
    found: dict[Key, float] = {}
    for rank in (0, 1):
        own = folder / f"attempt-000/ranks/{rank:05d}"
        own.mkdir(parents=True)
        groups = [
            {"group": 0, "name": "0", "ranks": [0, 1]},
            {"group": 1, "name": "1", "ranks": [rank], "mesh_axis": "tp"},
        ]
        info = {
            "schema": "1.0", "run_id": "job", "attempt": 0, "rank": rank, "local_rank": rank, "world_size": 2,
            "started_ns": began, "ended_ns": began + 50_000_000_000, "exit_reason": "finished", "pid": 1,
            "host": socket.gethostname(), "groups": groups,
            "device": {"kind": "cuda", "name": "H100", "uuid": f"GPU-{rank}"},
        }  # fmt: skip
        (own / "rank.json").write_text(json.dumps(info))
        start = began + 1_000_000_000
        with (own / "steps.jsonl").open("w") as stream:
            for number in range(STEPS):
                length = (100 + 10 * rank + number) * 1_000_000
                stream.write(json.dumps(plant_step(number, rank, start, length)) + "\n")
                start += length
        found |= expect_rank(rank, start / 1e9)
    return found


def plant_step(number: int, rank: int, start: int, length: int) -> dict[str, object]:
    """Return one line of a rank's steps."""
    call = {"num_calls": 3, "in_bytes": 500 + number, "out_bytes": 700 + number, "num_timed": 3}
    return {
        "kind": "step", "step": number, "start_ns": start, "end_ns": start + length,
        "phases": {"input": 20_000_000, "forward": length - 20_000_000},
        "communication_wait_ns": 5_000_000 + number, "communication_wait_coverage_ratio": 0.75, "gc_ns": 1_000_000,
        "tokens": 1_000 + number, "model_flop": 2e12, "input_bytes": 4_096, "recorder_ns": 40_000,
        "num_dropped": number, "mfu_ratio": 0.4, "hfu_ratio": 0.5,
        "memory": {
            "peak": {"allocated_bytes": 10_000 - number, "reserved_bytes": 20_000, "resident_bytes": 30_000 + rank}
        },
        "collectives": [
            {**call, "group": 0, "operation": "all_reduce", "duration_ns": 8_000_000, "num_blocked_known": 3,
             "blocked_ns": 2_000_000},
            {**call, "group": 1, "operation": "all_gather", "num_timed": 0},
        ],
    }  # fmt: skip


def expect_rank(rank: int, last_end: float) -> dict[Key, float]:
    """Return a rank's figures by hand: lengths sum to 7 x (100 + 10 r) + 21 ms; the last step is number 6."""
    # The label of a run is the beginning of its id's SHA-256; this is `echo -n job | sha256sum`.
    own: dict[str, object] = {"run": "5e8c9902", "rank": rank}
    total = (STEPS * (100 + 10 * rank) + 21) / 1e3
    info = {"run_id": "job", "attempt": 0, "world_size": 2, "local_rank": rank, "uuid": f"GPU-{rank}", "device": "H100"}
    single = {
        "active": 0, "steps_total": 7, "step_seconds_total": total, "step_median_seconds": (103 + 10 * rank) / 1e3,
        "step_last_seconds": (106 + 10 * rank) / 1e3, "last_step_timestamp_seconds": last_end,
        "communication_wait_seconds_total": 0.035 + 21e-9, "communication_wait_coverage_ratio": 0.75,
        "gc_seconds_total": 0.007, "tokens_total": 7_021, "model_flop_total": 14e12, "input_bytes_total": 7 * 4_096,
        "mfu_ratio": 0.4, "hfu_ratio": 0.5, "dropped_records_total": 21, "recorder_seconds_total": 280e-6,
        "goodput_ratio": total / 50,
    }  # fmt: skip
    found = {key(f"scope_train_{name}", **own): value for name, value in single.items()}
    # Without an axis of data parallelism nobody can tell whose place on the other axes is whose.
    found[key("scope_train_info", **own, **info, peers="")] = 1
    found[key("scope_train_phase_seconds_total", **own, phase="input")] = 0.14
    found[key("scope_train_phase_seconds_total", **own, phase="forward")] = total - 0.14
    for kind, last, peak in (
        ("allocated", 9_994, 10_000), ("reserved", 20_000, 20_000), ("resident", 30_000 + rank, 30_000 + rank)
    ):  # fmt: skip
        found[key("scope_train_memory_bytes", **own, kind=kind)] = last
        found[key("scope_train_memory_peak_bytes", **own, kind=kind)] = peak
    for operation, axis in (("all_reduce", "world"), ("all_gather", "tp")):
        labels = {**own, "operation": operation, "axis": axis}
        found[key("scope_train_collective_calls_total", **labels)] = 21
        found[key("scope_train_collective_bytes_total", **labels)] = 7 * 500 + 21
        found[key("scope_train_collective_received_bytes_total", **labels)] = 7 * 700 + 21
    labels = {**own, "operation": "all_reduce", "axis": "world"}
    found[key("scope_train_collective_seconds_total", **labels)] = 0.056
    found[key("scope_train_collective_blocked_seconds_total", **labels)] = 0.014
    return found


def test_every_series_of_a_node(start_exporter: Callable[..., Any], tmp_path: Path) -> None:
    """Every generation, MIG, NICs, storage, host and training: the same series on both sides, with the same values."""
    root = tmp_path / "root"
    expected = plant_nfs(root) | plant_host(root) | plant_training(tmp_path / "runs" / "job")
    for nic in range(NUM_NICS):
        expected |= plant_nic(root, nic)
    for gpu in range(len(KINDS)):
        expected |= expect_gpu(gpu)
    script = make_node(tmp_path / "nvml.txt", generation=KINDS)
    for gpu in range(len(KINDS)):
        script.set(f"g{gpu}.nvmlDeviceGetUtilizationRates", 90 + min(gpu, 9), 40)
    split(script)
    script.write()
    options = ("--interval", "300ms", "--slow-interval", "300ms", "--root", str(root), "--disable", "jobs")
    exporter = start_exporter(script, *options, "--runs", f"{tmp_path}/runs/*")
    # GPM needs two samples.
    while (
        exporter.value("scope_exporter_samples_total") < 3
        or exporter.value("scope_collector_up", collector="training") < 1
    ):
        time.sleep(0.05)
    samples = exporter.samples()
    # What names things, XIDs that have not happened, and the exporter itself are other tests' business.
    others = ("scope_gpu_info", "scope_gpu_xid_", "scope_gpu_nic_", "scope_rdma_link_info", "scope_exporter_")
    checked = {k: v for k, v in samples.items() if not k[0].startswith((*others, "scope_collector_up"))}
    assert len(checked) > 2_700
    assert checked.keys() == expected.keys()
    wrong = {k: (checked[k], value) for k, value in expected.items() if checked[k] != pytest.approx(value, rel=1e-9)}
    assert wrong == {}
    xids = [value for (name, _), value in samples.items() if name == "scope_gpu_xid_events_total"]
    # 15 that ask for a reset, 2 for a reboot and 8 for a look at NVLink, of each GPU, before any has happened.
    assert (len(xids), sum(xids)) == (25 * len(KINDS), 0)
