"""Run a command as its caller would have: same terminal, process group, signals and exit code.

What the terminal (Ctrl-C) or somebody sends to the whole group reaches the command by itself; what is sent to this
process alone is passed on. Where the command stops because of a signal to stop, this process does too, for the shell
that waits for it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from scope.errors import RunError
from scope.run.witness import GroupWitness
from scope.units import NS_PER_S

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping, Sequence

_NOT_PASSED: Final = frozenset(
    (
        signal.SIGKILL,
        signal.SIGSTOP,  # nobody can hold these two back
        signal.SIGCHLD,  # told of our own children
        signal.SIGBUS,  # and these are our own faults
        signal.SIGFPE,
        signal.SIGILL,
        signal.SIGSEGV,
        signal.SIGSYS,
        signal.SIGTRAP,
    )
)
_PASSED_ON: Final = frozenset(signal.valid_signals()) - _NOT_PASSED
_ENDING: Final = frozenset((signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT))
"""Signals that ask a command to end."""
_STOPPING: Final = frozenset((signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU))
"""Signals that ask a command to stop until SIGCONT."""
_OF_TIMERS: Final = frozenset((signal.SIGALRM, signal.SIGVTALRM, signal.SIGPROF))
"""Signals of timers, which whoever became this program may have set for what it runs."""
_FROM_KERNEL: Final = 0x80
"""si_code of a signal that the terminal sent to the whole process group, or that is of this process alone."""
_STOPS_WITHIN_S: Final = 10.0
"""How long a command may take to stop, once it was asked to, for this process to follow it."""
_TAKEN_BY_PYTHON: Final = (signal.SIGPIPE, signal.SIGXFSZ)
"""Signals that every Python ignores, so that it does not know any more whether its caller did."""
_LEAVING_SIGNALS: Final = frozenset(("ash", "bash", "busybox", "dash", "flock", "ksh", "sh", "timeout", "zsh"))
"""Programs whose commands ignore of these what they ignore themselves; others may have changed it for themselves."""
_IGNORED: Final = "SigIgn:"
_TICK_S: Final = 1.0
_SHELL: Final = "/bin/sh"
"""What runs a file that is no program and names no interpreter, as in shells and in `execvp` of C."""
_LOOKED_AT_BYTES: Final = 128
_NOT_FOUND: Final = 127
_NOT_EXECUTABLE: Final = 126
"""What shells end with where a command cannot be started."""


class Ending(NamedTuple):
    """How the command ended.

    Attributes:
        returncode: As `subprocess.Popen.returncode`: below 0 for a signal.
        signal: The signal to end that ended it, else the last one that it, or this process for it, was sent.
        pid: Its process id; None where it could not be started.
        signal_ns: When it was sent that signal, or ended by it, by the monotonic clock.
    """

    returncode: int
    signal: int | None
    pid: int | None = None
    signal_ns: int | None = None


class _Asked(NamedTuple):
    """A signal that the command was sent, and when, by the monotonic clock."""

    signal: int
    time_ns: int


def run_command(command: Sequence[str], environment: Mapping[str, str], *, children_ignored: bool) -> Ending:
    """Run a command to its end, and pass on to it the signals that this process alone was sent.

    From its start on they are held back from this process, but for those that stop it, and stay so behind the
    command's end, which they shall not change any more; `giving_back_signals` gives them back.

    Args:
        command: The command and its arguments.
        environment: Its environment, whole.
        children_ignored: It begins with SIGCHLD ignored, as `waiting_for_children` found it.

    Raises:
        RunError: It cannot be started; the exit code is what a shell would end with.
    """
    watched = {*_PASSED_ON, signal.SIGCHLD}
    ignored = [*_find_ignored_by_caller(), *([signal.SIGCHLD] if children_ignored else [])]
    old_mask = signal.pthread_sigmask(signal.SIG_BLOCK, watched)
    later_mask = old_mask

    def give_back_signals() -> None:
        for number in ignored:
            signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_SETMASK, old_mask)

    try:
        with contextlib.closing(GroupWitness()) as witness:
            child = _start(command, environment, give_back_signals)
            with _ticking():
                asked = _wait(child, watched, witness)
        later_mask = old_mask | (_PASSED_ON - _STOPPING)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, later_mask)
    if -child.returncode in _ENDING:
        asked = _Asked(-child.returncode, time.monotonic_ns())
    number, time_ns = asked or (None, None)
    return Ending(child.returncode, number, child.pid, time_ns)


@contextlib.contextmanager
def giving_back_signals() -> Generator[None]:
    """Give back, at the end, the signals that `run_command` holds back; what came behind the command is forgotten."""
    old_mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        yield
    finally:
        while held := (signal.sigpending() & _PASSED_ON) - old_mask:
            signal.sigwait(held | {signal.SIGCONT})  # which takes signals to stop away
        signal.pthread_sigmask(signal.SIG_SETMASK, old_mask)


def end_by_signal(number: int) -> None:
    """End this process by a signal, whether it is held back or not; return where nothing comes of it.

    Args:
        number: The signal that ended the command.
    """
    if number not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})


def _find_ignored_by_caller(*, proc: Path = Path("/proc")) -> list[signal.Signals]:
    """Return which signals the caller, where it is a shell or such, ignores of those that Python takes for itself.

    Its command begins with them ignored, as `trap '' PIPE` has it.

    Args:
        proc: The table of processes.
    """
    caller = proc / str(os.getppid())
    with contextlib.suppress(OSError, ValueError):
        if (caller / "exe").readlink().name in _LEAVING_SIGNALS:
            status = (caller / "status").read_text(encoding="utf-8", errors="replace")
            ignored = int(status.split(_IGNORED)[1].split()[0], 16) if _IGNORED in status else 0
            return [number for number in _TAKEN_BY_PYTHON if ignored & 1 << (number - 1)]
    return []


def _start(
    command: Sequence[str], environment: Mapping[str, str], before_exec: Callable[[], None]
) -> subprocess.Popen[bytes]:
    def start(words: Sequence[str]) -> subprocess.Popen[bytes]:
        # What the caller opened for the command is its own, as `<(...)` of a shell; ours are all closed on exec.
        return subprocess.Popen(words, env=dict(environment), preexec_fn=before_exec, close_fds=False)

    try:
        try:
            return start(list(command))
        except OSError as error:
            script = _find_script(command[0], environment) if error.errno == errno.ENOEXEC else None
            if script is None:
                raise
            return start([_SHELL, script, *command[1:]])
    except OSError as error:
        message = f"{command[0] or repr('')}: cannot be started ({error.strerror})"
        problem = RunError(message)
        # No name at all is sought in every folder, each of which is found and is no program.
        is_unknown = isinstance(error, FileNotFoundError) or not command[0]
        problem.exit_code = _NOT_FOUND if is_unknown else _NOT_EXECUTABLE
        raise problem from error


def _find_script(name: str, environment: Mapping[str, str]) -> str | None:
    """Return the path of a command that the kernel cannot run where it may be a script for the shell: it is text."""
    path = shutil.which(name, path=os.pathsep.join(os.get_exec_path(environment)))
    if path is None:
        return None
    try:
        with Path(path).open("rb") as file:
            return None if b"\0" in file.read(_LOOKED_AT_BYTES) else path
    except OSError:
        return None


def _wait(child: subprocess.Popen[bytes], watched: set[signal.Signals], witness: GroupWitness) -> _Asked | None:
    """Pass signals on until the command has ended; return the last one that asked it to end."""
    end: _Asked | None = None
    stop: _Asked | None = None
    while child.poll() is None:
        info = signal.sigwaitinfo(watched)
        if info.si_signo == signal.SIGCHLD:
            if info.si_pid == os.getpid() and signal.sigpending().isdisjoint(watched):
                witness.forget_old()
        else:
            asked = _Asked(info.si_signo, time.monotonic_ns())
            if asked.signal in _ENDING:
                end = asked
            elif asked.signal in _STOPPING:
                stop = asked
            elif asked.signal == signal.SIGCONT:
                stop = None
            _pass_on(info, child, witness)
        if stop is not None and _has_stopped(child, stop):
            _stop_by(stop.signal)
            stop = None
    return end


def _pass_on(info: signal.struct_siginfo, child: subprocess.Popen[bytes], witness: GroupWitness) -> None:
    """Send the command a signal that has come to this process, unless it has it already or it is no one else's."""
    has_it = witness.saw(info.si_signo) and _is_in_our_group(child.pid)
    is_of_kernel = info.si_code == _FROM_KERNEL and info.si_signo not in _OF_TIMERS
    # The kernel tells a process in its own name that what it writes to is closed, or too long.
    if not has_it and not is_of_kernel and info.si_pid != os.getpid():
        with contextlib.suppress(ProcessLookupError):
            child.send_signal(info.si_signo)


def _has_stopped(child: subprocess.Popen[bytes], asked: _Asked) -> bool:
    """Return whether the command stands still, not too long after it was asked to: it may have let that be."""
    if time.monotonic_ns() - asked.time_ns > _STOPS_WITHIN_S * NS_PER_S:
        return False
    try:
        return os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return False


def _stop_by(number: int) -> None:
    """Stop this process by a signal that is held back; return once it goes on."""
    os.kill(os.getpid(), number)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    signal.pthread_sigmask(signal.SIG_BLOCK, {number})


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
