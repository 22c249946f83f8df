"""Put the parts together: sampling process, training runs, server; and stop them in order."""

from __future__ import annotations

import argparse
import ctypes
import errno
import logging
import os
import signal
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from exporters import metrics as m
from exporters.discovery import MAX_HOSTS, check_port, expand_hosts, render_targets
from exporters.jobs import JobSource
from exporters.node import NodeState
from exporters.options import DEFAULT_PORT, Options, parse_options
from exporters.publishing import SpoolKeeper
from exporters.scrape import Scraper, Source
from exporters.server import Content, ExporterServer
from exporters.supervisor import Supervisor
from exporters.training import TrainingCollector
from exporters.web_config import WebConfig, load_web_config
from exporters.web_reload import WebConfigFollower
from exporters.wire import COLLECTORS, SamplerSettings
from scope.errors import InputError, ScopeError, UsageError
from scope.probe.tree import Tree
from scope.run.files import replace_text
from scope.run.schema import RankInfo
from scope.units import NS_PER_S

if TYPE_CHECKING:
    from exporters.series import SeriesSet

log = logging.getLogger("scope.exporter")

_TRAINING_STALE_NS = 30 * NS_PER_S
_M_ARENA_MAX = -8


class Exporter:
    """One node's exporter.

    Args:
        options: What the user asked for.

    Raises:
        ScopeError: The web-config has mistakes, or the address cannot be taken.
    """

    def __init__(self, options: Options) -> None:
        self._options = options
        config = load_web_config(options.web_config) if options.web_config else WebConfig(None, {}, {})
        hosts = expand_hosts(options.targets, max_hosts=options.max_hosts) if options.targets else []
        stale_after_ns = options.deadline_ns + 3 * options.interval_ns
        self.node = NodeState(
            options.collectors, stale_after_ns=stale_after_ns, compatibilities=options.compatibilities
        )
        settings = SamplerSettings(
            collectors=[name for name in COLLECTORS if name in options.collectors],
            interval_ns=options.interval_ns,
            slow_interval_ns=options.slow_interval_ns,
            root=options.root,
            nvml_library=options.nvml_library,
        )
        self.supervisor = Supervisor(settings, self.node.observe, deadline_ns=options.deadline_ns)
        self._training_stale_ns = _TRAINING_STALE_NS + 2 * options.training_interval_ns
        self.training: TrainingCollector | None = None
        if "training" in options.collectors:
            self.training = TrainingCollector(options.runs, self.node.add_problem)
        self.keeper = SpoolKeeper(self.node.add_problem) if options.publish else None
        self.jobs: JobSource | None = None
        if "jobs" in options.collectors:
            ranks = self.training.find_ranks if self.training is not None else list[tuple[str, RankInfo]]
            self.jobs = JobSource(self.node.gpus, ranks, Tree(options.root), report=self.node.add_problem)
        self.scraper = Scraper(self._sources(), self._add_own)
        content = Content(
            self.scraper.text,
            self._health,
            lambda: render_targets(hosts, self.server.port),
            "Scope exporter",
            self.node.notes,
        )
        try:
            self.server = ExporterServer(
                (options.host, options.port), content, config, max_connections=options.max_connections
            )
        except OSError as error:
            message = f"cannot listen at {options.host}:{options.port}: {error}{_what_to_do(error)}"
            raise InputError(message) from error
        self._lacks = None if options.is_loopback else config.lacks
        self._warnings = config.warnings
        self._follower = None
        if options.web_config is not None:
            self._follower = WebConfigFollower(
                options.web_config,
                config,
                use=self.server.use,
                report=lambda error, where: self.node.add_problem("web_config", error, where),
            )

    def run(self) -> None:
        """Serve until `stop`."""
        for warning in self._warnings:
            log.warning("%s", warning)
        if self._lacks:
            log.warning(
                "listening at %s without %s: everybody who reaches it can read it (--web-config)",
                self._options.host,
                self._lacks,
            )
        if self._follower is not None:
            self._follower.start()
        self.supervisor.start()
        if self.training is not None:
            self.training.start(interval_s=self._options.training_interval_ns / NS_PER_S)
        if self.jobs is not None:
            self.jobs.start()
        if self.keeper is not None:
            self.keeper.start()
        scheme = "http" if self.server.config.tls is None else "https"
        host = f"[{self._options.host}]" if ":" in self._options.host else self._options.host
        log.info("serving %s://%s:%d/metrics", scheme, host, self.server.port)
        try:
            self.server.serve_forever(poll_interval=0.2)
        finally:
            if self._follower is not None:
                self._follower.stop()
            if self.keeper is not None:
                self.keeper.stop()
            if self.jobs is not None:
                self.jobs.stop()
            if self.training is not None:
                self.training.stop()
            self.supervisor.stop()
            self.server.server_close()

    def stop(self) -> None:
        """Let `run` return; answers under way are finished."""
        threading.Thread(target=self.server.shutdown, name="shutdown").start()

    def _sources(self) -> list[Source]:
        sources: list[Source] = [self.node]
        sources += [source for source in (self.training, self.jobs) if source is not None]
        return sources

    def _add_own(self, series: SeriesSet) -> None:
        self.node.add_own(series, self.supervisor)
        if self.training is not None:
            age_ns = self.training.age_ns
            series.add(m.COLLECTOR_UP, ("training",), int(age_ns is not None and age_ns < self._training_stale_ns))
        if self.jobs is not None:
            series.add(m.COLLECTOR_UP, ("jobs",), int(self.jobs.is_fresh()))
        if self.keeper is not None:
            series.add(m.COLLECTOR_UP, ("publish",), int(self.keeper.is_well()))
            series.add(m.PUBLISHED, (), self.keeper.num_spools)

    def _health(self) -> str | None:
        if self.supervisor.stuck:
            return "the sampling process hangs in the kernel and cannot be killed"
        sample = self.node.sample
        if sample is None:
            return "no sample yet"
        age_s = self.node.age_ns(sample) / NS_PER_S
        if age_s > self._options.deadline_ns / NS_PER_S + 3 * self._options.interval_ns / NS_PER_S:
            return f"the last sample is {age_s:.1f} s old"
        return None


def _what_to_do(error: OSError) -> str:
    """Return the way on for whoever found the port taken; nothing for other errors."""
    taken = "; choose another --port (0 takes a free one), or stop what listens there"
    return taken if error.errno == errno.EADDRINUSE else ""


def main(arguments: list[str]) -> int:
    """Run the exporter, or with `targets` as first argument write a target file.

    Returns:
        The exit status.
    """
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s", stream=sys.stderr)
    try:
        if arguments[:1] == ["targets"]:
            return write_targets(arguments[1:])
        options = parse_options(arguments)
        if options.verbose:
            log.setLevel(logging.DEBUG)
        exporter = Exporter(options)
    except ScopeError as error:
        sys.stderr.write(f"scope: {error}\n")
        return error.exit_code
    use_one_arena()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        # Under nohup the end of the terminal is ignored, and stays so; a script's `&` ignores Ctrl-C, which stops us.
        if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda _number, _frame: exporter.stop())
    exporter.run()
    return 0


def use_one_arena() -> None:
    """Tell glibc to keep one heap for all threads; one for each that ever answered a scrape would stay for ever."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, 1)


def write_targets(arguments: list[str]) -> int:
    """Write the file that `file_sd_configs` reads.

    Raises:
        ScopeError: The hosts make no sense, or the file exists and `--force` was not given.
    """
    parser = argparse.ArgumentParser(
        prog="scope exporter targets",
        description="Write a target file for file_sd_configs.",
        epilog="example: scope exporter targets 'node[001-128]' --output targets.json --force",
    )
    parser.add_argument("hosts", help="such as 'node[001-128]', or @FILE with one a line")
    parser.add_argument(
        "--port", type=int, default=DEFAULT_PORT, help=f"port of the exporters (default {DEFAULT_PORT})"
    )
    parser.add_argument("--max-hosts", type=int, default=MAX_HOSTS, help=f"the most hosts (default {MAX_HOSTS})")
    parser.add_argument("--output", metavar="FILE", help="where to write; default is the standard output")
    parser.add_argument("--force", action="store_true", help="overwrite the file")
    values = parser.parse_args(arguments)
    text = render_targets(expand_hosts(values.hosts, max_hosts=values.max_hosts), check_port(values.port))
    if values.output is None:
        sys.stdout.write(text)
        return 0
    path = Path(values.output)
    if os.path.lexists(path) and not values.force:
        message = f"{path} exists; --force overwrites it"
        raise UsageError(message)
    if path.is_symlink() or (path.exists() and not path.is_file()):
        message = f"{path} is no regular file, which is not overwritten; name another one with --output"
        raise UsageError(message)
    try:
        replace_text(path, text)
    except OSError as error:
        message = f"cannot write {path}: {error.strerror}; name another file with --output"
        raise InputError(message) from error
    return 0
