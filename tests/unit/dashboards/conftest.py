"""A small recorded run, written by hand as text, and the app on it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from streamlit.testing.v1 import AppTest

from dashboards import findings, shell
from dashboards.__main__ import APP
from dashboards.settings import VARIABLE

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

MS = 1_000_000
START_NS = 1_790_000_000 * 1_000_000_000
SLOW_RANK = 2


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    """A run of four ranks and thirty steps; rank 2 is slow."""
    return write_run(tmp_path / "four-ranks")


def write_run(folder: Path, *, ranks: int = 4, steps: int = 30) -> Path:
    """Write a run of 100 ms steps in which rank 2 computes 30 ms longer and the others wait for it."""
    folder.mkdir(parents=True, exist_ok=True)
    run = {"schema": "1.0", "run_id": folder.name, "started_ns": START_NS, "world_size": ranks}
    (folder / "run.json").write_text(json.dumps(run))
    for rank in range(ranks):
        place = folder / "attempt-000" / "ranks" / f"{rank:05d}"
        place.mkdir(parents=True)
        info = {"schema": "1.0", "run_id": folder.name, "attempt": 0, "rank": rank, "started_ns": START_NS, "host": "a"}
        info |= {"pid": 100 + rank, "world_size": ranks, "ended_ns": START_NS + steps * 100 * MS}
        info |= {"groups": [{"group": 0, "name": "default_pg", "ranks": list(range(ranks)), "backend": "gloo"}]}
        (place / "rank.json").write_text(json.dumps(info))
        lines = [json.dumps(_step(rank, step)) + "\n" for step in range(steps)]
        (place / "steps.jsonl").write_text("".join(lines))
    return folder


def _step(rank: int, step: int) -> dict[str, Any]:
    wait = 0 if rank == SLOW_RANK else 30 * MS
    forward = 60 * MS if rank == SLOW_RANK else 30 * MS
    start = START_NS + step * 100 * MS
    phases = {"input": 5 * MS, "forward": forward, "backward": 90 * MS - forward, "optimizer": 5 * MS}
    total = {"group": 0, "operation": "all_reduce", "num_calls": 2, "in_bytes": 8_000_000, "out_bytes": 8_000_000}
    return {
        "kind": "step",
        "step": step,
        "start_ns": start,
        "end_ns": start + 100 * MS,
        "phases": phases,
        "communication_wait_ns": wait,
        "communication_wait_coverage_ratio": 1.0,
        "tokens": 512,
        "memory": {"peak": {"resident_bytes": 500_000_000 + step * 1_000_000}, "sampled": True},
        "collectives": [total | {"num_timed": 2, "duration_ns": wait + 10 * MS, "blocked_ns": wait}],
    }


@pytest.fixture
def open_app(monkeypatch: pytest.MonkeyPatch) -> Callable[..., AppTest]:
    """Return a function that runs a page of the app on some places and returns it, drawn once."""

    def run(page: str, *places: Path | str, **parameters: str) -> AppTest:
        settings = {"places": [str(place) for place in places]}
        monkeypatch.setenv(VARIABLE, json.dumps(settings | {"refresh_s": 60.0}))
        # What was read of traces may stay: it is kept under the files' sizes and times.
        for kept in (shell.settings, shell.source_list, findings._firing):
            kept.clear()
        app = AppTest.from_file(str(APP), default_timeout=60)
        app.run()
        for name, value in parameters.items():
            app.query_params[name] = value
        if page != "overview":
            app.switch_page(f"views/{page}.py")
        return app.run()

    return run
