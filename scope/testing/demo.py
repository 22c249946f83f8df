"""The synthetic job that the demo opens beside its real run: what a run on GPUs looks like."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from scope.testing.jobs import straggling_job
from scope.testing.kineto import write_traces
from scope.testing.layout import Layout
from scope.units import NS_PER_MS

if TYPE_CHECKING:
    from pathlib import Path

SLOW_RANK: Final = 5


def write_demo_traces(folder: Path) -> list[Path]:
    """Write the traces of 8 GPUs, tensor parallel 2 x data parallel 4, rank 5 computing 3 ms longer a step.

    Args:
        folder: Where to write; made if it is absent.
    """
    layout = Layout(dp=4, tp=2)
    job = straggling_job(layout, rank=SLOW_RANK, kind="compute", extra_ns=3 * NS_PER_MS)
    return write_traces(job.run(), layout, folder)
