"""Compute of a host timeline: self time of operators, against hand-worked figures and a count of every nanosecond."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scope.analysis.host import host_events
from scope.analysis.kernels import key_events, summarize_kernels
from scope.analysis.options import Options
from scope.analysis.windows import build_timeline
from scope.trace import load_rank
from scope.trace.nesting import nest

if TYPE_CHECKING:
    from collections.abc import Callable

    from scope.trace.model import RankTrace

    MakeTrace = Callable[..., RankTrace]

SAMPLES = Path(__file__).parents[3] / "sample_traces"


def op(name: str, start: int, end: int, parent: int | None = None, **more: Any) -> dict[str, Any]:
    """Return a row of `Ops`."""
    return {"name": name, "start_ns": start, "end_ns": end, "parent_id": parent} | more


def self_times(trace: RankTrace) -> dict[str, int]:
    """Return compute by operator name."""
    events = host_events(trace).filter(pl.col("category") == "compute")
    found: Counter[str] = Counter()
    for name, start, end in events.select(pl.col("name").cast(pl.String), "start_ns", "end_ns").iter_rows():
        found[name] += end - start
    return dict(found)


def test_operators_of_a_host_have_the_class_of_their_family(make_trace: MakeTrace) -> None:
    """What computes on the host is classed by its name, as kernels are; nodes of the graph and plumbing are other."""
    expected = {
        "aten::addmm": "gemm",
        "aten::scaled_dot_product_attention": "attention",
        "aten::mkldnn_convolution": "convolution",
        "aten::native_layer_norm": "normalisation",
        "aten::sum": "reduction",
        "aten::div": "elementwise",
        "aten::as_strided": "other",
        "AddmmBackward0": "other",
        "autograd::engine::evaluate_function: AddmmBackward0": "other",
    }
    trace = make_trace(
        is_host_timeline=True,
        steps=[{"start_ns": 0, "end_ns": 200, "number": 1}],
        ops=[op(name, 10 * place, 10 * place + 5) for place, name in enumerate(expected)],
    )
    rows = host_events(trace).select(pl.col("name").cast(pl.String), pl.col("kernel_class").cast(pl.String)).rows()
    assert dict(rows) == expected
    assert set(host_events(trace)["category"]) == {"compute"}


def test_a_matrix_product_with_operators_inside_is_compute(make_trace: MakeTrace) -> None:
    """As torch 2.13 writes it, `aten::mm` holds two `aten::resolve_conj`: it counts for all of its time but theirs."""
    trace = make_trace(
        is_host_timeline=True,
        steps=[{"start_ns": 0, "end_ns": 200, "number": 1}],
        ops=[
            op("aten::linear", 10, 120, is_leaf=False),
            op("aten::mm", 20, 110, 0, is_leaf=False),
            op("aten::resolve_conj", 22, 25, 1),
            op("aten::resolve_conj", 26, 28, 1),
            op("aten::mm", 130, 170, is_leaf=False),
            op("aten::resolve_conj", 131, 132, 4),
        ],
    )
    assert self_times(trace) == {"aten::linear": 20, "aten::mm": 85 + 39, "aten::resolve_conj": 6}
    table = summarize_kernels([key_events(build_timeline(trace, options=Options()), by="name")])
    found = {row["key"]: (row["num_events"], row["total_ns"], row["max_ns"]) for row in table.to_dicts()}
    assert found == {
        "aten::mm": (2, 124, 85),
        "aten::linear": (1, 20, 20),
        "aten::resolve_conj": (3, 6, 3),
    }


def test_what_is_around_a_blocking_collective_is_not_compute(make_trace: MakeTrace) -> None:
    """A node that calls c10d may wait in its own time; with a functional collective the wait has its own operator."""
    trace = make_trace(
        is_host_timeline=True,
        steps=[{"start_ns": 0, "end_ns": 200, "number": 1}],
        ops=[
            op("MyReduceBackward", 0, 90, is_leaf=False),
            op("aten::mul", 5, 15, 0),
            op("c10d::allreduce_", 20, 30, 0, is_leaf=False),
            op("record_param_comms", 22, 28, 2),
            op("CompiledFunction", 100, 190, is_leaf=False),
            op("_c10d_functional::all_reduce", 110, 130, 4, is_leaf=False),
            op("c10d::allreduce_", 112, 120, 5),
            op("_c10d_functional::wait_tensor", 130, 170, 4),
        ],
    )
    assert self_times(trace) == {"aten::mul": 10, "CompiledFunction": 10 + 20}


_ops = st.lists(st.tuples(st.integers(1, 2), st.integers(0, 40), st.integers(0, 20)), min_size=1, max_size=14)


@given(_ops)
def test_self_times_are_a_count_of_every_nanosecond(make_trace: MakeTrace, rows: list[tuple[int, int, int]]) -> None:
    """Nested or overlapping, each instant of a thread belongs to the running operator that began last, to one alone."""
    ordered = sorted(((thread, start, start + length) for thread, start, length in rows), key=lambda r: (r[1], -r[2]))
    threads, starts, ends = (pl.Series(values) for values in zip(*ordered, strict=True))
    parents = nest(threads, starts, ends).parents.to_list()
    trace = make_trace(
        is_host_timeline=True,
        ops=[
            op(f"op{row}", start, end, parents[row], thread=thread) for row, (thread, start, end) in enumerate(ordered)
        ],
    )
    expected: Counter[str] = Counter()
    for thread in (1, 2):
        for instant in range(60):
            running = [
                (start, row) for row, (at, start, end) in enumerate(ordered) if at == thread and start <= instant < end
            ]
            if running:
                expected[f"op{max(running)[1]}"] += 1
    assert self_times(trace) == dict(expected)


@pytest.mark.parametrize("name", ["healthy", "straggler"])
@pytest.mark.parametrize("rank", [0, 1])
def test_a_recorded_trace_equals_a_count_over_its_raw_json(name: str, rank: int) -> None:
    """Of a real gloo rank every stretch of time between two edges counts for the innermost operator of the raw JSON."""
    path = SAMPLES / f"gloo-2-ranks-{name}" / f"rank{rank}.json.gz"
    records: dict[int, list[tuple[int, int, str]]] = {}
    for event in json.loads(gzip.decompress(path.read_bytes()), parse_float=Decimal)["traceEvents"]:
        if event.get("cat") == "cpu_op":
            start, end = int(event["ts"] * 1000), int((event["ts"] + event["dur"]) * 1000)
            records.setdefault(event["tid"], []).append((start, end, event["name"]))
    expected: Counter[str] = Counter()
    for spans in records.values():
        expected.update(count_thread(sorted(spans, key=lambda span: (span[0], -span[1]))))
    found = self_times(load_rank(path))
    assert found == dict(expected)
    assert found["aten::mm"] > 2_000_000


def count_thread(spans: list[tuple[int, int, str]]) -> Counter[str]:
    """Return the self time by name of one thread's operators, but of c10d's and of those around them."""
    calls = [start for start, _, name in spans if name.startswith("c10d::")]
    edges = sorted({edge for start, end, _ in spans for edge in (start, end)})
    found: Counter[str] = Counter()
    running: list[tuple[int, int, str]] = []
    waiting = spans[::-1]
    for edge, following in pairwise(edges):
        while waiting and waiting[-1][0] <= edge:
            running.append(waiting.pop())
        running = [span for span in running if span[1] > edge]
        if running:
            start, end, name = running[-1]
            if not any(start <= call < end for call in calls):
                found[name] += following - edge
    return found
