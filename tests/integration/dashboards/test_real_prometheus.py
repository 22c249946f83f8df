"""The pages on a real Prometheus that scrapes a real exporter of this machine: what they draw is what both say."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest
from streamlit.testing.v1 import AppTest

from dashboards.__main__ import APP
from dashboards.settings import VARIABLE
from scope.testing.layout import Layout
from scope.testing.plotted import read_figure
from scope.testing.runs import SyntheticRun
from scope.units import NS_PER_S, format_duration

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.system("prometheus")

RANKS, STEPS, BLAMED = 3, 40, 1
RULES = APP.parent / "alerts" / "scope.rules.yml"
CONFIG = """\
global: {{scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s}}
rule_files: [rules.yml]
scrape_configs:
- job_name: scope
  static_configs: [{{targets: ['127.0.0.1:{port}']}}]
"""
TIMEOUT_S = 60


@contextmanager
def started(command: list[str], log: Path) -> Iterator[None]:
    """Run a program while the block lasts; it finds no runs that others record on this machine."""
    environment = os.environ | {"SCOPE_REGISTRY": str(log.parent / "registry")}
    with log.open("wb") as out:
        process = subprocess.Popen(command, env=environment, stdout=out, stderr=subprocess.STDOUT)
    try:
        yield
    finally:
        process.terminate()
        process.wait(20)


def ask(address: str, expression: str) -> list[dict[str, Any]]:
    """Return what Prometheus answers, without any code of the dashboard."""
    try:
        with urllib.request.urlopen(f"{address}/api/v1/query?query={quote(expression)}", timeout=5) as answer:
            found: list[dict[str, Any]] = json.load(answer)["data"]["result"]
    except OSError:
        return []
    return found


def wait_for(address: str, expression: str) -> list[dict[str, Any]]:
    """Return the first answer that is not empty."""
    deadline = time.monotonic() + TIMEOUT_S
    while not (found := ask(address, expression)):
        assert time.monotonic() < deadline, expression
        time.sleep(0.2)
    return found


def write_live_run(folder: Path) -> None:
    """Write a run whose last step has just ended, that has not ended, and whose diagnosis blames a rank."""
    SyntheticRun(layout=Layout(dp=RANKS), num_steps=STEPS, num_whole_steps=STEPS).write(folder)
    for place in folder.glob("attempt-*/ranks/*"):
        steps = [json.loads(line) for line in (place / "steps.jsonl").read_text().splitlines()]
        later_ns = time.time_ns() - steps[-1]["end_ns"]
        moved = [each | {name: each[name] + later_ns for name in ("start_ns", "end_ns")} for each in steps]
        (place / "steps.jsonl").write_text("".join(json.dumps(each) + "\n" for each in moved))
        info = json.loads((place / "rank.json").read_text())
        here = {"started_ns": info["started_ns"] + later_ns, "host": socket.gethostname()}
        (place / "rank.json").write_text(json.dumps(info | here))
    verdict = {"time_ns": time.time_ns(), "kind": "hang", "severity": "critical", "ranks": [BLAMED]}
    summary = f"rank {BLAMED} has not arrived at all_reduce 7"
    (folder / "verdicts.jsonl").write_text(json.dumps(verdict | {"summary": summary}) + "\n")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run directory that the server is told of."""
    place = tmp_path_factory.mktemp("prometheus") / "run"
    write_live_run(place)
    return place


@pytest.fixture(scope="module")
def server(run: Path, find_port: Callable[[], int]) -> Iterator[str]:
    """The address of a Prometheus server that has scraped this machine and a run of three ranks for a while."""
    folder = run.parent
    exporter, port = find_port(), find_port()
    # The rules as they are, but looked at each second.
    (folder / "rules.yml").write_text(RULES.read_text().replace("interval: 30s", "interval: 1s"))
    (folder / "prometheus.yml").write_text(CONFIG.format(port=exporter))
    address = f"http://127.0.0.1:{port}"
    exporting = [sys.executable, "-m", "exporters", "--port", str(exporter), "--runs", str(folder / "run")]
    scraping = ["prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data"]
    with (
        started([*exporting, "--collectors", "net,host,training,jobs"], folder / "exporter.log"),
        started([*scraping, f"--web.listen-address=127.0.0.1:{port}"], folder / "prometheus.log"),
    ):
        wait_for(address, "scope_train_step_median_seconds")
        wait_for(address, "count_over_time(scope_net_transmit_bytes_total[1m]) > 5")
        wait_for(address, 'ALERTS{alertname="ScopeVerdict", alertstate="firing"}')
        yield address


@pytest.fixture
def draw(server: str, monkeypatch: pytest.MonkeyPatch) -> Callable[..., AppTest]:
    """Return the function that draws a page on the server, or on a run that lies beside it."""

    def open_page(name: str, *first: str) -> AppTest:
        from dashboards import findings, shell

        monkeypatch.setenv(VARIABLE, json.dumps({"places": [*first, server], "refresh_s": 60.0}))
        for kept in (shell.settings, shell.source_list, findings._firing):
            kept.clear()
        app = AppTest.from_file(str(APP), default_timeout=TIMEOUT_S).run()
        return app if name == "overview" else app.switch_page(f"views/{name}.py").run()

    return open_page


def test_the_overview_shows_the_run_that_is_scraped(draw: Callable[[str], AppTest], server: str) -> None:
    """The step time is the one that Prometheus gives, and the steps of 200 ms are drawn."""
    app = draw("overview")
    assert not app.exception
    shown = {each.label: each.value for each in app.metric}
    slowest = max(float(each["value"][1]) for each in ask(server, "scope_train_step_median_seconds"))
    assert slowest == pytest.approx(0.2, rel=0.02)
    assert shown["Largest median step of a rank"] == format_duration(round(slowest * NS_PER_S))
    drawn = [read_figure(element.proto.spec) for element in app.get("plotly_chart")]
    (steps,) = [each for each in drawn if each["layout"]["title"]["text"].startswith("Length of the last step")]
    values = [value for trace in steps["data"] for value in trace.get("y") or () if value is not None]
    assert values
    assert values == pytest.approx([0.2] * len(values), rel=0.02)


def test_links_are_drawn_as_prometheus_knows_them(draw: Callable[[str], AppTest], server: str) -> None:
    """Every interface that the exporter reports is a line, named like it, and rates are finite and not negative."""
    app = draw("links")
    assert not app.exception
    drawn = [read_figure(element.proto.spec) for element in app.get("plotly_chart")]
    (figure,) = [each for each in drawn if each["layout"]["title"]["text"].startswith("Ethernet")]
    lines = [trace for trace in figure["data"] if trace["type"].startswith("scatter") and trace.get("y")]
    assert lines
    interfaces = {each["metric"]["device"] for each in ask(server, "scope_net_transmit_bytes_total")}
    assert {name for name in interfaces if any(name in trace["name"] for trace in lines)} == interfaces
    assert all(value is None or value >= 0 for trace in lines for value in trace["y"])


def test_the_overview_of_a_run_shows_the_alert_that_fires_and_names_the_rank(
    draw: Callable[..., AppTest], run: Path
) -> None:
    """The rules that come with the dashboard fire on the verdict of the run: critical, and rank 1 is blamed."""
    app = draw("overview", str(run))
    assert not app.exception
    assert {each.label: each.value for each in app.metric}["Ranks recorded"] == f"{RANKS} of {RANKS}"
    told = [each.value.replace("\\", "") for each in app.error]
    (alert,) = [each for each in told if "ScopeVerdict" in each]
    assert ": hang." in alert
    assert f"rank {BLAMED}." in alert
    assert not any("No alert fires" in each.value for each in app.caption)


def test_alerts_of_no_run_are_counted_apart(draw: Callable[..., AppTest], tmp_path: Path) -> None:
    """Another run beside the same server says that no alert fires for it, and how many fire elsewhere."""
    SyntheticRun(layout=Layout(dp=2), num_steps=5, num_whole_steps=5).write(tmp_path / "quiet")
    captions = " ".join(each.value for each in draw("overview", str(tmp_path / "quiet")).caption)
    assert "No alert fires for this run." in captions
    assert "of other runs and nodes" in captions
