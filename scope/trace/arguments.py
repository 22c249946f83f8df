"""The arguments of records: decoded together, and one by one where that fails."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from scope.trace.categories import ANNOTATION, KERNEL, LAUNCH, MEMCPY, MEMSET, OP, PYTHON, SYNC
from scope.trace.events import (
    NO_TEXT,
    AnnotationArgs,
    CollectiveArgs,
    DeviceArgs,
    LaunchArgs,
    MemoryArgs,
    MetadataArgs,
    OpArgs,
    PythonArgs,
    SyncArgs,
    list_of,
)

DECODE_ERRORS: Final = (msgspec.MsgspecError, ValueError, RecursionError, OverflowError)
"""What decoding hostile bytes may raise: bad JSON or types, digits without end, brackets without end."""

ARGS_OF_KIND: Final[dict[int, type[Any]]] = {
    KERNEL: DeviceArgs,
    MEMCPY: DeviceArgs,
    MEMSET: DeviceArgs,
    OP: OpArgs,
    LAUNCH: LaunchArgs,
    ANNOTATION: AnnotationArgs,
    SYNC: SyncArgs,
    PYTHON: PythonArgs,
}
_DECODERS: Final[dict[type[Any], msgspec.json.Decoder[list[Any]]]] = {
    kind: msgspec.json.Decoder(type=list_of(kind))
    for kind in (*ARGS_OF_KIND.values(), CollectiveArgs, MemoryArgs, MetadataArgs)
}
_NUM_COLLECTIVE_FIELDS: Final = len(CollectiveArgs.__struct_fields__)


def args_of(members: list[Any], kind: type[Any]) -> tuple[list[Any], int]:
    """Return the arguments of records, and of how many some could not be used.

    They are decoded together; where one has a wrong type, each for itself. Records of `typed` have theirs already.
    """
    if not members:
        return [], 0
    raws: list[Any] = [event.args for event in members]
    if raws[0].__class__ is not msgspec.Raw:
        return raws, 0
    raws = [raw or b"{}" for raw in raws]
    # The brackets go into the join, since putting them around its result would copy it twice.
    raws[0] = b"[" + bytes(raws[0])
    raws[-1] = bytes(raws[-1]) + b"]"
    try:
        decoded = _DECODERS[kind].decode(b",".join(raws))
        if len(decoded) == len(members):
            return decoded, 0
    except DECODE_ERRORS:
        pass
    found = [_lenient_args(kind, bytes(event.args)) for event in members]
    return [args for args, _ in found], sum(not is_whole for _, is_whole in found)


def _lenient_args(kind: type[Any], text: bytes) -> tuple[Any, bool]:
    """Decode arguments of which some may have wrong types; say whether all could be used."""
    try:
        return msgspec.json.decode(text or b"{}", type=kind, strict=False), True
    except DECODE_ERRORS:
        pass
    good: dict[str, msgspec.Raw] = {}
    try:
        fields = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    except DECODE_ERRORS:
        return kind(), False
    for key, value in fields.items():
        try:
            msgspec.json.decode(msgspec.json.encode({key: value}), type=kind, strict=False)
        except DECODE_ERRORS:
            continue
        good[key] = value
    return msgspec.json.decode(msgspec.json.encode(good), type=kind, strict=False), False


class CollectiveCoder:
    """Numbers what records say of their collectives, the sequence number apart: most calls of a job say the same."""

    def __init__(self) -> None:
        self._codes: dict[tuple[Any, ...], int] = {}
        self._said: list[tuple[Any, ...]] = []
        self._filled: dict[tuple[int, int], int] = {}

    def code(self, args: Any) -> tuple[int, int | None]:
        """Return the code of what arguments say, and the sequence number; `args` ends in the fields of a collective."""
        values = msgspec.structs.astuple(args)
        texts = [b"" if raw is NO_TEXT else bytes(raw) for raw in values[-4:-1]]
        return self._code((*values[-_NUM_COLLECTIVE_FIELDS:-4], *texts)), values[-1]

    def _code(self, said: tuple[Any, ...]) -> int:
        code = self._codes.setdefault(said, len(self._said))
        if code == len(self._said):
            self._said.append(said)
        return code

    def filled(self, code: int, around: int) -> int:
        """Return the code of what the first says, and of what it leaves out, the second."""
        known = self._filled.get((code, around))
        if known is None:
            pairs = zip(self._said[code], self._said[around], strict=True)
            known = self._code(tuple([other if own in (None, b"") else own for own, other in pairs]))
            self._filled[code, around] = known
        return known

    def args(self, code: int) -> CollectiveArgs:
        """Return what a code stands for, without a sequence number."""
        said = self._said[code]
        return CollectiveArgs(*said[:-3], *[msgspec.Raw(text) for text in said[-3:]])


def collective_args_of(members: list[Any], args: list[Any]) -> tuple[list[Any], int]:
    """Return arguments that end in the fields of `CollectiveArgs`, and of how many some could not be used."""
    if not members or members[0].args.__class__ is msgspec.Raw:
        return args_of(members, CollectiveArgs)
    return args, 0
