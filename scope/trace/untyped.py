"""What stands in decoded JSON of unknown shape, as types."""

from __future__ import annotations

from typing import Any, cast


def as_mapping(value: object) -> dict[str, Any]:
    """Return a JSON object, or an empty one when the value is something else."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def as_list(value: object) -> list[Any]:
    """Return a JSON list, or an empty one when the value is something else."""
    return cast("list[Any]", value) if isinstance(value, list) else []
