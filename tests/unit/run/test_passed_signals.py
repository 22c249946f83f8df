"""A command has each signal once, whether `scope run` alone or its whole process group was sent it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import IO, TYPE_CHECKING

import pytest

from scope.run.witness import GroupWitness

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

COUNTING = """
import signal
taken = {signal.SIGINT, signal.SIGUSR1}
signal.pthread_sigmask(signal.SIG_BLOCK, taken)
print("ready", flush=True)
count = 0
while signal.sigwait(taken) == signal.SIGINT:
    count += 1
    print(count, flush=True)
print("all", count, flush=True)
"""


NOTING = """
import signal
taken = {signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGUSR1}
signal.pthread_sigmask(signal.SIG_BLOCK, taken)
print("ready", flush=True)
seen = []
while (number := signal.sigwait(taken)) != signal.SIGUSR1:
    seen.append(number.name)
seen += [number.name for number in signal.sigpending()]
print(*sorted(seen), flush=True)
raise SystemExit(7)
"""


def wait_until_taken(pid: int, number: int) -> None:
    """Return once no such signal pends for a process: a second one would be one with the first."""
    status = Path(f"/proc/{pid}/status")
    deadline = time.monotonic() + 60
    while int(status.read_text(encoding="utf-8").split("ShdPnd:")[1].split()[0], 16) & 1 << (number - 1):
        assert time.monotonic() < deadline
        time.sleep(0.001)


@contextlib.contextmanager
def recorded(folder: Path, *command: str) -> Generator[tuple[subprocess.Popen[str], IO[str]]]:
    """Run a command under `scope run` in a group of its own, and give both and what it prints once it is ready."""
    own = {"SCOPE_SPOOL": str(folder / "spool"), "SCOPE_REGISTRY": str(folder / "registry")}
    outside = {name: value for name, value in os.environ.items() if not name.startswith(("SCOPE_", "SLURM_"))}
    started = subprocess.Popen(
        [sys.executable, "-P", "-m", "scope", "run", "--run-dir", str(folder / "run"), "--", *command],
        env={**outside, **own},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        process_group=0,  # in our session: the shell that has job control is there as well
    )
    with started:
        assert started.stdout is not None
        try:
            assert started.stdout.readline() == "ready\n"
            yield started, started.stdout
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(started.pid, signal.SIGKILL)


@pytest.mark.parametrize("before", [pytest.param((), id="in our group"), pytest.param(("setsid",), id="in its own")])
def test_a_signal_to_the_group_comes_once_and_one_to_us_is_passed_on(tmp_path: Path, before: tuple[str, ...]) -> None:
    """By hand: three to the group and two to `scope run` alone, in turn, are five, in either group."""
    with recorded(tmp_path, *before, sys.executable, "-c", COUNTING) as (started, printed):
        for number, send in enumerate((os.killpg, os.kill, os.killpg, os.kill, os.killpg), 1):
            send(started.pid, signal.SIGINT)
            assert printed.readline() == f"{number}\n"
            wait_until_taken(started.pid, signal.SIGINT)
        os.kill(started.pid, signal.SIGUSR1)
        assert printed.readline() == "all 5\n"
        assert started.wait(60) == 0


def test_signals_that_come_to_the_group_at_once_come_once_each(tmp_path: Path) -> None:
    """The witness is asked for one after the other, and remembers all of them."""
    with recorded(tmp_path, sys.executable, "-c", NOTING) as (started, printed):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            os.killpg(started.pid, number)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            wait_until_taken(started.pid, number)
        os.kill(started.pid, signal.SIGUSR1)
        assert printed.readline() == "SIGHUP SIGINT SIGTERM\n"
        assert started.wait(60) == 7


@pytest.mark.parametrize("send", [os.kill, os.killpg])
def test_a_run_that_was_stopped_goes_on(tmp_path: Path, send: Callable[[int, int], None]) -> None:
    """After longer than a wait for signals, alone or with its group, it passes signals and the exit code on as ever."""
    with recorded(tmp_path, sys.executable, "-c", NOTING) as (started, printed):
        for _ in range(2):
            send(started.pid, signal.SIGSTOP)
            time.sleep(1.3)
            send(started.pid, signal.SIGCONT)
            wait_until_taken(started.pid, signal.SIGCONT)
        os.kill(started.pid, signal.SIGTERM)
        wait_until_taken(started.pid, signal.SIGTERM)
        os.kill(started.pid, signal.SIGUSR1)
        assert printed.readline() == "SIGTERM\n"
        assert started.wait(60) == 7


TELLING = """
import signal, sys
taken = {int(number) for number in sys.argv[1:]}
signal.pthread_sigmask(signal.SIG_BLOCK, taken)
print("ready", flush=True)
for _ in sys.argv[1:]:
    print(int(signal.sigwait(taken)), flush=True)
"""
BEYOND = (
    signal.SIGABRT,
    signal.SIGALRM,
    signal.SIGIO,
    signal.SIGPIPE,
    signal.SIGPROF,
    signal.SIGPWR,
    signal.SIGTSTP,
    signal.SIGURG,
    signal.SIGVTALRM,
    signal.SIGWINCH,
    signal.SIGXCPU,
    signal.SIGXFSZ,
    signal.SIGRTMIN + 3,
    signal.SIGRTMAX,
)
"""What nobody thinks of first; schedulers warn with some of them, and `timeout -s` sends any."""


def test_every_signal_that_can_be_handled_is_passed_on(tmp_path: Path) -> None:
    """None of them ends `scope run` and leaves the command behind; the handlers of the command have them."""
    with recorded(tmp_path, sys.executable, "-c", TELLING, *(str(int(number)) for number in BEYOND)) as (
        started,
        printed,
    ):
        for number in BEYOND:
            os.kill(started.pid, number)
            assert printed.readline() == f"{int(number)}\n"
        assert started.wait(60) == 0


SLEEPING = "import time; print('ready', flush=True); time.sleep(100)"


@pytest.mark.parametrize("number", [signal.SIGXCPU, signal.SIGRTMIN])
def test_a_signal_that_ends_the_command_ends_us(tmp_path: Path, number: int) -> None:
    """Whoever waits for `scope run` sees the end that he would have seen of the command."""
    with recorded(tmp_path, sys.executable, "-c", SLEEPING) as (started, _):
        os.kill(started.pid, number)
        assert started.wait(60) == -number


@pytest.mark.parametrize("send", [os.kill, os.killpg])
def test_we_stop_where_the_command_stops(tmp_path: Path, send: Callable[[int, int], None]) -> None:
    """A shell sees the stop that it has asked for, and both go on."""
    with recorded(tmp_path, sys.executable, "-c", NOTING) as (started, printed):
        for _ in range(2):
            send(started.pid, signal.SIGTSTP)
            _, status = os.waitpid(started.pid, os.WUNTRACED)
            assert os.WIFSTOPPED(status)
            assert os.WSTOPSIG(status) == signal.SIGTSTP
            send(started.pid, signal.SIGCONT)
            wait_until_taken(started.pid, signal.SIGCONT)
        os.kill(started.pid, signal.SIGUSR1)
        assert printed.readline() == "\n"
        assert started.wait(60) == 7


def test_we_go_on_where_the_command_does(tmp_path: Path) -> None:
    """A command that does not stop when it is asked to is not left alone by `scope run`."""
    program = f"import signal; signal.signal(signal.SIGTSTP, signal.SIG_IGN){NOTING}"
    with recorded(tmp_path, sys.executable, "-c", program) as (started, printed):
        os.killpg(started.pid, signal.SIGTSTP)
        wait_until_taken(started.pid, signal.SIGTSTP)
        os.kill(started.pid, signal.SIGTERM)
        wait_until_taken(started.pid, signal.SIGTERM)
        os.kill(started.pid, signal.SIGUSR1)
        assert printed.readline() == "SIGTERM\n"
        assert started.wait(60) == 7


@pytest.fixture
def blocked() -> Generator[None]:
    """SIGUSR1 and SIGUSR2 are held back, as `scope run` holds back what it passes on."""
    old = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1, signal.SIGUSR2})
    yield
    signal.pthread_sigmask(signal.SIG_SETMASK, old)


def pid_of(witness: GroupWitness) -> int:
    """Return the process of a witness."""
    process = witness._process  # pyright: ignore[reportPrivateUsage]
    assert process is not None
    return process.pid


@pytest.mark.usefixtures("blocked")
def test_a_witness_tells_each_signal_once() -> None:
    """One that pends is told once, another one not at all; what pends since the last look is forgotten."""
    witness = GroupWitness()
    try:
        os.kill(pid_of(witness), signal.SIGUSR1)
        assert not witness.saw(signal.SIGUSR2)
        assert witness.saw(signal.SIGUSR1)
        assert not witness.saw(signal.SIGUSR1)
        os.kill(pid_of(witness), signal.SIGUSR1)
        witness.forget_old()
        witness.forget_old()
        assert not witness.saw(signal.SIGUSR1)
    finally:
        witness.close()
    assert not witness.saw(signal.SIGUSR1)


@pytest.mark.usefixtures("blocked")
def test_a_witness_remembers_what_else_came() -> None:
    """Two that came together are told once each; the second is forgotten when it is not asked for."""
    witness = GroupWitness()
    try:
        for number in (signal.SIGUSR1, signal.SIGUSR2):
            os.kill(pid_of(witness), number)
        assert witness.saw(signal.SIGUSR1)
        assert not witness.saw(signal.SIGUSR1)
        assert witness.saw(signal.SIGUSR2)
        assert not witness.saw(signal.SIGUSR2)
        for number in (signal.SIGUSR1, signal.SIGUSR2):
            os.kill(pid_of(witness), number)
        assert witness.saw(signal.SIGUSR1)
        witness.forget_old()
        os.kill(pid_of(witness), signal.SIGUSR1)
        witness.forget_old()
        assert not witness.saw(signal.SIGUSR2)
        assert witness.saw(signal.SIGUSR1)
    finally:
        witness.close()


@pytest.mark.usefixtures("blocked")
def test_a_witness_that_cannot_be_looked_at_saw_nothing(tmp_path: Path) -> None:
    """Without a table of processes a signal counts as sent to us alone, and is passed on."""
    witness = GroupWitness(proc=tmp_path)
    try:
        os.kill(pid_of(witness), signal.SIGUSR1)
        assert not witness.saw(signal.SIGUSR1)
    finally:
        witness.close()
