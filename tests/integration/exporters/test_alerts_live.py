"""Alerts from end to end: fault on a fake node, exporter, Prometheus, Alertmanager, webhook; times scaled 60 to 1.

True durations are promtool's business (tests/unit/alerts). Here each alert whose fault can be planted on a node fires,
stays quiet before, resolves after, and its texts hold no template that failed.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

from dashboards.alerts.generate import render_rules
from dashboards.alerts.model import choose_values
from dashboards.alerts.settings import SETTINGS
from scope.testing.fake_nvml.nodes import make_node

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from scope.testing.fake_nvml.build import Script

pytestmark = pytest.mark.system("gcc", "prometheus", "prometheus-alertmanager")

FAULTS: dict[str, Callable[[Script], None]] = {}
"""The fault that each alert must fire on; all stand at once, each on a GPU or link of its own."""


def fault(*alerts: str) -> Callable[[Callable[[Script], None]], Callable[[Script], None]]:
    """Register what makes these alerts fire."""

    def register(plant: Callable[[Script], None]) -> Callable[[Script], None]:
        for alert in alerts:
            FAULTS[alert] = plant
        return plant

    return register


@fault("ScopeXidCritical")
def plant_xid(script: Script) -> None:
    """GPU 0 falls off the bus by its XID."""
    script.add_xid(0, 79)


@fault("ScopeXidNvlink")
def plant_nvlink_xid(script: Script) -> None:
    """GPU 1 reports an NVLink XID."""
    script.add_xid(1, 74)


@fault("ScopeRecoveryActionNeeded")
def plant_recovery(script: Script) -> None:
    """The driver asks for a reset of GPU 1."""
    script.field(1, 230, 1, value_type=1)


@fault("ScopeGpuLost")
def plant_loss(script: Script) -> None:
    """GPU 7 does not answer."""
    script.lose(7)


@fault("ScopeEccUncorrected")
def plant_ecc(script: Script) -> None:
    """GPU 2 has an uncorrected error."""
    script.field(2, 4, 1)


@fault("ScopeRowRemapFailure", "ScopeRowRemapPending", "ScopeRowRemapMany")
def plant_remaps(script: Script) -> None:
    """GPU 3 has worn memory."""
    script.field(3, 143, 600, value_type=1)
    script.field(3, 144, 1, value_type=1)
    script.field(3, 145, 1, value_type=1)


@fault("ScopeHardwareThrottle")
def plant_throttle(script: Script) -> None:
    """GPU 4 is throttled by heat half of the time."""
    script.field(4, 270, f"+270000000000:500000000@{int(time.time())}")


@fault("ScopeGpuHot", "ScopeGpuTooHot", "ScopeMemoryHot")
def plant_heat(script: Script) -> None:
    """GPU 4 is hot in every sense."""
    script.set("g4.nvmlDeviceGetMarginTemperature", 1)
    script.set("g4.nvmlDeviceGetTemperature.0", 97)
    script.field(4, 82, 99, value_type=1)


@fault("ScopeNvlinkDown", "ScopeNvlinkSlow")
def plant_link(script: Script) -> None:
    """Link 3 of GPU 5 goes down and link 4 trains slowly."""
    script.field(5, 165, 0, scope=3, value_type=1)
    script.field(5, 164, 20_000, scope=4, value_type=1)


@fault("ScopeNvlinkErrors", "ScopeNvlinkCrc")
def plant_link_errors(script: Script) -> None:
    """Link 6 of GPU 5 replays, and sees a storm of CRC errors."""
    script.field(5, 161, 5, scope=6)
    script.field(5, 163, f"+0:1000@{int(time.time())}", scope=6)


@fault("ScopeNvlinkAsymmetry")
def plant_asymmetry(script: Script) -> None:
    """Link 0 of GPU 6 carries a tenth of what its neighbours do."""
    now = int(time.time())
    for link in range(18):
        script.field(6, 138, f"+5000000:{400_000 if link == 0 else 4_000_000}@{now}", scope=link)


@fault("ScopePcieWidth", "ScopePcieGeneration", "ScopePcieReplays")
def plant_pcie(script: Script) -> None:
    """GPU 6's slot is loose."""
    script.set("g6.nvmlDeviceGetCurrPcieLinkWidth", 8)
    script.set("g6.nvmlDeviceGetCurrPcieLinkGeneration", 3)
    script.field(6, 94, f"+2:20@{int(time.time())}", value_type=3)


@fault("ScopeCommunicationBusyWait")
def plant_busy_wait(script: Script) -> None:
    """GPU 6 spins: a kernel is resident, and it draws little."""
    script.set("g6.nvmlDeviceGetUtilizationRates", 100, 0)
    script.field(6, 185, 120_000, value_type=1)


def test_every_fault_of_a_node_pages_and_resolves(
    start_exporter: Callable[..., Any],
    start_prometheus: Callable[..., Any],
    start_alertmanager: Callable[[int], None],
    webhook: Any,
    free_port: Callable[[], int],
    tmp_path: Path,
) -> None:
    """Quiet on a healthy node; every planted fault is told; every alert that can clear is told as resolved."""
    script = make_node(tmp_path / "nvml.txt", num_gpus=8)
    healthy = dict(script.answers)
    options = ["--interval", "200ms", "--slow-interval", "400ms", "--disable", "rdma,nfs,net,training,jobs"]
    exporter = start_exporter(script, *options)
    (tmp_path / "rules.yml").write_text(render_rules(choose_values(SETTINGS, ["nvlink_busy=1e6"], scale=60)))
    port = free_port()
    start_alertmanager(port)
    prometheus = start_prometheus(
        "global: {scrape_interval: 500ms, scrape_timeout: 500ms, evaluation_interval: 500ms}\n"
        f"rule_files: ['{tmp_path}/rules.yml']\n"
        f"alerting: {{alertmanagers: [{{static_configs: [{{targets: ['127.0.0.1:{port}']}}]}}]}}\n"
        f"scrape_configs:\n- job_name: scope\n  static_configs: [{{targets: ['127.0.0.1:{exporter.port}']}}]\n"
    )
    time.sleep(20)
    assert webhook.names("firing") == set(), webhook.received
    for plant in dict.fromkeys(FAULTS.values()):
        plant(script)
    script.write()
    deadline = time.monotonic() + 60
    while FAULTS.keys() - webhook.names("firing") and time.monotonic() < deadline:
        time.sleep(0.2)
    told = webhook.names("firing")
    assert FAULTS.keys() - told == set(), prometheus.alerts()
    # What is told beside follows from the planted faults: eight GPUs became seven that answer.
    assert told - FAULTS.keys() <= {"ScopeCollectorDown", "ScopeGpuMissing"}
    for alert in webhook.received:
        for text in alert["annotations"].values():
            assert "error expanding" not in text
            assert "<no value>" not in text
    events = {key: answer for key, answer in script.answers.items() if key.startswith("event.")}
    script.answers = {**healthy, **events}
    script.write()
    deadline = time.monotonic() + 90
    while FAULTS.keys() - webhook.names("resolved") and time.monotonic() < deadline:
        time.sleep(0.2)
    assert FAULTS.keys() - webhook.names("resolved") == set()
