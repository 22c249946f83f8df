"""Which braces in the text of a list of events begin an event, and which an object inside one."""

from __future__ import annotations

import re
from itertools import compress
from typing import Final

import msgspec

from scope.trace.arguments import DECODE_ERRORS

SEPARATOR: Final = re.compile(rb"\}\s*,\s*(?=\{)")
"""What stands between two events, and in a list of objects inside an event as well."""
_EVENT_START: Final = re.compile(rb'\{\s*"(?:ph"\s*:|cat"\s*:|name"\s*:\s*"(?:process|thread)_)')
_REST_OF_AN_EVENT: Final = re.compile(rb'\s*,\s*"(?:ph|cat|pid|tid|ts|dur|args|bp)"\s*:')
_PHASE: Final = re.compile(rb'"ph"\s*:\s*"')
_OTHER_LIST: Final = b'"traceEvents"'
_LIST_OF_OBJECTS: Final = re.compile(rb'"\s*:\s*(?=\[[\s\[]*\{)')
_BEFORE_A_NESTED_OBJECT: Final = (b":", b"[")
_LONGEST_LIST_BYTES: Final = 64 << 10
"""Longer lists inside events are not looked for: no profiler writes one."""
_MOST_FAILED_LISTS: Final = 1_000
"""So that a text of nothing but open lists takes time in proportion to its length."""

_list_decoder: msgspec.json.Decoder[list[msgspec.Raw]] = msgspec.json.Decoder(list[msgspec.Raw])
_TRAILING: Final = re.compile(r"trailing characters \(byte (\d+)\)")
_TRUNCATED: Final = "truncated"


def cuts_between_events(text: bytes, *, is_last: bool) -> list[int]:
    """Return where, in `text`, an event ends that another follows, sorted.

    Args:
        text: A piece of the list of events, without its opening bracket.
        is_last: Nothing follows `text` in the file.
    """
    cuts = [match.start() + 1 for match in SEPARATOR.finditer(text)]
    lists = _lists_of_objects(text, is_last=is_last)
    if is_last and lists and _ends_the_file(text, lists[-1][1]):
        # An event that lacks its own end took the end of them all for that of its list.
        lists.pop()
    if not lists:
        return cuts
    is_between = [True] * len(cuts)
    number = 0
    for start, end in lists:
        while number < len(cuts) and cuts[number] <= start:
            number += 1
        while number < len(cuts) and cuts[number] < end:
            is_between[number] = False
            number += 1
    return list(compress(cuts, is_between))


def event_starts(piece: bytes) -> list[int]:
    """Return where events seem to begin in a piece of several: not at an object that is the value of a key."""
    lists = iter(_lists_of_objects(piece, is_last=True))
    start, end = next(lists, (len(piece), len(piece)))
    found: list[int] = []
    for match in _EVENT_START.finditer(piece):
        place = match.start()
        while end <= place and end < len(piece):
            start, end = next(lists, (len(piece), len(piece)))
        if place < start and not _is_value(piece, place):
            found.append(place)
    return found


def ends_the_list(rest: bytes, *, is_last: bool) -> bool | None:
    """Say whether the bracket before `rest` ends the list of events, and is no damage before an event or inside one.

    What stands behind the list may be damaged as well, and is then no JSON either.

    Args:
        rest: What follows the bracket, without a bracket that closes the chunk.
        is_last: Nothing follows `rest` in the file.

    Returns:
        None where what follows in the file has to tell.
    """
    is_open = not is_last and len(rest) < _LONGEST_LIST_BYTES
    if _goes_on_as_an_object(rest, is_last=is_last):
        # So does an event, up to inside a list of its own.
        return None if is_open else True
    if _OTHER_LIST in rest:
        return True
    if _REST_OF_AN_EVENT.match(rest) or _PHASE.search(rest):
        return False
    return None if is_open else True


def _goes_on_as_an_object(rest: bytes, *, is_last: bool) -> bool:
    """Whether `rest` is good JSON as the rest of the file's object: to its end, or as far as it goes."""
    try:
        msgspec.json.decode(b'{"":0' + rest.strip(b" \t\r\n\0"), type=dict[str, msgspec.Raw])
    except DECODE_ERRORS as error:
        return not is_last and _TRUNCATED in str(error)
    return is_last


def _is_value(piece: bytes, place: int) -> bool:
    before = place - 1
    while before >= 0 and piece[before : before + 1].isspace():
        before -= 1
    return before >= 0 and piece[before : before + 1] in _BEFORE_A_NESTED_OBJECT


def _lists_of_objects(text: bytes, *, is_last: bool) -> list[tuple[int, int]]:
    """Return the half-open spans of the lists of objects inside events, sorted, none in another."""
    spans: list[tuple[int, int]] = []
    num_failed = done = 0
    while num_failed < _MOST_FAILED_LISTS and (match := _LIST_OF_OBJECTS.search(text, done)):
        start = match.end()
        end = _end_of_list(text, start, is_last=is_last)
        if end is None:
            num_failed += 1
            done = start
        else:
            spans.append((start, end))
            done = end
    return spans


def _end_of_list(text: bytes, start: int, *, is_last: bool) -> int | None:
    """Return the end of the list that begins at `start`; that of `text` where it goes on, None where it is broken."""
    part = memoryview(text)[start : start + _LONGEST_LIST_BYTES]
    try:
        _list_decoder.decode(part)
    except DECODE_ERRORS as error:
        match = _TRAILING.search(str(error))
        if match is not None:
            return text.rfind(b"]", start, start + int(match[1])) + 1 or None
        is_open = not is_last and _TRUNCATED in str(error) and start + len(part) == len(text)
        return len(text) if is_open else None
    return start + len(part)


def _ends_the_file(text: bytes, end: int) -> bool:
    """Say whether what follows a list are the other keys of the file."""
    try:
        msgspec.json.decode(b'{"":0' + text[end:], type=dict[str, msgspec.Raw])
    except DECODE_ERRORS:
        return not text[end:].strip()
    return True
