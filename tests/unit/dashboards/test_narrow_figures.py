"""What a figure does so that a phone can show it, and so that a browser is quick to draw it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest

from scope.report.figures import StackedTimes, TimelineSpans, phase_breakdown, timeline

if TYPE_CHECKING:
    from scope.report.figures.style import Figure

LINE = 46
LANES = ("rank 0 steps", "rank 1023 GPU 7 stream 1234567890", "a lane with a name that is longer than any figure shows")


def layout_of(figure: Figure) -> dict[str, Any]:
    """Return a figure's layout as the browser gets it."""
    return json.loads(str(figure.to_json()))["layout"]


@pytest.mark.parametrize(
    "title", ["Short", "Busy time of each step beside that of the median peer", "word " * 30, "one" * 40]
)
def test_a_long_title_is_broken_between_words(title: str) -> None:
    """No line of several words is longer than a phone shows, and all words are there in their order."""
    bars = StackedTimes(labels=["0"], parts={"forward": [1_000]})
    lines = layout_of(phase_breakdown(bars, title=title.strip()))["title"]["text"].split("<br>")
    assert " ".join(lines) == title.strip()
    assert all(len(line) <= LINE or " " not in line for line in lines)


@pytest.mark.parametrize("num_spans", [10, 5_000])
def test_a_timeline_leaves_the_browser_no_margin_to_find(num_spans: int) -> None:
    """Bars and bins alike have margins of their own, wide enough for the longest name, and each lane its row."""
    index = pl.arange(num_spans, eager=True)
    spans = pl.DataFrame(
        {
            "lane": pl.Series([LANES[place % 3] for place in range(num_spans)]),
            "category": pl.Series(["compute"] * num_spans),
            "name": pl.Series(["kernel"] * num_spans),
            "start_ns": index * 10,
            "end_ns": index * 10 + 5,
        },
        schema=TimelineSpans.schema(),
    )
    layout = layout_of(timeline(spans, start_ns=0, end_ns=10 * num_spans))
    assert layout["xaxis"]["automargin"] is layout["yaxis"]["automargin"] is False
    # A character is 6 pixels wide at the least.
    assert layout["margin"]["l"] >= 6 * max(len(text) for text in layout["yaxis"]["ticktext"])
    assert layout["yaxis"]["range"] == [2.5, -0.5]
    # The axis stands above the lanes: below them the legend may grow over nothing.
    assert layout["xaxis"]["side"] == "top"
    assert (layout["legend"]["y"], layout["legend"]["yanchor"]) == (0, "top")
