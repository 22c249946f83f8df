"""Findings: what is wrong, where, how one can tell, what it costs, and what to do; ranked by cost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from scope.report.findings import collectives, kernels, links, quality, time
from scope.report.findings.basis import Basis, make_basis
from scope.report.findings.model import FINDING_KINDS, Evidence, Finding, FindingKind, Where
from scope.report.findings.time_awaited import AWAITED_SHARE, find_awaited_launches
from scope.report.sections.quality import format_ranks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from scope.report.results import Results

_RULES: Final[tuple[Callable[[Results, Basis], Iterator[Finding]], ...]] = (
    time.exposed_communication,
    collectives.straggler,
    time.launch_bound,
    time.input_bound,
    time.synchronising_calls,
    collectives.small_messages,
    links.slow_link,
    links.slow_collective,
    kernels.memory_bound_kernels,
    kernels.tensor_cores_unused,
    kernels.far_below_ceiling,
    kernels.roofline_exceeded,
    time.device_allocation,
    time.recompute,
    quality.trace_too_poor,
)


def find_all(results: Results) -> tuple[Finding, ...]:
    """Return all findings, the costliest first; those whose cost is not known come last, in the order of the rules."""
    basis = make_basis(results.analysis)
    if basis.share(basis.idle_by_cause_ns["launch_latency"]) >= AWAITED_SHARE:
        basis = replace(basis, awaited=find_awaited_launches(results))
    found = [finding for rule in _RULES for finding in rule(results, basis)]
    ranked = sorted(found, key=lambda each: -1.0 if each.share_ratio is None else each.share_ratio, reverse=True)
    return tuple(_with_numbers(finding, ranked) for finding in ranked)


def _with_numbers(finding: Finding, ranked: Sequence[Finding]) -> Finding:
    """Return a finding whose action says which findings are those of the ranks that are to be mended first."""
    first = set(finding.mend_first)
    told = {
        number: each.where.ranks
        for number, each in enumerate(ranked, start=1)
        if each.kind == "straggler" and first and first.issuperset(each.where.ranks)
    }
    if not told:
        return finding
    ranks = tuple(sorted({rank for each in told.values() for rank in each}))
    s, are = ("s", "are") if len(ranks) > 1 else ("", "is")
    where = f"finding{'s' * (len(told) > 1)} {format_ranks(tuple(told))}"
    text = f"Rank{s} {format_ranks(ranks)} {are} told in {where}."
    return replace(finding, action=f"{finding.action} {text}")


__all__ = [
    "FINDING_KINDS",
    "Basis",
    "Evidence",
    "Finding",
    "FindingKind",
    "Where",
    "find_all",
    "make_basis",
]
