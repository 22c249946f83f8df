"""What the node exporter costs: 8 GPUs x 18 links, 8 NICs and 8 ranks, over the fake NVML.

The fake library answers in about a microsecond; a real driver takes longer, but that time is spent in the kernel for
every exporter alike. What is measured is the exporter's own part.
"""

from __future__ import annotations

import concurrent.futures
import http.client
import json
import os
import resource
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec

from exporters.node import NodeState
from exporters.render import TEXT
from exporters.sampler import Sampler, encode
from exporters.scrape import Scraper
from exporters.training import TrainingCollector
from exporters.wire import COLLECTORS, LENGTH, Sample, SamplerSettings
from scope.run import paths
from scope.run.schema import SCHEMA_VERSION, CollectiveTotal, GroupInfo, RankInfo, RunInfo, StepRecord
from scope.testing.fake_nvml.build import SCRIPT_VARIABLE, build_library
from scope.testing.fake_nvml.nodes import make_node

S = 1_000_000_000
NUM_GPUS = NUM_NICS = NUM_RANKS = 8
SCRAPES = 200
ROUNDS = 5
CPU_WINDOW_S = 20
SIMULATED_S = 86_400
SIMULATED_STEP_S = 10
OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
COUNTERS = [
    "port_xmit_data",
    "port_rcv_data",
    "port_xmit_packets",
    "port_rcv_packets",
    "port_xmit_wait",
    "port_xmit_discards",
    "port_rcv_errors",
    "port_rcv_constraint_errors",
    "port_xmit_constraint_errors",
    "symbol_error",
    "link_downed",
    "link_error_recovery",
    "VL15_dropped",
    "local_link_integrity_errors",
    "excessive_buffer_overrun_errors",
    "unicast_rcv_packets",
    "unicast_xmit_packets",
]
HARDWARE = [
    "np_cnp_sent",
    "np_ecn_marked_roce_packets",
    "rp_cnp_handled",
    "rp_cnp_ignored",
    "out_of_sequence",
    "packet_seq_err",
    "out_of_buffer",
    "implied_nak_seq_err",
    "local_ack_timeout_err",
    "rnr_nak_retry_err",
    "duplicate_request",
    "roce_adp_retrans",
    "roce_adp_retrans_to",
    "roce_slow_restart",
    "roce_slow_restart_cnps",
    "roce_slow_restart_trans",
    "rx_icrc_encapsulated",
    "req_cqe_error",
    "resp_cqe_error",
]


def make_tree(root: Path) -> None:
    """Write sysfs of the NICs and copy what the node's own proc says."""
    for nic in range(NUM_NICS):
        port = root / f"sys/class/infiniband/mlx5_{nic}/ports/1"
        for folder, names in (("counters", COUNTERS), ("hw_counters", HARDWARE)):
            (port / folder).mkdir(parents=True)
            for name in names:
                (port / folder / name).write_text("123456789\n")
        for name, text in (
            ("state", "4: ACTIVE"),
            ("phys_state", "5: LinkUp"),
            ("rate", "400 Gb/sec (4X NDR)"),
            ("link_layer", "Ethernet"),
        ):
            (port / name).write_text(f"{text}\n")
        net = root / f"sys/class/net/eth{nic}"
        (net / "statistics").mkdir(parents=True)
        for name in (
            "rx_bytes",
            "tx_bytes",
            "rx_packets",
            "tx_packets",
            "rx_errors",
            "tx_errors",
            "rx_dropped",
            "tx_dropped",
        ):
            (net / "statistics" / name).write_text("1\n")
        (net / "operstate").write_text("up\n")
        (net / "carrier_down_count").write_text("1\n")
    (root / "proc/pressure").mkdir(parents=True)
    for name in ("stat", "meminfo", "loadavg", "vmstat"):
        (root / "proc" / name).write_text(Path("/proc", name).read_text())


def make_step(number: int, began_ns: int) -> bytes:
    """Return one step's line."""
    start = began_ns + number * S
    totals = tuple(
        CollectiveTotal(
            group=group, operation=name, num_calls=30, in_bytes=1 << 20, out_bytes=1 << 20, num_timed=30,
            duration_ns=S // 10,
        )
        for group in range(3)
        for name in OPERATIONS
    )  # fmt: skip
    phases = {"input": S // 10, "forward": 3 * S // 10, "backward": 4 * S // 10, "optimizer": 2 * S // 10}
    step = StepRecord(
        step=number, start_ns=start, end_ns=start + S, phases=phases, communication_wait_ns=S // 10, collectives=totals,
        tokens=8_192, mfu_ratio=0.4,
    )  # fmt: skip
    return msgspec.json.encode(step) + b"\n"


def make_run(folder: Path, *, began_ns: int, num_steps: int) -> list[Path]:
    """Write a run of eight ranks; return their files of steps."""
    folder.mkdir(parents=True)
    info = RunInfo(schema=SCHEMA_VERSION, run_id="bench", started_ns=began_ns, world_size=NUM_RANKS)
    (folder / paths.RUN_FILE).write_bytes(msgspec.json.encode(info))
    files: list[Path] = []
    for rank in range(NUM_RANKS):
        own = paths.rank_folder(folder, 0, rank)
        own.mkdir(parents=True)
        axes = ("dp_shard", "tp", "pp")
        groups = tuple(GroupInfo(group=n, name=str(n), ranks=(0, 1), mesh_axis=axis) for n, axis in enumerate(axes))
        rank_info = RankInfo(
            schema=SCHEMA_VERSION, run_id="bench", attempt=0, rank=rank, started_ns=began_ns, host=socket.gethostname(),
            pid=1, world_size=NUM_RANKS, groups=groups,
        )  # fmt: skip
        (own / paths.RANK_FILE).write_bytes(msgspec.json.encode(rank_info))
        (own / paths.STEPS_FILE).write_bytes(b"".join(make_step(number, began_ns) for number in range(num_steps)))
        files.append(own / paths.STEPS_FILE)
    return files


def row(figure: str, value: float, unit: str, limit: float | None = None) -> dict[str, Any]:
    """Return one row; the limit is an upper one."""
    text = "" if limit is None else f"< {limit:g} {unit}"
    return {
        "figure": figure,
        "value": f"{value:.3g}",
        "unit": unit,
        "limit": text,
        "ok": None if limit is None else value < limit,
    }


def fetch(port: int) -> int:
    """Scrape once, as Prometheus does; return the bytes."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", "/metrics", headers={"Accept-Encoding": "gzip"})
    size = len(connection.getresponse().read())
    connection.close()
    return size


def series_value(port: int, name: str) -> float:
    """Return a series without labels."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    return next(float(line.split()[1]) for line in text.splitlines() if line.startswith(f"{name} "))


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_mb(pid: int) -> float:
    """Return the resident memory of a process in MB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1_024 / 1e6
    return 0.0


def measure_live(folder: Path, library: Path) -> list[dict[str, Any]]:
    """Measure a running exporter."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "exporters", "--port", str(port), "--nvml-library", str(library)]
    options = ["--root", str(folder / "root"), "--runs", str(folder / "live" / "*")]
    process = subprocess.Popen([*command, *options], stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            time.sleep(0.5)
            try:
                fetch(port)
                break
            except OSError:
                continue
        time.sleep(5)
        return measure_process(process.pid, port)
    finally:
        process.terminate()
        process.wait(10)


def time_scrapes(port: int) -> tuple[float, float]:
    """Return median and 99th percentile of one round of scrapes, in milliseconds."""
    times: list[float] = []
    for _ in range(SCRAPES):
        began = time.perf_counter()
        fetch(port)
        times.append(1_000 * (time.perf_counter() - began))
        time.sleep(0.02)
    times.sort()
    return times[len(times) // 2], times[int(len(times) * 0.99)]


def measure_process(parent: int, port: int) -> list[dict[str, Any]]:
    """Return the figures of a running exporter."""
    child = int(Path(f"/proc/{parent}/task/{parent}/children").read_text().split()[0])
    number = series_value(port, "scope_exporter_series")
    before = cpu_seconds(child), cpu_seconds(parent)
    started = time.monotonic()
    time.sleep(CPU_WINDOW_S)
    elapsed = time.monotonic() - started
    sampling, serving = (
        100 * (after - old) / elapsed
        for after, old in zip((cpu_seconds(child), cpu_seconds(parent)), before, strict=True)
    )
    rounds = [time_scrapes(port) for _ in range(ROUNDS)]
    samples = series_value(port, "scope_exporter_samples_total")
    began = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(200) as pool:
        sizes = list(pool.map(lambda _: fetch(port), range(200)))
    burst = time.monotonic() - began
    time.sleep(3)
    expected = time.monotonic() - began
    taken = series_value(port, "scope_exporter_samples_total") - samples
    memory = resident_mb(parent), resident_mb(child)
    return [
        row("series of the node", number, ""),
        row("scrape, median", statistics.median(median for median, _ in rounds), "ms"),
        # Whatever else runs on the machine can only add to a tail.
        row(f"scrape, p99, least disturbed of {ROUNDS} rounds of {SCRAPES}", min(tail for _, tail in rounds), "ms", 25),
        row("answer, compressed", sizes[0] / 1e3, "kB"),
        row("resident memory, both processes (dcgm-exporter: 450 published)", sum(memory), "MB", 60),
        row("sampling every second, of one core", sampling, "%", 2),
        row("serving process between scrapes, of one core", serving, "%"),
        row("200 scrapes at once, all answered in", burst, "s"),
        row("samples missed around them", max(0.0, expected - 1 - taken), "", 1.5),
    ]


def measure_day(folder: Path, library: Path) -> list[dict[str, Any]]:
    """Sample, add up, read a run and render for 24 simulated hours; return how memory grew after the first."""
    now = [time.time_ns()]
    began_ns = now[0]
    files = make_run(folder / "day" / "run", began_ns=began_ns, num_steps=10)
    settings = SamplerSettings(
        collectors=list(COLLECTORS),
        interval_ns=S,
        slow_interval_ns=10 * S,
        root=str(folder / "root"),
        nvml_library=str(library),
    )
    sampler = Sampler(settings, lambda _subject, _call: None, clock_ns=lambda: now[0])
    node = NodeState(COLLECTORS, clock_ns=lambda: now[0])
    training = TrainingCollector(
        (str(folder / "day" / "*"),), node.add_problem, registry=folder / "none", now_ns=lambda: now[0]
    )
    scraper = Scraper([node, training], node.add_own)
    decoder = msgspec.msgpack.Decoder(Sample)
    sizes: list[float] = []
    for cycle in range(SIMULATED_S // SIMULATED_STEP_S):
        now[0] += SIMULATED_STEP_S * S
        node.observe(decoder.decode(encode(sampler.take())[LENGTH.size :]))
        if cycle % 6 == 0:
            line = make_step(10 + cycle, began_ns)
            for path in files:
                with path.open("ab") as stream:
                    stream.write(line)
            training.read()
            scraper.text(TEXT)
        if cycle % 360 == 359:
            sizes.append(resident_mb(os.getpid()))
    growth = sizes[-1] - sizes[0]
    return [
        row("memory after the first of 24 simulated hours", sizes[0], "MB"),
        row("growth in the other 23", growth, "MB", 2),
        row("largest memory of that process", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1_024 / 1e6, "MB"),
    ]


def main() -> None:
    """Measure everything and print the rows."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["SCOPE_REGISTRY"] = str(folder / "none")
        make_tree(folder / "root")
        make_run(folder / "live" / "run", began_ns=time.time_ns() - 1_000 * S, num_steps=1_000)
        script = make_node(folder / "nvml.txt", num_gpus=NUM_GPUS, link_rate=1_000_000)
        os.environ[SCRIPT_VARIABLE] = str(script.path)
        library = build_library(folder)
        print(json.dumps([*measure_live(folder, library), *measure_day(folder, library)]))


if __name__ == "__main__":
    main()
