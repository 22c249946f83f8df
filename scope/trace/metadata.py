"""What a trace says beside its records: the job, its process groups, its devices."""

from __future__ import annotations

from typing import Any, Final

from scope.trace.instants import LARGEST_NS
from scope.trace.model import DeviceProperties, ProcessGroup
from scope.trace.ranks import MOST_RANKS
from scope.trace.untyped import as_list, as_mapping

_RANKS_END: Final = 2**31
_INT64_MAX: Final = 2**63 - 1


def base_nanoseconds(metadata: dict[str, Any]) -> int:
    """Return the instant that the file's instants count from."""
    base = metadata.get("baseTimeNanoseconds")
    if isinstance(base, str) and base.isdigit() and len(base) < 20:
        base = int(base)
    if isinstance(base, float) and base.is_integer():
        base = int(base)
    return base if isinstance(base, int) and not isinstance(base, bool) and 0 <= base < LARGEST_NS else 0


def world_size(info: dict[str, Any]) -> int | None:
    """Return the number of ranks; nonsense, of which lists of ranks would fill the memory, is none."""
    return _num_ranks(info.get("world_size"))


def process_groups(metadata: dict[str, Any]) -> dict[str, ProcessGroup]:
    """Return the process groups of `distributedInfo` by their names."""
    config: Any = as_mapping(metadata.get("distributedInfo")).get("pg_config")
    entries = list(as_mapping(config).values()) or as_list(config)
    groups: dict[str, ProcessGroup] = {}
    for entry in entries:
        fields = as_mapping(entry)
        if "pg_name" not in fields:
            continue
        listed = as_list(fields.get("ranks"))
        ranks: list[int] = [rank for rank in listed if type(rank) is int and 0 <= rank < _RANKS_END]
        size = _num_ranks(fields.get("pg_size"))
        name = str(fields["pg_name"])
        groups[name] = ProcessGroup(
            name=name,
            description=optional_text(fields.get("pg_desc")),
            backend=optional_text(fields.get("backend_config")),
            ranks=tuple(sorted(ranks)) if size is None or len(ranks) == size else (),
            size=size,
        )
    return groups


def device_properties(metadata: dict[str, Any]) -> tuple[DeviceProperties, ...]:
    """Return what the trace says of its devices."""
    found: list[DeviceProperties] = []
    for position, entry in enumerate(as_list(metadata.get("deviceProperties"))):
        fields = as_mapping(entry)
        major, minor = _integer(fields.get("computeMajor")), _integer(fields.get("computeMinor"))
        index = _integer(fields.get("id"))
        found.append(
            DeviceProperties(
                index=position if index is None else index,
                name=optional_text(fields.get("name")) or "",
                total_memory_bytes=_integer(fields.get("totalGlobalMem")),
                num_sms=_integer(fields.get("numSms")),
                compute_capability=(major, minor) if major is not None and minor is not None else None,
            )
        )
    return tuple(found)


def optional_text(value: Any) -> str | None:
    """Return a text, None for anything else."""
    return value if isinstance(value, str) else None


def _num_ranks(value: Any) -> int | None:
    size = _integer(value)
    return size if size is not None and 0 < size <= MOST_RANKS else None


def _integer(value: Any) -> int | None:
    if isinstance(value, str) and value.isdigit() and len(value) < 19:
        value = int(value)
    return value if type(value) is int and abs(value) < _INT64_MAX else None
