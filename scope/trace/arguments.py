"""The arguments of records: decoded together, and one by one where that fails."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from scope.trace.categories import ANNOTATION, KERNEL, LAUNCH, MEMCPY, MEMSET, OP, PYTHON, SYNC
from scope.trace.events import (
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


def collective_args_of(members: list[Any], args: list[Any]) -> tuple[list[CollectiveArgs], int]:
    """Return what records say of the collectives they are part of, and of how many some could not be used."""
    if not members or members[0].args.__class__ is msgspec.Raw:
        return args_of(members, CollectiveArgs)
    fields = CollectiveArgs.__struct_fields__
    return [CollectiveArgs(*[_kept(getattr(arg, field)) for field in fields]) for arg in args], 0


def _kept(value: Any) -> Any:
    """Return a value that no longer holds the chunk it was read from."""
    return value.copy() if value.__class__ is msgspec.Raw and len(bytes(value)) else value
