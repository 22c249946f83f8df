"""How far the clocks of the ranks stand apart, from the collectives that they took part in together.

No rank ends a symmetric collective before the last one arrives, no receiver ends before its sender or root arrives. So
every call bounds offsets: with T the instant at which a collective's last arrival happens on the reference clock,
`arrival_i - offset_i <= T <= end_j - offset_j`. The interval of each rank is the tightest that all calls together
allow (shortest paths over ranks and collectives, linear in the calls); the estimate is the median difference of ends.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import median_low
from typing import TYPE_CHECKING, Final

import polars as pl

from scope.analysis.collective_tables import GroupRows, MatchedCalls
from scope.analysis.matching import IS_SYMMETRIC, PAIRS
from scope.analysis.result import Result
from scope.trace.schema import CollectiveCalls

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SAME_CLOCK_NS: Final = 10_000
"""Ranks whose ends of common collectives differ by less share a clock: devices of one host agree within a few us."""

_MIN_CALLS_FOR_DRIFT: Final = 9
_DRIFT_SIGNIFICANCE: Final = 6
_MAX_DRIFT: Final = 1e-3
_PARTS: Final = 1e9
"""Parts in a billion."""
_TRUNCATION_NS: Final = 1_000
"""Old traces cut instants and lengths to whole microseconds."""

_FROM_ROOT: Final = ("broadcast", "scatter")
_TO_ROOT: Final = ("reduce", "gather")

_ARRIVAL: Final = "bounding_arrival_ns"
_END: Final = "bounding_end_ns"
_TIME: Final = "local_end_ns"
_KNOWN: Final = "known_end_ns"
_GAP: Final = "gap_ns"
_FIRST: Final = "first_ns"
_LAST: Final = "last_ns"
_OFFSET: Final = "offset_ns"
_DRIFT: Final = "drift"
_RESIDUAL: Final = "residual_ns"
_NEGATED: Final = "negated_instant_ns"
_BEST: Final = "best_ns"


@dataclass(frozen=True, kw_only=True, slots=True)
class ClockOffset(Result):
    """One rank's clock against the reference rank of its component: rank's time = reference's time + offset."""

    rank: int
    reference_rank: int
    """The lowest rank of the component; its own offset is 0."""
    component: int
    """Index into `ClockAlignment.components`."""
    offset_ns: int
    """Estimate, at the middle of the calls in common: the median difference of their ends, held inside the interval."""
    low_ns: int | None
    """The offset is at least this, whatever the ranks waited; None without a collective that bounds it."""
    high_ns: int | None
    """The offset is at most this."""
    drift_ppb: float
    """How much faster than the reference the clock runs, nanoseconds a second; 0 where none stands out."""
    residual_ns: int | None
    """Median distance of the ends of common collectives after the estimate is taken off."""
    num_collectives: int
    """Collectives that the estimate rests on."""
    is_applied: bool
    """Offset and drift were taken off the rank's instants; False where the recorded clocks of its component agree."""

    @property
    def interval_ns(self) -> int | None:
        """Width of the interval that holds the true offset."""
        return None if self.low_ns is None or self.high_ns is None else self.high_ns - self.low_ns

    def _check_sums(self) -> None:
        if self.low_ns is not None and self.high_ns is not None:
            assert self.low_ns <= self.offset_ns <= self.high_ns, f"rank {self.rank}: estimate outside its interval"


@dataclass(frozen=True, kw_only=True, slots=True)
class ClockAlignment(Result):
    """The clocks of all ranks; between components nothing is known."""

    offsets: tuple[ClockOffset, ...]
    """By rank."""
    components: tuple[tuple[int, ...], ...]
    """Ranks that collectives join, each sorted; in the order of their lowest rank."""
    middle_ns: int
    """The instant for which the offsets are stated; drift counts from there."""
    is_corrected: bool
    """Some rank's instants were moved; False where the clocks as recorded agree (one host, say)."""
    num_contradictions: int
    """Ranks of components whose calls no offsets explain, even with drift: a clock jumped, or calls match wrongly."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Estimate:
    """One rank's clock while it is being worked out."""

    reference_rank: int
    offset_ns: int
    drift: float
    residual_ns: int | None
    num_collectives: int


@dataclass(frozen=True, kw_only=True, slots=True)
class _Bounds:
    low_ns: Mapping[int, int]
    high_ns: Mapping[int, int]
    contradicted: frozenset[int]
    """Reference ranks of components in which no offsets satisfy all calls."""


def compute_clock_alignment(calls: pl.DataFrame, *, hosts: Mapping[int, str | None]) -> ClockAlignment:
    """Estimate the offset of every rank's clock.

    Args:
        calls: `Matched.calls` of `scope.analysis.matching`, instants on the ranks' own clocks.
        hosts: Host of every rank whose trace is at hand, None where unknown. Ranks of one host share its clock: between
            them nothing is corrected.
    """
    usable = _bounding(calls)
    middle_ns = _middle(usable)
    estimates = _estimate(usable, sorted(hosts), middle_ns)
    bounds = _close(usable, estimates, middle_ns)
    members: dict[int, list[int]] = {}
    for rank in sorted(estimates):
        members.setdefault(estimates[rank].reference_rank, []).append(rank)
    offsets: list[ClockOffset] = []
    for component, (reference, ranks) in enumerate(sorted(members.items())):
        on_one_host = len({hosts[rank] for rank in ranks}) == 1 and hosts[reference] is not None
        found = [_offset(rank, component, estimates[rank], bounds) for rank in ranks]
        is_agreed = on_one_host or all(_agrees(offset) for offset in found)
        offsets += [_as_recorded(offset) if is_agreed else offset for offset in found]
    return ClockAlignment(
        offsets=tuple(sorted(offsets, key=lambda offset: offset.rank)),
        components=tuple(tuple(ranks) for _, ranks in sorted(members.items())),
        middle_ns=middle_ns,
        is_corrected=any(offset.is_applied and (offset.offset_ns or offset.drift_ppb) for offset in offsets),
        num_contradictions=sum(each.reference_rank in bounds.contradicted for each in estimates.values()),
    )


def on_reference_clock(frame: pl.DataFrame, alignment: ClockAlignment, *, instants: Sequence[str]) -> pl.DataFrame:
    """Return `frame` with its columns `instants` moved from each rank's own clock to that of its reference rank.

    Args:
        frame: Any frame with the column `MatchedCalls.rank`.
        alignment: The clocks; a rank that it does not know stays as it is.
        instants: Names of Int64 columns.
    """
    applied = [offset for offset in alignment.offsets if offset.is_applied]
    if not applied:
        return frame
    clocks = pl.DataFrame(
        [(offset.rank, offset.offset_ns, offset.drift_ppb / _PARTS) for offset in applied],
        schema={MatchedCalls.rank: MatchedCalls.rank.dtype, _OFFSET: pl.Int64, _DRIFT: pl.Float64},
        orient="row",
    )
    joined = frame.join(clocks, on=MatchedCalls.rank, how="left", maintain_order="left")
    shift = pl.col(_OFFSET).fill_null(0)
    moved = [
        (pl.col(name) - shift - _drifted(pl.col(name) - shift, alignment.middle_ns)).alias(name) for name in instants
    ]
    return joined.with_columns(moved).drop(_OFFSET, _DRIFT)


def _drifted(instant: pl.Expr, middle_ns: int) -> pl.Expr:
    """Return by how much a clock with the column `_DRIFT` has run ahead since the middle, in whole nanoseconds."""
    return ((instant - middle_ns) * pl.col(_DRIFT).fill_null(0.0)).round().cast(pl.Int64)


def _bounding(calls: pl.DataFrame) -> pl.DataFrame:
    """Return the calls that bound clocks: whose arrival holds others up, and whose end shows that others arrived."""
    operation, is_root = pl.col(CollectiveCalls.operation), pl.col(MatchedCalls.is_root)
    # A rank that exchanges nothing with some other of an uneven all_to_all does not wait for it.
    has_zero = pl.any_horizontal(
        pl.col(split).list.contains(0).fill_null(value=False)
        for split in (CollectiveCalls.in_split, CollectiveCalls.out_split)
    )
    is_whole = pl.col(IS_SYMMETRIC) & ~has_zero.any().over(MatchedCalls.collective_id)
    from_root, to_root = operation.is_in((*_FROM_ROOT, PAIRS[0])), operation.is_in(_TO_ROOT)
    holds_up = is_whole | (from_root & is_root) | (to_root & ~is_root)
    shows = is_whole | (from_root & ~is_root) | (to_root & is_root)
    start, end = pl.col(CollectiveCalls.start_ns), pl.col(CollectiveCalls.end_ns)
    in_us = ((start % _TRUNCATION_NS == 0) & (end % _TRUNCATION_NS == 0)).all().over(MatchedCalls.rank)
    # Start and length were both cut, so the true end may lie two units later.
    slack = pl.when(in_us).then(2 * _TRUNCATION_NS).otherwise(0)
    return (
        calls.filter(pl.col(MatchedCalls.state) == "matched")
        .filter(pl.col(MatchedCalls.rank).n_unique().over(MatchedCalls.collective_id) > 1)
        .select(
            MatchedCalls.collective_id,
            MatchedCalls.rank,
            end.alias(_TIME),
            (pl.col(IS_SYMMETRIC) & ~has_zero).alias(IS_SYMMETRIC),
            GroupRows.is_pair,
            pl.when(holds_up).then(start).alias(_ARRIVAL),
            pl.when(shows).then(end + slack).alias(_END),
        )
    )


def _middle(usable: pl.DataFrame) -> int:
    bounds = usable.select(pl.col(_TIME).min().alias(_FIRST), pl.col(_TIME).max().alias(_LAST)).row(0)
    return 0 if bounds[0] is None else (bounds[0] + bounds[1]) // 2


def _estimate(usable: pl.DataFrame, ranks: Sequence[int], middle_ns: int) -> dict[int, _Estimate]:
    """Spread from the lowest rank of each component over the collectives in common, the symmetric ones first.

    Ranks leave rooted operations when they please, so that those bound clocks but say nothing of where between.
    """
    estimates: dict[int, _Estimate] = {}
    symmetric, pairs = usable.filter(pl.col(IS_SYMMETRIC)), usable.filter(pl.col(GroupRows.is_pair))
    for rank in ranks:
        if rank in estimates:
            continue
        estimates[rank] = _Estimate(reference_rank=rank, offset_ns=0, drift=0.0, residual_ns=None, num_collectives=0)
        while found := (
            _neighbours(symmetric, estimates, rank, middle_ns)
            or _neighbours(pairs, estimates, rank, middle_ns)
            or _joined(usable, estimates, rank)
        ):
            estimates |= found
    return estimates


def _neighbours(
    usable: pl.DataFrame, estimates: Mapping[int, _Estimate], reference: int, middle_ns: int
) -> dict[int, _Estimate]:
    """Return the clocks of ranks that share a collective with a rank of the component whose clock is known."""
    known = [rank for rank, each in estimates.items() if each.reference_rank == reference]
    inside = usable.filter(pl.col(MatchedCalls.rank).is_in(known))
    ends = (
        _with_estimates(inside, estimates)
        .with_columns((pl.col(_TIME) - pl.col(_OFFSET)).alias(_TIME))
        .group_by(MatchedCalls.collective_id)
        # An instant doesn't fit into a float, so the median (the lower of two) is picked by its place.
        .agg((pl.col(_TIME) - _drifted(pl.col(_TIME), middle_ns)).sort().get((pl.len() - 1) // 2).alias(_KNOWN))
    )
    gaps = usable.filter(~pl.col(MatchedCalls.rank).is_in(list(estimates))).join(ends, on=MatchedCalls.collective_id)
    gaps = gaps.with_columns((pl.col(_TIME) - pl.col(_KNOWN)).alias(_GAP))
    found: dict[int, _Estimate] = {}
    for (rank,), group in gaps.partition_by(MatchedCalls.rank, as_dict=True).items():
        found[int(rank)] = _fit(group.sort(_KNOWN), reference, middle_ns)
    return found


def _joined(usable: pl.DataFrame, estimates: Mapping[int, _Estimate], reference: int) -> dict[int, _Estimate]:
    """Return the clocks of ranks that only rooted operations join to the component: taken as the reference's."""
    known = [rank for rank, each in estimates.items() if each.reference_rank == reference]
    shared = usable.filter(pl.col(MatchedCalls.rank).is_in(known))[MatchedCalls.collective_id].unique()
    joined = usable.filter(
        pl.col(MatchedCalls.collective_id).is_in(shared.implode()), ~pl.col(MatchedCalls.rank).is_in(list(estimates))
    )
    return {
        int(rank): _Estimate(
            reference_rank=reference, offset_ns=0, drift=0.0, residual_ns=None, num_collectives=int(count)
        )
        for rank, count in joined.group_by(MatchedCalls.rank).len().sort(MatchedCalls.rank).iter_rows()
    }


def _fit(gaps: pl.DataFrame, reference: int, middle_ns: int) -> _Estimate:
    """Return the median gap, and the drift where it stands out from the scatter of the gaps."""
    times, values = gaps[_KNOWN].to_list(), gaps[_GAP].to_list()
    drift = _drift(times, values)
    level = [value - round(drift * (time - middle_ns)) for time, value in zip(times, values, strict=True)]
    offset = median_low(level)
    return _Estimate(
        reference_rank=reference,
        offset_ns=offset,
        drift=drift,
        residual_ns=median_low([abs(value - offset) for value in level]),
        num_collectives=len(values),
    )


def _drift(times_ns: Sequence[int], gaps_ns: Sequence[int]) -> float:
    """Return the slope between the medians of the first and the last third, or 0 where scatter explains it."""
    third = len(times_ns) // 3
    if len(times_ns) < _MIN_CALLS_FOR_DRIFT:
        return 0.0
    first, last = slice(0, third), slice(-third, None)
    span = median_low(times_ns[last]) - median_low(times_ns[first])
    rise = median_low(gaps_ns[last]) - median_low(gaps_ns[first])
    if span <= 0:
        return 0.0
    slope = rise / span
    centre = median_low(times_ns)
    level = [gap - slope * (time - centre) for time, gap in zip(times_ns, gaps_ns, strict=True)]
    middle = median_low(level)
    scatter = median_low([abs(value - middle) for value in level])
    error = max(scatter / third**0.5, 1.0)
    return slope if abs(rise) > _DRIFT_SIGNIFICANCE * error and abs(slope) <= _MAX_DRIFT else 0.0


def _with_estimates(frame: pl.DataFrame, estimates: Mapping[int, _Estimate]) -> pl.DataFrame:
    clocks = pl.DataFrame(
        [(rank, each.offset_ns, each.drift, each.residual_ns) for rank, each in estimates.items()],
        schema={
            MatchedCalls.rank: MatchedCalls.rank.dtype,
            _OFFSET: pl.Int64,
            _DRIFT: pl.Float64,
            _RESIDUAL: pl.Int64,
        },
        orient="row",
    )
    return frame.join(clocks, on=MatchedCalls.rank, how="left", maintain_order="left")


def _close(usable: pl.DataFrame, estimates: Mapping[int, _Estimate], middle_ns: int) -> _Bounds:
    """Return the tightest bounds that all calls together put on each offset.

    Each sweep carries bounds from ranks to collectives and back; it ends when nothing changes. A reference rank whose
    own offset would have to lie off 0 shows that no offsets satisfy all calls.
    """
    running = _drifted(pl.col(_TIME) - pl.col(_OFFSET), middle_ns)
    # A drift is known only as well as the ends agree.
    slack = pl.when(pl.col(_DRIFT) == 0.0).then(0).otherwise(2 * pl.col(_RESIDUAL).fill_null(0) + 2)
    edges = _with_estimates(usable, estimates).select(
        MatchedCalls.collective_id,
        MatchedCalls.rank,
        (pl.col(_ARRIVAL) - running - slack).alias(_ARRIVAL),
        (pl.col(_END) - running + slack).alias(_END),
    )
    # The lower bound of a clock is the upper bound of the clock that runs the other way.
    mirrored = edges.with_columns((-pl.col(_END)).alias(_ARRIVAL), (-pl.col(_ARRIVAL)).alias(_END))
    members: dict[int, list[int]] = {}
    for rank, each in estimates.items():
        members.setdefault(each.reference_rank, []).append(rank)
    low: dict[int, int] = {}
    high: dict[int, int] = {}
    contradicted: set[int] = set()
    for reference, ranks in members.items():
        inside = pl.col(MatchedCalls.rank).is_in(ranks)
        upper, lower = _tighten(edges.filter(inside), reference), _tighten(mirrored.filter(inside), reference)
        if upper is None or lower is None:
            contradicted.add(reference)
        else:
            high |= upper
            low |= {rank: -bound for rank, bound in lower.items()}
    return _Bounds(low_ns=low, high_ns=high, contradicted=frozenset(contradicted))


def _tighten(edges: pl.DataFrame, reference: int) -> dict[int, int] | None:
    """Return upper bounds of the offsets from the reference's, which is 0, or None when they contradict each other."""
    bounds = pl.DataFrame(
        {MatchedCalls.rank: [reference], _BEST: [0]},
        schema={MatchedCalls.rank: MatchedCalls.rank.dtype, _BEST: pl.Int64},
    )
    entering, leaving = edges.drop_nulls(_ARRIVAL), edges.drop_nulls(_END)
    # A shortest path visits each rank once, so that it is found after as many sweeps as there are ranks.
    for _ in range(edges[MatchedCalls.rank].n_unique() + 1):
        instants = (
            entering.join(bounds, on=MatchedCalls.rank)
            .group_by(MatchedCalls.collective_id)
            .agg((pl.col(_BEST) - pl.col(_ARRIVAL)).min().alias(_NEGATED))
        )
        reached = (
            leaving.join(instants, on=MatchedCalls.collective_id)
            .group_by(MatchedCalls.rank)
            .agg((pl.col(_END) + pl.col(_NEGATED)).min().alias(_BEST))
        )
        tighter = pl.concat([bounds, reached]).group_by(MatchedCalls.rank).agg(pl.col(_BEST).min())
        tighter = tighter.sort(MatchedCalls.rank)
        own = tighter.filter(pl.col(MatchedCalls.rank) == reference)[_BEST].item()
        if own < 0:
            return None
        if tighter.equals(bounds):
            return dict(tighter.iter_rows())
        bounds = tighter
    return None


def _offset(rank: int, component: int, estimate: _Estimate, bounds: _Bounds) -> ClockOffset:
    reference = estimate.reference_rank
    low, high = bounds.low_ns.get(rank), bounds.high_ns.get(rank)
    if rank == reference:
        low = high = 0
    if reference in bounds.contradicted:
        low = high = None
    offset = estimate.offset_ns
    if low is not None and high is not None and low > high:
        low = high = None
    offset = offset if low is None else max(offset, low)
    offset = offset if high is None else min(offset, high)
    reason = (
        "no offset of the clocks explains all calls: a clock jumped, or calls were matched wrongly"
        if reference in bounds.contradicted
        else "no collective bounds it from this side"
    )
    absent = {name: reason for name, bound in (("low_ns", low), ("high_ns", high)) if bound is None}
    if estimate.residual_ns is None:
        absent["residual_ns"] = (
            "the reference of its component" if rank == reference else "no symmetric collective or pair in common"
        )
    return ClockOffset(
        rank=rank,
        reference_rank=reference,
        component=component,
        offset_ns=offset,
        low_ns=low,
        high_ns=high,
        drift_ppb=estimate.drift * _PARTS,
        residual_ns=estimate.residual_ns,
        num_collectives=estimate.num_collectives,
        is_applied=True,
        absent=absent,
    )


def _agrees(offset: ClockOffset) -> bool:
    """Return whether the rank's clock as recorded is that of its reference, as far as the calls show."""
    if offset.drift_ppb or abs(offset.offset_ns) > SAME_CLOCK_NS:
        return False
    return (offset.low_ns is None or offset.low_ns <= 0) and (offset.high_ns is None or offset.high_ns >= 0)


def _as_recorded(offset: ClockOffset) -> ClockOffset:
    """Return the offset of a rank whose clock is left as recorded: it is off by no more than clocks of one host are."""
    if offset.rank == offset.reference_rank:
        return replace(offset, is_applied=False)
    low = -SAME_CLOCK_NS if offset.low_ns is None else max(offset.low_ns, -SAME_CLOCK_NS)
    high = SAME_CLOCK_NS if offset.high_ns is None else min(offset.high_ns, SAME_CLOCK_NS)
    # On one host the clock is one, whatever the calls seem to say.
    low, high = min(low, 0), max(high, 0)
    absent = {name: reason for name, reason in offset.absent.items() if name == "residual_ns"}
    estimate = min(max(offset.offset_ns, low), high)
    return replace(offset, is_applied=False, low_ns=low, high_ns=high, offset_ns=estimate, absent=absent)
