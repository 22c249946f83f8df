"""Kernel files that hold nonsense: each costs its figure, is counted, and what is left can be sent and shown."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from exporters import metrics as m
from exporters.node import NodeState
from exporters.repair import COLLECTORS_OF_PARTS, repair
from exporters.sampler import Sampler, encode
from exporters.series import SeriesSet
from exporters.wire import COLLECTORS, LENGTH, MAX_SAMPLE_BYTES, Sample, SamplerSettings, SharedPage
from scope.probe.nvml.library import NvmlFailure, NvmlLibrary
from scope.probe.rdma import MAX_COUNTERS, MAX_DEVICES
from scope.probe.records import EccCount, GpuIdentity, GpuReading, NetDevice, NfsMount, NfsOperation

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Take = Callable[[dict[str, str]], tuple[Sample, SeriesSet]]

PORT = "sys/class/infiniband/mlx5_0/ports/1"
LARGE = 2**63 + 5
NET = "sys/class/net/eth0"
GOOD = {
    f"{PORT}/state": "4: ACTIVE\n",
    f"{PORT}/phys_state": "5: LinkUp\n",
    f"{PORT}/rate": "400 Gb/sec (4X NDR)\n",
    f"{PORT}/link_layer": "InfiniBand\n",
    f"{PORT}/counters/port_xmit_data": "250\n",
    f"{PORT}/counters/port_rcv_data": "500\n",
    f"{NET}/operstate": "up\n",
    f"{NET}/statistics/rx_bytes": "77\n",
    f"{NET}/statistics/tx_bytes": "78\n",
    "proc/stat": "cpu 100 0 0 0\ncpu0 100 0 0 0\n",
    "proc/meminfo": "MemTotal: 4 kB\n",
    "proc/loadavg": "0.5 1 1\n",
    "proc/vmstat": "oom_kill 3\n",
    "proc/pressure/memory": "some avg10=0.00 total=2000000\nfull avg10=0.00 total=1000000\n",
}


@pytest.fixture
def sample_tree(tmp_path: Path) -> Callable[[dict[str, str]], tuple[Sample, SeriesSet]]:
    """Samples a good tree with some files replaced; returns what came through the pipe, and its series."""

    def take(changes: dict[str, str]) -> tuple[Sample, SeriesSet]:
        for name, text in {**GOOD, **changes}.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return send(tmp_path)

    return take


def send(root: Path) -> tuple[Sample, SeriesSet]:
    """Sample a tree once and return what the server makes of it."""
    page = SharedPage()
    settings = SamplerSettings(
        collectors=["rdma", "net", "nfs", "host"], interval_ns=1, slow_interval_ns=1, root=str(root)
    )
    body = encode(Sampler(settings, page.announce).take())[LENGTH.size :]
    page.close()
    assert len(body) < MAX_SAMPLE_BYTES
    sample = msgspec.msgpack.decode(body, type=Sample)
    node = NodeState(["rdma", "net", "nfs", "host"])
    node.observe(sample)
    return sample, node.series()


LOST = {
    "a word counter beyond 64 bits": ({f"{PORT}/counters/port_xmit_data": "9223372036854775807"}, "rdma"),
    "twenty digits": ({f"{PORT}/counters/port_xmit_data": "99999999999999999999"}, "rdma"),
    "no number": ({f"{PORT}/counters/port_xmit_data": "0x12"}, "rdma"),
    "a rate beyond reason": ({f"{PORT}/rate": "9" * 30 + " Gb/sec"}, "rdma"),
    "thirty digits": ({f"{NET}/statistics/tx_bytes": "9" * 30}, "net"),
    "digits of another script": ({f"{NET}/statistics/tx_bytes": "١٢"}, "net"),
    "a page of digits": ({f"{NET}/statistics/tx_bytes": "9" * 5_000}, "net"),
    "a tick beyond 64 bits": ({"proc/stat": "cpu " + "9" * 30 + "\ncpu0 1\n"}, "host"),
    "no memory": ({"proc/meminfo": "MemTotal: many kB"}, "host"),
    "kills beyond 64 bits": ({"proc/vmstat": "oom_kill " + "9" * 30}, "host"),
    "pressure beyond 64 bits": ({"proc/pressure/cpu": "some total=" + "9" * 25}, "host"),
    "pressure of nothing": ({"proc/pressure/cpu": "\n\nxx\n"}, "host"),
}


@pytest.mark.parametrize(("changes", "collector"), LOST.values(), ids=LOST)
def test_nonsense_costs_its_own_figure(sample_tree: Take, changes: dict[str, str], collector: str) -> None:
    """It is counted under its collector, and every other figure of the node is there, to the unit."""
    sample, series = sample_tree(changes)
    assert collector in {problem.collector for problem in sample.problems}
    assert not sample.unavailable
    assert series.get(m.RDMA_RECEIVE, ("mlx5_0", "1")) == 2_000
    assert series.get(m.NET_RECEIVE, ("eth0",)) == 77
    assert series.get(m.LOAD1) == 0.5
    assert series.get(m.PRESSURE, ("memory", "full")) == 1.0


def test_a_good_tree_is_exact(sample_tree: Take) -> None:
    """Words of four bytes, gigabits, ticks of 10 ms, kibibytes and microseconds, by hand."""
    _, series = sample_tree({})
    assert series.get(m.RDMA_TRANSMIT, ("mlx5_0", "1")) == 1_000
    assert series.get(m.RDMA_RATE, ("mlx5_0", "1")) == 50_000_000_000
    assert series.get(m.CPU_SECONDS, ("user",)) == 1.0
    assert series.get(m.MEMORY, ("MemTotal",)) == 4_096
    assert series.get(m.PRESSURE, ("memory", "some")) == 2.0
    assert series.get(m.OOM_KILLS) == 3


def test_a_name_that_is_no_utf8(tmp_path: Path, sample_tree: Take) -> None:
    """An interface may be named with any bytes; it is shown with a stand-in and takes nobody along."""
    (tmp_path / "sys/class/net/et\udcff/statistics").mkdir(parents=True)
    sample, series = sample_tree({})
    assert [device.name for device in sample.nets] == ["eth0", "et?"]
    assert series.get(m.NET_RECEIVE, ("eth0",)) == 77


def test_lists_have_caps(tmp_path: Path, sample_tree: Take) -> None:
    """Two hundred counters of a port and eighty devices are cut to what is stated, and that is counted."""
    sample_tree({f"{PORT}/counters/c{number:05}": "1" for number in range(200)})
    for number in range(80):
        (tmp_path / f"sys/class/infiniband/n{number:04}/ports/1/counters").mkdir(parents=True)
    sample, series = sample_tree({})
    assert len(sample.rdma) == MAX_DEVICES
    assert max(len(port.counters) for port in sample.rdma) <= MAX_COUNTERS
    assert sum(problem.error == "too_many" for problem in sample.problems) >= 2
    assert len(series) < 2_000


def test_repair_leaves_out_what_cannot_be_sent() -> None:
    """An optional figure becomes absent, a record without its figure goes, and both are counted with their place."""
    reading = GpuReading(GpuIdentity(0, "GPU-0"), power_mw=2**70, energy_mj=5)
    reading.ecc = [EccCount("corrected", "volatile", "all", 2**65), EccCount("uncorrected", "volatile", "all", 1)]
    mount = NfsMount("/data", "srv:/x", 1, operations=[NfsOperation("READ", *[2**64] * 8)])
    mended = repair(Sample(1, 2, 3, gpus=[reading], nfs=[mount]))
    assert (mended.gpus[0].power_mw, mended.gpus[0].energy_mj) == (None, 5)
    assert mended.gpus[0].ecc == [EccCount("uncorrected", "volatile", "all", 1)]
    assert mended.nfs[0].operations == []
    places = {problem.where for problem in mended.problems}
    assert {"gpus.power_mw", "gpus.ecc.count", "nfs.operations.requests"} <= places


def test_every_problem_has_the_name_of_its_collector() -> None:
    """What is mended in any part of a sample is counted under the word that switches its collector, and none else."""
    sample = Sample(1, 2, 3, durations_ns={"net": 2**70})
    for part in COLLECTORS_OF_PARTS:
        record = NetDevice("x", up=True, speed_bytes_per_s=2**70)
        setattr(sample, part, record if part == "host" else [record])
    problems = repair(sample).problems
    assert {problem.where.partition(".")[0] for problem in problems} == {*COLLECTORS_OF_PARTS, "durations_ns"}
    assert {problem.collector for problem in problems} == set(COLLECTORS_OF_PARTS.values()) <= set(COLLECTORS)


def test_a_name_cut_within_a_character() -> None:
    """The page that both processes share takes any name, however long and in whatever script."""
    page = SharedPage()
    page.announce("é" * 40 + "\udcff", "x" * 63 + "é")
    announced = page.read()
    assert announced is not None
    assert announced.subject.startswith("é" * 31)
    page.close()


NVIDIA = {
    "a driver": {"proc/driver/nvidia/version": "NVRM version: 570"},
    "a device file": {"dev/nvidia0": ""},
    "a GPU without a driver": {
        "sys/bus/pci/devices/0000:1b:00.0/vendor": "0x10de\n",
        "sys/bus/pci/devices/0000:1b:00.0/class": "0x030200\n",
    },
}
NO_NVIDIA = {
    "nothing": {},
    "another maker's display and a sound card": {
        "sys/bus/pci/devices/0000:00:02.0/vendor": "0x8086\n",
        "sys/bus/pci/devices/0000:00:02.0/class": "0x030000\n",
        "sys/bus/pci/devices/0000:00:03.0/vendor": "0x10de\n",
        "sys/bus/pci/devices/0000:00:03.0/class": "0x040300\n",
    },
}


@pytest.mark.parametrize(
    ("files", "values"),
    [*((files, [0, 0, 0]) for files in NVIDIA.values()), *((files, [None] * 3) for files in NO_NVIDIA.values())],
    ids=[*NVIDIA, *NO_NVIDIA],
)
def test_gpus_that_are_not_there_are_absent_and_those_that_fail_are_down(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    files: dict[str, str],
    values: list[int | None],
) -> None:
    """Without a trace of NVIDIA the GPU collectors have no `up`, and one line says why; with one they are down."""

    def refuse(_library: NvmlLibrary) -> None:
        raise NvmlFailure(12)

    monkeypatch.setattr(NvmlLibrary, "open", refuse)
    caplog.set_level("INFO", "scope.exporter")
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    names = ["gpu", "gpm", "nvlink", "host"]
    sampler = Sampler(
        SamplerSettings(collectors=names, interval_ns=1, slow_interval_ns=1, root=str(tmp_path)), lambda *_: None
    )
    node = NodeState(names)
    for _ in range(2):
        node.observe(msgspec.msgpack.decode(encode(sampler.take())[LENGTH.size :], type=Sample))
        series = SeriesSet()
        node.add_own(series)
        assert [series.get(m.COLLECTOR_UP, (name,)) for name in names[:3]] == values
        assert series.get(m.COLLECTOR_UP, ("host",)) == 1
    lines = [] if values == [0, 0, 0] else ["no NVIDIA driver: GPU collectors idle, looked for again every minute"]
    assert caplog.messages == lines
    assert node.notes() == lines


def test_what_is_mended_costs_no_other_device_its_large_figures() -> None:
    """Counters of 64 bits without a sign go through the pipe, beside one that is too large as without it."""
    gone = GpuReading(GpuIdentity(0, "GPU-0"), energy_mj=2**64)
    device = NetDevice("eth8", up=True, statistics={"rx_bytes": LARGE, "tx_bytes": 2**64})
    sample = Sample(1, 2, 3, gpus=[gone], nets=[device])
    received = msgspec.msgpack.decode(encode(sample)[LENGTH.size :], type=Sample)
    assert received.nets[0].statistics == {"rx_bytes": LARGE}
    assert received.gpus[0].energy_mj is None
    assert len(received.problems) == 2
