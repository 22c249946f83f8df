"""The dashboard on a run of 1,024 ranks x 10,000 steps, on a trace of 1,000,000 device events and on a run that grows.

Everything is measured in a real browser against a real server: from the first request to the first useful paint, and
from a click to what it shows. Processor seconds are those of the server's process with all its threads.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import polars as pl
import psutil

from scope.report.figures import TimelineSpans, timeline
from scope.testing.jobs import TrainingJob, Work
from scope.testing.kineto import write_traces
from scope.testing.layout import Layout
from scope.testing.runs import SyntheticRun

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run")
REPEATS = 5
NUM_SPANS = 1_000_000
LIVE_RANKS, LIVE_S, LIVE_STEPS_PER_S = 8, 30, 5
LONG_MS = 300_000
SETTLED = "() => document.querySelector('[data-testid=stApp]').dataset.testScriptState === 'notRunning'"
# The middle of the largest bar, once it stands still.
BAR = """() => {
    const marks = [...document.querySelectorAll('.js-plotly-plot .bars .point path')];
    if (!marks.length) return null;
    const boxes = marks.map(mark => mark.getBoundingClientRect()).filter(box => box.y > 0 && box.bottom < innerHeight);
    boxes.sort((one, two) => two.width * two.height - one.width * one.height);
    const place = [boxes[window.nextBar || 0].x + boxes[0].width / 2, boxes[window.nextBar || 0].y + 8];
    window.framesSame = String(window.placeBefore) === String(place) ? (window.framesSame || 0) + 1 : 0;
    window.placeBefore = place;
    return window.framesSame < 5 ? null : place;
}"""


def row(figure: str, value: float, unit: str, limit: float | None = None) -> dict[str, Any]:
    ok = None if limit is None else value <= limit
    return {
        "figure": figure,
        "value": round(value, 2),
        "unit": unit,
        "limit": "" if limit is None else f"<= {limit} {unit}",
        "ok": ok,
    }


def timeline_rows() -> Iterator[dict[str, Any]]:
    index = pl.arange(NUM_SPANS, eager=True)
    spans = pl.DataFrame(
        {
            "lane": (index % 32).cast(pl.String),
            "category": pl.Series(["compute", "communication"] * (NUM_SPANS // 2)),
            "name": pl.Series(["kernel"] * NUM_SPANS),
            "start_ns": index * 1_000,
            "end_ns": index * 1_000 + 900,
        },
        schema=TimelineSpans.schema(),
    )
    lengths: list[float] = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        timeline(spans, start_ns=0, end_ns=NUM_SPANS * 1_000)
        lengths.append(time.perf_counter() - began)
    yield row("figure of 1,000,000 spans on 32 lanes", 1_000 * median(lengths), "ms")


@contextmanager
def served(folder: Path, *options: str) -> Iterator[tuple[str, psutil.Process]]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    address = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "dashboards", str(folder), "--port", str(port), *options]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(300):
            try:
                urllib.request.urlopen(f"{address}/_stcore/health").close()
                break
            except OSError:
                time.sleep(0.1)
        yield address, psutil.Process(server.pid)
    finally:
        server.terminate()
        server.wait(10)


@contextmanager
def tab() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=list(FLAGS))
        yield browser.new_page(viewport={"width": 1280, "height": 900})
        browser.close()


def paint(page: Any, address: str, what: str) -> float:
    began = time.perf_counter()
    page.goto(address)
    page.wait_for_selector(what, timeout=LONG_MS)
    return time.perf_counter() - began


def paint_slowly(page: Any, address: str, what: str) -> tuple[float, float]:
    """Return the seconds to the first words of progress, and to what is waited for; they are one where it is quick."""
    began = time.perf_counter()
    page.goto(address)
    page.wait_for_selector(f"[data-testid=stProgress], {what}", timeout=LONG_MS)
    seen = time.perf_counter() - began
    page.wait_for_selector(what, timeout=LONG_MS)
    return seen, time.perf_counter() - began


def answer(page: Any, act: Callable[[], None], shown: str, argument: object = None) -> float:
    """Return the seconds from an act to what it shows, looked at in every frame."""
    page.wait_for_function(SETTLED, timeout=LONG_MS)
    page.wait_for_timeout(300)
    began = time.perf_counter()
    act()
    page.wait_for_function(shown, arg=argument, timeout=LONG_MS)
    return time.perf_counter() - began


METRIC = "[data-testid=stMetricValue]"
PLOT = ".js-plotly-plot .nsewdrag"


def run_rows(folder: Path, page: Any) -> Iterator[dict[str, Any]]:
    for name in ("the first time", "after a restart"):
        with served(folder) as (address, _):
            seen, opened = paint_slowly(page, address, METRIC)
            yield row(f"server just up, run opened {name}", opened, "s")
            yield row(f"... until the page says how far reading has come, or shows it, {name}", seen, "s", 2.0)
    with served(folder) as (address, process):
        paint(page, address, METRIC)
        yield row("first useful paint, warm", median(paint(page, address, METRIC) for _ in range(REPEATS)), "s", 2.0)
        yield from step_rows(address, page)
        yield row("memory of the server with the run open", process.memory_info().rss / 1e6, "MB", 1_000.0)


def step_rows(address: str, page: Any) -> Iterator[dict[str, Any]]:
    clicks: list[float] = []
    for _ in range(REPEATS):
        paint(page, f"{address}/steps", PLOT)
        place = page.wait_for_function(BAR, timeout=LONG_MS).json_value()
        page.mouse.move(1, 1)
        page.mouse.move(*place)
        page.wait_for_timeout(300)
        clicks.append(
            answer(
                page,
                lambda: (page.mouse.down(), page.mouse.up()),
                "() => [...document.querySelectorAll('h3')].some(head => head.innerText.includes('on every rank'))",
            )
        )
    yield row("click on a step to the step on 1,024 ranks", 1_000 * median(clicks), "ms", 300.0)
    field = page.get_by_role("spinbutton", name="Look at step")
    fields: list[float] = []
    for step in range(9_990, 9_990 + REPEATS):
        field.fill(str(step))
        fields.append(
            answer(
                page,
                lambda: field.press("Enter"),
                "step => [...document.querySelectorAll('h3')].some(head => head.innerText.startsWith(`Step ${step} `))",
                step,
            )
        )
    yield row("another step typed into its field", 1_000 * median(fields), "ms", 300.0)


def trace_rows(folder: Path, page: Any) -> Iterator[dict[str, Any]]:
    with served(folder) as (address, process):
        name = f"{NUM_SPANS:,} device events"
        seen, opened = paint_slowly(page, f"{address}/timeline", PLOT)
        yield row(f"timeline of {name}, the first time", opened, "s")
        yield row("... until the page says how far reading has come, or shows it", seen, "s", 2.0)
        warm = median(paint(page, f"{address}/timeline", PLOT) for _ in range(REPEATS))
        yield row(f"timeline of {name}, warm", warm, "s", 2.0)
        boxes: list[float] = []
        for _ in range(REPEATS):
            paint(page, f"{address}/timeline", PLOT)
            box = page.locator(PLOT).first.bounding_box()
            page.mouse.move(box["x"] + 300, box["y"] + 40)
            page.mouse.down()
            page.mouse.move(box["x"] + 340, box["y"] + 60, steps=4)
            boxes.append(
                answer(
                    page,
                    page.mouse.up,
                    "before => document.querySelector('.js-plotly-plot .gtitle')?.textContent !== before",
                    page.locator(".js-plotly-plot .gtitle").first.text_content(),
                )
            )
        yield row("a box drawn to the window drawn", 1_000 * median(boxes), "ms", 300.0)
        yield row(f"memory of the server with {name}", process.memory_info().rss / 1e6, "MB", 1_000.0)


def live_rows(folder: Path, page: Any) -> Iterator[dict[str, Any]]:
    stop = threading.Event()
    writer = threading.Thread(target=grow, args=(folder, stop))
    writer.start()
    try:
        with served(folder, "--refresh", "1") as (address, process):
            paint(page, address, METRIC)
            page.wait_for_timeout(5_000)
            shown = page.locator(METRIC).nth(1).inner_text()
            began, wall = sum(process.cpu_times()[:2]), time.monotonic()
            page.wait_for_timeout(1_000 * LIVE_S)
            used = (sum(process.cpu_times()[:2]) - began) / (time.monotonic() - wall)
            moved = int(page.locator(METRIC).nth(1).inner_text()) - int(shown)
        name = f"live page of {LIVE_RANKS} ranks at {LIVE_STEPS_PER_S} steps/s, looked at every second"
        yield row(name, 100 * used, "% of a core", 5.0)
        yield row("... steps that it went on meanwhile", moved, "")
    finally:
        stop.set()
        writer.join()


def grow(folder: Path, stop: threading.Event) -> None:
    """Append a step to every rank again and again, at the time of the clock."""
    files = sorted(folder.rglob("steps.jsonl"))
    last = {file: json.loads(file.read_bytes().splitlines()[-1]) for file in files}
    while not stop.wait(1 / LIVE_STEPS_PER_S):
        for file, line in last.items():
            length = line["end_ns"] - line["start_ns"]
            line["step"] += 1
            line["end_ns"] = time.time_ns()
            line["start_ns"] = line["end_ns"] - length
            with file.open("a") as out:
                out.write(json.dumps(line) + "\n")


def main() -> None:
    rows = list(timeline_rows())
    with tempfile.TemporaryDirectory() as scratch, tab() as page:
        os.environ["SCOPE_CACHE_DIR"] = str(Path(scratch) / "cache")
        slow = range(5_000, 10_000)
        SyntheticRun(layout=Layout(dp=128, tp=8), num_steps=10_000, straggler=77, slow_steps=slow).write(
            Path(scratch) / "big"
        )
        rows += run_rows(Path(scratch) / "big", page)
        shutil.rmtree(Path(scratch) / "big")
        # 8 ranks x 39 steps x 800 layers x 4 kernels
        job = TrainingJob(layout=Layout(dp=4, tp=2), num_steps=39, work=Work(num_layers=800, forward_ns=80_000))
        write_traces(job.run(), job.layout, Path(scratch) / "trace")
        rows += trace_rows(Path(scratch) / "trace", page)
        live = Path(scratch) / "live"
        SyntheticRun(layout=Layout(dp=LIVE_RANKS), num_steps=1_000, is_finished=False).write(live)
        info = json.loads((live / "run.json").read_text())
        (live / "run.json").write_text(json.dumps(info | {"synthetic": False}))
        rows += live_rows(live, page)
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
