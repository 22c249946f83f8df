"""Every figure of a recorded run holds the values that stand in its files, computed here by hand.

The run: 4 ranks, 30 steps of 100 ms; 5 ms input, 5 ms optimizer, forward 60 ms on rank 2 and 30 ms on the others, which
wait 30 ms inside backward; two all_reduce calls of 4 MB a step.
"""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING, Any

import pytest

from dashboards.sources.catalogue import find_sources
from scope.testing.demo import write_demo_run
from scope.testing.plotted import read_figure

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from streamlit.testing.v1 import AppTest

STEPS, RANKS, VICTIMS = 30, 4, 3


def figure_of(app: AppTest, title: str) -> dict[str, Any]:
    """Return the one figure whose title begins so."""
    drawn = [read_figure(element.proto.spec) for element in app.get("plotly_chart")]
    (found,) = [figure for figure in drawn if figure["layout"]["title"]["text"].startswith(title)]
    return found


def bars_by_name(figure: dict[str, Any]) -> dict[str, float]:
    """Return the lengths of horizontal bars by what stands beside them."""
    (bars,) = figure["data"]
    names = [text.split("<br>")[0] for text in figure["layout"]["yaxis"]["ticktext"]]
    return dict(zip(names, bars["x"], strict=True))


def test_waste_and_phases_of_the_overview(open_app: Callable[..., AppTest], run_folder: Path) -> None:
    """Seconds over all ranks and steps: waste is input and waiting, phases are what the files say."""
    app = open_app("overview", run_folder)
    waste = bars_by_name(figure_of(app, "Waste by cause"))
    assert waste == pytest.approx({"communication wait": VICTIMS * STEPS * 0.030, "input": RANKS * STEPS * 0.005})
    phases = bars_by_name(figure_of(app, "Phases of all steps"))
    forward, backward = STEPS * (VICTIMS * 0.030 + 0.060), STEPS * (VICTIMS * 0.060 + 0.030)
    small = RANKS * STEPS * 0.005
    assert phases == pytest.approx({"forward": forward, "backward": backward, "input": small, "optimizer": small})
    assert sum(phases.values()) == pytest.approx(RANKS * STEPS * 0.100)


def test_phases_of_the_users_own_have_their_names(open_app: Callable[..., AppTest], run_folder: Path) -> None:
    """Fourteen phases of the program take 14, 13, ... ms a step of all ranks' 5 ms: twelve are named, 2 + 1 are not."""
    for file in run_folder.rglob("steps.jsonl"):
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        for step in lines:
            del step["phases"]["optimizer"]
            step["phases"] |= {f"part <{number}>": number * 1_000_000 for number in range(1, 15)}
            step["end_ns"] = step["start_ns"] + sum(step["phases"].values())
        file.write_text("".join(json.dumps(step) + "\n" for step in lines))
    phases = bars_by_name(figure_of(open_app("overview", run_folder), "Phases of all steps"))
    own = {name: length for name, length in phases.items() if name not in ("forward", "backward", "input")}
    expected = {f"part &lt;{number}&gt;": RANKS * STEPS * number / 1_000 for number in range(3, 15)}
    assert own == pytest.approx(expected | {"custom": RANKS * STEPS * 0.003})


def test_excess_of_ranks(open_app: Callable[..., AppTest], run_folder: Path) -> None:
    """Rank 2 works 100 ms, the median peer 70 ms: 70 and 30; the others have no excess."""
    figure = figure_of(open_app("ranks", run_folder), "Work a step")
    usual, excess = (
        dict(zip(figure["layout"]["xaxis"]["ticktext"], trace["y"], strict=True)) for trace in figure["data"]
    )
    assert usual == dict.fromkeys("0123", 70.0)
    assert excess == {"0": 0.0, "1": 0.0, "2": 30.0, "3": 0.0}


def test_memory_over_time(open_app: Callable[..., AppTest], run_folder: Path) -> None:
    """The resident set is 500 MB and grows by 1 MB a step."""
    figure = figure_of(open_app("memory", run_folder), "Memory")
    lines = [trace for trace in figure["data"] if trace.get("y") and len(trace["y"]) >= STEPS]
    assert lines
    for line in lines:
        assert line["y"] == pytest.approx([0.500 + step * 0.001 for step in range(STEPS)])


def test_size_and_bandwidth_of_collectives(open_app: Callable[..., AppTest], run_folder: Path) -> None:
    """One bubble: 4 MB a call, 240 calls that took 40 ms a step on the victims and 10 ms on rank 2, times 2 x 3/4."""
    figure = figure_of(open_app("collectives", run_folder), "Collectives: message size")
    (bubble,) = [trace for trace in figure["data"] if trace["mode"] == "markers"]
    seconds = STEPS * (VICTIMS * 0.040 + 0.010)
    assert bubble["x"] == [4e6]
    assert bubble["y"] == pytest.approx([1.5 * 4e6 * 240 / seconds / 1e9])


def test_bytes_by_axis_and_tier(open_app: Callable[..., AppTest], run_folder: Path) -> None:
    """All ranks on one host hand over 8 MB a step: 960 MB in all."""
    bars = bars_by_name(figure_of(open_app("links", run_folder), "Bytes by axis"))
    assert bars == {"no axis over node": pytest.approx(RANKS * STEPS * 8e6 / 1e6)}


def test_comparison_of_two_ranges(open_app: Callable[..., AppTest], run_folder: Path) -> None:
    """From step 15 on, input takes 20 ms more of each step: means over all ranks are 5 and 25 ms, all else is equal."""
    for file in run_folder.rglob("steps.jsonl"):
        lines = file.read_text().splitlines()
        for number in range(STEPS // 2, STEPS):
            step = json.loads(lines[number])
            step["phases"]["input"] += 20_000_000
            step["end_ns"] += 20_000_000
            lines[number] = json.dumps(step)
        file.write_text("\n".join(lines) + "\n")
    figure = figure_of(open_app("compare", run_folder, step=str(STEPS // 2)), "Mean host time a step")
    forward, backward = (VICTIMS * 30 + 60) / RANKS, (VICTIMS * 60 + 30) / RANKS
    assert {trace["name"]: trace["y"] for trace in figure["data"] if any(trace["y"])} == {
        "input": [5.0, 25.0],
        "forward": [forward] * 2,
        "backward": [backward] * 2,
        "optimizer": [5.0] * 2,
    }


def test_kernels_by_time_are_those_of_the_files(open_app: Callable[..., AppTest], tmp_path: Path) -> None:
    """Each bar is the sum of the durations of the kernels or copies of that name in the JSON, over all ranks."""
    write_demo_run(tmp_path / "run")
    totals: dict[str, float] = {}
    for file in (tmp_path / "run").rglob("*.json.gz"):
        for event in json.loads(gzip.decompress(file.read_bytes()))["traceEvents"]:
            if event.get("cat") in {"kernel", "gpu_memcpy", "gpu_memset"}:
                totals[event["name"]] = totals.get(event["name"], 0.0) + event["dur"]
    window = next(source for source in find_sources([str(tmp_path)]) if source.kind == "trace")
    figure = figure_of(open_app("kernels", tmp_path, source=window.source_id), "Kernels by time")
    unit = {"s": 1e6, "ms": 1e3, "µs": 1.0}[figure["layout"]["xaxis"]["title"]["text"].split("(")[1].rstrip(")")]
    drawn = sorted(length * unit for trace in figure["data"] for length in trace["x"])
    assert drawn == pytest.approx(sorted(totals.values()))
