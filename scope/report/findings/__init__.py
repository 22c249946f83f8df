"""Findings: what is wrong, where, how one can tell, what it costs, and what to do; ranked by cost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from scope.report.findings import collectives, kernels, links, quality, time
from scope.report.findings.basis import Basis, make_basis
from scope.report.findings.model import FINDING_KINDS, Evidence, Finding, FindingKind, Where

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

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
    found = [finding for rule in _RULES for finding in rule(results, basis)]
    return tuple(sorted(found, key=lambda each: -1.0 if each.share_ratio is None else each.share_ratio, reverse=True))


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
