"""Where each alert is planted in the live test, what it must be told of, and what beside it must stay quiet.

Run as a program, it prints the table of `LIVE_ALERTS.md`.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

import msgspec

from scope.run import layout, paths
from scope.run.alive import read_start_ticks
from scope.run.blackbox import BlackBox, BlackBoxIdentity
from scope.run.schema import SCHEMA_VERSION, GroupInfo, RankInfo, RunInfo, StepRecord, Verdict

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable
    from pathlib import Path

    from scope.testing.fake_nvml.build import Script

S: Final = 1_000_000_000
TEST: Final = "test_alerts_live.py::test_every_alert_fires_on_its_fault_alone_and_resolves"


class Planted(NamedTuple):
    """One alert of the live test.

    Attributes:
        alert: Its name.
        objects: What it must be told of and nothing else: node, then GPU and link, device, rank or the like.
        neighbours: What of the same kind stands beside it, is well, and must not be told.
        ends: What makes it resolve.
    """

    alert: str
    objects: frozenset[str]
    neighbours: str
    ends: str


def _row(alert: str, objects: str, neighbours: str, ends: str) -> Planted:
    return Planted(alert, frozenset(part.strip() for part in objects.split(",")), neighbours, ends)


_OTHER_GPUS: Final = "the node's other seven GPUs, and those of four other nodes"
_WELL: Final = "the GPU is well again"
_OTHER_PORTS: Final = "the node's other three ports, whose counters stand or rise slowly"
_FASTER: Final = "the run is as fast as before"
_FASTER_RUNS: Final = "five runs beside it on the same node"

PLANTED: Final = (
    _row("ScopeXidCritical", "gpus 0", "GPU 1 with an XID of another kind, and six without", "the window is over"),
    _row("ScopeXidNvlink", "gpus 1", "GPU 0 with an XID of another kind, and six without", "the window is over"),
    _row("ScopeRecoveryActionNeeded", "gpus 1", _OTHER_GPUS, _WELL),
    _row("ScopeGpuMissing", "main", "four nodes that keep their GPUs, one of which loses one that it still counts",
         "the GPU is found again"),
    _row("ScopeGpuLost", "gpus 7, blind 1", "the other GPUs of both nodes", "GPU 7 answers again"),
    _row("ScopeEccUncorrected", "gpus 2", _OTHER_GPUS, "no further error comes"),
    _row("ScopeRowRemapFailure", "gpus 3", _OTHER_GPUS, _WELL),
    _row("ScopeRowRemapPending", "gpus 3", _OTHER_GPUS, _WELL),
    _row("ScopeRowRemapMany", "gpus 3", _OTHER_GPUS, _WELL),
    _row("ScopeHardwareThrottle", "gpus 4", _OTHER_GPUS, _WELL),
    _row("ScopeGpuHot", "gpus 4", _OTHER_GPUS, _WELL),
    _row("ScopeGpuTooHot", "gpus 4", _OTHER_GPUS, _WELL),
    _row("ScopeMemoryHot", "gpus 4", _OTHER_GPUS, _WELL),
    _row("ScopeNvlinkDown", "gpus 5 3", "17 links of the same GPU, 126 of others", "the link is up again"),
    _row("ScopeNvlinkErrors", "gpus 5", _OTHER_GPUS, "no further error comes"),
    _row("ScopeNvlinkCrc", "gpus 5", _OTHER_GPUS, "no further error comes"),
    _row("ScopeNvlinkSlow", "gpus 5 4", "17 links of the same GPU, 126 of others", "the link has its speed again"),
    _row("ScopeNvlinkAsymmetry", "gpus 6", "GPUs whose links carry nothing", "the links carry nothing"),
    _row("ScopeFabricFault", "gpus 2", _OTHER_GPUS, _WELL),
    _row("ScopePcieWidth", "gpus 6", _OTHER_GPUS, _WELL),
    _row("ScopePcieGeneration", "gpus 6", _OTHER_GPUS, _WELL),
    _row("ScopePcieReplays", "gpus 6", _OTHER_GPUS, _WELL),
    _row("ScopeRdmaPortDown", "main mlx5_0 1", _OTHER_PORTS, "the port is up again"),
    _row("ScopeRdmaPortFlaps", "main mlx5_1 1", _OTHER_PORTS, "the NIC is taken out"),
    _row("ScopeRdmaLinkErrors", "main mlx5_1 1", _OTHER_PORTS, "no further error comes"),
    _row("ScopeRdmaCongestion", "main mlx5_2 1", _OTHER_PORTS, "no further mark comes"),
    _row("ScopeRdmaRetries", "main mlx5_2 1", _OTHER_PORTS, "no further packet is lost"),
    _row("ScopeRdmaTimeouts", "main mlx5_3 1", _OTHER_PORTS, "no further timeout comes"),
    _row("ScopePfcStorm", "paused eth1", "eth0, which is paused one twentieth of the time", "eth1 is paused as little"),
    _row("ScopeNicUnderspeed", "main mlx5_3 1", _OTHER_PORTS, "the port has its rate again"),
    _row("ScopeTrainingOnSockets", "main", "another node of the same run, and four without training",
         "RDMA carries traffic again"),
    _row("ScopeNfsQueue", "main /data", "/home, whose operations wait 1 ms", "operations wait 1 ms"),
    _row("ScopeNfsBacklog", "main /data", "/home, whose backlog is empty", "the backlog is empty"),
    _row("ScopeMemoryPressure", "main", "five other nodes", "nothing stalls"),
    _row("ScopeOomKill", "main", "five other nodes", "no further kill comes"),
    _row("ScopeExporterStale", "blind", "five nodes that are read", "the call that hung was killed"),
    _row("ScopeExporterDown", "ending", "five exporters that answer", "the exporter is started again"),
    _row("ScopeCollectorDown", "weak rdma, weak affinity", "four collectors that do not read that folder",
         "the folder can be listed again"),
    _row("ScopeSampleSlow", "weak", "five nodes that answer at once", "the driver answers at once"),
    _row("ScopeStepStalled", "main stuck 0, main stuck 1, main stuck 2, main stuck 3", _FASTER_RUNS, "steps go on"),
    _row("ScopeFirstStepLate", "main unborn 0, main unborn 1, main unborn 2, main unborn 3",
         "a run that stands still after many steps, and four that step on", "the first step ends"),
    _row("ScopeRankSilent", "main calm 1", "22 ranks that beat, eight of which make no steps, and one that is gone",
         "the rank beats again"),
    _row("ScopeRankLost", "main wasteful 3", "its three peers, and a rank of another run that is silent but there",
         "the run ends"),
    _row("ScopeStepRegression", "faulty", _FASTER_RUNS, _FASTER),
    _row("ScopeStragglerRank", "main faulty 2", "three ranks of the same run, and five runs", _FASTER),
    _row("ScopeImposedWait", "faulty 1, faulty 2", "runs of which no verdict speaks", "the verdict is over"),
    _row("ScopeVerdict", "faulty 1", "rank 2, of which a verdict speaks that is not critical",
         "the verdict is over"),
    _row("ScopeCommunicationBusyWait", "gpus 6", _OTHER_GPUS, _WELL),
    _row("ScopeIdleAllocated", "main 1", "GPU 0, which a job uses", "the job uses it"),
    _row("ScopeDataloaderBound", "faulty", _FASTER_RUNS, _FASTER),
    _row("ScopeGoodputLow", "wasteful", "three runs that do nothing but steps", "the run ends"),
)  # fmt: skip
"""Every alert, in the order of the rules."""

FOLLOWS: Final = {"ScopeGoodputLow": frozenset({"stuck"})}
"""What may be told as well: a run that stands still loses goodput too, once it has done so for a (scaled) hour."""

VERDICTS: Final[tuple[tuple[str, Literal["critical", "warning"], int], ...]] = (
    ("hang", "critical", 1),
    ("straggler", "warning", 2),
)


def render_table() -> str:
    """Return the table as Markdown."""
    lines = [
        "# Alerts in the live test",
        "",
        f"Made by `python tests/integration/exporters/alert_scenes.py`. `{TEST}`",
        "plants all faults on six nodes under a real Prometheus and Alertmanager, times 60 to 1: each alert must be",
        "told of its own objects alone, and resolve.",
        "",
        "| alert | told of | stays quiet | resolves when |",
        "|---|---|---|---|",
    ]
    lines += [f"| {row.alert} | {', '.join(sorted(row.objects))} | {row.neighbours} | {row.ends} |" for row in PLANTED]
    return "\n".join(lines) + "\n"


def plant_gpu_faults(script: Script) -> None:
    """Let the GPUs of a node of eight go bad, each in its own way."""
    now = int(time.time())
    script.add_xid(0, 79)
    script.add_xid(1, 74)
    script.field(1, 230, 1, value_type=1)
    script.field(2, 4, 1)
    # Bandwidth is degraded (1); routes and timeouts are not (2), nor the configuration (1).
    script.set("g2.nvmlDeviceGetGpuFabricInfoV", 2, 3, 0, 0, 0b1_10_10_10_01, 0, 7)
    for number, value in ((143, 600), (144, 1), (145, 1)):
        script.field(3, number, value, value_type=1)
    script.field(4, 270, f"+270000000000:500000000@{now}")
    script.set("g4.nvmlDeviceGetMarginTemperature", 1)
    script.set("g4.nvmlDeviceGetTemperature.0", 97)
    script.field(4, 82, 99, value_type=1)
    script.field(5, 165, 0, scope=3, value_type=1)
    script.field(5, 164, 20_000, scope=4, value_type=1)
    script.field(5, 161, 5, scope=6)
    script.field(5, 163, f"+0:1000@{now}", scope=6)
    for link in range(18):
        script.field(6, 138, f"+5000000:{400_000 if link == 0 else 4_000_000}@{now}", scope=link)
    script.set("g6.nvmlDeviceGetCurrPcieLinkWidth", 8)
    script.set("g6.nvmlDeviceGetCurrPcieLinkGeneration", 3)
    script.field(6, 94, f"+2:20@{now}", value_type=3)
    script.set("g6.nvmlDeviceGetUtilizationRates", 100, 0)
    script.field(6, 185, 120_000, value_type=1)
    script.lose(7)


class Node:
    """Files of the kernel that a thread rewrites four times a second, good until `faulty` is set.

    Args:
        root: Where they lie.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.faulty = False
        self.nics = [0, 1, 2, 3]
        self._lock = threading.Lock()
        self._began = time.monotonic()
        self._bad_s = 0.0
        self._last = self._began
        for gpu in (0, 1):
            self.write(f"proc/{4_000 + gpu}/cgroup", f"0::/system.slice/slurmstepd.scope/job_4{gpu}/step_0")
            self.write(f"proc/{4_000 + gpu}/status", "Name:\tpython\nUid:\t0\t0\t0\t0\n")
        self.write("sys/class/net/eth0/operstate", "up")
        self.update()

    def write(self, name: str, text: str) -> None:
        """Write a file in place: the exporter keeps it open."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")

    def unplug(self, nic: int) -> None:
        """Take a NIC out."""
        # An update half done would write the rest of the files anew.
        with self._lock:
            self.nics.remove(nic)
            gone = self.root / f"sys/class/infiniband/mlx5_{nic}"
            gone.rename(self.root / f"mlx5_{nic}")

    def update(self) -> None:
        """Write all files as they are now; no counter falls when the fault is over."""
        with self._lock:
            self._update()

    def _update(self) -> None:
        now = time.monotonic()
        self._bad_s += (now - self._last) * self.faulty
        self._last = now
        good_s, bad_s, bad = now - self._began, self._bad_s, int(self.faulty)
        happened = int(bad_s > 0)
        for nic in list(self.nics):
            port = f"sys/class/infiniband/mlx5_{nic}/ports/1"
            self.write(f"{port}/state", "1: DOWN" if bad and nic == 0 else "4: ACTIVE")
            self.write(f"{port}/rate", f"{200 if bad and nic == 3 else 400} Gb/sec (4X NDR)")
            self.write(f"{port}/counters/port_xmit_data", str(int((good_s - bad_s) * 2_500_000)))
            self.write(f"{port}/counters/port_rcv_packets", str(int(good_s * 10_000)))
            self.write(f"{port}/counters/link_downed", str(10 if happened and nic == 1 else 1))
            self.write(f"{port}/counters/symbol_error", str(50 if happened and nic == 1 else 3))
            hardware = {
                "np_ecn_marked_roce_packets": int(bad_s * 5_000) if nic == 2 else int(good_s * 5),
                "out_of_sequence": int(bad_s * 40) if nic == 2 else 7,
                "local_ack_timeout_err": int(bad_s * 40) if nic == 3 else 7,
            }
            for name, value in hardware.items():
                self.write(f"{port}/hw_counters/{name}", str(value))
        self.write("sys/class/net/eth0/statistics/tx_bytes", str(int(good_s * 1e6 + bad_s * 2e9)))
        self.write("proc/vmstat", f"oom_kill {2 + happened}")
        stalled = int(bad_s * 400_000)
        self.write("proc/pressure/memory", f"some total={stalled}\nfull total={stalled}")
        mounts = [describe_mount("/data", good_s, bad_s), describe_mount("/home", good_s, 0)]
        self.write("proc/self/mountstats", "\n".join(mounts))


def pause(script: Path, ratios: dict[str, float]) -> None:
    """Let the drivers of network interfaces tell of pauses, each for such a share of the time from now on."""
    now = time.time()
    lines = [
        f"{device} rx_prio3_pause_duration +{now * 1e4:.0f}:{1e6 * ratio:.0f}@{now}" for device, ratio in ratios.items()
    ]
    script.with_suffix(".new").write_text("\n".join(lines) + "\n")
    script.with_suffix(".new").replace(script)


def describe_mount(place: str, good_s: float, bad_s: float) -> str:
    """Return a mount that writes 100 times a second; when bad, each write queues 0.5 s behind 8 others."""
    writes = int(100 * good_s)
    queue_ms = int(100 * bad_s * 500) + writes
    backlog = int(100 * bad_s * 8)
    figures = f"{writes} {writes} 0 {writes * 100} {writes * 100} {queue_ms} {writes * 2} {queue_ms + writes * 2} 0"
    return (
        f"device srv:{place} mounted on {place} with fstype nfs4 statvers=1.1\n"
        f"\tage:\t{int(good_s)}\n\txprt:\ttcp 0 0 1 0 0 {writes} {writes} 0 {writes} {backlog} 8 0 0\n"
        f"\tper-op statistics\n\t WRITE: {figures}"
    )


class Run:
    """A run of four ranks that a thread lets step on.

    Args:
        folder: Its run directory.
        gap_ns: Time between two steps, in which it does nothing that counts.
        last_process: Process of rank 3, which can be killed; the ranks are this process without.
        starting: It has not made its first step yet; its main threads beat until it is stopped.
    """

    def __init__(
        self,
        folder: Path,
        *,
        gap_ns: int = 0,
        last_process: subprocess.Popen[bytes] | None = None,
        starting: bool = False,
    ) -> None:
        self.folder = folder
        self.step_ns = S // 20
        self.gap_ns = gap_ns
        self.stopped = False
        self.starting = starting
        self.silent: int | None = None
        self._last_process = last_process
        self._killed = False
        self.input_share = 0.02
        self.waits = [0.3, 0.3, 0.3, 0.3]
        self._number = 0
        self._end_ns = time.time_ns()
        self._infos: list[RankInfo] = []
        self._boxes: list[BlackBox] = []
        folder.mkdir(parents=True)
        began_ns = self._end_ns - S // 10
        run = RunInfo(schema=SCHEMA_VERSION, run_id=folder.name, started_ns=began_ns, world_size=4)
        (folder / paths.RUN_FILE).write_bytes(msgspec.json.encode(run))
        for rank in range(4):
            own = paths.rank_folder(folder, 0, rank)
            own.mkdir(parents=True)
            pid = last_process.pid if last_process and rank == 3 else os.getpid()
            ticks = read_start_ticks(pid) if pid != os.getpid() else None
            info = RankInfo(
                schema=SCHEMA_VERSION, run_id=folder.name, attempt=0, rank=rank, started_ns=began_ns, world_size=4,
                host=socket.gethostname(), pid=pid, process_start_ticks=ticks,
                groups=(GroupInfo(group=0, name="0", ranks=(0, 1, 2, 3)),),
            )  # fmt: skip
            (own / paths.RANK_FILE).write_bytes(msgspec.json.encode(info))
            self._infos.append(info)
            identity = BlackBoxIdentity(
                rank=rank, attempt=0, world_size=4, pid=os.getpid(), process_start_ticks=None, wall_offset_ns=0
            )
            box = BlackBox(own / paths.BLACK_BOX_FILE, identity)
            box.write_state(layout.STATE.pack(0, 0, began_ns, began_ns, began_ns, 0, 0, b"forward"))
            self._boxes.append(box)
        self._began_ns = began_ns

    def update(self) -> None:
        """Beat, and write the steps that are due."""
        now_ns = time.time_ns()
        for rank, box in enumerate(self._boxes):
            if rank != self.silent and rank not in self._gone:
                box.write_pulse(layout.PULSE.pack(now_ns, 1, 0, 0, 0, -1))
        if self.starting and not self.stopped:
            for box in self._boxes:
                box.write_state(layout.STATE.pack(0, 0, self._began_ns, self._began_ns, now_ns, 0, 0, b"forward"))
        if self.stopped or self.starting:
            # What stood still is no step; the next one begins when it goes on.
            self._end_ns = now_ns
            return
        lines: list[list[bytes]] = [[], [], [], []]
        while self._end_ns + self.gap_ns + self.step_ns <= now_ns:
            start = self._end_ns + self.gap_ns
            self._end_ns = start + self.step_ns
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
            if rank in self._gone:
                continue
            with (paths.rank_folder(self.folder, 0, rank) / paths.STEPS_FILE).open("ab") as stream:
                stream.write(b"".join(added))

    def kill_last(self) -> None:
        """Kill rank 3, which tells of no end."""
        assert self._last_process is not None
        self._killed = True
        self._last_process.kill()

    @property
    def _gone(self) -> tuple[int, ...]:
        return (3,) if self._killed else ()

    def slow_down(self) -> None:
        """Take four times as long, wait for data, and for rank 2."""
        self.step_ns, self.input_share, self.waits = S // 5, 0.4, [0.5, 0.5, 0.02, 0.5]

    def speed_up(self) -> None:
        """Be as at the beginning."""
        self.step_ns, self.input_share, self.waits = S // 20, 0.02, [0.3, 0.3, 0.3, 0.3]

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

    def finish(self) -> None:
        """End in order."""
        self.stopped = True
        for info in self._infos:
            path = paths.rank_folder(self.folder, 0, info.rank) / paths.RANK_FILE
            ended = msgspec.structs.replace(info, ended_ns=time.time_ns(), exit_reason="finished")
            path.with_suffix(".new").write_bytes(msgspec.json.encode(ended))
            path.with_suffix(".new").replace(path)

    def close(self) -> None:
        """Close the black boxes, and end the process of rank 3."""
        if self._last_process is not None:
            self._last_process.kill()
            self._last_process.wait()
        for box in self._boxes:
            box.close()


def name_object(labels: dict[str, str], nodes: dict[str, str], name_run: Callable[[str], str]) -> str:
    """Return what an alert speaks of, as `Planted.objects` writes it.

    Args:
        labels: Of the alert.
        nodes: Name of the node by its address.
        name_run: Gives the name of a run by its label.
    """
    parts = [nodes.get(labels.get("instance", ""), ""), name_run(labels.get("run", ""))]
    parts += [labels.get(name, "") for name in ("gpu", "link", "device", "port", "rank", "mount", "collector")]
    return " ".join(part for part in parts if part)


if __name__ == "__main__":
    sys.stdout.write(render_table())
