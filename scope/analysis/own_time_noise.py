"""How much own times of ranks scatter by chance, and what lateness stands out against that.

What a rank does differently from its peers each time is no chance: noise is how its distance from their median changes
from one time to the next, at one place of the step. Where a place was seen too few times to tell, noise is how far the
ranks lie from their median; of both the smaller counts. Of two ranks the distance from each other counts, and the
noise that is usual among the pairs of their axis where there are some: a pair of which one is late now and then has
nobody who shows what is usual. Where their places were seen too few times, noise is how their distance changes from
place to place.

Of many collectives in many groups the noisiest are late by several times that, in a healthy job too. So a rank is named
where it is late steadily, at one place of the step time after time (of fewer than three steps, at all places of them on
the average), measured by the noise of its mean and by its own standard error, or where it is late once far beyond all
noise. What such a rank is late by counts above the usual noise.
"""

from __future__ import annotations

from math import sqrt
from typing import Final

import polars as pl

from scope.analysis.collective_tables import CollectiveRows, GroupRows, MatchedCalls
from scope.analysis.group_names import UNDESCRIBED
from scope.analysis.own_time import OWN
from scope.analysis.readiness import READY
from scope.definitions import find_mesh_axis

NOISE_FLOOR_NS: Final = 10_000
"""Lateness below this is the jitter of launches."""

MIN_TIMES: Final = 3
"""A place of the step that was seen fewer times does not tell what changes."""
MARGIN: Final = "margin_ns"
"""How much the own time of the rank exceeds every peer's; below 0 where it does not."""
FLOOR: Final = "floor_ns"
"""Lateness below this is noise, by group."""
STARK: Final = "stark_ns"
"""One lateness above this is no noise, by group."""
IS_STEADY: Final = "is_steadily_late"
"""The rank is later than all its peers at this place of the step, time after time; of few steps, at all of them."""

_SCATTER: Final = "scatter_ns"
_NOISE_SCALE: Final = 3
"""Lateness counts above this many times the scatter."""
_STARK_SCALE: Final = 10
"""One lateness names above this many times the scatter: of normal noise, nearly 7 times its standard deviation."""
_STEADY_SCALE: Final = 6
"""The mean of several at one place names above this many times the scatter, divided by the root of their number."""
_STANDARD_ERRORS: Final = 3
"""It names above this many times its own standard error."""
_FEW_RANKS: Final = 3
_MANY: Final = 8
_MIN_GROUPS: Final = 3
"""Of fewer groups of an axis the one with a late rank might be what is usual."""

_DISTANCE: Final = "distance_ns"
_PLACE: Final = "place_in_step"
_PLACES: Final = "places_in_step"
_TIMES: Final = "num_times"
_APART: Final = "apart_ns"
_AXIS: Final = "axis"
_IN_TIME: Final = f"{_SCATTER}_in_time"
_OF_PLACE: Final = f"{_SCATTER}_of_place"
_USUAL: Final = f"{_SCATTER}_usual"
_COLLECTIVE: Final = MatchedCalls.collective_id
_GROUP: Final = CollectiveRows.group_id
_PLACE_KEYS: Final = (_GROUP, _PLACES, _PLACE)


def with_floors(own: pl.DataFrame, groups: pl.DataFrame) -> pl.DataFrame:
    """Add to each call how late the rank is by its own time, what of that is noise, and whether it is so steadily.

    Args:
        own: The judged calls, columns of `MatchedCalls`, the group, `READY` and `OWN`.
        groups: The table `GroupRows`.
    """
    placed = _placed(own)
    time = pl.col(OWN)
    highest, second = time.max().over(_COLLECTIVE), time.top_k(2).min().over(_COLLECTIVE)
    seen = pl.col(_COLLECTIVE).n_unique().over(_PLACE_KEYS)
    # Calls that follow others at once vary by nothing, those behind a long stretch of compute by much. Two or three
    # ranks tell little of one place, so what many of their places show counts, and what it shows itself as far as one
    # more does: a rank that is late now and then at one place is no noise.
    of_place = pl.col(_OF_PLACE) * _allowance(_PLACE_KEYS)
    are_few = pl.len().over(_COLLECTIVE) <= _FEW_RANKS
    shown_twice = pl.min_horizontal(of_place, of_place.unique().top_k(2).min().over(_GROUP))
    usual = pl.max_horizontal(of_place.quantile(0.75).over(_GROUP), shown_twice)
    of_places = pl.when(are_few).then(usual).otherwise(of_place)
    scatter = pl.max_horizontal(pl.col(_SCATTER) * _allowance((_GROUP,)), of_places)
    # What few steps do not show by one place, all places of them may: who is slow is later than its peers at most.
    is_steady = (
        pl.when(seen >= MIN_TIMES)
        .then(_is_steady(scatter, (*_PLACE_KEYS, MatchedCalls.rank), at_least=MIN_TIMES))
        .otherwise(_is_steady(scatter, (_GROUP, MatchedCalls.rank), at_least=_MANY))
    )
    floors = {FLOOR: pl.col(_SCATTER) * _NOISE_SCALE, STARK: scatter * _STARK_SCALE}
    return (
        placed.join(_scatter(placed, groups, by=(_GROUP,)), on=_GROUP)
        .join(
            _scatter(placed.filter(seen >= MIN_TIMES), groups, by=_PLACE_KEYS).rename({_SCATTER: _OF_PLACE}),
            on=_PLACE_KEYS,
            how="left",
        )
        .with_columns((time - pl.when(time == highest).then(second).otherwise(highest)).alias(MARGIN))
        .with_columns(
            is_steady.alias(IS_STEADY),
            *((noise.ceil().cast(pl.Int64) + NOISE_FLOOR_NS).alias(name) for name, noise in floors.items()),
        )
        .drop(_PLACE, _PLACES, _SCATTER, _OF_PLACE)
    )


def _is_steady(scatter: pl.Expr, by: tuple[str, ...], *, at_least: int) -> pl.Expr:
    """Return whether a rank is later than all its peers on the average, beyond noise and its own standard error."""
    margin, times = pl.col(MARGIN), pl.len().over(by)
    mean, error = margin.mean().over(by), margin.std().over(by) / times.sqrt()
    least = scatter * _STEADY_SCALE / times.sqrt() + NOISE_FLOOR_NS
    return (times >= at_least) & (mean > least) & (mean > error * _STANDARD_ERRORS)


def _allowance(by: tuple[str, ...]) -> pl.Expr:
    """Return by what noise is larger than a small group, or few collectives of a group or place, show.

    The median distance of few ranks from their own median is short of that of many by about 1.4 / ranks (drawn at
    random: by 0.53 for 3 ranks, 0.66 for 4, 0.85 for 8); a median of few distances may be small by chance.
    """
    ranks = pl.len().over(_COLLECTIVE)
    others = (pl.len().over(by) - pl.col(_COLLECTIVE).n_unique().over(by) - 1).clip(lower_bound=1)
    return pl.when(ranks > 2).then(ranks / (ranks - 1.4)).otherwise(1.0) * (1 + 2 / others)


def _placed(own: pl.DataFrame) -> pl.DataFrame:
    """Add the place of each call in its step, and how many there are: steps of unlike number are no repetition."""
    of_step = (_GROUP, MatchedCalls.step_number, MatchedCalls.rank)
    return own.sort(READY, MatchedCalls.arrival_ns, _COLLECTIVE).with_columns(
        pl.int_range(pl.len()).over(of_step).alias(_PLACE), pl.len().over(of_step).alias(_PLACES)
    )


def _scatter(placed: pl.DataFrame, groups: pl.DataFrame, *, by: tuple[str, ...]) -> pl.DataFrame:
    """Return, by group or by place of it, the median distance of own times from what is usual.

    Returns:
        Columns `by` and `_SCATTER`; 0 for pairs that were seen too few times, since neither shows what is usual.
    """
    num_ranks = pl.len().over(_COLLECTIVE)
    # Each of two is half as far from their mean as from the other.
    distance = (pl.col(OWN) - pl.col(OWN).median().over(_COLLECTIVE)) * pl.when(num_ranks == 2).then(2).otherwise(1)
    calls = placed.with_columns(distance.alias(_DISTANCE))
    across = (
        calls.filter(num_ranks > 2)
        .group_by(*by, _COLLECTIVE)
        .agg(pl.col(_DISTANCE).abs().median())
        .group_by(by)
        .agg(pl.col(_DISTANCE).median().alias(_SCATTER))
    )
    by_rank = (*_PLACE_KEYS, MatchedCalls.rank)
    # A change holds the chance of two times, hence the root of two.
    change = pl.col(_DISTANCE).diff().over(by_rank).abs() / sqrt(2)
    changes = (
        calls.with_columns(change.alias(_DISTANCE), pl.len().over(by_rank).alias(_TIMES))
        .filter(pl.col(_TIMES) >= MIN_TIMES)
        .group_by(*by, MatchedCalls.rank)
        # Of few the lower: one who is late once changes twice.
        .agg(pl.col(_DISTANCE).quantile(0.5, "lower"))
        .group_by(by)
        .agg(pl.col(_DISTANCE).median().alias(_IN_TIME))
    )
    found = placed.select(by).unique().join(across, on=by, how="left").join(changes, on=by, how="left")
    # Without steps no place is seen again: then noise is how the distance of two changes among many collectives. What
    # it usually is may be lateness of one of them, and is no noise.
    change_from_usual = pl.col(_DISTANCE) - pl.col(_DISTANCE).median().over(*by, MatchedCalls.rank)
    apart = (
        calls.filter(num_ranks == 2)
        .with_columns(change_from_usual.alias(_DISTANCE))
        .group_by(by)
        .agg(pl.col(_DISTANCE).abs().median().alias(_APART), pl.len().alias(_TIMES))
        .filter(pl.col(_TIMES) >= 2 * _MANY)
        .drop(_TIMES)
    )
    smaller = pl.min_horizontal(_SCATTER, _IN_TIME)
    return (
        found.join(_usual_of_pairs(found, groups, by=by), on=by, how="left")
        .join(apart, on=by, how="left")
        .select(*by, pl.coalesce(_USUAL, smaller, _APART).fill_null(0.0).alias(_SCATTER))
    )


def _usual_of_pairs(scatter: pl.DataFrame, groups: pl.DataFrame, *, by: tuple[str, ...]) -> pl.DataFrame:
    """Return, for groups of two ranks on an axis that has several, the median noise of the groups of that axis."""
    described = groups.filter(
        pl.col(GroupRows.num_ranks) == 2, pl.col(GroupRows.description).fill_null(UNDESCRIBED) != UNDESCRIBED
    ).select(GroupRows.group_id, GroupRows.description)
    axes = [(group, find_mesh_axis(text) or text) for group, text in described.iter_rows()]
    named = pl.DataFrame(axes, schema={str(_GROUP): _GROUP.dtype, _AXIS: pl.String}, orient="row")
    alike = (_AXIS, *by[1:])
    found = scatter.join(named, on=_GROUP).filter(pl.len().over(alike) >= _MIN_GROUPS)
    # Of an even number the lower: half of them may hold a rank that is late now and then.
    return found.select(*by, pl.col(_IN_TIME).quantile(0.5, "lower").over(alike).alias(_USUAL))
