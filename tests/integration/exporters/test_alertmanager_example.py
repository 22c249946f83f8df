"""The example for Alertmanager in a real one: how many messages a fault makes, and what is not told beside it."""

from __future__ import annotations

import http.client
import json
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from dashboards import alerts

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.system("prometheus-alertmanager")
EXAMPLE = Path(alerts.__file__).with_name("alertmanager.example.yml")
WAIT_S = 1.0


@pytest.fixture
def tell(
    start_alertmanager: Callable[..., None], webhook: Any, free_port: Callable[[], int]
) -> Callable[[list[dict[str, str]]], list[tuple[str, list[dict[str, Any]]]]]:
    """Tells a real Alertmanager of alerts by their labels; returns (path, alerts) of each message that it sends."""
    text = EXAMPLE.read_text()
    assert text.count("group_wait: 30s") == 1
    assert text.count("http://127.0.0.1:9094/") == 2
    text = text.replace("group_wait: 30s", f"group_wait: {WAIT_S:g}s")
    port = free_port()
    start_alertmanager(port, text.replace("http://127.0.0.1:9094/", f"http://127.0.0.1:{webhook.port}/"))

    def tell(labels: list[dict[str, str]]) -> list[tuple[str, list[dict[str, Any]]]]:
        body = json.dumps([{"labels": {"cluster": "c", "job": "scope", **one}} for one in labels])
        deadline = time.monotonic() + 30
        while True:
            try:
                with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=10)) as connection:
                    connection.request("POST", "/api/v2/alerts", body, {"Content-Type": "application/json"})
                    assert connection.getresponse().status == 200
                break
            except OSError:
                assert time.monotonic() < deadline
                time.sleep(0.1)
        while not webhook.messages and time.monotonic() < deadline:
            time.sleep(0.1)
        # Groups of one moment are told together; what is inhibited must have its chance to be told.
        time.sleep(2 * WAIT_S)
        return sorted(webhook.messages, key=lambda message: message[0])

    return tell


def rank_alert(name: str, run: str, rank: int, severity: str = "critical") -> dict[str, str]:
    """Return an alert on a rank; a node has eight."""
    return {"alertname": name, "severity": severity, "run": run, "rank": str(rank), "instance": f"node{rank // 8}:9469"}


def test_a_run_that_stands_still_is_one_page(tell: Callable[..., Any]) -> None:
    """Five nodes with eight ranks each make one message a run, not one a node."""
    told = tell([rank_alert("ScopeStepStalled", run, rank) for run in ("r", "s") for rank in range(40)])
    assert [(path, len(alerts)) for path, alerts in told] == [("/pager", 40), ("/pager", 40)]
    assert [{alert["labels"]["run"] for alert in alerts} for _, alerts in told] in ([{"r"}, {"s"}], [{"s"}, {"r"}])


def test_a_node_is_one_page_a_fault(tell: Callable[..., Any]) -> None:
    """All links of a node are one message, and those of another node another; warnings are one of all nodes."""
    links = [
        {"alertname": "ScopeNvlinkDown", "severity": "critical", "instance": f"node{node}:9469", "gpu": str(gpu),
         "uuid": f"GPU-{node}{gpu}", "link": str(link)}
        for node in range(2) for gpu in range(8) for link in range(18)
    ]  # fmt: skip
    hot = [
        {"alertname": "ScopeRdmaLinkErrors", "severity": "warning", "instance": f"node{node}:9469", "device": "mlx5_0"}
        for node in range(20)
    ]
    told = tell([*links, *hot])
    assert [(path, len(alerts)) for path, alerts in told] == [("/operators", 20), ("/pager", 144), ("/pager", 144)]


def test_what_follows_is_not_told(tell: Callable[..., Any]) -> None:
    """A lost rank tells why its run stands still; another cluster's run of the same name is told all the same."""
    told = tell(
        [
            rank_alert("ScopeRankLost", "r", 3),
            *[rank_alert("ScopeStepStalled", "r", rank) for rank in range(16) if rank != 3],
            *[rank_alert("ScopeStragglerRank", "r", rank, "warning") for rank in range(2)],
            {**rank_alert("ScopeStepStalled", "r", 0), "cluster": "d"},
        ]
    )
    found = sorted((path, alerts[0]["labels"]["alertname"], alerts[0]["labels"]["cluster"]) for path, alerts in told)
    assert found == [("/pager", "ScopeRankLost", "c"), ("/pager", "ScopeStepStalled", "d")]


def test_a_node_whose_driver_is_gone_is_one_page(tell: Callable[..., Any]) -> None:
    """That its collectors of GPUs give nothing is not told as well; a collector of another kind is."""
    node = {"instance": "node0:9469"}
    down = {"alertname": "ScopeCollectorDown", "severity": "warning", **node}
    missing = {"alertname": "ScopeGpuMissing", "severity": "critical", **node}
    told = tell([missing, *[{**down, "collector": name} for name in ("gpu", "gpm", "nvlink", "rdma")]])
    assert [(path, [alert["labels"].get("collector") for alert in alerts]) for path, alerts in told] == [
        ("/operators", ["rdma"]),
        ("/pager", [None]),
    ]
