"""Pages on a server that is no Prometheus, or a broken one: one sentence each; and what the pages ask for exists."""

from __future__ import annotations

import json
import re
import socketserver
import threading
import tracemalloc
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

from dashboards.sources.prometheus import Prometheus
from scope.errors import ScopeError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from streamlit.testing.v1 import AppTest

METRICS = Path(__file__).parents[3] / "exporters" / "METRICS.md"
RULES = Path(__file__).parents[3] / "dashboards" / "alerts" / "scope.rules.yml"
NOW = 1_790_000_000
PAGES = ("overview", "links", "quality")
NAME = re.compile(r"\bscope[_:][a-z0-9_:]+")


def http(body: str | bytes, status: str = "200 OK") -> bytes:
    """Return a whole answer."""
    content = body if isinstance(body, bytes) else body.encode()
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(content)}\r\n\r\n".encode() + content


def result(content: object) -> bytes:
    """Return an answer with this result, whatever it is."""
    return http(json.dumps({"status": "success", "data": {"result": content, "alerts": content}}))


def one(value: object) -> bytes:
    """Return an answer with one series of this value now."""
    return result([{"metric": {}, "value": value}])


GARBAGE = {
    "a bad status line": b"x\r\n\r\n",
    "nothing": b"",
    "a body that ends too soon": b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{",
    "an endless header": b"HTTP/1.1 200 OK\r\nX: " + b"a" * 70_000 + b"\r\n\r\n",
    "deep nesting": http("[" * 500_000),
    "deep nesting where nobody looks": http('{"x":' + "[" * 500_000),
    "no value": result([{"metric": {}}]),
    "texts and null": result(["x", 1, None]),
    "a result that is an object": result({"a": 1}),
    "a result that is null": result(None),
    "null": http("null"),
    "a value that is no number": one(["x", "y"]),
    "a word for a number": one([NOW, "y"]),
    "an instant beyond all time": one([1e308, "1"]),
    "a number for a text": one([NOW, 1]),
    "labels that are no texts": result([{"metric": {"a": [1]}, "value": [NOW, "1"]}]),
    "no UTF-8": http(b'{"status":"\xff","data":\xff}'),
    "a page of HTML": http("<!DOCTYPE html><html><body>Sign in</body></html>"),
    "an error with a bad body": b"HTTP/1.1 500 No\r\nContent-Length: 99\r\n\r\nx",
    "a redirect": b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n",
}


@contextmanager
def serving(answer: Callable[[str], bytes]) -> Iterator[str]:
    """Serve raw answers to paths, and yield the address."""

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            path = self.rfile.readline().decode().split()[1]
            while self.rfile.readline().strip():
                pass
            self.wfile.write(answer(path))

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


@pytest.mark.parametrize("case", GARBAGE)
def test_every_question_to_garbage_is_one_clear_error(case: str) -> None:
    """Whatever comes back, each kind of question raises an error of ours that names the server."""
    with serving(lambda _: GARBAGE[case]) as address:
        server = Prometheus(address=address)
        asked: list[Callable[[], Any]] = [
            lambda: server.query("up"),
            lambda: server.query_range("up", start_ns=0, end_ns=1, step_s=1),
        ]
        if '"value"' not in GARBAGE[case].decode(errors="replace"):
            asked.append(server.alerts)
        for ask in asked:
            with pytest.raises(ScopeError, match=re.escape(address)):
                ask()


def test_a_redirect_leads_to_nobody_else() -> None:
    """The server that an answer names is not asked, whichever kind of redirect it is."""
    asked: list[str] = []

    def other(path: str) -> bytes:
        asked.append(path)
        return one([NOW, "1"])

    with serving(other) as elsewhere:
        for status in ("301 Moved", "302 Found", "303 See Other", "307 Moved", "308 Moved"):
            head = f"HTTP/1.1 {status}\r\nLocation: {elsewhere}/api/v1/query\r\nContent-Length: 0\r\n\r\n".encode()
            with serving(lambda _, head=head: head) as address, pytest.raises(ScopeError, match=re.escape(address)):
                Prometheus(address=address).query("up")
    assert asked == []


@pytest.mark.parametrize("head", ["Content-Length: 104857600\r\n", "", "Content-Length: 5\r\n"])
def test_an_answer_without_end_takes_no_memory(head: str) -> None:
    """Of 100 MB at most 64 MiB and one piece are taken, whatever length was promised."""
    body = f"HTTP/1.1 200 OK\r\n{head}\r\n".encode() + b" " * (100 << 20)
    tracemalloc.start()
    try:
        with serving(lambda _: body) as address, pytest.raises(ScopeError, match=re.escape(address)):
            Prometheus(address=address).query("up")
        assert tracemalloc.get_traced_memory()[1] < 80 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("page", PAGES)
def test_pages_say_what_garbage_is(open_app: Callable[..., AppTest], page: str) -> None:
    """No page fails, and each shows the error."""
    for case in ("a bad status line", "deep nesting", "texts and null", "no value", "a redirect", "a page of HTML"):
        with serving(lambda _, case=case: GARBAGE[case]) as address:
            app = open_app(page, address)
        assert not app.exception, case
        assert len(app.error) == 1, case


def ranged_or_now(path: str, value: str) -> bytes:
    """Return one series with all labels that pages look at, over time where that is asked."""
    labels = ("run", "run_id", "instance", "job", "gpu", "link", "device", "port", "phase", "counter", "type")
    metric = dict.fromkeys(labels, "1") | {"version": "4.0", "world_size": "8"}
    if "/query_range" in path:
        return result([{"metric": metric, "values": [[NOW, value], [NOW + 1, value]]}])
    if "/alerts" in path:
        return http('{"data":{"alerts":[]}}')
    return result([{"metric": metric, "value": [NOW, value]}])


@pytest.mark.parametrize("value", ["+Inf", "-Inf", "NaN", "1e308", "1e18", "-1e18", "0", "0.5"])
def test_no_value_breaks_a_page(open_app: Callable[..., AppTest], value: str) -> None:
    """A number of any size, and what is none, draws each page without an error of Streamlit."""
    for page in PAGES:
        with serving(lambda path: ranged_or_now(path, value)) as address:
            app = open_app(page, address)
        assert not app.exception, (page, [each.message for each in app.exception])


def test_every_metric_that_pages_ask_for_exists(open_app: Callable[..., AppTest]) -> None:
    """Each name in what the three pages ask a server is in the exporter's list of metrics, or recorded by a rule."""
    asked: list[str] = []

    def answer(path: str) -> bytes:
        asked.extend(parse_qs(urlsplit(path).query).get("query", []))
        return ranged_or_now(path, "1")

    for page in PAGES:
        with serving(answer) as address:
            assert not open_app(page, address).exception
    names = {name for expression in asked for name in NAME.findall(unquote(expression))}
    known = set(NAME.findall(METRICS.read_text())) | set(re.findall(r"record: (\S+)", RULES.read_text()))
    assert "scope_rdma_port_events_total" in names
    assert "scope_train_phase_seconds_total" in names
    assert "scope_nvlink_info" in names
    assert names <= known, names - known
