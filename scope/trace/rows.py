"""Decoded arguments -> columns of the raw tables, texts as codes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import polars as pl

from scope.trace.categories import COLLECTIVE_CATEGORY
from scope.trace.eager import is_true
from scope.trace.events import NO_TEXT
from scope.trace.pending import Repeated, int_series
from scope.trace.raw import RawAnnotations, RawDevice, RawLaunches, RawMemory, RawOps, RawPython, RawSyncs

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import msgspec

    from scope.trace.collected import Coder
    from scope.trace.columns import Column
    from scope.trace.events import (
        AnnotationArgs,
        DeviceArgs,
        LaunchArgs,
        MemoryArgs,
        OpArgs,
        PythonArgs,
        SyncArgs,
    )
    from scope.trace.pending import Values

_UINT64: Final = range(2**64)
_BETWEEN: Final = b"\0"
"""Stands in no JSON."""


def device_columns(members: list[Any], args: list[DeviceArgs], category: str, texts: Coder) -> dict[Column, Values]:
    """Return the columns of kernels, copies and sets, their kinds and External ids apart."""
    devices = [arg.device for arg in args]
    if _lacks_some(devices):
        devices = [event.pid if known is None else known for known, event in zip(devices, members, strict=True)]
    streams = [arg.stream for arg in args]
    if _lacks_some(streams):
        streams = [event.tid if known is None else known for known, event in zip(streams, members, strict=True)]
    return {
        RawDevice.device: devices,
        RawDevice.stream: streams,
        RawDevice.correlation: [arg.correlation for arg in args],
        RawDevice.grid: _codes([arg.grid for arg in args], texts),
        RawDevice.block: _codes([arg.block for arg in args], texts),
        RawDevice.registers: _sparse([arg.registers for arg in args]),
        RawDevice.shared_memory: _sparse([arg.shared_memory for arg in args]),
        RawDevice.occupancy: _sparse([arg.occupancy for arg in args]),
        RawDevice.bytes: _sparse([arg.bytes for arg in args]),
        RawDevice.copy_kind: _sparse_codes([arg.kind for arg in args], lambda kind: texts[str(kind).encode()]),
        RawDevice.graph_id: _sparse([arg.graph_id for arg in args]),
        RawDevice.is_collective: _are_collective(args, category),
    }


def _are_collective(args: list[DeviceArgs], category: str) -> Values:
    names = _sparse([arg.collective for arg in args])
    if category == COLLECTIVE_CATEGORY or isinstance(names, Repeated):
        return Repeated(category == COLLECTIVE_CATEGORY, len(args))
    return [name is not None for name in names]


def op_columns(args: list[OpArgs], texts: Coder) -> dict[Column, Values]:
    """Return the columns of operators."""
    dims = [arg.old_input_dims if arg.input_dims is NO_TEXT else arg.input_dims for arg in args]
    files = [arg.kernel_file for arg in args]
    return {
        RawOps.external_id: external_ids(args),
        RawOps.sequence_number: _sparse([arg.sequence_number for arg in args]),
        RawOps.forward_thread: _sparse([arg.forward_thread for arg in args]),
        RawOps.input_dims: _codes(dims, texts),
        RawOps.input_types: _codes([arg.input_types for arg in args], texts),
        RawOps.input_strides: _codes([arg.input_strides for arg in args], texts),
        RawOps.concrete_inputs: _codes([arg.concrete_inputs for arg in args], texts),
        RawOps.kernel_file: _sparse_codes(files, lambda file: texts[file.encode(errors="replace")]),
    }


def launch_columns(args: list[LaunchArgs]) -> dict[Column, Values]:
    """Return the columns of calls of a runtime or driver, their External ids apart."""
    return {RawLaunches.correlation: [arg.correlation for arg in args]}


def annotation_columns(args: list[AnnotationArgs], category: str, names: Coder, texts: Coder) -> dict[Column, Values]:
    """Return the columns of named ranges."""
    on_device = category.lower().endswith("_user_annotation") and category != "user_annotation"
    code = names["gpu_user_annotation" if on_device else category]
    return {
        RawAnnotations.category: Repeated(code, len(args)),
        RawAnnotations.external_id: external_ids(args),
        RawAnnotations.input_dims: _codes([arg.input_dims for arg in args], texts),
        RawAnnotations.input_types: _codes([arg.input_types for arg in args], texts),
    }


def sync_columns(members: list[Any], args: list[SyncArgs], names: Coder) -> dict[Column, Values]:
    """Return the columns of waits."""
    return {
        RawSyncs.kind: [names[arg.sync_kind or event.name] for arg, event in zip(args, members, strict=True)],
        RawSyncs.device: [arg.device for arg in args],
        RawSyncs.stream: [arg.stream for arg in args],
        RawSyncs.waited_stream: [arg.waited_stream for arg in args],
        RawSyncs.waited_correlation: [arg.waited_correlation for arg in args],
        RawSyncs.correlation: [arg.correlation for arg in args],
    }


def python_columns(args: list[PythonArgs]) -> dict[Column, Values]:
    """Return the columns of Python frames."""
    return {
        RawPython.python_id: [arg.python_id for arg in args],
        RawPython.parent_id: [arg.parent_id for arg in args],
        RawPython.module_id: [arg.module_id for arg in args],
    }


def memory_columns(members: list[Any], args: list[MemoryArgs]) -> dict[Column, Values]:
    """Return the columns of allocations and releases, their instants apart.

    A size that makes no sense is null, and so is the size of a record after which less than nothing would be in use.
    """
    allocated = int_series(RawMemory.allocated_bytes, [arg.total_allocated for arg in args])
    reserved = int_series(RawMemory.reserved_bytes, [arg.total_reserved for arg in args])
    sizes = int_series(RawMemory.size_bytes, [arg.size for arg in args])
    is_nonsense = is_true(allocated < 0) | is_true(reserved < 0)
    if is_nonsense.any():
        sizes = pl.select(pl.when(~is_nonsense).then(sizes)).to_series()
    return {
        RawMemory.thread: [event.tid for event in members],
        RawMemory.device_type: [arg.device_type for arg in args],
        RawMemory.device: [arg.device_id for arg in args],
        RawMemory.address: _addresses([arg.address for arg in args]),
        RawMemory.size_bytes: sizes,
        RawMemory.allocated_bytes: allocated,
        RawMemory.reserved_bytes: reserved,
    }


def _sparse(values: list[Any]) -> list[Any] | Repeated:
    """Return the values of a field that few records have."""
    # Counting compares, which takes long unless the values are all None.
    is_absent = values[0] is None and values.count(None) == len(values)
    return Repeated(None, len(values)) if is_absent else values


def _sparse_codes(values: list[Any], code: Callable[[Any], int]) -> Values:
    """Return the codes of a field that few records have, 0 where it is absent."""
    known = _sparse(values)
    if isinstance(known, Repeated):
        return Repeated(0, len(values))
    return [0 if value is None else code(value) for value in known]


def _codes(raws: list[msgspec.Raw], texts: Coder) -> Values:
    """Return the codes of JSON texts, 0 for an absent one."""
    if raws == [NO_TEXT] * len(raws):
        return Repeated(0, len(raws))
    # Making bytes of each for itself would take twice as long.
    pieces = _BETWEEN.join(raws).split(_BETWEEN)
    if len(pieces) != len(raws):
        pieces = [bytes(raw) for raw in raws]
    return [texts[piece] for piece in pieces]


def external_ids(args: Sequence[Any]) -> list[int | None]:
    """Return the External id of each record, which older profilers wrote in small letters."""
    ids = [arg.external_id for arg in args]
    if _lacks_some(ids):
        ids = [arg.old_external_id if known is None else known for known, arg in zip(ids, args, strict=True)]
    return ids


def _lacks_some(values: list[Any]) -> bool:
    """Say whether some values are None; to ask numbers whether they are true takes half of comparing them."""
    return not all(values) and None in values


def _addresses(values: list[int | None]) -> pl.Series:
    """Return addresses, null where one does not fit 64 bits."""
    try:
        return pl.Series(RawMemory.address, values, dtype=pl.UInt64)
    except (TypeError, OverflowError):
        known = [value if value is not None and value in _UINT64 else None for value in values]
        return pl.Series(RawMemory.address, known, dtype=pl.UInt64)
