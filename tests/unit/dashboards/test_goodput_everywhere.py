"""Dashboard, `scope show` and exporter give one goodput for one written run."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import msgspec
import pytest

from dashboards.sources.runs import LiveRun
from exporters import training_series as t
from exporters.training import ThisNode, TrainingCollector
from scope.frames import open_run
from scope.report.run_state import describe_run, render_run
from scope.run import paths
from scope.run.naming import short_hash
from scope.run.schema import SCHEMA_VERSION, RankInfo, RunInfo, StepRecord

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from streamlit.testing.v1 import AppTest

S = 1_000_000_000


def write_run(folder: Path, *, began_ns: int, ended_s: int | None) -> Path:
    """Write two attempts of two ranks: steps 0 to 3 of 2 s, then again 2 and 3; rank 1 ends each step 0.5 s earlier."""
    folder.mkdir()
    run = RunInfo(schema=SCHEMA_VERSION, run_id="job", started_ns=began_ns, world_size=2)
    (folder / paths.RUN_FILE).write_bytes(msgspec.json.encode(run))
    for attempt, first, start_s in ((0, 0, 5), (1, 2, 20)):
        for rank in range(2):
            place = paths.rank_folder(folder, attempt, rank)
            place.mkdir(parents=True)
            info = RankInfo(
                schema=SCHEMA_VERSION, run_id="job", attempt=attempt, rank=rank, started_ns=began_ns + start_s * S,
                host="node1", pid=1, world_size=2,
                ended_ns=None if ended_s is None else began_ns + ended_s * S,
            )  # fmt: skip
            (place / paths.RANK_FILE).write_bytes(msgspec.json.encode(info))
            steps = [
                StepRecord(
                    step=step,
                    start_ns=began_ns + (start_s + 2 * number) * S,
                    end_ns=began_ns + (start_s + 2 * number + 2) * S - rank * S // 2,
                    phases={"forward": 2 * S - rank * S // 2},
                )
                for number, step in enumerate(range(first, 4))
            ]
            lines = b"".join(msgspec.json.encode(step) + b"\n" for step in steps)
            (place / paths.STEPS_FILE).write_bytes(lines)
    return folder


@pytest.mark.parametrize(("ended_s", "until_s"), [(30, 30), (None, 40)])
def test_one_goodput_everywhere(tmp_path: Path, ended_s: int | None, until_s: int) -> None:
    """Kept are steps 0 and 1 of the first attempt and both of the second: 4 x 1.5 s on rank 1, of 30 s or until now."""
    # The last step ended 16 s ago: a run without an end stands still and loses goodput.
    began_ns = time.time_ns() - 40 * S
    folder = write_run(tmp_path / "job", began_ns=began_ns, ended_s=ended_s)
    now_ns = began_ns + 40 * S
    collector = TrainingCollector(
        (str(folder),),
        lambda *_: None,
        registry=tmp_path / "registry",
        now_ns=lambda: now_ns,
        node=ThisNode("node1", None, lambda _: None),
    )
    collector.read()
    told = [collector.series().get(t.GOODPUT, (short_hash("job"), str(rank))) for rank in range(2)]
    assert told == pytest.approx([8 / until_s, 6 / until_s])
    state = describe_run(open_run(folder), now_ns=now_ns)
    assert state["summary"]["goodput_ratio"] == pytest.approx(6 / until_s)
    live = LiveRun(run=open_run(folder), refresh_s=1.0)
    live.refresh()
    # The page asks the clock itself: a run without an end lasts until some instant between now and the answer.
    drawn = live.summary().goodput_ratio
    latest_s = until_s if ended_s else (time.time_ns() - began_ns) / S
    assert drawn is not None
    assert 6 / latest_s * (1 - 1e-9) <= drawn <= 6 / until_s * (1 + 1e-9)
    first_line = render_run(state).splitlines()[0]
    assert ("finished at" if ended_s else "NO STEP for 16 s") in first_line


def test_the_overview_counts_the_steps_that_a_restart_took(
    tmp_path: Path, run_folder: Path, open_app: Callable[..., AppTest]
) -> None:
    """The second attempt makes steps 2 and 3 again; where nothing was lost, nobody reads of it."""
    folder = write_run(tmp_path / "job", began_ns=time.time_ns() - 40 * S, ended_s=30)
    figures = {metric.label: metric.value for metric in open_app("overview", folder).metric}
    assert figures["Steps lost to restarts"] == "2"
    # Of four steps that were kept rank 1 spent 1.5 s in each: 6 of 30 s.
    assert figures["Goodput"] == "20.0 %"
    assert "Steps lost to restarts" not in {metric.label for metric in open_app("overview", run_folder).metric}
