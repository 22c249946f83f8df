"""Ranks that make others wait, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from scope.report.sections.base import column, figure, figures, whole_table
from scope.report.sections.quality import format_ranks
from scope.units import format_duration

if TYPE_CHECKING:
    from collections.abc import Iterator

    from scope.analysis.straggler_facts import Straggler
    from scope.analysis.stragglers import Stragglers
    from scope.report.table import Cell, ReportColumn, ReportTable

STRAGGLER_COLUMNS: Final[tuple[ReportColumn, ...]] = (
    column("rank", "rank", "Global rank.", unit="id"),
    column(
        "imposed_wait_ns",
        "imposed wait",
        "How long its groups wait for it alone: its own time between collectives (exposed communication taken off) "
        "beyond every peer's, at most last less second-last arrival (less the last outside its ring where it holds up "
        "a ring of context parallelism). At most that long where the excess is absent.",
    ),
    column(
        "saving_ns",
        "fix saves",
        "How much sooner the recorded part of the job would have ended, had this rank alone worked as fast as its "
        "peers' median: all collectives played again. What it does behind its last collective there is not compared.",
    ),
    column("reason", "reason", "Which of its times exceeds the peers' median most: compute, input, memory, host."),
    column("compute_excess_ns", "excess compute", "Compute beyond the peers' median before those collectives."),
    column("input_excess_ns", "excess input", "Idle for input beyond the peers' median."),
    column("memory_excess_ns", "excess memory", "Copies and allocation beyond the peers' median."),
    column("host_excess_ns", "excess host", "Other idle time beyond the peers' median."),
    column("num_collectives", "collectives", "Collectives at which it imposed wait."),
    column("num_steps", "steps", "Steps in which it did."),
    column("worst_step_number", "worst step", "The step with most imposed wait.", unit="id"),
    column("worst_step_imposed_wait_ns", "in worst step", "Imposed wait in that step."),
    column("peers", "peers", "Ranks that it is compared with."),
    column(
        "noise_floor_ns",
        "noise floor",
        "Lateness below the clocks' probable error plus this counts for nobody.",
    ),
)
_VERDICT: Final = ("rank", "imposed_wait_ns", "saving_ns", "reason")
_WHERE: Final = ("num_collectives", "num_steps", "worst_step_number", "worst_step_imposed_wait_ns")
_EXCESS: Final = ("compute_ns", "input_ns", "memory_ns", "host_ns")


def stragglers_table(stragglers: Stragglers) -> ReportTable:
    """Return the stragglers, most imposed wait first, with the verdict as a note."""
    rows = [_row(straggler) for straggler in stragglers.stragglers]
    notes = [stragglers.verdict, *_together_notes(stragglers)]
    if stragglers.has_missing_ranks and stragglers.savings.height:
        notes.append(
            "Ranks are missing: fixing saves what stands here as far as those at hand tell. More is saved where others "
            "wait behind a missing one, less where that is late itself or hands on what others are late by."
        )
    if stragglers.num_collectives_skipped:
        total = stragglers.num_collectives_judged + stragglers.num_collectives_skipped
        notes.append(
            f"Judged on {stragglers.num_collectives_judged:,} of {total:,} collectives: the rest are incomplete, cut, "
            "pairs, of an unknown root, among stages of one pipeline, begun while compute launched before them still "
            "ran, or the first of recordings that begin at different steps."
        )
    return whole_table("stragglers", "Stragglers", STRAGGLER_COLUMNS, rows, notes=notes)


def _together_notes(stragglers: Stragglers) -> Iterator[str]:
    together = stragglers.together
    if together is not None and stragglers.stragglers:
        yield (
            f"Mending ranks {format_ranks(together.ranks)} together would save {format_duration(together.saving_ns)}: "
            "more than mending any of them alone, behind which the others are waited for."
        )


def together_record(stragglers: Stragglers) -> dict[str, Any] | None:
    """Return the ranks that are late together as JSON has them."""
    together = stragglers.together
    return None if together is None else {"ranks": list(together.ranks), "saving_ns": together.saving_ns}


def no_stragglers_table(reason: str) -> ReportTable:
    """Return the table without a row, with the reason why nobody can be named as its note."""
    note = f"No stragglers can be told: {reason}."
    return whole_table("stragglers", "Stragglers", STRAGGLER_COLUMNS, (), notes=(note,))


def _row(straggler: Straggler) -> tuple[Cell, ...]:
    reason = straggler.absent.get("excess", "its times could not be compared with its peers'")
    return (
        *(figure(straggler, name) for name in _VERDICT),
        *figures(straggler.excess, _EXCESS, reason=reason),
        *(figure(straggler, name) for name in _WHERE),
        format_ranks(straggler.peers),
        straggler.noise_floor_ns,
    )
