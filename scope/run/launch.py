"""`scope run`: starts a command whose ranks record themselves, publishes beside it, and passes on its ending.

The command keeps its terminal, its process group, its exit code and its signals. What the terminal (Ctrl-C) or
somebody sends to the whole group reaches the command by itself; what is sent to `scope run` alone is passed on.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from scope.errors import RunError, UsageError
from scope.run import identity, paths
from scope.run.alive import read_start_ticks
from scope.run.attempts import ask_for_attempt, choose_attempt, describe_launch
from scope.run.command import Ending, giving_back_signals, run_command, waiting_for_children
from scope.run.files import FOLDER_MODE, identify_folder
from scope.run.publisher import Publisher
from scope.run.reader import read_rank_info
from scope.run.removal import remove_run_files
from scope.run.spawned import has_no_step
from scope.run.windows import read_capture
from scope.units import parse_switch, parse_variable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


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


def launch(
    plan: LaunchPlan,
    environment: Mapping[str, str],
    *,
    is_last: bool = False,
    tell: Callable[[str], None] | None = None,
) -> LaunchResult:
    """Run the command, and return when it has ended.

    Args:
        plan: What was asked for.
        environment: The environment of the command, before ours is added.
        is_last: This process ends next, as the command did: signals that the command would have had stay held back.
        tell: Told, before the command begins, what of its recording is not as usual: a sentence without a full stop.

    Raises:
        UsageError: There is no command, the run id cannot be the name of a folder, or windows are asked for wrongly.
        RunError: The spool that was asked for cannot be made, or the command cannot be started.
    """
    if not plan.command:
        message = "there is no command; write it after two dashes: scope run -- torchrun train.py"
        raise UsageError(message)
    with contextlib.nullcontext() if is_last else giving_back_signals(), waiting_for_children() as children_ignored:
        return _launch(plan, environment, tell or _ignore, children_ignored=children_ignored)


def _ignore(message: str) -> None:
    """Tell nobody."""


def find_run_dir(plan: LaunchPlan) -> Path | None:
    """Return the run directory that a plan names, by itself or by the id of its run; None where it names none.

    None as well where it is relative to a working directory that was deleted.

    Raises:
        UsageError: The run id cannot be the name of a folder.
    """
    if plan.run_dir is None and not plan.run_id:
        return None
    run_dir = plan.run_dir or _default_run_dir(paths.check_run_id(plan.run_id or ""))
    with contextlib.suppress(FileNotFoundError):
        return run_dir.absolute()
    return None


def _default_run_dir(run_id: str) -> Path:
    return Path("runs") / run_id


def _check_variables(environment: Mapping[str, str]) -> None:
    """Refuse, before the job begins, what would cost its ranks their recording or what was asked of it.

    Raises:
        UsageError: A variable makes no sense.
    """
    read_capture(environment)
    parse_variable(identity.TAGS, environment.get(identity.TAGS) or "", identity.read_tags)
    for name in (identity.FLOPS, identity.PREFLIGHT):
        parse_variable(name, environment.get(name) or "off", parse_switch)


def _launch(
    plan: LaunchPlan, environment: Mapping[str, str], tell: Callable[[str], None], *, children_ignored: bool
) -> LaunchResult:
    _check_variables({**environment, **plan.variables})
    run_id, source = identity.choose_run_id(environment, plan.run_id)
    if source == "host":
        run_id = f"{run_id}-{os.getpid()}"  # two runs may begin in one second
    run_dir = plan.run_dir or _default_run_dir(run_id)

    def run_unrecorded(why: str) -> LaunchResult:
        ending = run_command(plan.command, environment, children_ignored=children_ignored)
        return LaunchResult(
            returncode=ending.returncode, run_dir=run_dir, num_ranks=0, unpublished=None, unrecorded=why
        )

    try:
        run_dir = run_dir.absolute()
    except FileNotFoundError:
        return run_unrecorded("the working directory was deleted; name a run directory by its whole path: --run-dir")
    try:
        spool, passed_over = _make_spool(plan, environment, run_id=run_id, source=source, run_dir=run_dir)
    except RunError as error:
        if plan.spool is not None:
            raise  # a mistake of whoever named it, who is told before the job begins
        return run_unrecorded(str(error))
    if passed_over:
        tell(f"{'; '.join(passed_over)}: ranks write to {spool} until it is published")
    _register(plan, tell, run_id=run_id, spool=spool, run_dir=run_dir)
    first, reserved = _choose_attempt(plan, environment, run_dir, tell)
    made = identify_folder(spool)
    with Publisher(spool, run_dir, plan.max_run_bytes, identity=made) as publisher:
        child_environment = build_environment(
            plan, environment, run_id=run_id, spool=spool, run_dir=run_dir, first_attempt=first
        )
        try:
            ending = run_command(plan.command, child_environment, children_ignored=children_ignored)
        except RunError as error:
            if publisher.finish(Ending(error.exit_code, None)) and reserved is not None:
                identity.release_attempt(run_dir, reserved)
            raise
        attempts = [_rank_folders(spool, attempt) for attempt in paths.list_attempts(spool)]
        folders = [folder for attempt in attempts for folder in attempt]
        has_steps = _has_steps(folders)
        no_steps_reason = None if has_steps else _read_why_no_steps(folders)
        published = publisher.finish(ending)
    is_over = not publisher.is_left and not publisher.is_stuck
    is_left = not published and not (is_over and _remove_without_ranks(spool, made))
    if not is_left and reserved is not None:
        identity.release_attempt(run_dir, reserved)  # what was recorded stands there now
    return LaunchResult(
        returncode=ending.returncode,
        run_dir=run_dir,
        num_ranks=max(map(len, attempts), default=0),
        unpublished=spool if is_left else None,
        problems=tuple(publisher.problems),
        has_steps=has_steps,
        no_steps_reason=no_steps_reason,
        is_left=publisher.is_left,
    )


def _choose_attempt(
    plan: LaunchPlan, environment: Mapping[str, str], run_dir: Path, tell: Callable[[str], None]
) -> tuple[int, int | None]:
    """Return the first attempt of this launch, and that which is to be released when it is over."""
    launched = describe_launch(environment, plan.command)
    if not paths.is_network_path(run_dir):
        first = choose_attempt(run_dir, launched)
        return first, None if launched.has_peers else first
    asked = ask_for_attempt(run_dir, launched)
    if asked is not None:
        return asked, None
    first = identity.read_number(environment, "SLURM_RESTART_COUNT") or 0
    tell(f"{run_dir} does not answer: this launch is taken for attempt {first}, in the place of one that there may be")
    return first, None


def _register(plan: LaunchPlan, tell: Callable[[str], None], *, run_id: str, spool: Path, run_dir: Path) -> None:
    """Note the spool for the node's exporter, and tell where it is not."""
    entry = paths.Registration(
        run_id=run_id,
        spool=str(spool),
        run_dir=str(run_dir),
        launcher_pid=os.getpid(),
        launcher_start_ticks=read_start_ticks(os.getpid()),
        max_run_bytes=plan.max_run_bytes,
    )
    why_not = paths.register_spool(entry)
    if why_not is not None:
        tell(f"{why_not}: the node's exporter finds this run only where --runs names it")


def _remove_without_ranks(spool: Path, made: tuple[int, int] | None) -> bool:
    """Take a spool away that holds no rank, and into which no process of the command will write one."""
    from scope.run.publish import OrphanedCommand  # else a module of another process

    if paths.list_attempts(spool) or OrphanedCommand(spool).is_living():
        return False
    with contextlib.suppress(OSError):  # the publisher may have done so
        remove_run_files(spool, identity=made)
    paths.unregister_spool(spool)
    return True


def _rank_folders(spool: Path, attempt: int) -> list[Path]:
    return [paths.rank_folder(spool, attempt, rank) for rank in paths.list_ranks(spool, attempt)]


def _has_steps(folders: Sequence[Path]) -> bool:
    """Return whether one of the ranks has made a step, or may have."""
    for folder in folders:
        try:
            if not has_no_step(folder):
                return True
        except RunError:
            return True
    return False


def _read_why_no_steps(folders: Sequence[Path]) -> str | None:
    """Return what the first rank that could tell says of why it made no step."""
    for folder in folders:
        with contextlib.suppress(RunError):
            why = read_rank_info(folder).absent.get("steps")
            if why is not None:
                return why
    return None


def _make_spool(
    plan: LaunchPlan, environment: Mapping[str, str], *, run_id: str, source: str, run_dir: Path
) -> tuple[Path, Sequence[str]]:
    """Make the folder that ranks write to, on disk where memory has no room; return it, and why usual ones were not."""
    name = run_id if source == "host" else f"{run_id}-{os.getpid()}"
    named, given = plan.spool, dict(environment)
    usual = (lambda: paths.default_spool(given), paths.disk_spool)
    choices = usual if named is None else (lambda: paths.SpoolPlace(named),)
    problems: list[str] = []
    for choose in choices:
        spool = None
        try:
            place = choose()
            spool = place.folder.absolute() / name
            _make_usable(spool)
            identity.write_run_info(spool, run_id=run_id, source=source, tags=plan.tags, run_dir=run_dir)
        except OSError as error:
            problems.append(f"{spool or error.filename or 'the spool'}: cannot be written ({error.strerror})")
            if spool is not None:
                with contextlib.suppress(OSError):
                    spool.rmdir()  # only an empty one goes, which was made before it could not be written
        else:
            return spool, (*problems, *place.passed_over)
    message = "; ".join(problems) + "; name another folder with --spool"
    raise RunError(message)


def _make_usable(spool: Path) -> None:
    """Make the folder of a spool.

    Raises:
        OSError: It cannot be made, or this user cannot use what he makes.
    """
    spool.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
    if not os.access(spool, os.R_OK | os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, "the umask keeps its own user out of it", str(spool))


def build_environment(
    plan: LaunchPlan,
    environment: Mapping[str, str],
    *,
    run_id: str,
    spool: Path,
    run_dir: Path,
    first_attempt: int,
) -> dict[str, str]:
    """Return the environment of the command: ours first on `PYTHONPATH`, the rest as it was."""
    launcher = Path(__file__).parent.parent / "record" / "launcher"
    inherited = environment.get("PYTHONPATH")
    return {
        **environment,
        **plan.variables,
        "PYTHONPATH": f"{launcher}{os.pathsep}{inherited}" if inherited else str(launcher),
        identity.RUN_ID: run_id,
        identity.RUN_DIR: str(run_dir),
        identity.SPOOL_RUN: str(spool),
        identity.FIRST_ATTEMPT: str(first_attempt),
        identity.PARENT_PID: str(os.getpid()),
        identity.LAUNCH_HOST: socket.gethostname(),
        identity.MAX_RUN_BYTES: str(plan.max_run_bytes),
    }
