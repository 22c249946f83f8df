"""Names of other exporters: equal to what node_exporter itself says of the same tree, and DCGM's units by hand."""

from __future__ import annotations

import os
import subprocess
import time
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families

from exporters.compat_node import add_ethtool_names, add_infiniband_names, add_mountstats_names, name_ethtool
from exporters.render import OPENMETRICS, TEXT, Renderer
from exporters.series import SeriesSet
from scope.probe.ethtool import Ethtool
from scope.probe.net import take_driver_counters
from scope.probe.rdma import RdmaProbe
from scope.probe.records import NetDevice, NfsMount
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
            (base / name).write_text(f"{name} {number}\n")
    return root


def read_samples(text: str, prefix: str = "node_infiniband_") -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Return the samples whose names begin so by (name, labels)."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name.startswith(prefix)
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
    add_infiniband_names(series, RdmaProbe(Tree(root)).read(Problems("rdma")))
    ours = read_samples(Renderer(TEXT).render(series))
    assert len(theirs) > 40
    assert {key: ours.get(key) for key in theirs} == theirs
    assert sum(name == "node_infiniband_info" for name, _ in ours) == 2


@pytest.mark.system("prometheus-node-exporter")
def test_driver_counters_are_named_as_by_node_exporter(
    free_port: Callable[[], int], fetch_page: Callable[[int, str], str]
) -> None:
    """Of this machine's drivers, the real node_exporter gives every counter the name that we would."""
    port = free_port()
    command = ["prometheus-node-exporter", "--collector.disable-defaults", "--collector.ethtool"]
    process = subprocess.Popen([*command, f"--web.listen-address=127.0.0.1:{port}"], stderr=subprocess.DEVNULL)
    try:
        theirs = read_samples(fetch_page(port, "/metrics"), "node_ethtool_")
    finally:
        process.terminate()
        process.wait(10)
    reader = Ethtool()
    compared = 0
    for name, labels in theirs:
        device = dict(labels)["device"]
        if name == "node_ethtool_info":
            continue
        own = {name_ethtool(counter) for counter in reader.read(device)}
        assert name in own
        compared += 1
    reader.close()
    if not compared:
        pytest.skip("no driver here has counters")


def test_driver_counters_have_the_drivers_units() -> None:
    """Microseconds of pauses as the driver tells them, and its own names in node_exporter's form."""
    device = NetDevice("eth2", up=True)
    told = {"rx_prio3_pause": 5, "rx_prio3_pause_duration": 2_001, "tx_prio0_pause": 1, "rx_discards_phy": 4}
    take_driver_counters(device, told, Problems("net"))
    series = SeriesSet()
    add_ethtool_names(series, [device])
    text = Renderer(TEXT).render(series)
    assert "# TYPE node_ethtool_received_prio3_pause untyped" in text
    assert read_samples(text, "node_") == {
        (f"node_ethtool_{name}", (("device", "eth2"),)): value
        for name, value in (
            ("received_prio3_pause", 5),
            ("received_prio3_pause_duration", 2_001),
            ("transmitted_prio0_pause", 1),
            ("received_discards_phy", 4),
        )
    }


def test_an_export_that_is_mounted_twice_stands_once() -> None:
    """As in node_exporter; no series is given twice."""
    mounts = [NfsMount(place, "srv:/x", 1, transports=1, protocol="tcp") for place in ("/a", "/b")]
    series = SeriesSet()
    add_mountstats_names(series, mounts)
    assert series.num_duplicates == 0
    assert read_samples(Renderer(TEXT).render(series), "node_mountstats_nfs_age")


@pytest.mark.system("gcc")
def test_a_split_gpu_has_the_activity_of_each_instance(start_exporter: Callable[..., Any], tmp_path: Path) -> None:
    """PROF_* stand once a GPU instance with its id and profile, and not for the GPU, which tells none."""
    script = make_node(tmp_path / "nvml.txt", num_gpus=2)
    script.set("g0.nvmlDeviceGetMigMode", 1)
    script.set("g0.nvmlDeviceGetMaxMigDeviceCount", 7)
    for slot, (instance, compute) in enumerate([(1, 0), (1, 1), (5, 0)]):
        script.set(f"g0.m{slot}.nvmlDeviceGetUUID", f"MIG-{slot}")
        script.set(f"g0.m{slot}.nvmlDeviceGetName", "NVIDIA H100 80GB HBM3 MIG 3g.40gb")
        script.set(f"g0.m{slot}.nvmlDeviceGetGpuInstanceId", instance)
        script.set(f"g0.m{slot}.nvmlDeviceGetComputeInstanceId", compute)
        script.set(f"g0.gpm.2.{instance}", 50 + instance)
    script.write()
    exporter = start_exporter(script, "--compat", "dcgm", "--interval", "200ms")
    expected = {("0", "1", "3g.40gb"): 0.51, ("0", "5", "3g.40gb"): 0.55}
    deadline = time.monotonic() + 20
    while True:
        labelled = [
            (dict(labels), value) for (name, labels), value in exporter.samples().items()
            if name == "DCGM_FI_PROF_SM_ACTIVE"
        ]  # fmt: skip
        found = {(own["gpu"], own["GPU_I_ID"], own["GPU_I_PROFILE"]): value for own, value in labelled}
        split = {key: value for key, value in found.items() if key[0] == "0"}
        if len(split) == 2 and len(found) == 3:
            break
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert split == pytest.approx(expected)
    assert ("1", "", "") in found
    assert exporter.value("DCGM_FI_DEV_MEM_COPY_UTIL", gpu="1") == 40


@pytest.mark.system("gcc")
def test_dcgm_names_have_dcgm_units(start_exporter: Callable[..., Any], tmp_path: Path) -> None:
    """Percent, MiB, MHz, millijoules, NVML's addresses; and rates of NVLink in bytes a second."""
    script = make_node(tmp_path / "nvml.txt", num_gpus=2, link_rate=1_000)
    exporter = start_exporter(script, "--compat", "dcgm", "--interval", "200ms")
    labels = {"gpu": "1", "Hostname": os.uname().nodename, "pci_bus_id": "00000000:11:00.0", "device": "nvidia1"}
    value = exporter.value
    assert value("DCGM_FI_DEV_GPU_UTIL", **labels) == 91
    assert value("DCGM_FI_DEV_DEC_UTIL", **labels) == 21
    assert value("DCGM_FI_DEV_ENC_UTIL", **labels) is None
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
