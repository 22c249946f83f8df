"""The exporter as it runs on a node, over a fake NVML: true rates, hangs, lost GPUs, clean names, orderly end."""

from __future__ import annotations

import concurrent.futures
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from scope.testing.fake_nvml.nodes import make_node

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.system("gcc")
FAST = ("--interval", "200ms", "--slow-interval", "200ms", "--deadline", "1s")


@pytest.mark.system("promtool")
def test_names_pass_promtool(start_exporter: Callable[..., Any], tmp_path: Path) -> None:
    """`promtool check metrics` finds nothing to say about any series, nor about another exporter's names."""
    exporter = start_exporter(make_node(tmp_path / "nvml.txt", num_gpus=2), *FAST)
    text = exporter.text()
    done = subprocess.run(["promtool", "check", "metrics"], input=text, text=True, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def until(ready: Callable[[], bool], *, seconds: float = 20) -> None:
    """Wait for a condition; fail when it does not come true."""
    deadline = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < deadline, "did not come true in time"
        time.sleep(0.05)


def test_a_gpu_that_hangs_is_set_aside(start_exporter: Callable[..., Any], tmp_path: Path) -> None:
    """A call that never returns costs its GPU, named in the metrics; scrapes and the other GPUs go on."""
    script = make_node(tmp_path / "nvml.txt", num_gpus=3)
    exporter = start_exporter(script, *FAST)
    assert exporter.value("scope_gpu_up", gpu="1") == 1
    script.hang(1, "nvmlDeviceGetTemperature.0")
    script.write()
    until(lambda: exporter.value("scope_gpu_up", gpu="1") == 0)
    assert exporter.value("scope_gpu_up", gpu="0") == 1
    assert exporter.value("scope_gpu_up", gpu="2") == 1
    assert exporter.value("scope_gpu_power_watts", gpu="2") is not None
    assert exporter.value("scope_gpu_power_watts", gpu="1") is None
    assert exporter.value("scope_exporter_quarantined", subject="1", call="nvmlDeviceGetTemperature") == 1
    assert exporter.value("scope_exporter_sampler_restarts_total", reason="hang") == 1
    assert exporter.value("scope_collector_up", collector="gpu") == 1
    # Its identity is known from before, although nobody may ask for it now.
    assert exporter.value("scope_gpu_info", gpu="1", model="NVIDIA H100 80GB HBM3") == 1


def test_a_gpu_that_crashes_its_reader_is_set_aside(start_exporter: Callable[..., Any], tmp_path: Path) -> None:
    """A call in which the library itself crashes costs its GPU; the others are read again within seconds."""
    script = make_node(tmp_path / "nvml.txt", num_gpus=3)
    exporter = start_exporter(script, *FAST)
    script.set("g1.nvmlDeviceGetTemperature.0", code="crash")
    script.write()
    until(lambda: exporter.value("scope_gpu_up", gpu="1") == 0)
    assert exporter.value("scope_gpu_power_watts", gpu="2") is not None
    assert exporter.value("scope_exporter_quarantined", subject="1", call="nvmlDeviceGetTemperature") == 1
    assert exporter.value("scope_exporter_sampler_restarts_total", reason="exit") == 1
    assert exporter.value("scope_collector_up", collector="gpu") == 1


def test_a_library_that_hangs_at_its_start(start_exporter: Callable[..., Any], tmp_path: Path) -> None:
    """When NVML itself hangs, its collectors go down and the others are served."""
    script = make_node(tmp_path / "nvml.txt", num_gpus=1)
    script.set("sys.nvmlInit", code="hang")
    script.write()
    exporter = start_exporter(script, *FAST)
    until(lambda: exporter.value("scope_collector_up", collector="gpu") == 0)
    until(lambda: exporter.value("scope_cpus") == os.cpu_count())
    assert exporter.value("scope_exporter_quarantined", subject="gpu", call="nvmlInit") == 1


def test_a_lost_gpu_is_zero_and_the_others_stay(start_exporter: Callable[..., Any], tmp_path: Path) -> None:
    """GPU_IS_LOST gives up 0; ECC and power of the other GPU stay as they were."""
    script = make_node(tmp_path / "nvml.txt", num_gpus=2)
    exporter = start_exporter(script, *FAST)
    script.lose(0)
    script.write()
    until(lambda: exporter.value("scope_gpu_up", gpu="0") == 0)
    assert exporter.value("scope_gpu_power_watts", gpu="1") == pytest.approx(350.001)
    assert exporter.value("scope_exporter_sample_errors_total", collector="gpu", error="gpu_is_lost") > 0


def test_xids_exist_at_zero_and_count(start_exporter: Callable[..., Any], tmp_path: Path) -> None:
    """The series of a paging XID is there before its first event, and the timestamp only after."""
    script = make_node(tmp_path / "nvml.txt", num_gpus=1)
    exporter = start_exporter(script, *FAST)
    assert exporter.value("scope_gpu_xid_events_total", xid="79") == 0
    assert exporter.value("scope_gpu_xid_last_timestamp_seconds", xid="79") is None
    before = time.time()
    script.add_xid(0, 79)
    script.write()
    until(lambda: exporter.value("scope_gpu_xid_events_total", xid="79") == 1)
    assert before - 1 < exporter.value("scope_gpu_xid_last_timestamp_seconds", xid="79") < time.time() + 1


def test_a_sampler_that_crashes_is_replaced(start_exporter: Callable[..., Any], tmp_path: Path) -> None:
    """The last sample is served meanwhile, and sampling goes on."""
    exporter = start_exporter(make_node(tmp_path / "nvml.txt", num_gpus=1), *FAST)
    children = Path(f"/proc/{exporter.process.pid}/task/{exporter.process.pid}/children").read_text().split()
    os.kill(int(children[0]), 9)
    assert exporter.value("scope_gpu_up", gpu="0") == 1
    samples = exporter.value("scope_exporter_samples_total")
    until(lambda: exporter.value("scope_exporter_samples_total") > samples + 2)
    assert exporter.value("scope_exporter_sampler_restarts_total", reason="exit") == 1


def test_two_hundred_scrapes_at_once(start_exporter: Callable[..., Any], tmp_path: Path) -> None:
    """All are answered in full, and sampling keeps its pace."""
    exporter = start_exporter(make_node(tmp_path / "nvml.txt", num_gpus=8), "--interval", "200ms")
    before = exporter.value("scope_exporter_samples_total")
    started = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(200) as pool:
        sizes = [text.count("\n") for text in pool.map(lambda _: exporter.text(), range(200))]
    elapsed = time.monotonic() - started
    assert min(sizes) > 1_500
    taken = exporter.value("scope_exporter_samples_total") - before
    # 5 a second are due; half of them leaves room for a busy test machine.
    assert taken >= max(1, int(elapsed * 5 * 0.5))


def test_the_end_is_orderly(start_exporter: Callable[..., Any], tmp_path: Path) -> None:
    """On SIGTERM the exporter leaves with status 0 and no process behind."""
    exporter = start_exporter(make_node(tmp_path / "nvml.txt", num_gpus=1), *FAST)
    children = Path(f"/proc/{exporter.process.pid}/task/{exporter.process.pid}/children").read_text().split()
    exporter.process.terminate()
    assert exporter.process.wait(10) == 0
    until(lambda: not Path(f"/proc/{children[0]}").exists())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_end_in_the_background_of_a_script(number: int) -> None:
    """A shell starts what ends in `&` with SIGINT ignored; the exporter ends on it nevertheless, with status 0."""
    command = f"{sys.executable} -m exporters --port 0 --collectors host --no-publish & wait $!"
    with subprocess.Popen(["sh", "-c", command], stderr=subprocess.PIPE, text=True) as shell:
        assert shell.stderr is not None
        assert "serving" in shell.stderr.readline()
        (child,) = Path(f"/proc/{shell.pid}/task/{shell.pid}/children").read_text().split()
        os.kill(int(child), number)
        assert shell.wait(20) == 0


def test_the_end_while_a_call_hangs(start_exporter: Callable[..., Any], tmp_path: Path) -> None:
    """SIGTERM before the deadline of a call that never returns: status 0 within seconds, and no process is left."""
    script = make_node(tmp_path / "nvml.txt", num_gpus=1)
    exporter = start_exporter(script, "--interval", "200ms", "--deadline", "60s")
    children = Path(f"/proc/{exporter.process.pid}/task/{exporter.process.pid}/children").read_text().split()
    script.hang(0, "nvmlDeviceGetTemperature.0")
    script.write()
    until(lambda: exporter.value("scope_exporter_sample_age_seconds") > 1)
    exporter.process.terminate()
    assert exporter.process.wait(30) == 0
    until(lambda: not Path(f"/proc/{children[0]}").exists())


def test_a_driver_that_is_reloaded(start_exporter: Callable[..., Any], tmp_path: Path) -> None:
    """A fresh sampling process reads what is there then: one GPU less, counters that begin again; scrapes go on."""
    script = make_node(tmp_path / "nvml.txt", num_gpus=3)
    exporter = start_exporter(script, *FAST)
    assert exporter.value("scope_gpu_energy_joules_total", gpu="0") == 7_000
    healthy = dict(script.answers)
    for gpu in range(3):
        script.lose(gpu, code=9)
    script.write()
    until(lambda: exporter.value("scope_exporter_sampler_restarts_total", reason="driver") == 1)
    script.answers = {**healthy, "sys.nvmlDeviceGetCount": "0 2"}
    script.field(0, 83, 5_000)
    script.write()
    until(lambda: exporter.value("scope_gpu_energy_joules_total", gpu="0") == 5)
    assert exporter.value("scope_gpu_up", gpu="1") == 1
    assert exporter.value("scope_gpu_up", gpu="2") is None
    assert exporter.value("scope_collector_up", collector="gpu") == 1
    assert exporter.value("scope_exporter_sampler_restarts_total", reason="hang") == 0


def test_a_gpu_that_is_split_and_joined_while_it_runs(start_exporter: Callable[..., Any], tmp_path: Path) -> None:
    """Its instances come and go as series without a restart; the other GPU and what belongs to the parent stay."""
    script = make_node(tmp_path / "nvml.txt", num_gpus=2)
    whole = dict(script.answers)
    exporter = start_exporter(script, *FAST)
    assert exporter.value("scope_gpu_mig_enabled", gpu="0") == 0
    script.set("g0.nvmlDeviceGetMigMode", 1)
    script.set("g0.nvmlDeviceGetMaxMigDeviceCount", 7)
    for slot in range(7):
        for call, value in (("UUID", f"MIG-{slot}"), ("GpuInstanceId", slot + 1), ("ComputeInstanceId", 0)):
            script.set(f"g0.m{slot}.nvmlDeviceGet{call}", value, code=0 if slot < 2 else 6)
        script.set(f"g0.m{slot}.nvmlDeviceGetMemoryInfo", 40 << 30, 30 << 30, 10 << 30)
    script.write()
    until(lambda: exporter.value("scope_mig_memory_used_bytes", gpu="0", mig="2/0") == 10 << 30)
    assert exporter.value("scope_mig_info", gpu="0", mig="1/0", mig_uuid="MIG-0") == 1
    assert exporter.value("scope_mig_info", gpu="0", mig="3/0") is None
    assert exporter.value("scope_gpu_power_watts", gpu="0") is not None
    assert exporter.value("scope_mig_info", gpu="1") is None
    script.answers = whole
    script.write()
    # The mode is read less often than the instances.
    until(lambda: exporter.value("scope_gpu_mig_enabled", gpu="0") == 0)
    assert "scope_mig_info{" not in exporter.text()
    assert exporter.value("scope_exporter_sampler_restarts_total", reason="driver") == 0


def test_a_thousand_connections_that_say_nothing(start_exporter: Callable[..., Any], tmp_path: Path) -> None:
    """They cost a scrape nothing that Prometheus would notice, no thread each, and end when their clients go."""
    exporter = start_exporter(make_node(tmp_path / "nvml.txt", num_gpus=1), *FAST)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 4_096)), hard))
    idle = [socket.create_connection(("127.0.0.1", exporter.port), timeout=10) for _ in range(1_000)]
    try:
        for _ in range(10):
            assert "scope_gpu_up" in exporter.text()
        threads = len(list(Path(f"/proc/{exporter.process.pid}/task").iterdir()))
        assert threads < 40
    finally:
        for connection in idle:
            connection.close()
    until(lambda: len(list(Path(f"/proc/{exporter.process.pid}/fd").iterdir())) < 64)


@pytest.mark.parametrize(
    ("arguments", "code", "part"),
    [
        (["--listen", "nowhere"], 2, "HOST:PORT"),
        (["--web-config", "/nonexistent.yml"], 3, "/nonexistent.yml"),
        (["--listen", "203.0.113.1:9469"], 3, "cannot listen"),
        (["targets", "n[1-"], 2, "bracket"),
        (["targets", "n1", "--output", "/proc/targets.json"], 3, "cannot write /proc/targets.json"),
    ],
)
def test_mistakes_are_one_clear_line(arguments: list[str], code: int, part: str) -> None:
    """No traceback, and the exit code of the error's kind."""
    done = subprocess.run(
        [sys.executable, "-m", "exporters", *arguments], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == code
    assert done.stderr.startswith("scope: ")
    assert part in done.stderr
    assert "Traceback" not in done.stderr
