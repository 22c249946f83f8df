"""Names of other exporters: equal to what node_exporter itself says of the same tree, and DCGM's units by hand."""

from __future__ import annotations

import os
import subprocess
import time
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families

from exporters.compat_node import add_node_exporter_names
from exporters.render import OPENMETRICS, TEXT, Renderer
from exporters.series import SeriesSet
from scope.probe.rdma import RdmaProbe
from scope.probe.tree import Problems, Tree
from scope.testing.fake_nvml.nodes import make_node

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

COUNTERS = [
    "VL15_dropped",
    "excessive_buffer_overrun_errors",
    "link_downed",
    "link_error_recovery",
    "local_link_integrity_errors",
    "multicast_rcv_packets",
    "multicast_xmit_packets",
    *(f"port_rcv_{name}" for name in ("constraint_errors", "data", "errors", "packets", "remote_physical_errors")),
    *(f"port_xmit_{name}" for name in ("constraint_errors", "data", "discards", "packets", "wait")),
    "port_rcv_switch_relay_errors",
    "symbol_error",
    "unicast_rcv_packets",
    "unicast_xmit_packets",
]


def make_tree(root: Path) -> Path:
    """Write two InfiniBand ports, every counter with a value of its own."""
    for number, device in enumerate(("mlx5_0", "mlx5_1")):
        base = root / "class/infiniband" / device
        port = base / "ports/1"
        (port / "counters").mkdir(parents=True)
        for place, name in enumerate(COUNTERS):
            (port / "counters" / name).write_text(f"{1_000_000 * (number + 1) + place}\n")
        (port / "state").write_text("4: ACTIVE\n")
        (port / "phys_state").write_text("5: LinkUp\n")
        (port / "rate").write_text("200 Gb/sec (4X HDR)\n")
        (port / "link_layer").write_text("InfiniBand\n")
        for name in ("board_id", "fw_ver", "hca_type"):
            (base / name).write_text("x\n")
    return root


def read_samples(text: str) -> dict[tuple[str, str, str], float]:
    """Return InfiniBand samples by (name, device, port)."""
    return {
        (sample.name, sample.labels["device"], sample.labels["port"]): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name.startswith("node_infiniband_") and not sample.name.endswith("_info")
    }


@pytest.mark.system("prometheus-node-exporter")
def test_ports_equal_those_of_node_exporter(
    tmp_path: Path, free_port: Callable[[], int], fetch_page: Callable[[int, str], str]
) -> None:
    """Every sample that the real node_exporter gives of a tree, we give with the same value."""
    root = tmp_path / "root"
    sys_folder = make_tree(root / "sys")
    port = free_port()
    command = ["prometheus-node-exporter", "--collector.disable-defaults", "--collector.infiniband"]
    process = subprocess.Popen(
        [*command, f"--path.sysfs={sys_folder}", f"--web.listen-address=127.0.0.1:{port}"], stderr=subprocess.DEVNULL
    )
    try:
        theirs = read_samples(fetch_page(port, "/metrics"))
    finally:
        process.terminate()
        process.wait(10)
    series = SeriesSet()
    add_node_exporter_names(series, RdmaProbe(Tree(root)).read(Problems("rdma")))
    ours = read_samples(Renderer(TEXT).render(series))
    assert len(theirs) > 40
    assert {key: ours.get(key) for key in theirs} == theirs


@pytest.mark.system("gcc")
def test_dcgm_names_have_dcgm_units(start_exporter: Callable[..., Any], tmp_path: Path) -> None:
    """Percent, MiB, MHz, millijoules, NVML's addresses; and rates of NVLink in bytes a second."""
    script = make_node(tmp_path / "nvml.txt", num_gpus=2, link_rate=1_000)
    exporter = start_exporter(script, "--compat", "dcgm", "--interval", "200ms")
    labels = {"gpu": "1", "Hostname": os.uname().nodename, "pci_bus_id": "00000000:11:00.0", "device": "nvidia1"}
    value = exporter.value
    assert value("DCGM_FI_DEV_GPU_UTIL", **labels) == 91
    assert value("DCGM_FI_DEV_FB_USED", **labels) == 2_048
    assert value("DCGM_FI_DEV_FB_TOTAL", **labels) == 81_920
    assert value("DCGM_FI_DEV_SM_CLOCK", **labels) == 1_980
    energy = [line for line in exporter.text().splitlines() if line.startswith("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{")]
    assert [line.rpartition(" ")[2] for line in energy] == ["7000000", "7000001"]
    assert value("DCGM_FI_DEV_POWER_USAGE", **labels) == pytest.approx(350.001)
    assert value("DCGM_FI_DEV_XID_ERRORS", **labels) == 0
    deadline = time.monotonic() + 20
    # A window is half a second, in which a busy test machine may hold the sampler up.
    while abs((value("DCGM_FI_PROF_NVLINK_TX_BYTES", **labels) or 0) / (18 * 1_000 * 1_024) - 1) > 0.02:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert value("DCGM_FI_PROF_DRAM_ACTIVE", **labels) == pytest.approx(0.201)
    assert not any(name == "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL" for name, _ in exporter.samples())


def test_foreign_counters_are_valid_openmetrics() -> None:
    """A counter whose name lacks `_total` is of unknown type there, and the parser takes it."""
    from exporters.series import Metric

    series = SeriesSet()
    series.add(Metric("DCGM_FI_DEV_X", "counter", "X.", ("gpu",)), ("0",), 1)
    renderer = Renderer(OPENMETRICS)
    (family,) = parse_openmetrics(renderer.render(series) + renderer.end)
    assert (family.type, family.samples[0].name) == ("unknown", "DCGM_FI_DEV_X")
