"""A command has each signal once, whether `scope run` alone or its whole process group was sent it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from scope.run.witness import GroupWitness

if TYPE_CHECKING:
    from collections.abc import Generator

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


def wait_until_taken(pid: int, number: int) -> None:
    """Return once no such signal pends for a process: a second one would be one with the first."""
    status = Path(f"/proc/{pid}/status")
    while int(status.read_text(encoding="utf-8").split("ShdPnd:")[1].split()[0], 16) & 1 << (number - 1):
        time.sleep(0.001)


@pytest.mark.parametrize("before", [pytest.param((), id="in our group"), pytest.param(("setsid",), id="in its own")])
def test_a_signal_to_the_group_comes_once_and_one_to_us_is_passed_on(tmp_path: Path, before: tuple[str, ...]) -> None:
    """By hand: three to the group and two to `scope run` alone, in turn, are five, in either group."""
    own = {"SCOPE_SPOOL": str(tmp_path / "spool"), "SCOPE_REGISTRY": str(tmp_path / "registry")}
    command = [sys.executable, "-P", "-m", "scope", "run", "--run-dir", str(tmp_path / "run"), "--"]
    outside = {name: value for name, value in os.environ.items() if not name.startswith(("SCOPE_", "SLURM_"))}
    started = subprocess.Popen(
        [*command, *before, sys.executable, "-c", COUNTING],
        env={**outside, **own},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    with started:
        assert started.stdout is not None
        try:
            assert started.stdout.readline() == "ready\n"
            for number, send in enumerate((os.killpg, os.kill, os.killpg, os.kill, os.killpg), 1):
                send(started.pid, signal.SIGINT)
                assert started.stdout.readline() == f"{number}\n"
                wait_until_taken(started.pid, signal.SIGINT)
            os.kill(started.pid, signal.SIGUSR1)
            assert started.stdout.readline() == "all 5\n"
            assert started.wait(60) == 0
        finally:
            started.terminate()


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
def test_a_witness_that_cannot_be_looked_at_saw_nothing(tmp_path: Path) -> None:
    """Without a table of processes a signal counts as sent to us alone, and is passed on."""
    witness = GroupWitness(proc=tmp_path)
    try:
        os.kill(pid_of(witness), signal.SIGUSR1)
        assert not witness.saw(signal.SIGUSR1)
    finally:
        witness.close()
