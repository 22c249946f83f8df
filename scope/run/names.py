"""Names of operations and variants that a newer minor version of the schema may have: read as what this one knows."""

from __future__ import annotations

from typing import Final

import msgspec

from scope.run.schema import OPERATIONS, VARIANTS, CollectiveTotal, StepLine

_OPERATIONS: Final = frozenset(OPERATIONS)
_VARIANTS: Final = frozenset(VARIANTS)
_SHOWN_CHARACTERS: Final = 40


def find_unknown_name(line: StepLine) -> str | None:
    """Return the first operation or variant of a step that this version does not know, at most 40 characters of it."""
    for total in line.collectives:
        if total.operation not in _OPERATIONS:
            return f"operation {total.operation[:_SHOWN_CHARACTERS]!r}"
        if total.variant not in _VARIANTS:
            return f"variant {total.variant[:_SHOWN_CHARACTERS]!r}"
    return None


def with_known_names(line: StepLine) -> StepLine:
    """Return a step whose other names became an "unknown" operation and a "plain" call, as unknown codes become.

    Totals that differ in such names alone stay apart: nothing that they count is lost or counted twice.
    """
    return msgspec.structs.replace(line, collectives=tuple(map(_known, line.collectives)))


def _known(total: CollectiveTotal) -> CollectiveTotal:
    return msgspec.structs.replace(
        total,
        operation=total.operation if total.operation in _OPERATIONS else "unknown",
        variant=total.variant if total.variant in _VARIANTS else "plain",
    )
