"""Mend a sample that holds what cannot be sent: numbers beyond 64 bits, names that are no UTF-8."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from scope.probe.records import Problem

if TYPE_CHECKING:
    from collections.abc import Callable

    from exporters.wire import Sample

COLLECTORS_OF_PARTS: Final = {
    "gpus": "gpu", "xids": "xid", "rdma": "rdma", "affinities": "affinity", "nets": "net", "nfs": "nfs", "host": "host",
}  # fmt: skip
"""Collector of each part of a sample that holds figures."""
_DROPPED: Final = object()
_SMALLEST: Final = -(2**63)
_LARGEST: Final = 2**64 - 1


def repair(sample: Sample) -> Sample:
    """Return the sample without what cannot be sent, each such figure counted among its problems.

    An optional figure becomes absent; a record that cannot do without it is left out whole.
    """
    refused: list[str] = []
    parts = {
        name: _mend(getattr(sample, name), name, refused.append)
        for name in sample.__struct_fields__
        if name not in {"sequence", "time_ns", "monotonic_ns"}
    }
    kept = {name: part for name, part in parts.items() if part is not _DROPPED}
    mended = msgspec.structs.replace(sample, **kept)
    mended.problems = [
        *mended.problems,
        *[Problem(_collector(place), "implausible", place, "a number beyond 64 bits") for place in refused],
    ]
    return mended


def _collector(place: str) -> str:
    part, _, rest = place.partition(".")
    # What is no figure of a device is kept by the collector's name: how long it took, why there is none.
    return COLLECTORS_OF_PARTS.get(part) or rest.partition(".")[0]


def _mend(value: Any, place: str, refuse: Callable[[str], None]) -> Any:
    if isinstance(value, int):
        if _SMALLEST <= value <= _LARGEST:
            return value
        refuse(place)
        return _DROPPED
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        items = cast("dict[Any, Any]", value).items()
        mended = {_mend(key, place, refuse): _mend(item, f"{place}.{key}", refuse) for key, item in items}
        return {key: item for key, item in mended.items() if item is not _DROPPED}
    if isinstance(value, list):
        mended_items = [_mend(item, place, refuse) for item in cast("list[Any]", value)]
        return [item for item in mended_items if item is not _DROPPED]
    if isinstance(value, msgspec.Struct):
        return _mend_record(value, place, refuse)
    return value


def _mend_record(record: msgspec.Struct, place: str, refuse: Callable[[str], None]) -> Any:
    changes: dict[str, Any] = {}
    for field in msgspec.structs.fields(record):
        mended = _mend(getattr(record, field.name), f"{place}.{field.name}", refuse)
        if mended is _DROPPED:
            if field.default is msgspec.NODEFAULT:
                return _DROPPED
            mended = field.default
        changes[field.name] = mended
    return msgspec.structs.replace(record, **changes)
