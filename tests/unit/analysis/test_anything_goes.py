"""Tables that no sane program records: every result still checks itself, and nothing raises or hangs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from scope.analysis import analyze
from scope.analysis.memory import compute_step_memory
from scope.analysis.options import Options
from scope.analysis.tables import narrow_tables
from scope.trace.model import Job, RankTrace

MakeTrace = Callable[..., RankTrace]
Row = dict[str, Any]

_instant = st.integers(0, 40)
_length = st.integers(0, 15)
_thread = st.integers(1, 3)
_maybe_id = st.one_of(st.none(), st.integers(0, 4))
_correlation = st.one_of(st.none(), st.integers(0, 6))


def _rows(size: int, **columns: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Row]]:
    """Return tables sorted by start, whose columns have nothing to do with each other."""

    def finish(rows: list[Row]) -> list[Row]:
        for row in rows:
            row["end_ns"] = row["start_ns"] + row.pop("length")
        return sorted(rows, key=lambda row: row["start_ns"])

    fixed = {"start_ns": _instant, "length": _length, **columns}
    return st.lists(st.fixed_dictionaries(fixed), max_size=size).map(finish)


_events = _rows(
    12,
    device=st.integers(0, 1),
    stream=st.integers(0, 2),
    category=st.sampled_from(["compute", "communication", "memory"]),
    launch_id=_maybe_id,
    op_id=_maybe_id,
    step_id=st.one_of(st.none(), st.integers(0, 1)),
)
_launches = _rows(
    8,
    thread=_thread,
    kind=st.sampled_from(["kernel", "memcpy", "graph", "sync", "allocation", "event", "other"]),
    correlation=_correlation,
    op_id=_maybe_id,
    step_id=st.one_of(st.none(), st.integers(0, 1)),
    num_device_events=st.integers(0, 2),
)
_ops = _rows(
    8,
    thread=_thread,
    name=st.sampled_from(["aten::mm", "autograd::engine::evaluate_function: X", "X", "DataLoader"]),
    depth=st.integers(0, 3),
    sequence_number=_maybe_id,
    step_id=st.one_of(st.none(), st.integers(0, 1)),
)
_steps = _rows(2, is_cut=st.booleans(), thread=_thread)
_annotations = _rows(
    4,
    thread=st.one_of(st.none(), _thread),
    category=st.sampled_from(["user_annotation", "overhead"]),
    name=st.sampled_from(["DataLoader", "x"]),
)
_syncs = _rows(
    4,
    kind=st.sampled_from(["stream_wait_event", "event", "stream", "context", "other"]),
    stream=st.one_of(st.none(), st.integers(-1, 2)),
    waited_stream=st.one_of(st.none(), st.integers(-1, 2)),
    correlation=_correlation,
    waited_event_correlation=_correlation,
)


def _in_time(rows: list[Row]) -> list[Row]:
    """Return rows in the order of their instants."""
    return sorted(rows, key=lambda row: int(row["time_ns"]))


_memory = st.lists(
    st.fixed_dictionaries(
        {
            "time_ns": _instant,
            "address": st.one_of(st.none(), st.integers(0, 3)),
            "size_bytes": st.integers(-9, 9),
            "allocated_bytes": st.one_of(st.none(), st.integers(0, 99)),
            "device": st.one_of(st.none(), st.integers(-1, 1)),
            "op_id": _maybe_id,
        }
    ),
    max_size=6,
).map(_in_time)


def _known(rows: list[Row], column: str, size: int) -> None:
    """Drop ids that point outside their table, which the schema forbids."""
    for row in rows:
        if row[column] is not None and row[column] >= size:
            row[column] = None


@given(st.data())
def test_any_tables_give_results_that_check(make_trace: MakeTrace, data: st.DataObject) -> None:
    """Whatever the tables hold, every result checks itself, over the whole and for every step."""
    events, launches, ops = data.draw(_events), data.draw(_launches), data.draw(_ops)
    steps, memory = data.draw(_steps), data.draw(_memory)
    for rows in (events, launches, ops):
        _known(rows, "step_id", len(steps))
    for rows in (events, launches, memory):
        _known(rows, "op_id", len(ops))
    _known(events, "launch_id", len(launches))
    for index, row in enumerate(ops):
        row["parent_id"] = data.draw(st.one_of(st.none(), st.integers(0, index - 1))) if index else None
    trace = make_trace(
        device_events=events,
        launches=launches,
        ops=ops,
        steps=steps,
        memory=memory,
        annotations=data.draw(_annotations),
        syncs=data.draw(_syncs),
        is_host_timeline=data.draw(st.booleans()) and not events,
    )
    options = Options(linked_only=data.draw(st.booleans()), sets_as_compute=data.draw(st.booleans()))
    job = Job(ranks=(trace, trace), world_size=2)
    analysis = analyze(job, options=options).check()
    for rank in analysis.ranks:
        assert rank.breakdown is None or rank.idle is None or rank.breakdown.idle_ns == rank.idle.idle_ns
    compute_step_memory(trace)
    for number in range(len(steps)):
        narrow_tables(analysis, job, number=number).tables.check()
