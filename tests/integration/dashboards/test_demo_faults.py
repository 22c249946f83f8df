"""What the demo does when one of its processes is killed, and when two demos meet; nothing is left behind."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import psutil
import pytest

from dashboards.settings import VARIABLE
from dashboards.sources.catalogue import find_sources

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from conftest import Visitor

pytest.importorskip("torch")

TIMEOUT_S = 120
COMMAND = [sys.executable, "-u", "-m", "scope", "demo", "--steps", "100000", "--ranks", "2", "--port", "0"]


def until(condition: Callable[[], object], what: str) -> None:
    """Wait until something holds."""
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


def processes_of(folder: Path) -> dict[int, str]:
    """Return the command lines of processes that name a folder, there or for the dashboard's server, by process."""
    found: dict[int, str] = {}
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            command = " ".join(process.cmdline())
            named = command + process.environ().get(VARIABLE, "")
            if str(folder) in named and process.status() != psutil.STATUS_ZOMBIE:
                found[process.pid] = command
    return found


class Demo:
    """A demo that runs, and what it prints."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "demo"
        self.output = folder / "output"
        with self.output.open("wb") as out:
            command = [*COMMAND, "--folder", str(self.folder)]
            self.process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)

    def says(self, words: str) -> bool:
        """Return whether it has printed these words."""
        return words in self.output.read_text()

    def wait_until_it_says(self, words: str) -> None:
        """Wait for words, which must come before its end."""
        until(lambda: self.says(words) or self.process.poll() is not None, f"no {words}: {self.output.read_text()}")
        assert self.says(words), self.output.read_text()

    def kill_child(self, part: str) -> None:
        """Kill the process whose command line has this part."""
        (pid,) = [pid for pid, command in processes_of(self.folder).items() if part in command]
        psutil.Process(pid).kill()

    def kill_rank(self, rank: int) -> None:
        """Kill a training process by the number that `rank.json` has."""
        (info,) = self.folder.glob(f"runs/demo/attempt-000/ranks/{rank:05d}/rank.json")
        psutil.Process(json.loads(info.read_text())["pid"]).kill()

    def address_of(self, what: str) -> str:
        """Return the address that it has printed of one of its servers."""
        (found,) = re.findall(rf"^{what}: (http://[0-9.]+:[0-9]+)", self.output.read_text(), re.MULTILINE)
        return found


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[Demo]:
    """A demo whose dashboard is up."""
    running = Demo(tmp_path)
    try:
        running.wait_until_it_says("Dashboard: http")
        yield running
    finally:
        running.process.terminate()
        running.process.wait(60)


def refuse_a_second(demo: Demo) -> None:
    """A second demo in the same folder says what to do, and takes nothing away from the first."""
    command = [*COMMAND, "--folder", str(demo.folder)]
    second = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert second.returncode != 0
    assert "another demo is running" in second.stderr
    assert "Traceback" not in second.stderr
    assert (demo.folder / "runs" / "demo" / "run.json").is_file()


def test_the_demo_without_one_process_after_the_other(demo: Demo) -> None:
    """A second demo is refused; a killed exporter or launcher is said in a sentence; without a dashboard all ends.

    One demo serves for all, since each takes seconds to start.
    """
    refuse_a_second(demo)
    demo.kill_child("-m exporters")
    demo.wait_until_it_says("The exporter was ended by SIGKILL; the rest goes on")
    demo.kill_child("-m scope run")
    demo.wait_until_it_says("The training was ended by SIGKILL; the dashboard goes on")
    assert demo.process.poll() is None
    assert any("tiny_transformer" in command for command in processes_of(demo.folder).values())
    demo.kill_child("dashboards.server")
    assert demo.process.wait(60) != 0
    assert demo.says("the dashboard was ended by SIGKILL")
    assert not demo.says("Traceback")
    until(lambda: not processes_of(demo.folder), f"left over: {processes_of(demo.folder)}")


@pytest.mark.system("chromium", "prometheus")
def test_pages_say_what_was_killed_under_them(demo: Demo, visitor: Visitor) -> None:
    """A killed exporter, Prometheus and rank: the pages that show them say so, and none fails.

    One demo serves for all, since each takes seconds to start.
    """
    address = demo.address_of("Dashboard")
    places = (str(demo.folder / "runs" / "demo"), demo.address_of("Prometheus"))
    run, server = (find_sources([place])[0].source_id for place in places)
    # Prometheus must have seen the exporter before it can miss it.
    visitor.open(f"{address}/quality?source={server}", "Data quality")
    visitor.wait_for("seconds since the last sample")
    demo.kill_child("-m exporters")
    for page, title in (("links", "Links"), ("overview", "Overview")):
        visitor.open(f"{address}/{page}?source={server}", title)
        visitor.wait_for("1 exporter did not answer when Prometheus asked last")
    demo.kill_child("prometheus --config")
    demo.wait_until_it_says("The prometheus was ended by SIGKILL")
    for page, title in (("links", "Links"), ("overview", "Overview"), ("quality", "Data quality")):
        visitor.open(f"{address}/{page}?source={server}", title)
        visitor.wait_for("does not answer")
    visitor.open(f"{address}/overview?source={run}", "Overview")
    visitor.wait_for("is Prometheus running there?")
    visitor.wait_for("live, running")
    demo.kill_rank(1)
    demo.wait_until_it_says("The training has ended with code 1")
    # The page that is open tells of it by itself. Who was behind it can tell only where the rank was not in a call.
    visitor.wait_for("ended without a goodbye")
    assert not visitor.num_exceptions()


def test_a_demo_that_is_killed_takes_its_processes_along(tmp_path: Path) -> None:
    """Even SIGKILL leaves nothing behind: the kernel ends the children."""
    demo = Demo(tmp_path)
    try:
        demo.wait_until_it_says("Node exporter")
        demo.process.send_signal(signal.SIGKILL)
        demo.process.wait(10)
        with suppress(AssertionError):
            until(lambda: not processes_of(demo.folder), "processes are left over")
        assert not processes_of(demo.folder)
    finally:
        for pid in processes_of(demo.folder):
            with suppress(psutil.Error):
                psutil.Process(pid).kill()
