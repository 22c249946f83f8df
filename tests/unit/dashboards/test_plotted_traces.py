"""Figures of traces and of a Prometheus server hold what the files and the answers say, counted here by hand."""

from __future__ import annotations

import gzip
import json
import threading
from collections import defaultdict
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

import pytest

from dashboards.sources.catalogue import find_sources, find_windows
from scope.analysis.summary import analyze
from scope.testing.demo import EXTRA_NS, SLOW_RANK, write_demo_run
from scope.testing.plotted import read_figure
from scope.trace import load

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from streamlit.testing.v1 import AppTest

NUM_RANKS = 8
UNITS = {"s": 1e6, "ms": 1e3, "µs": 1.0}
"""Microseconds of a unit of an axis."""


def figure_of(app: AppTest, title: str) -> dict[str, Any]:
    """Return the one figure whose title begins so."""
    assert not app.exception
    drawn = [read_figure(element.proto.spec) for element in app.get("plotly_chart")]
    (found,) = [figure for figure in drawn if figure["layout"]["title"]["text"].startswith(title)]
    return found


def unit_of(axis: dict[str, Any]) -> float:
    """Return the microseconds of the unit that an axis names."""
    return UNITS[axis["title"]["text"].split("(")[1].rstrip(")")]


@pytest.fixture(scope="module")
def synthetic(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The synthetic run of the demo with its window of four steps."""
    folder = tmp_path_factory.mktemp("runs") / "synthetic-8-gpus"
    write_demo_run(folder)
    return folder


def window_of(place: Path) -> str:
    """Return the id of the first captured window of a run."""
    return next(source.source_id for source in find_sources([str(place)]) if source.kind == "trace")


def test_wait_and_transfer_are_those_of_the_kernels(open_app: Callable[..., AppTest], synthetic: Path) -> None:
    """A rank waits from its kernel's start until the last one of its group has begun; then data moves to the end."""
    calls: dict[tuple[str, int], dict[int, tuple[float, float]]] = defaultdict(dict)
    for rank, file in enumerate(sorted(synthetic.rglob("*.json.gz"))):
        for event in json.loads(gzip.decompress(file.read_bytes()))["traceEvents"]:
            if event.get("cat") == "kernel" and event["name"].startswith("nccl"):
                key = (event["args"]["Process Group Name"], event["args"]["Seq"])
                calls[key][rank] = (event["ts"], event["ts"] + event["dur"])
    waits, transfers = [0.0] * NUM_RANKS, [0.0] * NUM_RANKS
    for parts in calls.values():
        last = max(start for start, _ in parts.values())
        for rank, (start, end) in parts.items():
            waits[rank] += last - start
            transfers[rank] += end - last
    assert waits[SLOW_RANK] == pytest.approx(0, abs=1)
    app = open_app("collectives", synthetic, source=window_of(synthetic))
    figure = figure_of(app, "Collectives: waiting against moving data")
    unit = unit_of(figure["layout"]["yaxis"])
    bars = {trace["name"]: [value * unit for value in trace["y"]] for trace in figure["data"]}
    assert figure["layout"]["xaxis"]["ticktext"] == [f"rank {rank}" for rank in range(NUM_RANKS)]
    assert bars["wait"] == pytest.approx(waits, abs=0.01)
    assert bars["transfer"] == pytest.approx(transfers, abs=0.01)


def test_compute_by_rank_and_step_is_that_of_the_analysis(open_app: Callable[..., AppTest], synthetic: Path) -> None:
    """Each cell is compute and exposed copies of that rank and step, in ms; rank 5 has 3 ms more in every step."""
    (window,) = find_windows(synthetic)
    analysis = analyze(load([str(trace.path) for trace in window]))
    expected = [
        [
            (part.breakdown.compute_ns + part.breakdown.exposed_memory_ns) / 1e6
            for part in rank.devices[0].steps
            if part.step is not None and part.breakdown is not None
        ]
        for rank in analysis.ranks
    ]
    app = open_app("ranks", synthetic, source=window_of(synthetic))
    figure = figure_of(app, "Compute and copies of each rank and step")
    (heat,) = figure["data"]
    assert heat["x"] == ["10", "11", "12", "13"]
    assert heat["y"] == [f"rank {rank}" for rank in range(NUM_RANKS)]
    for drawn, true in zip(heat["z"], expected, strict=True):
        assert drawn == pytest.approx(true, rel=1e-6)
    more = [slow - usual for slow, usual in zip(heat["z"][SLOW_RANK], heat["z"][0], strict=True)]
    assert more == pytest.approx([EXTRA_NS / 1e6] * 4, rel=1e-5)


def test_memory_of_traces_is_what_each_event_says(open_app: Callable[..., AppTest], tmp_path: Path) -> None:
    """Allocated and reserved bytes of each instant of GPU 0, in GB over ms since the first."""
    told = [(1_000.0, 1_500_000_000, 2_000_000_000), (2_000.0, 3_000_000_000, 4_000_000_000), (4_000.0, 5e8, 4e9)]
    kernel = {"ph": "X", "cat": "kernel", "name": "k", "ts": 1_000, "dur": 3_000, "pid": 0, "tid": 7}
    events = [kernel | {"args": {"device": 0, "stream": 7, "correlation": 1}}]
    for instant, allocated, reserved in told:
        memory = {"Device Type": 1, "Device Id": 0, "Addr": 1, "Bytes": 1}
        memory |= {"Total Allocated": int(allocated), "Total Reserved": int(reserved)}
        event = {"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "pid": 1, "tid": 1}
        events.append(event | {"ts": instant, "args": memory})
    trace = {"distributedInfo": {"rank": 0, "world_size": 1}, "traceEvents": events}
    (tmp_path / "rank0.json").write_text(json.dumps(trace))
    figure = figure_of(open_app("memory", tmp_path), "Memory")
    unit = unit_of(figure["layout"]["xaxis"])
    lines = {trace["name"].split()[-1]: trace for trace in figure["data"]}
    for name, place in (("allocated", 1), ("reserved", 2)):
        assert [value * unit for value in lines[name]["x"]] == pytest.approx([0, 1_000, 3_000])
        assert lines[name]["y"] == pytest.approx([row[place] / 1e9 for row in told])


class Answers(BaseHTTPRequestHandler):
    """Answers like Prometheus, by the first word of `known` that occurs in the question."""

    known: dict[str, list[tuple[dict[str, str], float]]]

    def do_GET(self) -> None:
        """Answer one question, the same value at each instant."""
        parts = urlsplit(self.path)
        query = parse_qs(parts.query)
        if parts.path.endswith("alerts"):
            data: dict[str, Any] = {"alerts": []}
        else:
            rows = next((rows for word, rows in self.known.items() if word in query["query"][0]), [])
            instants = [float(query["start"][0]), float(query["end"][0])] if "start" in query else []
            data = {
                "result": [
                    {"metric": labels, "value": [0, str(value)], "values": [[each, str(value)] for each in instants]}
                    for labels, value in rows
                ]
            }
        body = json.dumps({"status": "success", "data": data}).encode()
        self.send_response(200)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def answering(request: pytest.FixtureRequest) -> Iterator[str]:
    """The address of a server that answers with what the test names."""
    handler = type("Known", (Answers,), {"known": request.param})
    with HTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


LINKS = [({"instance": "n:9400", "gpu": gpu, "link": link}, rate) for gpu, link, rate in (
    ("0", "0", 12.5e9), ("0", "1", 25e9), ("1", "0", 5e9), ("1", "10", 0.0),
)]  # fmt: skip


@pytest.mark.parametrize(
    "answering",
    [
        {
            "scope_nvlink_info": [(labels | {"version": "4.0"}, 1.0) for labels, _ in LINKS],
            "rate(scope_nvlink_transmit_bytes_total": LINKS,
        }
    ],
    indirect=True,
)
def test_the_nvlink_heat_map_is_what_the_server_answers(open_app: Callable[..., AppTest], answering: str) -> None:
    """12.5, 25, 5 and 0 GB/s on links that carry 25 GB/s are 50, 100, 20 and 0 %; a link that is not there is blank."""
    figure = figure_of(open_app("links", answering), "Each NVLink")
    (heat,) = figure["data"]
    assert (heat["x"], heat["y"]) == (["0", "1", "10"], ["n:9400 0", "n:9400 1"])
    assert heat["z"] == [[50.0, 100.0, None], [20.0, None, 0.0]]
    assert (heat["zmin"], heat["zmax"]) == (0.0, 100.0)


@pytest.mark.parametrize(
    "answering",
    [
        {
            "scope_train_info": [({"run": "a", "run_id": "first", "world_size": "2"}, 1.0)],
            "scope_train_phase_seconds_total": [
                ({"run": "a", "phase": phase}, seconds)
                for phase, seconds in (("forward", 30.0), ("backward", 45.0), ("input", 25.0))
            ],
            "step_last_seconds": [({"run": "a"}, 0.25)],
        }
    ],
    indirect=True,
)
def test_phases_and_step_times_of_a_server_are_its_answers(open_app: Callable[..., AppTest], answering: str) -> None:
    """45 s, 30 s and 25 s of 100 s stand beside their bars with their shares; the last step took 250 ms throughout."""
    app = open_app("overview", answering)
    figure = figure_of(app, "Phases in the last 5 minutes")
    (bars,) = figure["data"]
    drawn = dict(zip(figure["layout"]["yaxis"]["ticktext"], bars["x"], strict=True))
    assert figure["layout"]["xaxis"]["title"]["text"] == "Time (s)"
    assert drawn == {
        "backward<br>45 s · 45.0 %": 45.0,
        "forward<br>30 s · 30.0 %": 30.0,
        "input<br>25 s · 25.0 %": 25.0,
    }
    lengths = figure_of(app, "Length of the last step")
    assert {value for trace in lengths["data"] for value in trace["y"]} == {0.25}
