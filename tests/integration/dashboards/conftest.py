"""A real dashboard server and a real browser, shared by all tests of this folder."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

from scope.testing.demo import write_demo_run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from playwright.sync_api import Browser, BrowserContext, Page

ROOT = Path(__file__).parents[3]
START_TIMEOUT_S = 60
DRAWN_MS = 60_000
CLICKS, ANSWER_MS = 5, 3_000
SAMPLES = ROOT / "sample_traces"
HOSTILE = "[x](javascript:alert(1)) <img src=x onerror=alert(2)> :smile: $x^2$"
PAGES = {
    "overview": "Overview",
    "steps": "Steps",
    "ranks": "Ranks",
    "memory": "Memory",
    "post_mortem": "Post-mortem",
    "collectives": "Collectives",
    "links": "Links",
    "kernels": "Kernels",
    "timeline": "Timeline",
    "compare": "Compare",
    "quality": "Data quality",
}
"""Titles of the pages by their addresses."""

# The server has sent all, and everything that came is laid out.
DRAWN = """title => {
    const app = document.querySelector('[data-testid=stApp]');
    const head = document.querySelector('h1');
    return app && app.dataset.testScriptState === 'notRunning' && head && (!title || head.innerText.trim() === title)
        && !document.querySelector('[data-stale=true], [data-testid=stSkeleton]');
}"""

# The largest mark of the first plot, once it has stood still for ten frames; from then on the plot notes what it sees.
SETTLED_MARK = """() => {
    const marks = [...document.querySelectorAll('.js-plotly-plot .bars .point path')];
    if (!marks.length) return null;
    const area = mark => { const box = mark.getBoundingClientRect(); return box.width * box.height; };
    const largest = marks.reduce((best, mark) => area(mark) > area(best) ? mark : best);
    largest.scrollIntoView({block: 'center'});
    const box = largest.getBoundingClientRect();
    const place = [box.x + box.width / 2, box.y + box.height / 2];
    const settled = window.markBefore && String(window.markBefore) === String(place);
    window.framesSettled = settled ? window.framesSettled + 1 : 0;
    window.markBefore = place;
    if (window.framesSettled < 10) return null;
    const plot = largest.closest('.js-plotly-plot');
    window.isPointedAt = window.isChosen = false;
    plot.once('plotly_hover', () => { window.isPointedAt = true; });
    plot.once('plotly_selected', () => { window.isChosen = true; });
    return place;
}"""


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def _serve(*arguments: str, log: Path) -> Iterator[str]:
    """Start `python -m dashboards` as a user would, and yield its address; it is ended afterwards."""
    port = free_port()
    command = [sys.executable, "-m", "dashboards", *arguments, "--port", str(port)]
    with log.open("wb") as out:
        process = subprocess.Popen(command, cwd=ROOT, stdout=out, stderr=subprocess.STDOUT)
    try:
        _wait_until_healthy(f"http://127.0.0.1:{port}", process, log)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(10)


def _wait_until_healthy(address: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        assert process.poll() is None, log.read_text()
        try:
            with urllib.request.urlopen(f"{address}/_stcore/health", timeout=5):
                return
        except OSError:
            time.sleep(0.2)
    pytest.fail(f"the dashboard did not start: {log.read_text()}")


@pytest.fixture(scope="session")
def serve() -> Callable[..., AbstractContextManager[str]]:
    """Return the function that starts a dashboard."""
    return _serve


@pytest.fixture(scope="session")
def window(browser: Browser) -> Iterator[BrowserContext]:
    """A window of 1280 pixels; its tabs share what they have loaded of the server's scripts."""
    opened = browser.new_context(viewport={"width": 1280, "height": 900})
    yield opened
    opened.close()


@pytest.fixture(scope="session")
def places(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A recorded run, traces, and a synthetic run whose folder has a hostile name."""
    synthetic = tmp_path_factory.mktemp("places") / HOSTILE.replace("/", "|")
    write_demo_run(synthetic)
    return [SAMPLES / "gloo-4-ranks-straggler", SAMPLES / "gloo-2-ranks-straggler", synthetic]


@pytest.fixture(scope="session")
def address(places: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a dashboard on these places."""
    with _serve(*map(str, places), log=tmp_path_factory.mktemp("log") / "dashboard.log") as found:
        yield found


@dataclass
class Visitor:
    """Somebody with one tab open.

    Attributes:
        page: The tab.
        hosts: Every host that it has asked for something.
    """

    page: Page
    hosts: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        """Note hosts, and fail at any dialog."""
        self.page.on("request", lambda request: self.hosts.add(urlsplit(request.url).netloc))
        self.page.on("dialog", lambda dialog: pytest.fail(f"a dialog: {dialog.message}"))

    def open(self, address: str, title: str | None = None) -> None:
        """Open an address and wait until its page is drawn."""
        self.page.goto(address, wait_until="commit")
        self.wait_until_drawn(title)

    def wait_until_drawn(self, title: str | None = None) -> None:
        """Wait until the page of this title, or any page, is drawn whole."""
        self.page.wait_for_function(DRAWN, arg=title, timeout=DRAWN_MS)

    def wait_for(self, words: str) -> None:
        """Wait until the page shows these words, whatever their case."""
        self.page.get_by_text(re.compile(re.escape(words), re.IGNORECASE)).first.wait_for(timeout=DRAWN_MS)

    def open_every_page(self, address: str) -> Iterator[str]:
        """Open an address, then every page by its link in the sidebar; yield the name of each page that is drawn."""
        self.open(address)
        for name, title in PAGES.items():
            self.page.get_by_test_id("stSidebarNavLink").filter(has_text=title).click()
            self.wait_until_drawn(title)
            yield name

    def num_exceptions(self) -> int:
        """Return how many errors of Streamlit the page shows."""
        return self.page.locator("[data-testid=stException]").count()

    def click_largest_mark(self) -> None:
        """Click into the middle of the largest bar, again only if plotly has not taken it for a click on a bar."""
        from playwright.sync_api import TimeoutError

        for _ in range(CLICKS):
            self.page.wait_for_function(DRAWN, timeout=DRAWN_MS)
            place = self.page.wait_for_function(SETTLED_MARK, timeout=DRAWN_MS).json_value()
            try:
                # A click means the bar that plotly has found under a mouse that stands still, so no move goes with it.
                self.page.mouse.move(1, 1)
                self.page.mouse.move(*place)
                self.page.wait_for_function("() => window.isPointedAt", timeout=ANSWER_MS)
                self.page.mouse.down()
                self.page.mouse.up()
                self.page.wait_for_function("() => window.isChosen", timeout=ANSWER_MS)
            except TimeoutError:
                continue
            return
        pytest.fail(f"{CLICKS} clicks on a bar choose nothing")


@pytest.fixture
def visitor(window: BrowserContext) -> Iterator[Visitor]:
    """A new tab."""
    tab = window.new_page()
    yield Visitor(tab)
    tab.close()


@pytest.fixture
def visitors(browser: Browser) -> Iterator[tuple[Visitor, Visitor]]:
    """Two people, each with a browser window that shares nothing with the other's."""
    windows = [browser.new_context(viewport={"width": 1280, "height": 900}) for _ in range(2)]
    first, second = (Visitor(window.new_page()) for window in windows)
    yield first, second
    for window in windows:
        window.close()


@pytest.fixture(scope="session")
def pages() -> dict[str, str]:
    """Titles of the pages by their addresses."""
    return PAGES


@pytest.fixture(scope="session")
def find_port() -> Callable[[], int]:
    """Finds free ports."""
    return free_port
