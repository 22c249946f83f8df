"""Old steps folded into one line per hundred, so that a rank's `steps.jsonl` stays in its budget."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

from scope.run.files import read_span, replace_document
from scope.run.schema import CollectiveTotal, MemoryPeak, StepLine, StepRecord, StepSummary

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

_Number = TypeVar("_Number", int, float)

STEPS_PER_SUMMARY: Final = 100
_MAX_FILE_BYTES: Final = 2**30
_decoder: Final = msgspec.json.Decoder(StepLine)
_encoder: Final = msgspec.json.Encoder()


def fold_file(path: Path, *, max_bytes: int) -> bool:
    """Fold the oldest steps of a `steps.jsonl` until it is at most three quarters of `max_bytes`.

    The file is replaced whole; nobody else may append meanwhile. Returns whether anything was folded.

    Raises:
        OSError: The disk is full; the file stands unchanged.
        RunError: The file cannot be read.
    """
    lines = read_span(path, max_bytes=_MAX_FILE_BYTES).splitlines(keepends=True)
    size = sum(map(len, lines))
    target = max_bytes * 3 // 4
    folded: list[bytes] = []
    first = 0
    while size > target and first < len(lines):
        chunk = lines[first : first + STEPS_PER_SUMMARY]
        records = [_decode(line) for line in chunk]
        plain = [record for record in records if isinstance(record, StepRecord)]
        kept = [line for line, record in zip(chunk, records, strict=True) if not isinstance(record, StepRecord)]
        if plain:
            kept.append(_encoder.encode(summarize_steps(plain)) + b"\n")
        folded.extend(kept)
        size += sum(map(len, kept)) - sum(map(len, chunk))
        first += len(chunk)
    if not first:
        return False
    replace_document(path, b"".join(folded + lines[first:]))
    return True


def _decode(line: bytes) -> StepLine | None:
    """Return a line's record; `None` of a torn one, which is kept as it is for its readers to name."""
    try:
        return _decoder.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def summarize_steps(steps: Sequence[StepRecord]) -> StepSummary:
    """Return one record for several steps of one rank; lengths and counts add up, peaks are the largest."""
    lengths = [step.end_ns - step.start_ns for step in steps]
    waits = [step.communication_wait_ns for step in steps if step.communication_wait_ns is not None]
    phases: dict[str, int] = {}
    for step in steps:
        for name, length in step.phases.items():
            phases[name] = phases.get(name, 0) + length
    return StepSummary(
        first_step=steps[0].step,
        last_step=steps[-1].step,
        num_steps=len(steps),
        start_ns=steps[0].start_ns,
        end_ns=steps[-1].end_ns,
        duration_ns=sum(lengths),
        min_duration_ns=min(lengths),
        max_duration_ns=max(lengths),
        phases=phases,
        communication_wait_ns=sum(waits) if waits else None,
        gc_ns=sum(step.gc_ns for step in steps),
        collectives=_add_totals(total for step in steps for total in step.collectives),
        peak=_largest_peak(step.memory.peak for step in steps if step.memory),
        tokens=_sum_known([step.tokens for step in steps]),
        model_flop=_sum_known([step.model_flop for step in steps]),
        hardware_flop=_sum_known([step.hardware_flop for step in steps]),
        input_bytes=_sum_known([step.input_bytes for step in steps]),
        recorder_ns=sum(step.recorder_ns for step in steps),
        num_dropped=sum(step.num_dropped for step in steps),
    )


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
