"""A run that goes on: read on where it grew, at a cost that stays small; windows; the window handed to Perfetto."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

import polars as pl
import pytest

from dashboards.perfetto import window_json
from dashboards.sources import runs
from dashboards.sources.catalogue import find_sources, find_windows
from dashboards.sources.runs import LiveRun
from scope.errors import RunError
from scope.frames import open_run
from scope.report.figures import TimelineSpans

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from streamlit.testing.v1 import AppTest

    from scope.analysis.recorded import RunSummary
    from scope.run.blackbox import BlackBoxState


class Clock:
    """A clock that tests set; every look at it takes a tenth of a second."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        """Return the time, a tenth of a second after the last look."""
        self.now += 0.1
        return self.now


def add_step(folder: Path, rank: int, step: int) -> None:
    """Append one more step to a rank, in the form of the one before."""
    file = folder / "attempt-000" / "ranks" / f"{rank:05d}" / "steps.jsonl"
    last = json.loads(file.read_text().splitlines()[-1])
    with file.open("a") as out:
        out.write(json.dumps(last | {"step": step}) + "\n")


def test_new_steps_show_after_the_rest(run_folder: Path) -> None:
    """A look that took 0.1 s is repeated after 50 times that; until then nothing is read, then the new step is."""
    clock = Clock()
    run = LiveRun(run=open_run(run_folder), refresh_s=1.0, clock=clock)
    run.refresh()
    assert run.last_step == 29
    add_step(run_folder, 0, 30)
    run.refresh()
    assert run.last_step == 29
    clock.now += 10
    run.refresh()
    assert run.last_step == 30


def test_results_are_kept_while_nothing_came(run_folder: Path) -> None:
    """The same object is given again, and a new one after a new step."""
    clock = Clock()
    run = LiveRun(run=open_run(run_folder), refresh_s=1.0, clock=clock)
    run.refresh()
    first = run.by_step()
    clock.now += 100
    run.refresh()
    assert run.by_step() is first
    add_step(run_folder, 0, 30)
    clock.now += 100
    run.refresh()
    assert run.by_step() is not first


def test_black_boxes_are_read_once_more_after_the_end(run_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Boxes that were read while the run lived, and rest long, are read when the run is seen to have ended."""
    end_ns = 1_790_000_003 * 1_000_000_000
    monkeypatch.setattr(runs.time, "time_ns", lambda: end_ns + 1)
    tell_ends(run_folder, None)
    clock = Clock()
    run = LiveRun(run=open_run(run_folder), refresh_s=1.0, clock=clock)
    reads: list[float] = []

    def read_slowly() -> dict[int, BlackBoxState]:
        clock.now += 1
        reads.append(clock.now)
        return {}

    monkeypatch.setattr(run.run, "black_boxes", read_slowly)
    run.refresh()
    assert run.state().is_live
    add_step(run_folder, 0, 30)
    tell_ends(run_folder, end_ns)
    # The records of the ranks have rested by then, the boxes only after more than 250 s.
    clock.now += 30
    run.refresh()
    assert len(reads) == 1
    assert run.state().standing == "finished"
    assert len(reads) == 2
    assert run.last_step == 30
    # From then on nothing is read anew for each drawing.
    assert run.state().standing == "finished"
    assert len(reads) == 2


@pytest.mark.parametrize("since_s", [14, 45])
def test_what_was_read_before_the_end_is_not_shown_long_after(
    run_folder: Path, monkeypatch: pytest.MonkeyPatch, since_s: int
) -> None:
    """Boxes read 10 s before the end, which rest for 75 s, are read again once the run has ended, records or not."""
    end_s = 1_790_000_003
    wall_s = end_s - 10
    monkeypatch.setattr(runs.time, "time_ns", lambda: wall_s * 1_000_000_000)
    tell_ends(run_folder, None)
    clock = Clock()
    run = LiveRun(run=open_run(run_folder), refresh_s=1.0, clock=clock)
    reads: list[int] = []

    def read_slowly() -> dict[int, BlackBoxState]:
        clock.now += 0.3
        reads.append(wall_s)
        return {}

    monkeypatch.setattr(run.run, "black_boxes", read_slowly)
    run.refresh()
    assert run.state().is_live
    tell_ends(run_folder, end_s * 1_000_000_000)
    wall_s, clock.now = end_s + since_s, clock.now + since_s + 10
    run.refresh()
    assert run.state().standing == "finished"
    run.black_boxes()
    assert reads == [end_s - 10, end_s + since_s]


def test_phases_are_of_the_same_steps_while_the_summary_rests(
    run_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A summary that took 0.3 s rests for 75 s; phases beside it sum to 100 ms a step, and none is below nothing."""
    for file in run_folder.rglob("steps.jsonl"):
        file.write_text(file.read_text().replace('"optimizer"', '"augmentation"'))
    clock = Clock()
    run = LiveRun(run=open_run(run_folder), refresh_s=1.0, clock=clock)
    summarize = run._summarize

    def summarize_slowly() -> RunSummary:
        clock.now += 0.3
        return summarize()

    monkeypatch.setattr(run, "_summarize", summarize_slowly)
    run.refresh()
    num_steps = run.steps.height
    assert sum(run.summary().phases_ns.values()) == sum(run.phases_ns().values()) == num_steps * 100_000_000
    for step in range(30, 60):
        add_step(run_folder, 0, step)
    clock.now += 50
    run.refresh()
    assert sum(run.summary().phases_ns.values()) == num_steps * 100_000_000
    phases = run.phases_ns()
    assert sum(phases.values()) == (num_steps + 30) * 100_000_000
    assert phases["augmentation"] == (num_steps + 30) * 5_000_000
    assert phases["custom"] == 0


def tell_ends(folder: Path, ended_ns: int | None) -> None:
    """Make all ranks say that they ended then, or that they run."""
    for file in folder.glob("attempt-000/ranks/*/rank.json"):
        file.write_text(json.dumps(json.loads(file.read_text()) | {"ended_ns": ended_ns}))


def test_a_run_that_was_deleted_is_an_error_that_names_it(run_folder: Path) -> None:
    """The next look says that the folder is gone."""
    clock = Clock()
    run = LiveRun(run=open_run(run_folder), refresh_s=1.0, clock=clock)
    run.refresh()
    shutil.rmtree(run_folder)
    clock.now += 100
    with pytest.raises(RunError, match="four-ranks"):
        run.refresh()


def capture(folder: Path, rank: int, start_ns: int, end_ns: int) -> None:
    """Add a captured trace to a rank."""
    traces = folder / "attempt-000" / "ranks" / f"{rank:05d}" / "traces"
    traces.mkdir(exist_ok=True)
    name = f"rank{rank}-{start_ns}"
    info = {"trace": f"{name}.json", "rank": rank, "first_step": 3, "num_steps": 2, "start_ns": start_ns}
    info |= {"end_ns": end_ns, "reason": "user", "cost_ns": 1}
    (traces / f"{name}.json").write_text("{}")
    (traces / f"{name}.capture.json").write_text(json.dumps(info))


def test_what_ranks_recorded_at_one_time_is_one_window(run_folder: Path) -> None:
    """Ranks 0 and 1 overlap, rank 0 later is a window of its own; touching ends do not overlap."""
    capture(run_folder, 0, 100, 200)
    capture(run_folder, 1, 150, 250)
    capture(run_folder, 2, 250, 300)
    capture(run_folder, 0, 400, 500)
    windows = find_windows(run_folder)
    assert [[trace.info.rank for trace in window] for window in windows] == [[0, 1], [2], [0]]


def test_a_window_is_named_by_its_step_and_by_its_attempt_where_two_have_one(run_folder: Path) -> None:
    """`--window` takes the step; a restart that takes a window of step 3 again makes the attempt part of the name."""
    capture(run_folder, 0, 100, 200)
    (window,) = (each for each in find_sources([str(run_folder)]) if each.kind == "trace")
    assert window.label == "four-ranks: window of step 3, rank 0"
    shutil.copytree(run_folder / "attempt-000", run_folder / "attempt-001")
    labels = [each.label for each in find_sources([str(run_folder)]) if each.kind == "trace"]
    assert labels == [f"four-ranks: window of step 3 of attempt-00{attempt}, rank 0" for attempt in (0, 1)]


def test_a_window_for_perfetto_holds_the_spans() -> None:
    """One thread a lane, microseconds from the first span, lengths to the nanosecond."""
    rows = [("a", "compute", "<k>", 1_000, 2_500), ("b", "idle", "x", 1_500, 1_501)]
    trace = json.loads(window_json(pl.DataFrame(rows, schema=TimelineSpans.schema(), orient="row")))
    names = {event["tid"]: event["args"]["name"] for event in trace["traceEvents"] if event["name"] == "thread_name"}
    spans = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    assert [(names[each["tid"]], each["name"], each["ts"], each["dur"]) for each in spans] == [
        ("a", "<k>", 0.0, 1.5),
        ("b", "x", 0.5, 0.001),
    ]


def test_a_range_of_steps_is_compared_with_the_rest(open_app: Callable[..., AppTest], run_folder: Path) -> None:
    """`?step=10` compares the steps before 10 with the others; all are equal here."""
    app = open_app("compare", run_folder, step="10")
    assert not app.exception
    before, after = app.metric
    assert (before.value, after.value, after.delta) == ("100 ms", "100 ms", "0.0 %")
