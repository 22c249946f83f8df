"""A finding: a ranked statement of what is wrong, where, how one can tell, what it costs, and what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal

from scope.report.findings.evidence_keys import evidence_column
from scope.report.inert import kernel_title, shortened
from scope.report.rows import record
from scope.report.sections.quality import format_ranks
from scope.report.table import format_cell
from scope.structs import Record

if TYPE_CHECKING:
    from scope.report.table import Cell, ReportColumn

FindingKind = Literal[
    "exposed_communication",
    "straggler",
    "launch_bound",
    "input_bound",
    "synchronising_calls",
    "small_messages",
    "slow_collective",
    "memory_bound_kernels",
    "tensor_cores_unused",
    "far_below_ceiling",
    "roofline_exceeded",
    "device_allocation",
    "recompute",
    "trace_too_poor",
]
FINDING_KINDS: Final[dict[FindingKind, str]] = {
    "exposed_communication": "Communication that no compute hides takes a large share of the step.",
    "straggler": "One rank makes the others wait.",
    "launch_bound": "The device runs dry because the host launches too slowly.",
    "input_bound": "The device waits for the data loader.",
    "synchronising_calls": "Calls make the host wait for the device, which then runs dry.",
    "small_messages": "Exposed communication is spent on messages too small to use the link.",
    "slow_collective": "Large messages run far under what their link allows, or under what sister groups reach.",
    "memory_bound_kernels": "Kernels that memory bandwidth bounds take much time and could be fused.",
    "tensor_cores_unused": "Matrix products run beside the tensor cores: in full FP32, or with misaligned shapes.",
    "far_below_ceiling": "A few kernels run far under what the GPU allows for their work.",
    "roofline_exceeded": "Kernels run faster than their ceiling: the model, the peak or the cache is not as assumed.",
    "device_allocation": "The allocator goes to the driver inside steps: it retries after freeing, or grows.",
    "recompute": "Backward computes a share of forward again (activation checkpointing).",
    "trace_too_poor": "The trace lacks what some figures need; how to record a better one.",
}
"""Every kind of finding with what it states."""


class Evidence(Record, frozen=True):
    """One figure that a finding rests on."""

    column: ReportColumn
    value: Cell

    @staticmethod
    def of(key: str, heading: str, value: Cell) -> Evidence:
        """Return a figure under a key whose meaning `EVIDENCE_KEYS` holds.

        Args:
            key: Its key in JSON.
            heading: What a person reads before it.
            value: The figure.
        """
        return Evidence(evidence_column(key, heading), value)

    def text(self) -> str:
        """Return the figure for people: `queue empty 4.1 ms`."""
        return f"{self.column.heading} {format_cell(self.value, self.column.unit)}"


class Where(Record, frozen=True, kw_only=True):
    """What a finding singles out; where it is empty, none is."""

    ranks: tuple[int, ...] = ()
    steps: tuple[int, ...] = ()
    kernels: tuple[str, ...] = ()
    calls: tuple[str, ...] = ()
    """Operators and calls of the runtime."""
    groups: tuple[str, ...] = ()
    """Process groups."""

    def text(self) -> str:
        """Return it for people; empty when nothing is singled out."""
        numbers = (("ranks", self.ranks), ("steps", self.steps))
        parts = [f"{name if len(each) > 1 else name[:-1]} {format_ranks(each)}" for name, each in numbers if each]
        names = (*self.groups, *self.calls, *(shortened(kernel_title(name), length=60) for name in self.kernels))
        return "; ".join([*parts, *([", ".join(names)] if names else [])])


class Finding(Record, frozen=True, kw_only=True):
    """A ranked statement.

    Attributes:
        kind: What it is about.
        title: One line with the figures that matter.
        where: Ranks, steps, kernels, calls, groups.
        evidence: The figures it rests on.
        cost_ns: Time that it costs, summed over devices; an upper bound of what fixing it saves. None: not known.
        share_ratio: `cost_ns` as a share of the time of the steps (of the window where there are no steps).
        action: What to do.
        mend_first: Late ranks with findings of their own, which are to be mended before.
    """

    kind: FindingKind
    title: str
    where: Where
    evidence: tuple[Evidence, ...]
    cost_ns: int | None
    share_ratio: float | None
    action: str
    mend_first: tuple[int, ...] = ()

    def to_record(self) -> dict[str, Any]:
        """Return the finding for JSON."""
        absent = {
            name: "what it costs is not known"
            for name, value in (("cost_ns", self.cost_ns), ("share_ratio", self.share_ratio))
            if value is None
        }
        return {
            "kind": self.kind,
            "title": self.title,
            "where": {
                "ranks": list(self.where.ranks),
                "steps": list(self.where.steps),
                "kernels": list(self.where.kernels),
                "calls": list(self.where.calls),
                "groups": list(self.where.groups),
            },
            "evidence": record([each.column for each in self.evidence], [each.value for each in self.evidence]),
            "cost_ns": self.cost_ns,
            "share_ratio": self.share_ratio,
            "action": self.action,
            "absent": absent,
        }
