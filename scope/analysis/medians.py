"""The median, by one rule: the middle one of the values in order, of two middle ones the lower.

So a median is a value that occurs, and of whole numbers a whole number; `statistics.median_low` is the same. A median
rate is that of the median time, so that both are of one event (`median_rate`). Only what
is compared and never shown (median absolute deviation) and Prometheus' `quantile`, in alert rules and Grafana, may lie
between two middle values.
"""

from __future__ import annotations

import polars as pl


def lower_median(values: str | pl.Expr) -> pl.Expr:
    """Return the median of a column without its nulls; null where nothing is left.

    Args:
        values: The column. Of whole numbers the result is a float that holds one, exact up to 2**53.
    """
    column = pl.col(values) if isinstance(values, str) else values
    return column.quantile(0.5, interpolation="lower")


def lower_median_ns(values: str | pl.Expr) -> pl.Expr:
    """Return the median of lengths of time as whole nanoseconds."""
    return lower_median(values).cast(pl.Int64)


def median_rate(rates: str | pl.Expr) -> pl.Expr:
    """Return the rate of what took the median time, where equal amounts took times that differ; null without any.

    The longer the time the lower the rate, so of two middle rates the higher belongs to the lower of two middle times.
    """
    column = pl.col(rates) if isinstance(rates, str) else rates
    return column.quantile(0.5, interpolation="higher")
