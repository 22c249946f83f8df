"""Network, storage, host, training and the exporter's own health from end to end; times scaled 60 to 1.

Three exporters: a node whose files, GPUs and runs go bad one by one beside good neighbours; one whose driver hangs; one
that ends. Each planted fault is told, nothing else is, and what can clear is told as resolved.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec
import pytest

from dashboards.alerts.generate import render_rules
from dashboards.alerts.model import choose_values
from dashboards.alerts.settings import SETTINGS
from scope.run import paths
from scope.run.schema import SCHEMA_VERSION, GroupInfo, RankInfo, RunInfo, StepRecord, Verdict
from scope.testing.fake_nvml.nodes import make_node

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.system("gcc", "prometheus", "prometheus-alertmanager")

S: Final = 1_000_000_000
EXPECTED: Final = {
    "ScopeRdmaPortDown", "ScopeRdmaPortFlaps", "ScopeRdmaLinkErrors", "ScopeRdmaCongestion", "ScopeRdmaRetries",
    "ScopeRdmaTimeouts", "ScopeNicUnderspeed", "ScopeTrainingOnSockets", "ScopeNfsQueue", "ScopeNfsBacklog",
    "ScopeMemoryPressure", "ScopeOomKill", "ScopeStepStalled", "ScopeStepRegression", "ScopeStragglerRank",
    "ScopeImposedWait", "ScopeVerdict", "ScopeDataloaderBound", "ScopeIdleAllocated", "ScopeGpuMissing",
    "ScopeExporterStale", "ScopeExporterDown", "ScopeGpuLost",
}  # fmt: skip
FOLLOWS: Final = {"ScopeGoodputLow"}
"""A run that stands still loses its goodput, told when it lasts for a (scaled) hour."""
VERDICTS: Final[tuple[tuple[str, Literal["critical", "warning"], int], ...]] = (
    ("hang", "critical", 1),
    ("straggler", "warning", 2),
)
NEVER_CLEAR: Final = {"ScopeExporterDown", "ScopeGpuLost", "ScopeRdmaPortFlaps"}
"""The exporter stays away, the GPU that hung stays set aside for a minute, and flaps count for three (scaled) hours."""


class Node:
    """Files of the kernel that a thread rewrites four times a second, good until `faulty` is set."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.faulty = False
        self._began = time.monotonic()
        self._fault_began: float | None = None
        for gpu in (0, 1):
            self.write(f"proc/{4_000 + gpu}/cgroup", f"0::/system.slice/slurmstepd.scope/job_4{gpu}/step_0")
            self.write(f"proc/{4_000 + gpu}/status", "Name:\tpython\nUid:\t0\t0\t0\t0\n")
        self.update()

    def write(self, name: str, text: str) -> None:
        """Write a file in place: the exporter keeps it open."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")

    def update(self) -> None:
        """Write all files as they are now."""
        now = time.monotonic()
        if self.faulty and self._fault_began is None:
            self._fault_began = now
        bad_s = 0 if self._fault_began is None or not self.faulty else now - self._fault_began
        good_s = now - self._began
        bad = int(self.faulty)
        for nic in range(4):
            port = f"sys/class/infiniband/mlx5_{nic}/ports/1"
            self.write(f"{port}/state", "1: DOWN" if bad and nic == 0 else "4: ACTIVE")
            self.write(f"{port}/rate", f"{200 if bad and nic == 3 else 400} Gb/sec (4X NDR)")
            self.write(f"{port}/counters/port_xmit_data", str(0 if bad else int(good_s * 2_500_000)))
            self.write(f"{port}/counters/port_rcv_packets", str(int(good_s * 10_000)))
            self.write(f"{port}/counters/link_downed", str(10 if bad and nic == 1 else 1))
            self.write(f"{port}/counters/symbol_error", str(50 if bad and nic == 1 else 3))
            hardware = {
                "np_ecn_marked_roce_packets": int(bad_s * 5_000) if nic == 2 else int(good_s * 5),
                "out_of_sequence": int(bad_s * 40) if nic == 2 else 7,
                "local_ack_timeout_err": int(bad_s * 40) if nic == 3 else 7,
            }
            for name, value in hardware.items():
                self.write(f"{port}/hw_counters/{name}", str(value))
        self.write("sys/class/net/eth0/operstate", "up")
        self.write("sys/class/net/eth0/statistics/tx_bytes", str(int(good_s * 1e6 + bad_s * 2e9)))
        self.write("proc/vmstat", f"oom_kill {2 + bad}")
        stalled = int(bad_s * 400_000)
        self.write("proc/pressure/memory", f"some total={stalled}\nfull total={stalled}")
        self.write("proc/self/mountstats", mountstats(good_s, bad_s))


def mountstats(good_s: float, bad_s: float) -> str:
    """Return a mount that writes 100 times a second; when bad, each write queues 0.5 s behind 8 others."""
    writes = int(100 * good_s)
    queue_ms = int(100 * bad_s * 500) + writes
    backlog = int(100 * bad_s * 8)
    figures = f"{writes} {writes} 0 {writes * 100} {writes * 100} {queue_ms} {writes * 2} {queue_ms + writes * 2} 0"
    return (
        "device srv:/data mounted on /data with fstype nfs4 statvers=1.1\n"
        f"\tage:\t{int(good_s)}\n\txprt:\ttcp 0 0 1 0 0 {writes} {writes} 0 {writes} {backlog} 8 0 0\n"
        f"\tper-op statistics\n\t WRITE: {figures}"
    )


class Run:
    """A run of four ranks that a thread lets step on."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.step_ns = S // 20
        self.stopped = False
        self.input_share = 0.02
        self.waits = [0.3, 0.3, 0.3, 0.3]
        self._number = 0
        self._end_ns = time.time_ns()
        folder.mkdir(parents=True)
        began_ns = self._end_ns - S // 10
        run = RunInfo(schema=SCHEMA_VERSION, run_id=folder.name, started_ns=began_ns, world_size=4)
        (folder / paths.RUN_FILE).write_bytes(msgspec.json.encode(run))
        for rank in range(4):
            own = paths.rank_folder(folder, 0, rank)
            own.mkdir(parents=True)
            info = RankInfo(
                schema=SCHEMA_VERSION, run_id=folder.name, attempt=0, rank=rank, started_ns=began_ns, world_size=4,
                host=socket.gethostname(), pid=os.getpid(),
                groups=(GroupInfo(group=0, name="0", ranks=(0, 1, 2, 3)),),
            )  # fmt: skip
            (own / paths.RANK_FILE).write_bytes(msgspec.json.encode(info))

    def update(self) -> None:
        """Write the steps that are due."""
        if self.stopped:
            # What stood still is no step; the next one begins when it goes on.
            self._end_ns = time.time_ns()
            return
        lines: list[list[bytes]] = [[], [], [], []]
        while self._end_ns + self.step_ns <= time.time_ns():
            start, self._end_ns = self._end_ns, self._end_ns + self.step_ns
            waiting = int(self.step_ns * self.input_share)
            for rank, wait in enumerate(self.waits):
                step = StepRecord(
                    step=self._number, start_ns=start, end_ns=self._end_ns,
                    phases={"input": waiting, "forward": self.step_ns - waiting},
                    communication_wait_ns=int(self.step_ns * wait),
                )  # fmt: skip
                lines[rank].append(msgspec.json.encode(step) + b"\n")
            self._number += 1
        for rank, added in enumerate(lines):
            with (paths.rank_folder(self.folder, 0, rank) / paths.STEPS_FILE).open("ab") as stream:
                stream.write(b"".join(added))

    def judge(self, *, resolved: bool) -> None:
        """Write what a diagnosis over all ranks found, or that it is over."""
        now_ns = time.time_ns()
        with (self.folder / paths.VERDICTS_FILE).open("ab") as stream:
            for kind, severity, rank in VERDICTS:
                verdict = Verdict(
                    time_ns=now_ns, kind=kind, severity=severity, attempt=0, ranks=(rank,), summary="planted",
                    evidence={"imposed_wait_ratio": 0.2}, resolved_ns=now_ns if resolved else None,
                )  # fmt: skip
                stream.write(msgspec.json.encode(verdict) + b"\n")


def keep_up(parts: list[Any], stopping: threading.Event) -> None:
    """Let everything move on until the test ends."""
    while not stopping.wait(0.25):
        for part in parts:
            part.update()


def end_sampler(parent: int) -> None:
    """Kill an exporter's sampling process, whichever of its threads began it."""
    for children in Path(f"/proc/{parent}/task").glob("*/children"):
        for child in children.read_text().split():
            os.kill(int(child), 9)


def wait_until_told(webhook: Any, status: str, wanted: set[str], seconds: float) -> set[str]:
    """Return what is missing after so long."""
    deadline = time.monotonic() + seconds
    while wanted - webhook.names(status) and time.monotonic() < deadline:
        time.sleep(0.2)
    return wanted - webhook.names(status)


def test_faults_of_network_storage_runs_and_exporters(
    start_exporter: Callable[..., Any],
    start_prometheus: Callable[..., Any],
    start_alertmanager: Callable[[int], None],
    webhook: Any,
    free_port: Callable[[], int],
    tmp_path: Path,
) -> None:
    """Quiet while all is well; each fault is told on its own object alone; what can clear resolves."""
    node = Node(tmp_path / "root")
    calm, faulty, stuck = (Run(tmp_path / "runs" / name) for name in ("calm", "faulty", "stuck"))
    stopping = threading.Event()
    mover = threading.Thread(target=keep_up, args=([node, calm, faulty, stuck], stopping))
    mover.start()
    try:
        fast = ("--interval", "200ms", "--slow-interval", "400ms")
        script = make_node(tmp_path / "nvml.txt", num_gpus=3)
        main = start_exporter(script, *fast, "--root", str(node.root), "--runs", f"{tmp_path}/runs/*")
        hanging = make_node(tmp_path / "hanging.txt", num_gpus=2)
        quiet = ("--disable", "rdma,net,nfs,host,training,jobs")
        blind = start_exporter(hanging, *fast, "--deadline", "20s", *quiet)
        ending = start_exporter(make_node(tmp_path / "ending.txt", num_gpus=1), *fast, *quiet)
        port = free_port()
        start_alertmanager(port)
        # A new sampling process takes a second or two, which scaled times would take for minutes.
        (tmp_path / "rules.yml").write_text(render_rules(choose_values(SETTINGS, ["stale_after=600"], scale=60)))
        targets = ", ".join(f"'127.0.0.1:{one.port}'" for one in (main, blind, ending))
        prometheus = start_prometheus(
            "global: {scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 500ms}\n"
            f"rule_files: ['{tmp_path}/rules.yml']\n"
            f"alerting: {{alertmanagers: [{{static_configs: [{{targets: ['127.0.0.1:{port}']}}]}}]}}\n"
            f"scrape_configs:\n- job_name: scope\n  static_configs: [{{targets: [{targets}]}}]\n"
        )
        time.sleep(20)
        assert webhook.names("firing") == set(), webhook.received
        node.faulty = True
        stuck.stopped = True
        faulty.step_ns, faulty.input_share, faulty.waits = S // 5, 0.4, [0.5, 0.5, 0.02, 0.5]
        faulty.judge(resolved=False)
        script.set("g1.gpm.2", 1)
        script.set("sys.nvmlDeviceGetCount", 2)
        script.write()
        hanging.hang(1, "nvmlDeviceGetTemperature.0")
        hanging.write()
        ending.process.terminate()
        # A GPU that is off the bus is missed once somebody counts anew.
        end_sampler(main.process.pid)
        missing = wait_until_told(webhook, "firing", EXPECTED, 75)
        assert missing == set(), prometheus.alerts()
        assert webhook.names("firing") - FOLLOWS == EXPECTED
        check_objects(webhook, main.port, blind.port)
        node.faulty = stuck.stopped = False
        faulty.step_ns, faulty.input_share, faulty.waits = S // 20, 0.02, [0.3, 0.3, 0.3, 0.3]
        faulty.judge(resolved=True)
        script.set("g1.gpm.2", 12)
        script.set("sys.nvmlDeviceGetCount", 3)
        script.write()
        end_sampler(main.process.pid)
        assert wait_until_told(webhook, "resolved", EXPECTED - NEVER_CLEAR, 90) == set(), prometheus.alerts()
        assert webhook.names("firing") - FOLLOWS == EXPECTED
    finally:
        stopping.set()
        mover.join()


def check_objects(webhook: Any, main_port: int, blind_port: int) -> None:
    """Each alert names the object that the fault was planted on, and no neighbour of it; no text failed."""
    objects: dict[str, set[str]] = {}
    for alert in webhook.received:
        labels = alert["labels"]
        name = labels.get("device") or labels.get("rank") or labels.get("gpu") or labels.get("mount") or ""
        objects.setdefault(labels["alertname"], set()).add(name)
        for text in alert["annotations"].values():
            assert "error expanding" not in text
            assert "<no value>" not in text
        if labels["alertname"] in {"ScopeExporterStale", "ScopeGpuLost"}:
            assert labels["instance"] == f"127.0.0.1:{blind_port}"
        elif labels["alertname"] == "ScopeGpuMissing":
            assert labels["instance"] == f"127.0.0.1:{main_port}"
    planted = {
        "ScopeRdmaPortDown": {"mlx5_0"}, "ScopeRdmaPortFlaps": {"mlx5_1"}, "ScopeRdmaLinkErrors": {"mlx5_1"},
        "ScopeRdmaCongestion": {"mlx5_2"}, "ScopeRdmaRetries": {"mlx5_2"}, "ScopeRdmaTimeouts": {"mlx5_3"},
        "ScopeNicUnderspeed": {"mlx5_3"}, "ScopeNfsQueue": {"/data"}, "ScopeStragglerRank": {"2"},
        "ScopeImposedWait": {"1", "2"}, "ScopeVerdict": {"1"}, "ScopeIdleAllocated": {"1"}, "ScopeGpuLost": {"1"},
        "ScopeStepStalled": {"0", "1", "2", "3"},
    }  # fmt: skip
    assert {name: objects[name] for name in planted} == planted
