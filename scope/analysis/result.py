"""What every result has in common: figures that are absent say why, and a result can check itself.

A figure that cannot be known is None, and `absent` of the same result holds the reason under the field's name. JSON
keeps this form: `{"overlap_ratio": null, "absent": {"overlap_ratio": "no communication in this window"}}`.
"""

from __future__ import annotations

from copy import copy
from functools import cached_property
from typing import TYPE_CHECKING, Self, TypeGuard, cast

import msgspec

from scope.structs import Record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    import polars as pl


class Result(Record, frozen=True, kw_only=True):
    """Base of every result of an analysis."""

    absent: Mapping[str, str] = msgspec.field(default_factory=dict[str, str])
    """Reason by field name, for exactly the fields that are None."""

    def check(self) -> Self:
        """Return the result when it and every result in it is consistent.

        Raises:
            AssertionError: A field is None without a reason, a reason has no such field, or parts don't sum to the
                whole; each is a defect of the code that made the result.
        """
        missing = {name for name in self.__struct_fields__ if getattr(self, name) is None}
        assert missing == set(self.absent), f"{type(self).__name__}: absent {missing}, reasons for {set(self.absent)}"
        self._check_sums()
        for name in self.__struct_fields__:
            _check_within(getattr(self, name))
        return self

    def _check_sums(self) -> None:
        """Assert that the parts of this result sum to its whole; a result with parts overrides this."""


class LazyResult:
    """Base of results whose figures (`cached_property`) are computed when they are first looked at, and kept."""

    def values(self) -> dict[str, object]:
        """Return all figures by name, in the order of their declaration."""
        return {name: getattr(self, name) for name, each in vars(type(self)).items() if _is_figure(each)}

    def check(self) -> Self:
        """Return the result when every result in it is consistent.

        Raises:
            AssertionError: One is not, which is a defect of the code that made it.
        """
        for value in self.values().values():
            _check_within(value)
        return self

    def changed(self, change: Callable[[object], object]) -> Self:
        """Return a copy of which each figure is what `change` makes of it."""
        changed = copy(self)
        vars(changed).update({name: change(value) for name, value in self.values().items()})
        return changed


def _is_figure(value: object) -> TypeGuard[cached_property[object]]:
    return isinstance(value, cached_property)


def _check_within(value: object) -> None:
    """Check the results that a field holds, directly or in a tuple."""
    if isinstance(value, Result | LazyResult):
        value.check()
    elif isinstance(value, tuple):
        for each in cast("Iterable[object]", value):
            _check_within(each)


class Distribution(Record, frozen=True, kw_only=True):
    """Summary of a set of lengths of time; quantiles are values that occur (the lower of two neighbours)."""

    num_values: int
    total_ns: int
    min_ns: int
    median_ns: int
    p90_ns: int
    max_ns: int

    @classmethod
    def of(cls, values_ns: pl.Series) -> Self:
        """Return the summary of integer lengths.

        Args:
            values_ns: At least one value, no nulls.
        """
        quantiles = [values_ns.quantile(q, interpolation="lower") for q in (0.0, 0.5, 0.9, 1.0)]
        smallest, median, p90, largest = (int(quantile or 0) for quantile in quantiles)
        return cls(
            num_values=len(values_ns),
            total_ns=int(values_ns.sum()),
            min_ns=smallest,
            median_ns=median,
            p90_ns=p90,
            max_ns=largest,
        )

    @property
    def mean_ns(self) -> float:
        """Arithmetic mean."""
        return self.total_ns / self.num_values


def summarize_lengths(lengths: pl.Series) -> Distribution | None:
    """Return the summary of lengths of time in nanoseconds; None when there are none."""
    if lengths.is_empty():
        return None
    median, p90 = (lengths.quantile(share, interpolation="lower") for share in (0.5, 0.9))
    return Distribution(
        num_values=len(lengths),
        total_ns=int(lengths.sum()),
        min_ns=int(cast("int", lengths.min())),
        median_ns=int(cast("float", median)),
        p90_ns=int(cast("float", p90)),
        max_ns=int(cast("int", lengths.max())),
    )
