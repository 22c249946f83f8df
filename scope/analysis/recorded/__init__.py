"""Figures of a recorded run: what every step, rank and collective took, from the frames of `scope.open_run`."""

from scope.analysis.recorded.changes import PhaseChanges, compare_phases
from scope.analysis.recorded.collectives import CollectiveSummary, summarize_collectives
from scope.analysis.recorded.crashes import Ends, describe_ends, is_explained
from scope.analysis.recorded.failures import Failure, describe_failures, find_failures
from scope.analysis.recorded.goodput import compute_goodput, compute_kept, count_lost_steps, is_count_of_lost_at_least
from scope.analysis.recorded.groups import (
    GroupExcess,
    MeshRanks,
    is_nobody_compared,
    mesh_axes,
    peer_sets,
    summarize_excess_by_group,
)
from scope.analysis.recorded.imposed_wait import ImposedWait, compute_imposed_wait
from scope.analysis.recorded.input_cost import (
    INPUT_BOUND_RATIO,
    MIN_COST_STEPS,
    InputCost,
    compute_input_cost,
    keep_usual_steps,
)
from scope.analysis.recorded.mismatches import IssuedCall, Mismatch, describe_mismatch, find_mismatches
from scope.analysis.recorded.progress import GroupProgress, MissedCall, compute_group_progress, find_missed_calls
from scope.analysis.recorded.ranks import (
    RankExcess,
    bin_rank_steps,
    compute_rank_excess,
    describe_slowest,
    say_where,
)
from scope.analysis.recorded.standing import (
    SILENCE_CAUSES,
    ProcessTable,
    RunState,
    assess_run,
    describe_command_end,
)
from scope.analysis.recorded.stepless import describe_stepless
from scope.analysis.recorded.steps import StepSummary, compute_phase_totals, summarize_steps
from scope.analysis.recorded.stragglers import is_mended
from scope.analysis.recorded.summary import (
    RunSummary,
    compute_waste,
    find_unwritten_reason,
    summarize_run,
    with_goodput,
)
from scope.analysis.recorded.titles import title_of, title_with_ranks
from scope.analysis.recorded.traffic import AxisTraffic, summarize_traffic
from scope.analysis.recorded.verdicts import find_verdicts, is_refuted
from scope.analysis.recorded.watched import Watched

__all__ = [
    "INPUT_BOUND_RATIO",
    "MIN_COST_STEPS",
    "SILENCE_CAUSES",
    "AxisTraffic",
    "CollectiveSummary",
    "Ends",
    "Failure",
    "GroupExcess",
    "GroupProgress",
    "ImposedWait",
    "InputCost",
    "IssuedCall",
    "MeshRanks",
    "Mismatch",
    "MissedCall",
    "PhaseChanges",
    "ProcessTable",
    "RankExcess",
    "RunState",
    "RunSummary",
    "StepSummary",
    "Watched",
    "assess_run",
    "bin_rank_steps",
    "compare_phases",
    "compute_goodput",
    "compute_group_progress",
    "compute_imposed_wait",
    "compute_input_cost",
    "compute_kept",
    "compute_phase_totals",
    "compute_rank_excess",
    "compute_waste",
    "count_lost_steps",
    "describe_command_end",
    "describe_ends",
    "describe_failures",
    "describe_mismatch",
    "describe_slowest",
    "describe_stepless",
    "find_failures",
    "find_mismatches",
    "find_missed_calls",
    "find_unwritten_reason",
    "find_verdicts",
    "is_count_of_lost_at_least",
    "is_explained",
    "is_mended",
    "is_nobody_compared",
    "is_refuted",
    "keep_usual_steps",
    "mesh_axes",
    "peer_sets",
    "say_where",
    "summarize_collectives",
    "summarize_excess_by_group",
    "summarize_run",
    "summarize_steps",
    "summarize_traffic",
    "title_of",
    "title_with_ranks",
    "with_goodput",
]
