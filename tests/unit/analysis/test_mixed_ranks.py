"""Ranks with devices beside ranks of which only the host is known: their times are of two kinds and are not added."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from scope.analysis import analyze
from scope.report.build import compute_results
from scope.report.document import document_schema, to_document
from scope.report.findings import find_all
from scope.report.findings.basis import make_basis
from scope.report.sections.breakdown import breakdown_table, summed_over
from scope.trace import ReadOptions, load
from scope.trace.model import Job

if TYPE_CHECKING:
    from collections.abc import Callable

    from scope.trace.model import RankTrace

SAMPLES = Path(__file__).parents[3] / "sample_traces"
NO_CACHE = ReadOptions(use_cache=False)
STEP = {"number": 1, "start_ns": 0, "end_ns": 2_000}


@pytest.fixture
def mixed(make_trace: Callable[..., RankTrace]) -> Job:
    """Return two ranks: 600 of 1,000 ns of compute on a device, and 300 ns of operators in a host's step of 2,000."""
    kernels = [{"start_ns": 0, "end_ns": 400}, {"start_ns": 800, "end_ns": 1_000}]
    device = make_trace(device_events=kernels)
    host = make_trace(ops=[{"start_ns": 100, "end_ns": 400}], steps=[STEP])
    return Job(
        ranks=(
            msgspec.structs.replace(device, label="rank 0", rank=0),
            msgspec.structs.replace(host, label="rank 1", rank=1, is_host_timeline=True),
        ),
        world_size=2,
    )


def test_totals_are_of_devices_alone(mixed: Job) -> None:
    """The sum of all ranks is the device's 600 of 1,000 ns; what the host did stands in a sum of its own."""
    analysis = analyze(mixed)
    assert analysis.breakdown is not None
    assert analysis.host_breakdown is not None
    assert (analysis.breakdown.window_ns, analysis.breakdown.compute_ns) == (1_000, 600)
    assert analysis.host_breakdown == analysis.ranks[1].breakdown
    assert analysis.host_breakdown.compute_ns == 300
    assert make_basis(analysis).window_ns == 1_000
    assert analysis.steps == ()
    assert summed_over(analysis) == ""


def test_the_table_shows_both_sums(mixed: Job) -> None:
    """Two rows of totals, each of its own kind, and a note that says which figures are whose."""
    table = breakdown_table(analyze(mixed))
    rows = {str(row[0]): row for row in table.rows}
    assert list(rows) == ["rank 0", "rank 1", "all on devices", "all on hosts"]
    keys = [column.key for column in table.columns]
    compute = keys.index("compute_ns")
    assert (rows["all on devices"][compute], rows["all on hosts"][compute]) == (600, 300)
    assert any("those of devices" in note for note in table.notes)


def test_hosts_alone_are_added_up(mixed: Job) -> None:
    """Where no rank has a device, the sum is that of the host timelines, and there is no other."""
    analysis = analyze(msgspec.structs.replace(mixed, ranks=mixed.ranks[1:]))
    assert analysis.breakdown is not None
    assert (analysis.breakdown.compute_ns, analysis.host_breakdown) == (300, None)


def test_the_document_holds_both(mixed: Job) -> None:
    """`host_total` is the sum of the hosts, and null with its reason where one kind is there alone."""
    document = to_document(compute_results(mixed), [])
    assert (document["total"]["compute_ns"], document["host_total"]["compute_ns"]) == (600, 300)
    assert "host_total" not in document["absent"]
    alone = to_document(compute_results(msgspec.structs.replace(mixed, ranks=mixed.ranks[:1])), [])
    assert alone["host_total"] is None
    assert "beside devices" in alone["absent"]["host_total"]
    assert "host_total" in json.dumps(document_schema()["required"])


def test_kernels_are_those_of_devices(mixed: Job) -> None:
    """Shares of kernels are of the 600 ns that the device ran; alone, the host's operators are grouped as before."""
    analysis = analyze(mixed)
    by_name = analysis.kernels.by_name
    assert (by_name["total_ns"].sum(), by_name["device_time_ratio"].sum()) == (600, pytest.approx(1))
    assert analysis.ranks[1].tables.kernels.by_name["total_ns"].sum() == 300
    hosts = analyze(msgspec.structs.replace(mixed, ranks=mixed.ranks[1:]))
    assert hosts.kernels.by_name["total_ns"].sum() == 300


def test_who_is_left_out_is_said(mixed: Job) -> None:
    """Where hosts stand beside devices the report names those that its figures are not of, and else nobody."""
    (said,) = analyze(mixed).warnings
    assert said.endswith("no device events: rank 1")
    for ranks in (mixed.ranks[:1], mixed.ranks[1:]):
        assert analyze(msgspec.structs.replace(mixed, ranks=ranks)).warnings == ()


def test_findings_are_those_of_devices(shared_traces: Path) -> None:
    """Ranges of two hosts beside a device change no finding on time: neither what it costs nor what it names."""
    device = load([str(shared_traces / "hta" / "a100_nccl_metadata_rank0of2.json.gz")], options=NO_CACHE).ranks
    hosts = load([str(SAMPLES / "gloo-2-ranks-healthy")], options=NO_CACHE).ranks
    # As other ranks than that of the device.
    hosts = tuple(
        msgspec.structs.replace(each, rank=10 + place, label=f"rank {10 + place}") for place, each in enumerate(hosts)
    )
    found, alone = (compute_results(Job(ranks=ranks, world_size=None)) for ranks in ((*device, *hosts), device))
    assert found.exposed.equals(alone.exposed)
    assert found.analysis.kernels.by_name.equals(alone.analysis.kernels.by_name)
    costs = [
        {each.kind: (each.cost_ns, each.where.groups) for each in find_all(results) if each.cost_ns is not None}
        for results in (found, alone)
    ]
    assert costs[0] == costs[1]
    exposed = next(each for each in find_all(found) if each.kind == "exposed_communication")
    evidence = {each.column.key: each.value for each in exposed.evidence}
    worst, whole = evidence["worst_exposed_ns"], evidence["exposed_communication_ns"]
    assert isinstance(worst, int)
    assert isinstance(whole, int)
    assert 0 < worst <= whole
