"""The figures on a phone, 390 pixels wide: nothing is cut, and no legend covers an axis."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dashboards.sources.catalogue import find_sources

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import Visitor
    from playwright.sync_api import ViewportSize

pytestmark = pytest.mark.system("chromium")

PHONE: ViewportSize = {"width": 390, "height": 844}
PAGES_OF_RUN = ("overview", "steps", "ranks", "memory", "collectives", "links")
PAGES_OF_TRACE = ("overview", "steps", "ranks", "collectives", "kernels", "timeline")
# What of a figure reaches beyond it, and which of its texts lie over another; a pixel of either is nothing.
FAULTS = """() => {
    const found = [];
    const boxes = (plot, what) => [...plot.querySelectorAll(what)].map(one => one.getBoundingClientRect())
        .filter(box => box.width && box.height);
    const meet = (one, other) => Math.min(one.right, other.right) - Math.max(one.left, other.left) > 1
        && Math.min(one.bottom, other.bottom) - Math.max(one.top, other.top) > 1;
    for (const plot of document.querySelectorAll('.js-plotly-plot')) {
        const whole = plot.getBoundingClientRect();
        const name = plot.querySelector('.gtitle')?.textContent;
        const parts = {title: boxes(plot, '.gtitle'), 'x title': boxes(plot, '.xtitle'), legend: boxes(plot, '.legend'),
            'x numbers': boxes(plot, '.xtick text'), 'y names': boxes(plot, '.ytick text')};
        for (const [part, places] of Object.entries(parts))
            for (const box of places)
                if (box.left < whole.left - 1 || box.right > whole.right + 1) found.push(`${name}: ${part} is cut`);
        for (const [one, other] of [['legend', 'x title'], ['legend', 'x numbers'], ['x title', 'x numbers'],
            ['title', 'y names'], ['legend', 'y names']])
            if (parts[one].some(box => parts[other].some(place => meet(box, place))))
                found.push(`${name}: ${one} over ${other}`);
    }
    return found;
}"""


@pytest.fixture
def phone(visitor: Visitor) -> Visitor:
    """A tab as narrow as a phone."""
    visitor.page.set_viewport_size(PHONE)
    return visitor


@pytest.mark.parametrize("kind", ["run", "trace"])
def test_no_text_of_a_figure_is_cut_or_covered(phone: Visitor, address: str, places: list[Path], kind: str) -> None:
    """On every page of a run and of traces, titles, names, numbers and legends lie beside each other, all within."""
    (source,) = [each for each in find_sources([str(places[2])]) if each.kind == kind]
    for name in PAGES_OF_RUN if kind == "run" else PAGES_OF_TRACE:
        phone.open(f"{address}/{name}?source={source.source_id}")
        phone.page.wait_for_selector(".js-plotly-plot .main-svg")
        phone.page.wait_for_function(
            f"() => ({FAULTS})().length === 0 || (window.looks = (window.looks || 0) + 1) > 60"
        )
        assert phone.page.evaluate(FAULTS) == [], name
