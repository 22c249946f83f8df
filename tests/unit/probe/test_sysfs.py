"""RDMA, network, storage, host and affinity from trees of files with documented layouts."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import pytest

from exporters.metrics import NFS_MAX_SLOTS
from exporters.node_series import add_nfs
from exporters.series import SeriesSet
from scope.probe.affinity import classify, read_affinities
from scope.probe.host import read_host
from scope.probe.net import NetProbe, take_driver_counters
from scope.probe.nfs import parse_mountstats, read_nfs_mounts
from scope.probe.rdma import RdmaProbe
from scope.probe.records import GpuIdentity, NetDevice
from scope.probe.tree import Problems, Tree
from scope.probe.xid import ANNOUNCED_XIDS, KernelLog, action_of, parse_kernel_line

if TYPE_CHECKING:
    from pathlib import Path


def put(root: Path, files: dict[str, str]) -> Tree:
    """Write files below a root and return the tree."""
    for path, content in files.items():
        target = root / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(content)
    return Tree(root)


def make_port(root: Path, device: str = "mlx5_0", **counters: str) -> Tree:
    """Write one RoCE port at 400 Gb/s."""
    base = f"/sys/class/infiniband/{device}/ports/1"
    files = {
        f"{base}/state": "4: ACTIVE\n",
        f"{base}/phys_state": "5: LinkUp\n",
        f"{base}/rate": "400 Gb/sec (4X NDR)\n",
        f"{base}/link_layer": "Ethernet\n",
        f"{base}/gid_attrs/ndevs/0": "eth2\n",
        f"{base}/hw_counters/lifespan": "10\n",
    }
    for name, value in counters.items():
        folder = "counters" if name.startswith(("port_", "link_", "symbol")) else "hw_counters"
        files[f"{base}/{folder}/{name}"] = f"{value}\n"
    return put(root, files)


def test_port_data_is_counted_in_words_of_four_bytes(tmp_path: Path) -> None:
    """1,000 words sent are 4,000 bytes; packets stay as they are."""
    tree = make_port(tmp_path, port_xmit_data="1000", port_rcv_data="7", port_xmit_packets="12", np_cnp_sent="3")
    port = RdmaProbe(tree).read(Problems("rdma"))[0]
    assert port.counters["port_xmit_data_bytes"] == 4_000
    assert port.counters["port_rcv_data_bytes"] == 28
    assert port.counters["port_xmit_packets"] == 12
    assert port.hw_counters == {"np_cnp_sent": 3}
    assert (port.state, port.physical_state, port.netdev) == (4, 5, "eth2")
    assert port.rate_bytes_per_s == 50_000_000_000


def test_a_port_counter_that_has_no_number_costs_itself(tmp_path: Path) -> None:
    """`N/A (no PMA)` is absent without an error; nonsense is absent and counted."""
    tree = make_port(tmp_path, port_xmit_data="N/A (no PMA)", port_rcv_data="-5", port_rcv_packets="9")
    problems = Problems("rdma")
    port = RdmaProbe(tree).read(problems)[0]
    assert port.counters == {"port_rcv_packets": 9}
    assert [problem.error for problem in problems.found] == ["invalid"]


def test_counter_files_that_vanish_and_return(tmp_path: Path) -> None:
    """A file that vanishes while the port flaps is counted, and read again when it is back."""
    tree = make_port(tmp_path, port_xmit_data="1")
    probe = RdmaProbe(tree)
    probe.read(Problems("rdma"))
    path = tmp_path / "sys/class/infiniband/mlx5_0/ports/1/counters/port_xmit_data"
    path.unlink()
    path.write_text("2\n")
    probe._files.forget("")  # a real sysfs file fails by itself; a replaced plain file does not
    problems = Problems("rdma")
    assert probe.read(problems)[0].counters["port_xmit_data_bytes"] == 8
    path.unlink()
    probe._files.forget("")
    problems = Problems("rdma")
    assert probe.read(problems)[0].counters == {}
    assert [problem.error for problem in problems.found] == ["not_found"]


@pytest.mark.parametrize(
    ("number", "error"),
    [(errno.EIO, "io_error"), (errno.ENODEV, "no_device"), (errno.EINVAL, "invalid"), (errno.ESTALE, "stale"),
     (errno.EOPNOTSUPP, "not_supported"), (errno.EACCES, "permission_denied"), (errno.ENXIO, "os_error")],
)  # fmt: skip
@pytest.mark.parametrize("call", ["open", "pread"])
def test_counter_files_that_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, number: int, error: str
) -> None:
    """Firmware that does not answer, or a device that goes: counted by kind, all else stays, and it recovers."""
    tree = make_port(tmp_path, port_xmit_data="1", port_rcv_data="2", port_rcv_packets="3")
    probe = RdmaProbe(tree)
    bad: set[int] = set()
    real_open, real_pread = os.open, os.pread

    def open_file(path: str, *arguments: int) -> int:
        if str(path).endswith("port_xmit_data"):
            if call == "open":
                raise OSError(number, os.strerror(number))
            bad.add(descriptor := real_open(path, *arguments))
            return descriptor
        return real_open(path, *arguments)

    def pread(descriptor: int, *arguments: int) -> bytes:
        if descriptor in bad:
            bad.remove(descriptor)
            raise OSError(number, os.strerror(number))
        return real_pread(descriptor, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr("scope.probe.tree.os.open", open_file)
        patch.setattr("scope.probe.tree.os.pread", pread)
        for _ in range(2):
            problems = Problems("rdma")
            assert probe.read(problems)[0].counters == {"port_rcv_data_bytes": 8, "port_rcv_packets": 3}
            assert [(problem.error, problem.where.rpartition("/")[2]) for problem in problems.found] == [
                (error, "port_xmit_data")
            ]
    problems = Problems("rdma")
    assert probe.read(problems)[0].counters["port_xmit_data_bytes"] == 4
    assert problems.found == []
    probe.close()


def test_a_device_set_aside_is_not_read(tmp_path: Path) -> None:
    """The one that may not be touched is left out, the other stays."""
    make_port(tmp_path, "mlx5_0", port_xmit_data="1")
    tree = make_port(tmp_path, "mlx5_1", port_xmit_data="2")
    ports = RdmaProbe(tree).read(Problems("rdma"), lambda device: device != "mlx5_0")
    assert [port.device for port in ports] == ["mlx5_1"]


def test_a_device_that_appears_is_found(tmp_path: Path) -> None:
    """A hot-plugged device shows in the next sample."""
    probe = RdmaProbe(make_port(tmp_path, "mlx5_0", port_xmit_data="1"))
    assert len(probe.read(Problems("rdma"))) == 1
    make_port(tmp_path, "mlx5_1", port_xmit_data="2")
    assert len(probe.read(Problems("rdma"))) == 2


def test_pause_durations_are_microseconds() -> None:
    """mlx5's pause durations, in microseconds, become nanoseconds by priority and direction."""
    device = NetDevice("eth2", up=True)
    take_driver_counters(
        device,
        {"rx_prio3_pause": 5, "rx_prio3_pause_duration": 2_000, "tx_prio0_pause": 1, "rx_discards_phy": 4, "ch0_x": 9},
        Problems("net"),
    )
    assert device.pause_frames == {"3/rx": 5, "0/tx": 1}
    assert device.pause_ns == {"3/rx": 2_000_000}
    assert device.driver_counters == {"rx_discards_phy": 4}


ALL_ONES = 2**64 - 1


def test_counters_that_are_all_ones_are_no_reading(tmp_path: Path) -> None:
    """One rule for every source: the blank is absent and counted, and so is what 64 bits cannot hold; others stay."""
    port = make_port(tmp_path, port_xmit_data=str(2**62), port_rcv_data=str(ALL_ONES), port_rcv_packets=str(2**63 + 5))
    problems = Problems("rdma")
    assert RdmaProbe(port).read(problems)[0].counters == {"port_rcv_packets": 2**63 + 5}
    assert [problem.error for problem in problems.found] == ["implausible", "implausible"]
    base = "/sys/class/net/eth8/statistics"
    values = {"rx_bytes": ALL_ONES, "tx_bytes": 2**63 + 5, "rx_packets": 2**65, "tx_packets": 0}
    put(tmp_path, {f"{base}/{name}": f"{value}\n" for name, value in values.items()})
    problems = Problems("net")
    (device,) = NetProbe(Tree(tmp_path)).read(problems)
    assert device.statistics == {"tx_bytes": 2**63 + 5, "tx_packets": 0}
    assert [problem.error for problem in problems.found if "rx_" in problem.where][:2] == ["implausible"] * 2
    problems = Problems("net")
    driver = {"rx_discards_phy": ALL_ONES, "rx_prio3_pause": ALL_ONES, "rx_prio3_pause_duration": 2**60, "ch0": 2**64}
    take_driver_counters(device, driver, problems)
    assert (device.driver_counters, device.pause_frames, device.pause_ns) == ({}, {}, {})
    assert [problem.error for problem in problems.found] == ["implausible"] * 3


def test_32_bits_of_all_ones_are_no_reading_of_a_port(tmp_path: Path) -> None:
    """A NIC that fell off the bus reads as all ones, and old counters of words stop there."""
    port = make_port(tmp_path, port_xmit_data=str(2**32 - 1), port_rcv_data="3", symbol_error=str(2**32 - 1))
    problems = Problems("rdma")
    assert RdmaProbe(port).read(problems)[0].counters == {"port_rcv_data_bytes": 12}
    assert [problem.error for problem in problems.found] == ["implausible", "implausible"]


def test_interfaces_from_sysfs(tmp_path: Path) -> None:
    """A physical interface tells its speed, a virtual one and the loopback do not."""
    base = "/sys/devices/pci0000:00/0000:00:01.0/net/eth0"
    put(
        tmp_path,
        {
            f"{base}/operstate": "up\n",
            f"{base}/speed": "100000\n",
            f"{base}/carrier_down_count": "2\n",
            **{f"{base}/statistics/{name}": "11\n" for name in ("rx_bytes", "tx_bytes", "rx_packets", "tx_packets")},
            **{f"{base}/statistics/{name}": "0\n" for name in ("rx_errors", "tx_errors", "rx_dropped")},
            f"{base}/statistics/tx_dropped": "x\n",
            "/sys/class/net/lo/statistics/rx_bytes": "1\n",
            "/sys/class/net/bonding_masters": "\n",
        },
    )
    (tmp_path / "sys/class/net/eth0").symlink_to("../../devices/pci0000:00/0000:00:01.0/net/eth0")
    problems = Problems("net")
    devices = NetProbe(Tree(tmp_path)).read(problems)
    assert [(d.name, d.up, d.virtual, d.speed_bytes_per_s) for d in devices] == [("eth0", True, False, 12_500_000_000)]
    assert devices[0].statistics["rx_bytes"] == 11
    assert devices[0].carrier_downs == 2
    assert [(problem.error, problem.where.rpartition("/")[2]) for problem in problems.found] == [
        ("invalid", "tx_dropped")
    ]


MOUNTSTATS = """device rootfs mounted on / with fstype rootfs
device server:/export mounted on /data\\040set with fstype nfs4 statvers=1.1
\topts:\trw,vers=4.2,nconnect=2
\tage:\t100
\tbytes:\t1 2 3 4 5000 6000 7 8
\tRPC iostats version: 1.1  p/v: 100003/4 (nfs)
\txprt:\ttcp 832 0 1 0 11 100 99 2 300 40 16 5 6
\txprt:\ttcp 833 0 1 0 12 50 50 1 60 7 8 5 6
\tper-op statistics
\t        NULL: 1 1 0 44 24 0 0 0 0
\t        READ: 10 12 1 1000 5000 70 200 300 2
\t       WRITE: 5 5 0 6000 100 1 2 3
"""


def test_nfs_queue_and_backlog(tmp_path: Path) -> None:
    """Milliseconds become nanoseconds; connections of one mount are added; other operations are left out."""
    mount = read_nfs_mounts(put(tmp_path, {"/proc/self/mountstats": MOUNTSTATS}), Problems("nfs"))[0]
    assert (mount.mount, mount.export, mount.age_s) == ("/data set", "server:/export", 100)
    assert (mount.read_bytes, mount.write_bytes) == (5_000, 6_000)
    assert (mount.transports, mount.requests_sent, mount.bad_xids) == (2, 150, 3)
    assert (mount.backlog_cumulative, mount.max_slots) == (47, 24)
    read, write = mount.operations
    assert (read.name, read.requests, read.transmissions, read.queue_ns) == ("READ", 10, 12, 70_000_000)
    assert (read.response_ns, read.total_ns, read.errors) == (200_000_000, 300_000_000, 2)
    assert write.errors is None


@pytest.mark.parametrize(
    ("transports", "slots"),
    [
        (["tcp 832 0 1 0 11 100 99 2 300 40 16 5 6"], 16),
        (["udp 832 0 100 99 2 300 40 16 5 6"], 16),
        (["udp 832 0 100 99 2 300 40"], None),
        (["tcp 832 0 1 0 11 100 99 2 300 40"], None),
        (["rdma 0 0 1 0 11 100 99 2 300 40 1 2 3 4 5 6 7 8 9 10 11"], None),
        (["tcp 832 0 1 0 11 100 99 2 300 40 16 5 6", "tcp 833 0 1 0 11 1 9 2 3 4"], None),
        (["tcp 833 0 1 0 11 1 9 2 3 4", "tcp 832 0 1 0 11 100 99 2 300 40 16 5 6"], None),
    ],
)
def test_slots_are_absent_where_a_connection_does_not_tell_them(transports: list[str], slots: int | None) -> None:
    """RDMA and old kernels tell none; 0 slots would look like a mount that never sent anything."""
    lines = "".join(f"\txprt:\t{transport}\n" for transport in transports)
    (mount,) = parse_mountstats(f"device s:/e mounted on /m with fstype nfs\n{lines}", Problems("nfs"))
    assert (mount.max_slots, mount.transports) == (slots, len(transports))
    series = SeriesSet()
    add_nfs(series, [mount])
    assert series.get(NFS_MAX_SLOTS, ("/m",)) == slots


@pytest.mark.parametrize(
    "line", ["\tage:\tx", f"\tage:\t{2**64 - 1}", "\txprt:\ttcp 1 2", "\t READ: 1 2 3 4 5 six 7 8", "\tbytes: 1"]
)
def test_a_bad_line_of_mountstats_costs_itself(line: str) -> None:
    """A line that cannot be read is counted and the mount stays."""
    problems = Problems("nfs")
    mounts = parse_mountstats(f"device s:/e mounted on /m with fstype nfs\n{line}\n", problems)
    assert [mount.mount for mount in mounts] == ["/m"]
    assert [problem.error for problem in problems.found] == ["invalid"]


def test_host_figures(tmp_path: Path) -> None:
    """Ticks, kilobytes and microseconds become nanoseconds and bytes."""
    tree = put(
        tmp_path,
        {
            "/proc/stat": "cpu  100 0 50 1000 5 0 1 2 0 0\ncpu0 50 0 25\ncpu1 1 1 1\nbtime 1700\n",
            "/proc/meminfo": "MemTotal:  1000 kB\nMemAvailable: 250 kB\nVmallocTotal: 99 kB\n"
            "HugePages_Total:    8\nHugePages_Free:     3\nHugePages_Rsvd:  1\nHugepagesize:    2048 kB\n",
            "/proc/loadavg": "1.50 1 1 1/2 3\n",
            "/proc/vmstat": "nr_free_pages 1\noom_kill 4\n",
            "/proc/pressure/memory": "some avg10=0.00 avg300=0 total=12\nfull avg10=0 avg300=0 total=5\n",
            "/proc/pressure/cpu": "some avg10=0.00 total=x\n",
        },
    )
    problems = Problems("host")
    host = read_host(tree, problems)
    assert host.cpu_ns["user"] == 1_000_000_000
    assert host.cpu_ns["steal"] == 20_000_000
    assert (host.num_cpus, host.load1_ratio, host.oom_kills) == (2, 1.5, 4)
    assert host.memory_bytes == {
        "MemTotal": 1_024_000,
        "MemAvailable": 256_000,
        "HugePages_Total": 16 << 20,
        "HugePages_Free": 6 << 20,
    }
    assert [(p.resource, p.some_ns, p.full_ns) for p in host.pressure] == [("memory", 12_000, 5_000)]
    assert [problem.where for problem in problems.found] == ["/proc/pressure/cpu"]


@pytest.mark.parametrize(
    ("nic", "nodes", "expected"),
    [
        ("pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:01.0/0000:04:00.0", (0, 0), "PIX"),
        ("pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:01.0/0000:05:00.0/0000:06:00.0/0000:07:00.0", (0, 0), "PXB"),
        ("pci0000:00/0000:00:02.0/0000:08:00.0", (0, 0), "PHB"),
        ("pci0000:40/0000:40:01.0/0000:41:00.0", (0, 0), "NODE"),
        ("pci0000:80/0000:80:01.0/0000:81:00.0", (0, 1), "SYS"),
        ("pci0000:80/0000:80:01.0/0000:81:00.0", (-1, 1), "unknown"),
        ("virtual/thing", (0, 0), "unknown"),
    ],
)
def test_distance_of_gpu_and_nic(nic: str, nodes: tuple[int, int], expected: str) -> None:
    """The class follows the bridges that both paths share, else the NUMA node."""
    gpu = "/sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:00.0/0000:03:00.0"
    assert classify(gpu, f"/sys/devices/{nic}", *nodes) == expected


def test_affinity_follows_the_links_of_sysfs(tmp_path: Path) -> None:
    """Addresses are resolved through sysfs' symbolic links."""
    devices = "/sys/devices/pci0000:00/0000:00:01.0"
    put(tmp_path, {f"{devices}/0000:10:00.0/numa_node": "0\n", f"{devices}/0000:11:00.0/numa_node": "0\n"})
    for link, target in (
        ("sys/bus/pci/devices/0000:10:00.0", "../../../devices/pci0000:00/0000:00:01.0/0000:10:00.0"),
        ("sys/class/infiniband/mlx5_0/device", "../../../devices/pci0000:00/0000:00:01.0/0000:11:00.0"),
    ):
        (tmp_path / link).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / link).symlink_to(target)
    found = read_affinities(Tree(tmp_path), [GpuIdentity(0, "GPU-a", pci_bus_id="0000:10:00.0")])
    assert [(pair.device, pair.distance) for pair in found] == [("mlx5_0", "PIX")]


def test_xids_in_the_kernels_log() -> None:
    """Address, number and time of a line of the driver; every other line is none."""
    line = b"3,1234,5000000,-;NVRM: Xid (PCI:0000:10:1C): 63, pid=1, name=python, Row Remapper"
    event = parse_kernel_line(line, boot_time_ns=1_000)
    assert event is not None
    assert (event.pci_bus_id, event.xid, event.time_ns) == ("0000:10:1c.0", 63, 5_000_001_000)
    assert parse_kernel_line(b"6,1,2,-;nothing to see", boot_time_ns=0) is None
    for number in (b"1000", b"9" * 5_000):
        assert parse_kernel_line(b"NVRM: Xid (PCI:0000:10:00): %s, x" % number, boot_time_ns=0) is None
    assert (
        parse_kernel_line(b"NVRM: Xid (PCI:0000:10:00.0): 79, GPU has fallen off the bus", boot_time_ns=0) is not None
    )


def test_the_kernels_log_is_followed_from_its_end(tmp_path: Path) -> None:
    """Lines before the start are old news; a line in two halves counts once."""
    log_file = tmp_path / "dev/kmsg"
    log_file.parent.mkdir()
    log_file.write_bytes(b"3,1,1,-;NVRM: Xid (PCI:0000:10:00): 79, old\n")
    log = KernelLog(Tree(tmp_path))
    log.open()
    assert log.read(Problems("xid")) == []
    with log_file.open("ab") as stream:
        stream.write(b"3,2,2,-;NVRM: Xid (PCI:0000:")
    assert log.read(Problems("xid")) == []
    with log_file.open("ab") as stream:
        stream.write(b"11:00): 48, new\n")
    assert [event.xid for event in log.read(Problems("xid"))] == [48]
    log.close()


@pytest.mark.parametrize(
    ("xid", "action"),
    [
        (79, "reboot_node"),
        (48, "reset_gpu"),
        (74, "check_nvlink"),
        (94, "restart_application"),
        (13, "application_bug"),
        (45, "none"),
        (9999, "unknown"),
    ],
)
def test_actions_of_xids(xid: int, action: str) -> None:
    """The tiers of NVIDIA's catalogue; an XID that it does not have is unknown, not harmless."""
    assert action_of(xid) == action
    assert 45 not in ANNOUNCED_XIDS
