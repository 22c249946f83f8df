"""The dashboard on a run of 1,024 ranks x 10,000 steps and on 1,000,000 spans: paint, memory, cost of a live page."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import polars as pl
import psutil

from scope.report.figures import TimelineSpans, timeline
from scope.testing.layout import Layout
from scope.testing.runs import SyntheticRun

if TYPE_CHECKING:
    from collections.abc import Iterator

FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run")
REPEATS = 5
NUM_SPANS = 1_000_000


def row(figure: str, value: float, unit: str, limit: float | None) -> dict[str, Any]:
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
    yield row("figure of 1,000,000 spans on 32 lanes", 1_000 * median(lengths), "ms", None)


def browser_rows(folder: Path) -> Iterator[dict[str, Any]]:
    from playwright.sync_api import sync_playwright

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    address = f"http://127.0.0.1:{port}"
    server = subprocess.Popen(
        [sys.executable, "-m", "dashboards", str(folder), "--port", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        for _ in range(300):
            try:
                urllib.request.urlopen(f"{address}/_stcore/health").close()
                break
            except OSError:
                time.sleep(0.2)
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=list(FLAGS))
            page = browser.new_page()
            yield row("first look at the run, cold", paint(page, address), "s", None)
            yield row("first useful paint, warm", median(paint(page, address) for _ in range(REPEATS)), "s", 2.0)
            process = psutil.Process(server.pid)
            began, wall = sum(process.cpu_times()[:2]), time.monotonic()
            page.wait_for_timeout(10_000)
            used = (sum(process.cpu_times()[:2]) - began) / (time.monotonic() - wall)
            yield row("server while the page stands open", 100 * used, "% of a core", 5.0)
            yield row("memory of the server", process.memory_info().rss / 1e6, "MB", 1_000.0)
            browser.close()
    finally:
        server.terminate()
        server.wait(10)


def paint(page: Any, address: str) -> float:
    began = time.perf_counter()
    page.goto(address)
    page.wait_for_selector("[data-testid=stMetricValue]", timeout=300_000)
    return time.perf_counter() - began


def main() -> None:
    rows = list(timeline_rows())
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "big"
        slow = range(5_000, 10_000)
        SyntheticRun(layout=Layout(dp=128, tp=8), num_steps=10_000, straggler=77, slow_steps=slow).write(folder)
        rows += browser_rows(folder)
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
