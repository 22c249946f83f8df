"""The synthetic run that the demo opens beside its real one: what a run on eight GPUs looks like, traces included."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from scope.run.files import replace_document
from scope.run.paths import TRACES_FOLDER, rank_folder
from scope.run.schema import CaptureInfo
from scope.testing.jobs import straggling_job
from scope.testing.kineto import write_traces
from scope.testing.layout import Layout
from scope.testing.runs import START_NS, SyntheticRun
from scope.units import NS_PER_MS, NS_PER_US

if TYPE_CHECKING:
    from scope.testing.jobs import TrainingJob

SLOW_RANK: Final = 5
EXTRA_NS: Final = 3 * NS_PER_MS
NUM_STEPS: Final = 300
LAYOUT: Final = Layout(dp=4, tp=2)
PHASES_NS: Final = {
    "input": 200 * NS_PER_US,
    "host_to_device": 150 * NS_PER_US,
    "forward": 1_700 * NS_PER_US,
    "backward": 4 * NS_PER_MS,
    "optimizer": 300 * NS_PER_US,
    "other": 50 * NS_PER_US,
}
"""Close to what the traces show, so that both tell one story."""


def write_demo_run(folder: Path) -> None:
    """Write the run directory of 8 GPUs, tensor parallel 2 x data parallel 4, rank 5 computing 3 ms longer a step.

    Its profiler window holds four steps of every rank; `run.json` says that it is synthetic.

    Args:
        folder: The run directory; made if it is absent.
    """
    run = SyntheticRun(
        layout=LAYOUT,
        num_steps=NUM_STEPS,
        num_whole_steps=NUM_STEPS,
        num_parameters=150_000_000,
        tokens_per_rank=4_096,
        straggler=SLOW_RANK,
        straggler_extra_ns=EXTRA_NS,
        slow_steps=range(NUM_STEPS),
        is_finished=True,
        phases_ns=dict(PHASES_NS),
        base_wait_ns=200 * NS_PER_US,
    )
    run.write(folder)
    _write_window(folder, straggling_job(LAYOUT, rank=SLOW_RANK, kind="compute", extra_ns=EXTRA_NS))


def _write_window(folder: Path, job: TrainingJob) -> None:
    """Add the traces of a job to the run, as captured windows."""
    simulation = job.run()
    with tempfile.TemporaryDirectory() as scratch:
        for rank, written in enumerate(write_traces(simulation, job.layout, Path(scratch))):
            traces = rank_folder(folder, 0, rank) / TRACES_FOLDER
            traces.mkdir(mode=0o750, exist_ok=True)
            name = f"rank{rank}-step{job.first_step}"
            trace = traces / f"{name}.json.gz"
            trace.write_bytes(written.read_bytes())
            info = CaptureInfo(
                trace=trace.name,
                rank=rank,
                first_step=job.first_step,
                num_steps=job.num_steps,
                start_ns=START_NS,
                end_ns=simulation.end_ns,
                reason="user",
                cost_ns=0,
                record_shapes=True,
                trace_bytes=trace.stat().st_size,
            )
            replace_document(traces / f"{name}.capture.json", msgspec.json.encode(info))
