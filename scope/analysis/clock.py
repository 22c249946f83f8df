"""How far the clocks of the ranks stand apart, from the collectives that they took part in together.

No rank ends a symmetric collective before the last one arrives, no receiver ends before its sender or root arrives. So
every call bounds offsets: with T the instant at which a collective's last arrival happens on the reference clock,
`arrival_i - offset_i <= T <= end_j - offset_j`. The interval of each rank is the tightest that all calls together
allow (shortest paths over ranks and collectives, linear in the calls): it holds the truth whatever the ranks did. The
estimate is the median difference of ends, which assumes that ranks leave a symmetric collective together. Clocks of one
host, or that agree by the estimate, are left as recorded, which assumes that they are one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

import msgspec
import polars as pl

from scope.analysis.clock_bounds import ClockBounds, bound_offsets
from scope.analysis.clock_estimates import (
    DRIFT,
    OFFSET,
    ClockEstimate,
    drifted,
    estimate_clocks,
    find_bounding_calls,
    middle_of,
)
from scope.analysis.collective_tables import MatchedCalls
from scope.analysis.result import Result

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SAME_CLOCK_NS: Final = 10_000
"""Ranks whose ends of common collectives differ by less are taken to share a clock: devices of one host agree within a
few us."""

ClockAssumption = Literal["reference", "one host", "clocks agree", "ends together"]
"""What the clock that figures are stated on rests on: the rank is the reference; the ranks share a host, so that their
clocks are one; the recorded clocks agree within 10 us; or else ranks leave symmetric collectives together."""

_PARTS: Final = 1e9
"""Parts in a billion."""


class ClockOffset(Result, frozen=True, kw_only=True):
    """One rank's clock against the reference rank of its component: rank's time = reference's time + offset."""

    rank: int
    reference_rank: int
    """The lowest rank of the component; its own offset is 0."""
    component: int
    """Index into `ClockAlignment.components`."""
    offset_ns: int
    """Estimate, at the middle of the calls in common: the median difference of their ends, held inside the interval; it
    assumes that ranks leave a symmetric collective together."""
    low_ns: int | None
    """The offset is at least this, whatever the ranks did; None without a collective that bounds it."""
    high_ns: int | None
    """The offset is at most this."""
    drift_ppb: float
    """How much faster than the reference the clock runs, nanoseconds a second; 0 where none stands out."""
    residual_ns: int | None
    """Median distance of the ends of common collectives after the estimate is taken off."""
    num_collectives: int
    """Collectives that the estimate rests on."""
    is_applied: bool
    """Offset and drift were taken off the rank's instants; False where its clock is left as recorded."""
    assumption: ClockAssumption
    """What the clock rests on that figures are stated on."""
    error_ns: int | None
    """How wrong that clock probably is, if the assumption holds; None where nothing bounds it.

    The interval is wider: a rank that is always late makes it as wide as it is late.
    """

    @property
    def interval_ns(self) -> int | None:
        """Width of the interval that holds the true offset, and of what the instants of figures are off by at most."""
        if self.low_ns is None or self.high_ns is None:
            return None
        # Calls of one host that contradict one clock leave it as recorded, outside of their interval.
        return self.high_ns - self.low_ns if self.is_applied else max(self.high_ns, 0) - min(self.low_ns, 0)

    def _check_sums(self) -> None:
        if self.low_ns is not None and self.high_ns is not None:
            assert self.low_ns <= self.offset_ns <= self.high_ns, f"rank {self.rank}: estimate outside its interval"


class ClockAlignment(Result, frozen=True, kw_only=True):
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


def compute_clock_alignment(calls: pl.DataFrame, *, hosts: Mapping[int, str | None]) -> ClockAlignment:
    """Estimate the offset of every rank's clock.

    Args:
        calls: `Matched.calls` of `scope.analysis.matching`, instants on the ranks' own clocks.
        hosts: Host of every rank whose trace is at hand, None where unknown. Ranks of one host share its clock: between
            them nothing is corrected.
    """
    usable = find_bounding_calls(calls)
    middle_ns = middle_of(usable)
    estimates = estimate_clocks(usable, sorted(hosts), middle_ns)
    bounds = bound_offsets(usable, estimates, middle_ns)
    members: dict[int, list[int]] = {}
    for rank in sorted(estimates):
        members.setdefault(estimates[rank].reference_rank, []).append(rank)
    offsets: list[ClockOffset] = []
    for component, (reference, ranks) in enumerate(sorted(members.items())):
        on_one_host = len({hosts[rank] for rank in ranks}) == 1 and hosts[reference] is not None
        found = [_offset(rank, component, estimates[rank], bounds) for rank in ranks]
        is_consistent = reference not in bounds.contradicted
        is_agreed = on_one_host or (is_consistent and all(_agrees(offset) for offset in found))
        assumption: ClockAssumption = "one host" if on_one_host else "clocks agree"
        offsets += [_as_recorded(offset, assumption) if is_agreed else offset for offset in found]
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
        schema={MatchedCalls.rank: MatchedCalls.rank.dtype, OFFSET: pl.Int64, DRIFT: pl.Float64},
        orient="row",
    )
    joined = frame.join(clocks, on=MatchedCalls.rank, how="left", maintain_order="left")
    shift = pl.col(OFFSET).fill_null(0)
    moved = [
        (pl.col(name) - shift - drifted(pl.col(name) - shift, alignment.middle_ns)).alias(name) for name in instants
    ]
    return joined.with_columns(moved).drop(OFFSET, DRIFT)


def _offset(rank: int, component: int, estimate: ClockEstimate, bounds: ClockBounds) -> ClockOffset:
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
            "this rank's clock is the reference of those that share collectives with it"
            if rank == reference
            else "no symmetric collective or pair in common"
        )
    error = _error(low, high, estimate.residual_ns)
    if error is None:
        absent["error_ns"] = reason
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
        assumption="reference" if rank == reference else "ends together",
        error_ns=error,
        absent=absent,
    )


def _error(low_ns: int | None, high_ns: int | None, residual_ns: int | None) -> int | None:
    """Return how wrong an estimate probably is: ranks end together within what clocks of one host and ends scatter."""
    if low_ns is None or high_ns is None:
        return None
    interval = high_ns - low_ns
    return interval if residual_ns is None else min(interval, 2 * (SAME_CLOCK_NS + residual_ns))


def _agrees(offset: ClockOffset) -> bool:
    """Return whether the rank's clock as recorded is that of its reference, as far as the calls show."""
    if offset.drift_ppb or abs(offset.offset_ns) > SAME_CLOCK_NS:
        return False
    return (offset.low_ns is None or offset.low_ns <= 0) and (offset.high_ns is None or offset.high_ns >= 0)


def _as_recorded(offset: ClockOffset, assumption: ClockAssumption) -> ClockOffset:
    """Return the offset of a rank whose clock is left as recorded: off by 10 us at most if the assumption holds."""
    if offset.rank == offset.reference_rank:
        absent = {"residual_ns": offset.absent["residual_ns"]}
        return msgspec.structs.replace(offset, is_applied=False, low_ns=0, high_ns=0, error_ns=0, absent=absent)
    low = -SAME_CLOCK_NS if offset.low_ns is None else max(offset.low_ns, -SAME_CLOCK_NS)
    high = SAME_CLOCK_NS if offset.high_ns is None else min(offset.high_ns, SAME_CLOCK_NS)
    absent = {name: reason for name, reason in offset.absent.items() if name != "error_ns"}
    return msgspec.structs.replace(
        offset, is_applied=False, assumption=assumption, error_ns=max(high, 0) - min(low, 0), absent=absent
    )
