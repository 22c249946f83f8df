"""Every counter family in the real Prometheus: `rate()` equals the planted rate within 1 %, and nothing falls.

Whatever counts on a node is made to grow at a rate of its own: fields of the fake NVML by the clock, files of the
kernel and steps of a run by a thread. What is expected is worked out from the planted rates by the units of NVML's and
the kernel's documentation.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from exporters.reference import find_metrics
from scope.testing.fake_nvml.nodes import make_node

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from scope.testing.fake_nvml.build import Script

pytestmark = pytest.mark.system("gcc", "prometheus")

Key = tuple[str, tuple[tuple[str, str], ...]]
WINDOW_S = 20
# Counts of single events, which other tests plant; and what the exporter counts of itself.
EVENTS = {
    "scope_gpu_xid_events_total",
    "scope_exporter_samples_total",
    "scope_exporter_sample_errors_total",
    "scope_exporter_sampler_restarts_total",
}
GPU = [{"gpu": str(gpu), "uuid": f"GPU-00000000-0000-0000-0000-{gpu:012d}"} for gpu in (0, 1)]


def key(name: str, **labels: object) -> Key:
    """Return how rates are looked up."""
    return f"scope_{name}_total", tuple(sorted((label, str(value)) for label, value in labels.items()))


class Growing:
    """GPU counters that grow by the clock: planted in a script, with the rate that each series must have."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.began = int(time.time())
        self.rates: dict[Key, float] = {}
        for number, reason, share in (
            (74, "sw_power_cap", 0.11), (76, "sync_boost", 0.12), (269, "sw_thermal", 0.13), (270, "hw_thermal", 0.14),
            (271, "hw_power_brake", 0.15),
        ):  # fmt: skip
            self.field(0, number, share * 1e9)
            self.rates[key("gpu_throttle_seconds", **GPU[0], reason=reason)] = share
        for place, (number, kind, scope) in enumerate(
            ((3, "corrected", "volatile"), (4, "uncorrected", "volatile"), (5, "corrected", "aggregate"),
             (6, "uncorrected", "aggregate"))
        ):  # fmt: skip
            self.field(0, number, 100 + 10 * place)
            labels = {"type": kind, "scope": scope, "location": "all"}
            self.rates[key("gpu_ecc_errors", **GPU[0], **labels)] = 100 + 10 * place
        self.field(0, 83, 351_000)
        self.rates[key("gpu_energy_joules", **GPU[0])] = 351
        for number, cause, rate in ((142, "corrected", 210), (143, "uncorrected", 220)):
            self.field(0, number, rate)
            self.rates[key("gpu_remapped_rows", **GPU[0], cause=cause)] = rate
        # The counter wraps every 14 s at this rate.
        script.field(0, 197, f"+4200000000:300000000@{self.began}%4294967296")
        self.field(0, 198, 2e8)
        self.rates[key("pcie_transmit_bytes", **GPU[0])] = 3e8
        self.rates[key("pcie_receive_bytes", **GPU[0])] = 2e8
        self.field(0, 94, 230)
        self.rates[key("pcie_replays", **GPU[0])] = 230
        self.field(0, 173, 240)
        self.rates[key("pcie_errors", **GPU[0], type="correctable")] = 240
        self._links()
        script.write()

    def field(self, gpu: int, number: int, rate: float, *, scope: int = 0) -> None:
        """Let one field grow."""
        self.script.field(gpu, number, f"+1000:{rate}@{self.began}", scope=scope)

    def _links(self) -> None:
        for link in range(18):
            for place, (number, way, layer) in enumerate(
                ((138, "transmit", "data"), (139, "receive", "data"), (140, "transmit", "raw"), (141, "receive", "raw"))
            ):
                kib = 1_000_000 + 10_000 * place + 1_000 * link
                self.field(0, number, kib, scope=link)
                self.rates[key(f"nvlink_{way}_bytes", **GPU[0], link=link, layer=layer)] = kib * 1024
            for number, way in ((202, "transmit"), (204, "receive")):
                self.field(1, number, 1e9 + number * 1e6, scope=link)
                self.rates[key(f"nvlink_{way}_bytes", **GPU[1], link=link, layer="data")] = 1e9 + number * 1e6
        for link in (3, 4):
            self.field(0, 161, 50 + link, scope=link)
            self.rates[key("nvlink_errors", **GPU[0], link=link, type="replay")] = 50 + link
            self.field(1, 240, 60 + link, scope=link)
            self.rates[key("nvlink_fec_events", **GPU[1], link=link, bin=5)] = 60 + link
        self.rates[key("nvlink_gpu_errors", **GPU[0], type="replay")] = 107
        self.rates[key("nvlink_gpu_fec_events", **GPU[1], bin=5)] = 127
        for number, kind in ((231, "interrupt"), (232, "replay"), (233, "replay_back_to_back")):
            self.field(1, number, number, scope=1)
            self.rates[key("c2c_errors", **GPU[1], link=1, type=kind)] = number

    def reset(self) -> None:
        """Let counters of a GPU begin again, as when its driver is loaded anew."""
        now = int(time.time())
        self.script.field(0, 83, f"+0:351000@{now}")
        self.script.field(0, 138, f"+0:1000000@{now}", scope=0)
        self.script.write()


class Moving:
    """Files of the kernel and a run, which a thread lets grow 30 times a second, and the rate of each series."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "root"
        self.run = folder / "runs" / "job"
        self.began = time.time() - 1
        self.rates: dict[Key, float] = {}
        self._number = 0
        self._plain: dict[Path, tuple[float, str]] = {}
        port, net = self.root / "sys/class/infiniband/mlx5_0/ports/1", self.root / "sys/class/net/eth0"
        own = {"device": "mlx5_0", "port": 1}
        # Data is counted in words of four bytes.
        self._file(port / "counters/port_xmit_data", 2e9, key("rdma_transmit_bytes", **own), 8e9)
        self._file(port / "counters/port_rcv_data", 3e9, key("rdma_receive_bytes", **own), 12e9)
        self._file(port / "counters/port_xmit_packets", 2e6, key("rdma_transmit_packets", **own))
        self._file(port / "counters/port_rcv_packets", 3e6, key("rdma_receive_packets", **own))
        self._file(port / "counters/port_xmit_wait", 4e6, key("rdma_transmit_wait_ticks", **own))
        self._file(port / "counters/symbol_error", 500, key("rdma_port_events", **own, counter="symbol_error"))
        self._file(port / "hw_counters/np_cnp_sent", 600, key("rdma_hardware_events", **own, counter="np_cnp_sent"))
        eth = {"device": "eth0"}
        self._file(net / "statistics/rx_bytes", 5e8, key("net_receive_bytes", **eth))
        self._file(net / "statistics/tx_bytes", 6e8, key("net_transmit_bytes", **eth))
        self._file(net / "statistics/rx_packets", 5e5, key("net_receive_packets", **eth))
        self._file(net / "statistics/tx_packets", 6e5, key("net_transmit_packets", **eth))
        self._file(net / "statistics/rx_dropped", 700, key("net_errors", **eth, type="rx_dropped"))
        self._file(net / "carrier_down_count", 800, key("net_carrier_downs", **eth))
        self._file(self.root / "proc/vmstat", 900, key("oom_kills"), form="oom_kill {}\n")
        # Ticks of 10 ms, and microseconds.
        self._file(self.root / "proc/stat", 320, key("cpu_seconds", mode="user"), 3.2, form="cpu {} 0 0 0\ncpu0 1\n")
        self._file(
            self.root / "proc/pressure/io", 4e5, key("pressure_stalled_seconds", resource="io", extent="some"), 0.4,
            form="some avg10=0.00 total={}\n",
        )  # fmt: skip
        (net / "ifindex").write_text("4242")
        self._drivers(folder / "ethtool.txt")
        self._storage()
        self._training()
        self.update()

    def _file(self, path: Path, rate: float, of: Key, expected: float | None = None, *, form: str = "{}\n") -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._plain[path] = (rate, form)
        self.rates[of] = rate if expected is None else expected

    def _drivers(self, script: Path) -> None:
        began = int(self.began)
        rates = {"rx_prio3_pause": 1_000, "rx_prio3_pause_duration": 200_000, "rx_discards_phy": 300}
        script.write_text("".join(f"eth0 {name} +0:{rate}@{began}\n" for name, rate in rates.items()))
        labels = {"device": "eth0", "priority": 3, "direction": "rx"}
        self.rates[key("net_pfc_pause_frames", **labels)] = 1_000
        self.rates[key("net_pfc_pause_seconds", **labels)] = 0.2
        self.rates[key("net_driver_events", device="eth0", counter="rx_discards_phy")] = 300

    def _storage(self) -> None:
        mount, read = {"mount": "/data"}, {"mount": "/data", "operation": "READ"}
        for name, rate in (
            ("read_bytes", 5e7), ("write_bytes", 6e7), ("rpc_requests", 1_000), ("bad_replies", 110),
            ("backlog_requests", 1_200),
        ):  # fmt: skip
            self.rates[key(f"nfs_{name}", **mount)] = rate
        # 300 of 2,300 requests a second are sent again; times are milliseconds.
        for name, rate in (
            ("operations", 2_000), ("retransmissions", 300), ("major_timeouts", 130), ("queue_seconds", 1.4),
            ("response_seconds", 1.5), ("request_seconds", 1.6), ("operation_errors", 170),
        ):  # fmt: skip
            self.rates[key(f"nfs_{name}", **read)] = rate
        line = "{0} {1} {2} 0 0 {3} {4} {5} {6}"
        self._mount = (
            "device srv:/x mounted on /data with fstype nfs4 statvers=1.1\n\tage:\t9\n\tbytes:\t0 0 0 0 {7} {8} 0 0\n"
            f"\txprt:\ttcp 0 0 1 0 0 {{9}} 0 {{10}} 0 {{11}} 8 0 0\n\tper-op statistics\n\t READ: {line}\n"
        )
        self._mount_rates = (2_000, 2_300, 130, 1_400, 1_500, 1_600, 170, 5e7, 6e7, 1_000, 110, 1_200)

    def _training(self) -> None:
        """Plant a run of one rank with 20 steps a second, one after the other."""
        folder = self.run / "attempt-000/ranks/00000"
        folder.mkdir(parents=True)
        started = int(self.began * 1e9)
        run = {"schema": "1.0", "run_id": "job", "started_ns": started, "world_size": 1}
        (self.run / "run.json").write_text(json.dumps(run))
        info = {
            "schema": "1.0", "run_id": "job", "attempt": 0, "rank": 0, "started_ns": started, "pid": os.getpid(),
            "host": socket.gethostname(), "world_size": 1, "groups": [{"group": 0, "name": "0", "ranks": [0]}],
        }  # fmt: skip
        (folder / "rank.json").write_text(json.dumps(info))
        self._steps = folder / "steps.jsonl"
        own: dict[str, object] = {"run": "5e8c9902", "rank": 0}
        for name, rate in (
            ("steps", 20), ("step_seconds", 1), ("communication_wait_seconds", 0.3), ("gc_seconds", 0.02),
            ("tokens", 20_000), ("model_flop", 4e13), ("input_bytes", 81_920), ("dropped_records", 40),
            ("recorder_seconds", 0.001),
        ):  # fmt: skip
            self.rates[key(f"train_{name}", **own)] = rate
        self.rates[key("train_phase_seconds", **own, phase="input")] = 0.2
        self.rates[key("train_phase_seconds", **own, phase="forward")] = 0.8
        self.rates[key("train_communication_wait_phase_seconds", **own, phase="input")] = 0.1
        self.rates[key("train_communication_wait_phase_seconds", **own, phase="custom")] = 0.06
        labels = {**own, "operation": "all_reduce", "axis": "world"}
        for name, rate in (
            ("calls", 60), ("bytes", 10_000), ("received_bytes", 14_000), ("seconds", 0.5), ("blocked_seconds", 0.1)
        ):  # fmt: skip
            self.rates[key(f"train_collective_{name}", **labels)] = rate
        labels["operation"] = "all_gather"
        for name, rate in (("calls", 20), ("bytes", 1_200), ("blocked_seconds", 0.02)):
            self.rates[key(f"train_control_{name}", **labels)] = rate

    def update(self) -> None:
        """Write everything as it is now."""
        age = time.time() - self.began
        for path, (rate, form) in self._plain.items():
            replace(path, form.format(int(rate * age)))
        replace(
            self.root / "proc/self/mountstats", self._mount.format(*(int(rate * age) for rate in self._mount_rates))
        )
        with self._steps.open("a") as stream:
            while (self._number + 1) * 0.05 <= age:
                start = int((self.began + self._number * 0.05) * 1e9)
                self._number += 1
                end = int((self.began + self._number * 0.05) * 1e9)
                stream.write(json.dumps(make_step(self._number, start, end)) + "\n")


def make_step(number: int, start: int, end: int) -> dict[str, object]:
    """Return a step of about 50 ms."""
    return {
        "kind": "step", "step": number, "start_ns": start, "end_ns": end,
        "phases": {"input": 10_000_000, "forward": end - start - 10_000_000}, "communication_wait_ns": 15_000_000,
        "communication_wait_phases": {"input": 5_000_000, "custom": 3_000_000},
        "gc_ns": 1_000_000, "tokens": 1_000, "model_flop": 2e12, "input_bytes": 4_096, "num_dropped": 2,
        "recorder_ns": 50_000,
        "collectives": [
            {"group": 0, "operation": "all_reduce", "num_calls": 3, "in_bytes": 500, "out_bytes": 700, "num_timed": 3,
             "duration_ns": 25_000_000, "num_blocked_known": 3, "blocked_ns": 5_000_000},
            {"group": 0, "operation": "all_gather", "num_calls": 1, "in_bytes": 60, "out_bytes": 120,
             "num_blocked_known": 1, "blocked_ns": 1_000_000, "control": True},
        ],
    }  # fmt: skip


def replace(path: Path, text: str) -> None:
    """Write a file in one go and never half: the exporter keeps some open and reads others anew."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
    try:
        os.pwrite(descriptor, text.encode(), 0)
    finally:
        os.close(descriptor)


def keep_moving(moving: Moving, stopping: threading.Event) -> None:
    """Let everything move on until the test ends."""
    while not stopping.wait(1 / 30):
        moving.update()


def read_rates(prometheus: Any, names: set[str]) -> dict[Key, float]:
    """Return the rate of every series of these families."""
    found: dict[Key, float] = {}
    for name in names:
        for item in prometheus.query(f"rate({name}[{WINDOW_S}s])"):
            labels = {label: text for label, text in item["metric"].items() if label not in {"instance", "job"}}
            found[name, tuple(sorted(labels.items()))] = float(item["value"][1])
    return found


def count_resets(prometheus: Any, families: set[str]) -> dict[str, float]:
    """Return how often the series of each family fell."""
    found: dict[str, float] = {}
    for name in families - EVENTS:
        for item in prometheus.query(f"sum(resets({name}[2m]))"):
            found[name] = float(item["value"][1])
    return found


@pytest.mark.slow
def test_rates_in_prometheus_equal_the_planted_ones(
    start_exporter: Callable[..., Any], start_prometheus: Callable[..., Any], fake_ethtool: Path, tmp_path: Path
) -> None:
    """Each family of counters, also one that wraps; none falls, until one is truly reset, and then once."""
    growing = Growing(make_node(tmp_path / "nvml.txt", generation=["hopper", "grace"]))
    moving = Moving(tmp_path)
    expected = growing.rates | moving.rates
    families = {metric.name for metric in find_all() if metric.kind == "counter"}
    assert {name for name, _ in expected} == families - EVENTS
    stopping = threading.Event()
    mover = threading.Thread(target=keep_moving, args=(moving, stopping))
    mover.start()
    try:
        fast = ("--interval", "100ms", "--slow-interval", "50ms", "--training-interval", "100ms", "--deadline", "5s")
        preload = {"LD_PRELOAD": str(fake_ethtool), "SCOPE_FAKE_ETHTOOL": str(tmp_path / "ethtool.txt")}
        places = ("--root", str(moving.root), "--runs", f"{tmp_path}/runs/*")
        exporter = start_exporter(growing.script, *fast, *places, variables=preload)
        prometheus = start_prometheus(
            "global: {scrape_interval: 500ms, scrape_timeout: 500ms}\n"
            f"scrape_configs:\n- job_name: scope\n  static_configs: [{{targets: ['127.0.0.1:{exporter.port}']}}]\n"
        )
        time.sleep(WINDOW_S)
        wrong = dict(expected)
        deadline = time.monotonic() + 90
        found: dict[Key, float] = {}
        # A busy test machine delays single scrapes, and rate() extrapolates over such a gap; a later window is free of
        # it.
        while wrong and time.monotonic() < deadline:
            found = read_rates(prometheus, {name for name, _ in wrong})
            wrong = {k: rate for k, rate in wrong.items() if abs(found.get(k, 0) / rate - 1) >= 0.01}
            time.sleep(0.5)
        assert {k: (rate, found.get(k)) for k, rate in wrong.items()} == {}
        assert count_resets(prometheus, families) == dict.fromkeys(families - EVENTS, 0)
        growing.reset()
        fallen = {"scope_gpu_energy_joules_total": 1, "scope_nvlink_transmit_bytes_total": 1}
        resets = {**dict.fromkeys(families - EVENTS, 0), **fallen}
        deadline = time.monotonic() + 20
        while count_resets(prometheus, families) != resets:
            assert time.monotonic() < deadline, count_resets(prometheus, families)
            time.sleep(0.2)
    finally:
        stopping.set()
        mover.join()


def find_all() -> list[Any]:
    """Return every metric of the exporter."""
    from exporters import metrics, training_series

    return [metric for module in (metrics, training_series) for metric in find_metrics(vars(module))]
