"""Event by event through a chunk that does not decode as a whole: one bad byte costs one event, and is counted."""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import msgspec

from scope.trace.arguments import DECODE_ERRORS
from scope.trace.boundaries import SEPARATOR, cuts_between_events, ends_the_list, event_starts
from scope.trace.events import (
    EXACT_DECODER,
    EXACT_EVENT,
    OTHERS,
    Begin,
    End,
    ExactInstant,
    ExactSpan,
    FullArrowEnd,
    FullArrowStart,
    LooseEvent,
    Metadata,
)
from scope.trace.mending import cleaned, has_open_name, with_quotes_escaped

if TYPE_CHECKING:
    from collections.abc import Iterator

TRAILING: Final = re.compile(r"trailing characters \(byte (\d+)\)")
_VALUE_NOT_A_NUMBER: Final = re.compile(
    rb'("\s*:\s*)[-+]?(?:nan|inf|infinity)(?:\([^)]{0,64}\))?(?=\s*[,}])', re.IGNORECASE
)
"""The same for the value of a key alone, which a text hardly holds."""
_BEFORE_A_VALUE: Final = frozenset(b": \t\r\n\v\f+-")
_BETWEEN: Final = b" \t\r\n,"
_TRUNCATED: Final = "truncated"
_MOST_JOINED: Final = 64
_LONGEST_REPAIR_BYTES: Final = 1 << 20
_MOST_JOINED_BYTES: Final = 64 << 20
_RUN: Final = 16
"""Pieces that are read at once; when one of them is broken, each for itself."""
_MENDING_WEIGHT: Final = 32
"""How much longer it takes to mend a text than to decode it."""

_exact_decoder = msgspec.json.Decoder(EXACT_EVENT)
_run_decoder = EXACT_DECODER
_loose_decoder = msgspec.json.Decoder(LooseEvent)


@dataclass
class Salvaged:
    """What came out of one chunk."""

    events: list[Any] = field(default_factory=list[Any])
    lost: int = 0
    repaired: int = 0
    rest: bytes | None = None
    """What stands behind the end of the list of events, when the list ends in the chunk."""
    unfinished: bytes = b""
    """The beginning of an event that the chunk does not finish."""
    holds_end: bool = True
    """Whether the list may end in the chunk."""
    next_run: int = 0
    """The first piece behind a run of which one is broken."""
    joined_bytes: int = 0
    """Length of what was joined, texts that may be mended weighing more."""

    def can_join(self, num_bytes: int) -> bool:
        """Count a text to be joined; False once a chunk of nothing but broken events would take minutes."""
        self.joined_bytes += num_bytes * (_MENDING_WEIGHT if num_bytes <= _LONGEST_REPAIR_BYTES else 1)
        return self.joined_bytes <= _MOST_JOINED_BYTES


_value_decoder: msgspec.json.Decoder[list[msgspec.Raw]] = msgspec.json.Decoder(list[msgspec.Raw])


def split_list(text: bytes, *, is_last: bool) -> tuple[list[msgspec.Raw], int]:
    """Return the values of the list that `text` begins with, whatever they are, and where its bracket stands.

    Args:
        text: A chunk in brackets.
        is_last: Nothing follows it in the file.

    Raises:
        msgspec.MsgspecError, ValueError, RecursionError: It is no JSON.
    """
    try:
        return _value_decoder.decode(text), len(text) - 1
    except msgspec.DecodeError as error:
        end = array_end(text, error)
        if end is None or not ends_the_list(text[end + 1 : -1], is_last=is_last):
            raise
        return _value_decoder.decode(text[: end + 1]), end


def read_values(values: list[msgspec.Raw]) -> Salvaged:
    """Read the events among the values of a list; those of unexpected types are mended, what is no event is lost."""
    found = Salvaged()
    for value in values:
        try:
            found.events.append(_exact_decoder.decode(value))
        except DECODE_ERRORS:
            event = _loosened(bytes(value))
            if event is None:
                found.lost += 1
            else:
                found.events.append(event)
                found.repaired += 1
    return found


def array_end(text: bytes, error: Exception) -> int | None:
    """Return where in `text` stands the bracket that closed the array, when `error` says that more follows it."""
    match = TRAILING.search(str(error))
    if match is None:
        return None
    end = text.rfind(b"]", 0, int(match[1]))
    return end if end >= 0 else None


def with_nulls(text: bytes) -> tuple[bytes, int]:
    """Return a list of events with `null` for each value that is `nan` or `inf`, and how many events held one.

    A profiler that divides by a number it doesn't know writes one into each kernel, so that all of a file would have to
    be read event by event.
    """
    if not _may_hold_none(text):
        return text, 0
    places = [match.start() for match in _VALUE_NOT_A_NUMBER.finditer(text)]
    if not places:
        return text, 0
    cuts = [match.start() for match in SEPARATOR.finditer(text)]
    return _VALUE_NOT_A_NUMBER.sub(rb"\1null", text), len({bisect_right(cuts, place) for place in places})


def _may_hold_none(text: bytes) -> bool:
    """Say whether `nan` or `inf` stands where a value may, in a tenth of the time that replacing nothing takes."""
    lowered = text.lower()
    for word in (b"nan", b"inf"):
        place = lowered.find(word)
        while place >= 0:
            if lowered[place - 1] in _BEFORE_A_VALUE:
                return True
            place = lowered.find(word, place + 3)
    return False


def salvage(text: bytes, *, is_last: bool, holds_end: bool = True) -> Salvaged:
    """Read the events of `text`, which stand between commas, one by one.

    Args:
        text: A piece of the list of events, without its opening bracket.
        is_last: Nothing follows `text` in the file, or none of the list.
        holds_end: The list may end in `text`; else any bracket that seems to end it is damage.
    """
    found = Salvaged(holds_end=holds_end)
    cuts = cuts_between_events(text, is_last=is_last)
    starts = [0, *(text.index(b"{", cut) for cut in cuts)]
    ends = [*cuts, len(text)]
    # Other pieces begin with a brace.
    if _ends_before(text, is_last=is_last, found=found):
        return found
    index = 0
    while index < len(starts):
        if _read_run(text, (starts, ends), index, found):
            index += _RUN
            continue
        index += _read_piece(text, (starts, ends), index, is_last=is_last, found=found)
        if found.rest is not None:
            return found
    return found


def _read_run(text: bytes, bounds: tuple[list[int], list[int]], index: int, found: Salvaged) -> bool:
    """Read a run of pieces at once; False where one of them is broken, or the list ends among them."""
    starts, ends = bounds
    if index < found.next_run or index + _RUN > len(starts):
        return False
    try:
        found.events += _run_decoder.decode(b"[%b]" % text[starts[index] : ends[index + _RUN - 1]])
    except DECODE_ERRORS:
        found.next_run = index + _RUN
        return False
    return True


def _read_piece(text: bytes, bounds: tuple[list[int], list[int]], index: int, *, is_last: bool, found: Salvaged) -> int:
    """Read what begins at piece `index`; return how many pieces it took."""
    starts, ends = bounds
    piece = text[starts[index] : ends[index]].rstrip(_BETWEEN)
    if not piece:
        return 1
    try:
        found.events.append(_exact_decoder.decode(piece))
    except DECODE_ERRORS as error:
        is_last_piece = index == len(starts) - 1
        if is_last_piece and _read_before_the_end(text, starts[index], error, is_last=is_last, found=found):
            return 1
        if is_last_piece and _mend_before_the_end(piece, is_last=is_last, found=found):
            return 1
        is_unfinished = _TRUNCATED in str(error)
        if not is_unfinished and len(piece) <= _LONGEST_REPAIR_BYTES:
            # An event may go on behind a damaged byte in it as well.
            mended = cleaned(piece)
            try:
                event = _exact_decoder.decode(mended) if mended != piece else None
            except DECODE_ERRORS as other:
                is_unfinished = _TRUNCATED in str(other)
            else:
                if event is not None:
                    found.events.append(event)
                    found.repaired += 1
                    return 1
        if is_unfinished:
            joined = _read_joined(text, bounds, index, is_last=is_last, found=found)
            if joined:
                return joined
        _repair(piece, error, found)
    return 1


def _read_joined(
    text: bytes, bounds: tuple[list[int], list[int]], index: int, *, is_last: bool, found: Salvaged
) -> int:
    """Join a piece with those behind it, since what separates events may stand inside one; 0 when that fails."""
    starts, ends = bounds
    for last in range(index + 1, min(index + _MOST_JOINED, len(starts))):
        if _is_event(text[starts[last] : ends[last]]):
            return 0
        if not found.can_join(ends[last] - starts[index]):
            break
        joined = text[starts[index] : ends[last]].rstrip(_BETWEEN)
        try:
            found.events.append(_exact_decoder.decode(joined))
        except DECODE_ERRORS as error:
            is_last_piece = last == len(starts) - 1
            if is_last_piece and _read_before_the_end(text, starts[index], error, is_last=is_last, found=found):
                return last - index + 1
            event, is_final = _mended(joined, error)
            if is_final and not has_open_name(cleaned(joined)):
                return 0
            if event is None:
                continue
            found.events.append(event)
            found.repaired += 1
        return last - index + 1
    if not is_last and len(starts) - index < _MOST_JOINED:
        found.unfinished = text[starts[index] :]
        return len(starts) - index
    return 0


def _is_event(piece: bytes) -> bool:
    """Say whether a piece is a whole event, not some other object inside one."""
    try:
        event = _exact_decoder.decode(piece)
    except DECODE_ERRORS:
        return False
    return bool(getattr(event, "ts", b"")) or isinstance(event, Metadata)


def _read_before_the_end(text: bytes, start: int, error: Exception, *, is_last: bool, found: Salvaged) -> bool:
    """Read the last event of the list, behind which the bracket and other keys stand."""
    match = TRAILING.search(str(error))
    end = text.rfind(b"}", start, start + int(match[1])) + 1 if match is not None else 0
    if not end:
        return False
    try:
        event = _exact_decoder.decode(text[start:end])
    except DECODE_ERRORS:
        return False
    if not _ends_before(text[end:], is_last=is_last, found=found):
        return False
    found.events.append(event)
    return True


def _ends_before(text: bytes, *, is_last: bool, found: Salvaged) -> bool:
    """Take what stands behind the end of the list of events, if `text` begins with that; say whether it does.

    Where what follows in the file has to tell, it is left unfinished.
    """
    start = text.lstrip()
    if not found.holds_end or not start.startswith(b"]"):
        return False
    ends = ends_the_list(start[1:], is_last=is_last)
    if ends:
        found.rest = start[1:]
    elif ends is None:
        found.unfinished = start
    return ends is not False


def _mend_before_the_end(piece: bytes, *, is_last: bool, found: Salvaged) -> bool:
    """Mend the last event of the list, so that neither it nor what stands behind the list is lost."""
    for candidate in _candidates(piece):
        try:
            _exact_decoder.decode(candidate)
        except DECODE_ERRORS as error:
            if _read_before_the_end(candidate, 0, error, is_last=is_last, found=found):
                found.repaired += 1
                return True
    return False


def _repair(piece: bytes, error: Exception, found: Salvaged) -> None:
    """Mend one piece, which was tried already; where events ran into each other, each for itself."""
    event, _ = _mended(piece, error)
    if event is not None:
        found.events.append(event)
        found.repaired += 1
        return
    parts = _parts(piece)
    before = found.lost + found.repaired
    for part in parts:
        _read_part(part, found, is_tried=len(parts) == 1 and part == piece)
    if found.lost + found.repaired == before:
        # Every event was whole: it is what stands between them that was mended.
        found.repaired += 1


def _read_part(part: bytes, found: Salvaged, *, is_tried: bool) -> None:
    """Read one of the events that ran into each other; one that is whole was not repaired."""
    if b"{" not in part and b":" not in part:
        return  # what stands between events holds none that could be lost
    if not is_tried:
        try:
            found.events.append(_exact_decoder.decode(part))
        except DECODE_ERRORS as error:
            event, _ = _mended(part, error)
        else:
            return
        if event is not None:
            found.events.append(event)
            found.repaired += 1
            return
    # A piece too long to be taken apart holds as many as seem to begin in it.
    found.lost += max(1, len(event_starts(part))) if len(part) > _LONGEST_REPAIR_BYTES else 1


def _parts(piece: bytes) -> list[bytes]:
    """Split a piece where events seem to begin, and behind a whole event that something else follows."""
    if len(piece) > _LONGEST_REPAIR_BYTES:
        return [piece]
    cuts = [0, *(start for start in event_starts(piece) if start > 0), len(piece)]
    parts: list[bytes] = []
    for start, end in pairwise(cuts):
        part = piece[start:end]
        whole = _end_of_object(part)
        parts += [part] if whole is None else [part[:whole], part[whole:]]
    return [stripped for part in parts if (stripped := part.strip(_BETWEEN))]


def _end_of_object(part: bytes) -> int | None:
    """Return where an object ends that something else follows."""
    mended = cleaned(part) if part.isascii() else part
    try:
        _exact_decoder.decode(mended)
    except DECODE_ERRORS as error:
        match = TRAILING.search(str(error))
        end = part.rfind(b"}", 0, int(match[1])) + 1 if match is not None and len(mended) == len(part) else 0
        return end or None
    return None


def _mended(piece: bytes, error: Exception | None = None) -> tuple[Any, bool]:
    """Return the event of a piece after mending it, or None; and whether it is broken whatever is joined to it.

    Args:
        piece: The text of an event.
        error: What decoding the piece as it is raised; None when nobody tried.
    """
    tried = None if error is None else piece
    is_final = len(piece) <= _LONGEST_REPAIR_BYTES
    for candidate in _candidates(piece):
        if candidate != tried:
            try:
                return _exact_decoder.decode(candidate), False
            except DECODE_ERRORS as other:
                error, tried = other, candidate
        if isinstance(error, msgspec.ValidationError):
            event = _loosened(candidate)
            if event is not None:
                return event, False
            is_final = False
        is_final = is_final and _TRUNCATED not in str(error)
    return None, is_final


def _candidates(piece: bytes) -> Iterator[bytes]:
    """Yield the texts that a piece may have been meant to be, the likeliest first."""
    if len(piece) > _LONGEST_REPAIR_BYTES:
        return
    text = cleaned(piece)
    yield text
    yield with_quotes_escaped(text)


def _loosened(text: bytes) -> Any:
    try:
        return tightened(_loose_decoder.decode(text))
    except DECODE_ERRORS:
        return None


def tightened(event: LooseEvent) -> Any:
    """Return a record of the declared types, or None when its phase makes no sense."""
    phase = event.ph
    if not isinstance(phase, str):
        return None
    name, pid, tid = _text(event.name), _number_or_text(event.pid), _number_or_text(event.tid)
    if phase == "X":
        return ExactSpan(cat=_text(event.cat), name=name, pid=pid, tid=tid, ts=event.ts, dur=event.dur, args=event.args)
    if phase == "i":
        return ExactInstant(name=name, tid=tid, ts=event.ts, args=event.args)
    if phase == "M":
        return Metadata(name=name, tid=tid, args=event.args)
    if phase in ("s", "f"):
        arrow = FullArrowStart if phase == "s" else FullArrowEnd
        return arrow(cat=_text(event.cat), id=_number_or_text(event.id), pid=pid, tid=tid, ts=event.ts)
    if phase == "B":
        return Begin(cat=_text(event.cat), name=name, pid=pid, tid=tid, ts=event.ts, args=event.args)
    if phase == "E":
        return End(pid=pid, tid=tid, ts=event.ts)
    other = OTHERS.get(phase)
    return other() if other is not None else None


def _text(value: object) -> str:
    return value if isinstance(value, str) else "" if value is None else str(value)


def _number_or_text(value: object) -> int | str | None:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if value is None or (isinstance(value, int | str) and not isinstance(value, bool)) else str(value)
