"""The options of the exporter, and what they mean."""

from __future__ import annotations

import argparse
import ipaddress
from pathlib import Path
from typing import Final, NamedTuple

from exporters.discovery import MAX_HOSTS
from exporters.wire import COLLECTORS
from scope.errors import UsageError
from scope.units import NS_PER_S, parse_duration

DEFAULT_PORT: Final = 9469
ALL_COLLECTORS: Final = (*COLLECTORS, "training", "jobs")
COMPATIBILITIES: Final = ("dcgm", "node-exporter")

_DESCRIPTION: Final = (
    """Serve this node's GPUs, links, NICs, storage, and the training runs of its ranks to Prometheus."""
)
_EPILOG: Final = """
A node with 8 GPUs of 18 links, 8 NICs and 8 ranks makes about 2,850 series; --compat dcgm adds about 320 and
--compat node-exporter about 310. Per collector: gpu at most 104 a GPU, 25 of them XID counters that exist before the
first event, and 3 a MIG instance; gpm 8 a GPU or MIG instance; nvlink 7 a link, 5 a GPU for its errors by kind, 8 a GPU
for its place behind switches, and one a kind of error that a link ever had; NVLink 5 adds 1 a link and 21 a GPU, and
one a bin of error correction that a link ever used (at most 15); 6 a link between GPU and CPU (Grace); rdma 4 a port
and one a counter file (at most 128); affinity one a pair of GPU and NIC; net 11 an interface and at most 43 of its
driver; nfs 8 a mount and 7 an operation; host at most 32; training about 30 a rank and at most 8 a pair of operation
and axis. Nothing that grows without end (process, kernel, step, name of a run) is a label, and every list has a cap.

--compat dcgm gives what dcgm-exporter counts by default, but not the vGPU licence, and PCIE_*_THROUGHPUT and
NVLINK_BANDWIDTH_TOTAL, which are rates that are called counters (PROF_PCIE_*_BYTES and PROF_NVLINK_*_BYTES are given);
of a MIG instance, the PROF_* ratios. --compat node-exporter gives node_infiniband_*, node_ethtool_* of pauses and
faults, and node_mountstats_nfs_* of READ, WRITE, COMMIT, GETATTR, OPEN and LOOKUP and of all connections of a mount
together, without label mountaddr; of other collectors nothing.

No root is needed: NVML, sysfs, proc and driver counters are readable by everybody. CAP_SYSLOG adds XIDs from the
kernel's log where dmesg is restricted; seeing other users' processes adds the job of a GPU (--collectors jobs). Spools
of the exporter's own user that no `scope run` publishes are copied to their run directories; others are not touched.

`scope exporter targets HOSTS` writes a file of targets for Prometheus' file_sd_configs, and says more with --help.
/metrics, /healthz and /sd are served: /sd are the targets of --targets, for Prometheus' http_sd_configs.

examples:
  scope exporter
  scope exporter --listen 0.0.0.0:9469 --web-config web.yml --runs '/var/spool/scope/*'
  scope exporter --disable nfs,host --compat dcgm
"""


class Options(NamedTuple):
    """What the user asked for.

    Attributes:
        host: Address to listen at.
        port: Port; 0 takes a free one.
        collectors: Those that are on.
        interval_ns: Time between samples.
        slow_interval_ns: Time between readings of what changes rarely.
        training_interval_ns: Time between readings of the run directories.
        deadline_ns: How long one call may hang.
        web_config: File with TLS and users.
        compatibilities: Names of other exporters to give as well.
        runs: Globs of run directories.
        publish: Copy spools that nobody publishes to their shared run directories.
        root: What /sys, /proc and /dev are taken from.
        nvml_library: Library to load instead of the system's.
        targets: Hosts for service discovery.
        max_hosts: The most hosts that it may name.
        max_connections: Connections served at once.
        verbose: Log requests and problems.
    """

    host: str
    port: int
    collectors: frozenset[str]
    interval_ns: int
    slow_interval_ns: int
    training_interval_ns: int
    deadline_ns: int
    web_config: Path | None
    compatibilities: frozenset[str]
    runs: tuple[str, ...]
    publish: bool
    root: str
    nvml_library: str | None
    targets: str | None
    max_hosts: int
    max_connections: int
    verbose: bool

    @property
    def is_loopback(self) -> bool:
        """Only this machine can reach the address."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"


def parse_options(arguments: list[str], *, program: str = "scope exporter") -> Options:
    """Read the command line.

    Raises:
        UsageError: An option makes no sense.
        SystemExit: `--help` was asked for, or argparse refused an option.
    """
    values = _parser(program).parse_args(arguments)
    host, port = _address(values.listen, values.port)
    return Options(
        host=host,
        port=port,
        collectors=_collectors(values.collectors, values.disable),
        interval_ns=_duration(values.interval, "--interval", smallest_ns=NS_PER_S // 20),
        slow_interval_ns=_duration(values.slow_interval, "--slow-interval", smallest_ns=NS_PER_S // 20),
        training_interval_ns=_duration(values.training_interval, "--training-interval", smallest_ns=NS_PER_S // 20),
        deadline_ns=_duration(values.deadline, "--deadline", smallest_ns=NS_PER_S // 10),
        web_config=Path(values.web_config) if values.web_config else None,
        compatibilities=frozenset(values.compat or ()),
        runs=tuple(values.runs or ()),
        publish=not values.no_publish,
        root=values.root,
        nvml_library=values.nvml_library,
        targets=values.targets,
        max_hosts=_at_least_one(values.max_hosts, "--max-hosts"),
        max_connections=_at_least_one(values.max_connections, "--max-connections"),
        verbose=values.verbose,
    )


def _parser(program: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=program, description=_DESCRIPTION, epilog=_EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--listen", metavar="HOST:PORT", help=f"where to listen (default 127.0.0.1:{DEFAULT_PORT}, this machine only)")
    add("--port", type=int, help="port on 127.0.0.1; the same as --listen 127.0.0.1:PORT")
    add("--web-config", metavar="FILE", help="TLS and basic authentication, in exporter-toolkit's web-config format")
    add(
        "--runs",
        action="append",
        metavar="GLOB",
        help="run directories to read besides those that `scope run` registers",
    )
    add(
        "--no-publish",
        action="store_true",
        help="leave the spools of this user's ranks alone; those that no `scope run` publishes are copied otherwise",
    )
    add("--collectors", metavar="LIST", help=f"only these, of {','.join(ALL_COLLECTORS)}")
    add("--disable", metavar="LIST", help="all but these")
    add("--interval", default="1s", help="time between samples (default 1s)")
    add("--slow-interval", default="10s", help="time between readings of what changes rarely (default 10s)")
    add("--training-interval", default="2s", help="time between readings of run directories (default 2s)")
    add(
        "--deadline",
        default="10s",
        help="how long one call of a driver may take before its process is killed (default 10s)",
    )
    add("--compat", action="append", choices=COMPATIBILITIES, help="also give the names of this exporter")
    add(
        "--targets",
        metavar="HOSTS",
        help="hosts that /sd names as targets, such as 'node[001-128]', or @FILE with one a line",
    )
    add("--max-hosts", type=int, default=MAX_HOSTS, help=f"the most hosts of --targets (default {MAX_HOSTS})")
    add("--max-connections", type=int, default=256, help="connections served at once (default 256)")
    add("--root", default="/", help="where /sys, /proc and /dev are mounted (a container's /host)")
    add("--nvml-library", metavar="FILE", help="NVML library to load instead of libnvidia-ml.so.1")
    add("--verbose", action="store_true", help="log requests")
    return parser


def _address(listen: str | None, port: int | None) -> tuple[str, int]:
    if listen is not None and port is not None:
        message = "--listen and --port say the same thing; give one of them"
        raise UsageError(message)
    if listen is None:
        return "127.0.0.1", _port(DEFAULT_PORT if port is None else port)
    host, separator, text = listen.rpartition(":")
    if not separator or not text.isdecimal():
        message = f"--listen {listen!r} is not HOST:PORT, such as 127.0.0.1:{DEFAULT_PORT} or [::1]:{DEFAULT_PORT}"
        raise UsageError(message)
    return host.strip("[]") or "0.0.0.0", _port(int(text))


def _at_least_one(number: int, option: str) -> int:
    if number < 1:
        message = f"{option} {number} makes no sense; it must be 1 or more"
        raise UsageError(message)
    return number


def _port(port: int) -> int:
    if not 0 <= port <= 65_535:
        message = f"there is no port {port}"
        raise UsageError(message)
    return port


def _collectors(only: str | None, disabled: str | None) -> frozenset[str]:
    named = {name.strip() for text in (only, disabled) if text for name in text.split(",") if name.strip()}
    unknown = named - set(ALL_COLLECTORS)
    if unknown:
        message = f"no collector {', '.join(sorted(unknown))}; there are {', '.join(ALL_COLLECTORS)}"
        raise UsageError(message)
    chosen = {name.strip() for name in only.split(",")} if only else set(ALL_COLLECTORS)
    if disabled:
        chosen -= {name.strip() for name in disabled.split(",")}
    return frozenset(chosen & set(ALL_COLLECTORS))


def _duration(text: str, option: str, *, smallest_ns: int) -> int:
    length_ns = parse_duration(text)
    if length_ns < smallest_ns:
        message = f"{option} {text} is too short; at least {smallest_ns / NS_PER_S:g}s"
        raise UsageError(message)
    return length_ns
