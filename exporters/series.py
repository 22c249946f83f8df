"""Series: what a metric is, and the set of samples that one scrape shows."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

Kind = Literal["gauge", "counter", "info", "unknown"]
"""What a metric does: a gauge goes up and down, a counter only grows until it is reset, an info is always 1; unknown is
what another exporter, whose name it is, says no more of.
"""

Value = int | float


class Metric(NamedTuple):
    """One metric family.

    Attributes:
        name: Full name; a counter's ends in `_total`, an info's in `_info`.
        kind: What it does.
        help: One sentence with the unit and the source.
        labels: Names of the labels, in the order of their values.
    """

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()


class SeriesSet:
    """The samples of one moment, each series at most once.

    Attributes:
        num_duplicates: Series that were given twice and whose second value was dropped.
        num_refused: Counters below zero.
    """

    def __init__(self) -> None:
        self._families: dict[Metric, dict[tuple[str, ...], Value]] = {}
        self.num_duplicates = 0
        self.num_refused = 0

    def add(self, metric: Metric, labels: tuple[str, ...], value: Value | None) -> None:
        """Add one sample; None, NaN and infinity are left out, since absent is what they mean.

        A counter below zero cannot be; it is refused and counted.

        Args:
            metric: Its family.
            labels: Values of the family's labels.
            value: In the unit that the family's name states.
        """
        if value is None or (isinstance(value, float) and not math.isfinite(value)):
            return
        if value < 0 and metric.kind == "counter":
            self.num_refused += 1
            return
        family = self._families.setdefault(metric, {})
        if labels in family:
            self.num_duplicates += 1
            return
        family[labels] = value

    def __iter__(self) -> Iterator[tuple[Metric, dict[tuple[str, ...], Value]]]:
        return iter(self._families.items())

    def __len__(self) -> int:
        return sum(len(samples) for samples in self._families.values())

    def get(self, metric: Metric, labels: tuple[str, ...] = ()) -> Value | None:
        """Return one sample, or None when it is not there."""
        return self._families.get(metric, {}).get(labels)
