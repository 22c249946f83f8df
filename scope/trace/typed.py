"""The quick way through a chunk: each category has a record of its own, whose arguments are decoded at once.

It takes only what Kineto writes today. Anything else in a chunk (a category that is not known beforehand, a record
without one, an argument of another type) makes the chunk be decoded again by the records of `events`, which take all.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final, Literal

import msgspec

from scope.structs import Record
from scope.trace.arguments import ARGS_OF_KIND
from scope.trace.categories import ANNOTATION, BACKWARD_ARROWS, CATEGORY_KINDS, NAMED_RANGES, PYTHON
from scope.trace.events import CollectiveArgs, DeviceArgs, MemoryArgs, OpArgs, Text, list_of

_ARROWS: Final = frozenset({"ac2g", "async_cpu_to_gpu"}) | BACKWARD_ARROWS
_MEMORY: Final = "cpu_instant_event"
_MIXED: Final = "Operator"
"""Operators and ranges of the user, which only their names tell apart."""
_SPAN_KINDS: Final = {
    **{category: kind for category, kind in CATEGORY_KINDS.items() if category != _MIXED},
    **dict.fromkeys((*NAMED_RANGES, "gpu_user_annotation"), ANNOTATION),
}
_Field = tuple[str, Any] | tuple[str, Any, Any]


def _joined(first: type[msgspec.Struct], second: type[msgspec.Struct]) -> type[Any]:
    """Return a record with the fields of both, those of the second last."""
    last = msgspec.structs.fields(second)
    names = {field.name for field in last}
    fields = [*[field for field in msgspec.structs.fields(first) if field.name not in names], *last]
    described = [
        (field.name, field.type, msgspec.field(default=field.default, name=field.encode_name)) for field in fields
    ]
    return msgspec.defstruct(f"Whole{first.__name__}", described, gc=False)


_WITH_COLLECTIVES: Final[dict[type[Any], type[Any]]] = {
    kind: _joined(kind, CollectiveArgs) for kind in (DeviceArgs, OpArgs)
}


class TypedRecords(Record, frozen=True):
    """How to decode a chunk the quick way.

    Attributes:
        decoder: Decodes the list of records.
        spans: Category of each type of record that has a length.
        arrows: Category of each type of arrow.
        memory: The type of allocations, and of other instants of their category.
        with_collectives: Whether arguments hold all that is said of a collective, not only its name.
        with_frames: Whether Python frames hold more than their names.
    """

    decoder: msgspec.json.Decoder[list[Any]]
    spans: dict[type[Any], str]
    arrows: dict[type[Any], str]
    memory: type[Any]
    with_collectives: bool
    with_frames: bool


@lru_cache(maxsize=8)
def typed_records(kinds: frozenset[int], *, memory: bool, collectives: bool, frames: bool) -> TypedRecords:
    """Return how to decode chunks of which only some kinds of records, and perhaps allocations, are wanted.

    Records of other kinds are decoded as far as they count: not their arguments, and of Python frames the names alone,
    which tell runs of the garbage collector, unless `frames` asks for their times. With `collectives`, arguments hold
    all that is said of a collective, which makes them more than twice as large.
    """
    with_frames = frames or PYTHON in kinds
    spans: dict[type[Any], str] = {}
    for category, kind in _SPAN_KINDS.items():
        args = None
        if kind in kinds:
            args = ARGS_OF_KIND[kind]
            args = _WITH_COLLECTIVES.get(args, args) if collectives else args
        spans[_record(category, _fields(args, is_bare=kind == PYTHON and not with_frames))] = category
    arrows = {_record(category, [("ph", Literal["s", "f"])]): category for category in sorted(_ARROWS)}
    fields: list[_Field] = [("ph", Literal["i"])]
    if memory:
        fields += [("name", str, ""), ("tid", Text, 0), ("ts", int | float | None, None), _args(MemoryArgs)]
    instant = _record(_MEMORY, fields)
    union: Any = instant
    for member in (*spans, *arrows):
        union = union | member
    return TypedRecords(msgspec.json.Decoder(type=list_of(union)), spans, arrows, instant, collectives, with_frames)


def _fields(args: type[Any] | None, *, is_bare: bool) -> list[_Field]:
    """Return the fields of a kind of records, of which only those that are wanted have arguments."""
    fields: list[_Field] = [("ph", Literal["X"]), ("name", str, "")]
    if is_bare:
        return fields
    number = int | float | None
    fields += [("pid", Text, 0), ("tid", Text, 0), ("ts", number, None), ("dur", number, None)]
    if args is not None:
        fields.append(_args(args))
    return fields


def _args(kind: type[Any]) -> _Field:
    return ("args", kind, msgspec.field(default_factory=kind))


def _record(category: str, fields: list[_Field]) -> type[Any]:
    return msgspec.defstruct(f"Typed_{category}", fields, gc=False, tag_field="cat", tag=category)
