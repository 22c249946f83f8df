"""The breakdown needs device events, launches and steps alone; of every real trace it is the same without the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from polars.testing import assert_frame_equal

from scope.analysis.breakdown import compute_part_breakdowns
from scope.analysis.options import Options
from scope.analysis.windows import build_timeline
from scope.trace import ReadOptions, load_rank
from scope.trace.narrowing import TABLE_NAMES
from scope.trace.schema import DeviceEvents

if TYPE_CHECKING:
    from pathlib import Path

    import polars as pl

NAMES = (
    "hta/a100_alexnet",
    "hta/a100_event_sync_multi_stream",
    "hta/a100_nccl_metadata_rank0of2",
    "hta/a100_train_rank3of8",
    "hta/cpu_only_rank34of300",
    "hta/mi250_minitoy",
    "hta/sampled_rank-0",
    "hta/sampled_rank-1",
    "hta/triton_example",
    "hta/v100_ns_resolution",
    "hta/v100_train_rank1of2",
    "kineto/v100_resnet50_dataloader_bound",
    "param/dlrm_v100_8ranks/worker0_*",
    "param/dlrm_v100_8ranks/worker3_*",
    "tracelens/h100_bert_small",
    "tracelens/h100_owlv2",
    "tracelens/h100_vit_nsfw",
    "tracelens/mi210_gpu_only",
    "tracelens/mi300_bert_small",
    "tracelens/mi300_hipgraph_decode",
    "tracelens/mi300_torch_compile_triton",
)


@pytest.mark.parametrize("name", NAMES)
def test_breakdown_without_the_other_tables(shared_traces: Path, name: str) -> None:
    """Every part of every device has the same figures, and every table that was read the same rows."""
    (path,) = shared_traces.glob(f"{name}.json.gz")
    whole, narrow = load_rank(path), load_rank(path, options=ReadOptions(tables=(DeviceEvents,)))
    timelines = [build_timeline(trace, options=Options()) for trace in (whole, narrow)]
    first, second = map(compute_part_breakdowns, timelines)
    assert first == second
    assert first or whole.is_host_timeline
    assert_frame_equal(timelines[0].parts, timelines[1].parts)
    assert narrow.not_loaded or whole.is_host_timeline
    for table in set(TABLE_NAMES) - set(narrow.not_loaded):
        frame: pl.DataFrame = getattr(narrow, table)
        assert_frame_equal(frame, getattr(whole, table).select(frame.columns), categorical_as_str=True)
    for count in ("events_read", "events_lost", "truncated", "device_events_without_launch", "slices_overrun"):
        assert getattr(narrow.quality, count) == getattr(whole.quality, count)
