"""What JSON forbids and writers of traces write all the same, replaced in the text of one event."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

_WITHOUT_CONTROL: Final = bytes.maketrans(bytes((*range(0x20), 0x7F)), b" " * 33)
_NUMBERED_CHARACTER: Final = re.compile(rb"\\(u[0-9a-fA-F]{4})")
_BACKSLASH, _PAIR, _ESCAPE = b"\\", b"\x01", b"\x02"
"""A backslash; what stands for two, and for one that begins an escape, where no control character can be."""
_LONE_SURROGATE: Final = re.compile(
    rb"(\\[^u]|\\u(?![dD][89a-fA-F])|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})"
    rb"|\\u[0-9a-fA-F]{4}",
    re.DOTALL,
)
"""Half a character, as is left where a name was cut by its length."""
_NOT_A_NUMBER: Final = re.compile(
    rb"(?<=[:,\[])(\s*)[-+]?(?:nan|inf|infinity)(?:\([^)]{0,64}\))?(?=\s*[,}\]])", re.IGNORECASE
)
_NAME_START: Final = re.compile(rb'"name"\s*:\s*"')
_NAME_END: Final = re.compile(rb'"\s*,\s*"(?:ph|pid|tid|ts|cat|dur|args|id|s)"\s*:')
_PLAIN_NAME: Final = re.compile(rb'"name"\s*:\s*"[^"\\]*"\s*,\s*"(?:ph|pid|tid|ts|cat|dur|args|id|s)"\s*:')
_LONE_QUOTE: Final = re.compile(rb'(\\.)|"', re.DOTALL)


@lru_cache(maxsize=2)
def cleaned(piece: bytes) -> bytes:
    """Replace what JSON forbids: bad UTF-8, control characters, stray backslashes, half characters, `nan` and `inf`."""
    # Each look for what is seldom there takes a small part of what replacing nothing would.
    text = piece if piece.isascii() else piece.decode("utf-8", errors="replace").encode()
    text = text.translate(_WITHOUT_CONTROL)
    if b"\\" in text:
        text = without_half_characters(_with_backslashes_escaped(text))
    lowered = text.lower()
    return _NOT_A_NUMBER.sub(rb"\1null", text) if b"nan" in lowered or b"inf" in lowered else text


def _with_backslashes_escaped(text: bytes) -> bytes:
    """Escape the backslashes that begin no escape of JSON, in a text without control characters.

    By whole replacements, since a function for each of them would take a hundred times as long.
    """
    text = text.replace(_BACKSLASH * 2, _PAIR)
    for character in b'"/bfnrt':
        text = text.replace(b"%b%c" % (_BACKSLASH, character), b"%b%c" % (_ESCAPE, character))
    if b"\\u" in text:
        text = _NUMBERED_CHARACTER.sub(b"\x02\\1", text)
    return text.replace(_BACKSLASH, _PAIR).replace(_ESCAPE, _BACKSLASH).replace(_PAIR, _BACKSLASH * 2)


def without_half_characters(text: bytes) -> bytes:
    """Return JSON in which each lone half of a surrogate pair is a replacement character."""
    if b"\\ud" not in text.lower():
        return text
    return _LONE_SURROGATE.sub(lambda match: match[1] or rb"\ufffd", text)


@lru_cache(maxsize=2)
def with_quotes_escaped(text: bytes) -> bytes:
    """Escape the quotes in names, each of which goes on to the next key of an event; in one pass over `text`."""
    if _has_plain_names(text):
        return text
    parts: list[bytes] = []
    done = 0
    # A name that nothing ends is the last one: nothing ends those behind it either.
    while (start := _NAME_START.search(text, done)) and (end := _NAME_END.search(text, start.end())):
        name = text[start.end() : end.start()]
        if b'"' in name and b'"ph"' not in name:  # else it reaches into the next event
            name = _LONE_QUOTE.sub(lambda quote: quote[1] or b'\\"', name)
        parts += [text[done : start.end()], name, end[0]]
        done = end.end()
    return b"".join([*parts, text[done:]])


def _has_plain_names(text: bytes) -> bool:
    """Say whether the quotes of each name, of which there may be none, are those around it."""
    return len(_PLAIN_NAME.findall(text)) == text.count(b'"name"')


def has_open_name(text: bytes) -> bool:
    """Say whether a name begins that nothing ends."""
    if _has_plain_names(text):
        return False
    done = 0
    while start := _NAME_START.search(text, done):
        end = _NAME_END.search(text, start.end())
        if end is None:
            return True
        done = end.end()
    return False
