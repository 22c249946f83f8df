"""What one file holds, as columns of its raw tables."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import polars as pl

from scope.trace.arguments import CollectiveCoder
from scope.trace.categories import LAUNCH, OP
from scope.trace.instants import LastEnd
from scope.trace.pending import Pending, Values

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from scope.trace.columns import Column, Table


class Coder(dict[Any, int]):
    """Gives each distinct text the number of its first appearance; 0 is the empty text, which stands for none."""

    def __init__(self, nothing: str | bytes) -> None:
        super().__init__()
        self[nothing] = 0

    def __missing__(self, text: Any) -> int:
        """Number a new text."""
        code = self[text] = len(self)
        return code

    def texts(self) -> list[str | None]:
        """Return the texts by their numbers; the first is None."""
        known = [key.decode(errors="replace") if isinstance(key, bytes) else key for key in self]
        return [None, *known[1:]]


def _nothing_pending() -> dict[type[Table], Pending]:
    return defaultdict(Pending)


@dataclass
class Collected:
    """Everything that was read from one file, before linking."""

    names: Coder = field(default_factory=lambda: Coder(""))
    texts: Coder = field(default_factory=lambda: Coder(b""))
    pending: dict[type[Table], Pending] = field(default_factory=_nothing_pending)
    collectives: CollectiveCoder = field(default_factory=CollectiveCoder)
    collectives_of_events: dict[int, tuple[int, int | None]] = field(
        default_factory=dict[int, "tuple[int, int | None]"]
    )
    """By the row of a device event, in file order: code of what it says of its collective, and sequence number."""
    collectives_of_ops: dict[int, tuple[int, int | None]] = field(default_factory=dict[int, "tuple[int, int | None]"])
    """By the row of an operator, likewise."""
    threads: dict[int, str] = field(default_factory=dict[int, str])
    processes: dict[int, set[object]] = field(default_factory=lambda: {OP: set[object](), LAUNCH: set[object]()})
    """Ids of the processes whose operators, and whose calls, stand in the file."""
    arrow_categories: set[str] = field(default_factory=set[str])
    last_end: LastEnd = field(default_factory=LastEnd)
    num_device_events: int = 0
    num_asynchronous: int = 0
    events_read: int = 0
    events_lost: int = 0
    events_repaired: int = 0

    def keep(self, table: type[Table], rows: int, values: Mapping[Column, Values]) -> None:
        """Take rows of a table."""
        self.pending[table].add(rows, values)

    def frame(self, *tables: type[Table]) -> pl.DataFrame:
        """Return all rows of the table whose columns these declare, and forget them."""
        pending = self.pending[tables[-1]]
        if pending.rows:
            return pending.take()
        return pl.DataFrame(schema={str(column): column.dtype for table in tables for column in table.columns()})

    def height(self, table: type[Table]) -> int:
        """Return the number of rows so far."""
        return self.pending[table].rows

    def num_nulls(self, table: type[Table], column: Column) -> int:
        """Return how many values of a column are absent."""
        return self.pending[table].num_nulls(column)

    def peek(self, table: type[Table], columns: Sequence[Column]) -> pl.DataFrame:
        """Return some columns of a table's rows so far, of which there is one at least."""
        return self.pending[table].peek(columns)
