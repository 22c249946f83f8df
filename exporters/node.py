"""The node as the serving process knows it: the last sample, what is remembered, and all of it as series."""

from __future__ import annotations

import logging
import socket
import threading
import time
from typing import TYPE_CHECKING

import msgspec

import scope
from exporters import metrics as m
from exporters.compat_dcgm import DcgmNames
from exporters.compat_node import add_ethtool_names, add_infiniband_names, add_mountstats_names
from exporters.counters import ProblemCounts, Unwrapper, XidCounts
from exporters.gpu_series import GpuSeries
from exporters.node_series import add_affinities, add_host, add_nets, add_nfs, add_rdma
from exporters.series import SeriesSet
from exporters.wire import COLLECTORS
from scope.probe.records import GpuReading, Problem
from scope.units import NS_PER_S

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from exporters.supervisor import Supervisor
    from exporters.wire import Sample

log = logging.getLogger("scope.exporter")


class NodeState:
    """What the samples add up to. `observe` and `series` may be called from different threads.

    Args:
        collectors: Those that are switched on.
        stale_after_ns: Age from which a sample no longer counts as fresh.
        compatibilities: Exporters whose names are given as well.
        clock_ns: A monotonic clock.
    """

    def __init__(
        self,
        collectors: Collection[str],
        *,
        stale_after_ns: int = 30 * NS_PER_S,
        compatibilities: Collection[str] = (),
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._collectors = [name for name in COLLECTORS if name in collectors]
        self._stale_after_ns = stale_after_ns
        self._clock_ns = clock_ns
        self._lock = threading.Lock()
        self._xids = XidCounts()
        self._gpu_series = GpuSeries(Unwrapper(), self._xids)
        self._problems = ProblemCounts()
        self._dcgm = DcgmNames(socket.gethostname()) if "dcgm" in compatibilities else None
        self._with_node_names = "node-exporter" in compatibilities
        self.sample: Sample | None = None
        self.num_samples = 0

    def observe(self, sample: Sample) -> None:
        """Take in one sample; every one must pass here."""
        with self._lock:
            self._gpu_series.observe(sample.gpus)
            if self._dcgm is not None:
                self._dcgm.observe(sample.gpus)
            self._xids.add(sample.xids)
            self._problems.add(sample.problems)
            before = self.sample.absent if self.sample is not None else {}
            self.sample = sample
            self.num_samples += 1
        for collector, why in sample.absent.items():
            if collector not in before:
                log.info("%s", why)

    def notes(self) -> list[str]:
        """Return what this node does not have, in a line each."""
        sample = self.sample
        return list(sample.absent.values()) if sample is not None else []

    def version(self) -> int:
        """Return the number of the last sample."""
        return self.num_samples

    def age_ns(self, sample: Sample) -> int:
        """Return how old a sample is now."""
        return self._clock_ns() - sample.monotonic_ns

    def gpus(self) -> list[GpuReading]:
        """Return the GPUs of the last sample, each with its full identity."""
        with self._lock:
            sample = self.sample
            if sample is None:
                return []
            return [
                msgspec.structs.replace(reading, identity=self._gpu_series.identity(reading)) for reading in sample.gpus
            ]

    def add_problem(self, collector: str, error: str, where: str) -> None:
        """Count a problem of a collector that runs in this process."""
        with self._lock:
            self._problems.add([Problem(collector, error, where, "")])

    def series(self) -> SeriesSet:
        """Return the series of the last sample."""
        series = SeriesSet()
        with self._lock:
            sample = self.sample
            if sample is None:
                return series
            self._gpu_series.add(series, sample.gpus)
            if self._dcgm is not None:
                self._dcgm.add(series, sample.gpus, self._xids)
            if self._with_node_names:
                add_infiniband_names(series, sample.rdma)
                add_ethtool_names(series, sample.nets)
                add_mountstats_names(series, sample.nfs)
            add_affinities(series, sample.affinities)
            add_rdma(series, sample.rdma)
            add_nets(series, sample.nets)
            add_nfs(series, sample.nfs)
            if sample.host is not None:
                add_host(series, sample.host)
        return series

    def add_own(self, series: SeriesSet, supervisor: Supervisor | None = None) -> None:
        """Add what the exporter knows of itself; its ages are those of this moment."""
        now_ns = self._clock_ns()
        series.add(m.BUILD_INFO, (scope.__version__,), 1)
        sample = self.sample
        fresh = False
        if sample is not None:
            age_ns = now_ns - sample.monotonic_ns
            fresh = age_ns <= self._stale_after_ns
            series.add(m.SAMPLE_TIMESTAMP, (), sample.time_ns / NS_PER_S)
            series.add(m.SAMPLE_AGE, (), age_ns / NS_PER_S)
            for collector, spent_ns in sample.durations_ns.items():
                series.add(m.SAMPLE_DURATION, (collector,), spent_ns / NS_PER_S)
        series.add(m.SAMPLES, (), self.num_samples)
        for collector in self._collectors:
            parent = self._parent(collector)
            if sample is not None and fresh and parent in sample.absent:
                continue
            good = sample is not None and fresh and parent not in sample.unavailable
            series.add(m.COLLECTOR_UP, (collector,), int(good))
        with self._lock:
            for (collector, error), count in self._problems.counts.items():
                series.add(m.SAMPLE_ERRORS, (collector, error), count)
        if supervisor is not None:
            add_supervision(series, supervisor, now_ns)

    @staticmethod
    def _parent(collector: str) -> str:
        """Return the collector whose failure takes this one along."""
        return "gpu" if collector in {"gpm", "nvlink"} else collector


def add_supervision(series: SeriesSet, supervisor: Supervisor, now_ns: int) -> None:
    """Add restarts and quarantines of the sampling process."""
    for reason, count in supervisor.restarts.items():
        series.add(m.SAMPLER_RESTARTS, (reason,), count)
    series.add(m.SAMPLER_STUCK, (), int(supervisor.stuck))
    for held in list(supervisor.quarantines.values()):
        series.add(m.QUARANTINED, (held.subject, held.call), int(held.until_ns > now_ns))
