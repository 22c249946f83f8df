"""What the help, the unit and the examples say, on the real thing: a node of eight GPUs, systemd and Prometheus."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

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
