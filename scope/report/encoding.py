"""Writes JSON that a terminal shows without obeying it, and that holds whatever a file's name holds."""

from __future__ import annotations

from typing import Any

import msgspec

from scope.report.inert import UNPRINTABLE


def encode_json(value: Any, *, indent: int = 2) -> str:
    """Return plain values as JSON text with a newline at the end.

    Control characters, and those that are invisible or turn the direction of text, are written as escapes: a program
    reads what was there, a terminal obeys nothing.
    """
    try:
        text = msgspec.json.encode(value).decode()
    except UnicodeEncodeError:
        # File names may hold bytes that are no UTF-8, which Python keeps as lone surrogates.
        text = msgspec.json.encode(_encodable(value)).decode()
    escaped = UNPRINTABLE.sub(lambda match: _escape(match[0]), text)
    return msgspec.json.format(escaped, indent=indent) + "\n"


def _encodable(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", errors="backslashreplace").decode()
    if isinstance(value, dict):
        return {_encodable(key): _encodable(each) for key, each in value.items()}  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, list):
        return [_encodable(each) for each in value]  # pyright: ignore[reportUnknownVariableType]
    return value


def _escape(character: str) -> str:
    units = character.encode("utf-16-be")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))
