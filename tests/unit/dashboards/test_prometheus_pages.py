"""Pages on a Prometheus server: figures against what the server answers, and what they say when it does not."""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

import pytest

from dashboards.links import ask_each_nvlink, nvlink_capacities, pcie_capacities, peak_use
from dashboards.server_overview import RunNow, ask_runs, standing_of
from dashboards.sources.alerts import alerts_in, alerts_of_run, firing_alerts
from dashboards.sources.catalogue import Source
from dashboards.sources.prometheus import Prometheus, to_samples
from scope.frames import open_run
from scope.run.naming import label_run, short_hash

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from streamlit.testing.v1 import AppTest

NOW = 1_790_000_000.0
NOBODY = "http://127.0.0.1:9"


def server(answers: Mapping[str, list[tuple[dict[str, str], float]]]) -> Prometheus:
    """Return a server that answers an expression with the series under the first key that occurs in it."""

    def fetch(url: str) -> bytes:
        (expression,) = parse_qs(urlsplit(url).query)["query"]
        rows = next((rows for word, rows in answers.items() if word in expression), [])
        result: list[dict[str, Any]] = [{"metric": labels, "value": [NOW, str(value)]} for labels, value in rows]
        return json.dumps({"status": "success", "data": {"result": result}}).encode()

    return Prometheus(address="http://prometheus:9090", fetch=fetch)


def test_runs_are_what_the_server_says() -> None:
    """Figures of two runs are told apart by their label; the one that went on last comes first."""
    found = ask_runs(
        server(
            {
                "scope_train_info": [({"run": "a", "run_id": "first", "world_size": "4"}, 1)],
                "last_step_timestamp": [({"run": "a"}, 90.0), ({"run": "b"}, 2.0)],
                "step_median": [({"run": "a"}, 0.25)],
                "phase_seconds": [({"run": "a", "phase": "forward"}, 1.5)],
            }
        )
    )
    assert [run.label for run in found] == ["b", "a"]
    assert found[1].run_id == "first"
    assert found[1].figures == {"age_s": 90.0, "step_s": 0.25}
    assert found[1].phases_ns == {"forward": 1_500_000_000}


def test_runs_of_one_name_in_two_clusters_are_two() -> None:
    """Each has its own figures, and its place names its cluster; one without a cluster has none."""
    both = [({"cluster": name, "run": "a"}, value) for name, value in (("c1", 1.0), ("c2", 2.0))]
    found = ask_runs(
        server(
            {
                "scope_train_info": [({**labels, "run_id": "first"}, 1) for labels, _ in both],
                "last_step_timestamp": both,
                "phase_seconds": [({**labels, "phase": "input"}, value) for labels, value in both],
            }
        )
    )
    assert [(run.place, run.figures["age_s"], run.phases_ns["input"]) for run in found] == [
        ("first (a) in cluster c1", 1.0, 1_000_000_000),
        ("first (a) in cluster c2", 2.0, 2_000_000_000),
    ]
    assert run_now().place == run_now().name


def test_links_of_one_name_in_two_clusters_are_two() -> None:
    """Each GPU has the capacity of its own links and its own line."""
    links = [
        ({"cluster": name, "instance": "n", "gpu": "0", "link": str(link), "version": "4.0"}, 1.0)
        for name, count in (("c1", 18), ("c2", 12))
        for link in range(count)
    ]
    assert nvlink_capacities(server({"nvlink_info": links})) == {"c1 n 0": 450e9, "c2 n 0": 300e9}


def test_nvlink_capacity_is_payload_of_all_links() -> None:
    """18 links of NVLink 4 carry 18 x 25 GB/s one way; a version that no table knows gives no capacity."""
    links = [({"instance": "n", "gpu": "0", "link": str(link), "version": "4.0"}, 1.0) for link in range(18)]
    links += [({"instance": "n", "gpu": "1", "link": "0", "version": "?"}, 1.0)]
    assert nvlink_capacities(server({"nvlink_info": links})) == {"n 0": 450e9}


def test_pcie_capacity_takes_off_the_line_code() -> None:
    """PCIe 5.0 x16: 32 GT/s x 16 lanes x 128/130 / 8 bits = 63.0 GB/s."""
    gpu = {"instance": "n", "gpu": "0"}
    answers = {"pcie_link_width_max": [(gpu, 16.0)], "pcie_link_generation_max": [(gpu, 5.0)]}
    assert pcie_capacities(server(answers)) == {"n 0": pytest.approx(32e9 * 16 * 128 / 130 / 8)}


def test_the_busiest_direction_is_found() -> None:
    """Of two directions against 100 B/s the one at 80 B/s is 80 % busy; links without capacity don't count."""
    fast = server({"x": [({"gpu": "0"}, 80.0), ({"gpu": "9"}, 999.0)]}).query("x")
    samples = to_samples(fast, "gpu").with_columns(name="name")
    assert peak_use(samples, {}) is None
    named = to_samples(fast, "gpu")
    named = named.with_columns(name=named["name"] + " sent")
    assert peak_use(named, {"0": 100.0}) == ("0 sent", 80.0, 0.8)


def test_each_nvlink_is_shown_as_a_share_of_its_own_capacity() -> None:
    """12.5 GB/s over a link of NVLink 4 (25 GB/s) is 50 %."""
    key = {"instance": "n", "gpu": "0", "link": "3"}
    found = ask_each_nvlink(server({"rate(": [(key, 12.5e9)], "nvlink_info": [(key | {"version": "4.0"}, 1.0)]}))
    assert found is not None
    cells, axes = found
    assert cells.rows() == [(0, 0, 50.0)]
    assert (axes.x_labels, axes.y_labels, axes.maximum) == (["3"], ["n 0"], 100.0)


def test_no_nvlink_is_no_heat_map() -> None:
    """A server without such series gives nothing, not an empty map."""
    assert ask_each_nvlink(server({})) is None


def test_a_dead_server_is_a_problem_not_an_error() -> None:
    """The overview of a run goes on without its alerts."""
    source = Source(source_id="0" * 12, kind="prometheus", label="x", place=NOBODY)
    firing = firing_alerts([source])
    assert firing.num_servers == 1
    assert firing.alerts == ()
    assert "does not answer" in firing.problems[0]


@pytest.mark.parametrize("page", ["overview", "links", "quality"])
def test_pages_say_that_the_server_is_down(open_app: Callable[..., AppTest], page: str) -> None:
    """Nothing fails; the page says that nobody answers and what to look at."""
    app = open_app(page, NOBODY)
    assert not app.exception
    assert any("does not answer" in error.value.replace("\\", "") for error in app.error)


def test_alerts_of_other_runs_are_counted_and_not_shown() -> None:
    """Of four alerts, the one that bears the run's label and the one of its node are its own."""
    told = [{"run": short_hash("mine")}, {"run": short_hash("other")}, {"instance": "n1:9400"}, {"instance": "n2:9400"}]
    alerts = [
        {"labels": labels | {"alertname": f"A{number}"}, "annotations": {"summary": f"s{number}"}, "state": "firing"}
        for number, labels in enumerate(told)
    ]
    alerts.append({"labels": told[0] | {"alertname": "later"}, "annotations": {}, "state": "pending"})
    body = json.dumps({"data": {"alerts": alerts}}).encode()
    told_now = Prometheus(address="http://p", fetch=lambda _: body).alerts()
    found = alerts_in(told_now, state="firing")
    assert len(found) == 4
    assert [each.name for each in alerts_in(told_now, state="pending")] == ["later"]
    own, num_others = alerts_of_run(found, label=short_hash("mine"), hosts={"n1"})
    assert [(each.name, each.summary) for each in own] == [("A0", "s0."), ("A2", "s2.")]
    assert num_others == 2


def run_now(**figures: float) -> RunNow:
    """Return a run with an id, of which the server knows some figures."""
    return RunNow(label="e365c35f", run_id="vm-1", world_size="4", figures=figures, phases_ns={})


@pytest.mark.parametrize(
    ("figures", "stands_still"),
    [
        ({"active": 4, "age_s": 288.0, "step_s": 0.2}, True),
        ({"active": 4, "age_s": 61.0, "step_s": 6.0}, True),
        ({"active": 4, "age_s": 61.0, "step_s": 6.2}, False),
        ({"active": 4, "age_s": 59.0, "step_s": 0.2}, False),
        ({"active": 0, "age_s": 288.0, "step_s": 0.2}, False),
        ({"active": 4}, False),
    ],
)
def test_a_hang_is_ten_steps_and_a_minute_without_a_step(figures: dict[str, float], *, stands_still: bool) -> None:
    """Only ranks that live can hang; both limits must be passed."""
    run = run_now(**figures)
    assert run.stands_still == stands_still
    assert standing_of(run).startswith("NO STEP for") == stands_still


def test_a_hung_run_is_red_under_both_its_names(open_app: Callable[..., AppTest]) -> None:
    """The page of a server says in red that no step came for 4 min, and that an alert fires soon, by the run's id."""
    told = {
        "scope_train_info": ({"run": "e365c35f", "run_id": "vm-1", "world_size": "4"}, 1),
        "scope_train_active": ({"run": "e365c35f"}, 4),
        "last_step_timestamp": ({"run": "e365c35f"}, 288),
        "step_median": ({"run": "e365c35f"}, 0.2),
    }
    alert = {"labels": {"alertname": "NoStep", "run": "e365c35f"}, "annotations": {}, "state": "pending"}
    with answering(told, [alert]) as address:
        app = open_app("overview", address)
    assert not app.exception
    (error,) = (each.value.replace("\\", "") for each in app.error)
    assert error.startswith("NO STEP for 4 min, and its ranks live; a step usually takes 200 ms.")
    assert app.subheader[0].value.replace("\\", "") == "vm-1 (e365c35f)"
    (soon,) = (each.value.replace("\\", "") for each in app.info)
    assert soon.startswith("Fires soon: **NoStep** vm-1 (e365c35f): run=e365c35f")


def test_an_alert_calls_a_run_as_its_page_does(open_app: Callable[..., AppTest], run_folder: Path) -> None:
    """A rule writes the label of the run, which stands nowhere else on its Overview: the name stands in its place."""
    label = label_run(open_run(run_folder).info())
    alert = {
        "labels": {"alertname": "LowGoodput", "run": label, "severity": "warning"},
        "annotations": {"summary": f"Goodput of run {label} is 12%"}, "state": "firing",
    }  # fmt: skip
    with answering({}, [alert]) as address:
        app = open_app("overview", run_folder, address)
    said = [each.value.replace("\\", "") for each in app.warning]
    assert "**LowGoodput** Goodput of run four-ranks is 12%." in said
    assert not any(label in each for each in said)


@contextmanager
def answering(told: Mapping[str, tuple[dict[str, str], float]], alerts: list[dict[str, Any]]) -> Iterator[str]:
    """Serve answers on a free port: to an expression the series under the first key that occurs in it, and alerts."""

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            address = urlsplit(self.path)
            data: dict[str, Any] = {"alerts": alerts}
            if not address.path.endswith("alerts"):
                (expression,) = parse_qs(address.query)["query"]
                rows = [row for word, row in told.items() if word in expression][:1]
                value = {"values": []} if address.path.endswith("range") else {}
                data = {"result": [{"metric": row[0], "value": [NOW, str(row[1])]} | value for row in rows]}
            body = json.dumps({"status": "success", "data": data}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
