"""Where things stand: folders of a run, the node-local spool, and the registry by which an exporter finds them."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import tempfile
from pathlib import Path
from typing import Annotated, Final, NamedTuple

import msgspec

from scope.errors import RunError, UsageError
from scope.folders import is_private
from scope.run.files import make_private, read_document, replace_document

RUN_FILE: Final = "run.json"
VERDICTS_FILE: Final = "verdicts.jsonl"
RANK_FILE: Final = "rank.json"
STEPS_FILE: Final = "steps.jsonl"
EVENTS_FILE: Final = "events.jsonl"
BLACK_BOX_FILE: Final = "blackbox.bin"
CALLS_FOLDER: Final = "calls"
TRACES_FOLDER: Final = "traces"
REQUEST_FILE: Final = "capture.request"
"""Made in a rank's folder, or in the run directory, it asks for a profiler window, from the step that it names."""
TAKEN_REQUEST_FILE: Final = "capture.taken"
"""What that file is called in a rank's folder from when the rank has read it until the window begins."""
STACKS_REQUEST_FILE: Final = "stacks.request"
"""Made in the same places, it asks for the stacks of all threads: an event `stack_dump` of each rank."""
RESERVATION: Final = ".attempt-"
"""Begins the name of an empty folder in a run directory: a launch on some host has taken that attempt."""
SEGMENT_SUFFIX: Final = ".bin"
OPEN_SEGMENT_SUFFIX: Final = ".part"

_RUN_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_ATTEMPT: Final = re.compile(r"attempt-([0-9]{3,9})")
_RANK: Final = re.compile(r"([0-9]{5,9})")
_MIN_FREE_BYTES: Final = 64 * 2**20
_MAX_FOLDERS: Final = 100
_NETWORK_TYPES: Final = frozenset(
    ("nfs", "nfs4", "cifs", "smb3", "lustre", "ceph", "gpfs", "beegfs", "glusterfs", "9p", "afs", "wekafs", "pvfs2")
)
_MEMORY_FOLDER: Final = Path("/dev/shm")


class Registration(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """One spool on this node, for the exporter.

    Attributes:
        run_id: The run.
        spool: Folder with the layout of a run directory that the ranks of this node write to.
        run_dir: Run directory that it is published to; absent when the spool is the run directory.
        launcher_pid: Process of the `scope run` that publishes it; absent where ranks record by the API alone.
        launcher_start_ticks: When that process began, in clock ticks since boot.
        max_run_bytes: Budget of a rank, which whoever publishes the spool keeps to as well.
    """

    run_id: str
    spool: str
    run_dir: str | None = None
    launcher_pid: int | None = None
    launcher_start_ticks: int | None = None
    max_run_bytes: Annotated[int, msgspec.Meta(ge=0)] | None = None


def check_run_id(run_id: str) -> str:
    """Return `run_id` when it can be the name of a folder.

    Raises:
        UsageError: It is empty, longer than 128, or has other characters than letters, digits, `.`, `_` and `-`.
    """
    if not _RUN_ID.fullmatch(run_id):
        shown = repr(run_id) if len(run_id) <= 200 else f"{run_id[:60]!r}... ({len(run_id)} characters)"
        message = f"{shown} is no run id: use up to 128 letters, digits, '.', '_' or '-', a letter or digit first"
        raise UsageError(message)
    return run_id


def make_run_id(name: str) -> str:
    """Return a run id for any name: the name itself where it can be one, else what of it can, and a digest.

    Examples:
        >>> make_run_id("llama_7b")
        'llama_7b'
        >>> make_run_id("my job/1")
        'my-job-1-99de59b6'
    """
    if _RUN_ID.fullmatch(name):
        return name
    digest = hashlib.sha256(name.encode("utf-8", "surrogateescape")).hexdigest()[:8]
    readable = re.sub(r"[^A-Za-z0-9._]+", "-", name)[:100].strip("-._")
    return f"{readable or 'run'}-{digest}"


def attempt_folder(run: Path, attempt: int) -> Path:
    """Return the folder of an attempt."""
    return run / f"attempt-{attempt:03d}"


def rank_folder(run: Path, attempt: int, rank: int) -> Path:
    """Return the folder of a rank in an attempt."""
    return attempt_folder(run, attempt) / "ranks" / f"{rank:05d}"


def displaced_folder(folder: Path, pid: int) -> Path:
    """Return where the folder of a process goes, out of its attempt, when a rank that it spawned takes its place."""
    return folder.with_name(f".{folder.name}-{pid}")


def note_of_passed(request: str) -> str:
    """Return the name of the file in a spool that says which request of this name was passed on to its ranks."""
    return f".{request}.passed"


def read_place(folder: Path) -> tuple[int, int] | None:
    """Return attempt and rank of a rank's folder by its path; `None` where it does not lie as in a run directory.

    Examples:
        >>> read_place(Path("run/attempt-001/ranks/00042"))
        (1, 42)
    """
    attempt, rank = _ATTEMPT.fullmatch(folder.parent.parent.name), _RANK.fullmatch(folder.name)
    return (int(attempt[1]), int(rank[1])) if attempt and rank and folder.parent.name == "ranks" else None


def is_attempt(name: str) -> bool:
    """Return whether a folder of this name in a run directory is that of an attempt."""
    return _ATTEMPT.fullmatch(name) is not None


def list_attempts(run: Path) -> list[int]:
    """Return the numbers of the attempts that a run directory holds, sorted; empty when it does not exist."""
    return _numbered(run, _ATTEMPT)


def list_ranks(run: Path, attempt: int) -> list[int]:
    """Return the ranks that an attempt holds, sorted; none behind a link."""
    folder = attempt_folder(run, attempt)
    ranks = folder / "ranks"
    return [] if os.path.islink(folder) or os.path.islink(ranks) else _numbered(ranks, _RANK)  # noqa: PTH114


def list_links(run: Path, attempt: int | None = None) -> list[Path]:
    """Return the links that stand where the folders of a run's attempts, or of an attempt's ranks, should."""
    ranks = None if attempt is None else attempt_folder(run, attempt) / "ranks"
    if ranks is not None and os.path.islink(ranks):  # noqa: PTH114 - Path's own raises where access is denied
        return [ranks]
    folder, name = (run, _ATTEMPT) if ranks is None else (ranks, _RANK)
    try:
        with os.scandir(folder) as entries:
            return [Path(entry.path) for entry in entries if entry.is_symlink() and name.fullmatch(entry.name)]
    except OSError:
        return []


def _numbered(folder: Path, name: re.Pattern[str]) -> list[int]:
    try:
        with os.scandir(folder) as entries:
            matches = [name.fullmatch(entry.name) for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []
    return sorted(int(match[1]) for match in matches if match)


class SpoolPlace(NamedTuple):
    """The folder of a user's spools.

    Attributes:
        folder: The folder.
        passed_over: Which usual folders were not taken, and why, each as `FOLDER belongs to another user`.
    """

    folder: Path
    passed_over: tuple[str, ...] = ()


def default_spool(environment: dict[str, str] | None = None) -> SpoolPlace:
    """Return the folder of this user's spools: `SCOPE_SPOOL`, else in memory where there is room, else on disk.

    Whoever can write into it could put a link in a spool's place, and have what it leads to emptied: a folder of that
    name that somebody else has made is passed over.

    Raises:
        OSError: None can be made on disk.
    """
    named = (os.environ if environment is None else environment).get("SCOPE_SPOOL")
    if named:
        return SpoolPlace(Path(named))
    if not os.access(_MEMORY_FOLDER, os.W_OK) or _free_bytes(_MEMORY_FOLDER) <= _MIN_FREE_BYTES:
        return disk_spool()
    in_memory = _MEMORY_FOLDER / f"scope-{os.getuid()}"
    fault = make_private(in_memory)
    if fault is None:
        return SpoolPlace(in_memory)
    on_disk = disk_spool()
    return SpoolPlace(on_disk.folder, (f"{in_memory} {fault}", *on_disk.passed_over))


def disk_spool() -> SpoolPlace:
    """Return the folder of this user's spools on disk; one of another name where somebody else has made that folder.

    Ranks that each look for it by themselves find the same one.

    Raises:
        OSError: None can be made.
    """
    usual = Path(tempfile.gettempdir()) / f"scope-{os.getuid()}"
    fault = make_private(usual)
    if fault is None:
        return SpoolPlace(usual)
    others = [usual.with_name(f"{usual.name}-{number}") for number in range(2, _MAX_FOLDERS)]
    # One that is there first: whoever holds a name may give it back.
    for folder in (*filter(is_private, others), *others):
        if make_private(folder) is None:
            return SpoolPlace(folder, (f"{usual} {fault}",))
    raise OSError(errno.EACCES, fault, str(usual))


def registry_folder() -> Path:
    """Return the folder in which spools of this user are registered (`SCOPE_REGISTRY`, else in memory or /tmp)."""
    named = os.environ.get("SCOPE_REGISTRY")
    if named:
        return Path(named)
    base = _MEMORY_FOLDER if os.access(_MEMORY_FOLDER, os.W_OK) else Path(tempfile.gettempdir())
    return base / f"scope-registry-{os.getuid()}"


def register_spool(entry: Registration, *, folder: Path | None = None) -> str | None:
    """Note a spool for the exporter; a registry that cannot be written is left alone (`--runs GLOB` finds it too).

    Returns:
        Why the registry is left alone where somebody else may write into it, as `FOLDER belongs to another user`.
    """
    folder = folder or registry_folder()
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        fault = make_private(folder)
        if fault is not None:
            return f"{folder} {fault}"
        # Runs of one id in two folders have an entry each.
        name = f"{entry.run_id}{_end_of_entry(entry.spool)}"
        replace_document(folder / name, msgspec.json.encode(entry))
    except (OSError, UnicodeEncodeError):
        # A folder whose name is no text in UTF-8 cannot stand in a document; its run is recorded all the same.
        return None
    return None


def unregister_spool(spool: Path, *, folder: Path | None = None) -> None:
    """Take back what `register_spool` noted of a spool that is published whole and emptied; others stay."""
    folder = folder or registry_folder()
    with contextlib.suppress(OSError):
        for path in folder.glob(f"*{_end_of_entry(str(spool))}"):
            try:
                entry = msgspec.json.decode(read_document(path), type=Registration)
            except (RunError, msgspec.MsgspecError, RecursionError):
                continue  # not one of ours
            if entry.spool == str(spool):
                path.unlink(missing_ok=True)


def _end_of_entry(spool: str) -> str:
    """Return how the name of an entry ends, whatever the run is called."""
    return f"-{hashlib.sha256(spool.encode('utf-8', 'surrogateescape')).hexdigest()[:8]}.json"


def read_registry(folder: Path | None = None) -> tuple[list[Registration], list[str]]:
    """Return the registered spools that still exist, and what was wrong with the other entries."""
    folder = folder or registry_folder()
    found: list[Registration] = []
    problems: list[str] = []
    for path in sorted(folder.glob("*.json")):
        try:
            entry = msgspec.json.decode(read_document(path), type=Registration)
        except (RunError, msgspec.MsgspecError, RecursionError) as error:
            problems.append(f"{path}: {error}")
            continue
        if os.path.isdir(entry.spool):  # noqa: PTH112 - Path's own raises where access is denied
            found.append(entry)
    return found, problems


def is_network_path(path: Path, *, mounts: Path = Path("/proc/self/mounts")) -> bool:
    """Whether `path` (or its nearest parent that exists) lies on a network file system; FUSE counts as one.

    Only the table of mounts is read: asking the file system itself could hang.
    """
    best = ""
    kind = ""
    wanted = os.path.abspath(path)  # noqa: PTH100 - resolve() would ask the file system, which may hang
    try:
        lines = mounts.read_text(errors="replace").splitlines()
    except OSError:
        return False
    for line in lines:
        fields = line.split()
        if len(fields) < 3:
            continue
        point = fields[1].replace("\\040", " ")
        inside = wanted == point or wanted.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):
            best, kind = point, fields[2]
    return kind in _NETWORK_TYPES or kind.startswith("fuse")


def _free_bytes(folder: Path) -> int:
    try:
        usage = os.statvfs(folder)
    except OSError:
        return 0
    return usage.f_bavail * usage.f_frsize
