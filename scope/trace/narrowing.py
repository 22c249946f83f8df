"""Reading only some of the tables: what each of them needs, and what stands in the place of the others.

A table that was not read is never an empty one, which would look as if nothing had happened: whoever touches it is
told by a `UsageError`. Columns that only another table can fill are left out of their table in the same way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from scope.errors import UsageError
from scope.trace import schema

if TYPE_CHECKING:
    from collections.abc import Iterable

    import polars as pl

    from scope.trace.columns import Column, Table
    from scope.trace.model import RankTrace

Tables = frozenset["type[Table]"]

TABLE_NAMES: Final[dict[str, type[Table]]] = {
    "device_events": schema.DeviceEvents,
    "ops": schema.Ops,
    "launches": schema.Launches,
    "collective_calls": schema.CollectiveCalls,
    "annotations": schema.Annotations,
    "steps": schema.Steps,
    "memory": schema.Memory,
    "syncs": schema.Syncs,
    "python_calls": schema.PythonCalls,
}
"""The fields of `RankTrace` that are tables."""

WHOLE: Final[Tables] = frozenset(schema.TABLES)
_ALWAYS: Final = (schema.Annotations, schema.Steps)
"""Few records, which say what the steps are that all other tables point into."""
_NEEDS: Final[dict[type[Table], tuple[type[Table], ...]]] = {
    schema.DeviceEvents: (schema.Launches,),
    schema.Launches: (schema.DeviceEvents,),
    schema.CollectiveCalls: (schema.DeviceEvents, schema.Launches, schema.Ops),
}
_FILLED_BY: Final[dict[type[Table], dict[Column, type[Table]]]] = {
    schema.DeviceEvents: {
        schema.DeviceEvents.op_id: schema.Ops,
        schema.DeviceEvents.kernel_class: schema.Ops,
        schema.DeviceEvents.call_id: schema.CollectiveCalls,
    },
    schema.Launches: {schema.Launches.op_id: schema.Ops},
    schema.Memory: {schema.Memory.op_id: schema.Ops},
}


class NotLoaded:
    """Stands in the place of a table that was not read; any use of it raises `UsageError`."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def _refuse(self) -> UsageError:
        table = TABLE_NAMES[self._name].__name__
        message = f"the table {self._name} was not read from this trace: name {table} among ReadOptions.tables"
        return UsageError(message)

    def __repr__(self) -> str:
        """Say which table is missing."""
        return f"NotLoaded({self._name!r})"

    def __getattr__(self, name: str) -> Any:
        """Refuse, but for what Python itself looks for."""
        if name.startswith("__"):
            raise AttributeError(name)
        raise self._refuse()

    def __getitem__(self, key: object) -> Any:
        """Refuse."""
        raise self._refuse()

    def __len__(self) -> int:
        """Refuse."""
        raise self._refuse()


def with_needs(tables: Iterable[type[Table]]) -> Tables:
    """Return the tables with those that they cannot be made without.

    Raises:
        UsageError: One of them is no table of a trace.
    """
    found: set[type[Table]] = set(_ALWAYS)
    waiting = list(tables)
    for table in waiting:
        if table not in WHOLE:
            known = ", ".join(each.__name__ for each in schema.TABLES)
            message = f"{table!r} is no table of a trace; there are {known}, all in scope.trace.schema"
            raise UsageError(message)
    while waiting:
        table = waiting.pop()
        if table not in found:
            found.add(table)
            waiting += _NEEDS.get(table, ())
    return frozenset(found)


def known_columns(table: type[Table], loaded: Tables) -> list[Column]:
    """Return the columns of a table that can be filled when only `loaded` are read."""
    filled_by = _FILLED_BY.get(table, {})
    return [column for column in table.columns() if filled_by.get(column, table) in loaded]


def checked(frame: pl.DataFrame, table: type[Table], loaded: Tables) -> pl.DataFrame:
    """Return the known columns of a table, or what stands for a table that is not read.

    Raises:
        AssertionError: Columns, types or nulls are not as declared, which is a defect of the code that made the frame.
    """
    if table not in loaded:
        return not_loaded(_field_of(table))
    columns = known_columns(table, loaded)
    chosen = frame if frame.columns == columns else frame.select(columns)
    for column, values in zip(columns, chosen.get_columns(), strict=True):
        assert values.dtype == column.dtype, f"{table.__name__}.{column} is {values.dtype}"
        assert column.nullable or not values.null_count(), f"{table.__name__}.{column} holds nulls"
    return chosen


def narrowed(trace: RankTrace, loaded: Tables) -> RankTrace:
    """Return a trace that holds only some of its tables, as if no others had been read."""
    tables: dict[str, Any] = {name: checked(getattr(trace, name), table, loaded) for name, table in TABLE_NAMES.items()}
    quality = trace.quality
    if schema.Ops not in loaded:
        quality = replace(quality, host_overlaps=None, attributed_ratio=None)
    return replace(trace, **tables, not_loaded=names_of_absent(loaded), quality=quality)


def names_of_absent(loaded: Tables) -> tuple[str, ...]:
    """Return the fields of `RankTrace` that hold no table."""
    return tuple(name for name, table in TABLE_NAMES.items() if table not in loaded)


def not_loaded(name: str) -> Any:
    """Return what stands for the table that a field of `RankTrace` would hold."""
    return NotLoaded(name)


def _field_of(table: type[Table]) -> str:
    return next(name for name, each in TABLE_NAMES.items() if each is table)
