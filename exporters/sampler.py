"""The sampling process: reads the hardware over and over and writes each sample to its standard output.

It announces every call that might hang in the page that it shares with the server, which kills it when one does.
Nothing here knows of metrics.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from typing import TYPE_CHECKING, Final

import msgspec

from exporters.repair import repair
from exporters.wire import EXIT_DRIVER_GONE, IDLE, LENGTH, Sample, SamplerSettings, SharedPage
from scope.errors import ScopeError
from scope.probe.affinity import read_affinities
from scope.probe.host import read_host
from scope.probe.net import NetProbe
from scope.probe.nfs import read_nfs_mounts
from scope.probe.nvml.library import NvmlFailure, NvmlLibrary, has_nvidia_traces
from scope.probe.nvml.probe import NvmlProbe
from scope.probe.rdma import RdmaProbe
from scope.probe.tree import Problems, Tree, error_kind
from scope.probe.xid import KernelLog
from scope.units import NS_PER_S

if TYPE_CHECKING:
    from collections.abc import Callable

NO_DRIVER: Final = "no NVIDIA driver: GPU collectors idle, looked for again every minute"
_REOPEN_NS: Final = 60 * NS_PER_S
_PR_SET_PDEATHSIG: Final = 1


class DriverGoneError(Exception):
    """The driver was unloaded or replaced; a fresh process must load its library anew."""


class Sampler:
    """Takes samples.

    Args:
        settings: What to read.
        announce: Told of each subject and call before it is touched.
        clock_ns: A monotonic clock.
    """

    def __init__(
        self,
        settings: SamplerSettings,
        announce: Callable[[str, str], None],
        *,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._settings = settings
        self._announce = announce
        self._clock_ns = clock_ns
        self._tree = Tree(settings.root)
        self._wanted = frozenset(settings.collectors)
        self._sequence = 0
        self._nvml: NvmlProbe | None = None
        self._nvml_error = ""
        self._no_driver = False
        self._nvml_retry_ns = 0
        self._kernel_log: KernelLog | None = None
        self._kernel_log_tried = False
        self._rdma = RdmaProbe(self._tree)
        self._net = NetProbe(self._tree)

    def take(self) -> Sample:
        """Read everything once.

        Raises:
            DriverGoneError: This process can read GPUs no more.
        """
        self._sequence += 1
        sample = Sample(self._sequence, time.time_ns(), self._clock_ns())
        avoid = {subject for subject, until_ns in self._settings.avoid.items() if until_ns > sample.monotonic_ns}
        for name, read in (
            ("gpu", self._read_gpus),
            ("xid", self._read_xids),
            ("rdma", self._read_rdma),
            ("affinity", self._read_affinities),
            ("net", self._read_nets),
            ("nfs", self._read_nfs),
            ("host", self._read_host),
        ):
            if name not in self._wanted:
                continue
            if name in avoid:
                sample.unavailable[name] = "set aside after a call that hung or crashed"
                continue
            self._announce(name, "begin")
            started_ns = self._clock_ns()
            problems = Problems(name)
            try:
                read(sample, problems, avoid)
            except OSError as error:
                sample.unavailable[name] = str(error)
                problems.add(error_kind(error), where=name, message=str(error))
            except (ValueError, ArithmeticError, LookupError) as error:
                # Nonsense that its reader did not foresee costs this collector alone.
                sample.unavailable[name] = repr(error)
                problems.add("invalid", where=name, message=repr(error))
            sample.durations_ns[name] = self._clock_ns() - started_ns
            sample.problems.extend(problems.found)
        self._announce("", IDLE)
        return sample

    def _read_gpus(self, sample: Sample, problems: Problems, avoid: set[str]) -> None:
        if self._nvml is None and not self._open_nvml(avoid, sample.monotonic_ns, problems):
            if self._no_driver:
                sample.absent["gpu"] = NO_DRIVER
            else:
                sample.unavailable["gpu"] = self._nvml_error
            return
        assert self._nvml is not None
        try:
            sample.gpus = self._nvml.read(problems, avoid)
        except NvmlFailure as failure:
            raise DriverGoneError(str(failure)) from failure

    def _open_nvml(self, avoid: set[str], now_ns: int, problems: Problems) -> bool:
        if now_ns < self._nvml_retry_ns:
            return False
        self._nvml_retry_ns = now_ns + _REOPEN_NS
        self._no_driver = False
        library = NvmlLibrary(announce=self._announce_nvml, library_path=self._settings.nvml_library)
        probe = NvmlProbe(
            library,
            self._tree,
            slow_every_ns=self._settings.slow_interval_ns,
            with_gpm="gpm" in self._wanted,
            with_nvlink="nvlink" in self._wanted,
            clock_ns=self._clock_ns,
        )
        try:
            probe.open(avoid)
        except NvmlFailure as failure:
            self._nvml_error = str(failure)
            # A node without GPUs is no fault; anything else is.
            if failure.name not in {"library_not_found", "driver_not_loaded"}:
                problems.add(failure.name, where="nvmlInit", message=str(failure))
            elif self._settings.nvml_library is None:
                self._no_driver = not has_nvidia_traces(self._tree)
            return False
        except ScopeError as error:
            self._nvml_error = str(error)
            problems.add("library", where="nvmlInit", message=str(error))
            return False
        if not probe.identities:
            # A driver that is still loading, perhaps: NVML looks for GPUs only when it is initialised.
            self._nvml_error = "NVML finds no GPU"
            probe.close()
            return False
        self._nvml = probe
        return True

    def _announce_nvml(self, gpu: str, call: str) -> None:
        # Before a GPU is known, the whole collector is what hangs.
        self._announce(gpu or "gpu", call)

    def _read_xids(self, sample: Sample, problems: Problems, avoid: set[str]) -> None:
        if not self._kernel_log_tried:
            self._kernel_log_tried = True
            log = KernelLog(self._tree)
            try:
                log.open()
                self._kernel_log = log
            except OSError as error:
                problems.add_os_error(error, where="/dev/kmsg")
        if self._kernel_log is not None:
            sample.xids.extend(self._kernel_log.read(problems))
        if self._nvml is not None and "gpu" not in avoid:
            sample.xids.extend(self._nvml.read_events(problems, sample.time_ns))

    def _read_rdma(self, sample: Sample, problems: Problems, avoid: set[str]) -> None:
        sample.rdma = self._rdma.read(problems, lambda device: self._touch(device, "counters", avoid))

    def _read_affinities(self, sample: Sample, problems: Problems, avoid: set[str]) -> None:
        del problems, avoid
        if self._nvml is not None:
            sample.affinities = read_affinities(self._tree, self._nvml.identities)

    def _read_nets(self, sample: Sample, problems: Problems, avoid: set[str]) -> None:
        sample.nets = self._net.read(problems, lambda device: self._touch(device, "statistics", avoid))

    def _read_nfs(self, sample: Sample, problems: Problems, avoid: set[str]) -> None:
        del avoid
        sample.nfs = read_nfs_mounts(self._tree, problems)

    def _read_host(self, sample: Sample, problems: Problems, avoid: set[str]) -> None:
        del avoid
        sample.host = read_host(self._tree, problems)

    def _touch(self, subject: str, call: str, avoid: set[str]) -> bool:
        """Announce a device and return whether it may be touched."""
        if subject in avoid:
            return False
        self._announce(subject, call)
        return True


def encode(sample: Sample) -> bytes:
    """Return a sample as it goes through the pipe.

    A figure beyond 64 bits, which no counter can be, is left out and counted; a name that is no UTF-8 is mended.
    """
    try:
        body = msgspec.msgpack.encode(sample)
    except (OverflowError, UnicodeEncodeError):
        body = msgspec.msgpack.encode(repair(sample))
    return LENGTH.pack(len(body)) + body


def run(settings: SamplerSettings) -> int:
    """Sample until the server is gone.

    Returns:
        The exit status of the process.
    """
    page = SharedPage(settings.page)
    sampler = Sampler(settings, page.announce)
    next_ns = time.monotonic_ns()
    while True:
        try:
            sample = sampler.take()
        except DriverGoneError:
            return EXIT_DRIVER_GONE
        try:
            _write(encode(sample))
        except BrokenPipeError:
            return 0
        next_ns = max(next_ns + settings.interval_ns, time.monotonic_ns())
        time.sleep(max(0, next_ns - time.monotonic_ns()) / NS_PER_S)


def _write(data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(1, view) :]


def main() -> int:
    """Run with the settings that stand, as JSON, in the only argument."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # The server ends this process, or closes the pipe; a signal to the whole group must not come first.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    settings = msgspec.json.decode(sys.argv[1], type=SamplerSettings)
    if settings.parent:
        end_with(settings.parent)
    return run(settings)


def end_with(parent: int) -> None:
    """Let the kernel kill this process with its parent: a call that hangs never sees that the pipe is closed."""
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:
        sys.exit(0)


if __name__ == "__main__":
    sys.exit(main())
