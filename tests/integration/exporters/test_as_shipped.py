"""What the help, the unit and the examples say, on the real thing: a node of eight GPUs, systemd and Prometheus."""

from __future__ import annotations

import importlib.util
import itertools
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pynvml
import pytest

from exporters.options import _EPILOG  # pyright: ignore[reportPrivateUsage] - the text of --help
from exporters.training_series import METRICS
from scope.probe.nvml.tables import ECC_LOCATIONS, ECC_TOTALS, GPM_ACTIVITIES, PCIE_ERRORS, THROTTLE_TIMES
from scope.testing.fake_nvml.nodes import make_node

if TYPE_CHECKING:
    from collections.abc import Callable

REPOSITORY = Path(__file__).parents[3]
FAST = ("--interval", "200ms", "--slow-interval", "200ms", "--training-interval", "1s")


def load_bench() -> Any:
    """Load what `make bench` measures the exporter with: its node and its run."""
    specification = importlib.util.spec_from_file_location("exporter_bench", REPOSITORY / "bench/bench_exporter.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules["exporter_bench"] = module
    specification.loader.exec_module(module)
    return module


@pytest.fixture
def node(tmp_path: Path, start_exporter: Callable[..., Any]) -> Callable[..., Any]:
    """Starts an exporter on the node of `make bench`: 8 GPUs of 18 links, 8 NICs, 8 ranks."""
    bench = load_bench()
    bench.make_tree(tmp_path / "root")
    bench.make_run(tmp_path / "runs" / "bench", began_ns=time.time_ns() - 60 * 10**9, num_steps=50)
    script = make_node(tmp_path / "nvml.txt", num_gpus=8, link_rate=1_000)

    def start(*options: str) -> Any:
        own = ("--root", f"{tmp_path}/root", "--runs", f"{tmp_path}/runs/*")
        exporter = start_exporter(script, *FAST, *own, *options)
        deadline = time.monotonic() + 30
        while (
            "scope_train_steps_total" not in exporter.text() or "scope_gpu_tensor_active_ratio" not in exporter.text()
        ):
            assert time.monotonic() < deadline
            time.sleep(0.2)
        return exporter

    return start


def count_series(text: str) -> tuple[int, int, int]:
    """Return how many samples a scrape holds under our own names, DCGM's and node_exporter's."""
    prefixes = ("scope_", "DCGM_", "node_")
    own, dcgm, ports = (sum(line.startswith(prefix) for line in text.splitlines()) for prefix in prefixes)
    return own, dcgm, ports


@pytest.mark.system("gcc")
def test_help_says_how_many_series_a_node_makes(node: Callable[..., Any]) -> None:
    """A real scrape of the node of `make bench` has the number of --help within a twentieth, other names too."""
    said = subprocess.run([sys.executable, "-m", "exporters", "--help"], capture_output=True, text=True, check=True)
    found = re.search(
        r"makes\s+about\s+([\d,]+)\s+series;\s+--compat\s+dcgm\s+adds\s+about\s+(\d+)\s+and\s+"
        r"--compat\s+node-exporter\s+about\s+(\d+)",
        said.stdout,
    )
    assert found is not None, said.stdout
    whole, dcgm, ports = (int(number.replace(",", "")) for number in found.groups())
    exporter = node("--compat", "dcgm", "--compat", "node-exporter")
    counted = (0, 0, 0)
    # Activities and rates need two samples.
    while counted != (counted := count_series(exporter.text())) or not counted[1]:
        time.sleep(1)
    assert counted == pytest.approx((whole, dcgm, ports), rel=0.05)


MOUNTSTATS = """device srv:/x mounted on /data with fstype nfs4 statvers=1.1
\tage:\t100
\tbytes:\t1 2 3 4 5000 6000 7 8
\txprt:\ttcp 832 0 1 0 11 100 99 2 300 40 16 5 6
\tper-op statistics
\t        READ: 10 12 1 1000 5000 70 200 300 2
"""
MEMORY = (
    "MemTotal", "MemFree", "MemAvailable", "Buffers", "Cached", "SwapTotal", "SwapFree", "Shmem", "Dirty", "Writeback",
    "Mlocked", "Unevictable", "Hugepagesize",
)  # fmt: skip


def make_full_host(root: Path) -> None:
    """Write a host that tells everything, and one NFS mount."""
    memory = "".join(f"{name}: 4 kB\n" for name in MEMORY) + "HugePages_Total: 1\nHugePages_Free: 1\n"
    files = {
        "stat": "cpu  1 2 3 4 5 6 7 8 0 0\ncpu0 1\nbtime 17\n",
        "meminfo": memory,
        "loadavg": "1 1 1 1/2 3\n",
        "vmstat": "oom_kill 0\n",
        **{f"pressure/{resource}": "some total=1\nfull total=1\n" for resource in ("cpu", "memory", "io")},
        "self/mountstats": MOUNTSTATS,
    }
    for name, text in files.items():
        (root / "proc" / name).parent.mkdir(parents=True, exist_ok=True)
        (root / "proc" / name).write_text(text)


def make_full_gpus(path: Path) -> Any:
    """Write a Grace and a Hopper that tell everything that NVML has for such GPUs, and a Hopper that is split."""
    script = make_node(path, generation=["grace", "hopper", "hopper"])
    for gpu in range(3):
        script.set(f"g{gpu}.nvmlDeviceGetEncoderUtilization", 1, 1_000_000)
        for name in (*THROTTLE_TIMES, *PCIE_ERRORS, *ECC_TOTALS):
            script.field(gpu, getattr(pynvml, f"NVML_FI_DEV_{name}"), 1)
        for kind, scope, place in itertools.product(range(2), range(2), ECC_LOCATIONS):
            script.set(f"g{gpu}.nvmlDeviceGetMemoryErrorCounter.{kind}.{scope}.{place}", 1)
    script.set("g2.nvmlDeviceGetMigMode", 1)
    script.set("g2.nvmlDeviceGetMaxMigDeviceCount", 1)
    script.set("g2.m0.nvmlDeviceGetUUID", "MIG-0")
    script.set("g2.m0.nvmlDeviceGetName", "NVIDIA H100 80GB HBM3 MIG 3g.40gb")
    script.set("g2.m0.nvmlDeviceGetGpuInstanceId", 1)
    script.set("g2.m0.nvmlDeviceGetComputeInstanceId", 0)
    script.set("g2.m0.nvmlDeviceGetMemoryInfo", 40 << 30, 30 << 30, 10 << 30)
    for metric in GPM_ACTIVITIES:
        script.set(f"g2.gpm.{metric}.1", 50)
    script.write()
    return script


def count_by_object(samples: dict[Any, float]) -> dict[str, int]:
    """Return how many series of a scrape each object of the help has."""
    found = [(name, dict(labels)) for name, labels in samples]

    def count(pattern: str, **labels: str) -> int:
        return sum(
            re.fullmatch(pattern, name) is not None and labels.items() <= own.items() for name, own in found
        )  # fmt: skip

    activity = "(?!.*utilization)scope_gpu_.*_ratio"
    basics = f"(?!.*fabric|{activity})scope_(gpu|pcie)_.*"
    link = r"scope_nvlink_(?!errors|fec|symbol).*"
    return {
        "gpu": count(basics, gpu="0"),
        "xid": count("scope_gpu_xid_events_total", gpu="0"),
        "mig": count("scope_mig_.*", mig="1/0"),
        "gpm": count(activity, gpu="1"),
        "gpm of an instance": count(activity, mig="1/0"),
        "link": count(link, gpu="1", link="3"),
        "errors": count("scope_nvlink_gpu_errors_total", gpu="1"),
        "fabric": count("scope_gpu_fabric_.*", gpu="1"),
        "NVLink 5 a link": count(r"scope_nvlink_(?!errors|fec).*", gpu="0", link="3") - count(link, gpu="1", link="3"),
        "NVLink 5 a GPU": count("scope_nvlink_gpu_.*", gpu="0") - count("scope_nvlink_gpu_.*", gpu="1"),
        "Grace": count("scope_c2c_.*", gpu="0", link="0"),
        "rdma": count("scope_rdma_(?!.*_total).*", device="mlx5_0"),
        "net": count("scope_net_.*", device="eth0"),
        "mount": count("scope_nfs_.*", mount="/data") - count("scope_nfs_.*", mount="/data", operation="READ"),
        "operation": count("scope_nfs_.*", operation="READ"),
        "host": count("scope_(cpu|load|memory|oom|pressure|boot).*"),
    }


@pytest.mark.system("gcc")
def test_help_says_how_many_series_each_object_makes(tmp_path: Path, start_exporter: Callable[..., Any]) -> None:
    """A real scrape of hardware that tells everything has, by object, the numbers of --help."""
    said = subprocess.run([sys.executable, "-m", "exporters", "--help"], capture_output=True, text=True, check=True)
    words = " ".join(said.stdout.split())
    patterns = {
        "gpu": r"gpu at most (\d+) a GPU", "xid": r"a GPU, (\d+) of them XID", "mig": r"and (\d+) a MIG instance",
        "gpm": r"gpm (\d+) a GPU", "gpm of an instance": r"gpm (\d+) a GPU or MIG", "link": r"nvlink (\d+) a link",
        "errors": r"(\d+) a GPU for its errors", "fabric": r"(\d+) a GPU for its place",
        "NVLink 5 a link": r"NVLink 5 adds (\d+) a link", "NVLink 5 a GPU": r"a link and (\d+) a GPU, and",
        "Grace": r"(\d+) a link between GPU and CPU", "rdma": r"rdma (\d+) a port and one a counter file",
        "net": r"net (\d+) an interface", "mount": r"nfs (\d+) a mount", "operation": r"a mount and (\d+) an operation",
        "host": r"host at most (\d+);",
    }  # fmt: skip
    expected = {name: int(re.findall(pattern, words)[0]) for name, pattern in patterns.items()}
    load_bench().make_tree(tmp_path / "root")
    speed = tmp_path / "root/sys/class/net/eth0/speed"
    speed.write_text("100000\n")
    make_full_host(tmp_path / "root")
    own = ("--root", f"{tmp_path}/root", "--disable", "training,jobs")
    exporter = start_exporter(make_full_gpus(tmp_path / "nvml.txt"), *FAST, *own)
    deadline = time.monotonic() + 20
    # Activities need two samples.
    while (counted := count_by_object(exporter.samples())) != expected and time.monotonic() < deadline:
        time.sleep(0.5)
    assert counted == expected
    samples = exporter.samples()
    files = sum(name.startswith("scope_rdma") and name.endswith("_total") and ("device", "mlx5_0") in labels
                for name, labels in samples)  # fmt: skip
    assert files == len(load_bench().COUNTERS) + len(load_bench().HARDWARE)


def test_help_says_how_many_series_a_collective_makes() -> None:
    """As many as there are metrics by operation and axis."""
    words = " ".join(_EPILOG.split())
    (said,) = re.findall(r"at most (\d+) a pair of operation and axis", words)
    assert int(said) == sum("operation" in metric.labels for metric in METRICS)


@pytest.mark.system("gcc", "promtool")
@pytest.mark.parametrize("names", [(), ("--compat", "node-exporter"), ("--compat", "dcgm")])
def test_promtool_takes_every_set_of_names(node: Callable[..., Any], names: tuple[str, ...]) -> None:
    """It has nothing to say of ours and node_exporter's, and of DCGM's own names only what NVIDIA named so."""
    done = subprocess.run(
        ["promtool", "check", "metrics"], input=node(*names).text(), text=True, capture_output=True, check=False
    )
    if "dcgm" not in names:
        assert (done.returncode, done.stderr) == (0, "")
        return
    # 3 is lint; a scrape that cannot be parsed is 1.
    assert done.returncode == 3, done.stderr
    assert all(line.startswith("DCGM_FI_") for line in done.stderr.splitlines())


@pytest.mark.system("gcc", "prometheus")
def test_prometheus_finds_nodes_by_file_and_by_http(
    start_exporter: Callable[..., Any],
    start_prometheus: Callable[..., Any],
    free_port: Callable[[], int],
    tmp_path: Path,
) -> None:
    """The file of `scope exporter targets` and the answer of /sd lead the real Prometheus to both exporters."""
    ports = [free_port(), free_port()]
    hosts = ",".join(f"127.0.0.1:{port}" for port in ports)
    for number, port in enumerate(ports):
        script = make_node(tmp_path / f"{number}.txt", num_gpus=1 + number)
        start_exporter(script, *FAST, "--targets", hosts, port=port)
    command = [sys.executable, "-m", "exporters", "targets", hosts, "--output", str(tmp_path / "targets.json")]
    subprocess.run(command, check=True)
    prometheus = start_prometheus(
        "global: {scrape_interval: 500ms, scrape_timeout: 500ms}\nscrape_configs:\n"
        f"- job_name: file\n  file_sd_configs: [{{files: ['{tmp_path}/targets.json']}}]\n"
        "  relabel_configs: [{target_label: way, replacement: file}]\n"
        f"- job_name: http\n  http_sd_configs: [{{url: 'http://127.0.0.1:{ports[0]}/sd', refresh_interval: 1s}}]\n"
        "  relabel_configs: [{target_label: way, replacement: http}]\n"
    )
    addresses = [(f"127.0.0.1:{port}", str(1 + number)) for number, port in enumerate(ports)]
    wanted = {(way, "scope", *address) for way in ("file", "http") for address in addresses}
    found: set[tuple[str, ...]] = set()
    deadline = time.monotonic() + 60
    while found != wanted:
        assert time.monotonic() < deadline, found
        time.sleep(0.3)
        answer = prometheus.query("count by (way, job, instance) (scope_gpu_info)")
        found = {
            (*(each["metric"][label] for label in ("way", "job", "instance")), each["value"][1]) for each in answer
        }


@pytest.mark.system("systemd-analyze")
def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    """`systemd-analyze verify` has nothing to say of it, once its program is one that is here; of a mistake it has."""
    unit = (REPOSITORY / "exporters/deploy/scope-exporter.service").read_text()
    program = re.search(r"^ExecStart=(\S+)", unit, flags=re.MULTILINE)
    assert program is not None
    path = tmp_path / "scope-exporter.service"
    path.write_text(unit.replace(program[1], "/bin/true", 1))
    done = subprocess.run(["systemd-analyze", "verify", path], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    path.write_text(unit.replace("Type=exec", "Type=excecute", 1))
    assert (
        "excecute"
        in subprocess.run(["systemd-analyze", "verify", path], capture_output=True, text=True, check=False).stderr
    )
