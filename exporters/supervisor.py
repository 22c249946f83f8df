"""Keeps one sampling process alive, kills it when a call hangs, and never lets one bad GPU take the others along.

The rules: a call that lasts longer than the deadline costs the process its life. Its successor starts only when it is
reaped, and sets the GPU or collector that hung aside, each time for twice as long; so it does with one whose call
crashed it. A process that cannot be killed (the
kernel holds it) has no successor: the last sample grows old and the collectors go down.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import IO, Final, NamedTuple, Protocol

import msgspec

from exporters.wire import EXIT_DRIVER_GONE, IDLE, LENGTH, MAX_SAMPLE_BYTES, Sample, SamplerSettings, SharedPage
from scope.units import NS_PER_S

log = logging.getLogger("scope.exporter")

FIRST_QUARANTINE_NS: Final = 60 * NS_PER_S
MAX_QUARANTINE_NS: Final = 3_600 * NS_PER_S
_FORGIVEN_AFTER: Final = 2
_FIRST_RESTART_NS: Final = NS_PER_S
_MAX_RESTART_NS: Final = 60 * NS_PER_S
_FAULTS: Final = frozenset({signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGFPE, signal.SIGILL})
"""What a process brings on itself; other signals come from outside, and nothing that it read is to blame."""


class Process(Protocol):
    """A sampling process, as the supervisor needs it."""

    def kill(self) -> None:
        """Send SIGKILL."""

    def poll(self) -> int | None:
        """Return the exit status once the process is reaped, else None."""


Launch = Callable[[SamplerSettings, Callable[[bytes], None]], Process]
"""Starts a process; the function is called, on a thread of its own, with each sample's bytes."""


class Quarantine(NamedTuple):
    """A GPU or collector that is set aside.

    Attributes:
        subject: Its index, UUID or name.
        call: The call that hung.
        until_ns: When it may be tried again (monotonic).
        length_ns: How long it was set aside this time.
    """

    subject: str
    call: str
    until_ns: int
    length_ns: int


class Supervisor:
    """Owns the sampling process.

    Args:
        settings: What the process is told; its `avoid` and `page` are filled in here.
        deliver: Called with each sample, on a thread of the supervisor.
        deadline_ns: How long one call may take.
        launch: Starts the process.
        clock_ns: A monotonic clock, the same in all processes of the node.
    """

    def __init__(
        self,
        settings: SamplerSettings,
        deliver: Callable[[Sample], None],
        *,
        deadline_ns: int = 10 * NS_PER_S,
        launch: Launch | None = None,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._settings = settings
        self._deliver = deliver
        self._deadline_ns = deadline_ns
        self._launch = launch or launch_process
        self._clock_ns = clock_ns
        self.page = SharedPage()
        self.quarantines: dict[str, Quarantine] = {}
        self.restarts: dict[str, int] = {"hang": 0, "exit": 0, "driver": 0}
        self.stuck = False
        self._process: Process | None = None
        self._killed = False
        self._start_ns = 0
        self._restart_delay_ns = _FIRST_RESTART_NS
        self._started_ns = 0
        self._last_sample_ns = 0
        self._decoder = msgspec.msgpack.Decoder(Sample)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="supervisor", daemon=True)

    def start(self) -> None:
        """Begin to sample."""
        self.tick()
        self._thread.start()

    def stop(self, *, wait_s: float = 2) -> None:
        """Kill the process; one that does not die is left behind."""
        self._stopping.set()
        self._thread.join(wait_s)
        process = self._process
        if process is None:
            return
        process.kill()
        deadline = time.monotonic() + wait_s
        while process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)

    def tick(self) -> None:
        """Look once at the process and do what the rules ask for."""
        now_ns = self._clock_ns()
        if self._process is None:
            if now_ns >= self._start_ns:
                self._begin(now_ns)
            return
        status = self._process.poll()
        if status is not None:
            self._ended(status, now_ns)
        elif self._killed:
            if not self.stuck:
                log.error("the sampling process was killed and does not die; hardware is not read until it does")
            self.stuck = True
        elif hung := self._hung(now_ns):
            self._kill(*hung, now_ns)

    def _watch(self) -> None:
        pause = min(max(self._deadline_ns / NS_PER_S / 10, 0.02), 1)
        while not self._stopping.wait(pause):
            self.tick()

    def _begin(self, now_ns: int) -> None:
        self.page.clear()
        self._killed = False
        settings = msgspec.structs.replace(
            self._settings,
            avoid={subject: held.until_ns for subject, held in self.quarantines.items() if held.until_ns > now_ns},
            page=self.page.descriptor,
            parent=os.getpid(),
        )
        self._started_ns = self._last_sample_ns = now_ns
        try:
            self._process = self._launch(settings, self._receive)
        except OSError as error:
            # No descriptor, process or memory is left just now; the server stays and tries again.
            log.error("the sampling process could not be started: %s", error)  # noqa: TRY400 - a line, no traceback
            self.restarts["exit"] += 1
            self._restart_later(now_ns)

    def _hung(self, now_ns: int) -> tuple[str, str] | None:
        """Return (subject, call) of what lasts too long."""
        announced = self.page.read()
        if announced is None:
            return None
        if announced.since_ns and announced.call != IDLE:
            late = now_ns - announced.since_ns > self._deadline_ns
            return (announced.subject, announced.call) if late else None
        # Between samples, or not yet begun: no call to blame, but it must come back.
        quiet_ns = now_ns - max(self._last_sample_ns, announced.since_ns)
        return (
            ("", "no sample") if quiet_ns > self._deadline_ns + 2 * self._settings.interval_ns + 10 * NS_PER_S else None
        )

    def _kill(self, subject: str, call: str, now_ns: int) -> None:
        if not subject:
            log.error("the sampling process gave no sample for too long; it is replaced")
        else:
            log.error("%s of %s did not return within %.3g s", call, subject, self._deadline_ns / NS_PER_S)
            self._set_aside(subject, call, now_ns)
        self.restarts["hang"] += 1
        self._killed = True
        assert self._process is not None
        self._process.kill()

    def _set_aside(self, subject: str, call: str, now_ns: int) -> None:
        before = self.quarantines.get(subject)
        length_ns = min(before.length_ns * 2, MAX_QUARANTINE_NS) if before else FIRST_QUARANTINE_NS
        self.quarantines[subject] = Quarantine(subject, call, now_ns + length_ns, length_ns)

    def _ended(self, status: int, now_ns: int) -> None:
        self._process = None
        self.stuck = False
        if self._killed:
            self._start_ns = now_ns
            return
        if status == EXIT_DRIVER_GONE:
            self.restarts["driver"] += 1
        else:
            self.restarts["exit"] += 1
            log.error("the sampling process ended with status %d", status)
            announced = self.page.read()
            if (status > 0 or -status in _FAULTS) and announced is not None and announced.subject:
                log.error("it ended within %s of %s, which is set aside", announced.call, announced.subject)
                self._set_aside(announced.subject, announced.call, now_ns)
        if now_ns - self._started_ns > _MAX_RESTART_NS:
            self._restart_delay_ns = _FIRST_RESTART_NS
        self._restart_later(now_ns)

    def _restart_later(self, now_ns: int) -> None:
        self._start_ns = now_ns + self._restart_delay_ns
        self._restart_delay_ns = min(self._restart_delay_ns * 2, _MAX_RESTART_NS)

    def _receive(self, data: bytes) -> None:
        try:
            sample = self._decoder.decode(data)
        except (msgspec.DecodeError, msgspec.ValidationError) as error:
            log.warning("a sample could not be read: %s", error)
            return
        now_ns = self._last_sample_ns = self._clock_ns()
        for subject, held in list(self.quarantines.items()):
            # Whoever answered for as long as it was set aside is forgiven.
            if now_ns > held.until_ns + _FORGIVEN_AFTER * held.length_ns:
                del self.quarantines[subject]
        self._deliver(sample)


class _Popen:
    """A real process."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def kill(self) -> None:
        if self._process.poll() is None:
            os.kill(self._process.pid, signal.SIGKILL)

    def poll(self) -> int | None:
        return self._process.poll()


def launch_process(settings: SamplerSettings, receive: Callable[[bytes], None]) -> Process:
    """Start the sampling process and a thread that takes its samples."""
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "exporters.sampler", msgspec.json.encode(settings).decode()],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        pass_fds=(settings.page,),
    )
    assert process.stdout is not None
    threading.Thread(target=_pump, args=(process.stdout, receive), name="samples", daemon=True).start()
    return _Popen(process)


def _pump(stream: IO[bytes], receive: Callable[[bytes], None]) -> None:
    with stream:
        while len(head := stream.read(LENGTH.size)) == LENGTH.size:
            length = LENGTH.unpack(head)[0]
            if length > MAX_SAMPLE_BYTES:
                log.error("a sample of %d bytes is refused", length)
                return
            receive(stream.read(length))
