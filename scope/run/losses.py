"""What is missing of a rank that closed its recording: files that are shorter than it wrote them.

A torn tail is normal while a rank lives, and where it was killed; behind an end in order it is a loss. The judge is
what the rank itself counted when it closed its recording (`RankInfo.written_bytes`, `RankInfo.num_call_records`);
recordings without these are judged by their last line and by the calls of their steps.
"""

from __future__ import annotations

import os
import stat
import time
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Final

from scope.errors import RunError
from scope.run import paths
from scope.run.blackbox import read_black_box
from scope.run.files import read_span
from scope.run.layout import CALL_BYTES, SEGMENT_HEADER_BYTES
from scope.run.reader import read_steps
from scope.units import NS_PER_S

if TYPE_CHECKING:
    from scope.run.schema import RankInfo

_PUBLISHING_NS: Final = 60 * NS_PER_S
"""Time after the end of a rank in which its last files may be on their way from the spool that is still there."""
_LINES: Final = (paths.STEPS_FILE, paths.EVENTS_FILE)


def find_losses(folder: Path, info: RankInfo) -> list[str] | None:
    """Return what a rank wrote and its folder does not hold, one sentence a file; None while more may come.

    Args:
        folder: The folder of the rank.
        info: Its `rank.json`.
    """
    if info.ended_ns is None or _is_being_published(folder, info):
        return None
    is_closed = bool(info.written_bytes) or _is_closed(folder)
    losses = [_find_loss_of_lines(folder / name, info) for name in _LINES] if is_closed else []
    losses.append(_find_loss_of_calls(folder, info, is_closed=is_closed))
    return [loss for loss in losses if loss is not None]


def _is_being_published(folder: Path, info: RankInfo) -> bool:
    if info.spool is None or info.ended_ns is None or time.time_ns() - info.ended_ns > _PUBLISHING_NS:
        return False
    spool = Path(info.spool)
    return not paths.is_network_path(spool) and os.path.lexists(spool) and not _is_same(spool, folder)


def _is_same(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except OSError:
        return False


def _is_closed(folder: Path) -> bool:
    """Return whether a rank itself closed its recording, by its black box; else others may have told its end."""
    try:
        return read_black_box(folder / paths.BLACK_BOX_FILE, with_ring=False).closed
    except RunError:
        return False


def _find_loss_of_lines(path: Path, info: RankInfo) -> str | None:
    """Return what is missing of a file of lines: others may have added lines of their own since."""
    written = info.written_bytes.get(path.name)
    size = _size_of(path)
    if written is not None:
        if (size or 0) >= written:
            return None
        return f"{path}: is cut: {size or 0:,} of the {written:,} bytes are left that its rank wrote"
    if size is None or (size and _ends_with_line(path, size)):
        return None
    return f"{path}: is cut: its rank closed its recording, but {'the last line has no end' if size else 'it is empty'}"


def _ends_with_line(path: Path, size: int) -> bool:
    try:
        return read_span(path, offset=size - 1, max_bytes=1) == b"\n"
    except RunError:
        return True  # whoever reads its lines is told why it cannot be read


def _find_loss_of_calls(folder: Path, info: RankInfo, *, is_closed: bool) -> str | None:
    segments = sorted((folder / paths.CALLS_FOLDER).glob(f"*{paths.SEGMENT_SUFFIX}"))
    sizes = [(_size_of(path) or 0) - SEGMENT_HEADER_BYTES for path in segments]
    num_left = sum(max(0, size) // CALL_BYTES for size in sizes)
    expected, least = info.num_call_records, ""
    if not info.written_bytes:
        num_cut = sum(size < 0 or size % CALL_BYTES > 0 for size in sizes) if is_closed else 0
        known = 0 if _has_deleted(segments) else _count_calls_of_steps(folder) or 0
        expected, least = max(known, num_left + num_cut), "at least "
    if expected is None or num_left >= expected:
        return None
    why = "segments are cut or gone"
    if all(size >= 0 and not size % CALL_BYTES for size in sizes) and _lacks_only_oldest(segments):
        why = "the oldest are gone, which a budget (--max-run-bytes) below that of its rank takes away"
    return (
        f"{folder / paths.CALLS_FOLDER}: {num_left:,} of {least}{expected:,} records of calls are left that its rank "
        f"wrote: {why}"
    )


def _has_deleted(segments: list[Path]) -> bool:
    """Return whether the oldest segments are gone: to keep to its budget a rank deletes them, and numbers go on."""
    return bool(segments) and not segments[0].name.startswith(("000000", "000001"))


def _lacks_only_oldest(segments: list[Path]) -> bool:
    """Return whether of the segments, which are numbered, some of the first are gone and none between the others."""
    numbers = [int(number) for path in segments if (number := path.name.partition("-")[0]).isdecimal()]
    is_row = len(numbers) == len(segments) and all(after == one + 1 for one, after in pairwise(numbers))
    return is_row and _has_deleted(segments)


def _count_calls_of_steps(folder: Path) -> int | None:
    """Return how many calls of steps stand on record by the steps' own word; None where that cannot be read."""
    if any((folder / paths.CALLS_FOLDER).glob(f"*{paths.OPEN_SEGMENT_SUFFIX}")):
        return None
    try:
        recorded = [step for step in read_steps(folder) if step.calls_recorded]
    except RunError:
        return None
    return sum(total.num_calls for step in recorded for total in step.collectives)


def _size_of(path: Path) -> int | None:
    """Return the size of a regular file; None where there is none, or it cannot be looked at."""
    try:
        status = path.lstat()
    except OSError:
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) else None
