"""Every page of the app on traces: plotted values against the analyses that they came from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from dashboards.sources.catalogue import find_sources, find_windows
from scope.analysis.summary import analyze
from scope.report.build import compute_results
from scope.report.page_figures import roofline_points
from scope.testing.demo import EXTRA_NS, SLOW_RANK, write_demo_run
from scope.testing.plotted import read_figure
from scope.trace import load

if TYPE_CHECKING:
    from collections.abc import Callable

    from streamlit.testing.v1 import AppTest

    from scope.report.results import Results

SAMPLES = Path(__file__).parents[3] / "sample_traces"
TRACE_PAGES = ("overview", "steps", "ranks", "memory", "collectives", "kernels", "timeline", "compare", "quality")
RUN_PAGES = ("overview", "steps", "ranks", "memory", "collectives", "links", "post_mortem", "compare", "quality")


def figures_of(app: AppTest) -> dict[str, dict[str, Any]]:
    """Return the plotly figures that a page shows, by title."""
    drawn = [read_figure(element.proto.spec) for element in app.get("plotly_chart")]
    return {figure["layout"]["title"]["text"]: figure for figure in drawn}


def bars_of(figure: dict[str, Any]) -> dict[str, list[float]]:
    """Return the values of a bar chart by the name of the part."""
    return {trace["name"]: trace["y"] for trace in figure["data"]}


@pytest.fixture(scope="module")
def synthetic(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The synthetic run of the demo: 8 GPUs, rank 5 computes 3 ms longer a step."""
    folder = tmp_path_factory.mktemp("runs") / "synthetic-8-gpus"
    write_demo_run(folder)
    return folder


@pytest.fixture(scope="module")
def results(synthetic: Path) -> Results:
    """The analyses of its window."""
    (window,) = find_windows(synthetic)
    return compute_results(load([str(trace.path) for trace in window]))


def window_of(place: Path) -> str:
    """Return the id of the first captured window of a run."""
    return next(source.source_id for source in find_sources([str(place)]) if source.kind == "trace")


@pytest.mark.parametrize("page", TRACE_PAGES)
@pytest.mark.parametrize("name", ["gloo-2-ranks-healthy", "gloo-2-ranks-straggler"])
def test_a_page_draws_sample_traces(open_app: Callable[..., AppTest], page: str, name: str) -> None:
    """No page fails on traces that this project recorded over gloo."""
    app = open_app(page, SAMPLES / name)
    assert not app.exception
    assert not app.error


@pytest.mark.parametrize("page", RUN_PAGES)
def test_a_page_draws_a_sample_run(open_app: Callable[..., AppTest], page: str) -> None:
    """No page fails on a recorded run with its captured window."""
    app = open_app(page, SAMPLES / "gloo-4-ranks-straggler")
    assert not app.exception
    # The post-mortem of a run that ended in order has nothing to complain of either.
    assert not app.error


@pytest.mark.parametrize("page", TRACE_PAGES)
def test_every_page_says_that_a_synthetic_run_is_one(
    open_app: Callable[..., AppTest], synthetic: Path, page: str
) -> None:
    """Both the run and its traces are marked on every page."""
    for parameters in ({}, {"source": window_of(synthetic)}):
        app = open_app(page, synthetic, **parameters)
        assert not app.exception
        assert any("Synthetic" in warning.value for warning in app.warning), parameters


def test_device_time_of_steps_is_that_of_the_analysis(
    open_app: Callable[..., AppTest], synthetic: Path, results: Results
) -> None:
    """The bars of each step equal the breakdown, part by part, in milliseconds."""
    figure = figures_of(open_app("steps", synthetic, source=window_of(synthetic)))["Where each step went"]
    drawn = bars_of(figure)
    legends = {"exposed_memory": "exposed copies"}
    for part in ("compute", "exposed_communication", "exposed_memory", "idle"):
        true = [getattr(step.breakdown, f"{part}_ns") / 1e6 for step in results.analysis.steps]
        assert drawn[legends.get(part, part.replace("_", " "))] == pytest.approx(true)


def test_one_step_is_drawn_on_every_rank(open_app: Callable[..., AppTest], synthetic: Path) -> None:
    """The link's step is looked into; rank 5 computes 3 ms more than rank 0 in it."""
    app = open_app("steps", synthetic, source=window_of(synthetic), step="11")
    compute = bars_of(figures_of(app)["Where step 11 went on every rank"])["compute"]
    assert len(compute) == 8
    assert compute[SLOW_RANK] - compute[0] == pytest.approx(EXTRA_NS / 1e6)


def test_the_straggler_of_traces_is_named(open_app: Callable[..., AppTest], synthetic: Path) -> None:
    """Rank 5 is to blame, and the bar shows what it imposes over the steps."""
    app = open_app("ranks", synthetic, source=window_of(synthetic))
    assert any(f"rank {SLOW_RANK}" in warning.value for warning in app.warning)
    (wait,) = bars_of(figures_of(app)["Wait that each rank imposes on its peers"]).values()
    assert max(wait) >= EXTRA_NS / 1e6


def test_roofline_bubbles_are_the_points(open_app: Callable[..., AppTest], synthetic: Path, results: Results) -> None:
    """Each bubble stands at the intensity and rate of the row that a click on it opens, under a roof."""
    app = open_app("kernels", synthetic, source=window_of(synthetic))
    figure = next(figure for title, figure in figures_of(app).items() if title.startswith("Roofline"))
    rows = roofline_points(results).rows(named=True)
    bubbles = [trace for trace in figure["data"] if trace["mode"] == "markers"]
    seen = 0
    for trace in bubbles:
        for x, y, data in zip(trace["x"], trace["y"], trace["customdata"], strict=True):
            row = rows[data[-1]]
            assert x == pytest.approx(row["intensity_flop_per_byte"])
            assert y == pytest.approx(row["achieved_flop_per_s"] / 1e12)
            seen += 1
    assert seen == len(rows) > 0
    assert any(trace["mode"] == "lines" for trace in figure["data"])


def test_a_link_opens_a_kernel(open_app: Callable[..., AppTest], synthetic: Path) -> None:
    """`?selection=0` shows the kernel with most time, letter by letter."""
    app = open_app("kernels", synthetic, source=window_of(synthetic), selection="0")
    assert not app.exception
    assert len(app.code) == 1
    assert {"Of its ceiling", "At most saved"} <= {metric.label for metric in app.metric}


def test_lateness_is_that_of_the_calls(open_app: Callable[..., AppTest], synthetic: Path, results: Results) -> None:
    """The heat map of arrivals holds the lateness of every call in milliseconds."""
    app = open_app("collectives", synthetic, source=window_of(synthetic))
    (heat,) = figures_of(app)["How late each rank arrived at each collective"]["data"]
    assert results.collectives is not None
    calls = results.collectives.calls.drop_nulls(["collective_id", "lateness_ns"])
    drawn = sorted(value for row in heat["z"] for value in row if value is not None)
    assert drawn == pytest.approx(sorted(calls["lateness_ns"] / 1e6))


def test_the_timeline_shows_the_window_of_the_link(open_app: Callable[..., AppTest], synthetic: Path) -> None:
    """`?ranks=5&start=1000&end=3000` draws 2 ms of rank 5 alone."""
    link = {"source": window_of(synthetic), "ranks": "5", "start": "1000", "end": "3000"}
    (figure,) = figures_of(open_app("timeline", synthetic, **link)).values()
    lanes = figure["layout"]["yaxis"]["ticktext"]
    assert lanes
    assert all(lane.startswith("rank 5 ") for lane in lanes)
    assert figure["layout"]["xaxis"]["range"] == pytest.approx([0, 2])
    for trace in figure["data"]:
        ends = [base + length for base, length in zip(trace["base"], trace["x"], strict=True)]
        assert all(0 <= base <= end <= 2 + 1e-9 for base, end in zip(trace["base"], ends, strict=True))


def test_traces_that_vanish_are_a_sentence(open_app: Callable[..., AppTest], tmp_path: Path) -> None:
    """A folder whose traces are damaged says what is wrong instead of failing."""
    (tmp_path / "rank0.json").write_text('{"traceEvents": [{"ph": "X", ')
    app = open_app("overview", tmp_path)
    assert not app.exception


def test_breakdown_of_ranks_is_that_of_the_analysis(open_app: Callable[..., AppTest]) -> None:
    """On sample traces the overview draws the breakdown of each rank."""
    name = SAMPLES / "gloo-2-ranks-straggler"
    analysis = analyze(load(str(name)))
    drawn = bars_of(figures_of(open_app("overview", name))["Where each rank's time went"])
    true = [rank.breakdown.compute_ns for rank in analysis.ranks if rank.breakdown is not None]
    assert [value / drawn["compute"][0] for value in drawn["compute"]] == pytest.approx([t / true[0] for t in true])


@pytest.mark.parametrize("page", ["overview", "kernels", "quality"])
def test_every_page_says_which_window_it_shows(open_app: Callable[..., AppTest], tmp_path: Path, page: str) -> None:
    """Of a folder with two windows of one rank the newer one is shown, and the other is named."""
    for step in (3, 7):
        span = {"ph": "X", "pid": 1, "tid": 1, "ts": step * 1_000, "dur": 500}
        marked = {**span, "cat": "user_annotation", "name": f"ProfilerStep#{step}"}
        work = {**span, "cat": "cpu_op", "name": f"aten::op{step}", "dur": 400}
        document = {"distributedInfo": {"rank": 0, "world_size": 1}, "traceEvents": [marked, work]}
        (tmp_path / f"window{step}.json").write_text(json.dumps(document))
    app = open_app(page, tmp_path)
    assert not app.exception
    assert sum("window of step 7" in warning.value for warning in app.warning) == 1
