"""Who stands above whom in a tree given by the parent of each row."""

from __future__ import annotations

import polars as pl


def find_roots(parents: pl.Series) -> pl.Series:
    """Return for every row its topmost ancestor, which is the row itself where it has no parent.

    Args:
        parents: Row number of each row's parent; null for none. There must be no cycle.
    """
    rows = pl.int_range(len(parents), dtype=pl.UInt32, eager=True)
    return inherit(rows.zip_with(parents.is_null(), pl.Series([None], dtype=pl.UInt32)), parents)


def inherit(values: pl.Series, parents: pl.Series) -> pl.Series:
    """Return each row's value, or where it is null that of the nearest ancestor that has one.

    Args:
        values: One value a row.
        parents: Row number of each row's parent; null for none. There must be no cycle.
    """
    # Every round doubles how far up a row has looked, so the rounds are few however deep the tree is.
    while parents.null_count() < len(parents):
        values = values.zip_with(values.is_not_null(), values.gather(parents))
        parents = parents.gather(parents)
    return values
