"""Run a command as its caller would have: same terminal, process group, signals and exit code.

What the terminal (Ctrl-C) or somebody sends to the whole group reaches the command by itself; what is sent to this
process alone is passed on.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from typing import TYPE_CHECKING, Final, NamedTuple

from scope.errors import RunError
from scope.run.witness import GroupWitness

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping, Sequence

_PASSED_ON: Final = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGCONT,
)
_ENDING: Final = frozenset((signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT))
"""Signals that ask a command to end."""
_FROM_KERNEL: Final = 0x80
"""si_code of a signal that the terminal sent to the whole process group."""
_TICK_S: Final = 1.0
_NOT_FOUND: Final = 127
_NOT_EXECUTABLE: Final = 126
"""What shells end with where a command cannot be started."""


class Ending(NamedTuple):
    """How the command ended, the last signal to end that it, or this process for it, was sent, and its process id."""

    returncode: int
    signal: int | None
    pid: int | None = None


def run_command(command: Sequence[str], environment: Mapping[str, str], *, children_ignored: bool) -> Ending:
    """Run a command to its end, and pass on to it the signals that this process alone was sent.

    Args:
        command: The command and its arguments.
        environment: Its environment, whole.
        children_ignored: It begins with SIGCHLD ignored, as `waiting_for_children` found it.

    Raises:
        RunError: It cannot be started; the exit code is what a shell would end with.
    """
    watched = {*_PASSED_ON, signal.SIGCHLD}
    old_mask = signal.pthread_sigmask(signal.SIG_BLOCK, watched)

    def give_back_signals() -> None:
        if children_ignored:
            signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_SETMASK, old_mask)

    try:
        with contextlib.closing(GroupWitness()) as witness:
            child = _start(command, environment, give_back_signals)
            with _ticking():
                sent = _wait(child, watched, witness)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, old_mask)
    by = -child.returncode if -child.returncode in _ENDING else sent
    return Ending(child.returncode, by, child.pid)


def _start(
    command: Sequence[str], environment: Mapping[str, str], before_exec: Callable[[], None]
) -> subprocess.Popen[bytes]:
    try:
        # What the caller opened for the command is its own, as `<(...)` of a shell; ours are all closed on exec.
        return subprocess.Popen(list(command), env=dict(environment), preexec_fn=before_exec, close_fds=False)
    except OSError as error:
        message = f"{command[0]}: cannot be started ({error.strerror})"
        problem = RunError(message)
        problem.exit_code = _NOT_FOUND if isinstance(error, FileNotFoundError) else _NOT_EXECUTABLE
        raise problem from error


def _wait(child: subprocess.Popen[bytes], watched: set[signal.Signals], witness: GroupWitness) -> int | None:
    """Pass signals on until the command has ended; return the last one that asked it to end."""
    ended_by: int | None = None
    while child.poll() is None:
        info = signal.sigwaitinfo(watched)
        if info.si_signo == signal.SIGCHLD:
            if info.si_pid == os.getpid() and signal.sigpending().isdisjoint(watched):
                witness.forget_old()
            continue
        if info.si_signo in _ENDING:
            ended_by = info.si_signo
        has_it = witness.saw(info.si_signo) and _is_in_our_group(child.pid)
        if info.si_code != _FROM_KERNEL and not has_it:
            with contextlib.suppress(ProcessLookupError):
                child.send_signal(info.si_signo)
    return ended_by


@contextlib.contextmanager
def _ticking() -> Generator[None]:
    """Send this process a SIGCHLD, which asks for nothing but a look around, about once a second.

    With it whoever waits for signals needs no deadline: `signal.sigtimedwait` of CPython 3.11 gives memory that nobody
    wrote for a signal when its process is stopped and goes on after the deadline.
    """
    over = threading.Event()

    def tick() -> None:
        while not over.wait(_TICK_S):
            os.kill(os.getpid(), signal.SIGCHLD)

    ticker = threading.Thread(target=tick, daemon=True)
    with contextlib.suppress(RuntimeError):  # no thread can be started: the witness merely forgets nothing
        ticker.start()
    try:
        yield
    finally:
        over.set()
        if ticker.ident is not None:
            ticker.join()


def _is_in_our_group(pid: int) -> bool:
    try:
        return os.getpgid(pid) == os.getpgrp()
    except ProcessLookupError:
        return False


@contextlib.contextmanager
def waiting_for_children() -> Generator[bool]:
    """Take the ends of our children, and give whether whoever started us ignores them, as his command then shall.

    Where SIGCHLD is ignored the kernel drops how a child ended, and every child seems to have ended well.
    """
    is_ignored = signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN
    if not is_ignored or threading.current_thread() is not threading.main_thread():
        yield is_ignored
        return
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        yield True
    finally:
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
