"""Old steps folded into one line per block of a hundred, so that a rank's `steps.jsonl` stays in its budget."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

from scope.run.files import read_span, replace_document
from scope.run.schema import CollectiveTotal, MemoryPeak, StepLine, StepRecord, StepSummary

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

_Number = TypeVar("_Number", int, float)

STEPS_PER_SUMMARY: Final = 100
_LEVELS: Final = tuple(STEPS_PER_SUMMARY * 10**power for power in range(5))
_SUMMARY_BEGINS: Final = b'{"kind":"summary",'
_MAX_FILE_BYTES: Final = 2**30
_decoder: Final = msgspec.json.Decoder(StepLine)
_encoder: Final = msgspec.json.Encoder()


def fold_file(path: Path, *, max_bytes: int) -> bool:
    """Fold the oldest steps of a `steps.jsonl` until it is at most three quarters of `max_bytes`.

    A summary holds the steps of one block, which begins at a multiple of `STEPS_PER_SUMMARY`: all ranks fold the same
    ones together, whatever each has room for. What is folded of a block that goes on is joined with the rest later.
    Where summaries alone have become too many, the oldest are joined by tens, and by hundreds after that. The last one
    to two hundred steps stay, unless they take more than half of the room.

    The file is replaced whole; nobody else may append meanwhile. Returns whether anything was folded.

    Raises:
        OSError: The disk is full; the file stands unchanged.
        RunError: The file cannot be read.
    """
    lines = read_span(path, max_bytes=_MAX_FILE_BYTES).splitlines(keepends=True)
    target = max_bytes * 3 // 4
    surplus = sum(map(len, lines)) - target
    place = _find_recent(lines, max_bytes=target // 2)
    old, recent = lines[:place], lines[place:]
    num_lines = len(old)
    was_plain = [not _is_summary(line) for line in old]
    for level in _LEVELS:
        if surplus > 0:
            old, surplus = _fold_blocks(old, level, surplus)
    has_changed = len(old) < num_lines or [not _is_summary(line) for line in old] != was_plain
    if has_changed:
        replace_document(path, b"".join(old + recent))
    return has_changed


def _find_recent(lines: Sequence[bytes], *, max_bytes: int) -> int:
    """Return from which line on steps stay as they are: from the beginning of a block, if that is half of them."""
    size, place = 0, len(lines)
    while place > 0 and len(lines) - place < 2 * STEPS_PER_SUMMARY:
        size += len(lines[place - 1])
        if size > max_bytes or _is_summary(lines[place - 1]):
            break
        place -= 1
    blocks = [_block_of(record, STEPS_PER_SUMMARY) if (record := _decode(line)) else None for line in lines[place:]]
    half = blocks[: len(blocks) // 2 + 1]
    return place + next((at + 1 for at, (one, other) in enumerate(pairwise(half)) if one != other), 0)


def _fold_blocks(lines: Sequence[bytes], level: int, surplus: int) -> tuple[list[bytes], int]:
    """Return the lines, blocks of so many steps folded from the oldest on until no byte is too much, and what still is.

    Args:
        lines: Lines, the oldest first.
        level: Steps of a block.
        surplus: Bytes that are too much.
    """
    folded: list[bytes] = []
    first = 0
    while surplus > 0 and first < len(lines):
        block, end = _read_block(lines, first, level)
        kept = lines[first:end]
        if len(block) > 1 or (block and isinstance(block[0], StepRecord)):
            kept = [_encoder.encode(summarize_steps(block)) + b"\n"]
            surplus -= sum(map(len, lines[first:end])) - len(kept[0])
        folded.extend(kept)
        first = end
    return [*folded, *lines[first:]], surplus


def _read_block(lines: Sequence[bytes], first: int, level: int) -> tuple[list[StepLine], int]:
    """Return the records of one block that stand together from a line on, and where the next begins.

    None of a torn line, and of one that counts anew from an earlier step: these are kept as they are, or apart.
    """
    records: list[StepLine] = []
    for place in range(first, len(lines)):
        record = _decode(lines[place])
        if record is None:
            return records, max(place, first + 1)
        if records and not (
            _last_of(records[-1]) < _first_of(record) and _block_of(records[0], level) == _block_of(record, level)
        ):
            return records, place
        records.append(record)
    return records, len(lines)


def _is_summary(line: bytes) -> bool:
    return line.startswith(_SUMMARY_BEGINS)


def _block_of(line: StepLine, level: int) -> int:
    """Return which block a line is of, by its last step: summaries of older versions begin where they may."""
    return _last_of(line) // level


def _first_of(line: StepLine) -> int:
    return line.step if isinstance(line, StepRecord) else line.first_step


def _last_of(line: StepLine) -> int:
    return line.step if isinstance(line, StepRecord) else line.last_step


def _decode(line: bytes) -> StepLine | None:
    """Return a line's record; `None` of a torn one, which is kept as it is for its readers to name."""
    try:
        return _decoder.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def summarize_steps(steps: Sequence[StepLine]) -> StepSummary:
    """Return one record for several steps of one rank, of which some may be folded already.

    Lengths and counts add up, peaks are the largest.
    """
    parts = [_as_summary(step) for step in steps]
    waits = [part.communication_wait_ns for part in parts if part.communication_wait_ns is not None]
    return StepSummary(
        first_step=parts[0].first_step,
        last_step=parts[-1].last_step,
        num_steps=sum(part.num_steps for part in parts),
        start_ns=parts[0].start_ns,
        end_ns=parts[-1].end_ns,
        duration_ns=sum(part.duration_ns for part in parts),
        min_duration_ns=min(part.min_duration_ns for part in parts),
        max_duration_ns=max(part.max_duration_ns for part in parts),
        phases=_add_by_phase(part.phases for part in parts),
        communication_wait_ns=sum(waits) if waits else None,
        communication_wait_phases=_add_by_phase(part.communication_wait_phases or {} for part in parts) or None,
        gc_ns=sum(part.gc_ns for part in parts),
        collectives=_add_totals(total for part in parts for total in part.collectives),
        peak=_largest_peak(part.peak for part in parts if part.peak),
        tokens=_sum_known([part.tokens for part in parts]),
        model_flop=_sum_known([part.model_flop for part in parts]),
        hardware_flop=_sum_known([part.hardware_flop for part in parts]),
        input_bytes=_sum_known([part.input_bytes for part in parts]),
        recorder_ns=sum(part.recorder_ns for part in parts),
        num_dropped=sum(part.num_dropped for part in parts),
    )


def _as_summary(step: StepLine) -> StepSummary:
    if isinstance(step, StepSummary):
        return step
    length = step.end_ns - step.start_ns
    return StepSummary(
        first_step=step.step,
        last_step=step.step,
        num_steps=1,
        start_ns=step.start_ns,
        end_ns=step.end_ns,
        duration_ns=length,
        min_duration_ns=length,
        max_duration_ns=length,
        phases=step.phases,
        communication_wait_ns=step.communication_wait_ns,
        communication_wait_phases=step.communication_wait_phases,
        gc_ns=step.gc_ns,
        collectives=step.collectives,
        peak=step.memory.peak if step.memory else None,
        tokens=step.tokens,
        model_flop=step.model_flop,
        hardware_flop=step.hardware_flop,
        input_bytes=step.input_bytes,
        recorder_ns=step.recorder_ns,
        num_dropped=step.num_dropped,
    )


def _add_by_phase(lengths_by_phase: Iterable[dict[str, int]]) -> dict[str, int]:
    added: dict[str, int] = {}
    for lengths in lengths_by_phase:
        for phase, length in lengths.items():
            added[phase] = added.get(phase, 0) + length
    return added


def _sum_known(values: list[_Number | None]) -> _Number | None:
    known = [value for value in values if value is not None]
    return sum(known[1:], known[0]) if known and len(known) == len(values) else None


def _add_totals(totals: Iterable[CollectiveTotal]) -> tuple[CollectiveTotal, ...]:
    added: dict[tuple[int, str, str, bool], CollectiveTotal] = {}
    for total in totals:
        key = (total.group, total.operation, total.variant, total.control)
        old = added.get(key)
        added[key] = total if old is None else _add_two(old, total)
    return tuple(added.values())


def _add_two(one: CollectiveTotal, other: CollectiveTotal) -> CollectiveTotal:
    num_timed = one.num_timed + other.num_timed
    known = one.num_blocked_known + other.num_blocked_known
    return msgspec.structs.replace(
        one,
        num_calls=one.num_calls + other.num_calls,
        in_bytes=one.in_bytes + other.in_bytes,
        out_bytes=one.out_bytes + other.out_bytes,
        num_timed=num_timed,
        duration_ns=(one.duration_ns or 0) + (other.duration_ns or 0) if num_timed else None,
        num_blocked_known=known,
        blocked_ns=(one.blocked_ns or 0) + (other.blocked_ns or 0) if known else None,
    )


def _largest_peak(peaks: Iterable[MemoryPeak]) -> MemoryPeak | None:
    found = list(peaks)
    if not found:
        return None
    return MemoryPeak(
        allocated_bytes=max((p.allocated_bytes for p in found if p.allocated_bytes is not None), default=None),
        reserved_bytes=max((p.reserved_bytes for p in found if p.reserved_bytes is not None), default=None),
        resident_bytes=max((p.resident_bytes for p in found if p.resident_bytes is not None), default=None),
    )
