"""Figures draw exactly what they are given, stay within what a browser draws at ease, and obey no name."""

from __future__ import annotations

import html
from itertools import pairwise
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scope.report import figures
from scope.report.figures import style
from scope.report.figures.series import thinned
from scope.report.figures.timeline import BinnedTime, busy_by_bin
from scope.testing.plotted import read_figure

HOSTILE = '<a href="https://evil.example">x</a>%{y}[/b]\x1b]0;'


def data(figure: Any) -> dict[str, Any]:
    """Return a figure as the browser gets it."""
    return read_figure(figure.to_json())


def num_marks(figure: Any) -> int:
    """Return how many bars and points a figure has."""
    return sum(len(trace.get("x") or []) for trace in data(figure)["data"])


def stacked(num_bars: int) -> figures.StackedTimes:
    """Return bars of two parts."""
    return figures.StackedTimes(
        labels=[f"step {index}" for index in range(num_bars)],
        parts={"compute": [1_000_000 + index for index in range(num_bars)], "idle": [500_000] * num_bars},
    )


def test_stacked_bars_hold_the_values_in_the_unit_of_the_axis() -> None:
    """Bars of 1.5 ms are drawn in ms, part by part, in the fixed colours."""
    figure = data(figures.step_breakdown(stacked(3)))
    compute, idle = figure["data"]
    assert compute["y"] == [1.0, 1.000001, 1.000002]
    assert idle["y"] == [0.5, 0.5, 0.5]
    assert (compute["marker"]["color"], idle["marker"]["color"]) == (style.BLUE, style.GREY)
    assert figure["layout"]["yaxis"]["title"]["text"] == "Time (ms)"
    assert figure["layout"]["xaxis"]["title"]["text"] == "Step"
    assert compute["customdata"][0] == ["step 0", "1 ms"]


def test_what_is_not_known_is_hatched_and_not_zero() -> None:
    """A rank without a breakdown has no bar of its own but a hatched one that says so."""
    bars = figures.StackedTimes(labels=["rank 0", "rank 1"], parts={"compute": [5, None], "idle": [5, None]})
    *parts, hatched = data(figures.rank_breakdown(bars))["data"]
    assert [part["y"] for part in parts] == [[5.0, None], [5.0, None]]
    assert hatched["x"] == [1]
    assert hatched["marker"]["pattern"]["shape"] == "/"


def test_many_bars_are_averaged_and_the_title_says_so() -> None:
    """10,000 steps of two parts stay within the cap, and each mark is the exact mean of its neighbours."""
    figure = figures.step_breakdown(stacked(10_000))
    assert num_marks(figure) <= figures.MAX_MARKS
    first = data(figure)["data"][0]
    assert "mean of 4 neighbours" in data(figure)["layout"]["title"]["text"].replace("<br>", " ")
    assert first["y"][0] == pytest.approx(1.0000015)
    assert first["customdata"][0][0] == "step 0 to step 3"


@pytest.mark.parametrize(
    "figure",
    [
        pytest.param(figures.idle_causes(figures.StackedTimes(labels=[HOSTILE], parts={"host": [7]})), id="bars"),
        pytest.param(figures.kernels_by_time([HOSTILE], [7], ["gemm"]), id="kernels"),
        pytest.param(
            figures.roofline(
                [
                    figures.RooflineBubble(
                        name=HOSTILE,
                        detail=HOSTILE,
                        kernel_class="gemm",
                        flop_per_byte=1.0,
                        flop_per_s=1e12,
                        attained_ratio=0.5,
                        total_ns=5,
                        count=1,
                    )
                ],
                [figures.RooflineCeiling(name=HOSTILE, peak_flop_per_s=1e15, bytes_per_s=3e12)],
            ),
            id="roofline",
        ),
        pytest.param(
            figures.collective_bandwidth(
                [
                    figures.CollectiveBubble(
                        operation="all_reduce",
                        detail=HOSTILE,
                        message_bytes=8,
                        busbw_bytes_per_s=1e9,
                        total_ns=5,
                        count=1,
                    )
                ],
                [figures.BandwidthCeiling(name=HOSTILE, bytes_per_s=450e9)],
            ),
            id="collectives",
        ),
        pytest.param(
            figures.timeline(
                pl.DataFrame(
                    [(HOSTILE, "compute", HOSTILE, 0, 5)], schema=figures.TimelineSpans.schema(), orient="row"
                ),
                start_ns=0,
                end_ns=10,
            ),
            id="timeline",
        ),
        pytest.param(
            figures.memory_over_time(
                pl.DataFrame([(HOSTILE, 0, 5.0), (HOSTILE, 9, 6.0)], schema=figures.Samples.schema(), orient="row"),
                capacities={HOSTILE: 9.0},
            ),
            id="memory",
        ),
        pytest.param(
            figures.heat_map(
                pl.DataFrame([(0, 0, 1.0)], schema=figures.HeatCells.schema(), orient="row"),
                figures.HeatAxes(
                    title="t", x_title="Step", y_title="Rank", x_labels=[HOSTILE], y_labels=[HOSTILE], value_title="ms"
                ),
            ),
            id="heat",
        ),
    ],
)
def test_names_are_inert_in_every_figure(figure: Any) -> None:
    """No text of a figure holds a tag, a control character, or a template of its own."""
    texts: list[str] = []

    def collect(value: Any) -> None:
        if isinstance(value, str):
            texts.append(value)
        for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
            collect(each)

    collect(data(figure))
    assert any("href" in text for text in texts)
    assert all("href" not in trace.get("hovertemplate", "") for trace in data(figure)["data"])
    for text in texts:
        bare = text.replace("<br>", "").replace("<extra></extra>", "")
        assert "<" not in bare
        assert html.unescape(bare).isprintable()


@pytest.mark.parametrize("name", ["roofline", "collective_bandwidth"])
def test_figures_without_data_say_why(name: str) -> None:
    """An empty figure holds a sentence and no axis."""
    figure = data(getattr(figures, name)([], []))
    assert figure["data"] == []
    assert figure["layout"]["annotations"][0]["text"]


def test_roofline_draws_points_and_roofs_where_they_are() -> None:
    """A point is at its intensity and rate; a roof bends at peak / bandwidth; the longest kernel is the largest."""
    bubbles = [
        figures.RooflineBubble(
            name=f"op{size}", detail="", kernel_class="gemm", flop_per_byte=100.0, flop_per_s=2e14, attained_ratio=0.5,
            total_ns=size, count=1,
        )
        for size in (400, 100)
    ]  # fmt: skip
    points, roof = data(
        figures.roofline(bubbles, [figures.RooflineCeiling(name="H100", peak_flop_per_s=1e15, bytes_per_s=2e12)])
    )["data"]
    assert points["x"] == [100.0, 100.0]
    assert points["y"] == [200.0, 200.0]
    large, small = points["marker"]["size"]
    assert large == pytest.approx(2 * small), "the area, not the diameter, follows the time"
    assert roof["x"][1] == 500.0
    assert roof["y"][1:] == [1000.0, 1000.0]
    assert roof["y"][0] == pytest.approx(roof["x"][0] * 2e12 / 1e12)


def test_neighbouring_roofs_are_told_apart() -> None:
    """Three math paths of one GPU are three lines of different dashes."""
    (bubble,) = (
        figures.RooflineBubble(
            name="op", detail="", kernel_class="gemm", flop_per_byte=100.0, flop_per_s=2e14, attained_ratio=0.5,
            total_ns=9, count=1,
        ),
    )  # fmt: skip
    roofs = [figures.RooflineCeiling(name=f"r{n}", peak_flop_per_s=n * 1e15, bytes_per_s=2e12) for n in (1, 2, 3)]
    _, *lines = data(figures.roofline([bubble], roofs))["data"]
    assert len({line["line"]["dash"] for line in lines}) == 3


@given(
    spans=st.lists(
        st.tuples(st.sampled_from("ab"), st.sampled_from("xyz"), st.integers(0, 100), st.integers(0, 40)),
        min_size=1,
        max_size=30,
    ),
    edges=st.sets(st.integers(0, 150), min_size=2, max_size=12),
)
def test_bins_hold_the_busy_time_exactly(spans: list[tuple[str, str, int, int]], edges: set[int]) -> None:
    """Every bin equals a count of the nanoseconds of each span of the lane and category that lie in it."""
    base = 1_790_000_000_000_000_000
    rows = [(lane, kind, "k", base + start, base + start + length) for lane, kind, start, length in spans]
    frame = pl.DataFrame(rows, schema=figures.TimelineSpans.schema(), orient="row")
    ordered = sorted(edges)
    expected = {
        (lane, kind, place): sum(
            low <= at < high
            for span_lane, span_kind, start, length in spans
            if (span_lane, span_kind) == (lane, kind)
            for at in range(start, start + length)
        )
        for lane, kind in {(lane, kind) for lane, kind, _, _ in spans}
        for place, (low, high) in enumerate(pairwise(ordered))
    }
    found = BinnedTime.check(busy_by_bin(frame, [base + edge for edge in ordered]))
    assert {(lane, kind, place): busy for lane, kind, place, busy in found.iter_rows()} == expected
    assert found[BinnedTime.bin].is_sorted()


def test_a_long_timeline_is_binned_within_the_cap() -> None:
    """Spans that alternate between two categories fill every bin, and a cell says the time of both."""
    rows = [
        ("rank 0", kind, "k", index * 200 + offset, index * 200 + offset + length)
        for index in range(10_000)
        for kind, offset, length in (("compute", 0, 70), ("communication", 100, 30))
    ]
    spans = pl.DataFrame(rows, schema=figures.TimelineSpans.schema(), orient="row")
    cells, *legend = data(figures.timeline(spans, start_ns=0, end_ns=2_000_000))["data"]
    (row,) = cells["z"]
    assert len(row) == len(cells["x"]) <= 1000
    assert set(row) == {0}, "compute takes 70 % of what runs everywhere"
    assert cells["customdata"][0] == [pytest.approx([700e-9, 300e-9], rel=1e-6)] * len(row)
    text = "compute: %{customdata[0]:.3~s}s of 2 µs<br>communication: %{customdata[1]:.3~s}s of 2 µs<extra></extra>"
    assert cells["hovertemplate"] == text
    assert [each["name"] for each in legend] == ["compute", "communication"]


def test_a_cell_speaks_of_what_runs_on_its_lane_alone() -> None:
    """Lanes of unlike categories have a trace each, in which the rows of the others are blank, and gaps stay blank."""
    rows = [("a", "compute", "k", index * 100, index * 100 + 10) for index in range(2_000)]
    rows += [("b", "idle", "k", index * 100, index * 100 + 10) for index in range(1_500)]
    spans = pl.DataFrame(rows, schema=figures.TimelineSpans.schema(), orient="row")
    first, second, *_ = data(figures.timeline(spans, start_ns=0, end_ns=200_000))["data"]
    bins = len(first["x"])
    assert first["z"] == [[0.0] * bins, [None] * bins]
    assert second["z"] == [[None] * bins, [1.0] * (bins * 3 // 4) + [None] * (bins // 4)]
    assert ("compute" in first["hovertemplate"], "idle" in first["hovertemplate"]) == (True, False)


def test_a_short_window_shows_true_bars_cut_at_its_edges() -> None:
    """A bar that reaches over the window is cut to it."""
    spans = pl.DataFrame([("l", "compute", "k", -50, 30)], schema=figures.TimelineSpans.schema(), orient="row")
    (bar,) = data(figures.timeline(spans, start_ns=0, end_ns=100))["data"]
    assert (bar["base"], bar["x"]) == ([0.0], [30.0])


def test_thinning_keeps_peaks() -> None:
    """Of 100,000 samples the largest and the smallest stay, and no more than the cap."""
    values = [float(index % 100) for index in range(100_000)]
    values[54_321], values[12_345] = 1e9, -1e9
    samples = pl.DataFrame({"name": "a", "time_ns": range(100_000), "value": values}, schema=figures.Samples.schema())
    kept = thinned(samples, cap=1_000)
    assert kept.height <= 1_000
    assert kept["value"].max() == 1e9
    assert kept["value"].min() == -1e9
    assert kept["time_ns"].is_sorted()


def test_a_heat_map_leaves_unknown_cells_blank_and_averages_many() -> None:
    """A cell that is not given stays null; 4,000 columns are averaged by fours."""
    cells = pl.DataFrame([(0, 0, 1.0), (1, 1, 3.0)], schema=figures.HeatCells.schema(), orient="row")
    axes = figures.HeatAxes(
        title="t", x_title="Step", y_title="Rank", x_labels=["1", "2"], y_labels=["a", "b"], value_title="ms"
    )
    trace = data(figures.heat_map(cells, axes))["data"][0]
    assert trace["z"] == [[1.0, None], [None, 3.0]]
    wide = pl.DataFrame([(x, 0, float(x % 4)) for x in range(4_000)], schema=figures.HeatCells.schema(), orient="row")
    many = figures.HeatAxes(
        title="t",
        x_title="Step",
        y_title="Rank",
        x_labels=[str(x) for x in range(4_000)],
        y_labels=["a"],
        value_title="ms",
    )
    drawn = data(figures.heat_map(wide, many))
    assert drawn["data"][0]["z"] == [[1.5] * 1_000]
    assert "mean of up to 4 by 1" in drawn["layout"]["title"]["text"]


def test_axes_of_every_figure_name_their_unit() -> None:
    """A length of time, a bandwidth and a rate say what they are measured in."""
    spans = pl.DataFrame([("l", "compute", "k", 0, 5)], schema=figures.TimelineSpans.schema(), orient="row")
    samples = pl.DataFrame([("a", 0, 5.0), ("a", 9, 6.0)], schema=figures.Samples.schema(), orient="row")
    drawn = {
        "x": [figures.timeline(spans, start_ns=0, end_ns=10), figures.kernels_by_time(["k"], [5_000], ["gemm"])],
        "y": [figures.memory_over_time(samples, capacities={}), figures.link_use_over_time(samples, capacities={})],
    }
    for axis, made in drawn.items():
        for figure in made:
            assert "(" in data(figure)["layout"][f"{axis}axis"]["title"]["text"]
