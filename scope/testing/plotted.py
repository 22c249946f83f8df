"""What a figure shows, read back from what the browser gets."""

from __future__ import annotations

import json
import struct
from base64 import b64decode
from math import isnan
from typing import Any, Final

_CODES: Final = {"f4": "f", "f8": "d", "i1": "b", "i2": "h", "i4": "i", "u1": "B", "u2": "H", "u4": "I"}


def read_figure(text: str) -> dict[str, Any]:
    """Return a plotly figure from its JSON, its typed arrays as nested lists in which a blank is None."""
    read: dict[str, Any] = json.loads(text, object_hook=_with_lists)
    return read


def _with_lists(found: dict[str, Any]) -> Any:
    if not {"dtype", "bdata"} <= set(found):
        return found
    packed = b64decode(found["bdata"])
    code = _CODES[found["dtype"]]
    values: list[Any] = [
        None if isnan(value) else value
        for value in struct.unpack(f"<{len(packed) // struct.calcsize(code)}{code}", packed)
    ]
    lengths = [int(each) for each in str(found.get("shape", len(values))).split(",")]
    for length in reversed(lengths[1:]):
        values = [values[at : at + length] for at in range(0, len(values), length)]
    return values
