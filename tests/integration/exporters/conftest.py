"""Real processes on loopback: the exporter over a fake NVML, Prometheus, Alertmanager."""

from __future__ import annotations

import contextlib
import http.client
import http.server
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from prometheus_client.parser import text_string_to_metric_families

from scope.testing.fake_nvml.build import SCRIPT_VARIABLE, Script, build_library


def free_port() -> int:
    """Return a port that nobody listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(name="free_port")
def free_port_fixture() -> Callable[[], int]:
    """Finds free ports."""
    return free_port


def fetch(port: int, path: str) -> tuple[int, str]:
    """Return status and body of a page on loopback."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def wait_for(ready: Callable[[], Any], *, seconds: float = 30, what: str = "") -> Any:
    """Return the first true answer; fail when there is none in time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError, http.client.HTTPException):
            if answer := ready():
                return answer
        time.sleep(0.05)
    pytest.fail(f"not within {seconds} s: {what}")


@pytest.fixture
def fetch_page() -> Callable[[int, str], str]:
    """Fetches a page once somebody serves it."""
    return lambda port, path: wait_for(lambda: fetch(port, path)[1], what=path)


class RunningExporter:
    """An exporter process."""

    def __init__(self, port: int, process: subprocess.Popen[bytes]) -> None:
        self.port = port
        self.process = process

    def wait(self) -> None:
        """Return once it has a fresh sample."""
        wait_for(lambda: fetch(self.port, "/healthz")[0] == 200, what="the exporter is healthy")

    def text(self) -> str:
        """Return the answer of /metrics."""
        status, text = fetch(self.port, "/metrics")
        assert status == 200
        return text

    def samples(self) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
        """Return every sample by (name, labels)."""
        return {
            (sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for family in text_string_to_metric_families(self.text())
            for sample in family.samples
        }

    def value(self, name: str, **labels: str) -> float | None:
        """Return the only sample with this name and these labels among its own; None when there is none."""
        found = [value for (of, own), value in self.samples().items() if of == name and set(labels.items()) <= set(own)]
        assert len(found) <= 1, (name, labels, found)
        return found[0] if found else None


Start = Callable[..., RunningExporter]


@pytest.fixture(scope="session")
def fake_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The fake NVML."""
    if shutil.which("gcc") is None:
        pytest.skip("needs gcc (make setup-system)")
    return build_library(tmp_path_factory.mktemp("nvml"))


@pytest.fixture(scope="session")
def fake_ethtool(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library that, loaded first, answers for the drivers of network interfaces."""
    if shutil.which("gcc") is None:
        pytest.skip("needs gcc (make setup-system)")
    library = tmp_path_factory.mktemp("ethtool") / "fake_ethtool.so"
    source = Path(__file__).with_name("fake_ethtool.c")
    subprocess.run(["gcc", "-O1", "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"], check=True)
    return library


@pytest.fixture
def start_exporter(fake_library: Path, tmp_path: Path) -> Iterator[Start]:
    """Starts exporters over a script and stops them at the end."""
    running: list[RunningExporter] = []

    def start(
        script: Script, *options: str, port: int = 0, wait: bool = True, variables: dict[str, str] | None = None
    ) -> RunningExporter:
        port = port or free_port()
        environment = {
            **os.environ,
            SCRIPT_VARIABLE: str(script.path),
            "SCOPE_REGISTRY": str(tmp_path / "registry"),
            **(variables or {}),
        }
        command = [sys.executable, "-m", "exporters", "--port", str(port), "--nvml-library", str(fake_library)]
        process = subprocess.Popen([*command, *options], env=environment, stderr=subprocess.DEVNULL)
        exporter = RunningExporter(port, process)
        running.append(exporter)
        if wait:
            exporter.wait()
        return exporter

    yield start
    for exporter in running:
        exporter.process.terminate()
    for exporter in running:
        exporter.process.wait(10)


class RunningPrometheus:
    """A Prometheus process."""

    def __init__(self, port: int) -> None:
        self.port = port

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Return the vector of an expression."""
        status, text = fetch(self.port, f"/api/v1/query?query={quote(expression)}")
        return json.loads(text)["data"]["result"] if status == 200 else []

    def alerts(self) -> list[dict[str, Any]]:
        """Return the alerts that are pending or firing."""
        return json.loads(fetch(self.port, "/api/v1/alerts")[1])["data"]["alerts"]


@pytest.fixture
def start_prometheus(tmp_path: Path) -> Iterator[Callable[..., RunningPrometheus]]:
    """Starts Prometheus with a configuration and stops it at the end."""
    processes: list[subprocess.Popen[bytes]] = []

    def start(config: str) -> RunningPrometheus:
        folder = tmp_path / f"prometheus{len(processes)}"
        folder.mkdir()
        (folder / "prometheus.yml").write_text(config)
        port = free_port()
        command = ["prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data"]
        with (folder / "log").open("wb") as log:
            listen = f"--web.listen-address=127.0.0.1:{port}"
            processes.append(subprocess.Popen([*command, listen], stdout=log, stderr=log))
        wait_for(lambda: fetch(port, "/-/ready")[0] == 200, what="Prometheus is ready")
        return RunningPrometheus(port)

    yield start
    for process in processes:
        process.terminate()
    for process in processes:
        process.wait(10)


def scrape_config(port: int, *, interval: str = "500ms", extra: str = "") -> str:
    """Return a configuration that scrapes one exporter."""
    return (
        f"global: {{scrape_interval: {interval}, scrape_timeout: {interval}, evaluation_interval: {interval}}}\n"
        f"scrape_configs:\n- job_name: scope\n  static_configs: [{{targets: ['127.0.0.1:{port}']}}]\n{extra}"
    )


class Webhook:
    """Takes Alertmanager's messages.

    Attributes:
        received: All alerts that were told.
        messages: (path, alerts) of each message.
    """

    def __init__(self) -> None:
        received: list[dict[str, Any]] = []
        messages: list[tuple[str, list[dict[str, Any]]]] = []

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                length = int(self.headers["Content-Length"])
                alerts = json.loads(self.rfile.read(length))["alerts"]
                received.extend(alerts)
                messages.append((self.path, alerts))
                self.send_response(200)
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                del format, args

        self.received = received
        self.messages = messages
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def names(self, status: str) -> set[str]:
        """Return the alerts that were told as firing or resolved."""
        return {alert["labels"]["alertname"] for alert in list(self.received) if alert["status"] == status}

    def close(self) -> None:
        """Stop."""
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def webhook() -> Iterator[Webhook]:
    """A receiver on loopback."""
    made = Webhook()
    yield made
    made.close()


@pytest.fixture
def start_alertmanager(tmp_path: Path, webhook: Webhook) -> Iterator[Callable[..., None]]:
    """Starts Alertmanager at a port, telling everything to the webhook unless its configuration is given."""
    processes: list[subprocess.Popen[bytes]] = []

    def start(port: int, configuration: str | None = None) -> None:
        config = tmp_path / "alertmanager.yml"
        config.write_text(
            configuration
            or "route: {receiver: hook, group_by: [alertname], group_wait: 100ms, group_interval: 500ms}\n"
            f"receivers: [{{name: hook, webhook_configs: [{{url: 'http://127.0.0.1:{webhook.port}/'}}]}}]\n"
        )
        command = ["prometheus-alertmanager", f"--config.file={config}", f"--storage.path={tmp_path}/am"]
        addresses = [f"--web.listen-address=127.0.0.1:{port}", "--cluster.listen-address="]
        with (tmp_path / "am.log").open("wb") as log:
            processes.append(subprocess.Popen([*command, *addresses], stdout=log, stderr=log))

    yield start
    for process in processes:
        process.terminate()
    for process in processes:
        process.wait(10)
