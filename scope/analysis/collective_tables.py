"""The tables of the cross-rank analyses, declared once.

Instants are on the reference clock of the clock component (`scope.analysis.clock`): the rank's own clock less its
offset, where one was applied. A null is unknown; the reason stands in the column `reason` of the collective.
"""

from __future__ import annotations

from typing import Final

import polars as pl

from scope.trace.columns import Column, Table
from scope.trace.schema import OPERATIONS, VARIANTS

MATCH_STATES: Final = ("matched", "alone", "ambiguous", "unmatchable")
"""`alone`: no other rank's part was found; `ambiguous`: several alignments of the ranks' calls fit, or none does,
or the trace shows several groups and does not say which; `unmatchable`: a point-to-point call whose peers are unknown,
or a group that cannot be told from its namesakes."""

TIERS: Final = ("node", "network")
"""Whether a group lies in one node or spans several."""

_NAME: Final = pl.Categorical()


class MatchedCalls(Table):
    """One rank's part in each collective, sorted by collective and rank; unmatched calls come last."""

    collective_id = Column("collective_id", pl.UInt32, "row of `CollectiveRows`", nullable=True)
    state = Column("state", pl.Enum(MATCH_STATES), "how well the call found its partners")
    is_of_unknown_group = Column(
        "is_of_unknown_group", pl.Boolean, "the trace shows several groups, and does not say which the call ran in"
    )
    rank = Column("rank", pl.Int32, "global rank")
    call_id = Column("call_id", pl.UInt32, "row of the rank's `CollectiveCalls`")
    step_number = Column("step_number", pl.Int64, "n of the `ProfilerStep#n` that launched it", nullable=True)
    is_root = Column("is_root", pl.Boolean, "root of a rooted operation, or sender", nullable=True)
    arrival_ns = Column("arrival_ns", pl.Int64, "start of its first kernel, on the reference clock")
    end_ns = Column("end_ns", pl.Int64, "end of its last kernel, on the reference clock")
    window_start_ns = Column("window_start_ns", pl.Int64, "when the recording of the rank began", nullable=True)
    lateness_ns = Column("lateness_ns", pl.Int64, "arrival after the first arrival seen", nullable=True)
    wait_ns = Column(
        "wait_ns",
        pl.Int64,
        "from its arrival to that of the ranks it waits for, as seen; at least, if ranks miss; in a collective that is "
        "cut it may be the profiler's doing",
        nullable=True,
    )
    clock_interval_ns = Column("clock_interval_ns", pl.Int64, "width of the rank's clock interval", nullable=True)


class CollectiveRows(Table):
    """One logical operation across ranks, sorted by first arrival."""

    collective_id = Column("collective_id", pl.UInt32, "row number")
    operation = Column("operation", pl.Enum(OPERATIONS), "one name whatever the library")
    variant = Column("variant", pl.Enum(VARIANTS), "how it was called")
    library = Column("library", _NAME, "nccl, rccl, gloo, ...")
    group_id = Column("group_id", pl.UInt32, "row of `GroupRows`")
    sequence = Column("sequence", pl.Int64, "`Seq`, or the ordinal in its group where the trace has none")
    step_number = Column("step_number", pl.Int64, "step in which the first rank launched it", nullable=True)
    dtype = Column("dtype", _NAME, "element type as the trace has it", nullable=True)
    message_bytes = Column("message_bytes", pl.Int64, "full message, as bandwidth counts it", nullable=True)
    num_ranks_seen = Column("num_ranks_seen", pl.Int32, "ranks whose part is in the traces")
    num_ranks = Column("num_ranks", pl.Int32, "ranks of the group", nullable=True)
    is_complete = Column("is_complete", pl.Boolean, "every rank was seen; else waits are at least, transfer at most")
    is_cut = Column(
        "is_cut", pl.Boolean, "some rank arrived before the recording of another began, so that waits are not known"
    )
    first_arrival_ns = Column("first_arrival_ns", pl.Int64, "first arrival seen, on the reference clock")
    last_arrival_ns = Column("last_arrival_ns", pl.Int64, "last arrival seen")
    end_ns = Column("end_ns", pl.Int64, "last end seen")
    last_rank = Column("last_rank", pl.Int32, "rank that arrived last (the lowest of equals)")
    skew_ns = Column(
        "skew_ns", pl.Int64, "last less first arrival; null where one of several ranks was seen", nullable=True
    )
    transfer_ns = Column("transfer_ns", pl.Int64, "last end less last arrival; at most, if ranks miss", nullable=True)
    total_wait_ns = Column(
        "total_wait_ns", pl.Int64, "sum of the ranks' waits; at least, if ranks miss; null if cut", nullable=True
    )
    imposed_wait_ns = Column(
        "imposed_wait_ns", pl.Int64, "last less second-last arrival; null if ranks miss or it is cut", nullable=True
    )
    algbw_bytes_per_s = Column("algbw_bytes_per_s", pl.Float64, "message bytes / transfer", nullable=True)
    busbw_bytes_per_s = Column("busbw_bytes_per_s", pl.Float64, "algbw times the bus factor", nullable=True)
    tier = Column("tier", pl.Enum(TIERS), "inside one node, or across the network", nullable=True)
    clock_interval_ns = Column("clock_interval_ns", pl.Int64, "bound on the error that clocks add", nullable=True)
    clock_error_ns = Column(
        "clock_error_ns", pl.Int64, "error that clocks probably add, by what each clock assumes", nullable=True
    )
    reason = Column("reason", pl.String, "why a figure of this row is null or a bound", nullable=True)


class GroupRows(Table):
    """The groups of ranks that collectives ran in, in the order of their first collective."""

    group_id = Column("group_id", pl.UInt32, "row number")
    name = Column("name", pl.String, "process group name", nullable=True)
    description = Column("description", pl.String, "process group description, a mesh axis say", nullable=True)
    ranks = Column("ranks", pl.List(pl.Int32), "global ranks, sorted; sender and receiver of a pair", nullable=True)
    num_ranks = Column("num_ranks", pl.Int32, "ranks of the group", nullable=True)
    is_assumed = Column("is_assumed", pl.Boolean, "the trace does not say the group; all ranks of the job are assumed")
    is_inferred = Column(
        "is_inferred", pl.Boolean, "calls do not say the group; it is the only one listed that their sizes fit"
    )
    is_pair = Column("is_pair", pl.Boolean, "sender and receiver of point-to-point calls")
    tier = Column("tier", pl.Enum(TIERS), "inside one node, or across the network", nullable=True)
    num_ranks_on_narrowest_node = Column(
        "num_ranks_on_narrowest_node", pl.Int32, "fewest of the group's ranks on any node it touches", nullable=True
    )


class CollectiveSummaryRows(Table):
    """Collectives by group, operation, variant, dtype and message size; most transfer and wait first.

    Transfers and bandwidths are those of complete collectives, waits and skews those of the uncut among them;
    `num_collectives` counts all. Medians are values that occur: of two transfers in the
    middle the lower, and the bandwidths are those of that collective.
    """

    group_id = Column("group_id", pl.UInt32, "row of `GroupRows`")
    operation = Column("operation", pl.Enum(OPERATIONS), "one name whatever the library")
    variant = Column("variant", pl.Enum(VARIANTS), "how it was called")
    library = Column("library", _NAME, "nccl, rccl, gloo, ...")
    dtype = Column("dtype", _NAME, "element type as the trace has it", nullable=True)
    message_bytes = Column("message_bytes", pl.Int64, "full message", nullable=True)
    tier = Column("tier", pl.Enum(TIERS), "inside one node, or across the network", nullable=True)
    num_collectives = Column("num_collectives", pl.Int64, "all collectives of the row")
    num_measured = Column("num_measured", pl.Int64, "those that transfers and bandwidths come from: complete ones")
    total_transfer_ns = Column("total_transfer_ns", pl.Int64, "transfers summed over the collectives", nullable=True)
    median_transfer_ns = Column("median_transfer_ns", pl.Int64, "median transfer, the lower of two", nullable=True)
    total_wait_ns = Column("total_wait_ns", pl.Int64, "waits summed over ranks and uncut collectives", nullable=True)
    num_cut = Column("num_cut", pl.Int64, "measured ones at the edge of a rank's window, left out of waits and skews")
    max_skew_ns = Column("max_skew_ns", pl.Int64, "largest skew of the uncut", nullable=True)
    median_algbw_bytes_per_s = Column(
        "median_algbw_bytes_per_s", pl.Float64, "algbw of the collective of median transfer", nullable=True
    )
    median_busbw_bytes_per_s = Column(
        "median_busbw_bytes_per_s", pl.Float64, "busbw of the collective of median transfer", nullable=True
    )
    max_busbw_bytes_per_s = Column("max_busbw_bytes_per_s", pl.Float64, "best busbw", nullable=True)


class RankWaitRows(Table):
    """What each rank waited for others, sorted by rank; complete, uncut collectives only."""

    rank = Column("rank", pl.Int32, "global rank")
    num_collectives = Column("num_collectives", pl.Int64, "complete, uncut collectives it took part in")
    wait_ns = Column(
        "wait_ns", pl.Int64, "sum of its waits, overlapped or not: those of calls pending at once may exceed the window"
    )
    num_last = Column("num_last", pl.Int64, "collectives at which it arrived last")
    num_cut = Column("num_cut", pl.Int64, "collectives at the edge of a rank's window, left out of these")
    cut_wait_ns = Column("cut_wait_ns", pl.Int64, "waits seen in those, which may be the profiler's doing")


class CollectiveRooflineRows(Table):
    """Message size against bus bandwidth, one row per group, operation and size; largest total first.

    The sisters of a group are the others of its axis and shape, measured by the same operation on as many bytes: what
    they reach is what its own links should.
    """

    group_id = Column("group_id", pl.UInt32, "row of `GroupRows`")
    operation = Column("operation", pl.Enum(OPERATIONS), "one name whatever the library")
    library = Column("library", _NAME, "nccl, rccl, gloo, ...")
    dtype = Column("dtype", _NAME, "element type as the trace has it", nullable=True)
    num_ranks = Column("num_ranks", pl.Int32, "ranks of the group")
    tier = Column("tier", pl.Enum(TIERS), "inside one node, or across the network", nullable=True)
    num_ranks_on_narrowest_node = Column(
        "num_ranks_on_narrowest_node", pl.Int32, "fewest of the group's ranks on any node it touches", nullable=True
    )
    message_bytes = Column("message_bytes", pl.Int64, "full message")
    num_collectives = Column("num_collectives", pl.Int64, "collectives in the row")
    total_transfer_ns = Column("total_transfer_ns", pl.Int64, "sum of the transfers")
    median_busbw_bytes_per_s = Column(
        "median_busbw_bytes_per_s", pl.Float64, "busbw of the collective of median transfer"
    )
    max_busbw_bytes_per_s = Column("max_busbw_bytes_per_s", pl.Float64, "best busbw")
    ceiling_bytes_per_s = Column("ceiling_bytes_per_s", pl.Float64, "what the links allow, one way", nullable=True)
    attained_ratio = Column("attained_ratio", pl.Float64, "median busbw / ceiling", nullable=True)
    is_above_ceiling = Column(
        "is_above_ceiling",
        pl.Boolean,
        "best busbw above the ceiling: reduction in the network, or a wrong ceiling",
        nullable=True,
    )
    num_sisters = Column(
        "num_sisters", pl.Int64, "its sisters: other groups of its axis and shape with as large messages; a pair is one"
    )
    sister_busbw_bytes_per_s = Column(
        "sister_busbw_bytes_per_s", pl.Float64, "median busbw of its sisters, of two the higher", nullable=True
    )
    sister_ratio = Column("sister_ratio", pl.Float64, "median busbw / that of its sisters", nullable=True)
    reason = Column("reason", pl.String, "why there is no ceiling", nullable=True)


ROOFLINE_KEYS: Final = (
    CollectiveRooflineRows.operation,
    CollectiveRooflineRows.library,
    CollectiveRooflineRows.dtype,
    CollectiveRooflineRows.num_ranks,
    CollectiveRooflineRows.tier,
    CollectiveRooflineRows.num_ranks_on_narrowest_node,
    CollectiveRooflineRows.message_bytes,
)
"""What collectives must have in common for the links to allow them the same bandwidth."""
