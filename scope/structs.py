"""The base of the immutable records that modules hand to each other."""

from __future__ import annotations

import msgspec


class Record(msgspec.Struct, frozen=True):
    """Base of immutable records; `msgspec.structs.replace` makes a changed copy.

    A struct and no dataclass, because to define one takes a fortieth of the time, and a command defines dozens.
    """
