"""Everything that a report rests on: the tables of a job, and what each analysis made of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, Self

import msgspec

from scope.structs import Record

if TYPE_CHECKING:
    from collections.abc import Mapping

    import polars as pl

    from scope.analysis.collective_roofline import CollectiveRoofline
    from scope.analysis.collectives import Collectives
    from scope.analysis.job import Analysis
    from scope.analysis.roofline import Roofline
    from scope.analysis.stragglers import Stragglers
    from scope.trace.model import Job

Part = Literal["collectives", "stragglers", "rooflines", "exposed", "critical_path", "launched"]
ALL_PARTS: Final[frozenset[Part]] = frozenset(
    {"collectives", "stragglers", "rooflines", "exposed", "critical_path", "launched"}
)
"""What can be left out where only some sections are wanted; the other analyses of single ranks always run.

`launched` is the breakdown of what each step launched, whenever it ran. `stragglers` is all that takes at least two
ranks: their collectives, links and stragglers. `collectives` adds those of a rank that has no other.
"""
SUMMARY_PARTS: Final[frozenset[Part]] = frozenset({"stragglers", "rooflines", "exposed"})
"""What the findings and the summary rest on."""


class Results(Record, frozen=True, kw_only=True):
    """What every section, figure and finding of a report is made from.

    An analysis that has nothing to stand on is None, and `absent` says why under its field's name.
    """

    job: Job
    analysis: Analysis
    exposed: pl.DataFrame
    """The table `ExposedCollectives`, summed over ranks."""
    collectives: Collectives | None
    stragglers: Stragglers | None
    collective_roofline: CollectiveRoofline | None
    rooflines: Mapping[str, Roofline]
    """By the label of the rank; ranks without device events have none."""
    absent: Mapping[str, str] = msgspec.field(default_factory=dict[str, str])

    def __repr__(self) -> str:
        """Name the ranks, and the analyses there are, instead of every figure of each of them."""
        names = ("collectives", "stragglers", "collective_roofline")
        there = [name for name in names if getattr(self, name) is not None]
        return f"Results({self.analysis!r}, {', '.join([*there, f'{len(self.rooflines)} rooflines'])})"

    def check(self) -> Self:
        """Return the results when each of them is consistent.

        Raises:
            AssertionError: One is not, which is a defect of the code that made it.
        """
        for result in (self.analysis, self.collectives, self.stragglers, *self.rooflines.values()):
            if result is not None:
                result.check()
        # Here, because a command imports this module for the names of parts before it has read anything.
        from scope.analysis.exposure import ExposedCollectives

        ExposedCollectives.check(self.exposed)
        return self
