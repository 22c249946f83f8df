"""The page in a real browser: it draws its plots, asks nothing of the network, obeys no name, and follows the theme."""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING, Any

import pytest

from scope.report.build import compute_results
from scope.report.findings import find_all
from scope.report.page import render_page
from scope.testing.jobs import straggling_job
from scope.testing.layout import Layout
from scope.testing.scenarios import Scenario
from scope.trace import load

if TYPE_CHECKING:
    from pathlib import Path

HOSTILE = '<img src=x onerror="document.title=1"><a href="https://evil.example">x</a>'

pytestmark = pytest.mark.system("chromium")


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the page of a simulated job of four ranks, one kernel of which has a hostile name."""
    # A path that no line of a phone holds, and nowhere breaks.
    folder = tmp_path_factory.mktemp("job_" + "x" * 90)
    job = straggling_job(Layout(dp=4), rank=2, kind="host")
    files = Scenario(layout=job.layout, simulation=job.run()).write(folder)
    for file in files:
        file.write_bytes(gzip.compress(gzip.decompress(file.read_bytes()).replace(b"sm90_xmma", _as_json(HOSTILE))))
    results = compute_results(load([str(file) for file in files]))
    path = folder / "report.html"
    path.write_text(render_page(results, find_all(results)))
    return path


def _as_json(text: str) -> bytes:
    return json.dumps(text)[1:-1].encode()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_the_page_draws_offline(browser: Any, page_file: Path, scheme: str, width: int) -> None:
    """Every plot is drawn, in the colours of the theme; nothing is requested but the file, nothing fails."""
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    trouble: list[str] = []
    requests: list[str] = []
    page.on("console", lambda message: trouble.append(message.text))
    page.on("pageerror", lambda error: trouble.append(str(error)))
    page.on("request", lambda request: requests.append(request.url))
    page.goto(page_file.as_uri())
    num_plots = page.locator("[data-figure]").count()
    assert num_plots >= 6
    page.wait_for_function(f"document.querySelectorAll('[data-figure] svg.main-svg').length >= {num_plots}")
    page.wait_for_function("[...document.querySelectorAll('[data-figure]')].every(p => p._fullLayout.font.color)")
    ink = page.evaluate("document.querySelector('[data-figure]')._fullLayout.font.color")
    assert ink == ("#ededed" if scheme == "dark" else "#1a1a1a")
    assert trouble == []
    assert [url for url in requests if not url.startswith(("file:", "data:", "blob:"))] == []
    assert page.evaluate("document.body.scrollWidth") <= width
    assert "onerror" in page.content()
    assert page.title() == "Scope report"
    assert page.locator("a[href]").count() == 0
    page.close()


def test_plotted_values_are_those_of_the_analysis(browser: Any, page_file: Path) -> None:
    """The bars of the ranks, read back from the page, sum to each rank's window."""
    results = compute_results(load([str(path) for path in sorted(page_file.parent.glob("*.json*"))]))
    page = browser.new_page()
    page.goto(page_file.as_uri())
    drawn = page.evaluate("JSON.parse(document.getElementById('figure-ranks').textContent)")
    page.close()
    unit = drawn["layout"]["yaxis"]["title"]["text"]
    divisor = {"Time (s)": 1e9, "Time (ms)": 1e6, "Time (µs)": 1e3}[unit]
    for place, rank in enumerate(results.analysis.ranks):
        assert rank.breakdown is not None
        total = sum(trace["y"][place] for trace in drawn["data"])
        assert total * divisor == pytest.approx(rank.breakdown.window_ns, abs=1)
