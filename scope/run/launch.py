"""`scope run`: starts a command whose ranks record themselves, publishes beside it, and passes on its ending.

The command keeps its terminal, its process group, its exit code and its signals. What the terminal (Ctrl-C) or
somebody sends to the whole group reaches the command by itself; what is sent to `scope run` alone is passed on.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from scope.errors import RunError, UsageError
from scope.run import identity, paths
from scope.run.alive import read_start_ticks
from scope.run.reader import read_rank_info
from scope.run.spawned import has_no_step
from scope.run.windows import read_capture
from scope.run.witness import GroupWitness

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping, Sequence

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
_PUBLISH_END_S: Final = 20.0
_MAX_PROBLEMS: Final = 5
_LEFT: Final = 76
"""`scope.run.publish.EXIT_LEFT`; that module is a process of its own."""
_NOT_FOUND: Final = 127
_NOT_EXECUTABLE: Final = 126
"""What shells end with where a command cannot be started."""


@dataclass(frozen=True, kw_only=True)
class LaunchPlan:
    """What `scope run` was asked for.

    Attributes:
        command: The command and its arguments.
        run_dir: Run directory; `runs/RUN_ID` when absent.
        run_id: Name of the run.
        spool: Folder for this node's spools; in memory when absent.
        tags: Labels of the run.
        max_run_bytes: Budget of a rank.
        variables: Further variables for the ranks (`SCOPE_CAPTURE...`).
    """

    command: Sequence[str]
    run_dir: Path | None = None
    run_id: str | None = None
    spool: Path | None = None
    tags: Mapping[str, str] = field(default_factory=dict[str, str])
    max_run_bytes: int = 256 * 2**20
    variables: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, kw_only=True)
class LaunchResult:
    """How it ended.

    Attributes:
        returncode: As `subprocess.Popen.returncode`: negative for a signal.
        run_dir: The run directory.
        num_ranks: Ranks that were recorded on this node, in the attempt that had most.
        unpublished: Spool that could not be published whole, or `None`.
        problems: What could not be published, and why.
        unrecorded: Why nothing could be recorded at all, or `None`.
        has_steps: Some rank of them has made a step.
        no_steps_reason: Why there are none, where a rank could tell.
        is_left: The command has left processes in the background, which no rank is of yet; they are recorded on.
    """

    returncode: int
    run_dir: Path
    num_ranks: int
    unpublished: Path | None
    problems: tuple[str, ...] = ()
    unrecorded: str | None = None
    has_steps: bool = True
    no_steps_reason: str | None = None
    is_left: bool = False


def launch(plan: LaunchPlan, environment: Mapping[str, str]) -> LaunchResult:
    """Run the command, and return when it has ended.

    Raises:
        UsageError: There is no command, the run id cannot be the name of a folder, or windows are asked for wrongly.
        RunError: The spool that was asked for cannot be made, or the command cannot be started.
    """
    if not plan.command:
        message = "there is no command; write it after two dashes: scope run -- torchrun train.py"
        raise UsageError(message)
    with _waiting_for_children() as children_ignored:
        return _launch(plan, environment, children_ignored=children_ignored)


def find_run_dir(plan: LaunchPlan) -> Path | None:
    """Return the run directory that a plan names, by itself or by the id of its run; None where it names none.

    Raises:
        UsageError: The run id cannot be the name of a folder.
    """
    if plan.run_dir is None and not plan.run_id:
        return None
    return (plan.run_dir or _default_run_dir(paths.check_run_id(plan.run_id or ""))).absolute()


def _default_run_dir(run_id: str) -> Path:
    return Path("runs") / run_id


@contextlib.contextmanager
def _waiting_for_children() -> Generator[bool]:
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


def _launch(plan: LaunchPlan, environment: Mapping[str, str], *, children_ignored: bool) -> LaunchResult:
    read_capture({**environment, **plan.variables})
    run_id, source = identity.choose_run_id(environment, plan.run_id)
    if source == "host":
        run_id = f"{run_id}-{os.getpid()}"  # two runs may begin in one second
    run_dir = (plan.run_dir or _default_run_dir(run_id)).absolute()
    try:
        spool = _make_spool(plan, environment, run_id=run_id, source=source, run_dir=run_dir)
    except RunError as error:
        if plan.spool is not None:
            raise  # a mistake of whoever named it, who is told before the job begins
        ending = _run_command(plan.command, environment, children_ignored=children_ignored)
        return LaunchResult(
            returncode=ending.returncode, run_dir=run_dir, num_ranks=0, unpublished=None, unrecorded=str(error)
        )
    paths.register_spool(
        paths.Registration(
            run_id=run_id,
            spool=str(spool),
            run_dir=str(run_dir),
            launcher_pid=os.getpid(),
            launcher_start_ticks=read_start_ticks(os.getpid()),
        )
    )
    reserved = None
    if not paths.is_network_path(run_dir) and not identity.may_have_peers(environment, plan.command):
        reserved = identity.reserve_attempt(run_dir)
    with _Publisher(spool, run_dir, plan.max_run_bytes) as publisher:
        child_environment = build_environment(plan, environment, run_id=run_id, spool=spool, run_dir=run_dir)
        if reserved is not None:
            child_environment[identity.FIRST_ATTEMPT] = str(reserved)
        try:
            ending = _run_command(plan.command, child_environment, children_ignored=children_ignored)
        except RunError as error:
            if publisher.finish(_Ending(error.exit_code, None)) and reserved is not None:
                identity.release_attempt(run_dir, reserved)
            raise
        num_ranks = max((len(paths.list_ranks(spool, attempt)) for attempt in paths.list_attempts(spool)), default=0)
        has_steps = _has_steps(spool)
        no_steps_reason = None if has_steps else _read_why_no_steps(spool)
        published = publisher.finish(ending)
    if published and reserved is not None:
        identity.release_attempt(run_dir, reserved)  # what was recorded stands there now
    return LaunchResult(
        returncode=ending.returncode,
        run_dir=run_dir,
        num_ranks=num_ranks,
        unpublished=None if published else spool,
        problems=tuple(publisher.problems),
        has_steps=has_steps,
        no_steps_reason=no_steps_reason,
        is_left=publisher.is_left,
    )


def _has_steps(spool: Path) -> bool:
    """Return whether a rank in a spool has made a step, or may have."""
    for attempt in paths.list_attempts(spool):
        for rank in paths.list_ranks(spool, attempt):
            try:
                if not has_no_step(paths.rank_folder(spool, attempt, rank)):
                    return True
            except RunError:
                return True
    return False


def _read_why_no_steps(spool: Path) -> str | None:
    """Return what the first rank in a spool that could tell says of why it made no step."""
    for attempt in paths.list_attempts(spool):
        for rank in paths.list_ranks(spool, attempt):
            with contextlib.suppress(RunError):
                why = read_rank_info(paths.rank_folder(spool, attempt, rank)).absent.get("steps")
                if why is not None:
                    return why
    return None


def _make_spool(plan: LaunchPlan, environment: Mapping[str, str], *, run_id: str, source: str, run_dir: Path) -> Path:
    """Make the folder that ranks write to; on disk where memory has no room."""
    name = run_id if source == "host" else f"{run_id}-{os.getpid()}"
    chosen = plan.spool or paths.default_spool(dict(environment))
    problems: list[str] = []
    for choose in (lambda: chosen, paths.disk_spool)[: 1 if plan.spool is not None else 2]:
        spool = chosen
        try:
            spool = choose().absolute() / name
            identity.write_run_info(spool, run_id=run_id, source=source, tags=plan.tags, run_dir=run_dir)
        except OSError as error:
            problems.append(f"{spool}: cannot be written ({error.strerror})")
        else:
            return spool
    message = "; ".join(problems) + "; name another folder with --spool"
    raise RunError(message)


def build_environment(
    plan: LaunchPlan, environment: Mapping[str, str], *, run_id: str, spool: Path, run_dir: Path
) -> dict[str, str]:
    """Return the environment of the command: ours first on `PYTHONPATH`, the rest as it was."""
    launcher = Path(__file__).parent.parent / "record" / "launcher"
    inherited = environment.get("PYTHONPATH")
    attempts = [] if paths.is_network_path(run_dir) else paths.list_attempts(run_dir)
    return {
        **environment,
        **plan.variables,
        "PYTHONPATH": f"{launcher}{os.pathsep}{inherited}" if inherited else str(launcher),
        identity.RUN_ID: run_id,
        identity.RUN_DIR: str(run_dir),
        identity.SPOOL_RUN: str(spool),
        identity.FIRST_ATTEMPT: str(attempts[-1] + 1 if attempts else 0),
        identity.PARENT_PID: str(os.getpid()),
        identity.MAX_RUN_BYTES: str(plan.max_run_bytes),
    }


class _Ending(NamedTuple):
    """How the command ended, the last signal to end that it, or this process for it, was sent, and its process id."""

    returncode: int
    signal: int | None
    pid: int | None = None


def _run_command(command: Sequence[str], environment: Mapping[str, str], *, children_ignored: bool) -> _Ending:
    ended_by: int | None = None
    watched = {*_PASSED_ON, signal.SIGCHLD}
    old_mask = signal.pthread_sigmask(signal.SIG_BLOCK, watched)

    def give_back_signals() -> None:
        if children_ignored:
            signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_SETMASK, old_mask)

    witness = GroupWitness()
    try:
        # What the caller opened for the command is its own, as `<(...)` of a shell; ours are all closed on exec.
        child = subprocess.Popen(list(command), env=dict(environment), preexec_fn=give_back_signals, close_fds=False)
    except OSError as error:
        witness.close()
        signal.pthread_sigmask(signal.SIG_SETMASK, old_mask)
        message = f"{command[0]}: cannot be started ({error.strerror})"
        problem = RunError(message)
        problem.exit_code = _NOT_FOUND if isinstance(error, FileNotFoundError) else _NOT_EXECUTABLE
        raise problem from error
    try:
        with _ticking():
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
    finally:
        witness.close()
        signal.pthread_sigmask(signal.SIG_SETMASK, old_mask)
    by = -child.returncode if -child.returncode in _ENDING else ended_by
    return _Ending(child.returncode, by, child.pid)


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


class _Publisher:
    """The publishing process; closing its standard input asks it for a last round."""

    def __init__(self, spool: Path, run_dir: Path, max_run_bytes: int) -> None:
        self._command = [
            sys.executable,
            "-P",
            "-m",
            "scope.run.publish",
            "--spool",
            str(spool),
            "--run-dir",
            str(run_dir),
        ]
        self._command += ["--max-run-bytes", str(max_run_bytes), "--launched"]
        self.problems: list[str] = []
        self.is_left = False
        self._process = self._start()

    def __enter__(self) -> _Publisher:
        return self

    def __exit__(self, *error: object) -> None:
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()

    def finish(self, ending: _Ending) -> bool:
        """Wait for the last round; return whether everything was published. A process that hangs is left behind.

        Args:
            ending: How the command ended, which ranks that a signal ended, or that never were, could not tell.
        """
        if self._process is None or self._process.poll() is not None:
            # Somebody killed it, or there was no room for it; what is left is published now.
            self._process = self._start()
        process = self._process
        if process is None:
            return False
        if process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                known = (ending.signal, ending.returncode, ending.pid)
                process.stdin.write(b"".join(b"\n" if each is None else b"%d\n" % each for each in known))
                process.stdin.flush()
            process.stdin.close()
        try:
            status = process.wait(timeout=_PUBLISH_END_S)
        except subprocess.TimeoutExpired:
            return False
        if process.stderr is not None:
            with process.stderr:
                said = process.stderr.read()
            self.problems = said.decode(errors="replace").splitlines()[:_MAX_PROBLEMS]
        self.is_left = status == _LEFT
        return status == 0

    def _start(self) -> subprocess.Popen[bytes] | None:
        """Start the process; the command runs all the same where it cannot be, and is told of at its end."""
        try:
            return subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,  # not ours: one that hangs would hold the other end of the caller's pipe
                start_new_session=True,
            )
        except OSError as error:
            self.problems = [f"{self._command[0]}: cannot be started to publish the run ({error.strerror})"]
            return None
