"""A trace of a recorded run that does not say the groups of its calls gets them from the run's own records."""

from __future__ import annotations

import dataclasses
import gzip
import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl
import pytest
from msgspec.structs import replace

from scope.analysis.collective_tables import CollectiveRows
from scope.analysis.collectives import compute_collectives
from scope.report import recorded_groups
from scope.report.loading import load
from scope.run.calls import CallRecord, read_segment
from scope.run.layout import SEGMENT_HEADER_BYTES
from scope.trace import ReadOptions
from scope.trace import load as read_traces
from scope.trace.schema import CollectiveCalls

if TYPE_CHECKING:
    from scope.trace.model import Job

_RUN = Path(__file__).parents[3] / "sample_traces" / "gloo-4-ranks-straggler"
_FRESH = ReadOptions(use_cache=False)


def _read(run: Path) -> Job:
    return load(str(run), options=_FRESH, processes=1)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of four ranks whose traces list further groups, so that they don't say which one a call ran in."""
    target = tmp_path / "run"
    shutil.copytree(_RUN, target)
    for path in target.glob("attempt-000/ranks/*/traces/*.json.gz"):
        document = json.loads(gzip.decompress(path.read_bytes()))
        info = document["distributedInfo"]
        pair = [0, 1] if info["rank"] < 2 else [2, 3]
        for name, ranks in (("1", pair), ("2", [info["rank"] % 2, info["rank"] % 2 + 2])):
            info["pg_config"].append({"pg_name": name, "pg_desc": "undefined", "pg_size": 2, "ranks": ranks})
        path.write_bytes(gzip.compress(json.dumps(document).encode(), 1))
    return target


def test_records_say_the_group_of_every_call(run: Path) -> None:
    """Of traces that list three groups all calls get the group, members and number that `rank.json` and records say."""
    job = _read(run)
    for trace in job.ranks:
        calls = trace.collective_calls
        assert calls.height == 4
        assert calls["group_name"].cast(str).to_list() == ["0"] * 4
        assert calls["group_ranks"].to_list() == [[0, 1, 2, 3]] * 4
        numbers = calls["sequence"].to_list()
        assert numbers == list(range(numbers[0], numbers[0] + 4))
        assert not calls["is_group_inferred"].any()
    found = compute_collectives(job).check()
    assert (found.num_calls, found.num_matched, found.num_of_unknown_group) == (16, 16, 0)
    assert any("16 of 16 collective calls" in sentence for sentence in job.warnings)


def test_figures_are_those_of_traces_that_say_their_groups(run: Path) -> None:
    """Waits and transfers equal those of the same run whose traces list the one group that there is."""
    told, taken = (compute_collectives(_read(path)).collectives for path in (_RUN, run))
    figures = ("operation", "message_bytes", "transfer_ns", "skew_ns", "total_wait_ns", "imposed_wait_ns", "last_rank")
    assert taken.select(figures).rows() == told.select(figures).rows()
    assert taken["is_complete"].all()


def test_records_on_another_clock_are_not_taken(run: Path) -> None:
    """Records that were issued a second beside the operators of the trace tell nothing of its calls."""
    for path in run.glob("attempt-000/ranks/*/traces/*.json.gz"):
        document = json.loads(gzip.decompress(path.read_bytes()))
        document["baseTimeNanoseconds"] += 1_000_000_000
        path.write_bytes(gzip.compress(json.dumps(document).encode(), 1))
    found = compute_collectives(_read(run)).check()
    assert (found.num_calls, found.num_of_unknown_group, found.collectives.height) == (16, 16, 0)


def test_a_record_that_disagrees_with_its_operator_spoils_the_rank(run: Path) -> None:
    """Where an operator that reduces 659,968 bytes is shown with another size, no record of its rank is trusted."""
    path = next(run.glob("attempt-000/ranks/00002/traces/*.json.gz"))
    text = gzip.decompress(path.read_bytes())
    assert b"164992" in text
    path.write_bytes(gzip.compress(text.replace(b"164992", b"164991"), 1))
    job = _read(run)
    named = {trace.rank: trace.collective_calls["group_name"].null_count() for trace in job.ranks}
    assert named == {0: 0, 1: 0, 2: 4, 3: 0}


def test_torn_records_are_said_and_cost_one_rank(run: Path) -> None:
    """A segment with a wrong checksum leaves the groups of its rank unknown, with a sentence that names it."""
    (path,) = run.glob("attempt-000/ranks/00001/calls/*.bin")
    content = bytearray(path.read_bytes())
    content[SEGMENT_HEADER_BYTES + 8] ^= 0xFF
    path.write_bytes(bytes(content))
    job = _read(run)
    assert any(str(path) in sentence and "rank 1" in sentence for sentence in job.warnings)
    assert compute_collectives(job).check().num_of_unknown_group == 4


def test_a_trace_outside_of_a_run_keeps_what_it_says(run: Path, tmp_path: Path) -> None:
    """The same trace copied to another folder has no records beside it, so its groups stay unknown."""
    path = next(run.glob("attempt-000/ranks/00000/traces/*.json.gz"))
    lone = tmp_path / "lone" / "traces" / path.name
    lone.parent.mkdir(parents=True)
    shutil.copy(path, lone)
    (trace,) = load(str(lone), options=_FRESH, processes=1).ranks
    assert trace.collective_calls["group_name"].null_count() == 4


def test_sizes_of_all_ranks_follow_from_the_recorded_group(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A trace says one rank's part of a gather of lists; in the recorded group of four the message is four parts."""

    def gathers(path: Path) -> list[CallRecord]:
        # The broadcasts among them give nothing but at the root.
        return [
            dataclasses.replace(each, operation="all_gather", in_bytes=each.in_bytes or each.out_bytes, out_bytes=None)
            for each in read_segment(path)
        ]

    monkeypatch.setattr(recorded_groups, "read_segment", gathers)
    job = read_traces([str(path) for path in sorted(run.glob("attempt-000/ranks/*/traces/*.json.gz"))], options=_FRESH)
    as_lists = [
        pl.lit("all_gather", dtype=CollectiveCalls.operation.dtype).alias(CollectiveCalls.operation),
        pl.lit(None, dtype=pl.Int64).alias(CollectiveCalls.out_elements),
        pl.lit(None, dtype=pl.Int64).alias(CollectiveCalls.out_bytes),
    ]
    ranks = [replace(each, collective_calls=each.collective_calls.with_columns(as_lists)) for each in job.ranks]
    told = recorded_groups.with_recorded_groups(replace(job, ranks=tuple(ranks)))
    parts: list[int] = []
    for trace, unsaid in zip(told.ranks, ranks, strict=True):
        calls = trace.collective_calls
        parts = unsaid.collective_calls[CollectiveCalls.in_elements].to_list()
        assert len(parts) == 4
        assert calls[CollectiveCalls.in_elements].to_list() == parts
        assert calls[CollectiveCalls.out_elements].to_list() == [4 * part for part in parts]
        assert calls[CollectiveCalls.out_bytes].to_list() == [4 * 4 * part for part in parts]
    found = compute_collectives(told).check().collectives
    assert found[CollectiveRows.message_bytes].to_list() == [16 * part for part in parts]
