"""Host time of nested phases, against a count of every nanosecond."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import hypothesis
import polars as pl
from hypothesis import strategies as st
from work import count_instructions

from scope.analysis import phase_times
from scope.analysis.comparison import compare_jobs
from scope.analysis.phase_times import OWN_NS, find_phases
from scope.trace.model import Job

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from scope.trace.model import RankTrace


KEYS = ("name", "thread", "start_ns", "end_ns")


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
    """Of each nanosecond one phase gets one: of the innermost of each thread that which began last."""
    rows = sorted(rows, key=lambda row: (row[2], -row[3]))
    trace = make_trace(annotations=[dict(zip(KEYS, row, strict=True)) for row in rows])
    assert _own(find_phases(trace)) == _brute(rows, range(40), main=None)


@hypothesis.given(nested(), st.integers(0, 20), st.integers(0, 20))
def test_the_thread_of_the_steps_counts_first(
    make_trace: Callable[..., RankTrace], rows: list[tuple[str, int, int, int]], first: int, second: int
) -> None:
    """In two whole steps each nanosecond is that of the training thread's phase, else of the other's, else of none."""
    rows = sorted(rows, key=lambda row: (row[2], -row[3]))
    steps = [(0, first), (20, 20 + second)]
    trace = make_trace(
        steps=[
            {"number": number, "thread": 2, "start_ns": start, "end_ns": end}
            for number, (start, end) in enumerate(steps)
        ],
        annotations=[dict(zip(KEYS, row, strict=True)) for row in rows],
    )
    instants = [instant for start, end in steps for instant in range(start, end)]
    expected = _brute(rows, instants, main=2)
    assert _own(find_phases(trace, within=trace.steps)) == expected
    compared = compare_jobs(*[Job(ranks=(trace,), world_size=1)] * 2).phases
    if not compared.changes.is_empty():
        assert compared.before_ns == len(instants) / 2
        found = {name: ns * 2 for name, ns in compared.changes.select("name", "before_ns").iter_rows() if ns}
        assert found == +(expected + Counter({"(outside of phases)": len(instants) - expected.total()}))


def _own(phases: pl.DataFrame) -> Counter[str]:
    found: Counter[str] = Counter()
    for name, own in phases.select("name", OWN_NS).iter_rows():
        found[str(name)] += own
    return +found


def _brute(rows: list[tuple[str, int, int, int]], instants: Iterable[int], *, main: int | None) -> Counter[str]:
    expected: Counter[str] = Counter()
    for instant in instants:
        # The innermost of a thread is the last of those around the instant, as rows are sorted.
        last = {row[1]: (row[1] == main, place) for place, row in enumerate(rows) if row[2] <= instant < row[3]}
        if last:
            expected[rows[max(last.values())[1]][0]] += 1
    return expected


def test_phases_inside_phases_are_compared_once(make_trace: Callable[..., RankTrace]) -> None:
    """An optimizer of 400 ns, 390 of them its step, and a forward of 500 leave 100 of a step of 1,000."""
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
    assert (phases.before_ns, phases.match_rate_ratio) == (1_000.0, 1.0)
    assert dict(phases.changes.select("name", "before_ns").iter_rows()) == {
        "## forward ##": 500.0,
        "Optimizer.step#Adam.step": 390.0,
        "## optimizer ##": 10.0,
        "(outside of phases)": 100.0,
    }


def test_work_grows_with_the_phases_not_with_the_threads_beside_each(make_trace: Callable[..., RankTrace]) -> None:
    """Of many threads in phases at once, twice as many take about twice the work, not four times."""

    def nested_threads(num_threads: int) -> int:
        phases = [(f"p{thread}", thread, thread, 4 * num_threads - thread) for thread in range(1, num_threads)]
        trace = make_trace(annotations=[dict(zip(KEYS, phase, strict=True)) for phase in phases])
        found = pl.DataFrame()

        def find() -> None:
            nonlocal found
            found = find_phases(trace)

        work = count_instructions(find, phase_times)
        assert _own(found) == _brute(phases, range(4 * num_threads), main=None)
        return work

    assert nested_threads(160) < 2.5 * nested_threads(80)
