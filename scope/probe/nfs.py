"""NFS mounts: `/proc/self/mountstats`, the operations and queues that tell a slow server from a full queue.

Only operations that matter for training and checkpoints are kept, each summed over the connections of its mount. A
mount is never touched: asking it for its size would hang with it.
"""

from __future__ import annotations

from typing import Final

from scope.probe.plausible import is_plausible
from scope.probe.records import NfsMount, NfsOperation
from scope.probe.tree import LARGE_FILE_BYTES, Problems, Tree
from scope.units import NS_PER_MS

OPERATIONS: Final = ("READ", "WRITE", "COMMIT", "GETATTR", "OPEN", "LOOKUP")
MAX_MOUNTS: Final = 64
_PATH: Final = "/proc/self/mountstats"
_OPERATION_FIELDS: Final = 8
_READ_BYTES: Final = 4
_WRITE_BYTES: Final = 5


def read_nfs_mounts(tree: Tree, problems: Problems) -> list[NfsMount]:
    """Return one record an NFS mount; mounts of one export at several places stand once.

    Args:
        tree: Where proc lies.
        problems: Told of lines that cannot be read.
    """
    try:
        text = tree.read(_PATH, limit=LARGE_FILE_BYTES)
    except FileNotFoundError:
        return []
    except OSError as error:
        problems.add_os_error(error, where=_PATH)
        return []
    mounts = parse_mountstats(text, problems)
    if len(mounts) > MAX_MOUNTS:
        problems.add("too_many", where=_PATH, message=f"{len(mounts)} NFS mounts; the first {MAX_MOUNTS} are kept")
    return mounts[:MAX_MOUNTS]


def parse_mountstats(text: str, problems: Problems) -> list[NfsMount]:
    """Parse the whole file.

    Args:
        text: Its content.
        problems: Told of lines that cannot be read.
    """
    mounts: list[NfsMount] = []
    mount: NfsMount | None = None
    for line in text.splitlines():
        words = line.split()
        if not words:
            continue
        if words[0] == "device":
            mount = _begin(words)
            if mount is not None:
                mounts.append(mount)
            continue
        if mount is None:
            continue
        try:
            _take_line(mount, words)
        except (ValueError, IndexError) as error:
            problems.add("invalid", where=f"{_PATH} {mount.mount}", message=f"{line.strip()[:80]!r}: {error}")
    return _merge(mounts)


def _begin(words: list[str]) -> NfsMount | None:
    """Read `device EXPORT mounted on PLACE with fstype nfs4 statvers=1.1`; None for other file systems."""
    try:
        kind = words[words.index("fstype") + 1]
    except (ValueError, IndexError):
        return None
    if kind not in {"nfs", "nfs4"}:
        return None
    return NfsMount(_unescape(words[4]), _unescape(words[1]), 0)


def _unescape(text: str) -> str:
    """Undo the kernel's octal escapes for white space in paths."""
    for code, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(code, character)
    return text


def _take_line(mount: NfsMount, words: list[str]) -> None:
    name = words[0]
    if name == "age:":
        mount.age_s = _count(words[1])
    elif name == "bytes:":
        mount.read_bytes, mount.write_bytes = _count(words[1 + _READ_BYTES]), _count(words[1 + _WRITE_BYTES])
    elif name == "xprt:":
        _take_transport(mount, words[1], [_count(word) for word in words[2:]])
    elif name.endswith(":") and name[:-1] in OPERATIONS and len(words) > _OPERATION_FIELDS:
        mount.operations.append(_operation(name[:-1], [_count(word) for word in words[1:]]))


def _count(word: str) -> int:
    """Return a counter.

    Raises:
        ValueError: It is none, or cannot be.
    """
    count = int(word)
    if not is_plausible(count, "counter"):
        message = f"{count} is not possible"
        raise ValueError(message)
    return count


def _take_transport(mount: NfsMount, kind: str, numbers: list[int]) -> None:
    """Add one connection.

    TCP and RDMA have port, binds, connects, connect time, idle time, then sends, receives, bad xids, request
    utilisation, backlog utilisation, largest slot (TCP and UDP of newer kernels), ...; UDP lacks the three of the
    connection, and RDMA has other figures where the others have the slots.
    """
    first = 2 if kind == "udp" else 5
    tells_slots = kind != "rdma" and len(numbers) > first + 5
    if not tells_slots:
        mount.max_slots = None
    elif not mount.transports:
        mount.max_slots = numbers[first + 5]
    elif mount.max_slots is not None:
        mount.max_slots += numbers[first + 5]
    mount.transports += 1
    mount.protocol = mount.protocol or kind
    mount.requests_sent += numbers[first]
    mount.bad_xids += numbers[first + 2]
    mount.backlog_cumulative += numbers[first + 4]


def _operation(name: str, numbers: list[int]) -> NfsOperation:
    return NfsOperation(
        name,
        requests=numbers[0],
        transmissions=numbers[1],
        major_timeouts=numbers[2],
        sent_bytes=numbers[3],
        received_bytes=numbers[4],
        queue_ns=numbers[5] * NS_PER_MS,
        response_ns=numbers[6] * NS_PER_MS,
        total_ns=numbers[7] * NS_PER_MS,
        errors=numbers[8] if len(numbers) > _OPERATION_FIELDS else None,
    )


def _merge(mounts: list[NfsMount]) -> list[NfsMount]:
    """Keep the first of several mounts at one place, and of bind mounts that share all their counters."""
    seen: set[str] = set()
    kept: list[NfsMount] = []
    for mount in mounts:
        if mount.mount not in seen:
            seen.add(mount.mount)
            kept.append(mount)
    return kept
