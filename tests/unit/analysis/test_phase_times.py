"""Host time of nested phases, against a count of every nanosecond."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import hypothesis
from hypothesis import strategies as st

from scope.analysis.comparison import compare_jobs
from scope.analysis.phase_times import OWN_NS, find_phases
from scope.trace.model import Job

if TYPE_CHECKING:
    from collections.abc import Callable

    from scope.trace.model import RankTrace


@st.composite
def nested(draw: st.DrawFn) -> list[tuple[str, int, int, int]]:
    """Return phases of two threads as name, thread, start and end; of one thread any two are nested or apart."""
    found: list[tuple[str, int, int, int]] = []

    def split(thread: int, start: int, end: int, depth: int) -> None:
        edges = sorted(draw(st.lists(st.integers(start, end), max_size=4)))
        for begin, finish in zip(edges[::2], edges[1::2], strict=False):
            found.append((draw(st.sampled_from("abc")), thread, begin, finish))
            if depth < 3 and finish - begin > 2:
                split(thread, begin + 1, finish - 1, depth + 1)

    for thread in (1, 2):
        split(thread, 0, 40, 0)
    return found


@hypothesis.given(nested())
def test_every_instant_is_that_of_the_innermost_phase(
    make_trace: Callable[..., RankTrace], rows: list[tuple[str, int, int, int]]
) -> None:
    """Of each nanosecond the shortest phase of the thread around it gets one; nothing is counted twice."""
    expected: Counter[str] = Counter()
    for thread in (1, 2):
        for instant in range(40):
            around = [(end - start, name) for name, at, start, end in rows if at == thread and start <= instant < end]
            if around:
                expected[min(around)[1]] += 1
    keys = ("name", "thread", "start_ns", "end_ns")
    trace = make_trace(annotations=[dict(zip(keys, row, strict=True)) for row in sorted(rows, key=lambda row: row[2])])
    phases = find_phases(trace)
    found: Counter[str] = Counter()
    for name, own in phases.select("name", OWN_NS).iter_rows():
        found[str(name)] += own
    assert +found == expected


def test_phases_inside_phases_are_compared_once(make_trace: Callable[..., RankTrace]) -> None:
    """An optimizer of 400 ns, of which its step is 390, and a forward of 500 take 900 of a step of 1,000, not 1,290."""
    trace = make_trace(
        steps=[{"number": 1, "start_ns": 0, "end_ns": 1_000}],
        annotations=[
            {"name": "## forward ##", "start_ns": 0, "end_ns": 500},
            {"name": "## optimizer ##", "start_ns": 550, "end_ns": 950},
            {"name": "Optimizer.step#Adam.step", "start_ns": 555, "end_ns": 945},
        ],
    )
    job = Job(ranks=(trace,), world_size=1)
    phases = compare_jobs(job, job).phases
    assert phases.before_ns == 900.0
    assert dict(phases.changes.select("name", "before_ns").iter_rows()) == {
        "## forward ##": 500.0,
        "Optimizer.step#Adam.step": 390.0,
        "## optimizer ##": 10.0,
    }
