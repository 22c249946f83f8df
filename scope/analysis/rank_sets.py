"""Lists of ranks under numbers: calls of one group share its list, which of a large job is far longer than all else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from scope.trace.eager import taken
from scope.trace.schema import CollectiveCalls

if TYPE_CHECKING:
    from collections.abc import Sequence

NUMBER: Final = pl.UInt32()
"""Type of the numbers; null where the ranks are not known."""
_LIST: Final = "ranks"
_NUMBER: Final = "number"
_PLACE: Final = "place"
_RANK: Final = "rank"


class RankSets:
    """Distinct lists of ranks, each of which has a number."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[int, ...], int] = {}
        self._lists: list[tuple[int, ...]] = []

    def number(self, ranks: Sequence[int]) -> int:
        """Return the number of a list, a new one where it was not seen before."""
        own = tuple(ranks)
        known = self._numbers.setdefault(own, len(self._lists))
        if known == len(self._lists):
            self._lists.append(own)
        return known

    def numbers(self, lists: pl.Series) -> pl.Series:
        """Return the number of each list of a column."""
        distinct = lists.drop_nulls().unique(maintain_order=True)
        known = [self.number(ranks) for ranks in distinct.to_list()]
        told = pl.DataFrame([distinct.alias(_LIST), pl.Series(_NUMBER, known, dtype=NUMBER)])
        return lists.alias(_LIST).to_frame().join(told, on=_LIST, how="left", maintain_order="left")[_NUMBER]

    def ranks(self, number: int) -> tuple[int, ...]:
        """Return the list with this number."""
        return self._lists[number]

    def sizes(self, numbers: pl.Series) -> pl.Series:
        """Return how many ranks the lists of a column have."""
        return taken(pl.Series([len(ranks) for ranks in self._lists], dtype=CollectiveCalls.group_size.dtype), numbers)

    def keys(self, numbers: pl.Series) -> pl.Series:
        """Return a short text for each list of a column, in the order of the lists as text."""
        texts = [",".join(map(str, ranks)) for ranks in self._lists]
        places = {text: place for place, text in enumerate(sorted(texts))}
        return taken(pl.Series([f"{places[text]:010d}" for text in texts], dtype=pl.String), numbers)

    def at(self, numbers: pl.Series, places: pl.Series) -> pl.Series:
        """Return the rank at a place of each list of a column; null where there is none."""
        asked = pl.DataFrame([numbers.alias(_NUMBER), places.alias(_PLACE)])
        pairs = asked.drop_nulls().unique()
        found = [self._at(number, place) for number, place in pairs.iter_rows()]
        told = pairs.with_columns(pl.Series(_RANK, found, dtype=pl.Int32))
        return asked.join(told, on=(_NUMBER, _PLACE), how="left", maintain_order="left")[_RANK]

    def _at(self, number: int, place: int) -> int | None:
        ranks = self._lists[number]
        return ranks[place] if -len(ranks) <= place < len(ranks) else None
