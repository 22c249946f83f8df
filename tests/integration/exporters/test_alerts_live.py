"""Every alert from end to end: fault on a fake node, exporter, Prometheus, Alertmanager, webhook; times scaled 60 to 1.

True durations are promtool's business (tests/unit/alerts). Here six nodes go bad at once, each object in its own way:
nothing is told before, each alert is told of the objects it was planted on and of no neighbour, and all resolve.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from dashboards.alerts.generate import render_rules
from dashboards.alerts.model import choose_values
from dashboards.alerts.settings import SETTINGS
from scope.run.naming import short_hash
from scope.testing.fake_nvml.nodes import make_node

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.system("gcc", "prometheus", "prometheus-alertmanager")

# A new sampling process takes a second or two, and a busy machine delays samples and beats by as much, which scaled
# times would take for minutes; links of the fake node carry little.
SET = [
    "stale_after=600",
    "slow_sample=30",
    "heartbeat=300",
    "stall_seconds=1200",
    "still_seconds=300",
    "nvlink_busy=1e6",
]
FAST = ("--interval", "200ms", "--slow-interval", "400ms", "--training-interval", "1s")
GPUS_ALONE = ("--disable", "rdma,net,nfs,host,training,jobs")
QUIET_S = 20
FIRE_S = 100
RESOLVE_S = 100


def load_scenes() -> Any:
    """Load the table of faults, which lies beside this file."""
    specification = importlib.util.spec_from_file_location("alert_scenes", Path(__file__).with_name("alert_scenes.py"))
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules["alert_scenes"] = module
    specification.loader.exec_module(module)
    return module


scenes = load_scenes()
EXPECTED: dict[str, frozenset[str]] = {row.alert: row.objects for row in scenes.PLANTED}


class Cluster:
    """Six nodes and six runs, and the exporters of the nodes.

    Args:
        folder: Where their files lie.
        start: Starts an exporter.
        ethtool: Library that answers for network drivers.
    """

    def __init__(self, folder: Path, start: Callable[..., Any], ethtool: Path) -> None:
        self.start = start
        self.node = scenes.Node(folder / "root")
        names = {"calm": 0, "faulty": 0, "stuck": 0, "wasteful": scenes.S // 20, "unborn": 0, "wide": 0}
        sleeper = subprocess.Popen(["sleep", "600"])
        self.runs = {
            name: scenes.Run(
                folder / "runs" / name,
                gap_ns=gap_ns,
                last_process=sleeper if gap_ns else None,
                starting=name == "unborn",
            )
            for name, gap_ns in names.items()
        }
        self.weak_folder = folder / "weak/sys/class/infiniband"
        (self.weak_folder / "mlx5_0/ports/1/counters").mkdir(parents=True)
        self.scripts = {
            name: make_node(folder / f"{name}.txt", num_gpus=num_gpus)
            for name, num_gpus in (("gpus", 8), ("main", 3), ("blind", 2), ("ending", 1), ("weak", 1))
        }
        self.healthy = dict(self.scripts["gpus"].answers)
        main = ("--root", str(self.node.root), "--runs", f"{folder}/runs/*")
        weak = ("--root", f"{folder}/weak", "--disable", "net,nfs,host,training,jobs")
        self.pauses = folder / "pauses.txt"
        scenes.pause(self.pauses, {"eth0": 0.05, "eth1": 0.05})
        for name in ("eth0", "eth1"):
            (folder / f"paused/sys/class/net/{name}/statistics").mkdir(parents=True)
            (folder / f"paused/sys/class/net/{name}/ifindex").write_text("4242")
        paused = ("--root", f"{folder}/paused", "--collectors", "net", "--interval", "100ms")
        preload = {"LD_PRELOAD": str(ethtool), "SCOPE_FAKE_ETHTOOL": str(self.pauses)}
        self.exporters = {
            # Run wide has ranks on two nodes.
            "gpus": self._start("gpus", "--disable", "rdma,net,nfs,jobs", "--runs", f"{folder}/runs/wide"),
            "main": self._start("main", *main),
            "blind": self._start("blind", "--deadline", "20s", *GPUS_ALONE),
            "ending": self._start("ending", *GPUS_ALONE),
            "weak": self._start("weak", *weak),
            "paused": self._start("weak", *paused, variables=preload),
        }
        self._stopping = threading.Event()
        self._mover = threading.Thread(target=self._keep_up)
        self._mover.start()

    def _start(self, name: str, *options: str, **more: Any) -> Any:
        return self.start(self.scripts[name], *FAST, *options, wait=False, **more)

    def _keep_up(self) -> None:
        while not self._stopping.wait(0.25):
            for part in (self.node, *self.runs.values()):
                part.update()

    def break_all(self) -> None:
        """Let every fault begin."""
        scenes.plant_gpu_faults(self.scripts["gpus"])
        self.scripts["main"].set("g1.gpm.2", 1)
        self.scripts["main"].set("sys.nvmlDeviceGetCount", 2)
        self.scripts["blind"].hang(1, "nvmlDeviceGetTemperature.0")
        self.scripts["weak"].set("g0.nvmlDeviceGetClockInfo.1", 1_980, code="0:700")
        for script in self.scripts.values():
            script.write()
        self.weak_folder.rename(self.weak_folder.with_name("aside"))
        self.weak_folder.symlink_to("infiniband")
        self.exporters["ending"].process.terminate()
        self.node.faulty = True
        scenes.pause(self.pauses, {"eth0": 0.05, "eth1": 0.5})
        self.runs["calm"].silent = 1
        self.runs["stuck"].stopped = True
        self.runs["unborn"].stopped = True
        self.runs["wasteful"].kill_last()
        self.runs["faulty"].slow_down()
        self.runs["faulty"].judge(resolved=False)
        # A GPU that is off the bus is missed once somebody counts anew.
        end_sampler(self.exporters["main"].process.pid)

    def mend_all(self) -> None:
        """Let every fault be over."""
        gpus = self.scripts["gpus"]
        gpus.answers = {**self.healthy, **{key: text for key, text in gpus.answers.items() if key.startswith("event.")}}
        self.scripts["main"].set("g1.gpm.2", 12)
        self.scripts["main"].set("sys.nvmlDeviceGetCount", 3)
        self.scripts["blind"].set("g1.nvmlDeviceGetTemperature.0", 50)
        self.scripts["weak"].set("g0.nvmlDeviceGetClockInfo.1", 1_980)
        for script in self.scripts.values():
            script.write()
        self.weak_folder.unlink()
        self.weak_folder.with_name("aside").rename(self.weak_folder)
        self._start("ending", *GPUS_ALONE, port=self.exporters["ending"].port)
        self.node.faulty = False
        self.node.unplug(1)
        scenes.pause(self.pauses, {"eth0": 0.05, "eth1": 0.05})
        self.runs["calm"].silent = None
        self.runs["stuck"].stopped = False
        self.runs["unborn"].stopped = self.runs["unborn"].starting = False
        self.runs["faulty"].speed_up()
        self.runs["faulty"].judge(resolved=True)
        self.runs["wasteful"].finish()
        end_sampler(self.exporters["main"].process.pid)

    def name(self, labels: dict[str, str]) -> str:
        """Return what an alert speaks of."""
        nodes = {f"127.0.0.1:{exporter.port}": name for name, exporter in self.exporters.items()}
        runs = {short_hash(name): name for name in self.runs}
        return scenes.name_object(labels, nodes, lambda label: runs.get(label, label))

    def close(self) -> None:
        """Stop what moves."""
        self._stopping.set()
        self._mover.join()
        for run in self.runs.values():
            run.close()


def end_sampler(parent: int) -> None:
    """Kill an exporter's sampling process, whichever of its threads began it."""
    for children in Path(f"/proc/{parent}/task").glob("*/children"):
        for child in children.read_text().split():
            os.kill(int(child), 9)


@pytest.fixture
def cluster(tmp_path: Path, start_exporter: Callable[..., Any], fake_ethtool: Path) -> Any:
    """Six healthy nodes."""
    made = Cluster(tmp_path, start_exporter, fake_ethtool)
    for exporter in made.exporters.values():
        exporter.wait()
    yield made
    made.close()


def gather(webhook: Any, cluster: Cluster, status: str) -> dict[str, frozenset[str]]:
    """Return the objects that were told so far, by alert."""
    found: dict[str, set[str]] = {}
    for alert in list(webhook.received):
        if alert["status"] == status:
            found.setdefault(alert["labels"]["alertname"], set()).add(cluster.name(alert["labels"]))
    return {alert: frozenset(objects) for alert, objects in found.items()}


def wait_until_told(webhook: Any, cluster: Cluster, status: str, seconds: float) -> dict[str, frozenset[str]]:
    """Return what is missing, by alert, after so long; for the end of an alert one of its objects is enough."""
    deadline = time.monotonic() + seconds
    while True:
        told = gather(webhook, cluster, status)
        missing = {alert: objects - told.get(alert, frozenset()) for alert, objects in EXPECTED.items()}
        if status == "resolved":
            missing = {alert: left for alert, left in missing.items() if left == EXPECTED[alert]}
        missing = {alert: left for alert, left in missing.items() if left}
        if not missing or time.monotonic() > deadline:
            return missing
        time.sleep(0.2)


def check_told(webhook: Any, cluster: Cluster) -> None:
    """Nothing was told of a neighbour, and no text of an alert failed."""
    told = gather(webhook, cluster, "firing")
    beyond = {alert: told[alert] - EXPECTED[alert] - scenes.FOLLOWS.get(alert, frozenset()) for alert in told}
    assert {alert: objects for alert, objects in beyond.items() if objects} == {}
    for alert in webhook.received:
        for text in alert["annotations"].values():
            assert "error expanding" not in text
            assert "<no value>" not in text


@pytest.mark.slow
def test_every_alert_fires_on_its_fault_alone_and_resolves(
    cluster: Cluster,
    start_prometheus: Callable[..., Any],
    start_alertmanager: Callable[[int], None],
    webhook: Any,
    free_port: Callable[[], int],
    tmp_path: Path,
) -> None:
    """Quiet while all is well; then each alert is told of what it was planted on and nothing else; then all resolve."""
    port = free_port()
    start_alertmanager(port)
    (tmp_path / "rules.yml").write_text(render_rules(choose_values(SETTINGS, SET, scale=60)))
    addresses = {name: f"127.0.0.1:{exporter.port}" for name, exporter in cluster.exporters.items()}
    paused = addresses.pop("paused")
    prometheus = start_prometheus(
        "global: {scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 500ms}\n"
        f"rule_files: ['{tmp_path}/rules.yml']\n"
        f"alerting: {{alertmanagers: [{{static_configs: [{{targets: ['127.0.0.1:{port}']}}]}}]}}\n"
        f"scrape_configs:\n- job_name: scope\n  static_configs: [{{targets: {list(addresses.values())}}}]\n"
        # A rate over one minute is one over a second here.
        "- job_name: often\n  scrape_interval: 300ms\n  scrape_timeout: 300ms\n"
        f"  static_configs: [{{targets: ['{paused}'], labels: {{job: scope}}}}]\n"
    )
    time.sleep(QUIET_S)
    assert gather(webhook, cluster, "firing") == {}
    cluster.break_all()
    missing = wait_until_told(webhook, cluster, "firing", FIRE_S)
    assert missing == {}, prometheus.alerts()
    check_told(webhook, cluster)
    cluster.mend_all()
    missing = wait_until_told(webhook, cluster, "resolved", RESOLVE_S)
    assert missing == {}, prometheus.alerts()
    check_told(webhook, cluster)
